"""Parameters: conversion of a client's values to SQLite's, and typed errors for values that it cannot store."""

from collections.abc import Mapping, Sequence
from typing import Any

from bedrockish.api.requests import Params
from bedrockish.errors import SqlError

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


def bind_value(value: Any, name: object) -> Any:
    """Return a parameter as one of None, int, float, str, bytes.

    Args:
        name: the parameter's name or its number from 1, for the error.

    Raises:
        SqlError: SQLite cannot store the value.
    """
    kind = type(value)
    if value is None:
        return None
    if kind is int:
        if INT_MIN <= value <= INT_MAX:
            return value
        raise SqlError(f"parameter {name}: {value} does not fit in SQLite's 64-bit integers; send it as text")
    if kind is float:
        return value if value == value else None  # SQLite stores NaN as NULL
    if kind is str:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise SqlError(
                f"parameter {name}: the text has a lone surrogate at {error.start}; send it as a blob"
            ) from None
        return value
    if kind is bytes:
        return value
    if kind is bool:
        return int(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise SqlError(f"parameter {name}: SQLite cannot store a {kind.__name__}; send None, int, float, str or bytes")


def bind_named(names: Sequence[str | None], params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of a statement's named parameters, in the statement's order.

    Raises:
        SqlError: a value is missing, or the statement has a parameter without a name.
    """
    bound = []
    for number, name in enumerate(names, 1):
        if name is None:
            raise SqlError(f"parameter {number} has no name, but the values came by name; send a list of values")
        if name not in params:
            raise SqlError(f"no value for the parameter {name!r}; there are values for: {', '.join(params) or 'none'}")
        bound.append(bind_value(params[name], name))
    return tuple(bound)


def in_order(names: Sequence[str | None], values: tuple[Any, ...] | dict[str, Any]) -> tuple[Any, ...] | None:
    """Return values that SQLite stores unchanged, in a statement's order; None if they do not fit its parameters."""
    if isinstance(values, tuple):
        return values if len(values) == len(names) else None
    if None in names:
        return None
    try:
        return tuple([values[name] for name in names])  # type: ignore[index]
    except KeyError:
        return None


def bind_one(names: Sequence[str | None], params: Params) -> tuple[Any, ...]:
    """Return the values for the parameters of a text's only statement.

    Raises:
        SqlError: there are too few or too many values, or SQLite cannot store a value.
    """
    if (type(params) is list or type(params) is tuple) and len(params) == len(names):
        return _bound(params, 0)
    binder = Binder(params)
    values = binder.bind_next(names)
    binder.finish()
    return values


def _bound(values: Sequence[Any], before: int) -> tuple[Any, ...]:
    """Return values as SQLite stores them; errors number them after the ``before`` earlier values of the text."""
    for value in values:  # most values need no conversion, and a call for each would cost too much
        kind = type(value)
        if not (
            (kind is int and INT_MIN <= value <= INT_MAX)
            or (kind is str and value.isascii())
            or value is None
            or kind is bytes
            or (kind is float and value == value)
        ):
            return tuple([bind_value(value, number) for number, value in enumerate(values, before + 1)])
    return tuple(values)


class Binder:
    """The distribution of a text's parameters to its statements, one after the other."""

    def __init__(self, params: Params) -> None:
        # Compare the exact type first: isinstance with an abstract class costs more than everything else here.
        if params is not None and type(params) not in (tuple, list, dict):
            if isinstance(params, str | bytes) or not isinstance(params, Mapping | Sequence):
                raise SqlError(f"parameters should be a list of values or a map of names, not {type(params).__name__}")
            params = dict(params) if isinstance(params, Mapping) else tuple(params)
        self.params: Sequence[Any] | dict[str, Any] = () if params is None else params  # type: ignore[assignment]
        self.wanted = 0

    def bind_next(self, names: Sequence[str | None]) -> tuple[Any, ...]:
        """Return the values for one statement with these parameters.

        Raises:
            SqlError: there are too few values, or SQLite cannot store a value.
        """
        first, self.wanted = self.wanted, self.wanted + len(names)
        if not names:
            return ()
        if isinstance(self.params, dict):
            return bind_named(names, self.params)
        values = self.params[first : self.wanted]
        if len(values) != len(names):
            raise self._mismatch()
        return _bound(values, first)

    def finish(self) -> None:
        """Check that no value is left over.

        Raises:
            SqlError: there were more values than parameters.
        """
        if not isinstance(self.params, dict) and len(self.params) != self.wanted:
            raise self._mismatch()

    def _mismatch(self) -> SqlError:
        given, wanted = len(self.params), self.wanted
        return SqlError(
            f"the statement has {wanted} parameter(s), but {given} value(s) were given", wanted=wanted, given=given
        )
