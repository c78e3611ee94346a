"""Serves the application with hypercorn, in the node's own event loop."""

import logging
import socket
import ssl
from typing import Any, cast

import trio
from hypercorn.config import Config as Settings

from bedrockish.api.url import Address
from bedrockish.config.config import Config
from bedrockish.errors import ConfigError
from bedrockish.http.app import make_app
from bedrockish.http.connections import Coat, serve_connections
from bedrockish.node.admin.watching import files_max
from bedrockish.node.cluster.authentication import Credentials, Gate
from bedrockish.node.event_loop import Runtime

logger = logging.getLogger(__name__)

BACKLOG = 100
IDLE_S = 75.0


class _Settings(Settings):
    """Hypercorn's, with a certificate that is read again when the node's is.

    TLS looks at the context of each handshake after the first message, and takes another one if it is given one.
    """

    credentials: Credentials
    _current: tuple[int, ssl.SSLContext | None] = (0, None)

    def create_ssl_context(self) -> ssl.SSLContext | None:
        """Return the context that hypercorn listens with; None without TLS."""
        context = super().create_ssl_context()
        if context is not None:
            context.sni_callback = self._renew
        return context

    def _renew(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        reads, current = self._current
        if reads != self.credentials.reads:
            current = super().create_ssl_context()
            self._current = self.credentials.reads, current
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
    """Serve until cancelled. If the server itself fails, it is started again while the node goes on.

    Raises:
        ConfigError: the address cannot be used.
    """
    assert config.http is not None
    listener = await listen(config.http)
    host, port = listener.getsockname()[:2]
    settings = settings_of(config, credentials)
    app, pipelines = make_app(node, config.http_token, frozenset({config.http.host, str(host)}), gate, credentials)
    scheme = "https" if config.security.encrypts else "http"
    logger.info("HTTP and the dashboard are on %s://%s", scheme, Address(str(host), port))
    task_status.started()

    async def run() -> None:
        nonlocal listener
        if listener.fileno() < 0:  # it was closed when the server failed
            listener = await listen(Address(str(host), port))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipelines.watch)
            coats = cast(set[Coat], node.callers)
            patience_s = config.limits.idle_stream_ms / 1000
            # Both sides mean ASGI, each in types of its own.
            await serve_connections(
                cast(Any, app),
                settings,
                listener,
                settings.create_ssl_context(),
                patience_s,
                coats,
                files_max(),
                node.engine.memory,
            )

    await node.faults.keep_running("serving HTTP", run)


def settings_of(config: Config, credentials: Credentials) -> Settings:
    """Return hypercorn's settings for a node."""
    settings = _Settings()
    settings.credentials = credentials
    settings.errorlog = logging.getLogger("hypercorn")
    settings.errorlog.setLevel(logging.WARNING)  # what it says of its own start is said here
    settings.keep_alive_timeout = IDLE_S
    if config.security.encrypts:
        files = config.security.files(config.node)
        settings.certfile, settings.keyfile = files.certificate, files.key
    settings.include_server_header = False
    return settings


async def listen(address: Address) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: the address cannot be used.
    """
    try:
        found = await trio.socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(f"http: {address} cannot be used: {error.strerror}; choose another address") from error
    return listener
