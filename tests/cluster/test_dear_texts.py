"""Texts that are expensive to compile and to analyse: each interface answers them, and other clients go on."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import trio

import bedrockish.dbapi as dbapi
from bedrockish import Connection, connect
from bedrockish.errors import BedrockishError, TooLargeError
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster
ATTEMPTS = 4
LONGEST_MS = 1_500.0  # the longest short read or write; on an idle machine it is below 100 ms
IDS = ",".join(map(str, range(50_000)))
SOME = 50  # statements of the other clients before the expensive one
SCHEMA = (
    "CREATE TABLE page(id INTEGER PRIMARY KEY, html TEXT, n INTEGER)",
    "CREATE TABLE other(id INTEGER PRIMARY KEY, n INTEGER)",
)
FILL = (
    "INSERT INTO page(id, html, n) WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 2000) "
    "SELECT x, 'page ' || x, x FROM n"
)


class Others:
    """Two clients in another process that each read and write a row, and record the milliseconds of each statement.

    A process of their own, because the process of the expensive request is busy with its parameters and its answer.
    """

    def __init__(self, url: str) -> None:
        program = [sys.executable, "-c", f"from tests.cluster.test_dear_texts import note; note({url!r})"]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # both have an answer

    def tell(self) -> None:
        """Tell the clients to note times from now on."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def stop(self) -> list[list[float]]:
        """End the two clients; return how long each read and each write took, the shortest first."""
        told, _ = self._process.communicate(timeout=60)
        return [sorted(map(float, line.split())) for line in told.splitlines()]


def note(url: str) -> None:
    """Read and write a row until standard input ends; print how long each statement took since its last line."""
    reads, writes = list[float](), list[float]()
    over = threading.Event()

    def run(sql: str, waits: list[float]) -> None:
        with connect(url) as db:
            while not over.is_set():
                began = time.monotonic()
                try:
                    db.execute(sql)
                except BedrockishError as error:
                    if not error.retry:
                        print("  another client is told:", error, file=sys.stderr, flush=True)
                waits.append(1000 * (time.monotonic() - began))
                time.sleep(0.002)

    works = (("SELECT n FROM other WHERE id = 1", reads), ("UPDATE other SET n = n + 1 WHERE id = 1", writes))
    threads = [threading.Thread(target=run, args=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    while len(reads) + len(writes) < SOME:
        time.sleep(0.01)
    print("both are at work", flush=True)
    for _ in sys.stdin:
        reads.clear()
        writes.clear()
    over.set()
    for thread in threads:
        thread.join(60)
    print(*reads)
    print(*writes)


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
    """A busy machine may delay them at a time, but not at each of several times."""
    longest = list[float]()
    while not longest or (longest[-1] >= LONGEST_MS and len(longest) < ATTEMPTS):
        others = Others(one.url(0, only=True))
        others.tell()
        try:
            run_dear_texts(db, len(longest))
        finally:
            reads, writes = others.stop()
        assert len(reads) + len(writes) > 50
        longest.append(max(reads[-1], writes[-1]))
    assert min(longest) < LONGEST_MS


def run_dear_texts(db: Connection, attempt: int) -> None:
    """Run texts that the node does not know from an earlier attempt."""
    ids = ",".join(map(str, range(-attempt, 50_000)))
    assert db.execute(f"SELECT count(*) FROM page WHERE id IN ({ids})").rows == [(2_000,)]
    values = range(20_000 + attempt)
    marks = ",".join("?" * len(values))
    assert db.execute(f"SELECT count(*) FROM page WHERE id IN ({marks})", values).rows == [(2_000,)]
    assert db.execute(f"UPDATE page SET n = 0 WHERE id IN ({ids})").rowcount == 2_000
    with db.stream(f"SELECT id FROM page WHERE id IN ({ids}) ORDER BY id") as rows:
        assert [row[0] for row in rows] == list(range(1, 2_001))
    columns = ", ".join(f"c{n} AS (c{n - 1} || c{n - 1})" for n in range(1, 32))
    with pytest.raises(TooLargeError, match="are expanded"):
        db.execute(f"CREATE TABLE d{attempt}(c0, {columns})")


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
