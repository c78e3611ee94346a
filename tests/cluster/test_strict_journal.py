"""Strict reads of the journal at a node that receives the commits of others late."""

import json
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import Client, open_client
from bedrockish.core.state.packed_commits import SEGMENT
from bedrockish.errors import ConflictError
from tests.cluster.story import ready
from tools.chaos.cluster import proxied_cluster
from tools.cluster import local_cluster

pytestmark = pytest.mark.cluster
ROUNDS = 8  # rounds for each way to read the journal
LATE_S = 0.03  # how long the messages of A and B need to C
INSERT = "INSERT INTO t(who) VALUES (?)"
ONE = "SELECT who FROM t WHERE id = 1"
JOURNAL = (
    "SELECT (SELECT count(*) FROM bedrockish_journal WHERE command IN (?, ?)) "
    "+ (SELECT count(*) FROM bedrockish_joined WHERE command IN (?, ?))"
)
Read = Callable[[Client, Sequence[str]], Awaitable[Any]]


async def alone(client: Client, commands: Sequence[str]) -> Any:
    return (await client.execute(JOURNAL, [*commands, *commands], read="strict")).value()


async def with_a_row(client: Client, commands: Sequence[str]) -> Any:
    """Read a table of the users in the same request."""
    journal, row = await client.transact([(JOURNAL, [*commands, *commands]), ONE], read="strict")
    assert row.value() == "first"
    return journal.value()


async def streamed(client: Client, commands: Sequence[str]) -> Any:
    async with client.stream(JOURNAL, [*commands, *commands], read="strict") as rows:
        return sum([row[0] async for row in rows])


async def in_a_transaction(client: Client, commands: Sequence[str]) -> Any:
    async with client.transaction(read="strict") as tx:
        return (await tx.execute(JOURNAL, [*commands, *commands])).value()


async def in_a_transaction_after_a_row(client: Client, commands: Sequence[str]) -> Any:
    """Read a row first, so that the transaction has a snapshot, which has to move up."""
    async with client.transaction(read="strict") as tx:
        await tx.execute(ONE)
        return (await tx.execute(JOURNAL, [*commands, *commands])).value()


async def in_a_transaction_after_a_write(client: Client, commands: Sequence[str]) -> Any:
    async with client.transaction(read="strict") as tx:
        await tx.execute("UPDATE t SET who = 'first' WHERE id = 1")
        return (await tx.execute(JOURNAL, [*commands, *commands])).value()


async def in_a_transaction_with_temp_objects(client: Client, commands: Sequence[str]) -> Any:
    """Read the journal in a workspace of the session."""
    async with client.transaction(read="strict") as tx:
        await tx.execute("CREATE TEMP TABLE mine(x)")
        found = (await tx.execute(JOURNAL, [*commands, *commands])).value()
        await tx.rollback()
    return found


WAYS: tuple[Read, ...] = (
    alone,
    with_a_row,
    streamed,
    in_a_transaction,
    in_a_transaction_after_a_row,
    in_a_transaction_after_a_write,
)


async def over_http(url: str, _client: Client, commands: Sequence[str]) -> Any:
    body = json.dumps([[JOURNAL, *commands, *commands]]).encode()
    asked = urllib.request.Request(f"{url}/db/query?read=strict", body, {"Content-Type": "application/json"})

    def post() -> Any:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return json.loads(answer.read())

    return (await trio.to_thread.run_sync(post))["results"][0]["rows"][0][0]


async def write_on(client: Client) -> None:
    while True:
        await client.execute(INSERT, ["others"])


async def test_strict_read_of_the_journal_sees_acknowledged_commits_of_all_nodes(tmp_path: Path) -> None:
    """A and B each acknowledge a commit while others are in progress; each kind of read at C must show both."""
    async with proxied_cluster(tmp_path / "nodes", "ABC", http=True) as cluster, AsyncExitStack() as stack:
        await ready(cluster)

        async def client_of(url: str) -> Client:
            return await stack.enter_async_context(open_client(url))

        a, b, c = [await client_of(cluster.url(node, only=True)) for node in range(3)]
        writers = [await client_of(cluster.url(node, only=True)) for node in (0, 1)]
        path = await client_of(f"bedrockish:///?local={cluster.nodes[2].database}")
        http = f"http://127.0.0.1:{cluster.nodes[2].http_port}"
        ways = [(read.__name__, read, c) for read in (*WAYS, in_a_transaction_with_temp_objects)]
        ways += [(f"{read.__name__}, by path", read, path) for read in WAYS]
        ways.append(("over HTTP", partial(over_http, http), c))
        await a.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, who)")
        await a.execute("INSERT INTO t VALUES (1, 'first')")
        for peer in "AB":
            cluster.network.lines[peer, "C"].slow(LATE_S)
        missed: dict[str, int] = {}
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(write_on, writer)
            for name, read, reader in ways:
                for _ in range(ROUNDS):
                    commands = [uuid.uuid4().hex, uuid.uuid4().hex]
                    async with trio.open_nursery() as both:
                        for client, command in zip((a, b), commands, strict=True):
                            both.start_soon(partial(client.execute, INSERT, [command], command=command))
                    if await read(reader, commands) != 2:
                        missed[name] = missed.get(name, 0) + 1
            nursery.cancel_scope.cancel()
        assert not missed


async def test_session_sees_its_commits_in_the_journal_of_a_node_that_gets_them_late(tmp_path: Path) -> None:
    """A session commits at A, and its token goes to clients of C: by URL, by path, in a transaction and in a stream."""
    async with proxied_cluster(tmp_path / "nodes", "ABC") as cluster, AsyncExitStack() as stack:
        await ready(cluster)
        urls = [
            cluster.url(0, only=True),
            cluster.url(2, only=True),
            f"bedrockish:///?local={cluster.nodes[2].database}",
        ]
        a, *readers = [await stack.enter_async_context(open_client(url)) for url in urls]
        await a.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, who)")
        cluster.network.lines["A", "C"].slow(LATE_S)
        cluster.network.lines["B", "C"].slow(LATE_S)
        late = 0
        for number in range(4 * ROUNDS):
            command = uuid.uuid4().hex
            await a.execute(INSERT, [command], command=command)
            reader, values = readers[number % 2], [command] * 4
            late += not (await reader.execute(JOURNAL, values, read="stale")).value()
            reader.token = a.token
            if number % 8 < 4:
                assert (await reader.execute(JOURNAL, values)).value() == 1
            elif number % 8 < 6:
                async with reader.transaction() as tx:
                    assert (await tx.execute(JOURNAL, values)).value() == 1
            else:
                async with reader.stream(JOURNAL, values) as rows:
                    assert [row async for row in rows] == [(1,)]
        assert late, "at the level stale, C shows what it has"


async def test_strict_read_of_the_journal_moves_an_old_snapshot_beyond_packed_commits(tmp_path: Path) -> None:
    """Hundreds of commits after the first read of the transaction, the node finds the first of them by key only."""
    with local_cluster(tmp_path / "node", ("A",)) as node:
        await node.wait_all_ready()
        async with open_client(node.url()) as client, open_client(node.url()) as other:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, who)")
            await client.execute("INSERT INTO t VALUES (1, 'first')")
            async with client.transaction(read="strict") as tx:
                await tx.execute(ONE)
                command = await commit_until_packed(other)
                assert (await tx.execute(JOURNAL, [command] * 4)).value() == 1
            async with client.transaction(read="strict") as tx:
                await tx.execute(ONE)
                await other.execute("UPDATE t SET who = 'first' WHERE id = 1")
                await commit_until_packed(other)
                with pytest.raises(ConflictError, match="run it again, or read that table first"):
                    await tx.execute(JOURNAL, [command] * 4)
                await tx.rollback()


async def commit_until_packed(client: Client) -> str:
    """Commit until a full segment of commits is packed; return the command of the last commit."""
    for _ in range(2 * SEGMENT):
        await client.execute(INSERT, ["others"])
    command = uuid.uuid4().hex
    await client.execute(INSERT, ["others"], command=command)
    with trio.fail_after(60):
        while (await client.status())["kept"]["recent"] > SEGMENT:  # noqa: ASYNC110
            await trio.sleep(0.05)
    return command
