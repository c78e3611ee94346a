"""The change feed for applications: an iterator over all that is committed, that can be stopped and gone on with."""

import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from bedrockish.api.requests import STALE
from bedrockish.client.blocking import Connection
from bedrockish.client.trio_client import Client
from bedrockish.errors import (
    BedrockishError,
    DamagedError,
    OutcomeUnknownError,
    PrunedError,
    UnavailableError,
    UsageError,
)
from bedrockish_journal.feed.change_feed import Committed, CursorError, Feed, FeedPrunedError, FeedUnreadableError

PAGE_ROWS = 200
POLL_S = 0.1
HOLD_S = 10.0  # how often a reader says how far it has got
HOLD_TIMEOUT_S = STATUS_TIMEOUT_S = 5.0
SILENT_S = 60.0  # how long a feed may stand still before its reader is told
SILENT_NODES = 6  # nodes that are asked during that time, one after the other


def _feed(after: str | None, tables: Collection[str] | None) -> Feed:
    try:
        return Feed(after, tables)
    except CursorError as error:
        raise UsageError(str(error)) from error


def _take(feed: Feed, rows: Sequence[tuple[Any, ...]]) -> list[Committed]:
    try:
        return feed.take(rows)
    except FeedPrunedError as error:
        raise PrunedError(str(error)) from error
    except FeedUnreadableError as error:
        raise DamagedError(str(error)) from error


def may_pass(error: BedrockishError) -> bool:
    """Return whether a reader that follows asks again; a read may be asked again whatever became of it."""
    return error.retry or isinstance(error, OutcomeUnknownError)


class _Progress:
    """Whether a reader gets anywhere: safe time moves on every second, also where nothing is committed.

    It stands still at a node that is cut off, and at all of them when no majority is there. Then another node is asked;
    and if that does not help, the reader is told, who would otherwise take the silence for peace.
    """

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._safe = 0
        self._moved = self._left = time.monotonic()
        self._error: BedrockishError | None = None

    def page(self, feed: Feed) -> None:
        """A node has answered."""
        if feed.safe > self._safe:
            self._safe, self._moved, self._error = feed.safe, time.monotonic(), None

    def failed(self, error: BedrockishError) -> None:
        """No node has answered."""
        self._error = error

    def is_node_silent(self) -> bool:
        """Return whether another node should be asked."""
        now = time.monotonic()
        if now - max(self._moved, self._left) <= self._silent_s / SILENT_NODES:
            return False
        self._left = now
        return True

    def is_silent(self) -> bool:
        """Whether it has stood still for too long, wherever it was read."""
        return time.monotonic() - self._moved > self._silent_s

    def judge(self, status: Mapping[str, Any] | None) -> None:
        """Say that it has stood still; ``status`` is a node's, None if none can be had.

        Raises:
            UnavailableError: unless the cluster's clock only counts: then it stands still while nothing happens.
        """
        if status is not None and self._error is None and status.get("cluster_clock") == "off":
            self._moved = time.monotonic()
            return
        why = self._error.message if self._error is not None else "safe time stands still at every node"
        raise UnavailableError(
            f"the feed has not moved on for {self._silent_s:g} s: {why}; go on after the last cursor later"
        )


class Changes:
    """Every committed transaction once, in the order of (clock, leader), up to safe time: ``async for`` over it.

    At most one page is read ahead of the reader. A node that dies is replaced by another; nothing is
    missed or repeated. Keep ``str(transaction.cursor)`` to go on later, at any node. An iterator, not a generator, so
    that leaving its loop early leaves nothing to be closed.

    Args:
        client: an open client.
        after: the cursor to go on after; None for the beginning.
        tables: leave out the changes of other tables.
        follow: wait for more; else stop where safe time is now.
        hold: a name under which the nodes keep the journal for this reader, from the last page that it has asked for
            on; see ``Client.hold``.
        silent_s: how long safe time may stand still, in seconds, before a reader that follows is told.

    Raises:
        UsageError: ``after`` is not a cursor.
        ForeignClusterError: it is a cursor of another cluster.
        PrunedError: what comes after it was removed from the journal.
        UnavailableError: no node can be reached; with ``follow``, for ``silent_s`` nothing new can have come.
    """

    def __init__(
        self,
        client: Client,
        after: str | None = None,
        *,
        tables: Collection[str] | None = None,
        follow: bool = True,
        hold: str | None = None,
        silent_s: float = SILENT_S,
    ) -> None:
        self._client, self._follow, self._hold = client, follow, hold
        self._held = -math.inf
        self._feed = _feed(after, tables)
        client.belong("the cursor", self._feed.cluster)
        self._page: deque[Committed] = deque()
        self._wait = False
        self._progress = _Progress(silent_s)

    def __aiter__(self) -> "Changes":
        return self

    async def __anext__(self) -> Committed:
        """Return the next transaction; wait for it with ``follow``."""
        while not self._page:
            if self._wait:
                if not self._follow:
                    raise StopAsyncIteration
                await self._look()
                await trio.sleep(POLL_S)
            await self._ask()
        return self._page.popleft()

    async def _look(self) -> None:
        """Leave a silent node, and raise for a silent cluster, so that the reader does not wait for ever."""
        if self._progress.is_node_silent():
            self._client.leave_node()
        if self._progress.is_silent():
            status: Mapping[str, Any] | None = None
            with suppress(UnavailableError):
                status = await self._client.status(timeout=STATUS_TIMEOUT_S)
            self._progress.judge(status)

    async def _ask(self) -> None:
        await self._keep_journal()
        sql, params = self._feed.question(PAGE_ROWS)
        try:
            rows = (await self._client.execute(sql, params, read=STALE)).rows
        except BedrockishError as error:
            if not (self._follow and may_pass(error)):
                raise
            self._progress.failed(error)
            self._wait = True
            return
        self._feed.belong(self._client.cluster_id)
        self._page.extend(_take(self._feed, rows))
        self._progress.page(self._feed)
        self._wait = self._feed.is_last

    async def _keep_journal(self) -> None:
        """Report how far this reader has got; it goes on if no node accepts the report."""
        if self._hold is None or time.monotonic() - self._held <= HOLD_S:
            return
        cursor = str(self._feed.cursor) if self._feed.cursor.clock else None
        try:
            await self._client.hold(self._hold, cursor, timeout=HOLD_TIMEOUT_S)
        except BedrockishError as error:
            if not (self._follow and may_pass(error)):
                raise
            self._progress.failed(error)
        self._held = time.monotonic()


def blocking_changes(
    connection: Connection,
    after: str | None = None,
    *,
    tables: Collection[str] | None = None,
    follow: bool = True,
    silent_s: float = SILENT_S,
) -> Iterator[Committed]:
    """Yield what ``Changes`` gives, for a blocking connection."""
    feed, progress = _feed(after, tables), _Progress(silent_s)
    connection.belong("the cursor", feed.cluster)
    while True:
        sql, params = feed.question(PAGE_ROWS)
        try:
            rows = connection.execute(sql, params, read=STALE).rows
        except BedrockishError as error:
            if not (follow and may_pass(error)):
                raise
            progress.failed(error)
        else:
            feed.belong(connection.cluster_id)
            yield from _take(feed, rows)
            progress.page(feed)
            if not feed.is_last:
                continue
            if not follow:
                return
        if progress.is_node_silent():
            connection.leave_node()
        if progress.is_silent():
            status: Mapping[str, Any] | None = None
            with suppress(UnavailableError):
                status = connection.status(timeout=STATUS_TIMEOUT_S)
            progress.judge(status)
        time.sleep(POLL_S)
