"""The handshake: opens a stream to an address, or takes an open one, and exchanges HELLOs, or refuses with a reason.

On any failure the stream is closed, after a GOODBYE with the reason if the stream still allows it.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

from bedrockish_net.connection import Connection, Side
from bedrockish_net.errors import (
    Code,
    DialError,
    LinkClosedError,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
    TlsError,
)
from bedrockish_net.events import Event, Goodbye, Hello
from bedrockish_net.limits import LinkLimits
from bedrockish_net.link_texts import READ_BYTES, WAY_TO_TLS, address_text, broken_off, error_text, not_connected
from bedrockish_net.local_socket import is_loopback, is_path, short_path
from bedrockish_net.tls import check_certificate

BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, ssl.SSLError)


UNSENT_BYTES_MAX = 128 * 1024  # limit of the kernel's send buffer

Admits = Callable[[trio.abc.Stream, Hello], Awaitable[None]]
Recognises = Callable[[Hello], None]
Trusts = Callable[[trio.abc.Stream], None]


async def dial(
    host: str,
    port: int,
    hello: Hello,
    seconds: float,
    limits: LinkLimits,
    ssl_context: ssl.SSLContext | None,
    trust: Trusts = lambda _: None,
    recognise: Recognises = lambda _: None,
) -> tuple[trio.abc.Stream, Connection]:
    """Connect within ``seconds``, send HELLO and wait for the answer. Return the stream and the connection.

    Of several addresses of ``host``, the first that answers is used. Only the node that ``hello`` names may answer.
    ``trust`` checks the stream, and ``recognise`` the answering HELLO; both may raise RefusedError. Without TLS,
    nothing is sent to another machine.

    Raises:
        DialError: no answer came in time.
        RefusedError: the other end sent GOODBYE instead, with its reason.
        RemoteProtocolError: the other end does not speak the protocol, or is not the expected node.
    """
    where = address_text(host, port)
    if is_path(host):
        ssl_context = None  # a Unix socket does not leave the machine
    with trio.move_on_after(seconds):
        try:
            stream: trio.abc.Stream = await _open_stream(host, port)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no machine can have
            raise not_connected(host, port, error) from error
        if ssl_context is not None:
            stream = trio.SSLStream(stream, ssl_context, server_hostname=hello.to or host)
        try:
            if ssl_context is None and not is_on_this_machine(stream):
                raise TlsError(f"{where} is on another machine, and nothing goes there without TLS; {WAY_TO_TLS}")
            return stream, await dial_on(stream, hello, limits, trust, recognise)
        except BROKEN as error:
            await trio.aclose_forcefully(stream)
            raise broken_off(where, error, hello, ssl_context) from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
    raise DialError(f"{where} did not answer within {seconds:g} s")


async def dial_on(
    stream: trio.abc.Stream,
    hello: Hello,
    limits: LinkLimits,
    trust: Trusts = lambda _: None,
    recognise: Recognises = lambda _: None,
) -> Connection:
    """Send HELLO on an open stream, wait for the answer, and return the connection. On an error the caller closes it.

    Raises:
        RefusedError: the answer is a GOODBYE, or comes with a certificate of another node, or an untrusted one.
        RemoteProtocolError: the answer is malformed, or from another node than expected; a GOODBYE was sent.
        trio.BrokenResourceError: the stream ended.
    """
    connection = Connection(Side.DIALLER, hello, limits)
    await stream.send_all(connection.send(hello))
    try:
        event = await _next_event(stream, connection)
    except RemoteProtocolError as error:
        await hang_up(stream, error.answer, limits.goodbye_seconds)
        raise
    if isinstance(event, Goodbye):
        trust(stream)
        if hello.role == "peer" and hello.to is not None:  # a refusal counts only with the peer's certificate
            check_certificate(stream, hello.to)
        raise RefusedError(event.code, f"the other end refused: {event.message or event.code}", event.info)
    if not isinstance(event, Hello):
        raise trio.BrokenResourceError("the stream ended")
    try:
        trust(stream)
        if event.role == "peer":
            check_certificate(stream, event.node)
        recognise(event)
    except RefusedError as error:
        await hang_up(stream, connection.send(Goodbye(error.code, str(error), error.info)), limits.goodbye_seconds)
        raise
    return connection


async def accept(
    stream: trio.abc.Stream,
    local: Hello,
    welcome: Callable[[Hello], Hello],
    limits: LinkLimits,
    ssl_context: ssl.SSLContext | None,
    trust: Trusts = lambda _: None,
    admit: Admits | None = None,
) -> tuple[trio.abc.Stream, Connection]:
    """Wait for a HELLO and send the answer that ``welcome`` returns for it. Return the stream and the connection.

    ``trust`` checks the stream. ``admit`` checks the stream and the HELLO, and may take long. All three may raise
    RefusedError.

    Raises:
        RefusedError: the dialler was refused, the HELLO took too long, or the dialler sent GOODBYE.
        RemoteProtocolError: the dialler does not speak the protocol, or belongs elsewhere; a GOODBYE was sent.
        LinkClosedError: the dialler hung up.
    """
    if ssl_context is not None:
        stream = trio.SSLStream(stream, ssl_context, server_side=True)
    connection = Connection(Side.ACCEPTER, local, limits)
    answer = b""
    done = False
    try:
        with trio.move_on_after(limits.hello_seconds) as scope:
            await _accept_on(stream, connection, welcome, trust, admit)
        if scope.cancelled_caught:
            raise RefusedError(Code.TIMEOUT, f"no HELLO within {limits.hello_seconds:g} s")
        done = True
    except RemoteProtocolError as error:
        answer = error.answer
        raise
    except RefusedError as error:
        with suppress(LocalProtocolError):  # the state may no longer allow a GOODBYE
            answer = connection.send(Goodbye(error.code, str(error), error.info))
        raise
    except BROKEN as error:
        raise LinkClosedError(Code.LOST, f"hung up before HELLO: {error_text(error)}") from error
    finally:
        if not done:
            await hang_up(stream, answer, limits.goodbye_seconds)
    return stream, connection


async def _accept_on(
    stream: trio.abc.Stream,
    connection: Connection,
    welcome: Callable[[Hello], Hello],
    trust: Trusts,
    admit: Admits | None,
) -> None:
    event = await _next_event(stream, connection)
    if isinstance(event, Goodbye):
        raise RefusedError(event.code, f"the dialler said goodbye: {event.message or event.code}")
    if not isinstance(event, Hello):
        raise trio.BrokenResourceError("the stream ended")
    trust(stream)
    if event.role == "peer":  # a client's certificate may have any name
        check_certificate(stream, event.node)
    if admit is not None:
        await admit(stream, event)
    await stream.send_all(connection.send(welcome(event)))


async def _next_event(stream: trio.abc.Stream, connection: Connection) -> Event:
    while (event := connection.next_event()) is None:
        connection.receive_data(bytes(await stream.receive_some(READ_BYTES)))
    return event


async def hang_up(stream: trio.abc.Stream, last_bytes: bytes, seconds: float) -> None:
    """Send the last bytes and close the stream, within ``seconds``, even if the task is cancelled.

    Closing a socket with unread bytes resets it, and the other end then loses our last bytes. So this end closes its
    half and reads until the other end has closed its half, too.
    """
    with trio.move_on_after(seconds, shield=True), suppress(*BROKEN):
        if last_bytes:
            await stream.send_all(last_bytes)
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
            while await stream.receive_some(READ_BYTES):
                pass
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)


def is_on_this_machine(stream: trio.abc.Stream) -> bool:
    """Return whether the other end of a stream is on this machine.

    Raises:
        OSError: the other end has hung up already.
    """
    raw: Any = stream
    while isinstance(raw, trio.SSLStream):
        raw = raw.transport_stream
    try:
        address = raw.socket.getpeername()
    except AttributeError:  # a stream without a socket, such as two ends in one program
        return True
    return isinstance(address, str) or is_loopback(str(address[0]))  # a text is the path of a Unix socket


def is_local(stream: trio.abc.Stream) -> bool:
    """Return whether a stream is a connection to the node's Unix socket."""
    return isinstance(stream, trio.SocketStream) and stream.socket.family == getattr(socket, "AF_UNIX", None)


async def _open_stream(host: str, port: int) -> trio.SocketStream:
    if not is_path(host):
        stream = await trio.open_tcp_stream(host, port)  # Trio sets TCP_NODELAY
        _limit_send_buffer(stream)
        return stream
    made = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(host) as short:
            await made.connect(short)
    except BaseException:
        made.close()
        raise
    return trio.SocketStream(made)


def _limit_send_buffer(stream: trio.abc.Stream) -> None:
    """Limit the kernel's send buffer, so that most unsent bytes wait here, where urgent messages can overtake them."""
    option = getattr(trio.socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None and isinstance(stream, trio.SocketStream):
        stream.setsockopt(trio.socket.IPPROTO_TCP, option, UNSENT_BYTES_MAX)


def host_of(stream: trio.abc.Stream) -> str:
    """Return the address of the other end without its port; empty if it has hung up, or for a Unix socket."""
    raw: Any = stream
    while isinstance(raw, trio.SSLStream):
        raw = raw.transport_stream
    try:
        return str(raw.socket.getpeername()[0])
    except (AttributeError, IndexError, OSError):
        return ""
