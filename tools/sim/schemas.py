"""Schema changes in the model, and their laws.

A schema change in the model stores a digest of all rows at its activation, and fails for some digests. So its effect
depends on the rows, as that of a real statement does, and shows whether two nodes have activated it on different rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import cbor2

from bedrockish.api.requests import STALE, STRICT
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import SCHEMA, Transaction, Txid

if TYPE_CHECKING:
    from tools.sim.clients import Call
    from tools.sim.machine import Machine
    from tools.sim.world import World

FAILS = 5  # one of this many changes fails


@dataclass(frozen=True)
class Activation:
    """The result of activating a schema change."""

    version: int
    digest: str
    failure: str


def activate(rows: Mapping[str, Any], transaction: Transaction) -> Activation:
    """Return the result of activating a schema change on these rows."""
    found = blake2b(cbor2.dumps(sorted((key, list(row)) for key, row in rows.items())), digest_size=8)
    failure = "the rows forbid it" if found.digest()[0] % FAILS == 0 else ""
    return Activation(transaction.schema + 1, found.hexdigest(), failure)


def version_seen(result: bytes) -> int | None:
    """Return the version of the schema that an execution ran on; None if no program was run."""
    parts = cbor2.loads(result)
    return int(parts[3]) if len(parts) > 3 else None


class Schemas:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.activations: dict[Txid, Activation] = {}

    def activated(self, machine: "Machine", txid: Txid) -> str:
        """Check a change that a node has activated; return why the rows forbid it, or an empty text."""
        name, image = machine.name, machine.disk.seen
        here, found, change = image.txids.keys(), image.activations[txid], image.txids[txid].transaction
        self.world.counts["activations"] += 1
        known = self.activations.setdefault(change.txid, found)
        if known != found:
            self.world.broken("schema changes have one cut", f"{change.txid} at {name}: {found}, elsewhere {known}")
        late = [txid for txid in here if txid.clock >= change.activates]
        missing = [txid for txid in self.world.laws.committed if txid.clock < change.activates and txid not in here]
        if late or missing:
            what = f"{name} activates {change.txid} at {change.activates} with {late} and without {missing}"
            self.world.broken("schema changes have one cut", what)
        return found.failure

    def failed(self, txid: Txid) -> bool:
        """Return whether the rows forbade a change."""
        return txid in self.activations and bool(self.activations[txid].failure)

    def check(self, calls: Iterable["Call"], first: Mapping[Txid, Entry]) -> None:
        """Check that every transaction ran on the schema in force at its clock, and that a client whose change was
        acknowledged sees it.
        """
        changes = [entry.transaction for entry in first.values() if entry.transaction.kind == SCHEMA]
        self.world.counts["schema changes"] += len(changes)
        for txid, entry in first.items():
            due = sum(change.activates <= txid.clock for change in changes)
            if entry.transaction.schema != due:
                ran = entry.transaction.schema
                self.world.broken("one schema for all of a transaction", f"{txid} ran on {ran} and belongs on {due}")
        commands = {change.command: change.schema + 1 for change in changes}
        self._seen(list(calls), commands)

    def _seen(self, calls: list["Call"], commands: Mapping[str, int]) -> None:
        told = [
            (call.ended, commands[call.request.command])
            for call in calls
            if call.answer is not None and call.ended is not None and call.request.command in commands
        ]
        sessions: dict[str, int] = {}
        for call in sorted(calls, key=lambda call: call.began):
            if call.answer is None or call.again:
                continue
            stale = call.request.read != STRICT and call.answer.place is None
            floor = 0 if stale else max((version for ended, version in told if ended < call.began), default=0)
            if call.request.read != STALE:
                floor = max(floor, sessions.get(call.client, 0))
            seen = version_seen(call.answer.results)
            if seen is None:
                continue
            if seen < floor:
                what = f"{call.request.command} ran on version {seen} after {floor} was there"
                self.world.broken("schema changes are seen", what)
            after = commands.get(call.request.command, seen)
            if call.request.read != STALE or call.answer.place is not None:
                sessions[call.client] = max(sessions.get(call.client, 0), after)
