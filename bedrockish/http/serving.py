"""Serves the application with hypercorn, in the node's own event loop."""

import logging
import socket
from typing import Any, cast

import trio
from hypercorn.config import Config as Settings
from hypercorn.trio import serve

from bedrockish.addresses import Address
from bedrockish.client.entry import Entry
from bedrockish.config import Config
from bedrockish.errors import ConfigError
from bedrockish.gate import Gate
from bedrockish.http.app import make_app
from bedrockish.runtime import Runtime

logger = logging.getLogger(__name__)

BACKLOG = 100
IDLE_S = 75.0


async def serve_http(
    node: Runtime,
    config: Config,
    gate: Gate,
    entry: Entry,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. If the server itself fails, the node goes on without it and says so.

    Raises:
        ConfigError: the address cannot be used.
    """
    assert config.http is not None
    listener = await _listen(config.http)
    host, port = listener.getsockname()[:2]
    settings = Settings()
    settings.bind = [f"fd://{listener.detach()}"]
    settings.errorlog = logging.getLogger("hypercorn")
    settings.errorlog.setLevel(logging.WARNING)  # what it says of its own start is said here
    settings.keep_alive_timeout = IDLE_S
    if config.security.tls:
        settings.certfile, settings.keyfile = config.security.tls_certificate, config.security.tls_key
    settings.include_server_header = False
    settings.graceful_timeout = 0.0  # whoever is still waiting asks another node with the same command id
    app = make_app(node, config.http_token, frozenset({config.http.host, str(host)}), gate, entry)
    scheme = "https" if config.security.tls else "http"
    logger.info("HTTP and the dashboard are on %s://%s", scheme, Address(str(host), port))
    task_status.started()
    try:
        # Both sides mean ASGI, each in types of its own.
        await serve(cast(Any, app), settings, shutdown_trigger=trio.sleep_forever, mode="asgi")
    except* (OSError, RuntimeError, trio.TrioInternalError) as errors:
        logger.exception("HTTP has failed; the node goes on without it", exc_info=errors)


async def _listen(address: Address) -> socket.socket:
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
