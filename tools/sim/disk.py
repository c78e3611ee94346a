"""A node's file: what is durable, what is written and not yet synced, and what a crash leaves of it.

The file is kept twice: as its owner sees it, and as it would be found after a power cut. Batches go from the first to
the second in order, when a sync that began after they were closed has ended.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cbor2

from bedrockish.acquaintances import PREFIX
from bedrockish.core.effects import Activate, Apply, Forget, Keep, Persist
from bedrockish.core.records import (
    Joining,
    Membership,
    Recovered,
    Vote,
    decode_joining,
    decode_membership,
    encode_joining,
)
from bedrockish.starts import STARTS, Start, add_start, read_starts
from journal.entry import Entry
from journal.transaction import MEMBERS, SCHEMA, Transaction, Txid
from journal.vector import Vector
from tools.sim.database import Row, apply
from tools.sim.schemas import Cut, activate


@dataclass(frozen=True, slots=True)
class Note:
    """Keep something that the driver, not the core, remembers; None forgets it."""

    name: str
    value: Any


Write = Persist | Forget | Keep | Apply | Activate | Note


@dataclass
class Image:
    """The content of a file."""

    membership: Membership
    votes: dict[Txid, Vote] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    order: list[tuple[Entry, bool]] = field(default_factory=list)  # as applied, and whether a repeat
    timelines: dict[str, list[Entry]] = field(default_factory=dict)
    commands: dict[str, Entry] = field(default_factory=dict)
    txids: dict[Txid, Entry] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    batches: int = 0
    schema: int = 0
    scheduled: Transaction | None = None
    cuts: dict[Txid, Cut] = field(default_factory=dict)

    def write(self, write: Write) -> None:
        """Perform one write."""
        match write:
            case Persist(vote):
                self.votes[vote.txid] = vote
            case Forget(txid):
                self.votes.pop(txid, None)
            case Keep(name, value):
                self.meta[name] = value
            case Note(name, None):
                self.meta.pop(name, None)
            case Note(name, value):
                self.meta |= {name: value}
            case Apply(entry, repeat):
                self._apply(entry, repeat)
            case Activate(txid):
                assert self.scheduled is not None
                assert self.scheduled.txid == txid
                self.cuts[txid] = activate(self.rows, self.scheduled)
                self.schema, self.scheduled = self.schema + 1, None

    def _apply(self, entry: Entry, repeat: bool) -> None:
        timeline = self.timelines.setdefault(entry.leader, [])
        assert entry.tick == len(timeline) + 1, f"{entry.leader}{entry.tick} follows {entry.leader}{len(timeline)}"
        assert not timeline or entry.prev == timeline[-1].hash, f"{entry.leader}{entry.tick} does not continue"
        assert repeat == (entry.txid in self.txids), f"{entry.txid} is {'no' if repeat else 'a'} repeat here"
        timeline.append(entry)
        self.order.append((entry, repeat))
        if repeat:
            return
        self.txids[entry.txid] = entry
        for command in entry.transaction.commands:
            assert command not in self.commands, f"{command} is applied twice"
            self.commands[command] = entry
        ran, have = entry.transaction.schema, self.schema
        assert ran == have, f"{entry.txid} ran on schema {ran} and is applied on {have}"
        if entry.transaction.kind == SCHEMA:
            assert self.scheduled is None, f"{entry.txid} changes the schema before {self.scheduled} is in force"
            self.scheduled = entry.transaction
        if entry.transaction.kind == MEMBERS:
            self.membership = decode_membership(entry.transaction.changes)
        apply(self.rows, entry.transaction)

    def copy(self) -> "Image":
        """Return an independent copy; what is in it never changes."""
        return Image(
            self.membership,
            dict(self.votes),
            dict(self.meta),
            list(self.order),
            {leader: list(entries) for leader, entries in self.timelines.items()},
            dict(self.commands),
            dict(self.txids),
            dict(self.rows),
            self.batches,
            self.schema,
            self.scheduled,
            dict(self.cuts),
        )

    @property
    def applied(self) -> dict[str, int]:
        """The applied vector."""
        return {leader: len(entries) for leader, entries in self.timelines.items()}

    def recover(self, node: str, store: str, window: int) -> Recovered:
        """Return what a node finds here when it starts, as the real engine does."""
        safe = self.meta.get("safe", 0)
        return Recovered(
            node=node,
            store=store,
            membership=self.membership,
            applied=self.applied,
            heads={leader: entries[-1].hash for leader, entries in self.timelines.items()},
            window=tuple(entry for entry, _ in self.order if entry.txid.clock > safe - window),
            votes=tuple(copy_vote(vote) for vote in self.votes.values()),
            ceiling=self.meta.get("clock_ceiling", 0),
            cut=self.meta.get("cut", 0),
            batches=self.batches,
            safe=safe,
            schema=self.schema,
            scheduled=self.scheduled,
            lost=self.meta.get("lost", ""),
            joining=decode_joining(self.meta["joining"]) if self.meta.get("joining") else None,
        )

    @property
    def starts(self) -> list[Start]:
        """The starts of a process on this file."""
        kept = self.meta.get(STARTS)
        return read_starts(cbor2.loads(kept)) if kept else []

    def read_entries(self, wants: Vector, limit: int) -> list[Entry]:
        """Return the timelines from these ticks on, as far as that many bytes go."""
        entries: list[Entry] = []
        share = max(1, limit // max(1, len(wants)))
        for leader, first in wants.items():
            size = 0
            for entry in self.timelines.get(leader, [])[first - 1 :]:
                size += len(entry.transaction.body)
                if size > share and entry.tick > first:
                    break
                entries.append(entry)
        return entries

    def lent_to(self, node: str, joining: Joining) -> "Image":
        """Return this file as that of a new node: what its old owner promised, and its name, stay behind."""
        lent = self.copy()
        lent.votes.clear()
        for name in (PREFIX + node, STARTS, "lost"):
            lent.meta.pop(name, None)
        lent.meta["joining"] = encode_joining(joining)
        lent.batches = 0
        return lent


def copy_vote(vote: Vote) -> Vote:
    """Return a vote that does not change when its node's does."""
    return Vote(vote.txid, vote.transaction, vote.held, vote.promised, vote.accepted)


@dataclass
class Batch:
    """Writes that become durable together, and what may happen only then."""

    writes: list[Write] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)


class Disk:
    """One node's file."""

    def __init__(self, image: Image) -> None:
        self.seen = image  # by its owner
        self.durable = image.copy()
        self.open = Batch()
        self.closed: deque[Batch] = deque()
        self.on_durable: Callable[[Write], None] = lambda _: None

    def write(self, write: Write) -> None:
        """Write into the open batch."""
        if isinstance(write, Persist):
            write = Persist(copy_vote(write.vote))
        self.seen.write(write)
        self.open.writes.append(write)

    def begin(self, start: bytes) -> None:
        """A process begins on the file: note that at once, durably."""
        assert not self.open.writes
        assert not self.closed
        note = Note(STARTS, add_start(self.seen.meta.get(STARTS), start, self.seen.batches))
        for image in (self.seen, self.durable):
            image.write(note)
            image.batches += 1

    def then(self, action: Callable[[], None]) -> None:
        """Have something done once all that was written so far is durable."""
        self.open.after.append(action)

    def close_batch(self) -> None:
        """Close the open batch, if it holds anything."""
        if self.open.writes or self.open.after:
            if self.open.writes:
                self.seen.batches += 1
            self.closed.append(self.open)
            self.open = Batch()

    @property
    def must_sync(self) -> bool:
        """Whether a closed batch waits for a sync."""
        return any(batch.writes for batch in self.closed)

    def make_durable(self, count: int) -> None:
        """A sync has ended: the oldest closed batches are durable, and what waited for that happens."""
        for _ in range(count):
            batch = self.closed.popleft()
            self._keep(batch)
            for action in batch.after:
                action()

    def _keep(self, batch: Batch) -> None:
        for write in batch.writes:
            self.durable.write(write)
            self.on_durable(write)
        self.durable.batches += bool(batch.writes)

    def crash(self, survivors: int) -> None:
        """Lose what is not synced, but for the first few batches, which happened to reach the disk.

        A batch that reached it in part counts as lost: the checksums of a write-ahead log tell, and it ends there.
        """
        for batch in list(self.closed)[:survivors]:
            self._keep(batch)
        self.closed.clear()
        self.open = Batch()
        self.seen = self.durable.copy()
