"""``bedrockish clock``, ``bedrockish journal prune`` and ``bedrockish journal hold``: settings of running nodes."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import click
import trio
from rich.table import Table
from rich.text import Text

from bedrockish.cli.options import console, node_option
from bedrockish.cli.progress import write_over
from bedrockish.cli.url import UrlCommand, url_of
from bedrockish.client.blocking import connect
from bedrockish.client.trio_client import open_client
from bedrockish.errors import BedrockishError, UnavailableError, UsageError

TIMEOUT_S = 60.0
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MEGABYTES = {"KB": 0.001, "MB": 1, "GB": 1_000, "TB": 1_000_000}


@click.command(cls=UrlCommand)
@click.argument("to", metavar="[on|off]", type=click.Choice(["on", "off"]), required=False)
def clock(url: str, to: str | None) -> None:
    """Print the clocks of all members, or make them follow the wall clock (on) or only count (off).

    The setting survives restarts. Off is the safety valve for wrong wall clocks: order and safety stay, but the
    cluster's clock no longer shows the time of day.
    """

    def cells(found: Mapping[str, Any]) -> tuple[Any, ...]:
        offsets = {name: peer.get("wall_offset_ms") for name, peer in found.get("nodes", {}).items()}
        walls = ", ".join(f"{name} {offset:+}" for name, offset in offsets.items() if offset is not None)
        return (*(found.get(name) for name in NAMES), walls)

    if to is not None:
        trio.run(everywhere, url, {"do": "clock", "set": to})
    _report(trio.run(everywhere, url, None), (*NAMES, "walls_ms"), cells)


NAMES = ("cluster_clock", "clock", "clock_ahead_ms", "safe_lag_ms")


def _number_with(units: Mapping[str, float], wrong: str) -> Callable[[Any, Any, str | None], float | None]:
    """Return a callback for an option whose value is a number with a unit."""

    def read(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(\w+)", value)
        unit = None if found is None else units.get(found[2], units.get(found[2].upper()))
        if found is None or unit is None:
            raise click.BadParameter(f"{value!r} is not {wrong}")
        return float(found[1]) * unit

    return read


duration = _number_with(SECONDS, "a duration; write 90s, 30m, 12h or 7d")
_size = _number_with(MEGABYTES, "a size; write 500MB or 2GB")


@click.command(cls=UrlCommand)
@click.option(
    "--older-than",
    callback=duration,
    metavar="AGE",
    help="Remove entries older than this, by the cluster's clock: 7d, 12h.",
)
@click.option(
    "--larger-than",
    callback=_size,
    metavar="SIZE",
    help="Remove the oldest entries of a journal larger than this: 500MB, 2GB.",
)
@node_option
@click.option(
    "--force",
    is_flag=True,
    help="Also remove entries that a member or a reader still needs. Such a member must be refilled.",
)
def prune(url: str, older_than: float | None, larger_than: float | None, only: str | None, force: bool) -> None:
    """Remove the beginning of the journals in running nodes' files.

    The rest of a journal verifies from its new beginning. Earlier backups have the removed entries.
    """
    if older_than is None and larger_than is None:
        raise UsageError("name the entries to remove: --older-than 30d, --larger-than 2GB, or both")
    asked = {"do": "prune", "older_than_s": older_than, "larger_than_mb": larger_than, "force": force}
    found = trio.run(everywhere, url, asked, only)
    for node, told in found.items():
        while told.get("more") and told["removed"]:  # a node answers before the time of a request is over
            write_over(f"{node}: {found[node]['removed']} entries removed")
            told = trio.run(everywhere, url, asked, node)[node]
            found[node] = {**told, "removed": found[node]["removed"] + told.get("removed", 0)}
    write_over()
    _report(
        found,
        ("removed", "left", "what is kept, and why"),
        lambda found: (found.get("removed"), found.get("entries"), "; ".join(found.get("kept", ()))),
    )


@click.command(cls=UrlCommand)
@click.argument("name")
@click.option(
    "--after", metavar="CURSOR", help="The cursor up to which NAME has read the change feed; by default the beginning."
)
@click.option("--release", is_flag=True, help="Stop keeping entries for NAME.")
def hold(url: str, name: str, after: str | None, release: bool) -> None:
    """Have all nodes keep the journal for the reader NAME from its cursor on or, with --release, no longer."""
    with connect(url) as connection:
        holds = connection.hold(name, after, release=release, timeout=TIMEOUT_S)["holds"]
    click.echo("\n".join(f"{reader} after {clock}" for reader, clock in sorted(holds.items())) or "no reader holds it")


async def everywhere(url: str, asked: Mapping[str, Any] | None, only: str | None = None) -> dict[str, dict[str, Any]]:
    """Send an order to every member, or to one; if ``asked`` is None, ask for the status.

    Return the answer of each node by name, or the reason why a node does not answer.
    """
    async with open_client(url) as client:
        nodes = await client.nodes(timeout=TIMEOUT_S)
    if only is not None and only not in nodes:
        raise UsageError(f"there is no member {only!r}; there is {', '.join(nodes)}")
    found: dict[str, dict[str, Any]] = {}
    for node, fact in nodes.items():
        if only in (None, node):
            try:
                async with open_client(url_of(url, fact)) as client:
                    told = (
                        client.status(timeout=TIMEOUT_S) if asked is None else client.upkeep(asked, timeout=TIMEOUT_S)
                    )
                    found[node] = await told
            except UnavailableError as error:
                found[node] = {"unreachable": error.message}
            except BedrockishError as error:
                error.message = f"{node}: {error.message}"
                raise
    return found


def _report(
    found: Mapping[str, Mapping[str, Any]],
    titles: tuple[str, ...],
    cells: Callable[[Mapping[str, Any]], tuple[Any, ...]],
) -> None:
    """Print a row for each member; end with 3 if a member could not be asked (``report_missing``)."""
    table = Table(box=None, header_style="bold")
    for title in ("node", *titles):
        table.add_column(Text(title), overflow="fold")
    for node, told in found.items():
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in (node, *cells(told))))
    console().print(table)
    report_missing(found)


def report_missing(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print why members could not be asked to standard error, and end with status 3 if there are any."""
    missing = {node: told["unreachable"] for node, told in found.items() if "unreachable" in told}
    for node, why in missing.items():
        click.echo(f"{node} is not included: {why}", err=True)
    if missing:
        raise SystemExit(3)
