"""A refusal is an answer: at ``read="strict"`` it is as current as a result, never from old data."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from bedrockish import connect, open_client
from bedrockish.client.blocking import Connection
from bedrockish.errors import ConstraintError, SqlError, UnavailableError
from tests.cluster.story import ready
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster
ROUNDS = 25


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("refusals") / "cluster") as running:
        yield running


async def test_strict_refusal_counts_all_acknowledged_commits(refusing: LocalCluster) -> None:
    """Commits acknowledged at B before A's request count: the value is free, the table exists."""
    await ready(refusing)
    assert not await trio.to_thread.run_sync(refuse, refusing.url(0), refusing.url(1))


def refuse(one: str, other: str) -> Counter[str]:
    """Send one node a request that the other has just made possible; return its refusal."""
    with connect(one) as a, connect(other) as b:
        return refused(a, b)


def refused(a: Connection, b: Connection) -> Counter[str]:
    wrong: Counter[str] = Counter()
    a.execute("CREATE TABLE uq(id INTEGER PRIMARY KEY, name TEXT UNIQUE)")
    a.execute("CREATE TABLE doc(id INTEGER PRIMARY KEY, j TEXT)")
    for number in range(ROUNDS):
        b.token = a.token
        b.transact(["INSERT INTO uq VALUES (1, 'x')", "INSERT OR REPLACE INTO doc VALUES (1, 'no json')"])
        a.token = b.token
        a.execute("SELECT 1 FROM uq")
        b.transact(["DELETE FROM uq", "UPDATE doc SET j = '[1]'"])
        try:
            a.execute("INSERT INTO uq VALUES (2, 'x')", read="strict")
        except ConstraintError:
            wrong["unique"] += 1
        try:
            assert a.execute("SELECT json_array_length(j) FROM doc", read="strict").rows == [(1,)]
        except SqlError:
            wrong["malformed JSON"] += 1
        b.token = a.token
        b.execute("DELETE FROM uq")
        a.token = b.token
        b.execute(f"CREATE TABLE n{number}(x)")
        try:
            a.execute(f"SELECT count(*) FROM n{number}", read="strict")
        except SqlError:
            wrong["no such table"] += 1
        b.execute(f"CREATE TABLE s{number}(x)")
        try:
            with a.stream(f"SELECT count(*) FROM s{number}", read="strict") as rows:
                assert list(rows) == [(0,)]
        except SqlError:
            wrong["no such table to stream"] += 1
    return wrong


async def test_isolated_node_does_not_refuse_strictly(tmp_path: Path) -> None:
    """At other levels the node refuses, and marks the refusal as possibly outdated."""
    with local_cluster(tmp_path / "cluster") as cluster:
        await ready(cluster)
        async with open_client(cluster.url(0)) as client:
            await client.execute("CREATE TABLE uq(id INTEGER PRIMARY KEY, name TEXT UNIQUE)")
            await client.execute("INSERT INTO uq VALUES (1, 'x')")
            with pytest.raises(ConstraintError) as sure:
                await client.execute("INSERT INTO uq VALUES (2, 'x')", read="strict")
            assert not sure.value.retry
            for node in cluster.nodes[1:]:
                node.kill()
            with pytest.raises(UnavailableError):
                await client.execute("INSERT INTO uq VALUES (2, 'x')", read="strict", timeout=2)
            with pytest.raises(ConstraintError) as unsure:
                await client.execute("INSERT INTO uq VALUES (2, 'x')")
            assert unsure.value.retry
            with pytest.raises(SqlError, match="no such table") as missing:
                await client.execute("SELECT * FROM missing")
            assert missing.value.retry
            with pytest.raises(SqlError, match="syntax") as text:
                await client.execute("SELEC 1", read="strict")
            assert not text.value.retry
