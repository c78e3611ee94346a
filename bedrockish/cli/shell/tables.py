"""``.import``: a file of CSV into a table."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import trio

from bedrockish import open_client
from bedrockish.cli.progress import progress_bar
from bedrockish.cli.shell.session import Shell
from bedrockish.errors import UsageError
from bedrockish.transfer.load_csv import CsvLoad, TableFile, load_table


def import_file(shell: Shell, words: list[str]) -> None:
    """Load a file of CSV into a table; see ``load_table``.

    Raises:
        UsageError: an argument is wrong, or a transaction is open.
        BedrockishError: the cluster does not take the rows.
    """
    source, table = _arguments(words)
    if shell.connection.in_transaction:
        raise UsageError(".import makes transactions of its own; COMMIT or ROLLBACK first")
    if not source.path.exists():
        raise UsageError(f"{source.path}: there is no such file")
    try:
        with _rereadable(source) as given:
            filled, token = trio.run(_load, shell.url, shell.connection.token, given, table)
    except BaseExceptionGroup as errors:  # Ctrl-C may reach any task of the client
        if errors.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from errors
        raise
    shell.connection.token = token
    shell.changed_schema += filled.created
    if not shell.is_for_people and not filled.short + filled.long + filled.before:
        return
    notes = [f"{filled.rows} rows of {source.path} are in {table}"]
    if filled.before:
        notes.append("an earlier run had brought some or all of them, and they were not repeated; --again adds them")
    if filled.short:
        notes.append(f"{filled.short} had too few values, the rest is NULL")
    if filled.long:
        notes.append(f"{filled.long} had too many values, which were left out")
    shell.say("; ".join(notes))


@contextmanager
def _rereadable(source: TableFile) -> Iterator[TableFile]:
    """Yield the file, with a copy of its content during the block if it is a pipe."""
    if source.path.is_file():
        yield source
        return
    with source.path.open("rb") as pipe, tempfile.NamedTemporaryFile(prefix="bedrockish-") as copy:
        shutil.copyfileobj(pipe, copy)
        copy.flush()
        yield replace(source, copy=Path(copy.name))


async def _load(url: str | None, token: bytes, source: TableFile, table: str) -> tuple[CsvLoad, bytes]:
    size = max(1, source.content.stat().st_size)
    async with open_client(url, token=token) as client:
        with progress_bar() as told:
            filled = await load_table(client, source, table, lambda done: told(table, done, size))
        return filled, client.token


def _arguments(words: list[str]) -> tuple[TableFile, str]:
    separator, skip, again = ",", 0, ""
    left: list[str] = []
    ahead = iter(words)
    for word in ahead:
        if word == "--tabs":
            separator = "\t"
        elif word == "--csv":
            separator = ","
        elif word == "--again":
            again = uuid.uuid4().hex
        elif word == "--skip":
            number = next(ahead, "")
            if not number.isdigit():
                raise UsageError(f"--skip takes how many lines to leave out, not {number!r}")
            skip = int(number)
        elif word.startswith("-"):
            raise UsageError(f".import has no option {word}; there is --csv, --tabs, --skip N and --again")
        else:
            left.append(word)
    if len(left) != 2:
        raise UsageError("write .import FILE TABLE")
    return TableFile(Path(left[0]), separator, skip, again), left[1]
