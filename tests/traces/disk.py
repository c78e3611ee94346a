"""The disk of a node in a trace: durable writes, volatile writes, and the state after a crash."""

from dataclasses import dataclass, field, replace
from typing import Any

import cbor2

from bedrockish.core.protocol.effects import Apply, Effect, Forget, Keep, Persist
from bedrockish.core.protocol.records import Recovered, Vote
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.membership import Membership, read_membership
from bedrockish_journal.model.transaction import ROWS, Txid


@dataclass
class Image:
    """The content of a file."""

    votes: dict[Txid, Vote] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    journal: list[tuple[Entry, bool]] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)
    membership: Membership | None = None  # as changed; None while it is what the cluster was founded with

    def write(self, effect: Effect) -> bool:
        """Do what an effect asks, if it is about the file."""
        match effect:
            case Persist(vote):
                self.votes[vote.txid] = replace(vote)
            case Forget(txid):
                self.votes.pop(txid, None)
            case Keep(name, value):
                self.kept[name] = value
            case Apply(entry, repeat):
                assert entry.tick == self.applied.get(entry.leader, 0) + 1
                assert repeat == any(entry.txid == other.txid for other, _ in self.journal)
                self.journal.append((entry, repeat))
                if not repeat and entry.transaction.kind == ROWS:
                    self.rows.update(cbor2.loads(entry.transaction.changes))
                elif not repeat:
                    self.membership = read_membership(entry.transaction.changes)
            case _:
                return False
        return True

    def copy(self) -> "Image":
        return Image(dict(self.votes), dict(self.kept), list(self.journal), dict(self.rows), self.membership)

    @property
    def applied(self) -> dict[str, int]:
        return {entry.leader: entry.tick for entry, _ in self.journal}

    def recover(self, node: str, founded: Membership) -> Recovered:
        """Return what a node finds here when it starts."""
        return Recovered(
            node,
            f"store of {node}",
            self.membership or founded,
            self.applied,
            {entry.leader: entry.hash for entry, _ in self.journal},
            tuple(entry for entry, _ in self.journal),
            tuple(replace(vote) for vote in self.votes.values()),
            ceiling=self.kept.get("clock_ceiling", 0),
            cut=self.kept.get("cut", 0),
            safe=self.kept.get("safe", 0),
            settled=self.kept.get("settled", 0),
            lost=self.kept.get("lost", ""),
        )


@dataclass
class Disk:
    """The file as the node sees it, and as a power cut would leave it."""

    live: Image = field(default_factory=Image)
    durable: Image = field(default_factory=Image)

    written: bool = False

    def write(self, effect: Effect) -> bool:
        """Do what an effect asks, if it is about the file."""
        done = self.live.write(effect)
        self.written = self.written or done
        return done

    def has_applied(self, txid: Txid) -> bool:
        """Return whether the journal has a transaction."""
        return bool(self.find_places(txid))

    def find_places(self, txid: Txid) -> list[tuple[str, int]]:
        """Return all places of a transaction in the journal."""
        return [entry.place for entry, _ in self.live.journal if entry.txid == txid]

    def sync(self) -> None:
        if self.written:
            self.durable, self.written = self.live.copy(), False

    def crash(self) -> None:
        self.live, self.written = self.durable.copy(), False
