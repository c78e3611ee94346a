"""Links of tests: to a node, and from a client to a test."""

import socket
import ssl
from collections.abc import Callable
from typing import Any

import trio

from bedrockish_net import handshake
from bedrockish_net.events import Hello
from bedrockish_net.limits import LinkLimits
from bedrockish_net.stream import Link


async def dial_link(
    host: str, port: int, hello: Hello, seconds: float = 5.0, ssl_context: ssl.SSLContext | None = None
) -> Link:
    """Open a link to a listener."""
    limits = LinkLimits()
    return Link(*await handshake.dial(host, port, hello, seconds, limits, ssl_context), limits)


async def accept_link(
    stream: trio.abc.Stream,
    local: Hello,
    welcome: Callable[[Hello], Hello] | None = None,
    limits: LinkLimits | None = None,
) -> Link:
    """Take a link on a stream."""
    limits = limits or LinkLimits()
    return Link(*await handshake.accept(stream, local, welcome or (lambda _: local), limits, None), limits)


class Names(trio.abc.HostnameResolver):
    """Resolves each name to the given addresses, in this order, as a file of hosts does."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def getaddrinfo(self, host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        return [found for one in self.addresses for found in socket.getaddrinfo(one, port, type=socket.SOCK_STREAM)]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        return socket.getnameinfo(sockaddr, flags)
