"""Functions, aggregates and collations of a program, on the connections that it has to a node's file.

They exist in the program's process only. A statement that runs there finds them; rows and keys reach the cluster.
"""

from collections.abc import Callable
from typing import Any

import apsw

from bedrockish.errors import SqlError

Give = Callable[[apsw.Connection], None]


class ProgramError(SqlError):
    """Raised when a function of the program raises, as sqlite3 says it."""

    code = "function_raised"


def scalar(name: str, arguments: int, function: Callable[..., Any] | None, *, deterministic: bool) -> Give:
    """Return the registration of a function; None removes it."""
    given = None if function is None else _guarded(function, "user-defined function raised exception")

    def give(db: apsw.Connection) -> None:
        db.create_scalar_function(name, given, arguments, deterministic=deterministic)

    return give


def aggregate(name: str, arguments: int, cls: Any) -> Give:
    """Return the registration of an aggregate: a class with ``step`` and ``finalize``; None removes it."""

    def begin() -> Any:
        one = _guarded(cls, "user-defined aggregate's '__init__' method raised error")()
        step = _guarded(lambda _, *values: one.step(*values), "user-defined aggregate's 'step' method raised error")
        final = _guarded(lambda _: one.finalize(), "user-defined aggregate's 'finalize' method raised error")
        return one, step, final

    def give(db: apsw.Connection) -> None:
        db.create_aggregate_function(name, None if cls is None else begin, arguments)

    return give


def window(name: str, arguments: int, cls: Any) -> Give:
    """Return the registration of a window function: ``step``, ``inverse``, ``value`` and ``finalize``; None removes."""

    def begin() -> Any:
        one = _guarded(cls, "user-defined aggregate's '__init__' method raised error")()
        return one, *(
            _guarded(_called(name), f"user-defined aggregate's '{name}' method raised error")
            for name in ("step", "finalize", "value", "inverse")
        )

    def give(db: apsw.Connection) -> None:
        db.create_window_function(name, None if cls is None else begin, arguments)

    return give


def _called(method: str) -> Callable[..., Any]:
    return lambda one, *values: getattr(one, method)(*values)


End = Callable[[], None]


def progress(handler: Callable[[], Any] | None, steps: int, ending: Callable[[], End | None]) -> Give:
    """Return the registration of a function that is called as statements run; a true value ends the one that runs.

    Args:
        handler: None removes it.
        steps: SQLite's own, between two calls.
        ending: returns what ends the statement that the program runs; None: one of ours runs.
    """

    def ask() -> bool:
        end = ending()
        if end is None or handler is None or not handler():
            return False
        end()
        return True

    def give(db: apsw.Connection) -> None:
        db.set_progress_handler(None if handler is None or steps <= 0 else ask, max(steps, 1), id="program")

    return give


def collation(name: str, compare: Callable[[str, str], int] | None) -> Give:
    """Return the registration of a collation; None removes it."""
    given = None if compare is None else _guarded(compare, "the collation raised exception")

    def give(db: apsw.Connection) -> None:
        db.create_collation(name, given)

    return give


def _guarded(function: Callable[..., Any], told: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise ProgramError(told) from error

    return call
