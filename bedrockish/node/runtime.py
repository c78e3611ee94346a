"""A node's event loop: passes events to the core, performs the core's effects, and delays output until the writes
before it are durable.

Each turn of the loop passes the events that have arrived to the core, performs the core's effects in one open SQLite
transaction, and keeps the resulting messages and answers. When no sync is running, the loop commits and syncs the
transaction; then the kept output leaves. A sync runs in a thread, so that all events that arrive during it share the
next sync. Where the disk is quick and no other request waits, the sync runs in the loop, because switching to a thread
and back would take longer.

``act`` takes a turn in the task that reads the links, without waking the loop's own task. The loop's task handles long
work, other events, and timers.
"""

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, assert_never

import trio

from bedrockish.api.requests import STRICT, Answer, Request, Statement, as_part_of_trace
from bedrockish.client.sansio.retry import only_reads
from bedrockish.config.config import Config
from bedrockish.core.protocol import effects as do
from bedrockish.core.protocol import events as on
from bedrockish.core.protocol.messages import Message
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.batch import LONG_BYTES
from bedrockish.engine.engine import Engine
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.errors import BedrockishError, DamagedError, MemoryFullError, OutcomeUnknownError, UnavailableError
from bedrockish.node.admin.retention import Upkeep, start_core
from bedrockish.node.admin.watching import tell_troubles, watch_disk
from bedrockish.node.cluster.authentication import Credentials
from bedrockish.node.cluster.incarnations import PREFIX, Incarnations
from bedrockish.node.cluster.membership import depends_on_alive, keep_level, wait_for_alive
from bedrockish.node.executions import Executions
from bedrockish.node.memory_watch import Caller, shrink_when_idle, watch_memory
from bedrockish.node.own_values import OwnValues
from bedrockish.node.peer_intake import PeerIntake
from bedrockish.node.peer_output import PeerOutput
from bedrockish.node.plugins import Plugins
from bedrockish.node.published import Publisher
from bedrockish.node.reports import Reports
from bedrockish.node.scheduling.assembler import Assembler
from bedrockish.node.scheduling.checkpoints import Checkpoints
from bedrockish.node.scheduling.direct_reads import DirectReads
from bedrockish.node.scheduling.durability import Done, HeldOutput, MakePrepared, Waiter
from bedrockish.node.scheduling.durability_gate import DurabilityGate
from bedrockish.node.scheduling.entry_sender import EntrySender
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.group_timer import GroupTimer
from bedrockish.node.scheduling.reads_beside import ReadsBeside
from bedrockish.node.scheduling.row_comparison import RowComparison
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.node.scheduling.strict_reads import StrictRead, StrictReads
from bedrockish.node.scheduling.system_clock import Clocks
from bedrockish.node.scheduling.turn_loop import FairQueue, Turn, TurnLoop, is_cancellation
from bedrockish.node.scheduling.waiters import Waiters
from bedrockish.node.scheduling.workers import WorkerPool, leaving
from bedrockish.node.transactions.manager import Transactions
from bedrockish.node.transactions.steps import Submission
from bedrockish_journal.model.transaction import Transaction
from bedrockish_journal.model.vector import Vector
from bedrockish_net.read_loop import ReadLoop

logger = logging.getLogger(__name__)

TURN_S = 0.03  # how long the events of a turn may take together, in seconds
TURN_MAX = 512  # most events that are taken before their effects are made durable


class Runtime:
    """The driver of one core, with one engine and one mesh.

    Why so large: It wires the parts of a node, which are most of the attributes. The public methods are the interfaces
    that these parts, and the sessions of clients, have to the loop.
    """

    def __init__(
        self, engine: Engine, config: Config, plugins: Plugins | None = None, credentials: Credentials | None = None
    ) -> None:
        self.engine = engine
        self.config = config
        self.plugins = plugins or Plugins()
        self._loop = TurnLoop(engine, self._cycle, self._has_work, self._expects_company, self._deadline)
        self.act, self.stop = self._loop.act, self._loop.stop
        self.counts: Counter[str] = Counter()
        self.faults = Faults(self.counts, self.stop)
        self._clocks = Clocks(config.clock.wall_offset_ms)
        self.core = start_core(
            engine, config, random.random, self._clocks.now(), lambda transaction: self._compare_rows(transaction)
        )
        self._own_values = OwnValues(engine, self._loop.wake)
        self.incarnations = Incarnations(engine.get_meta(PREFIX), self._own_values.keep)
        limits = config.limits
        self.boundary = Boundary(engine, self.durable)
        places = limits.workers_max
        self.workers = WorkerPool(engine, self.core, places, self._ran_in_worker, self.faults, self.boundary)
        self.upkeep = Upkeep(self.core, engine, config, self._clocks, self.post, self.durable)
        self.transactions = Transactions(
            engine, self.core, self.submit, limits, self.workers, self.faults, self.boundary
        )
        self._comparison = RowComparison(
            engine, self.transactions.snapshots, self.post, self._start, self.stop, self.faults
        )
        self._assembler = Assembler(engine, self.post, self._start, self.boundary, self.stop)
        self._entry_sender = EntrySender(
            engine, self.core.state, self._send_later, self._start, self.boundary, self.stop
        )
        self.gate = DurabilityGate(self, engine, self.boundary)
        self.output = PeerOutput(self.core, engine, self.gate, self.plugins)
        self.peers = PeerIntake(self.core, engine, self.incarnations, self.plugins, self.output, self)
        self.callers: set[Caller] = set()  # the connections of HTTP clients
        self.publisher = Publisher(engine, self.core.state, limits.changes_bytes_max)
        self._inbox: deque[on.Event] = deque()
        # Clients' requests that wait for the core, except short writes.
        self._queued: FairQueue[on.Submitted] = FairQueue()
        # Clients' short writes that wait for the core; several of them can share a transaction.
        self._writes: FairQueue[on.Submitted] = FairQueue()
        self._requests = 0
        self._direct = DirectReads(self, self._start)
        self._strict = StrictReads(self, self._direct)
        self._reads = ReadsBeside(self, self._queued)
        self._loop.before_thread = self._reads.retry_waiting
        self.reports = Reports(self, credentials)
        latency, statements = self.reports.latency, self.reports.statements
        self.waiters = Waiters(engine.memory, latency, statements, self.faults, self._comparison.unpack)
        self._checkpoints = Checkpoints(engine, self.faults)
        self._groups = GroupTimer(lambda: self.core.state.commit_s, lambda: self.core.coordinator.command_groups.size)
        self._failed = False  # whether the loop has failed: in the middle of a step, or by damage
        self.is_leaving, self.http_calls = False, 0  # whether the node stops; how many HTTP requests run
        self._executions = Executions(self, self._groups)
        self._nursery: trio.Nursery | None = None

    def clock(self) -> on.Now:
        """Read the clocks."""
        return self._clocks.now()

    # -- the interface for sessions ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Begin the next turn as soon as possible."""
        self._loop.wake()

    def gather(self) -> None:
        """Delay turns until ``act``: the input of all links is read first; see ``TurnLoop.gather``."""
        self._loop.gather()
        self._direct.begin_turn()

    def read_links(self, read: Callable[[], None]) -> None:
        """Set the function that reads links before each turn."""
        self._loop.read = read

    def read_by(self, loop: ReadLoop) -> None:
        """Have a read loop read the links, take turns, and report the ends of syncs. Call this before ``run``."""
        loop.before, loop.after = self.gather, self.act
        self.read_links(loop.read_now)
        self.gate.fsync.report_to(loop)

    def begin(
        self,
        request: Request,
        done: Done,
        prepare: MakePrepared | None = None,
        *,
        once: bool = False,
        shares: bool = False,
        base: Vector | None = None,
        owner: object = None,
    ) -> None:
        """Run a command to its end, and call ``done``, which must not block or raise, with the answer.

        Args:
            prepare: executes the command in place of the engine.
            once: whether ``prepare`` returns the same result each time: the command cannot be executed on newer data.
            shares: whether the result of ``prepare`` may be merged with the transactions of other commands.
            base: the durable state that ``prepare`` has read, if the command is a strict read.
            owner: the link or other object that the request belongs to; the queue serves owners in turn. None: an owner
                without other requests.
        """
        try:
            self.engine.memory.check()
            if self.is_leaving and prepare is None:  # the COMMIT of an open transaction is still taken
                raise leaving()
        except (MemoryFullError, UnavailableError) as error:  # answered in the next turn, not inside this call
            self.gate.kept.replies.append(Waiter(0, request, done, answer=error))
            self._loop.wake()
            return
        if request.change is not None and depends_on_alive(request.change):
            self._start(self._begin_when_heard, request, done, owner)
            return
        # A read must not be answered before earlier requests of its owner.
        if prepare is None and not once and not self._queued.has(owner) and self._answer_directly(request, done, owner):
            return
        if base is not None and prepare is not None and self._strict.take_executed(request, done, prepare, base):
            self._loop.wake()
            return
        self._enqueue(request, done, prepare, once=once, shares=shares, owner=owner)

    async def _begin_when_heard(self, request: Request, done: Done, owner: object) -> None:
        await wait_for_alive(self.core, self.clock)
        self._enqueue(request, done, None, once=False, owner=owner)

    def _enqueue(
        self,
        request: Request,
        done: Done,
        prepare: MakePrepared | None,
        *,
        once: bool,
        owner: object,
        shares: bool = False,
    ) -> None:
        self._requests += 1
        request = as_part_of_trace(request)
        self.waiters.open[self._requests] = Waiter(self._requests, request, done, prepare, shares=shares, owner=owner)
        asked = on.Submitted(self._requests, request, once)
        queue = self._writes if self._executions.is_short_write(asked) else self._queued
        queue.put(self._requests if owner is None else owner, asked)
        self._loop.wake()
        if self.engine.batch.is_in_thread:
            self._reads.try_arrived()

    def _answer_directly(self, request: Request, done: Done, owner: object) -> bool:
        """Answer a short read from the last durable batch, or queue a strict read.

        Return False if the core has to answer the request.
        """
        if request.read == STRICT:
            is_queued = self._strict.take(request, done, owner)
            if is_queued:
                self._loop.wake()
            return is_queued
        began = time.monotonic()
        answer = self._direct.read(request)
        if answer is None:
            return False
        took_s = time.monotonic() - began
        self.reports.latency.observe(took_s)
        self.reports.statements.note_answer(request, answer, took_s, asked=True)
        done(answer)
        return True

    def enqueue_read(self, read: StrictRead) -> None:
        """Have the core answer a strict read."""
        self._enqueue(read.request, read.done, read.prepare, once=read.prepare is not None, owner=read.owner)

    def submit(
        self,
        request: Request,
        prepare: MakePrepared | None = None,
        *,
        once: bool = False,
        shares: bool = False,
        base: Vector | None = None,
    ) -> Submission:
        """Return an awaitable that calls ``begin`` with these arguments, and returns the answer of the command."""
        begin = partial(self.begin, request, prepare=prepare, once=once, shares=shares, base=base)
        return Submission(begin, partial(self._answer, request, begin))

    async def _answer(self, request: Request, begin: Callable[[Done], None]) -> Answer:
        found, over = list[Answer | BedrockishError](), trio.Event()

        def done(answer: Answer | BedrockishError) -> None:
            found.append(answer)
            over.set()

        begin(done)
        if not found:  # after a read that was answered at once, the caller itself has a checkpoint of trio soon
            try:
                await over.wait()
            except trio.Cancelled:
                if only_reads(request):  # a write goes on: its client may later ask for its outcome by its id
                    self.workers.stop_read(request.command)
                raise
        if isinstance(found[0], BedrockishError):
            raise found[0]
        return found[0]

    def end_reads(self, owner: object) -> None:
        """Stop the long reads of a client that has gone; its writes go on, because it may ask for their outcome."""
        for number, waiter in list(self.waiters.open.items()):
            if waiter.owner is owner and only_reads(waiter.request):
                self._stop(number, waiter)

    def cancel(self, owner: object, command: object) -> None:
        """Stop a command, or the running statement of an open transaction, whose caller no longer waits.

        A command goes on if its transaction may be at voters already, or if another call of the same link has sent it.
        """
        found = [
            (number, waiter)
            for number, waiter in self.waiters.open.items()
            if waiter.owner is owner and waiter.request.command == command and waiter.prepare is None
        ]
        if len(found) == 1:
            self._stop(*found[0])
        self.transactions.cancel(owner, command)

    def _stop(self, number: int, waiter: Waiter) -> None:
        waiter.is_abandoned = True  # the request is not executed, or not again after a conflict
        self.workers.stop_request(number)

    async def explain(self, statement: Statement, user: str, *, columns: bool = False) -> list[dict[str, Any]]:
        """Return the reads and writes of a text's statements; with ``columns``, the first statement's columns."""
        if not self.core.state.health.reads:
            raise UnavailableError(self.core.state.trouble)
        await self.boundary.wait_for_writer()
        explained = self._executions.explain(statement, user, columns=columns)
        found = await self.faults.stopping("explaining a statement", explained)
        await self.durable()
        return found

    async def durable(self) -> None:
        """Wait until every write so far is durable."""
        mark = trio.Event()
        self.gate.kept.marks.append(mark)
        self._loop.wake()
        await mark.wait()

    def status(self) -> dict[str, Any]:
        """Return this node's status."""
        return self.reports.status()

    def _compare_rows(self, transaction: Transaction) -> str | None:
        """Return how a transaction's old rows differ from ours: empty if equal, None while a thread compares them."""
        compare = (
            self.engine.entries.why_rows_differ if len(transaction.changes) <= LONG_BYTES else self._comparison.compare
        )
        return compare(transaction)

    def _ran_in_worker(self, request_id: int, found: Prepared | on.Overtaken | BedrockishError | None) -> None:
        """Pass on the outcome of a worker; None: the command has happened already, and the journal has the answer."""
        if isinstance(found, Prepared):
            self.waiters.count_prepared(request_id, found)
            self.post(on.Executed(request_id, found))
        elif isinstance(found, on.Overtaken):
            self.post(found)
        elif isinstance(found, BedrockishError):
            wants = isinstance(found, ClockNeededError)
            self.post(on.ClockWanted(request_id) if wants else on.Failed(request_id, found))
        else:
            self._executions.execute(request_id, 0, following := deque[on.Event]())
            for event in following:
                self.post(event)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _start(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task until the node ends."""
        assert self._nursery is not None
        self._nursery.start_soon(task, *arguments)

    def post(self, event: on.Event) -> None:
        """Queue an event for the next turn."""
        self._inbox.append(event)
        self._loop.wake()

    async def run(self) -> None:
        """Run the loop and the background tasks until cancelled.

        Raises:
            DamagedError: this node must stop.
        """
        try:
            await self._step_until_cancelled()
        except BaseException as error:
            # After a cancellation the last turn is complete, unless another task has failed as well.
            self._failed = self._loop.failure is not None or not is_cancellation(error)
            raise

    async def _step_until_cancelled(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.to_thread.run_sync(self.engine.sync)  # writes of a killed process may not be durable yet
            self.gate.count_all_durable()
            for action in self._perform(self.core.start(self._clocks.now())):
                await self._loop.run_in_thread(action)
            nursery.start_soon(self._loop.watch_time)  # wakes the loop when the core has work at a certain time
            memory = self.engine, self.config.limits, self.transactions, self.output, self.callers
            idle = self.engine, self.reports.latency
            shorten_log = partial(self._checkpoints.shorten_log, nursery)
            disk = self.config.database, self.core.state.health, shorten_log
            for what, watch in (
                ("watching open transactions", self.transactions.watch),
                ("watching background workers", self.workers.watch),
                ("shortening the journal", self.upkeep.watch),
                ("watching memory", partial(watch_memory, *memory)),
                ("freeing memory", partial(shrink_when_idle, *idle)),
                ("watching the disk", partial(watch_disk, *disk)),
                ("looking for troubles", partial(tell_troubles, self.status)),
                ("building beside tables", self.transactions.builds.watch),
                ("reading beside the writer", self._reads.run),
                ("publishing", self.publisher.beat),
                ("raising the cluster's level", partial(keep_level, self.core, self.submit)),
            ):
                nursery.start_soon(self.faults.keep_running, what, watch)
            nursery.start_soon(self._take_turns)

    async def _take_turns(self) -> None:
        """Take turns until the node ends, in a task of its own, so that waking it resumes no chain of callers."""
        with self.gate.fsync:
            await self._loop.run()

    def _has_work(self) -> bool:
        if self._inbox or self._queued.count or (self._writes.count and self._has_writes) or self._strict.is_due:
            return True
        return self.gate.has_work

    def _expects_company(self) -> bool:
        """Return whether more writes are likely to arrive soon that can share a transaction with the waiting ones."""
        is_likely = self._writes.count and (self._groups.answered_together > 1 or len(self.waiters.open) > 1)
        return bool(is_likely) and self._has_writes

    def _cycle(self) -> Turn:
        yield from self._turn()
        self.output.send_early()
        self.publisher.refresh()  # a node that has stopped serving publishes that before it writes another batch
        yield from self.gate.pass_on()

    @property
    def _has_writes(self) -> bool:
        """Whether to execute the waiting short writes now.

        Not while a sync runs: their answers would wait for the next sync anyway, and until then more writes arrive that
        can share a transaction.
        """
        return not self.gate.is_syncing and self._groups.is_due(self._writes.count)

    def _next_event(self, number: int) -> on.Event | None:
        """Return the next event, in rotation: from the inbox, from clients' requests, and from their short writes."""
        for place in range(number, number + 3):
            if place % 3 == 0 and self._inbox:
                return self._inbox.popleft()
            if place % 3 == 1 and self._queued.count:
                return self._queued.take()
            if place % 3 == 2 and self._writes.count and self._has_writes:
                return self._executions.take(self._writes)
        return None

    def _turn(self) -> Turn:
        """Step the core through the events that have arrived."""
        now = self._clocks.now()
        if self._own_values.unsaved:
            self._own_values.save()
        self.core.state.count_batches(self.engine.batch.number)
        until = time.monotonic() + TURN_S
        for number in range(min(len(self._inbox) + self._queued.count + self._writes.count, TURN_MAX)):
            event = self._next_event(number)
            if event is None:
                break
            if logger.isEnabledFor(logging.DEBUG):
                self.output.log(event)
            yield from self._perform(self.core.step(event, now))
            if time.monotonic() > until:
                break  # links, HTTP and answers should not wait longer, and ``now`` is too old for further events
        question = self._strict.question() if self._strict.is_due else None
        if question is not None:
            yield from self._perform(self.core.step(question, self._clocks.lately()))
        deadline = self.core.deadline()
        if deadline is not None and deadline <= now.seconds:
            yield from self._perform(self.core.step(on.Woken(), now))

    def _perform(self, effects: list[do.Effect]) -> Turn:
        """Perform the core's effects in order, and then step the core with the events that follow from them."""
        following: deque[on.Event] = deque()
        while True:
            for effect in effects:
                if self._is_long(effect):
                    yield partial(self._do, effect, following)
                else:
                    self._do(effect, following)
            if not following:
                return
            effects = self.core.step(following.popleft(), self._clocks.lately())

    def _is_long(self, effect: do.Effect) -> bool:
        """Return whether an effect takes so long that a thread should perform it."""
        if effect.__class__ is do.Apply:
            return self.engine.entries.is_long(effect.entry)
        return effect.__class__ is do.Activate  # an Activate may build an index, or have thousands of tables read again

    def _do(self, effect: do.Effect, following: deque[on.Event]) -> None:
        engine = self.engine
        match effect:
            case do.Send(peer, message, early):
                self.output.send(peer, message, early)
            case do.Persist(vote, parts):
                engine.votes.save(vote, parts)
            case do.SavePiece(digest, data):
                engine.votes.save_piece(digest, data)
            case do.DropPieces(digests):
                engine.votes.drop_pieces(digests)
            case do.Assemble():
                self._assembler.assemble(effect)
            case do.Forget(txid):
                engine.votes.drop(txid)
            case do.Apply(entry, repeat):
                try:
                    engine.apply(entry, repeat=repeat, applied_ms=self._clocks.lately().wall_ms)
                except DamagedError as error:
                    error.details = {**error.details, "txid": str(entry.txid)}
                    raise
                if entry.transaction.activates:
                    self.boundary.call(self.transactions.builds.check_batch)
                self.counts["commits"] += 1
                self.counts["commits_led"] += entry.leader == self.core.state.me
                self.counts["repeats"] += repeat
            case do.Execute(request_id, clock, group):
                self._executions.execute(request_id, clock, following, group)
            case do.Reply(request_id, answer):
                self.reply(request_id, answer)
            case do.NewerAnswered(number, may_exist):
                self._strict.answered(number, may_exist=may_exist)
            case do.Keep(name, value):
                engine.set_meta(name, value)
            case do.KeepHold(name, times, clock):
                engine.journal.save_hold(name, times, clock)
            case do.Activate(txid):
                following.append(on.Activated(txid, engine.activate(txid)))
                self.boundary.call(self.transactions.builds.check_batch)
            case do.SendEntries():
                self._entry_sender.send(effect)
            case do.SendOutcome(peer, txid):
                self._entry_sender.send_outcome(peer, txid)
            case do.SetMembers():
                self.output.set_members(self.incarnations, self._nursery)
            case do.Malformed(peer, reason):
                self.peers.reject(peer, reason)
            case do.Halt(reason):
                raise DamagedError(f"{reason}; this node stops: compare the journals with 'bedrockish journal verify'")
            case _:
                assert_never(effect)

    def reply(self, request_id: int, answer: Answer | BedrockishError) -> None:
        """Answer a request when everything written so far is durable."""
        waiter = self.waiters.open.pop(request_id, None)
        if waiter is not None:
            if request_id in self.workers.requests:
                answer = self.workers.end_job(request_id, answer)
            waiter.answer = answer
            self.waiters.hold(waiter, len(answer.results) if isinstance(answer, Answer) else 0)
            self.gate.kept.replies.append(waiter)

    def _send_later(self, peer: str, message: Message) -> None:
        """Send messages that were made outside of a step."""
        self.output.send(peer, message)
        self._loop.wake()

    # -- durability ------------------------------------------------------------------------------------------------

    def _deadline(self) -> float | None:
        """Return the time at which the loop has to take a turn even if no event arrives, or None."""
        gathered = self._groups.due_at() if self._writes.count and not self.gate.is_syncing else None
        return min(filter(None, (self.core.deadline(), self.gate.deadline, gathered)), default=None)

    def is_quiet(self) -> bool:
        """Return whether no other request or event waits for the loop."""
        return len(self.waiters.open) <= 1 and not (self._inbox or self._queued.count or self._writes.count)

    def before_flush(self) -> None:
        """Move the snapshot of direct reads to the last batch, just before the open batch is committed."""
        self._direct.before_flush()

    def flushed(self) -> None:
        """Count a batch, and begin the checkpoint that is due after it."""
        self.counts["batches"] += 1
        assert self._nursery is not None
        self._checkpoints.begin_if_due(self._nursery)

    def release(self, kept: HeldOutput) -> None:
        """Send kept output: the writes before it are durable."""
        self._groups.answered(len(kept.replies), self._writes.count)
        for waiter in kept.replies:  # before the messages: on one machine, other nodes would compete for the processors
            self.waiters.answered(waiter)
        mesh = self.output.mesh
        if mesh is not None:
            for peer, payloads in kept.messages.items():
                mesh.send_many(peer, payloads)
        for mark in kept.marks:
            mark.set()

    def synced(self, batches: int) -> None:
        """Record the number of durable batches, for each HELLO, and send the answers of reads that depend on them."""
        self.output.info["batches"] = batches
        if self._reads.unsynced:
            self._reads.synced(batches)

    # -- the end ---------------------------------------------------------------------------------------------------

    def refuse_new(self) -> None:
        """Refuse new requests, transactions and streams from now on; those under way go on."""
        self.is_leaving = self.transactions.is_leaving = True

    def is_busy(self, now_s: float) -> bool:
        """Return whether a request is unanswered, or a client is in the middle of a transaction or a stream."""
        return bool(self.waiters.open or self._strict) or self.gate.has_output or self.transactions.is_used(now_s)

    def give_up(self, numbers: Collection[int] | None = None) -> int:
        """Answer the open requests that cannot happen any more with an error; return how many others stay open.

        ``numbers``: the requests that may be refused; by default all.
        """
        for read in self._strict.give_up() if numbers is None else ():
            self.waiters.tell(read.request, read.done, leaving())
        for number, waiter in list(self.waiters.open.items()):
            if (numbers is None or number in numbers) and not self.core.coordinator.replies.may_happen(number):
                self.workers.end_job(number, leaving())
                del self.waiters.open[number]
                self.waiters.end(waiter, leaving())
        return len(self.waiters.open)

    def leave(self) -> None:
        """End running work, make its writes durable, store the last used clock as the ceiling, and answer all clients.

        After damage or a fault, nothing more is written, because some effects of the core's last step were not
        performed; an error here is then only logged, so that it does not hide the reason why the node ends.
        """
        try:
            self.workers.close()
            self.transactions.close()
            self._reads.close()
            self._direct.close()
            if not (self._failed or self.engine.batch.failed):
                self._own_values.save()
                self.incarnations.save()
                self.engine.set_meta("clock_ceiling", self.core.state.clock.value)
                self.engine.flush()
                self.engine.sync()
                for waiter in self.gate.last_replies():
                    self.waiters.answered(waiter)
        except Exception:
            if not self._failed:
                raise
            logger.exception("an error while the node was closing")
        if not self._failed:  # after a failure the core may be wrong about the requests that can still happen
            self.give_up()
        for waiter in list(self.waiters.open.values()):  # a copy: a client that is answered may ask again at once
            text = "the node is stopping; send the command again with its id, to another node"
            self.waiters.end(waiter, OutcomeUnknownError(text, command=waiter.request.command))
