"""Encoded keys must sort and be equal exactly as SQLite sorts and compares the values themselves."""

import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedrockish.access_sets import key_encoding
from bedrockish.access_sets.key_encoding import BINARY, NOCASE, RTRIM, Spec, apply_affinity, encode, encoder, table_key
from tests.engine.index_keys import index_prefix, prefix_range

VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(2**53 - 3, 2**53 + 3),
    st.sampled_from([2**62, 2**62 + 1, 2**63 - 1, -(2**63), 1e17, 10**17, 10**17 + 1, float(2**63), -0.0, 0.0, 1e308]),
    st.floats(allow_nan=False),
    st.text(alphabet=st.sampled_from("aAbB \0é~ÉZz"), max_size=5),
    st.binary(max_size=4),
)
_db = apsw.Connection(":memory:")


def compare(left: object, right: object, collation: str) -> int:
    """Return -1, 0 or 1 by SQLite's ORDER BY; IS makes NULL equal to NULL."""
    sql = (
        f"WITH v(a, b) AS (SELECT ?, ?) SELECT a IS b COLLATE {collation}, "
        "(SELECT n FROM (SELECT 1 n, a x FROM v UNION ALL SELECT 2, b FROM v) "
        f"ORDER BY x COLLATE {collation}, n LIMIT 1) FROM v"
    )
    equal, first = _db.execute(sql, (left, right)).fetchall()[0]
    return 0 if equal else (-1 if first == 1 else 1)


@pytest.mark.parametrize("collation", [BINARY, NOCASE, RTRIM])
def test_keys_sort_as_sqlite_sorts(collation: str) -> None:
    @settings(max_examples=300, derandomize=True, deadline=None, database=None)
    @given(VALUES, VALUES)
    def check(left: object, right: object) -> None:
        code = encoder(Spec(collation))
        one, other = code(left), code(right)
        assert (one > other) - (one < other) == compare(left, right, collation)
        down = encoder(Spec(collation, descending=True))
        assert (down(left) > down(right)) - (down(left) < down(right)) == -compare(left, right, collation)

    check()


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(VALUES, VALUES)
def test_no_key_is_a_prefix_of_another(left: object, right: object) -> None:
    one, other = encode(left), encode(right)
    assert one == other or not other.startswith(one)


def test_prefix_range_holds_exactly_the_keys_with_the_prefix() -> None:
    specs = (Spec(NOCASE), Spec(BINARY, descending=True))
    low, high = prefix_range(index_prefix("by_name", ["ann"], specs))
    inside = [index_prefix("by_name", ["ANN", value], specs) for value in (None, 0, "z", b"\xff" * 20)]
    outside = [index_prefix("by_name", [name, 0], specs) for name in ("anna", "an", None, b"ann")]
    assert all(low <= key < high for key in inside)
    assert not any(low <= key < high for key in outside)


def test_integers_and_floats_that_are_equal_are_one_key() -> None:
    assert encode(3) == encode(3.0) == encode(True + 2)
    assert encode(0.0) == encode(-0.0) == encode(0)
    assert encode(2**53) == encode(float(2**53)) != encode(2**53 + 1)
    assert encode(float("nan")) == encode(None)  # SQLite stores NULL for it


def test_texts_that_are_not_unicode_have_keys() -> None:
    texts = ["\udc80", "\udcff", "\ud800", "a\udc80", "é"]
    assert len({encode(text) for text in texts}) == len(texts)


def test_integer_and_equal_float_have_the_same_key_bytes() -> None:
    """SQLite treats 1 and 1.0 as equal, so their keys are equal in every encoding."""
    for number in (0, 1, 2, 7, 255, 10**9, 2**53 - 1, 2**53, 2**54, 2**62):
        assert encode(number) == encode(float(number)), number
        assert encode(-number) == encode(float(-number)), number
        assert encode(-number - 1) < encode(-number) <= encode(number) < encode(number + 1), number


def test_value_that_sqlite_cannot_store_is_refused() -> None:
    with pytest.raises(TypeError):
        encode(object())
    with pytest.raises(OverflowError):
        encode(2**63)


def test_table_key_consists_of_object_and_rowid() -> None:
    assert table_key("accounts", 7) == b"t:accounts\0" + encode(7)
    keys = [table_key("a", rowid) for rowid in (-(2**63), -1, 0, 1, 2**63 - 1)]
    assert keys == sorted(keys)


def test_apply_affinity_returns_the_value_that_a_column_stores() -> None:
    types = {"A": "BLOB", "B": "TEXT", "C": "NUMERIC", "D": "INTEGER", "E": "REAL"}
    values = [None, 1, 1.0, 1.5, "1", " 1 ", "1.0", "1e3", "0x10", "abc", "9223372036854775808", b"1", 2**53 + 1, 1e300]
    for (letter, declared), value in itertools.product(types.items(), values):
        _db.execute(f"CREATE TEMP TABLE stored(x {declared})")
        stored = _db.execute("INSERT INTO stored VALUES (?) RETURNING x", (value,)).fetchall()[0][0]
        found = apply_affinity(value, letter)
        assert (type(found), found) == (type(stored), stored), (letter, value)
        _db.execute("DROP TABLE temp.stored")


def test_values_are_converted_in_several_threads_at_once() -> None:
    """Requests run in several, and an apsw connection refuses a second thread."""
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda number: [apply_affinity(f"{number}.0", "D") for _ in range(300)], range(8)))
    assert found == [[number] * 300 for number in range(8)]


def test_connection_for_conversions_outlives_the_thread_that_used_it() -> None:
    """If the connection ended in a forked child, before any hook, it would wait there for a lock of SQLite for ever."""
    used: list[weakref.ref[apsw.Connection]] = []

    def convert() -> None:
        before = set(map(id, apsw.connections()))
        assert apply_affinity("7", "D") == 7
        used.extend(weakref.ref(one) for one in apsw.connections() if id(one) not in before)

    key_encoding._converters.clear()
    thread = threading.Thread(target=convert)
    thread.start()
    thread.join()
    gc.collect()
    assert len(used) == 1
    assert used[0]() is not None
    assert apply_affinity("8", "D") == 8
