"""One real node for all tests of this directory, by its URL and by the path of its file; a table for each test."""

import itertools
from collections.abc import Iterator

import pytest
import trio

import bedrockish.dbapi as db
from tools.cluster import local_cluster

_numbers = itertools.count(1)


BY_URL = pytest.mark.parametrize("interface", ["url"], indirect=True)
"""A test of something that a program on the node's file has, and a client on a socket lacks, or that ends earlier."""


@pytest.fixture(scope="session", params=["url", "path"])
def interface(request: pytest.FixtureRequest) -> str:
    """Return the kind of the connection: by URL or by path."""
    return str(request.param)


@pytest.fixture(scope="session")
def url(interface: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the first argument of ``connect``."""
    with local_cluster(tmp_path_factory.mktemp("node") / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        yield cluster.url() if interface == "url" else str(cluster.nodes[0].database)


@pytest.fixture
def connection(url: str) -> Iterator[db.Connection]:
    made = db.connect(url)
    yield made
    made.close()


@pytest.fixture
def other(url: str) -> Iterator[db.Connection]:
    """A second connection, which sees the commits of the first one."""
    made = db.connect(url, autocommit=True, read="strict")
    yield made
    made.close()


@pytest.fixture
def table(connection: db.Connection) -> str:
    name = f"t{next(_numbers)}"
    connection.execute(f"CREATE TABLE {name}(id INTEGER PRIMARY KEY, name TEXT UNIQUE, amount REAL, data BLOB)")
    return name


@pytest.fixture
def made(connection: db.Connection) -> db.Connection:
    connection.executescript(
        "DROP TABLE IF EXISTS child; DROP TABLE IF EXISTS thing;"
        "CREATE TABLE thing(id INTEGER PRIMARY KEY, a UNIQUE, b, twice GENERATED ALWAYS AS (a * 2));"
        'CREATE TABLE child("odd, name" TEXT PRIMARY KEY, t REFERENCES thing(id)) WITHOUT ROWID;'
        "CREATE INDEX by_b ON thing(b);"
        "INSERT INTO thing(id, a, b) VALUES (1, 1, x'00ff10'), (2, 2, 'it''s'), (3, NULL, 1.5);"
        "INSERT INTO child VALUES ('x', 1);"
    )
    return connection
