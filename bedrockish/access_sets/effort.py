"""How long the analysis of one statement may take: past that, a coarser answer is worth more than an exact one."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Check = Callable[[], None]
"""Returns while the analysis may go on, and raises when it has taken its time."""

EVERY = 256  # instructions between two checks


class TooDearError(Exception):
    """Raised by a ``Check`` when the analysis of a statement has taken as long as it may, wherever it runs."""


def unlimited() -> None:
    """Let an analysis take as long as it takes."""


def checked(items: Iterable[T], check: Check) -> Iterator[T]:
    """Yield items, with a check before every ``EVERY``-th; few items have none."""
    for number, item in enumerate(items, 1):
        if not number % EVERY:
            check()
        yield item
