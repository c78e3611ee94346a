"""A transaction that a killed process has left unfinished in a file in SQLite's rollback mode."""

import os
from contextlib import closing

import apsw

BUSY_MS = 5_000


def roll_back(path: str | os.PathLike[str], error: apsw.Error) -> bool:
    """Roll back such a transaction, if it is why a file cannot be opened to read; return whether that was done.

    SQLite itself rolls it back when a program opens the file to write, and refuses programs that only read until then.
    """
    if getattr(error, "extendedresult", 0) != apsw.SQLITE_READONLY_ROLLBACK:
        return False
    try:
        with closing(apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            db.set_busy_timeout(BUSY_MS)
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except apsw.Error:
        return False
    return True
