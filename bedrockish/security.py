"""What a node's configuration says about who may come, and whether that is enough for where it listens. Pure."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bedrockish.errors import ConfigError
from bedrockish.passwords import USER, PasswordHash, read_hash

if TYPE_CHECKING:
    from bedrockish.config import Config

SECRET_CHARACTERS_MIN = 16
Users = Mapping[str, PasswordHash]


@dataclass(frozen=True, slots=True)
class Security:
    """Who may come.

    Attributes:
        cluster_secret: what all nodes of the cluster know and nobody else does; empty: nodes need no secret.
        tls_ca: file with the certificates that sign those of the nodes and clients.
        tls_certificate: file with the certificate of this node, in which its name is.
        tls_key: file with the private key of that certificate.
        insecure: listen beyond this machine although nothing keeps strangers out.
    """

    cluster_secret: str = field(default="", repr=False)
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    insecure: bool = False

    @property
    def tls(self) -> bool:
        """Whether links are encrypted."""
        return bool(self.tls_ca)


def read_users(value: object, where: str) -> Users:
    """Read the section of users: a map of names and hashes, or, from the environment, ``name=hash,name=hash``.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(value, str):
        pairs = dict(part.strip().partition("=")[::2] for part in value.split(",") if part.strip())
    elif isinstance(value, Mapping):
        pairs = dict(value)
    else:
        raise ConfigError(f"{where}: write a section [users] with lines as 'bedrockish password NAME' prints them")
    users: dict[str, PasswordHash] = {}
    for name, text in pairs.items():
        if not USER.fullmatch(name):
            raise ConfigError(
                f"{where}: {name!r} is no user's name; write a letter and then up to 63 letters, digits or one of _.-"
            )
        found = read_hash(text) if isinstance(text, str) else None
        if found is None:  # what is written there may be a password, so it is not repeated
            raise ConfigError(
                f"{where}.{name}: this is not the hash of a password; have it made with 'bedrockish password {name}'"
            )
        users[name] = found
    return users


def check_security(config: "Config") -> None:
    """Check that a node which others can reach keeps strangers out.

    A database that whoever finds its port may read and change is an accident; it should need a decision.

    Raises:
        ConfigError: it does not, or what is said contradicts itself.
    """
    security = config.security
    files = {name: getattr(security, name) for name in ("tls_ca", "tls_certificate", "tls_key")}
    if any(files.values()) and not all(files.values()):
        missing = " and ".join(name for name, path in files.items() if not path)
        raise ConfigError(f"security: {missing} is missing; TLS needs all three, see 'bedrockish tls'")
    secret = security.cluster_secret
    if secret and (len(secret) < SECRET_CHARACTERS_MIN or not re.fullmatch(r"[\x21-\x7e]+", secret)):
        raise ConfigError(
            f"security.cluster_secret: write at least {SECRET_CHARACTERS_MIN} visible ASCII characters without spaces, "
            "such as 'openssl rand -hex 32' makes"
        )
    if security.insecure:
        return
    way_out = "see docs/security.md, or set insecure = true in [security] where only friends reach the port"
    if not is_loopback(config.listen.host):
        open_doors = [
            *(() if security.tls or secret else ("nodes: set cluster_secret or TLS",)),
            *(() if security.tls or config.users else ("clients: add users or TLS",)),
        ]
        if open_doors:
            raise ConfigError(
                f"listen: {config.listen} can be reached from other machines, but nothing keeps strangers out "
                f"({'; '.join(open_doors)}); {way_out}"
            )
    if config.http is not None and not is_loopback(config.http.host) and not (config.users or config.http_token):
        raise ConfigError(
            f"http: {config.http} can be reached from other machines, but nothing keeps strangers out "
            f"(add users or http_token); {way_out}"
        )


def warnings(config: "Config") -> list[str]:
    """Return what an operator should know about a configuration that is allowed."""
    found = []
    outside = [config.listen, *([config.http] if config.http is not None else [])]
    if config.security.insecure and not all(is_loopback(address.host) for address in outside):
        found.append("insecure is set: whoever reaches this node's ports may be able to read and change everything")
    elif not config.security.tls and not all(is_loopback(address.host) for address in outside):
        found.append("there is no TLS: whoever can read the network's traffic reads passwords and data")
    return found


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from its own machine only."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
