"""What public suites say about the faces that applications use: PEP 249's clauses, and SQLAlchemy's dialect suite.

The suite runs against three nodes, and against plain SQLite for comparison. What the one skips and the other passes is
listed with its reason; so is every failure.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import trio

from tools.cluster import ROOT, DemoError, clean_environment, local_cluster

SUITE = ROOT / "tests" / "sqlalchemy_suite"
DATABASE, RECORD = "SUITE_DATABASE", "SUITE_RECORD"
PLUGINS = ("-p", "sqlalchemy.testing.plugin.pytestplugin", "-p", "tests.sqlalchemy_suite.plugin")
LIMIT_S = 30 * 60
Outcomes = dict[str, tuple[str, str]]


def run_pep249() -> bool:
    """Run the tests of the DB-API; their output goes straight through."""
    print("=== PEP 249, clause by clause, against real nodes", flush=True)
    command = [sys.executable, "-m", "pytest", "tests/dbapi", "-q"]
    return subprocess.run(command, cwd=ROOT, env=clean_environment(), timeout=LIMIT_S, check=False).returncode == 0


def run_suite(database: str, url: str, directory: Path, arguments: Sequence[str]) -> Outcomes:
    """Run SQLAlchemy's suite; return what became of each test.

    Raises:
        DemoError: it could not be run to its end.
    """
    print(f"=== SQLAlchemy's dialect suite against {database}", flush=True)
    directory.mkdir()
    record = directory / "record.json"
    options = ["-c", str(SUITE / "setup.cfg"), *PLUGINS, "--dburi", url]
    command = [sys.executable, "-m", "pytest", *options, str(SUITE), "-q", "--tb=line", "-rN", *arguments]
    environment = clean_environment() | {DATABASE: database, RECORD: str(record)}
    with (directory / "output.txt").open("w+") as output:
        # In a directory of its own: for plain SQLite the suite makes files where it stands.
        subprocess.run(
            command, cwd=directory, env=environment, stdout=output, stderr=output, timeout=LIMIT_S, check=False
        )
        output.seek(0)
        lines = output.read().splitlines()
    if not record.exists():
        raise DemoError(f"the suite did not run; its output ends:\n{os.linesep.join(lines[-20:])}")
    print(lines[-1] if lines else "", flush=True)
    return {test: (outcome, reason) for test, (outcome, reason) in json.loads(record.read_text()).items()}


def run_suite_against_both(directory: Path, arguments: Sequence[str]) -> tuple[Outcomes, Outcomes]:
    """Run SQLAlchemy's suite against three nodes of its own, and against plain SQLite; return both outcomes.

    Raises:
        DemoError: it could not be run to its end.
    """
    plain = run_suite("sqlite", "sqlite:///suite.db", directory / "sqlite", arguments)
    with local_cluster(directory / "cluster") as cluster:
        for node in range(len(cluster.nodes)):
            trio.run(cluster.wait_ready, node)
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        ours = run_suite("bedrockish", f"bedrockish://[{hosts}]/", directory / "bedrockish", arguments)
    return ours, plain


def count(outcomes: Outcomes) -> dict[str, int]:
    """Return how many tests passed, were skipped, and failed."""
    found = Counter(outcome for outcome, _ in outcomes.values())
    return {kind: found[kind] for kind in ("passed", "skipped", "failed")}


def left_out(ours: Outcomes, plain: Outcomes) -> Counter[str]:
    """Return why tests that plain SQLite passes are not run here, and how many for each reason."""
    skipped = {test for test, (outcome, _) in plain.items() if outcome == "passed"} - {
        test for test, (outcome, _) in ours.items() if outcome != "skipped"
    }
    return Counter(
        reason_of(ours.get(test, ("", f"CLASS: {test.partition('::')[0]} is left out as a whole"))[1])
        for test in skipped
    )


def failures(outcomes: Outcomes) -> dict[str, str]:
    """Return the tests that failed, and how."""
    return {test: reason for test, (outcome, reason) in outcomes.items() if outcome == "failed"}


def report(ours: Outcomes, plain: Outcomes) -> bool:
    """Print the counts side by side and what differs; return whether nothing failed."""
    print()
    print(f"{'':10} {'bedrockish':>10} {'SQLite':>10}")
    here, there = count(ours), count(plain)
    for kind, number in here.items():
        print(f"{kind:10} {number:10} {there[kind]:10}")
    reasons = left_out(ours, plain)
    print(f"\nskipped here, passed by plain SQLite: {reasons.total()}")
    for reason, number in reasons.most_common():
        print(f"{number:6}  {reason}")
    failed = failures(ours)
    print(f"\nfailed here: {len(failed)}")
    for test, reason in failed.items():
        also = " (as with plain SQLite)" if plain.get(test, ("", ""))[0] == "failed" else ""
        print(f"  {test}{also}\n    {reason[:200]}")
    return not failed


def reason_of(text: str) -> str:
    """Return our own words out of the suite's, which name the test as well."""
    found = re.search(r"(ATTACH|TEMPORARY|REGEXP|CTAS): .*", text)
    return found[0] if found else text


def main() -> int:
    """Run what was asked for; the exit status is 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.compliance", description=__doc__)
    parser.add_argument("--suite-only", action="store_true", help="leave out the tests of PEP 249")
    parser.add_argument("--save", type=Path, help="a file for what became of each test, as JSON")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --, such as -k CTETest")
    asked = parser.parse_args()
    fine = asked.suite_only or run_pep249()
    with tempfile.TemporaryDirectory() as place:
        ours, plain = run_suite_against_both(Path(place), asked.arguments)
    if asked.save:
        asked.save.write_text(json.dumps({"bedrockish": ours, "sqlite": plain}, indent=1))
    return 0 if report(ours, plain) and fine else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DemoError, subprocess.TimeoutExpired) as error:
        sys.exit(f"error: {error}")
