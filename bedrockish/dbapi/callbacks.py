"""Exceptions of callbacks: as in sqlite3, they are dropped, or printed if the program asks for that."""

import sys
import traceback
from collections.abc import Callable
from typing import Any

_wanted = False


def enable_callback_tracebacks(enable: bool, /) -> None:
    """Have exceptions of callbacks printed on ``sys.stderr``; of all connections of this program."""
    global _wanted
    _wanted = bool(enable)


def asked(handler: Callable[[], Any] | None) -> Callable[[], Any] | None:
    """Return a handler whose exception counts as a true answer, as in sqlite3."""
    if handler is None:
        return None
    given = handler

    def ask() -> Any:
        try:
            return given()
        except Exception:
            report()
            return True

    return ask


def report() -> None:
    """Print the exception that is handled just now, if that is wanted."""
    if _wanted and sys.stderr is not None:
        traceback.print_exc()
