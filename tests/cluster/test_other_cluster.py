"""Tokens and cursors of another cluster, and forged ones, are refused at every interface with a typed error."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio

import bedrockish
from bedrockish import ForeignClusterError, connect, open_client
from bedrockish.client.feed import Changes, blocking_changes
from bedrockish.client.in_thread import run
from bedrockish.errors import ProtocolMismatchError, UnavailableError, UsageError
from bedrockish_journal.feed.change_feed import parse_cursor
from tests.cluster.interfaces import Caller, RefusedError
from tests.cluster.story import ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster
READ = ["SELECT count(*) FROM t"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LocalCluster]]:
    """Two clusters of one node of the same name, with a table of the same name."""
    made: list[LocalCluster] = []
    try:
        for name in ("one", "two"):
            cluster = LocalCluster(tmp_path_factory.mktemp("other") / name, ("A",))
            made.append(cluster)
            cluster.add_http()
            cluster.write_files()
            cluster.nodes[0].start()
            trio.run(ready, cluster)
            with connect(cluster.url()) as db:
                db.execute("CREATE TABLE t(a)")
                for _ in range(5 if name == "one" else 1):
                    db.execute("INSERT INTO t VALUES (?)", (name,))
        yield made
    finally:
        for cluster in made:
            cluster.stop()


def post(cluster: LocalCluster, path: str, body: object) -> Any:
    try:
        return Caller(cluster, 0, "", "").post(path, body)
    except RefusedError as error:
        return json.loads(str(error))


def forged(value: object) -> str:
    return base64.urlsafe_b64encode(cbor2.dumps(value)).decode().rstrip("=")


def fields(token: str) -> list[Any]:
    found: list[Any] = cbor2.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return found


def test_http_takes_session_tokens_of_its_own_cluster_only(two: list[LocalCluster]) -> None:
    one, other = two
    token = post(one, "/db/query", READ)["token"]
    before = post(other, "/db/query", READ)["results"]
    for path in ("/db/query", "/db/execute", "/db/transaction", "/db/stream"):
        body = READ if path != "/db/execute" else ["INSERT INTO t VALUES (1)"]
        assert "results" in post(one, f"{path}?token={token}", READ) or path == "/db/stream"
        refused = post(other, f"{path}?token={token}&timeout=20", body)
        assert refused["code"] == "foreign_cluster", path
        assert "out here" in refused["message"]
    vector, clock, cluster = fields(post(other, "/db/query", READ)["token"])
    for value in (
        [vector, clock],  # a token of a release without ids, or a forged one
        [vector, clock, ""],
        [vector, clock, cluster, 1],
        [vector, clock, 7],
        [vector, clock + (10 * 365 * 86_400_000 << 22), cluster],
        [vector, (1 << 63) - 1, cluster],
        [vector, 1 << 70, cluster],
        [{"A": -1}, clock, cluster],
        [[], clock, cluster],
    ):
        for path in ("/db/query", "/db/execute", "/db/stream"):
            refused = post(other, f"{path}?token={forged(value)}&timeout=20", READ)
            assert refused["code"] in ("foreign_cluster", "usage"), (value, path, refused)
    assert post(other, "/db/query", READ)["results"] == before


def test_session_refuses_a_token_of_another_cluster(two: list[LocalCluster]) -> None:
    one, other = two
    with connect(one.url()) as a, connect(other.url()) as b:
        a.execute(READ[0])
        b.execute(READ[0])
        with pytest.raises(ForeignClusterError, match="the session token"):
            b.token = a.token
        b.token = b.token
        with connect(one.url()) as again:
            again.token = a.token
            again.execute(READ[0])
        # Bound by the token before it has reached a node.
        with (
            pytest.raises((ForeignClusterError, ProtocolMismatchError, UnavailableError), match="cluster"),
            connect(other.url(options="/?timeout=3"), token=a.token) as fresh,
        ):
            fresh.execute(READ[0])
        far = replace(b._client._core.token, clock=(1 << 63) - 1)
        b._client._core.merge_token(far)
        with pytest.raises(UsageError, match="no node gave it"):
            b.execute(READ[0])
        with pytest.raises(UsageError, match="no node gave it"):
            b.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(UsageError, match="no node gave it"), b.transaction() as tx:
            tx.execute(READ[0])


def test_cursors_name_their_cluster_and_are_refused_at_another(two: list[LocalCluster], tmp_path: Path) -> None:
    one, other = two
    with connect(one.url()) as db:
        cursors = [str(transaction.cursor) for transaction in blocking_changes(db, follow=False)]
        assert len(cursors) >= 6
        assert {parse_cursor(cursor).cluster for cursor in cursors} == {db.cluster_id} != {""}
        rest = [str(transaction.cursor) for transaction in blocking_changes(db, cursors[2], follow=False)]
        assert rest == cursors[3:]
        assert run(db._client.hold, "mine", cursors[2])
        without = cursors[2].partition(":")[2]  # as an earlier release wrote it
        assert [str(one.cursor) for one in blocking_changes(db, without, follow=False)] == cursors[3:]

    for connected in (False, True):
        with connect(other.url(options="/?timeout=3")) as db:
            if connected:
                db.execute(READ[0])
            with pytest.raises((ForeignClusterError, ProtocolMismatchError, UnavailableError), match="cluster"):
                list(blocking_changes(db, cursors[2], follow=False))

    async def read() -> None:
        async with open_client(other.url(options="/?timeout=3")) as client:
            await client.execute(READ[0])
            async for _ in Changes(client, cursors[2], follow=False):
                pass

    with pytest.raises(ForeignClusterError, match="the cursor"):
        trio.run(read)
    with connect(other.url()) as db, pytest.raises(ForeignClusterError):
        run(db._client.hold, "theirs", cursors[2])
    quoted = cursors[2].replace("+", "%2B")
    refused = post(other, f"/changes?after={quoted}", None)
    assert refused["code"] == "foreign_cluster"
    lines = post(one, f"/changes?after={quoted}", None).splitlines()
    assert [json.loads(line)["cursor"] for line in lines][:-1] == cursors[3:]


def test_copy_of_the_tables_has_a_cursor_of_its_cluster(two: list[LocalCluster], tmp_path: Path) -> None:
    from bedrockish.transfer.export import export

    one, other = two
    done = trio.run(export, one.url(), tmp_path / "copy.db")
    with connect(one.url()) as db:
        db.execute("INSERT INTO t VALUES ('after')")
        assert parse_cursor(done.cursor).cluster == db.cluster_id
        assert len(next(blocking_changes(db, done.cursor)).changes) == 1
    with connect(other.url()) as db:
        db.execute(READ[0])
        with pytest.raises(bedrockish.ForeignClusterError):
            next(blocking_changes(db, done.cursor, follow=False))
