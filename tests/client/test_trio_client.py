"""The trio client against scripted nodes on real sockets: the errors that a caller gets."""

from contextlib import suppress
from typing import Any

import cbor2
import pytest
import trio

from bedrockish.api.requests import NOTHING, Answer, Request, Statement, Token, open_token
from bedrockish.api.wire import SETTLE, Failed, Told, decode_reply
from bedrockish.client.trio_client import open_client
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    DeadlineError,
    OutcomeUnknownError,
    ProtocolMismatchError,
    SqlError,
    UnavailableError,
    UsageError,
)
from bedrockish_net.errors import LinkClosedError
from bedrockish_net.events import Hello
from bedrockish_net.read_loop import ReadLoop, loop_of_clients
from bedrockish_net.stream import Link
from tests.client.scripted import ScriptedNode, answer, running
from tests.net.links import dial_link

WRITE = "INSERT INTO t VALUES (1)"


async def test_execute_returns_rows_with_their_place() -> None:
    async with running(ScriptedNode()) as url, open_client(url) as client:
        rows = await client.execute("SELECT 1", [1])
        assert (rows.columns, list(rows), rows.place) == (("x",), [(1,)], ("A", 1))
        assert rows.value() == 1


async def test_error_of_the_node_is_raised_itself_and_not_in_a_group() -> None:
    node = ScriptedNode()
    node.script = [node.refuse(ConflictError("met B12", table="t", key=b"k", other="B-1")), node.succeed]
    async with running(node) as url:
        with pytest.raises(ConflictError, match="met B12") as caught:
            async with open_client(url) as client:
                await client.execute(WRITE)
        assert caught.value.details == {"table": "t", "key": b"k", "other": "B-1"}
    assert len(node.requests) == 1


async def test_fault_of_the_client_itself_ends_its_block(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def read(url: str, *, fails: bool) -> object:
        async with open_client(url) as client:
            if fails:
                monkeypatch.setattr(client._core, "received", fail)
            return (await client.execute("SELECT 1")).value()

    async with running(ScriptedNode()) as url:
        with pytest.raises(ExceptionGroup) as caught:
            await read(url, fails=True)
        assert caught.value.split(ZeroDivisionError)[1] is None
        assert "reading a link" in caplog.text
        assert await read(url, fails=False) == 2  # by the same loop


async def test_one_loop_reads_the_links_of_all_clients() -> None:
    loop = loop_of_clients()
    assert loop is not None
    assert loop is loop_of_clients()
    async with running(ScriptedNode()) as url:
        async with open_client(url) as one, open_client(url) as other:
            assert [(await client.execute("SELECT 1")).value() for client in (one, other)] == [1, 2]
            assert len(loop._readers) == 2
        assert not loop._readers


async def test_client_links_work_without_a_shared_read_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadLoop, "works", False)
    assert loop_of_clients() is None
    async with running(ScriptedNode()) as url, open_client(url) as client:
        assert (await client.execute("SELECT 1")).value() == 1


async def test_many_tasks_share_one_link_and_each_gets_its_own_answer() -> None:
    node = ScriptedNode()

    async def echo(request: Request) -> Answer:
        number = request.statements[0].params
        assert isinstance(number, list)
        await trio.sleep(0.001 * (50 - number[0]))  # later calls are answered first
        return answer((number[0],))

    node.script = [echo]
    async with running(node) as url, open_client(url) as client, trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            assert (await client.execute("SELECT ?", [number])).value() == number

        for number in range(50):
            nursery.start_soon(one, number)
    assert len(node.links) == 1


async def test_lost_answer_is_asked_again_elsewhere_under_the_same_id() -> None:
    first, second = ScriptedNode("A"), ScriptedNode("B")
    first.script = [first.die]
    async with running(first, second) as url, open_client(url) as client:
        rows = await client.execute(WRITE)
    assert rows.place == ("B", 1)
    assert [r.command for r in first.requests] == [r.command for r in second.requests]


async def test_node_that_applied_and_died_gives_the_first_answer_when_asked_again() -> None:
    node = ScriptedNode()
    node.script = [node.succeed_and_die, node.succeed]
    async with running(node) as url, open_client(url) as client:
        assert (await client.execute(WRITE)).value() == 1
    assert len(node.known) == 1
    assert len(node.requests) == 2


async def test_error_after_a_lost_answer_proves_nothing() -> None:
    first, second = ScriptedNode("A"), ScriptedNode("B")
    first.script = [first.die]
    second.script = [second.refuse(SqlError("no such table: t"))]
    async with running(first, second) as url, open_client(url) as client:
        with pytest.raises(OutcomeUnknownError, match="no such table") as caught:
            await client.execute(WRITE, timeout=2, command="c1")
    assert caught.value.details["command"] == "c1"
    assert len(second.requests) > 1


async def test_error_after_a_lost_read_is_raised() -> None:
    first, second = ScriptedNode("A"), ScriptedNode("B")
    first.script = [first.die]
    second.script = [second.refuse(SqlError("no such table: t"))]
    async with running(first, second) as url, open_client(url) as client:
        with pytest.raises(SqlError):
            await client.execute("SELECT * FROM t")


async def test_client_leaves_an_unavailable_node_for_the_next() -> None:
    first, second = ScriptedNode("A"), ScriptedNode("B")
    first.script = [first.refuse(UnavailableError("no quorum"))]
    async with running(first, second) as url, open_client(url) as client:
        assert (await client.execute(WRITE)).place == ("B", 1)
        assert (await client.execute(WRITE)).place == ("B", 2)
    assert len(first.requests) == 1


async def test_no_quorum_anywhere_is_unavailable_and_names_the_reason() -> None:
    first, second = ScriptedNode("A"), ScriptedNode("B")
    for node in (first, second):
        node.script = [node.refuse(UnavailableError("no quorum"))]
    async with running(first, second) as url, open_client(url) as client:
        # If the time ends while a request is under way, its outcome is unknown; the error names the reason all the
        # same.
        with pytest.raises((UnavailableError, OutcomeUnknownError), match="no quorum"):
            await client.execute(WRITE, timeout=2)
    assert len(first.requests) > 1
    assert len(second.requests) > 1


async def test_silent_node_leaves_a_write_unknown_and_fails_a_read() -> None:
    node = ScriptedNode()
    node.script = [node.hang]
    async with running(node) as url, open_client(url) as client:
        with pytest.raises(OutcomeUnknownError):
            await client.execute(WRITE, timeout=0.05)
        with pytest.raises(DeadlineError):
            await client.execute("SELECT 1", timeout=0.05)


async def test_command_goes_to_another_node_after_a_malformed_answer() -> None:
    node, sane = ScriptedNode("A"), ScriptedNode("B")

    async def talk_nonsense(link: Link) -> None:
        await link.send(b"\xa2id\x01")
        with suppress(LinkClosedError):
            while True:
                await link.receive()

    node.raw = talk_nonsense
    async with running(node, sane) as url, open_client(url) as client:
        assert (await client.execute(WRITE)).place == ("B", 1)


async def test_wrong_cluster_is_reported_as_wrong_cluster() -> None:
    async with running(ScriptedNode(cluster="other")) as url:
        with pytest.raises(ProtocolMismatchError, match="other"):
            async with open_client(url + "/?cluster=mine&connect_timeout=0.2"):
                pass


async def test_unreachable_node_is_unavailable_after_the_connect_timeout() -> None:
    node = ScriptedNode()
    async with running(node) as url:
        pass
    with trio.fail_after(60), pytest.raises(UnavailableError, match="no node can be reached"):
        async with open_client(url + "/?connect_timeout=0.1"):
            pass


async def test_client_sends_its_merged_token_and_another_can_start_with_it() -> None:
    node = ScriptedNode()
    async with running(node) as url, open_client(url) as client:
        await client.execute(WRITE)
        await client.execute(WRITE)
        assert open_token(client.token)[0].vector == {"A": 2}
        async with open_client(url, token=client.token) as other:
            await other.execute("SELECT 1")
    assert [dict(r.token.vector) for r in node.requests] == [{}, {"A": 1}, {"A": 2}]


async def test_client_returns_status_and_nodes() -> None:
    node = ScriptedNode()
    async with running(node) as url, open_client(url) as client:
        assert (await client.status())["node"] == "A"
        assert list(await client.nodes()) == ["A"]


async def test_parameters_that_sqlite_cannot_store_are_refused_before_anything_is_sent() -> None:
    node = ScriptedNode()
    async with running(node) as url, open_client(url) as client:
        wrong: list[Any] = [[object()], [1 << 63], "text", {1: 1}, [{}]]
        for params in wrong:
            with pytest.raises(UsageError):
                await client.execute(WRITE, params)
        with pytest.raises(UsageError):
            await client.execute("  ")
        with pytest.raises(UsageError):
            await client.transact([])
        with pytest.raises(UsageError, match="cannot be sent"):
            await client.execute("SELECT '\ud800'")
    assert node.requests == []


async def test_cancelled_call_leaves_the_client_usable() -> None:
    node = ScriptedNode()
    node.script = [node.hang, node.succeed]
    async with running(node) as url, open_client(url) as client:
        with trio.move_on_after(0.05) as scope:
            await client.execute(WRITE)
        assert scope.cancelled_caught
        assert (await client.execute(WRITE)).value() == 1


async def test_client_goes_on_after_a_cancellation_at_any_moment() -> None:
    """Many concurrent calls are cancelled at every moment; each answer reaches its own call, and the link stays."""
    node = ScriptedNode()

    async def echo(request: Request) -> Answer:
        number = request.statements[0].params
        assert isinstance(number, list)
        await trio.sleep(0.001 * (number[0] % 7))
        return answer((number[0],))

    node.script = [echo]
    async with running(node) as url, open_client(url) as client:

        async def ask(number: int) -> None:
            with trio.move_on_after(0.0005 * (number % 13)):
                assert (await client.execute("SELECT ?", [number])).value() == number

        for _ in range(5):
            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(ask, number)
        assert (await client.execute("SELECT ?", [7])).value() == 7
        assert len(node.links) == 1


async def test_batch_is_one_request_and_concurrent_calls_share_a_link() -> None:
    node = ScriptedNode()
    here, go = 0, trio.Event()

    async def wait(request: Request) -> Answer:
        nonlocal here
        here += 1
        if here == 20:
            go.set()  # only when all twenty are here is the first one answered
        await go.wait()
        return answer((1,), statements=len(request.statements))

    node.script = [wait]
    async with running(node) as url, open_client(url) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(client.execute, WRITE)
        assert len(await client.transact([(WRITE, [number]) for number in range(1000)])) == 1000
    assert [len(request.statements) for request in node.requests] == [1] * 20 + [1000]
    assert len(node.links) == 1


async def test_error_of_a_repeated_command_covers_the_first_attempt() -> None:
    """The first answer was lost, and the second attempt fails; the client asks for the outcome of the first attempt."""
    settled: list[Answer | BedrockishError] = []

    class Settles:
        def begin(self, owner: object, op: str, request: Request) -> Answer:
            assert (op, request.command) == (SETTLE, "c1")
            found = settled.pop()
            if isinstance(found, BedrockishError):
                raise found
            return found

        async def columns(self, owner: object, command: str, statement: Statement) -> list[dict[str, Any]]:
            raise AssertionError(f"{owner} asks for the columns of {statement} in {command}")

        def interrupt_owner(self, _owner: object) -> None:
            """Do nothing: no transaction runs a statement."""

        def end_owner(self, owner: object) -> None:
            pass

    node = ScriptedNode(transactions=Settles())
    node.script = [node.refuse(ConstraintError("UNIQUE"))]
    async with running(node) as url, open_client(url) as client:
        settled.append(answer((7,)))  # the first attempt had been committed
        assert (await client.execute(WRITE, command="c1", resend=True)).value() == 7
        settled.append(Answer(NOTHING, Token(), ("A", 9)))  # neither attempt was committed, and neither can be
        with pytest.raises(ConstraintError, match="UNIQUE"):
            await client.execute(WRITE, command="c1", resend=True)
        settled.extend([UnavailableError("no quorum")] * 1000)
        with pytest.raises(OutcomeUnknownError, match="no answer to command c1") as caught:
            await client.execute(WRITE, command="c1", resend=True, timeout=1)
        assert caught.value.details == {"command": "c1"}
        with pytest.raises(ConstraintError):
            await client.execute(WRITE, command="c1")
        node.script = [node.refuse(ConflictError("met B12"))]
        settled.clear()
        # the command is not settled, so it can still be sent again
        with pytest.raises(OutcomeUnknownError, match="met B12"):
            await client.execute(WRITE, command="c1", resend=True)
        with pytest.raises(UsageError, match="name the command"):
            await client.execute(WRITE, resend=True)
        node.script = [give_up]
        with pytest.raises(UsageError, match="c1 was settled before it happened"):
            await client.execute(WRITE, command="c1")


async def give_up(request: Request) -> Answer:
    return Answer(NOTHING, Token(), ("A", 9))


async def test_bad_calls_are_answered_with_typed_errors_and_the_link_goes_on() -> None:
    async with running(ScriptedNode()) as url, trio.open_nursery() as nursery:
        link = await dial_link("127.0.0.1", int(url.rpartition(":")[2]), Hello("t", None, "client"))
        nursery.start_soon(link.run)
        for bad, number in [
            (b"\xff", 0),
            (cbor2.dumps([1]), 0),
            (cbor2.dumps({"id": -1, "op": "ping"}), 0),
            (cbor2.dumps({"id": 5, "op": "explode"}), 5),
            (cbor2.dumps({"id": 6, "op": "execute", "statements": []}), 6),
        ]:
            await link.send(bad)
            reply = decode_reply(await link.receive())
            assert isinstance(reply, Failed)
            assert (reply.id, isinstance(reply.error, BedrockishError)) == (number, True)
        await link.send(cbor2.dumps({"id": 7, "op": "ping"}))
        assert decode_reply(await link.receive()) == Told(7, {})
        await link.aclose()


async def test_constraint_error_leaves_the_link_and_other_calls_alone() -> None:
    node = ScriptedNode()
    node.script = [node.refuse(ConstraintError("UNIQUE constraint failed: t.x")), node.succeed]
    async with running(node) as url, open_client(url) as client:
        with pytest.raises(ConstraintError):
            await client.execute(WRITE)
        assert (await client.execute(WRITE)).value() == 1
    assert len(node.links) == 1
