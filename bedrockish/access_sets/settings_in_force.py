"""A session's settings, in force on a connection while one of its statements is explained or runs.

SQLite compiles a statement by the settings of its connection; so one that has settings never comes from the cache of
statements. LIKE is switched by a PRAGMA that replaces the function, and SQLite then compiles all other statements of
the connection again. The flag of triggers is set when its PRAGMA is compiled, which compiles nothing again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from bedrockish.errors import UnavailableError
from bedrockish.sqltext.session_settings import LIKE, TRIGGERS, Settings

_TRIES = 5  # an interrupt that another thread has asked for ends one statement


@contextmanager
def in_force(db: apsw.Connection, settings: Settings) -> Iterator[None]:
    """Have statements compiled with these settings in the block; no statement may be at work at its ends.

    Raises:
        UnavailableError: another statement of the connection is at work.
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
        UnavailableError: a statement is at work, so that SQLite keeps its functions, and nothing was switched on.
        AssertionError: likewise, and the settings would stay on.
    """
    if LIKE in settings and not _switch_like(db, on=on):
        if not on:
            raise AssertionError("LIKE cannot be switched back: a statement is at work")
        raise UnavailableError("another statement of this connection is at work; run this one again")
    if TRIGGERS in settings:
        db.execute(f"EXPLAIN PRAGMA {TRIGGERS} = {int(on)}", can_cache=False).close(True)


def _switch_like(db: apsw.Connection, *, on: bool) -> bool:
    """Switch LIKE, and return whether SQLite has done so: it tells no error where it cannot."""
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
