"""Connections of a program to a node's file: opening, keeping and closing them without dropping SQLite's locks.

SQLite uses POSIX locks, and a process loses all its POSIX locks on a file as soon as it closes any descriptor of that
file. A SQLite library avoids this for its own descriptors, but does not know those of another library in the process.
So Python's ``sqlite3`` may not open a file that this library has open, and the program may not open its -shm file.
"""

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import unquote

import apsw

from bedrockish.common import forks
from bedrockish.common.pauses import monotonic
from bedrockish.engine.statements.changes_vtab import give_functions
from bedrockish.engine.statements.clock_functions import Holder
from bedrockish.errors import UnavailableError, UsageError
from bedrockish.local.page import Published, PublishedFacts
from bedrockish_journal.storage.packing import unpack_on
from bedrockish_journal.storage.vector_modules import ModuleConnection

STATEMENTS_KEPT = 512
SHM = "-shm"  # the file in which SQLite has the locks of its readers
BUSY_MS = 1_000  # busy timeout; SQLite locks the file briefly while it rebuilds the WAL's index
ASK_S = 0.01  # how long a closing thread waits before it interrupts the running statement again
KEEP_S, KEPT_MAX = 1.0, 8  # how long, and for how many closed sessions, connections are kept
BUSY_TRIES, BUSY_PAUSE_S = 100, 0.01  # most attempts to query a busy connection for its file; seconds between two
# The open connections, each with the device and the inode of its file. A connection that was never closed is
# removed by the callback of its weak reference. No lock guards this: each operation is atomic, and a finalizer may run
# between any two operations.
_open: dict[object, tuple[int, int]] = {}
_lock = threading.Lock()  # held while the audit hook is installed
_opening = threading.Lock()  # held while a thread checks whether another library has the file open
_is_watching = False
_abandoned: list[object] = []  # the parent's connections after a fork; closing them in the child could harm the parent


def connect(published: Published, facts: PublishedFacts) -> apsw.Connection:
    """Return a read-only connection, in a read transaction, to the file that a page names.

    Raises:
        UnavailableError: the node does not serve the file, or exchanged it while it was being opened.
        UsageError: Python's ``sqlite3`` has the file open in this process.
    """
    published.check(facts)
    _watch()
    place, opening = (facts.device, facts.inode), object()
    with _opening:
        if place not in list(_open.values()):
            _check_alone(published.database, place)
        # Recorded before the file is open: otherwise another thread would attribute the descriptor to another library.
        _open[opening] = place
    try:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        db: apsw.Connection = ModuleConnection(published.database, flags=flags, statementcachesize=STATEMENTS_KEPT)
        _open[weakref.ref(db, _forget)] = place
        db.set_progress_handler(forks.stand_still, forks.STEPS, id="fork")
    except apsw.Error as error:
        raise UnavailableError(f"{published.database} cannot be opened: {error}; {_remedy(error)}") from error
    finally:
        _open.pop(opening, None)
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
        close(db)
        raise UnavailableError(f"{published.database} cannot be read: {error}; {_remedy(error)}") from error
    except BaseException:
        close(db)
        raise
    return db


def _remedy(error: apsw.Error) -> str:
    is_count = isinstance(error, apsw.CantOpenError)  # the cause is mostly a lack of file descriptors
    return f"{'raise the limit of files of the program, or ' if is_count else ''}connect to a URL"


def _has_changed(published: Published, facts: PublishedFacts) -> bool:
    now = published.facts()
    published.check(now)
    return (now.generation, now.process, now.process_start) != (facts.generation, facts.process, facts.process_start)


def close(db: apsw.Connection) -> None:
    """Close a connection without a checkpoint, and without removing the WAL."""
    db.close(True)
    _forget(weakref.ref(db))


def _forget(db: weakref.ref[apsw.Connection]) -> None:
    """Record that a connection is closed."""
    _open.pop(db, None)


@contextmanager
def lock_interrupting(lock: threading.RLock, interrupt: Callable[[], None]) -> Iterator[None]:
    """Hold a lock in the block; until another thread releases it, interrupt that thread's statement."""
    while not lock.acquire(timeout=ASK_S):
        interrupt()
    try:
        yield
    finally:
        lock.release()


class ClosedSession(Protocol):
    """The connections of a closed session."""

    def is_served(self) -> bool:
        """Return whether the node serves the file of the connections now."""

    def close(self) -> None:
        """Close the connections."""


class KeptConnections:
    """The connections of the last closed sessions of this process: many programs open a session for each request.

    A session opens several connections, on each of which SQLite reads the schema and compiles the session's statements.
    So the connections of a closed session are kept here, without snapshots, for the next session of the same file. They
    are closed if no session takes them within ``KEEP_S``, if the node stops or exchanges its file, at the end of the
    program, and before another SQLite library opens the file.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may close a session while this thread has the lock
        self._kept: list[tuple[object, ClosedSession, float]] = []
        self._is_ended = False  # whether the program is ending
        forks.watch_forks(self)
        forks.wait_at_forks(self)
        atexit.register(self.end)

    def keep(self, key: object, kept: ClosedSession) -> None:
        """Keep connections for the next session with this key."""
        with self._lock:
            self._kept.append((key, kept, monotonic()))
            self._close(self._kept if self._is_ended else self._kept[:-KEPT_MAX])

    def take(self, key: object) -> Any:
        """Return the connections that were kept last for this key, or None."""
        forks.notice_fork()
        with self._lock:
            for place in reversed(range(len(self._kept))):
                if self._kept[place][0] == key:
                    return self._kept.pop(place)[1]
            return None

    def tick(self) -> None:
        """Close connections that were kept for ``KEEP_S``, and those whose file the node does not serve any more."""
        if self._kept and self._lock.acquire(blocking=False):
            try:
                late = monotonic() - KEEP_S
                self._close([one for one in self._kept if one[2] < late or not one[1].is_served()])
            finally:
                self._lock.release()

    def close_all(self) -> None:
        """Close all connections that are kept."""
        with self._lock:
            self._close(self._kept)

    def end(self) -> None:
        """Close all connections, and keep none from now on."""
        self._is_ended = True
        self.close_all()

    def _close(self, those: list[tuple[object, ClosedSession, float]]) -> None:
        for one in list(those):
            if one in self._kept:  # a finalizer may run here, and close some of them
                self._kept.remove(one)
                one[1].close()

    def fork_locks(self) -> Iterator[forks.Lock]:
        """Yield the lock of the thread that closes connections."""
        yield self._lock

    def after_fork(self) -> None:
        """Leave the connections to the parent."""
        abandon(self._kept)
        self._kept, self._lock = [], threading.RLock()


def abandon(inherited: object) -> None:
    """Keep a reference to an object of the parent process, so that it is never closed in this child."""
    _abandoned.append(inherited)


def _after_fork() -> None:
    global _lock, _opening
    _lock, _opening = threading.Lock(), threading.Lock()
    _open.clear()


def _watch() -> None:
    """Install the audit hook that refuses to open a file a second time."""
    global _is_watching
    with _lock:
        if not _is_watching:
            _is_watching = True
            sys.addaudithook(_audit)
            forks.call_after_fork(_after_fork)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse calls that would drop SQLite's locks: closing any descriptor on a file drops the process's locks there."""
    if event not in ("open", "sqlite3.connect") or not _open or not arguments:
        return
    name = arguments[0]
    if not isinstance(name, str | bytes | os.PathLike):
        return
    text = os.fsdecode(name)
    if event == "open":
        if text.endswith(SHM) and _is_used(text.removesuffix(SHM)):
            raise UsageError(
                f"{text} cannot be opened while this process has the database open: closing it would drop SQLite's "
                "locks; copy the database by 'bedrockish backup', or open the file in another process"
            )
    elif _is_used(text) or _is_used(_path_in(text)):
        raise UsageError(
            f"bedrockish has {text} open in this process, and a second SQLite library would drop its locks; use "
            "bedrockish.dbapi, or open it in another process"
        )


def _is_used(path: str) -> bool:
    """Return whether a session has a file open; first close the connections that no session uses."""
    if _is_open(path):
        KEPT.close_all()
    return _is_open(path)


def _is_open(path: str) -> bool:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return False
    return (found.st_dev, found.st_ino) in list(_open.values())


def _path_in(text: str) -> str:
    """Return the path in a URI, such as ``file:/srv/A%20B.sqlite?mode=ro``; any other text unchanged."""
    if not text.startswith("file:"):
        return text
    path = text.removeprefix("file:").partition("?")[0].partition("#")[0]
    if path.startswith("//"):
        path = f"/{path.removeprefix('//').partition('/')[2]}"  # without the name of the host
    return unquote(path)


def _check_alone(database: str, place: tuple[int, int]) -> None:
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
                f"another library of this process, such as sqlite3, has {database} open, and the two would drop "
                "each other's locks; close it there, or use one in another process"
            )


def _is_ours(database: str) -> bool:
    """Return whether APSW itself has the file open in this process, for example for a node in the same process."""
    for _ in range(BUSY_TRIES):
        names = [_name(one) for one in apsw.connections()]
        if any(os.path.realpath(name) == database for name in names if name):
            return True
        if None not in names:
            return False
        time.sleep(BUSY_PAUSE_S)
    return False


def _name(db: apsw.Connection) -> str | None:
    """Return the path of a connection's file, empty without one; None while another thread runs a statement on it."""
    try:
        return db.filename
    except apsw.ThreadingViolationError:
        return None
    except apsw.ConnectionClosedError:
        return ""


KEPT = KeptConnections()
