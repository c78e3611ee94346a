"""The connections that HTTP comes in on: hypercorn speaks on them, and who does not read is cut off.

Hypercorn waits for a caller to take what it writes for as long as that lasts, even while the node wants to leave, and
keeps the whole answer meanwhile. So each connection is given to it in a coat that waits only so long for each slice.
"""

import logging
import math
import socket
import ssl
import struct
from contextlib import suppress
from typing import Any

import trio
from hypercorn.config import Config as Settings
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, Framework
from hypercorn.utils import wrap_app

logger = logging.getLogger(__name__)

SLICE_BYTES = 64 << 10
RESET = struct.pack("ii", 1, 0)  # what waits in the kernel is thrown away, too

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Coat:
    """A stream whose writes end in time, and that can be cut off from outside.

    Args:
        stream: the connection.
        patience_s: how long the other side may take for one slice, in seconds.
    """

    def __init__(self, stream: Stream, patience_s: float) -> None:
        self._stream, self._patience_s = stream, patience_s
        self._waits_since = math.inf

    def __getattr__(self, name: str) -> Any:  # hypercorn tells plain from TLS by what a stream has
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
            self._waits_since = math.inf
            if waiting.cancelled_caught:
                logger.warning("a caller of HTTP did not read for %g s, and was cut off", self._patience_s)
                self.cut()
                raise trio.BrokenResourceError("the caller does not read")

    @property
    def stuck_seconds(self) -> float:
        """For how long a slice has been waiting for the other side."""
        return max(0.0, trio.current_time() - self._waits_since)

    def cut(self) -> None:
        """End the connection at once; who waits for it wakes up."""
        plain = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
        with suppress(OSError):  # it is closed already
            plain.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        plain.socket.close()


async def serve_connections(
    app: Framework,
    settings: Settings,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    patience_s: float,
    coats: set[Coat],
    files_max: int,
) -> None:
    """Serve an ASGI application until cancelled.

    Args:
        app: the application.
        settings: hypercorn's.
        listener: listens; it is closed at the end.
        tls: what connections are encrypted with; None: they are not.
        patience_s: how long a caller may take for a part of an answer, in seconds.
        coats: where the connections are while they are served.
        files_max: how many files may be open when somebody calls.
    """
    context, wrapped = WorkerContext(None), wrap_app(app, settings.wsgi_max_body_size, "asgi")

    async def talk(stream: Stream) -> None:
        plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        if plain.socket.fileno() >= files_max:
            logger.warning("turned a caller of HTTP away: too many files are open; raise the limit (ulimit -n)")
            await trio.aclose_forcefully(stream)
            return
        coat = Coat(stream, patience_s)
        coats.add(coat)
        try:
            await TCPServer(wrapped, settings, context, ConnectionState({}), coat)  # type: ignore[arg-type]
        finally:
            coats.discard(coat)

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
