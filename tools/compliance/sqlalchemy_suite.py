"""SQLAlchemy's dialect suite, which ships in its wheel: against three nodes, and against plain SQLite."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import ROOT
from tools.compliance.nodes import record_of, three_nodes
from tools.compliance.outcomes import Outcomes

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
    settings = {DATABASE: database, RECORD: str(record)}
    found = record_of("SQLAlchemy's suite", command, record, directory, LIMIT_S, settings)
    return {test: (outcome, reason_of(reason)) for test, (outcome, reason) in found.items()}


def run_ours(directory: Path, arguments: Sequence[str] = (), *, by_path: bool = False) -> Outcomes:
    """Run SQLAlchemy's suite against three nodes of its own.

    Args:
        directory: for the files of the run.
        arguments: further ones for pytest.
        by_path: connect by the path of a node's file instead of the URL.

    Raises:
        DemoError: the suite did not run to its end.
    """
    with three_nodes(directory / "cluster") as cluster:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        url = f"bedrockish:///{cluster.nodes[0].database}" if by_path else f"bedrockish://[{hosts}]/"
        return run_suite("bedrockish", url, directory / "bedrockish", arguments)


def run_plain(directory: Path, arguments: Sequence[str] = ()) -> Outcomes:
    """Run SQLAlchemy's suite against plain SQLite. The errors are those of ``run_ours``."""
    return run_suite("sqlite", "sqlite:///suite.db", directory / "sqlite", arguments)


def left_out(ours: Outcomes, plain: Outcomes) -> Counter[str]:
    """Return the reasons why tests that plain SQLite passes are not run here, each with the number of tests."""
    skipped = {test for test, (outcome, _) in plain.items() if outcome == "passed"} - {
        test for test, (outcome, _) in ours.items() if outcome != "skipped"
    }
    whole = {test: ("", f"CLASS: {test.partition('::')[0]} is left out as a whole") for test in skipped}
    return Counter(reason_of(ours.get(test, whole[test])[1]) for test in skipped)


def failures(outcomes: Outcomes) -> dict[str, str]:
    """Return the tests that failed, and how."""
    return {test: reason for test, (outcome, reason) in outcomes.items() if outcome == "failed"}


def reason_of(text: str) -> str:
    """Return why a test is skipped, without its name: our own words out of the suite's, where there are any."""
    found = re.search(r"(ATTACH|TEMPORARY|REGEXP): .*", text)
    if found:
        return found[0]
    why = re.sub(r"^'.*?\((?:call|setup)\)' : ", "", text)
    return why.replace("marked as skip", "the suite's requirements do not ask it of SQLite")
