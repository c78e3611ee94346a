"""``bedrockish backup``: a consistent copy of a running node's file."""

from pathlib import Path

import click
import trio

from bedrockish.cli.url import UrlCommand, url_argument


@click.command(cls=UrlCommand)
@url_argument
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def backup(url: str, file: Path) -> None:
    """Copy the file of a node at URL, as it is now, to the new FILE; clients go on meanwhile.

    FILE is a SQLite database with all tables and the whole journal: 'bedrockish journal verify FILE' checks it.
    """
    from bedrockish.node.cluster.join import back_up

    size = trio.run(back_up, url, file)
    click.echo(f"{file}: {size} bytes")
