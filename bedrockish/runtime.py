"""The node as a program: feeds the core with what happens, performs its effects, and lets nothing leave too early.

One loop. It takes what has arrived, lets the core step, does in one open SQLite transaction what the core asks, and
keeps the messages and answers that come of it. When no sync is running, the transaction is committed and one sync
begins, in a thread; when that returns, what was kept leaves. So all that arrives while a disk is busy shares the next
sync.
"""

import logging
import random
import secrets
import time
from collections import Counter, deque
from functools import partial
from typing import Any, assert_never

import trio

from bedrockish import __version__
from bedrockish.acquaintances import AMNESIA, OLDER_FILE, PREFIX, Acquaintances
from bedrockish.alarm import Alarm
from bedrockish.asides import Asides
from bedrockish.clocks import Clocks
from bedrockish.config import Config
from bedrockish.core import effects as do
from bedrockish.core.describe import describe_said
from bedrockish.core.events import (
    Accused,
    Activated,
    Answered,
    ClockWanted,
    Event,
    Executed,
    Failed,
    Now,
    PeerDown,
    PeerUp,
    Received,
    Submitted,
    Woken,
)
from bedrockish.core.messages import Entries, Gossip, Message, Outcome, decode, encode
from bedrockish.core.records import Prepared
from bedrockish.engine.clocks import ClockNeededError
from bedrockish.engine.engine import Engine
from bedrockish.errors import BedrockishError, DamagedError
from bedrockish.executing import Executions
from bedrockish.measuring import Histogram
from bedrockish.members import begin_on_file, judge, set_members
from bedrockish.plugins import Plugins
from bedrockish.recalling import recall
from bedrockish.requests import Answer, Request, Statement, Token
from bedrockish.status import describe_node
from bedrockish.syncing import Syncer
from bedrockish.transactions import Transactions
from bedrockish.upkeep import Upkeep, start_core
from bedrockish.waiting import Done, Kept, Prepare, Waiter, packed_entries
from bedrockish.watching import Watch
from journal.errors import EntryMalformedError
from net import mesh as net
from net.events import Hello

logger = logging.getLogger(__name__)

TURN_MAX = 512  # events that are taken before what they caused is made durable


class Runtime:
    """Drives one core with one engine and one mesh."""

    def __init__(self, engine: Engine, config: Config, plugins: Plugins | None = None) -> None:
        self.engine = engine
        self.config = config
        self.plugins = plugins or Plugins()
        self.counts: Counter[str] = Counter()
        self._clocks = Clocks(config.clock.wall_offset_ms)
        self.started = self._clocks.now().wall_ms / 1000
        self.core = start_core(engine, config, random.random, self._clocks.now())
        self.known = Acquaintances(engine.get_meta(PREFIX), engine.set_meta)
        limits = config.limits
        self.asides = Asides(engine, self.core, limits.asides_max, limits.command_ms_max / 1000, self._ran_aside)
        self.upkeep = Upkeep(self.core, engine, config, self._clocks, self._post, self.durable)
        self.transactions = Transactions(engine, self.core, self.submit, self.durable, limits, self.asides)
        # What peers are told when a link is opened; batches only once they are durable.
        self.info = {"version": __version__, **begin_on_file(engine, secrets.token_bytes(8))}
        self.info["plugins"] = self.plugins.tell()
        self.mesh: net.Mesh | None = None
        self.watch = Watch(self.core.state)
        self.latency = Histogram()
        self._inbox: deque[Event] = deque()
        self._wake = trio.Event()
        self._alarm = Alarm(self.core.deadline, time.monotonic, lambda: self._wake.set())
        self.waiters: dict[int, Waiter] = {}
        self._tickets = 0
        self._kept = Kept()
        self._syncer = Syncer(engine.sync)
        self.syncs = self._syncer.took
        self._syncing = False
        self._failure: BaseException | None = None
        self._executions = Executions(self)
        self._checkpointing = False
        self._nursery: trio.Nursery | None = None
        self._encoded: tuple[Message | None, bytes] = (None, b"")

    def clock(self) -> Now:
        """Read the clocks."""
        return self._clocks.now()

    # -- what sessions need ----------------------------------------------------------------------------------------

    def begin(self, request: Request, done: Done, prepare: Prepare | None = None, *, once: bool = False) -> None:
        """Run a command to its end and call ``done`` with the answer, which must not block or raise."""
        self._tickets += 1
        self.waiters[self._tickets] = Waiter(request, done, prepare)
        self._post(Submitted(self._tickets, request, once))

    async def submit(self, request: Request, prepare: Prepare | None = None, *, once: bool = False) -> Answer:
        """Run a command to its end; ``prepare`` executes it, if it is given, ``once`` if the same each time."""
        found: list[Answer | BedrockishError] = []
        over = trio.Event()

        def done(answer: Answer | BedrockishError) -> None:
            found.append(answer)
            over.set()

        self.begin(request, done, prepare, once=once)
        await over.wait()
        if isinstance(found[0], BedrockishError):
            raise found[0]
        return found[0]

    async def outcome(self, command: str) -> Answer | None:
        """Return the answer of a command that happened, as far as this node knows."""
        entry = self.engine.find_command(command)
        await self.durable()
        return None if entry is None else recall(self.engine, entry, command, Token())

    async def explain(self, statement: Statement, *, columns: bool = False) -> list[dict[str, Any]]:
        """Return what each statement of a text would read and write, or the ``columns`` of the first one's result."""
        told = await self._executions.explain(statement, columns=columns)
        await self.durable()
        return told

    async def durable(self) -> None:
        """Return when all that this node has written so far is durable."""
        mark = trio.Event()
        self._kept.marks.append(mark)
        self._wake.set()
        await mark.wait()

    def status(self) -> dict[str, Any]:
        """Return what this node says about itself."""
        counts, refused = self.counts + self.asides.counts, self.known.refused
        told = describe_node(
            self.core, self.engine, self.config, counts, self.mesh, refused, self._clocks.now(), self.started
        )
        told |= {"plugins": self.plugins.describe(), "asides": self.asides.describe(), **self.upkeep.status()}
        return {**told, "open_transactions": len(self.transactions), "open_streams": len(self.transactions.streams)}

    def events(self, after: int) -> dict[str, Any]:
        """Return what was lately said and heard."""
        return self.watch.read(after)

    def _ran_aside(self, ticket: int, found: Prepared | BedrockishError | None) -> None:
        """Go on with what ran aside; None: it has to run again."""
        if isinstance(found, Prepared):
            self._post(Executed(ticket, found))
        elif isinstance(found, ClockNeededError):
            self._post(ClockWanted(ticket))
        elif isinstance(found, BedrockishError):
            self._post(Failed(ticket, found))
        else:
            following: deque[Event] = deque()
            self._executions.execute(ticket, 0, following)
            for event in following:
                self._post(event)

    # -- the loop --------------------------------------------------------------------------------------------------

    def on_net(self, event: net.MeshEvent) -> None:
        """Take what the mesh tells."""
        match event:
            case net.PeerUp(node):
                logger.info("link to %s is up", node)
                self._post(PeerUp(node))
            case net.PeerDown(node, reason):
                logger.info("link to %s is down: %s", node, reason)
                self._post(PeerDown(node))
            case net.TurnedAway(node, code, reason):
                if code in (AMNESIA, OLDER_FILE) and self.core.state.joining is None:
                    logger.error("%s turns us away: %s", node, reason)
                    self._post(Accused(node, reason, for_good=code == OLDER_FILE))
            case net.Received(node, payloads):
                for payload in payloads:
                    try:
                        message = decode(payload)
                    except EntryMalformedError as error:
                        self.counts["malformed"] += 1
                        logger.warning("%s sent what is no message: %s", node, error)
                        continue
                    if isinstance(message, Gossip):
                        self.known.learn(node, message.store, message.batches)
                    self._post(Received(node, message))
            case _:
                assert_never(event)

    def judge(self, hello: Hello) -> None:
        """Turn a voter away that has forgotten what it promised; see ``members.judge``."""
        judge(self.core, self.known, hello)
        self.plugins.learn(hello.node, hello.info.get("plugins"))
        self._wake.set()  # what is remembered now has to be kept

    def _post(self, event: Event) -> None:
        self._inbox.append(event)
        self._wake.set()

    def _answered(self, ticket: int, answer: Answer | BedrockishError) -> None:
        self._post(Answered(ticket, answer))

    async def run(self) -> None:
        """Step until cancelled.

        Raises:
            DamagedError: this node must stop.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.to_thread.run_sync(self.engine.sync)  # what a killed process wrote may not be durable yet
            self._perform(self.core.start(self._clocks.now()))
            nursery.start_soon(self._alarm.run)
            nursery.start_soon(self.transactions.watch)
            nursery.start_soon(self.asides.watch)
            nursery.start_soon(self.upkeep.watch)
            with self._syncer:
                while self._failure is None:
                    self._turn()
                    self._let_go()
                    await self._next()
            raise self._failure

    async def _next(self) -> None:
        """Wait for something to do; always lets other tasks run."""
        if self._inbox:
            await trio.lowlevel.checkpoint()
            return
        self._wake = trio.Event()
        self._alarm.look()
        await self._wake.wait()

    def _turn(self) -> None:
        """Step the core through what has arrived."""
        now = self._clocks.now()
        self.core.state.batches = self.engine.batches
        for _ in range(min(len(self._inbox), TURN_MAX)):
            event = self._inbox.popleft()
            if self.watch.is_on:
                self.watch.note(event)
            if logger.isEnabledFor(logging.DEBUG):
                self._log(event)
            self._perform(self.core.step(event, now))
        deadline = self.core.deadline()
        if deadline is not None and deadline <= now.seconds:
            self._perform(self.core.step(Woken(), now))

    def _perform(self, effects: list[do.Effect]) -> None:
        """Do what the core asks, in order; what it has to be told of that, it is told afterwards."""
        following: deque[Event] = deque()
        while True:
            for effect in effects:
                self._do(effect, following)
            if not following:
                return
            effects = self.core.step(following.popleft(), self._clocks.lately())

    def _log(self, said: Event | do.Send) -> None:
        state = self.core.state
        logger.debug("%s", describe_said(state.me, self.engine.applied.get(state.me, 0), state.membership.nodes, said))

    def _do(self, effect: do.Effect, following: deque[Event]) -> None:
        engine = self.engine
        if self.watch.is_on:
            self.watch.note(effect)
        match effect:
            case do.Send(peer, message):
                self._send(peer, message)
            case do.Persist(vote):
                engine.save_vote(vote)
            case do.Forget(txid):
                engine.drop_vote(txid)
            case do.Apply(entry, repeat):
                engine.apply(entry, repeat=repeat, applied_ms=self._clocks.lately().wall_ms)
                self.counts["commits"] += 1
                self.counts["commits_led"] += entry.leader == self.core.state.me
                self.counts["repeats"] += repeat
            case do.Execute(ticket, clock, group):
                self._executions.execute(ticket, clock, following, group)
            case do.Reply(ticket, answer):
                self.reply(ticket, answer)
            case do.Admit(ticket, request):
                self.waiters[ticket] = Waiter(request, partial(self._answered, ticket))
                following.append(Submitted(ticket, request))
            case do.Keep(name, value):
                engine.set_meta(name, value)
            case do.KeepHold(name, times, clock):
                engine.journal.save_hold(name, times, clock)
            case do.Activate(txid):
                following.append(Activated(txid, engine.versions.activate(txid)))
            case do.SendEntries(peer, wants, limit):
                self._send(peer, Entries(packed_entries(engine, wants, limit), self.core.state.clock.value))
            case do.SendOutcome(peer, txid):
                entries = engine.find_txid(txid)
                leader, tick = entries[0].place if entries else ("", 0)
                if entries or txid > engine.journal.horizon:  # else it may be one of those that were removed
                    self._send(peer, Outcome(txid, bool(entries), leader, tick, self.core.state.clock.value))
            case do.SetMembers():
                if self.mesh is not None and self._nursery is not None:
                    set_members(self.mesh, self.core, self.known, self._nursery)
            case do.Halt(reason):
                raise DamagedError(f"{reason}; this node stops: compare the journals with 'bedrockish journal verify'")
            case _:
                assert_never(effect)

    def reply(self, ticket: int, answer: Answer | BedrockishError) -> None:
        """Answer a ticket, once what was written so far is durable."""
        waiter = self.waiters.pop(ticket, None)
        if waiter is not None:
            waiter.answer = self.asides.settle(ticket, answer)
            self._kept.replies.append(waiter)

    def _send(self, peer: str, message: Message) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            self._log(do.Send(peer, message))
        if self._encoded[0] is not message:  # the same message to several peers is encoded once
            self._encoded = (message, encode(message))
        self._kept.messages.setdefault(peer, []).append(self._encoded[1])

    # -- durability ------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Commit the open batch and begin a sync, or let what was kept leave if there is nothing to sync."""
        if self._syncing:
            return  # what has come since shares the next one
        wrote = self.engine.flush()
        self.transactions.at_boundary()
        self.asides.at_boundary()
        if not wrote:
            if self._kept:
                kept, self._kept = self._kept, Kept()
                self._release(kept)
            return
        self.counts["batches"] += 1
        kept, self._kept = self._kept, Kept()
        self._syncing = True
        assert self._nursery is not None
        self._syncer.start(partial(self._synced, kept, self.engine.batches))
        if self.engine.checkpoint_due and not self._checkpointing:
            self._checkpointing = True
            self._nursery.start_soon(self._checkpoint)

    def _synced(self, kept: Kept, batches: int, error: BaseException | None) -> None:
        self._failure = self._failure or error
        if error is None:
            self.info["batches"] = batches
            self._release(kept)
        self._syncing = False
        self._wake.set()

    def _release(self, kept: Kept) -> None:
        if self.mesh is not None:
            for peer, payloads in kept.messages.items():
                self.mesh.send_many(peer, payloads)
        for waiter in kept.replies:
            self.latency.observe(time.monotonic() - waiter.began)
            waiter.tell()
        for mark in kept.marks:
            mark.set()

    async def _checkpoint(self) -> None:
        try:
            await trio.to_thread.run_sync(self.engine.checkpoint)
        finally:
            self._checkpointing = False

    def leave(self) -> None:
        """Make durable what there is, and lower the clock's ceiling to what was really used."""
        self.asides.close()
        self.transactions.close()
        self.known.save()
        self.engine.set_meta("clock_ceiling", self.core.state.clock.value)
        self.engine.flush()
        self.engine.sync()
        for waiter in self.waiters.values():
            waiter.tell()
