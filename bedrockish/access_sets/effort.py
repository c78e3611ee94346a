"""The time limit of a statement's analysis. If it is exceeded, a coarser plan is used."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Check = Callable[[], None]
"""A function that returns while the analysis may go on, and raises an error when its time is used up."""

EVERY = 256  # instructions that are analysed between two checks of the time


class TooCostlyError(Exception):
    """Raised by a ``Check`` when the analysis of a statement has used up its time."""


def unlimited() -> None:
    """Return without a check, so that the analysis has no time limit."""


def checked(items: Iterable[T], check: Check) -> Iterator[T]:
    """Yield items, and call ``check`` before every ``EVERY``-th item."""
    for number, item in enumerate(items, 1):
        if not number % EVERY:
            check()
        yield item
