"""Commands called by name, on the wire and in the client; and time limits of long work."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest

from bedrockish.api.requests import (
    DEPTH_MAX,
    SERIALIZABLE,
    SESSION,
    SNAPSHOT,
    STALE,
    Named,
    Request,
    Statement,
    Token,
    check_args,
    check_params,
    plain,
)
from bedrockish.api.wire import COMMIT, Execute, MalformedCallError, Step, decode_call, encode_call
from bedrockish.client.request_builder import make_call
from bedrockish.client.sansio.retry import only_reads
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.state.settings import Settings
from bedrockish.errors import UsageError


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize("args", [[], [1, "a", None, 0.5, b"x", True], {"a": [1, {"b": None}]}])
def test_call_survives_encoding(args: Any) -> None:
    request = make_call("c1", "transfer", args, SESSION, SERIALIZABLE, 5.0)
    call = decode_call(encode_call(Execute(7, request)))
    assert call == Execute(7, request)
    assert request.call == Named("transfer", args)


@pytest.mark.parametrize("call", [None, Named("f", [1, {"a": None}]), Named("f", {"a": 0.5})])
@pytest.mark.parametrize("longest_s", [0.0, 28.5])
@pytest.mark.parametrize("trace", ["", f"00-{'a' * 32}-{'b' * 16}-01"])
@pytest.mark.parametrize("token", [Token(), Token({"A": 7}, 1 << 60)])
def test_call_has_the_encoding_of_its_map(call: Named | None, longest_s: float, trace: str, token: Token) -> None:
    """The client assembles the bytes by hand; compare them with the encoder's bytes of the same map."""
    many = tuple(Statement(f"SELECT {number}") for number in range(24))
    for statements in (
        (),
        (Statement("é", [1, "a", None, b"x", -2.5]), Statement("b", {"n": 1}), Statement("c")),
        many,
    ):
        done = statements if call is None else ()
        request = Request("c1", done, STALE, SNAPSHOT, token, 5.0, longest_s=longest_s, call=call, trace=trace)
        for op, made in (("execute", Execute(300, request)), (COMMIT, Step(300, request, COMMIT))):
            packed = encode_call(made)
            assert packed == cbor2.dumps(
                {
                    "id": 300,
                    "op": op if call is None else "call",
                    "command": "c1",
                    "read": "stale",
                    "isolation": "snapshot",
                    "token": token.encode() if token.clock else None,
                    "timeout": 5.0,
                    **({"statements": [[one.sql, one.params] for one in done]} if call is None else {}),
                    **({} if call is None else {"name": call.name, "args": call.args}),
                    **({"longest": longest_s} if longest_s else {}),
                    **({"traceparent": trace} if trace else {}),
                }
            )


def test_a_text_that_is_none_is_refused_before_it_is_sent() -> None:
    for request in (
        Request("c1", (Statement("\ud800"),)),
        Request("c1", (Statement("?", ["\ud800"]),)),
        Request("\ud800", ()),
        Request("c1", (), call=Named("\ud800")),
    ):
        with pytest.raises(UsageError, match="cannot be sent"):
            encode_call(Execute(7, request))


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", ""), ("name", 3), ("name", "x" * 201), ("args", "text"), ("args", [1 << 64]), ("args", {1: 2})],
)
def test_malformed_call_is_refused_with_its_id(field: str, value: object) -> None:
    packed = cbor2.loads(encode_call(Execute(7, make_call("c1", "f", [], SESSION, SERIALIZABLE, 5.0))))
    with pytest.raises(MalformedCallError) as caught:
        decode_call(cbor2.dumps({**packed, field: value}))
    assert caught.value.id == 7


def test_arguments_are_plain_values() -> None:
    """Tuples become lists; values of Python alone are refused, and so are deeply nested ones."""
    for check in (check_args, check_params):
        with pytest.raises(UsageError, match="integer of 16610 bits"):
            check([10**5000])
    assert check_args((1, (2, 3))) == [1, [2, 3]]
    assert check_args(None) == []
    assert plain("x", bytearray(b"a")) == b"a"
    assert check_args(deep(DEPTH_MAX)) == deep(DEPTH_MAX)
    for wrong in (deep(DEPTH_MAX + 2), [{1, 2}], [object()], ["\udc00"], [1 << 63], 5, "ab", b"ab"):
        with pytest.raises(UsageError):
            check_args(wrong)


def test_a_call_may_write() -> None:
    """A call counts as a write, so the client never sends it twice like a read."""
    assert not only_reads(make_call("c1", "f", [], SESSION, SERIALIZABLE, 5.0))
    assert only_reads(Request("c1", (Statement("SELECT 1"),)))


class Timers:
    """Notes the timers that are set."""

    def __init__(self) -> None:
        self.noted = list[tuple[float, str, object]]()

    def set(self, after_ms: float, name: str, subject: object = None) -> None:
        self.noted.append((after_ms, name, subject))


def test_executing_request_keeps_its_whole_time() -> None:
    """A client gives the first of several nodes only a part of its time; a node that executes the request keeps it
    longer.
    """
    request = Request("c1", (Statement("SELECT 1"),), timeout_s=2.5, longest_s=30.0)
    timers = Timers()
    state: Any = SimpleNamespace(settings=Settings(), timers=timers)
    request_id = InFlight(4, request, 12.5, stage=Stage.EXECUTING)
    assert request_id.extend(state)
    assert request_id.deadline == 40.0
    assert timers.noted == [(27_500.0, "request_deadline", 4)]
    assert not request_id.extend(state)
    for stage, other in ((Stage.IN_FLIGHT, request), (Stage.EXECUTING, replace(request, longest_s=0.0))):
        assert not InFlight(5, other, 12.5, stage=stage).extend(state)
    assert decode_call(encode_call(Execute(1, request))) == Execute(1, request)
