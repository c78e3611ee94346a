"""The last hour, slow statements and open transactions: in bounded memory, for all nodes, ended on request."""

import sys
import time
from pathlib import Path

import pytest
import trio

from bedrockish.client.blocking import connect
from bedrockish.common.histogram import BOUNDS_S, Histogram, quantile
from bedrockish.common.password_hash import hash_password
from bedrockish.errors import BedrockishError, UnavailableError
from bedrockish.node.admin.activity import SLICES_MAX, Activity
from tests.http.conftest import Asker
from tools.cluster import LocalCluster


class World:
    """Counts and time that a test moves."""

    def __init__(self) -> None:
        self.commits = self.conflicts = 0
        self.now = 1000.0
        self.latency = Histogram()
        self.activity = Activity(lambda: (self.commits, self.conflicts), self.latency, lambda: self.now)


def test_slice_of_activity_has_the_increments() -> None:
    world = World()
    world.commits, world.conflicts, world.now = 30, 7, 1010.0
    for _ in range(98):
        world.latency.observe(0.0015)
    world.latency.observe(0.3)
    world.latency.observe(0.3)
    world.activity.cut()
    world.now += 10
    world.activity.cut()
    told = world.activity.describe()
    first, second = (dict(zip(told["columns"], one, strict=True)) for one in told["slices"])
    assert (first["commits"], first["conflicts"], first["answers"], first["seconds"]) == (30, 7, 100, 10)
    assert 1 < first["p50_ms"] < 2
    assert 200 < first["p99_ms"] < 500
    assert (second["commits"], second["answers"], second["p50_ms"], second["p99_ms"]) == (0, 0, None, None)


def test_the_memory_of_an_hour_is_bounded() -> None:
    """The bound holds however long the node runs."""
    world = World()
    for _ in range(3 * SLICES_MAX):
        world.now += 10
        world.commits += 1_000_000_000
        world.activity.cut()
    told = world.activity.describe()
    assert len(told["slices"]) == SLICES_MAX
    held = sum(sys.getsizeof(one) + sys.getsizeof(one.times) for one in world.activity._slices)
    assert held < 300_000


def test_quantiles_are_taken_from_the_histogram() -> None:
    assert quantile([0] * (len(BOUNDS_S) + 1), 0.5) is None
    assert quantile([10, *[0] * len(BOUNDS_S)], 0.5) == BOUNDS_S[0] / 2
    assert quantile([*[0] * len(BOUNDS_S), 3], 0.99) == BOUNDS_S[-1]


@pytest.mark.cluster
def test_activity_reports_slow_statements(node: Asker) -> None:
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1500000) SELECT count(*) FROM n"
    assert node.sql(slow, to="query").status == 200
    found = node("/activity").json["nodes"]["A"]
    shown = slow.replace(" 1 ", " ? ").replace("1500000", "?")
    assert [one["sql"] for one in found["slow"] if one["sql"].startswith("WITH")] == [shown.replace("+ 1", "+ ?")]


@pytest.mark.cluster
def test_open_transactions_of_all_nodes_are_listed_and_ended_from_any(three: LocalCluster) -> None:
    """The client learns that its transaction did not happen, and no row of it stays; an unknown name ends nothing."""
    ask = Asker(three.nodes[0].http_port or 0, three)
    with connect(three.url(0)) as db, connect(three.url(1, only=True)) as other:
        db.execute("CREATE TABLE IF NOT EXISTS held(id INTEGER PRIMARY KEY)")
        assert db.execute("SELECT count(*) FROM held", read="strict").value() == 0
        other.execute("SELECT count(*) FROM held", read="strict")
        other.execute("BEGIN")
        other.execute("INSERT INTO held VALUES (1)")
        told = ask("/activity").json["nodes"]
        assert {name for name, one in told.items() if one["transactions"]} == {"B"}
        (open_,) = told["B"]["transactions"]
        assert (open_["statement"], open_["changed"]) == ("INSERT INTO held VALUES (1)", 1)
        for one in told.values():
            assert min(one["sizes"].values()) > 0
        wrong = {"node": "B", "command": open_["command"]}
        assert ask("/transactions/end", wrong, Origin="https://elsewhere.example").status == 400
        assert ask("/transactions/end", wrong, Sec_Fetch_Site="cross-site").status == 400
        assert ask("/transactions/end", wrong, Content_Type="text/plain").status == 415
        assert ask("/transactions/end").status == 405
        assert "no node 'Z'" in ask("/transactions/end", {**wrong, "node": "Z"}).json["message"]
        assert "no such open" in ask("/transactions/end", {**wrong, "node": "A"}).json["message"]
        bodies: list[object] = [[], {}, {"node": "B"}, {**wrong, "command": 7}, {**wrong, "more": 1}]
        for body in bodies:
            assert ask("/transactions/end", body).status == 400
        assert ask("/activity").json["nodes"]["B"]["transactions"]
        ended = ask("/transactions/end", wrong)
        assert (ended.status, ended.json) == (200, {"ended": open_["command"]})
        with pytest.raises(UnavailableError, match="an operator has ended the transaction; it did not happen"):
            other.execute("COMMIT")
        assert db.execute("SELECT count(*) FROM held", read="strict").value() == 0
        assert "no such open" in ask("/transactions/end", wrong).json["message"]


@pytest.mark.cluster
def test_unauthorized_user_ends_no_transaction(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "asks", ("A",), settings={"users": {"ann": str(hash_password("x", bytes(16)))}})
    cluster.add_http()
    cluster.write_files()
    cluster.login = "ann:x@"
    cluster.nodes[0].start()
    try:
        trio.run(cluster.wait_ready, 0)
        ask = Asker(cluster.nodes[0].http_port or 0, cluster)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE t(a)")
            db.execute("BEGIN")
            db.execute("INSERT INTO t VALUES (1)")
            assert ask("/activity").status == 401
            login = {"Authorization": "Basic YW5uOng="}
            (open_,) = ask("/activity", **login).json["nodes"]["A"]["transactions"]
            body = {"node": "A", "command": open_["command"]}
            assert ask("/transactions/end", body).status == 401
            assert ask("/transactions/end", body, **login, Origin="https://elsewhere.example").status == 400
            db.execute("COMMIT")
            assert ask("/transactions/end", body, **login).status == 400
            with pytest.raises(BedrockishError):
                db.execute("ROLLBACK")
            assert db.execute("SELECT count(*) FROM t").value() == 1
    finally:
        cluster.stop()


@pytest.mark.cluster
def test_activity_reports_slices(node: Asker) -> None:
    """This test comes last: the node's first slice takes ten seconds, most of which have passed by now."""
    until = time.monotonic() + 30
    while not (found := node("/activity").json["nodes"]["A"])["slices"]:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert found["columns"][0] == "at_ms"
    assert {len(one) for one in found["slices"]} == {len(found["columns"])}
