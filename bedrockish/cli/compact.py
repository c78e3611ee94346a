"""``bedrockish compact``: rewrite a stopped node's file without the bytes of deleted data."""

from pathlib import Path

import click

from bedrockish.cli.options import load_plugins, plugins_option
from bedrockish.engine.storage.compact import compact


@click.command("compact")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@plugins_option
def compact_file(file: Path, plugins: tuple[str, ...]) -> None:
    """Rewrite the FILE of a stopped node without free pages and without the bytes of deleted data.

    The file keeps its rows, its journal and its name. Nodes can be compacted one after the other, as for an upgrade.
    """
    done = compact(file, load_plugins(plugins))
    click.echo(f"{file}: {done.before} bytes before, {done.after} now")
