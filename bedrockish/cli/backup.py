"""``bedrockish backup``: a copy of a running node's file, a continuous backup in a directory, a test of a restore."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from bedrockish.cli.options import json_option, load_plugins, plugins_option
from bedrockish.cli.progress import write_over
from bedrockish.cli.upkeep import duration
from bedrockish.cli.url import LocalPath, UrlCommand
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.moment import time_text

if TYPE_CHECKING:
    from bedrockish_journal.verify.drill import Drill
    from bedrockish_journal.verify.drill_directory import DirectoryDrill
    from bedrockish_journal.verify.replay import Prepare

COPY_IT = "write a directory of this machine, and copy it from there"


class BackupGroup(click.Group):
    """A group whose default command, ``copy``, runs if the first word is not the name of a command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names, else ``copy``."""
        if args and args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return copy.name, copy, args


@click.group(
    cls=BackupGroup,
    invoke_without_command=False,
    subcommand_metavar="[URL] FILE | follow [URL] DIRECTORY | verify BACKUP",
    context_settings={"ignore_unknown_options": True},
)
def backup() -> None:
    """Copy the present file of a node at URL to the new FILE, while clients are served.

    FILE is a SQLite database with all tables and the node's journal: 'bedrockish restore' makes a database from it, as
    of any moment in the journal. Other commands keep a continuous backup in a directory, or prove that a backup can be
    restored.
    """


@click.command("copy", cls=UrlCommand)
@click.argument("file", type=LocalPath(COPY_IT, dir_okay=False))
def copy(url: str, file: Path) -> None:
    """Copy the present file of a node at URL to the new FILE, while clients are served."""
    from bedrockish.node.cluster.join import back_up

    size = trio.run(back_up, url, file)
    click.echo(f"{file}: {size} bytes")


@backup.command("follow", cls=UrlCommand)
@click.argument("directory", type=LocalPath(COPY_IT, file_okay=False))
@click.option(
    "--every", callback=duration, default="1d", show_default=True, metavar="AGE", help="The time between two snapshots."
)
@click.option(
    "--keep",
    callback=duration,
    metavar="AGE",
    help="How far back a restore must be possible; by default without a limit.",
)
@click.option("--once", is_flag=True, help="Catch up to the present safe time and exit; for cron.")
def follow_cluster(url: str, directory: Path, every: float, keep: float | None, once: bool) -> None:
    """Keep a continuous backup in DIRECTORY: a snapshot, and all commits after it as they become safe.

    'bedrockish restore --from DIRECTORY' makes a database as of any moment since the snapshot. The command may be
    killed at any time, and run again: it continues where it was. If the nodes no longer have the next commits, it makes
    a new snapshot.
    """
    from bedrockish.transfer.continuous import BackupPlan, follow

    assert every is not None, "there is a default"
    trio.run(follow, url, directory, BackupPlan(every, keep, once), click.echo)


@backup.command("verify")
@click.argument("file", metavar="FILE|DIRECTORY", type=LocalPath("fetch it first"))
@click.option(
    "--older",
    type=click.Path(path_type=Path),
    help="An older backup, to verify one whose journal has lost its beginning.",
)
@click.option(
    "--younger-than", callback=duration, metavar="AGE", help="Fail if the backup is older than this: 25h, 7d."
)
@click.option("--proven", is_flag=True, help="Fail if the tables could not be compared with a journal.")
@plugins_option
@json_option
@click.pass_context
def verify_backup(
    context: click.Context,
    file: Path,
    older: Path | None,
    younger_than: float | None,
    proven: bool,
    plugins: tuple[str, ...],
    as_json: bool,
) -> None:
    """Prove that a backup can be restored: check its pages and every hash of its journal, and restore it to TMPDIR.

    The argument is a file, or the directory of a continuous backup. The restored database is compared with a replay of
    the journal, from its beginning or from an older backup. In a continuous backup, the entries since a snapshot are
    applied to that snapshot, and the result is compared with the next snapshot. Each fault is printed on a line; any
    fault gives status 1. TMPDIR needs twice the size of the file or snapshot.
    """
    from bedrockish_journal.verify.drill_directory import DirectoryDrill

    found = _drill(file, older, load_plugins(plugins))
    age_s = time.time() - milliseconds(found.complete) / 1000
    if younger_than is not None and age_s > younger_than and not found.faults:
        found.faults.append(f"it is {_age(age_s)} old, and should be younger than {_age(younger_than)}")
    if proven and found.unproven and not found.faults:
        found.faults.append(f"its tables are not proven: {found.unproven}; give an older backup with --older")
    if as_json:
        click.echo(json.dumps({"good": not found.faults, "age_s": round(age_s), **asdict(found)}, indent=2))
    else:
        for fault in found.faults:
            click.echo(f"{file}: {fault}")
        if not found.faults:
            continuous = found if isinstance(found, DirectoryDrill) else None
            click.echo(f"{file} can be restored: {_in_words(found, continuous)}")
            click.echo(f"complete up to clock {found.complete} ({time_text(found.complete)}, {_age(age_s)} ago)")
            why_not = found.unproven
            said = f"not compared with a journal: {why_not}" if why_not else "equal to a replay of its journal"
            first = "first snapshot's " if why_not and continuous else ""
            click.echo(f"its {first}tables are {said}; digest {found.digest}")
            for since, until in continuous.gaps if continuous else ():
                click.echo(
                    f"no moment between {time_text(since)} and {time_text(until)} can be restored: the nodes no longer "
                    "had the commits"
                )
    context.exit(1 if found.faults else 0)


def _drill(file: Path, older: Path | None, prepare: "Prepare | None") -> "Drill":
    from bedrockish_journal.verify.drill import drill
    from bedrockish_journal.verify.drill_directory import drill_directory

    say = lambda what: write_over(f"{what}\r")  # noqa: E731  the report is written over the last line
    return (drill_directory if file.is_dir() else drill)(file, older=older, prepare=prepare, say=say)


def _in_words(found: "Drill", continuous: "DirectoryDrill | None") -> str:
    """Return the contents of a good backup in words."""
    if continuous is None:
        return f"{found.entries} commits in its journal"
    since = f"{time_text(continuous.since)} on" if continuous.since else "its cluster's beginning on"
    snapshots = f"{continuous.snapshots} snapshot{'s' * (continuous.snapshots != 1)}"
    return f"{snapshots}, {found.entries} commits in its journals, any moment from {since}"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
