"""The files of TLS and the users of a node, as its configuration names them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bedrockish.common.password_hash import USER, PasswordHash, read_hash
from bedrockish.errors import ConfigError

REVOKED = "revoked.txt"
Users = Mapping[str, PasswordHash]


@dataclass(frozen=True, slots=True)
class Security:
    """TLS files and logins."""

    # Folder with ca.pem, NODE.pem and NODE-key.pem, as 'bedrockish tls' makes it, and with revoked.txt if there is a
    # list of revoked certificates; empty: no TLS, or the files of the following keys.
    tls: str = ""
    tls_ca: str = ""  # file with the certificates that sign the certificates of the nodes and clients
    tls_certificate: str = ""  # file with the certificate of this node, which contains the node's name
    tls_key: str = ""  # file with the private key of the node's certificate
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

    ca: str  # the certificates that sign the certificates of the nodes and clients
    certificate: str  # the certificate of this node
    key: str  # the private key of this node's certificate
    revoked: str  # the list of revoked certificates; empty: none
    must_have_list: bool  # whether a missing list of revoked certificates is an error


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
                f"{where}: {name!r:.80} is not a user's name; write a letter and then up to 63 letters, digits or "
                "one of _.-"
            )
        found = read_hash(text) if isinstance(text, str) else None
        if found is None:  # the text may be a password, so it is not repeated
            raise ConfigError(
                f"{where}.{name}: this is not the hash of a password; have it made with 'bedrockish password {name}'"
            )
        users[name] = found
    return users
