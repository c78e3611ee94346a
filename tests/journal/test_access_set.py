"""Conflicts of access sets, against a model that expands every range to the keys of a tiny key space."""

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bedrockish_journal.model.access_set as module
from bedrockish_journal.model.access_set import (
    MANY,
    PIECE,
    READS,
    WRITES,
    AccessSet,
    Range,
    conflict,
    object_of,
    object_range,
    written_in,
)

KEYS = [b"", *(bytes([first, second]) for first in range(3) for second in range(3))]  # the empty key is one, too
points = st.frozensets(st.sampled_from(KEYS), max_size=3)
ranges = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(KEYS)).map(lambda pair: (min(pair), max(pair) + b"\0")), max_size=2
).map(tuple)
access_sets = st.builds(AccessSet, points, ranges, points, ranges)


def expand(some: frozenset[bytes], spans: tuple[Range, ...]) -> set[bytes]:
    return {*some, *(key for low, high in spans for key in KEYS if low <= key < high)}


def model(left: AccessSet, right: AccessSet) -> bool:
    """Return whether one writes a key that the other reads or writes; each range has at least one key of this key
    space.
    """
    left_writes = expand(left.write_points, left.write_ranges)
    right_writes = expand(right.write_points, right.write_ranges)
    left_all = left_writes | expand(left.read_points, left.read_ranges)
    right_all = right_writes | expand(right.read_points, right.read_ranges)
    return bool(left_writes & right_all or right_writes & left_all)


@given(access_sets, access_sets, st.sampled_from([0, 1_000]), st.booleans())
def test_conflict_matches_the_model_and_is_symmetric(left: AccessSet, right: AccessSet, many: int, read: bool) -> None:
    """Also where the keys are so many that they are put in order, by themselves or as they were read."""
    with mock.patch.object(module, "MANY", many):
        if read:
            left, right = AccessSet.unpack(left.pack()), AccessSet.unpack(right.pack())
        found = conflict(left, right)
        assert (found is not None) == model(left, right)
        assert (found is None) == (conflict(right, left) is None)
        assert (found is not None) == bool(written_in(left, right) is not None or written_in(right, left) is not None)
    assert conflict(left, right) == found


def test_unordered_keys_are_sorted() -> None:
    packed = [[b"c", b"a", b"b"], [], [], []]
    with mock.patch.object(module, "MANY", 0):
        found = AccessSet.unpack(packed)
        assert found.ordered(READS) == [b"a", b"b", b"c"]
        assert replace(found, read_points=frozenset({b"z"})).ordered(READS) == [b"z"]


@given(access_sets, access_sets)
def test_conflict_names_a_key_that_both_transactions_touch(left: AccessSet, right: AccessSet) -> None:
    key = conflict(left, right)
    if key is not None:
        for one in (left, right):
            spans = (*one.read_ranges, *one.write_ranges)
            assert key in one.read_points | one.write_points or any(low <= key < high for low, high in spans)


@given(access_sets)
def test_access_set_survives_packing(access_set: AccessSet) -> None:
    again = AccessSet.unpack(access_set.pack())
    assert again.pack() == access_set.pack()
    assert again.read_points == access_set.read_points
    assert sorted(again.write_ranges) == sorted(access_set.write_ranges)


def test_object_range_contains_exactly_the_keys_of_a_table() -> None:
    low, high = object_range("t:account")
    assert low <= b"t:account\0\x15\x2a" < high
    assert not low <= b"t:accounts\0" < high
    assert object_of(low) == object_of(b"t:account\0\x15") == "t:account"


@pytest.mark.parametrize("count", [3, MANY, MANY + 1, 2 * PIECE + 7])
def test_extended_set_is_the_set_with_more_keys_in_the_same_order(count: int) -> None:
    keys = [f"t:t\0{number * 7919 % 1_000_003:08}".encode() for number in range(count)]
    base = AccessSet(frozenset(keys), (object_range("i:r"),), frozenset(keys[::2]), ())
    more, span = [b"t:a\0first", keys[1], b"t:z\0last"], object_range("i:w")
    found = base.extended(more[:2], more, (span,))
    assert found == AccessSet(
        frozenset([*keys, *more[:2]]), (object_range("i:r"),), frozenset([*keys[::2], *more]), (span,)
    )
    for which, points in ((READS, found.read_points), (WRITES, found.write_points)):
        assert found.ordered(which) == sorted(points)
        assert base.ordered(which) == sorted(getattr(base, which)), "the set itself has not changed"


def test_extended_set_does_not_sort_many_keys_again(monkeypatch: pytest.MonkeyPatch) -> None:
    base = AccessSet(write_points=frozenset(b"%08d" % number for number in range(MANY + 1)))
    assert len(base.ordered(WRITES)) == MANY + 1
    monkeypatch.setattr(module, "_sorted_in_steps", None)
    assert base.extended(writes=[b"x"]).ordered(WRITES)[-1] == b"x"
