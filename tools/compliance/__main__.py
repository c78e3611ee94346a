"""Runs the test suites of other projects against real nodes, and compares the outcomes with the expected ones.

Each suite has a file in ``tools/compliance/expected`` that names every test which does not pass, with the reason. A
test with another outcome is shown, and the exit status is 1. Suites that cannot run here are named, too.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.cluster import DemoError
from tools.compliance.outcomes import (
    UNEXPLAINED,
    Expected,
    Outcomes,
    count,
    differences,
    path_of,
    read_expected,
    renewed,
    write_expected,
)
from tools.compliance.suites import SUITES, Suite


def expected_of(suite: Suite) -> Expected | None:
    """Return the expected outcomes of a suite; None if none are recorded."""
    path = path_of(suite.expectations)
    return read_expected(path) if path.exists() else None


def in_words(outcomes: Outcomes) -> str:
    """Return the numbers of tests that passed, were skipped and failed, as text."""
    return ", ".join(f"{many} {kind}" for kind, many in count(outcomes).items())


def judge(suite: Suite, outcomes: Outcomes) -> bool:
    """Print the unexpected outcomes; return whether all were expected, or the expectations are of another release."""
    expected = expected_of(suite)
    if expected is None:
        print(f"{suite.name}: nothing is expected of it yet; see --write")
        return False
    if expected.release != suite.release():
        print(f"{suite.name}: expectations are of {expected.release}, this is {suite.release()}: NOT compared")
        return True
    found = [*differences(expected, outcomes)]
    found += [f"no reason is given for {test}" for test, (_, why) in expected.others.items() if UNEXPLAINED in why]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{suite.name}: {'as expected' if not found else f'{len(found)} differences'}")
    return not found


def run(suite: Suite, place: Path, *, write: bool) -> bool:
    began = time.monotonic()
    print(f"=== {suite.name}: {suite.release()}, three nodes", flush=True)
    outcomes = suite.run_ours(place)
    print(f"{in_words(outcomes)} in {time.monotonic() - began:.0f} s", flush=True)
    if write:
        old = expected_of(suite)
        write_expected(path_of(suite.expectations), renewed(old, outcomes, suite.release()))
    return judge(suite, outcomes)


def main() -> int:
    """Run the suites of the command line; the exit status is 1 after an unexpected outcome."""
    parser = argparse.ArgumentParser(prog="python -m tools.compliance", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"one of {', '.join(SUITES)}; all by default")
    parser.add_argument("--write", action="store_true", help="store the outcomes as the expected ones")
    parser.add_argument(
        "--keep", type=Path, help="an empty directory for the files of the runs; by default a temporary one"
    )
    asked = parser.parse_args()
    unknown = sorted(set(asked.suites) - set(SUITES))
    if unknown:
        parser.error(f"there is no suite {', '.join(unknown)}; there is {', '.join(SUITES)}")
    fine, left_out = True, []
    for name in asked.suites or SUITES:
        suite = SUITES[name]
        if why := suite.missing():
            left_out.append(f"{name}: NOT RUN: {why}")
            continue
        with tempfile.TemporaryDirectory() as temporary:
            place = (asked.keep or Path(temporary)) / name
            place.mkdir(parents=True)
            try:
                fine = run(suite, place, write=asked.write) and fine
            except (DemoError, subprocess.TimeoutExpired) as error:
                print(f"{name}: could not be run: {error}")
                fine = False
    print(*left_out, sep="\n", end="\n" if left_out else "")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
