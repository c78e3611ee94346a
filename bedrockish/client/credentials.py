"""How a client comes in: what it says in its HELLO, and over which TLS. A node that asks others brings its own."""

import os
import ssl
from dataclasses import dataclass, field
from typing import Any

from bedrockish.api.url import SYSTEM, Address, Target
from bedrockish.errors import ConfigError
from bedrockish_net import handshake, socket_link
from bedrockish_net.events import Hello
from bedrockish_net.limits import Limits
from bedrockish_net.socket_link import SocketLink
from bedrockish_net.stream import Link
from bedrockish_net.tls import CertificateError, client_context

PASSWORD_VARIABLE = "BEDROCKISH_PASSWORD"


@dataclass(frozen=True, slots=True)
class Entry:
    """What is shown at the door.

    Attributes:
        ssl_context: TLS; None for none.
        info: what the HELLO has to say: user and password.
    """

    ssl_context: ssl.SSLContext | None = None
    info: dict[str, Any] = field(default_factory=dict, repr=False)

    async def dial(self, address: Address, hello: Hello, seconds: float, limits: Limits) -> Link:
        """Open a link. Raises what ``Link.dial`` says."""
        host, port = address
        said = Hello(hello.node, hello.cluster, hello.role, hello.to, {**hello.info, **self.info})
        shaken = await handshake.dial(host, port, said, seconds, limits, self.ssl_context)
        return Link(*shaken, limits)

    def dial_socket(self, address: Address, hello: Hello, seconds: float, limits: Limits) -> SocketLink:
        """Open a link on a plain socket, in the calling thread. Raises what ``socket_link.dial`` says."""
        host, port = address
        said = Hello(hello.node, hello.cluster, hello.role, hello.to, {**hello.info, **self.info})
        return socket_link.dial(host, port, said, seconds, limits, self.ssl_context)


def entry_of(target: Target) -> Entry:
    """Return how a client with this URL comes in; a user without a password has it in BEDROCKISH_PASSWORD.

    Raises:
        ConfigError: a file of certificates cannot be used, or there is no password.
    """
    context = None
    if target.ca is not None:
        try:
            context = client_context(None if target.ca == SYSTEM else target.ca, target.cert, target.key)
        except CertificateError as error:
            raise ConfigError(str(error)) from error
    if target.user is None:
        return Entry(context)
    password = target.password if target.password is not None else os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        raise ConfigError(f"the URL names the user {target.user!r} but no password; set {PASSWORD_VARIABLE}")
    return Entry(context, info={"user": target.user, "password": password})
