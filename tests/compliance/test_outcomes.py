"""The files of expectations are read back unchanged, and any changed outcome of a test is a difference."""

from pathlib import Path

import pytest

from tools.compliance.outcomes import (
    PLACE,
    UNEXPLAINED,
    Expected,
    Outcomes,
    differences,
    part_of,
    path_of,
    read_expected,
    renewed,
    write_expected,
)
from tools.compliance.suites import SUITES

FOUND: Outcomes = {
    "a.good": ("passed", ""),
    "b.refused": ("failed", "NotSupportedError: no"),
    "c.broken": ("failed", "AssertionError"),
    "d.other": ("skipped", "not here"),
}
EXPECTED = Expected(
    "Suite 1",
    1,
    {"b.refused": ("refused", "by design: so"), "c.broken": ("failed", "not yet"), "d.other": ("skipped", "not here")},
)


def test_expected_outcomes_survive_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "suite.txt"
    write_expected(path, EXPECTED)
    assert read_expected(path) == EXPECTED
    assert [*differences(EXPECTED, FOUND)] == []


def test_unknown_line_of_an_expectation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "suite.txt"
    path.write_text("release: 1\nb.refused\n")
    with pytest.raises(ValueError, match="line 2"):
        read_expected(path)


@pytest.mark.parametrize(
    ("test", "now", "told"),
    [
        ("a.good", ("failed", "boom"), "+ failed   a.good  (boom)"),
        ("a.good", ("skipped", ""), "+ skipped  a.good"),
        ("a.good", None, "+ 0 passed"),
        ("b.refused", ("passed", ""), "+ passed   b.refused"),
        ("c.broken", ("passed", ""), "+ passed   c.broken"),
        ("c.broken", None, "+ gone     c.broken"),
        ("d.other", ("failed", ""), "+ failed   d.other"),
        ("e.new", ("passed", ""), "+ 2 passed"),
        ("e.new", ("failed", "boom"), "+ failed   e.new"),
    ],
)
def test_changed_new_or_missing_outcome_is_reported_as_a_difference(
    test: str, now: tuple[str, str] | None, told: str
) -> None:
    found = {**FOUND, test: now} if now else {name: what for name, what in FOUND.items() if name != test}
    assert told in "\n".join(differences(EXPECTED, found))


def test_recording_keeps_the_reasons_of_failures() -> None:
    """A new test has none, and the gate refuses that."""
    new = renewed(EXPECTED, {**FOUND, "e.new": ("failed", "boom")}, "Suite 2")
    assert {name: why for name, why in new.others.items() if name != "e.new"} == EXPECTED.others
    assert UNEXPLAINED in new.others["e.new"][1]
    assert (new.release, new.passed) == ("Suite 2", 1)


def test_partial_run_of_a_suite_is_compared_with_the_outcomes_of_its_tests() -> None:
    some = {name: FOUND[name] for name in ("a.good", "c.broken")}
    assert [*differences(part_of(EXPECTED, some), some)] == []
    assert [*differences(part_of(EXPECTED, some), {**some, "a.good": ("failed", "")})]


def test_every_suite_has_its_file_and_every_file_its_suite() -> None:
    """Each test that does not pass has a reason."""
    assert {path.stem for path in PLACE.glob("*.txt")} == {suite.expectations for suite in SUITES.values()}
    for suite in SUITES.values():
        expected = read_expected(path_of(suite.expectations))
        assert expected.passed > 0
        assert not [test for test, (_, why) in expected.others.items() if not why or UNEXPLAINED in why]
