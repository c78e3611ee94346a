"""Django's SQL functions, for the nodes: ``plugins = ["bedrockish.django.functions"]`` in their configuration.

Django implements these functions in Python, and registers them with each connection of ``sqlite3``. Here SQL runs on
the nodes, so Django must be installed there, too, in the same version as in the programs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import apsw
from django.db.backends.sqlite3._functions import register as register_all


@contextmanager
def _as_in_sqlite3(what: str) -> Iterator[None]:
    """Turn an exception of a function into an error of the statement, as ``sqlite3`` does."""
    try:
        yield
    except (apsw.Error, MemoryError):
        raise
    except Exception as error:
        raise apsw.SQLError(f"user-defined {what} raised exception: {type(error).__name__}: {error}") from error


class _Aggregate:
    """One use of an aggregate. As in ``sqlite3``, the first row creates it: without rows, the result is NULL."""

    def __init__(self, kind: Callable[[], Any]) -> None:
        self._kind = kind
        self._made: Any = None

    def step(self, *values: Any) -> None:
        with _as_in_sqlite3("aggregate's 'step' method"):
            if self._made is None:
                self._made = self._kind()
            self._made.step(*values)

    def finalize(self) -> Any:
        with _as_in_sqlite3("aggregate's 'finalize' method"):
            return None if self._made is None else self._made.finalize()


class _Registering:
    """A stand-in for a connection of ``sqlite3``, with which Django registers its functions."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def create_function(
        self, name: str, narg: int, function: Callable[..., Any], *, deterministic: bool = False
    ) -> None:
        @wraps(function)
        def called(*values: Any) -> Any:
            with _as_in_sqlite3("function"):
                return function(*values)

        self._connection.create_scalar_function(name, called, narg, deterministic=deterministic)

    def execute(self, sql: str) -> apsw.Cursor:
        """Run a query of Django's about SQLite's compile options."""
        return self._connection.execute(sql)

    def create_aggregate(self, name: str, n_arg: int, kind: Callable[[], Any]) -> None:
        def begin() -> tuple[_Aggregate, Callable[..., None], Callable[[_Aggregate], Any]]:
            return _Aggregate(kind), _Aggregate.step, _Aggregate.finalize

        self._connection.create_aggregate_function(name, begin, n_arg)


def register(connection: apsw.Connection) -> None:
    """Add the functions to a connection of the node."""
    register_all(_Registering(connection))
