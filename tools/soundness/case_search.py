"""The parts that searches over random cases share: they draw cases, and reduce a failing one.

A case is a dataclass whose parts are lists. A check returns the report of a case that fails, else None.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tools.soundness.cases import Source

C = TypeVar("C")


@dataclass
class Tally:
    """Counts of events."""

    counts: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Return the counts, one line of text for each."""
        lines = [f"{count:9} {name}" for name, count in sorted(self.counts.items())]
        return lines + [f"{count:9} fallback: {name}" for name, count in self.fallbacks.most_common()]


def find_failing(
    examples: int,
    start: int,
    make: Callable[[Source], C],
    check: Callable[[C], str | None],
    parts: tuple[str, ...],
    *,
    shrink: bool,
) -> str | None:
    """Check random cases; return the report of a failing case, reduced in these parts, or None."""
    for number in range(examples):
        case = make(Source(random.Random(f"{start}:{number}").randrange))
        report = check(case)
        if report is not None:
            return (check(_reduced(case, check, parts)) or report) if shrink else report
    return None


def _reduced(case: C, check: Callable[[C], str | None], parts: tuple[str, ...]) -> C:
    """Return a failing case with only those items of its parts that it needs to fail."""
    smaller = True
    while smaller:
        smaller = False
        for part in parts:
            size = len(getattr(case, part))
            while size:
                for index in reversed(range(0, len(getattr(case, part)), size)):
                    items = getattr(case, part)
                    less: C = replace(case, **{part: items[:index] + items[index + size :]})  # type: ignore[type-var]
                    with contextlib.suppress(Exception):  # without that part the case is invalid
                        if check(less) is not None:
                            case, smaller = less, True
                size //= 2
    return case
