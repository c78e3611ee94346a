"""The laws of the database, as observers: most use only what a client, the network or a reader of journals can see.

Some laws are checked all the time, because the first moment at which a law is broken explains the fault. The others are
checked on the histories and journals at the end.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from bedrockish.api.requests import ADD, STRICT, Answer, Request
from bedrockish.core.protocol.effects import Apply, Persist
from bedrockish.core.protocol.messages import (
    Accepted,
    Approve,
    Begin,
    Checked,
    Commit,
    Gossip,
    Message,
    Promise,
    Reason,
    Reject,
    ToldClock,
)
from bedrockish.core.protocol.messages import Outcome as Told
from bedrockish.core.state.settings import approvals_needed, majority
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.entry import Entry, decode_label
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.transaction import MEMBERS, Transaction, Txid, decode_transaction
from tools.sim.clients import Call
from tools.sim.damage import is_damaged
from tools.sim.database import wants_clock
from tools.sim.disk import Write
from tools.sim.history import Histories, strictly_told
from tools.sim.moving import Moving
from tools.sim.schemas import Schemas
from tools.sim.talks import NOTHING

if TYPE_CHECKING:
    from tools.sim.machine import Machine
    from tools.sim.world import World


FIVE = 5  # the least number of voters at which a voter out of reach may have to be counted out
LONG_GONE_S = 5.0  # far longer than the time after which a silent node is suspected


class Laws:
    """All observers of a world.

    Why so large: Each law remembers the facts that it compares later events with.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.calls: list[Call] = []
        self.requests: dict[str, Request] = {}
        self.entries: dict[tuple[str, int], Entry] = {}  # entries that were ever applied, durable or not
        self.committed: dict[Txid, Entry] = {}
        self.last_clock = 0
        self.talked: set[str] = set()  # commands that were open transactions
        self.rolled_back: dict[Txid, str] = {}
        self.beginnings: dict[Txid, float] = {}  # by transaction, the time at which its BEGIN first left
        self.held: set[Txid] = set()  # transactions for which a node's vote is durable, first the leader's
        self.said: set[Txid] = set()  # transactions whose BEGIN a leader has composed
        self.begun: dict[str, int] = {}  # the highest clock of each leader's transactions
        self.clocks: dict[str, int] = {}  # the highest clock that each node has sent
        self.settled: dict[str, Answer] = {}  # commands that a client knows never to happen
        self.changes: list[tuple[Request, Answer]] = []
        self.safe: dict[str, int] = {}  # the highest safe time of each node, published or not
        self.published: dict[str, int] = {}
        self.results: dict[str, bytes] = {}
        self.schemas = Schemas(world)
        self.moving = Moving()
        self.retired: dict[int, Collection[str]] = {0: ()}  # the retired timelines, by version of the membership
        self.voters: dict[int, Collection[str]] = {}  # the voters, by version of the membership, from 1 on

    def broken(self, law: str, story: str) -> None:
        """End the world because a law is broken."""
        self.world.broken(law, story)

    # -- during the run --------------------------------------------------------------------------------------------

    def submitted(self, request: Request) -> None:
        """Record that a client begins a command."""
        self.requests[request.command] = request

    def finished(self, call: Call) -> None:
        """Record a call whose client has an answer or gave up, and check the answer."""
        self.calls.append(call)
        if call.answer is not None:
            self.answered(call.request.command, call.answer)

    def changed(self, request: Request, answer: Answer) -> None:
        """Record and check a membership change that was answered to the operator."""
        self.changes.append((request, answer))
        change = request.change
        if change is not None and change.action == ADD and change.store.startswith("second"):
            self.broken("a voter's name belongs to its file", f"{change.node} was given to the {change.store}")

    def stopped(self, machine: "Machine") -> None:
        """Record a stop: a safe time that was not published is lost, a published one stays valid."""
        self.safe[machine.name] = self.published.get(machine.name, 0)

    def _outlasts_its_leader(self, leader: str, transaction: Transaction) -> bool:
        """Return whether a BEGIN stays true if its leader loses all facts that are not durable, its vote included.

        From five voters on it does not: the survivors of two dead leaders could not tell which of two transactions is
        committed.
        """
        machine = self.world.machines[leader]
        durable, node = machine.disk.durable, machine.node
        return (
            transaction.txid.clock <= durable.meta.get("clock_ceiling", 0)
            and transaction.base.get(leader, 0) <= len(durable.timelines.get(leader, ()))
            and node is not None
            and len(node.state.roster.voters) < FIVE
        )

    def answered(self, command: str, answer: Answer) -> None:
        """Check that each answer of a command has the same result."""
        if answer.place is None:
            return
        known = self.results.setdefault(command, answer.results)
        if known != answer.results:
            self.broken("a command has one result", f"{command} was answered twice, differently")

    def says(self, machine: "Machine", message: Message) -> None:
        """Check a message that a node has composed, and that leaves when the writes before it are durable."""
        story = self.moving.broken_by(machine, message)
        if story:
            self.broken("what came in time is not late", story)
        if isinstance(message, Begin):
            self._says_begin(machine, decode_transaction(message.body))

    def _says_begin(self, machine: "Machine", transaction: Transaction) -> None:
        """Check that a leader begins transactions in the order of their clocks."""
        txid, source = transaction.txid, machine.name
        if txid in self.said:
            return
        self.said.add(txid)
        request = self.requests.get(transaction.command)
        told = request is not None and wants_clock(request)  # the clock was drawn earlier, when the client requested it
        # A node that lost its file cannot know the transactions that it has begun.
        if txid.clock <= self.begun.get(txid.leader, 0) and not machine.forgot and not told:
            self.broken("clocks never go back", f"{source} begins {txid} after a later one")
        self.begun[txid.leader] = max(txid.clock, self.begun.get(txid.leader, 0))

    def left(self, source: str, message: Message) -> None:
        """Check a message that leaves a node."""
        durable = self.world.machines[source].disk.durable
        match message:
            case Commit(label):
                leader, tick = decode_label(label)[:2]
                if leader == source and len(durable.timelines.get(leader, ())) < tick:
                    self.broken("nothing leaves before it is durable", f"{source} tells of {leader}{tick}")
            case Begin(body):
                transaction = decode_transaction(body)
                txid = transaction.txid
                if named := set(transaction.base).intersection(self.retired[transaction.config]):
                    self.broken("what is retired is not named", f"{txid} of {transaction.config} names {named}")
                kept = txid in durable.votes or txid in durable.txids or txid.clock <= self.safe.get(source, 0)
                if not kept and not self._outlasts_its_leader(source, transaction):
                    self.broken("nothing leaves before it is durable", f"{source} begins {txid}")
                if txid not in self.beginnings:
                    self.beginnings[txid] = self.world.now
                    if txid in self.rolled_back:
                        self.broken("an end is for ever", f"{txid} was rolled back and begins")
            case Reject(txid, Reason.FOR, other) if other is not None:
                # A reservation alone does not make a node hold the transaction.
                if not (other in self.held or other in self.beginnings or other in self.committed):
                    what = f"{source} rejects {txid} for {other}, which no leader has begun"
                    self.broken("what is rejected has a rival", what)
            case Gossip():
                # A node that has just started says what its file says, until a peer tells it of a newer membership.
                node = self.world.machines[source].node
                if (message.closed or message.cut) and node is not None and node.state.roster.barred:
                    self.broken(
                        "a voter that forgot its promises does not vote",
                        f"{source} says that it has closed {message.closed}",
                    )
                if (message.closed or message.cut) and node is not None:
                    # The voters of the message's own membership: when it leaves, a newer one may be in force.
                    voters = self.voters.get(message.config, self.world.founded.voters)
                    let_in = {source, *self.world.machines[source].let_in}
                    if len(let_in.intersection(voters)) < majority(len(voters)):
                        what = f"{source} says that it has closed {message.closed}, and {sorted(let_in)} let it in"
                        self.broken("a node that no majority has admitted has closed nothing", what)
                if message.clock < self.clocks.get(source, 0) and not self.world.machines[source].forgot:
                    self.broken("clocks never go back", f"{source} tells {message.clock:x} after a later one")
                self.clocks[source] = message.clock
            case Approve() | Promise() | Accepted() | Checked() | ToldClock() if self.world.machines[source].forgot:
                self.broken("a voter that forgot its promises does not vote", f"{source} says {message}")
            case Told(txid, False):
                self.rolled_back.setdefault(txid, source)
                if txid in self.committed:
                    place = self.committed[txid].place
                    self.broken("one outcome", f"{source} tells that {txid} is rolled back, and it is {place}")

    def applied(self, machine: "Machine", entry: Entry, repeat: bool) -> None:
        """Check an entry that a node has appended to its journal, and that a crash may still lose."""
        txid = entry.txid
        if not repeat and txid.clock <= self.published.get(machine.name, 0) and txid not in self.committed:
            self.broken("nothing appears below safe", f"{machine.name} applies {txid} below its safe time")

    def durable(self, name: str, write: Write) -> None:
        """Record a write that became durable, by a sync or by surviving a crash."""
        if isinstance(write, Apply):
            self._applied_durably(name, write.entry)
        elif isinstance(write, Persist):
            self.held.add(write.vote.txid)

    def _applied_durably(self, name: str, entry: Entry) -> None:
        known = self.entries.get(entry.place)
        if known is None and entry.leader in self.world.membership.retired:
            self.broken("what is retired ends there", f"{name} applies {entry.place}")
        if known is None:
            known = self.entries[entry.place] = entry
            if name != entry.leader:
                self.broken("a timeline has one writer", f"{name} has {entry.place} before its leader")
        if known.hash != entry.hash:
            self.broken("timelines do not fork", f"{entry.leader}{entry.tick} is two things")
        if entry.txid in self.rolled_back:
            self.broken("one outcome", f"{entry.txid} commits at {entry.place} and was told to be rolled back")
        if entry.txid not in self.committed:
            self.committed[entry.txid] = entry
            self.last_clock = max(self.last_clock, entry.txid.clock)
            self.world.flips.committed(entry)
            if entry.transaction.kind == MEMBERS:
                self._changed_durably(entry)
            self.world.counts["adoptions"] += entry.adopted_from is not None
            for node, safe in self.published.items():
                if entry.txid.clock <= safe:
                    self.broken(
                        "nothing appears below safe", f"{entry.txid} commits at {name} below {node}'s safe time"
                    )

    def _changed_durably(self, entry: Entry) -> None:
        """Check that a membership change follows the last one, changes at most one voter, and leaves a quorum."""
        world, old = self.world, self.world.membership
        new = read_membership(entry.transaction.changes)
        if new.version != old.version + 1:
            self.broken("memberships follow each other", f"{entry.place} makes {new.version} after {old.version}")
        if len(set(old.voters) ^ set(new.voters)) > 1:
            self.broken("one voter at a time", f"{entry.place} makes {new.voters} of {old.voters}")
        world.membership = new
        self.retired[new.version] = new.retired.keys()
        self.voters[new.version] = new.voters
        world.counts["timelines retired"] += len(new.retired) - len(old.retired)
        world.counts["membership changes"] += 1
        if new.voters == old.voters:
            return
        at = self.beginnings.get(entry.txid, world.now) - LONG_GONE_S
        machines = [(node, world.machines.get(node)) for node in new.voters]
        gone = [node for node, one in machines if one is None or (not one.running and one.down_since < at)]
        if len(new.voters) - len(gone) < approvals_needed(len(new.voters)):
            self.broken("a change leaves a quorum", f"{entry.place} makes {new.voters}, and {gone} are long gone")

    def stepped(self, machine: "Machine") -> None:
        """Check a core after a step, and record a new safe time, which is published when the step is durable."""
        assert machine.node is not None
        law, story = self.moving.broken(machine)
        if law:
            self.broken(law, story)
        safe = machine.node.state.clock.safe
        if safe > self.safe.get(machine.name, 0):
            self.safe[machine.name] = safe
            machine.disk.then(lambda: self._publish(machine.name, safe))

    def _publish(self, name: str, safe: int) -> None:
        self.published[name] = max(safe, self.published.get(name, 0))

    # -- rest ------------------------------------------------------------------------------------------------------

    def unrest(self) -> str:
        """Return a text about work that is still going on, as far as the running nodes know; empty if all is done."""
        for client in self.world.clients:
            if not client.idle:
                assert client.call is None or client.call.request is not None
                what = client.call.request.command if client.call else "its last questions"
                return f"client {client.name} waits for {what}"
        if not self.world.operator.idle:
            return "the membership is being changed"
        members = self.world.membership.nodes
        machines = self.world.here()
        for machine in machines:
            if is_damaged(machine) or machine.disk.seen.flipped:
                return f"{machine.name} has damaged rows: {machine.disk.seen.flipped}"
        for machine in machines:
            assert machine.node is not None
            node, name = machine.node, machine.name
            state = node.state
            state_of: dict[str, Collection[object]] = {
                "requests": node.coordinator.replies.in_flight,
                "attempts": node.coordinator.attempts.open,
                "waits": node.coordinator.contention.wait_queue.waits,
                "rollbacks": node.coordinator.rollbacks.rolling,
                "pending": state.votes.pending.transactions,
                "rounds": node.recovery.rounds,
                "deferred": node.voter.deferred,
                "recoveries deferred": node.recovery.deferred,
                "adoptable": node.recovery.adoptable,
                "strict reads": [*node.read_checks.questions, *node.read_checks.waiting],
                "waiting entries": [entry for queue in node.apply_queue.waiting.values() for entry in queue],
                "gaps": node.apply_queue.gaps if len(machines) == len(members) else (),
                "schema changes": [state.schema.scheduled] if state.schema.scheduled else [],
                "requests that wait for one": [
                    *node.coordinator.replies.schema_barrier.waiting,
                    *node.coordinator.replies.schema_barrier.decided,
                ],
                "votes": state.votes.by_txid,
                "outcomes": state.votes.outcomes,
                "applied set": state.votes.done,
                "votes on disk": machine.disk.seen.votes,
                "reservations": node.coordinator.contention.reservations.latest,
            }
            applied = state.timelines.applied
            first = machines[0].node.state.timelines.applied  # type: ignore[union-attr]  # these machines run
            if applied != first:
                return f"{name} has applied {applied}, {machines[0].name} {first}"
            if state.clock.safe < self.last_clock:
                behind_ms = milliseconds(self.last_clock) - milliseconds(state.clock.safe)
                return f"{name}'s safe time is {behind_ms} ms below the last commit"
            for what, things in state_of.items():
                if things:
                    return f"{name} still has {what}: {str(list(things))[:200]}"
        return ""

    def over(self) -> None:
        """Check the histories and the journals at the end."""
        histories = Histories(self.world, self.calls)
        histories.check()
        self.schemas.check(self.calls, histories.first)
        self._strict_errors()

    def _strict_errors(self) -> None:
        """Check that a command is not committed if its client got an error without ``unsure``."""
        committed = {command: entry for entry in self.committed.values() for command in entry.transaction.commands}
        certain = [call for call in self.calls if call.error is not None and not call.unsure]
        for call in certain:
            others = [other for other in self.calls if other.request.command == call.request.command]
            entry = committed.get(call.request.command)
            if entry is not None and entry.transaction.result_of(call.request.command) == NOTHING:
                continue  # an empty transaction has settled the command
            if entry is not None and self.schemas.failed(entry.txid):
                continue
            if entry is not None and all(other is call or other.error is not None for other in others):
                self.broken(
                    "did not happen means that", f"{call.request.command} got {call.error!r} and is {entry.place}"
                )
        for request, answer in self.changes:
            entry = self.entries.get(answer.place) if answer.place is not None else None
            if entry is None or entry.transaction.command != request.command:
                self.broken("acknowledged is for ever", f"{request.command} was told {answer.place}: {entry}")
        for command in self.settled:
            if command not in committed or committed[command].transaction.result_of(command) != NOTHING:
                self.broken("settled is for ever", f"{command} is {committed.get(command)}")
        for call in self.calls:
            if call.request.read == STRICT and call.ended is not None and call.answer is not None:
                self.world.counts["strict reads"] += call.answer.place is None
            self.world.counts["strict refusals"] += call.answer is None and strictly_told(call) is not None
