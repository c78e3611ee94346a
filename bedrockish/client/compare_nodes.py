"""Compare the tables of running nodes, a range of keys at a time, for ``bedrockish verify`` and the scrub.

Each node takes a snapshot of its own. If the digests of a range are equal at all nodes, the range is done, even if the
nodes have applied different transactions. Otherwise each node is asked for the digest of each row of the range, and for
the rows of transactions that some nodes have not applied; all rows but these must be equal at all nodes.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cbor2
import trio

from bedrockish.errors import BedrockishError, ProtocolMismatchError, UnavailableError
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.verify.compare_rows import DifferingRow, alike, common, compare
from bedrockish_journal.verify.row_digests import Key, Range, RangeDigest, pack_range, unpack_digest

AskRange = Callable[[Range, Vector | None], Awaitable[RangeDigest]]
Order = Callable[[Mapping[str, Any]], Awaitable[Any]]  # sends an operator's command to a node; returns the answer
TRIES = 8  # the most comparisons of a range that transactions keep changing
RETRY_S = 0.25
SHOWN_MAX = 100  # the most differences that are listed


@dataclass
class ComparisonReport:
    """The result of a comparison."""

    nodes: list[str] = field(default_factory=list)  # the nodes that answered until the end of the comparison
    lost_nodes: dict[str, str] = field(default_factory=dict)  # the nodes that stopped answering, and why
    tables: int = 0  # number of compared tables
    rows: int = 0  # number of compared rows
    differences: list[DifferingRow] = field(default_factory=list)  # rows that differ, at most ``SHOWN_MAX``
    skipped: list[str] = field(default_factory=list)  # ranges of rows that could not be compared, and why
    uncompared: int = 0  # number of rows not compared, because transactions wrote them during each try


def ask_range(send: Order) -> AskRange:
    """Return a function that asks a node for the digest of a range."""

    async def ask(asked: Range, beyond: Vector | None) -> RangeDigest:
        try:
            return unpack_digest(await send({"do": "digest", **pack_range(asked, beyond)}))
        except ValueError as error:
            raise ProtocolMismatchError(str(error)) from error

    return ask


async def _no_pause(_rows: int) -> None:
    await trio.lowlevel.checkpoint()


class NodeComparison:
    """The comparison of the tables of some running nodes."""

    def __init__(
        self,
        nodes: Mapping[str, AskRange],  # by name, the function that asks the node for a range
        members: int,  # how many members the cluster has
        *,
        limit: int = 1_000,  # the number of rows in a range, at the node that sets the range's end
        # Called after each range with the number of its rows. It may wait, which limits the load.
        pause: Callable[[int], Awaitable[None]] = _no_pause,
        # The most tries for a range; 1 if a node applies nothing, because it would lack the same transactions again.
        tries: int = TRIES,
    ) -> None:
        self._nodes = dict(nodes)
        self._members, self._limit, self._pause, self._tries = members, limit, pause, tries
        self._unreadable: list[str] = []  # nodes that answer, but whose files can no longer be read
        self.report = ComparisonReport()

    async def run(self) -> ComparisonReport:
        """Compare the definitions and all tables; return the report.

        Raises:
            UnavailableError: fewer than two nodes answer.
        """
        report = self.report
        definitions = await self._compare(Range(""))
        if definitions is not None:
            listed = await self._ask(Range(""), {})
            names: set[str] = set()
            for one in listed.values():
                names |= {name for kind, name in map(cbor2.loads, one.rows) if kind == "table"}
            for name in sorted(names):
                await self._table(name)
                report.tables += 1
        report.nodes = sorted([*self._nodes, *self._unreadable])
        return report

    @property
    def _space_left(self) -> int:
        return max(0, SHOWN_MAX - len(self.report.differences))

    async def _table(self, name: str) -> None:
        after: Key | None = None
        while True:
            done = await self._compare(Range(name, after, limit=self._limit))
            if done is None or done.last is None:
                return
            after = done.last

    async def _compare(self, asked: Range) -> RangeDigest | None:
        """Compare a range at all nodes; return the first node's digest, None if no further range can be compared."""
        report = self.report
        answers = await self._ask_short_range(asked)
        while unreadable := [node for node, one in answers.items() if one.unreadable]:
            report.differences += compare(asked.table, answers, self._members).differences[: self._space_left]
            if len(self._nodes) - len(unreadable) < 2:
                return None
            # The files of these nodes cannot be read any more; the other nodes are compared.
            for node in unreadable:
                del self._nodes[node]
            self._unreadable += unreadable
            answers = await self._ask_short_range(asked)
        first = next(iter(answers.values()))
        if not alike(answers):
            upto = Range(asked.table, asked.after, first.last)
            left_open, why_not = 0, ""
            for attempt in range(self._tries):
                if attempt:
                    await trio.sleep(RETRY_S)
                answers = await self._ask(upto, common(answers))
                found = compare(asked.table, answers, self._members)
                left_open, why_not = found.open, found.why_not
                if found.differences or not (left_open or why_not):
                    report.differences += found.differences[: self._space_left]
                    break
            report.uncompared += left_open
            if why_not:
                what = f"{asked.table} after {asked.after}" if asked.table else "the definitions"
                report.skipped.append(f"{what}: {why_not}")
                if not asked.table:
                    return None
            if any(one.unreadable for one in answers.values()):
                return None  # a file became unreadable during this comparison; the report names it as a difference
        if asked.table:
            report.rows += first.count
            await self._pause(first.count)
        return first

    async def _ask_short_range(self, asked: Range) -> dict[str, RangeDigest]:
        """Ask all nodes for a range whose end the first node sets; if a node has far more rows in it, ask again with
        that node's end.
        """
        answers = await self._ask_with_end_of(next(iter(self._nodes)), asked)
        most = max(answers, key=lambda node: answers[node].count)
        if asked.limit and answers[most].count > 2 * asked.limit:
            return await self._ask_with_end_of(most, asked)
        return answers

    async def _ask_with_end_of(self, maker: str, asked: Range) -> dict[str, RangeDigest]:
        """Ask all nodes for a range whose end ``maker`` sets; the answer of ``maker`` comes first."""
        while True:
            try:
                end = await self._nodes[maker](asked, None)
            except BedrockishError as error:
                self._drop_node(maker, error)
                maker = next(iter(self._nodes))
            else:
                if end.unreadable:  # without an end, the others would read the whole rest of the table
                    return {maker: end}
                return {maker: end, **await self._ask(Range(asked.table, asked.after, end.last), None, but=maker)}

    async def _ask(self, asked: Range, beyond: Vector | None, but: str = "") -> dict[str, RangeDigest]:
        answers: dict[str, RangeDigest] = {}
        failed: dict[str, BedrockishError] = {}

        async def ask(node: str, call: AskRange) -> None:
            try:
                answers[node] = await call(asked, beyond)
            except BedrockishError as error:
                failed[node] = error

        async with trio.open_nursery() as nursery:
            for node, call in self._nodes.items():
                if node != but:
                    nursery.start_soon(ask, node, call)
        for node, error in failed.items():
            self._drop_node(node, error)
        return {node: answers[node] for node in self._nodes if node in answers}

    def _drop_node(self, node: str, error: BedrockishError) -> None:
        del self._nodes[node]
        self.report.lost_nodes[node] = error.message
        if len(self._nodes) < 2:
            raise UnavailableError(f"there are not two nodes to compare: {node}: {error.message}")
