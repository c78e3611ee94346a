"""``bedrockish schema``: the versions of the schema, and the trial of a change."""

from dataclasses import asdict

import click

from bedrockish.cli.safe_text import visible
from bedrockish.cli.status import to_json
from bedrockish.cli.url import UrlGroup
from bedrockish.client.blocking import connect
from bedrockish.client.trio_client import URL_VARIABLE, target_of
from bedrockish.errors import UsageError


@click.group(cls=UrlGroup)
def schema() -> None:
    """Read the versions of the schema, and try a change without making it."""


@schema.command()
@click.argument("url", required=False, envvar=URL_VARIABLE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def history(url: str | None, as_json: bool) -> None:
    """Print the versions of the schema and since when each is in force, as the node at URL has them."""
    with connect(url) as connection:
        found = connection.schema_history()
    if as_json:
        click.echo(to_json([{**asdict(one), "at": one.at.isoformat()} for one in found]))
        return
    for one in found:
        since = one.at.isoformat(sep=" ", timespec="milliseconds")
        said = f": {one.failure}" if one.failure else ""
        click.echo(f"version {one.version} since {since} led by {one.leader} {one.state}{visible(said)}")
        for line in one.statements.splitlines():
            click.echo(f"    {visible(line)}")
    if not found:
        click.echo("the schema was never changed")


@schema.command("try")
@click.argument("arguments", nargs=-1, required=True, metavar="[URL] SQL")
def try_change(arguments: tuple[str, ...]) -> None:
    """Run schema statements on the data of the node at URL, roll them back, and print errors (exit status 1)."""
    if len(arguments) > 2:
        raise UsageError("give one text of SQL, in quotes")
    url, sql = arguments if len(arguments) == 2 else (None, arguments[0])
    target_of(url)
    with connect(url) as connection:
        failures = connection.try_schema(sql)
    for number, failure in enumerate(failures, 1):
        click.echo(f"statement {number}: {visible(failure) or 'would be done'}")
    raise SystemExit(1 if any(failures) else 0)
