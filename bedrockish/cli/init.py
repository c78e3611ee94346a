"""``bedrockish init``: the configurations of a new cluster, a folder for each node, with certificates."""

import re
import secrets
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import click

from bedrockish.api.url import Address, parse_address
from bedrockish.cli.secure import days_option
from bedrockish.common.durable_files import make_folder, sync
from bedrockish.config.config import ANY
from bedrockish.core.state.membership import NAME
from bedrockish.errors import ConfigError, UsageError
from bedrockish_net.local_socket import is_loopback

AUTHORITY, CLIENT, CERTS = "authority", "client", "certs"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class PlannedNode(NamedTuple):
    """A planned node: its name, the address at which others reach it, and further names of its machine."""

    name: str
    address: Address
    others: tuple[str, ...]

    @property
    def is_local(self) -> bool:
        """Whether the node can be reached from its own machine only."""
        return is_loopback(self.address.host)

    @property
    def machine(self) -> str:
        """The host in the node's address, as the name of its machine; empty for this machine."""
        return "" if self.is_local else self.address.host

    def listen(self, port: int) -> Address:
        """Return the address at which the node listens: the loopback address, or all addresses of its machine."""
        if self.is_local:
            return Address(self.address.host, port)
        return Address("::" if ":" in self.address.host else "0.0.0.0", port)  # TLS and passwords keep strangers out


def read_nodes(given: tuple[str, ...]) -> list[PlannedNode]:
    """Return the nodes of the command line; those without a name are called A, B, C, … in turn.

    Raises:
        UsageError: a name or an address is invalid, or given twice; or only some are on this machine.
    """
    found: list[PlannedNode] = []
    for place, text in enumerate(given):
        name, equals, hosts = text.partition("=")
        if not equals:
            if place >= len(LETTERS):
                raise UsageError(f"the node at {text} needs a name; write NAME={text}")
            name, hosts = LETTERS[place], text
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a node's name; write a letter, then up to 15 letters, digits or _")
        first, *others = [host for host in hosts.split(",") if host] or [""]
        try:
            address = parse_address(first, where=name)
        except ConfigError as error:
            raise UsageError(str(error)) from error
        if address.host in ANY:
            raise UsageError(
                f"{name}: {address.host} is where a node listens; write the address at which the others reach it"
            )
        found.append(PlannedNode(name, address, tuple(others)))
    for what, values in (
        ("name", [one.name.lower() for one in found]),
        ("address", [str(one.address) for one in found]),
    ):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise UsageError(
                f"two nodes have the {what} {twice}; each needs its own, such as host1:7373 and host1:7374"
            )
    taken = next((one.name for one in found if one.name.lower() in (AUTHORITY, CLIENT)), None)
    if taken is not None:
        raise UsageError(f"a node called {taken} would have the folder of the {taken.lower()}; give it another name")
    if len({one.is_local for one in found}) > 1:
        names = ", ".join(one.name for one in found if one.is_local)
        raise UsageError(f"the others cannot reach {names} at a loopback address; write the machine's name or address")
    return found


def configuration(
    node: PlannedNode, nodes: list[PlannedNode], cluster: str, http: int | None, token: str, tls: bool
) -> str:
    """Return the text of a node's configuration file."""
    lines = [
        f"# Node {node.name}. In this folder: bedrockish serve --config {node.name}.toml",
        f'node = "{node.name}"',
        f'database = "{node.name}.db"',
        f'listen = "{node.listen(node.address.port)}"',
        f'cluster = "{cluster}"',
    ]
    if http is not None:
        lines.append(f'http = "{node.listen(http)}"')
        lines += [f'http_token = "{token}"'] * tls
    lines += ["", "# The founding members. The cluster itself records nodes that join later.", "[peers]"]
    lines += [f'{one.name} = "{one.address}"' for one in nodes]
    lines += ["", "[security]", f'tls = "{CERTS}"'] * tls
    return "\n".join(lines) + "\n"


def url_of(nodes: list[PlannedNode], client: Path | None, name: str) -> str:
    """Return the URL for clients."""
    hosts = ",".join(str(one.address) for one in nodes)
    if client is None:
        return f"bedrockish://{hosts}"
    files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}-key.pem"}
    options = "&".join(f"{key}={_in_url(client / file)}" for key, file in files.items())
    return f"bedrockish://{hosts}/?{options}"


def _in_url(path: Path) -> str:
    """Return a path quoted for a URL, and for use between quotes of a shell; letters of all languages stay."""
    return re.sub(r"[^\w/.~-]", lambda found: quote(found[0], safe=""), str(path))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("nodes", metavar="[NAME=]HOST[:PORT][,HOST]...", nargs=-1, required=True)
@click.option("--cluster", default="bedrockish", show_default=True, help="Name of the cluster.")
@click.option(
    "--http",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve HTTP at this port, too; needs bedrockish[http].",
)
@click.option(
    "--client", default="app", show_default=True, metavar="NAME", help="The name in the client's certificate."
)
@click.option("--tls", is_flag=True, help="Make certificates although all nodes are on this machine, to try them.")
@days_option
def init(
    directory: Path, nodes: tuple[str, ...], cluster: str, http: int | None, client: str, tls: bool, days: int
) -> None:
    """Make the configurations of a new cluster in DIRECTORY, a folder for each node.

    Bring each folder to its machine and start the node in it. Between machines, links are encrypted: the folders then
    have certificates of an authority that is made for this cluster. That needs pip install 'bedrockish[tls]'.
    """
    planned = read_nodes(nodes)
    tls = tls or not planned[0].is_local
    if tls and client in [one.name for one in planned]:
        raise UsageError(f"--client {client} is the name of a node, too; give the client another one")
    if not cluster or not cluster.isprintable() or '"' in cluster or "\\" in cluster or len(cluster) > 64:
        raise UsageError(f"--cluster: {cluster!r} should be up to 64 letters, digits and signs without quotes")
    ports = _http_ports(planned, http)
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty; name a folder that is not there yet")
    token = secrets.token_urlsafe(24)
    try:
        make_folder(directory.parent)
        with tempfile.TemporaryDirectory(
            prefix=".bedrockish-init-", dir=directory.parent, ignore_cleanup_errors=True
        ) as made:
            whole = Path(made) / "cluster"  # renamed to its final name when it is whole
            for one in planned:
                folder = whole / one.name
                folder.mkdir(parents=True)
                text = configuration(one, planned, cluster, ports.get(one.name), token, tls)
                (folder / f"{one.name}.toml").write_text(text, encoding="utf-8")
            if tls:
                _certify(whole, planned, client, days)
            for path in whole.rglob("*"):
                sync(path)
            sync(whole)
            whole.rename(directory)
            sync(directory.parent)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}") from error
    for one in planned:
        where = "" if one.is_local else f"bring it to {one.address.host}; "
        click.echo(f"{directory / one.name}: {where}in it: bedrockish serve --config {one.name}.toml")
    if tls:
        click.echo(f"{directory / AUTHORITY}: keep it on a machine without a node; it signs further certificates")
    url = url_of(planned, (directory / CLIENT).resolve() if tls else None, client)
    click.echo(f"then: bedrockish status '{url}'")
    count = len(planned)
    if count % 2 == 0:
        click.echo(
            f"{count} nodes survive the loss of {count // 2 - 1}, as {count - 1} do: use an odd number", err=True
        )


def _http_ports(nodes: list[PlannedNode], http: int | None) -> dict[str, int]:
    """Return the port of HTTP of each node; nodes on one machine get ports that follow each other."""
    found: dict[str, int] = {}
    if http is None:
        return found
    for one in nodes:
        here = [other for other in nodes if other.machine == one.machine]
        port = found[one.name] = max((found[other.name] for other in here if other.name in found), default=http - 1) + 1
        taken = [other.name for other in here if other.address.port == port]
        if taken or port > 65535:
            raise UsageError(
                f"--http {http}: {port} would be the port of HTTP of {one.name}, and is taken; use another"
            )
    return found


def _certify(directory: Path, nodes: list[PlannedNode], client: str, days: int) -> None:
    """Make the folders of the authority and the client, and the certificates of each node."""
    try:
        from bedrockish.cli.certificates import CA, Authority
    except ModuleNotFoundError as error:
        raise ConfigError(f"the package {error.name} is missing; pip install 'bedrockish[tls]'") from error
    home = directory / AUTHORITY
    authority = Authority.at(home, days)
    issued = [(one.name, directory / one.name / CERTS) for one in nodes] + [(client, directory / CLIENT)]
    for one in nodes:
        # The certificate is also valid for the loopback names, for clients on the node's own machine.
        hosts = dict.fromkeys([one.name, one.address.host, *one.others, "localhost", "127.0.0.1"])
        authority.issue(one.name, list(hosts), days, for_node=True)
    authority.issue(client, [], days, for_node=False)
    for name, folder in issued:
        folder.mkdir(parents=True)
        (folder / CA).write_bytes((home / CA).read_bytes())
        for file in (f"{name}.pem", f"{name}-key.pem"):
            (home / file).rename(folder / file)
