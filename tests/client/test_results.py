"""Results, tokens and answers as bytes: the hand-written encoding equals that of the encoder."""

from typing import Any

import cbor2
import pytest

from bedrockish.api.large_results import LARGE_BYTES, STEP_BYTES, _parts, encode_in_steps
from bedrockish.api.requests import (
    NAMES_CHARACTERS_MAX,
    Answer,
    Result,
    Token,
    check_params,
    decode_results,
    decode_token,
    encode_results,
    rows_of,
)
from bedrockish.api.wire import Answered, decode_reply, encode_reply, encode_reply_parts
from bedrockish.errors import ProtocolMismatchError, UsageError

EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1]
"""Numbers about which CBOR takes a byte more."""


@pytest.mark.parametrize("rowcount", [-1, 0, 1, 23, 24, 100_000])
@pytest.mark.parametrize("lastrowid", [None, 1, -7, 2**63 - 1])
def test_result_without_rows_is_encoded_and_decoded(rowcount: int, lastrowid: int | None) -> None:
    one = Result((), [], rowcount, lastrowid)
    assert encode_results([one]) == cbor2.dumps([[[], [], rowcount, lastrowid]])
    assert decode_results(encode_results([one])) == [one]


def test_results_are_encoded_as_the_cbor_of_their_lists() -> None:
    long = "n" * NAMES_CHARACTERS_MAX
    for results in (
        [],
        [Result(("a",), [])],
        [Result(("a",), [(1,)], 1, 2)],
        [Result(("a", "é", ""), [(1, None, "é"), (-1.5, b"", "x" * 300)], -1, None)],
        [Result((long,), [(1,)])],
        [Result((long, "b"), [(1, 2)])],
        [Result(tuple("abcdefghijklmnopqrstuvwxyz"), [tuple(range(26))] * 30, 30, 1 << 40)],
        [Result((), [(1,)])],
        [Result((), []), Result((), [])],
    ):
        made = encode_results(results)
        assert made == cbor2.dumps([[one.columns, one.rows, one.rowcount, one.lastrowid] for one in results])
        assert decode_results(made) == results


@pytest.mark.parametrize("clock", EDGES)
def test_token_is_encoded_like_a_map_of_its_fields(clock: int) -> None:
    for vector in ({}, {"A": 1}, {"A": clock or 1, "node-é": 7}):
        made = Token(vector, clock).encode()
        assert made == cbor2.dumps([vector, clock])
        assert decode_token(made) == Token(vector, clock)


def test_tokens_of_different_vectors_differ() -> None:
    vector = {"A": 1}
    first = Token(vector, 7).encode()
    vector["A"] = 2
    assert decode_token(Token(vector, 7).encode()).vector == {"A": 2}
    assert decode_token(first).vector == {"A": 1}


@pytest.mark.parametrize("number", [one for one in EDGES if 0 < one < 1 << 63])
@pytest.mark.parametrize("size", [0, 23, 24, 255, 256, 65_535, 65_536, 1 << 20])
@pytest.mark.parametrize("more", [False, True])
def test_answer_is_encoded_like_a_map_of_its_fields(number: int, size: int, more: bool) -> None:
    for place in (None, ("A", 3)):
        answer = Answer(bytes(size), Token({"A": 3}, 7), place, number, more)
        packed = encode_reply(Answered(number, answer))
        assert decode_reply(packed) == Answered(number, answer)
        plain = {"id": number, "ok": True, "results": bytes(size), "token": answer.token.encode(), "place": place}
        assert packed == cbor2.dumps({**plain, "attempts": number, **({"more": True} if more else {})})
        assert b"".join(encode_reply_parts(Answered(number, answer))) == packed


def test_every_parameter_of_a_request_is_checked() -> None:
    given = [1, "a", None, 0.5, b"x", -(1 << 63), (1 << 63) - 1]
    checked = check_params(given)
    assert checked == given
    assert checked is not given
    assert check_params((*given, True, bytearray(b"y"))) == [*given, 1, b"y"]
    assert [type(one) for one in check_params([True])] == [int]  # type: ignore[union-attr]
    for wrong in (1 << 63, -(1 << 63) - 1, object(), [1]):
        with pytest.raises(UsageError, match="parameter 8 is"):
            check_params([*given, wrong])


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [("x" * 3_000_000, b"y" * 2_000_000, None, 1.5)],
        [(n, "ä" * n, b"\x00" * (n % 7), None, -n, 0.5) for n in range(3_000)],
        [("é" * 700_000, 7), *((f"short {n}", n) for n in range(1_000)), (b"z" * 700_000, None)],
    ],
)
def test_results_encoded_in_steps_are_read_as_those_encoded_at_once(rows: list[tuple[Any, ...]]) -> None:
    results = [Result(("a", "b"), rows, -1, 7), Result((), [], 3, None)]
    size = sum(len(value) if isinstance(value, str | bytes) else 8 for row in rows for value in row)
    encoded = encode_in_steps(results, max(size, LARGE_BYTES))
    assert decode_results(encoded) == results
    assert cbor2.loads(encoded) == cbor2.loads(encode_results(results))


@pytest.mark.parametrize("count", [0, 1, 2, 23, 24, 255, 256, 70_000])
def test_results_of_many_statements_equal_the_encoders(count: int) -> None:
    kinds = [
        Result((), [], 1, 7),
        Result(("a", "b"), [(1, "x"), (None, b"y")], -1, None),
        Result(("x" * (NAMES_CHARACTERS_MAX + 1),), [], 700, 1 << 40),
    ]
    results = [kinds[place % 3] for place in range(count)]
    assert encode_results(results) == cbor2.dumps([[r.columns, r.rows, r.rowcount, r.lastrowid] for r in results])
    assert decode_results(encode_results(results)) == results


@pytest.mark.parametrize(
    "rows", [[1], "text", {"a": 1}, [(1,), 2], None], ids=["a number", "a text", "a map", "a row and a number", "null"]
)
def test_rows_that_are_not_lists_are_refused(rows: object) -> None:
    made = cbor2.dumps([[["a"], rows, -1, None]])
    with pytest.raises(UsageError, match="not results"):
        decode_results(made)
    with pytest.raises(ProtocolMismatchError, match="not results"):
        rows_of(Answer(made, Token()))


@pytest.mark.parametrize("long", ["x" * STEP_BYTES, bytes(STEP_BYTES)])
@pytest.mark.parametrize("others", [[1, None], ["short", "text"], [b"", None]])
def test_long_value_is_encoded_in_a_part_of_its_own(long: str | bytes, others: list[Any]) -> None:
    rows = [(one, "y") for one in (*others, long, *others)] * 8
    results = [Result(("a", "b"), rows)]
    parts = list(_parts(results, 255))
    assert max(map(len, parts)) == STEP_BYTES, "a step holds the interpreter for one value"
    assert decode_results(b"".join(parts)) == results


@pytest.mark.parametrize("value", [[1, [2, {"a": [3]}]], {"a": {"b": [1]}}, [], {}, True, "text", None])
def test_value_with_lists_and_maps_is_equal_after_encoding_and_decoding(value: Any) -> None:
    made = encode_results([Result(("value",), [(value,)])])
    for found in (decode_results(made), rows_of(Answer(made, Token()))):
        assert found[0].rows == [(value,)]
        assert type(found[0].rows[0][0]) is type(value)
