"""One real node for all tests of this directory, and a table of its own for each."""

import itertools
from collections.abc import Iterator

import pytest
import trio

import bedrockish.dbapi as db
from tools.cluster import local_cluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with local_cluster(tmp_path_factory.mktemp("node") / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        yield cluster.url()


@pytest.fixture
def connection(url: str) -> Iterator[db.Connection]:
    made = db.connect(url)
    yield made
    made.close()


@pytest.fixture
def other(url: str) -> Iterator[db.Connection]:
    """A second connection, to see what the first one has committed."""
    made = db.connect(url, autocommit=True, read="strict")
    yield made
    made.close()


@pytest.fixture
def table(connection: db.Connection) -> str:
    name = f"t{next(_numbers)}"
    connection.execute(f"CREATE TABLE {name}(id INTEGER PRIMARY KEY, name TEXT UNIQUE, amount REAL, data BLOB)")
    return name
