"""The change feed for applications: an iterator over all that is committed, that can be stopped and gone on with."""

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import trio

from bedrockish.client.aio import Client
from bedrockish.client.blocking import Connection
from bedrockish.errors import PrunedError, UnavailableError, UsageError
from bedrockish.requests import STALE
from journal.feed import Committed, CursorError, Feed, FeedPrunedError

PAGE_ROWS = 200
POLL_S = 0.1
HOLD_S = 10.0  # how often a reader says how far it has got


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


class Changes:
    """Every committed transaction once, in the order of (clock, leader), up to safe time: ``async for`` over it.

    Nothing is asked for ahead of the reader, but for one page. A node that dies is replaced by another; nothing is
    missed or repeated. Keep ``str(transaction.cursor)`` to go on later, at any node. An iterator, not a generator, so
    that leaving its loop early leaves nothing to be closed.

    Args:
        client: an open client.
        after: the cursor to go on after; None for the beginning.
        tables: leave out the changes of other tables.
        follow: wait for more; else stop where safe time is now.
        hold: a name under which the nodes keep the journal for this reader, as far as it has not asked for what comes
            next; see ``Client.hold``.

    Raises:
        UsageError: ``after`` is not a cursor.
        PrunedError: what comes after it was removed from the journal.
        UnavailableError: no node can be reached (only without ``follow``).
    """

    def __init__(
        self,
        client: Client,
        after: str | None = None,
        *,
        tables: Collection[str] | None = None,
        follow: bool = True,
        hold: str | None = None,
    ) -> None:
        self._client, self._follow, self._hold = client, follow, hold
        self._held = -HOLD_S
        self._feed = _feed(after, tables)
        self._page: deque[Committed] = deque()
        self._wait = False

    def __aiter__(self) -> "Changes":
        return self

    async def __anext__(self) -> Committed:
        """Return the next transaction; wait for it with ``follow``."""
        while not self._page:
            if self._wait:
                if not self._follow:
                    raise StopAsyncIteration
                await trio.sleep(POLL_S)
            await self._ask()
        return self._page.popleft()

    async def _ask(self) -> None:
        sql, params = self._feed.question(PAGE_ROWS)
        try:
            if self._hold is not None and time.monotonic() - self._held > HOLD_S:
                await self._client.hold(self._hold, str(self._feed.cursor) if self._feed.cursor.clock else None)
                self._held = time.monotonic()
            rows = (await self._client.execute(sql, params, read=STALE)).rows
        except UnavailableError:
            if not self._follow:
                raise
            self._wait = True
            return
        self._page.extend(_take(self._feed, rows))
        self._wait = self._feed.is_last


def blocking_changes(
    connection: Connection, after: str | None = None, *, tables: Collection[str] | None = None, follow: bool = True
) -> Iterator[Committed]:
    """Yield what ``Changes`` gives, for a blocking connection."""
    feed = _feed(after, tables)
    while True:
        sql, params = feed.question(PAGE_ROWS)
        try:
            rows = connection.execute(sql, params, read=STALE).rows
        except UnavailableError:
            if not follow:
                raise
        else:
            yield from _take(feed, rows)
            if not feed.is_last:
                continue
            if not follow:
                return
        time.sleep(POLL_S)
