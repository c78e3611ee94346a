"""Approved transactions apply everywhere: a slice of the search; ``python -m tools.applicable`` runs more."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.applicable.faults import FAULTS
from tools.applicable.search import search
from tools.editing import in_force
from tools.soundness.case_search import Tally


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 64))
def test_approved_transactions_apply_in_any_order_of_their_bases(seed: int) -> None:
    tally = Tally()
    report = search(10, seed, tally)
    assert report is None, report
    assert tally.counts["committed, snapshot"] > 5  # otherwise so few cases would prove nothing
    assert tally.counts["committed, serializable"] > 5
    assert tally.counts["rejected"] > 5


@pytest.mark.parametrize("name", ["no-unique-points", "triggers-again"])
def test_a_fault_is_found(name: str) -> None:
    with in_force(FAULTS[name]):
        assert search(300, 1, Tally(), shrink=False) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_deliberate_fault_is_found(name: str) -> None:
    with in_force(FAULTS[name]):
        assert search(8000, 1, Tally(), shrink=False) is not None
