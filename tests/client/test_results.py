"""Results as bytes: those of statements without rows are written in a shorter way, and are the same."""

import cbor2
import pytest

from bedrockish.api.requests import Answer, Result, Token, decode_results, encode_results
from bedrockish.api.wire import LONG_BYTES, Answered, decode_reply, encode_reply


@pytest.mark.parametrize("rowcount", [-1, 0, 1, 23, 24, 100_000])
@pytest.mark.parametrize("lastrowid", [None, 1, -7, 2**63 - 1])
def test_one_statement_without_rows(rowcount: int, lastrowid: int | None) -> None:
    one = Result((), [], rowcount, lastrowid)
    assert encode_results([one]) == cbor2.dumps([[[], [], rowcount, lastrowid]])
    assert decode_results(encode_results([one])) == [one]


def test_other_results_are_encoded_as_they_are() -> None:
    for results in (
        [],
        [Result(("a",), [])],
        [Result(("a",), [(1,)], 1, 2)],
        [Result((), [(1,)])],
        [Result((), []), Result((), [])],
    ):
        assert decode_results(encode_results(results)) == results


@pytest.mark.parametrize("size", [0, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 1 << 20])
@pytest.mark.parametrize("more", [False, True])
def test_a_long_answer_is_encoded_without_copies_and_is_the_same(size: int, more: bool) -> None:
    answer = Answer(bytes(size), Token({"A": 3}, 7), ("A", 3), 2, more)
    packed = encode_reply(Answered(5, answer))
    assert decode_reply(packed) == Answered(5, answer)
    plain = {"id": 5, "ok": True, "results": bytes(size), "token": answer.token.encode(), "place": ["A", 3]}
    assert cbor2.loads(packed) == {**plain, "attempts": 2, **({"more": True} if more else {})}
