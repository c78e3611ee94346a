"""``bedrockish batch``: one statement over a large table, a range of keys at a time."""

import hashlib
import sys
from pathlib import Path

import click
import trio

from bedrockish.cli.upkeep import duration
from bedrockish.cli.url import UrlCommand
from bedrockish.client.trio_client import open_client, target_of
from bedrockish.errors import UsageError
from bedrockish.transfer.batch import ROWS_MAX, Batch, Progress, read_progress


@click.command(cls=UrlCommand)
@click.argument("table")
@click.argument("sql")
@click.option("--key", default="rowid", show_default=True, help="A column with an index, of integers or texts.")
@click.option("--rows", default=500, show_default=True, type=click.IntRange(1, ROWS_MAX), help="In the first range.")
@click.option("--pause", callback=duration, default="0s", show_default=True, metavar="AGE", help="Between two ranges.")
@click.option("--state", type=click.Path(path_type=Path, dir_okay=False), help="The file that records the progress.")
def batch(url: str, table: str, sql: str, key: str, rows: int, pause: float, state: Path | None) -> None:
    """Run SQL over all of TABLE, a range of keys at a time, each in a transaction of its own.

    SQL selects a range with :first and :last, as in "DELETE FROM log WHERE rowid BETWEEN :first AND :last AND old". A
    range has as many rows as take about a tenth of a second, so other clients do not wait long. After an interruption
    or a kill, run the command again: it continues where it was, and each range is done once. Rows that are inserted
    later with a smaller key are not processed.
    """
    target_of(url)
    if ":first" not in sql or ":last" not in sql:
        raise UsageError("the statement should say which rows: … WHERE rowid BETWEEN :first AND :last")
    name = hashlib.sha256("\0".join((table, key, sql)).encode()).hexdigest()[:8]
    path = state or Path(f"batch-{name}.json")
    progress = read_progress(path, sql, table, key)
    if progress.number > 1 and not progress.finished:
        click.echo(f"{path}: going on after {progress.after!r}", err=True)

    async def run() -> Progress:
        async with open_client(url) as client:
            return await Batch(client, path, progress, pause, _show).run(rows)

    done = trio.run(run)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    click.echo(f"{done.changed} rows changed, in {done.number - 1} ranges; {path} is no longer needed")


def _show(progress: Progress) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[Kup to {progress.after!r}: {progress.changed} rows changed", err=True, nl=False)
