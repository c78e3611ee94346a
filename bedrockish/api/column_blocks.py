"""Rows by column: a form of large results that clients may ask for, and that takes half the time to encode and decode.

A block has a part of the rows: a CBOR list of the number of rows, and then the columns, each in one of these forms:

- a byte string: ``i`` (integers of 32 bits), ``q`` (integers of 64 bits) or ``d`` (doubles), then the values of all
  rows, little-endian;
- a text: the texts of all rows, with NUL between them;
- a list of the values: any other column, such as one with NULL, blobs, values of several types, or a NUL in a text.

Blocks are short, so that the encoder, which holds the interpreter's lock, never keeps a node's event loop waiting.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from operator import length_hint
from struct import Struct
from typing import Any

import cbor2

Row = tuple[Any, ...]

ROWS_MIN = 64  # a result of fewer rows is sent row by row
ROWS_STEP, VALUES_STEP = 1_024, 16_384  # the most rows, and values, in a block that a node makes
BLOCK_BYTES = 32 << 10  # rows that arrive one by one are collected until they take this many bytes
LONG_BYTES = 256 << 10  # most characters and bytes of a block's texts and blobs together, except in a block of one row
BLOCK_ROWS_MAX = 1 << 16  # the most rows of a block that ``rows_of_blocks`` accepts

_LIST, _TEXT, _BYTES = 0x80, 0x60, 0x40  # kinds of values in CBOR
_HEAD = Struct(">BI")
_FLOAT = {float}
_SEPARATOR = "\0"
_SIZES = {b"i": 4, b"q": 8, b"d": 8}
_CODES = {kind: kind.decode() for kind in _SIZES}
assert all(array(_CODES[kind]).itemsize == size for kind, size in _SIZES.items())


class Blocks:
    """The blocks of one result, made as its rows arrive, so that the rows need not stay in memory.

    Attributes:
        count: the number of rows.
    """

    __slots__ = ("_blocks", "_parts", "count")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._blocks = self.count = 0

    def add(self, rows: Sequence[Row], size: int) -> None:
        """Add rows that SQLite has returned, all of the same width.

        Args:
            rows: the rows; their values are None, int, float, str or bytes.
            size: an upper bound of the characters of their texts and the bytes of their blobs.
        """
        step = max(1, min(ROWS_STEP, VALUES_STEP // len(rows[0]))) if rows else 1
        for start in range(0, len(rows), step):
            self._add(rows[start : start + step], size)

    def _add(self, rows: Sequence[Row], size: int) -> None:
        if size > LONG_BYTES:
            size = sum(map(length_hint, chain.from_iterable(rows)))  # 0 for a number and for None
        if size > LONG_BYTES and len(rows) > 1:
            half = len(rows) // 2
            self._add(rows[:half], size)
            self._add(rows[half:], size)
            return
        if size > LONG_BYTES:
            self._parts += _long_block(rows[0])
        else:
            self._parts.append(cbor2.dumps([len(rows), *map(_pack, zip(*rows, strict=True))]))
        self._blocks += 1
        self.count += len(rows)

    def encode(self) -> Iterator[bytes]:
        """Yield the encoded list of blocks in parts."""
        yield head(_LIST, self._blocks)
        yield from self._parts


def head(kind: int, count: int) -> bytes:
    """Return a CBOR head of five bytes for a list, a text or a byte string of ``count`` items or bytes."""
    return _HEAD.pack(kind | 26, count)


def value_parts(value: Any) -> Iterator[bytes]:
    """Yield an encoded value in parts, so that no long text or blob is copied to put the CBOR head before it."""
    if isinstance(value, str) and len(value) >= LONG_BYTES:
        encoded = value.encode()
        yield head(_TEXT, len(encoded))
        yield encoded
    elif isinstance(value, bytes) and len(value) >= LONG_BYTES:
        yield head(_BYTES, len(value))
        yield value
    else:
        yield cbor2.dumps(value)


def _pack(column: tuple[Any, ...]) -> bytes | str | tuple[Any, ...]:
    """Return a column in the form for its first value's type; if another value does not fit, return the column."""
    kind = type(column[0])
    try:
        if kind is int:
            return _integers(column)
        if kind is str:
            joined = _SEPARATOR.join(column)
            return joined if joined.count(_SEPARATOR) == len(column) - 1 else column
    except TypeError:
        return column
    return _numbers("d", column) if kind is float and {*map(type, column)} == _FLOAT else column


def _integers(column: tuple[Any, ...]) -> bytes:
    try:
        return _numbers("i", column)
    except OverflowError:
        return _numbers("q", column)


def _numbers(code: str, column: tuple[Any, ...]) -> bytes:
    values = array(code, column)
    if sys.byteorder == "big":
        values.byteswap()
    return code.encode() + values.tobytes()


def _long_block(row: Row) -> Iterator[bytes]:
    yield head(_LIST, 1 + len(row))
    yield b"\x01"
    for value in row:
        yield b"\x81"
        yield from value_parts(value)


def rows_of_blocks(blocks: object, width: int, count: object) -> list[Row]:
    """Return the rows of decoded blocks.

    Args:
        blocks: the blocks, as the decoder of CBOR has made them with tuples for lists.

    Raises:
        ValueError, TypeError: the blocks are malformed, or do not have ``width`` columns and ``count`` rows in all.
            The length of a column is checked before memory for its values is allocated.
    """
    if type(blocks) is not tuple:
        raise TypeError("the blocks of a result should be a list")
    rows = [*chain.from_iterable(map(_rows, blocks, repeat(width)))]
    if type(count) is not int or len(rows) != count:
        raise ValueError(f"the blocks have {len(rows)} rows in place of {count!r}")
    return rows


def _rows(block: object, width: int) -> Iterator[Row]:
    if type(block) is not tuple or len(block) != 1 + width or not width:
        raise TypeError(f"a block should be a list of its number of rows and {width} columns")
    number = block[0]
    if type(number) is not int or not 0 < number <= BLOCK_ROWS_MAX:
        raise ValueError(f"a block should have 1 to {BLOCK_ROWS_MAX} rows")
    return zip(*map(_values, block[1:], repeat(number)), strict=True)


def _values(column: object, number: int) -> Sequence[Any]:
    """Return the values of a decoded column, after checking that it has ``number`` of them."""
    if type(column) is str:
        if column.count(_SEPARATOR) != number - 1:
            raise ValueError(f"a column of texts should have {number}")
        return column.split(_SEPARATOR)
    if type(column) is bytes:
        kind = column[:1]
        if len(column) != 1 + number * _SIZES.get(kind, 0) or kind not in _SIZES:
            raise ValueError(f"a column of numbers should have {number}")
        values = array(_CODES[kind], column[1:])
        if sys.byteorder == "big":
            values.byteswap()
        return values
    if type(column) is not tuple or len(column) != number:
        raise TypeError(f"a column should have {number} values")
    return column
