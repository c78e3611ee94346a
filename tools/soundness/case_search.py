"""The search that checks over random cases share: it draws cases, reduces a failing one, and applies deliberate faults.

A case is a dataclass whose parts are lists. A check returns the report of a case that fails, else None.
"""

import argparse
import contextlib
import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from unittest import mock

from tools.soundness.cases import Source

C = TypeVar("C")
Patch = tuple[Any, str, Any]
Fault = Callable[[], list[Patch]]


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


def faults_of(module: Mapping[str, Any]) -> dict[str, Fault]:
    """Return the faults that a module defines, given its globals: each public function, by its name with hyphens."""
    return {
        name.replace("_", "-"): found
        for name, found in module.items()
        if inspect.isfunction(found) and found.__module__ == module["__name__"] and not name.startswith("_")
    }


@contextlib.contextmanager
def broken(faults: Mapping[str, Fault], name: str | None) -> Iterator[None]:
    """Run the block with one fault in place, or with none."""
    with contextlib.ExitStack() as stack:
        for target, attribute, replacement in faults[name]() if name else []:
            if isinstance(target, str):
                stack.enter_context(mock.patch(f"{target}.{attribute}", replacement))
            else:
                stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield


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
            print(f"{name:18} {fault.__doc__}")
        return 0
    tally = Tally()
    with broken(faults, options.mutate):
        report = search(options.examples, options.seed, tally)
    print("\n".join(tally.lines()))
    print(report or f"no case of {options.examples} fails")
    return int(report is not None)
