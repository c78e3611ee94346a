"""The change feed over HTTP: a line of JSON for each transaction, or server-sent events, as fast as they are read.

A page is read when the page before it has been written, and writing waits for the reader. So a slow reader delays no
other reader.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from bedrockish.api.json_forms import read_pairs, write_json
from bedrockish.api.requests import STALE, Request, Statement, check_cluster, decode_results
from bedrockish.api.url import suggest
from bedrockish.client.request_builder import new_command
from bedrockish.errors import (
    BedrockishError,
    DamagedError,
    MemoryFullError,
    PrunedError,
    TooLargeError,
    UnavailableError,
    UsageError,
    pack_error,
)
from bedrockish.http.messages import HttpReply, HttpRequest, lines_reply
from bedrockish.node.rights import check_upkeep
from bedrockish.node.runtime import Runtime
from bedrockish.node.transactions.callers import Owner
from bedrockish_journal.feed.change_feed import (
    Committed,
    CursorError,
    Feed,
    FeedCursor,
    FeedPrunedError,
    FeedUnreadableError,
)
from bedrockish_journal.feed.json_form import as_data

LINES, EVENTS = "application/x-ndjson", "text/event-stream"
PAGE_ROWS = 100
POLL_S = 0.05
WAIT_S_MAX = 300  # the longest wait of a long poll; a proxy would end a longer one
IN_THREAD_VALUES = 2_000  # a transaction with this many values or more takes milliseconds, so a thread writes it
ALIVE_S = 10.0  # how often a waiting reader is sent its cursor, which shows that the node is alive
OPTIONS = ("after", "table", "follow", "wait", "limit", "hold")


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """The options of one request for the feed.

    Attributes:
        after: the cursor.
        tables: the tables whose changes are wanted; None: all tables.
        follow: whether to continue until the reader leaves.
        wait_s: the longest wait for the first transaction, in seconds.
        limit: the most transactions; 0: no limit.
        hold: name under which the journal after ``after`` is kept for this reader.
        as_events: whether to write server-sent events in place of lines.
    """

    after: str | None
    tables: Sequence[str] | None
    follow: bool
    wait_s: float
    limit: int
    hold: str | None
    as_events: bool


def read_asked(request: HttpRequest) -> FeedOptions:
    """Read the options of a request.

    Raises:
        UsageError: an option is wrong.
    """
    given: dict[str, str] = {}
    tables: list[str] = []
    for name, value in read_pairs(request.query):
        if name not in OPTIONS:
            raise UsageError(f"there is no option {name!r}; {suggest(name, OPTIONS)}")
        if name == "table":
            tables.append(value)
        elif name in given:
            raise UsageError(f"the option {name!r} is given twice; leave one out")
        else:
            given[name] = value
    as_events = EVENTS in request.headers.get("accept", "")
    follow = given.get("follow", "true" if as_events else "false")
    if follow not in ("true", "false"):
        raise UsageError(f"follow should be true or false, not {follow!r}")
    try:
        wait_s, limit = float(given.get("wait", "0")), int(given.get("limit", "0"))
    except ValueError:
        raise UsageError("wait should be a number of seconds, and limit a number of transactions") from None
    if not 0 <= wait_s <= WAIT_S_MAX or not 0 <= limit < 1 << 31:
        raise UsageError(f"wait should be 0 to {WAIT_S_MAX:g} seconds, and limit a number of transactions from 0")
    # A browser that connects again repeats the URL of its first request; the header names the last event it got.
    after = request.headers.get("last-event-id") or given.get("after") or None
    return FeedOptions(after, tables or None, follow == "true", wait_s, limit, given.get("hold"), as_events)


async def changes(node: Runtime, request: HttpRequest) -> HttpReply:
    """Return the feed as a reply. An error that occurs after the reply has begun is its last line.

    Raises:
        BedrockishError: the feed cannot be read after the cursor.
    """
    asked = read_asked(request)
    try:
        feed = Feed(asked.after, asked.tables)
    except CursorError as error:
        raise UsageError(str(error)) from error
    cluster_id = node.core.state.roster.membership.cluster_id
    if feed.cluster:
        check_cluster("the cursor", feed.cluster, cluster_id)
    feed.set_cluster(cluster_id)
    user = request.user
    if asked.hold is not None:
        check_upkeep(node.engine.access, {"do": "hold"}, user)
        await node.upkeep.hold(asked.hold, asked.after, release=False)
    reader = _Reader(node, feed, asked, request)
    first = await reader.page()
    kind = EVENTS if asked.as_events else LINES
    return lines_reply(reader.lines(first), kind)


Page = tuple[list[Committed], int]
"""Transactions, and how many bytes of memory they take, approximately."""


class _Reader:
    """The output of the feed to one reader."""

    def __init__(self, node: Runtime, feed: Feed, asked: FeedOptions, request: HttpRequest) -> None:
        self._node, self._feed, self._asked, self._request = node, feed, asked, request
        self._told = trio.current_time()
        self._left = asked.limit or -1
        self._owner = Owner(request.address)

    async def page(self) -> Page:
        """Return the next page; a transaction that is too large for a result is a page of its own, read as a stream.

        Raises:
            MemoryFullError: the node lacks memory for it at this moment; the caller can ask again later.
            BedrockishError: the feed cannot be read.
        """
        feed = self._feed
        try:
            try:
                page = (await self._node.submit(self._command(feed.question(PAGE_ROWS)))).results
            except MemoryFullError:
                raise
            except TooLargeError:
                return await self._large()
            return await trio.to_thread.run_sync(lambda: feed.take(decode_results(page)[0].rows)), len(page)
        except FeedPrunedError as error:
            raise PrunedError(str(error)) from error
        except FeedUnreadableError as error:
            raise DamagedError(str(error)) from error

    def _command(self, question: tuple[str, tuple[Any, ...]]) -> Request:
        return Request(new_command(), (Statement(*question),), STALE, user=self._request.user)

    async def _large(self) -> Page:
        """Return the next transaction, whose size ``result_bytes_max`` does not bound."""
        feed, memory = self._feed, self._node.engine.memory
        assert not memory.held(self)
        try:
            rows = await self._streamed(feed.question_of_one())
            if (question := feed.question_of_body(rows)) is not None:
                rows = feed.filled(rows, await self._streamed(question))
            return await trio.to_thread.run_sync(feed.take, rows), memory.held(self)
        finally:
            memory.hold(self, -memory.held(self))  # ``lines`` counts the page from here on

    async def _streamed(self, question: tuple[str, tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        streams, memory = self._node.transactions.streams, self._node.engine.memory
        stream = await streams.open(self._owner, self._command(question))
        rows: list[tuple[Any, ...]] = []
        try:
            more = True
            while more:
                encoded, more = await streams.fetch(stream)
                memory.hold(self, len(encoded))
                if memory.is_full:
                    raise memory.refusal("the next transaction of the feed needs more memory than there is now")
                rows += (await trio.to_thread.run_sync(decode_results, encoded))[0].rows
        finally:
            streams.end(stream, UnavailableError("the reader has gone"))
        return rows

    async def lines(self, first: Page) -> AsyncGenerator[bytes]:
        """Yield the lines or events for the reader page by page, and count the memory of each page until the next."""
        memory, (page, counted) = self._node.engine.memory, first
        memory.hold(self, counted)
        try:
            found = False
            until = trio.current_time() + self._asked.wait_s
            while True:
                for one in page:
                    found = True
                    line = await self._transaction(one)
                    memory.hold(self, len(line))  # the line counts until the reader has read it
                    yield line
                    memory.hold(self, -len(line))
                    self._left -= 1
                    if not self._left:
                        yield self._cursor_line(one.cursor)  # the rest of the page was not sent
                        return
                if self._feed.is_last:
                    if not self._asked.follow and (found or trio.current_time() >= until):
                        yield self._cursor_line()
                        return
                    await trio.sleep(POLL_S)
                    if trio.current_time() - self._told > ALIVE_S:
                        yield self._cursor_line()
                self._request.check_stay()
                page = []
                memory.hold(self, -memory.held(self))
                page, counted = await self.page()
                memory.hold(self, counted)
        except BedrockishError as error:
            yield self._line({"error": pack_error(error)}, None, "error")
        finally:
            memory.hold(self, -memory.held(self))

    async def _transaction(self, one: Committed) -> bytes:
        if sum(len(change.after or ()) + len(change.before or ()) for change in one.changes) < IN_THREAD_VALUES:
            return self._line(as_data(one), str(one.cursor))
        return await trio.to_thread.run_sync(lambda: self._line(as_data(one), str(one.cursor)))

    def _cursor_line(self, sent: FeedCursor | None = None) -> bytes:
        """Return a line with the reader's cursor: ``sent``, or the end of all pages read, omitted changes included."""
        place = sent or self._feed.cursor
        cursor = str(place) if place.clock else ""
        return self._line({"cursor": cursor, "safe": self._feed.safe}, cursor, "place")

    def _line(self, value: dict[str, Any], cursor: str | None, event: str = "") -> bytes:
        self._told = trio.current_time() if event else self._told
        data = write_json(value)
        if not self._asked.as_events:
            return data + b"\n"
        head = (f"event: {event}\n" if event else "") + (f"id: {cursor}\n" if cursor else "")
        return head.encode() + b"data: " + data + b"\n\n"
