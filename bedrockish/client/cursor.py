"""Streamed results: rows arrive a batch at a time, so that neither client nor node holds a whole result.

The client asks for one batch ahead of the reader, so a reader that pauses also pauses the node. All rows come from one
snapshot of the node. If the node is lost, the rest of the result is lost; reading the whole result again is safe.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Self

from bedrockish.api.requests import Request, rows_of
from bedrockish.api.wire import CLOSE, FETCH, STREAM, Answered, Step
from bedrockish.client.calls import Calls
from bedrockish.client.in_thread import blocking, run
from bedrockish.errors import (
    BedrockishError,
    ClientClosedError,
    ProtocolMismatchError,
    ResultLostError,
    UnavailableError,
    UsageError,
)
from bedrockish.sqltext.session_values import shown_names

CLOSE_S = 2.0  # timeout of the message that tells a node that a stream is closed

Row = tuple[Any, ...]


class RowStream:
    """An open stream of rows. Get one from ``Client.stream``; use it from one task at a time.

    Attributes:
        columns: names of the columns.
        count: how many rows were handed out.
    """

    def __init__(self, calls: Calls, request: Request) -> None:
        self._calls, self._request = calls, request
        self.columns: tuple[str, ...] = ()
        self.count = 0
        self._rows: deque[Row] = deque()
        self._fetch: int | None = None  # the call for the next batch
        self._has_ended = True
        self._error: BedrockishError | None = None

    async def open(self) -> None:
        """Open the stream at a node, and ask for the first batch.

        Raises:
            BedrockishError: no node opens it.
        """
        request = self._request
        reply = await self._calls._call(Step(0, request, STREAM), request.timeout_s)
        assert isinstance(reply, Answered)
        self.columns = shown_names(rows_of(reply.answer, 1)[0].columns)
        self._request = replace(request, statements=())
        self._has_ended = not reply.answer.more
        self._request_batch()

    def _request_batch(self) -> None:
        if not self._has_ended:
            self._fetch = self._calls._begin(Step(0, self._request, FETCH), self._request.timeout_s)

    async def batch(self) -> list[Row]:
        """Return the rows that have arrived, after waiting for at least one; an empty list at the end.

        Raises:
            ResultLostError: the rest is lost; reading the whole result again is safe.
            BedrockishError: SQLite could not compute a row; ``details["rows"]`` rows were returned before.
        """
        if not self._rows:
            await self._fill()
        kept = list(self._rows)
        self._rows.clear()
        self.count += len(kept)
        return kept

    async def _fill(self) -> bool:
        """Wait for more rows, and keep them for the reader; return whether there are any."""
        while True:
            if self._error is not None:
                raise self._error
            if self._fetch is None:
                if self._has_ended:
                    return False
                self._request_batch()
                assert self._fetch is not None
            # Set the error first, because the handler of a signal may raise at any step until the rows are kept.
            lost = ClientClosedError("the reading of this result was cancelled; begin again")
            number, self._fetch, self._error = self._fetch, None, lost
            try:
                reply = await self._calls._wait(number)
                if isinstance(reply, Answered):
                    self._rows.extend(rows_of(reply.answer, 1)[0].rows)
                    self._has_ended, self._error = not reply.answer.more, None
            except BedrockishError as error:
                self._error = _lost(error, self.count)
                self._has_ended = True
                self._close_at_node()
                raise self._error from error
            except BaseException:
                self._has_ended = True
                self._close_at_node()
                raise
            if not isinstance(reply, Answered):
                raise ProtocolMismatchError("the node's answer is not rows")
            # From here on, the handler of a signal may raise without loss, because the rows are kept.
            self._request_batch()
            if self._rows:
                return True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Row:
        """Return the next row; see ``batch``."""
        if not self._rows and not await self._fill():
            raise StopAsyncIteration
        self.count += 1
        return self._rows.popleft()

    def close(self) -> None:
        """Close the stream and drop the rows that were not read; a second close does nothing."""
        if self._fetch is not None:
            self._calls._cancel(self._fetch)
            self._fetch = None
        if not self._has_ended:
            self._has_ended = True
            self._close_at_node()
        self._rows.clear()
        self._error = self._error or ClientClosedError("this stream is closed; begin another")

    def _close_at_node(self) -> None:
        with suppress(BedrockishError):
            self._calls._notify(Step(0, self._request, CLOSE), CLOSE_S)


def _lost(error: BedrockishError, rows: int) -> BedrockishError:
    details = {**error.details, "rows": rows, "reason": error.code}
    if isinstance(error, UnavailableError) or not isinstance(error, UsageError):
        return ResultLostError(
            f"the result was lost after {rows} rows: {error.message}; nothing was changed, read it again", **details
        )
    return type(error)(f"{error.message} (after {rows} rows)", **details)


@asynccontextmanager
async def streaming(stream: RowStream) -> AsyncIterator[RowStream]:
    """Open a stream for the block."""
    await stream.open()
    try:
        yield stream
    finally:
        stream.close()


class BlockingRowStream:
    """The blocking twin of ``RowStream``: an iterator over rows. Use it from one thread at a time."""

    def __init__(self, stream: RowStream) -> None:
        self._stream, self._rows = stream, stream._rows
        run(stream.open)
        self.columns = stream.columns

    @property
    def count(self) -> int:
        """How many rows were handed out."""
        return self._stream.count

    batch = blocking("_stream", RowStream.batch)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        """Return the next row; see ``batch``."""
        if not self._rows and not run(self._stream._fill):
            raise StopIteration
        self._stream.count += 1
        return self._rows.popleft()

    def close(self) -> None:
        """Close the stream and drop the rows that were not read; a second close does nothing."""
        with suppress(ClientClosedError):  # the stream was closed with its connection
            self._stream.close()
