"""The encoding of large results in short steps.

CBOR's encoder holds the interpreter's lock for a whole result: a result of 30 MB would block the event loop of a node,
in another thread, for 0.1 s. The steps here are short, so that the event loop can run in between.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import Any

import cbor2

from bedrockish.api.requests import Result, encode_results

LARGE_BYTES = 1 << 20  # results with values of fewer bytes are encoded at once
STEP_BYTES = 256 << 10  # approximate bytes in one step; a value of at least this size is encoded by itself
GROUP = 255  # rows in one step, at most: the head of a CBOR list of up to so many items has two bytes
SHORT_LIST = 24  # the head of a list with fewer items has one byte

_LIST, _TEXT, _BYTES = 0x80, 0x60, 0x40  # kinds of values in CBOR
_HEAD = Struct(">BI")
_FIXED = {int, float, type(None)}  # types of values that are short


def encode_in_steps(results: Sequence[Result], size: int) -> bytes:
    """Encode results like ``encode_results``, except that some heads of lists and values may be longer.

    Args:
        results: the results of a request.
        size: approximate size of all their values, in bytes.
    """
    if size < LARGE_BYTES:
        return encode_results(results)
    rows = sum(len(one.rows) for one in results)
    return b"".join(_parts(results, max(1, min(GROUP, STEP_BYTES * rows // size))))


def _parts(results: Sequence[Result], group: int) -> Iterator[bytes]:
    yield _head(_LIST, len(results))
    for one in results:
        yield b"\x84"
        yield cbor2.dumps(one.columns)
        yield _head(_LIST, len(one.rows))
        for start in range(0, len(one.rows), group):
            rows = one.rows[start : start + group]
            if all(map(_is_short, zip(*rows, strict=True))):
                yield cbor2.dumps(rows)[1 if len(rows) < SHORT_LIST else 2 :]  # strip the head of the list
            else:
                yield from chain.from_iterable(map(_row_parts, rows))
        yield cbor2.dumps(one.rowcount)
        yield cbor2.dumps(one.lastrowid)


def _is_short(column: Sequence[Any]) -> bool:
    """Return whether no value of a column has ``STEP_BYTES``. Most columns have values of one type."""
    kinds = {*map(type, column)}
    if kinds <= _FIXED:
        return True
    if len(kinds) == 1:
        return max(map(len, column)) < STEP_BYTES
    return all(len(value) < STEP_BYTES for value in column if type(value) is str or type(value) is bytes)


def _row_parts(row: tuple[Any, ...]) -> Iterator[bytes]:
    yield _head(_LIST, len(row))
    for value in row:
        if isinstance(value, str) and len(value) >= STEP_BYTES:
            encoded = value.encode()
            yield _head(_TEXT, len(encoded))
            yield encoded
        elif isinstance(value, bytes) and len(value) >= STEP_BYTES:
            yield _head(_BYTES, len(value))
            yield value
        else:
            yield cbor2.dumps(value)


def _head(kind: int, count: int) -> bytes:
    return _HEAD.pack(kind | 26, count)
