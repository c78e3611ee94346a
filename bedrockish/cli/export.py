"""``bedrockish export-journal``: journals as Parquet, from files or running nodes. Needs pyarrow, not Java."""

import json
from typing import TYPE_CHECKING

import click

from bedrockish.cli.progress import write_over
from bedrockish.cli.words import labels
from bedrockish.client.trio_client import target_of
from bedrockish_journal.spark.session import check_installed

if TYPE_CHECKING:
    from bedrockish_journal.spark.export.export import ExportProgress


@click.command("export-journal")
@click.argument("sources", nargs=-1, required=True, metavar="FILE_OR_URL...")
@click.option("--to", "directory", required=True, type=click.Path(file_okay=False), help="Directory of the export.")
@click.option("--oldest", is_flag=True, help="Begin a new export with the oldest entry that the journal still has.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def export_journal(sources: tuple[str, ...], directory: str, oldest: bool, as_json: bool) -> None:
    """Write journals as Parquet into a directory, or bring it up to the journals' newest commits.

    Each source is a node's file or the URL of a running node. Only new commits are written. The command may be stopped
    or killed at any moment, and run again.
    """
    check_installed("pyarrow")
    from bedrockish_journal.spark.export.export import export  # both need pyarrow, which was checked before
    from bedrockish_journal.spark.source.feeds import hides_members, is_url, open_feed

    for source in sources:
        if is_url(source):
            target_of(source)  # report a mistake in any URL before anything is written
    done = []
    for source in sources:
        with open_feed(source) as feed:
            told = export(feed, directory, _show, oldest=oldest)
            hidden = hides_members(source, feed.context)
        write_over()
        if hidden:
            click.echo(
                f"{told.node} shows the entries about members and users to admins only, as they were hashed: an audit "
                "will find that this export differs; for audits, export as an admin into another directory",
                err=True,
            )
        done.append(told)
        if not as_json:
            click.echo(f"{told.node}: {told.entries} new entries, up to {labels(told.vector)}")
    if as_json:
        packed = [{"node": told.node, "entries": told.entries, "vector": told.vector} for told in done]
        click.echo(json.dumps(packed, indent=2))


def _show(told: "ExportProgress") -> None:
    share = 100 * told.entries // max(1, told.expected)
    write_over(f"{told.node}: {told.entries} of {told.expected} entries, {share} %")
