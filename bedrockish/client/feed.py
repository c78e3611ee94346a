"""The change feed for applications: an iterator over all committed transactions, resumable after a cursor."""

import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from bedrockish.api.requests import SESSION, STALE
from bedrockish.client.blocking import Connection, SocketClient
from bedrockish.client.in_thread import run
from bedrockish.client.trio_client import Client
from bedrockish.common.pauses import monotonic
from bedrockish.errors import (
    BedrockishError,
    DamagedError,
    MemoryFullError,
    OutcomeUnknownError,
    PrunedError,
    TooLargeError,
    UnavailableError,
    UsageError,
)
from bedrockish_journal.feed.change_feed import Committed, CursorError, Feed, FeedPrunedError, FeedUnreadableError

PAGE_ROWS = 200
POLL_S = 0.1
HOLD_S = 10.0  # how often a reader reports its cursor
HOLD_TIMEOUT_S = STATUS_TIMEOUT_S = 5.0
SILENT_S = 60.0  # how long safe time may stop before the feed raises an error
SILENT_NODES = 6  # number of nodes that the feed asks in turn before it raises an error


def _feed(after: str | None, tables: Collection[str] | None) -> Feed:
    try:
        return Feed(after, tables)
    except CursorError as error:
        raise UsageError(str(error)) from error


def _transactions_in(feed: Feed, rows: Sequence[tuple[Any, ...]]) -> list[Committed]:
    try:
        return feed.take(rows)
    except FeedPrunedError as error:
        raise PrunedError(str(error)) from error
    except FeedUnreadableError as error:
        raise DamagedError(str(error)) from error


def is_retried(error: BedrockishError) -> bool:
    """Return whether a reader with ``follow`` repeats a read or a report, both harmless, after an error."""
    return error.retry or isinstance(error, OutcomeUnknownError)


class _Progress:
    """Watches whether safe time advances, as it should every second, even if no transaction is committed.

    Safe time stops at a node that is cut off from the majority, and at all nodes without a majority. So the reader
    asks another node. If safe time has stopped there, too, the reader gets an error, because it cannot tell whether
    there were commits.
    """

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._safe = 0
        self._advanced_at = self._changed_node_at = monotonic()
        self._error: BedrockishError | None = None

    def note_page(self, feed: Feed) -> None:
        """Record the safe time of the page that a node has sent."""
        if feed.safe > self._safe:
            self._safe, self._advanced_at, self._error = feed.safe, monotonic(), None

    def note_failure(self, error: BedrockishError) -> None:
        """Record the error of a read, or of a report of the cursor, for the error that the reader may get."""
        self._error = error

    def is_node_silent(self) -> bool:
        """Return whether safe time has stopped at this node, so the reader asks another; True restarts the wait."""
        now = monotonic()
        if now - max(self._advanced_at, self._changed_node_at) <= self._silent_s / SILENT_NODES:
            return False
        self._changed_node_at = now
        return True

    def is_silent(self) -> bool:
        """Return whether safe time has stopped for too long, at all nodes that were asked."""
        return monotonic() - self._advanced_at > self._silent_s

    def raise_if_silent(self, status: Mapping[str, Any] | None) -> None:
        """Raise an error because safe time has stopped, unless the cluster's clock is off and only commits advance it.

        ``status``: a node's status, None if no node answers.

        Raises:
            UnavailableError: safe time should have advanced.
        """
        if status is not None and self._error is None and status.get("cluster_clock") == "off":
            self._advanced_at = monotonic()
            return
        why = self._error.message if self._error is not None else "safe time does not advance at any node"
        raise UnavailableError(
            f"the feed has not advanced for {self._silent_s:g} s: {why}; continue after the last cursor later"
        )


class Changes:
    """An asynchronous iterator over all committed transactions up to safe time, each once, in order of (clock, leader).

    At most one page is read ahead of the reader. If a node dies, the feed continues at another node; no transaction is
    missed or repeated. Keep ``str(transaction.cursor)`` to resume later, at any node. The class is an iterator, not a
    generator, so a loop that ends early leaves nothing to close.

    Args:
        client: an open client.
        after: the cursor after which to resume; None for the beginning.
        tables: the tables whose changed rows are returned, besides changes of the schema and the members; None for all.
        follow: wait for further transactions; otherwise stop at the present safe time.
        hold: a name for this reader, under which the nodes keep the journal from the page that it has requested last;
            see ``Client.hold``.
        silent_s: how long safe time may stop, in seconds, before a reader with ``follow`` gets an error.

    Raises:
        UsageError: ``after`` is not a cursor.
        ForeignClusterError: ``after`` is a cursor of another cluster.
        PrunedError: entries after the cursor were removed from the journal.
        UnavailableError: no node can be reached; with ``follow``, safe time has stopped for ``silent_s``.
    """

    def __init__(
        self,
        client: Client | SocketClient,
        after: str | None = None,
        *,
        tables: Collection[str] | None = None,
        follow: bool = True,
        hold: str | None = None,
        silent_s: float = SILENT_S,
    ) -> None:
        self._client, self._follow, self._hold = client, follow, hold
        self._reported_at = -math.inf
        self._feed = _feed(after, tables)
        client.belong("the cursor", self._feed.cluster)
        self._page: deque[Committed] = deque()
        self._wait = False
        self._progress = _Progress(silent_s)

    def __aiter__(self) -> "Changes":
        return self

    async def __anext__(self) -> Committed:
        while (transaction := await self.poll()) is None:
            if not self._follow:
                raise StopAsyncIteration
            await trio.sleep(POLL_S)
        return transaction

    async def poll(self) -> Committed | None:
        """Return the next transaction; None at the end of the feed, where a caller that follows asks again later."""
        while not self._page:
            if self._wait:
                self._wait = not self._follow
                if self._follow:
                    await self._check_progress()
                return None
            await self._fetch_page()
        return self._page.popleft()

    async def _check_progress(self) -> None:
        """Leave a node at which safe time has stopped; raise an error if it has stopped at all nodes."""
        if self._progress.is_node_silent():
            self._client.leave_node()
        if self._progress.is_silent():
            status: Mapping[str, Any] | None = None
            with suppress(UnavailableError):
                status = await self._client.status(timeout=STATUS_TIMEOUT_S)
            self._progress.raise_if_silent(status)

    async def _fetch_page(self) -> None:
        await self._keep_journal()
        try:
            rows = await self._rows()
        except BedrockishError as error:
            if not (self._follow and is_retried(error)):
                raise
            self._progress.note_failure(error)
            self._wait = True
            return
        self._feed.set_cluster(self._client.cluster_id)
        self._page.extend(_transactions_in(self._feed, rows))
        self._progress.note_page(self._feed)
        self._wait = self._feed.is_last

    async def _rows(self) -> Sequence[tuple[Any, ...]]:
        """Return the rows of the next page, or of the next transaction alone if the page would be too large."""
        try:
            return (await self._client.execute(*self._feed.question(PAGE_ROWS), read=STALE)).rows
        except MemoryFullError:  # the node lacks memory at this moment, for any page: ``_fetch_page`` tries again later
            raise
        except TooLargeError:
            place = await self._stream_rows(self._feed.question_of_one(), STALE)
        if (question := self._feed.question_of_body(place)) is None:
            return place
        # At the level ``session``, because another node may answer, and must first have the entry.
        return self._feed.filled(place, await self._stream_rows(question, SESSION))

    async def _stream_rows(self, question: tuple[str, tuple[Any, ...]], read: str) -> Sequence[tuple[Any, ...]]:
        """Return the rows of a stream, which ``result_bytes_max`` does not bound."""
        async with self._client.stream(*question, read=read) as rows:
            return [row async for row in rows]

    async def _keep_journal(self) -> None:
        """Report this reader's cursor to the nodes; with ``follow``, continue if no node accepts the report."""
        if self._hold is None or monotonic() - self._reported_at <= HOLD_S:
            return
        cursor = str(self._feed.cursor) if self._feed.cursor.clock else None
        try:
            await self._client.hold(self._hold, cursor, timeout=HOLD_TIMEOUT_S)
        except BedrockishError as error:
            if not (self._follow and is_retried(error)):
                raise
            self._progress.note_failure(error)
        self._reported_at = monotonic()


def blocking_changes(
    connection: Connection,
    after: str | None = None,
    *,
    tables: Collection[str] | None = None,
    follow: bool = True,
    hold: str | None = None,
    silent_s: float = SILENT_S,
) -> Iterator[Committed]:
    """Yield the transactions of ``Changes``, for a blocking connection."""
    changes = Changes(connection._client, after, tables=tables, follow=follow, hold=hold, silent_s=silent_s)
    while True:
        transaction = run(changes.poll)
        if transaction is not None:
            yield transaction
        elif follow:
            time.sleep(POLL_S)
        else:
            return
