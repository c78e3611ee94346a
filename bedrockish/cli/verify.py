"""``bedrockish verify``: compare the tables of all running nodes now, and print the differences."""

import sys
from contextlib import AsyncExitStack
from functools import partial

import click
import trio

from bedrockish.cli.url import UrlCommand, url_of
from bedrockish.client.compare_nodes import AskRange, ComparisonReport, NodeComparison, ask_range
from bedrockish.client.trio_client import open_client
from bedrockish.errors import BedrockishError

TIMEOUT_S = 60.0


@click.command(cls=UrlCommand)
def verify(url: str) -> None:
    """Compare the rows of all tables at all members, and print differences: table, key, and the node in the minority.

    It runs while clients go on. Ends with 1 if something differs, with 3 if a member could not be asked or something
    could not be compared. A node with damaged tables repairs itself, or is repaired with 'bedrockish member repair'.
    """
    report, members = trio.run(_compare, url)
    for one in report.differences:
        click.echo(f"DIFFERS: {one}")
    for text in report.skipped:
        click.echo(f"not compared: {text}")
    for node, why in sorted(report.lost_nodes.items()):
        click.echo(f"not asked: {node}: {why}")
    left = f"; {report.uncompared} rows were being written each time" if report.uncompared else ""
    said = f"{len(report.differences)} rows differ" if report.differences else "nothing differs"
    nodes = ", ".join(report.nodes)
    click.echo(f"{said}: {report.rows} rows of {report.tables} tables at {nodes} of {members} members{left}")
    sys.exit(1 if report.differences else 3 if report.lost_nodes or report.skipped else 0)


async def _compare(url: str) -> tuple[ComparisonReport, int]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_client(url))
        members = await first.nodes(timeout=TIMEOUT_S)
        asks: dict[str, AskRange] = {}
        gone: dict[str, str] = {}
        for node, fact in members.items():
            try:
                client = await stack.enter_async_context(open_client(url_of(url, fact)))
                await client.status(timeout=5.0)
            except BedrockishError as error:
                gone[node] = error.message
            else:
                asks[node] = ask_range(partial(client.upkeep, timeout=TIMEOUT_S))
        report = await NodeComparison(asks, len(members)).run()
        report.lost_nodes |= gone
        return report, len(members)
