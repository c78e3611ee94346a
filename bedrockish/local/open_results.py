"""Large results of a program's reads, whose rows are read while the program fetches them, as in SQLite.

The first rows of a result come with its statement. If there are more, the connection stays with the running statement
until the result is over, and a spare connection replaces it in the session (``OpenResults.open``). A thread reads a
result that the program does not fetch for a while into memory, because its snapshot keeps the node's write-ahead log
from starting over.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from sys import getsizeof
from typing import Protocol

import apsw

from bedrockish.access_sets.definitions import folded
from bedrockish.access_sets.opcodes import rows_of
from bedrockish.common.keeper import Keeper
from bedrockish.common.pauses import monotonic
from bedrockish.engine.statements.guard import NO_VALUES
from bedrockish.errors import ResultLostError, UnavailableError
from bedrockish.local import connections
from bedrockish.local.page import Published
from bedrockish.local.snapshots import FileSnapshots, ReadConnection, Row, next_rows

OPEN_MAX = 8
"""The most results of a session that are read while they are fetched; a further result is read to its end at once."""
IDLE_S, IDLE_BYTES = 1.0, 64 << 20
"""The seconds without a fetch after which rows are read into memory, and about the most bytes of one result."""
LONG_S, LONG_BYTES = 60.0, 512 << 20
"""After this time, up to these bytes are read into memory; at this limit, the program loses the rows after them."""
STEP_S, PAUSE_S = 0.01, 0.05
"""How long rows of one result are read into memory at a time, and the pause before the next time."""


class RunningRead:
    """A statement whose rows are not all fetched; its connection has no other statement.

    Args:
        prepared: the value of ``OpenResults._prepared`` when the connection was prepared.
    """

    def __init__(self, sql: str, reader: ReadConnection, published: Published, prepared: int) -> None:
        self.sql, self.reader, self._published, self.prepared = sql, reader, published, prepared
        self.lock = threading.RLock()  # held while SQLite computes rows
        self.parts: deque[tuple[list[Row], int]] = deque()  # the rows that were read into memory, with their bytes
        self._held = 0  # the bytes of all parts
        self.error: Exception | None = None  # the error to raise after the rows of ``parts``
        self.fetched_at = monotonic()
        self.is_reading = False  # whether SQLite computes rows now
        self.is_over = False  # whether all rows were read, or an error has ended the statement
        self.is_dropped = False  # whether no cursor needs further rows any more

    def fetch(self) -> list[Row]:
        """Return the next rows; an empty list at the end. The caller holds ``lock``."""
        self.fetched_at = monotonic()
        if self.parts:
            rows, size = self.parts.popleft()
            self._held -= size
            return rows
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return [] if self.is_over else self._read()

    def _read(self) -> list[Row]:
        self.is_reading = self.is_over = True
        try:
            rows, is_more = next_rows(self.reader.cursor)
            self.is_over = not is_more
            return rows
        finally:
            self.is_reading = False

    def read_ahead(self) -> None:
        """Read rows into memory for ``STEP_S``, if the program has not fetched rows for a while."""
        # First test without the lock, because a fetch may need it now.
        if self.is_dropped or not self._is_due() or not self.lock.acquire(blocking=False):
            return
        try:
            if self.is_over or not self._is_due():
                return
            is_long = monotonic() - self.fetched_at > LONG_S
            self._fill(LONG_BYTES if is_long else IDLE_BYTES)
            if is_long and not self.is_over and self._held >= LONG_BYTES:
                self.is_over = True
                self.error = ResultLostError(
                    f"the rest of the result was not fetched for {LONG_S:g} s, and its snapshot was released; run "
                    "the statement again, or fetch its rows at once"
                )
        finally:
            self.lock.release()

    def _is_due(self) -> bool:
        is_idle = monotonic() - self.fetched_at > IDLE_S
        return is_idle or self._published.wants_release(self.reader.facts.generation)

    def _fill(self, most: int) -> None:
        until = monotonic() + STEP_S
        while not (self.is_over or self._held >= most):
            try:
                rows = self._read()
                size = sum(map(getsizeof, chain(rows, *rows)))
                self.parts.append((rows, size))
                self._held += size
            except Exception as error:  # the program gets it with a later fetch
                self.error = error
            if monotonic() > until:
                return

    def interrupt(self) -> None:
        """Interrupt the statement, at once or when it goes on."""
        with suppress(apsw.ConnectionClosedError):
            self.reader.db.interrupt()

    def close(self) -> None:
        """Interrupt the statement, and close the connection unless the statement itself is calling this."""
        with connections.lock_interrupting(self.lock, self.interrupt):
            if self.is_reading:
                self.interrupt()
            else:
                self.is_over = True
                self.reader.close()


_AHEAD: Keeper[RunningRead] = Keeper("bedrockish-results", PAUSE_S, lambda running, _: RunningRead.read_ahead(running))


class OpenResults:
    """The results of one session that its program is still fetching.

    Args:
        snapshots: the connections of the session.
        lock: the session's lock; the caller of ``open``, ``prepare_again`` and ``abandon`` holds it.
    """

    def __init__(self, snapshots: FileSnapshots, lock: Callable[[], threading.RLock]) -> None:
        self._snapshots, self._lock = snapshots, lock
        self.running: list[RunningRead] = []  # the statements whose connections are lent
        self._spare: ReadConnection | None = None  # a connection without a snapshot, for the next result
        self._prepared = 0  # a number that changes with the functions of the program, and the attached files

    def open(self, reader: ReadConnection, sql: str, names: Iterable[object]) -> RunningRead | None:
        """Lend a connection to its running statement, and replace it among the session's two; return the statement.

        Return None, without effect, if the statement must be read to its end now: in a ``snapshot`` block, because its
        snapshot keeps the log from starting over, because it calls the program, which another thread than the
        program's must not do, or because no further connection or thread can be had.

        Args:
            names: the names of the program's functions and collations; an empty one stands for a progress handler.
        """
        snapshots = self._snapshots
        self._end_dropped()
        if snapshots.pins or snapshots.is_log_ending or len(self.running) >= OPEN_MAX or _names_any(names, sql, reader):
            return None
        spare, self._spare = self._spare or snapshots.another(), None
        if spare is None:
            return None
        published = snapshots.published
        assert published is not None
        running = RunningRead(sql, reader, published, self._prepared)
        try:
            _AHEAD.add(running)
        except UnavailableError:
            spare.close()
            return None
        known = weakref.ref(running)  # the connection should keep no reference to the result
        reader.interrupt_if(lambda: (one := known()) is None or one.is_dropped)
        snapshots.readers[0] = spare
        self.running.append(running)
        return running

    def end_dropped(self) -> None:
        """End the statements that no cursor needs; if another thread reads now, leave that to it or to the keeper."""
        lock = self._lock()
        if lock.acquire(blocking=False):
            try:
                self._end_dropped()
            finally:
                lock.release()

    def _end_dropped(self) -> None:
        spare = self._spare
        if spare is not None and not self._is_current(spare):
            self._spare = None
            spare.close()
        for running in [one for one in self.running if one.is_dropped or one.is_over]:
            if running.lock.acquire(blocking=False):
                try:
                    # A statement can call a function of the program that closes the statement's cursor.
                    if not running.is_reading:
                        self.running.remove(running)
                        running.is_over = True
                        self._take_back(running)
                finally:
                    running.lock.release()

    def _take_back(self, running: RunningRead) -> None:
        reader = running.reader
        if self._spare is None and running.prepared == self._prepared and self._is_current(reader):
            reader.interrupt_if(self._snapshots.is_late)
            reader.end()
            self._spare = reader
        else:
            reader.close()

    def _is_current(self, reader: ReadConnection) -> bool:
        """Return whether a connection is to the file of the session's other connections."""
        snapshots = self._snapshots
        return bool(snapshots.readers) and snapshots.has_opened(reader.facts) and not snapshots.is_closed

    def prepare_again(self) -> None:
        """Have the lent connections closed after use, because each lacks a new function or attached file."""
        self._prepared += 1
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def interrupt(self) -> None:
        """Interrupt the statements."""
        for running in list(self.running):
            running.interrupt()

    def abandon(self) -> None:
        """Leave the statements to the parent of a fork."""
        connections.abandon((self.running, self._spare))
        for running in self.running:
            running.lock, running.is_dropped = threading.RLock(), True  # so that the child's keeper reads no rows
        self.running, self._spare = [], None

    def close(self) -> None:
        """End the statements. The caller does not hold the session's lock, which a function of the program may need."""
        self.prepare_again()
        while self.running:
            self.running.pop().close()


def _names_any(names: Iterable[object], sql: str, reader: ReadConnection) -> bool:
    """Return whether a statement or its bytecode has any of these names, in capital or small letters.

    A view or a generated column can call a function that the statement does not name.
    """
    wanted = list(map(str, names))
    if not wanted:
        return False
    program = rows_of(reader.db.execute(f"EXPLAIN {sql}", NO_VALUES, can_cache=False))
    calls = " ".join(str(row[5]) for row in program if row is not None)
    text = f"{folded(sql)} {folded(calls)}"
    return any(name in text for name in wanted)


class Fetching(Protocol):
    """The session of a result."""

    def read_on(self, running: RunningRead) -> list[Row]:
        """Return the next rows; an empty list at the end."""

    def end_dropped(self) -> None:
        """End the statements that no cursor needs."""


class OpenResult:
    """The further rows of a result. A cursor has the only reference, so a dropped cursor ends the statement."""

    __slots__ = ("_running", "_session")

    def __init__(self, session: Fetching, running: RunningRead) -> None:
        self._session, self._running = session, running

    def batch(self) -> list[Row]:
        """Return the next rows; an empty list at the end. The errors are those of ``LocalReads.read_on``."""
        return self._session.read_on(self._running)

    def close(self) -> None:
        """End the statement; a second close does nothing."""
        self._running.is_dropped = True
        self._session.end_dropped()

    def __del__(self) -> None:
        """Have the keeper end the statement: the collector may run while another call has the locks."""
        self._running.is_dropped = True
