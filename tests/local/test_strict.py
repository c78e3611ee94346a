"""Strict reads of a node's file: executed in the program, certified by the node with one call."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

import bedrockish
from bedrockish import dbapi
from bedrockish.api.requests import Request
from bedrockish.api.wire import COMMIT, Ask, Step
from bedrockish.client.blocking import Connection
from bedrockish.client.sansio.effects import Send
from bedrockish.errors import BedrockishError, ConflictError, SqlError, UnavailableError, UnsupportedError
from bedrockish.local.prepared import decode_prepared
from tests.local.conftest import interrupted
from tools.cluster import LocalCluster, LocalNode, local_cluster


@pytest.fixture
def db(node: LocalNode, table: str) -> Iterator[Connection]:
    with bedrockish.connect(f"bedrockish:///?local={node.database}&read=strict") as made:
        made.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)")
        made.execute(f"INSERT INTO {table} VALUES (1, 10), (2, 20)")
        yield made


@pytest.fixture
def calls(db: Connection, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the session's calls to its node, except those for members and ids."""
    made: list[Any] = []
    plain = db._client._call

    async def noted(what: Any, timeout_s: float) -> Any:
        if not isinstance(what, Ask):
            made.append(what)
        return await plain(what, timeout_s)

    monkeypatch.setattr(db._client, "_call", noted)
    return made


def test_node_certifies_keys_of_the_programs_reads(db: Connection, calls: list[Any], table: str) -> None:
    assert db.execute(f"SELECT a FROM {table} WHERE id = ?", (2,)).rows == [(20,)]
    assert [(type(one), one.op, one.request.statements) for one in calls] == [(Step, COMMIT, ())]
    prepared = decode_prepared(calls[0].prepared)
    assert prepared.readonly
    assert len(prepared.access_set.read_points) == 1
    calls.clear()
    first, second = db.transact([f"SELECT count(*) FROM {table}", f"WITH x AS (SELECT 5) SELECT * FROM x, {table}"])
    assert (first.value(), second.columns, len(second)) == (2, ("5", "id", "a"), 2)
    assert len(calls) == 1, "several statements are certified together"


def test_strict_read_by_path_runs_again_if_a_commit_overtakes_it(
    db: Connection, calls: list[Any], alone: LocalCluster, table: str
) -> None:
    steps = db._client.local_steps
    assert steps is not None
    plain, done = steps.transactions.read, list[int]()
    with bedrockish.connect(alone.url()) as other:

        def overtaken(request: Request) -> Any:
            found = plain(request)
            if not done:
                done.append(1)
                other.execute(f"UPDATE {table} SET a = a + 1 WHERE id = 1")
            return found

        steps.transactions.read = overtaken  # type: ignore[method-assign]
        assert db.execute(f"SELECT a FROM {table} WHERE id = 1").value() == 11
        assert [one.op for one in calls] == [COMMIT, COMMIT]
        calls.clear()
        done.clear()
        assert db.execute(f"SELECT a FROM {table} WHERE id = 2").value() == 20
        assert len(calls) == 1, "the row that was changed is another one"


def test_row_of_another_node_is_seen_as_soon_as_it_is_acknowledged(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "three", ("A", "B", "C")) as cluster:
        trio.run(cluster.wait_ready, 0)
        path = cluster.nodes[0].database
        with bedrockish.connect(path) as db, bedrockish.connect(cluster.url(1, only=True)) as far:
            far.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
            far.execute("INSERT INTO t VALUES (1, 0)")
            for number in range(1, 60):
                far.execute("UPDATE t SET a = ? WHERE id = 1", (number,))
                assert db.execute("SELECT a FROM t WHERE id = 1", read="strict").value() == number
                far.execute("INSERT INTO t VALUES (?, 0)", (number + 1,))
                assert db.execute("SELECT count(*) FROM t WHERE id > 0", read="strict").value() == number + 1


def test_reads_of_a_hot_row_never_go_back(db: Connection, alone: LocalCluster, table: str) -> None:
    stop, told = threading.Event(), [0]

    def write() -> None:
        with bedrockish.connect(alone.url()) as other:
            while not stop.is_set():
                other.execute(f"UPDATE {table} SET a = a + 1 WHERE id = 1")
                told[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until, last = time.monotonic() + 3, 0
        while time.monotonic() < until or (last == 10 and time.monotonic() < until + 60):
            least = told[0] + 10
            found = db.execute(f"SELECT a FROM {table} WHERE id = 1").value()
            assert found >= max(least, last)
            last = found
    finally:
        stop.set()
        writer.join()
    assert last > 10


def test_function_of_the_program_runs_in_a_strict_read(node: LocalNode, db: Connection, table: str) -> None:
    with closing(dbapi.connect(f"bedrockish:///?local={node.database}&read=strict")) as mine:
        mine.create_function("twice", 1, lambda value: 2 * value)
        assert mine.execute(f"SELECT twice(a) FROM {table} ORDER BY id").fetchall() == [(20,), (40,)]
        mine.create_function("bad", 0, lambda: 1 / 0)
        with pytest.raises(dbapi.OperationalError, match="user-defined function raised"):
            mine.execute(f"SELECT bad() FROM {table}").fetchall()


def test_strict_read_of_the_nodes_own_tables_runs_at_the_node(db: Connection, calls: list[Any], table: str) -> None:
    assert db.execute("SELECT count(*) FROM bedrockish_users").value() == 0
    assert db.execute("SELECT cluster_clock() > 0").value() == 1
    with pytest.raises(SqlError, match="no such column: b"):
        db.execute(f"SELECT b FROM {table}")
    assert all(isinstance(one, Request) for one in calls)
    calls.clear()
    assert db.execute(f"WITH x AS (SELECT 3) INSERT INTO {table} SELECT 3, * FROM x RETURNING a").value() == 3
    assert [type(one) for one in calls] == [Request]


def test_read_whose_node_is_lost_leaves_no_entry(db: Connection, calls: list[Any], table: str) -> None:
    """A COMMIT whose answer is lost is settled by an empty entry. A read has nothing to settle."""
    places = [db.execute(f"INSERT INTO {table} VALUES ({number}, 0)").place for number in (7, 8)]
    before = places[-1]
    calls.clear()
    links = db._client._links
    plain, dropped = db._client._perform, list[int]()

    def perform(effects: list[Any]) -> None:
        plain(effects)
        if calls and isinstance(calls[-1], Step) and not dropped and any(isinstance(one, Send) for one in effects):
            dropped.append(1)
            for link in links.values():
                with socket.socket(fileno=os.dup(link.fileno())) as cut:
                    cut.shutdown(socket.SHUT_RDWR)

    db._client._perform = perform  # type: ignore[method-assign]
    assert db.execute(f"SELECT count(*) FROM {table}").value() == 4
    assert dropped
    assert db._client._core.has_only_read(calls[0].request.command)
    after = db.execute(f"INSERT INTO {table} VALUES (9, 0)").place
    assert before is not None
    assert after is not None
    assert after[1] == before[1] + 1, "nothing was led in between"


def test_snapshot_at_the_level_strict_is_refused(db: Connection, table: str) -> None:
    with pytest.raises(UnsupportedError, match="certified by its read set"), db.snapshot():
        pass
    with db.snapshot(read="session"):
        assert db.execute(f"SELECT count(*) FROM {table}").value() == 2


def test_trio_client_reads_strictly(node: LocalNode, db: Connection, table: str) -> None:
    async def read() -> None:
        async with bedrockish.open_client(node.database) as client:
            for _ in range(3):
                assert (await client.execute(f"SELECT a FROM {table} WHERE id = 1", read="strict")).value() == 10

    trio.run(read)


def test_interrupt_ends_a_read_by_path(db: Connection, table: str) -> None:
    long = f"WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n, {table}"
    with interrupted(db), pytest.raises(BedrockishError) as error:
        db.execute(long)
    assert error.value.details["interrupted"]
    assert not isinstance(error.value, ConflictError | UnavailableError) or error.value.code == "deadline"
