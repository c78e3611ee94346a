"""The scrub: a node compares its tables with those of other nodes in the background, and finds rows that differ."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

from bedrockish.api.url import parse_address
from bedrockish.api.wire import UPKEEP, Ask
from bedrockish.client.compare_nodes import AskRange, ComparisonReport, NodeComparison, Order, ask_range
from bedrockish.client.credentials import ClientCredentials
from bedrockish.config.config import Config
from bedrockish.core.node import Node
from bedrockish.core.protocol.health import Mode
from bedrockish.engine.engine import Engine
from bedrockish.engine.storage import refill
from bedrockish.errors import BedrockishError, DamagedError, UnavailableError, UsageError
from bedrockish.node.cluster.join import calls
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.verify.compare_rows import DifferingRow
from bedrockish_journal.verify.replay import Prepare
from bedrockish_journal.verify.row_digests import Range, RangeDigest, pack_digest, unpack_range
from bedrockish_net.events import Hello

logger = logging.getLogger(__name__)

FIRST_S = 10.0  # seconds from the start of a node to its first comparison
EVERY_S = 3600.0  # seconds from the beginning of a comparison to that of the next one
AGAIN_S = 30.0  # seconds before the next attempt if no other node has answered
RANGE_ROWS = 500
DOUBT_S = 1.0  # seconds between two checks for a transaction whose before-images differ from this voter's rows
ORDER_S = 5.0  # the least time between two comparisons by order
REST = 4  # the least pause after a range, as a multiple of its duration: a small table takes long for its few rows


@asynccontextmanager
async def peer_calls(
    core: Node, config: Config, entry: ClientCredentials, nodes: list[str]
) -> AsyncIterator[dict[str, Order]]:
    """Open links to the members that can be reached, and yield, for each member, a function that sends it orders."""
    members = core.state.roster.membership.members
    async with AsyncExitStack() as stack:
        found: dict[str, Order] = {}
        for node in nodes:
            address = parse_address(members[node].address, where=f"member {node}")
            hello = Hello(f"repair-{config.node}", config.cluster, "client")
            try:
                call = await stack.enter_async_context(calls(address, hello, entry))
            except BedrockishError as error:
                logger.debug("%s cannot be asked: %s", node, error)
                continue
            found[node] = _one_at_a_time(node, call)
        yield found


def _one_at_a_time(node: str, call: Callable[[Ask], Awaitable[Any]]) -> Order:
    lock = trio.Lock()

    async def ask(asked: Mapping[str, Any]) -> Any:
        async with lock:
            with trio.move_on_after(60.0):
                return await call(Ask(1, UPKEEP, asked=asked))
        raise UnavailableError(f"{node} does not answer")

    return ask


class Pace:
    """The pace of a scrub: a limit of rows per second, and at most a fifth of the time at work.

    A range takes longer while the node or its disk is busy with requests, so the scrub rests longer then.
    """

    def __init__(self, rows_per_second: int) -> None:
        self._rows_per_second = rows_per_second
        self._rested_at = trio.current_time()

    async def rest(self, rows: int) -> None:
        """Rest after a range with this number of rows."""
        took = trio.current_time() - self._rested_at
        await trio.sleep(max(rows / self._rows_per_second, REST * took))
        self._rested_at = trio.current_time()


class Scrubber:
    """Compares one node's tables with those of other nodes, and answers the comparisons of others."""

    def __init__(
        self,
        core: Node,
        engine: Engine,
        config: Config,  # has the pace
        credentials: Callable[[], ClientCredentials],  # returns this node's credentials for links to other members
        prepare: Prepare,  # registers the plugins' additions with a connection
        damaged: Callable[[DamagedError], None],  # called when this node's rows differ from those of most nodes
    ) -> None:
        self._core, self._engine, self._config, self._credentials = core, engine, config, credentials
        self._prepare, self._damaged = prepare, damaged
        self._limiter = trio.CapacityLimiter(1)
        self._replays = trio.CapacityLimiter(1)  # replays take long, and must not delay the digests for other nodes
        self._wake = trio.Event()
        self._ordered_at = -ORDER_S
        self.found: list[str] = []  # the result of the last comparison, as text
        self.on_hurry: Callable[[], None] = lambda: None  # called when a comparison begins by order
        self._last: dict[str, Any] = {"passes": 0, "rows": 0, "seconds": None, "nodes": []}

    # -- answering -------------------------------------------------------------------------------------------------

    async def digest(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the order ``digest``: return the digest of this node's rows in a range.

        Raises:
            UsageError: the order does not name a valid range.
        """
        try:
            what, beyond = unpack_range(asked)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return pack_digest(await self.digest_here(what, beyond))

    async def digest_here(self, asked: Range, beyond: Vector | None) -> RangeDigest:
        """Return the digest of this node's rows in a range, as of its last batch."""
        read = self._engine.background.digest_range
        return await trio.to_thread.run_sync(read, asked, beyond, limiter=self._limiter)

    async def start_now(self, _asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the order ``scrub``: begin a comparison now."""
        if trio.current_time() - self._ordered_at > ORDER_S:  # two nodes that order each other must not do so for ever
            self._ordered_at = trio.current_time()
            self._wake.set()
            self.on_hurry()
        return {"node": self._core.state.me}

    def status(self) -> dict[str, Any]:
        """Return the part of the node's status about the scrub."""
        return {"scrub": {**self._last, "differences": list(self.found)}}

    # -- comparing -------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Compare the tables again and again, until cancelled: at the configured pace, or at once by order or doubt."""
        told, state = self._config.repair, self._core.state
        wait_s = FIRST_S if told.scrub_rows_per_second else float("inf")
        while state.health.reads:
            doubts = state.doubts
            await self._wait(wait_s)
            hurried, self._wake = self._wake.is_set() or state.doubts > doubts, trio.Event()
            if len(state.roster.membership.members) < 2:
                continue  # the only member of a cluster has no other tables to compare with
            began = trio.current_time()
            try:
                paced = {} if hurried else {"pause": Pace(told.scrub_rows_per_second).rest}
                report = await self.compare(self._serving(), **paced)
                await self._judge(report, trio.current_time() - began)
            except BedrockishError as error:
                logger.info("the tables could not be compared: %s", error.message)
                wait_s = min(wait_s, AGAIN_S)
                continue
            next_s = max(1.0, began + EVERY_S - trio.current_time())
            wait_s = next_s if told.scrub_rows_per_second else float("inf")

    async def _wait(self, seconds: float) -> None:
        """Wait for the next comparison's time, an order, or a transaction whose before-images differ from our rows."""
        doubts = self._core.state.doubts
        with trio.move_on_after(seconds):
            while self._core.state.doubts == doubts and not self._wake.is_set():
                with trio.move_on_after(DOUBT_S):
                    await self._wake.wait()

    def _serving(self) -> list[str]:
        return [node for node, peer in self._core.state.roster.peers.items() if peer.up and peer.mode < Mode.DAMAGED]

    async def compare(self, nodes: list[str], **options: Any) -> ComparisonReport:
        """Compare this node's tables with the tables of other nodes.

        Raises:
            UnavailableError: no other node can be asked.
        """
        state = self._core.state
        async with peer_calls(self._core, self._config, self._credentials(), nodes) as links:
            asks: dict[str, AskRange] = {state.me: self.digest_here}
            asks |= {node: ask_range(call) for node, call in links.items()}
            if len(asks) < 2:
                raise UnavailableError("no other node can be asked")
            members = len(state.roster.membership.members)
            return await NodeComparison(asks, members, limit=RANGE_ROWS, **options).run()

    async def _judge(self, report: ComparisonReport, seconds: float) -> None:
        me, found = self._core.state.me, report.differences
        self.found = [str(one) for one in found]
        passes = self._last["passes"] + 1
        self._last = {"passes": passes, "rows": report.rows, "seconds": round(seconds, 1), "nodes": report.nodes}
        for one in found:
            logger.error("the nodes differ: %s", one)
        if not found:
            return
        others = {node for node in report.nodes if node != me}
        right, _ = await self.fits_journal()
        if right is None:  # the journal is not whole: a majority decides which rows are right
            mine = [one for one in found if me in one.minority]
            others &= {node for one in found for node in one.minority or one.nodes}
        else:
            mine = [] if right else found
        if mine:
            self._damaged(differs(me, mine[0]))
            return
        async with peer_calls(self._core, self._config, self._credentials(), sorted(others)) as links:
            for call in links.values():
                await call({"do": "scrub"})  # the damaged node compares, too, and then repairs itself

    async def fits_journal(self) -> tuple[bool | None, str]:
        """Return whether the tables equal a replay of this node's journal (None: the journal is not whole), and why."""
        try:
            fits = await trio.to_thread.run_sync(
                refill.fits_journal,
                self._config.database,
                self._prepare,
                # The replay takes minutes, and the end of the node must not wait for it.
                trio.from_thread.check_cancelled,
                limiter=self._replays,
            )
        except refill.NotWholeError as error:
            return None, str(error)
        except JournalError as error:
            logger.error("the journal of this node is damaged: %s", error)
            return False, f"its own journal is damaged: {error}"
        except DamagedError as error:
            logger.error("the tables of this node cannot be read: %s", error.message)
            return False, error.message
        return fits, "" if fits else "its tables differ from a replay of its own journal"


def differs(me: str, found: DifferingRow) -> DamagedError:
    """Return the error with which a node stops serving tables that differ from those of most nodes."""
    return DamagedError(f"node {me} is damaged: {found}", table=found.table, key=found.key)
