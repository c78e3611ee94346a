"""Loads a file of CSV into a table: each row once, however often the load is run again."""

import codecs
import csv
import hashlib
import io
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, UsageError
from bedrockish.transfer.load_database import (
    BATCH_BYTES,
    LAYOUT,
    ROW_BYTES_MAX,
    IdempotentSender,
    commands_done,
    cut,
    inserts,
)
from bedrockish_journal.model.plain_names import quote

BATCH_ROWS = 1_000
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file to be loaded, and the options of the load."""

    path: Path  # the file, in UTF-8
    separator: str = ","  # the character between two values
    skip: int = 0  # header lines to skip
    # A word that distinguishes this load from an earlier one of the same file, so that the rows are added once more.
    again: str = ""
    copy: Path | None = None  # a copy of a pipe's content, because a load reads its file more than once

    @property
    def content(self) -> Path:
        """The file that the load reads: the copy of a pipe's content, or the given file."""
        return self.copy or self.path

    def fingerprint(self, table: str) -> str:
        """Return a digest of the file's content and the target table.

        Raises:
            UsageError: the file is not UTF-8 text.
        """
        how = f"{LAYOUT} {self.separator!r} {self.skip} {self.again} {table.lower()}"
        digest = hashlib.sha256(how.encode())
        decoder = codecs.getincrementaldecoder("utf-8")()
        with self.content.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                try:
                    decoder.decode(chunk)
                except UnicodeDecodeError as error:
                    raise UsageError(f"{self.path} is not UTF-8 text ({error.reason}); convert it first") from error
        return digest.hexdigest()[:32]

    def rows(self, told: Callable[[int], None]) -> Generator[tuple[int, Sequence[str]], None, None]:
        """Yield each row's last line number and its values; call ``told`` with the number of bytes read so far.

        Raises:
            UsageError: the content is not valid CSV.
        """
        csv.field_size_limit(ROW_BYTES_MAX)
        with self.content.open("rb") as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
            for _ in range(self.skip):
                file.readline()
            reader = csv.reader(file, delimiter=self.separator, strict=True)
            try:
                for row in reader:
                    if row:
                        yield self.skip + reader.line_num, row
                        if not reader.line_num % 1000:
                            told(raw.tell())
            except csv.Error as error:
                raise UsageError(f"{self.path}:{self.skip + reader.line_num}: this is not CSV: {error}") from error
        told(self.content.stat().st_size)


@dataclass(slots=True)
class CsvLoad:
    """The result of a load."""

    rows: int = 0  # the number of rows of the file that are in the table
    before: int = 0  # the number of batches that an earlier run had loaded
    created: bool = False  # whether the table was made from the names in the file's first row
    # ``short``: rows with fewer values than columns; the other columns are NULL. ``long``: rows with more values than
    # columns; surplus values are left out.
    short: int = 0
    long: int = 0


async def load_table(client: Client, source: TableFile, table: str, told: Callable[[int], None]) -> CsvLoad:
    """Load a file into a table; without such a table, make one with the names in the first row.

    Args:
        told: called with the number of bytes of the file whose rows are loaded.

    Raises:
        UsageError: the file cannot be read, or the cluster refuses a row; the text says which rows were loaded before.
        BedrockishError: no node accepts the rows.
    """
    prefix = f"csv-{source.fingerprint(table)}-"
    had = await commands_done(client, prefix)
    once = IdempotentSender(client, prefix, had)
    found = await client.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0", (table,))
    columns = [name for (name,) in found]
    if had and not columns:
        raise UsageError(f"{source.path} was imported before, and {table} dropped since; --again imports it once more")
    rows = source.rows(told)
    filled = CsvLoad(created=not columns or once.has("create"))
    if filled.created:
        with closing(source.rows(lambda _: None)) as peek:
            columns = _header(source, next(peek, (0, []))[1])
        made = ", ".join(f"{quote(column)} TEXT" for column in columns)
        await once.send("create", [f"CREATE TABLE {quote(table)}({made})"])
        next(rows)
    lines: list[int] = []  # the last line number of each row of the batch

    def fitted() -> Iterator[tuple[Any, ...]]:
        for line, row in rows:
            lines.append(line)
            yield _fit(row, len(columns), filled)

    with closing(rows):
        for number, batch in enumerate(cut(fitted(), BATCH_ROWS, BATCH_BYTES)):
            try:
                await once.send(f"rows-{number}", inserts(table, columns, batch))
            except BedrockishError as error:
                place = await _culprit(client, table, columns, batch) if isinstance(error, UsageError) else None
                line = f"line {lines[place]}" if place is not None else f"up to line {lines[-1]}"
                where = f"{source.path}: rows {filled.rows + 1} to {filled.rows + len(batch)} ({line})"
                done = f"the {filled.rows} rows before are in the table"
                raise type(error)(f"{where}: {error.message}; {done}", **error.details) from error
            filled.rows += len(batch)
            lines.clear()
    filled.before = once.before
    return filled


def _fit(row: Sequence[str], count: int, filled: CsvLoad) -> tuple[Any, ...]:
    """Return a row with as many values as the table has columns."""
    filled.short += len(row) < count
    filled.long += len(row) > count
    return (*row[:count], *[None] * (count - len(row)))


async def _culprit(client: Client, table: str, columns: list[str], batch: list[tuple[Any, ...]]) -> int | None:
    """Return the index of the row that the cluster refuses, found by inserting row after row, and rolling back.

    Return None if the cluster accepts each row alone and refused only the whole batch, or if it cannot be asked.
    """
    place = None
    with suppress(BedrockishError):
        transaction = await client.begin()
        try:
            for place, row in enumerate(batch):  # noqa: B007  (used after the loop)
                ((sql, params),) = inserts(table, columns, [row])
                await transaction.execute(sql, params)
            place = None
        finally:
            await transaction.rollback()
    return place


def _header(source: TableFile, row: Sequence[str]) -> list[str]:
    names = [name.strip() for name in row]
    if not names or not all(names):
        raise UsageError(f"{source.path}: its first row should name the columns of the new table, without a gap")
    twice = {name for name in names if [other.lower() for other in names].count(name.lower()) > 1}
    if twice:
        raise UsageError(f"{source.path}: its first row has the name {min(twice)!r} twice; make the table first")
    return names
