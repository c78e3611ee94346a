"""Old entries in less room: runs of a timeline whose labels and bodies are compressed together.

A *pack* holds consecutive entries of one timeline. Their rows stay in the journal's table, with every column that is
searched by; the columns that the pack replaces are emptied: label, body, and the hashes, which follow from those, but
for the ``prev`` of its first entry and the ``hash`` of its last, so that the entries before and after can be compared
in plain SQL. The bytes come back as they were hashed, or not at all: a pack whose chain of hashes does not end in the
hash that is kept next to it gives nothing.

``install`` lays a view over the table, on one connection, under the table's own name: every reader of the journal there
reads all of it, and need not know of packs. Code that writes into the table names ``main.bedrockish_journal``.

No database is imported here: the functions work with connections of apsw and of Python's ``sqlite3``.
"""

import bz2
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

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
ENTRIES_MAX = 256  # of a pack: reading one entry unpacks all of them, which takes some three milliseconds
ENTRIES_MIN = 32  # a shorter run is not worth it: entries of another kind, or large ones, end a run
PACK_BYTES = 128 << 10  # of labels and bodies, at which a pack is full
BODY_BYTES_MAX = 16 << 10  # a longer body stays as it is: its keys and hashes are hardly anything of it
RAW_BYTES_MAX = 1 << 20  # no pack unfolds to more: it has PACK_BYTES and one body, and CBOR's overhead
TIMELINES_MAX = 64  # of which a connection keeps the pack that it read last

_SEARCHED = "seq, leader, tick, clock, origin, command, kind, repeat, applied_ms"
UNPACKED = {
    name: f"CASE WHEN {name} <> x'' THEN {name} ELSE {FUNCTION}(leader, tick, {place}) END"
    for place, name in enumerate(("label", "body", "prev", "hash"))
}
"""What the columns of the table that may be packed say, in SQL, where ``install`` has given the function."""
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
_BLOBS = " AND ".join(f"typeof({name}) = 'blob'" for name in UNPACKED)  # a tampered file may hold anything
_FITS = f"kind = '{ROWS}' AND label <> x'' AND {_BLOBS} AND length(body) <= {BODY_BYTES_MAX}"
_LOOK = f"""SELECT tick, clock, {_FITS}, {", ".join(f"CASE WHEN {_FITS} THEN {name} END" for name in UNPACKED)}
  FROM main.bedrockish_journal WHERE leader = ? AND tick BETWEEN ? AND ? ORDER BY tick LIMIT {ENTRIES_MAX}"""

Four = tuple[bytes, bytes, bytes, bytes]


class Connection(Protocol):
    """A connection of apsw or of ``sqlite3``."""

    def execute(self, sql: str, params: tuple[Any, ...] = ..., /) -> Any:
        """Run a statement; its rows are iterated."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Consecutive entries of a timeline, as they are kept.

    Attributes:
        leader: whose timeline.
        first, last: the ticks at its ends.
        prev: what the first one continues.
        hash: that of the last one.
        entries: the compressed labels and bodies.
    """

    leader: str
    first: int
    last: int
    prev: bytes
    hash: bytes
    entries: bytes

    def unpack(self) -> list[Four]:
        """Return (label, body, prev, hash) of each entry; nothing unless all of them are what was packed."""
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
class Run:
    """Entries that are to become a pack: (label, body, prev, hash) of each."""

    leader: str
    first: int
    entries: Sequence[Four]

    def pack(self) -> Pack | None:
        """Compress them, which takes some milliseconds; in any thread. None if they would not come back as they are.

        The pack is going to be all that there is of them, so it is unpacked here as a check.
        """
        labels, bodies = [one[0] for one in self.entries], [one[1] for one in self.entries]
        packed = bz2.compress(cbor2.dumps([labels, bodies]))
        last = self.first + len(self.entries) - 1
        made = Pack(self.leader, self.first, last, self.entries[0][2], self.entries[-1][3], packed)
        return made if made.unpack() == list(self.entries) else None


class Unpacker:
    """An unpacker of entries on one connection. Its cache is never stale: the entry at a place never changes."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._last: dict[str, tuple[int, list[Four]]] = {}  # of each timeline the pack read last: its first tick

    def __call__(self, leader: object, tick: object, place: object) -> bytes:
        """Return label (0), body, prev or hash (3) of an entry that is packed; nothing if there is no such."""
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


def install(db: Connection, create_function: Callable[[str, Callable[..., bytes]], None]) -> None:
    """Let a connection read the journal, packed entries included; ``create_function`` is the connection's own."""
    create_function(FUNCTION, Unpacker(db))
    _run(db, _VIEW, ())


@contextmanager
def set_aside(db: Connection, sql: str) -> Iterator[None]:
    """Have the view away while an ALTER runs; other statements need nothing.

    When SQLite renames or drops a column or a table, it reads all definitions again, and there takes the view for the
    table on which the journal's indexes are.
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


def has_packs(db: Connection) -> bool:
    """Return whether the file has the table of packs, which one of an earlier release does not."""
    query = f"SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = '{TABLE}'"
    return any(True for _ in db.execute(query))


def find(db: Connection, leader: str, tick: int) -> Pack | None:
    """Return the pack that has an entry, or None."""
    if not has_packs(db):
        return None
    for first, last, prev, digest, entries in list(db.execute(_FIND, (leader, tick))):
        typed = type(first), type(last), type(prev), type(digest), type(entries)
        if typed == (int, int, bytes, bytes, bytes) and first <= tick:
            return Pack(leader, first, last, prev, digest, entries)
    return None


def next_run(db: Connection, upto: Mapping[str, int], clock: int, begin: dict[str, int]) -> Run | None:
    """Return entries that can be packed now, as many as make a pack; None if there are too few.

    A run that is not full is left until it is, but for one that something ends which cannot be packed: a change of the
    schema or of the membership, a large body, an entry that does not continue the one before it.

    Args:
        db: a node's connection.
        upto: the last tick of each timeline that may be packed.
        clock: nothing later than this is.
        begin: where each timeline goes on; it is kept up to date, so what was returned is not returned again.
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
                break  # what is there does not fill a pack yet
    return None


def _next_run(db: Connection, leader: str, begin: int, last: int, clock: int) -> tuple[Run | None, int]:
    """Return the next run of a timeline from a tick on, if there is one, and where to go on."""
    entries: list[Four] = []
    size, first = 0, begin
    rows = db.execute(_LOOK, (leader, begin, last))
    try:
        for tick, at, fits, label, body, prev, digest in rows:
            if at > clock:
                break
            fits = fits and entry_hash(prev, label, body) == digest
            if entries and not (fits and tick == first + len(entries) and prev == entries[-1][3]):
                if len(entries) >= ENTRIES_MIN:
                    return Run(leader, first, entries), first + len(entries)
                entries, size = [], 0
            if not fits:
                first = tick + 1
                continue
            if not entries:
                first = tick
            entries.append((label, body, prev, digest))
            size += len(label) + len(body)
            if len(entries) >= ENTRIES_MAX or size >= PACK_BYTES:
                return Run(leader, first, entries), first + len(entries)
        return None, first
    finally:
        rows.close()  # an open cursor would keep the caller's transaction from being rolled back


def write(db: Connection, pack: Pack) -> None:
    """Put a pack into the file instead of the bytes of its entries, inside the caller's transaction."""
    insert = f"INSERT INTO main.{TABLE}(leader, first, last, prev, hash, entries) VALUES (?, ?, ?, ?, ?, ?)"
    _run(db, insert, (pack.leader, pack.first, pack.last, pack.prev, pack.hash, pack.entries))
    span = (pack.leader, pack.first, pack.last)
    rows = [
        (*row, pack.prev if row[2] == pack.first else b"", pack.hash if row[2] == pack.last else b"")
        for row in db.execute(f"SELECT {_SEARCHED} {_SPAN}", span)
    ]
    # Deleted and written again: rows that are made shorter in their place leave their pages half empty for ever.
    _run(db, f"DELETE {_SPAN}", span)
    for row in rows:
        _run(db, _INSERT, row)


def cut(db: Connection, leader: str, upto: int) -> None:
    """Remove the packs of a timeline up to a tick, inside the caller's transaction.

    Pack the rest of a pack that goes on behind the tick again, so that nothing is left of the removed entries.

    Args:
        db: a node's connection.
        leader: whose timeline.
        upto: a tick as ``cuttable`` gives it; up to there the rows are gone already.
    """
    if not has_packs(db):
        return
    found = find(db, leader, upto)
    _run(db, f"DELETE FROM main.{TABLE} WHERE leader = ? AND last <= ?", (leader, upto))
    entries = found.unpack()[upto + 1 - found.first :] if found is not None else []
    rest = Run(leader, upto + 1, entries).pack() if entries else None
    if rest is not None:
        update = f"UPDATE main.{TABLE} SET first = ?, prev = ?, entries = ? WHERE leader = ? AND last = ?"
        _run(db, update, (rest.first, rest.prev, rest.entries, leader, rest.last))
        update = "UPDATE main.bedrockish_journal SET prev = ? WHERE leader = ? AND tick = ?"
        _run(db, update, (rest.prev, leader, rest.first))


def cuttable(db: Connection, leader: str, upto: int, most: int) -> int:
    """Return where a timeline can be cut: ``upto``, unless its hash cannot be told because its pack is damaged or gone.

    Then at the next entry that has its hash, if that is not above ``most``, else at the last one before; 0: nowhere.
    """
    ((digest,),) = list(db.execute(_HASH, (leader, upto))) or [(b"",)]
    if digest:
        return upto
    row = next(iter(db.execute(_HASHED, (leader, upto, most))))
    return int(row[0] or 0)


def packed_bytes(db: Connection) -> int:
    """Return about how many bytes all packs have, by some hundred of them; their rows are in the table besides."""
    if not has_packs(db):
        return 0
    first, last = next(iter(db.execute(_ENDS)))
    if first is None:
        return 0
    step: int = max(1, (last - first) // 128)
    found: list[tuple[int]] = list(db.execute(_SAMPLE, (first, last, step)))
    return step * found[0][0]  # a number that no pack has counts as nothing


def _run(db: Connection, sql: str, params: tuple[Any, ...]) -> None:
    for _ in db.execute(sql, params):
        raise AssertionError("it returns no rows")
