"""Random statements in open transactions, by URL and by path: the results, errors and rows are those of SQLite.

A tenth of the statements takes so long that the node interrupts them and executes them in a worker, and another client
commits all the time, so that the node rolls back the transaction's rows and writes them again.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from bedrockish import connect, dbapi
from tests.cluster.random_statements import SCHEMA, TABLES, Values, draw, plain
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster


def outcome(db: Any, sql: str, values: Values) -> tuple[str, list[Values]]:
    """Execute a statement; return whether it succeeded, and its rows in order."""
    try:
        return "done", sorted(db.execute(sql, values).fetchall(), key=repr)
    except (apsw.ConstraintError, dbapi.IntegrityError):
        return "constraint", []
    except (apsw.Error, dbapi.Error):
        return "error", []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run one node, at which another client commits all the time."""
    with local_cluster(Path(tmp_path_factory.mktemp("like"), "n"), ["A"]) as running:
        trio.run(running.wait_all_ready)
        over = threading.Event()

        def commit() -> None:
            with connect(running.url()) as db:
                while not over.is_set():
                    db.execute("INSERT INTO other VALUES (1, 1) ON CONFLICT DO UPDATE SET v = v + 1")
                    time.sleep(0.002)

        with connect(running.url()) as db:
            db.execute("CREATE TABLE other(id INTEGER PRIMARY KEY, v)")
            for sql in SCHEMA:
                db.execute(sql)
        client = threading.Thread(target=commit)
        client.start()
        yield running
        over.set()
        client.join()


@pytest.mark.parametrize("interface", ["url", "path"])
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
def test_open_transactions_have_the_results_of_sqlite(cluster: LocalCluster, interface: str, seed: int) -> None:
    luck = random.Random(1_000 * seed)
    where = cluster.url() if interface == "url" else str(cluster.nodes[0].database)
    with closing(dbapi.connect(where, isolation_level=None)) as ours:
        for _ in range(25):
            with closing(plain()) as sqlite:
                _compare(ours, sqlite, luck)
            for table in TABLES:
                ours.execute("UPDATE w SET c = 'd'")
                ours.execute(f"DELETE FROM {table}")


def _compare(ours: dbapi.Connection, sqlite: apsw.Connection, luck: random.Random) -> None:
    """Run a few transactions on both, with the same statements."""
    for _ in range(luck.randrange(1, 4)):
        story: list[Any] = []
        for db in (ours, sqlite):
            db.execute("BEGIN")
        sql, values = draw(luck)
        for _ in range(luck.randrange(1, 40)):
            told = outcome(ours, sql, values), outcome(sqlite, sql, values)
            story.append((sql, values, *told))
            assert told[0] == told[1], story
            assert ours.in_transaction == sqlite.in_transaction, story
            if not ours.in_transaction:
                break
            if luck.random() < 0.7:
                sql, values = draw(luck)
        if ours.in_transaction:
            ends = outcome(ours, "COMMIT", ()), outcome(sqlite, "COMMIT", ())
            assert ends[0] == ends[1], story
            if ours.in_transaction:  # a deferred key is broken
                ours.execute("ROLLBACK")
                sqlite.execute("ROLLBACK")
        for table in TABLES:
            rows = [sorted(db.execute(f"SELECT * FROM {table}").fetchall(), key=repr) for db in (ours, sqlite)]
            assert rows[0] == rows[1], (table, story)


@pytest.mark.parametrize("rows", [1, 1_500])
@pytest.mark.parametrize("interface", ["url", "path"])
def test_key_that_rollback_to_breaks_again_is_found_at_commit(cluster: LocalCluster, interface: str, rows: int) -> None:
    """The transaction's rows are written again after the ROLLBACK TO, which SQLite does not count; with many rows, in a
    workspace.
    """
    where = cluster.url() if interface == "url" else str(cluster.nodes[0].database)
    numbers = "WITH z(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM z LIMIT ?)"
    with closing(dbapi.connect(where, isolation_level=None)) as db:
        for is_mended in (False, True):
            db.execute("BEGIN")
            db.execute("INSERT INTO s VALUES (1, 'c')")
            db.execute("SAVEPOINT one")
            db.execute("INSERT INTO p VALUES (1, 'c', 1)")
            db.execute(f"{numbers} INSERT INTO log SELECT i, 0 FROM z", (rows,))
            db.execute("ROLLBACK TO one")
            if is_mended:
                db.execute("INSERT INTO p VALUES (2, 'c', 1)")
                db.execute("COMMIT")
            else:
                with pytest.raises(dbapi.IntegrityError, match="FOREIGN KEY"):
                    db.execute("COMMIT")
                db.execute("ROLLBACK")
        assert db.execute("SELECT s.id, p.id FROM s LEFT JOIN p USING (code)").fetchall() == [(1, 2)]
        db.execute("DELETE FROM s")
        db.execute("DELETE FROM p")
