"""Searches for keys that the access sets of statements lack: ``python -m tools.soundness``.

With ``applying`` it searches for approved transactions that a node cannot apply.
"""

import argparse
import sys

from tools.soundness import applying, search
from tools.soundness.case_search import Tally

SEARCHES = {"keys": search.search, "applying": applying.search}


def main() -> int:
    """Run a search from the command line; return 1 if a case fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.soundness", description=__doc__)
    parser.add_argument("search", nargs="?", choices=SEARCHES, default="keys", help="the kind of search (keys)")
    parser.add_argument("--examples", type=int, default=500, help="the number of cases (500)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the cases (0)")
    chosen = parser.parse_args()
    tally = Tally()
    report = SEARCHES[chosen.search](chosen.examples, chosen.seed, tally)
    print("\n".join(tally.lines()))
    print(report or f"no case of {chosen.examples} fails")
    return int(report is not None)


if __name__ == "__main__":
    sys.exit(main())
