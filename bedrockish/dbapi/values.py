"""Conversion of values: type objects and constructors of PEP 249, adapters and converters as in sqlite3.

SQLite stores None, integers of 64 bits, floats, texts and bytes. Values of other types need an adapter.
"""

import datetime
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from bedrockish.api.requests import shown_integer
from bedrockish.dbapi.errors import IntegerTooLargeError, ProgrammingError
from bedrockish.sqltext.tokenizer import NotTokensError, tokens

Value = None | int | float | str | bytes

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = memoryview


def DateFromTicks(ticks: float) -> datetime.date:  # noqa: N802  the standard names it, and the two below
    """Return the local date of a number of seconds since 1970."""
    return datetime.date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:  # noqa: N802
    """Return the local time of day of a number of seconds since 1970, without fractions."""
    return datetime.time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:  # noqa: N802
    """Return the local date and time of a number of seconds since 1970, without fractions."""
    return datetime.datetime(*time.localtime(ticks)[:6])


class TypeObject:
    """A type object of PEP 249: equal to the ``type_code`` of each column of its kind."""

    def __init__(self, name: str, fits: Callable[[str], bool]) -> None:
        self._name, self._fits = name, fits

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self._fits(other.upper())
        return self is other

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return self._name


def _is_moment(declared: str) -> bool:
    return any(word in declared for word in ("DATE", "TIME"))


def _is_text(declared: str) -> bool:
    return any(word in declared for word in ("CHAR", "CLOB", "TEXT", "STRING", "JSON"))


def _is_number(declared: str) -> bool:
    words = ("INT", "REAL", "FLOA", "DOUB", "NUM", "DEC", "BOOL", "ROWID")
    return not _is_moment(declared) and any(word in declared for word in words)


STRING = TypeObject("STRING", _is_text)
BINARY = TypeObject("BINARY", lambda declared: any(word in declared for word in ("BLOB", "BINARY", "BYTE")))
NUMBER = TypeObject("NUMBER", _is_number)
DATETIME = TypeObject("DATETIME", _is_moment)
ROWID = TypeObject("ROWID", lambda declared: declared in ("INTEGER", "ROWID"))

_CODES: dict[type, str] = {str: "TEXT", bytes: "BLOB", int: "INTEGER", float: "REAL"}


def type_codes(width: int, rows: Sequence[tuple[Any, ...]]) -> list[str | None]:
    """Return the type code of each column, by its first value that is not NULL; None for a column of NULLs."""
    codes: list[str | None] = [None] * width
    missing = set(range(width))
    for row in rows:
        for place in [place for place in missing if row[place] is not None]:
            codes[place] = _CODES.get(type(row[place]))
            missing.discard(place)
        if not missing:
            break
    return codes


class PrepareProtocol:
    """The protocol passed to a value's ``__conform__``, as in sqlite3, to request a value that SQLite can store."""


def _date(value: datetime.date) -> str:
    return value.isoformat()


def _timestamp(value: datetime.datetime) -> str:
    return value.isoformat(" ")


adapters: dict[tuple[type, Any], Callable[[Any], Any]] = {
    (datetime.date, PrepareProtocol): _date,
    (datetime.datetime, PrepareProtocol): _timestamp,
}
"""By class and protocol, as in sqlite3; ``register_adapter`` adds to it."""
converters: dict[str, Callable[[bytes], Any]] = {}
"""By name in upper case, as in sqlite3; ``register_converter`` adds to it."""
STORED = (str, int, float, bytes, bytearray)
_nothing = object()


def register_adapter(cls: type, adapter: Callable[[Any], Any], /) -> None:
    """Register an adapter: values of exactly this class are stored as ``adapter(value)``."""
    adapters[cls, PrepareProtocol] = adapter


def register_converter(typename: str, converter: Callable[[bytes], Any], /) -> None:
    """Register a converter: with ``detect_types``, values of columns of this type are read as ``converter(bytes)``."""
    converters[typename.upper()] = converter


def converter_of(column: str) -> Callable[[bytes], Any] | None:
    """Return the converter for a column's name, such as ``at [timestamp]``; None if none exists."""
    _, bracket, rest = column.partition("[")
    return converters.get(rest.partition("]")[0].upper()) if bracket else None


def declared_converter(declared: str | None) -> Callable[[bytes], Any] | None:
    """Return the converter for the first word of a column's declared type; None if none exists.

    As in sqlite3, the first word of ``number(10)`` is ``number``.
    """
    return converters.get(_first_word(declared)) if declared else None


@lru_cache(maxsize=1_000)
def _first_word(declared: str) -> str:
    return re.split(r"[ (]", declared.upper(), maxsplit=1)[0]


def _to_date(data: bytes) -> datetime.date:
    return datetime.date.fromisoformat(data.decode())


def _to_timestamp(data: bytes) -> datetime.datetime:
    return datetime.datetime.fromisoformat(data.decode())


register_converter("date", _to_date)
register_converter("timestamp", _to_timestamp)


def _store(value: Any) -> Value:
    """Return a value in a form that SQLite can store, without adapters.

    Raises:
        LookupError: SQLite cannot store values of this type.
        DataError: the integer has more than 64 bits.
    """
    if value is None:
        return None
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise IntegerTooLargeError(
                f"{shown_integer(value)} has more than 64 bits, which SQLite cannot store; pass it as text"
            )
        return int(value)
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise LookupError


def adapt(value: Any, protocol: Any = PrepareProtocol, alternative: Any = _nothing, /) -> Any:
    """Adapt a value by its class's adapter, the protocol's ``__adapt__`` or its own ``__conform__``; return the result.

    Raises:
        ProgrammingError: none of them adapts the value, and no alternative is given.
    """
    adapter = adapters.get((type(value), protocol))
    if adapter is not None:
        return adapter(value)
    by_protocol = getattr(protocol, "__adapt__", None)
    if by_protocol is not None and (found := by_protocol(value)) is not None:
        return found
    by_value = getattr(value, "__conform__", None)
    if by_value is not None:
        with suppress(TypeError):  # as in sqlite3, a ``__conform__`` that raises TypeError counts as missing
            found = by_value(protocol)
            if found is not None:
                return found
    if alternative is not _nothing:
        return alternative
    raise ProgrammingError(f"can't adapt a value of type {type(value).__name__}; register an adapter for it")


def stored(value: Any) -> Value:
    """Return the value to send for a parameter.

    Raises:
        ProgrammingError: SQLite cannot store the value and no adapter is registered for its class.
        DataError: the integer has more than 64 bits.
    """
    if type(value) not in STORED or (type(value), PrepareProtocol) in adapters:
        value = adapt(value, PrepareProtocol, value)
    try:
        return _store(value)
    except LookupError:
        name = type(value).__name__
        raise ProgrammingError(
            f"a value of type {name} cannot be stored; pass None, int, float, str or bytes, "
            f"or register_adapter({name}, ...)"
        ) from None


def unchanged(params: Any) -> tuple[Value, ...] | dict[str, Value] | None:
    """Return parameters whose values are stored unchanged, as a new map or as a tuple; None if ``adapt_all`` is needed.

    ``adapt_all`` is needed for a value with an adapter, for one to convert or to measure, and for a name to convert.
    """
    kind = type(params)
    if kind is tuple or kind is list:
        return tuple(params) if _are_plain(params) else None
    if kind is not dict or not _are_plain(params.values()):
        return None
    for name in params:
        if type(name) is not str:
            return None
    return dict(params)


def _are_plain(values: Iterable[Any]) -> bool:
    for value in values:
        kind = type(value)
        if (kind, PrepareProtocol) in adapters or not (
            (kind is int and -(1 << 63) <= value < 1 << 63)
            or (kind is str and value.isascii())
            or value is None
            or (kind is float and value == value)
            or kind is bytes
        ):
            return False
    return True


def _name(name: Any) -> str:
    return str.__str__(name) if isinstance(name, str) else str(name)


def _places(sql: str) -> int:
    """Return the number of parameters ``?`` in a text; -1 if the text has a mistake."""
    try:
        return sum(token.kind == "param" and token.text == "?" for token in tokens(sql))
    except NotTokensError:
        return -1


def adapt_all(params: Any, sql: str) -> list[Value] | dict[str, Value]:
    """Return the adapted parameters, by position or by name, ready to be sent.

    Raises:
        ProgrammingError: the parameters are neither a sequence nor a map, or a value cannot be stored.
        DataError: an integer has more than 64 bits.
    """
    kind = type(params)
    if (kind is tuple or kind is list) and _are_plain(params):  # the usual case
        return list(params)
    if hasattr(params, "__missing__") and isinstance(params, Mapping):  # values may exist for unlisted names
        try:
            names = {token.text[1:] for token in tokens(sql) if token.kind == "param" and token.text[0] != "?"}
        except NotTokensError:
            names = set()  # the SQL has a mistake, about which SQLite will raise the error
        return {name: stored(params[name]) for name in names}
    if isinstance(params, Mapping):
        return {_name(name): stored(value) for name, value in params.items()}
    is_sequence = hasattr(params, "__iter__") or (hasattr(params, "__len__") and hasattr(params, "__getitem__"))
    is_text = isinstance(params, str | bytes | bytearray | memoryview)
    if not is_sequence or (is_text and len(params) != _places(sql)):  # as in sqlite3, "5" is the same as ("5",)
        raise ProgrammingError(
            "parameters are of unsupported type: they should be a sequence or a map, not "
            f"{type(params).__name__}; for a single one write (value,)"
        )
    if hasattr(params, "__len__") and hasattr(params, "__getitem__"):
        return [stored(params[place]) for place in range(len(params))]
    return [stored(value) for value in params]
