"""Values that no table accepts, extreme values, and a node that dies within an answer, at every interface."""

import json
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy
import trio
from sqlalchemy.dialects import registry

import bedrockish.dbapi as db
from bedrockish import Connection, connect
from bedrockish.errors import BedrockishError, SqlError, TooLargeError, UnavailableError, UsageError
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster
MANY = 1_000
BLOB = 100_000_000


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield one node, which also serves HTTP."""
    with local_cluster(tmp_path_factory.mktemp("values") / "one", ("A",), http=True) as cluster:
        trio.run(cluster.wait_ready, 0)
        with connect(cluster.url()) as client:
            client.execute("CREATE TABLE value(id INTEGER PRIMARY KEY, v)")
        yield cluster


@pytest.fixture
def client(one: LocalCluster) -> Iterator[Connection]:
    with connect(one.url()) as made:
        yield made


def post(cluster: LocalCluster, body: bytes) -> tuple[int, dict[str, object]]:
    """Send SQL over HTTP."""
    url = f"http://127.0.0.1:{cluster.nodes[0].http_port}/db/execute"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_thousand_parameters_are_fine_and_too_many_are_named(one: LocalCluster, client: Connection) -> None:
    marks, values = ", ".join("?" * MANY), list(range(MANY))
    assert client.execute(f"SELECT {marks}", values).one() == tuple(values)
    connection = db.connect(one.url())
    most = f"SELECT max(column1) FROM (VALUES {', '.join(['(?)'] * MANY)})"
    assert connection.execute(most, values).fetchone() == (MANY - 1,)
    with pytest.raises(db.OperationalError, match="too many arguments on function max"):
        connection.execute(f"SELECT max({marks})", values)
    names = ", ".join(f":n{number}" for number in values)
    found = connection.execute(f"SELECT {names}", {f"n{number}": number for number in values}).fetchone()
    assert found == tuple(values)
    with pytest.raises(db.OperationalError, match="too many SQL variables"):
        connection.execute(f"SELECT max({', '.join('?' * 40_000)})", [0] * 40_000)
    connection.close()
    with pytest.raises(SqlError, match="too many SQL variables"):
        client.execute(f"SELECT max({', '.join('?' * 40_000)})", [0] * 40_000)
    status, told = post(one, json.dumps([[most, *values]]).encode())
    assert (status, told["results"][0]["rows"]) == (200, [[MANY - 1]])  # type: ignore[index]
    registry.register("bedrockish", "bedrockish.sqlalchemy.dialect", "BedrockishDialect")
    engine = sqlalchemy.create_engine(one.url() + "/")
    with engine.connect() as session:
        statement = sqlalchemy.select(sqlalchemy.literal(999).in_(values))
        assert session.execute(statement).scalar() in (1, True)
    engine.dispose()


def test_not_a_number_is_null_as_in_sqlite(one: LocalCluster, client: Connection) -> None:
    assert client.execute("SELECT ?, ?, ?", (math.nan, math.inf, -math.inf)).one() == (None, math.inf, -math.inf)
    client.execute("INSERT INTO value VALUES (1, ?)", (math.nan,))
    assert client.execute("SELECT typeof(v) FROM value WHERE id = 1").value() == "null"
    connection = db.connect(one.url())
    assert connection.execute("SELECT ?", (math.nan,)).fetchone() == (None,)
    connection.close()
    status, told = post(one, b'[["SELECT ?", NaN]]')  # not valid JSON
    assert (status, told["code"]) == (400, "usage")


def test_half_a_surrogate_pair_is_refused_wherever_it_stands(one: LocalCluster, client: Connection) -> None:
    refused: list[Callable[[], object]] = [
        lambda: client.execute("SELECT ?", ("a\ud800",)),
        lambda: client.execute("SELECT '\udfff'"),
        lambda: client.execute("SELECT :a", {"a": "\ud800"}),
        lambda: client.execute("SELECT 1", command="\ud800"),
    ]
    for call in refused:
        with pytest.raises(UsageError):
            call()
    connection = db.connect(one.url())
    with pytest.raises(db.ProgrammingError):
        connection.execute("SELECT ?", ("\ud800",))
    connection.close()
    status, told = post(one, rb'[["SELECT ?", "\ud800"]]')
    assert (status, told["code"]) == (400, "usage"), told
    assert client.execute("SELECT ?", ("\U0001f600",)).value() == "\U0001f600"


def test_a_blob_of_100_megabytes_is_too_large_and_says_so(one: LocalCluster, client: Connection) -> None:
    """The blob is refused as a parameter, as a row and as a result; the connection works after each error."""
    with pytest.raises(TooLargeError, match="at most"):
        client.execute("INSERT INTO value VALUES (2, ?)", (bytes(BLOB),))
    for sql in (f"INSERT INTO value VALUES (2, zeroblob({BLOB}))", f"SELECT zeroblob({BLOB})"):
        with pytest.raises(TooLargeError):
            client.execute(sql)
    connection = db.connect(one.url())
    with pytest.raises(db.DataError, match="at most"):
        connection.execute("INSERT INTO value VALUES (2, ?)", (bytes(BLOB),))
    with pytest.raises(db.DataError):
        connection.execute(f"SELECT zeroblob({BLOB})")
    connection.rollback()
    assert connection.execute("SELECT 1").fetchone() == (1,)
    connection.close()
    ten = bytes(10_000_000)
    client.execute("INSERT INTO value VALUES (3, ?)", (ten,), timeout=60)
    assert client.execute("SELECT v FROM value WHERE id = 3", timeout=60).value() == ten
    assert client.execute("SELECT count(*) FROM value WHERE id = 2").value() == 0


def test_results_of_a_killed_node_come_whole_or_fail(tmp_path: Path) -> None:
    """Large results are on their way while their node is killed: they come whole from another, or fail by type."""
    with local_cluster(tmp_path / "cluster") as cluster:
        for index in range(3):
            trio.run(cluster.wait_ready, index)
        with connect(cluster.url()) as client:
            client.execute("CREATE TABLE big(id INTEGER PRIMARY KEY, v)")
            client.execute("INSERT INTO big VALUES (1, zeroblob(8000000))", timeout=60)
            client.execute("INSERT INTO big VALUES (2, zeroblob(8000000))", timeout=60)
            token = client.token
        found: list[int] = []
        failed: list[BaseException] = []
        asked = threading.Semaphore(0)

        def read(url: str, *, alone: bool) -> None:
            try:
                with connect(url, token=token) as client:
                    for _ in range(6):
                        asked.release()
                        found.append(sum(len(row[1]) for row in client.execute("SELECT * FROM big", timeout=60)))
            except UnavailableError as error:
                if not alone:
                    failed.append(error)
            except (BedrockishError, OSError, AssertionError) as error:
                failed.append(error)

        several = cluster.url()
        single = cluster.url(0, only=True, options="/?connect_timeout=1")
        readers = [threading.Thread(target=read, args=(several,), kwargs={"alone": False}) for _ in range(3)]
        readers.append(threading.Thread(target=read, args=(single,), kwargs={"alone": True}))
        for reader in readers:
            reader.start()
        for _ in range(6):
            asked.acquire()
        cluster.nodes[0].kill()
        for reader in readers:
            reader.join(240)
        assert failed == []
        assert set(found) == {16_000_000}
        assert len(found) >= 18
