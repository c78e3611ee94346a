"""``bedrockish import`` and ``bedrockish export``: from a plain SQLite file to a cluster, and back."""

import uuid
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import click
import trio

from bedrockish import open_client
from bedrockish.api.requests import STRICT
from bedrockish.cli.progress import progress_bar
from bedrockish.cli.safe_text import visible
from bedrockish.cli.url import UrlCommand
from bedrockish.client.trio_client import Client, target_of
from bedrockish.errors import UnsupportedError, UsageError
from bedrockish.transfer.load_database import (
    DatabaseLoad,
    LoadPlan,
    broken,
    commands_done,
    fingerprint,
    load,
    open_source,
    read_plan,
    survey,
)
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.plain_names import is_users
from bedrockish_journal.model.vector import format_vector

FILE = click.Path(path_type=Path, dir_okay=False)
NAMES = f"SELECT name FROM sqlite_schema WHERE {is_users()} ORDER BY name"


@click.command("import", cls=UrlCommand)
@click.argument("file", type=FILE)
@click.option("--add", is_flag=True, help="Import even if the cluster has tables, but none with a name of the file's.")
@click.option("--again", is_flag=True, help="Import a file that was imported before, and dropped since.")
def import_database(url: str, file: Path, add: bool, again: bool) -> None:
    """Make the tables, rows, indexes, views and triggers of the SQLite database FILE the content of the cluster at URL.

    Nothing is written if any part of FILE cannot be replicated; all obstacles are listed. If the import is interrupted,
    run it again: it continues where it was, and each row is imported once.
    """
    target_of(url)
    if not file.exists():
        raise UsageError(f"{file}: there is no such file")
    if not file.is_file():  # SQLite waits for ever for the writer of a pipe
        raise UsageError(f"{file} is not a file; give the path of the database file itself")
    loaded = trio.run(_import, url, file, add, again)
    for line in describe(loaded):
        click.echo(line)
    if loaded.left_out:
        raise UsageError(f"imported, but left out: {'; '.join(loaded.left_out)}")


def describe(loaded: DatabaseLoad) -> list[str]:
    """Return the lines to print about the imported tables and rows."""
    lines = [f"{visible(name)}: {count} rows" for name, count in loaded.rows.items()]
    if loaded.before:
        lines.append(f"an earlier run had brought {loaded.before} of the transactions; they were not repeated")
    return lines


async def _import(url: str | None, file: Path, add: bool, again: bool) -> DatabaseLoad:
    with closing(open_source(file)) as db:
        plan = read_plan(db, file)
        await trio.to_thread.run_sync(_check, file, plan)
        run = f"import-{fingerprint(file)}" + (f"-{uuid.uuid4().hex[:8]}" if again else "")
        async with open_client(url) as client:
            done = await commands_done(client, run + "-")
            if done:
                await _check_kept(
                    client, file, [name for n, (name, _) in enumerate(plan.tables) if f"{run}-table-{n}" in done]
                )
            else:
                await _check_room(client, plan, add=add)
            with progress_bar() as told:
                return await load(client, file, run, told, done)


def _check(file: Path, plan: LoadPlan) -> None:
    """Refuse a database unless all of its content can be replicated."""
    from bedrockish.engine.statements.import_check import misfits

    made = [(f"table {name}", sql) for name, sql in plan.tables]
    made += [(f"{kind} {name}", sql) for kind, name, sql in plan.rest]
    with closing(open_source(file)) as db:
        found = [*misfits(made), *survey(db, plan), *broken(file)]
    if found:
        raise UnsupportedError(f"{file} cannot be imported, and nothing was: {'; '.join(found)}")


async def _check_kept(client: Client, file: Path, made: list[str]) -> None:
    """Refuse to continue an import some of whose tables are gone: their rows would not be sent again."""
    there = {str(name).lower() for (name,) in await client.execute(NAMES, read=STRICT)}
    gone = [name for name in made if name.lower() not in there]
    if gone:
        first = "" if len(gone) == len(made) else "drop its other tables, too, and "
        why = f"{file} was imported before, and {', '.join(gone[:5])} dropped since"
        raise UsageError(f"{why}; nothing was imported: {first}import it with --again")


async def _check_room(client: Client, plan: LoadPlan, *, add: bool) -> None:
    """Refuse to import into a cluster with tables, unless ``add`` allows it and no name is taken."""
    there = [str(name) for (name,) in await client.execute(NAMES, read=STRICT)]
    known = {name.lower() for name in there}
    ours = dict.fromkeys([name for name, _ in plan.tables] + [name for _, name, _ in plan.rest])
    clash = [name for name in ours if name.lower() in known]
    if there and not add:
        raise UsageError(f"the cluster is not empty, it has {', '.join(there[:5])}; --add imports next to these")
    if clash:
        raise UsageError(f"the cluster has {', '.join(clash)} already, and nothing was imported; rename or drop them")


@click.command("export", cls=UrlCommand)
@click.argument("file", type=FILE)
def export_database(url: str, file: Path) -> None:
    """Write the contents of the cluster at URL into the new SQLite database FILE, while clients are served.

    FILE has the state of one node at one moment: whole transactions, each with all transactions that it has seen. The
    journal and the other tables of the cluster itself are left out; 'bedrockish backup' keeps them.
    """
    from bedrockish.transfer.export import export

    done = trio.run(export, url, file)
    vector = format_vector(done.vector, sorted(done.vector)) if done.vector else "[]"
    nodes = ", ".join(sorted(done.vector)) or "no node"
    at = datetime.fromtimestamp(milliseconds(done.clock) / 1000, UTC).isoformat(timespec="milliseconds")
    click.echo(f"{file}: {done.size} bytes, as of {vector} ({nodes}), clock {done.clock} ({at})")
    click.echo(f"the change feed continues after the cursor {done.cursor}")
