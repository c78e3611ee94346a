"""A node as bytes: a key that is equal for equal states, and a copy that can be restored and stepped.

Two nodes with the same key behave alike. So the key covers all attributes of a core and its disk, except those named in
``LEFT_OUT``.
"""

import io
import pickle
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import Transaction

# Statistics, numbers that only distinguish timers, and constants of a scope.
LEFT_OUT = frozenset(
    {
        "counts",
        "_timer_count",
        "_timers",
        "_moved",
        "_dropped",
        "settings",
        "draw",
        "batches",
        "store",
        "suspected",
        "patience",
        "level",
        "heard_level",
    }
    | {"_by_clock", "_order", "_unused"}  # contents of other attributes, in an order that does not matter
    | {"cutter", "_forget_at"}  # caches of recent cuts
)
SHARED = (Transaction, Entry, AccessSet, Membership, Settings)
_PLAIN = (int, str, bytes, bool, type(None), float)
_CALLABLE = (FunctionType, MethodType, BuiltinFunctionType)

_shared: list[object] = []
_numbers: dict[tuple[object, ...], int] = {}


def number_of(value: object) -> int:
    """Return the number of an immutable value, which is stored once for all nodes."""
    match value:
        case Transaction():
            key: tuple[object, ...] = (1, value.body)
        case Entry():
            key = (2, value.hash)
        case AccessSet():
            key = (3, repr(value.pack()))
        case Membership():
            key = (4, value.version, tuple(sorted((m.node, m.voter) for m in value.members.values())))
        case _:
            key = (5, repr(value))
    found = _numbers.get(key)
    if found is None:
        found = _numbers[key] = len(_shared)
        _shared.append(value)
    return found


def shared(number: int) -> object:
    """Return the value that ``number_of`` has stored under this number."""
    return _shared[number]


class _Pickler(pickle.Pickler):
    dispatch_table = {kind: lambda value: (shared, (number_of(value),)) for kind in SHARED}  # noqa: RUF012


def freeze(value: object) -> bytes:
    """Return an object as bytes, from which ``thaw`` makes an independent copy."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def thaw(data: bytes) -> Any:
    """Return a copy of the frozen object."""
    return pickle.loads(data)


def key_of(value: object) -> bytes:
    """Return a key of sixteen bytes, which is the same for equal states."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # without references to earlier objects, so that sharing of objects does not count
    pickler.dump(_Walk().plain(value))
    return blake2b(buffer.getvalue(), digest_size=16).digest()


class _Walk:
    """Converts any object to nested tuples; a repeated object on the way is replaced by a name."""

    def __init__(self) -> None:
        self.met: set[int] = set()

    def plain(self, value: Any) -> object:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind in SHARED:
            return kind.__name__, number_of(value)
        if isinstance(value, Enum):
            return str(value)
        if isinstance(value, tuple | list | deque):
            return tuple([self.plain(item) for item in value])
        if isinstance(value, AbstractSet):
            return "set", *sorted([self.plain(item) for item in value], key=repr)
        if isinstance(value, Mapping):
            return "map", *[(self.plain(key), self.plain(item)) for key, item in value.items()]
        if is_dataclass(value):
            return kind.__name__, *[
                self.plain(getattr(value, field.name)) for field in fields(value) if field.name not in LEFT_OUT
            ]
        if isinstance(value, _CALLABLE):
            return "code"
        return self._object(value)

    def _object(self, value: object) -> object:
        name = type(value).__name__
        if id(value) in self.met:
            return name
        self.met.add(id(value))
        slots: Callable[[type], Any] = lambda kind: getattr(kind, "__slots__", ())  # noqa: E731
        names = [*vars(value)] if hasattr(value, "__dict__") else [n for k in type(value).__mro__ for n in slots(k)]
        return name, *[(n, self.plain(getattr(value, n, None))) for n in names if n not in LEFT_OUT]
