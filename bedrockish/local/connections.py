"""Connections of a program to a node's file: opened under one generation of the page, and never with locks lost.

A process loses its POSIX locks on a file, which SQLite uses, as soon as it closes any descriptor on that file. One
SQLite library takes care of that for itself; two libraries in one process know nothing of each other. So Python's
``sqlite3`` is refused a file that this library has open.
"""

import os
import sys
import threading
from typing import Any

import apsw

from bedrockish.engine.statements.changes_vtab import give_functions
from bedrockish.engine.statements.clock_functions import Holder
from bedrockish.errors import UnavailableError, UsageError
from bedrockish.local.page import Facts, Published
from bedrockish_journal.storage.store import unpack_on
from bedrockish_journal.storage.vector_modules import Connection

STATEMENTS_KEPT = 512
BUSY_MS = 1_000  # for the moment in which SQLite reads the WAL's index again
_open: dict[tuple[int, int], int] = {}  # files that this process has open: device and inode -> how often
_lock = threading.Lock()
_is_watching = False
_abandoned: list[object] = []  # connections of the process before a fork: closing them here would be the parent's loss


def connect(published: Published, facts: Facts) -> apsw.Connection:
    """Return a connection that only reads, in a read transaction, to the file that a page names.

    Raises:
        UnavailableError: the node does not serve the file, or has exchanged it while it was opened.
        UsageError: Python's ``sqlite3`` has the file open in this process.
    """
    published.check(facts)
    _watch()
    place = facts.device, facts.inode
    _check_alone(published.database, place)
    try:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        db = Connection(published.database, flags=flags, statementcachesize=STATEMENTS_KEPT)
    except apsw.Error as error:
        raise UnavailableError(f"{published.database} cannot be opened: {error}; connect to a URL") from error
    with _lock:
        _open[place] = _open.get(place, 0) + 1
    try:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.set_busy_timeout(BUSY_MS)
        give_functions(db, Holder())
        unpack_on(db)
        db.execute("BEGIN")
        db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # now all files of the database are open
        if _has_changed(published, facts):
            raise UnavailableError(f"{published.database} was exchanged while it was opened; try again")
    except apsw.Error as error:
        close(db, place)
        raise UnavailableError(f"{published.database} cannot be read: {error}; connect to a URL") from error
    except BaseException:
        close(db, place)
        raise
    return db


def _has_changed(published: Published, facts: Facts) -> bool:
    now = published.facts()
    published.check(now)
    return (now.generation, now.process, now.since) != (facts.generation, facts.process, facts.since)


def close(db: apsw.Connection, place: tuple[int, int]) -> None:
    """Close a connection; nothing of the WAL is copied or removed."""
    db.close(True)
    with _lock:
        left = _open.get(place, 0) - 1
        if left > 0:
            _open[place] = left
        else:
            _open.pop(place, None)


def abandon(held: object) -> None:
    """Keep something of the process before a fork from being closed."""
    _abandoned.append(held)


def _after_fork() -> None:
    _open.clear()


def _watch() -> None:
    """Refuse this process a second SQLite library on a file that is open here."""
    global _is_watching
    with _lock:
        if not _is_watching:
            _is_watching = True
            sys.addaudithook(_audit)
            os.register_at_fork(after_in_child=_after_fork)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "sqlite3.connect" or not _open or not arguments:
        return
    name = arguments[0]
    if not isinstance(name, str | bytes | os.PathLike):
        return
    text = os.fsdecode(name)
    if text.startswith("file:"):
        text = text.removeprefix("file:").removeprefix("//").partition("?")[0]
    try:
        found = os.stat(text)
    except (OSError, ValueError):
        return
    if (found.st_dev, found.st_ino) in _open:
        raise UsageError(
            f"{text} is open in this process by bedrockish, and a second SQLite library would drop its locks; use "
            "bedrockish.dbapi, or open it in another process"
        )


def _check_alone(database: str, place: tuple[int, int]) -> None:
    """Make sure that no other library of this process has the file open.

    Raises:
        UsageError: one has.
    """
    if place in _open:
        return  # by this library, for which one more is nothing
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return
    for number in numbers:
        try:
            found = os.stat(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == place and not _is_ours(database):
            raise UsageError(
                f"{database} is open in this process by another library, such as sqlite3, and two of them would drop "
                "each other's locks; close it there, or use one in another process"
            )


def _is_ours(database: str) -> bool:
    """Whether APSW itself has the file open in this process, as a node in the same process has."""
    return any(os.path.realpath(one.filename) == database for one in apsw.connections() if one.filename)
