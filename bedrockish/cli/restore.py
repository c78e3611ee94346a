"""``bedrockish restore``: from a backup, and journals after it, a plain database as of some moment."""

import time
from pathlib import Path

import click

from bedrockish.cli.journal import FILE, moment_option
from bedrockish.cli.options import load_plugins, plugins_option
from bedrockish.cli.progress import write_over
from bedrockish.cli.url import LocalPath
from bedrockish_journal.model.moment import Moment, time_text
from bedrockish_journal.model.vector import format_vector
from bedrockish_journal.verify.restore import choose
from bedrockish_journal.verify.restore import restore as restore_files


@click.command()
@click.option(
    "--from",
    "backup",
    type=LocalPath("bring it here first"),
    required=True,
    help="The backup, any copy of a node's file, or the directory of a continuous backup.",
)
@click.option("--to", "target", type=FILE, required=True, help="The database file to write; must not exist.")
@moment_option("--at")
@click.option("--journal", "journals", type=FILE, multiple=True, help="A younger backup or file of a node; repeatable.")
@plugins_option
def restore(
    backup: Path, target: Path, until: Moment | None, journals: tuple[Path, ...], plugins: tuple[str, ...]
) -> None:
    """Write a plain SQLite database with the cluster's contents at a moment; found a new cluster with it.

    A backup can be restored as of any moment in its journal, a continuous backup as of any moment since it began. To go
    beyond an older backup, name it with --from, and with --journal a younger backup, or the file of a node, whose
    journal has the later commits.
    """
    began = time.monotonic()
    if backup.is_dir():
        backup, segments, until = choose(backup, until)
        journals = (*segments, *journals)
    report = restore_files(
        backup,
        target,
        journals=journals,
        until=until,
        progress=lambda entries: write_over(f"{entries} entries"),
        prepare=load_plugins(plugins),
    )
    write_over()
    nodes = sorted(report.applied)
    places = f"{', '.join(nodes)} up to {format_vector(report.applied, nodes)}"
    click.echo(f"{places}, clock {report.clock} ({time_text(report.clock)}); {report.later} later commits left out")
    click.echo(f"{report.digest}  {report.target}  in {time.monotonic() - began:.1f} s")
