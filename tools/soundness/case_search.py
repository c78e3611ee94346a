"""The parts that searches over random cases share: they draw cases, reduce a failing one, and read the command line.

A case is a dataclass whose parts are lists. A check returns the report of a case that fails, else None.
"""

import argparse
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tools.editing import Fault, in_force
from tools.soundness.cases import Source

C = TypeVar("C")


@dataclass
class Tally:
    """Counts of events."""

    counts: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Return the tally as text."""
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
            return (check(_smallest(case, check, parts)) or report) if shrink else report
    return None


def _smallest(case: C, check: Callable[[C], str | None], parts: tuple[str, ...]) -> C:
    """Leave out whatever the case does not need to fail."""
    smaller = True
    while smaller:
        smaller = False
        for part in parts:
            size = len(getattr(case, part))
            while size:
                for place in reversed(range(0, len(getattr(case, part)), size)):
                    items = getattr(case, part)
                    less: C = replace(case, **{part: items[:place] + items[place + size :]})  # type: ignore[type-var]
                    with contextlib.suppress(Exception):  # without that part the case is invalid
                        if check(less) is not None:
                            case, smaller = less, True
                size //= 2
    return case


def run(about: str | None, search: Callable[[int, int, Tally], str | None], faults: Mapping[str, Fault]) -> int:
    """Run a search from the command line; return its exit status: 1 if a case fails."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutate", choices=sorted(faults), help="search with this deliberate fault")
    parser.add_argument("--list", action="store_true", help="list the deliberate faults and stop")
    options = parser.parse_args()
    if options.list:
        for name, fault in faults.items():
            print(f"{name:18} {fault.rule}")
        return 0
    tally = Tally()
    with in_force(faults[options.mutate]) if options.mutate else contextlib.nullcontext():
        report = search(options.examples, options.seed, tally)
    print("\n".join(tally.lines()))
    print(report or f"no case of {options.examples} fails")
    return int(report is not None)
