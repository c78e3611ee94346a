"""One real node for the tests of this directory, and a table of its own for each."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import bedrockish
from bedrockish.client.blocking import Connection
from bedrockish.local.transactions import LocalTransactions
from tools.cluster import LocalCluster, LocalNode, local_cluster

_numbers = itertools.count(1)
BOUND_S = 60.0  # how long a test waits at most


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of one node, which no test stops."""
    with local_cluster(tmp_path_factory.mktemp("alone") / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        yield cluster


@pytest.fixture
def node(alone: LocalCluster) -> LocalNode:
    return alone.nodes[0]


@pytest.fixture
def table() -> str:
    return f"t{next(_numbers)}"


def here(db: Connection) -> LocalTransactions:
    """Return the transactions that a connection runs in this process."""
    steps = db._client.local_steps
    assert steps is not None
    return steps.transactions


def calls_made(db: Connection) -> int:
    """Return the number of calls that a connection has made to nodes, and of links that it has opened."""
    return db._client._core._numbers


def was_read_here(db: Connection, sql: str) -> bool:
    return db.read_here(sql, None, "session") is not None


def is_read_here(db: Connection, sql: str) -> bool:
    """Return whether the program reads it; the node answers a read while it makes a later batch durable."""
    until = time.monotonic() + BOUND_S
    while not (found := was_read_here(db, sql)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


@contextmanager
def stopped_node(directory: Path) -> Iterator[LocalNode]:
    """A node of its own that has served and stopped."""
    with local_cluster(directory, ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        node = cluster.nodes[0]
        assert node.process is not None
        node.process.terminate()
        node.process.wait()
        yield node


@contextmanager
def interrupted(db: Connection) -> Iterator[None]:
    """Interrupt a connection's statements again and again, since the block may reach its statement late."""
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.3):
            db.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def db(node: LocalNode, table: str) -> Iterator[Connection]:
    """A connection to the node's file, and a table with two rows."""
    with bedrockish.connect(node.database) as made:
        made.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a UNIQUE, b INTEGER CHECK (b >= 0))")
        made.execute(f"INSERT INTO {table} VALUES (1, 'one', 10), (2, 'two', 20)")
        yield made
        assert not here(made).has_any


@pytest.fixture
def other(alone: LocalCluster) -> Iterator[Connection]:
    """A connection to the node by its URL."""
    with bedrockish.connect(alone.url(), token=None) as made:
        yield made
