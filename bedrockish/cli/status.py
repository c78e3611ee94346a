"""``bedrockish status`` and ``bedrockish nodes``: a node's report about itself and the other members."""

import json
from datetime import UTC, datetime
from typing import Any, TextIO

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bedrockish.cli.options import WIDE, console, json_option
from bedrockish.cli.safe_text import visible
from bedrockish.client.blocking import connect
from bedrockish.client.trio_client import URL_VARIABLE

TIMEOUT_S = 5.0


@click.command()
@click.argument("url", required=False, envvar=URL_VARIABLE)
@json_option
def status(url: str | None, as_json: bool) -> None:
    """Print the status of the node at URL, its troubles first. URL is by default the value of BEDROCKISH_URL.

    Ends with 1 if anything is wrong, with the node or with its view of the cluster, or if a member is not up.
    """
    with connect(url) as connection:
        found = connection.status(timeout=TIMEOUT_S)
    if as_json:
        click.echo(to_json(found))
    else:
        print_status(found)
    if found.get("troubles") or _silent(found.get("nodes")):
        raise SystemExit(1)


def print_status(found: dict[str, Any], out: TextIO | None = None) -> None:
    """Print the status of a node: its troubles, its facts, the members, and the transactions in doubt."""
    printed = console(out)
    troubles = found.get("troubles")
    for one in troubles if isinstance(troubles, list) else ():
        printed.print(Text(f"TROUBLE {visible(str(one['code']))}: {visible(str(one['text']))}", style="bold red"))
        printed.print(Text(f"  to do: {visible(str(one['do']))}\n"))
    nodes, doubts = found.get("nodes"), found.get("in_doubt")
    if troubles == [] and isinstance(nodes, dict):
        silent = _silent(nodes)
        counts = f"{len(nodes) - len(silent)} of {len(nodes)} nodes answer"
        if silent:  # a node that is silent for some seconds is a trouble
            said = f"Not all is well yet: {counts}, without {', '.join(silent)}; ask again in some seconds.\n"
            printed.print(Text(visible(said), style="bold yellow"))
        else:
            printed.print(Text(f"Nothing is wrong: {counts}.\n", style="bold green"))
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in found.items():
        if name in ("certificates", "peer_certificates") and isinstance(value, dict):
            value = {whose: _validity(end) for whose, end in value.items()}
        apart = name in ("nodes", "in_doubt", "troubles") and isinstance(value, dict | list)
        if not apart:
            table.add_row(Text(visible(name)), Text(_text(value)))
    printed.print(table)
    if isinstance(nodes, dict):
        printed.print("\nmembers", style="bold")
        _print_facts(printed, "node", nodes)
    if isinstance(doubts, list):
        printed.print("\ntransactions in doubt" + ("" if doubts else ": none"), style="bold")
        if doubts:
            _print_facts(printed, "", {str(number): fact for number, fact in enumerate(doubts, 1)})


@click.command()
@click.argument("url", required=False, envvar=URL_VARIABLE)
@json_option
def nodes(url: str | None, as_json: bool) -> None:
    """Print the members of the cluster, as the node at URL knows them."""
    with connect(url) as connection:
        found = connection.nodes(timeout=TIMEOUT_S)
    if as_json:
        click.echo(to_json(found))
    else:
        _print_facts(console(), "node", found)


def _print_facts(out: Console, head: str, found: dict[str, Any]) -> None:
    """Print a table, with a row for each item and a column for each fact; print lists if the table is too wide."""
    facts = [fact if isinstance(fact, dict) else {"": fact} for fact in found.values()]
    titles = list(dict.fromkeys(str(title) for fact in facts for title in fact))
    table = Table(box=None, header_style="bold")
    for title in (head, *titles):
        table.add_column(Text(visible(title)), overflow="fold")
    for name, fact in zip(found, facts, strict=True):
        table.add_row(Text(visible(str(name))), *(Text(_text(fact.get(title, ""))) for title in titles))
    wide = Measurement.get(out, out.options.update(max_width=WIDE), table).maximum
    if out.soft_wrap or wide <= out.width:
        out.print(table)
        return
    for name, fact in zip(found, facts, strict=True):
        out.print(Text(visible(f"{head} {name}".strip()), style="bold"))
        table = Table(box=None, show_header=False)
        table.add_column()
        table.add_column(overflow="fold")
        for title in titles:
            table.add_row(Text(f"  {visible(title)}"), Text(_text(fact.get(title, ""))))
        out.print(table)


def _silent(nodes: Any) -> list[str]:
    """Return the names of the members that do not answer now."""
    return [name for name, one in nodes.items() if not one.get("up")] if isinstance(nodes, dict) else []


def to_json(value: Any) -> str:
    """Return indented JSON; values of other types than JSON's are written as text."""
    return json.dumps(
        value, indent=2, ensure_ascii=False, default=lambda one: one.hex() if isinstance(one, bytes) else str(one)
    )


def _validity(end_s: Any) -> str:
    """Return until when a certificate is valid, as text."""
    return f"until {datetime.fromtimestamp(end_s, UTC):%Y-%m-%d}" if isinstance(end_s, int | float) else str(end_s)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return visible(", ".join(f"{name}: {_text(inner) or 'none'}" for name, inner in value.items()) or "none")
    if isinstance(value, list | tuple):
        return visible(", ".join(_text(inner) for inner in value) or "none")
    if isinstance(value, bytes):
        return value.hex()
    return visible("yes" if value is True else "no" if value is False else "" if value is None else str(value))
