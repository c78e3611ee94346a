"""The credentials of a client: its user and password or token for HELLO, and its TLS context.

A node that connects to other nodes as a client has credentials of its own.
"""

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bedrockish.api.url import SYSTEM, Address, Target
from bedrockish.common.access_token import read_token
from bedrockish.errors import ConfigError
from bedrockish_net import socket_link
from bedrockish_net.events import Hello
from bedrockish_net.limits import LinkLimits
from bedrockish_net.socket_link import SocketLink
from bedrockish_net.tls import CertificateError, client_context

if TYPE_CHECKING:
    from bedrockish_net.stream import Link

PASSWORD_VARIABLE = "BEDROCKISH_PASSWORD"


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The credentials of a client."""

    ssl_context: ssl.SSLContext | None = None  # the TLS context; None for plain TCP
    user: str | None = None  # the user's name; None if the client has no user
    # The user's password, or a token; None if it is in ``password_file``.
    password: str | None = field(default=None, repr=False)
    # Path of the file with the password or token. It is read for each link, so it may change while a program runs.
    password_file: str | None = None

    def _login(self) -> dict[str, Any]:
        if self.user is None:
            return {}
        password = self.password if self.password is not None else _read_password(self.password_file or "")
        # A token has a field of its own, so that a node of an older release does not take it
        # for a wrong password.
        return {"user": self.user, "password" if read_token(password) is None else "token": password}

    async def dial(self, address: Address, hello: Hello, seconds: float, limits: LinkLimits) -> "Link":
        """Open a link. The errors are those of ``handshake.dial``."""
        from bedrockish_net import handshake  # imported here, because the blocking client needs no event loop
        from bedrockish_net.stream import Link

        host, port = address
        with_login = Hello(hello.node, hello.cluster, hello.role, hello.to, {**hello.info, **self._login()})
        opened = await handshake.dial(host, port, with_login, seconds, limits, self.ssl_context)
        return Link(*opened, limits)

    def dial_socket(self, address: Address, hello: Hello, seconds: float, limits: LinkLimits) -> SocketLink:
        """Open a link without an event loop, in the calling thread. The errors are those of ``socket_link.dial``."""
        host, port = address
        with_login = Hello(hello.node, hello.cluster, hello.role, hello.to, {**hello.info, **self._login()})
        return socket_link.dial(host, port, with_login, seconds, limits, self.ssl_context)


def credentials_of(target: Target) -> ClientCredentials:
    """Return the credentials of a URL. If the URL has a user without a password, BEDROCKISH_PASSWORD is the password.

    Raises:
        ConfigError: a file of certificates or of a password cannot be used, or the password is missing.
    """
    context = None
    if target.ca is not None:
        try:
            context = client_context(None if target.ca == SYSTEM else target.ca, target.cert, target.key)
        except CertificateError as error:
            raise ConfigError(str(error)) from error
    if target.user is None:
        return ClientCredentials(context)
    if target.password_file is not None:
        _read_password(target.password_file)
        return ClientCredentials(context, target.user, password_file=target.password_file)
    password = target.password if target.password is not None else os.environ.get(PASSWORD_VARIABLE)
    if password is None and target.addresses and all(address.is_socket for address in target.addresses):
        password = ""  # not needed: the permissions of the Unix socket admit the program
    if password is None:
        raise ConfigError(f"the URL names the user {target.user!r} but no password; set {PASSWORD_VARIABLE}")
    return ClientCredentials(context, target.user, password)


def _read_password(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"password_file: {path} cannot be read: {error}") from error
    if not text:
        raise ConfigError(f"password_file: {path} is empty; write the user's password or a token into it")
    return text
