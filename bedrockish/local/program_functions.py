"""Functions, aggregates and collations of a program, registered on its own connections to a node's file.

The functions exist in the program's process only, for statements that run there. The cluster receives only the
resulting rows and keys.

A definition of the schema may call a function of SQLite or of the nodes' plugins. Rows that the program has made with
another function of that name would not fit the nodes' tables. So a program cannot replace SQLite's own functions, and a
statement that names a function or collation of a plugin runs at the node.
"""

import json
import weakref
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import apsw

from bedrockish.access_sets.definitions import folded
from bedrockish.engine.storage import system_tables as system
from bedrockish.errors import SqlError

_plugin_names: "weakref.WeakKeyDictionary[apsw.Connection, frozenset[str]]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration of a function, a collation or a handler of the program."""

    key: tuple[str | int, ...]  # a later registration with an equal key replaces this one
    register: Callable[[apsw.Connection], None]

    def __call__(self, db: apsw.Connection) -> None:
        """Register it on a connection, unless its name belongs to SQLite or to a plugin."""
        match self.key:
            case "function" | "collation", name, *_ if name in _plugin_names.get(db, ()):
                return
            case "function", str(name), int(arguments) if _is_sqlite_function(name, arguments):
                return
        self.register(db)


def leave_to_plugins(db: apsw.Connection) -> None:
    """Remove SQLite's functions and collations that a plugin of the node has replaced, so that the node runs them.

    Args:
        db: a new connection to the node's file.
    """
    names = frozenset(json.loads(system.get_meta(db, system.PLUGIN_NAMES) or "[]"))
    _plugin_names[db] = names
    for name, arguments in _sqlite_functions() if names else ():
        if name in names:
            db.create_scalar_function(name, None, arguments)


@cache
def _sqlite_functions() -> frozenset[tuple[str, int]]:
    """Return SQLite's functions, each with its number of arguments or -1."""
    with closing(apsw.Connection(":memory:")) as db:
        return frozenset(db.execute("SELECT name, narg FROM pragma_function_list WHERE builtin"))


def _is_sqlite_function(name: str, arguments: int) -> bool:
    if arguments < 0:
        return any(name == one for one, _ in _sqlite_functions())
    return (name, arguments) in _sqlite_functions() or (name, -1) in _sqlite_functions()


class ProgramError(SqlError):
    """Raised when a function of the program raises an error; the text is that of ``sqlite3``."""

    code = "function_raised"


def scalar(name: str, arguments: int, function: Callable[..., Any] | None, *, deterministic: bool) -> Registration:
    """Return the registration of a function; None removes it."""

    def result(*values: Any) -> Any:
        assert function is not None
        return _storable(function(*values))

    given = None if function is None else _guarded(result, "user-defined function raised exception")

    def register(db: apsw.Connection) -> None:
        db.create_scalar_function(name, given, arguments, deterministic=deterministic)

    return Registration(("function", folded(name), arguments), register)


class _Instance:
    """One evaluation of an aggregate of a program.

    As in ``sqlite3``, the first row makes the aggregate's object; without rows, the result is NULL.
    """

    def __init__(self, cls: Any) -> None:
        self._cls, self._made = cls, None

    def call(self, method: str, *values: Any) -> Any:
        if self._made is None:
            if method == "finalize":
                return None
            self._made = _guarded(self._cls, "user-defined aggregate's '__init__' method raised error")()
        called = getattr(self._made, method, None)
        if called is None:
            raise ProgramError(f"user-defined aggregate's '{method}' method not defined")
        try:
            found = called(*values)
            return _storable(found) if method in ("finalize", "value") else None
        except Exception as error:
            raise _failure(error, f"user-defined aggregate's '{method}' method raised error") from error


def aggregate(name: str, arguments: int, cls: Any) -> Registration:
    """Return the registration of an aggregate: a class with ``step`` and ``finalize``; None removes it."""

    def register(db: apsw.Connection) -> None:
        db.create_aggregate_function(name, _beginning(cls, "step", "finalize"), arguments)

    return Registration(("function", folded(name), arguments), register)


def window(name: str, arguments: int, cls: Any) -> Registration:
    """Return the registration of a window function: ``step``, ``inverse``, ``value``, ``finalize``; None removes it."""

    def register(db: apsw.Connection) -> None:
        db.create_window_function(name, _beginning(cls, "step", "finalize", "value", "inverse"), arguments)

    return Registration(("function", folded(name), arguments), register)


def _beginning(cls: Any, *methods: str) -> Callable[[], Any] | None:
    """Return the function with which apsw begins an aggregate: it returns an instance and its methods."""

    def called(method: str) -> Callable[..., Any]:
        return lambda one, *values: one.call(method, *values)

    return None if cls is None else lambda: (_Instance(cls), *map(called, methods))


End = Callable[[], None]


def progress(handler: Callable[[], Any] | None, steps: int, ending: Callable[[], End | None]) -> Registration:
    """Return the registration of a progress handler, which is called while a statement runs, and may interrupt it.

    Args:
        handler: the progress handler; a true result interrupts the statement. None removes the handler.
        steps: SQLite's virtual machine instructions between two calls.
        ending: returns a function that ends the program's statement; None while an internal statement runs.
    """

    def register(db: apsw.Connection) -> None:
        of = weakref.ref(db)

        def ask() -> bool:
            end = None if getattr(of(), "is_shielded", False) else ending()
            if end is None or handler is None or not handler():
                return False
            end()
            return True

        db.set_progress_handler(None if handler is None or steps <= 0 else ask, max(steps, 1), id="program")

    return Registration(("progress",), register)


def collation(name: str, compare: Callable[[str, str], int] | None) -> Registration:
    """Return the registration of a collation; None removes it."""

    def sign(left: str, right: str) -> int:
        assert compare is not None
        order = compare(left, right)
        return (order > 0) - (order < 0)  # the order itself may exceed SQLite's 32 bits

    given = None if compare is None else _guarded(sign, "the collation raised exception")

    def register(db: apsw.Connection) -> None:
        db.create_collation(name, given)

    return Registration(("collation", folded(name)), register)


def _storable(value: Any) -> Any:
    """Return the value; raise an exception if SQLite cannot store it."""
    if isinstance(value, str):
        value.encode()  # refuses lone surrogates
    elif isinstance(value, int):
        value.to_bytes(8, "big", signed=True)
    elif value is not None and not isinstance(value, float):
        memoryview(value)
    return value


def _guarded(function: Callable[..., Any], text: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise _failure(error, text) from error

    return call


def _failure(error: Exception, text: str) -> ProgramError:
    """Return the error of a function that raised ``error``; as in ``sqlite3``, an OverflowError has its own text."""
    if isinstance(error, OverflowError):
        return ProgramError("string or blob too big", sqlite=apsw.SQLITE_TOOBIG)
    return ProgramError(text)
