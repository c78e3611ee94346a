"""A cluster on a table: real cores, and commands that deliver messages, make writes durable and crash nodes.

``Table.say`` takes a line and returns what happened, one printed line each. The verbs are listed in ``README.md``.
Time stands still except in ``wait``; a link holds its messages, in order, until they are delivered.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

import cbor2

from bedrockish.api.requests import SESSION, STRICT, Answer, Request, Token
from bedrockish.core.coordinator.request import InFlight
from bedrockish.core.describe import Printer, log_line
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import (
    Apply,
    Effect,
    Execute,
    Halt,
    Malformed,
    Persist,
    Reply,
    Send,
    SendEntries,
    SendOutcome,
)
from bedrockish.core.protocol.events import Dropped, Event, Executed, Now, PeerDown, PeerUp, Received, Submitted, Woken
from bedrockish.core.protocol.messages import Entries, Gossip, Message, Outcome, decode, encode
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.core.state.roster import Roster
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.membership import Member, Membership, pack_membership
from bedrockish_journal.model.transaction import MEMBERS, ROWS, Txid
from tests.traces.disk import Disk

WALL_MS = 1_000  # Unix milliseconds at the start of every trace: a small number, easy to read
QUIET, PLAIN, LOUD = 0, 1, 2
WORD = re.compile(r"[\w']+")


class SlipError(AssertionError):
    """Raised when a line of a trace is impossible: a wrong label, or a message that is not under way."""


@dataclass
class Flight:
    """A message under way."""

    sender: str
    receiver: str
    message: Message
    words: frozenset[str]  # words of the printed message, by which a trace refers to it


@dataclass
class Line:
    """A message or an action of a node, printed when it may be known outside."""

    label: str
    text: str
    level: int
    flight: Flight | None = None


@dataclass
class Place:
    """A node at the table."""

    name: str
    disk: Disk = field(default_factory=Disk)
    node: Node | None = None
    slow: bool = False  # its disk is synced only by hand
    kept: list[Line] = field(default_factory=list)

    @property
    def tick(self) -> int:
        return self.disk.live.applied.get(self.name, 0)


@dataclass(frozen=True)
class Script:
    """A client's request: the keys that it reads and writes."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    strict: bool = False
    command: str = ""
    members: tuple[str, ...] = ()  # it changes the membership to these voters
    after: str = ""  # the earlier request whose session continues: this request has the token of its answer


class PlainRoster(Roster):
    """A node that follows the gist to the letter: over half of the voters are always enough."""

    def set_membership(self, membership: Membership, seconds: float) -> None:
        super().set_membership(membership, seconds)
        self.quorum = self.majority


class Table:
    """The cluster, and all that is under way in it."""

    def __init__(self, names: list[str], *, plain: bool = False) -> None:
        self.plain = plain
        self.tokens: dict[str, Token] = {}
        self.seconds = 0.0
        self.level = PLAIN
        self.membership = Membership(0, {name: Member(name, "") for name in names})
        self.places = {name: Place(name) for name in names}
        self.flights: list[Flight] = []
        self.held: set[tuple[str, str]] = set()
        self.cuts: set[frozenset[str]] = set()
        self.up: set[frozenset[str]] = set()  # links over which something can be sent
        self.scripts: dict[int, Script] = {}
        self.names: dict[Txid, str] = {}
        self.attempts: Counter[str] = Counter()
        self.lines: list[Line] = []
        self.printer = Printer(names, lambda txid: self.names.get(txid, str(txid)), self._request_name)
        for name in names:
            self._start(name)
        for one, other in combinations(names, 2):
            self._link(one, other)
        self.wait(0.2)  # until all nodes have heard of each other, and trust the wall clocks
        self.lines.clear()

    def _link(self, one: str, other: str) -> None:
        if self.places[one].node and self.places[other].node and frozenset((one, other)) not in self.cuts:
            self.up.add(frozenset((one, other)))
            self._step(one, PeerUp(other))
            self._step(other, PeerUp(one))

    def _request_name(self, number: int) -> str:
        return self.scripts[number].name

    @property
    def now(self) -> Now:
        return Now(self.seconds, WALL_MS + round(self.seconds * 1000))

    def place(self, name: str) -> Place:
        if name not in self.places:
            raise SlipError(f"there is no node {name}")
        return self.places[name]

    def core(self, name: str) -> Node:
        node = self.place(name).node
        if node is None:
            raise SlipError(f"{name} is down")
        return node

    # -- a node's steps --------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        place = self.places[name]
        recovered = place.disk.durable.recover(name, self.membership)
        place.node = Node(
            recovered,
            Settings(ask_rest_ms=0),
            Random(ord(name)).random,
            self.now,
            lookups=FileLookups(has_applied=place.disk.has_applied, find_places=place.disk.find_places),
        )
        if self.plain:
            roster = place.node.state.roster
            roster.__class__ = PlainRoster
            roster.set_membership(roster.membership, self.seconds)
        self.perform(name, place.node.start(self.now))

    def _step(self, name: str, event: Event) -> None:
        node = self.places[name].node
        if node is not None:
            self.perform(name, node.step(event, self.now))

    def perform(self, name: str, effects: list[Effect]) -> None:
        """Do what a core asks, as its driver; keep what must not be known before it is durable."""
        place = self.places[name]
        following: list[Event] = []
        for effect in effects:
            self._name(name, effect)
            if place.disk.write(effect):
                self._keep(place, self.printer.effect(effect), PLAIN if isinstance(effect, Apply) else LOUD)
                continue
            match effect:
                case Send(peer, message, early):
                    durable = place.disk.durable
                    is_early = early is not None and early.is_durable(
                        durable.kept.get("clock_ceiling", 0), durable.applied.get(name, 0)
                    )
                    self._send(place, peer, message, is_early=is_early)
                case Execute(request_id):
                    following.append(self._execute(place, request_id))
                case Reply(request_id, answer):
                    self._keep(place, f"answers {self._request_name(request_id)}: {self._told(effect, answer)}", PLAIN)
                case SendEntries(peer, wants):
                    found = [
                        entry for entry, _ in place.disk.live.journal if entry.tick >= wants.get(entry.leader, 1 << 62)
                    ]
                    packed = tuple((entry.prev, entry.label, entry.transaction.body) for entry in found)
                    self._send(place, peer, Entries(packed, self.core(name).state.clock.value))
                case SendOutcome(peer, txid):
                    found = [entry for entry, _ in place.disk.live.journal if entry.txid == txid]
                    leader, tick = found[0].place if found else ("", 0)
                    self._send(place, peer, Outcome(txid, bool(found), leader, tick, self.core(name).state.clock.value))
                case Halt(reason) | Malformed(_, reason):
                    raise SlipError(f"{name} halts: {reason}")
                case _:
                    self._keep(place, self.printer.effect(effect), PLAIN)
        for event in following:
            self._step(name, event)
        if not place.slow:
            self.sync(name)

    def _name(self, leader: str, effect: Effect) -> None:
        """Give a new transaction its name in the trace: Betty, and at her second attempt Betty'."""
        if isinstance(effect, Persist) and effect.vote.txid not in self.names:
            attempt = self.core(leader).coordinator.attempts.open[effect.vote.txid]
            called = self._request_name(attempt.numbers[0])
            self.names[effect.vote.txid] = called + "'" * self.attempts[called]
            self.attempts[called] += 1

    def _told(self, effect: Reply, answer: object) -> str:
        if isinstance(answer, Answer):
            self.tokens[self._request_name(effect.request_id)] = answer.token
        if isinstance(answer, Answer) and answer.place is None:
            seen = cbor2.loads(answer.results)
            return "reads " + ", ".join(f"{key}={value}" for key, value in seen.items())
        return self.printer.effect(effect).partition(": ")[2]

    def _execute(self, place: Place, request_id: int) -> Event:
        script, image = self.scripts[request_id], place.disk.live
        done = next((entry for entry, _ in image.journal if entry.transaction.command == script.command), None)
        if done is not None:
            self._keep(place, f"answers {script.name}: committed as {done.leader}{done.tick} before", PLAIN)
            return Dropped(request_id)
        if script.members:
            return Executed(request_id, self._prepare_members(place, script.members))
        access_set = AccessSet(
            frozenset(key.encode() for key in (*script.reads, *script.writes)),
            write_points=frozenset(key.encode() for key in script.writes),
        )
        seen = cbor2.dumps({key: image.rows.get(key, "nothing") for key in script.reads})
        changes = cbor2.dumps(dict.fromkeys(script.writes, script.name))
        readonly = not script.writes
        return Executed(
            request_id, Prepared(image.applied, 0, readonly, ROWS, access_set, b"" if readonly else changes, seen)
        )

    def _prepare_members(self, place: Place, names: tuple[str, ...]) -> Prepared:
        version = self.core(place.name).state.roster.membership.version + 1
        changes = pack_membership(Membership(version, {name: Member(name, "") for name in names}))
        return Prepared(place.disk.live.applied, 0, False, MEMBERS, AccessSet(), changes, b"")

    def _keep(self, place: Place, text: str, level: int, flight: Flight | None = None) -> None:
        place.kept.append(Line(log_line(place.name, place.tick, ""), text, level, flight))

    def _send(self, place: Place, peer: str, message: Message, *, is_early: bool = False) -> None:
        level = LOUD if isinstance(message, Gossip) else PLAIN
        text = self.printer.message(message)
        flight = Flight(place.name, peer, message, frozenset(WORD.findall(text)))
        if is_early and place.slow:
            self._leave(Line(log_line(place.name, place.tick, ""), text, level, flight))
        else:
            self._keep(place, text, level, flight)

    def sync(self, name: str) -> None:
        """Make a node's writes durable, and send the output that waited for that."""
        place = self.places[name]
        place.disk.sync()
        for line in place.kept:
            self._leave(line)
        place.kept = []

    def _leave(self, line: Line) -> None:
        flight = line.flight
        if flight is None:
            self.lines.append(line)
        elif frozenset((flight.sender, flight.receiver)) in self.up:
            assert decode(encode(flight.message)) == flight.message
            self.flights.append(flight)
            self.lines.append(line)

    # -- what the person does --------------------------------------------------------------------------------------

    def begin(self, name: str, script: Script) -> None:
        """Have a client ask a node for something."""
        number = len(self.scripts) + 1
        self.scripts[number] = script
        token = self.tokens[script.after] if script.after else Token()
        request = Request(script.command, (), read=STRICT if script.strict else SESSION, token=token)
        self._step(name, Submitted(number, request))
        request_id = self.core(name).coordinator.replies.in_flight.get(number)
        if request_id is not None and not any(line.flight for line in (*self.lines, *self.places[name].kept)):
            self._say_stage(name, request_id)

    def _say_stage(self, name: str, request_id: InFlight) -> None:
        label = log_line(name, self.places[name].tick, "")
        self.lines.append(Line(label, f"{self._request_name(request_id.number)} {request_id.stage.value}", PLAIN))

    def transaction(self, name: str, called: str) -> Txid:
        """Return the transaction of a name that a node knows."""
        for txid in self.core(name).state.votes.by_txid:
            if self.names[txid] == called:
                return txid
        raise SlipError(f"{name} has no vote on {called}")

    def give_up(self, name: str, called: str) -> None:
        """Let a leader's patience with its own transaction be over."""
        node = self.core(name)
        node.state.set_now(self.now)
        node.coordinator.attempts.give_up(node.coordinator.attempts.open[self.transaction(name, called)])
        self.perform(name, node._finish_step())

    def recover(self, name: str, called: str) -> None:
        """Let a voter suspect the leader of a transaction."""
        node = self.core(name)
        node.state.set_now(self.now)
        transaction = node.state.votes.by_txid[self.transaction(name, called)].transaction
        assert transaction is not None
        node.recovery.rounds.pop(transaction.txid, None)
        node.recovery.start(transaction)
        self.perform(name, node._finish_step())

    def _meant(self, senders: list[str], receivers: list[str], words: list[str]) -> list[Flight]:
        return [
            flight
            for flight in self.flights
            if flight.sender in senders and flight.receiver in receivers and flight.words.issuperset(words)
        ]

    def deliver(self, senders: list[str], receivers: list[str], words: list[str]) -> None:
        """Deliver the messages under way on some links, or those that contain these words."""
        chosen = self._meant(senders, receivers, words)
        if not chosen:
            raise SlipError(f"nothing {' '.join(words)} is under way from {' '.join(senders)} to {' '.join(receivers)}")
        for flight in chosen:
            self.flights.remove(flight)
            self._arrive(flight)

    def _arrive(self, flight: Flight) -> None:
        self._step(flight.receiver, Received(flight.sender, flight.message))

    def drop(self, senders: list[str], receivers: list[str], words: list[str]) -> None:
        """Lose the messages under way on some links, or those that contain these words."""
        for flight in self._meant(senders, receivers, words):
            self.flights.remove(flight)

    def settle(self) -> None:
        """Deliver all that is not held, in the order in which it was sent, until nothing is under way."""
        for _ in range(10_000):
            free = next((flight for flight in self.flights if (flight.sender, flight.receiver) not in self.held), None)
            if free is None:
                return
            self.flights.remove(free)
            self._arrive(free)
        raise SlipError("the nodes never fall silent")

    def crash(self, name: str) -> None:
        """Take a node down; what it had not made durable is gone, what it had sent is still under way."""
        place = self.place(name)
        self.core(name)
        place.node, place.kept = None, []
        place.disk.crash()
        self.flights = [flight for flight in self.flights if flight.receiver != name]
        for other in self.places:
            self.up.discard(frozenset((name, other)))
            self._step(other, PeerDown(name))

    def restart(self, name: str) -> None:
        """Start a node again from its durable state."""
        self._start(name)
        for other in self.places:
            if other != name:
                self._link(name, other)

    def cut(self, one: str, other: str) -> None:
        """Break the link of two nodes; what is under way on it is lost."""
        self.cuts.add(frozenset((one, other)))
        self.up.discard(frozenset((one, other)))
        self.drop([one, other], [one, other], [])
        self._step(one, PeerDown(other))
        self._step(other, PeerDown(one))

    def mend(self, one: str, other: str) -> None:
        """Let two nodes reach each other again."""
        self.cuts.discard(frozenset((one, other)))
        self._link(one, other)

    def wait(self, seconds: float) -> None:
        """Let time pass; whatever is not held is delivered as it goes."""
        end = self.seconds + seconds
        while True:
            self.settle()
            deadlines = [place.node.deadline() for place in self.places.values() if place.node]
            following = min((deadline for deadline in deadlines if deadline is not None), default=end)
            if following > end:
                self.seconds = end
                return
            self.seconds = max(self.seconds, following)
            for name, place in self.places.items():
                deadline = place.node.deadline() if place.node else None
                if deadline is not None and deadline <= self.seconds:
                    self._step(name, Woken())
