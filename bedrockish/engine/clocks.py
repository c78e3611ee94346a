"""The functions of the cluster's clock in SQL: what a statement may ask of time.

They may be called anywhere in a statement, in a view, a trigger and a DEFAULT. Rows travel, not statements, so each is
called once, where the transaction is led. None is marked deterministic: the file's indexes, constraints and generated
columns must not need them, so that any SQLite tool can read it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import apsw

from bedrockish.clock import milliseconds
from bedrockish.errors import SqlError, UnsupportedError, UsageError
from journal.changes import Value
from journal.tables import CLOCK_FUNCTIONS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECONDS_MAX = 253_402_300_799_999  # the end of the year 9999, after which SQLite knows no time


class ClockNeededError(UsageError):
    """Raised inside: a statement calls ``transaction_clock()``, and a majority has not been asked for one yet."""


@dataclass(slots=True)
class Scope:
    """What the functions give in what runs now.

    Attributes:
        tick: gives a new value of the node's clock; None: nothing runs that may ask for one.
        skip: moves the node's clock on by so many values, and returns it.
        command: the id of the command.
        clock: the transaction's clock; 0 if a majority has not been asked.
        used: whether the transaction's clock was asked for.
        named: whether the id of the command was asked for.
        is_missing: it was asked for, and there was none.
    """

    tick: Callable[[], int] | None = None
    skip: Callable[[int], int] | None = None
    command: str = ""
    clock: int = 0
    used: bool = False
    named: bool = False
    is_missing: bool = False

    def take(self) -> int:
        """Return a new value of the node's clock."""
        assert self.tick is not None, "whoever drives the engine has given it a clock"
        return self.tick()

    def take_many(self, count: int) -> int:
        """Return the last of so many consecutive values, all of them new."""
        assert self.skip is not None, "whoever drives the engine has given it a clock"
        self.take()
        return self.skip(count - 1)

    def begin(self, command: str, clock: int) -> None:
        """A transaction, or a statement of one, runs from now on."""
        self.command, self.clock, self.used, self.named = command, clock, False, False

    def begin_aside(self, command: str, clock: int, tick: Callable[[], int]) -> None:
        """A whole transaction runs from now on, in another thread."""
        self.begin(command, clock)
        self.tick, self.is_missing = tick, False


@dataclass(slots=True)
class Holder:
    """Which scope a connection's functions look at; None while it is not a transaction that uses it."""

    scope: Scope | None = field(default=None)

    def require(self, name: str) -> Scope:
        """Return the scope.

        Raises:
            UnsupportedError: there is none.
        """
        if self.scope is None or self.scope.tick is None:
            raise UnsupportedError(
                f"{name}() cannot be called in a streamed result or an explanation; use a plain request"
            )
        return self.scope


def register(db: apsw.Connection, holder: Holder) -> None:
    """Let a connection's statements call the functions."""

    def cluster_clock() -> int:
        return holder.require("cluster_clock").take()

    def transaction_clock() -> int:
        scope = holder.require("transaction_clock")
        if not scope.clock:
            scope.is_missing = True
            raise ClockNeededError("transaction_clock() needs a majority to be asked first")
        scope.used = True
        return scope.clock

    def transaction_id() -> str:
        scope = holder.require("transaction_id")
        scope.named = True
        return scope.command

    def safe_clock() -> int:
        # What this connection sees: on a snapshot, nothing at or below it is missing from that snapshot.
        row = db.execute("SELECT value FROM bedrockish_meta WHERE key = 'safe'").fetchone()
        return 0 if row is None or not isinstance(row[0], int) else row[0]

    given: dict[str, tuple[Callable[..., Value], int]] = {
        "cluster_clock": (cluster_clock, 0),
        "transaction_clock": (transaction_clock, 0),
        "transaction_id": (transaction_id, 0),
        "safe_clock": (safe_clock, 0),
        "clock_time": (clock_time, 1),
        "is_after": (is_after, 2),
    }
    assert given.keys() == set(CLOCK_FUNCTIONS)
    for name, (function, arguments) in given.items():
        db.create_scalar_function(name, function, arguments, flags=apsw.SQLITE_INNOCUOUS)


def _clock(name: str, value: Value) -> int:
    if type(value) is not int or value < 0:
        raise SqlError(f"{name}() takes clocks, which are whole numbers from 0, not {value!r:.40}")
    return value


def clock_time(clock: Value) -> Value:
    """Return the moment in a clock in the form of SQLite's datetime() with milliseconds, UTC; NULL for NULL."""
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
