"""``bedrockish explain``: the reads and writes of a statement, and so its possible conflicts."""

import json
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from bedrockish.cli.options import console, json_option
from bedrockish.cli.safe_text import visible
from bedrockish.cli.status import to_json
from bedrockish.client.blocking import connect
from bedrockish.errors import UsageError


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="[URL] SQL")
@click.option("-p", "--param", "params", multiple=True, help="A parameter: a JSON value, or else a text. In order.")
@json_option
def explain(arguments: tuple[str, ...], params: tuple[str, ...], as_json: bool) -> None:
    """Print the keys that SQL would read and write at the node at URL (by default the URL in BEDROCKISH_URL).

    SQL is run and rolled back. Two concurrent transactions conflict if one writes rows that the other reads or writes.
    "wider" lists objects that count as read as a whole, because the rows are not known, with the reason; "to do" is
    advice on how to read less.
    """
    if len(arguments) > 2:
        raise UsageError("give one text of SQL, in quotes")
    url, sql = arguments if len(arguments) == 2 else (None, arguments[0])
    with connect(url) as connection:
        found = connection.explain(sql, [_value(text) for text in params])
    if as_json:
        click.echo(to_json(found))
        return
    out = console()
    for one in found:
        out.print(Text(visible(one["sql"]), style="bold"))
        out.print(_table(one))


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value


def _table(one: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    wider = [f"{name}: {reason}" for name, reason in one.get("wider", ())]
    lines = {
        "ids": ["given by the node"] if one["ids"] else [],
        "reads": one["reads"] or ["nothing"],
        "wider": wider,
        "to do": one.get("advice", []),
        "writes": one["writes"] or ["nothing"],
        "fails": [one["error"]] if one.get("error") else [],
    }
    for name, texts in lines.items():
        for number, text in enumerate(texts):
            table.add_row("" if number else name, Text(visible(text)))
    return table
