"""The encoding of column values as bytes that sort like the values in SQLite.

Conflict tests compare keys as plain byte strings, on every node and without SQLite. So two values that are equal under
a column's collation have the same bytes, a smaller value has smaller bytes, and no encoding is a prefix of another. The
key of several columns is the concatenation of their encodings; all keys that begin with given columns are one range.

If affinity would change a value's type, SQLite itself applies it, on a private connection of each thread: a copy of its
conversions between text and numbers would be wrong in rare cases.
"""

import math
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

import apsw

Encoder = Callable[[Any], bytes]

BINARY, NOCASE, RTRIM = "BINARY", "NOCASE", "RTRIM"
KNOWN_COLLATIONS = frozenset({BINARY, NOCASE, RTRIM})


class Spec(NamedTuple):
    """The collation and order of one column of a key."""

    collation: str = BINARY
    descending: bool = False


ROWID_SPEC = Spec()

_NULL, _NUMBER, _TEXT, _BLOB = 0x05, 0x10, 0x20, 0x30
_NULL_BYTES = bytes([_NULL])
_END = b"\0\x01"  # the end of a text or blob; smaller than an escaped zero byte (00 FF) and any other byte
_ESCAPED = b"\0\xff"
_COLUMN = b"\x01"  # separates a row's key from the column's name; no encoded value begins with this byte
_EXACT = 1 << 53  # integers up to this one are exact as doubles
_SIGN = 1 << 63
_ALL = (1 << 64) - 1

_double = Struct(">d")
_word = Struct(">Q")
_number = Struct(">BQH")  # tag; the largest double not above the value, made sortable; value minus that double
_not_negative = Struct(
    ">BdH"
)  # like ``_number`` for a value >= 0: packs -value, whose sign bit makes the double sortable
_LOWER = bytes(byte + 32 if 65 <= byte <= 90 else byte for byte in range(256))
_INVERTED = bytes(255 - byte for byte in range(256))


def encode(value: Any) -> bytes:
    """Encode a value under the BINARY collation: NULL < numbers < text < blobs.

    Raises:
        TypeError: the value has a type that SQLite does not store.
        OverflowError: the value is an integer of more than 64 bits.
    """
    kind = type(value)
    if kind is int:
        return _not_negative.pack(_NUMBER, -float(value), 0) if 0 <= value <= _EXACT else _encode_int(value)
    if kind is str:
        return b"\x20" + _escape(text_bytes(value)) + _END
    return _encode_rare(value)


def _encode_int(value: int) -> bytes:
    if -_EXACT <= value <= _EXACT:
        return _number.pack(_NUMBER, _sortable(float(value)), 0)
    if not -_SIGN <= value < _SIGN:
        raise OverflowError(f"{value} does not fit into 64 bits")
    nearest = float(value)
    if int(nearest) > value:
        nearest = math.nextafter(nearest, -math.inf)
    return _number.pack(_NUMBER, _sortable(nearest), value - int(nearest))


def _encode_rare(value: Any) -> bytes:
    if value is None:
        return _NULL_BYTES
    if isinstance(value, float):
        return _NULL_BYTES if value != value else _number.pack(_NUMBER, _sortable(value or 0.0), 0)
    if isinstance(value, int):
        return _encode_int(int(value))
    if isinstance(value, str):
        return encode(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return b"\x30" + _escape(bytes(value)) + _END
    raise TypeError(f"a column cannot hold {type(value).__name__}")


def _sortable(value: float) -> int:
    word: int = _word.unpack(_double.pack(value))[0]
    return word ^ _ALL if word & _SIGN else word | _SIGN


def _escape(data: bytes) -> bytes:
    return data.replace(b"\0", _ESCAPED) if b"\0" in data else data


def text_bytes(text: str) -> bytes:
    """Return a text's bytes as SQLite stores them; never raise, because invalid Unicode must not stop a node."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        try:
            return text.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            return text.encode(errors="surrogatepass")


def _encode_nocase(value: Any) -> bytes:
    if not isinstance(value, str):
        return encode(value)
    data = text_bytes(value)
    body = data.translate(_LOWER)
    if b"\0" in body:  # SQLite compares the bytes before the zero byte, and then only the lengths
        return b"\x20" + body[: body.index(b"\0")] + _ESCAPED + _word.pack(len(data)) + _END
    return b"\x20" + body + _END


def _encode_rtrim(value: Any) -> bytes:
    if not isinstance(value, str):
        return encode(value)
    return b"\x20" + _escape(text_bytes(value).rstrip(b" ")) + _END


_ASCENDING: dict[str, Encoder] = {BINARY: encode, NOCASE: _encode_nocase, RTRIM: _encode_rtrim}


def encoder(spec: Spec) -> Encoder:
    """Return the function that encodes values under this collation and in this order.

    Raises:
        KeyError: the collation is not one of SQLite's own; an index with such a collation has no keys by value.
    """
    plain = _ASCENDING[spec.collation]
    if not spec.descending:
        return plain
    return lambda value: plain(value).translate(_INVERTED)


def object_prefix(name: str) -> bytes:
    """Return the common prefix of all keys of an object."""
    return name.encode() + b"\0"


def table_key(name: str, rowid: int) -> bytes:
    """Return the key of a row of a rowid table."""
    return b"t:%b\0%b" % (name.encode(), encode(rowid))


def column_key(row: bytes, column: str) -> bytes:
    """Return the key of a column of a row, given the row's key in ``Table.columns_object``."""
    return row + _COLUMN + text_bytes(column)


# The letters of the affinities in SQLite's bytecode.
AFFINITY_BLOB, AFFINITY_TEXT = "A", "B"
AFFINITY_NUMERIC, AFFINITY_INTEGER, AFFINITY_REAL, AFFINITY_FLEXNUM = "C", "D", "E", "F"


_converters: list[apsw.Connection] = []  # connections for conversions that no thread uses now
_CONVERSIONS = {letter: f"INSERT INTO affinity({letter}) VALUES (?) RETURNING {letter}" for letter in "BCDE"}


def _converter() -> apsw.Connection:
    """Return a private connection for conversions; the caller puts it back.

    Connections that belonged to threads would be closed when their threads end: in a forked child at once, where
    SQLite's lock may be held for ever, because another thread of the parent held it at the fork.
    """
    try:
        return _converters.pop()
    except IndexError:
        made = apsw.Connection(":memory:")
        made.execute("CREATE TABLE affinity(B TEXT, C NUMERIC, D INTEGER, E REAL)")
        return made


def declared_affinity(declared: str) -> str:
    """Return the affinity letter of a column's declared type."""
    name = declared.upper()
    if "INT" in name:
        return AFFINITY_INTEGER
    if "CHAR" in name or "CLOB" in name or "TEXT" in name:
        return AFFINITY_TEXT
    if "BLOB" in name or not name:
        return AFFINITY_BLOB
    if "REAL" in name or "FLOA" in name or "DOUB" in name:
        return AFFINITY_REAL
    return AFFINITY_NUMERIC


def apply_affinity(value: Any, affinity: str) -> Any:
    """Return the value as a column of this affinity stores it."""
    kind = type(value)
    if value is None or kind is bytes or affinity in "@A":
        return value
    if affinity == AFFINITY_FLEXNUM:
        affinity = AFFINITY_NUMERIC
    if kind is int:
        if affinity in "CD":
            return value
        if affinity == AFFINITY_REAL:
            return float(value)
    elif kind is str:
        if affinity == AFFINITY_TEXT:
            return value
    elif kind is float:
        if affinity == AFFINITY_REAL:
            return value
    elif isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    db = _converter()
    try:
        for row in db.execute("BEGIN").execute(_CONVERSIONS[affinity], (value,)):
            value = row[0]
    finally:
        db.execute("ROLLBACK")
        _converters.append(db)
    return value
