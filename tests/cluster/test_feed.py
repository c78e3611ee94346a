"""A mirror that is fed by nothing but the change feed, while nodes are killed and the reader goes from node to node."""

import json
import random
import sqlite3
import sys
from pathlib import Path

import pytest
import trio

from bedrockish import open_client
from bedrockish.client.feed import Changes
from bedrockish.errors import BedrockishError
from bedrockish_journal.feed.change_feed import Committed
from bedrockish_journal.model.changes import DELETE, INSERT, Change
from tests.cluster.story import insist, judge_files, level, ready, rows, until
from tests.http.conftest import Asker
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster


class Mirror:
    """An ordinary SQLite database that applies each transaction of the feed in one transaction."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.cursor: str | None = None
        self.seen: list[str] = []

    def take(self, transaction: Committed) -> None:
        assert str(transaction.cursor) not in self.seen, "delivered twice"
        self.seen.append(str(transaction.cursor))
        self.db.execute("BEGIN")
        for statement in transaction.statements:
            self.db.execute(statement)
        for change in transaction.changes:
            self._apply(change)
        self.db.execute("COMMIT")
        self.cursor = str(transaction.cursor)

    def _apply(self, change: Change) -> None:
        before, after = change.before, change.after
        if before is not None:
            where = " AND ".join(f"{name} IS ?" for name in change.columns)
            gone = self.db.execute(f"DELETE FROM {change.table} WHERE {where}", before).rowcount
            assert gone == 1, f"{change.op} of a row that the mirror does not have: {change}"
        if after is not None:
            marks = ", ".join("?" for _ in change.columns)
            self.db.execute(f"INSERT INTO {change.table}({', '.join(change.columns)}) VALUES ({marks})", after)
        assert (before is None) == (change.op == INSERT)
        assert (after is None) == (change.op == DELETE)


async def test_a_mirror_fed_by_the_feed_equals_the_cluster(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE stock(id INTEGER PRIMARY KEY, n INTEGER NOT NULL, note TEXT)")
        await client.transact([("INSERT INTO stock VALUES (?, 0, NULL)", [number]) for number in range(20)])
    mirror, stopping, acknowledged = Mirror(), trio.Event(), 0

    async def write(number: int) -> None:
        nonlocal acknowledged
        luck = random.Random(number)
        for count in range(10_000):
            if stopping.is_set():
                return
            command = f"w-{number}-{count}"
            choices: list[tuple[str, list[object]]] = [
                ("UPDATE stock SET n = n + 1, note = ? WHERE id = ?", [command, luck.randrange(20)]),
                ("INSERT OR REPLACE INTO stock VALUES (?, 5, ?)", [luck.randrange(20, 40), command]),
                ("DELETE FROM stock WHERE id = ?", [luck.randrange(20, 40)]),
            ]
            sql, params = luck.choice(choices)
            await insist(cluster.url(number % 3), sql, params, command)
            acknowledged += 1

    async def read_some(index: int, most: int) -> None:
        """Read on at another node, where the last reader stopped."""
        try:
            async with open_client(cluster.url(index, only=True)) as client:
                async for transaction in Changes(client, mirror.cursor, follow=False):
                    mirror.take(transaction)
                    most -= 1
                    if not most:
                        return
        except BedrockishError:
            pass  # the node is dead now: the next one goes on

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(write, number)
        for turn in range(24):
            if turn == 8:
                cluster.nodes[1].kill()
            if turn == 14:
                cluster.nodes[1].start()
            await read_some(turn % 3, 1 + turn * 7 % 50)
            await trio.sleep(0.1)
        stopping.set()
    await ready(cluster)
    await level(cluster)
    with trio.fail_after(60):
        async with open_client(cluster.url()) as client:
            count = (await client.execute("SELECT count(*) FROM bedrockish_journal WHERE repeat = 0")).value()
            async for transaction in Changes(client, mirror.cursor):
                mirror.take(transaction)
                if len(mirror.seen) == count:
                    break
    assert acknowledged > 50
    command = [sys.executable, "-m", "bedrockish.cli.main", "changes", cluster.url(2), "--json", "--table", "stock"]
    printed = await trio.run_process(command, capture_stdout=True)
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    assert all(line["kind"] == "schema" or line["changes"] for line in lines)
    assert {line["cursor"] for line in lines} <= set(mirror.seen)
    cluster.stop()
    judge_files(cluster)
    for node in cluster.nodes:
        assert (
            rows(node, "SELECT * FROM stock ORDER BY id")
            == mirror.db.execute("SELECT * FROM stock ORDER BY id").fetchall()
        )
    mirror.db.close()


async def test_feed_handles_transactions_of_any_size(tmp_path: Path) -> None:
    """The query of a page names bodies dozens of times.

    Without care the feed would stop at a body above 9 MB, for ever and at every node.
    """
    with local_cluster(tmp_path / "one", ("A",), http=True) as cluster:
        await ready(cluster)
        async with open_client(cluster.url(options="timeout=60")) as client:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, data BLOB)")
            sizes = [10, 9_990_000, 32_900_000, 20]
            for size in sizes:
                await client.execute("INSERT INTO t(data) VALUES (randomblob(?))", [size])
            await level(cluster)
            found: list[Committed] = []

            async def all_there() -> bool:
                found[:] = [one async for one in Changes(client, follow=False)]
                return len(found) == 5

            await until("all transactions are in the feed", all_there)
        rows_in = [change.after or () for one in found[1:] for change in one.changes]
        assert [len(bytes(data)) for _, data in rows_in if isinstance(data, bytes)] == sizes
        asks = Asker(cluster.nodes[0].http_port or 0, cluster)
        reply = await trio.to_thread.run_sync(asks, "/changes")
        told = [json.loads(line) for line in reply.body.splitlines()]
        assert [one.get("cursor") for one in told[:-1]] == [str(one.cursor) for one in found]
