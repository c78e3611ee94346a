"""The DB-API on three nodes, one of which is killed during a program's work."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import bedrockish.dbapi as db
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "cluster") as running:
        for node in range(3):
            trio.run(running.wait_ready, node)
        yield running


def test_lost_node_ends_only_the_transaction_that_was_open_there(cluster: LocalCluster) -> None:
    connection = db.connect(cluster.url(0), timeout=60)
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT)")
    connection.execute("INSERT INTO t VALUES (1, 'kept')")
    connection.commit()
    connection.execute("INSERT INTO t VALUES (2, 'lost')")
    cluster.nodes[0].kill()
    with pytest.raises(db.OperationalError) as caught:
        connection.execute("INSERT INTO t VALUES (3, 'not without 2')")
    assert caught.value.retry
    with pytest.raises(db.OperationalError):
        connection.execute("SELECT * FROM t")
    assert connection.in_transaction
    connection.rollback()
    assert connection.execute("SELECT name FROM t").fetchall() == [("kept",)]
    with connection:
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(2, "again"), (3, "both")])
    connection.close()
    with db.connect(cluster.url(1), read="strict") as other:
        assert other.execute("SELECT name FROM t ORDER BY id").fetchall() == [("kept",), ("again",), ("both",)]
    other.close()


def test_autocommitted_statements_go_on_when_their_node_dies(cluster: LocalCluster) -> None:
    connection = db.connect(cluster.url(0), timeout=60, autocommit=True)
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    for number in range(30):
        if number == 10:
            cluster.nodes[0].kill()
        connection.execute("INSERT INTO t VALUES (?)", (number,))
    assert connection.execute("SELECT count(*), max(id) FROM t").fetchone() == (30, 29)
    connection.close()


def test_transaction_without_statements_survives_its_node(cluster: LocalCluster) -> None:
    connection = db.connect(cluster.url(0), timeout=60)
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    cluster.nodes[0].kill()
    with connection:
        connection.execute("INSERT INTO t VALUES (1)")
    assert connection.execute("SELECT * FROM t").fetchall() == [(1,)]
    connection.close()
