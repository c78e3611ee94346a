"""The progress of long work, as a bar or a line; nothing where standard error is not a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from bedrockish.cli.safe_text import visible


def write_over(text: str = "") -> None:
    """Overwrite the last line of a terminal; without a text, clear it."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)


class ShowProgress(Protocol):
    """A function that shows the progress of some work."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of the ``total`` units of the work ``what`` are done."""


@contextmanager
def progress_bar() -> Iterator[ShowProgress]:
    """Show a bar for each reported work, on standard error if that is a terminal."""
    if not sys.stderr.isatty():  # before version 14.3, rich ends a disabled bar with an empty line
        yield lambda what, done, total: None  # noqa: ARG005
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bars:
        known: dict[str, TaskID] = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in known:
                known[what] = bars.add_task(visible(what), total=total)
            bars.update(known[what], completed=done)

        yield told
