"""Calls on the wire, and time limits of long work."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest

from bedrockish import errors
from bedrockish.api.requests import SNAPSHOT, STALE, Request, Statement, Token, check_params
from bedrockish.api.wire import COMMIT, Execute, Step, decode_call, encode_call
from bedrockish.client.sansio.retry import only_reads
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.state.settings import Settings
from bedrockish.engine.statements import clock_functions
from bedrockish.errors import UsageError, pack_error, unpack_error


@pytest.mark.parametrize("longest_s", [0.0, 28.5])
@pytest.mark.parametrize("trace", ["", f"00-{'a' * 32}-{'b' * 16}-01"])
@pytest.mark.parametrize("token", [Token(), Token({"A": 7}, 1 << 60)])
def test_call_is_encoded_like_a_map_of_its_fields(longest_s: float, trace: str, token: Token) -> None:
    """The client assembles the bytes by hand; compare them with the encoder's bytes of the same map."""
    many = tuple(Statement(f"SELECT {number}") for number in range(24))
    for statements in (
        (),
        (Statement("é", [1, "a", None, b"x", -2.5]), Statement("b", {"n": 1}), Statement("c")),
        many,
    ):
        request = Request("c1", statements, STALE, SNAPSHOT, token, 5.0, longest_s=longest_s, trace=trace)
        for op, made in (("execute", Execute(300, request)), (COMMIT, Step(300, request, COMMIT))):
            packed = encode_call(made)
            assert packed == cbor2.dumps(
                {
                    "id": 300,
                    "op": op,
                    "command": "c1",
                    "read": "stale",
                    "isolation": "snapshot",
                    "token": token.encode() if token.clock else None,
                    "timeout": 5.0,
                    "statements": [[one.sql, one.params] for one in statements],
                    **({"longest": longest_s} if longest_s else {}),
                    **({"traceparent": trace} if trace else {}),
                }
            )


def test_text_that_is_not_unicode_is_refused_before_it_is_sent() -> None:
    for request in (
        Request("c1", (Statement("\ud800"),)),
        Request("c1", (Statement("?", ["\ud800"]),)),
        Request("\ud800", ()),
    ):
        with pytest.raises(UsageError, match="cannot be sent"):
            encode_call(Execute(7, request))


def test_an_integer_of_many_digits_is_refused() -> None:
    with pytest.raises(UsageError, match="integer of 16610 bits"):
        check_params([10**5000])


def test_only_reads_is_true_for_a_select() -> None:
    assert only_reads(Request("c1", (Statement("SELECT 1"),)))
    assert not only_reads(Request("c1", (Statement("DELETE FROM t"),)))


class Timers:
    """Records the timers that are set."""

    def __init__(self) -> None:
        self.noted = list[tuple[float, str, object]]()

    def set(self, after_ms: float, name: str, subject: object = None) -> None:
        self.noted.append((after_ms, name, subject))


def test_executing_request_may_use_the_whole_timeout_of_its_client() -> None:
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
    for stage, other in ((Stage.VOTING, request), (Stage.EXECUTING, replace(request, longest_s=0.0))):
        assert not InFlight(5, other, 12.5, stage=stage).extend(state)
    assert decode_call(encode_call(Execute(1, request))) == Execute(1, request)


def test_an_error_of_a_node_has_the_class_of_its_code() -> None:
    """A code stands for its public class, not for an internal subclass, which a program on a node's file has, too."""
    assert clock_functions.ClockNeededError.code == UsageError.code
    classes = [
        cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.BedrockishError)
    ]
    assert [type(unpack_error(pack_error(cls("why")))) for cls in classes] == classes
