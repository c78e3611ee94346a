"""Exceptions of callbacks: as in sqlite3, they are dropped, or printed after ``enable_callback_tracebacks(True)``."""

import sys
import traceback
from collections.abc import Callable
from typing import Any

_wanted = False


def enable_callback_tracebacks(enable: bool, /) -> None:
    """Set whether exceptions of callbacks are printed on ``sys.stderr``, for all connections of this program."""
    global _wanted
    _wanted = bool(enable)


def guarded(handler: Callable[[], Any] | None) -> Callable[[], Any] | None:
    """Return a handler that reports an exception of ``handler`` and returns True for it, as in sqlite3."""
    if handler is None:
        return None
    given = handler

    def call() -> Any:
        try:
            return given()
        except Exception:
            report()
            return True

    return call


def report() -> None:
    """Print the exception being handled, if tracebacks are enabled."""
    if _wanted and sys.stderr is not None:
        traceback.print_exc()
