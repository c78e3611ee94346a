"""A cache for pure functions of short texts: programs send few different texts, each of them many times."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")
KEPT_TEXT_MAX = 1_000  # results for longer texts are not cached
KEPT_MAX = 500


def remembered(function: Callable[[str], T]) -> Callable[[str], T]:
    """Return the function with a cache of its results for the last few hundred short texts.

    Callers must not change the results.
    """
    known = lru_cache(KEPT_MAX)(function)

    @wraps(function)
    def found(sql: str) -> T:
        return known(sql) if len(sql) <= KEPT_TEXT_MAX else function(sql)

    return found
