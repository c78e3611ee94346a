"""Running nodes: their journals exported over the network are what is in their files, and the cluster goes on."""

from itertools import pairwise
from pathlib import Path

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadMaxRows

from bedrockish import open_client
from journal.errors import JournalPrunedError
from journal.spark.export import export
from journal.spark.feeds import open_feed
from journal.spark.plans import Wanted, bounds
from journal.spark.tables import TABLES
from tests.cluster.story import level, ready
from tests.spark.test_export import exported, held
from tests.spark.test_reader import read
from tests.spark.test_stream import offsets, rows, stream
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster

ROWS = 40
BIG = 300_000  # so that a page is full before the step is


async def load(cluster: LocalCluster, first: int) -> None:
    async with open_client(cluster.url()) as client:
        for number in range(first, first + ROWS):
            await client.execute("INSERT INTO t VALUES (?, zeroblob(?))", [number, BIG if number % 10 == 0 else 5])


async def found(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, data BLOB)")
    await load(cluster, 0)
    await level(cluster)


async def more(cluster: LocalCluster) -> None:
    await load(cluster, ROWS)
    await level(cluster)


def stream_from_a_node(url: str) -> None:
    reader = stream(url, until="safe")
    steps = offsets(reader, ReadMaxRows(30))
    found = [place for start, end in pairwise(steps) for place in rows(reader, start, end)]
    with open_feed(url) as feed:
        applied = {leader: high for leader, (_, high) in bounds(feed.ask).items()}
    assert steps[-1] == {"B": applied}  # nothing is under way, so all is safe
    assert len(found) == sum(applied.values()) == len({(row["leader"], row["tick"]) for row in found})


def test_a_running_node_is_exported_over_the_network(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with local_cluster(tmp_path / "cluster") as cluster:
        trio.run(found, cluster)
        for grow, expected in ((None, ROWS + 1), (more, ROWS)):
            if grow is not None:
                trio.run(grow, cluster)
            for index in range(len(cluster.nodes)):
                with open_feed(cluster.url(index, only=True)) as feed:
                    assert export(feed, out, step=20).entries == expected
        urls = [cluster.url(index, only=True) for index in range(len(cluster.nodes))]
        databases = [node.database for node in cluster.nodes]
        for table in TABLES:
            assert sorted(read(",".join(urls), table=table), key=repr) == held(databases, table), table
        some = {"leader": "A", "columns": "tick,clock", "partition_rows": "7"}
        assert read(urls[0], **some) == read(databases[0], **some)
        stream_from_a_node(urls[1])
        with open_feed(cluster.url(0, only=True)) as feed, pytest.raises(JournalPrunedError, match="no longer holds"):
            list(feed.scan([("A", 0, 3)], Wanted()))  # as if tick 0 had been there and were gone
    for table in TABLES:
        assert exported(Path(out), table) == held([node.database for node in cluster.nodes], table), table
