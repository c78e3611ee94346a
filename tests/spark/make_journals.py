"""Sound journals of any size, made without a cluster: commits that do not conflict are concurrent."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import cbor2

from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import UPDATE, Change, encode_changes
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.key_text import rowid_bytes
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.storage import store

NODES = ("A", "B", "C")
START_MS = 1_790_000_000_000
KEYS = 100_000
OWNER = "somebody or other"
RANGED = 0.05  # the fraction of commits that also read a range
SHARED_EVERY = 16  # one of so many commits has several commands


@dataclass
class Maker:
    """Makes a chain of commits that are never concurrent on one key, each leader some commits behind the others."""

    hot: float
    changes: int
    luck: random.Random = field(default_factory=lambda: random.Random(7))
    applied: dict[str, int] = field(default_factory=dict)
    seen: dict[str, dict[str, int]] = field(default_factory=lambda: {node: {} for node in NODES})
    heads: dict[str, bytes] = field(default_factory=dict)
    written: dict[int, tuple[str, int]] = field(default_factory=dict)
    read: dict[int, dict[str, int]] = field(default_factory=dict)

    def entry(self, number: int) -> Entry:
        """Return the next commit."""
        leader = self.luck.choice(NODES)
        tick = self.applied.get(leader, 0) + 1
        base = dict(self.seen[leader])
        if self.luck.random() < 0.5:
            base = dict(self.applied)  # the leader applies all commits
        one = 0 if self.luck.random() < self.hot else self.luck.randrange(1, KEYS)
        other = self.luck.randrange(KEYS, 2 * KEYS)
        low = self.luck.randrange(2 * KEYS, 3 * KEYS)
        ranges = ((_key(low), _key(low + 20)),) if self.luck.random() < RANGED else ()
        if any(base.get(name, 0) < at for row in (one, other) for name, at in self._uses(row)):
            base = dict(self.applied)  # it conflicted with a commit outside its base, and is executed again
        self.seen[leader] = {**base, leader: tick}
        self.written[one] = (leader, tick)
        self.read.pop(one, None)
        self.read.setdefault(other, {})[leader] = tick
        self.applied[leader] = tick
        # Further rows belong to this commit alone, so that they conflict with no other.
        rows = [one, *(3 * KEYS + number * self.changes + more for more in range(1, self.changes))]
        access_set = AccessSet(frozenset({b"s:accounts\0", _key(one), _key(other)}), ranges, frozenset(map(_key, rows)))
        return self._made(number, leader, tick, base, access_set, rows)

    def _uses(self, row: int) -> list[tuple[str, int]]:
        return [*([self.written[row]] if row in self.written else []), *self.read.get(row, {}).items()]

    def _made(
        self, number: int, leader: str, tick: int, base: dict[str, int], access_set: AccessSet, rows: Sequence[int]
    ) -> Entry:
        clock = (START_MS << 22) + (number + 1 << 20)
        columns = ("id", "owner", "balance")
        changes = encode_changes(
            Change("accounts", columns, UPDATE, row, row, (row, OWNER, number), (row, OWNER, number + 1))
            for row in rows
        )
        more = 0 if number % SHARED_EVERY else 1 + number // SHARED_EVERY % 3
        transaction = Transaction(
            *(Txid(clock, leader), base, 0, 0, 0, f"command-{number}", "serializable", ROWS, access_set, changes, b""),
            joined=tuple((f"command-{number}-{further}", b"") for further in range(1, more + 1)),
        )
        friend = next(node for node in NODES if node != leader)
        quorum = {leader: tick, friend: self.applied.get(friend, 0)}
        entry = Entry(leader, tick, quorum, transaction, None, self.heads.get(leader, GENESIS))
        self.heads[leader] = entry.hash
        return entry


def _key(row: int) -> bytes:
    return b"t:accounts\0" + rowid_bytes(row)


def make_journals(
    directory: Path, commits: int, hot: float = 0.0, changes: int = 1, nodes: Sequence[str] = NODES
) -> list[Path]:
    """Write the files of nodes, all with the same commits.

    Args:
        directory: where; it is made, and must not be there.
        commits: how many.
        hot: the share of them that write one and the same key.
        changes: rows that each of them changes.
        nodes: whose files to write, of the three nodes that there are.
    """
    directory.mkdir(parents=True)
    paths = [directory / f"{node}.db" for node in nodes]
    files = [apsw.Connection(str(path)) for path in paths]
    founding = cbor2.dumps([0, {node: [f"{node}:1", True, node * 8] for node in NODES}, "id", 5])
    for node, db in zip(nodes, files, strict=True):
        store.create(db)
        db.execute("CREATE TABLE accounts(id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER)")
        db.execute("CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        db.execute("INSERT INTO bedrockish_meta VALUES ('node', ?), ('bootstrap', ?)", (node, founding))
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
    maker = Maker(hot, changes)
    for number in range(commits):
        entry = maker.entry(number)
        for db in files:
            store.append(db, entry, repeat=False, applied_ms=START_MS + number // 4)
    for db in files:
        db.execute("COMMIT")
        db.close()
    return paths
