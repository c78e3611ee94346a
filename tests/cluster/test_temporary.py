"""TEMP objects of sessions on three real nodes: by each interface, through conflicts, at bounds, after a lost node."""

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import sqlalchemy
import trio

import bedrockish.dbapi
from bedrockish import Client, connect, open_client
from bedrockish.errors import (
    ConflictError,
    ConstraintError,
    SqlError,
    TemporaryLostError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
)
from tests.cluster.story import judge_files, level, ready, send_signal, status_of, until
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster

TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, a, b)"
TRIGGER = "CREATE TEMP TRIGGER note AFTER INSERT ON t BEGIN INSERT INTO x VALUES (new.a, 'note'); END"


async def filled(client: Client) -> None:
    await client.execute(TABLE)
    await client.transact([("INSERT INTO t(id, a, b) VALUES (?, ?, ?)", (n, n, 10 * n)) for n in range(10)])


async def all_of(client: Client, sql: str) -> list[tuple[Any, ...]]:
    return (await client.execute(sql)).rows


async def at(cluster: LocalCluster, index: int, sql: str) -> list[tuple[Any, ...]]:
    async with open_client(cluster.url(index, only=True)) as client:
        return await all_of(client, sql)


async def test_rows_of_temporary_tables_stay_in_their_session(cluster: LocalCluster) -> None:
    """Tables, views, indexes and triggers serve their session; only rows copied from them reach the nodes."""
    await ready(cluster)
    async with open_client(cluster.url(0)) as client, open_client(cluster.url(1)) as other:
        await filled(client)
        await client.execute("CREATE TEMP TABLE x(a, n)")
        await client.execute("CREATE INDEX temp.by_a ON x(a)")
        await client.execute("INSERT INTO x SELECT a % 3, count(*) FROM t GROUP BY a % 3")
        assert await all_of(client, "SELECT * FROM x ORDER BY a") == [(0, 4), (1, 3), (2, 3)]
        await client.execute("CREATE TEMP VIEW joined AS SELECT t.id, x.n FROM t JOIN x ON x.a = t.a")
        assert await all_of(client, "SELECT * FROM joined ORDER BY id") == [(0, 4), (1, 3), (2, 3)]
        copied = await client.execute("INSERT INTO t(a, b) SELECT a + 100, n FROM x ORDER BY a RETURNING a")
        assert copied.rows == [(100,), (101,), (102,)]
        await client.execute(TRIGGER)
        await client.execute("INSERT INTO t(a) VALUES (500)")
        assert (500, "note") in await all_of(client, "SELECT * FROM x")
        await other.execute("INSERT INTO t(a) VALUES (600)")
        with pytest.raises(SqlError, match="no such table: x"):
            await other.execute("SELECT * FROM x")
        client.token = other.token
        await client.execute("CREATE TEMPORARY TABLE filled AS SELECT a FROM t WHERE a > 99")
        await client.execute("CREATE TABLE plain(a)")
        assert len(await all_of(client, "SELECT * FROM filled")) == 5
        assert (await all_of(client, "SELECT count(*) FROM x WHERE a = 600")) == [(0,)]
        await client.execute("DROP TABLE filled")
        await client.execute("DROP TABLE IF EXISTS filled")
    await level(cluster)
    for index in range(3):
        found = await at(cluster, index, "SELECT a, b FROM t WHERE a > 99 ORDER BY a")
        assert found == [(100, 4), (101, 3), (102, 3), (500, None), (600, None)]
        names = await at(cluster, index, "SELECT name FROM sqlite_schema WHERE name IN ('x', 'by_a', 'joined', 'note')")
        assert names == []
    cluster.stop()
    judge_files(cluster)


async def test_rollback_restores_rows_of_temporary_tables(cluster: LocalCluster) -> None:
    """TEMP rows after ROLLBACK, ROLLBACK TO, a failed statement, a lost COMMIT and DDL are those of SQLite."""
    await ready(cluster)
    async with open_client(cluster.url(0)) as client, open_client(cluster.url(1)) as other:
        await filled(client)
        tx = await client.begin()
        await tx.execute("INSERT INTO t(id, a) VALUES (50, 50)")  # before it has TEMP objects
        await tx.execute("SAVEPOINT before")
        await tx.execute("INSERT INTO t(id, a) VALUES (51, 51)")
        await tx.execute("CREATE TEMP TABLE x(a UNIQUE)")
        await tx.execute("INSERT INTO x SELECT a FROM t WHERE a > 40")
        assert (await tx.execute("SELECT a FROM x ORDER BY a")).rows == [(50,), (51,)]
        await tx.execute("ROLLBACK TO before")
        with pytest.raises(SqlError, match="no such table"):
            await tx.execute("SELECT * FROM x")
        await tx.execute("CREATE TEMP TABLE x(a UNIQUE)")
        await tx.execute("INSERT INTO x SELECT a FROM t WHERE a > 40")
        with pytest.raises(ConstraintError):
            await tx.execute("INSERT INTO x VALUES (60), (50)")
        await tx.commit()
        assert await all_of(client, "SELECT a FROM x") == [(50,)]
        tx = await client.begin()
        await tx.execute("DELETE FROM x")
        await tx.execute("CREATE TEMP TABLE y(a)")
        await tx.execute("UPDATE t SET b = 0 WHERE id = 1")
        await tx.rollback()
        assert await all_of(client, "SELECT a FROM x") == [(50,)]
        with pytest.raises(SqlError, match="no such table"):
            await client.execute("SELECT * FROM y")
        tx = await client.begin()
        await tx.execute("INSERT INTO x VALUES (70)")
        await tx.execute("UPDATE t SET b = b + 1 WHERE id = 1")
        await other.execute("UPDATE t SET b = b + 10 WHERE id = 1")
        with pytest.raises(ConflictError):
            await tx.commit()
        assert await all_of(client, "SELECT a FROM x") == [(50,)]
        assert await all_of(client, "SELECT b FROM t WHERE id = 1") == [(20,)]
        with pytest.raises(ConstraintError):
            await client.execute("INSERT OR ROLLBACK INTO x VALUES (80), (50)")
        assert await all_of(client, "SELECT a FROM x") == [(50,)]
    cluster.stop()
    judge_files(cluster)


async def test_statements_beside_temporary_tables_lose_no_update(cluster: LocalCluster) -> None:
    """Sessions with TEMP tables at all nodes increment one row; a conflict makes them execute again."""
    await ready(cluster)
    async with open_client(cluster.url(0)) as client:
        await filled(client)

    async def count(index: int) -> None:
        async with open_client(cluster.url(index)) as client:
            await client.execute("CREATE TEMP TABLE step(n)")
            await client.execute("INSERT INTO step VALUES (1)")
            for _ in range(10):
                await client.execute("UPDATE t SET b = b + (SELECT n FROM step) WHERE id = 0")

    async with trio.open_nursery() as nursery:
        for index in range(3):
            nursery.start_soon(count, index)
    await level(cluster)
    for index in range(3):
        assert await at(cluster, index, "SELECT b FROM t WHERE id = 0") == [(30,)]
    cluster.stop()
    judge_files(cluster)


def pipeline(url: str, *texts: str, baton: str | None = None) -> dict[str, Any]:
    asked = [{"type": "execute", "stmt": {"sql": sql}} for sql in texts]
    body = json.dumps({"baton": baton, "requests": asked}).encode()
    with urlopen(Request(f"{url}/v2/pipeline", body, {"content-type": "application/json"}), timeout=30) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def test_every_interface_keeps_temporary_tables_for_its_session(tmp_path: Path) -> None:
    """A session has TEMP objects of its own in the client, the DB-API, SQLAlchemy, libSQL and on a node's file."""
    with local_cluster(tmp_path / "one", ("A",), http=True) as cluster:
        trio.run(ready, cluster)
        url = cluster.url()
        with connect(url) as db:
            db.execute(TABLE)
            db.execute("CREATE TEMP TABLE x AS SELECT 'native' AS way")
            with bedrockish.dbapi.connect(url) as connection:
                connection.execute("CREATE TEMP TABLE x(way)")
                connection.execute("INSERT INTO x VALUES ('dbapi')")
                connection.rollback()
                connection.execute("INSERT INTO x VALUES ('DB-API')")
                connection.execute("INSERT INTO t(a) SELECT way FROM x")
                connection.commit()
                found = connection.execute("SELECT x.way, t.a FROM x JOIN t ON t.a = x.way")
                assert found.fetchall() == [("DB-API", "DB-API")]
                assert [name for name, *_ in found.description or ()] == ["way", "a"]
            engine = sqlalchemy.create_engine(url)
            with engine.begin() as session:
                session.execute(sqlalchemy.text("CREATE TEMP TABLE x(way)"))
                session.execute(sqlalchemy.text("INSERT INTO x VALUES ('SQLAlchemy')"))
                assert session.execute(sqlalchemy.text("SELECT way FROM x")).scalar() == "SQLAlchemy"
            engine.dispose()
            with connect(cluster.nodes[0].database) as by_path:
                by_path.execute("CREATE TEMP TABLE x AS SELECT 'path' AS way")
                assert by_path.execute("SELECT way FROM x").value() == "path"
            assert db.execute("SELECT way FROM x").value() == "native"
        http = f"http://127.0.0.1:{cluster.nodes[0].http_port}"
        first = pipeline(http, "CREATE TEMP TABLE x(way)", "INSERT INTO x VALUES ('libsql')", "SELECT way FROM x")
        kinds = [one["type"] for one in first["results"]]
        assert kinds == ["ok"] * 3, first
        second = pipeline(http, "BEGIN", "DELETE FROM x", "ROLLBACK", "SELECT way FROM x", baton=first["baton"])
        assert second["results"][3]["response"]["result"]["rows"] == [[{"type": "text", "value": "libsql"}]]


async def test_loss_of_the_node_raises_temporary_lost_error(cluster: LocalCluster) -> None:
    """The session gets one error about its lost TEMP objects, at the next node, and continues there."""
    await ready(cluster)
    async with open_client(cluster.url(0)) as client:
        await filled(client)
        await client.execute("CREATE TEMP TABLE x(a)")
        send_signal(cluster.nodes[0], signal.SIGKILL)
        with pytest.raises(TemporaryLostError, match="make the objects again"):
            await client.execute("INSERT INTO x VALUES (1)")
        assert await all_of(client, "SELECT count(*) FROM t") == [(10,)]
        await client.execute("CREATE TEMP TABLE x(a)")
        await client.execute("INSERT INTO x SELECT a FROM t")
        assert await all_of(client, "SELECT count(*) FROM x") == [(10,)]


async def test_temporary_objects_have_bounds(tmp_path: Path) -> None:
    """A session has bounds for the number, the size and the idle time of its TEMP objects; an error names the key."""
    limits = {"temporary_max": 8, "temporary_bytes_max": 1 << 20, "idle_temporary_ms": 3000}
    with LocalCluster(tmp_path / "one", ("A",), {"limits": limits}).running() as cluster:
        await ready(cluster)
        async with open_client(cluster.url()) as client:
            await filled(client)
            await client.execute("CREATE TEMP TABLE x(a)")
            await client.execute("INSERT INTO x VALUES (1)")
            with pytest.raises(TooLargeError, match="temporary_bytes_max"):
                await client.execute("INSERT INTO x SELECT randomblob(100000) FROM t, t AS u")
            assert await all_of(client, "SELECT count(*) FROM x") == [(1,)]
            async with client.transaction() as transaction:  # it goes on without the statement
                await transaction.execute("INSERT INTO t(a) SELECT a FROM x")
                with pytest.raises(TooLargeError, match="temporary_bytes_max"):
                    await transaction.execute("INSERT INTO x SELECT randomblob(100000) FROM t, t AS u")
                assert (await transaction.execute("SELECT count(*) FROM x")).value() == 1
            await trio.sleep(5)
            with pytest.raises(TemporaryLostError, match="idle_temporary_ms"):
                await client.execute("SELECT * FROM x")
            assert await all_of(client, "SELECT count(*) FROM t") == [(11,)]
        opened = [await trio.to_thread.run_sync(connect, cluster.url()) for _ in range(7)]
        try:
            for one in opened[:6]:
                await trio.to_thread.run_sync(one.execute, "CREATE TEMP TABLE x(a)")
            with pytest.raises(UnavailableError, match="temporary_max"):
                await trio.to_thread.run_sync(lambda: opened[6].execute("CREATE TEMP TABLE x(a)", timeout=1))
        finally:
            for one in opened:
                one.close()


async def test_refused_temporary_objects_get_an_error_with_the_reason(cluster: LocalCluster) -> None:
    """Refused are names of database objects, virtual tables, and changes of the database's schema in a transaction."""
    await ready(cluster)
    async with open_client(cluster.url(0)) as client, open_client(cluster.url(1)) as other:
        await filled(client)
        refused = {
            "CREATE TEMP TABLE t(a)": "the database has an object of this name",
            "CREATE VIRTUAL TABLE temp.f USING fts5(a)": "cannot be temporary",
            "CREATE TEMP TABLE bedrockish_x(a)": "belong to the database itself",
            "CREATE TEMP TRIGGER mine AFTER INSERT ON bedrockish_vote BEGIN SELECT 1; END": "belongs? to the database",
        }
        for sql, why in refused.items():
            with pytest.raises(UnsupportedError, match=why):
                await client.execute(sql)
        await client.execute("CREATE TEMP TABLE x(a)")
        tx = await client.begin()
        await tx.execute("INSERT INTO x VALUES (1)")
        with pytest.raises(UnsupportedError, match="cannot change the schema"):
            await tx.execute("CREATE TABLE u(a)")
        await tx.commit()
        await client.transact(["PRAGMA defer_foreign_keys = ON", "INSERT INTO x VALUES (2)"])
        assert await all_of(client, "SELECT a FROM x") == [(1,), (2,)]
        await other.execute("CREATE TABLE x(a)")
        await level(cluster)
        with pytest.raises(TemporaryLostError, match="an object of this name"):
            await client.execute("SELECT * FROM x")
        assert await all_of(client, "SELECT * FROM x") == []


async def test_temporary_objects_end_with_their_client(cluster: LocalCluster) -> None:
    """The node has dropped the objects, and its file never contained them."""
    await ready(cluster)
    async with open_client(cluster.url(0)) as client:
        await filled(client)
        tx = await client.begin()
        await tx.execute("CREATE TEMP TABLE x AS SELECT * FROM t")
        assert (await status_of(cluster, 0))["open_transactions"] == 1

    async def none() -> bool:
        return not (await status_of(cluster, 0))["open_transactions"]

    await until("the transaction has ended", none)
    with closing(sqlite3.connect(f"file:{cluster.nodes[0].database}?mode=ro", uri=True)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'x'").fetchone() == (0,)
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
