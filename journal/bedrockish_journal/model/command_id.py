"""Command ids that contain the time at which they were made: UUIDs of version 7.

A node remembers a command's id even after the commit was removed from the journal. A node can forget an old id that
contains its time: if a client sends the command again, the node does not run it, and answers that the id is too old to
know. The age of an id without a time, such as ``order-7``, is unknown, so the node never forgets it.
"""

import re

_UUID7 = re.compile(r"([0-9a-f]{8})-?([0-9a-f]{4})-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}")


def time_ms(command: str) -> int | None:
    """Return the Unix time in milliseconds at which an id was made, or None if the id does not contain it."""
    found = _UUID7.fullmatch(command)
    return int(found[1] + found[2], 16) if found is not None else None


def make_id(unix_ms: int, random: bytes) -> str:
    """Return an id that contains its time.

    Args:
        unix_ms: now, in milliseconds since 1970.
        random: ten random bytes.
    """
    assert len(random) == 10
    number = unix_ms << 80 | int.from_bytes(random)
    number = number & ~(0xF << 76) | 7 << 76  # version 7
    number = number & ~(0x3 << 62) | 2 << 62  # variant
    return f"{number:032x}"
