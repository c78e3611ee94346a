"""A client's session at a node: back-pressure, clients that go away, replies that are too long."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from bedrockish.api.requests import NOTHING, Answer, Request, Statement, Token
from bedrockish.api.wire import (
    BEGIN,
    CANCEL,
    CLOSE,
    COMMIT,
    EXPLAIN,
    ROLLBACK,
    STATEMENTS,
    STREAM,
    Ask,
    Execute,
    Failed,
    Step,
    decode_reply,
    encode_call,
)
from bedrockish.errors import OutcomeUnknownError, TooLargeError
from bedrockish.node import client_session
from bedrockish.node.transactions import steps
from bedrockish_net.events import Hello
from bedrockish_net.handshake import dial_on
from bedrockish_net.limits import LinkLimits
from bedrockish_net.stream import Link
from tests.client.scripted import ScriptedNode, answer, serve_scripted
from tests.net.links import accept_link

SMALL = LinkLimits(hello_bytes_max=1024, frame_bytes_max=1 << 16)


def call(number: int) -> bytes:
    return encode_call(Execute(number, Request(f"c{number}", (Statement("INSERT INTO t VALUES (1)"),))))


@asynccontextmanager
async def session(node: ScriptedNode) -> AsyncIterator[tuple[Link, trio.Event]]:
    """Yield a client's link to the node, and an event that is set when the node's session has ended."""
    over = trio.Event()
    ours, theirs = trio.testing.memory_stream_pair()
    links: list[Link] = []

    async def accept() -> None:
        links.append(await accept_link(theirs, Hello("A", "c"), limits=SMALL))

    async def serve() -> None:
        await serve_scripted(links[0], node)
        over.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            link = Link(ours, await dial_on(ours, Hello("me", None, "client"), SMALL), SMALL)
            nursery.start_soon(link.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(links[0].run)
            nursery.start_soon(serve)
            yield link, over
            nursery.cancel_scope.cancel()


async def test_no_more_calls_are_taken_than_may_run_at_once() -> None:
    release = trio.Event()
    node = ScriptedNode(in_flight_max=3)

    async def wait(request: Request) -> Answer:
        await release.wait()
        return answer((1,))

    node.script = [wait]
    async with session(node) as (link, _):
        for number in range(1, 11):
            link.send_nowait(call(number))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(node.requests) == 3
        release.set()
        answered: set[int] = set()
        while len(answered) < 10:
            answered.add(decode_reply(await link.receive()).id)
    assert answered == set(range(1, 11))


async def test_cancellations_whose_answers_are_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They pass the limit of calls, which they may free, and each waits in a task until its answer has room."""
    cancelled: list[object] = []
    reads = trio.Event()
    node = ScriptedNode(in_flight_max=2)
    node.cancel = lambda _owner, command: cancelled.append(command)  # type: ignore[attr-defined]

    async def wait(_: Request) -> Answer:
        await reads.wait()
        return answer((1,))

    async def until_read(*_: object) -> None:
        await reads.wait()

    node.script = [wait]
    monkeypatch.setattr(Link, "wait_for_room", until_read)
    async with session(node) as (link, _):
        for number in range(1, 3):
            link.send_nowait(call(number))
        for number in range(3, 13):
            link.send_nowait(encode_call(Ask(number, CANCEL, asked={"command": f"c{number}"})))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert cancelled == ["c3", "c4"]
        reads.set()
        answered = {decode_reply(await link.receive()).id for _ in range(12)}
    assert answered == set(range(1, 13))
    assert len(cancelled) == 10


async def test_calls_cancelled_before_their_tasks_run_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls and their cancellations arrive together; each call would otherwise run to its time limit."""
    monkeypatch.setattr(client_session, "AT_ONCE_S", -1.0)  # each step has a task
    noting, node = _Noting(), ScriptedNode()
    node.transactions, node.cancel = noting, lambda *_: None  # type: ignore[attr-defined]
    one = (Statement("SELECT 1"),)
    async with session(node) as (link, _):
        calls: tuple[Step | Ask, ...] = (
            Step(1, Request("tx", one), STATEMENTS),
            Ask(2, EXPLAIN, one[0]),
            Step(3, Request("other", one), STATEMENTS),
            *(Ask(number, CANCEL, asked={"command": "tx"}) for number in (4, 5)),
            Ask(6, CANCEL, asked={"call": 2}),
        )
        link.send_many_nowait(encode_call(one) for one in calls)
        found = {reply.id: reply for reply in [decode_reply(await link.receive()) for _ in calls]}
    for number in (1, 2):
        reply = found[number]
        assert isinstance(reply, Failed)
        assert "was cancelled by its caller" in reply.error.message
    assert noting.cancelled == ["tx"]
    assert noting.seen == [(STATEMENTS, "other")]


async def test_command_of_a_disconnected_client_runs_to_its_end() -> None:
    release, ended = trio.Event(), trio.Event()
    node = ScriptedNode()

    async def wait(request: Request) -> Answer:
        await release.wait()
        ended.set()
        return answer((1,))

    node.script = [wait]
    async with session(node) as (link, over):
        link.send_nowait(call(1))
        await trio.testing.wait_all_tasks_blocked(0.01)
        await link.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await over.wait()
        assert not ended.is_set()
        release.set()
        await ended.wait()


async def test_error_for_a_result_longer_than_a_frame_tells_whether_it_was_committed() -> None:
    node = ScriptedNode()

    async def read(request: Request) -> Answer:
        return Answer(bytes(70_000), Token())

    async def write(request: Request) -> Answer:
        return Answer(bytes(70_000), Token(), ("A", 3))

    node.script = [read, write]
    async with session(node) as (link, _):
        for number, expected in ((1, TooLargeError), (2, OutcomeUnknownError)):
            await link.send(call(number))
            reply = decode_reply(await link.receive())
            assert isinstance(reply, Failed)
            assert (reply.id, type(reply.error)) == (number, expected)
        await link.send(encode_call(Ask(3, "ping")))
        assert decode_reply(await link.receive()).id == 3


class _Noting:
    """Records the requests for transactions in the order in which they begin."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.cancelled: list[object] = []  # the transactions whose waiting statements were cancelled

    def cancel(self, _owner: object, name: object, *, waits: bool) -> None:
        assert waits
        self.cancelled.append(name)

    def begin(self, _owner: object, op: str, request: Request) -> Answer | steps.RemainingSteps[Answer]:
        async def rest() -> Answer:
            self.seen.append((op, request.command))
            await trio.lowlevel.checkpoint()
            return Answer(NOTHING, Token())

        return steps.begin(steps.wait(rest))

    async def columns(self, owner: object, command: str, statement: Statement) -> list[dict[str, Any]]:
        raise AssertionError(f"{owner} asks for the columns of {statement} in {command}")

    def interrupt_owner(self, _owner: object) -> None:
        """Do nothing: no transaction runs a statement."""

    def end_owner(self, _owner: object) -> None:
        """Do nothing: the client has gone."""


async def test_server_closes_a_stream_only_after_it_has_opened_it() -> None:
    """A client that gives up a stream or a transaction at once sends its begin and its end in one packet."""
    noting = _Noting()
    asked = []
    async with session(ScriptedNode(transactions=noting)) as (link, _):
        for turn in range(30):
            sql = (Statement("SELECT 1"),)
            both = [(STREAM, sql), (CLOSE, ())] if turn % 2 else [(BEGIN, ()), (ROLLBACK, ())]
            for number, (op, statements) in enumerate(both):
                asked.append((op, f"c{turn}"))
                link.send_nowait(encode_call(Step(2 * turn + number + 1, Request(f"c{turn}", statements), op)))
            await trio.testing.wait_all_tasks_blocked(0.001)
    assert noting.seen == asked


class _AtOnce:
    """Answers each step in the reading task, until a step has to wait."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.go_on = trio.Event()

    def begin(self, _owner: object, op: str, request: Request) -> Answer | steps.RemainingSteps[Answer]:
        self.seen.append(request.command)
        if op != COMMIT:
            return Answer(NOTHING, Token())

        async def rest() -> Answer:
            await self.go_on.wait()
            return Answer(NOTHING, Token())

        return steps.begin(steps.wait(rest))

    async def columns(self, owner: object, command: str, statement: Statement) -> list[dict[str, Any]]:
        raise AssertionError(f"{owner} asks for the columns of {statement} in {command}")

    def interrupt_owner(self, _owner: object) -> None:
        """Do nothing: no transaction runs a statement."""

    def end_owner(self, _owner: object) -> None:
        """Do nothing: the client has gone."""


async def test_thousand_immediate_steps_of_a_link_do_not_recurse() -> None:
    """A step answered within its read starts the next one; a thousand of them do not recurse a thousand deep."""
    at_once, count = _AtOnce(), 1_500
    async with session(ScriptedNode(transactions=at_once, in_flight_max=2)) as (link, _):
        link.send_many_nowait(encode_call(Step(n + 1, Request(f"c{n}", ()), ROLLBACK)) for n in range(count))
        found: list[int] = []
        while len(found) < count:
            found.append(decode_reply(await link.receive()).id)
    assert sorted(found) == [n + 1 for n in range(count)]
    assert at_once.seen == [f"c{n}" for n in range(count)]


async def test_step_that_waits_does_not_delay_other_calls() -> None:
    at_once = _AtOnce()
    async with session(ScriptedNode(transactions=at_once)) as (link, _):
        link.send_nowait(encode_call(Step(1, Request("slow", ()), COMMIT)))
        link.send_nowait(encode_call(Step(2, Request("quick", ()), ROLLBACK)))
        assert decode_reply(await link.receive()).id == 2
        at_once.go_on.set()
        assert decode_reply(await link.receive()).id == 1


async def test_steps_of_a_long_read_take_turns_with_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node executes the steps of one read in place for a moment only; the others become tasks and take turns."""
    at_once = _AtOnce()
    monkeypatch.setattr(client_session, "AT_ONCE_S", -1.0)
    taken: list[int] = []  # no step has begun yet when all are read
    read = client_session._Session.begin_calls

    def take(self: client_session._Session, payloads: list[bytes]) -> None:
        read(self, payloads)
        taken.append(len(at_once.seen))

    monkeypatch.setattr(client_session._Session, "begin_calls", take)
    async with session(ScriptedNode(transactions=at_once)) as (link, _):
        link.send_many_nowait(encode_call(Step(n + 1, Request(f"c{n}", ()), ROLLBACK)) for n in range(5))
        found: list[int] = []
        while len(found) < 5:
            found.append(decode_reply(await link.receive()).id)
    assert at_once.seen == [f"c{n}" for n in range(5)]
    assert taken[0] == 0
