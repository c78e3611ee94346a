"""``bedrockish lake``: write the change feed into tables of Delta Lake or Apache Iceberg."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from bedrockish.cli.journal import load_plugins
from bedrockish.cli.url import UrlCommand, url_argument
from bedrockish.client.feed import Changes
from bedrockish.client.trio_client import open_client, target_of
from bedrockish.errors import UsageError
from bedrockish.transfer.lake import Batcher, Lake
from bedrockish_journal.feed.change_feed import Committed

if TYPE_CHECKING:
    from bedrockish.transfer.lake import Sink

DELTA, ICEBERG = "delta", "iceberg"


@click.command(cls=UrlCommand)
@url_argument
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--format", "kind", type=click.Choice([DELTA, ICEBERG]), default=DELTA, show_default=True)
@click.option("--follow", is_flag=True, help="Wait for more, until interrupted; else end at what is safe now.")
@click.option("--every", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Seconds to a batch.")
@click.option("--hold", metavar="NAME", help="Keep the journal for a reader of this name, as far as it has not come.")
@click.option("--plugin", "plugins", metavar="MODULE", multiple=True, help="A plugin of the nodes, for its functions.")
def lake(
    url: str, directory: Path, kind: str, follow: bool, every: float, hold: str | None, plugins: tuple[str, ...]
) -> None:
    """Write every change of every row into DIRECTORY, once: a typed table for each table, and one of all commits.

    Killed at any moment, start it again. Beside the tables it keeps a mirror of the database, mirror.db.
    """
    target_of(url)
    with Lake(directory, _sink(kind, directory), load_plugins(plugins)) as opened:
        trio.run(_fill, url, opened, follow, every, hold)


def _sink(kind: str, directory: Path) -> "Sink":
    try:
        from bedrockish.transfer.lake_sinks import DeltaTables, IcebergTables
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'bedrockish[lake]'") from None
    other = directory / ("catalog.db" if kind == DELTA else "_commits")
    if other.exists():
        raise UsageError(f"{directory} has tables of the other format; use another directory, or another --format")
    return DeltaTables(directory) if kind == DELTA else IcebergTables(directory)


async def _fill(url: str, opened: Lake, follow: bool, every: float, hold: str | None) -> None:
    async with open_client(url) as client:
        feed = Changes(client, opened.cursor, follow=follow, hold=hold)
        batcher = Batcher(opened.ending)
        until = trio.current_time() + every
        is_over = False
        while not is_over:
            over: list[list[Committed]] = []
            with trio.move_on_at(until) as scope:
                try:
                    over = batcher.add(await anext(feed))
                except StopAsyncIteration:
                    is_over, over = True, batcher.rest()
            if scope.cancelled_caught:
                over = batcher.rest()
            for batch in over:
                changes = await trio.to_thread.run_sync(opened.write, batch)
                click.echo(f"batch {opened.batch}: {len(batch)} commits, {changes} rows, up to {opened.cursor}")
            if over or batcher.is_empty:
                until = trio.current_time() + every
