"""Damaged rows: a bit changes at one node, and the node's reaction.

A row is changed in a node's file, whether the node runs or is down, without the node's knowledge. The node detects the
damage when a commit updates the row, when a voter finds another row than the leader (then both check their tables), or
when tables are compared in the background. Then it behaves like a real node: it restarts with an alarm in its file,
seems to be down to its peers, and fills its tables again from another node's undamaged file or from its own journal.
Its votes and promises stay.

A real node replays a journal to find out whether tables are damaged. Here the world knows the rows that it has changed.
"""

from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import cbor2

from bedrockish.api.requests import Answer, Request
from bedrockish.core.protocol.events import Compared
from bedrockish.core.protocol.health import Alarm, Mode, encode_alarm
from bedrockish.core.protocol.messages import (
    Accept,
    Accepted,
    Approve,
    Begin,
    Checked,
    Commit,
    Message,
    Promise,
    Recover,
    ToldClock,
)
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.model.vector import covers
from tools.sim.database import NOTHING, UNREADABLE, DivergedError, Row
from tools.sim.disk import ALARM, Batch, Image, Note

if TYPE_CHECKING:
    from tools.sim.machine import Machine
    from tools.sim.world import World

NOT_WHEN_DAMAGED = (Approve, Promise, Accepted, Checked, ToldClock, Begin, Recover, Accept, Commit)
VOTERS_MIN = 3  # with fewer voters, a comparison cannot show whose row is wrong before one of them commits alone


class Flips:
    """Damages rows at nodes until it is stopped, and checks the laws about damage."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.luck = self.pauses = Random(f"flips {world.options.seed}")
        self.count = 0
        self.stopped = False
        self.keys: set[str] = set()  # the rows that were ever damaged at some node
        self.misled: set[str] = set()  # the commands that were executed at least once on an undetected changed row
        self._written: dict[tuple[str, int], Any] = {}  # (key, version) -> value, as committed

    def start(self) -> None:
        """Begin to damage rows, if the options say so."""
        if self.world.options.flip_every_s:
            self._wait()

    def _wait(self) -> None:
        self.world.after(self.pauses.expovariate(1 / self.world.options.flip_every_s), self._flip)

    def _flip(self) -> None:
        if self.stopped:
            return
        self._wait()
        self.count += 1
        name = f"d{self.count}"
        self.luck = Random(f"{name} {self.world.options.seed}")
        if len(self.world.voters) < VOTERS_MIN or not self.world.happens(name):
            return
        machines = [machine for _, machine in sorted(self.world.machines.items()) if not machine.retired]
        machine = self.luck.choice(machines)
        seen, durable = machine.disk.seen, machine.disk.durable
        # Rows that are not durable yet are in memory, and would overwrite the damage on the disk.
        keys = sorted(key for key, row in seen.rows.items() if durable.rows.get(key) == row and row[1] is not None)
        keys = [key for key in keys if key not in seen.flipped]
        if not keys:
            return
        key = self.luck.choice(keys)
        self.keys.add(key)
        is_lost = bool(self.world.options.unreadable) and self.luck.random() < self.world.options.unreadable
        for image in (seen, durable):
            version, value = image.flipped[key] = image.rows[key]
            image.rows[key] = (version, UNREADABLE if is_lost else _damaged(value, self.count))
        self.world.counts["rows damaged"] += 1
        self.world.trace(machine.name, "is damaged unawares", key, seen.rows[key])

    # -- laws ------------------------------------------------------------------------------------------------------

    def committed(self, entry: Entry) -> None:
        """Check a commit that is durable for the first time: it must overwrite committed values, and no damage."""
        if entry.transaction.kind != ROWS:
            return
        for key, before, after in cbor2.loads(entry.transaction.changes):
            if before[0] and self._written.get((key, before[0])) != before[1]:
                self.world.broken(
                    "damage does not spread",
                    f"{entry.txid} at {entry.place} is made of {before[1]!r} in {key}, and "
                    f"{self._written.get((key, before[0]))!r} was committed",
                )
            self._written[key, after[0]] = after[1]

    def met(self, machine: "Machine", entry: Entry, damaged: Mapping[str, Row]) -> None:
        """Check that a node that has applied an entry did not overwrite a damaged row without noticing it.

        Args:
            damaged: the rows that were damaged at the node before it applied the entry.
        """
        if entry.transaction.kind != ROWS:
            return
        for key, before, _ in cbor2.loads(entry.transaction.changes):
            if key in damaged and tuple(before) != damaged[key]:
                story = f"{machine.name} writes over {key}, which is {damaged[key]}, with {entry.place}"
                self.world.broken("damage that is met is noticed", story)

    def doubted(self, machine: "Machine", transaction: Transaction, key: str) -> None:
        """Check a voter's doubt about the row that a transaction overwrites: the row must be damaged at some node."""
        self.world.counts["transactions doubted"] += 1
        if key not in self.keys:
            story = f"{machine.name} doubts {transaction.txid} for {key}, which is sound everywhere"
            self.world.broken("sound rows are not doubted", story)

    def says(self, machine: "Machine", message: Message) -> None:
        """Check that a node that sends a message does not know that it is damaged."""
        if not is_damaged(machine):
            return
        if isinstance(message, NOT_WHEN_DAMAGED):
            self.world.broken("a damaged node is silent", f"{machine.name} says {message}")

    def answers(self, machine: "Machine", answer: Answer | BedrockishError) -> None:
        """Check that a node that answers a client does not know that it is damaged."""
        if is_damaged(machine) and isinstance(answer, Answer):
            self.world.broken("a damaged node is silent", f"{machine.name} answers {answer}")

    def executed(self, image: Image, result: bytes, requests: Iterable[Request]) -> None:
        """Record executed programs that may have read undetected damage."""
        if image.flipped and not image.flipped.keys().isdisjoint(cbor2.loads(result)[1]):
            self.misled.update(request.command for request in requests)


def _damaged(value: Any, number: int) -> Any:
    """Return a damaged value that no commit and no other damage produces."""
    if type(value) is int:
        return value + 1_000 * number
    return [*value, f"?{number}"] if isinstance(value, list) else f"{value}?{number}"


def is_damaged(machine: "Machine") -> bool:
    """Return whether a node runs and knows that its tables are damaged."""
    return machine.node is not None and machine.node.state.health.mode >= Mode.DAMAGED


class Care:
    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.luck = Random(f"care {machine.name} {machine.world.options.seed}")
        self.doubts = 0
        self._is_check_due = False  # whether a comparison will begin soon
        self._compared: dict[Txid, str | None] = {}  # the key of a row that differs, or empty; None: not yet known

    def started(self) -> None:
        """Repair a node that has just started and knows that it is damaged; else compare its tables now and then."""
        self.doubts, self._is_check_due = 0, False
        self._compared.clear()
        if is_damaged(self.machine):
            self._heal_soon()
        elif self.machine.world.options.flip_every_s:
            self._check_later()

    @property
    def comparing(self) -> Iterable[Txid]:
        """The transactions whose rows are compared."""
        return [txid for txid, found in self._compared.items() if found is None]

    def compare_rows(self, transaction: Transaction) -> str | None:
        """Return the difference of the rows on which a transaction ran from the rows here; empty if they are equal.

        Return None if another thread compares them; the core gets the event ``Compared`` later.
        """
        mean_ms, txid = self.machine.world.options.compare_ms, transaction.txid
        if not mean_ms or transaction.kind != ROWS:
            return self._doubt(transaction, self._difference(transaction))
        if self._compared.get(txid) is not None:
            return self._doubt(transaction, self._compared.pop(txid) or "")
        if txid not in self._compared:
            self._compared[txid] = None
            self._after(self.luck.expovariate(1000 / mean_ms), lambda: self._was_compared(transaction))
        return None

    def _was_compared(self, transaction: Transaction) -> None:
        self.machine.guarded(lambda _: self._compared.update({transaction.txid: self._difference(transaction)}))
        self.machine.post(Compared(transaction.txid))

    def _difference(self, transaction: Transaction) -> str:
        image = self.machine.disk.seen
        if transaction.kind != ROWS or transaction.schema != image.schema:
            return ""
        for key, before, _ in cbor2.loads(transaction.changes):
            row = image.rows.get(key, NOTHING)
            if row[1] is UNREADABLE:
                raise DivergedError(f"{key} cannot be read")
            if row != tuple(before):
                return str(key)
        return ""

    def _doubt(self, transaction: Transaction, key: str) -> str:
        if not key:
            return ""
        self.machine.world.flips.doubted(self.machine, transaction, key)
        return f"row {key} is another one here"

    def stepped(self) -> None:
        """Check the tables after a step in which the core has begun to doubt its own rows or a peer's."""
        assert self.machine.node is not None
        if self.machine.node.state.doubts > self.doubts:
            self.doubts = self.machine.node.state.doubts
            self._check_soon()

    # -- detection -------------------------------------------------------------------------------------------------

    def _after(self, seconds: float, action: Any) -> None:
        self.machine.later(seconds, lambda: self.machine.running and action())

    def _check_later(self) -> None:
        scrub_s = self.machine.world.options.scrub_s
        self._after(scrub_s * self.luck.uniform(0.5, 1.5), self._check_regularly)

    def _check_regularly(self) -> None:
        self._check_tables()
        self._check_later()

    def _check_soon(self) -> None:
        if not self._is_check_due:
            self._is_check_due = True
            self._after(self.luck.uniform(0.01, 0.3), self._check_tables)

    def _check_tables(self) -> None:
        """Compare tables with those of peers, and restart each node whose tables are damaged."""
        self._is_check_due = False
        machine = self.machine
        others = self._others()
        if is_damaged(machine) or (not others and len(machine.world.here()) > 1):
            return  # a lone node has no peer to compare with; an operator asks it to check its journal
        if machine.disk.seen.flipped:
            self.damaged(f"{machine.name} differs from {', '.join(other.name for other in others)}")
            return
        for other in others:
            if other.disk.seen.flipped:
                other.care._check_soon()

    def _others(self) -> "list[Machine]":
        """Return the other machines that serve and can be reached."""
        machine, blocked = self.machine, self.machine.world.network.blocked
        return [
            other
            for name, other in sorted(machine.world.machines.items())
            if other is not machine
            and other.node is not None
            and not other.node.state.trouble
            and other.paused_until <= machine.world.now
            and not {(machine.name, name), (name, machine.name)} & blocked
        ]

    def damaged(self, why: str) -> None:
        """Restart the node with an alarm in its file, without the open batch."""
        machine = self.machine
        machine.world.counts["nodes damaged"] += 1
        machine.world.trace(machine.name, "is damaged", why)
        machine.disk.open = Batch()  # the batch may have only a part of a step
        machine.crash()
        alarm = Note(ALARM, encode_alarm(Alarm(Mode.DAMAGED, why, {})))
        machine.disk.note_at_once(alarm)
        self._begin_again()

    def _begin_again(self) -> None:
        def start() -> None:
            if not self.machine.retired:
                self.machine.start()

        self.machine.later(self.luck.uniform(0.0, 0.05), start)

    # -- healing ---------------------------------------------------------------------------------------------------

    def _heal_soon(self) -> None:
        self._after(self.luck.choice((0.01, 0.2, 1.0)) * self.luck.uniform(0.5, 2), self._heal)

    def _heal(self) -> None:
        """Replace the file by one with the node's own votes and promises, and with undamaged tables."""
        machine = self.machine
        if machine.paused_until > machine.world.now:
            self._heal_soon()
            return
        own = machine.disk.durable
        sources = [other.disk.durable for other in self._others()]
        sources = [one for one in sources if not one.flipped and covers(one.applied, own.applied)]
        source = self.luck.choice(sources) if sources and self.luck.random() < 0.8 else None
        if source is not None:
            source = source.copy()
        machine.crash()
        own = machine.disk.durable
        machine.refill(source.filled(own) if source is not None else own.replayed())
        machine.world.counts["filled again"] += 1
        machine.world.trace(machine.name, "is filled again from", "another" if source is not None else "its journal")
        self._begin_again()
