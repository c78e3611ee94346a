"""Pools of tasks and of threads are bounded, have a deadline, and discard broken connections."""

import threading
from typing import Any

import pytest
import trio

from bedrockish import connect_pool, open_pool
from bedrockish.api.requests import NOTHING, Answer, Request, Statement, Token, open_token
from bedrockish.api.wire import COMMIT, ROLLBACK
from bedrockish.client import pool as pools
from bedrockish.errors import ClientClosedError, DeadlineError, UnavailableError, UsageError
from tests.client.scripted import ScriptedNode, answer, running
from tests.client.test_blocking_client import in_background

WRITE = "INSERT INTO t VALUES (1)"


class Opens:
    """A node that only opens and ends transactions."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def begin(self, owner: object, op: str, request: Request) -> Answer:
        self.steps.append(op)
        return answer() if request.statements else Answer(NOTHING, Token(), None)

    async def columns(self, owner: object, command: str, statement: Statement) -> list[dict[str, Any]]:
        raise AssertionError(f"{owner} asks for the columns of {statement} in {command}")

    def interrupt_owner(self, _owner: object) -> None:
        """Do nothing: no transaction runs a statement."""

    def end_owner(self, owner: object) -> None:
        self.steps.append("gone")


async def test_pool_lends_the_last_returned_session_up_to_its_size() -> None:
    async with running(ScriptedNode()) as url, open_pool(url, size=2) as pool:
        async with pool.client() as first, pool.client() as second:
            assert first is not second
            with pytest.raises(DeadlineError, match="all 2 sessions of the pool were in use"):
                async with pool.client(timeout=0.01):
                    pass
            assert (await first.execute(WRITE)).value() == 1
        async with pool.client() as again:
            assert again is first  # the inner block ended first
        async with trio.open_nursery() as nursery:
            most = [0, 0]

            async def use() -> None:
                async with pool.client() as client:
                    most[0] += 1
                    most[1] = max(most)
                    await client.execute(WRITE)
                    await trio.sleep(0.01)
                    most[0] -= 1

            for _ in range(20):
                nursery.start_soon(use)
        assert most[1] <= 2


async def test_waiter_gets_the_next_returned_session() -> None:
    async with running(ScriptedNode()) as url, open_pool(url, size=1) as pool:
        got = trio.Event()

        async def wait() -> None:
            async with pool.client():
                got.set()

        async with trio.open_nursery() as nursery:
            async with pool.client():
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                assert not got.is_set()
            await got.wait()


async def test_sessions_of_a_pool_share_their_token() -> None:
    async with running(ScriptedNode()) as url, open_pool(url, size=2) as pool:
        async with pool.client() as first, pool.client() as second:
            await first.execute(WRITE)
            assert open_token(second.token)[0].vector == {}
        async with pool.client() as one, pool.client() as other:
            assert open_token(one.token)[0].vector == open_token(other.token)[0].vector == {"A": 1}


async def test_a_session_that_left_a_transaction_open_is_closed() -> None:
    node = ScriptedNode(transactions=Opens())
    async with running(node) as url, open_pool(url, size=1) as pool:
        async with pool.client() as first:
            await (await first.begin()).execute(WRITE)
        async with pool.client() as second:
            assert second is not first
            opened = await second.begin()
            await opened.execute(WRITE)
            await opened.rollback()
            await second.begin()  # a transaction without statements, of which no node knows
        async with pool.client() as third:
            assert third is second


async def test_an_idle_session_whose_node_is_gone_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "IDLE_S", 0.0)
    node = ScriptedNode()
    async with running(node) as url, open_pool(url + "/?connect_timeout=0.2", size=1) as pool:
        node.scope.cancel()
        with pytest.raises(UnavailableError):
            async with pool.client():
                pass
        node.scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            await nursery.start(node.serve)
            async with pool.client() as client:
                assert (await client.execute(WRITE)).value() == 1
            nursery.cancel_scope.cancel()


async def test_pool_keeps_its_session_after_a_cancelled_wait_and_call() -> None:
    node = ScriptedNode()
    node.script = [node.hang, node.succeed]
    async with running(node) as url, open_pool(url, size=1) as pool:
        with trio.move_on_after(0.05):
            async with pool.client() as client:
                await client.execute(WRITE)
        async with pool.client():
            with trio.move_on_after(0.05):
                async with pool.client():
                    pass
        async with pool.client() as client:
            assert (await client.execute(WRITE)).value() == 1


async def test_pool_refuses_bad_sizes_calls_after_its_close_and_unreachable_nodes() -> None:
    with pytest.raises(UsageError, match="positive whole number, not 0"):
        async with open_pool("bedrockish://a", size=0):
            pass
    with pytest.raises(UsageError, match="positive whole number, not True"):
        connect_pool("bedrockish://a", size=True)
    async with running(ScriptedNode()) as url:
        async with open_pool(url) as pool:
            pass
        with pytest.raises(ClientClosedError):
            await pool.take()
    with pytest.raises(UnavailableError):
        async with open_pool("bedrockish://127.0.0.1:1/?connect_timeout=0.05"):
            pass


def test_threads_use_connections_one_at_a_time() -> None:
    node = ScriptedNode(transactions=Opens())
    failed: list[BaseException] = []
    inside, most = [0], [0]
    lock = threading.Lock()

    def use() -> None:
        try:
            for _ in range(10):
                with pool.connection() as db:
                    with lock:
                        inside[0] += 1
                        most[0] = max(most[0], inside[0])
                    db.execute(WRITE)
                    with lock:
                        inside[0] -= 1
        except BaseException as error:
            failed.append(error)

    with in_background(node) as url, connect_pool(url, size=3) as pool:
        assert pool.size == 3
        threads = [threading.Thread(target=use) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failed
        assert 1 <= most[0] <= 3
        assert len(node.requests) == 120
        in_use = [pool.connection() for _ in range(3)]
        for one in in_use:
            one.__enter__()
        with pytest.raises(DeadlineError, match="all 3 sessions"):
            pool.connection(timeout=0.01).__enter__()
        for one in in_use:
            one.__exit__(None, None, None)
    with pytest.raises(ClientClosedError):
        pool.connection().__enter__()


def test_an_open_transaction_is_rolled_back_and_a_closed_connection_replaced() -> None:
    opens = Opens()
    node = ScriptedNode(transactions=opens)
    with in_background(node) as url, connect_pool(url, size=1) as pool:
        with pool.connection() as db:
            db.execute("BEGIN")
            db.execute(WRITE)
        assert ROLLBACK in opens.steps
        assert COMMIT not in opens.steps
        with pool.connection() as db:
            assert not db.in_transaction
            db.close()
            assert db.closed
        with pool.connection() as db:
            db.execute(WRITE)
