"""Loads a CSV file into a table of a cluster, batch by batch, each row once however often it is interrupted and run."""

import codecs
import csv
import hashlib
import io
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bedrockish.client.aio import Client
from bedrockish.client.load import BATCH_BYTES, LAYOUT, ROW_BYTES_MAX, Once, commands_done, cut, inserts, quote
from bedrockish.errors import BedrockishError, UsageError

BATCH_ROWS = 1_000
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file to be loaded, and how.

    Attributes:
        path: the file, in UTF-8.
        separator: between two values.
        skip: lines at its beginning that are no rows.
        again: a word that makes this another load than one without it: the rows are added once more.
    """

    path: Path
    separator: str = ","
    skip: int = 0
    again: str = ""

    def fingerprint(self, table: str) -> str:
        """Return a digest of what is loaded into which table.

        Raises:
            UsageError: the file is not UTF-8 text.
        """
        how = f"{LAYOUT} {self.separator!r} {self.skip} {self.again} {table.lower()}"
        digest = hashlib.sha256(how.encode())
        decoder = codecs.getincrementaldecoder("utf-8")()
        with self.path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                try:
                    decoder.decode(chunk)
                except UnicodeDecodeError as error:
                    raise UsageError(f"{self.path} is not UTF-8 text ({error.reason}); convert it first") from error
        return digest.hexdigest()[:32]

    def rows(self, told: Callable[[int], None]) -> Generator[tuple[int, list[str]], None, None]:
        """Yield the number of the line at which each row ends and its values; ``told`` how far in bytes.

        Raises:
            UsageError: it is no CSV.
        """
        csv.field_size_limit(ROW_BYTES_MAX)
        with self.path.open("rb") as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
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
                raise UsageError(f"{self.path}:{self.skip + reader.line_num}: this is no CSV: {error}") from error
        told(self.path.stat().st_size)


@dataclass(slots=True)
class Filled:
    """What was loaded.

    Attributes:
        rows: in all.
        before: batches that an earlier run had loaded.
        created: the table was made from the names in the file's first row.
        short, long: rows with fewer values than columns, whose rest is NULL, and with more, whose rest is left out.
    """

    rows: int = 0
    before: int = 0
    created: bool = False
    short: int = 0
    long: int = 0


async def load_table(client: Client, source: TableFile, table: str, told: Callable[[int], None]) -> Filled:
    """Load a file into a table; without such a table, make one with the names in the first row.

    Args:
        client: session with the cluster.
        source: the file.
        table: name of the table.
        told: how many bytes of the file are done.

    Raises:
        UsageError: the file cannot be read, or the cluster refuses a row; the text says which rows it took before.
        BedrockishError: no node takes it.
    """
    prefix = f"csv-{source.fingerprint(table)}-"
    once = Once(client, prefix, await commands_done(client, prefix))
    found = await client.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0", (table,))
    columns = [name for (name,) in found]
    rows = source.rows(told)
    filled = Filled(created=not columns or once.has("create"))
    if filled.created:
        with closing(source.rows(lambda _: None)) as peek:
            columns = _header(source, next(peek, (0, []))[1])
        made = ", ".join(f"{quote(column)} TEXT" for column in columns)
        await once.send("create", [f"CREATE TABLE {quote(table)}({made})"])
        next(rows)
    last = 0

    def fitted() -> Iterator[tuple[str | None, ...]]:
        nonlocal last
        for last, row in rows:  # noqa: B007  (where it stopped, for the error)
            filled.short += len(row) < len(columns)
            filled.long += len(row) > len(columns)
            yield (*row[: len(columns)], *[None] * (len(columns) - len(row)))

    with closing(rows):
        for number, batch in enumerate(cut(fitted(), BATCH_ROWS, BATCH_BYTES)):
            try:
                await once.send(f"rows-{number}", inserts(table, columns, batch))
            except BedrockishError as error:
                where = f"{source.path}: rows {filled.rows + 1} to {filled.rows + len(batch)} (up to line {last})"
                done = f"the {filled.rows} rows before are in the table"
                raise type(error)(f"{where}: {error.message}; {done}", **error.details) from error
            filled.rows += len(batch)
    filled.before = once.before
    return filled


def _header(source: TableFile, names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    if not names or not all(names):
        raise UsageError(f"{source.path}: its first row should name the columns of the new table, without a gap")
    twice = {name for name in names if [other.lower() for other in names].count(name.lower()) > 1}
    if twice:
        raise UsageError(f"{source.path}: its first row has the name {min(twice)!r} twice; make the table first")
    return names
