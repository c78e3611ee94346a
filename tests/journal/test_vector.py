"""The laws of vectors: a partial order with least upper bounds, printed and read without loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.vector import canonical, check, covers, format_vector, merge
from tests.traces.orders import parse_vector

NODES = ("A", "B", "C")
vectors = st.dictionaries(st.sampled_from(NODES), st.integers(1, 4))


@given(vectors, vectors, vectors)
def test_covers_is_a_partial_order_of_vectors(one: dict[str, int], two: dict[str, int], three: dict[str, int]) -> None:
    assert covers(one, one)
    if covers(one, two) and covers(two, one):
        assert one == two
    if covers(one, two) and covers(two, three):
        assert covers(one, three)


@given(vectors, vectors, vectors)
def test_merge_is_the_least_upper_bound(one: dict[str, int], two: dict[str, int], other: dict[str, int]) -> None:
    both = merge(one, two)
    assert covers(both, one)
    assert covers(both, two)
    if covers(other, one) and covers(other, two):
        assert covers(other, both)
    assert both == merge(two, one) == merge(both, one)
    assert merge() == {}


@given(st.dictionaries(st.sampled_from(NODES), st.integers(0, 1 << 70)))
def test_vector_survives_printing_and_parsing(vector: dict[str, int]) -> None:
    assert parse_vector(format_vector(vector, NODES), NODES) == vector


def test_star_stands_for_a_missing_tick_and_not_for_zero() -> None:
    assert format_vector({"A": 4, "C": 0}, NODES) == "[4, *, 0]"
    assert parse_vector(" [4,*, 0]", NODES) == {"A": 4, "C": 0}
    assert canonical({"C": 0, "B": 2, "A": 1}) == {"A": 1, "B": 2}


@pytest.mark.parametrize("text", ["", "4, 0, 0", "[4, 0]", "[4, -1, 0]", "[4, x, 0]", "[4, , 0]", "[1, 2, 3, 4]"])
def test_malformed_vector_text_is_refused(text: str) -> None:
    with pytest.raises(EntryMalformedError):
        parse_vector(text, NODES)


@pytest.mark.parametrize("value", [None, [], {"A": -1}, {"A": 0}, {"A": True}, {1: 1}, {"A": "1"}, {"A": 1.0}])
def test_check_refuses_malformed_vectors(value: object) -> None:
    with pytest.raises(EntryMalformedError):
        check(value)


def test_check_allows_zeros_where_they_mean_something() -> None:
    assert check({"A": 0}, zeros=True) == {"A": 0}
