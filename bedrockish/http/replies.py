"""Responses as everything here gives them: JSON, never kept by anybody."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bedrockish.api.json_forms import status_of, write_error, write_json
from bedrockish.errors import BedrockishError

JSON = "application/json"


def json_reply(value: object, status: int = 200) -> Response:
    """Return a value as a response."""
    return raw_reply(write_json(value), status)


def raw_reply(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON as a response."""
    return Response(body, status, {"cache-control": "no-store", **(headers or {})}, JSON)


def error_reply(
    error: BedrockishError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as a response; by default with the status that belongs to it."""
    status = status or status_of(error)
    later = {"retry-after": "1"} if status == 503 else {}
    return raw_reply(write_error(error), status, {**later, **(headers or {})})


class LinesReply(Response):
    """A body that is written as fast as it is read, until it is over or its reader has gone.

    Starlette's own is cancelled by the news that all was written, and then a connection that should end then does not.

    Args:
        lines: the body, in pieces; closed in the end.
        media_type: what it is.
    """

    def __init__(self, lines: AsyncGenerator[bytes], media_type: str) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Write it all."""
        is_whole, error = False, None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, receive, nursery.cancel_scope)
            try:
                async with aclosing(self._lines) as lines:
                    piece = await anext(lines, None)  # a generator that never began would not end what it reads
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    while piece is not None:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                        piece = await anext(lines, None)
                is_whole = True
            except Exception as unexpected:
                error = unexpected
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error  # the connection ends without the mark of the body's end
        if is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _watch(receive: Receive, reading: trio.CancelScope) -> None:
    """End what is written to a reader that has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    reading.cancel()
