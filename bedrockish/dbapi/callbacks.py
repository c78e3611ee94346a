"""Exceptions of callbacks: as in sqlite3, they are dropped, or printed if the program asks for that."""

import sys
import traceback

_wanted = False


def enable_callback_tracebacks(enable: bool, /) -> None:
    """Have exceptions of callbacks printed on ``sys.stderr``; of all connections of this program."""
    global _wanted
    _wanted = bool(enable)


def report() -> None:
    """Print the exception that is handled just now, if that is wanted."""
    if _wanted and sys.stderr is not None:
        traceback.print_exc()
