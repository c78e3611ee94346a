"""Rows by column: they are read as they were, hostile blocks are refused, and clients that do not ask get lists."""

import math
import struct
from typing import Any

import cbor2
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from bedrockish.api import column_blocks
from bedrockish.api.column_blocks import BLOCK_ROWS_MAX, LONG_BYTES, ROWS_MIN, ROWS_STEP, Blocks
from bedrockish.api.large_results import LARGE_BYTES, encode_in_steps
from bedrockish.api.requests import Answer, Request, Result, Statement, Token, decode_results, encode_results, rows_of
from bedrockish.api.wire import BY_COLUMN, Answered, Execute, decode_reply, encode_call
from bedrockish.errors import ProtocolMismatchError
from bedrockish_net.events import Hello
from bedrockish_net.handshake import dial_on
from bedrockish_net.limits import LinkLimits
from bedrockish_net.stream import Link
from tests.client.scripted import ScriptedNode, serve_scripted
from tests.net.links import accept_link

INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(-(1 << 31), (1 << 31) - 1)
FLOATS = st.one_of(st.floats(allow_nan=False), st.sampled_from([0.0, -0.0, math.inf, -math.inf]))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
KINDS = (INTEGERS, SMALL, FLOATS, TEXTS, st.binary(max_size=5), st.none())
COLUMNS = st.sampled_from([*KINDS, st.one_of(*KINDS), st.one_of(SMALL, FLOATS), st.one_of(TEXTS, st.none())])
FOREIGN = st.recursive(
    st.one_of(*KINDS), lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXTS, inner)), max_leaves=20
)
NUMBERS = [(number,) for number in range(ROWS_MIN)]


def exact(rows: list[tuple[Any, ...]]) -> list[list[tuple[type, Any]]]:
    """Return rows in a form that is equal only for the same types and bits."""
    return [[(type(v), struct.pack("d", v) if isinstance(v, float) else v) for v in row] for row in rows]


def by_column(result: Result, size: int = 0) -> bytes:
    encoded = encode_in_steps([result], size, by_column=True)
    assert len(cbor2.loads(encoded)[0]) == 5
    return encoded


@settings(deadline=None)
@given(st.data(), st.lists(COLUMNS, min_size=1, max_size=5), st.integers(ROWS_MIN, 3 * ROWS_MIN))
def test_encoded_rows_are_decoded_unchanged(data: st.DataObject, columns: list[Any], count: int) -> None:
    few = data.draw(st.lists(st.tuples(*columns), min_size=1, max_size=20))
    rows = [few[number % len(few)] for number in range(count)]
    names = tuple(f"c{place}" for place in range(len(columns)))
    made = by_column(Result(names, rows, -1, 7))
    found = decode_results(made)[0]
    assert (found.columns, found.rowcount, found.lastrowid) == (names, -1, 7)
    assert exact(found.rows) == exact(rows)
    assert exact(rows_of(Answer(made, Token()), 1)[0].rows) == exact(rows)


@pytest.mark.parametrize(
    "edge",
    [
        None,
        "",
        "\0",
        "a\0b",
        "ß\U0001f600",
        b"",
        b"\0",
        0,
        -0.0,
        math.inf,
        5e-324,
        (1 << 31) - 1,
        1 << 31,
        -(1 << 31) - 1,
        -(1 << 63),
    ],
)
@pytest.mark.parametrize("others", ["text", 7, 1 << 40, 0.5, b"blob", None, ""])
def test_value_of_another_type_in_a_column_is_decoded_unchanged(edge: Any, others: Any) -> None:
    for place in (0, 70, ROWS_STEP + 1):
        rows = [(others,)] * (ROWS_STEP + 2)
        rows[place] = (edge,)
        assert exact(decode_results(by_column(Result(("a",), rows)))[0].rows) == exact(rows)


@pytest.mark.parametrize("long", ["x" * (LONG_BYTES + 1), "é" * (LONG_BYTES + 1), b"z" * (3 * LONG_BYTES)])
@pytest.mark.parametrize("known", [True, False])
def test_long_value_is_in_a_block_of_its_own(long: Any, known: bool) -> None:
    rows: list[tuple[Any, ...]] = [(number, "short", None) for number in range(1_000)]
    rows[500] = (500, long, 1.5)
    encoded = by_column(Result(("a", "b", "c"), rows), 2 * LARGE_BYTES if known else LONG_BYTES + 1)
    assert exact(decode_results(encoded)[0].rows) == exact(rows)
    blocks = cbor2.loads(encoded)[0][1]
    assert [block for block in blocks if block[0] == 1 and block[2] == [long]]
    for block in blocks:
        assert block[0] == 1 or sum(map(len, block[2])) <= LONG_BYTES


def test_blocks_of_wide_rows_have_a_bounded_number_of_values() -> None:
    rows = [tuple(range(1_000)) for _ in range(200)]
    encoded = by_column(Result(tuple(map(str, range(1_000))), rows))
    assert decode_results(encoded)[0].rows == rows
    assert all(block[0] * 1_000 <= column_blocks.VALUES_STEP for block in cbor2.loads(encoded)[0][1])


def test_short_results_and_results_without_rows_stay_lists() -> None:
    few = [Result(("a",), [(1,)] * (ROWS_MIN - 1)), Result((), [], 3, 4), Result(("a",), [])]
    assert encode_in_steps(few, 100, by_column=True) == encode_results(few)
    mixed = [*few, Result(("a",), [(1,)] * ROWS_MIN)]
    encoded = encode_in_steps(mixed, 100, by_column=True)
    assert [len(one) for one in cbor2.loads(encoded)] == [4, 4, 4, 5]
    assert decode_results(encoded) == mixed


def test_rows_packed_in_blocks_come_before_the_unpacked_rows() -> None:
    blocks = Blocks()
    blocks.add(NUMBERS[:10], 100)
    blocks.add(NUMBERS[10:20], 100)
    encoded = encode_in_steps([Result(("n",), NUMBERS[20:], -1, None, blocks)], 100, by_column=True)
    assert decode_results(encoded)[0].rows == NUMBERS


def packed(*blocks: object, count: object = 2, columns: object = ("a",)) -> bytes:
    return cbor2.dumps([[columns, list(blocks), -1, None, count]])


NUMBERED = b"i" + struct.pack("<ii", 1, -2)


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        (NUMBERED, [(1,), (-2,)]),
        (b"q" + struct.pack("<qq", 1, -(1 << 63)), [(1,), (-(1 << 63),)]),
        (b"d" + struct.pack("<dd", 0.5, -0.0), [(0.5,), (-0.0,)]),
        ("\0", [("",), ("",)]),
        ([None, "x"], [(None,), ("x",)]),
    ],
)
def test_columns_in_each_documented_form_are_decoded(column: object, rows: list[Any]) -> None:
    assert exact(decode_results(packed([2, column]))[0].rows) == exact(rows)
    assert decode_results(packed([2, column], [2, column], count=4))[0].rows == rows * 2


@pytest.mark.parametrize(
    "data",
    [
        packed(count=1),
        packed([2, NUMBERED], count=3),
        packed([2, NUMBERED], count="2"),
        packed([2, NUMBERED], count=None),
        packed([2]),
        packed([2, NUMBERED, NUMBERED]),
        packed([]),
        packed(NUMBERED),
        packed([1, NUMBERED], count=1),
        packed([3, NUMBERED], count=3),
        packed([2, NUMBERED[:-1]]),
        packed([2, b""]),
        packed([2, b"x" + bytes(8)]),
        packed([2, b"q" + bytes(8)]),
        packed([0, b"i"], count=0),
        packed([-1, b"i"], count=0),
        packed([True, b"i1234"], count=1),
        packed([BLOCK_ROWS_MAX + 1, b"i" + bytes(4 * (BLOCK_ROWS_MAX + 1))], count=BLOCK_ROWS_MAX + 1),
        packed([1 << 40, "\0"], count=1 << 40),
        packed([2, "x"]),
        packed([2, "\0\0"]),
        packed([2, [1]]),
        packed([2, None]),
        packed([2, {"a": 1}]),
        packed([1], count=1, columns=()),
        packed([2, NUMBERED], columns="a"),
        packed([2, NUMBERED], columns=None),
        cbor2.dumps([[("a",), {"a": 1}, -1, None, 2]]),
        cbor2.dumps([[("a",), [[2, NUMBERED]], -1, None, 2, 3]]),
        cbor2.dumps([[("a",), [[2, NUMBERED]], -1, None, 2], [("a",), [1], -1, None]]),
        cbor2.dumps([[("a",), [[2, NUMBERED]], -1, None, 2], 7]),
    ],
)
def test_malformed_blocks_raise_a_typed_error_at_the_client(data: bytes) -> None:
    with pytest.raises(ProtocolMismatchError, match="bytes that are not results"):
        rows_of(Answer(data, Token()))


@settings(deadline=None)
@given(st.lists(FOREIGN, max_size=4), FOREIGN)
def test_random_blocks_are_rows_or_raise_the_typed_error(blocks: list[Any], count: Any) -> None:
    try:
        found = rows_of(Answer(cbor2.dumps([[["a", "b"], blocks, -1, None, count]]), Token()))
    except ProtocolMismatchError:
        return
    assert all(len(row) == 2 for row in found[0].rows)


@pytest.mark.parametrize(("info", "asked"), [({}, False), ({BY_COLUMN: True}, True), ({BY_COLUMN: 1}, False)])
async def test_only_a_client_that_asks_gets_rows_by_column(info: dict[str, Any], asked: bool) -> None:
    node = ScriptedNode()

    async def read(request: Request) -> Answer:
        return Answer(encode_in_steps([Result(("n",), NUMBERS)], 100, by_column=request.by_column), Token())

    node.script = [read]
    ours, theirs = trio.testing.memory_stream_pair()

    async def serve() -> None:
        link = await accept_link(theirs, Hello("A", "c"))
        async with trio.open_nursery() as inner:
            inner.start_soon(link.run)
            await serve_scripted(link, node)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            link = Link(ours, await dial_on(ours, Hello("me", None, "client", info=info), LinkLimits()), LinkLimits())
            nursery.start_soon(link.run)
            link.send_nowait(encode_call(Execute(1, Request("c", (Statement("SELECT n FROM t"),)))))
            reply = decode_reply(await link.receive())
            nursery.cancel_scope.cancel()
    assert isinstance(reply, Answered)
    assert len(cbor2.loads(reply.answer.results)[0]) == (5 if asked else 4)
    assert decode_results(reply.answer.results)[0].rows == NUMBERS
