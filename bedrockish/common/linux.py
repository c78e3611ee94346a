"""The check that this system can run a node."""

import sys

from bedrockish.errors import UnsupportedError

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
