"""A watchdog thread that ends statements that run for too long.

SQLite calls a progress handler after a number of its own steps. Where each step is expensive, as with
``hex(randomblob(…))`` for every row, these calls are seconds apart, and a call after each step would slow down all
other statements. But SQLite tests for an interrupt at every jump, at no cost, so this thread interrupts late
statements. An interrupt cannot end a single call of a function; that is bounded by the length of its values
(``call_costs``).
"""

import threading
import time
import weakref
from collections.abc import Callable

import apsw

from bedrockish.common.forks import watch_forks
from bedrockish.common.machine import start_thread
from bedrockish.common.pauses import monotonic

TICK_S = 0.005  # seconds between two checks of the running statements
IDLE_S = 0.5  # seconds without a statement after which the thread sleeps until the next one


class Interrupter:
    """Interrupts the statements of one user of connections, which runs one statement at a time.

    Args:
        is_late: returns whether the running statement has run for too long; called in the watchdog's thread.
    """

    __slots__ = ("__weakref__", "_db", "_is_late", "_lock", "is_interrupted")

    def __init__(self, is_late: Callable[[], bool]) -> None:
        self._is_late = is_late
        # Whether the current statement was interrupted: by the watchdog, a progress handler, or another thread.
        self.is_interrupted = False
        self._lock = threading.Lock()
        self._db: apsw.Connection | None = None
        _WATCHDOG.add(self)

    def begin(self, db: apsw.Connection) -> None:
        """Watch a statement that begins to run on this connection."""
        with self._lock:
            self._db, self.is_interrupted = db, False
        _WATCHDOG.is_wanted = True
        if _WATCHDOG.sleeps:
            _WATCHDOG.wake()

    def renew(self) -> None:
        """Forget the statement and the lock in a forked child: they belong to a thread of the parent."""
        self._lock, self._db = threading.Lock(), None

    def end(self) -> None:
        """End the watch, because the statement has ended."""
        with self._lock:
            self._db, self.is_interrupted = None, False

    def caused(self, error: apsw.Error) -> bool:
        """Return whether an interrupt caused the error of the running statement.

        SQLite reports an interrupt as SQLITE_INTERRUPT, with one exception: if it is interrupted while it rewrites a
        window function, it reports SQLITE_ERROR with a text about columns.
        """
        return isinstance(error, apsw.InterruptError) or (self.is_interrupted and type(error) is apsw.SQLError)

    def check(self) -> bool:
        """Interrupt the running statement if it is late; return whether a statement runs. For the watchdog only."""
        with self._lock:
            db = self._db
            if db is None:
                return False
            try:
                if self._is_late():
                    self.is_interrupted = True
                    db.interrupt()
            except apsw.Error:  # the connection was closed when its thread was stopped midway
                self._db = None
        return True


class _Watchdog:
    """The watchdog of all interrupters: one thread, which lives as long as the process."""

    def __init__(self) -> None:
        self._all: weakref.WeakSet[Interrupter] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        # ``is_wanted``: whether a statement has begun since the last check.
        # ``sleeps``: whether the thread waits to be woken.
        self.is_wanted, self.sleeps = False, True
        watch_forks(self)

    def after_fork(self) -> None:
        """Start without a thread, which a fork does not copy, and with a new lock, which the parent may hold."""
        self._lock, self._woken, self._thread = threading.Lock(), threading.Event(), None
        self.is_wanted, self.sleeps = False, True
        for one in list(self._all):
            one.renew()

    def add(self, one: Interrupter) -> None:
        with self._lock:
            self._all.add(one)

    def wake(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                try:
                    start_thread(self._thread.start)
                # The machine has no room for a thread; the progress handlers still work.
                except (RuntimeError, MemoryError):
                    self._thread = None
                    return
            self.sleeps = False
        self._woken.set()

    def _run(self) -> None:
        last = monotonic()
        while True:
            with self._lock:
                everyone = list(self._all)
            is_busy = False
            for one in everyone:
                is_busy = one.check() or is_busy
            del everyone
            now = monotonic()
            if is_busy or self.is_wanted:
                last, self.is_wanted = now, False
            if now - last > IDLE_S:
                self._woken.clear()
                self.sleeps = True
                if not self.is_wanted:  # a statement that began before ``sleeps`` was set did not wake the thread
                    self._woken.wait()
                self.sleeps, last = False, monotonic()
            time.sleep(TICK_S)


_WATCHDOG = _Watchdog()
