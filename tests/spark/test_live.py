"""Journals that are exported from running nodes equal the files, and the cluster goes on."""

import math
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pytest
import trio
from pyspark.sql.streaming.datasource import ReadMaxRows

from bedrockish import connect, open_client
from bedrockish.api.url import parse_url
from bedrockish.common.password_hash import hash_password
from bedrockish.errors import AuthenticationError, ConfigError, ResultLostError
from bedrockish_journal.arrow import read_journal
from bedrockish_journal.model.errors import JournalError, JournalPrunedError
from bedrockish_journal.spark.export.export import export
from bedrockish_journal.spark.source.feeds import open_feed, shown
from bedrockish_journal.spark.source.json_rows import parse_row
from bedrockish_journal.spark.source.live import NodeFeed, url_with
from bedrockish_journal.spark.source.options import ReadOptions
from bedrockish_journal.spark.source.plans import WantedEntries, bounds
from bedrockish_journal.spark.source.tables import TABLES
from tests.cluster.story import level, ready
from tests.spark.test_export import exported, held
from tests.spark.test_reader import read
from tests.spark.test_stream import offsets, rows, stream
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

ROWS = 40
ODD = (
    *(None, 0, -(1 << 63), (1 << 63) - 1, (1 << 53) + 1, 1.0, 1.5, 5e-324, 1.7976931348623157e308, math.inf, -math.inf),
    *("", "a\0b", "é \U0001f600 \u2028", 'a "quoted" \\ line\n', "1", b"", b"\0\xff"),
)
PASSWORD = "s/e@cret, as it may be"
BIG = 300_000  # so that a page is full before the step is


async def load(cluster: LocalCluster, first: int) -> None:
    async with open_client(cluster.url()) as client:
        for number in range(first, first + ROWS):
            await client.execute("INSERT INTO t VALUES (?, zeroblob(?))", [number, BIG if number % 10 == 0 else 5])


async def found(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, data BLOB)")
        await client.execute("CREATE TABLE odd(id INTEGER PRIMARY KEY, value)")
        for number, value in enumerate(ODD):
            await client.execute("INSERT INTO odd VALUES (?, ?)", [number, value])
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
    (cluster,) = steps[0].keys() - {"B", "table:commits"}
    assert cluster.startswith("cluster:")
    assert steps[-1] == {
        "B": applied,
        cluster: {},
        "table:commits": {},
    }  # no transaction is in flight, so all commits are safe
    assert len(found) == sum(applied.values()) == len({(row["leader"], row["tick"]) for row in found})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that require a login."""
    cluster = LocalCluster(tmp_path / "cluster", settings={"users": {"ann": str(hash_password(PASSWORD, bytes(16)))}})
    cluster.write_files()
    cluster.login = f"ann:{quote(PASSWORD, safe='')}@"
    try:
        for node in cluster.nodes:
            node.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    ("url", "access", "expected"),
    [
        ("bedrockish://h:1", {}, "bedrockish://h:1/?discover=no"),
        ("bedrockish://h:1/", {"user": "ann"}, "bedrockish://ann@h:1/?discover=no"),
        ("bedrockish://h/?timeout=9", {"ca": "c a.pem"}, "bedrockish://h/?timeout=9&ca=c+a.pem&discover=no"),
        ("bedrockish://h", {"user": "a", "password": "s/e@t,"}, "bedrockish://a:s%2Fe%40t%2C@h/?discover=no"),
        ("bedrockish://h/?discover=yes", {}, "bedrockish://h/?discover=yes"),
    ],
)
def test_options_become_parameters_of_the_url(url: str, access: dict[str, str], expected: str) -> None:
    assert url_with(url, access) == expected
    parse_url(expected)


def test_passwords_are_not_shown() -> None:
    with pytest.raises(ConfigError, match="leave one out") as caught:
        url_with("bedrockish://ann:secret@h", {"user": "ann"})
    assert "secret" not in caught.value.message
    assert shown("bedrockish://ann:secret@h:1") == "bedrockish://h:1"
    assert "secret" not in repr(ReadOptions.parse({"path": "bedrockish://h", "user": "ann", "password": "secret"}))
    with pytest.raises(ValueError, match="give the option 'user' as well"):
        ReadOptions.parse({"path": "bedrockish://h", "password": "secret"})


def read_with_options(cluster: LocalCluster) -> None:
    """Read with the login in options, which Spark hides in its output; without a login the node refuses the read."""
    url = f"bedrockish://127.0.0.1:{cluster.nodes[0].port}"
    found = read(url, user="ann", password=PASSWORD, columns="leader,tick")
    assert found == read(cluster.nodes[0].database, columns="leader,tick")
    with pytest.raises(AuthenticationError):
        read(url)
    with pytest.raises(AuthenticationError):
        read(url, user="ann", password="no")
    twice = f"{cluster.url(0, only=True)},{cluster.nodes[0].database}"
    with pytest.raises(JournalError, match="both of node A") as caught:
        read(twice)
    assert PASSWORD not in str(caught.value)


def odd_values_survive(path: object) -> None:
    """Send odd values through a client, a node, its journal and the data source; compare the values and their types."""
    rows = [parse_row(row["after"]) for row in read(path, table="changes", tables="odd")]
    found = {row["id"]: row["value"] for row in rows}
    assert [repr(found[number]) for number in range(len(ODD))] == [repr(value) for value in ODD]


def typed_rows_are_read_by_another_thread(url: str, database: Path) -> None:
    """DuckDB reads batches in a thread of its own. Both columns have a finite number of an untyped column."""
    twice = sum(isinstance(value, int | float) and math.isfinite(value) for value in ODD)
    for path in (url, database):
        found = read_journal(path, rows="odd")
        with duckdb.connect() as db:
            db.register("found", found)
            assert db.execute("SELECT count(*), count(value) + count(_other) FROM found").fetchone() == (
                len(ODD),
                len(ODD) - 1 + twice,
            )
    assert read_journal(url, rows="odd").read_all().equals(read_journal(database, rows="odd").read_all())


def no_stream_is_open_while_entries_are_used(url: str) -> None:
    """A node ends a stream that is not read for a minute, and a consumer of entries may need longer."""
    with connect(url) as node, open_feed(url) as feed:
        spans = [(leader, *span) for leader, span in bounds(feed.ask).items()]
        for _ in feed.scan(spans, WantedEntries()):
            assert node.status()["open_streams"] == 0


def lost_pages_are_read_again(url: str) -> None:
    """A node ends its streams when it stops, and may answer again a second later."""
    with open_feed(url) as feed:
        assert isinstance(feed, NodeFeed)
        spans = [(leader, *span) for leader, span in bounds(feed.ask).items()]
        expected, read_rows, calls = list(feed.scan(spans, WantedEntries())), feed._rows, count()

        def lost(sql: str, params: tuple[object, ...]) -> Iterator[Any]:
            for number, row in enumerate(read_rows(sql, params)):
                if number == 3 and next(calls) == 0:
                    raise ResultLostError("the node was lost")
                yield row

        feed._rows = lost  # type: ignore[assignment, method-assign]
        assert list(feed.scan(spans[:1], WantedEntries())) == [row for row in expected if row.leader == spans[0][0]]
        assert next(calls) > 1


def test_a_running_node_is_read_over_the_network(tmp_path: Path, cluster: LocalCluster) -> None:
    out = str(tmp_path / "out")
    trio.run(found, cluster)
    for grow, expected in ((None, ROWS + 2 + len(ODD)), (more, ROWS)):
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
    no_stream_is_open_while_entries_are_used(urls[1])
    lost_pages_are_read_again(urls[1])
    read_with_options(cluster)
    typed_rows_are_read_by_another_thread(urls[2], databases[2])
    odd_values_survive(urls[2])
    odd_values_survive(databases[1])
    with open_feed(cluster.url(0, only=True)) as feed, pytest.raises(JournalPrunedError, match="no longer holds"):
        list(feed.scan([("A", 0, 3)], WantedEntries()))  # as if tick 0 had existed and was removed
    for table in TABLES:
        assert exported(Path(out), table) == held([node.database for node in cluster.nodes], table), table
