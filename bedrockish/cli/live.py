"""The journal of a running node, read over the network through the ordinary client, in pages that take milliseconds.

Stale reads, which wait for nobody, and pages of bounded size: the node goes on as if it answered any other client.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bedrockish.client.blocking import Connection
from bedrockish.requests import STALE
from journal.errors import JournalError, JournalPrunedError
from journal.spark.files import PRIMARY_KEY, Ask, Span, Stored
from journal.spark.tables import Context

PAGE_BYTES = 1 << 20
PAGE_ROWS = 1_000
_NODE = "SELECT value FROM bedrockish_meta WHERE key = 'node'"
_FOUNDING = "SELECT value FROM bedrockish_meta WHERE key = 'bootstrap'"
_SIZES = """SELECT tick, length(label) + length(body) FROM bedrockish_journal
  WHERE leader = ? AND tick BETWEEN ? AND ? ORDER BY tick LIMIT ?"""
_ROWS = f"""SELECT {", ".join(Stored._fields)} FROM bedrockish_journal
  WHERE leader = ? AND tick BETWEEN ? AND ? ORDER BY tick"""


class NodeFeed:
    """A running node's journal, to be exported.

    Raises:
        BedrockishError: the node cannot be reached, or refuses.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._node = str(connection.execute(_NODE, read=STALE).value())
        founding = [row[0] for row in self.ask(_FOUNDING, ())]
        path = f"node {self._node}"
        self.context = Context(self._node, path, True, self._primary_key, founding[0] if founding else None)

    @property
    def ask(self) -> Ask:
        """Runs a query at the node."""
        return self._ask

    def _ask(self, sql: str, params: tuple[object, ...]) -> Iterable[Sequence[Any]]:
        asked: Any = [_NODE, (sql, params)]
        node, rows = self._connection.transact(asked, read=STALE)
        if node.value() != self._node:
            raise JournalError(
                f"node {self._node} does not answer any more, node {node.value()} does; export each from its own URL"
            )
        return rows.rows

    def _primary_key(self, table: str) -> list[str]:
        return [str(row[0]) for row in self.ask(PRIMARY_KEY, (table,))]

    def read(self, span: Span) -> Iterator[Stored]:
        """Yield all entries of a range of ticks, page by page.

        Raises:
            JournalPrunedError: the node does not hold them any more.
            JournalError: some are missing.
        """
        leader, low, high = span
        while low <= high:
            last = self._page(leader, low, high)
            rows = [Stored._make(row) for row in self.ask(_ROWS, (leader, low, last))]
            if [row.tick for row in rows] != list(range(low, last + 1)):
                raise JournalError(f"node {self._node} holds {len(rows)} entries from {leader}{low} to {leader}{last}")
            yield from rows
            low = last + 1

    def _page(self, leader: str, low: int, high: int) -> int:
        """Return where a page that begins at tick ``low`` ends; it has one entry, whatever the size of that."""
        size, last = 0, 0
        for tick, length in self.ask(_SIZES, (leader, low, high, PAGE_ROWS)):
            size += length
            if last == 0 and tick != low:
                raise JournalPrunedError(f"node {self._node}", leader, low, tick)
            if last and size > PAGE_BYTES:
                break
            last = tick
        if last == 0:
            raise JournalError(f"node {self._node} does not hold {leader}{low} any more; export from another node")
        return last
