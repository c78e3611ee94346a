"""The options that several commands have, and the console on which they print tables."""

from typing import TextIO

import click
from rich.console import Console

from bedrockish.cli.safe_text import is_terminal
from bedrockish_journal.verify.replay import Prepare

WIDE = 10_000  # characters of a line in a pipe, more than any table has: programs read whole lines

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
node_option = click.option("--node", "only", metavar="NAME", help="At this member only; by default at all.")
plugins_option = click.option(
    "--plugin", "plugins", metavar="MODULE", multiple=True, help="A plugin of the nodes, for its functions."
)


def load_plugins(names: tuple[str, ...]) -> Prepare:
    """Return a function that registers the functions and collations of plugins with a connection.

    Raises:
        ConfigError: a plugin cannot be loaded.
    """
    from bedrockish.node.plugins import Plugins

    return Plugins(names).prepare


def console(out: TextIO | None = None) -> Console:
    """Return a console, by default of standard output: lines are folded on a terminal, and unlimited in a pipe."""
    return Console(file=out) if is_terminal(out) else Console(file=out, soft_wrap=True, width=WIDE)
