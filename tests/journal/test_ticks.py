"""Ranges of ticks, against plain sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedrockish_journal.model.ticks import Ticks, gaps

spans = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair))), max_size=8)


@given(spans, st.integers(0, 40))
def test_ticks_are_a_set_of_ticks(given_spans: list[tuple[int, int]], last: int) -> None:
    ticks = Ticks(given_spans)
    model = {tick for first, end in given_spans for tick in range(first, end + 1)}
    assert {tick for tick in range(50) if tick in ticks} == model
    assert len(ticks) == len(model)
    assert ticks.last == max(model, default=0)
    missing = {tick for first, end in ticks.gaps(last) for tick in range(first, end + 1)}
    assert missing == set(range(1, last + 1)) - model
    assert all(one[1] + 1 < two[0] for one, two in zip(list(ticks), list(ticks)[1:], strict=False))


def test_gaps_are_listed_by_leader() -> None:
    held = {"A": Ticks([(1, 3), (5, 5)]), "B": Ticks([(1, 2)])}
    assert gaps(held, {"A": 6, "B": 2, "C": 2}) == {"A": [(4, 4), (6, 6)], "C": [(1, 2)]}


def test_impossible_ticks_are_our_own_mistake() -> None:
    for first, last in ((0, 1), (3, 2)):
        with pytest.raises(AssertionError):
            Ticks().add(first, last)
    with pytest.raises(AssertionError):
        Ticks().gaps(-1)
