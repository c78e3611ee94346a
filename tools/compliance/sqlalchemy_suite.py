"""SQLAlchemy's dialect suite, which ships in its wheel: against three nodes, and against plain SQLite."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import ROOT, DemoError, clean_environment
from tools.compliance.nodes import three_nodes
from tools.compliance.outcomes import Outcomes, read_record

SUITE = ROOT / "tests" / "sqlalchemy_suite"
DATABASE, RECORD = "SUITE_DATABASE", "SUITE_RECORD"
PLUGINS = ("-p", "sqlalchemy.testing.plugin.pytestplugin", "-p", "tests.sqlalchemy_suite.plugin")
LIMIT_S = 30 * 60


def run_suite(database: str, url: str, directory: Path, arguments: Sequence[str]) -> Outcomes:
    """Run SQLAlchemy's suite; return the outcome of each test.

    Raises:
        DemoError: the suite did not run to its end.
    """
    directory.mkdir()
    record = directory / "record.json"
    options = ["-c", str(SUITE / "setup.cfg"), *PLUGINS, "--dburi", url]
    command = [sys.executable, "-m", "pytest", *options, str(SUITE), "-q", "--tb=line", "-rN", *arguments]
    environment = clean_environment() | {DATABASE: database, RECORD: str(record)}
    with (directory / "output.txt").open("w+") as output:
        # In a separate directory, because with plain SQLite the suite makes files in the current one.
        subprocess.run(
            command, cwd=directory, env=environment, stdout=output, stderr=output, timeout=LIMIT_S, check=False
        )
        output.seek(0)
        lines = output.read().splitlines()
    if not record.exists():
        raise DemoError(f"the suite did not run; its output ends:\n{os.linesep.join(lines[-20:])}")
    return {test: (outcome, reason_of(reason)) for test, (outcome, reason) in read_record(record).items()}


def run_ours(directory: Path, arguments: Sequence[str] = ()) -> Outcomes:
    """Run SQLAlchemy's suite against three nodes of its own.

    Raises:
        DemoError: the suite did not run to its end.
    """
    with three_nodes(directory / "cluster") as cluster:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        return run_suite("bedrockish", f"bedrockish://[{hosts}]/", directory / "bedrockish", arguments)


def run_by_path(directory: Path, arguments: Sequence[str] = ()) -> Outcomes:
    """Run SQLAlchemy's suite as ``run_ours`` does, by the path of a node's file.

    Raises:
        DemoError: the suite did not run to its end.
    """
    with three_nodes(directory / "cluster") as cluster:
        url = f"bedrockish:///{cluster.nodes[0].database}"
        return run_suite("bedrockish", url, directory / "bedrockish", arguments)


def run_plain(directory: Path, arguments: Sequence[str] = ()) -> Outcomes:
    """Run SQLAlchemy's suite against plain SQLite.

    Raises:
        DemoError: the suite did not run to its end.
    """
    return run_suite("sqlite", "sqlite:///suite.db", directory / "sqlite", arguments)


def left_out(ours: Outcomes, plain: Outcomes) -> Counter[str]:
    """Return the reasons why tests that plain SQLite passes are not run here, each with the number of tests."""
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


def reason_of(text: str) -> str:
    """Return why a test is skipped, without its name: our own words out of the suite's, where there are any."""
    found = re.search(r"(ATTACH|TEMPORARY|REGEXP|CTAS): .*", text)
    if found:
        return found[0]
    why = re.sub(r"^'.*?\((?:call|setup)\)' : ", "", text)
    return why.replace("marked as skip", "the suite's requirements do not ask it of SQLite")
