"""Hrana over WebSocket: many streams of one client on one connection.

Requests of one stream are answered in their order, those of different streams side by side. When the client has too
many under way, nothing more is read from it. The end of the connection ends its streams: what they had open did not
happen.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import trio

from bedrockish.api.json_forms import read_json, write_json
from bedrockish.common.access_token import PREFIX
from bedrockish.errors import AuthenticationError, BedrockishError, UnavailableError, UsageError
from bedrockish.http.libsql import protobuf
from bedrockish.http.libsql.session import DeclaredTypes, Runs, Session
from bedrockish.http.libsql.structures import ResultUnsayableError, Texts, has_infinity, write_error
from bedrockish.http.messages import CallerGoneError
from bedrockish.http.purse import Purse
from bedrockish.http.websocket import WebSocket
from bedrockish_net.handshake import BROKEN

logger = logging.getLogger(__name__)

PROTOCOLS = ("hrana3-protobuf", "hrana3", "hrana2", "hrana1")
STREAMS_MAX = 100  # of one connection
WAITING_MAX = 100  # requests of one connection that are under way
HELLO_S = 10.0
FETCH_MAX = 1_000  # entries of a cursor in one answer
FETCH_BYTES = 1 << 20  # of its rows there, roughly
POLICY, PROTOCOL_ERROR = 1008, 1002

Admit = Callable[[str, str], Awaitable[str]]
Caught = Callable[[str, Exception], BedrockishError]


@dataclass
class Open:
    """A stream of this connection.

    Attributes:
        requests: what it is still to answer.
        session: the stream; None if it could not be opened.
        cursor: what is read of it.
    """

    requests: trio.MemorySendChannel[tuple[int, dict[str, Any]]]
    session: Session
    cursor: AsyncGenerator[dict[str, Any]] | None = None
    cursor_done: bool = False


@dataclass
class Connection:
    """Serves one WebSocket."""

    socket: WebSocket
    node: Runs
    declared: DeclaredTypes
    nursery: trio.Nursery
    is_protobuf: bool
    caught: Caught
    new_purse: Callable[[], Purse]
    user: str = ""  # the user of the streams that are opened from now on; empty at a node without logins
    jwt: str = ""  # what it has shown
    texts: Texts = field(default_factory=Texts)
    streams: dict[int, Open] = field(default_factory=dict)
    cursors: dict[int, int] = field(default_factory=dict)  # cursor -> its stream
    room: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(WAITING_MAX))

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            UsageError: it is malformed; the connection cannot go on.
            CallerGoneError: the client has gone.
        """
        message = await self.socket.receive()
        if self.is_protobuf:
            if isinstance(message, str):
                raise UsageError("a text frame, where the encoding is Protobuf")
            return protobuf.read_client_message(message)
        if not isinstance(message, str):
            raise UsageError("a binary frame, where the encoding is JSON")
        found = read_json(message.encode())
        if not isinstance(found, dict):
            raise UsageError("a message should be an object")
        return found

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            CallerGoneError: the client has gone.
        """
        written = protobuf.write_server_message(message) if self.is_protobuf else write_json(message).decode()
        await self.socket.send(written)

    async def refuse(self, number: int, error: BedrockishError) -> None:
        """Answer a request with an error before it is looked at."""
        await self.room.acquire()
        await self._answer(number, error)

    async def take(self, number: int, asked: dict[str, Any]) -> None:
        """Put a request where its answer is made. Waits while too many are under way."""
        await self.room.acquire()
        kind = asked.get("type")
        try:
            if kind == "open_stream":
                self._open(_number(asked, "stream_id"))
            elif kind in ("store_sql", "close_sql"):
                (self.texts.store if kind == "store_sql" else self.texts.close)(asked)
            else:
                await self._stream(asked).requests.send((number, asked))
                return
        except BedrockishError as error:
            await self._answer(number, error)
            return
        await self._answer(number, {"type": kind})

    def _open(self, number: int) -> None:
        if number in self.streams:
            raise UsageError(f"stream {number} is open already")
        if len(self.streams) >= STREAMS_MAX:
            raise UnavailableError(f"a connection has {STREAMS_MAX} streams at most; close some, or open another one")
        into, out = trio.open_memory_channel[tuple[int, dict[str, Any]]](WAITING_MAX)
        session = Session(self.node, self.declared, self.texts)
        session.user = self.user
        self.streams[number] = opened = Open(into, session)
        self.nursery.start_soon(self._serve, number, opened, out)

    def _stream(self, asked: dict[str, Any]) -> Open:
        if asked.get("type") in ("fetch_cursor", "close_cursor"):
            cursor = _number(asked, "cursor_id")
            if cursor not in self.cursors:
                raise UsageError(f"there is no cursor {cursor}")
            number = self.cursors[cursor]
        else:
            number = _number(asked, "stream_id")
        if number not in self.streams:
            raise UsageError(f"there is no stream {number}; open_stream comes first")
        if asked.get("type") == "open_cursor":
            self.cursors.setdefault(_number(asked, "cursor_id"), number)
        return self.streams[number]

    async def _serve(
        self, number: int, stream: Open, requests: trio.MemoryReceiveChannel[tuple[int, dict[str, Any]]]
    ) -> None:
        """Answer the requests of one stream, until it is closed or the connection ends."""
        purse = stream.session.purse = self.new_purse()
        try:
            async for request_id, asked in requests:
                purse.close()
                try:
                    response = await self._respond(stream, asked)
                    if not self.is_protobuf and _has_infinity(response):
                        raise ResultUnsayableError()
                except BedrockishError as error:
                    await self._answer(request_id, error)
                    continue
                except Exception as unexpected:  # a bug costs the request that it hit
                    await self._answer(request_id, self.caught(f"libSQL: {asked.get('type')}", unexpected))
                    continue
                await self._answer(request_id, response)
                del response
                purse.close()
                if asked.get("type") == "close_stream":
                    return
        finally:
            purse.close()
            stream.session.close()
            if self.streams.get(number) is stream:
                del self.streams[number]
                self.cursors = {cursor: owner for cursor, owner in self.cursors.items() if owner != number}
            with trio.CancelScope(shield=True):
                await self._close_cursor(stream)

    async def _respond(self, stream: Open, asked: dict[str, Any]) -> dict[str, Any]:
        match asked.get("type"):
            case "close_stream":
                return {"type": "close_stream"}
            case "open_cursor":
                if stream.cursor is not None:
                    raise UsageError("the stream has a cursor open; close it first")
                stream.cursor, stream.cursor_done = await stream.session.open_batch(asked.get("batch") or {}), False
                return {"type": "open_cursor"}
            case "fetch_cursor":
                return await self._fetch(stream, asked)
            case "close_cursor":
                self.cursors.pop(_number(asked, "cursor_id"), None)
                await self._close_cursor(stream)
                return {"type": "close_cursor"}
        if stream.cursor is not None:
            raise UsageError("the stream has a cursor open; close it first")
        return await stream.session.answer(asked)

    async def _fetch(self, stream: Open, asked: dict[str, Any]) -> dict[str, Any]:
        if stream.cursor is None:
            raise UsageError("the cursor could not be opened")
        entries: list[dict[str, Any]] = []
        wanted = max(1, min(_number(asked, "max_count"), FETCH_MAX))
        size = 0
        while len(entries) < wanted and size < FETCH_BYTES and not stream.cursor_done:
            try:
                entries.append(await anext(stream.cursor))
                size += _row_bytes(entries[-1])
            except StopAsyncIteration:
                stream.cursor_done = True
        return {"type": "fetch_cursor", "entries": entries, "done": stream.cursor_done}

    async def _close_cursor(self, stream: Open) -> None:
        cursor, stream.cursor = stream.cursor, None
        if cursor is not None:
            async with aclosing(cursor):
                pass

    async def _answer(self, number: int, found: dict[str, Any] | BedrockishError) -> None:
        self.room.release()
        if isinstance(found, BedrockishError):
            await self.send({"type": "response_error", "request_id": number, "error": write_error(found)})
        else:
            await self.send({"type": "response_ok", "request_id": number, "response": found})


def _number(asked: dict[str, Any], name: str) -> int:
    value = asked.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} should be an integer")
    return value


def _row_bytes(entry: dict[str, Any]) -> int:
    """Return about how long an entry is, written."""
    return sum(len(str(one.get("value", ""))) + len(one.get("base64", "")) for one in entry.get("row", ()))


def _has_infinity(response: dict[str, Any]) -> bool:
    result = response.get("result", {})
    found = [one for one in (result, *result.get("step_results", ())) if one and "rows" in one]
    rows = [entry["row"] for entry in response.get("entries", ()) if entry["type"] == "row"]
    return any(has_infinity(one) for one in (*found, {"rows": rows}))


class Sockets:
    """The WebSocket endpoint of libSQL's protocol at one node."""

    def __init__(
        self, node: Runs, declared: DeclaredTypes, admit: Admit, caught: Caught, new_purse: Callable[[], Purse]
    ) -> None:
        self._node, self._declared, self._admit, self._caught = node, declared, admit, caught
        self._new_purse = new_purse

    async def serve(self, socket: WebSocket) -> None:
        """Serve one connection to its end."""
        offered = [one.strip() for one in socket.request.headers.get("sec-websocket-protocol", "").split(",")]
        chosen = next((one for one in PROTOCOLS if one in offered), None)
        if not await socket.accept(chosen):
            return
        try:
            async with trio.open_nursery() as nursery:
                is_protobuf = chosen == "hrana3-protobuf"
                connection = Connection(
                    socket, self._node, self._declared, nursery, is_protobuf, self._caught, self._new_purse
                )
                await self._talk(connection)
                nursery.cancel_scope.cancel()
        except* (CallerGoneError, *BROKEN) as gone:
            logger.debug("a libSQL client is gone: %s", gone.exceptions[0])

    async def _talk(self, connection: Connection) -> None:
        try:
            with trio.move_on_after(HELLO_S) as patience:
                hello = await connection.receive()
                if not await self._hello(connection, hello):
                    return
            if patience.cancelled_caught:
                await connection.socket.close(POLICY, "no hello came")
                return
            while True:
                message = await connection.receive()
                if message.get("type") == "hello":
                    if not await self._hello(connection, message):
                        return
                    continue
                asked = message.get("request")
                if message.get("type") != "request" or not isinstance(asked, dict):
                    raise UsageError(f"{message.get('type')!r} is no message of a client")
                if connection.jwt.startswith(PREFIX):  # it ends some time, maybe by now; another hello brings another
                    try:
                        await self._admit(connection.jwt, "a WebSocket")
                    except AuthenticationError as error:
                        await connection.refuse(_number(message, "request_id"), error)
                        continue
                await connection.take(_number(message, "request_id"), asked)
        except UsageError as error:
            await connection.socket.close(PROTOCOL_ERROR, error.message[:100])

    async def _hello(self, connection: Connection, message: dict[str, Any]) -> bool:
        if message.get("type") != "hello":
            raise UsageError("the first message should be hello")
        jwt = message.get("jwt")
        try:
            connection.jwt = jwt if isinstance(jwt, str) else ""
            connection.user = await self._admit(connection.jwt, connection.socket.request.address)
        except AuthenticationError as error:
            await connection.send({"type": "hello_error", "error": write_error(error)})
            await connection.socket.close(POLICY, "not authenticated")
            return False
        await connection.send({"type": "hello_ok"})
        return True
