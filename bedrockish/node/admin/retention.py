"""Settings that an operator may change while a node runs: whether its clock follows the wall, and the journal's length.

The journal is shortened from its beginning, by age and by size, a slice at a time between other work. Entries that a
member lacks, that a reader holds, or that the protocol may still ask for (twice the conflict window) are not removed.
"""

import gc
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from bedrockish.api.requests import check_cluster
from bedrockish.config.config import Config
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import ClockSet, Event, Held, Now, Shortened, Woken
from bedrockish.core.protocol.health import DISK_FULL
from bedrockish.core.replica.safe_time import RELEASED
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.engine.engine import Engine
from bedrockish.errors import UsageError
from bedrockish.node.scheduling.durability import Durable
from bedrockish.node.scheduling.system_clock import Clocks
from bedrockish_journal.feed.change_feed import FeedCursor, parse_cursor
from bedrockish_journal.model.clock import milliseconds, moved
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.model.transaction import Transaction

logger = logging.getLogger(__name__)

# Key in bedrockish_meta; its value is an operator's order: 1 to follow the wall, 0 to only count.
CLOCK_KEY = "cluster_clock"
LOOK_S = 10.0  # seconds between two checks of the journal's length
PACK_LOOK_S = 60.0  # seconds between two searches for entries that are old enough to be packed
PACKED_MS = 3_600_000  # entries younger than an hour are not packed
PACKING_S = 60.0  # packing runs at most this long before the journal's length and the file's size are checked again
PRUNING_S = 20.0  # the longest removal of entries by one call
PACK_REST = 4.0  # the pause after each pack, as a multiple of the pack's duration
SLICE, SLICE_BYTES = 200, 4 << 20  # entries removed at a time, and bytes of their bodies: some milliseconds
FREE_MAX, FREE_KEPT = 0.25, 0.1  # a file with more than FREE_MAX of its pages free shrinks, until FREE_KEPT are free
FREE_PAGES_MAX = 4_096  # up to this many free pages (16 MiB) are not worth the work
SHRINK_PAGES = 100  # pages that are returned to the disk at a time: some milliseconds
NAME_CHARACTERS_MAX = 100
COMMANDS_KEPT_MS = 7 * 24 * 3_600_000  # a command id is remembered for at least this long after it was made
HOLDS_MAX = 100
# Most names of readers. Released names are kept, too: an older message could restore the hold of a forgotten name.
HOLD_NAMES_MAX = 1_000


def follows_wall(engine: Engine) -> bool:
    """Return whether the clock follows the wall: it does, unless an operator has ordered that it only counts."""
    return engine.get_meta(CLOCK_KEY).get(CLOCK_KEY) != 0  # the order ``default`` of earlier releases has left None


def start_core(
    engine: Engine,
    config: Config,
    draw: Callable[[], float],
    now: Now,
    compare_rows: Callable[[Transaction], str | None],
) -> Node:
    """Return the core of a node, with the state that its file has."""
    follows = follows_wall(engine)
    # If the clock only counts, the age of entries is unknown: only the entries above settled time are read.
    recovered = engine.recover(config.timings.conflict_window_ms if follows else 0)
    gc.disable()  # the objects read here stay, and repeated collections would take as long as reading
    try:
        return Node(
            recovered,
            config.timings,
            draw,
            now,
            follows_wall=follows,
            lookups=FileLookups(
                find_command=engine.journal.command_txid,
                has_applied=engine.journal.has,
                find_places=engine.journal.places,
                conflicts=engine.journal.conflicts,
                compare_rows=compare_rows,
            ),
        )
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound up to which the journal may be removed."""

    clock: int  # the latest clock of an entry that may be removed
    held: dict[str, int] | None  # the last tick of each leader that may be removed; None if no ticks are held
    why: list[str]  # reasons why later entries are kept, as texts


class Upkeep:
    """Performs operators' orders at one node, and keeps its journal and its file short."""

    def __init__(
        self,
        core: Node,
        engine: Engine,  # has the node's file
        config: Config,  # the node's configuration at its start
        clocks: Clocks,  # the machine's clocks
        post: Callable[[Event], None],  # queues an event for the core
        durable: Durable,
    ) -> None:
        self._core, self._engine, self._config, self._clocks = core, engine, config, clocks
        self._post, self._durable = post, durable
        self.reports: list[Callable[[], dict[str, Any]]] = []  # further parts of the status
        # Further orders: ``do`` -> the function that performs it.
        self.orders: dict[str, Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {}
        self._pruning = trio.Lock()
        self._shortened = trio.Event()  # set when a part of the journal was removed
        engine.scope.tick, engine.scope.skip = self.tick, self.skip

    def tick(self) -> int:
        """Return a new value of the clock for a statement; its ceiling is durable before an answer can leave."""
        return self._raise_ceiling_for(self._core.tick(self._clocks.lately()))

    def skip(self, count: int) -> int:
        """Advance the clock by ``count`` values, which then belong to the caller; return the clock's new value."""
        clock = self._core.state.clock
        clock.adjust(clock.value + count)
        return self._raise_ceiling_for(clock.value)

    def _raise_ceiling_for(self, value: int) -> int:
        if value > self._core.state.clock.ceiling:
            self._post(Woken())  # the next step of the core stores a higher ceiling
        return value

    def status(self) -> dict[str, Any]:
        """Return the part of the node's status about its clock and its journal."""
        state = self._core.state
        holds = {name: clock for name, (_, clock) in state.holds.items() if clock != RELEASED}
        return {
            "cluster_clock": "on" if state.clock.follows_wall else "off",
            "clock_ahead_ms": milliseconds(state.clock.value) - state.clock.wall_ms,
            "closing_lag_ms": round(1000 * state.clock.lag.seconds),
            "journal": {"removed": dict(state.timelines.removed), "holds": holds},
            **{name: value for report in self.reports for name, value in report().items()},
        }

    async def handle(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Perform an operator's order; see the methods for each ``do``.

        Raises:
            UsageError: the order is unknown, or its arguments are wrong.
        """
        match asked.get("do"):
            case "clock":
                return await self.set_clock(asked.get("set"))
            case "hold":
                return await self.hold(asked.get("name"), asked.get("after"), release=asked.get("release") is True)
            case "prune":
                age, size = _number(asked, "older_than_s"), _number(asked, "larger_than_mb")
                return await self.prune(age, size, force=asked.get("force") is True)
            case other:
                order = self.orders.get(str(other))
                if order is None:
                    known = ", ".join(["clock", "hold", "prune", *sorted(self.orders)])
                    raise UsageError(f"there is no upkeep {other!r}; there is {known}")
                return await order(asked)

    # -- the clock -------------------------------------------------------------------------------------------------

    async def set_clock(self, to: object) -> dict[str, Any]:
        """Make the clock follow the wall (``on``) or only count (``off``), also after restarts; None only asks."""
        if to not in (None, "on", "off"):
            raise UsageError(f"the clock can be set to on or off, not {to!r}")
        await self._reach_writer()
        if to is not None:
            on = to == "on"
            self._engine.set_meta(CLOCK_KEY, int(on))
            logger.warning("the cluster's clock %s from now on", "follows the wall" if on else "only counts")
            self._post(ClockSet(on))
            await self._until_durable()
        on = follows_wall(self._engine)
        return {"node": self._core.state.me, "cluster_clock": "on" if on else "off"}

    # -- the journal -----------------------------------------------------------------------------------------------

    async def hold(self, name: object, after: object, *, release: bool) -> dict[str, Any]:
        """Hold the journal after a cursor for a reader, or release it; gossip tells all nodes."""
        await self._reach_writer()
        state = self._core.state
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise UsageError(f"a reader's name should be a text of 1 to {NAME_CHARACTERS_MAX} characters")
        live = sum(at != RELEASED for other, (_, at) in state.holds.items() if other != name)
        if not release and live >= HOLDS_MAX:
            raise UsageError(f"{live} readers hold the journal, which is the limit; release one that is gone")
        if name not in state.holds and len(state.holds) >= HOLD_NAMES_MAX:
            raise UsageError(
                f"{name}: readers have used {HOLD_NAMES_MAX} names, which is the limit; use one of these names again"
            )
        if after is not None and not isinstance(after, str):
            raise UsageError("a reader's position should be a cursor of the feed, as text")
        try:
            cursor = parse_cursor(after)
        except JournalError as error:
            raise UsageError(str(error)) from error
        if cursor.cluster:
            check_cluster("the cursor", cursor.cluster, state.roster.membership.cluster_id)
        removed = FeedCursor(*self._engine.journal.horizon)
        if not release and cursor < removed:
            raise UsageError(f"the journal begins after {removed} already; begin with a copy of the tables")
        self._post(Held(name, None if release else cursor.clock))
        await self._durable()
        return {"node": state.me, "holds": self.status()["journal"]["holds"]}

    def bound(self, clock: int, *, force: bool) -> Bound:
        """Return the bound, at most ``clock``, up to which the journal may be removed."""
        state, why = self._core.state, list[str]()
        if not state.clock.follows_wall:
            return Bound(0, None, ["the clock only counts, so the age of an entry is unknown"])
        needed = moved(state.clock.safe, -2 * state.settings.conflict_window_ms)
        if needed < clock:
            clock = needed
            why.append("other nodes may still request entries of the last minutes before safe time")
        scheduled = state.schema.scheduled
        if scheduled is not None and scheduled.txid.clock <= clock:  # the change is going to be run from its entry
            clock = scheduled.txid.clock - 1
            why.append("a change of the schema is not in force yet")
        if force:
            return Bound(clock, None, why)
        for name, (_, at) in sorted(state.holds.items()):
            if at != RELEASED and at <= clock:
                clock = at - 1
                why.append(f"reader {name} has read up to {at}")
        held: dict[str, int] | None = None
        for node, peer in sorted(state.roster.peers.items()):
            if any(peer.applied.get(leader, 0) < tick for leader, tick in state.timelines.applied.items()):
                why.append(f"node {node} has not reported all entries that are here")
            if held is None:
                held = dict(peer.applied)
            held = {leader: min(tick, peer.applied.get(leader, 0)) for leader, tick in held.items()}
        return Bound(clock, held, why)

    async def prune(self, older_than_s: float | None, larger_than_mb: float | None, *, force: bool) -> dict[str, Any]:
        """Remove entries that are too old, and the oldest entries while the journal is too large; return a report.

        A call ends after ``PRUNING_S``, or soon after it gets its turn, so that an operator gets its answer in time.

        Args:
            older_than_s: the limit of age in seconds, by the cluster's clock; None for no limit.
            larger_than_mb: the limit of the size of labels and transactions, in millions of bytes; None for no limit.
            force: also remove entries that a member or a reader still needs; such a member must then be refilled.
        """
        ends = trio.current_time() + PRUNING_S
        async with self._pruning:
            await self._reach_writer()
            journal, state = self._engine.journal, self._core.state
            clock = 0
            if older_than_s is not None:
                clock = journal.aged(moved(state.clock.value, -int(1000 * older_than_s)))
            if larger_than_mb is not None:
                size = journal.size
                if size.bytes > 1_000_000 * larger_than_mb:
                    clock = max(clock, journal.clock_at(1 - 1_000_000 * larger_than_mb / size.bytes))
            bound = self.bound(clock, force=force)
            upto = journal.plan(bound.clock, bound.held) if bound.clock > 0 else {}
            removed = await self._remove(upto, ends)
            gone = journal.removed
            more = any(gone.get(leader, 0) < tick for leader, tick in upto.items())
            await self._forget_commands(ends)
        if removed:
            self._shortened.set()
            places = " ".join(f"{leader}{min(tick, gone.get(leader, 0))}" for leader, tick in sorted(upto.items()))
            logger.info("removed %d entries of the journal, up to %s", removed, places)
        why = [*bound.why, f"{PRUNING_S:g} s were over: give the order again"] if more and removed else bound.why
        told = {"node": state.me, "removed": removed, "upto": upto, "kept": why, "entries": journal.size.entries}
        return {**told, "more": more}  # more: whether the order has to be repeated

    async def _reach_writer(self) -> None:
        """Wait until no thread has the writer; using the writer earlier would block the loop and all links."""
        while self._engine.batch.is_in_thread:
            await self._durable()

    async def _until_durable(self) -> None:
        """Wait until all writes are durable, and then until no thread has the writer."""
        await self._durable()
        await self._reach_writer()

    async def _remove(self, upto: Mapping[str, int], ends: float) -> int:
        journal = self._engine.journal
        first = gone = journal.removed
        while any(gone.get(leader, 0) < tick for leader, tick in upto.items()):
            journal.remove(upto, SLICE, SLICE_BYTES)
            before, gone = gone, journal.removed
            if gone == before:
                break  # the removal has reached a pack that cannot be read
            self._post(Shortened(gone))
            await self._until_durable()
            if trio.current_time() >= ends:
                break
        return sum(gone.values()) - sum(first.values())

    async def _forget_commands(self, ends: float) -> None:
        """Delete the ids of removed commands that are too old to be sent again; the next call deletes the rest."""
        now_ms = min(milliseconds(self._core.state.clock.safe), self._core.state.clock.wall_ms)
        while self._engine.journal.forget_commands(now_ms - COMMANDS_KEPT_MS, SLICE) == SLICE:
            await self._until_durable()
            if trio.current_time() >= ends:
                break

    async def pack(self) -> bool:
        """Pack the journal's old entries, a few hundred at a time with a rest after each; return whether more are left.

        Packed entries are below safe time, and older than any that the protocol needs quickly; a reader gets them
        unpacked.
        """
        state = self._core.state
        if not state.clock.follows_wall or DISK_FULL in state.health.alarms:
            return False  # no entry has a known age, or the rest of the disk is reserved for decided entries
        oldest = max(0, moved(state.clock.safe, -max(PACKED_MS, 2 * state.settings.conflict_window_ms)))
        ends = trio.current_time() + PACKING_S
        while True:
            began = trio.current_time()
            async with self._pruning:  # so that the entries are not removed while they are packed
                await self._reach_writer()
                run = self._engine.journal.next_run(oldest)
                if run is None:
                    return False
                pack = await trio.to_thread.run_sync(run.pack)
                await self._reach_writer()
                if pack is None:
                    logger.error("entries of %s from %d on: packing and unpacking changes them", run.leader, run.first)
                else:
                    self._engine.journal.pack(pack)
            await self._durable()
            if trio.current_time() >= ends:
                return True
            await trio.sleep(PACK_REST * (trio.current_time() - began))

    async def give_back(self) -> int:
        """Return the file's free pages to the disk, if there are many; return their number.

        A tenth of the file stays free for later writes: a file that shrinks to the last page has to grow again.
        """
        journal, given = self._engine.journal, 0
        await self._reach_writer()
        room = journal.room
        if not room.can_shrink or room.free <= max(FREE_PAGES_MAX, FREE_MAX * room.pages):
            return 0
        while room.free > max(FREE_PAGES_MAX // 2, FREE_KEPT * room.pages):
            async with self._pruning:  # a prune may come in between: a large file shrinks for minutes
                await self._reach_writer()
                journal.shrink(SHRINK_PAGES)
                await self._until_durable()
                before, room = room, journal.room
            if room.free >= before.free:
                break  # other writes free pages as fast as pages are returned
            given += before.free - room.free
        logger.info("gave %d free pages of the file back to the disk; %d free pages are left", given, room.free)
        return given

    async def watch(self) -> None:
        """Prune and pack the journal as configured, and shrink the file when many pages are free, until cancelled."""
        settings, pack_at = self._config.journal, trio.current_time()
        while True:
            self._shortened = trio.Event()
            with trio.move_on_after(LOOK_S):
                await self._shortened.wait()
            while settings.journal_prune:  # to the end: else ``pack`` would pack entries that are removed next
                told = await self.prune(60 * settings.journal_keep_minutes, settings.journal_keep_mb, force=False)
                if not (told["more"] and told["removed"]):
                    break
            if trio.current_time() >= pack_at and not await self.pack():
                pack_at = trio.current_time() + PACK_LOOK_S
            await self.give_back()


def _number(asked: Mapping[str, Any], name: str) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
        raise UsageError(f"{name} should be a number from 0, not {value!r}")
    return float(value)
