"""The three times, against their definitions, for every cluster of up to five voters with small clocks."""

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import pytest

from bedrockish.core.replica.times import Times, times

CLOCKS = range(3)
OWN = [Times(closed, cut, safe) for safe, cut, closed in combinations_with_replacement(CLOCKS, 3)]


def worlds(voters: int) -> Iterator[tuple[Times, tuple[tuple[int, int], ...], int, int | None, bool, bool]]:
    words = [(closed, cut) for cut, closed in combinations_with_replacement(CLOCKS, 2)]
    others = list(combinations_with_replacement(words, voters - 1))
    return product(OWN, others, range(4), (None, 1, 2, 3), (False, True), (False, True))


@pytest.mark.parametrize("voters", range(1, 6))
def test_closed_cut_and_safe_follow_majorities(voters: int) -> None:
    """Closed, settled and safe time are as late as their definitions allow, not later, and never go back."""
    majority = voters // 2 + 1
    count = 0
    for own, words, closable, lowest, counts, moves_cut in worlds(voters):
        got = times(own, words, majority, closable, lowest, counts=counts, moves_cut=moves_cut)
        count += 1
        free = closable if lowest is None else min(closable, lowest - 1)
        assert got.closed == max(own.closed, free)
        closed = [word[0] for word in words] + [got.closed] * counts
        cuts = [word[1] for word in words] + [got.cut] * counts
        may_cut = [
            clock
            for clock in range(got.closed + 1)
            if (lowest is None or clock < lowest) and sum(one >= clock for one in closed) >= majority
        ]
        assert got.cut == (max([own.cut, *may_cut]) if moves_cut else own.cut)
        are_safe = [clock for clock in range(1, 4) if sum(one >= clock for one in cuts) >= majority]
        assert got.safe == max([own.safe, *are_safe])
    assert count > 500


def test_learners_and_amnesiac_voters_do_not_count_for_a_majority() -> None:
    """Neither a voter that has lost its promises nor a learner counts: two of the other three must be that far."""
    own = Times(9, 9, 0)
    assert times(own, [(9, 9), (0, 0)], 2, 9, None, counts=True).safe == 9
    assert times(own, [(9, 9), (0, 0)], 2, 9, None, counts=False).safe == 0
