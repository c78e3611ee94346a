"""Transactions that programs have executed are merged into one unless they conflict."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from bedrockish.api.requests import Request, digest_of
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution import merging
from bedrockish.engine.execution.merging import merge
from bedrockish.errors import UsageError
from bedrockish_journal.model.access_set import AccessSet, Range
from bedrockish_journal.model.transaction import ROWS, SCHEMA

BASE = {"A": 7}


def keys(text: str) -> frozenset[bytes]:
    return frozenset(one.encode() for one in text)


def part(
    reads: str = "", writes: str = "", *, read_ranges: tuple[Range, ...] = (), write_ranges: tuple[Range, ...] = ()
) -> Prepared:
    access_set = AccessSet(keys(reads), read_ranges, keys(writes), write_ranges)
    return Prepared(dict(BASE), 3, False, ROWS, access_set, writes.encode(), b"result of " + writes.encode())


def asked(command: str, user: str = "") -> Request:
    return Request(command, (), user=user)


def join(each: Sequence[bytes]) -> tuple[bytes, tuple[int, ...]]:
    return b"".join(each), tuple(map(len, each))


def _same(one: Prepared) -> Prepared:
    return one


def merged(*parts: Prepared, move_up: Callable[[str, Prepared], Prepared | None] = lambda _, one: one) -> Prepared:
    first, *others = [(asked(f"c{number}"), one) for number, one in enumerate(parts)]
    return merge(first, [(request, partial(_same, one)) for request, one in others], move_up, join)


def names(prepared: Prepared) -> list[str]:
    return [command for command, _ in prepared.joined]


def test_merged_transaction_has_the_keys_changes_and_results_of_all() -> None:
    found = merged(part("ab", "a"), part("bc", "cd", read_ranges=((b"x", b"y"),)), part(writes="e"))
    assert names(found) == ["c1", "c2"]
    assert found.access_set == AccessSet(keys("abc"), ((b"x", b"y"),), keys("acde"), ())
    assert (found.changes, found.shares) == (b"acde", (1, 2, 1))
    assert (found.result, dict(found.joined)) == (b"result of a", {"c1": b"result of cd", "c2": b"result of e"})
    assert found.digests == tuple(digest_of(asked(f"c{number}")) for number in range(3))
    assert (found.base, found.schema, found.users) == (BASE, 3, ())


def test_merged_transaction_lists_a_range_of_several_once() -> None:
    both = merged(part(writes="a", read_ranges=((b"x", b"y"),)), part(writes="b", read_ranges=((b"x", b"y"),)))
    assert (names(both), both.access_set) == (["c1"], AccessSet(keys(""), ((b"x", b"y"),), keys("ab"), ()))


def test_merged_transaction_has_the_user_of_each_command() -> None:
    other = asked("c1", "ann"), lambda: part(writes="b")
    assert merge((asked("c0"), part(writes="a")), [other], lambda _, one: one, join).users == ("", "ann")


def test_merging_leaves_a_lone_transaction_unchanged() -> None:
    alone = part(writes="a")
    assert merged(alone) is alone
    assert merged(alone, part(writes="a")) is alone


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (part(writes="a"), part(writes="a")),
        (part(writes="a"), part("a", "b")),
        (part("a", "b"), part(writes="a")),
        (part(read_ranges=((b"a", b"c"),), writes="x"), part(writes="b")),
        (part(writes="b"), part(read_ranges=((b"a", b"c"),), writes="x")),
        (part(write_ranges=((b"a", b"c"),)), part("b", "x")),
        (part("b", "x"), part(write_ranges=((b"a", b"c"),))),
    ],
)
def test_conflicting_transactions_are_not_merged_and_later_ones_are(first: Prepared, second: Prepared) -> None:
    assert names(merged(first, second, part(writes="z"))) == ["c2"]
    assert names(merged(part(writes="z"), first, second)) == ["c1"]


def test_transactions_that_read_the_same_key_are_merged() -> None:
    assert names(merged(part("k", "a"), part("k", "b"))) == ["c1"]


@pytest.mark.parametrize(
    "one",
    [
        replace(part(), readonly=True, changes=b""),
        replace(part(writes="b"), kind=SCHEMA),
        replace(part(writes="b"), clock=9),
        replace(part(writes="b"), spans=((b"x", b"y"),)),
        replace(part(writes="b"), joined=(("c7", b""),)),
        replace(part(writes="b"), base={"A": 6}),
        replace(part(writes="b"), schema=2),
        replace(part(writes="b"), config=1),
    ],
)
def test_merging_leaves_out_transactions_of_another_kind_or_state(one: Prepared) -> None:
    assert names(merged(part(writes="a"), one, part(writes="z"))) == ["c2"]
    if one.base == BASE and one.schema == 3 and not one.config:
        assert merged(one, part(writes="z")) is one


def test_merging_leaves_out_transactions_that_have_lost() -> None:
    """If the first transaction has lost, it is returned alone, and its program gets the conflict."""
    lost = {"c1"}
    parts = part(writes="a"), part(writes="b"), part(writes="d")
    assert names(merged(*parts, move_up=lambda name, one: None if name in lost else one)) == ["c2"]
    lost.add("c0")
    assert merged(*parts, move_up=lambda name, one: None if name in lost else one) is parts[0]


def test_merged_transaction_has_the_present_base() -> None:
    parts = replace(part(writes="a"), base={"A": 1}), replace(part(writes="b"), base={"A": 5})
    found = merged(*parts, move_up=lambda _, one: replace(one, base={"A": 8}))
    assert (names(found), found.base) == (["c1"], {"A": 8})


def test_merging_leaves_out_a_refused_transaction() -> None:
    def refuse() -> Prepared:
        raise UsageError("its base is not applied")

    others = [(asked("c1"), refuse), (asked("c2"), lambda: part(writes="c"))]
    assert names(merge((asked("c0"), part(writes="a")), others, lambda _, one: one, join)) == ["c2"]


def test_merged_transaction_has_each_command_once() -> None:
    others = [(asked("c0"), lambda: part(writes="b")), (asked("c2"), lambda: part(writes="c"))]
    assert names(merge((asked("c0"), part(writes="a")), others, lambda _, one: one, join)) == ["c2"]


def test_size_of_a_merged_transaction_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = part(writes="a")
    monkeypatch.setattr(merging, "MERGED_BYTES", 2 * (len(one.changes) + len(one.result)))
    assert names(merged(one, part(writes="b"), part(writes="c"))) == ["c1"]
