"""Decodes keys, also into readable text: the inverse of ``bedrockish.access_sets.key_encoding``.

The encoding of a descending or folded column loses the original value, and a range may end inside a column. Bytes that
cannot be decoded are shown in hexadecimal, so ``key_text`` never fails.
"""

from math import inf, nextafter
from struct import Struct
from typing import Any

_ALL = (1 << 64) - 1
_SIGN = 1 << 63
_END, _ESCAPED = b"\0\x01", b"\0\xff"
_COLUMN, _NULL, _NUMBER, _TEXT, _BLOB = 0x01, 0x05, 0x10, 0x20, 0x30
_number = Struct(">BQH")
_word = Struct(">Q")
_double = Struct(">d")
TEXT_MAX = 80  # the most characters of a key as text


_INVERTED = bytes(255 - byte for byte in range(256))


def rowid_bytes(rowid: int) -> bytes:
    """Return the encoding of a rowid in a key."""
    nearest = float(rowid)
    if int(nearest) > rowid:
        nearest = nextafter(nearest, -inf)
    word: int = _word.unpack(_double.pack(nearest))[0]
    return _number.pack(_NUMBER, word ^ (_ALL if word & _SIGN else _SIGN), rowid - int(nearest))


def read_columns(data: bytes) -> list[Any] | None:
    """Return the values of a key's columns, folded as their collations fold them; None if they cannot be decoded."""
    found: list[Any] = []
    while data:
        one = _value(data)
        if one is None:
            turned = _value(data.translate(_INVERTED))  # a descending column
            if turned is None:
                return None
            one = turned
        value, size = one
        found.append(value)
        data = data[size:]
    return found


def _value(data: bytes) -> tuple[Any, int] | None:
    """Return the value of the first column, and its encoded size; None if the bytes do not begin with a column."""
    kind = data[0]
    if kind == _NULL:
        return None, 1
    if kind == _NUMBER and len(data) >= _number.size:
        _, word, above = _number.unpack_from(data)
        number: float = _double.unpack(_word.pack(word ^ (_SIGN if word & _SIGN else _ALL)))[0]
        return (int(number) + above if number.is_integer() else number), _number.size
    if kind in (_TEXT, _BLOB):
        end = data.find(_END)
        if end > 0:
            body = data[1:end].replace(_ESCAPED, b"\0")
            return (body if kind == _BLOB else body.decode(errors="surrogateescape")), end + len(_END)
    return None


def key_text(key: bytes) -> str:
    """Return the columns of a key, without its object: ``17, 'Alice'``."""
    rest = key.partition(b"\0")[2]
    found: list[str] = []
    while rest:
        one = _first(rest)
        if one is None:
            found.append(f"x'{rest.hex()}'")
            break
        text, size = one
        found.append(text)
        rest = rest[size:]
    text = ", ".join(found)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _first(data: bytes) -> tuple[str, int] | None:
    """Return the first column as text, and its encoded size; None if the bytes do not begin with a column."""
    if data[0] == _COLUMN:
        return f"column {data[1:].decode(errors='replace')}", len(data)
    one = _value(data)
    if one is None:
        return None
    value, size = one
    if isinstance(value, bytes):
        return f"x'{value.hex()}'", size
    if isinstance(value, str):
        value = value.encode(errors="surrogateescape").decode(errors="replace")
    return "NULL" if value is None else repr(value), size
