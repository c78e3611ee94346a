"""One node of a model: a real core with a disk, driven by the contract of ``core.effects``, one event at a time.

Time stands still. Instead of timers, the model does their work at any moment: it suspects a leader, gives up, fetches,
or executes again. A place can be frozen completely, so that each event is run only once for each state.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bedrockish.api.requests import Answer, Request
from bedrockish.core.node import Node
from bedrockish.core.protocol import effects as do
from bedrockish.core.protocol import events as on
from bedrockish.core.protocol.messages import Message
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.settings import Settings
from bedrockish.errors import BedrockishError, OutcomeUnknownError
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import Txid
from tools.sim.database import execute
from tools.sim.disk import Disk, Image, Write
from tools.sim.talks import answer_of

STILL = on.Now(1.0, 0)
WINDOW = 1 << 62

Sent = tuple[str, Message]


class HaltedError(Exception):
    """Raised when a core requests the stop of its node."""


@dataclass(frozen=True)
class Leave:
    """A message that is sent when all writes before it are durable."""

    sent: Sent

    def __call__(self) -> None:
        LEAVING.append(self.sent)


@dataclass(frozen=True)
class Tell:
    """An answer that a client gets when all writes before it are durable."""

    told: dict[str, str]
    command: str
    words: str

    def __call__(self) -> None:
        self.told[self.command] = self.words


LEAVING: list[Sent] = []  # messages that were sent during the present event


def level_luck() -> float:
    """Return a constant: random numbers only spread events over time, and here time does not pass."""
    return 0.5


def unwatched(_: Write) -> None:
    """Ignore a durable write."""


@dataclass
class Place:
    """A node, or its durable state after a crash.

    Why so large: It has the complete state of a node and its clients at one state of the search.
    """

    name: str
    membership: Membership
    settings: Settings
    script: tuple[Request, ...]  # the requests of clients at this node, in order
    eager: bool  # whether a write is durable at once; else a separate event makes it durable
    disk: Disk
    node: Node | None = None  # the core; None while the node is dead
    requests: dict[int, Request] = field(default_factory=dict)  # the requests that wait for an answer
    # The answers to clients of this node, by command; they outlive the node.
    told: dict[str, str] = field(default_factory=dict)
    newer: dict[int, bool] = field(default_factory=dict)  # the answers to questions of strict reads, by number
    # The timers that the core has set, without their times.
    timers: set[tuple[Timer, object]] = field(default_factory=set)
    assembling: deque[do.Assemble] = field(default_factory=deque)  # messages that are being assembled from pieces
    taken: int = 0  # the number of requests of the script that were submitted
    now: on.Now = STILL  # the time, which stands still unless ``timed``; then the core's own timers run
    timed: bool = False
    together: bool = False  # whether all requests of the script come at once

    @property
    def core(self) -> Node:
        assert self.node is not None
        return self.node

    # -- spontaneous events ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.disk.seen.batches = self.disk.durable.batches = 0  # no scope uses this count, which only grows
        recovered = self.disk.seen.recover(self.name, self.name, WINDOW)
        self.node = Node(
            *(recovered, self.settings, level_luck, self.now), follows_wall=False, lookups=self.disk.seen.lookups()
        )
        self.perform(self.node.start(self.now))

    def crash(self, survivors: int = 0) -> None:
        """Stop the node, and lose the writes that are not durable, except the first ``survivors`` batches."""
        self.node = None
        self.requests.clear()
        self.timers.clear()
        self.assembling.clear()
        self.disk.crash(survivors)

    def play(self, event: tuple[object, ...]) -> list[Sent]:
        """Run an event, and return the messages sent.

        Raises:
            HaltedError, AssertionError, DivergedError: the core or its disk has found an impossible state.
        """
        LEAVING.clear()
        match event:
            case ("receive", str(peer), message):
                self.step(on.Received(peer, message))  # type: ignore[arg-type]
            case ("submit",):
                self._submit(1)
            case ("submit all",):
                self._submit(len(self.script) - self.taken)
            case ("newer", int(number)):
                self.step(on.NewerAsked(number, dict(self.core.state.timelines.applied)))
            case ("part", str(peer)):
                self.step(on.PeerDown(peer))
            case ("wake",):
                self.step(on.Woken())
            case ("sync",):
                self.disk.make_durable(len(self.disk.closed))
            case ("assemble",):
                one = self.assembling.popleft()
                self.step(on.Assembled(one.peer, one.parts, self.disk.seen.assemble(one.parts)))
            case ("reboot", int(survivors)):
                self.crash(survivors)
                self.start()
                LEAVING.clear()  # no link is open yet
            case ("die", int(survivors)):
                self.crash(survivors)
            case ("meet", str(peer)):
                self.step(on.PeerDown(peer))
                self.step(on.PeerUp(peer))
            case ("timer", str(name), subject):
                self.timers.discard((Timer(name), subject))
                self.core._on_timer(Timer(name), subject)
                self.perform(self.core._finish_step())
            case _:
                self._turn(*event)
        self._release_output()
        return list(LEAVING)

    def _turn(self, name: object, txid: object = None) -> None:
        """Have the core do the work of a timer."""
        core = self.core
        core.state.set_now(self.now)
        match name, txid:
            case "suspect", Txid() as txid:
                core.recovery.start(core.state.votes.pending.transactions[txid])
            case "again", Txid() as txid:
                core.recovery._again(txid, core.recovery.rounds[txid])
            case "give up", Txid() as txid:
                core.coordinator.attempts.give_up(core.coordinator.attempts.open[txid])
            case "fetch", None:
                core.apply_queue.fetch_missing(at_once=True)
            case "heartbeat", None:
                core._heartbeat()
            case _:
                raise ValueError(f"nothing is called {name!r}")
        self.perform(core._finish_step())

    def choices(self) -> list[tuple[object, ...]]:
        """Return the possible spontaneous events; the scope limits their numbers."""
        if self.node is None:
            return []
        core, found = self.node, list[tuple[object, ...]]()
        if self.taken < len(self.script):
            found.append(("submit all",) if self.together else ("submit",))
        if self.disk.must_sync:
            found.append(("sync",))
        if self.assembling:
            found.append(("assemble",))
        found += [("timer", name, subject) for name, subject in sorted(self.timers, key=repr)]
        rounds = core.recovery.rounds
        found += [("suspect", txid) for txid in sorted(core.state.votes.pending.transactions) if txid not in rounds]
        found += [("again", txid) for txid in sorted(rounds)]
        found += [("give up", txid) for txid, one in sorted(core.coordinator.attempts.open.items()) if one.counting]
        taken = core.state.timelines.taken
        if any(taken.get(leader, 0) < gap.upto and not gap.asked for leader, gap in core.apply_queue.gaps.items()):
            found.append(("fetch",))
        found.append(("heartbeat",))
        return found

    # -- the driver ------------------------------------------------------------------------------------------------

    def step(self, event: on.Event) -> None:
        """Pass one event to the core, and perform its effects."""
        self.perform(self.core.step(event, self.now))

    def _submit(self, count: int) -> None:
        asked = []
        for request in self.script[self.taken : self.taken + count]:
            self.taken += 1
            self.requests[self.taken] = request
            asked.append((self.taken, request))
        (request_id, request), *others = asked
        self.step(on.Submitted(request_id, request, others=tuple(others)))

    def perform(self, effects: Sequence[do.Effect]) -> None:
        """Perform the core's effects in order, including those of events that follow from them."""
        following: deque[on.Event] = deque()
        while True:
            for effect in effects:
                self._do(effect, following)
            if not following:
                break
            effects = self.core.step(following.popleft(), self.now)
        self.core.check()
        timers = self.core.state.timers._timers
        if not self.timed:
            kept = {(name, subject) for _, _, name, subject in timers}
            self.timers |= {one for one in kept if one[0] in (Timer.REQUEST_AGAIN, Timer.RECOVER_AGAIN, Timer.FETCH)}
            timers.clear()
        self.disk.close_batch()
        if self.eager:
            self.disk.make_durable(len(self.disk.closed))

    def _release_output(self) -> None:
        while self.disk.closed and not self.disk.closed[0].writes:
            self.disk.make_durable(1)

    def _do(self, effect: do.Effect, following: deque[on.Event]) -> None:
        disk = self.disk
        match effect:
            case do.Send(peer, message, early):
                self._send(peer, message, early)
            case do.Persist() | do.Forget() | do.SavePiece() | do.DropPieces() | do.Keep() | do.Apply():
                disk.write(effect)
            case do.Assemble():
                self.assembling.append(effect)
            case do.Activate(txid):
                disk.write(effect)
                following.append(on.Activated(txid, ""))
            case do.Execute(request_id, _, group):
                following.append(self._execute(request_id, group))
            case do.Reply(request_id, answer):
                self._tell(request_id, answer)
            case do.SendEntries(peer, wants, _):
                state = self.core.state
                entries = disk.seen.read_entries(wants, WINDOW, state.clock.value)
                self._send(peer, state.outbox.to_send(peer, entries))
            case do.SendOutcome(peer, txid):
                self._send(peer, disk.seen.outcome(txid, self.core.state.clock.value))
            case do.NewerAnswered(number, may_exist):
                self.newer[number] = may_exist
            case do.SetMembers():
                pass
            case do.Malformed(_, reason) | do.Halt(reason):
                raise HaltedError(reason)

    def _send(self, peer: str, message: Message, early: do.Early | None = None) -> None:
        leave = Leave((peer, message))
        if early is not None and self.disk.has(early):
            leave()
        else:
            self.disk.then(leave)

    def _tell(self, request_id: int, answer: Answer | BedrockishError) -> None:
        request = self.requests.pop(request_id, None)
        if request is None:
            return
        self.disk.then(Tell(self.told, request.command, told(answer)))

    def _execute(self, request_id: int, group: tuple[int, ...]) -> on.Event:
        request = self.requests.get(request_id)
        if request is None:
            return on.Dropped(request_id)
        entry: Entry | None = self.disk.seen.commands.get(request.command)
        if entry is not None:
            self._tell(request_id, answer_of(entry, request))
            return on.Dropped(request_id)
        try:
            seen = self.disk.seen
            others = [self.requests[number] for number in group if number in self.requests]
            others = [one for one in others if one.command not in seen.commands]
            return on.Executed(request_id, execute(seen.rows, request, seen.applied, self.name, seen.schema, 0, others))
        except BedrockishError as error:
            return on.Failed(request_id, error)


def told(answer: Answer | BedrockishError) -> str:
    """Return the meaning of an answer for a client: the place of the commit, or a text."""
    if isinstance(answer, BedrockishError):
        return "cannot tell" if isinstance(answer, OutcomeUnknownError) else "did not happen"
    return "read" if answer.place is None else f"{answer.place[0]}{answer.place[1]}"


def new_place(
    name: str, membership: Membership, settings: Settings, script: tuple[Request, ...], *, eager: bool
) -> Place:
    """Return a node that has not started yet, on an empty disk."""
    disk = Disk(Image(membership), name)
    disk.on_durable = unwatched
    return Place(name, membership, settings, script, eager, disk)
