"""The exposure of a node: who may connect by its configuration, and whether that is safe for its addresses. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bedrockish.api.url import Address
from bedrockish.common.password_hash import USER, PasswordHash, read_hash
from bedrockish.errors import ConfigError
from bedrockish_net.loopback import is_loopback

REVOKED = "revoked.txt"
ANY = ("0.0.0.0", "::")  # wildcard addresses, which no client can dial
Users = Mapping[str, PasswordHash]


@dataclass(frozen=True, slots=True)
class Security:
    """TLS files and logins."""

    # Folder with ca.pem, NODE.pem and NODE-key.pem, as 'bedrockish tls' makes it, and with revoked.txt if there is a
    # list of revoked certificates; empty: no TLS, or the files of the following keys.
    tls: str = ""
    tls_ca: str = ""  # file with the certificates that sign those of the nodes and clients
    tls_certificate: str = ""  # file with the certificate of this node, which contains the node's name
    tls_key: str = ""  # file with the private key of that certificate
    tls_revoked: str = ""  # file with the serial numbers of certificates that were revoked; empty: none
    insecure: bool = False  # whether HTTP may be served beyond this machine without a password

    @property
    def encrypts(self) -> bool:
        """Whether links are encrypted with TLS, as the files of the configuration imply."""
        return bool(self.tls or self.tls_ca)

    def files(self, node: str) -> "Files":
        """Return the files of a node."""
        folder = Path(self.tls)
        return Files(
            self.tls_ca or str(folder / "ca.pem"),
            self.tls_certificate or str(folder / f"{node}.pem"),
            self.tls_key or str(folder / f"{node}-key.pem"),
            self.tls_revoked or (str(folder / REVOKED) if self.tls else ""),
            bool(self.tls_revoked),
        )


@dataclass(frozen=True, slots=True)
class Files:
    """The files of TLS, which are read again on SIGHUP."""

    ca: str  # the certificates that sign those of the nodes and clients
    certificate: str  # the certificate of this node
    key: str  # the private key of that certificate
    revoked: str  # the list of revoked certificates; empty: none
    must_have_list: bool  # whether it is an error if that list does not exist


def read_users(value: object, where: str) -> Users:
    """Read the section of users: a map of names and hashes, or, from the environment, ``name=hash,name=hash``.

    Raises:
        ConfigError: the value has another form, or a name or a hash in it is wrong.
    """
    if isinstance(value, str):
        parts = [part.strip().partition("=")[::2] for part in value.split(",") if part.strip()]
        pairs = dict(parts)
        if len(pairs) < len(parts):
            raise ConfigError(f"{where}: a user is named twice; name each once")
    elif isinstance(value, Mapping):
        pairs = dict(value)
    else:
        raise ConfigError(f"{where}: write a section [users] with lines as 'bedrockish password NAME' prints them")
    users: dict[str, PasswordHash] = {}
    for name, text in pairs.items():
        if not USER.fullmatch(name):
            raise ConfigError(
                f"{where}: {name!r:.80} is no user's name; write a letter and then up to 63 letters, digits or one of "
                "_.-"
            )
        found = read_hash(text) if isinstance(text, str) else None
        if found is None:  # the text may be a password, so it is not repeated
            raise ConfigError(
                f"{where}.{name}: this is not the hash of a password; have it made with 'bedrockish password {name}'"
            )
        users[name] = found
    return users


class Exposed(Protocol):
    """The parts of a configuration about reachability and logins."""

    @property
    def node(self) -> str:
        """Name of the node."""

    @property
    def listen(self) -> Address:
        """The address at which peers and clients connect."""

    @property
    def peers(self) -> Mapping[str, Address]:
        """The founding members, this node included."""

    @property
    def http(self) -> Address | None:
        """The address of HTTP; None if the node serves none."""

    @property
    def http_token(self) -> str:
        """The bearer token that a caller of HTTP must send."""

    @property
    def users(self) -> Users:
        """The users of the database; empty: no login is required."""

    @property
    def security(self) -> Security:
        """Certificates and the other settings of [security]."""


def check_security(config: Exposed) -> None:
    """Check that a node which others can reach keeps strangers out.

    An open port with an unprotected database should need an explicit decision. Clear text between machines is refused,
    because an eavesdropper can read and replay it.

    Raises:
        ConfigError: the node does not keep strangers out, or the configuration contradicts itself.
    """
    security = config.security
    files = {name: getattr(security, name) for name in ("tls_ca", "tls_certificate", "tls_key")}
    if any(files.values()) and not all(files.values()) and not security.tls:
        missing = " and ".join(name for name, path in files.items() if not path)
        raise ConfigError(f"security: {missing} is missing; TLS needs all three, see 'bedrockish tls'")
    if security.tls_revoked and not security.encrypts:
        raise ConfigError("security: tls_revoked lists revoked certificates, but there is no TLS; set tls")
    if not security.encrypts:
        _check_clear(config)
    is_open = not config.users and not config.http_token
    if config.http is not None and not is_loopback(config.http.host) and is_open and not security.insecure:
        raise ConfigError(
            f"http: {config.http} can be reached from other machines, but nothing keeps strangers out (add users or "
            "http_token); see docs/security.md, or set insecure = true in [security] where only trusted clients "
            "reach the port"
        )


def _check_clear(config: Exposed) -> None:
    """Check a node without TLS: all of its traffic must stay on the machine."""
    outside = {"listen": config.listen, **{f"peers.{node}": address for node, address in config.peers.items()}}
    found = next((where for where, address in outside.items() if not is_loopback(address.host)), "")
    if found:
        hosts = {node: address.host for node, address in sorted(config.peers.items())}
        places = " ".join(f"{node}={'HOST' if host in ANY else host}" for node, host in hosts.items())
        raise ConfigError(
            f"{found}: {outside[found]} is reached from other machines, which takes TLS: run 'bedrockish tls certs "
            f"{places}' once, bring certs/ca.pem, certs/{config.node}.pem and certs/{config.node}-key.pem to this "
            "node, and start it with 'bedrockish serve --set tls=certs', or with tls = \"certs\" in [security]; see "
            "docs/security.md"
        )
    if config.http is not None and not is_loopback(config.http.host) and (config.users or config.http_token):
        raise ConfigError(
            f"http: {config.http} can be reached from other machines, and without TLS passwords would travel in clear; "
            "set tls in [security], see docs/security.md"
        )


def warnings(config: Exposed) -> list[str]:
    """Return warnings for the operator about an allowed configuration."""
    is_open = not config.users and not config.http_token
    if config.http is None or is_loopback(config.http.host) or not is_open:
        return []
    return ["insecure is set: every program that reaches the port of HTTP may be able to read and change everything"]
