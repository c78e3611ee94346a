"""Sizes of reads and error texts that links with and without an event loop share. The module is pure, so that a program
whose threads wait for their own sockets imports no event loop.
"""

import ssl

from bedrockish_net.errors import DialError, TlsError
from bedrockish_net.events import Hello
from bedrockish_net.local_socket import is_path

READ_BYTES, READ_FIRST_BYTES = 256 * 1024, 32 * 1024
"""The sizes of a read: of a long stream, and of the first read. The larger buffer costs more than most reads, because
it is allocated and freed each time."""
MAY_BE_TLS = (
    "a node that speaks TLS does that: a client names its authority, as in bedrockish://HOST:PORT/?ca=certs/ca.pem"
)
MAY_WANT_CERTIFICATE = (
    "a node without users lets only certificates in: a client shows one, as in "
    "bedrockish://HOST:PORT/?ca=certs/ca.pem&cert=certs/app.pem&key=certs/app-key.pem"
)
NEW_CERTIFICATE = (
    "make a new one with 'bedrockish tls certs' in the authority's folder, put it in the place of the old one, and "
    "have a node read it again: systemctl reload, or SIGHUP"
)
WAY_TO_TLS = (
    "nodes get certificates by 'bedrockish tls certs NODE=HOST ...' and show them by 'bedrockish serve --set "
    "tls=certs', and clients name the authority, as in bedrockish://HOST:PORT/?ca=certs/ca.pem"
)


def not_connected(host: str, port: int, error: Exception) -> DialError:
    """Return the error for an address that could not be reached."""
    where = address_text(host, port)
    if is_path(host) and isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return DialError(f"no node listens at {where} now: the node is stopped, or is restarting")
    return DialError(f"cannot connect to {where}: {error_text(error)}")


def broken_off(where: str, error: Exception, hello: Hello, ssl_context: ssl.SSLContext | None) -> DialError:
    """Return the error for a link that broke off before the other end had said HELLO."""
    said = error_text(error)
    # An end that expects TLS, or plain text, breaks off without a reason, because it cannot know which form the other
    # end would understand. Only clients get the hint: people read their errors, while an operator sets up peers.
    hint = "" if hello.role != "client" else f"; {MAY_BE_TLS if ssl_context is None else MAY_WANT_CERTIFICATE}"
    if isinstance(error.__cause__ or error, ssl.SSLError):
        if "certificate has expired" in said:
            return TlsError(f"no TLS with {where}: its certificate has expired; {NEW_CERTIFICATE}")
        if "CERTIFICATE_EXPIRED" in said:
            return TlsError(f"no TLS with {where}: the certificate of this end has expired; {NEW_CERTIFICATE}")
        if isinstance(error.__cause__ or error, ssl.SSLEOFError):
            # Without an alert, TLS was not refused: a process that stops or restarts breaks its links off like that.
            return DialError(f"{where} hung up during the TLS handshake: {said}{hint}")
        return TlsError(f"no TLS with {where}: {said}{hint if 'CERTIFICATE_REQUIRED' in said else ''}")
    return DialError(f"{where} hung up before it said HELLO: {said}{hint}")


def error_text(error: BaseException) -> str:
    """Return the operating system's or Trio's text for the innermost cause of an error."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):  # an error for each address of a name; the first one is enough
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, ssl.SSLError):
        is_repeated = cause.strerror.startswith("Error connecting to ")  # Trio's error text already has the address
        return cause.strerror.rpartition(": ")[2] if is_repeated else cause.strerror
    return str(cause) or str(error) or type(cause).__name__


def address_text(host: str, port: int) -> str:
    """Return host and port as one text; for a Unix socket, its path."""
    if is_path(host):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
