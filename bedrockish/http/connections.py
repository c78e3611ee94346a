"""The connections of HTTP: requests are read and replies written, one after the other; a caller that does not read, or
does not send, is disconnected.

Otherwise a connection lasts until its caller ends it, or the node stops.
"""

import logging
import math
import os
import select
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from email.utils import formatdate
from http import HTTPStatus

import trio

from bedrockish.errors import UsageError
from bedrockish.http.messages import CallerGoneError, HttpReply, HttpRequest, Write, error_reply
from bedrockish.http.parsing import Parser
from bedrockish.node.admin.watching import files_max
from bedrockish.node.transactions.callers import fits
from bedrockish_net.handshake import BROKEN, host_of

logger = logging.getLogger(__name__)

READ_BYTES = 64 << 10
IDLE_S = 75.0  # seconds that a caller has for a whole head, and for each part of a body
BODY_BYTES_S = 16 << 10  # a body of n bytes must arrive within IDLE_S + n / BODY_BYTES_S seconds
LOOK_S = 1.0
FAREWELL_S, FAREWELL_READS = 1.0, 64
SAFETY = {  # headers of every reply: other sites cannot embed or read replies, and browsers do not guess types
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_SAFETY = "".join(f"{name}: {value}\r\n" for name, value in SAFETY.items()).encode()
RESET = struct.pack("ii", 1, 0)  # SO_LINGER that discards the bytes that wait in the kernel

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Serves = Callable[[HttpRequest, Write], Awaitable[None]]


class HttpConnection:
    """One connection of a caller, and its requests, which are answered one after the other.

    Args:
        serve: answers a request: it calls the function in its second argument once, with the reply.
        leaves: returns whether the node is stopping, so that connections end after their answers.
    """

    def __init__(self, stream: Stream, serve: Serves, leaves: Callable[[], bool] = lambda: False) -> None:
        self._stream, self._serve, self._leaves = stream, serve, leaves
        self._plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        self._parser = Parser(host_of(stream), self._read_body)
        self._waits_since = math.inf  # time from which on a write has waited for the caller; inf: none waits
        self._request: HttpRequest | None = None  # the request that is being answered
        self._is_answered = self._is_last = False
        self._since = 0.0  # time at which the head of the request had arrived
        # When the connection is cut off unless more data arrive before, on trio's clock.
        self.until = trio.current_time() + IDLE_S
        self._serving = trio.CancelScope()

    async def run(self) -> None:
        """Serve the caller until it leaves or is disconnected."""
        try:
            with self._serving:
                while await self._answer_next():
                    pass
        except (*BROKEN, CallerGoneError) as gone:
            logger.debug("an HTTP client has disconnected: %r", gone)

    async def _answer_next(self) -> bool:
        """Answer the next request; return whether another one may follow."""
        parser = self._parser
        self.until = trio.current_time() + IDLE_S
        while not parser.requests and parser.fault is None:
            if not await self._read():
                return False
        self.until = math.inf
        if not parser.requests:
            assert parser.fault is not None
            self._request, self._is_answered, self._is_last = None, False, True
            await self._write(error_reply(UsageError(parser.fault.text), parser.fault.status))
            await self._end()
            return False
        self._request = request = parser.requests.popleft()
        self._is_answered, self._is_last, self._since = False, not request.is_kept_alive, trio.current_time()
        await self._serve(request, self._write)
        if self._is_last:
            await self._end()
        elif parser.requests:
            await trio.lowlevel.checkpoint()  # so that a caller that pipelines requests does not block other tasks
        return not self._is_last

    async def _read(self) -> bool:
        """Read some bytes; return False at the end."""
        data = await (self._receive() if self._stream is self._plain else self._stream.receive_some(READ_BYTES))
        if data:
            self._parser.feed(bytes(data))
        return bool(data)

    async def _receive(self) -> bytes:
        """Wait for a plain socket, then read; ``receive_some`` tries a read first, which is useless after a reply."""
        plain = self._plain.socket
        while True:
            await trio.lowlevel.wait_readable(plain)
            with suppress(BlockingIOError):
                return os.read(plain.fileno(), READ_BYTES)

    async def _read_body(self) -> None:
        """Read more of the body of the request that is being answered."""
        self._parser.check()
        request = self._request
        assert request is not None
        if request.headers.pop("expect", "").lower() == "100-continue":
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        late = self._since + IDLE_S + request.came_bytes / BODY_BYTES_S
        self.until = min(trio.current_time() + IDLE_S, late)
        if not await self._read():
            raise CallerGoneError("in the middle of a request")
        self.until = math.inf

    # -- replies ---------------------------------------------------------------------------------------------------

    async def _write(self, reply: HttpReply) -> None:
        if self._is_answered:
            raise CallerGoneError("in the middle of a reply")
        request, body = self._request, reply.body
        self._is_last = self._is_last or self._leaves() or (request is not None and not request.is_whole)
        if not isinstance(body, bytes):
            await self._write_pieces(reply, body)
            return
        lines = b"" if reply.status == 204 else b"content-length: %d\r\n" % len(body)
        if request is not None and request.is_old and not self._is_last:
            lines += b"connection: keep-alive\r\n"  # without it, a caller of HTTP/1.0 waits for the connection's end
        head = head_of(reply, lines, is_last=self._is_last)
        self._is_answered = True
        await self.send(head if request is not None and request.method == "HEAD" else head + body)

    async def _write_pieces(self, reply: HttpReply, pieces: AsyncGenerator[bytes]) -> None:
        """Write a body as fast as the caller reads it, until its end or until the caller has gone.

        If an error cuts the body short, the missing last chunk shows it to the caller.
        """
        is_chunked = self._request is not None and not self._request.is_old
        self._is_last, is_last = True, self._is_last or not is_chunked
        error: Exception | None = None
        is_whole = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            try:
                async with aclosing(pieces):
                    # Begin the generator first: a generator that has not begun does not close its stream at its end.
                    piece = await anext(pieces, None)
                    head = head_of(reply, b"transfer-encoding: chunked\r\n" if is_chunked else b"", is_last=is_last)
                    self._is_answered = True
                    await self.send(head)
                    while piece is not None:
                        if piece:
                            await self.send(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
                        piece = await anext(pieces, None)
                is_whole = True
            except Exception as unexpected:
                error = unexpected
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error
        if not is_whole:
            raise CallerGoneError("in the middle of a reply")
        if is_chunked:
            await self.send(b"0\r\n\r\n")
        self._is_last = is_last

    async def _watch(self, writing: trio.CancelScope) -> None:
        """Read until the caller has gone, then cancel writing. The parser keeps the head of a further request."""
        if self._request is not None and not self._request.is_whole:
            return  # the handler does not read the remaining body now, so it would fill the memory without a bound
        with suppress(*BROKEN):
            while await self._read():
                if self._parser.requests or self._parser.fault is not None:
                    return  # the caller is there; if it leaves now, the next write fails
        writing.cancel()

    async def send(self, data: bytes) -> None:
        """Write bytes.

        Raises:
            BrokenResourceError: the caller has gone, or does not read.
        """
        if self._stream is self._plain and len(data) <= READ_BYTES:
            data = self._send_now(data)
        for start in range(0, len(data), READ_BYTES):
            self._waits_since = trio.current_time()
            await self._stream.send_all(data[start : start + READ_BYTES] if len(data) > READ_BYTES else data)
        self._waits_since = math.inf

    def _send_now(self, data: bytes) -> bytes:
        """Send as much as the kernel takes, without a checkpoint; return the rest.

        The next read has a checkpoint. A second one for each reply would be a tenth of the cost of a short request.
        """
        try:
            return data[os.write(self._plain.socket.fileno(), data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def _end(self) -> None:
        """End the connection after reading the caller's bytes: unread ones would make the kernel reset it, and the
        caller would lose the answer.
        """
        is_read = self._request is not None and self._request.is_whole
        with trio.move_on_after(FAREWELL_S), suppress(*BROKEN):
            if self._stream is self._plain:
                await self._plain.send_eof()
            for _ in range(0 if is_read else FAREWELL_READS):
                if not await self._stream.receive_some(READ_BYTES):
                    break
            await self._stream.aclose()

    # -- bounds ----------------------------------------------------------------------------------------------------

    @property
    def stuck_seconds(self) -> float:
        """The time for which a write has been waiting for the caller, in seconds."""
        return max(0.0, trio.current_time() - self._waits_since)

    def cancel_if_abandoned(self) -> None:
        """Cancel a long read, or a long call of libSQL, after its caller has gone."""
        request, fd = self._request, self._plain.socket.fileno()
        if request is None or self._is_answered or not (request.is_whole and request.ends_with_caller) or fd < 0:
            return
        if trio.current_time() - self._since > LOOK_S:
            poll = select.poll()
            poll.register(fd, select.POLLRDHUP)
            if poll.poll(0):
                self._serving.cancel()

    def cut(self) -> None:
        """End the connection at once and wake its tasks; bytes that the caller has not read are thrown away."""
        if self._waits_since < math.inf:
            with suppress(OSError):  # the socket is closed already
                self._plain.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._plain.socket.close()


def head_of(reply: HttpReply, length: bytes, *, is_last: bool) -> bytes:
    """Return the head of a reply, including the line for the length of the body."""
    lines = _LINES.get(reply.status) or _line_of(reply.status)
    for name, value in reply.headers.items():
        lines += f"{name}: {value}\r\n".encode("latin-1")
    return b"%b%b%b%b%b\r\n" % (lines, _SAFETY, length, b"connection: close\r\n" if is_last else b"", _date())


_LINES: dict[int, bytes] = {}


def _line_of(status: int) -> bytes:
    _LINES[status] = line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    return line


_written: tuple[int, bytes] = (0, b"")


def _date() -> bytes:
    global _written
    now = int(time.time())
    if _written[0] != now:
        _written = now, f"date: {formatdate(now, usegmt=True)}\r\n".encode()
    return _written[1]


async def serve_connections(
    serve: Serves,  # answers a request
    listener: socket.socket,  # the listening socket, which is closed at the end
    tls: ssl.SSLContext | None,  # the encryption of connections; None: they are plain
    patience_s: float,  # how long a caller may take for a part of an answer, in seconds
    connections: set[HttpConnection],  # the set that has each connection while it is served
    leaves: Callable[[], bool] = lambda: False,  # returns whether the node is stopping
) -> None:
    """Accept connections and serve their requests, until cancelled."""
    most, by_host = files_max(), Counter[str]()

    async def run(stream: Stream) -> None:
        plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        host = host_of(stream)
        full = plain.socket.fileno() >= most
        if full or not fits(most, len(connections), by_host[host]):
            why = "too many files are open" if full else f"{host} has its share of connections, {by_host[host]}"
            logger.warning("refused an HTTP client: %s; raise the limit of open files (ulimit -n)", why)
            await trio.aclose_forcefully(stream)
            return
        connection = HttpConnection(stream, serve, leaves)
        connections.add(connection)
        by_host[host] += 1
        try:
            await connection.run()
        finally:
            connections.discard(connection)
            by_host[host] -= 1
            if not by_host[host]:
                del by_host[host]
            await trio.aclose_forcefully(stream)

    async def watch() -> None:
        while True:
            await trio.sleep(min(LOOK_S, patience_s / 4))
            now = trio.current_time()
            for one in list(connections):
                if one.stuck_seconds > patience_s:
                    logger.warning("a caller of HTTP did not read for %g s, and was cut off", patience_s)
                    one.cut()
                elif now > one.until:
                    one.cut()
                else:
                    one.cancel_if_abandoned()

    plain = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    listeners = [plain if tls is None else trio.SSLListener(plain, tls, https_compatible=True)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.serve_listeners(run, listeners)
