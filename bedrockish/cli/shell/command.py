"""``bedrockish sql``: statements from the command line, a file, a pipe or a prompt."""

import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import click

from bedrockish.api.requests import READ_LEVELS
from bedrockish.cli.output import ALL_MODES, BOX, PLAIN
from bedrockish.cli.shell.dots import COMMANDS
from bedrockish.cli.shell.script import group, items
from bedrockish.cli.shell.session import QuitShell, Shell
from bedrockish.client.blocking import connect
from bedrockish.client.local_file import SUFFIXES
from bedrockish.client.trio_client import target_of
from bedrockish.errors import ConfigError, UsageError

HOST_PORT = re.compile(r"\[?[\w.:-]+\]?:\d+/?")


@click.command()
@click.argument("arguments", nargs=-1, metavar="[URL] [SQL]...")
@click.option("-f", "--file", type=click.Path(path_type=Path, allow_dash=True), help="Run the script FILE; - is stdin.")
@click.option("--mode", type=click.Choice(ALL_MODES), help="How to print rows; by default a box, in a pipe plain.")
@click.option("--read", type=click.Choice(READ_LEVELS), help="How fresh reads must be; by default as in the URL.")
def sql(arguments: tuple[str, ...], file: Path | None, mode: str | None, read: str | None) -> None:
    """Run SQL and dot-commands at the cluster at URL (by default the URL in BEDROCKISH_URL).

    Without SQL and FILE, statements are read from the pipe, or at a prompt; .help there lists the dot-commands.
    The statements between BEGIN and COMMIT are one transaction. The first error ends a script, with its line number.
    """
    url, texts = _url_and_texts(arguments)
    if texts and file is not None:
        raise UsageError("give either SQL or --file, not both")
    target_of(url)
    is_terminal = sys.stdin.isatty() and file is None and not texts
    mode = mode or (BOX if sys.stdout.isatty() else PLAIN)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # letters that a terminal cannot show are escaped
    # All scripts are parsed first, so that a BEGIN without COMMIT is found before anything is sent.
    scripts = [] if is_terminal else _scripts(texts, file)
    parts = list(group(part for text, name in scripts for part in items(text, name)))
    with connect(url) as connection, closing(Shell(connection, url, mode, read=read, commands=COMMANDS)) as shell:
        if is_terminal:
            from bedrockish.cli.shell.prompt import run_prompt

            shell.restyle(null="NULL")  # a person can tell NULL from an empty text
            run_prompt(shell)
            return
        with suppress(QuitShell):
            shell.run_all(parts)


def _url_and_texts(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Split the arguments into the URL and the statements; the URL is None if it is left to the environment."""
    if not arguments:
        return None, ()
    first = arguments[0]
    if "://" in first.partition("'")[0].partition(" ")[0]:
        return first, arguments[1:]
    if os.path.isfile(first) or (first.endswith(SUFFIXES) and not first.split()[1:]):
        return first, arguments[1:]  # the file of a node of this machine
    if HOST_PORT.fullmatch(first):
        raise ConfigError(f"{first!r} is not a bedrockish URL; write bedrockish://{first}")
    return None, arguments


def _scripts(texts: Sequence[str], file: Path | None) -> list[tuple[str, str]]:
    if texts:
        return [(text, f"statement {number}, line") for number, text in enumerate(texts, 1)]
    name = "stdin" if file is None or str(file) == "-" else str(file)
    try:
        text = sys.stdin.read() if name == "stdin" else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: this is not UTF-8 text") from error
    return [(text, name)]
