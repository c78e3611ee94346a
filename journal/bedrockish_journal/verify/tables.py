"""Compares a node's tables with a replay of its journal, which must make the same tables."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw

from bedrockish_journal.storage.pruning import marks
from bedrockish_journal.storage.store import read_meta, reading
from bedrockish_journal.storage.table_layout import user_tables
from bedrockish_journal.verify.differences import Difference, differences
from bedrockish_journal.verify.replay import Prepare, digest, replay

# SQLite also reports rows that break a constraint. Such rows can be in the journal, and nodes apply them unchecked.
_OF_ROWS = re.compile(r"ok$|NULL value in |CHECK constraint failed in |[A-Z-]+ value in ")


def why_not_whole(db: apsw.Connection) -> str:
    """Return the reason why a journal alone cannot reproduce its node's tables; empty if it can."""
    if marks(db):
        return "the beginning of the journal was removed to make room, so it does not say what the tables must be"
    if read_meta(db, "began_with"):
        return "the cluster began with a database that had tables already, which the journal does not have"
    return ""


def compare_with_journal(path: str | os.PathLike[str], prepare: Prepare | None, limit: int) -> list[Difference]:
    """Return the first differences between a node's tables and a replay of its journal, by table and key.

    If the cluster began with tables, only the tables that the journal makes are compared.

    The file is copied first, so a running node may write it.

    Raises:
        JournalError: the file cannot be read, has no journal, or has an inconsistent one.
    """
    with tempfile.TemporaryDirectory(prefix="bedrockish-") as folder:
        copy, made = Path(folder, "copy.db"), Path(folder, "made.db")
        copy_now(path, copy)
        faults = [*index_faults(copy, prepare, limit)]
        if replay([copy], made, prepare=prepare).digest == digest(copy):
            return faults
        found = differences(str(copy), str(made), limit)
        if began_with_tables(copy):  # the journal does not have the tables with which the cluster began
            tables = _tables(made)
            found = [one for one in found if one.table in tables]
        return faults + found


def copy_now(path: str | os.PathLike[str], copy: Path) -> None:
    """Copy a node's file as of one moment, so that a running node cannot change it between replay and comparison."""
    with (
        reading(path) as source,
        closing(apsw.Connection(str(copy))) as target,
        target.backup("main", source, "main") as backup,
    ):
        backup.step()


def index_faults(path: str | os.PathLike[str], prepare: Prepare | None, limit: int) -> Iterator[Difference]:
    """Yield the faults that ``PRAGMA integrity_check`` finds in a file, except rows that break a constraint.

    Digests do not cover indexes, but queries use them.
    """
    with reading(path) as db:
        try:
            if prepare is not None:
                prepare(db)
            for (text,) in db.execute(f"PRAGMA integrity_check({max(1, limit)})"):
                if _OF_ROWS.match(str(text)) is None:
                    yield Difference("", None, f"SQLite finds: {text}")
        except (apsw.SQLError, apsw.CorruptError) as error:
            yield Difference("", None, f"SQLite cannot check the file: {error}")


def began_with_tables(path: str | os.PathLike[str]) -> bool:
    """Return whether a file says that its cluster began with a database that had tables already."""
    with reading(path) as db:
        return bool(read_meta(db, "began_with"))


def _tables(path: Path) -> set[str]:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:  # an empty file has no tables
        return {table.name for table in user_tables(db)}
