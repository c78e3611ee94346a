"""The options ``--anchor`` and ``--authority`` of the commands that check journals."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from bedrockish.errors import UsageError
from bedrockish_journal.storage.anchor_file import read_anchors
from bedrockish_journal.storage.store import open_readonly
from bedrockish_journal.verify.anchored import Anchored, check_anchors

FILE = click.Path(path_type=Path)


def anchor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options ``anchor`` and ``authority``."""
    told = "Also compare them with the anchors in this file, written by 'bedrockish anchor'."
    who = "The ca.pem that signs the nodes' certificates: a majority must have signed each anchor."
    command = click.option("--authority", type=FILE, metavar="FILE", help=who)(command)
    return click.option("--anchor", type=FILE, metavar="FILE", help=told)(command)


def hold_against(paths: Sequence[str | Path], anchor: Path | None, authority: Path | None) -> Anchored | None:
    """Check files of nodes against the anchors in a file, and return the result; None without an anchor file.

    Raises:
        UsageError: an authority without anchors, or the package that checks signatures is not installed.
        JournalError: a file cannot be read.
    """
    if anchor is None:
        if authority is not None:
            raise UsageError("--authority says who may sign anchors; name their file with --anchor")
        return None
    anchors = read_anchors(anchor)
    with contextlib.ExitStack() as stack:
        files = {}
        for path in paths:
            files[str(path)] = db = open_readonly(path)
            stack.callback(db.close)
            db.execute("BEGIN")  # one snapshot for all reads
        told = check_anchors(files, anchors)
    if authority is not None:
        try:
            from bedrockish_journal.verify.anchor_signatures import check_signatures, read_authority
        except ImportError:
            raise UsageError(
                "cryptography, which verifies signatures, is not installed; pip install 'bedrockish[tls]', or leave "
                "--authority out"
            ) from None
        check_signatures(told, anchors, read_authority(authority))
    return told


def in_words(told: Anchored) -> str:
    """Return the result of the check as a line of a report."""
    text = f"{told.anchors} anchors with {told.places} places"
    if told.removed:
        text += f", of which {told.removed} were removed to make room"
    if told.signed is None:
        return f"{text}; the signatures were not checked: use --authority"
    return f"{text}; {told.signed} signed by a majority"
