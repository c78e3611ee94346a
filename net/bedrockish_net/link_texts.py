"""Sizes of reads and texts of errors for links with and without an event loop. Pure, so that a program whose threads
wait for their own sockets imports no event loop.
"""

import ssl

from bedrockish_net.errors import DialError, TlsError
from bedrockish_net.events import Hello
from bedrockish_net.local_socket import is_path

READ_BYTES, READ_FIRST_BYTES = 256 * 1024, 32 * 1024
"""What is read at once: of what goes on and on, and at first. Room for the greater one costs more than most reads: the
system is asked for it each time, and gets it back."""
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


def broken_off(where: str, error: Exception, hello: Hello, ssl_context: ssl.SSLContext | None) -> DialError:
    """Return the error for a link that broke off before the other end had said HELLO."""
    said = error_text(error)
    # A door that wants something else says nothing: it cannot know what would be understood. The reason goes to clients
    # only, whose reader is a person; peers get their certificates from the operator.
    hint = "" if hello.role != "client" else f"; {MAY_BE_TLS if ssl_context is None else MAY_WANT_CERTIFICATE}"
    if isinstance(error.__cause__ or error, ssl.SSLError):
        if "certificate has expired" in said:
            return TlsError(f"no TLS with {where}: its certificate has expired; {NEW_CERTIFICATE}")
        if "CERTIFICATE_EXPIRED" in said:
            return TlsError(f"no TLS with {where}: the certificate of this end has expired; {NEW_CERTIFICATE}")
        if isinstance(error.__cause__ or error, ssl.SSLEOFError):
            # No alert came, so TLS was not refused: a process that ends, or begins again, leaves its links like that.
            return DialError(f"{where} hung up during the TLS handshake: {said}{hint}")
        return TlsError(f"no TLS with {where}: {said}{hint if 'CERTIFICATE_REQUIRED' in said else ''}")
    return DialError(f"{where} hung up before it said HELLO: {said}{hint}")


def error_text(error: BaseException) -> str:
    """Return what the operating system or trio says, in the words nearest to the cause."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):  # one for each address of a name; people want to read one
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, ssl.SSLError):
        is_repeated = cause.strerror.startswith("Error connecting to ")  # Trio's text has the address, as the caller's
        return cause.strerror.rpartition(": ")[2] if is_repeated else cause.strerror
    return str(cause) or str(error) or type(cause).__name__


def address_text(host: str, port: int) -> str:
    """Return an address as people write it; the path of a Unix socket is one by itself."""
    if is_path(host):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
