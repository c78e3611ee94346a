"""From SQLAlchemy's URLs to ours.

SQLAlchemy reads one host and one number as its port, so several nodes with ports need brackets around them, as in
``bedrockish://[host1:7373,host2:7373]/``; the client reads that as well. ``make_url`` takes a URL without brackets.
"""

from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from sqlalchemy.engine import URL

from bedrockish.addresses import SCHEME, parse_url
from bedrockish.errors import ConfigError


def make_url(url: str) -> URL:
    """Return SQLAlchemy's URL for one of bedrockish's, such as ``bedrockish://host1:7373,host2:7373/?read=session``.

    Raises:
        ConfigError: it cannot be understood.
    """
    target = parse_url(url)
    query = dict(parse_qsl(url.partition("?")[2]))
    return URL.create(SCHEME, host=",".join(map(str, target.addresses)), query=query)


def client_url(url: URL, options: dict[str, str]) -> str:
    """Return the client's URL for one of SQLAlchemy's.

    Raises:
        ConfigError: it says something that a client's URL cannot.
    """
    if url.username or url.password:
        raise ConfigError(f"{url!r} names a user, but nodes know no users; leave out what is before the @")
    if url.database:
        raise ConfigError(f"{url!r} names the database {url.database!r}, but a node serves one; leave it out")
    hosts = url.host or ""
    if url.port is not None:
        hosts = f"[{hosts}]:{url.port}" if ":" in hosts else f"{hosts}:{url.port}"
    elif ":" in hosts and "," not in hosts and hosts.count(":") > 1:
        hosts = f"[{hosts}]"  # one IPv6 address, without a port
    return f"{SCHEME}://{hosts}/" + (f"?{urlencode(options)}" if options else "")


def last_of(value: str | Sequence[str]) -> str:
    """Return the value of an option that a URL may name several times."""
    return value if isinstance(value, str) else value[-1]
