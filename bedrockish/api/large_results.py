"""The encoding of large results in short steps.

CBOR's encoder holds the interpreter's lock for a whole result. If a thread encodes 30 MB, the event loop of its node
is blocked for 0.1 s. The steps here are short, so that the event loop can run in between.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import cbor2

from bedrockish.api.column_blocks import LONG_BYTES, ROWS_MIN, Blocks, head, value_parts
from bedrockish.api.requests import Result, encode_results

LARGE_BYTES = 1 << 20  # results whose values have fewer bytes together are encoded in one step
STEP_BYTES = LONG_BYTES  # approximate bytes in one step; a value of at least this size is encoded by itself
GROUP = 255  # most rows in one step, and most items of a CBOR list whose head has two bytes
SHORT_LIST = 24  # the head of a CBOR list with fewer items has one byte

_LIST = 0x80  # kind of a value in CBOR
_FIXED = {int, float, type(None)}  # types of values that are short


def encode_in_steps(results: Sequence[Result], size: int, *, by_column: bool = False) -> bytes:
    """Encode results like ``encode_results``, except that some heads of lists and values may be longer.

    Args:
        size: approximate size of all their values, in bytes.
        by_column: whether the client reads rows by column; then results of many rows are encoded by column. Each row
            must have a value for each name in ``columns``.
    """
    by_column = by_column and any(map(_has_many_rows, results))
    if size < LARGE_BYTES and not by_column:
        return encode_results(results)
    return b"".join(_parts(results, size, by_column=by_column))


def _has_many_rows(one: Result) -> bool:
    return len(one.rows) >= ROWS_MIN or (one.blocks is not None and one.blocks.count > 0)


def _parts(results: Sequence[Result], size: int, *, by_column: bool = False) -> Iterator[bytes]:
    group = max(1, min(GROUP, STEP_BYTES * sum(len(one.rows) for one in results) // max(size, 1)))
    yield head(_LIST, len(results))
    for one in results:
        yield from _by_column(one, size) if by_column and _has_many_rows(one) else _by_row(one, group)


def _by_column(one: Result, size: int) -> Iterator[bytes]:
    blocks = one.blocks or Blocks()
    blocks.add(one.rows, size)
    yield b"\x85"
    yield cbor2.dumps(one.columns)
    yield from blocks.encode()
    yield cbor2.dumps(one.rowcount)
    yield cbor2.dumps(one.lastrowid)
    yield cbor2.dumps(blocks.count)


def _by_row(one: Result, group: int) -> Iterator[bytes]:
    yield b"\x84"
    yield cbor2.dumps(one.columns)
    yield head(_LIST, len(one.rows))
    for start in range(0, len(one.rows), group):
        rows = one.rows[start : start + group]
        if all(map(_is_short, zip(*rows, strict=True))):
            yield cbor2.dumps(rows)[1 if len(rows) < SHORT_LIST else 2 :]  # strip the head of the list
        else:
            yield from chain.from_iterable(map(_row_parts, rows))
    yield cbor2.dumps(one.rowcount)
    yield cbor2.dumps(one.lastrowid)


def _is_short(column: Sequence[Any]) -> bool:
    """Return whether each value of a column is shorter than ``STEP_BYTES``; fast for a column of one type."""
    kinds = {*map(type, column)}
    if kinds <= _FIXED:
        return True
    if len(kinds) == 1:
        return max(map(len, column)) < STEP_BYTES
    return all(len(value) < STEP_BYTES for value in column if type(value) is str or type(value) is bytes)


def _row_parts(row: tuple[Any, ...]) -> Iterator[bytes]:
    yield head(_LIST, len(row))
    yield from chain.from_iterable(map(value_parts, row))
