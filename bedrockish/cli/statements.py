"""``bedrockish statements`` and ``transactions``: the costs of statements, and the transactions that are open."""

from collections.abc import Mapping
from typing import Any

import click
import trio

from bedrockish.api.requests import Rows
from bedrockish.cli.member import show
from bedrockish.cli.options import json_option, node_option
from bedrockish.cli.upkeep import everywhere, report_missing
from bedrockish.cli.url import UrlCommand
from bedrockish.errors import UsageError

ADDED = ("calls", "errors", "repeats", "total_ms", "result_bytes")
COLUMNS = ("calls", "errors", "repeats", "total_ms", "mean_ms", "longest_ms", "result_bytes", "nodes", "statement")
BY = COLUMNS[:7]
SHOWN_MAX = 20  # the statements that are printed to be read
OPEN = ("command", "client", "open_ms", "idle_ms", "changed", "statement")  # the facts of an open transaction


@click.command(cls=UrlCommand)
@click.option(
    "--by",
    type=click.Choice(BY),
    default="total_ms",
    show_default=True,
    help="The order of the statements, the greatest first.",
)
@node_option
@click.option("--reset", is_flag=True, help="Reset the statistics afterwards; needs the role admin.")
@json_option
def statements(url: str, by: str, only: str | None, reset: bool, as_json: bool) -> None:
    """Print which statements cost most since the nodes started: by their text, with ? for each value.

    The first 20 are printed, and all as JSON.

    A request counts at the node to which it was sent, from its arrival to its answer; statements that were sent
    together count as one. 'repeats' is how often it was executed again, mostly because of a conflict.
    """
    told = trio.run(everywhere, url, {"do": "statements", "reset": reset}, only)
    rows = added_up({node: one for node, one in told.items() if "unreachable" not in one})
    rows.sort(key=lambda row: -row[COLUMNS.index(by)])
    show(Rows(COLUMNS, rows if as_json else rows[:SHOWN_MAX]), as_json=as_json)
    for node, one in told.items():
        if one.get("forgotten"):
            click.echo(f"{node} has forgotten {one['forgotten']} texts that were seldom used", err=True)
    report_missing(told)


@click.command(cls=UrlCommand)
@click.option("--end", metavar="COMMAND", help="End this transaction at --node; needs the role admin.")
@node_option
@json_option
def transactions(url: str, end: str | None, only: str | None, as_json: bool) -> None:
    """Print the open transactions of clients, those between BEGIN and COMMIT, or end one.

    COMMAND is a name that the node chose, from the column of that name. The client of a transaction that was ended gets
    an error: nothing of it happened. A COMMIT that is under way cannot be stopped.
    """
    if end is not None:
        if only is None:
            raise UsageError("--end: name the node of the transaction with --node")
        told = trio.run(everywhere, url, {"do": "end", "command": end}, only)
    else:
        told = trio.run(everywhere, url, {"do": "transactions"}, only)
        rows = [(node, *(found[name] for name in OPEN)) for node, one in told.items() for found in one.get("open", ())]
        show(Rows(("node", *OPEN), rows), as_json=as_json)
        if not rows:
            click.echo("no transaction is open", err=True)  # not among the rows, which a program may read
    report_missing(told)


def added_up(told: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the rows of ``COLUMNS``, added up over the nodes' answers."""
    sums: dict[str, dict[str, Any]] = {}
    for node, one in told.items():
        for found in one["found"]:
            total = sums.setdefault(found["sql"], {"longest_ms": 0.0, "nodes": []})
            for name in ADDED:
                total[name] = total.get(name, 0) + found[name]
            total["longest_ms"] = max(total["longest_ms"], found["longest_ms"])
            total["nodes"].append(node)
    return [
        (
            *(one["calls"], one["errors"], one["repeats"], round(one["total_ms"], 1)),
            *(round(one["total_ms"] / one["calls"], 2), one["longest_ms"], one["result_bytes"]),
            *(" ".join(one["nodes"]), sql),
        )
        for sql, one in sums.items()
    ]
