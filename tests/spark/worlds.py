"""Journals for the Spark tests: sound ones of three nodes, made by a tiny cluster in memory, and ways to damage them.

A world keeps drafts of commits and the order in which each node applied them. Chains are computed when the files are
written, so a fault in a draft has right hashes, as a skilled attacker would produce.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw
import cbor2

from bedrockish.access_sets.key_encoding import table_key
from bedrockish_journal.model.access_set import AccessSet, conflict
from bedrockish_journal.model.changes import UPDATE, Change, encode_changes, encode_statements
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.key_text import read_columns
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Transaction, Txid
from bedrockish_journal.model.vector import covers
from bedrockish_journal.storage import store

NODES = ("A", "B", "C")
START_MS = 1_790_000_000_000
Place = tuple[str, int]


@dataclass(frozen=True)
class Draft:
    """A commit before it is hashed."""

    leader: str
    tick: int
    txid: Txid
    base: dict[str, int]
    quorum: dict[str, int]
    access_set: AccessSet
    command: str
    config: int = 0
    kind: str = ROWS
    changes: bytes = b""
    adopted_from: str | None = None
    joined: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()
    users: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        return self.leader, self.tick


def key(name: str, table: str = "accounts") -> bytes:
    return table_key(table, number(name))


def number(name: str) -> int:
    """Return the rowid for a name; rowids follow the order of the names."""
    return int(name) if name.isdecimal() else int.from_bytes(name.encode().ljust(7, b"\0"))


def touching(*writes: str, reads: Iterable[str] = (), ranges: Iterable[tuple[str, str]] = ()) -> AccessSet:
    return AccessSet(
        frozenset({b"s:accounts\0", *(key(name) for name in reads)}),
        tuple((key(low), key(high)) for low, high in ranges),
        frozenset(key(name) for name in writes),
    )


def rows(access_set: AccessSet) -> bytes:
    """Return a change of each row that an access set writes."""
    points = sorted(point.partition(b"\0")[2] for point in access_set.write_points if point.startswith(b"t:"))
    rowids = [rowid for point in points for rowid in read_columns(point) or ()]
    return encode_changes(
        Change("accounts", ("id", "balance"), UPDATE, rowid, rowid, (rowid, 1.5), (rowid, 2.5)) for rowid in rowids
    )


def membership(version: int, *retired: dict[str, int], **voters: bool) -> bytes:
    members = {node: [f"{node}:1", voter, node * 8] for node, voter in voters.items()}
    return cbor2.dumps([version, members, "id", 5, *retired])


@dataclass
class World:
    """Three sound nodes, until a test changes an entry."""

    drafts: dict[Place, Draft] = field(default_factory=dict)
    orders: dict[str, list[Place]] = field(default_factory=lambda: {node: [] for node in NODES})
    clock: int = START_MS << 22
    config: int = 0

    def applied(self, node: str) -> dict[str, int]:
        return {
            leader: len([1 for other, _ in self.orders[node] if other == leader])
            for leader in NODES
            if any(other == leader for other, _ in self.orders[node])
        }

    def commit(self, leader: str, access_set: AccessSet, **fields: object) -> Draft | None:
        """Commit at ``leader`` unless a commit outside its base conflicts; its own file gets the commit at once."""
        base = self.applied(leader)
        for other in self.drafts.values():
            if other.tick > base.get(other.leader, 0) and conflict(other.access_set, access_set):
                known = [d.place for d in self.drafts.values() if d.txid == other.txid]
                if not any(base.get(name, 0) >= tick for name, tick in known):
                    return None
        self.clock += 1 << 20
        tick = base.get(leader, 0) + 1
        friend = NODES[(NODES.index(leader) + 1 + tick % 2) % 3]
        quorum = {leader: tick, friend: self.applied(friend).get(friend, 0)}
        draft = Draft(
            leader, tick, Txid(self.clock, leader), base, quorum, access_set, f"{leader}{tick}-command", self.config,
            changes=rows(access_set),
        )  # fmt: skip
        draft = replace(draft, **fields)  # type: ignore[arg-type]
        self._take(leader, draft)
        return draft

    def _take(self, node: str, draft: Draft) -> None:
        self.drafts[draft.place] = draft
        self.orders[node].append(draft.place)

    def adopt(self, node: str, draft: Draft) -> Draft:
        """Let another node commit a transaction in its own timeline; its first label stays with its leader."""
        tick = self.applied(node).get(node, 0) + 1
        held = {other: self.applied(other).get(other, 0) for other in NODES if other != draft.leader}
        adopted = replace(draft, leader=node, tick=tick, quorum=held, adopted_from=draft.leader)
        self._take(node, adopted)
        return adopted

    def deliver(self, node: str, most: int = 1_000_000) -> None:
        """Let a node apply what it can of the others' commits."""
        done = True
        while done and most > 0:
            done = False
            applied = self.applied(node)
            for leader in NODES:
                draft = self.drafts.get((leader, applied.get(leader, 0) + 1))
                if draft is not None and covers(applied, draft.base):
                    self.orders[node].append(draft.place)
                    most -= 1
                    done = True
                    break

    def settle(self) -> None:
        for node in NODES:
            self.deliver(node)

    def change(self, place: Place, how: Callable[[Draft], Draft]) -> None:
        """Change a commit in every journal alike, with right hashes."""
        self.drafts[place] = how(self.drafts[place])

    def entries(self) -> dict[Place, Entry]:
        made: dict[Place, Entry] = {}
        schemas = {draft.txid.clock for draft in self.drafts.values() if draft.kind == SCHEMA}
        for place in sorted(self.drafts):
            draft = self.drafts[place]
            version = sum(clock < draft.txid.clock for clock in schemas)
            before = made.get((draft.leader, draft.tick - 1))
            transaction = Transaction(
                draft.txid, draft.base, 0, version, draft.config, draft.command, "serializable", draft.kind,
                draft.access_set, draft.changes, b"", joined=tuple((command, b"") for command in draft.joined),
                shares=draft.shares, users=draft.users, activates=draft.txid.clock + 1 if draft.kind == SCHEMA else 0,
            )  # fmt: skip
            made[place] = Entry(
                draft.leader, draft.tick, draft.quorum, transaction, draft.adopted_from,
                before.hash if before else GENESIS,
            )  # fmt: skip
        return made

    def write(self, directory: Path) -> list[Path]:
        """Write each node's file as the node would have written it."""
        directory.mkdir(exist_ok=True)
        entries = self.entries()
        return [self._write(directory / f"{node}.db", node, entries) for node in NODES]

    def _write(self, path: Path, node: str, entries: dict[Place, Entry]) -> Path:
        db = apsw.Connection(str(path))
        db.execute("PRAGMA journal_mode = wal").fetchall()
        with db:
            store.create(db)
            db.execute("CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID")
            founding = membership(0, A=True, B=True, C=True)
            db.execute("INSERT INTO bedrockish_meta VALUES ('node', ?), ('bootstrap', ?)", (node, founding))
            db.execute("CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance REAL)")
            known: set[Txid] = set()
            for moment, place in enumerate(self.orders[node]):
                entry = entries[place]
                store.append(db, entry, repeat=entry.txid in known, applied_ms=START_MS + moment)
                known.add(entry.txid)
        db.close()
        return path


def honest(commits: int = 240, seed: int = 7) -> World:
    """Return a world with a schema and a membership change, concurrency, ranges, an adoption and its repeat."""
    world, rng = World(), random.Random(seed)
    schema = AccessSet(write_ranges=((b"s:", b"s;"),))
    statement = encode_statements(["CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance REAL)"])
    assert world.commit("A", schema, kind=SCHEMA, changes=statement)
    world.settle()
    for number in range(commits):
        leader = rng.choice(NODES)
        if number == commits // 3:
            draft = world.commit("C", touching("c-own"))
            assert draft is not None
            world.deliver("A")
            world.orders["A"].remove(draft.place)
            world.adopt("A", draft)
        if number == commits // 2:
            world.settle()
            config = AccessSet(frozenset({b"config\0"}), (), frozenset({b"config\0"}))
            grown = membership(1, A=True, B=True, C=True, D=False)
            assert world.commit("B", config, kind=MEMBERS, changes=grown)
            world.settle()
            world.config = 1
        names = [f"{leader}{rng.randrange(20):02}", f"x{rng.randrange(40):02}"]
        low = rng.randrange(36)
        ranges = [(f"x{low:02}", f"x{low + 4:02}")] if rng.random() < 0.3 else []
        joined = (f"also-{number}", f"and-{number}") if number % 7 == 0 else ()
        writes = touching(*rng.sample(names, rng.randint(1, 2)), reads=names, ranges=ranges)
        world.commit(leader, writes, joined=joined)
        if rng.random() < 0.6:
            world.deliver(rng.choice(NODES), rng.randint(1, 8))
    world.settle()
    return world


def retiring(says: dict[str, int] | None = None) -> World:
    """Return a world in which C leads commits and its own removal, and is then retired; A and B continue on its rows.

    ``says`` has the retired leaders that the change names; None for the right ones.
    """
    world, everything = World(), AccessSet(write_ranges=((b"", b"\xff\xff"),))

    def commit(leader: str, access_set: AccessSet, *, without: str = "", **fields: object) -> None:
        base = {name: tick for name, tick in world.applied(leader).items() if name not in without}
        voters = {"A", "B"} if world.config else {"A", "B", "C"}
        quorum = {name: world.applied(name).get(name, 0) for name in voters} | {
            leader: world.applied(leader).get(leader, 0) + 1
        }
        assert world.commit(leader, access_set, base=base, quorum=quorum, **fields)
        world.settle()

    commit("C", touching("x", reads=("y",)))
    commit("C", touching("z", ranges=(("y", "z"),)))
    commit("C", everything, kind=MEMBERS, changes=membership(1, A=True, B=True))
    world.config = 1
    commit("B", touching("x", "y"))
    retired = {"C": 2} if says is None else says
    commit("A", everything, kind=MEMBERS, changes=membership(2, retired, A=True, B=True))
    world.config = 2
    commit("B", touching("z", reads=("x",)), without="C")
    commit("A", touching("y", ranges=(("x", "z"),)), without="C")
    return world
