"""A WebSocket: the handshake by hand, frames by wsproto, messages counted against the node's memory.

A message may come in many parts, from any caller, so the parts draw on the node's memory until they are whole, and the
first message, which has the login, must be short. Compression is never agreed to: a packed message may be a thousand
times as long.
"""

import logging
import math
from base64 import b64encode
from hashlib import sha1
from typing import Protocol

import trio
from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from bedrockish.engine.sqlite.limits import Memory
from bedrockish.errors import MemoryFullError
from bedrockish.http.messages import CallerGoneError, Request

logger = logging.getLogger(__name__)

MESSAGE_BYTES = 16 << 20
FIRST_BYTES = 64 << 10  # of the first message
LOOK_BYTES = 1 << 20
CHARACTER_BYTES = 4  # that a character takes while a text is put together
TOO_LONG = 1009
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455


class Carrier(Protocol):
    """The connection below a WebSocket.

    Attributes:
        memory: the node's.
        half_since: when something came last of a long message that is not whole; infinite without one.
        until: when the connection is cut off.
    """

    memory: Memory
    half_since: float
    until: float

    async def send(self, data: bytes) -> None:
        """Write bytes."""

    async def receive(self) -> bytes:
        """Return the next bytes; nothing at the end."""

    def keep(self, size: int) -> None:
        """Count bytes of unread messages; a negative number gives them back."""


class WebSocket:
    """One WebSocket, of a caller that has asked for it.

    Args:
        request: the request.
        rest: the bytes after it.
        carrier: the connection.

    Attributes:
        request: as above.
    """

    def __init__(self, request: Request, rest: bytes, carrier: Carrier) -> None:
        self.request, self._carrier = request, carrier
        self._frames = Frames(ConnectionType.SERVER)
        self._frames.receive_data(rest)
        self._events = self._frames.events()
        self._parts: list[str] | list[bytes] = []
        self._most, self._length, self._taken, self._looked = FIRST_BYTES, 0, 0, 0
        self._sending = trio.Lock()

    async def accept(self, subprotocol: str | None = None) -> bool:
        """Answer the handshake; return whether it was a valid one."""
        headers = self.request.headers
        key = headers.get("sec-websocket-key", "")
        if headers.get("sec-websocket-version") != "13" or not key:
            await self._carrier.send(b"HTTP/1.1 426 Upgrade Required\r\nsec-websocket-version: 13\r\n" + _EMPTY)
            return False
        proof = b64encode(sha1(key.encode("latin-1") + MAGIC, usedforsecurity=False).digest())
        chosen = f"sec-websocket-protocol: {subprotocol}\r\n".encode() if subprotocol else b""
        upgrade = b"upgrade: websocket\r\nconnection: upgrade\r\n"
        await self._carrier.send(
            b"HTTP/1.1 101 Switching Protocols\r\n%bsec-websocket-accept: %b\r\n%b\r\n" % (upgrade, proof, chosen)
        )
        return True

    async def refuse(self, status: bytes) -> None:
        """Answer the handshake with another status, such as ``b"403 Forbidden"``."""
        await self._carrier.send(b"HTTP/1.1 %b\r\n" % status + _EMPTY)

    async def receive(self) -> str | bytes:
        """Return the next message.

        Raises:
            CallerGoneError: the caller has gone, or has sent too much.
        """
        while True:
            event = next(self._events, None)
            match event:
                case None:
                    data = await self._carrier.receive()
                    if not data:
                        raise CallerGoneError("without a word")
                    self._frames.receive_data(data)
                    self._events = self._frames.events()
                case Ping():
                    await self._send(event.response())
                case CloseConnection():
                    if self._frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
                        await self._send(CloseConnection(event.code))  # of an invalid frame, too
                    raise CallerGoneError(f"the WebSocket ended with {event.code}: {event.reason or 'no reason'}")
                case TextMessage() | BytesMessage():
                    why = self._take(event)
                    if why:
                        logger.warning("a WebSocket was closed: %s", why)
                        await self.close(TOO_LONG)
                        raise CallerGoneError(why)
                    if event.message_finished:
                        return self._whole()

    def _take(self, event: TextMessage | BytesMessage) -> str:
        """Take a part of a message; return why it cannot be taken, if so."""
        self._length += len(event.data)
        if self._length > self._most:
            return f"{'the first' if self._most == FIRST_BYTES else 'a'} message is longer than {self._most} bytes"
        size = len(event.data) * (CHARACTER_BYTES if isinstance(event.data, str) else 1)
        self._taken += size
        self._carrier.keep(size)
        self._parts.append(event.data)  # type: ignore[arg-type]  # wsproto gives one kind in a message
        if self._taken > LOOK_BYTES:
            self._carrier.half_since = trio.current_time()
        if self._taken - self._looked > LOOK_BYTES:
            self._looked = self._taken
            try:
                self._carrier.memory.check_large()
            except MemoryFullError as error:
                return error.message
        return ""

    def _whole(self) -> str | bytes:
        parts = self._parts
        whole = "".join(parts) if isinstance(parts[0], str) else b"".join(parts)
        self._carrier.keep(-self._taken)
        self._parts, self._most, self._length, self._taken, self._looked = [], MESSAGE_BYTES, 0, 0, 0
        self._carrier.half_since = math.inf
        return whole

    async def send(self, message: str | bytes) -> None:
        """Send a message.

        Raises:
            CallerGoneError: the WebSocket is closed.
        """
        await self._send(TextMessage(message) if isinstance(message, str) else BytesMessage(message))

    async def close(self, code: int, why: str = "") -> None:
        """Close the WebSocket, if it is open."""
        if self._frames.state is ConnectionState.OPEN:
            await self._send(CloseConnection(code, why or None))

    async def _send(self, event: Event) -> None:
        async with self._sending:
            try:
                data = self._frames.send(event)
            except LocalProtocolError as error:
                raise CallerGoneError("the WebSocket is closed") from error
            await self._carrier.send(data)


_EMPTY = b"content-length: 0\r\nconnection: close\r\n\r\n"
