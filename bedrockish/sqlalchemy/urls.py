"""Conversion of SQLAlchemy's URLs to the client's URLs, and back.

SQLAlchemy parses one host and one number as its port before it asks a dialect: ``host1:7373,host2:7373`` fails there
with a ValueError. So several nodes with ports need brackets, as in ``bedrockish://[host1:7373,host2:7373]/``, or are
options, ``bedrockish:///?host=host1:7373&host=host2:7373``, as for psycopg. The client accepts brackets as well.
``make_url`` takes a URL in the client's form.
"""

from collections.abc import Sequence
from urllib.parse import parse_qsl, quote, urlencode

from sqlalchemy.engine import URL

from bedrockish.api.url import SCHEME, parse_url
from bedrockish.errors import ConfigError


def make_url(url: str) -> URL:
    """Return SQLAlchemy's URL for one of bedrockish's, such as ``bedrockish://host1:7373,host2:7373/?read=session``.

    Raises:
        ConfigError: the URL cannot be parsed.
    """
    target = parse_url(url)
    query = dict(parse_qsl(url.partition("?")[2]))
    host = ",".join(address.in_url() for address in target.addresses)
    if target.local is not None and not host:
        query.pop("local", None)
        return URL.create(SCHEME, username=target.user, password=target.password, database=target.local, query=query)
    return URL.create(SCHEME, username=target.user, password=target.password, host=host, query=query)


def client_url(url: URL, options: dict[str, str], hosts: Sequence[str] = ()) -> str:
    """Return the client's URL for one of SQLAlchemy's; ``hosts`` are further nodes from its options.

    Raises:
        ConfigError: the URL names a database and a node.
    """
    if url.database and (hosts or url.host):
        raise ConfigError(f"{url!r} names the database {url.database!r}, but a node serves one; leave it out")
    host = url.host or ""
    if url.port is not None:
        host = f"[{host}]:{url.port}" if ":" in host else f"{host}:{url.port}"
    elif ":" in host and "," not in host and host.count(":") > 1:
        host = f"[{host}]"  # one IPv6 address, without a port
    if url.database:  # the path of a node's file
        options = {**options, "local": url.database}
    login = "" if url.username is None else quote(url.username, safe="")
    if url.password is not None:
        login += ":" + quote(str(url.password), safe="")
    every = ",".join(filter(None, [host, *(quote(one, safe=":,[]%") for one in hosts)]))
    return f"{SCHEME}://{login}{'@' if login else ''}{every}/" + (f"?{urlencode(options)}" if options else "")


def is_yes(value: str, name: str) -> bool:
    """Return whether an option of a URL says yes.

    Raises:
        ConfigError: the value is neither yes nor no.
    """
    if value not in ("yes", "no"):
        raise ConfigError(f"the option {name}: {value!r} is neither yes nor no; write {name}=yes")
    return value == "yes"


def last_of(value: str | Sequence[str]) -> str:
    """Return the value of an option that a URL may name several times."""
    return value if isinstance(value, str) else value[-1]
