"""The limits of one request, and of all requests of a node together.

Only this module and the watchdog read a clock in the engine, to bound a statement's run time.
"""

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from time import thread_time

import apsw

from bedrockish.access_sets.call_costs import bound
from bedrockish.common.pauses import monotonic
from bedrockish.errors import MemoryFullError, StatementTimeoutError, TooLargeError

RECENT_S = 60.0
LONG_TEXT = 32 << 10  # characters of a text, above which it is compiled in a worker
ANALYSIS_ROWS = 1_000  # about how many rows of each index ANALYZE reads, in the node's loop
MANY_PARAMETERS = 5_000  # parameters of a statement, above which they are bound in a worker
SMALL_TIMES = 2  # above this multiple of ``max_bytes``, even requests that are usually small are refused


class Memory:
    """The account of the memory that all requests of a node take; above its bound, the newest statement is ended.

    SQLite reports its own share; code that keeps rows, answers and messages adds their bytes. Clients' statements, and
    the work that they begin, may be refused; decided transactions never are. Used from the node's loop and from the
    threads in which statements run.
    """

    def __init__(
        self,
        max_bytes: int = 1 << 62,  # the bytes that requests may take
        used: Callable[[], int] = apsw.memory_used,  # returns the bytes that SQLite has taken
        now: Callable[[], float] = lambda: 0.0,  # a clock that only goes forward, in seconds
    ) -> None:
        self.max_bytes, self._used, self._now = max_bytes, used, now
        self.elsewhere = 0  # the bytes of holders without an account here, as they last reported them
        self._held: Counter[object] = Counter()
        self._held_bytes = 0
        self._numbers = itertools.count(1)
        self._running: dict[int, int] = {}  # number of a statement -> bytes of its rows; the newest is last
        self._refused: deque[float] = deque(maxlen=1_000)

    @property
    def taken(self) -> int:
        """The bytes taken now: SQLite's, those of ``hold`` and ``elsewhere``, and rows of running statements."""
        taken = self._used() + self._held_bytes + self.elsewhere
        return taken + sum(list(self._running.values())) if self._running else taken  # a copy: other threads write

    @property
    def is_full(self) -> bool:
        """True if more memory is taken than ``max_bytes``."""
        return self.taken > self.max_bytes

    def hold(self, owner: object, count: int) -> None:
        """Count bytes as held for an owner; a negative number releases bytes. May be called in the loop only."""
        self._held[owner] += count
        self._held_bytes += count
        if self._held[owner] <= 0:
            del self._held[owner]

    def move(self, owner: object, count: int) -> None:
        """Move bytes from an owner's account to ``elsewhere``."""
        self.hold(owner, -count)
        self.elsewhere += count

    def held(self, owner: object) -> int:
        """Return the bytes that are held for an owner."""
        return self._held.get(owner, 0)

    def register(self) -> int:
        """Register a statement that begins; return its number, which the other methods need."""
        number = next(self._numbers)
        self._running[number] = 0
        return number

    def record(self, number: int, count: int) -> None:
        """Record the bytes of the rows that a statement has returned so far; called in the statement's thread.

        Raises:
            MemoryFullError: too much memory is taken, and the statement is the newest.
        """
        self._running[number] = count
        if self.must_end(number):
            raise self.refusal("the statement was ended")

    def end(self, number: int) -> None:
        """Remove a statement that has ended."""
        self._running.pop(number, None)

    def must_end(self, number: int) -> bool:
        """Return whether a statement must end: too much memory is taken, and no newer statement runs."""
        if not self.is_full:
            return False
        try:
            return number == next(reversed(self._running), 0)
        except RuntimeError:  # another statement begins or ends at this moment; the next check decides
            return False

    def check(self) -> None:
        """Check that a request that is usually small may begin, even when large requests have taken all memory.

        Raises:
            MemoryFullError: more than ``SMALL_TIMES`` times ``max_bytes`` are taken.
        """
        if self.taken > SMALL_TIMES * self.max_bytes:
            raise self.refusal("this node uses more memory than it may")

    def check_large(self) -> None:
        """Check that a request that may take much memory may begin.

        Raises:
            MemoryFullError: more than ``max_bytes`` are taken.
        """
        if self.is_full:
            raise self.refusal("this node uses more memory than it may")

    def refusal(self, what: str) -> MemoryFullError:
        """Record a refusal for lack of memory; return its error."""
        self.note_refusal()
        return MemoryFullError(
            f"{what}: {self.taken >> 20} of {self.max_bytes >> 20} MiB (memory_max) are taken; nothing happened: read "
            "large results as streams and with LIMIT, and try again later",
            memory_max=self.max_bytes,
        )

    def note_refusal(self) -> None:
        """Record that a request was refused now."""
        self._refused.append(self._now())

    def describe(self) -> dict[str, int]:
        """Return the taken bytes, their limit and the number of recent refusals, as plain data."""
        oldest = self._now() - RECENT_S
        recently = sum(1 for when in self._refused if when > oldest)
        return {"taken_bytes": self.taken, "max_bytes": self.max_bytes, "recently_refused": recently}


class TakesLongError(Exception):
    """Raised when a request has used up its budget in the loop; it then runs in a worker, to delay no other request.

    ``sql`` is the statement that ran.
    """

    def __init__(self, sql: str) -> None:
        super().__init__(sql)
        self.sql = sql


TRANSACTION_BYTES = 64 << 20  # the longest message between nodes, in which a transaction is sent
VALUE_BYTES_MAX = 1_000_000_000  # the limit with which SQLite itself is compiled


def _busy_of(thread: int) -> float:
    """Return the processor time of a running thread, in seconds; 0 if the system does not tell it."""
    find = getattr(time, "pthread_getcpuclockid", None)
    return 0.0 if find is None else time.clock_gettime(find(thread))


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one request, and of the WAL file."""

    result_bytes: int = 64 << 20  # size of all results of a request together
    changes_bytes: int = 32 << 20  # size of all rows that a request changes, before and after
    statement_s: float = 30.0  # how long one statement may run, in seconds
    wal_frames: int = 4_000  # frames in the WAL at which a background checkpoint is due
    # Frames in the WAL at which the node itself finishes the checkpoint at the end of a batch, if less than a quarter
    # of ``wal_frames`` are left to copy; at twice this number, even if more are left, unless a reader holds the
    # checkpoint back.
    wal_frames_max: int = 32_000
    seconds: Callable[[], float] = monotonic  # a clock that only goes forward, in seconds
    busy: Callable[[], float] = thread_time  # returns the processor time of the calling thread, in seconds
    busy_of: Callable[[int], float] = _busy_of  # returns the processor time of another, running thread, by its identity
    # Processor time that a request may use in the loop, in seconds, before it is run again in a worker.
    budget_s: float = 0.01
    memory: Memory = field(default_factory=Memory)  # the memory of all requests together

    @property
    def length_bytes(self) -> int:
        """The maximum length of a value in SQLite, in bytes: in the journal, a whole transaction is one value."""
        return min(max(self.result_bytes, self.changes_bytes, TRANSACTION_BYTES) + (1 << 20), VALUE_BYTES_MAX)


ROWS_NOTED = 1 << 20  # bytes of rows between two checks of the memory


class RowMeter:
    """The counter of the bytes of a statement's rows, which are bounded and added to the taken memory.

    Args:
        number: the statement's number in ``Memory``.
        room: bytes that the rows may take.
        way_out: the advice in the error if the rows take more.
    """

    def __init__(self, limits: "Limits", number: int, room: int, way_out: str) -> None:
        self._limits, self._number, self._room, self._way_out = limits, number, room, way_out
        self._noted = 0
        self.size = 0

    def add(self, size: int) -> None:
        """Count a row of ``size`` bytes.

        Raises:
            TooLargeError: the rows take more than their room.
            MemoryFullError: the node has no memory for them.
        """
        self.size += size
        if self.size > self._room:
            most = self._limits.result_bytes
            raise TooLargeError(f"the results take more than {most} bytes; {self._way_out}", limit=most)
        if self.size - self._noted > ROWS_NOTED:
            self._noted = self.size
            self._limits.memory.record(self._number, 2 * self.size)  # twice: the rows will also be in memory encoded


_FOREVER = float("inf")
WALL_FACTOR = 10  # how many budgets of wall-clock time a request may take: it may wait for the disk or a processor


class Budget:
    """The time that work may still use in the node's loop before it must move to another thread.

    The budget is counted in the thread's processor time. On a busy machine, or one that was stopped for a moment,
    everything takes long by the wall clock, and more threads would only make that worse.
    """

    __slots__ = ("_busy", "_limits", "_soonest", "_thread", "_wall", "is_brief")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._busy = self._wall = self._soonest = _FOREVER
        self._thread = 0
        self.is_brief = False  # whether the budget is that of the node's loop, for which other requests wait

    def allow(self, budget_s: float) -> None:
        """Set the processor time, in seconds, that the work of this thread may use from now on; infinity: no bound."""
        limits = self._limits
        self.is_brief = budget_s <= limits.budget_s
        if budget_s == _FOREVER:
            self._busy = self._wall = self._soonest = budget_s
        else:
            now = limits.seconds()
            self._thread = get_ident()
            self._busy = limits.busy() + budget_s
            self._soonest, self._wall = now + budget_s, now + WALL_FACTOR * budget_s

    @property
    def is_over(self) -> bool:
        """True if the work has used up its budget."""
        if self._busy == _FOREVER:
            return False
        return self._limits.busy() > self._busy or self._limits.seconds() > self._wall

    def seems_over(self) -> bool:
        """Return whether the budget seems used up; another thread may call this while the work runs."""
        now = self._limits.seconds()
        return now > self._soonest and (now > self._wall or self._limits.busy_of(self._thread) > self._busy)


def out_of_time(limits: Limits, sql: str) -> StatementTimeoutError:
    """Return the error for a statement that ran too long."""
    return StatementTimeoutError(
        f"a statement ran longer than {limits.statement_s:g} s and was interrupted; add an index, run it over a range "
        "of keys at a time, or raise statement_ms_max at the node",
        sql=sql,
        limit_s=limits.statement_s,
    )


def set_options(db: apsw.Connection, limits: Limits) -> None:
    """Set the options that affect statements, for a connection on which statements of clients write."""
    db.pragma("foreign_keys", 1)
    db.pragma("recursive_triggers", 0)
    db.pragma("analysis_limit", ANALYSIS_ROWS)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)  # refuses writes to the catalogue and shadow tables
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
    bound(db, limits.length_bytes)
