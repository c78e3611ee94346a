"""Switches a session's settings on for a connection while one of its statements is explained or runs.

SQLite compiles a statement with the settings of its connection, so a statement with settings is never taken from the
statement cache. The PRAGMA for LIKE replaces the function ``like``, so SQLite compiles all other statements of
the connection again. The PRAGMA for recursive triggers only sets a flag; the other statements stay compiled.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from bedrockish.errors import UnavailableError
from bedrockish.sqltext.session_settings import LIKE, TRIGGERS, Settings

_TRIES = 5  # attempts to run the PRAGMA, because an interrupt by another thread ends only one of them


@contextmanager
def in_force(db: apsw.Connection, settings: Settings) -> Iterator[None]:
    """Compile statements in the block with these settings; no statement may run when the block begins or ends.

    Raises:
        UnavailableError: another statement of the connection is running.
    """
    if not settings:
        yield
        return
    switch(db, settings, on=True)
    try:
        yield
    finally:
        switch(db, settings, on=False)


def switch(db: apsw.Connection, settings: Settings, *, on: bool) -> None:
    """Switch settings on or off.

    Raises:
        UnavailableError: a statement is running, so that SQLite cannot replace LIKE; no setting was switched on.
        AssertionError: a statement is running, so that LIKE cannot be switched back.
    """
    if LIKE in settings and not _switch_like(db, on=on):
        if not on:
            raise AssertionError("LIKE cannot be switched back: a statement is running")
        raise UnavailableError("another statement of this connection is running; run this one again")
    if TRIGGERS in settings:
        db.execute(f"EXPLAIN PRAGMA {TRIGGERS} = {int(on)}", can_cache=False).close(True)


def _switch_like(db: apsw.Connection, *, on: bool) -> bool:
    """Switch LIKE; return whether SQLite has done so, because it raises no error if it cannot."""
    for _ in range(_TRIES):
        try:
            cursor = db.cursor()
            cursor.row_trace = cursor.exec_trace = None
            cursor.execute(f"PRAGMA {LIKE} = {int(on)}", can_cache=False)
            cursor.execute("SELECT 'a' LIKE 'A'", can_cache=False)
            found = [bool(value) for (value,) in cursor]
            cursor.close(True)
        except apsw.InterruptError:
            continue
        return found == [not on]
    return False
