"""Row changes: the rows that a transaction inserted, updated or deleted, whole, before and after.

Rows are replicated, not SQL, so triggers, random() and the time of day are evaluated once, at the leader. A schema
change is the exception: its statements are replicated as text (see ``Transaction.kind``), including statements that
write rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from math import copysign
from typing import Any, NamedTuple

import cbor2

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import head
from bedrockish_journal.model.value import value

Value = None | int | float | str | bytes
Row = tuple[Value, ...]

INSERT, UPDATE, DELETE = "INSERT", "UPDATE", "DELETE"
PIECE = 2_000  # rows that are encoded or decoded at a time, which takes some milliseconds
AT_ONCE_BYTES = 1 << 18  # up to this many bytes, changes are decoded in one step
READ_BYTES = 512  # the decoder's least read-ahead; with a larger one it seeks back further after each row
INT64 = 1 << 63
DO, SEE, FAIL = "do", "see", "fail"
OVERTAKEN = "it was told what is no longer so"
"""The beginning of a schema change's failure text if a statement has another result now than its client got."""


def same_value(left: Value, right: Value) -> bool:
    """Return whether two values are equal byte by byte: 1 and 1.0 differ, and so do 0.0 and -0.0.

    SQLite compares the values of both pairs as equal, but a column without a type stores them as they were given.
    """
    if left != right or type(left) is not type(right):
        return False
    return bool(left) or type(left) is not float or copysign(1.0, left) == copysign(1.0, right)  # type: ignore[arg-type]


def same_row(left: Row, right: Row) -> bool:
    """Return whether two rows of one table are equal byte by byte."""
    return all(map(same_value, left, right))


@value
class Change:
    """A row inserted, updated or deleted.

    ``rowid`` is the row's id before the change (for an INSERT: the new one), and ``rowid_after`` the id after it (for a
    DELETE: the old one). Both are None for a table WITHOUT ROWID. ``before`` is None for an INSERT, and ``after`` for a
    DELETE. Columns and rows do not include VIRTUAL generated columns.
    """

    table: str
    columns: tuple[str, ...]
    op: str
    rowid: int | None
    rowid_after: int | None
    before: Row | None
    after: Row | None


@value
class SchemaStep:
    """A statement of a schema change, run when the change comes into force."""

    sql: str  # the statement, with the values of its parameters written into it
    kind: str = DO  # ``do``; ``see`` if the statement only reads; ``fail`` if it failed and must fail again
    result_digest: bytes = b""  # a digest of the result that the client got; empty if the result cannot differ


def encode_changes(changes: Iterable[Change]) -> bytes:
    """Return the canonical bytes of a list of row changes, in the order in which they happened.

    They are one CBOR array, ``[heads, rows]``. The rows are encoded in pieces, because the encoder blocks all other
    threads: for a second with a million rows.
    """
    tables: dict[str, int] = {}
    heads: list[tuple[str, tuple[str, ...]]] = []
    rows: list[tuple[Any, ...]] = []
    pieces: list[bytes] = []
    for change in changes:
        place = tables.setdefault(change.table, len(tables))
        if place == len(heads):
            heads.append((change.table, change.columns))
        rows.append((place, change.op, change.rowid, change.rowid_after, change.before, change.after))
        if len(rows) == PIECE:
            pieces.append(_items(rows))
            rows.clear()
    count = len(pieces) * PIECE + len(rows)
    return b"\x82" + _encode_heads(tuple(heads)) + head(4, count) + b"".join(pieces) + _items(rows)


_encode_heads = lru_cache(1_000)(cbor2.dumps)


def _items(rows: list[tuple[Any, ...]]) -> bytes:
    """Return the bytes of the items of an array, without the head that has their number."""
    return cbor2.dumps(rows)[len(head(4, len(rows))) :]


def decode_changes(data: bytes) -> list[Change]:
    """Return the changes that ``encode_changes`` encoded.

    Raises:
        EntryMalformedError: the bytes are not a list of changes.
    """
    try:
        return _changes(*cbor2.loads(data))
    except (cbor2.CBORError, ValueError, TypeError, IndexError) as error:
        raise _malformed(data, error) from error


class ChangeColumns(NamedTuple):
    """Row changes as they were packed, column by column, for readers that build columns and check a column at once."""

    heads: tuple[tuple[str, tuple[str, ...]], ...]  # each table with its columns
    places: tuple[int, ...]  # the index in ``heads`` of each change's table
    # ``ops``, ``rowids``, ``rowids_after``, ``before`` and ``after``: the field of each change, as in ``Change``; a row
    # is a list.
    ops: tuple[str, ...]
    rowids: tuple[int | None, ...]
    rowids_after: tuple[int | None, ...]
    before: tuple[list[Value] | None, ...]
    after: tuple[list[Value] | None, ...]


def decode_change_columns(data: bytes) -> ChangeColumns:
    """Return the changes that ``encode_changes`` encoded, column by column, without checking the items' types.

    Raises:
        EntryMalformedError: the bytes are not a list of tables and a list of changes.
    """
    try:
        heads, rows = cbor2.loads(data)
        made = tuple([(name, tuple(columns)) for name, columns in heads])
        return ChangeColumns(made, *(zip(*rows, strict=True) if rows else ((),) * 6))
    except (cbor2.CBORError, ValueError, TypeError, IndexError) as error:
        raise _malformed(data, error) from error


def decode_changes_in_pieces(data: bytes) -> Iterator[list[Change]]:
    """Yield, piece by piece, the changes that ``decode_changes`` returns as one list; this blocks other threads only
    briefly, and needs little memory.

    Raises:
        EntryMalformedError: the bytes are not a list of changes; the error may come after the first pieces.
    """
    heads, pieces = decode_change_rows(data)
    for rows in pieces:
        try:
            piece = _changes(heads, rows)
        except (ValueError, TypeError, IndexError) as error:
            raise _malformed(data, error) from error
        yield piece


def decode_change_rows(data: bytes) -> tuple[Any, Iterator[list[Any]]]:
    """Return the tables of encoded changes, each with its columns, and an iterator of pieces of the packed changes.

    A packed change is a list: the index of its table, then the fields of ``Change`` from ``op`` on. The types of its
    items are not checked.

    Raises:
        EntryMalformedError: the bytes are not two lists. The iterator raises it for a malformed change.
    """
    start = _start_of_rows(data) if len(data) > AT_ONCE_BYTES else None
    if start is not None:
        heads, count, at = start
        return heads, _rows(data, count, at)
    try:
        heads, rows = cbor2.loads(data)
        return heads, iter([list(rows)])
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise _malformed(data, error) from error


def count_changes(data: bytes) -> int:
    """Return the number of changes, or 0 if the bytes do not have the form of ``encode_changes``."""
    start = _start_of_rows(data)
    return 0 if start is None else start[1]


def _rows(data: bytes, count: int, at: int) -> Iterator[list[Any]]:
    file = BytesIO(data)
    file.seek(at)
    decoder = cbor2.CBORDecoder(file, read_size=READ_BYTES)
    while count:
        rows: list[Any] = []
        until = min(len(data), file.tell() + AT_ONCE_BYTES)
        try:
            while count and len(rows) < PIECE and (not rows or file.tell() < until):
                rows.append(decoder.decode())
                count -= 1
        except (cbor2.CBORError, ValueError, TypeError, IndexError) as error:
            raise _malformed(data, error) from error
        yield rows


def _start_of_rows(data: bytes) -> tuple[Any, int, int] | None:
    """Return the heads, the number of rows and the rows' offset; None if the form is not that of ``encode_changes``."""
    if data[:1] != b"\x82":
        return None
    file = BytesIO(data)
    file.seek(1)
    try:
        heads = cbor2.CBORDecoder(file, read_size=READ_BYTES).decode()
    except (cbor2.CBORError, ValueError, TypeError):
        return None
    at = file.tell()
    kind = int.from_bytes(data[at : at + 1])
    size = {0x98: 1, 0x99: 2, 0x9A: 4}.get(kind, 0)
    if not size and not 0x80 <= kind < 0x98:
        return None
    count = int.from_bytes(data[at + 1 : at + 1 + size]) if size else kind - 0x80
    return heads, count, at + 1 + size


def _changes(heads: Any, rows: Any) -> list[Change]:
    names = [name for name, _ in heads]
    columns = [tuple(columns) for _, columns in heads]
    return [
        Change(
            names[place],
            columns[place],
            op,
            rowid,
            rowid_after,
            None if before is None else tuple(before),
            None if after is None else tuple(after),
        )
        for place, op, rowid, rowid_after, before, after in rows
    ]


def _malformed(data: bytes, error: Exception) -> EntryMalformedError:
    return EntryMalformedError(f"these {len(data)} bytes are not row changes: {error}")


def encode_statements(statements: Sequence[str]) -> bytes:
    """Return the canonical bytes of a schema change of statements of the kind ``do``, without digests of results."""
    return cbor2.dumps(list(statements))


def encode_steps(steps: Iterable[SchemaStep]) -> bytes:
    """Return the canonical bytes of a schema change: for each step [text, kind, digest], for a plain ``do`` a text."""
    return cbor2.dumps(
        [
            step.sql if step.kind == DO and not step.result_digest else [step.sql, step.kind, step.result_digest]
            for step in steps
        ]
    )


def decode_steps(data: bytes) -> list[SchemaStep]:
    """Return the steps that ``encode_steps`` or ``encode_statements`` encoded.

    Raises:
        EntryMalformedError: the bytes are not a schema change.
    """
    try:
        packed = cbor2.loads(data)
        if not isinstance(packed, list):
            raise EntryMalformedError("a schema change should be a list of statements")
        return [SchemaStep(one) if isinstance(one, str) else _step(*one) for one in packed]
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise EntryMalformedError(f"these {len(data)} bytes are not a schema change: {error}") from error


def _step(sql: object, kind: object, result_digest: object) -> SchemaStep:
    if not isinstance(sql, str) or kind not in (DO, SEE, FAIL) or not isinstance(result_digest, bytes):
        raise EntryMalformedError("a statement of a schema change should be a text, its kind and a digest")
    return SchemaStep(sql, kind, result_digest)


def decode_statements(data: bytes) -> list[str]:
    """Return the statements of the kind ``do`` in a schema change, in order; the other kinds change no tables.

    Raises:
        EntryMalformedError: the bytes are not a schema change.
    """
    return [step.sql for step in decode_steps(data) if step.kind == DO]
