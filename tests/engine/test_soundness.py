"""A slice of the search for changes that were wrongly declared irrelevant; ``python -m tools.soundness`` runs more."""

from pathlib import Path

import pytest

from tools.editing import in_force
from tools.soundness.case_search import Tally
from tools.soundness.cases import Case
from tools.soundness.faults import FAULTS
from tools.soundness.search import UnsoundError, examine, search
from tools.soundness.witnesses import WITNESSES


def test_changes_outside_the_access_set_do_not_change_a_statement() -> None:
    tally = Tally()
    report = search(150, 1, tally)
    assert report is None, report
    assert tally.counts["statements"] > 100
    assert tally.counts["no conflict, same, plan without fallback"] > 50  # otherwise so few cases would prove nothing
    assert tally.counts["statements that read by column"] > 10


@pytest.mark.parametrize("name", ["no-index-keys", "failures-read-less"])
def test_a_broken_analysis_is_found(name: str) -> None:
    with in_force(FAULTS[name]):
        assert search(400, 7, Tally()) is not None


def test_the_page_counts_the_faults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "conflicts.md").read_text()
    assert f" of {len(FAULTS)}; `every-stop-counts`" in page


@pytest.mark.parametrize("name", sorted(WITNESSES))
def test_witnesses_of_past_mistakes_are_sound(name: str) -> None:
    examine(WITNESSES[name], Tally())


@pytest.mark.parametrize(
    "name",
    [
        "settings-are-forgotten",
        "dependents-are-nothing",
        "one-row-is-enough",
        "one-level-is-enough",
        "once-round-a-circle",
        "own-rows-are-as-before",
        "missed-rows-are-nothing",
        "nothing-is-looked-for-by-null",
        "values-of-the-caller-are-forgotten",
        "ends-are-the-same",
        "every-row-counts-for-limit",
        "offset-is-nothing",
        "loops-end-a-row-early",
        "own-writes-come-later",
        "loops-end-in-triggers",
        "computed-by-row",
        "given-ids-are-nothing",
        "partners-are-always-there",
        "ends-are-converted",
        "cursors-stay-where-they-were",
        "max-is-null",
        "partners-need-only-be-there",
        "records-are-nothing",
        "columns-are-forgotten",
        "rows-are-there",
        "one-cursor-tells-of-all",
        "columns-do-not-change",
        "equal-columns-are-the-same",
        "rows-come-and-go",
        "computed-columns-stay",
    ],
)
def test_each_mistake_about_dependent_reads_and_columns_has_a_witness(name: str) -> None:
    with in_force(FAULTS[name]):
        assert any(_is_unsound(case) for case in WITNESSES.values())


def _is_unsound(case: Case) -> bool:
    try:
        examine(case, Tally())
    except UnsoundError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_deliberate_fault_is_found(name: str) -> None:
    with in_force(FAULTS[name]):
        assert search(4000, 7, Tally(), shrink=False) is not None
