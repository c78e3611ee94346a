"""Some nodes' files, filled as nodes fill them: rows captured by SQLite's own hook, entries delivered late and in
different orders, now and then an adopted transaction. Neither a network nor votes take part.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import apsw
import cbor2

from bedrockish.access_sets.key_encoding import encode, table_key
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import Change, Value, decode_changes, encode_changes, encode_statements
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.order import may_apply
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Transaction, Txid
from bedrockish_journal.storage import schema_history as schema
from bedrockish_journal.storage import store
from bedrockish_journal.storage.table_layout import Applier

NODES = ("A", "B", "C", "D", "E")
SCHEMA_SQL = [
    "CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT, balance REAL, extra, twice AS (balance * 2) STORED)",
    "CREATE TABLE note(text TEXT, rowid_ INTEGER)",
    "CREATE TABLE pair(left TEXT, right INTEGER, value BLOB, PRIMARY KEY (left, right)) WITHOUT ROWID",
    "CREATE INDEX account_owner ON account(owner)",
    """CREATE TRIGGER spread AFTER UPDATE OF balance ON account BEGIN
         UPDATE account SET extra = new.balance WHERE id = 1000 + new.id; END""",
]


class Node:
    """A node's file."""

    def __init__(self, path: Path, name: str, nodes: tuple[str, ...], founded: bool = True) -> None:
        self.path, self.name = path, name
        self.db = apsw.Connection(str(path))
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = OFF")
        store.create(self.db)
        schema.create(self.db)
        self.db.execute("CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        members = cbor2.dumps([0, {node: [f"localhost:{port}", True, ""] for port, node in enumerate(nodes)}, "id", 5])
        values = [("node", name)] + ([("bootstrap", members)] if founded else [])
        self.db.executemany("INSERT INTO bedrockish_meta VALUES (?, ?)", values)
        self.applied: dict[str, int] = {}
        self.heads: dict[str, bytes] = {}
        self.txids: set[Txid] = set()
        self.inbox: list[Entry] = []

    def execute(self, statements: list[str]) -> bytes:
        """Run statements, return their changes, and roll them back."""
        with capture(self.db) as changes:
            self.db.execute("SAVEPOINT trial")
            for statement in statements:
                self.db.execute(statement)
            self.db.execute("ROLLBACK TO trial")
            self.db.execute("RELEASE trial")
        return encode_changes(changes)

    def take(self, entry: Entry) -> None:
        """Apply an entry that may be applied, and keep it."""
        assert may_apply(entry, self.applied)
        repeat = entry.txid in self.txids
        with self.db:
            store.append(self.db, entry, repeat=repeat, applied_ms=1)
            if not repeat:
                self._change(entry)
        self.txids.add(entry.txid)
        self.applied[entry.leader] = entry.tick
        self.heads[entry.leader] = entry.hash

    def _change(self, entry: Entry) -> None:
        self.db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        if entry.transaction.kind == ROWS:
            applier = Applier(self.db)
            for change in decode_changes(entry.transaction.changes):
                applier.apply(change)
        elif entry.transaction.kind == SCHEMA:
            for statement in SCHEMA_SQL:
                self.db.execute(statement)
            version = entry.transaction.schema + 1
            schema.schedule(self.db, entry.transaction, version, SCHEMA_SQL)
            schema.settle(self.db, version, "")
        self.db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)

    def settle(self, draw: random.Random) -> None:
        """Apply all entries in the inbox whose causes are applied, in a random order."""
        while ready := [entry for entry in self.inbox if may_apply(entry, self.applied)]:
            entry = draw.choice(ready)
            self.inbox.remove(entry)
            self.take(entry)


@contextmanager
def capture(db: apsw.Connection) -> Iterator[list[Change]]:
    """Collect the row changes that a connection makes."""
    changes: list[Change] = []

    def hook(update: apsw.PreUpdate) -> None:
        info = db.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden <> 2", (update.table_name,)).fetchall()
        wr = db.execute("SELECT wr FROM pragma_table_list(?)", (update.table_name,)).get
        columns = tuple(str(row[0]) for row in info)
        before = None if update.old is None else tuple(update.old)
        after = None if update.new is None else tuple(update.new)
        op = str(update.op)
        old, new = update.rowid, update.rowid_new
        if op == "INSERT":
            old = new
        if op == "DELETE":
            new = old
        if wr:
            changes.append(Change(update.table_name, columns, op, None, None, before, after))
        else:
            changes.append(Change(update.table_name, columns, op, old, new, before, after))

    db.preupdate_hook(hook)
    try:
        yield changes
    finally:
        db.preupdate_hook(None)


def written(changes: bytes) -> AccessSet:
    """Return the access set of row changes: each row is written, and nothing read."""
    points = set()
    for change in decode_changes(changes):
        for rowid, row in ((change.rowid, change.before), (change.rowid_after, change.after)):
            if row is not None:
                points.add(table_key(change.table, rowid) if rowid is not None else pair_key(*row))
    return AccessSet(write_points=frozenset(points))


def pair_key(left: Value, right: Value, *_: Value) -> bytes:
    """Return the key of a row of the table WITHOUT ROWID."""
    return b"t:pair\0" + encode(left) + encode(right)


class World:
    """Several nodes and their commits."""

    def __init__(self, folder: Path, seed: int, nodes: tuple[str, ...] = NODES[:3]) -> None:
        self.draw = random.Random(seed)
        self.nodes = {name: Node(folder / f"{name}.db", name, nodes) for name in nodes}
        self.names = nodes
        self.clock = 1 << 40
        self.commands = 0
        self.config = 0  # the membership under which transactions begin
        self.version = 0  # the version of the schema on which transactions run
        self.open: set[Txid] = set()  # begun, and not committed
        self.places: dict[Txid, list[tuple[str, int]]] = {}  # committed
        self.last: dict[str, tuple[str, int]] = {}  # row -> the last commit that touched it

    def transaction(self, leader: str, kind: str, changes: bytes, command: str | None = None) -> Transaction:
        self.clock += 1
        self.commands += 1
        node = self.nodes[leader]
        access_set = written(changes) if kind == ROWS else AccessSet()
        txid, safe = Txid(self.clock, leader), self.safe(node.applied)
        self.open.add(txid)
        return Transaction(
            txid,
            dict(node.applied),
            safe,
            self.version,
            self.config,
            command or f"command-{self.commands}",
            "serializable",
            kind,
            replace(access_set, read_points=access_set.write_points),  # it has read the rows that it changes
            changes,
            b"",
            activates=self.clock + 1 if kind == SCHEMA else 0,
        )

    def safe(self, applied: dict[str, int]) -> int:
        """Return the clock below which every node has applied everything that can still appear."""
        safe = 0
        for txid, places in sorted(self.places.items()):
            if not any(applied.get(leader, 0) >= tick for leader, tick in places) or txid > min(
                self.open, default=txid
            ):
                break
            safe = txid.clock
        return safe

    def entry(self, leader: str, transaction: Transaction) -> Entry:
        """Label a transaction as the next commit of a leader, approved by all nodes."""
        node = self.nodes[leader]
        tick = node.applied.get(leader, 0) + 1
        quorum = {name: other.applied.get(name, 0) for name, other in self.nodes.items()} | {leader: tick}
        # The approvers had applied the transaction's base, so their own tick is at least the one in it.
        quorum = {name: max(at, transaction.base.get(name, 0)) for name, at in quorum.items()}
        adopted = None if transaction.txid.leader == leader else transaction.txid.leader
        self.open.discard(transaction.txid)
        self.places.setdefault(transaction.txid, []).append((leader, tick))
        return Entry(leader, tick, quorum, transaction, adopted, node.heads.get(leader, GENESIS))

    def commit(self, leader: str, transaction: Transaction) -> Entry:
        entry = self.entry(leader, transaction)
        self.nodes[leader].take(entry)
        self.send(entry)
        return entry

    def send(self, entry: Entry) -> None:
        for name, node in self.nodes.items():
            if name != entry.leader:
                node.inbox.append(entry)

    def begin(self) -> None:
        """Make the tables, everywhere."""
        first = self.names[0]
        self.commit(first, self.transaction(first, SCHEMA, encode_statements(SCHEMA_SQL)))
        self.clock += 1  # it is in force from the next clock on
        self.version += 1
        self.settle()

    def settle(self) -> None:
        for node in self.nodes.values():
            node.settle(self.draw)

    def step(self) -> None:
        """Make a random transaction at a random node, on a row whose last commit it has seen; some are adopted."""
        leader = self.draw.choice(self.names)
        node = self.nodes[leader]
        row = self.draw.randrange(12)
        key = f"row {row}"
        owner, tick = self.last.get(key, (leader, 0))
        if node.applied.get(owner, 0) < tick:
            node.settle(self.draw)
            return
        transaction = self.transaction(leader, ROWS, node.execute(self.statements(row)))
        if self.commands % 5 == 0:
            joined = ((f"joined-{self.commands}", b"one"), (f"joined-{self.commands}-too", b"two"))
            transaction = replace(transaction, joined=joined, body=b"")
        if self.draw.random() < 0.15:
            entry = self.adopted(leader, transaction)
        else:
            entry = self.commit(leader, transaction)
        self.last[key] = entry.place
        if self.draw.random() < 0.3:
            self.nodes[self.draw.choice(self.names)].settle(self.draw)

    def adopted(self, leader: str, transaction: Transaction) -> Entry:
        """Let a leader commit and fall silent, and another node adopt the transaction before the leader's label
        arrives.
        """
        entry = self.entry(leader, transaction)
        self.nodes[leader].take(entry)
        adopter = self.nodes[self.draw.choice([name for name in self.names if name != leader])]
        adopter.settle(self.draw)
        if all(adopter.applied.get(name, 0) >= tick for name, tick in transaction.base.items()):
            self.commit(adopter.name, transaction)
        self.send(entry)
        return entry

    def statements(self, row: int) -> list[str]:
        value = self.draw.randrange(1000)
        return self.draw.choice(
            [
                [f"INSERT OR REPLACE INTO account(id, owner, balance) VALUES ({row}, 'o{value}', {value})"],
                [f"INSERT OR REPLACE INTO account(id, owner, extra) VALUES ({1000 + row}, 'shadow', x'{value:04d}')"],
                [f"UPDATE account SET balance = balance + {value} WHERE id = {row}"],
                [f"DELETE FROM account WHERE id = {row}"],
                [f"INSERT OR REPLACE INTO note(rowid, text, rowid_) VALUES ({row}, 'n{value}', {value}.0)"],
                [
                    f"UPDATE note SET rowid = {2000 + row} WHERE rowid = {row}",
                    f"DELETE FROM note WHERE rowid = {2000 + row}",
                ],
                [f"INSERT OR REPLACE INTO pair VALUES ('p', {row}, 9e999), ('q', {row}, -9223372036854775808)"],
                [f"UPDATE OR REPLACE pair SET left = 'r' || left, value = {value} WHERE right = {row} AND left < 'rr'"],
                [f"DELETE FROM pair WHERE right = {row} AND left = 'p'"],
            ]
        )

    def run(self, steps: int) -> "World":
        self.begin()
        for _ in range(steps):
            self.step()
        self.settle()
        return self

    def members(self, leader: str, version: int, voters: tuple[str, ...]) -> Entry:
        told = {node: [f"localhost:{NODES.index(node)}", True, ""] for node in voters}
        packed = cbor2.dumps([version, told, "id", 5])
        return self.commit(leader, self.transaction(leader, MEMBERS, packed))

    @property
    def paths(self) -> list[Path]:
        return [node.path for node in self.nodes.values()]

    def close(self) -> None:
        for node in self.nodes.values():
            node.db.close()
