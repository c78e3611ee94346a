"""A link on a plain socket, for programs without an event loop.

Only ``dial`` waits. The caller polls the socket when its buffer is full or it has nothing to read.
"""

import socket
import ssl
import time
from collections import deque
from functools import partial

from bedrockish_net.connection import Connection, Side
from bedrockish_net.errors import Code, DialError, LinkClosedError, RefusedError, RemoteProtocolError, TlsError
from bedrockish_net.events import Closed, Data, Goodbye, Hello, Ping
from bedrockish_net.limits import LinkLimits
from bedrockish_net.link_texts import (
    READ_BYTES,
    READ_FIRST_BYTES,
    WAY_TO_TLS,
    address_text,
    broken_off,
    error_text,
    not_connected,
)
from bedrockish_net.local_socket import connect, is_loopback, is_path

# The monotonic clock, under a name that test libraries which freeze the time do not replace. Windows lacks
# ``clock_gettime``.
monotonic = (
    partial(time.clock_gettime, time.CLOCK_MONOTONIC) if hasattr(time, "clock_gettime") else partial(time.monotonic)
)
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class SocketLink:
    """An open link; both ends have said HELLO. Get one from ``dial``. One thread at a time may use it.

    Attributes:
        over: the reason why the link ended; None while it is open.
        heard: the time in seconds at which the other end last sent or accepted bytes.
        remote: the HELLO of the other end.
    """

    def __init__(self, sock: socket.socket, connection: Connection, limits: LinkLimits, remote: Hello) -> None:
        self._sock, self._connection, self._limits, self._name = sock, connection, limits, remote.node
        self.remote = remote
        self._unsent: deque[bytes] = deque()
        self.over: LinkClosedError | None = None
        self.heard = self._asked = monotonic()
        self._most = READ_FIRST_BYTES  # size of the next read
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        sock.setblocking(False)

    def fileno(self) -> int:
        """Return the socket's descriptor, for polling."""
        return self._sock.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether the send buffer has bytes that the socket did not accept yet."""
        return bool(self._unsent)

    def send(self, payload: bytes) -> None:
        """Send one message, as far as the socket has room; ``flush`` sends the rest.

        Raises:
            LocalProtocolError: the message is longer than a frame may be.
        """
        self._write(self._connection.send_data(payload))

    def _write(self, data: bytes) -> None:
        if self.over is not None:
            return
        if not self._unsent:
            data = self._push(data)
        if data:
            self._unsent.append(data)

    def _push(self, data: bytes) -> bytes:
        """Send as many bytes as the socket accepts; return the rest."""
        try:
            while data:
                data = data[self._sock.send(data) :]
        except WOULD_BLOCK:
            pass
        except OSError as error:
            self._end(Code.LOST, f"the stream to {self._name} broke: {error_text(error)}")
            return b""
        return data

    def flush(self) -> None:
        """Send buffered bytes, as many as the socket accepts now."""
        while self._unsent and self.over is None:
            waiting = self._unsent[0]
            rest = self._push(waiting)
            if len(rest) < len(waiting):
                self.heard = monotonic()  # a Ping would queue behind these bytes, so accepting some is a sign of life
            if rest:
                self._unsent[0] = rest
                return
            if self._unsent:
                self._unsent.popleft()

    def receive(self) -> list[bytes]:
        """Return the messages that have arrived; none if the socket is not readable, or the link has ended."""
        found: list[bytes] = []
        while self.over is None:
            try:
                data = self._sock.recv(self._most)
            except WOULD_BLOCK:
                break
            except OSError as error:
                self._end(Code.LOST, f"the stream from {self._name} broke: {error_text(error)}")
                break
            self.heard = monotonic()
            self._most = READ_FIRST_BYTES if len(data) < self._most else READ_BYTES
            self._process(data, found)
            if not self._is_tls:
                break  # the next poll reports further bytes of a plain socket, but not bytes that TLS has buffered
        return found

    def _process(self, data: bytes, found: list[bytes]) -> None:
        try:
            found += self._connection.receive_messages(data)
            while self._connection.has_more and (event := self._connection.next_event()) is not None:
                match event:
                    case Data(payload):
                        found.append(payload)
                    case Ping():
                        self._write(self._connection.send(event.response()))
                    case Goodbye(code, message):
                        self._end(code, f"{self._name} said goodbye: {message or code}")
                    case Closed():
                        self._end(Code.LOST, f"{self._name} hung up without a goodbye")
                    case _:
                        pass  # a Pong only counts as a sign of life, which is recorded already
        except RemoteProtocolError as error:
            self._push(error.answer)
            self._end(error.code, f"{self._name} broke the protocol: {error}")

    def tend(self, now: float) -> None:
        """Ping the other end after a silence, and end the link after a long one."""
        silent = now - self.heard
        if silent >= self._limits.silence_seconds:
            self._end(Code.TIMEOUT, f"{self._name} was silent for {self._limits.silence_seconds:g} s")
        elif silent >= self._limits.ping_seconds and now - self._asked >= self._limits.ping_seconds:
            self._asked = now
            if not self._unsent:
                self._write(self._connection.send(Ping()))

    def wake_at(self) -> float:
        """Return the time at which to call ``tend`` if no bytes arrive before."""
        return max(self.heard, self._asked) + self._limits.ping_seconds

    def excuse(self, now: float) -> None:
        """Count at most ``ping_seconds`` of silence up to now, because the caller has not read the link for a while."""
        self.heard = max(self.heard, now - self._limits.ping_seconds)

    def close(self) -> None:
        """Send GOODBYE, if the socket accepts it, and close the socket. A second call has no effect."""
        if self.over is None:
            if not self._unsent:
                self._push(self._connection.send(Goodbye(Code.SHUTDOWN, f"{self._connection.local.node} left")))
            self._end(Code.SHUTDOWN, f"{self._connection.local.node} closed the link")
        self._sock.close()

    def abandon(self) -> None:
        """Close this process's copy of the socket without a GOODBYE: after a fork the link belongs to the parent."""
        self._end(Code.SHUTDOWN, "the link belongs to the parent process")
        self._sock.close()

    def _end(self, code: str, reason: str) -> None:
        if self.over is None:
            self.over = LinkClosedError(code, reason)
            self._unsent.clear()


def dial(
    host: str, port: int, hello: Hello, seconds: float, limits: LinkLimits, ssl_context: ssl.SSLContext | None
) -> SocketLink:
    """Connect, send HELLO, wait for the answer in the calling thread, and return the link.

    Raises:
        DialError: no answer came in time.
        RefusedError: the other end sent GOODBYE instead, with its reason.
        RemoteProtocolError: the other end does not speak the protocol, or is not the expected node.
        TlsError: TLS failed, or is missing although the other end is on another machine.
    """
    where, until = address_text(host, port), monotonic() + seconds
    try:
        sock = connect(host, seconds) if is_path(host) else socket.create_connection((host, port), seconds)
    except TimeoutError as error:
        raise DialError(f"{where} did not answer within {seconds:g} s") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no machine can have
        raise not_connected(host, port, error) from error
    try:
        if is_path(host):
            ssl_context = None  # a Unix socket does not leave the machine
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ssl_context is not None:
            sock.settimeout(max(0.001, until - monotonic()))
            sock = ssl_context.wrap_socket(sock, server_hostname=hello.to or host)
        elif not is_path(host) and not is_loopback(str(sock.getpeername()[0])):
            raise TlsError(f"{where} is on another machine, and nothing goes there without TLS; {WAY_TO_TLS}")
        connection = _shake(sock, hello, limits, until)
        assert connection.remote is not None
        return SocketLink(sock, connection, limits, connection.remote)
    except TimeoutError as error:
        sock.close()
        raise DialError(f"{where} did not answer within {seconds:g} s") from error
    except OSError as error:  # includes errors of TLS
        sock.close()
        raise broken_off(where, error, hello, ssl_context) from error
    except BaseException:
        sock.close()
        raise


def _shake(sock: socket.socket, hello: Hello, limits: LinkLimits, until: float) -> Connection:
    connection = Connection(Side.DIALLER, hello, limits)
    sock.settimeout(max(0.001, until - monotonic()))
    sock.sendall(connection.send(hello))
    try:
        while (event := connection.next_event()) is None:
            sock.settimeout(max(0.001, until - monotonic()))
            connection.receive_data(sock.recv(READ_FIRST_BYTES))
    except RemoteProtocolError as error:
        sock.sendall(error.answer)
        raise
    if isinstance(event, Goodbye):
        raise RefusedError(event.code, f"the other end refused: {event.message or event.code}", event.info)
    if not isinstance(event, Hello):
        raise OSError("the stream ended")
    return connection
