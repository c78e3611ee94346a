"""Compression of old entries: the labels and bodies of consecutive entries of a timeline are compressed together.

A *pack* holds consecutive entries of one timeline. Their rows stay in the journal's table, with every searched column.
The columns that the pack replaces are emptied: label, body, and the hashes, which follow from label and body. Only the
``prev`` of the pack's first entry and the ``hash`` of its last stay, so that the entries before and after can be
compared in plain SQL. A pack is unpacked to the bytes that were hashed, or not at all: its chain of hashes must end in
the hash that is stored with the pack.

``unpack_on`` creates a temporary view on a connection, under the table's own name: queries of the journal on this
connection see unpacked entries. Code that writes into the table names ``main.bedrockish_journal``.
"""

import bz2
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import apsw
import cbor2

from bedrockish_journal.model.entry import entry_hash
from bedrockish_journal.model.transaction import ROWS

DDL = """
CREATE TABLE IF NOT EXISTS bedrockish_packed(
  leader TEXT NOT NULL,     -- whose timeline
  first INTEGER NOT NULL,   -- the first tick in it, and the last one; all between are in it
  last INTEGER NOT NULL,
  prev BLOB NOT NULL,       -- what the first one continues, and the hash of the last one
  hash BLOB NOT NULL,
  entries BLOB NOT NULL     -- bzip2 of CBOR: [[label, ...], [body, ...]]
);
CREATE UNIQUE INDEX IF NOT EXISTS bedrockish_packed_place ON bedrockish_packed(leader, last);
"""
TABLE = "bedrockish_packed"
FUNCTION = "bedrockish_unpacked"
ENTRIES_MAX = 256  # most entries of a pack; to read one entry, all are unpacked, in some three milliseconds
ENTRIES_MIN = 32  # a shorter run is not packed; entries of another kind and large entries end a run
PACK_BYTES = 128 << 10  # a pack with this many bytes of labels and bodies is full
BODY_BYTES_MAX = 16 << 10  # a longer body is not packed
RAW_BYTES_MAX = 1 << 20  # limit of an unpacked pack, which has at most PACK_BYTES, one body, and CBOR's overhead
TIMELINES_MAX = 64  # most timelines of which a connection caches the pack that it read last

_SEARCHED = "seq, leader, tick, clock, origin, command, kind, repeat, applied_ms"
UNPACKED = {
    name: f"CASE WHEN {name} <> x'' THEN {name} ELSE {FUNCTION}(leader, tick, {place}) END"
    for place, name in enumerate(("label", "body", "prev", "hash"))
}
"""Column that a pack replaces -> the SQL expression for its unpacked value, on a connection with ``unpack_on``."""
_VIEW = f"""CREATE TEMP VIEW IF NOT EXISTS bedrockish_journal AS
  SELECT {_SEARCHED}, {", ".join(f"{text} AS {name}" for name, text in UNPACKED.items())}
  FROM main.bedrockish_journal"""
_FIND = (
    f"SELECT first, last, prev, hash, entries FROM main.{TABLE} WHERE leader = ? AND last >= ? ORDER BY last LIMIT 1"
)
_SPAN = "FROM main.bedrockish_journal WHERE leader = ? AND tick BETWEEN ? AND ?"
_INSERT = f"""INSERT INTO main.bedrockish_journal({_SEARCHED}, label, body, prev, hash)
  VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, x'', x'', ?, ?)"""
_ENDS = f"SELECT (SELECT min(rowid) FROM main.{TABLE}), (SELECT max(rowid) FROM main.{TABLE})"
_SAMPLE = f"""WITH RECURSIVE place(number) AS (
    SELECT ?1 UNION ALL SELECT number + ?3 FROM place WHERE number + ?3 <= ?2)
  SELECT coalesce(sum(length(entries)), 0) FROM place JOIN main.{TABLE} AS pack ON pack.rowid = number"""
_HASH = "SELECT hash FROM bedrockish_journal WHERE leader = ? AND tick = ?"
_HASHED = """SELECT coalesce(
  (SELECT min(tick) FROM main.bedrockish_journal WHERE leader = ?1 AND tick BETWEEN ?2 AND ?3 AND hash <> x''),
  (SELECT max(tick) FROM main.bedrockish_journal WHERE leader = ?1 AND tick < ?2 AND hash <> x''))"""
_BLOBS = " AND ".join(f"typeof({name}) = 'blob'" for name in UNPACKED)  # a tampered file may have other types
_FITS = f"kind = '{ROWS}' AND label <> x'' AND {_BLOBS} AND length(body) <= {BODY_BYTES_MAX}"
_CANDIDATES = f"""SELECT tick, clock, {_FITS}, {", ".join(f"CASE WHEN {_FITS} THEN {name} END" for name in UNPACKED)}
  FROM main.bedrockish_journal WHERE leader = ? AND tick BETWEEN ? AND ? ORDER BY tick LIMIT {ENTRIES_MAX}"""

Four = tuple[bytes, bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Pack:
    """Consecutive entries of a timeline, compressed."""

    leader: str  # the timeline
    # ``first`` and ``last``: the ticks of the first and the last entry.
    first: int
    last: int
    prev: bytes  # the ``prev`` of the first entry
    hash: bytes  # the hash of the last entry
    entries: bytes  # the compressed labels and bodies

    def unpack(self) -> list[Four]:
        """Return (label, body, prev, hash) of each entry; an empty list if the pack is damaged."""
        try:
            unpacker = bz2.BZ2Decompressor()
            raw = unpacker.decompress(self.entries, max_length=RAW_BYTES_MAX)
            if not unpacker.eof:
                return []
            labels, bodies = cbor2.loads(raw)
            found: list[Four] = []
            prev = self.prev
            for label, body in zip(labels, bodies, strict=True):
                digest = entry_hash(prev, label, body)
                found.append((label, body, prev, digest))
                prev = digest
        except (OSError, EOFError, cbor2.CBORError, ValueError, TypeError, RecursionError):
            return []
        whole = prev == self.hash and len(found) == self.last - self.first + 1
        return found if whole else []


@dataclass(frozen=True, slots=True)
class PackRun:
    """Entries that will become a pack: (label, body, prev, hash) of each."""

    leader: str
    first: int
    entries: Sequence[Four]

    def pack(self) -> Pack | None:
        """Return the compressed entries; None if they cannot be unpacked to the same bytes.

        This takes some milliseconds, and may run in any thread. The pack will be the only copy of the entries, so it
        is unpacked here as a check.
        """
        labels, bodies = [one[0] for one in self.entries], [one[1] for one in self.entries]
        packed = bz2.compress(cbor2.dumps([labels, bodies]))
        last = self.first + len(self.entries) - 1
        made = Pack(self.leader, self.first, last, self.entries[0][2], self.entries[-1][3], packed)
        return made if made.unpack() == list(self.entries) else None


class Unpacker:
    """An unpacker of entries on one connection. Its cache is never stale, because an entry never changes."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = weakref.proxy(db)  # SQLite keeps the function, which must not keep the connection
        self._last: dict[str, tuple[int, list[Four]]] = {}  # timeline -> first tick and entries of the last read pack

    def __call__(self, leader: object, tick: object, place: object) -> bytes:
        """Return label (0), body (1), prev (2) or hash (3) of a packed entry; empty bytes if no pack has the entry."""
        if not isinstance(leader, str) or type(tick) is not int or type(place) is not int:
            return b""
        first, entries = self._last.get(leader, (0, []))
        if not 0 <= tick - first < len(entries):
            first, entries = self._read(leader, tick)
        return entries[tick - first][place] if 0 <= tick - first < len(entries) else b""

    def _read(self, leader: str, tick: int) -> tuple[int, list[Four]]:
        found = find(self._db, leader, tick)
        if found is None:
            return 0, []
        if len(self._last) >= TIMELINES_MAX:
            self._last.pop(next(iter(self._last)))
        self._last[leader] = read = found.first, found.unpack()
        return read


def unpack_on(db: apsw.Connection) -> None:
    """Have a connection unpack packed entries when it reads the journal."""
    forget_unpacked(db)
    _run(db, _VIEW, ())


def forget_unpacked(db: apsw.Connection) -> None:
    """Drop the entries that a connection has unpacked and cached."""
    unpack: Callable[..., bytes] = Unpacker(db)
    db.create_scalar_function(FUNCTION, unpack, 3)


@contextmanager
def set_aside(db: apsw.Connection, sql: str) -> Iterator[None]:
    """Drop the view of ``unpack_on`` while an ALTER statement runs, and create it again afterwards.

    When SQLite renames or drops a column or a table, it parses all definitions again, and then takes the view for the
    table that the journal's indexes belong to. Other statements do not need this.
    """
    there = "SELECT 1 FROM temp.sqlite_schema WHERE name = 'bedrockish_journal'"
    if "alter" not in sql.lower() or not any(True for _ in db.execute(there)):
        yield
        return
    _run(db, "DROP VIEW temp.bedrockish_journal", ())
    try:
        yield
    finally:
        _run(db, _VIEW, ())


def find(db: apsw.Connection, leader: str, tick: int) -> Pack | None:
    """Return the pack that has the entry of a tick, or None."""
    for first, last, prev, digest, entries in list(db.execute(_FIND, (leader, tick))):
        typed = type(first), type(last), type(prev), type(digest), type(entries)
        if typed == (int, int, bytes, bytes, bytes) and first <= tick:
            return Pack(leader, first, last, prev, digest, entries)
    return None


def next_run(db: apsw.Connection, upto: Mapping[str, int], clock: int, begin: dict[str, int]) -> PackRun | None:
    """Return entries that can be packed now, as many as make a pack; None if there are too few.

    A run is returned when it is full, or when the entry after it cannot be packed: a change of the schema or of the
    membership, a large body, an entry that does not continue the one before it.

    Args:
        upto: the last tick of each timeline that may be packed.
        clock: entries with a later clock are not packed.
        begin: the tick from which to search each timeline; updated here, so that no run is returned twice.
    """
    for leader, last in sorted(upto.items()):
        if leader not in begin:
            row = next(iter(db.execute(f"SELECT max(last) FROM main.{TABLE} WHERE leader = ?", (leader,))))
            begin[leader] = 1 + (row[0] or 0)
        while begin[leader] <= last:
            before = begin[leader]
            run, begin[leader] = _next_run(db, leader, before, last, clock)
            if run is not None:
                return run
            if begin[leader] == before:
                break  # the entries do not fill a pack yet
    return None


def _next_run(db: apsw.Connection, leader: str, begin: int, last: int, clock: int) -> tuple[PackRun | None, int]:
    """Return the next run of a timeline from a tick on, or None; and the tick at which the next search has to begin."""
    entries: list[Four] = []
    size, first = 0, begin
    rows = db.execute(_CANDIDATES, (leader, begin, last))
    try:
        for tick, at, fits, label, body, prev, digest in rows:
            if at > clock:
                break
            fits = fits and entry_hash(prev, label, body) == digest
            if entries and not (fits and tick == first + len(entries) and prev == entries[-1][3]):
                if len(entries) >= ENTRIES_MIN:
                    return PackRun(leader, first, entries), first + len(entries)
                entries, size = [], 0
            if not fits:
                first = tick + 1
                continue
            if not entries:
                first = tick
            entries.append((label, body, prev, digest))
            size += len(label) + len(body)
            if len(entries) >= ENTRIES_MAX or size >= PACK_BYTES:
                return PackRun(leader, first, entries), first + len(entries)
        return None, first
    finally:
        rows.close()  # an open cursor would keep the caller's transaction from being rolled back


def write(db: apsw.Connection, pack: Pack) -> None:
    """Replace the bytes of a pack's entries in the file by the pack, inside the caller's transaction."""
    insert = f"INSERT INTO main.{TABLE}(leader, first, last, prev, hash, entries) VALUES (?, ?, ?, ?, ?, ?)"
    _run(db, insert, (pack.leader, pack.first, pack.last, pack.prev, pack.hash, pack.entries))
    span = (pack.leader, pack.first, pack.last)
    rows = [
        (*row, pack.prev if row[2] == pack.first else b"", pack.hash if row[2] == pack.last else b"")
        for row in db.execute(f"SELECT {_SEARCHED} {_SPAN}", span)
    ]
    # Rows that are shortened by an UPDATE leave their pages half empty for ever; so they are deleted and inserted.
    _run(db, f"DELETE {_SPAN}", span)
    for row in rows:
        _run(db, _INSERT, row)


def cut(db: apsw.Connection, leader: str, upto: int) -> None:
    """Remove the packs of a timeline up to a tick, inside the caller's transaction.

    If the tick is inside a pack, the pack's later entries are packed again, so that no bytes of the removed ones stay.

    Args:
        upto: a tick that ``cuttable`` returned; the rows up to it are removed already.
    """
    found = find(db, leader, upto)
    _run(db, f"DELETE FROM main.{TABLE} WHERE leader = ? AND last <= ?", (leader, upto))
    entries = found.unpack()[upto + 1 - found.first :] if found is not None else []
    rest = PackRun(leader, upto + 1, entries).pack() if entries else None
    if rest is not None:
        update = f"UPDATE main.{TABLE} SET first = ?, prev = ?, entries = ? WHERE leader = ? AND last = ?"
        _run(db, update, (rest.first, rest.prev, rest.entries, leader, rest.last))
        update = "UPDATE main.bedrockish_journal SET prev = ? WHERE leader = ? AND tick = ?"
        _run(db, update, (rest.prev, leader, rest.first))


def cuttable(db: apsw.Connection, leader: str, upto: int, most: int) -> int:
    """Return the last tick that can be pruned from a timeline: ``upto``, if the hash of that entry is known.

    If the pack of ``upto`` is damaged or missing, return the first later tick whose hash is known, up to ``most``,
    else the last earlier one, or 0.
    """
    ((digest,),) = list(db.execute(_HASH, (leader, upto))) or [(b"",)]
    if digest:
        return upto
    row = next(iter(db.execute(_HASHED, (leader, upto, most))))
    return int(row[0] or 0)


def packed_bytes(db: apsw.Connection) -> int:
    """Return an estimate of the bytes of all packs, by a sample of some hundred; the entries' rows are not counted."""
    first, last = next(iter(db.execute(_ENDS)))
    if first is None:
        return 0
    step: int = max(1, (last - first) // 128)
    found: list[tuple[int]] = list(db.execute(_SAMPLE, (first, last, step)))
    return step * found[0][0]  # a sampled rowid without a pack counts as 0 bytes


def _run(db: apsw.Connection, sql: str, params: tuple[Any, ...]) -> None:
    for _ in db.execute(sql, params):
        raise AssertionError("the statement should return no rows")
