"""``bedrockish member``: see and change who belongs to the cluster; every change is one transaction, at any node."""

import socket
import sys

import click
import trio

from bedrockish.api.requests import ADD, ADDRESS, DEMOTE, PROMOTE, REMOVE, REPLACE, VOID, MemberChange, Rows
from bedrockish.api.url import parse_address
from bedrockish.cli.output import BOX, JSON, PLAIN, print_rows
from bedrockish.cli.upkeep import everywhere
from bedrockish.cli.url import UrlGroup
from bedrockish.client.trio_client import open_client
from bedrockish.errors import MembershipError, ReadOnlyError, UnavailableError, UsageError

force_option = click.option(
    "--force",
    is_flag=True,
    help="Make the change even if a sound copy is lost, fewer nodes may fail, or no write can commit.",
)

unresolved_option = click.option("--force", is_flag=True, help="Even if the address does not resolve on this machine.")
move_option = click.option(
    "--force", is_flag=True, help="Even if NODE answers where it is, or the address does not resolve on this machine."
)

OWN_JOURNAL = "its own journal"
POLL_S = 1.0
RECORD_S = 30.0  # how long the members may take to restart after the order


@click.group(cls=UrlGroup)
def member() -> None:
    """Change the members of the cluster, and repair nodes.

    URL names one or more nodes of the cluster. A node is added as a learner, which has all data and answers reads. A
    promoted node votes, and leads transactions of its own.
    """


@member.command()
@click.argument("node")
@click.argument("address", metavar="HOST:PORT")
@unresolved_option
def add(url: str, node: str, address: str, force: bool) -> None:
    """Admit NODE as a learner. 'bedrockish join', run on the new node's machine, does this by itself."""
    check_address(address, force=force)
    change_members(url, MemberChange(ADD, node, address))


@member.command()
@click.argument("node")
def promote(url: str, node: str) -> None:
    """Let the learner NODE vote and lead transactions, once it has caught up."""
    change_members(url, MemberChange(PROMOTE, node))


@member.command()
@click.argument("node")
@force_option
def demote(url: str, node: str, force: bool) -> None:
    """Make the voter NODE a learner."""
    change_members(url, MemberChange(DEMOTE, node, force=force))


@member.command()
@click.argument("node")
@force_option
def remove(url: str, node: str, force: bool) -> None:
    """Remove NODE. Stop it afterwards; its file gets no more commits. A voter that answers is demoted first."""
    change_members(url, MemberChange(REMOVE, node, force=force))


@member.command("address")
@click.argument("node")
@click.argument("address", metavar="HOST:PORT")
@move_option
def change_address(url: str, node: str, address: str, force: bool) -> None:
    """Tell the others that NODE, which was stopped before, listens at HOST:PORT from now on."""
    check_address(address, force=force)
    change_members(url, MemberChange(ADDRESS, node, address, force=force))


@member.command("replace")
@click.argument("node")
@click.argument("successor")
@click.argument("address", metavar="[HOST:PORT]", required=False)
@force_option
def replace_node(url: str, node: str, successor: str, address: str | None, force: bool) -> None:
    """Remove NODE, whose file is lost, and admit the new node SUCCESSOR as a learner, by default at NODE's address.

    SUCCESSOR must be a new name, because the commits that NODE led keep the name NODE. Then run 'bedrockish join
    --voter' for the new node.
    """
    if address is not None:
        check_address(address, force=force)
    change_members(url, MemberChange(REPLACE, node, address or "", successor, force=force))


@member.command()
@click.argument("node")
@click.option(
    "--from",
    "source",
    metavar="NAME",
    help="The member to copy from, even if a comparison with other members speaks against it.",
)
@click.option("--from-journal", is_flag=True, help="Rebuild the tables from NODE's own journal instead of a copy.")
def repair(url: str, node: str, source: str | None, from_journal: bool) -> None:
    """Fill the damaged tables of NODE again, and print its progress until it serves.

    NODE keeps its name, its votes and its promises. A copy is proven before it is used: its tables must equal a replay
    of its journal or, if the beginning of the journal was removed, the tables of most members.
    """
    if source and from_journal:
        raise UsageError("--from and --from-journal are two different sources; give one")
    chosen = OWN_JOURNAL if from_journal else source or ""

    async def run() -> None:
        found = await everywhere(url, {"do": "repair", "from": chosen}, node)
        if why := found[node].get("unreachable"):  # after the order, the loop waits for a node that restarts
            raise UnavailableError(f"{node} did not answer the order: {why}; run the command again when {node} runs")
        said = ""
        while True:
            told = found[node]
            now = f"{node}: {told.get('mode') or 'not reached'}: {told.get('unreachable') or _reason(told)}"
            if now != said:
                click.echo(now)
                said = now
            if told.get("mode") in ("serving", "read-only"):
                return
            await trio.sleep(POLL_S)
            found = await everywhere(url, None, node)

    trio.run(run)


def _reason(told: dict[str, object]) -> str:
    alarms = told.get("alarms")
    alarm = alarms.get("damaged_tables") if isinstance(alarms, dict) else None
    if isinstance(alarm, dict):
        return str(alarm.get("verdict") or alarm.get("reason"))
    return str(told.get("reason") or told.get("trouble") or "its tables are sound")


@member.command()
@click.argument("transaction")
@click.option("--force", is_flag=True, help="Resolve even if a member has applied TRANSACTION, or does not answer.")
def resolve(url: str, transaction: str, force: bool) -> None:
    """Have every member skip the changes of TRANSACTION, which fit no node's tables, so that writes are accepted again.

    'bedrockish status' names TRANSACTION. The order is refused if a member has applied TRANSACTION, because its client
    may have been told that it happened. Its changes stay in the journals: 'bedrockish journal show --changes'. The
    resolution is an entry of the journal, too. Run the command again until every member has done it.
    """
    found = trio.run(everywhere, url, {"do": "resolve", "txid": transaction, "force": force})
    for node, told in found.items():
        click.echo(f"{node}: {told.get('unreachable') or 'applies it without its changes'}")
    trio.run(_record_void, url, transaction)
    click.echo("recorded in the journal")
    sys.exit(3 if any("unreachable" in told for told in found.values()) else 0)


def check_address(text: str, *, force: bool) -> None:
    """Check that this machine can resolve the host of an address, as every member has to.

    Raises:
        UsageError: the host does not resolve, and the order is not forced.
    """
    address = parse_address(text, where="HOST:PORT")
    try:
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        if not force:
            raise UsageError(
                f"{address.host} does not resolve on this machine; correct the name, or use --force if the members "
                "resolve it"
            ) from error


async def _record_void(url: str, transaction: str) -> None:
    """Have the cluster record a resolution; retry for some time, because its members are restarting."""
    change = MemberChange(VOID, transaction)
    until = trio.current_time() + RECORD_S
    async with open_client(url) as client:
        while True:
            try:
                await client.change_members(change, timeout=RECORD_S)
            except MembershipError as error:
                if error.details.get("reason") != "duplicate":
                    raise
            except (ReadOnlyError, UnavailableError):
                if trio.current_time() > until:
                    raise
                await trio.sleep(POLL_S)
                continue
            return


def change_members(url: str, change: MemberChange) -> None:
    """Have the cluster at a URL make a change of its members or users, and print the answer."""

    async def ask() -> Rows:
        async with open_client(url) as client:
            return await client.change_members(change)

    show(trio.run(ask))


def show(rows: Rows, *, as_json: bool = False) -> None:
    """Print rows: as a box on a terminal and plain in a pipe, or as JSON."""
    print_rows(rows, JSON if as_json else BOX if sys.stdout.isatty() else PLAIN)
