"""Values that a command may be given and may return: what any node and any client can read. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from bedrockish.errors import UsageError

DEPTH_MAX = 50  # lists and maps in each other


def check_args(args: object) -> list[Any] | dict[str, Any]:
    """Return the arguments of a command: plain values that any node and any client can read, by position or by name.

    Raises:
        UsageError: something else is among them.
    """
    if args is None:
        return []
    if isinstance(args, str | bytes | bytearray | memoryview) or not isinstance(args, Mapping | Sequence):
        raise UsageError(f"arguments should be a list, a tuple or a map, not {type(args).__name__}; write [value]")
    checked = plain("the arguments", args)
    assert isinstance(checked, list | dict)
    return checked


def plain(where: str, value: object, depth: int = DEPTH_MAX) -> Any:
    """Return a value made of None, truth values, integers of 64 bits, floats, texts, bytes, lists and maps of these.

    Args:
        where: what it is, for the error.
        value: the value; tuples become lists.
        depth: how many lists and maps may be in each other.

    Raises:
        UsageError: it is something else.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{where}: a text has a lone surrogate, which is no character") from error
        return str(value)
    if isinstance(value, Mapping | list | tuple):
        if not depth:
            raise UsageError(f"{where}: lists and maps are nested more than {DEPTH_MAX} deep")
        if not isinstance(value, Mapping):
            return [plain(f"{where}[{place}]", one, depth - 1) for place, one in enumerate(value)]
        for name in value:
            if not isinstance(name, str):
                raise UsageError(f"{where}: a map's key should be a text, not {name!r}")
        return {plain(where, name): plain(f"{where}[{name!r}]", one, depth - 1) for name, one in value.items()}
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise UsageError(f"{where}: {value} has more than 64 bits; pass it as text")
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise UsageError(
        f"{where}: a {type(value).__name__} cannot be sent; pass None, bool, int, float, str, bytes, lists and maps"
    )
