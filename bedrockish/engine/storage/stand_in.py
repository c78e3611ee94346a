"""The *stand-in*, the system table on which an index is built: its row in ``sqlite_schema``, and its removal.

The stand-ins that a killed process has left are removed when the file is opened.
"""

from pathlib import Path
from typing import Any

import apsw

from bedrockish.access_sets.system_names import BARE, STAND_IN
from bedrockish.engine.storage.wal import changing

DESCRIBE = "INSERT INTO sqlite_schema(type, name, tbl_name, rootpage, sql) VALUES (?, ?, ?, ?, ?)"
_STAND_INS = "SELECT name FROM sqlite_schema WHERE type = 'table' AND (name = ? OR name GLOB ?)"
REFUSALS = (apsw.ConstraintError, apsw.SQLError, apsw.MismatchError, apsw.TooBigError, apsw.CorruptError)


class Writable:
    """Lets the connection write ``sqlite_schema`` for a moment."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        self._db.execute("PRAGMA writable_schema = ON")

    def __exit__(self, *_exc: object) -> None:
        self._db.execute("PRAGMA writable_schema = OFF")
        self._db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)


def root_of(db: apsw.Connection, name: str) -> int:
    """Return the root page of a table or index; 0 if it does not exist."""
    found: list[Any] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchall()
    return int(found[0][0]) if found else 0


def stand_ins(db: apsw.Connection) -> list[str]:
    """Return the names of the stand-ins in the file: one table, or one for each shadow table of an FTS5 index."""
    found: list[Any] = db.execute(_STAND_INS, (STAND_IN, f"{STAND_IN}_*")).fetchall()
    return [str(name) for (name,) in found]


def describe(db: apsw.Connection, name: str, root: int, sql: str) -> None:
    """Let only this connection know a table that is not in the file, by a row in ``sqlite_schema``.

    The row is deleted as soon as the connection has read it.
    """
    with Writable(db):
        db.execute(DESCRIBE, ("table", name, name, root, sql))
        try:
            db.execute("PRAGMA writable_schema = RESET")
            known = db.table_exists("main", name)  # this makes the connection read the schema
        finally:
            db.execute("PRAGMA writable_schema = ON")
            db.execute("DELETE FROM sqlite_schema WHERE name = ?", (name,))
        assert known


def forget(db: apsw.Connection) -> None:
    """Make this connection read the schema from the file again, and forget tables made known by ``describe``."""
    with Writable(db):
        db.execute("PRAGMA writable_schema = RESET")


def remove_leftovers(db: apsw.Connection) -> None:
    """Remove the unfinished results of builds, if any.

    The writing connection may also know tables that are not in the file: the stand-in under its bare name, or as an
    FTS5 table. The connection must forget them: otherwise another table may get their root pages, and the next build
    would delete that table's rows.
    """
    left = stand_ins(db)
    if db.table_exists("main", BARE) or (db.table_exists("main", STAND_IN) and STAND_IN not in left):
        forget(db)
    for name in left:
        db.execute(f"DROP TABLE {name}")


def remove_copied(copy: Path) -> None:
    """Remove the leftovers of a build from a copy of a node's file, and fsync the copy. No program may have it open.

    Raises:
        ConfigError: the copy cannot be written.
    """
    with changing(copy) as db:
        remove_leftovers(db)
