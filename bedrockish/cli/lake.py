"""``bedrockish lake``: write the change feed into tables of Delta Lake."""

from pathlib import Path

import click
import trio

from bedrockish.cli.journal import load_plugins
from bedrockish.cli.url import LocalPath, UrlCommand
from bedrockish.client.feed import Changes
from bedrockish.client.trio_client import open_client, target_of
from bedrockish.errors import PrunedError, UsageError
from bedrockish.transfer.export import export
from bedrockish.transfer.lake import MIRROR, Batcher, Lake, Sink, begin_with, fill
from bedrockish_journal.feed.change_feed import Committed


@click.command(cls=UrlCommand)
@click.argument(
    "directory", type=LocalPath("write a directory of this machine, and copy it from there", file_okay=False)
)
@click.option(
    "--follow", is_flag=True, help="Wait for more, until interrupted; by default end at the present safe time."
)
@click.option("--every", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Seconds to a batch.")
@click.option("--copy", is_flag=True, help="Begin a new lake with the present rows instead of the first commit.")
@click.option(
    "--hold", metavar="NAME", help="Keep the entries of the journal that the reader of this name has not read."
)
@click.option("--plugin", "plugins", metavar="MODULE", multiple=True, help="A plugin of the nodes, for its functions.")
def lake(
    url: str,
    directory: Path,
    follow: bool,
    every: float,
    copy: bool,
    hold: str | None,
    plugins: tuple[str, ...],
) -> None:
    """Write every change of every row into DIRECTORY, once: a typed table for each table, and one of all commits.

    The command may be killed at any moment, and started again. Next to the tables it keeps a mirror of the database,
    mirror.db.
    """
    target_of(url)
    sink = _sink(directory)
    if copy and not (directory / MIRROR).exists():
        _copy(url, directory)
    with Lake(directory, sink, load_plugins(plugins)) as opened:
        for rows in opened.write_copy():
            click.echo(f"batch {opened.batch}: {rows} rows of a copy")
        try:
            trio.run(_fill, url, opened, follow, every, hold)
        except* PrunedError as error:
            raise PrunedError(f"{_first(error).message}; a lake in a new directory can begin with --copy") from None


def _first(error: BaseException) -> PrunedError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, PrunedError)
    return error


def _copy(url: str, directory: Path) -> None:
    """Make the mirror of a new lake from a copy of the tables."""
    unfinished = directory / f"{MIRROR}.copy"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)  # left behind by a run that was killed
    except OSError as error:
        raise UsageError(f"the lake cannot be written: {error.filename}: {error.strerror}") from error
    begin_with(unfinished, trio.run(export, url, unfinished).cursor, directory)


def _sink(directory: Path) -> Sink:
    try:
        from bedrockish.transfer.lake_sinks import DeltaTables
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'bedrockish[lake]'") from None
    if (directory / "catalog.db").exists():
        raise UsageError(f"{directory} has Iceberg tables of release 0.2; begin a lake in a new directory")
    return DeltaTables(directory)


async def _fill(url: str, opened: Lake, follow: bool, every: float, hold: str | None) -> None:
    async def write(batch: list[Committed]) -> None:
        changes = await trio.to_thread.run_sync(opened.write, batch)
        click.echo(f"batch {opened.batch}: {len(batch)} commits, {changes} rows, up to {opened.cursor}")

    async with open_client(url) as client:
        feed = Changes(client, opened.cursor, follow=follow, hold=hold)
        await fill(feed, Batcher(opened.ending), every, write)
