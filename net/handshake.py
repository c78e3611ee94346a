"""Handshake: from an open stream, or only an address, to two ends that know each other; or to a clear refusal.

Whatever goes wrong here, the stream is closed and the other end was told why, if it could still be told.
"""

import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from net.connection import Connection, Side
from net.errors import (
    Code,
    DialError,
    LinkClosedError,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
    TlsError,
)
from net.events import Event, Goodbye, Hello
from net.limits import Limits
from net.secret import Secret
from net.tls import check_certificate

READ_BYTES = 256 * 1024
BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, ssl.SSLError)


Admits = Callable[[trio.abc.Stream, Hello], Awaitable[None]]


async def dial(
    host: str,
    port: int,
    hello: Hello,
    seconds: float,
    limits: Limits,
    ssl_context: ssl.SSLContext | None,
    secret: Secret | None = None,
) -> tuple[trio.abc.Stream, Connection]:
    """Connect, say HELLO and wait for the answer. Raises what ``Link.dial`` says.

    With ``secret``, both ends must prove that they know it.
    """
    where = address_text(host, port)
    with trio.move_on_after(seconds):
        try:
            stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)  # it sets TCP_NODELAY
        except OSError as error:
            raise DialError(f"cannot connect to {where}: {error_text(error)}") from error
        if ssl_context is not None:
            stream = trio.SSLStream(stream, ssl_context, server_hostname=hello.to or host)
        try:
            return stream, await dial_on(stream, hello, limits, secret)
        except BROKEN as error:
            await trio.aclose_forcefully(stream)
            if isinstance(error.__cause__ or error, ssl.SSLError):
                raise TlsError(f"no TLS with {where}: {error_text(error)}") from error
            raise DialError(f"{where} hung up before it said HELLO: {error_text(error)}") from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
    raise DialError(f"{where} did not answer within {seconds:g} s")


async def dial_on(stream: trio.abc.Stream, hello: Hello, limits: Limits, secret: Secret | None = None) -> Connection:
    """Say HELLO on a stream that is open, and wait for the answer; on an error, closing it is the caller's.

    Raises:
        RefusedError: the answer was a GOODBYE, or came with the certificate of another node, or without the secret.
        RemoteProtocolError: the answer was nonsense, or of someone else; it was told so.
        trio.BrokenResourceError: the stream ended.
    """
    if secret is not None:
        hello = secret.prove(hello)
    connection = Connection(Side.DIALLER, hello, limits)
    await stream.send_all(connection.send(hello))
    try:
        event = await _next_event(stream, connection)
    except RemoteProtocolError as error:
        await hang_up(stream, error.answer, limits.goodbye_seconds)
        raise
    if isinstance(event, Goodbye):
        raise RefusedError(event.code, f"the other end refused: {event.message or event.code}")
    if not isinstance(event, Hello):
        raise trio.BrokenResourceError("the stream ended")
    try:
        check_certificate(stream, event)
        if secret is not None:
            secret.check(event, hello)
    except RefusedError as error:
        await hang_up(stream, connection.send(Goodbye(error.code, str(error))), limits.goodbye_seconds)
        raise
    return connection


async def accept(
    stream: trio.abc.Stream,
    local: Hello,
    welcome: Callable[[Hello], Hello],
    limits: Limits,
    ssl_context: ssl.SSLContext | None,
    secret: Secret | None = None,
    admit: Admits | None = None,
) -> tuple[trio.abc.Stream, Connection]:
    """Wait for a HELLO and answer it. Raises what ``Link.accept`` says.

    A peer must know ``secret``. ``admit`` is shown everyone's HELLO, may take its time, and raises RefusedError.
    """
    if ssl_context is not None:
        stream = trio.SSLStream(stream, ssl_context, server_side=True)
    connection = Connection(Side.ACCEPTER, local, limits)
    answer = b""
    done = False
    try:
        with trio.move_on_after(limits.hello_seconds) as scope:
            await _accept_on(stream, connection, welcome, secret, admit)
        if scope.cancelled_caught:
            raise RefusedError(Code.TIMEOUT, f"no HELLO within {limits.hello_seconds:g} s")
        done = True
    except RemoteProtocolError as error:
        answer = error.answer
        raise
    except RefusedError as error:
        with suppress(LocalProtocolError):  # we may be past the moment for a GOODBYE
            answer = connection.send(Goodbye(error.code, str(error)))
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
    secret: Secret | None,
    admit: Admits | None,
) -> None:
    event = await _next_event(stream, connection)
    if isinstance(event, Goodbye):
        raise RefusedError(event.code, f"the dialler said goodbye: {event.message or event.code}")
    if not isinstance(event, Hello):
        raise trio.BrokenResourceError("the stream ended")
    check_certificate(stream, event)
    if secret is not None and event.role == "peer":
        secret.check(event)
    if admit is not None:
        await admit(stream, event)
    answer = welcome(event)
    await stream.send_all(connection.send(answer if secret is None else secret.prove(answer, event)))


async def _next_event(stream: trio.abc.Stream, connection: Connection) -> Event:
    while (event := connection.next_event()) is None:
        connection.receive_data(bytes(await stream.receive_some(READ_BYTES)))
    return event


async def hang_up(stream: trio.abc.Stream, farewell: bytes, seconds: float) -> None:
    """Say the last bytes and close, waiting at most so long, cancelled or not.

    Closing a socket on which unread bytes are waiting resets it, and the other end then loses our last words; so we
    say that we are done and read on until the other end is done too.
    """
    with trio.move_on_after(seconds, shield=True), suppress(*BROKEN):
        if farewell:
            await stream.send_all(farewell)
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
            while await stream.receive_some(READ_BYTES):
                pass
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)


def error_text(error: BaseException) -> str:
    """Return what the operating system or trio says, in the words nearest to the cause."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):  # one for each address of a name; people want to read one
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, ssl.SSLError):
        return cause.strerror
    return str(cause) or str(error) or type(cause).__name__


def address_text(host: str, port: int) -> str:
    """Return an address as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
