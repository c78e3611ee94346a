"""Digests of ranges of keys of a node's tables, as of one snapshot. Nodes compare the digests to find rows that differ
and should not, because the nodes have applied the same transactions to them.

Two nodes apply concurrent transactions in different orders, so two snapshots rarely have the same commits. So a request
can name a vector, and the answer then also lists the keys that transactions beyond the vector have written. All other
rows must be the same at all nodes that cover the vector.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeGuard

import apsw
import cbor2

from bedrockish_journal.model.changes import Change, decode_changes_in_pieces
from bedrockish_journal.model.transaction import ROWS, SCHEMA, decode_transaction, head
from bedrockish_journal.model.vector import Vector, covers, merge
from bedrockish_journal.storage.own_objects import is_own
from bedrockish_journal.storage.store import applied
from bedrockish_journal.storage.table_layout import TableLayout, find_table, quote, user_tables
from bedrockish_journal.storage.virtual_tables import shadow_tables
from bedrockish_journal.storage.wide_rows import select

HASH_BYTES = 8
TOUCHED_MAX = 50_000  # most keys written by transactions beyond a vector; with more, two snapshots are not compared
LISTED_MAX = 20_000  # most rows that an answer lists one by one
COUNTED_MAX = 500_000  # most rows that one answer covers
# Bytes of rows after which a range without a last key ends. The snapshot of a range keeps the write-ahead log from
# being used again, and a scrub rests only after the end of a range.
RANGE_BYTES = 4 << 20
KEY_VALUES_MAX = 2_000  # most columns of a received key: SQLite allows no table with more
INTEGER_MAX = (1 << 63) - 1
LONG_BYTES = 1 << 16  # a value of at least this many bytes or characters is hashed without being encoded
Key = tuple[Any, ...]  # the rowid, or the values of the primary key


@dataclass(frozen=True, slots=True)
class Range:
    """Consecutive rows of a table by key."""

    table: str  # the table; empty for the definitions of all tables
    after: Key | None = None  # the key before the first row; None: the range starts at the beginning of the table
    upto: Key | None = None  # the last key; None: the range ends after ``limit`` rows or at the end of the table
    # The greatest number of rows if ``upto`` is None; the range then also ends after ``RANGE_BYTES``. 0: no limit.
    limit: int = 0


@dataclass(slots=True)
class RangeDigest:
    """The answer of one node: the digest of its rows in a range."""

    vector: dict[str, int]  # the vector that is applied in the snapshot
    schema: int  # the version of the schema in the snapshot
    digest: bytes = b""  # the digest of all rows of the range
    count: int = 0  # the number of rows
    last: Key | None = None  # the key of the last row; None if the range reaches the end of the table
    # The key as CBOR and the digest of each row, if they were asked for.
    rows: dict[bytes, bytes] = field(default_factory=dict)
    # Keys that transactions beyond the vector of the question have written, as CBOR.
    touched: set[bytes] = field(default_factory=set)
    incomparable: str = ""  # the reason why the snapshot cannot be compared with others; empty if it can
    unreadable: str = ""  # SQLite's error for a page that cannot be read; empty if all pages can be read


@dataclass(slots=True)
class TouchedKeys:
    """The keys that transactions beyond a vector have written to a table, kept from one question to the next.

    A node that applies nothing asks about range after range with the same vector. Without this memory, each answer
    would decode all entries that the node lacks, which takes seconds and slows down the clients of the asked node.
    """

    table: str = ""
    beyond: Vector = field(default_factory=dict)
    schema: int = -1  # the version of the schema to which the keys belong
    upto: Vector = field(default_factory=dict)  # the vector up to which the entries were read
    keys: set[bytes] = field(default_factory=set)
    incomparable: str = ""  # the reason why no snapshot after ``upto`` can be compared; empty if one can

    def prepare_for(self, table: str, beyond: Vector, found: "RangeDigest") -> None:
        """Forget the keys if the question has changed, or if the snapshot lacks a commit that the last one had."""
        same = (self.table, self.beyond, self.schema) == (table, beyond, found.schema)
        if not same or not covers(found.vector, self.upto):
            self.table, self.beyond, self.schema = table, dict(beyond), found.schema
            self.upto, self.keys, self.incomparable = self.beyond, set(), ""


def digest_range(
    db: apsw.Connection, asked: Range, beyond: Vector | None = None, known: TouchedKeys | None = None
) -> RangeDigest:
    """Return the digest of this node's rows in a range.

    Args:
        db: a connection that only reads; the digest is of one snapshot.
        beyond: also list each row, and the keys that transactions beyond this vector wrote; None: only the digest.
        known: the keys from the last question.
    """
    db.execute("BEGIN")
    try:
        version: Any = db.execute("SELECT value FROM bedrockish_meta WHERE key = 'schema_version'").fetchone()
        found = RangeDigest(dict(applied(db)), int(version[0]))
        try:
            if not asked.table:
                _add_definitions(db, found, listed=beyond is not None)
            else:
                _add_rows(db, asked, found, listed=beyond is not None)
        except apsw.CorruptError as error:
            found.unreadable = str(error)
        if beyond is not None and asked.table:
            _add_touched(db, asked.table, beyond, found, known or TouchedKeys())
        return found
    finally:
        if db.in_transaction:  # else SQLite has rolled back because of a disk error, which is to be raised
            db.execute("ROLLBACK")


def _add_definitions(db: apsw.Connection, found: RangeDigest, *, listed: bool) -> None:
    total, shadows = blake2b(digest_size=HASH_BYTES), shadow_tables(db)
    for kind, name, table, sql in db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"):
        if is_own(str(kind), str(name), str(table)) or table in shadows:
            continue
        one = blake2b(cbor2.dumps([kind, name, table, sql]), digest_size=HASH_BYTES).digest()
        total.update(one)
        found.count += 1
        if listed:
            found.rows[cbor2.dumps([kind, name])] = one
    found.digest = total.digest()


def _add_rows(db: apsw.Connection, asked: Range, found: RangeDigest, *, listed: bool) -> None:
    table = next((one for one in user_tables(db, asked.table) if one.name == asked.table), None)
    if table is None:
        found.digest = b"absent"
        return
    keys = table.key_columns
    if any(bound is not None and len(bound) != len(keys) for bound in (asked.after, asked.upto)):
        found.incomparable = f"the key of {table.name} has {len(keys)} column(s) here"
        return
    total, size = blake2b(digest_size=HASH_BYTES), 0
    sets_end = asked.upto is None and asked.limit > 0
    key: Key | None = None
    for row in _rows(db, table, keys, asked):
        key = row[: len(keys)]
        is_listed = listed and found.count < LISTED_MAX
        one = blake2b(digest_size=HASH_BYTES) if is_listed else None
        for piece in _packed(row) if _has_long_value(row) else (cbor2.dumps(row),):
            total.update(piece)
            size += len(piece)
            if one is not None:
                one.update(piece)
        found.count += 1
        if found.count > COUNTED_MAX:
            found.incomparable = f"there are more than {COUNTED_MAX} rows in one range"
            break
        if one is not None:
            found.rows[cbor2.dumps(key)] = one.digest()
        if sets_end and size >= RANGE_BYTES:
            break
    if listed and found.count > LISTED_MAX:
        found.incomparable = f"there are more than {LISTED_MAX} rows in one range"
    found.digest = total.digest()
    # If there are fewer rows than ``limit``, and fewer bytes, the range reaches the end of the table.
    found.last = key if sets_end and (found.count >= asked.limit or size >= RANGE_BYTES) else asked.upto


def _has_long_value(row: Key) -> bool:
    """Return whether a row has a text or a blob of ``LONG_BYTES`` or more. Called for each row, so it must be fast."""
    for value in row:
        kind = type(value)
        if (kind is str or kind is bytes) and len(value) >= LONG_BYTES:
            return True
    return False


def _packed(row: Key) -> Iterator[bytes]:
    """Yield the bytes of ``cbor2.dumps(row)`` in pieces, without copying a long value.

    The encoder blocks all other threads, for a tenth of a second with a value of 30 MB, which it copies several times.
    """
    yield head(4, len(row))
    for value in row:
        if isinstance(value, bytes | str) and len(value) >= LONG_BYTES:
            data = value if isinstance(value, bytes) else value.encode()
            yield (b"\x5a" if data is value else b"\x7a") + len(data).to_bytes(4)
            yield data
        else:
            yield cbor2.dumps(value)


def _rows(db: apsw.Connection, table: TableLayout, keys: list[str], asked: Range) -> Iterator[Key]:
    """Yield key and values of each row of a range, ordered by key."""
    name, what = quote(table.name), ", ".join(keys)
    compared = f"({what})" if len(keys) > 1 else what
    marks = "(" + ", ".join("?" * len(keys)) + ")"
    where, values = [], list[Any]()
    for sign, bound in ((">", asked.after), ("<=", asked.upto)):
        if bound is not None:
            where.append(f"{compared} {sign} {marks}")
            values += bound
    rest = f"FROM {name} {'WHERE ' + ' AND '.join(where) if where else ''} ORDER BY {what}"
    if asked.upto is None and asked.limit:
        rest += f" LIMIT {int(asked.limit)}"
    columns = [f"{name}.{quote(column)}" for column in table.columns]
    yield from select(db, [*keys, *columns], rest, values)


def _add_touched(db: apsw.Connection, table: str, beyond: Vector, found: RangeDigest, known: TouchedKeys) -> None:
    """Add the keys of a table that transactions beyond a vector have written."""
    known.prepare_for(table, beyond, found)
    if not known.incomparable:
        known.incomparable = _collect_touched(db, table, known, found.vector)
    found.touched, found.incomparable = set(known.keys), known.incomparable or found.incomparable


def _collect_touched(db: apsw.Connection, table: str, known: TouchedKeys, vector: Vector) -> str:
    """Add the keys of the entries up to a vector; return why the snapshot cannot be compared, or an empty text."""
    layout = find_table(db, table)
    names = {table.encode(), *([layout.name.encode()] if layout is not None else [])}
    for leader, tick in vector.items():
        first = known.upto.get(leader, 0) + 1
        if first > tick:
            continue
        query = "SELECT kind, body FROM bedrockish_journal WHERE leader = ? AND tick >= ? ORDER BY tick"
        entries: Any = db.execute(query, (leader, first))
        count = 0
        for kind, body in entries:
            count += 1
            if kind == SCHEMA:
                return "the schema is being changed"
            if kind != ROWS or layout is None or not any(name in body for name in names):
                continue  # a body without the table's name is not decoded
            for changes in decode_changes_in_pieces(decode_transaction(body).changes):
                for change in changes:
                    if change.table.lower() == table.lower():
                        known.keys.update(cbor2.dumps(key) for key in _keys_of(layout, change))
            if len(known.keys) > TOUCHED_MAX:
                return "the nodes are too far apart"
        if count <= tick - first:
            return "the entries in between were removed from the journal"
    known.upto = merge(known.upto, vector)
    return ""


def _keys_of(table: TableLayout, change: Change) -> Iterator[Key]:
    if table.rowid is not None:
        for rowid in (change.rowid, change.rowid_after):
            if rowid is not None:
                yield (rowid,)
        return
    for row in (change.before, change.after):
        if row is not None:
            values = dict(zip(change.columns, row, strict=True))
            yield tuple(values[name] for name in table.primary)


def pack_range(asked: Range, beyond: Vector | None) -> dict[str, Any]:
    """Return a question, a range and a vector, as the map that is sent."""
    bounds = [None if key is None else list(key) for key in (asked.after, asked.upto)]
    vector = None if beyond is None else dict(beyond)
    return {"table": asked.table, "after": bounds[0], "upto": bounds[1], "limit": asked.limit, "beyond": vector}


def pack_digest(found: RangeDigest) -> dict[str, Any]:
    """Return an answer, the digest of a range, as the map that is sent."""
    return {
        "vector": found.vector,
        "schema": found.schema,
        "digest": found.digest,
        "count": found.count,
        "last": None if found.last is None else list(found.last),
        "rows": found.rows,
        "touched": sorted(found.touched),
        "incomparable": found.incomparable,
        "unreadable": found.unreadable,
    }


def unpack_digest(packed: Mapping[str, Any]) -> RangeDigest:
    """Return the answer that ``pack_digest`` packed.

    Raises:
        ValueError: the answer is malformed.
    """
    wrong = ValueError("the node's answer has no digest of a range")
    vector, schema, count = _vector(packed.get("vector")), packed.get("schema"), packed.get("count")
    digest, rows, touched = packed.get("digest"), packed.get("rows"), packed.get("touched")
    why = packed.get("incomparable"), packed.get("unreadable")
    if vector is None or not _is_count(schema) or not _is_count(count) or not isinstance(digest, bytes):
        raise wrong
    if not isinstance(rows, dict) or not isinstance(touched, list) or not all(isinstance(one, str) for one in why):
        raise wrong
    if not all(isinstance(one, bytes) for one in (*rows, *rows.values(), *touched)):
        raise wrong
    last = _key("last", packed.get("last"))
    return RangeDigest(vector, schema, digest, count, last, rows, set(touched), str(why[0]), str(why[1]))


def unpack_range(packed: Mapping[str, Any]) -> tuple[Range, Vector | None]:
    """Return a received question: the range, and the vector or None.

    Raises:
        ValueError: the question is malformed.
    """
    table, limit, beyond = packed.get("table"), packed.get("limit", 0), packed.get("beyond")
    after, upto = (_key(name, packed.get(name)) for name in ("after", "upto"))
    if not isinstance(table, str) or not _is_count(limit):
        raise ValueError("a range should have the name of a table and a number of rows")
    vector = None if beyond is None else _vector(beyond)
    if beyond is not None and vector is None:
        raise ValueError("beyond should be a vector")
    return Range(table, after, upto, limit), vector


def _key(name: str, values: Any) -> Key | None:
    """Return the key in a received list of values; None if no list was sent."""
    if values is None:
        return None
    if not isinstance(values, list) or not 0 < len(values) <= KEY_VALUES_MAX or not all(map(_is_value, values)):
        raise ValueError(f"{name} should be a list of the values of a key")
    return tuple(values)


def _is_value(value: Any) -> bool:
    """Return whether SQLite can store a value."""
    return (type(value) is int and -INTEGER_MAX - 1 <= value <= INTEGER_MAX) or isinstance(value, float | str | bytes)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= INTEGER_MAX


def _vector(value: Any) -> dict[str, int] | None:
    """Return a received vector, or None if it is malformed."""
    if not isinstance(value, dict) or not all(isinstance(name, str) and _is_count(n) for name, n in value.items()):
        return None
    return value
