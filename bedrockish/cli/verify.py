"""``bedrockish verify``: compare the tables of all running nodes now, and print the differences."""

import sys
from contextlib import AsyncExitStack

import click
import trio

from bedrockish.cli.url import UrlCommand, url_of
from bedrockish.client.compare_nodes import AskRange, NodeComparison, Report
from bedrockish.client.trio_client import Client, open_client, target_of
from bedrockish.errors import BedrockishError, ProtocolMismatchError
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.verify.row_digests import Range, RangeDigest, pack_range, unpack_digest

TIMEOUT_S = 60.0


@click.command(cls=UrlCommand)
def verify(url: str) -> None:
    """Compare the rows of all tables at all members, and print differences: table, key, and the node in the minority.

    It runs while clients go on. Ends with 1 if something differs, with 3 if a member could not be asked or something
    could not be compared. A node with damaged tables repairs itself, or is repaired with 'bedrockish member repair'.
    """
    target_of(url)
    report, members = trio.run(_compare, url)
    for one in report.differences:
        click.echo(f"DIFFERS: {one}")
    for text in report.skipped:
        click.echo(f"not compared: {text}")
    for node, why in sorted(report.gone.items()):
        click.echo(f"not asked: {node}: {why}")
    left = f"; {report.open} rows were being written each time" if report.open else ""
    said = f"{len(report.differences)} rows differ" if report.differences else "nothing differs"
    nodes = ", ".join(report.nodes)
    click.echo(f"{said}: {report.rows} rows of {report.tables} tables at {nodes} of {members} members{left}")
    sys.exit(1 if report.differences else 3 if report.gone or report.skipped else 0)


async def _compare(url: str) -> tuple[Report, int]:
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
                asks[node] = asking(client)
        report = await NodeComparison(asks, len(members)).run()
        report.gone |= gone
        return report, len(members)


def asking(client: Client) -> AskRange:
    """Return a function that asks a node for the digest of a range, by a client of that node alone."""

    async def ask(asked: Range, beyond: Vector | None) -> RangeDigest:
        told = await client.upkeep({"do": "digest", **pack_range(asked, beyond)}, timeout=TIMEOUT_S)
        try:
            return unpack_digest(told)
        except ValueError as error:
            raise ProtocolMismatchError(str(error)) from error

    return ask
