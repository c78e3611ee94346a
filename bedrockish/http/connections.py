"""The connections of HTTP: hypercorn speaks on them, and a caller that does not read is disconnected.

Hypercorn waits without a limit until a caller has read an answer, even while the node wants to leave, and keeps the
whole answer until then. So each connection is wrapped in a coat that bounds the wait for each slice.

It also buffers the parts of a WebSocket's message until the message is whole, for any caller, and unpacks a compressed
message, which may be a thousand times as long, at once. So messages draw on the node's memory, the first one, which
has the login, must be short, and compression is off.
"""

import logging
import math
import socket
import ssl
import struct
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import trio
from hypercorn.config import Config as Settings
from hypercorn.protocol import ws_stream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, Framework
from hypercorn.utils import wrap_app
from wsproto.events import Message
from wsproto.extensions import PerMessageDeflate

from bedrockish.engine.sqlite.limits import Memory
from bedrockish.errors import MemoryFullError

logger = logging.getLogger(__name__)

SLICE_BYTES = 64 << 10
FIRST_BYTES = 64 << 10  # of the first message on a WebSocket
LOOK_BYTES = 1 << 20
CHARACTER_BYTES = 4  # that a character takes while a text is put together
READ = "bedrockish.read"  # in a message of a WebSocket: to be called when the application has read it
RESET = struct.pack("ii", 1, 0)  # what waits in the kernel is thrown away, too

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Coat:
    """A stream whose writes end in time, and that can be cut off from outside.

    Args:
        stream: the connection.
        patience_s: how long the other side may take for one slice, in seconds.
        memory: the node's.
    """

    def __init__(self, stream: Stream, patience_s: float, memory: Memory) -> None:
        self._stream, self._patience_s, self.memory = stream, patience_s, memory
        self._waits_since = math.inf
        self._kept = 0
        self.half_since = math.inf  # when something came last of a long message that is not whole

    def __getattr__(self, name: str) -> Any:  # hypercorn tells plain from TLS by an attribute of the stream
        return getattr(self._stream, name)

    async def send_all(self, data: bytes) -> None:
        """Write.

        Raises:
            BrokenResourceError: the other side has gone, or does not read.
        """
        for start in range(0, len(data), SLICE_BYTES):
            self._waits_since = trio.current_time()
            with trio.move_on_after(self._patience_s) as waiting:
                await self._stream.send_all(data[start : start + SLICE_BYTES])
            if waiting.cancelled_caught:
                logger.warning("a caller of HTTP did not read for %g s, and was cut off", self._patience_s)
                self.cut()  # while the slice counts as waiting: the rest of it is thrown away
                raise trio.BrokenResourceError("the caller does not read")
            self._waits_since = math.inf

    def keep(self, size: int) -> None:
        """Count bytes of messages that the application has not read yet; a negative number gives them back."""
        size = max(size, -self._kept)  # what is read after the end was given back with all else
        self._kept += size
        self.memory.hold(id(self), size)

    def close(self) -> None:
        """Give all back: the connection is over."""
        self.keep(-self._kept)

    @property
    def stuck_seconds(self) -> float:
        """For how long a slice, or the rest of a long message, has been waiting for the other side."""
        return max(0.0, trio.current_time() - min(self._waits_since, self.half_since))

    def cut(self) -> None:
        """End the connection at once and wake its tasks; bytes that the caller has not read are thrown away."""
        plain = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
        if self._waits_since < math.inf:
            with suppress(OSError):  # it is closed already
                plain.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        plain.socket.close()


COAT: ContextVar[Coat] = ContextVar("coat")  # of the connection that a task serves


class CountedBuffer(ws_stream.WebsocketBuffer):
    """The buffer of a message that is not whole yet, counted against the node's memory."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length)
        self._coat, self._is_first, self._taken, self._looked = COAT.get(), True, 0, 0
        self._is_refused = False

    def extend(self, event: "Message[Any]") -> None:
        """Take another part of it.

        Raises:
            FrameTooLargeError: it is too long, or the node has no memory for it; hypercorn closes the WebSocket.
        """
        if not self._is_refused:
            most, which = (FIRST_BYTES, "the first") if self._is_first else (self.max_length, "a")
            if self.length + len(event.data) > most:
                why = f"{which} message is longer than {most} bytes"
            else:
                why = self._count(len(event.data) * (CHARACTER_BYTES if isinstance(event.data, str) else 1))
            if not why:
                super().extend(event)
                return
            logger.warning("a WebSocket was closed: %s", why)
            self._is_refused, self.value = True, None
            self._coat.keep(-self._taken)
        else:
            self._coat.cut()  # it has been told, and goes on
        raise ws_stream.FrameTooLargeError

    def _count(self, size: int) -> str:
        """Count so many bytes; return why they cannot be taken, if so."""
        self._taken += size
        self._coat.keep(size)
        if self._taken > LOOK_BYTES:
            self._coat.half_since = trio.current_time()
        if self._taken - self._looked > LOOK_BYTES:
            self._looked = self._taken
            try:
                self._coat.memory.check_large()
            except MemoryFullError as error:
                return error.message
        return ""

    def to_message(self) -> dict[str, Any]:
        """Return the whole message."""
        message: dict[str, Any] = super().to_message()
        return {**message, READ: partial(self._coat.keep, -self._taken)}

    def clear(self) -> None:
        """Begin with the next."""
        super().clear()
        self._is_first, self._taken, self._looked = False, 0, 0
        self._coat.half_since = math.inf


class Unpacked(PerMessageDeflate):
    """The extension of packed messages, which is never agreed to."""

    def accept(self, _offer: str) -> None:
        """Turn it down."""


# Hypercorn has no other way to say it; tests/http/test_websockets.py sees that it still makes what stands here.
ws_stream.WebsocketBuffer = CountedBuffer  # type: ignore[misc]
ws_stream.PerMessageDeflate = Unpacked  # type: ignore[attr-defined]


async def serve_connections(
    app: Framework,
    settings: Settings,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    patience_s: float,
    coats: set[Coat],
    files_max: int,
    memory: Memory,
) -> None:
    """Serve an ASGI application until cancelled.

    Args:
        app: the application.
        settings: hypercorn's.
        listener: listens; it is closed at the end.
        tls: the encryption of connections; None: they are plain.
        patience_s: how long a caller may take for a part of an answer, in seconds.
        coats: where the connections are while they are served.
        files_max: how many files may be open when a caller connects.
        memory: the node's.
    """
    context, wrapped = WorkerContext(None), wrap_app(app, settings.wsgi_max_body_size, "asgi")

    async def talk(stream: Stream) -> None:
        plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        if plain.socket.fileno() >= files_max:
            logger.warning("turned a caller of HTTP away: too many files are open; raise the limit (ulimit -n)")
            await trio.aclose_forcefully(stream)
            return
        coat = Coat(stream, patience_s, memory)
        coats.add(coat)
        COAT.set(coat)
        try:
            await TCPServer(wrapped, settings, context, ConnectionState({}), coat)  # type: ignore[arg-type]
        finally:
            coats.discard(coat)
            coat.close()

    async def cut_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:  # hypercorn shields what it writes from being cancelled
            for coat in list(coats):
                coat.cut()

    plain = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut_at_the_end)
        if tls is None:
            await trio.serve_listeners(talk, [plain])
        await trio.serve_listeners(talk, [trio.SSLListener(plain, tls, https_compatible=True)])
