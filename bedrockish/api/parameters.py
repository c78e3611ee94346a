"""What a client may pass along with a statement: values that SQLite can store, and for how long it waits. Pure."""

import math
from collections.abc import Mapping, Sequence

from bedrockish.api.requests import Params
from bedrockish.errors import UsageError


def check_timeout(value: object) -> float:
    """Return a number of seconds that somebody is willing to wait.

    Raises:
        UsageError: it is not a positive number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"a timeout should be a positive number of seconds, not {value!r}")
    return float(value)


def check_params(params: object) -> Params:
    """Return parameters of which SQLite can store each one: None, int of 64 bits, float, str, bytes.

    Truth values become 0 and 1, other byte buffers become bytes.

    Raises:
        UsageError: something else is among them.
    """
    if params is None:
        return None
    if isinstance(params, Mapping):
        for name in params:
            if not isinstance(name, str):
                raise UsageError(f"a parameter's name should be a text, not {name!r}")
        return {name: _value(f":{name}", value) for name, value in params.items()}
    if type(params) is list or (
        isinstance(params, Sequence) and not isinstance(params, str | bytes | bytearray | memoryview)
    ):
        return [_value(str(place), value) for place, value in enumerate(params, 1)]
    raise UsageError(f"parameters should be a list, a tuple or a map, not {type(params).__name__}; write (value,)")


def _value(name: str, value: object) -> int | float | str | bytes | None:
    kind = type(value)
    if kind is str or value is None or kind is float or kind is bytes:
        return value  # type: ignore[return-value]
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise UsageError(f"parameter {name} is {value}, but SQLite's integers have 64 bits; pass it as text")
        return int(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    raise UsageError(
        f"parameter {name} is a {type(value).__name__}, which SQLite cannot store; "
        "pass None, int, float, str or bytes (a date as text, in ISO form)"
    )
