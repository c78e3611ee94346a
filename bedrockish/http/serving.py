"""Serves HTTP in the node's own event loop."""

import logging
import socket
import ssl
from typing import Any, cast

import trio

from bedrockish.api.url import Address
from bedrockish.config.config import Config
from bedrockish.errors import ConfigError
from bedrockish.http.app import make_app
from bedrockish.http.connections import HttpConnection, serve_connections
from bedrockish.node.cluster.authentication import Credentials, Gate
from bedrockish.node.runtime import Runtime
from bedrockish_net.listening import LACKING

logger = logging.getLogger(__name__)

BACKLOG = 100


class ServerCertificate:
    """The node's certificate for HTTP, which is read again whenever the certificate of its links is read again.

    TLS calls ``_renew`` after the first message of each handshake; ``_renew`` then sets the newest context.

    Args:
        credentials: counts how often certificates were read.
    """

    def __init__(self, config: Config, credentials: Credentials) -> None:
        self._config, self._credentials = config, credentials
        self._current: tuple[int, ssl.SSLContext | None] = (0, None)

    def context(self) -> ssl.SSLContext | None:
        """Return the context to listen with; None if TLS is off.

        Raises:
            OSError: a file cannot be read.
        """
        context = self._read()
        if context is not None:
            context.sni_callback = self._renew
        return context

    def _read(self) -> ssl.SSLContext | None:
        if not self._config.security.encrypts:
            return None
        files = self._config.security.files(self._config.node)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(files.certificate, files.key)
        return context

    def _renew(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        reads, current = self._current
        if reads != self._credentials.reads:
            current = self._read()
            self._current = self._credentials.reads, current
        if current is not None:
            handshake.context = current


async def serve_http(
    node: Runtime,
    config: Config,
    gate: Gate,
    credentials: Credentials,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. If the server itself fails, it is started again; the node keeps running.

    Raises:
        ConfigError: the address cannot be used.
    """
    assert config.http is not None
    listener = await listen(config.http)
    host, port = listener.getsockname()[:2]
    certificate = ServerCertificate(config, credentials)
    hosts = frozenset({config.http.host, str(host)})
    guard, pipelines = make_app(node, config.http_token, hosts, gate)
    scheme = "https" if config.security.encrypts else "http"
    logger.info("HTTP is on %s://%s", scheme, Address(str(host), port))
    task_status.started()

    async def run() -> None:
        nonlocal listener
        if listener.fileno() < 0:  # the socket was closed when the server failed
            listener = await listen(Address(str(host), port))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipelines.watch)
            connections = cast(set[HttpConnection], node.callers)
            patience_s = config.limits.idle_stream_ms / 1000
            leaves, tls = lambda: node.is_leaving, certificate.context()
            await serve_connections(guard.serve, listener, tls, patience_s, connections, leaves=leaves)

    await node.faults.keep_running("serving HTTP", run)


async def listen(address: Address) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: the address cannot be used.
    """
    try:
        found = await trio.socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for one in found[:-1]:
            try:
                return _listen_on(one)
            except OSError as error:  # the machine may lack one of the addresses, such as ``::1`` of ``localhost``
                if error.errno not in LACKING:
                    raise
        return _listen_on(found[-1])
    except OSError as error:
        raise ConfigError(f"http: {address} cannot be used: {error.strerror}; choose another address") from error


def _listen_on(found: tuple[Any, ...]) -> socket.socket:
    """Listen on an address that ``getaddrinfo`` has found."""
    family, kind, protocol, _, where = found
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
