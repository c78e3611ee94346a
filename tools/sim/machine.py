"""One node with its disk and its clocks: a driver of a real core, which follows the contract of ``core.effects``.

Events are gathered, and their effects are performed in order on the open batch of the disk. Messages and answers among
these effects leave when this batch and all earlier ones are durable.
"""

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from bedrockish.api.requests import Answer, Request
from bedrockish.core.coordinator.revalidation import moved_up
from bedrockish.core.node import Node
from bedrockish.core.protocol import effects as do
from bedrockish.core.protocol import events as on
from bedrockish.core.protocol.events import Event, Now
from bedrockish.core.protocol.messages import Gossip, Message, encode
from bedrockish.core.protocol.pieces import Part
from bedrockish.core.protocol.records import Joining, Prepared
from bedrockish.core.state.membership import change_members
from bedrockish.engine.execution.merging import merge
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.errors import BedrockishError
from bedrockish.node.cluster.incarnations import OLDER_FILE, PREFIX, Incarnations, Refusal
from bedrockish.node.cluster.membership import facts
from bedrockish.node.cluster.starts import STARTS
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.membership import pack_membership
from bedrockish_journal.model.transaction import MEMBERS
from tools.sim.damage import Care
from tools.sim.database import DivergedError, execute, join, only_writes
from tools.sim.disk import Disk, Image, Note
from tools.sim.newer import NewerQuestions
from tools.sim.talks import NOTHING, Answerer, Talks, Waiter, again

LINGER_S = 0.02  # how long a write for which no output waits stays in the open batch
ASSEMBLE_S = 2e-3  # mean time to assemble a message from its pieces

if TYPE_CHECKING:
    from tools.sim.world import World

WALL_0 = 1_800_000_000_000  # Unix milliseconds at the start of every world

MEMORY_STEP = 16  # small, so that peers remember a short-lived file; not 1, or each note would cause further notes


class Machine:
    """A node.

    Why so large: A crash, a pause and a slow disk act on the whole node at once: its core, its disk, its clocks and its
    queues.

    Attributes:
        boot: the number of starts and stops; an action planned in one run of the process happens in no other run.
        node: the core while the process runs, else None.
        store: the random id of its file.
        known: the node's record of its peers' files.
        forgot: whether its file was lost or put back from a backup, so that it lacks promises that it has made.
        retired: whether it never starts again.
        down_since: the time in seconds at which it stopped.
    """

    def __init__(self, world: "World", name: str, image: Image, store: str) -> None:
        self.world, self.name = world, name
        self.luck = Random(f"machine {name} {world.options.seed}")
        self.store, self.disk = store, self._new_disk(image)
        self.known = Incarnations({}, self._remember)
        self.talks = Talks(self)
        self.newer = NewerQuestions(self)
        self.care = Care(self)
        self.node: Node | None = None
        self.forgot = self.retired = False
        self.down_since = 0.0
        self.boot = 0
        self.let_in: set[str] = set()  # peers with which it has had a link since it started
        self.inbox: deque[Event] = deque()
        self.gathered: list[tuple[int, Request, bool]] = []  # requests that came while the node was busy
        self.waiters: dict[int, Waiter] = {}
        self.requests = 0
        self.wall_offset_ms = self.luck.randint(-world.options.skew_ms, world.options.skew_ms)
        self.seconds_offset = 0.0
        self.paused_until = self.slow_until = 0.0
        self.syncing = False
        self.linger_until: float | None = None
        self.turning = False
        self.wake_at: float | None = None
        self._encoded: tuple[Message | None, bytes] = (None, b"")

    def _new_disk(self, image: Image) -> Disk:
        disk = Disk(image, self.name)
        disk.on_durable = lambda write: self.world.laws.durable(self.name, write)
        return disk

    @property
    def running(self) -> bool:
        """Return whether the process exists (it may be paused)."""
        return self.node is not None

    def now(self) -> Now:
        """Return the time by this machine's clocks."""
        seconds = self.world.now
        return Now(seconds + self.seconds_offset, WALL_0 + int(seconds * 1000) + self.wall_offset_ms)

    # -- starting and stopping -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process with the file on its disk."""
        assert self.node is None
        self.boot += 1
        self.let_in = set()
        self.seconds_offset = self.luck.uniform(0, 1e5)
        options = self.world.options
        self.disk.begin(f"{self.name}-{self.boot}".encode())
        window = options.conflict_window_ms, options.window_entries
        recovered = self.disk.seen.recover(self.name, self.store, *window)
        kept = {name: value for name, value in self.disk.seen.meta.items() if name.startswith(PREFIX)}
        self.known = Incarnations(kept, self._remember, step=MEMORY_STEP)
        self.node = Node(
            recovered,
            options.settings,
            self.luck.random,
            self.now(),
            follows_wall=options.follows_wall,
            lookups=self.disk.seen.lookups(self.care.compare_rows),
        )
        self.care.started()
        self.guarded(lambda node: self._perform(node.start(self.now())))
        self._advance_batches()
        self._set_alarm()
        self.world.network.connect_all(self.name)

    def crash(self) -> None:
        """Kill the process. Writes without a sync may be lost."""
        if self.node is None:
            return
        self.world.counts["recoveries"] += self.node.recovery.counts["started"]
        self.world.laws.stopped(self)
        self.boot += 1
        self.node = None
        self.down_since = self.world.now
        self.inbox.clear()
        self.gathered.clear()
        self.waiters.clear()
        self.talks = Talks(self)
        self.newer = NewerQuestions(self)
        self.syncing = self.turning = False
        self.linger_until = None
        self.paused_until = 0.0
        self.wake_at = None
        self.disk.close_batch()
        self.disk.crash(self.luck.randint(0, len(self.disk.closed)))
        for other in self.world.network.machines:
            if other != self.name:
                self.world.network.break_link(self.name, other, again=False)

    def lose(self, image: Image, store: str) -> None:
        """Replace the file of a stopped machine by an empty one, or by an older state of the file."""
        assert self.node is None
        self.disk, self.store, self.forgot = self._new_disk(image), store, True

    def refill(self, image: Image) -> None:
        """Replace the file of a stopped machine by ``image``, which has other tables and the same promises."""
        assert self.node is None
        self.disk = self._new_disk(image)

    def _remember(self, name: str, value: object) -> None:
        self.disk.write(Note(name, value))
        self._turn_soon(0.0)

    # -- other nodes -----------------------------------------------------------------------------------------------

    def turns_away(self, other: "Machine") -> Refusal | None:
        """Return why another machine is refused because of its file, or None."""
        assert self.node is not None
        file = other.disk.durable
        told = {"store": other.store, "batches": file.batches, STARTS: file.starts}
        return self.known.judge(other.name, told, self.node.state.roster.membership)

    def accused(self, peer: str, refusal: Refusal) -> None:
        """Tell the core that a peer has refused this node."""
        if self.node is not None and self.node.state.roster.joining is None:
            self.post(on.Accused(peer, refusal.reason, for_good=refusal.code == OLDER_FILE))

    def lend(self, done: Callable[[Image, Joining], None]) -> bool:
        """Pass a copy of the file and the joining data for a new node to ``done``, once both are durable here.

        Return False if the node does not serve.
        """
        if self.node is None or self.node.state.trouble:
            return False
        roster, timelines = self.node.state.roster, self.node.state.timelines
        image, told = self.disk.seen.copy(), Joining(roster.membership, dict(timelines.applied))
        self.disk.then(lambda: done(image, told))
        self._turn_soon(0.0)
        return True

    # -- the loop --------------------------------------------------------------------------------------------------

    def submit(
        self,
        request: Request,
        answer: Answerer,
        prepare: Callable[[], Prepared] | None = None,
        *,
        once: bool = False,
        alone: bool = False,
        shares: bool = False,
    ) -> bool:
        """Accept a client's request; return False if the node is down.

        With ``alone``, a strict read does not share its question to a quorum with other reads. With ``shares``, the
        result of ``prepare`` may be merged with the transactions of other requests.
        """
        if self.node is None:
            return False
        if prepare is None and not once and not alone and self.newer.take(self.node, request, answer):
            self._turn_soon(self.luck.expovariate(1 / 50e-6))
            return True
        self.requests += 1
        self.waiters[self.requests] = Waiter(request, answer, prepare, shares)
        gather_ms = self.world.options.gather_ms
        if gather_ms and (shares or (not once and prepare is None and only_writes(request))):
            if not self.gathered:
                self.later(self.luck.expovariate(1000 / gather_ms), self._submit_gathered)
            self.gathered.append((self.requests, request, once))
        else:
            self.post(on.Submitted(self.requests, request, once))
        return True

    def _submit_gathered(self) -> None:
        """Post the gathered requests to the core, as one event for all that can share a transaction."""
        asked, self.gathered = self.gathered, []
        while asked:
            isolation, once = asked[0][1].isolation, asked[0][2]
            alike = [one for one in asked if (one[1].isolation, one[2]) == (isolation, once)]
            asked = [one for one in asked if one not in alike]
            (request_id, request, _), *others = alike
            self.world.counts["came together"] += len(others)
            each = tuple((number, other) for number, other, _ in others)
            self.post(on.Submitted(request_id, request, once, each))

    def answer_when_durable(self, answerer: Answerer, answer: Answer | BedrockishError) -> None:
        """Send an answer once all present writes are durable."""
        self._reply_to(answerer, answer)
        self._turn_soon(0.0)

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Schedule an action, which does not happen if the process stops or starts before."""
        boot = self.boot
        self.world.after(seconds, lambda: boot == self.boot and action())

    def post(self, event: Event) -> None:
        """Queue an event for the core, unless the node has stopped."""
        if self.node is None:
            return
        if isinstance(event, on.Received) and isinstance(event.message, Gossip):
            self.known.learn(event.peer, event.message.store, event.message.batches)
        self.inbox.append(event)
        self._turn_soon(self.luck.expovariate(1 / 50e-6))

    def _turn_soon(self, delay: float) -> None:
        if not self.turning:
            self.turning = True
            self.later(max(delay, self.paused_until - self.world.now), self._turn)

    def _turn(self) -> None:
        if self.node is None:
            return
        boot, self.turning = self.boot, False
        self.node.state.count_batches(self.disk.seen.batches)
        if self.paused_until > self.world.now:
            self._turn_soon(0.0)
            return
        for _ in range(len(self.inbox)):
            event = self.inbox.popleft()
            self.world.trace(self.name, event)
            self.world.laws.moving.hears(self, event)
            self.guarded(lambda node, event=event: self._perform(node.step(event, self.now())))  # type: ignore[misc]
            if boot != self.boot:
                return  # the node has found that it is damaged, and restarted
        if self.node is not None:
            self.guarded(self._ask_newer)
            if boot != self.boot:
                return  # the node has restarted, as above
            deadline = self.node.deadline()
            if deadline is not None and deadline <= self.now().seconds:
                self.guarded(lambda node: self._perform(node.step(on.Woken(), self.now())))
            if boot != self.boot:
                return  # the node has restarted, as above
            self._advance_batches()
            self._set_alarm()

    def _ask_newer(self, node: Node) -> None:
        question = self.newer.question(node)
        if question is not None:
            self.world.trace(self.name, question)
            self._perform(node.step(question, self.now()))

    def guarded(self, action: Callable[[Node], None]) -> None:
        """Run an action on the core; an unexpected exception counts as a broken law."""
        if self.node is None:
            return
        try:
            action(self.node)
        except DivergedError as error:
            if not self.disk.seen.flipped:
                self.world.broken("no node stops", f"{self.name}: {error}")
            self.care.damaged(str(error))
        except (AssertionError, KeyError, AttributeError, TypeError, ValueError) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename.rpartition('/')[2]}:{where.lineno} {where.name}"
            self.world.broken("no node stops", f"{self.name}: {type(error).__name__} {error} at {place}")
        if self.node is not None:
            self.world.laws.stepped(self)
            self.care.stepped()

    def _set_alarm(self) -> None:
        assert self.node is not None
        deadline = self.node.deadline()
        if deadline is None:
            return
        when = deadline - self.seconds_offset
        if self.wake_at is None or when < self.wake_at or self.wake_at < self.world.now:
            self.wake_at = when
            self.later(max(1e-5, when - self.world.now), lambda: self._woken(when))

    def _woken(self, when: float) -> None:
        if self.wake_at == when:
            self.wake_at = None
            self._turn_soon(0.0)

    def _assembled(self, peer: str, parts: tuple[Part, ...]) -> None:
        """Post a message to the core that is assembled from its pieces in the file."""
        self.post(on.Assembled(peer, parts, self.disk.seen.assemble(parts)))

    # -- effects ---------------------------------------------------------------------------------------------------

    def _perform(self, effects: list[do.Effect]) -> None:
        assert self.node is not None
        following: deque[Event] = deque()
        while True:
            for effect in effects:
                self._do(effect, following)
            if not following:
                self.node.check()
                return
            event = following.popleft()
            self.world.trace(self.name, event)
            effects = self.node.step(event, self.now())

    def _do(self, effect: do.Effect, following: deque[Event]) -> None:
        disk, node = self.disk, self.node
        assert node is not None
        match effect:
            case do.Send(peer, message, early):
                self._send(peer, message, early)
            case do.Persist() | do.Forget() | do.SavePiece() | do.DropPieces() | do.Keep() | do.Apply():
                damaged = {key: disk.seen.rows[key] for key in disk.seen.flipped}
                disk.write(effect)
                if isinstance(effect, do.Apply):
                    self.world.laws.applied(self, effect.entry, effect.repeat)
                    if damaged and not effect.repeat:
                        self.world.flips.met(self, effect.entry, damaged)
            case do.Assemble(peer, parts):
                self.world.laws.moving.reads(self, peer, parts)
                self.later(self.luck.expovariate(1 / ASSEMBLE_S), lambda: self._assembled(peer, parts))
            case do.Activate(txid):
                disk.write(effect)
                following.append(on.Activated(txid, self.world.laws.schemas.activated(self, txid)))
            case do.Execute(request_id, clock, group):
                self._execute(request_id, clock, following, group)
            case do.Reply(request_id, answer):
                self._reply(request_id, answer)
            case do.NewerAnswered(number, may_exist):
                self.newer.answered(number, may_exist=may_exist)
            case do.SendEntries(peer, wants, limit):
                state = node.state
                entries = disk.seen.read_entries(wants, limit, state.clock.value)
                self._send(peer, state.outbox.to_send(peer, entries))
            case do.SendOutcome(peer, txid):
                self._send(peer, disk.seen.outcome(txid, node.state.clock.value))
            case do.SetMembers():
                self.known.forget(node.state.roster.links())
                self.world.network.members_changed(self.name)
            case do.Malformed(peer, reason):
                self.world.broken("nodes send each other what is sound", f"{peer} to {self.name}: {reason}")
            case do.Halt(reason):
                self.world.broken("no node halts", f"{self.name}: {reason}")

    def _execute(
        self, request_id: int, clock: int, following: deque[Event], group: tuple[int, ...], *, waited: bool = False
    ) -> None:
        waiter = self.waiters.get(request_id)
        if waiter is None:
            following.append(on.Dropped(request_id))
            return
        request = waiter.request
        entry = self.disk.seen.commands.get(request.command)
        if entry is not None:
            found = again(self.disk.seen, entry, request, request_id)
            if not isinstance(found, on.Decided):
                self._reply(request_id, found)
            following.append(found if isinstance(found, on.Decided) else on.Dropped(request_id))
            return
        wait_ms = self.world.options.wait_ms
        if wait_ms and not waited and waiter.prepare is None and request.change is None:
            self.later(self.luck.expovariate(1000 / wait_ms), lambda: self._go_on(request_id, clock))
            if group:
                following.append(on.MovedToWorker(request_id))
            return
        try:
            prepared = self._prepare(waiter, clock, self._others(waiter, group))
        except ClockNeededError:
            following.append(on.ClockWanted(request_id))
            return
        except BedrockishError as error:
            following.append(on.Failed(request_id, error))
            return
        self.world.counts["executions"] += 1
        event, mean = on.Executed(request_id, prepared), self.world.options.execute_ms / 1000
        if mean:
            self.later(self.luck.expovariate(1 / mean), lambda: self.post(event))
        else:
            following.append(event)

    def _go_on(self, request_id: int, clock: int) -> None:
        """Execute a request that has got a background worker: take a snapshot, look the id up in it, and execute."""
        following: deque[Event] = deque()
        # A requested clock is drawn now, so that it is later than the snapshot.
        self.guarded(
            lambda node: self._execute(request_id, node.state.clock.tick() if clock else 0, following, (), waited=True)
        )
        for event in following:
            self.post(event)

    def _others(self, first: Waiter, group: tuple[int, ...]) -> list[Waiter]:
        others: list[Waiter] = []
        for number in group:
            waiter = self.waiters.get(number)
            if waiter is None or (waiter.prepare is None) != (first.prepare is None) or waiter.shares != first.shares:
                break
            if waiter.prepare is not None and not waiter.shares:
                break
            if waiter.prepare is None and waiter.request.statements[0].sql == "alter":
                break
            if waiter.request.command in self.disk.seen.commands:
                break
            others.append(waiter)
        return others

    def _prepare(self, waiter: Waiter, clock: int, others: list[Waiter]) -> Prepared:
        node, request, image = self.node, waiter.request, self.disk.seen
        assert node is not None
        if waiter.prepare is not None:
            each = [(other.request, other.prepare) for other in others if other.prepare is not None]
            prepared = merge((request, waiter.prepare()), each, partial(moved_up, node.state), join)
            self.world.counts["merged"] += len(prepared.joined)
            return prepared
        if request.change is None:
            return self.execute(request, clock, [other.request for other in others])
        known = facts(node, self.known.stores, self.now())
        changes = pack_membership(change_members(node.state.roster.membership, request.change, known))
        return Prepared(dict(image.applied), image.schema, False, MEMBERS, AccessSet(), changes, NOTHING)

    def execute(self, request: Request, clock: int, others: Sequence[Request] = ()) -> Prepared:
        """Execute a request, and others after it in the same transaction, on the present rows; return the result.

        Raises:
            BedrockishError: the request cannot be executed.
        """
        image, all_of_them, indexed = self.disk.seen, (request, *others), bool(self.world.options.sweeps)
        try:
            prepared = execute(
                *(image.rows, request, image.applied, self.name, image.schema, clock, others), indexed=indexed
            )
        except BedrockishError as error:
            if isinstance(error.rests_on, Prepared):
                self.world.flips.executed(image, error.rests_on.result, all_of_them)
            raise
        self.world.flips.executed(image, prepared.result, all_of_them)
        return prepared

    def _reply(self, request_id: int, answer: Answer | BedrockishError) -> None:
        waiter = self.waiters.pop(request_id, None)
        if waiter is not None:
            self.world.flips.answers(self, answer)
            self._reply_to(waiter.answer, answer)

    def _reply_to(self, answerer: Answerer, answer: Answer | BedrockishError) -> None:
        delay = self.luck.expovariate(1000.0 / max(0.1, self.world.options.delay_ms))
        self.disk.then(lambda: self.later(delay, lambda: answerer(answer)))

    def _send(self, peer: str, message: Message, early: do.Early | None = None) -> None:
        self.world.laws.says(self, message)
        if self._encoded[0] is not message:  # a message to several peers is encoded once
            self._encoded = (message, encode(message))
        data = self._encoded[1]
        if early is not None and self.disk.has(early):
            self.world.counts["early"] += 1
            self.world.leave(self.name, peer, message, data)
            return
        self.disk.then(lambda: self.world.leave(self.name, peer, message, data))

    # -- durability ------------------------------------------------------------------------------------------------

    def _advance_batches(self) -> None:
        """Close the open batch, and sync the closed ones, or release output at once that needs no sync."""
        disk = self.disk
        if disk.open.after:
            is_due = bool(disk.open.writes) or not self.syncing
        else:
            is_due = bool(disk.open.writes) and not self._lingers()
        if is_due:
            self.linger_until = None
            disk.close_batch()
        if self.syncing:
            return
        free = 0
        for batch in disk.closed:
            if batch.writes:
                break
            free += 1
        disk.make_durable(free)
        if disk.must_sync:
            self.syncing, count = True, len(disk.closed)
            mean = self.world.options.sync_ms / 1000 * self.world.network.pace
            factor = 100.0 if self.slow_until > self.world.now else 1.0
            took = (0.3 * mean + self.luck.expovariate(1 / (0.7 * mean))) * factor
            self.later(took, lambda: self._synced(count))

    def _lingers(self) -> bool:
        """Return whether writes for which no output waits stay in the open batch; see the event loop."""
        if self.linger_until is None:
            self.linger_until = self.world.now + LINGER_S
            self.later(LINGER_S, lambda: self._turn_soon(0.0))
            return True
        return self.world.now < self.linger_until

    def _synced(self, count: int) -> None:
        if self.paused_until > self.world.now:  # the process continues when its pause ends
            self.later(self.paused_until - self.world.now, lambda: self._synced(count))
            return
        self.syncing = False
        self.disk.make_durable(count)
        self._advance_batches()
