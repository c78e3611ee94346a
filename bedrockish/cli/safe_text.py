"""Escapes text for a terminal, so that data cannot move the cursor or hide other text."""

import re
import sys
from typing import TextIO

# Characters that move the cursor, ring, hide or turn text round; line feeds and tabs do no harm.
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def visible(text: str) -> str:
    """Return a text with its control characters spelt out, line feeds and tabs too."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def harmless(text: str) -> str:
    """Return a text in which characters that steer a terminal are spelt out; line feeds and tabs stay."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_terminal(out: TextIO | None) -> bool:
    """Return whether a file, by default standard output, is a terminal."""
    return (out or sys.stdout).isatty()


def write(text: str, out: TextIO | None = None) -> None:
    """Write a text unchanged to a file or to standard output; ``click.echo`` would remove escape sequences."""
    (out or sys.stdout).write(text)
