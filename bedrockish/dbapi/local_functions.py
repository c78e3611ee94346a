"""Functions, aggregates and collations that a program registers, although its SQL runs on the nodes.

Many programs register functions as soon as they have connected, and never use most of them. So a registration is only
recorded; the error comes when a statement calls a function that the nodes lack. A registration under the name of a
SQLite function is refused, because the nodes would silently run SQLite's function instead.
"""

import math
import re
from contextlib import closing
from functools import cache

import apsw

from bedrockish.dbapi.errors import Error, NotSupportedError

_MISSING = re.compile(r"(?:no such (?:function|collation sequence)|unknown function): ([^\s(]+)")
# SQLite may lack these functions: under their names, programs register functions with the same meaning.
_SAME = frozenset({*dir(math), "ceiling", "ln", "mod", "power", "if"})
_SAME |= {"median", "percentile", "percentile_cont", "percentile_disc"}
_COLLATIONS = frozenset({"binary", "nocase", "rtrim"})


@cache
def _built_in() -> frozenset[str]:
    """Return the names of SQLite's functions for which a program cannot register a function of its own."""
    with closing(apsw.Connection(":memory:")) as db:
        names = db.execute("SELECT name FROM pragma_function_list WHERE builtin").fetchall()
    return frozenset(str(name) for (name,) in names) - _SAME


class LocalFunctions:
    """The functions, aggregates and collations that a program has registered on one connection."""

    def __init__(self) -> None:
        self._what: dict[str, str] = {}  # name in lower case -> kind and name, for error texts
        self._removed: set[str] = set()

    def add(self, kind: str, name: str, *, is_removed: bool = False) -> None:
        """Record a registration, or its removal.

        Args:
            kind: ``function``, ``aggregate``, ``window function`` or ``collation``.
            is_removed: the program passed None, which removes the registration.

        Raises:
            NotSupportedError: SQLite has a function of this name, which the nodes would run.
        """
        key = str(name).lower()
        if is_removed:
            self._what.pop(key, None)
            self._removed.add(key)
            return
        if key in (_COLLATIONS if kind == "collation" else _built_in()):
            raise NotSupportedError(
                f"SQLite has the {kind} {name} as well, and the nodes call theirs, also in indexes and triggers; give "
                "yours another name"
            )
        self._what[key] = f"the {kind} {name}"

    def has(self, name: str) -> bool:
        """Return whether the program has registered a function, aggregate or collation of this name."""
        return name.lower() in self._what

    def explained(self, error: Error, *, has_file: bool) -> Error:
        """Return the error to raise for a node's error: a NotSupportedError if the node lacks a registered function.

        ``has_file``: whether the connection has a node's file, where other statements can use the function.
        """
        found = _MISSING.search(str(error))
        if found is None:
            return error
        key = found[1].rstrip(";").lower()
        if key in self._what:
            text = at_the_node(self._what[key]) if has_file else elsewhere(self._what[key])
            return NotSupportedError(text, details=error.details)
        if key in self._removed:
            error.args = (found[0].rstrip(";"),)  # no advice, because the program itself has removed the function
        return error


def elsewhere(what: str) -> str:
    """Return the error text for a function that exists in the program only."""
    return (
        f"{what} would exist in this program only, but SQL runs on the nodes; put it into a plugin of the nodes "
        "(docs/plugins.md), or connect by the path of a node's file, where it is used (docs/local.md)"
    )


def at_the_node(what: str) -> str:
    """Return the error text for a function of a program with a node's file, in a statement that the node must run."""
    return (
        f"{what} exists in this program only, and the statement runs at the node; put it into a plugin of "
        "all nodes (docs/plugins.md)"
    )
