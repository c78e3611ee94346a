"""``bedrockish changes``: print the change feed, as lines to read or as JSON for programs."""

import json

import click
import trio

from bedrockish import open_client
from bedrockish.cli.safe_text import visible
from bedrockish.cli.url import UrlCommand
from bedrockish.cli.words import whose
from bedrockish.client.feed import Changes
from bedrockish_journal.feed.change_feed import Committed
from bedrockish_journal.feed.json_form import as_data
from bedrockish_journal.model.changes import Change, Row
from bedrockish_journal.model.transaction import MEMBERS

TABLE = "Only rows of this table, besides changes of the schema and the members; may be repeated."


@click.command(cls=UrlCommand)
@click.option("--after", metavar="CURSOR", help="Continue after this cursor, which an earlier run printed.")
@click.option("--table", "tables", metavar="NAME", multiple=True, help=TABLE)
@click.option("--follow", is_flag=True, help="Wait for more, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each transaction.")
def changes(url: str, after: str | None, tables: tuple[str, ...], follow: bool, as_json: bool) -> None:
    """Print every committed transaction once, in the order of the cluster's clock, up to safe time."""

    async def run() -> None:
        async with open_client(url) as client:
            async for transaction in Changes(client, after, tables=tables or None, follow=follow):
                click.echo(json.dumps(as_data(transaction), ensure_ascii=False) if as_json else as_text(transaction))

    trio.run(run)


def as_text(transaction: Committed) -> str:
    """Return a transaction as lines."""
    leader, tick = transaction.place
    head = f"{leader}{tick} {transaction.at.isoformat(timespec='milliseconds')} cursor {transaction.cursor}"
    user = transaction.whose.get(transaction.command)
    if transaction.joined:
        names = (transaction.command, *transaction.joined)
        head += f" commands {', '.join(whose(name, transaction.whose.get(name)) for name in names)}"
    elif user is not None:
        head += f" of {visible(user)}"
    makers = transaction.makers if transaction.joined else (None,) * len(transaction.changes)
    lines = list(map(_line, transaction.changes, makers))
    if transaction.kind == MEMBERS:
        lines.append("    members or users were changed")
    return "\n".join([head, *lines, *(f"    {text}" for text in transaction.statements)])


def _line(change: Change, maker: str | None) -> str:
    def row(values: Row | None) -> str:
        return "nothing" if values is None else repr(values)

    by = f" by {maker}" if maker is not None else ""
    return f"    {change.op} {change.table}: {row(change.before)} -> {row(change.after)}{by}"
