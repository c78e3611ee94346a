"""``bedrockish backup``: a copy of a running node's file, a continuous backup in a directory, a test of a restore."""

import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from bedrockish.cli.upkeep import duration
from bedrockish.cli.url import LocalPath, UrlCommand
from bedrockish.errors import UsageError
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.moment import time_text

if TYPE_CHECKING:
    from bedrockish.transfer.object_store import ObjectStore
    from bedrockish_journal.verify.drill import Drill
    from bedrockish_journal.verify.drill_directory import DirectoryDrill
    from bedrockish_journal.verify.replay import Prepare

TO_STORE = "an object store gets what a directory has: 'bedrockish backup follow URL DIRECTORY --to STORE'"
key_option = click.option(
    "--key",
    "keys",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="A file with a key; the first one encrypts, further ones only read.",
)


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
    subcommand_metavar="[URL] FILE | follow [URL] DIRECTORY | fetch STORE DIRECTORY | key FILE | verify BACKUP",
    context_settings={"ignore_unknown_options": True},
)
def backup() -> None:
    """Copy the present file of a node at URL to the new FILE, while clients are served.

    FILE is a SQLite database with all tables and the whole journal: 'bedrockish restore' makes a database from it, as
    of any moment in the journal. Other commands keep a continuous backup in a directory, or prove that a backup can be
    restored.
    """


@click.command("copy", cls=UrlCommand)
@click.argument("file", type=LocalPath(TO_STORE, dir_okay=False))
def copy(url: str, file: Path) -> None:
    """Copy the present file of a node at URL to the new FILE, while clients are served."""
    from bedrockish.node.cluster.join import back_up

    size = trio.run(back_up, url, file)
    click.echo(f"{file}: {size} bytes")


@backup.command("follow", cls=UrlCommand)
@click.argument("directory", type=LocalPath(TO_STORE, file_okay=False))
@click.option("--every", callback=duration, default="1d", show_default=True, metavar="AGE", help="Between snapshots.")
@click.option(
    "--keep",
    callback=duration,
    metavar="AGE",
    help="How far back a restore must be possible; by default without a limit.",
)
@click.option("--once", is_flag=True, help="Catch up to the present safe time and exit; for cron.")
@click.option("--to", "store", metavar="STORE", help="Also copy it to s3://bucket/prefix, gs://…, az://… or file:///….")
@click.option("--push-every", callback=duration, default="1m", show_default=True, metavar="AGE", help="How often.")
@key_option
def follow_cluster(
    url: str,
    directory: Path,
    every: float,
    keep: float | None,
    once: bool,
    store: str | None,
    push_every: float,
    keys: tuple[Path, ...],
) -> None:
    """Keep a continuous backup in DIRECTORY: a snapshot, and all commits after it as they become safe.

    'bedrockish restore --from DIRECTORY' makes a database as of any moment since the snapshot. The command may be
    killed at any time, and run again: it continues where it was. If the nodes no longer have the next commits, it makes
    a new snapshot. With --to, the backup is also copied to an object store, encrypted with --key; 'bedrockish backup
    fetch' fetches it from there.
    """
    from bedrockish.transfer.continuous import Plan, follow

    assert every is not None, "there is a default"
    if keys and store is None:
        raise UsageError("--key encrypts what is in an object store; name one with --to")
    plan = Plan(every, keep, _store(store, keys) if store is not None else None, push_every, once)
    trio.run(follow, url, directory, plan, click.echo)


@backup.command("fetch")
@click.argument("store", metavar="STORE")
@click.argument("directory", type=LocalPath("write the store first, and then a new directory", file_okay=False))
@key_option
def fetch_backup(store: str, directory: Path, keys: tuple[Path, ...]) -> None:
    """Fetch a continuous backup from an object store into the new DIRECTORY.

    'bedrockish restore --from DIRECTORY' then makes a database from it. If the command is killed, run it again: it
    continues where it was.
    """
    from bedrockish.transfer.object_store import fetch

    found = fetch(_store(store, keys), directory, click.echo)
    click.echo(f"complete up to clock {found.complete} ({time_text(found.complete)})")


@backup.command("key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def new_key(file: Path) -> None:
    """Make a key for backups in object stores, and write it into the new FILE. Keep it where the backups are not."""
    from bedrockish.transfer.object_store import make_key

    make_key(file)
    click.echo(f"{file}: without it, what is encrypted with it is lost")


def _store(url: str, keys: tuple[Path, ...]) -> "ObjectStore":
    from bedrockish.transfer.object_store import ObjectStore, read_key

    return ObjectStore(url, [read_key(path) for path in keys])


@backup.command("verify")
@click.argument("file", metavar="FILE|DIRECTORY|STORE")
@click.option(
    "--older",
    type=click.Path(path_type=Path),
    help="An older backup, to verify one whose journal has lost its beginning.",
)
@click.option(
    "--younger-than", callback=duration, metavar="AGE", help="Fail if the backup is older than this: 25h, 7d."
)
@click.option("--proven", is_flag=True, help="Fail if the tables could not be compared with a journal.")
@key_option
@click.option("--plugin", "plugins", metavar="MODULE", multiple=True, help="A plugin of the nodes, for its functions.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def verify_backup(
    context: click.Context,
    file: str,
    older: Path | None,
    younger_than: float | None,
    proven: bool,
    keys: tuple[Path, ...],
    plugins: tuple[str, ...],
    as_json: bool,
) -> None:
    """Prove that a backup can be restored: its pages, every hash of its journal, and a restore to a temporary place.

    The argument is a file, the directory of a continuous backup, or the copy of such a directory in an object store,
    which is downloaded first. The restored database is compared with a replay of the journal, from its beginning or
    from an older backup. In a continuous backup, the entries since a snapshot are applied to that snapshot, and the
    result is compared with the next snapshot. Each fault is printed on a line; any fault gives status 1. TMPDIR needs
    twice the size of the file or snapshot, and for an object store the size of the copy on top.
    """
    from bedrockish.cli.journal import load_plugins
    from bedrockish_journal.verify.drill_directory import DirectoryDrill

    if keys and "://" not in file:
        raise UsageError("--key decrypts what is in an object store; name one, such as s3://bucket/prefix")
    found = _drill(file, older, keys, load_plugins(plugins))
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
            click.echo(f"{file} can be restored: {_what(found, continuous)}")
            click.echo(f"complete up to clock {found.complete} ({time_text(found.complete)}, {_age(age_s)} ago)")
            said = f"not compared with a journal: {found.unproven}" if found.unproven else "what its journal makes"
            first = "first snapshot's " if found.unproven and continuous else ""
            click.echo(f"its {first}tables are {said}; digest {found.digest}")
            for since, until in continuous.gaps if continuous else ():
                click.echo(
                    f"to no moment between {time_text(since)} and {time_text(until)}: the nodes no longer had what was "
                    "committed then"
                )
    context.exit(1 if found.faults else 0)


def _drill(file: str, older: Path | None, keys: tuple[Path, ...], prepare: "Prepare | None") -> "Drill":
    from bedrockish_journal.verify.drill import drill
    from bedrockish_journal.verify.drill_directory import drill_directory

    if "://" in file:
        from bedrockish.transfer.object_store import fetch

        with tempfile.TemporaryDirectory(prefix="bedrockish-") as folder:
            _say("fetching")
            fetch(_store(file, keys), Path(folder, "fetched"), _say)
            return replace(drill_directory(Path(folder, "fetched"), older=older, prepare=prepare, say=_say), path=file)
    if Path(file).is_dir():
        return drill_directory(file, older=older, prepare=prepare, say=_say)
    return drill(file, older=older, prepare=prepare, say=_say)


def _what(found: "Drill", continuous: "DirectoryDrill | None") -> str:
    """Return the contents of a good backup in words."""
    if continuous is None:
        return f"{found.entries} commits in its journal"
    since = f"{time_text(continuous.since)} on" if continuous.since else "its cluster's beginning on"
    snapshots = f"{continuous.snapshots} snapshot{'s' * (continuous.snapshots != 1)}"
    return f"{snapshots}, {found.entries} commits in its journals, any moment from {since}"


def _say(what: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{what}\r", err=True, nl=False)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
