"""The memory of pure functions of short texts: programs send few texts, and each of them many times."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")
KEPT_TEXT_MAX = 1_000  # characters of a text that is remembered
KEPT_MAX = 500


def remembered(function: Callable[[str], T]) -> Callable[[str], T]:
    """Make a function of a text remember what it has returned for the last few hundred short texts.

    The function returns nothing that its callers change.
    """
    known = lru_cache(KEPT_MAX)(function)

    @wraps(function)
    def found(sql: str) -> T:
        return known(sql) if len(sql) <= KEPT_TEXT_MAX else function(sql)

    return found
