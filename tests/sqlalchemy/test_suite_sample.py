"""SQLAlchemy's own suite against three nodes: a part of it in every run, and with --slow all of it."""

import re
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy

from tests.test_tidy import ROOT
from tools.compliance.outcomes import count
from tools.compliance.suites import failures, left_out, run_plain, run_sqlalchemy

pytestmark = pytest.mark.skipif(
    sqlalchemy.__version__ < "2.1", reason="the suite of SQLAlchemy 2.0 has other requirements, and tests less"
)
PAGE = (ROOT / "docs" / "sqlalchemy.md").read_text()
SAMPLE = [
    "BinaryTest",
    "CTETest",
    "ExistsTest",
    "InsertBehaviorTest",
    "IsolationLevelTest",
    "LastrowidTest",
    "RisingIdsTest",
    "ServerSideCursorsTest",
]
IDS_FROM_ONE = "test_insert_w_floats and multiple_rows"


@pytest.mark.cluster
def test_sample_of_sqlalchemys_suite_passes(tmp_path: Path) -> None:
    """No test fails, most run, at least one of each class, and each skip has a reason."""
    chosen = " or ".join([*SAMPLE, f"({IDS_FROM_ONE})"])
    found = run_sqlalchemy(tmp_path, ["-k", chosen])
    assert failures(found) == {}
    passed = Counter(test.partition("::")[0] for test, (outcome, _) in found.items() if outcome == "passed")
    assert set(passed) == {*SAMPLE, "ReturningTest"}
    assert passed["ServerSideCursorsTest"] == 14  # the fifteenth is FOR UPDATE, which SQLite has not
    assert all(why for outcome, why in found.values() if outcome == "skipped")


def documented() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return the counts of docs/sqlalchemy.md for three nodes and plain SQLite, and the excluded tests by their
    word.
    """
    rows = re.findall(r"^\| (passed|skipped|failed) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    words = re.findall(r"^\| `([A-Z]+)` \| (\d+) \|", PAGE, re.MULTILINE)
    ours = {kind: int(number) for kind, number, _ in rows}
    plain = {kind: int(number) for kind, _, number in rows}
    return ours, plain, {word: int(number) for word, number in words}


def test_excluded_sqlalchemy_tests_on_the_page_add_up() -> None:
    """The excluded tests are the documented ones, group by group, and none fails."""
    ours, plain, words = documented()
    total = re.search(r"^(\d+) tests pass with plain SQLite and are skipped here", PAGE, re.MULTILINE)
    assert total
    assert sum(words.values()) == int(total[1])
    assert ours["failed"] == plain["failed"] == 0


@pytest.mark.slow
@pytest.mark.cluster
def test_sqlalchemy_suite_has_no_failure_and_the_documented_figures(tmp_path: Path) -> None:
    """The page's figures are for the release that it names; in any other nothing may fail, either."""
    ours, plain = run_sqlalchemy(tmp_path), run_plain(tmp_path)
    assert failures(ours) == {}
    words: Counter[str] = Counter()
    for reason, number in left_out(ours, plain).items():
        words[reason.partition(":")[0]] += number
    assert count(ours)["passed"] > 1000
    if f"With SQLAlchemy {sqlalchemy.__version__}:" in PAGE:
        assert (count(ours), count(plain), dict(words)) == documented()
    else:
        assert set(words) == set(documented()[2])
