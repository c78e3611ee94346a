"""Commands that are called by name, on the wire and in the client; and the time of what takes long."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest

from bedrockish.api.requests import DEPTH_MAX, SERIALIZABLE, SESSION, Named, Request, Statement, check_args, plain
from bedrockish.api.wire import Execute, MalformedCallError, decode_call, encode_call
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
def test_a_call_travels(args: Any) -> None:
    request = make_call("c1", "transfer", args, SESSION, SERIALIZABLE, 5.0)
    call = decode_call(encode_call(Execute(7, request)))
    assert call == Execute(7, request)
    assert request.call == Named("transfer", args)


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", ""), ("name", 3), ("name", "x" * 201), ("args", "text"), ("args", [1 << 64]), ("args", {1: 2})],
)
def test_what_is_no_call_is_refused(field: str, value: object) -> None:
    packed = cbor2.loads(encode_call(Execute(7, make_call("c1", "f", [], SESSION, SERIALIZABLE, 5.0))))
    with pytest.raises(MalformedCallError) as caught:
        decode_call(cbor2.dumps({**packed, field: value}))
    assert caught.value.id == 7


def test_arguments_are_plain_values() -> None:
    """Tuples become lists; what only Python knows is refused, and so is what is nested too deeply."""
    assert check_args((1, (2, 3))) == [1, [2, 3]]
    assert check_args(None) == []
    assert plain("x", bytearray(b"a")) == b"a"
    assert check_args(deep(DEPTH_MAX)) == deep(DEPTH_MAX)
    for wrong in (deep(DEPTH_MAX + 2), [{1, 2}], [object()], ["\udc00"], [1 << 63], 5, "ab", b"ab"):
        with pytest.raises(UsageError):
            check_args(wrong)


def test_a_call_may_write() -> None:
    """So it is never sent twice as if it were harmless."""
    assert not only_reads(make_call("c1", "f", [], SESSION, SERIALIZABLE, 5.0))
    assert only_reads(Request("c1", (Statement("SELECT 1"),)))


class Timers:
    """Notes the timers that are set."""

    def __init__(self) -> None:
        self.noted = list[tuple[float, str, object]]()

    def set(self, after_ms: float, name: str, subject: object = None) -> None:
        self.noted.append((after_ms, name, subject))


def test_what_is_at_work_gets_its_whole_time_once() -> None:
    """A client gives the first of several nodes a part of its time; one that executes then is not given up for it."""
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
