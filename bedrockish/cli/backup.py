"""``bedrockish backup``: a consistent copy of a running node's file, and the drill that it can be restored."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import click
import trio

from bedrockish.cli.upkeep import duration
from bedrockish.cli.url import UrlCommand, url_argument
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.moment import time_text


class BackupGroup(click.Group):
    """A group that makes a backup where the words do not begin with one of its commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant."""
        if args and args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return copy.name, copy, args


@click.group(
    cls=BackupGroup,
    invoke_without_command=False,
    subcommand_metavar="[URL] FILE | verify FILE",
    context_settings={"ignore_unknown_options": True},
)
def backup() -> None:
    """Copy the file of a node at URL, as it is now, to the new FILE; clients go on meanwhile. Or verify such a FILE.

    FILE is a SQLite database with all tables and the whole journal: 'bedrockish restore' makes a database of it, as of
    any moment that is in it.
    """


@click.command("copy", cls=UrlCommand)
@url_argument
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def copy(url: str, file: Path) -> None:
    """Copy the file of a node at URL, as it is now, to the new FILE; clients go on meanwhile."""
    from bedrockish.node.cluster.join import back_up

    size = trio.run(back_up, url, file)
    click.echo(f"{file}: {size} bytes")


@backup.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--older", type=click.Path(path_type=Path), help="An older backup, to prove one whose journal is short.")
@click.option("--younger-than", callback=duration, metavar="AGE", help="Fail if it is older than that: 25h, 7d.")
@click.option("--proven", is_flag=True, help="Fail if the tables could not be compared with a journal.")
@click.option("--plugin", "plugins", metavar="MODULE", multiple=True, help="A plugin of the nodes, for its functions.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
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
    """Prove that FILE can be restored: its pages, every hash of its journal, and a restore to a temporary place.

    What is restored is compared with what the journal makes from its beginning, or from an older backup. Ends with
    status 1 if anything is wrong; prints one line for each fault. It needs twice the room of FILE where TMPDIR is.
    """
    from bedrockish.cli.journal import load_plugins
    from bedrockish_journal.verify.drill import drill

    found = drill(file, older=older, prepare=load_plugins(plugins), say=_say)
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
            click.echo(f"{file} can be restored: {found.entries} commits in its journal")
            click.echo(f"complete up to clock {found.complete} ({time_text(found.complete)}, {_age(age_s)} ago)")
            said = f"not compared with a journal: {found.unproven}" if found.unproven else "what its journal makes"
            click.echo(f"its tables are {said}; digest {found.digest}")
    context.exit(1 if found.faults else 0)


def _say(what: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{what}\r", err=True, nl=False)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
