"""Results of any size over real nodes: bounded memory, slow readers, lost nodes, cancelled readers."""

import collections
import resource
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import RowStream, connect, open_client
from bedrockish.errors import (
    ClientClosedError,
    ResultLostError,
    SqlError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from tests.cluster.story import ready, send_signal, status_of, until
from tools.cluster import LocalCluster, LocalNode

pytestmark = pytest.mark.cluster

ROW_BYTES = 10_000
MANY = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) SELECT i, zeroblob({ROW_BYTES}) FROM n"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@contextmanager
def one_node(directory: Path, **limits: int) -> Iterator[LocalCluster]:
    cluster = LocalCluster(directory, ("A",), {"limits": limits})
    cluster.write_files()
    try:
        cluster.nodes[0].start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[LocalCluster]:
    """Yield one node with room for two streams."""
    with one_node(tmp_path / "alone", streams_max=2) as cluster:
        yield cluster


def memory(node: LocalNode, what: str) -> int:
    """Return a figure that the kernel keeps of a node's memory, in bytes."""
    assert node.process is not None
    for line in Path(f"/proc/{node.process.pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == what:
            return int(rest.split()[0]) << 10
    raise AssertionError(f"the kernel says nothing of {what}")


async def rest(rows: RowStream) -> None:
    """Read to the end."""
    while await rows.batch():
        pass


async def no_streams(cluster: LocalCluster, node: int) -> None:
    async def none() -> bool:
        return not (await status_of(cluster, node))["open_streams"]

    await until("all streams over", none)


async def test_node_streams_a_result_larger_than_its_memory(cluster: LocalCluster) -> None:
    """With 160 MiB of address space left, a node streams 400 MB and stays alive.

    The same query as a call raises an error that names ``stream``.
    """
    await ready(cluster)
    node, count = cluster.nodes[0], 40_000
    async with open_client(cluster.url(0, only=True)) as client:
        assert node.process is not None
        limit = memory(node, "VmSize") + (160 << 20)
        resource.prlimit(node.process.pid, resource.RLIMIT_AS, (limit, limit))
        with pytest.raises(TooLargeError, match="stream"):
            await client.execute(MANY, [count])
        before = memory(node, "VmHWM")
        async with client.stream(MANY, [count]) as rows:
            assert rows.columns == ("i", f"zeroblob({ROW_BYTES})")
            expected = 0
            async for number, blob in rows:
                expected += 1
                assert number == expected
                assert len(blob) == ROW_BYTES
        assert expected == rows.count == count
        assert memory(node, "VmHWM") - before < 64 << 20
        assert (await client.execute("SELECT 1")).value() == 1


async def test_stream_of_a_killed_node_fails_and_can_be_read_again(cluster: LocalCluster) -> None:
    """The error has the number of received rows; the same client reads again, at another node, and gets all rows."""
    await ready(cluster)
    async with open_client(cluster.url(0)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
        await client.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) INSERT INTO t SELECT i FROM n"
        )
        async with client.stream("SELECT a.id FROM t a, t b") as rows:
            for _ in range(100):
                await anext(rows)
            cluster.nodes[0].kill()
            with pytest.raises(ResultLostError, match="read it again") as caught:
                await rest(rows)
        assert 100 <= caught.value.details["rows"] == rows.count < 4_000_000
        assert caught.value.retry
        async with client.stream("SELECT id FROM t ORDER BY id") as rows:
            assert [row[0] async for row in rows] == [*range(1, 2001)]


async def test_stream_has_the_rows_of_one_moment_at_the_readers_pace(cluster: LocalCluster) -> None:
    """The stream lacks later commits. The writers see them, and so does a new stream."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as client, open_client(cluster.url(1, only=True)) as other:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n, filling)")
        await client.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000) "
            "INSERT INTO t SELECT i, 0, zeroblob(1000) FROM n"
        )
        other.token = client.token
        async with client.stream("SELECT n, filling FROM t ORDER BY id") as rows:
            await rows.batch()
            await other.execute("UPDATE t SET n = 1 WHERE id > 2990")
            await client.execute("DELETE FROM t WHERE id > 2995")
            left = [row[0] async for row in rows]
            assert len(left) > 1000
            assert not any(left)
        client.token = other.token
        for read in ("session", "strict"):
            async with client.stream("SELECT sum(n), count(*) FROM t", read=read) as rows:
                assert [row async for row in rows] == [(5, 2995)]


async def test_cancelled_stream_leaves_the_connection_usable(alone: LocalCluster) -> None:
    """Readers leave an endless stream midway, or are cancelled before or during a batch; wrong streams are refused."""
    await ready(alone)
    async with open_client(alone.url()) as client:
        async with client.stream(ENDLESS) as rows:
            async for row in rows:
                if row[0] == 5:
                    break
        assert rows.count == 5
        with pytest.raises(ClientClosedError):
            await rows.batch()
        await no_streams(alone, 0)
        with trio.CancelScope() as scope:
            async with client.stream(ENDLESS) as rows:
                scope.cancel()
                await rows.batch()
        with trio.CancelScope() as scope:
            scope.cancel()
            async with client.stream(ENDLESS) as rows:
                await rows.batch()
        with trio.move_on_after(0.3) as scope:
            async with client.stream(f"SELECT max(i) FROM ({ENDLESS})") as rows:
                await rows.batch()
        assert scope.cancelled_caught
        await no_streams(alone, 0)
        assert (await client.execute("SELECT 1")).value() == 1
        for wrong, why in (
            ("INSERT INTO t VALUES (1)", SqlError),
            ("CREATE TABLE t(a)", UnsupportedError),
            ("SELECT 1; SELECT 2", UsageError),
            ("PRAGMA defer_foreign_keys = ON", UnsupportedError),
            ("", UsageError),
        ):
            with pytest.raises(why):
                async with client.stream(wrong):
                    pass
        async with client.stream("SELECT abs(column1) FROM (VALUES (1), (2), (-9223372036854775808))") as rows:
            with pytest.raises(SqlError, match="after") as caught:
                await rest(rows)
        assert caught.value.details["rows"] == rows.count
        async with client.stream(ENDLESS), client.stream(ENDLESS), trio.open_nursery() as nursery:
            nursery.start_soon(_one_too_many, alone)


async def test_cancellation_as_the_answer_arrives_leaves_no_stream_open(
    alone: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is stopped between its request and the wait for the answer, so both events arrive together."""
    await ready(alone)
    async with open_client(alone.url()) as client:
        begin = client._begin

        def begin_and_stand_still(*call: Any) -> int:
            number = begin(*call)
            time.sleep(0.1)
            return number

        monkeypatch.setattr(client, "_begin", begin_and_stand_still)
        for _ in range(12):  # the order of the cancellation and the answer is random
            with trio.CancelScope() as scope:
                scope.cancel()
                async with client.stream(ENDLESS):
                    pass
            with trio.CancelScope() as scope:
                scope.cancel()
                async with client.transaction() as transaction:
                    await transaction.execute("SELECT 1")
        monkeypatch.undo()
        await no_streams(alone, 0)

        async def no_transactions() -> bool:
            return not (await status_of(alone, 0))["open_transactions"]

        await until("all transactions over", no_transactions)


async def _one_too_many(cluster: LocalCluster) -> None:
    async with open_client(cluster.url()) as client:
        with pytest.raises(UnavailableError, match="2 open streams"):
            async with client.stream(ENDLESS, timeout=2):
                pass


async def test_stream_of_a_client_that_stops_reading_is_ended(tmp_path: Path) -> None:
    """A stalled reader costs the node only a snapshot, for a limited time."""
    with one_node(tmp_path / "brief", idle_stream_ms=1500) as brief:
        await ready(brief)
        async with open_client(brief.url()) as client:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
            async with client.stream(ENDLESS) as rows:
                await no_streams(brief, 0)
                await client.execute("INSERT INTO t VALUES (1)")
                with pytest.raises(ResultLostError, match="idle_stream_ms") as caught:
                    await rest(rows)
                assert caught.value.details["rows"] == rows.count


async def test_stream_of_a_paused_node_fails(alone: LocalCluster) -> None:
    """A batch that arrives too late raises an error; after the pause, the node drops the stream."""
    await ready(alone)
    async with open_client(alone.url()) as client, client.stream(ENDLESS, timeout=3) as rows:
        send_signal(alone.nodes[0], signal.SIGSTOP)
        try:
            with pytest.raises(ResultLostError):
                await rest(rows)
        finally:
            send_signal(alone.nodes[0], signal.SIGCONT)
    await no_streams(alone, 0)


def test_blocking_client_streams_a_result(alone: LocalCluster) -> None:
    """A stream is an iterator: it ends early, with its connection, and next to an open transaction."""
    trio.run(ready, alone)
    db = connect(alone.url())
    with db.stream(MANY, [100]) as rows:
        assert rows.columns[0] == "i"
        assert [next(rows)[0], next(rows)[0], rows.count] == [1, 2, 2]
        batch = rows.batch()
        assert [row[0] for row in batch] == [*range(3, 3 + len(batch))]
        assert 2 + len(batch) + len(list(rows)) == rows.count == 100
    with db.stream(ENDLESS) as rows:
        assert next(iter(rows)) == (1,)
    assert db.execute("SELECT 1").value() == 1
    db.execute("BEGIN")
    with pytest.raises(UnsupportedError, match="COMMIT"):
        db.stream("SELECT 1")
    db.execute("ROLLBACK")
    with db.stream(ENDLESS) as rows:
        next(rows)
        db.close()
        with pytest.raises(ClientClosedError):
            collections.deque(rows, 0)


async def test_closed_stream_can_be_opened_again_on_another_link(alone: LocalCluster) -> None:
    """A client that lost the answer opens the stream again: the first one ends, the second can be read to its end."""
    await ready(alone)
    async with open_client(alone.url()) as first, open_client(alone.url()) as second:
        lost, kept = first.new_stream(ENDLESS, None, 20, None), second.new_stream(MANY, [100], 20, None)
        kept._request = replace(kept._request, command=lost._request.command)
        await lost.open()
        await kept.open()
        assert sum([len(batch) async for batch in batches(kept)]) == 100
        with pytest.raises(ResultLostError):
            await rest(lost)
        again = first.new_stream(ENDLESS, None, 20, None)
        await again.open()
        twice = first.new_stream(ENDLESS, None, 20, None)
        twice._request = again._request = replace(twice._request, command=again._request.command)
        with pytest.raises(UsageError, match="open already"):
            await twice.open()
        again.close()
    await no_streams(alone, 0)


async def batches(rows: RowStream) -> AsyncIterator[list[Any]]:
    """Yield all batches."""
    while batch := await rows.batch():
        yield batch
