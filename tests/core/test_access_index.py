"""The index finds every present holder of a key, and no former one."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedrockish.core.state import access_index
from bedrockish.core.state.access_index import AccessIndex, is_large
from bedrockish_journal.model.access_set import AccessSet, clock_key, clocks_from, conflict, object_range

KEYS = [b"t:x\0" + bytes([number]) for number in range(6)] + [b"t:y\0" + bytes([number]) for number in range(2)]
SPANS = [
    (KEYS[0], KEYS[3]),
    (KEYS[2], KEYS[5]),
    object_range("t:y"),
    (KEYS[4], KEYS[7]),  # keys of two objects
    (b"", b"\xff\xff"),
    clocks_from(2),
]
points = st.frozensets(st.sampled_from(KEYS), max_size=4)
ranges = st.lists(st.sampled_from(SPANS), max_size=2).map(tuple)  # a set may list a range twice
clocks = st.frozensets(st.sampled_from([clock_key(1), clock_key(2)]), max_size=1)
access_sets = st.builds(
    lambda reads, clock, spans, writes, wide: AccessSet(reads | clock, spans, writes, wide),
    points,
    clocks,
    ranges,
    points,
    ranges,
)
steps = st.lists(st.tuples(st.integers(0, 5), access_sets), max_size=25)


@pytest.fixture(scope="module", params=[2, access_index.LARGE])
def large(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the number of keys from which on an access set is not split: also so low that some sets here are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access_index, "LARGE", request.param)
        yield request.param


@pytest.mark.usefixtures("large")
@given(steps, access_sets)
@settings(max_examples=300, deadline=None)
def test_index_finds_the_same_holders_as_a_full_comparison(done: list[tuple[int, AccessSet]], asked: AccessSet) -> None:
    """Equal keys of one holder share an object, which must not change when another holder comes or goes."""
    index: AccessIndex[int] = AccessIndex()
    held: dict[int, AccessSet] = {}
    for name, access_set in done:
        if name in held:
            index.remove(name)
            del held[name]
        else:
            index.add(name, access_set)
            held[name] = access_set
        expected = {name for name, other in held.items() if conflict(asked, other) is not None}
        assert {name for name, _ in index.conflicts(asked)} == expected
        for key in KEYS:
            expected_writers = [name for name, one in held.items() if key in one.write_points]
            found = index.writers_of(key)
            assert sorted(found) == sorted(expected_writers)
            assert index.is_writing(key) == bool(found)
            small = [name for name in expected_writers if not is_large(held[name])]
            assert found[: len(small)] == small  # in the order in which they came
        assert {*index.ranged()} == {name for name, one in held.items() if one.has_ranges}


def test_access_index_keeps_a_very_large_set_undivided() -> None:
    """Splitting such a set, and releasing the parts, would each block the node's loop for a tenth of a second."""
    index: AccessIndex[int] = AccessIndex()
    many = AccessSet(write_points=frozenset(b"t:x\0" + number.to_bytes(4) for number in range(100_000)))
    index.add(1, many)
    assert not index._writers.holders
    hit = AccessSet(frozenset({b"t:x\0" + (77).to_bytes(4)}))
    assert [*index.conflicts(hit)] == [(1, b"t:x\0" + (77).to_bytes(4))]
    assert not [*index.conflicts(hit, 1)]
    index.remove(1)
    assert not [*index.conflicts(hit)]
