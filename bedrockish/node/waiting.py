"""The service of a node that waits until its file can be written again: it answers every request with the reason.

A node that closed its ports would look dead: an operator would replace it, and a supervisor would kill it again and
again. So its port and its HTTP stay open. ``status`` and ``/status`` show the trouble, ``/livez`` reports a living
process, and ``/readyz``, every request and every peer are refused with the reason.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from bedrockish import __version__
from bedrockish.api.wire import PING, STATUS, Ask, Call, Failed, MalformedCallError, Reply, Told, decode_call
from bedrockish.api.wire import encode_reply as encode
from bedrockish.config.config import Config
from bedrockish.errors import BedrockishError, UnavailableError
from bedrockish.node.admin.status import WAITING
from bedrockish.node.admin.troubles import CANNOT_WRITE
from bedrockish.node.admin.watching import WriteCheck
from bedrockish.node.cluster.authentication import Credentials
from bedrockish.node.published import close_socket, open_socket
from bedrockish_journal.model.levels import LEVEL
from bedrockish_net.errors import LinkClosedError, NetError, RefusedError
from bedrockish_net.events import Hello
from bedrockish_net.handshake import accept, is_local
from bedrockish_net.limits import LinkLimits
from bedrockish_net.stream import Link

logger = logging.getLogger(__name__)

CALLERS_MAX = 200
RETRY_S = 5.0  # the pause before a port in use is tried again


class WaitingNode:
    """Answers clients and peers of a node that waits, with the reason."""

    def __init__(self, config: Config, room: WriteCheck) -> None:
        self._config, self._room, self._since = config, room, time.monotonic()

    @property
    def refusal(self) -> UnavailableError:
        """The error that answers every request."""
        return UnavailableError(f"node {self._config.node} waits: {self._room.why}; nothing happened: use another node")

    def status(self) -> dict[str, Any]:
        """Return the status of the node, as plain data."""
        config, why = self._config, self._room.why
        since_ms = round(1000 * (time.monotonic() - self._since))
        return {
            "node": config.node,
            "cluster": config.cluster,
            "version": __version__,
            "level": LEVEL,
            "database": config.database,
            "mode": WAITING,
            "trouble": why,
            "troubles": [{**CANNOT_WRITE.as_data(why), "since_ms": since_ms}],
            "nodes": {},
        }

    def answer(self, payload: bytes) -> Reply:
        """Return the answer to a client's call."""
        try:
            call: Call = decode_call(payload, "")
        except MalformedCallError as error:
            return Failed(error.id, error)
        if isinstance(call, Ask) and call.op == STATUS:
            return Told(call.id, self.status())
        if isinstance(call, Ask) and call.op == PING:
            return Told(call.id, {})
        return Failed(call.id, self.refusal)


async def answer_links(config: Config, credentials: Credentials, node: WaitingNode) -> None:
    """Answer clients and refuse peers on the node's port, until cancelled."""
    places, limits = trio.CapacityLimiter(CALLERS_MAX), LinkLimits()
    hello = Hello(config.node, config.cluster)

    def welcome(remote: Hello) -> Hello:
        if remote.role == "peer":
            raise RefusedError(WAITING, node.status()["trouble"])
        return replace(hello, to=remote.node)

    async def serve_caller(stream: trio.SocketStream) -> None:
        try:
            places.acquire_on_behalf_of_nowait(stream)
        except trio.WouldBlock:
            await trio.aclose_forcefully(stream)
            return
        try:
            context = None if is_local(stream) else credentials.listen_context
            shaken = await accept(stream, hello, welcome, limits, context, credentials.trust)
            link = Link(*shaken, limits)
            link.deliver_to(partial(_reply, link, node))
            await link.run()
        except NetError as error:
            logger.debug("a caller of the waiting node was refused: %s", error)
        finally:
            places.release_on_behalf_of(stream)

    async def serve_local_socket() -> None:
        """Answer programs of this machine: without the socket, they would take the node for stopped."""
        if (listener := open_socket(config.database)) is not None:
            try:
                await trio.serve_listeners(
                    serve_caller, [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
                )
            finally:
                close_socket(config.database)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_local_socket)
        while True:
            try:
                await trio.serve_tcp(serve_caller, config.listen.port, host=config.listen.host)
            except OSError as error:
                logger.warning("the waiting node cannot listen on %s: %s", config.listen, error)
                await trio.sleep(RETRY_S)


def _reply(link: Link, node: WaitingNode, payloads: list[bytes]) -> None:
    for payload in payloads:
        try:
            link.send_nowait(encode(node.answer(payload)))
        except LinkClosedError:
            return


async def answer_while_waiting(
    config: Config,
    credentials: Credentials,  # the node's credentials, for links and HTTP
    room: WriteCheck,  # knows why the node waits
    serve_http: Callable[..., Any] | None,  # answers HTTP with the reason, until cancelled; None if HTTP is off
) -> None:
    """Answer with the reason until the node's file can be written."""
    node = WaitingNode(config, room)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_links, config, credentials, node)
        if serve_http is not None:
            nursery.start_soon(_keep_trying, partial(serve_http, config, credentials, node))
        await room.wait()
        nursery.cancel_scope.cancel()


async def _keep_trying(serve: Callable[[], Any]) -> None:
    while True:
        try:
            await serve()
        except BedrockishError as error:
            logger.warning("the waiting node serves no HTTP: %s", error)
        await trio.sleep(RETRY_S)
