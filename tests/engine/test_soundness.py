"""A slice of the search for changes that were wrongly declared irrelevant; ``python -m tools.soundness`` runs more."""

import pytest

from bedrockish.access_sets.writeset import _TableKeys
from tools.soundness.case_search import Tally
from tools.soundness.search import examine, search
from tools.soundness.witnesses import WITNESSES


def test_changes_outside_the_access_set_do_not_change_a_statement() -> None:
    tally = Tally()
    report = search(150, 1, tally)
    assert report is None, report
    assert tally.counts["statements"] > 100
    assert tally.counts["no conflict, same, plan without fallback"] > 50  # otherwise so few cases would prove nothing
    assert tally.counts["statements that read by column"] > 10


def test_changed_rows_without_keys_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_TableKeys, "writes", lambda *_: ([], []))
    assert search(400, 7, Tally()) is not None


@pytest.mark.parametrize("name", sorted(WITNESSES))
def test_statements_with_past_soundness_mistakes_are_analysed_soundly(name: str) -> None:
    examine(WITNESSES[name], Tally())
