"""Django's SQL functions in the program, for connections whose ``NAME`` is the path of a node's file.

There, SQL runs in the program, so that the nodes need no plugin. The functions are registered by the first statement
that names one of them: on a file, connections without functions of the program read faster.
"""

import re
from collections.abc import Callable
from typing import Any

import apsw
from django.db.backends.sqlite3._functions import register

import bedrockish.dbapi as db

SAME = frozenset({"sign"})  # SQLite has them as well, and gives the same results


class _Registering:
    """A stand-in for a connection of ``sqlite3``, with which Django registers its functions."""

    def __init__(self, connection: db.Connection | None = None) -> None:
        self._connection = connection
        self.names: set[str] = set()  # the names of the functions, in lower case

    def _is_wanted(self, name: str) -> bool:
        if name.lower() in SAME:
            return False
        self.names.add(name.lower())
        return self._connection is not None and self._connection.lacks(name)  # the program may have its own

    def create_function(
        self, name: str, narg: int, function: Callable[..., Any], *, deterministic: bool = False
    ) -> None:
        if self._is_wanted(name):
            assert self._connection is not None
            self._connection.create_function(name, narg, function, deterministic=deterministic)

    def create_aggregate(self, name: str, n_arg: int, kind: Callable[[], Any]) -> None:
        if self._is_wanted(name):
            assert self._connection is not None
            self._connection.create_aggregate(name, n_arg, kind)

    def execute(self, sql: str) -> apsw.Cursor:
        """Run a query of Django's about SQLite's compile options, apart from the program's transaction."""
        return apsw.Connection(":memory:").execute(sql)


_known = _Registering()
register(_known)
_NAMED = re.compile(rf"\b(?:{'|'.join(sorted(_known.names))})\b", re.IGNORECASE)


def supply(connection: Any, sql: str) -> None:
    """Register Django's functions on a connection with a node's file if a statement names one of them."""
    found = _NAMED.search(sql)
    if found is not None and connection.lacks(found[0]):
        register(_Registering(connection))
