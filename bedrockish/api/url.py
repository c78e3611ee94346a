"""The parser of addresses and client URLs: ``host:port`` and ``bedrockish://user:password@host,host/?read=…``.

A node of this machine may also be named by the path of its Unix socket: ``bedrockish://%2Fsrv%2FA.sqlite-sock/``.

Pure, and strict: an unknown option raises an error that says what to write instead, because a misspelt ``timeout`` that
is ignored would be noticed only in an outage.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from bedrockish.api.requests import READ_LEVELS, SESSION
from bedrockish.common.machine import not_utf8
from bedrockish.errors import ConfigError

SCHEME = "bedrockish"
DEFAULT_PORT = 7373
BARE = "a / in the user or password of a URL must be written %2F, and a ? %3F"
URL_EXAMPLE = "bedrockish://localhost:7373/?read=session&timeout=10"
FIRST, NEAREST, RANDOM = CHOICES = ("first", "nearest", "random")
SYSTEM = "system"
HOST = "host"  # the option that names a further node, because many parsers of URLs accept only one host
LOCAL = "local"  # the path of a node's file
OPTIONS = (
    *("read", "timeout", "connect_timeout", "cluster", "choice", "discover"),
    *("ca", "cert", "key", "password_file", LOCAL),
)


class Address(NamedTuple):
    """The address of a node: host and port, or the path of a Unix socket as the host."""

    host: str
    port: int

    @property
    def is_socket(self) -> bool:
        """Whether the address is the path of a Unix socket."""
        return self.host.startswith("/")

    def __str__(self) -> str:
        if self.is_socket:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def in_url(self) -> str:
        """Return the address as a URL has it: the path of a Unix socket with ``%2F`` for each slash."""
        return quote(self.host, safe="") if self.is_socket else str(self)


def parse_address(text: str, *, where: str, any_port: bool = False) -> Address:
    """Parse ``host:port``, ``[ipv6]:port`` or ``host``, which has the port ``DEFAULT_PORT``; return the address.

    Args:
        where: the source of the text, for the error: a key, a flag or the URL.
        any_port: whether port 0 is allowed (the system chooses a free one).

    Raises:
        ConfigError: the text is not an address.
    """
    text = text.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        bad = not bracket or (rest != "" and not rest.startswith(":"))
        digits = rest[1:] if rest else None
    else:
        host, colon, tail = text.partition(":")
        bad = ":" in tail
        digits = tail if colon else None
    if bad or not _is_host(host):
        raise ConfigError(f"{where}: {text!r} is not an address; write host:port, such as localhost:7373 or [::1]:7373")
    if digits is None:
        return Address(host, DEFAULT_PORT)
    low = 0 if any_port else 1
    if not (digits.isascii() and digits.isdecimal()) or not low <= int(digits[:9]) < 65536 or len(digits) > 5:
        raise ConfigError(f"{where}: {digits!r} in {text!r} is not a port; write a number from {low} to 65535")
    return Address(host, int(digits))


def _is_host(text: str) -> bool:
    """Return whether a text can be a host name or an IP address; dialling any other text raises UnicodeError."""
    if not text.isprintable() or any(letter.isspace() or letter in "/@?#,[" for letter in text):
        return False
    try:
        return bool(text.encode("idna"))
    except UnicodeError:  # such as two dots in a row, or 64 letters between two dots
        return False


def check_path(path: str, where: str) -> str:
    """Return a path, after checking that the system's functions accept it.

    Raises:
        ConfigError: the path has a NUL character, or is not UTF-8: the system's functions would raise a ValueError.
    """
    if "\0" in path:
        raise ConfigError(f"{where}: {path!r} is not a path, because it has a NUL character; write the path of a file")
    try:
        path.encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
        path.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}: {not_utf8(error)}") from error
    return path


@dataclass(frozen=True, slots=True)
class Target:
    """The content of a client URL."""

    addresses: tuple[Address, ...]  # nodes to try, in this order
    read: str = SESSION  # default read level
    timeout_s: float = 30.0  # default time for a call, in seconds
    connect_timeout_s: float = 5.0  # the seconds without any reachable node after which a call gives up
    cluster: str | None = None  # the cluster to which a node must belong; None for any cluster
    choice: str = FIRST  # the node to ask: the ``first`` of the list that answers, the ``nearest``, or a ``random`` one
    # Also ask members of the cluster that are not in the URL; the default if the URL names several nodes.
    discover: bool = False
    user: str | None = None  # name of the user; None if the URL names no user
    password: str | None = field(default=None, repr=False)  # the user's password, or a token
    # File with the certificates of the authorities that sign the nodes' certificates, or ``system``; None for no TLS.
    ca: str | None = None
    cert: str | None = None  # file with the client's certificate
    key: str | None = None  # file with the private key of the client's certificate
    password_file: str | None = None  # path of a file with the password or token
    # Path of the file of a node on this machine, for reads and transactions in the program; None if the URL names no
    # file.
    local: str | None = None

    def __str__(self) -> str:
        if self.local is not None and len(self.addresses) < 2:
            return self.local
        return f"{SCHEME}://" + ",".join(address.in_url() for address in self.addresses)


def hide_password(url: str) -> str:
    """Return a URL, even a mistyped one, with ``***`` in place of its password, for output."""
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        scheme, rest = "", scheme
    before, mark, query = rest.partition("?")
    if _is_in_password(before, query):
        before, mark, query = rest, "", ""
    login, at, hosts = before.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}{':***' if colon else ''}{at}{hosts}{mark}{query}"


def _is_in_password(before: str, query: str) -> bool:
    """Return whether the ``?`` is in a password: an ``@`` follows, and ``before`` is a login, not an address."""
    _, colon, port = before.rpartition(":")
    is_address = not colon or before.startswith("[") or port.rstrip("/").isdecimal()
    return "@" in query and "@" not in before and not is_address


def parse_url(url: str) -> Target:
    """Parse a client URL; return its target.

    Raises:
        ConfigError: the text is not a client URL, or has an unknown option.
    """
    shown = hide_password(url)
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme.lower() != SCHEME:
        raise ConfigError(f"{shown!r} is not a bedrockish URL; write {URL_EXAMPLE}")
    before, _, query = rest.partition("?")
    hosts, slash, tail = before.partition("/")
    login, at, hosts = hosts.rpartition("@")
    if "@" in tail or _is_in_password(before, query):
        raise ConfigError(BARE)
    pairs = _pairs(shown, query)
    if tail and not hosts:  # a path as in SQLAlchemy: after three slashes a relative, after four an absolute one
        pairs, tail = [*pairs, (LOCAL, unquote(tail))], ""
    if tail:
        raise ConfigError(f"{shown!r} has the path {slash + tail!r}, but a node serves one database; leave it out")
    more = [value for name, value in pairs if name == HOST]
    needs_none = more or any(name == LOCAL for name, _ in pairs)
    named = [] if needs_none and not hosts else _without_brackets(hosts).split(",")
    every = [*named, *(one for value in more for one in value.split(","))]
    addresses = tuple(dict.fromkeys(_parse_node(part, f"the URL {shown!r}") for part in every))
    user, colon, password = login.partition(":")
    if at and not user:
        raise ConfigError(f"{shown!r} has an @ but no user before it; write user:password@")
    target = Target(addresses, user=unquote(user) if at else None, password=unquote(password) if colon else None)
    return _with_options(shown, target, [pair for pair in pairs if pair[0] != HOST])


def _parse_node(text: str, where: str) -> Address:
    """Parse a node of a URL: an address, or the path of a node's Unix socket, with ``%2F`` for each slash."""
    path = unquote(text.strip())
    if "/" not in path:
        return parse_address(text, where=where)
    if not path.startswith("/"):
        raise ConfigError(f"{where}: the path {path!r} of a Unix socket is not absolute; begin it with %2F")
    return Address(check_path(path, where), 0)


def _without_brackets(hosts: str) -> str:
    """Return a list of nodes without the brackets around it, which other parsers of URLs require."""
    inner = hosts[1:-1]
    if not (hosts.startswith("[") and hosts.endswith("]")) or inner.find("]") < inner.find("["):
        return hosts  # the brackets belong to addresses, as in [::1],[::2]
    return inner if "," in inner or "[" in inner or inner.count(":") < 2 else hosts


def _pairs(url: str, query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        if "@" in query:  # then the query belongs to a password, which no error may show
            raise ConfigError(BARE) from None
        raise ConfigError(f"{url!r}: {query!r} is not a list of options; write read=session&timeout=10") from error


def _with_options(url: str, target: Target, pairs: Sequence[tuple[str, str]]) -> Target:
    options: dict[str, str] = {}
    for name, value in pairs:
        if name in options:
            raise ConfigError(f"{url!r} has the option {name!r} twice; leave one out")
        options[name] = value
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"{url!r} has the unknown option {name!r}; {suggest(name, OPTIONS)}")
    read = options.get("read", target.read)
    if read not in READ_LEVELS:
        raise ConfigError(f"{url!r}: read={read!r} is not a read level; {suggest(read, READ_LEVELS)}")
    choice = options.get("choice", FIRST)
    if choice not in CHOICES:
        raise ConfigError(f"{url!r}: choice={choice!r} is not a choice; {suggest(choice, CHOICES)}")
    # A URL with several nodes is for the cluster; a URL with one node may be for exactly this node.
    discover = options.get("discover", "yes" if len(target.addresses) > 1 else "no")
    if discover not in ("yes", "no"):
        raise ConfigError(f"{url!r}: discover={discover!r} is neither yes nor no")
    for name in ("ca", "cert", "key", "password_file"):
        check_path(options.get(name, ""), f"{url!r}: {name}")
    ca, cert, key = (options.get(name) for name in ("ca", "cert", "key"))
    if (cert is None) != (key is None) or (cert is not None and ca is None):
        raise ConfigError(f"{url!r}: a certificate needs ca, cert and key, three files; for a password, ca is enough")
    password_file = options.get("password_file")
    if password_file is not None and (target.user is None or target.password is not None):
        raise ConfigError(f"{url!r}: password_file goes with a user who has no password in the URL: user@host")
    return replace(
        target,
        read=read,
        timeout_s=_seconds(url, "timeout", options, target.timeout_s),
        connect_timeout_s=_seconds(url, "connect_timeout", options, target.connect_timeout_s),
        cluster=options.get("cluster"),
        choice=choice,
        discover=discover == "yes",
        ca=ca,
        cert=cert,
        key=key,
        password_file=password_file,
        local=options.get(LOCAL),
    )


def _seconds(url: str, name: str, options: dict[str, str], default: float) -> float:
    if name not in options:
        return default
    try:
        seconds = float(options[name])
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise ConfigError(f"{url!r}: {name}={options[name]!r} should be a number of seconds, such as {name}=10")
    return seconds


def suggest(name: str, known: tuple[str, ...] | list[str]) -> str:
    """Return the end of an error text about an unknown name: the probable name, or all names."""
    from difflib import get_close_matches  # imported here, because it is slow and rarely needed

    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "there is " + ", ".join(known)
