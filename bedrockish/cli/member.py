"""``bedrockish member``: see and change who belongs to the cluster; every change is one transaction, at any node."""

import sys

import click
import trio

from bedrockish.cli.output import MODES, PLAIN, TABLE, print_rows
from bedrockish.cli.url import UrlCommand, url_argument
from bedrockish.client.aio import open_client, target_of
from bedrockish.client.rows import Rows
from bedrockish.requests import ADD, ADDRESS, DEMOTE, PROMOTE, REMOVE, REPLACE, MemberChange

mode_option = click.option("--mode", type=click.Choice(MODES), help="How to print the members; by default as a table.")
timeout_option = click.option("--timeout", type=click.FloatRange(0, 86_400, min_open=True), help="Seconds to try for.")
force_option = click.option(
    "--force", is_flag=True, help="Even if the voters that are left can decide nothing until others come back."
)


@click.group()
def member() -> None:
    """See and change who belongs to the cluster.

    URL names any nodes of it. A node is added as a learner, which has all data, answers reads and passes on what
    writes; promoted, it votes, and leads transactions of its own.
    """


@member.command("list", cls=UrlCommand)
@url_argument
@mode_option
@timeout_option
def list_members(url: str, mode: str | None, timeout: float | None) -> None:
    """Print the members, as the node at URL knows them."""

    async def ask() -> dict[str, dict[str, object]]:
        async with open_client(url) as client:
            return await client.nodes(timeout=timeout)

    target_of(url)
    nodes = trio.run(ask)
    columns = ("node", "address", "role", "up", "store")
    rows = [
        (node, fact["address"], fact["role"], "yes" if fact["up"] else "no", fact["store"])
        for node, fact in nodes.items()
    ]
    _print(Rows(columns, rows), mode)


@member.command(cls=UrlCommand)
@url_argument
@click.argument("node")
@click.argument("address", metavar="HOST:PORT")
@mode_option
@timeout_option
def add(url: str, node: str, address: str, mode: str | None, timeout: float | None) -> None:
    """Let NODE in as a learner. 'bedrockish join', run where the node shall live, does this by itself."""
    _change(url, MemberChange(ADD, node, address), mode, timeout)


@member.command(cls=UrlCommand)
@url_argument
@click.argument("node")
@mode_option
@timeout_option
def promote(url: str, node: str, mode: str | None, timeout: float | None) -> None:
    """Let the learner NODE vote and lead transactions, once it has caught up."""
    _change(url, MemberChange(PROMOTE, node), mode, timeout)


@member.command(cls=UrlCommand)
@url_argument
@click.argument("node")
@force_option
@mode_option
@timeout_option
def demote(url: str, node: str, force: bool, mode: str | None, timeout: float | None) -> None:
    """Make the voter NODE a learner."""
    _change(url, MemberChange(DEMOTE, node, force=force), mode, timeout)


@member.command(cls=UrlCommand)
@url_argument
@click.argument("node")
@force_option
@mode_option
@timeout_option
def remove(url: str, node: str, force: bool, mode: str | None, timeout: float | None) -> None:
    """Let NODE go, dead or alive. Stop it afterwards; its file is no longer kept up."""
    _change(url, MemberChange(REMOVE, node, force=force), mode, timeout)


@member.command("address")
@url_argument
@click.argument("node")
@click.argument("address", metavar="HOST:PORT")
@mode_option
@timeout_option
def change_address(url: str, node: str, address: str, mode: str | None, timeout: float | None) -> None:
    """Tell the others that NODE listens at HOST:PORT from now on."""
    _change(url, MemberChange(ADDRESS, node, address), mode, timeout)


@member.command("replace")
@url_argument
@click.argument("node")
@click.argument("successor")
@click.argument("address", metavar="[HOST:PORT]", required=False)
@force_option
@mode_option
@timeout_option
def replace_node(
    url: str, node: str, successor: str, address: str | None, force: bool, mode: str | None, timeout: float | None
) -> None:
    """Remove NODE, whose file is lost, and let the new node SUCCESSOR in as a learner, by default at NODE's address.

    SUCCESSOR must be a new name: the commits that NODE led keep theirs. Then run 'bedrockish join --voter' for it.
    """
    _change(url, MemberChange(REPLACE, node, address or "", successor, force=force), mode, timeout)


def _change(url: str, change: MemberChange, mode: str | None, timeout: float | None) -> None:
    async def ask() -> Rows:
        async with open_client(url) as client:
            return await client.change_members(change, timeout=timeout)

    target_of(url)
    _print(trio.run(ask), mode)


def _print(rows: Rows, mode: str | None) -> None:
    print_rows(rows, mode or (TABLE if sys.stdout.isatty() else PLAIN))
