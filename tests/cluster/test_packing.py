"""Old entries of the journal are packed while a node runs; peers and clients get them unpacked."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bedrockish import open_client
from bedrockish.client.feed import Changes
from bedrockish_journal.storage.store import open_readonly, scan_stored
from bedrockish_journal.verify.verify import verify
from tests.cluster.aged_file import AgedFile
from tests.cluster.story import judge_files, level, ready, until
from tests.cluster.test_members import newcomer
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster
ENTRIES = 3_000
HOURS_MS = 3 * 3_600_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Yield one node, whose journal is three hours old."""
    cluster = LocalCluster(tmp_path / "cluster", ("A",))
    cluster.write_files()
    node = cluster.nodes[0]
    began_ms = int(time.time() * 1000) - HOURS_MS
    aged = AgedFile(node.database, address=f"127.0.0.1:{node.port}")
    aged.commit(began_ms, ("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)", ()))
    for number in range(ENTRIES):
        aged.commit(began_ms + number, ("INSERT INTO t VALUES (?, ?)", (number, f"row {number} " * 5)))
    aged.close()
    try:
        node.start()
        yield cluster
    finally:
        cluster.stop()


def packed(path: Path) -> int:
    """Return the number of packed entries in a file: in the table itself, their bodies are empty."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM bedrockish_journal WHERE body = x''").fetchone()[0])


@pytest.mark.slow
async def test_node_killed_while_it_packs_loses_no_entry(cluster: LocalCluster) -> None:
    node = cluster.nodes[0]
    with closing(open_readonly(node.database)) as db:
        before = list(scan_stored(db))
    killed_at = [0]
    for _ in range(4):
        await ready(cluster)

        async def is_at_it() -> bool:
            return packed(node.database) > killed_at[-1]

        await until("something more is packed", is_at_it)
        node.kill()
        killed_at.append(packed(node.database))
        with closing(open_readonly(node.database)) as db:
            assert list(scan_stored(db))[: len(before)] == before
        assert verify([node.database]).findings == []
        node.start()
    assert killed_at[1] < ENTRIES * 0.9, "it was killed when it had packed everything"


async def test_a_packed_journal_serves_as_an_unpacked_one(cluster: LocalCluster) -> None:
    first = cluster.nodes[0]
    with closing(open_readonly(first.database)) as db:
        before = list(scan_stored(db))
    assert len(before) == ENTRIES + 1
    await ready(cluster)

    async def is_packed() -> bool:
        return packed(first.database) > ENTRIES * 0.9

    await until("the old entries are packed", is_packed)
    async with open_client(cluster.url()) as client:
        sql = "SELECT * FROM bedrockish_journal WHERE seq <= ? ORDER BY seq"
        found = (await client.execute(sql, [len(before)], read="strict")).rows
        assert [tuple(row) for row in found] == [tuple(row) for row in before]
        again = await client.execute("INSERT INTO t VALUES (7, 'again')", command=before[8].command)
        assert again.rowcount == 1  # the first answer again, and no second execution
        assert (await client.execute("SELECT v FROM t WHERE id = 7")).value() == "row 7 " * 5
        feed = [one.place async for one in Changes(client, follow=False)]
        assert feed[: len(before)] == [(row.leader, row.tick) for row in before]
        await client.execute("ALTER TABLE t RENAME COLUMN v TO w")
    newcomer(cluster, "B", "--voter")
    newcomer(cluster, "C", "--replay")

    async def all_there() -> bool:
        counts = []
        for index in range(3):
            async with open_client(cluster.url(index, only=True, options="/?connect_timeout=2")) as client:
                counts.append((await client.execute("SELECT count(*) FROM t", read="stale", timeout=40)).value())
        return counts == [ENTRIES] * 3

    await ready(cluster)
    await until("all rows are at all nodes", all_there)
    await level(cluster)
    cluster.stop()
    assert packed(cluster.nodes[1].database) > ENTRIES * 0.9, "a copy has the packs of its source"
    judge_files(cluster)
    for node in cluster.nodes:
        with closing(open_readonly(node.database)) as db:
            bytes_of = [(row.prev, row.label, row.body, row.hash) for row in scan_stored(db)]
        assert bytes_of[: len(before)] == [(row.prev, row.label, row.body, row.hash) for row in before]
