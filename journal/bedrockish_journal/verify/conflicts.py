"""Checks that no two concurrent transactions conflict, by their reads and writes (the law ``conflict``).

A private SQLite database has the reads and writes of all files, and spills to disk when it is large. Only some numbers
per transaction are in memory, so that journals of millions of entries can be checked.

Single keys are checked in order. A transaction that touches a key must have seen the transaction that wrote it last; a
transaction that writes the key must also have seen those that read it since. The law ``closure`` covers the
transactions before these. Ranges and membership changes are compared only with concurrent transactions, which are few:
the ticks of each timeline that a transaction had not seen.
"""

from array import array
from collections.abc import Iterator, Mapping
from itertools import chain

import apsw

from bedrockish_journal.model.access_set import object_of
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.key_text import key_text
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.model.transaction import MEMBERS

SHOWN_MAX = 1_000  # most findings: if all write sets were altered, each pair of transactions may conflict
_TICK_MAX = (1 << 63) - 1
_DDL = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -16384;
CREATE TABLE txn(n INTEGER PRIMARY KEY, clock INTEGER, origin TEXT, UNIQUE(clock, origin));
CREATE TABLE place(leader INTEGER, wide INTEGER, tick INTEGER, n INTEGER, PRIMARY KEY (leader, wide, tick, n))
  WITHOUT ROWID;
CREATE TABLE touch(n INTEGER, key BLOB, clock INTEGER, writes INTEGER, PRIMARY KEY (n, key)) WITHOUT ROWID;
CREATE TABLE reach(n INTEGER, low BLOB, high BLOB, writes INTEGER);
CREATE INDEX reach_n ON reach(n);
BEGIN;
"""
_NEW = "INSERT INTO txn(clock, origin) VALUES (?, ?) ON CONFLICT DO NOTHING"
_KNOWN = "SELECT n FROM txn WHERE clock = ? AND origin = ?"
_PLACED = "INSERT INTO place VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_KEYS = "SELECT key, n, writes FROM touch WHERE clock > ? ORDER BY key, clock, n"
_ORDER = "SELECT n FROM txn WHERE clock > ? ORDER BY clock, n"
_UNSEEN = "SELECT DISTINCT n FROM place WHERE leader = ? AND wide = ? AND tick > ? AND tick <= ?"
_IN_POINTS = """SELECT key FROM reach AS r JOIN touch AS t ON t.n = ?2 AND t.key >= r.low AND t.key < r.high
  WHERE r.n = ?1 AND (r.writes OR t.writes) LIMIT 1"""
_IN_RANGES = """SELECT max(a.low, b.low) FROM reach AS a JOIN reach AS b ON b.n = ?2
  WHERE a.n = ?1 AND a.low < b.high AND b.low < a.high AND (a.writes OR b.writes) LIMIT 1"""


class Conflicts:
    """The reads and writes of the transactions of several journals, each transaction added once."""

    def __init__(self) -> None:
        self._db = apsw.Connection("")  # a temporary database, which SQLite spills to disk when it is large
        self._db.execute(_DDL).fetchall()
        self._leaders: dict[str, int] = {}
        # For each transaction, by its number: its clock, leader and tick of its first label, the version of its
        # membership, and whether it has ranges or changes the membership.
        self._clocks, self._label_leaders, self._label_ticks, self._configs = (array("Q", [0]) for _ in range(4))
        self._wide, self._changes_members = bytearray(1), set[int]()
        self._seen_ticks: list[array[int]] = []  # for each leader, the last tick that each transaction had seen
        self._further_labels: dict[int, list[tuple[int, int]]] = {}  # the further labels of a transaction
        self._retired_at: dict[int, int] = {}  # timelines that vectors omit -> the membership that retired them

    def add(self, entry: Entry) -> None:
        """Add an entry, which may be a further label of a transaction that was added before."""
        txid = entry.txid
        numbers = (*entry.after.values(), entry.tick, txid.clock, entry.transaction.config)
        if max(numbers) > _TICK_MAX:
            return  # too large for any node: the number was altered, as other laws report
        leader = self._leader(entry.leader)
        self._db.execute(_NEW, tuple(txid))
        if self._db.changes():
            number = self._db.last_insert_rowid()
            self._add_first(number, leader, entry)
        else:
            number = self._db.execute(_KNOWN, tuple(txid)).get
            label = leader, entry.tick
            if label != (
                self._label_leaders[number],
                self._label_ticks[number],
            ) and label not in self._further_labels.get(number, ()):
                self._further_labels.setdefault(number, []).append(label)
        self._db.execute(_PLACED, (leader, self._wide[number], entry.tick, number))

    def _leader(self, name: str) -> int:
        if name not in self._leaders:
            self._leaders[name] = len(self._seen_ticks)
            self._seen_ticks.append(array("Q"))
        return self._leaders[name]

    def _add_first(self, number: int, leader: int, entry: Entry) -> None:
        transaction, access_set = entry.transaction, entry.transaction.access_set
        assert number == len(self._label_leaders), "transactions are numbered one by one"
        self._clocks.append(entry.txid.clock)
        self._label_leaders.append(leader)
        self._label_ticks.append(entry.tick)
        self._configs.append(transaction.config)
        self._wide.append(access_set.has_ranges or transaction.kind == MEMBERS)
        if transaction.kind == MEMBERS:
            self._changes_members.add(number)
        for name, tick in entry.after.items():
            saw = self._seen_ticks[self._leader(name)]
            saw.extend([0] * (number - len(saw)))
            saw.append(tick)
        clock, writes = entry.txid.clock, access_set.write_points
        touched = [(number, key, clock, key in writes) for key in sorted(access_set.touched)]
        self._db.executemany("INSERT INTO touch VALUES (?, ?, ?, ?)", touched).fetchall()
        if access_set.has_ranges:
            spans = [(number, low, high, False) for low, high in access_set.read_ranges]
            spans += [(number, low, high, True) for low, high in access_set.write_ranges]
            self._db.executemany("INSERT INTO reach VALUES (?, ?, ?, ?)", spans).fetchall()

    def check(self, files: str, horizon: int, retired: Mapping[str, int]) -> Iterator[Finding]:
        """Yield the conflicts, at most ``SHOWN_MAX``, and a last finding if there are more.

        Args:
            files: the nodes whose journals were added, for the findings.
            horizon: transactions with a clock up to this one are not checked, because labels of transactions that
                they may have seen were removed.
            retired: the timelines that vectors omit, each with the membership that retired it.
        """
        self._retired_at = {self._leader(name): version for name, version in retired.items()}
        reported: set[tuple[int, int]] = set()
        for later, earlier, key in chain(self._at_keys(horizon), self._in_ranges(horizon)):
            if (later, earlier) in reported:
                continue
            if len(reported) == SHOWN_MAX:
                yield Finding("conflict", files, text=f"there are more conflicts than these {SHOWN_MAX}")
                return
            reported.add((later, earlier))
            yield self._finding(files, later, earlier, key)

    def _at_keys(self, horizon: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (later, earlier, key) of conflicts at one key: an access after a write, or a write after a read."""
        key: bytes | None = None
        wrote, reads = 0, array("Q")
        rows: Iterator[tuple[bytes, int, int]] = self._db.execute(_KEYS, (horizon,))
        for touched, number, writes in rows:
            if touched != key:
                key, wrote = touched, 0
                del reads[:]
            if wrote and not self._has_seen(number, wrote):
                yield number, wrote, touched
            if writes:
                for reader in reads:
                    if not self._has_seen(number, reader):
                        yield number, reader, touched
                wrote = number
                del reads[:]
            else:
                reads.append(number)

    def _in_ranges(self, horizon: int) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield pairs of transactions that conflict in a range; the key is None if one changes the membership."""
        ends: list[list[int]] = [[0, 0] for _ in self._seen_ticks]  # timeline -> last ticks, by ``_wide`` (0 or 1)
        for (number,) in self._db.execute(_ORDER, (horizon,)):
            for earlier in sorted(self._concurrent(number, ends)):
                if number in self._changes_members or earlier in self._changes_members:
                    yield number, earlier, None
                elif (found := self._overlap(number, earlier)) is not None:
                    yield number, earlier, found
            for leader, tick in self._labels(number):
                kind = self._wide[number]
                ends[leader][kind] = max(ends[leader][kind], tick)

    def _concurrent(self, number: int, ends: list[list[int]]) -> set[int]:
        """Return the earlier transactions that a transaction had not seen, if either has ranges or changes members."""
        found: set[int] = set()
        for leader, last in enumerate(ends):
            had = self._seen_of(number, leader)
            for wide in (0, 1) if self._wide[number] else (1,):
                if last[wide] > had:
                    unseen = self._db.execute(_UNSEEN, (leader, wide, had, last[wide]))
                    found.update(other for (other,) in unseen)
        clocks, at = self._clocks, (self._clocks[number], number)
        return {other for other in found if (clocks[other], other) < at and not self._has_seen(number, other)}

    def _overlap(self, one: int, other: int) -> bytes | None:
        for left, right in ((one, other), (other, one)):
            if self._wide[left]:
                found: bytes | None = self._db.execute(_IN_POINTS, (left, right)).get
                if found is not None:
                    return found
        return self._db.execute(_IN_RANGES, (one, other)).get if self._wide[one] and self._wide[other] else None

    def _labels(self, number: int) -> tuple[tuple[int, int], ...]:
        return ((self._label_leaders[number], self._label_ticks[number]), *self._further_labels.get(number, ()))

    def _seen_of(self, number: int, leader: int) -> int:
        saw = self._seen_ticks[leader]
        tick = saw[number] if number < len(saw) else 0
        return tick or (_TICK_MAX if self._retired_at.get(leader, _TICK_MAX) <= self._configs[number] else 0)

    def _has_seen(self, number: int, other: int) -> bool:
        return any(tick <= self._seen_of(number, leader) for leader, tick in self._labels(other))

    def _finding(self, files: str, later: int, earlier: int, key: bytes | None) -> Finding:
        names = [*self._leaders]
        ((leader, tick), *_), ((other, at), *_) = self._labels(later), self._labels(earlier)
        origin = self._db.execute("SELECT origin FROM txn WHERE n = ?", (later,)).get
        if key is None:
            how, table = "and one of them changes the membership", None
        else:
            table = object_of(key)
            how = f"and both touch {key_text(key) or 'all'} of {table}"
        text = f"{names[leader]}{tick} and {names[other]}{at} are both committed, and neither had seen the other, {how}"
        shown = key.hex() if key is not None else None
        return Finding("conflict", files, names[leader], tick, f"{origin}-{self._clocks[later]:x}", table, shown, text)

    def close(self) -> None:
        """Close the private database."""
        self._db.close()
