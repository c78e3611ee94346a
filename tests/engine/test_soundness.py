"""A slice of the search for changes that were wrongly declared irrelevant; ``python -m tools.soundness`` runs more."""

import pytest

from tools.soundness import Tally, search
from tools.soundness_faults import FAULTS, broken


def test_no_change_that_meets_no_key_changes_what_a_statement_does() -> None:
    tally = Tally()
    report = search(150, 1, tally)
    assert report is None, report
    assert tally.counts["statements"] > 100
    assert tally.counts["no conflict, same, plan without fallback"] > 50  # else the slice would prove nothing


@pytest.mark.parametrize("name", ["no-index-keys", "failures-read-less"])
def test_a_broken_analysis_is_found(name: str) -> None:
    with broken(name):
        assert search(400, 7, Tally()) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_deliberate_fault_is_found(name: str) -> None:
    with broken(name):
        assert search(4000, 7, Tally(), shrink=False) is not None
