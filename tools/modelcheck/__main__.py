"""Explores all possible histories of small clusters of real cores, and prints how many states they have.

python -m tools.modelcheck                    searches all scopes, each for five minutes at most
python -m tools.modelcheck recover-3          searches one scope
"""

import argparse
import sys

from tools.modelcheck.guided import ALL
from tools.modelcheck.scopes import LIMITS, Scope
from tools.modelcheck.way import search


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if a law is broken."""
    parser = argparse.ArgumentParser(prog="python -m tools.modelcheck", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scopes", nargs="*", metavar="SCOPE", help="the scopes to search (all)")
    parser.add_argument("--list", action="store_true", help="list the scopes")
    parser.add_argument(
        "--seconds", type=float, default=300, help="the time for each scope, and again for its endings (300)"
    )
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.scopes if name not in ALL]
    if unknown:
        parser.error(f"no scope is called {unknown[0]!r}; there is {', '.join(ALL)}")
    names = chosen.scopes or list(ALL)
    if chosen.list:
        for name in names:
            print(f"{name:20} {ALL[name].voters} voters: {ALL[name].about} ({limits(ALL[name])})")
        return 0
    return _search_all(names, chosen.seconds)


def limits(scope: Scope) -> str:
    found = [f"{getattr(scope.limits, name)} {name}" for name in LIMITS if getattr(scope.limits, name)]
    return ", ".join(found) or "nothing goes wrong"


def _search_all(names: list[str], seconds: float) -> int:
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


if __name__ == "__main__":
    sys.exit(main())
