"""Reads the file that anchors are kept in; ``bedrockish anchor`` adds to it."""

import os

from bedrockish_journal.model.anchor import Anchor, AnchorError, parse_anchors

BYTES_MAX = 256 << 20  # an hourly anchor of five nodes takes a megabyte in some ten days


def read_anchors(path: str | os.PathLike[str]) -> list[Anchor]:
    """Return the anchors of a file.

    Raises:
        AnchorError: the file cannot be read, or a line is not an anchor or does not continue the line before it.
    """
    name = os.fspath(path)
    try:
        if os.path.getsize(name) > BYTES_MAX:
            raise AnchorError(name, f"{name} is longer than {BYTES_MAX >> 20} MiB; begin another file of anchors")
        with open(name, "rb") as file:
            return parse_anchors(file.read(), name)
    except OSError as error:
        raise AnchorError(name, f"the anchors in {name} cannot be read: {error.strerror}") from error
