"""The trio client on a node's file: short statements run in the event loop, and other tasks run between them."""

import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.client import trio_client
from bedrockish.client.blocking import Connection
from bedrockish.client.trio_client import Client, open_client
from bedrockish.common.pauses import monotonic
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.workspace import Workspace, Writer
from bedrockish.engine.storage import moment_row
from bedrockish.engine.storage.moment_row import FileMoment
from tests.local.conftest import BOUND_S
from tools.cluster import LocalNode

READ, RANGE, UPDATE = (
    "SELECT b FROM {} WHERE id = ?",
    "SELECT id FROM {} WHERE b BETWEEN ? AND 100",
    "UPDATE {} SET b = ? WHERE id = 1",
)


@pytest.fixture
async def client(node: LocalNode, db: Connection, table: str) -> AsyncIterator[Client]:
    """A client on the node's file that has run the texts of this module before."""
    async with open_client(node.database) as made:
        made.token = db.token
        for _ in range(2):
            async with made.transaction() as tx:
                for sql in (READ, RANGE, UPDATE):
                    await tx.execute(sql.format(table), (1,))
        yield made


@pytest.fixture
def threads(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the methods that the client has run in threads."""
    found: list[str] = []
    original = trio_client._threaded

    async def noted(method: Callable[..., Any], *arguments: Any, abandon_on_cancel: bool = False) -> Any:
        found.append(getattr(method, "__name__", repr(method)))
        return await original(method, *arguments, abandon_on_cancel=abandon_on_cancel)

    monkeypatch.setattr(trio_client, "_threaded", noted)
    return found


async def begun(client: Client, table: str, threads: list[str]) -> None:
    """Wait until a transaction begins without a thread: its newest commit is durable, and no other thread reads."""
    until = monotonic() + BOUND_S
    while monotonic() < until:
        threads.clear()
        async with client.transaction() as tx:
            await tx.execute(READ.format(table), (1,))
        if not threads:
            return
    raise AssertionError("each transaction needs a thread")


async def test_transaction_of_short_known_statements_needs_no_thread(
    client: Client, table: str, threads: list[str]
) -> None:
    await begun(client, table, threads)
    async with client.transaction() as tx:
        assert (await tx.execute(READ.format(table), (2,))).rows == [(20,)]
        assert (await tx.execute(UPDATE.format(table), (7,))).rowcount == 1
        assert (await tx.execute(READ.format(table), (1,))).rows == [(7,)]
    assert not threads
    assert (await client.execute(READ.format(table), (1,))).rows == [(7,)]


async def test_statement_that_may_take_long_runs_in_a_thread(client: Client, table: str, threads: list[str]) -> None:
    await begun(client, table, threads)
    async with client.transaction() as tx:
        assert (await tx.execute(RANGE.format(table), (15,))).rows == [(2,)]
        assert len(threads) == 1
        await tx.execute(UPDATE.format(table), (16,))
        assert (await tx.execute(RANGE.format(table), (15,))).rows == [(1,), (2,)]
        assert len(threads) == 2
        assert (await tx.execute(f"SELECT max(b) FROM {table}")).rows == [(20,)]
        assert len(threads) == 3


async def test_large_transaction_is_encoded_in_a_thread(client: Client, table: str, threads: list[str]) -> None:
    await begun(client, table, threads)
    async with client.transaction() as tx:
        for number in range(1_000):
            await tx.execute(READ.format(table), (number,))
        await tx.execute(UPDATE.format(table), (8,))
        before = len(threads)
    assert len(threads) == before + 1


async def test_transaction_waits_for_another_thread_of_its_session_in_a_thread(
    client: Client, table: str, threads: list[str]
) -> None:
    await begun(client, table, threads)
    steps = client.local_steps
    assert steps is not None
    reads = steps.transactions.pool.reads
    taken, free = trio.Event(), threading.Event()

    def hold() -> None:
        with reads.lock:
            trio.from_thread.run_sync(taken.set)
            assert free.wait(BOUND_S)

    async def release() -> None:
        await trio.sleep(0.05)
        free.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, hold)
        await taken.wait()
        nursery.start_soon(release)
        async with client.transaction() as tx:
            assert (await tx.execute(READ.format(table), (2,))).rows == [(20,)]
    assert threads[0] == "begin"


@pytest.mark.parametrize("what", [READ, UPDATE, "snapshot", "statement"])
async def test_end_of_a_block_waits_for_another_thread_of_its_session_in_a_thread(
    client: Client, table: str, threads: list[str], what: str
) -> None:
    """The other thread goes on only while the loop runs."""
    await begun(client, table, threads)
    steps = client.local_steps
    assert steps is not None
    transactions, taken, free = steps.transactions, trio.Event(), threading.Event()
    has_run: list[bool] = []

    def hold() -> None:
        one = next(iter(transactions._open.values()), None)
        with one.lock if one is not None and what == "statement" else transactions.pool.reads.lock:
            trio.from_thread.run_sync(taken.set)
            has_run.append(free.wait(2))

    async def release() -> None:
        await trio.sleep(0.05)
        free.set()

    async with trio.open_nursery() as nursery:
        block: Any = client.snapshot() if what == "snapshot" else client.transaction()
        async with block as tx:
            if what == "snapshot":
                await client.execute(READ.format(table), (2,))
            else:
                await tx.execute((READ if what == "statement" else what).format(table), (2,))
            nursery.start_soon(trio.to_thread.run_sync, hold)
            await taken.wait()
            nursery.start_soon(release)
            if what == "statement":
                assert (await tx.execute(READ.format(table), (2,))).rows == [(20,)]
    assert has_run == [True]
    assert not transactions.has_any


async def test_first_transaction_of_a_client_opens_its_connections_in_a_thread(
    node: LocalNode, client: Client, table: str, threads: list[str]
) -> None:
    async with open_client(node.database) as other:
        other.token = client.token
        async with other.transaction() as tx:
            assert (await tx.execute(READ.format(table), (2,))).rows == [(20,)]
    assert threads[0] == "begin"
    assert len(threads) == 2


async def test_transaction_with_attached_files_begins_in_a_thread(
    client: Client, table: str, threads: list[str], tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as plain:
        plain.execute("CREATE TABLE x(a)")
    await begun(client, table, threads)
    await client.execute(f"ATTACH '{tmp_path}/other.sqlite' AS other")
    for _ in range(2):
        threads.clear()
        async with client.transaction() as tx:
            assert (await tx.execute(READ.format(table), (2,))).rows == [(20,)]
        assert threads[0] == "begin"


async def test_changed_schema_is_read_in_a_thread(
    client: Client, other: Connection, table: str, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(client, table, threads)
    other.execute(f"ALTER TABLE {table} ADD COLUMN c")
    client.token = other.token
    openers: list[threading.Thread] = []
    original = Workspace.open_writer

    def noted(self: Workspace, work: TransactionWork) -> Writer:
        openers.append(threading.current_thread())
        return original(self, work)

    monkeypatch.setattr(Workspace, "open_writer", noted)
    async with client.transaction() as tx:
        assert (await tx.execute(READ.format(table), (2,))).rows == [(20,)]
    assert threads[0] == "begin"
    assert len(threads) == 2
    assert len(openers) == 1
    assert threading.current_thread() not in openers


async def test_transaction_waits_for_a_durable_snapshot_in_a_thread(
    client: Client, table: str, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(client, table, threads)
    loop, original, sleep = threading.current_thread(), moment_row.read, time.sleep

    def newer(text: str) -> FileMoment | None:
        found = original(text)
        is_newer = found is not None and threading.current_thread() is loop
        return replace(found, batch=found.batch + 1_000) if found is not None and is_newer else found

    def no_sleep(seconds: float) -> None:
        assert threading.current_thread() is not loop
        sleep(seconds)

    monkeypatch.setattr(moment_row, "read", newer)
    monkeypatch.setattr(time, "sleep", no_sleep)
    async with client.transaction() as tx:
        assert (await tx.execute(READ.format(table), (2,))).rows == [(20,)]
    assert threads[0] == "begin"


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_other_tasks_run_while_a_task_runs_short_statements(
    client: Client, table: str, in_transaction: bool
) -> None:
    ended = trio.Event()

    async def other() -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        ended.set()

    until = monotonic() + BOUND_S
    async with trio.open_nursery() as nursery, client.transaction() as tx:
        await tx.execute(READ.format(table), (1,))
        nursery.start_soon(other)
        while not ended.is_set() and monotonic() < until:
            await (tx if in_transaction else client).execute(READ.format(table), (1,))
    assert monotonic() < until


async def test_round_of_many_tasks_takes_as_long_as_that_of_one(
    node: LocalNode, client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the tasks share a client, the others have one each."""
    monkeypatch.setattr(trio_client, "TASK_S", 0.05)
    monkeypatch.setattr(trio_client, "TASK_MIN_S", 0.0)
    rounds = 0

    async def read(one: Client) -> None:
        while True:
            await one.execute(READ.format(table), (1,))

    async def count() -> None:
        nonlocal rounds
        while True:
            await trio.lowlevel.checkpoint()
            rounds += 1

    async with AsyncExitStack() as stack:
        clients = [client] * 10 + [await stack.enter_async_context(open_client(node.database)) for _ in range(10)]
        for one in clients:
            one.token = client.token
            await one.execute(READ.format(table), (1,))
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(count)
                for one in clients:
                    nursery.start_soon(read, one)
    assert rounds >= 4


@pytest.mark.parametrize("is_large", [False, True])
async def test_transaction_whose_commit_is_cancelled_before_it_is_sent_ends(
    client: Client, table: str, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(TransactionWork, "kept", 1 << 20)
    with trio.CancelScope() as scope:
        async with client.transaction() as tx:
            await tx.execute(UPDATE.format(table), (77,))
            scope.cancel()
            trio_client._turns.until = 0.0
    assert scope.cancelled_caught
    steps = client.local_steps
    assert steps is not None
    assert not steps.transactions.has_any
    assert not await client.settle(tx.command)


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_cancelled_task_ends_between_short_statements(client: Client, table: str, in_transaction: bool) -> None:
    until = monotonic() + BOUND_S
    with trio.move_on_after(0.1) as scope:
        async with client.transaction() as tx:
            while monotonic() < until:
                await (tx if in_transaction else client).execute(READ.format(table), (1,))
    assert scope.cancelled_caught
    steps = client.local_steps
    assert steps is not None
    assert not steps.transactions.has_any
