"""Approved transactions apply everywhere: a slice of the search; ``python -m tools.soundness applying`` runs more."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bedrockish.access_sets import writeset
from tools.soundness.applying import search
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


def test_a_row_whose_unique_values_have_no_keys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeset, "_no_null", lambda *_: False)
    assert search(300, 1, Tally(), shrink=False) is not None
