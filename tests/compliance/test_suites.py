"""The test suites of other projects have their expected outcomes: a sample of each in every run, all with --slow."""

from pathlib import Path

import pytest

from tools.compliance.outcomes import count, differences, part_of, path_of, read_expected
from tools.compliance.suites import SUITES, cpython_missing, cpython_release, run_cpython

pytestmark = pytest.mark.cluster
CPYTHON_PART = ("dbapi.CursorTests.test_execute", "dump.", "transactions.IsolationLevel", "dbapi.ClosedC")


def test_part_of_cpythons_tests_has_the_expected_outcomes(tmp_path: Path) -> None:
    """The suites run our DB-API in place of sqlite3."""
    if why := cpython_missing():
        pytest.skip(why)
    expected = read_expected(path_of("cpython"))
    if expected.release != cpython_release():
        pytest.skip(f"expectations are of {expected.release}")
    found = run_cpython(tmp_path, CPYTHON_PART)
    assert count(found)["passed"] > 40
    assert [*differences(part_of(expected, found), found)] == []


def test_nine_of_ten_of_cpythons_tests_pass() -> None:
    """Tests that are refused by design count on neither side."""
    counts = read_expected(path_of("cpython")).counts()
    assert counts["passed"] >= 0.9 * (counts["passed"] + counts["failed"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_compliance_suite_has_the_outcomes_of_its_expectations_file(name: str, tmp_path: Path) -> None:
    suite = SUITES[name]
    if why := suite.missing():
        pytest.skip(why)
    expected = read_expected(path_of(suite.expectations))
    if expected.release != suite.release():
        pytest.skip(f"expectations are of {expected.release}, this is {suite.release()}")
    assert [*differences(expected, suite.run_ours(tmp_path))] == []
