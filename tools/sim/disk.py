"""A node's file: durable writes, writes that are not synced yet, and the state after a crash.

There are two images of the file: ``seen`` by its owner, and ``durable`` after a power cut. When a sync ends, the
batches that were closed before it began are written into ``durable``, in order.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import cbor2

from bedrockish.core.protocol.effects import Activate, Apply, DropPieces, Early, Forget, Keep, Persist, SavePiece
from bedrockish.core.protocol.health import DAMAGED_TABLES, decode_alarm
from bedrockish.core.protocol.messages import Entries, Outcome
from bedrockish.core.protocol.pieces import Part
from bedrockish.core.protocol.records import Joining, Recovered, Vote, decode_joining, encode_joining
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.node.cluster.incarnations import PREFIX
from bedrockish.node.cluster.starts import STARTS, Start, add_start, read_starts
from bedrockish_journal.model.access_set import AccessSet, conflict
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.membership import Membership, read_membership
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Transaction, Txid, decode_transaction
from bedrockish_journal.model.vector import Vector
from tools.sim.database import Row, apply
from tools.sim.schemas import Activation, activate

ALARM = f"alarm:{DAMAGED_TABLES}"
OF_THE_DATA = ("safe",)
GREATEST = ("clock_ceiling", "cut")  # promises whose greater value includes the promise of a smaller one


@dataclass(frozen=True, slots=True)
class Note:
    """A write of a value of the driver, not of the core; None deletes the value."""

    name: str
    value: Any


Write = Persist | Forget | SavePiece | DropPieces | Keep | Apply | Activate | Note


@dataclass
class Image:
    membership: Membership
    votes: dict[Txid, Vote] = field(default_factory=dict)
    parts: dict[Txid, tuple[Part, ...]] = field(default_factory=dict)  # the parts of each vote stored in pieces
    pieces: dict[bytes, bytes] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    order: list[tuple[Entry, bool]] = field(
        default_factory=list
    )  # the entries in the order applied, each with whether it is a repeat
    timelines: dict[str, list[Entry]] = field(default_factory=dict)
    commands: dict[str, Entry] = field(default_factory=dict)
    txids: dict[Txid, Entry] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    batches: int = 0
    schema: int = 0
    scheduled: Transaction | None = None
    activations: dict[Txid, Activation] = field(default_factory=dict)
    # The damaged rows, with their undamaged contents. No node knows them.
    flipped: dict[str, Row] = field(default_factory=dict)

    def write(self, write: Write) -> None:
        match write:
            case Persist(vote, parts):
                self.votes[vote.txid] = vote
                self.parts.pop(vote.txid, None)
                if parts is not None:
                    self.parts[vote.txid] = parts
            case Forget(txid):
                self.votes.pop(txid, None)
                self.parts.pop(txid, None)
            case SavePiece(digest, data):
                self.pieces[digest] = data
            case DropPieces(digests):
                for digest in digests:
                    self.pieces.pop(digest, None)
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
                self.activations[txid] = activate(self.rows, self.scheduled)
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
            self.membership = read_membership(entry.transaction.changes)
        apply(self.rows, entry.transaction)
        if self.flipped and entry.transaction.kind == ROWS:
            for key, _, _ in cbor2.loads(entry.transaction.changes):
                self.flipped.pop(key, None)

    def copy(self) -> "Image":
        """Return a copy that shares only immutable objects with this image."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found = {name: value.copy() if isinstance(value, dict | list) else value for name, value in found.items()}
        return Image(**found | {"timelines": {leader: list(entries) for leader, entries in self.timelines.items()}})

    def filled(self, own: "Image") -> "Image":
        """Return this content, of another node's file, with the notes and promises of the owner of ``own``."""
        filled = self.copy()
        filled.votes, filled.parts, filled.pieces = dict(own.votes), dict(own.parts), dict(own.pieces)
        filled.meta = {name: value for name, value in own.meta.items() if name not in (ALARM, *OF_THE_DATA)}
        filled.meta |= {name: self.meta[name] for name in OF_THE_DATA if name in self.meta}
        for name in GREATEST:
            filled.meta[name] = max(own.meta.get(name, 0), self.meta.get(name, 0))
        filled.batches = own.batches
        return filled

    def replayed(self) -> "Image":
        """Return this content with the tables rebuilt from its own journal."""
        replayed = self.copy()
        replayed.rows |= replayed.flipped
        replayed.flipped.clear()
        replayed.meta.pop(ALARM, None)
        return replayed

    @property
    def applied(self) -> dict[str, int]:
        return {leader: len(entries) for leader, entries in self.timelines.items()}

    def recover(self, node: str, store: str, window_ms: int, window_entries: int = 1 << 62) -> Recovered:
        """Return the facts with which a node starts on this file, as the real engine does."""
        safe = self.meta.get("safe", 0)
        settled = max(safe, self.meta.get("settled", 0))
        clocks = sorted((txid.clock for txid in self.txids), reverse=True)
        newest = clocks[window_entries] if len(clocks) > window_entries else 0
        least = max(moved(settled, -window_ms), min(settled, newest))
        return Recovered(
            node=node,
            store=store,
            membership=self.membership,
            applied=self.applied,
            heads={leader: entries[-1].hash for leader, entries in self.timelines.items()},
            window=(entry for entry, _ in self.order if entry.txid.clock > least),
            votes=tuple(self._read_vote(vote) for vote in self.votes.values()),
            pieces={digest: len(data) for digest, data in self.pieces.items()},
            named={
                txid: tuple(part[0] for part in parts if isinstance(part, tuple)) for txid, parts in self.parts.items()
            },
            ceiling=self.meta.get("clock_ceiling", 0),
            cut=self.meta.get("cut", 0),
            batches=self.batches,
            safe=safe,
            schema=self.schema,
            scheduled=self.scheduled,
            lost=self.meta.get("lost", ""),
            joining=decode_joining(self.meta["joining"]) if self.meta.get("joining") else None,
            settled=settled,
            alarms={DAMAGED_TABLES: decode_alarm(self.meta[ALARM])} if ALARM in self.meta else {},
        )

    def _read_vote(self, vote: Vote) -> Vote:
        """Return a copy of a vote, with its body assembled if it is stored in pieces."""
        found, parts = copy_vote(vote), self.parts.get(vote.txid)
        if parts is not None:
            found.transaction = decode_transaction(self.assemble(parts))
        return found

    def assemble(self, parts: Iterable[Part]) -> bytes:
        """Return the bytes of a body, in which some parts are names of pieces."""
        return b"".join(part if isinstance(part, bytes) else self.pieces[part[0]] for part in parts)

    def lookups(self, compare_rows: Callable[[Transaction], str | None] | None = None) -> FileLookups:
        """Return the functions with which a core looks up this file."""
        return FileLookups(self._find_command, self._has_applied, self.find_places, self.conflicts, compare_rows)

    def _find_command(self, command: str) -> Txid | None:
        entry = self.commands.get(command)
        return None if entry is None else entry.txid

    def _has_applied(self, txid: Txid) -> bool:
        return txid in self.txids

    def outcome(self, txid: Txid, clock: int) -> Outcome:
        """Return the message in which a node says whether a transaction has happened."""
        entry = self.txids.get(txid)
        leader, tick = entry.place if entry is not None else ("", 0)
        return Outcome(txid, entry is not None, leader, tick, clock)

    def find_places(self, txid: Txid) -> list[tuple[str, int]]:
        """Return all places of a transaction, in the order applied."""
        return [entry.place for entry, _ in self.order if entry.txid == txid]

    def conflicts(self, access_set: AccessSet, base: Vector, upto: Vector) -> bool | None:
        """Return whether an access set conflicts with an entry up to ``upto`` that ``base`` does not cover.

        Return None if the file lacks such an entry, as the real journal does.
        """
        seen = {entry.txid for entry, _ in self.order if base.get(entry.leader, 0) >= entry.tick}
        for leader, last in upto.items():
            timeline = self.timelines.get(leader, [])
            if len(timeline) < last:
                return None
            for entry in timeline[base.get(leader, 0) : last]:
                if entry.txid not in seen and conflict(access_set, entry.transaction.access_set) is not None:
                    return True
        return False

    @property
    def starts(self) -> list[Start]:
        """The starts of processes on this file."""
        kept = self.meta.get(STARTS)
        return read_starts(cbor2.loads(kept)) if kept else []

    def read_entries(self, wants: Vector, limit: int, clock: int) -> Entries:
        """Return a message with entries of the timelines from the wanted ticks on, up to about ``limit`` bytes."""
        entries: list[Entry] = []
        share = max(1, limit // max(1, len(wants)))
        for leader, first in wants.items():
            size = 0
            for entry in self.timelines.get(leader, [])[first - 1 :]:
                size += len(entry.transaction.body)
                if size > share and entry.tick > first:
                    break
                entries.append(entry)
        return Entries(tuple((entry.prev, entry.label, entry.transaction.body) for entry in entries), clock)

    def lent_to(self, node: str, joining: Joining) -> "Image":
        """Return this file as that of a new node, without the old owner's name and promises."""
        lent = self.copy()
        lent.votes.clear()
        lent.parts.clear()
        lent.pieces.clear()
        for name in (PREFIX + node, STARTS, ALARM, "lost"):
            lent.meta.pop(name, None)
        lent.meta["joining"] = encode_joining(joining)
        lent.batches = 0
        return lent


def copy_vote(vote: Vote) -> Vote:
    """Return a copy of a vote, which the node may change."""
    return Vote(vote.txid, vote.transaction, vote.held, vote.promised, vote.accepted)


@dataclass
class Batch:
    """Writes that become durable together, and the actions that wait for them."""

    writes: list[Write] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)


class Disk:
    def __init__(self, image: Image, owner: str) -> None:
        self.owner = owner
        self.seen = image  # the image that its owner sees
        self.durable = image.copy()
        self.open = Batch()
        self.closed: deque[Batch] = deque()
        self.on_durable: Callable[[Write], None] = lambda _: None

    def write(self, write: Write) -> None:
        if isinstance(write, Persist):
            write = Persist(copy_vote(write.vote), write.parts)
        self.seen.write(write)
        self.open.writes.append(write)

    def begin(self, start: bytes) -> None:
        """Record durably that a process starts on the file."""
        assert not self.open.writes
        self.note_at_once(Note(STARTS, add_start(self.seen.meta.get(STARTS), start, self.seen.batches)))

    def note_at_once(self, note: Note) -> None:
        """Make a note durable at once; no closed batch may wait for a sync now."""
        assert not self.closed
        for image in (self.seen, self.durable):
            image.write(note)
            image.batches += 1

    def has(self, early: Early) -> bool:
        """Return whether the facts that suffice for an early message of this node are durable."""
        durable = self.durable
        return early.is_durable(durable.meta.get("clock_ceiling", 0), len(durable.timelines.get(self.owner, [])))

    def then(self, action: Callable[[], None]) -> None:
        """Run an action when all writes so far are durable."""
        self.open.after.append(action)

    def close_batch(self) -> None:
        if self.open.writes or self.open.after:
            if self.open.writes:
                self.seen.batches += 1
            self.closed.append(self.open)
            self.open = Batch()

    @property
    def must_sync(self) -> bool:
        return any(batch.writes for batch in self.closed)

    def make_durable(self, count: int) -> None:
        """Finish a sync: make the oldest ``count`` closed batches durable, and run the actions that wait for them."""
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
        """Lose the writes that are not synced, except the first ``survivors`` batches, which happened to reach the
        disk.

        A batch that reached the disk in part counts as lost, because the write-ahead log's checksums do not match.
        """
        for batch in list(self.closed)[:survivors]:
            self._keep(batch)
        self.closed.clear()
        self.open = Batch()
        self.seen = self.durable.copy()
