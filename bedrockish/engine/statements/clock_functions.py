"""The SQL functions of the cluster's clock.

Statements, views, triggers and DEFAULTs may call them. Nodes replicate rows and not statements, so a function is called
only at the node that leads the transaction. No function is marked deterministic: the indexes, constraints and generated
columns of the file must not need the functions, so that any SQLite tool can read the file.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import apsw

from bedrockish.engine.statements.row_locks import RowLocks
from bedrockish.errors import SqlError, UnsupportedError, UsageError
from bedrockish_journal.model.changes import Value
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.storage.table_layout import CLOCK_FUNCTIONS, SKIP_LOCKED

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECONDS_MAX = 253_402_300_799_999  # the end of the year 9999, SQLite's last time


class ClockNeededError(UsageError):
    """Raised internally: a statement calls ``transaction_clock()``, and no majority was asked for a clock yet."""


@dataclass(slots=True)
class Scope:
    """The values that the functions return to the running statement."""

    # Returns a new value of the node's clock; None: the running statement may not call the functions.
    tick: Callable[[], int] | None = None
    skip: Callable[[int], int] | None = None  # advances the node's clock by a number of values, and returns the last
    command: str = ""  # the id of the command
    clock: int = 0  # the transaction's clock; 0 if no majority was asked for a clock
    used: bool = False  # whether a statement has asked for the transaction's clock
    named: bool = False  # whether a statement has asked for the id of the command
    locks: RowLocks | None = None  # the rows that open transactions have locked
    base: Mapping[str, int] | None = None  # the commits that the transaction has seen; None if unknown
    locked: list[bytes] = field(default_factory=list)  # keys of the rows that the statement has locked

    def take(self) -> int:
        """Return a new value of the node's clock."""
        assert self.tick is not None, "the engine's caller sets the clock before a statement"
        return self.tick()

    def take_many(self, count: int) -> int:
        """Return the last of ``count`` consecutive new values of the node's clock."""
        assert self.skip is not None, "the engine's caller sets the clock before a statement"
        self.take()
        return self.skip(count - 1)

    def begin(self, command: str, clock: int, base: Mapping[str, int] | None = None) -> None:
        """Start a transaction, or a statement of a transaction, on the commits of ``base``."""
        self.command, self.clock, self.used, self.named = command, clock, False, False
        self.base = base
        if self.locked:
            self.locked.clear()

    def take_locked(self) -> list[bytes]:
        """Return the keys of the rows that the last statement has locked, and clear them."""
        locked = self.locked.copy()
        self.locked.clear()
        return locked

    def begin_in_worker(self, command: str, clock: int, tick: Callable[[], int]) -> None:
        """Start a transaction whose statements all run in another thread; ``tick`` returns values of its clock."""
        self.begin(command, clock)
        self.tick = tick


@dataclass(slots=True)
class Holder:
    """Holds the scope of a connection's clock functions; ``scope`` is None while no transaction uses the connection."""

    scope: Scope | None = field(default=None)

    def require(self, name: str) -> Scope:
        """Return the scope of the running statement, for a call of the function ``name``.

        Raises:
            UnsupportedError: no statement that may call the function is running.
        """
        if self.scope is None or self.scope.tick is None:
            raise UnsupportedError(
                f"{name}() cannot be called in a streamed result or an explanation; use a plain request"
            )
        return self.scope


def register(db: apsw.Connection, holder: Holder) -> None:
    """Register the clock's functions on a connection; they take their values from the scope in ``holder``."""
    own = weakref.proxy(db)  # SQLite keeps the functions, which must not keep the connection

    def cluster_clock() -> int:
        return holder.require("cluster_clock").take()

    def transaction_clock() -> int:
        scope = holder.require("transaction_clock")
        if not scope.clock:
            raise ClockNeededError("transaction_clock() needs a majority to be asked first")
        scope.used = True
        return scope.clock

    def transaction_id() -> str:
        scope = holder.require("transaction_id")
        scope.named = True
        return scope.command

    def safe_clock() -> int:
        # Safe time as stored in this connection's snapshot, which has every commit at or below it.
        row = own.execute("SELECT value FROM bedrockish_meta WHERE key = 'safe'").fetchone()
        return 0 if row is None or not isinstance(row[0], int) else row[0]

    def skip_locked(*arguments: Value) -> int:
        scope = holder.scope
        if scope is None or scope.locks is None:
            raise UnsupportedError(f"{SKIP_LOCKED}() cannot be called in a streamed result; use a plain request")
        key = scope.locks.lock(scope.command, scope.base, arguments[0] if arguments else None, arguments[1:])
        if key is not None:
            scope.locked.append(key)
        return int(key is not None)

    given: dict[str, tuple[Callable[..., Value], int]] = {
        "cluster_clock": (cluster_clock, 0),
        "transaction_clock": (transaction_clock, 0),
        "transaction_id": (transaction_id, 0),
        "safe_clock": (safe_clock, 0),
        "clock_time": (clock_time, 1),
        "is_after": (is_after, 2),
    }
    assert given.keys() == set(CLOCK_FUNCTIONS)
    given[SKIP_LOCKED] = (skip_locked, -1)
    for name, (function, arguments) in given.items():
        db.create_scalar_function(name, function, arguments, flags=apsw.SQLITE_INNOCUOUS)


def _clock(name: str, value: Value) -> int:
    if type(value) is not int or value < 0:
        raise SqlError(f"{name}() takes clocks, which are whole numbers from 0, not {value!r:.40}")
    return value


def clock_time(clock: Value) -> Value:
    """Return the time of a clock as a text like that of SQLite's datetime(), with milliseconds, UTC; NULL for NULL."""
    if clock is None:
        return None
    moment = milliseconds(_clock("clock_time", clock))
    if moment > MILLISECONDS_MAX:
        raise SqlError(f"clock_time() was given {clock!r}, which is after the year 9999")
    return (EPOCH + timedelta(milliseconds=moment)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def is_after(later: Value, earlier: Value) -> Value:
    """Return 1 if the first clock is after the second, else 0; NULL if one of them is NULL."""
    if later is None or earlier is None:
        return None
    return int(_clock("is_after", later) > _clock("is_after", earlier))
