"""Explores all possible histories of small clusters of real cores, and prints their numbers.

python -m tools.modelcheck                    all scopes, five minutes each at most
python -m tools.modelcheck recover-3          this one
python -m tools.modelcheck --faults           with the rules of the protocol taken away, one at a time
"""

import argparse
import sys

from tools.modelcheck.guided import ALL
from tools.modelcheck.hunt import SEEN, hunt, search
from tools.modelcheck.scopes import LIMITS, Scope
from tools.sim.faulty import FAULTS


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if a law is broken, or a fault is not detected."""
    parser = argparse.ArgumentParser(prog="python -m tools.modelcheck", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scopes", nargs="*", metavar="SCOPE", help="the scopes to search (all)")
    parser.add_argument("--list", action="store_true", help="list the scopes")
    parser.add_argument(
        "--seconds", type=float, default=300, help="the time for each scope, and again for its endings (300)"
    )
    parser.add_argument("--faults", action="store_true", help="remove one rule at a time, and check that a law breaks")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME",
        help="search with this fault, and print the way to the broken law",
    )
    chosen = parser.parse_args(arguments)
    for name, known, kind in [(n, ALL, "scope") for n in chosen.scopes] + [(n, FAULTS, "fault") for n in chosen.fault]:
        if name not in known:
            parser.error(f"no {kind} is called {name!r}; there is {', '.join(known)}")
    names = tuple(chosen.scopes)
    if chosen.list:
        for name in names or ALL:
            print(f"{name:20} {ALL[name].voters} voters: {ALL[name].about} ({limits(ALL[name])})")
        return 0
    if chosen.faults or chosen.fault:
        return _faults(chosen.fault or list(FAULTS), names, chosen.seconds, ways=bool(chosen.fault))
    return _scopes(names or tuple(ALL), chosen.seconds)


def limits(scope: Scope) -> str:
    """Return the limits of a scope as text."""
    found = [f"{getattr(scope.limits, name)} {name}" for name in LIMITS if getattr(scope.limits, name)]
    return ", ".join(found) or "nothing goes wrong"


def _scopes(names: tuple[str, ...], seconds: float) -> int:
    print("| scope | voters | what happens | states | transitions | depth | states of one node | endings | seconds | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    broken = 0
    for name in names:
        scope = ALL[name]
        report, way = search(scope, seconds)
        broken += bool(report.law)
        whole = f"**{report.law}**" if report.law else "all" if report.exhausted else "bounded"
        print(
            f"| `{name}` | {scope.voters} | {scope.about} | {report.states:,} | {report.transitions:,} "
            f"| {report.depth} | {report.local:,} | {report.ended:,} | {report.seconds:.0f} | {whole} |",
            flush=True,
        )
        for line in (report.story, *way) if report.law else ():
            print("   ", line)
    return 1 if broken else 0


def _faults(faults: list[str], names: tuple[str, ...], seconds: float, *, ways: bool) -> int:
    missed = 0
    for fault in faults:
        where = names or ((SEEN[fault],) if fault in SEEN else tuple(ALL))
        found = hunt(fault, where, seconds)
        missed += found is None
        if found is None:
            print(f"{fault:34} NOT SEEN", flush=True)
            continue
        report = found.report
        print(
            f"{fault:34} {found.scope:20} {report.states:9,} states {report.seconds:6.1f} s  {report.law}", flush=True
        )
        for line in (report.story, *found.way) if ways else ():
            print("   ", line)
    print(f"{missed} not seen")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
