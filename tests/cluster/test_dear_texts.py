"""Texts that are dear to compile and to analyse: answered at every way in, while other clients go on."""

from collections.abc import Iterator

import pytest
import trio

import bedrockish.dbapi as dbapi
from bedrockish import Connection, connect
from bedrockish.errors import TooLargeError
from tools.cluster import LocalCluster, local_cluster
from tools.scenarios.hostile import FILL, SCHEMA, Others, numbers

pytestmark = pytest.mark.cluster
LONGEST_MS = 1_500.0  # of a short read or write; on an idle machine it is below 100
IDS = numbers(50_000)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield one node with some rows."""
    with local_cluster(tmp_path_factory.mktemp("dear") / "one", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        with connect(cluster.url()) as db:
            db.transact(list(SCHEMA))
            db.transact(["INSERT INTO other VALUES (1, 0)", FILL])
        yield cluster


@pytest.fixture
def db(one: LocalCluster) -> Iterator[Connection]:
    with connect(one.url(options="timeout=60")) as made:
        yield made


def test_other_clients_go_on_during_long_lists(one: LocalCluster, db: Connection) -> None:
    others = Others(one.url(0, only=True))
    others.tell()
    try:
        assert db.execute(f"SELECT count(*) FROM page WHERE id IN ({IDS})").rows == [(2_000,)]
        marks = ",".join("?" * 20_000)
        assert db.execute(f"SELECT count(*) FROM page WHERE id IN ({marks})", range(20_000)).rows == [(2_000,)]
        assert db.execute(f"UPDATE page SET n = 0 WHERE id IN ({IDS})").rowcount == 2_000
        with db.stream(f"SELECT id FROM page WHERE id IN ({IDS}) ORDER BY id") as rows:
            assert [row[0] for row in rows] == list(range(1, 2_001))
        with pytest.raises(TooLargeError, match="written out"):
            db.execute(f"CREATE TABLE d(c0, {', '.join(f'c{n} AS (c{n - 1} || c{n - 1})' for n in range(1, 32))})")
    finally:
        waits = others.stop()
    assert len(waits) > 50
    assert max(waits) < LONGEST_MS


def test_long_text_in_an_open_transaction_sees_its_rows(one: LocalCluster, db: Connection) -> None:
    with db.transaction() as transaction:
        transaction.execute("INSERT INTO page(id, n) VALUES (10001, 5)")
        assert transaction.execute(f"SELECT n FROM page WHERE id IN ({IDS}) AND id > 10000").rows == [(5,)]
        assert transaction.execute(f"UPDATE page SET n = 6 WHERE id IN ({IDS}) AND id > 10000").rowcount == 1
        assert transaction.execute("SELECT n FROM page WHERE id = 10001").rows == [(6,)]
        transaction.execute("INSERT INTO other(n) VALUES " + ",".join(["(?)"] * 12_000), [7] * 12_000)
        assert transaction.execute("SELECT count(*) FROM other WHERE n = 7").rows == [(12_000,)]
    assert db.execute("SELECT n FROM page WHERE id = 10001").rows == [(6,)]
    assert db.execute("SELECT count(*) FROM other WHERE n = 7").rows == [(12_000,)]


def test_long_text_in_a_transaction_is_rolled_back(one: LocalCluster) -> None:
    with dbapi.connect(one.url(options="timeout=60")) as connection:
        count = connection.execute("SELECT count(*) FROM other").fetchone()
        connection.execute("INSERT INTO other(n) VALUES " + ",".join(["(8)"] * 12_000))
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM other").fetchone() == count
