"""Causal orders: every generated one is valid, every valid one is generated, and blocked entries are named."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedrockish_journal.model.errors import ReplayBlockedError
from bedrockish_journal.model.order import may_apply, replay_order
from tests.traces.orders import all_orders, next_applicable


@dataclass(frozen=True)
class Mark:
    leader: str
    tick: int
    after: dict[str, int] = field(hash=False)

    @property
    def place(self) -> tuple[str, int]:
        return self.leader, self.tick

    def __str__(self) -> str:
        return f"{self.leader}{self.tick}"


def mark(name: str, *vector: int) -> Mark:
    """Make an entry of the gist's list; its vector includes its own tick, ``after`` does not."""
    after = {node: tick for node, tick in zip("ABCDE", vector, strict=True) if tick}
    leader, tick = name[0], int(name[1:])
    after[leader] = tick - 1
    return Mark(leader, tick, {node: tick for node, tick in after.items() if tick})


GIST = [
    mark("A1", 1, 0, 0, 0, 0),
    mark("A2", 2, 0, 0, 0, 0),
    mark("B1", 2, 1, 0, 0, 0),
    mark("B2", 2, 2, 0, 0, 0),
    mark("C1", 0, 0, 1, 0, 0),
    mark("D1", 2, 1, 0, 1, 0),
]
E2 = mark("E2", 0, 0, 0, 0, 2)


def is_valid(order: Iterable[Mark]) -> bool:
    applied: dict[str, int] = {}
    for entry in order:
        if not may_apply(entry, applied):
            return False
        applied[entry.leader] = entry.tick
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Mark]:
    """A history as nodes make it: each entry's ``after`` is what its leader had applied, which is causally closed."""
    names = "ABCD"[: draw(st.integers(1, 4))]
    applied: dict[str, dict[str, int]] = {name: {} for name in names}
    made: list[Mark] = []
    for _ in range(draw(st.integers(0, 14))):
        leader = draw(st.sampled_from(names))
        entry = Mark(leader, applied[leader].get(leader, 0) + 1, dict(applied[leader]))
        made.append(entry)
        applied[leader][leader] = entry.tick
        learner = draw(st.sampled_from(names))
        for other in made:
            if draw(st.booleans()) and may_apply(other, applied[learner]) and other.leader != learner:
                applied[learner][other.leader] = other.tick
    return made


@given(histories(), st.integers(0, 1 << 64), st.randoms(use_true_random=False))
def test_every_drawn_order_is_valid_and_complete(history: list[Mark], seed: int, shuffle: Random) -> None:
    given_order = [*history, *history[:3]]
    shuffle.shuffle(given_order)
    order = list(replay_order(given_order, Random(seed).random))
    assert is_valid(order)
    assert sorted(map(str, order)) == sorted(map(str, history))


@given(histories().filter(bool), st.integers(0), st.integers(0, 99))
def test_entry_with_a_missing_cause_is_blocked_and_named(history: list[Mark], pick: int, seed: int) -> None:
    lost = history[pick % len(history)]
    done: list[Mark] = []
    blocked: list[ReplayBlockedError] = []
    try:
        for entry in replay_order([entry for entry in history if entry is not lost], Random(seed).random):
            done.append(entry)
    except ReplayBlockedError as error:
        blocked.append(error)
    for found in blocked:
        assert found.missing == [lost.place]
    assert sum(len(found.blocked) for found in blocked) + len(done) == len(history) - 1
    assert is_valid(done)


def test_the_orders_of_the_gist_are_exactly_the_valid_ones() -> None:
    orders = {tuple(map(str, order)) for order in all_orders(GIST)}
    assert orders == {tuple(map(str, order)) for order in permutations(GIST) if is_valid(order)}
    assert ("A1", "A2", "B1", "B2", "C1", "D1") in orders
    assert ("A1", "C1", "A2", "B1", "D1", "B2") in orders


def test_replay_never_applies_an_entry_before_an_earlier_tick() -> None:
    with pytest.raises(ReplayBlockedError) as caught:
        list(all_orders([*GIST, E2]))
    assert caught.value.blocked == [("E", 2)]
    assert caught.value.missing == [("E", 1)]
    done: list[Mark] = []
    with pytest.raises(ReplayBlockedError):
        done.extend(replay_order([*GIST, E2], Random(1).random))
    assert next_applicable([E2], {"A": 2, "B": 2, "C": 1, "D": 1}) == []
    assert next_applicable([E2], {"E": 1}) == [E2]


def test_random_replay_draws_every_valid_order() -> None:
    draw = Random(7).random
    drawn = {tuple(map(str, replay_order(GIST, draw))) for _ in range(600)}
    assert drawn == {tuple(map(str, order)) for order in all_orders(GIST)}


def test_replay_order_omits_applied_entries() -> None:
    rest = list(replay_order(GIST, lambda: 0.0, {"A": 2, "B": 1}))
    assert sorted(map(str, rest)) == ["B2", "C1", "D1"]


def test_replay_reports_entries_that_wait_for_each_other_as_blocked() -> None:
    with pytest.raises(ReplayBlockedError) as caught:
        list(replay_order([Mark("A", 1, {"B": 1}), Mark("B", 1, {"A": 1})], lambda: 0.0))
    assert caught.value.missing == []


def test_replay_order_takes_linear_work() -> None:
    """The work is a step for each component of each ``after``, and one for each time that a component is waited for."""
    looks = 0

    class Counted(dict[str, int]):
        def get(self, key: str, default: object = None) -> int:
            nonlocal looks
            looks += 1
            return super().get(key, 0)

    history = [Mark(name, tick, {"A": tick - 1} if tick > 1 else {}) for tick in range(1, 2001) for name in "ABC"]
    from bedrockish_journal.model.order import _Interleaving

    timelines = {name: iter([entry for entry in history if entry.leader == name]) for name in "ABC"}
    state = _Interleaving(timelines, Random(3).random, {})
    state.applied = Counted()
    assert len(list(state.run())) == len(history)
    assert looks < 6 * len(history)
