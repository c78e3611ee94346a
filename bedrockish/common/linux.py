"""The checks that this system can run a node, and that a file is mounted together with its folder."""

import os
import sys
from pathlib import Path

from bedrockish.errors import UnsupportedError

MOUNTS = Path("/proc/self/mountinfo")
SYSTEM: str = sys.platform  # a variable, so that the type checker does not take one system for granted


def check_linux(what: str) -> None:
    """Refuse a node, or the use of its file, on other systems: both use eventfd, fdatasync and /proc.

    Raises:
        UnsupportedError: this system is not Linux.
    """
    if SYSTEM != "linux":
        raise UnsupportedError(
            f"{what} needs Linux, and this system is {SYSTEM}; run nodes on Linux or in containers, and connect by URL"
        )


def is_mounted_alone(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a mount of its own, as ``docker run -v FILE:FILE`` makes it.

    The files that SQLite makes next to it are then in another folder: in that of the container.
    """
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError:  # the system does not tell
        return False
    wanted = os.fsencode(os.path.realpath(path))
    for letter in b"\\ \t\n":  # the letters that the kernel writes as octal numbers
        wanted = wanted.replace(bytes([letter]), b"\\%03o" % letter)
    return any(line.split(b" ")[4:5] == [wanted] for line in lines)
