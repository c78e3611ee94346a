"""A fork while connections are open: each process gets its own answers, and neither ends the other's transactions."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy
import trio
from sqlalchemy.ext.asyncio import create_async_engine

import bedrockish.dbapi
from bedrockish import ClientClosedError, connect, connect_pool, open_client
from tests.cluster.story import ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster
CHILDREN, CALLS = 3, 25


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = LocalCluster(tmp_path_factory.mktemp("fork") / "one", ("A",))
    cluster.write_files()
    try:
        cluster.nodes[0].start()
        trio.run(ready, cluster)
        with connect(cluster.url(options="/?timeout=40")) as db:
            db.execute("CREATE TABLE w(who TEXT PRIMARY KEY)")
        yield cluster.url(options="/?timeout=40")
    finally:
        cluster.stop()


def in_child(action: Callable[[], Any]) -> Callable[[], Any]:
    """Run an action in a forked child; return a function that waits for it, and returns its result or exception."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            told = {"value": action()}
        except BaseException as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.close(write)

    def wait() -> Any:
        with os.fdopen(read) as pipe:
            told = json.load(pipe)
        os.waitpid(pid, 0)
        assert "error" not in told, told
        return told["value"]

    return wait


Ask = Callable[[str, tuple[Any, ...]], Any]


def asks_itself(ask: Ask, who: str) -> int:
    """Read and write, and return how many answers were another process's."""
    wrong = 0
    for number in range(CALLS):
        mine = f"{who} {number} {time.monotonic_ns()}"
        wrong += ask("SELECT ?", (mine,)) != mine
        wrong += ask("INSERT INTO w VALUES (?) RETURNING who", (mine,)) != mine
    return wrong


def native(url: str) -> Iterator[Ask]:
    with connect(url) as db:
        yield lambda sql, params: db.execute(sql, params).value()


def pooled(url: str) -> Iterator[Ask]:
    pool = connect_pool(url, size=2)

    def ask(sql: str, params: tuple[Any, ...]) -> Any:
        with pool.connection() as db:
            return db.execute(sql, params).value()

    yield ask
    pool.close()


def dbapi(url: str) -> Iterator[Ask]:
    db = bedrockish.dbapi.connect(url, isolation_level=None)
    yield lambda sql, params: db.execute(sql, params).fetchone()[0]
    db.close()


def alchemy(url: str) -> Iterator[Ask]:
    engine = sqlalchemy.create_engine(url, pool_size=1, max_overflow=0)

    def ask(sql: str, params: tuple[Any, ...]) -> Any:
        with engine.begin() as connection:
            return connection.exec_driver_sql(sql, params).scalar()

    yield ask
    engine.dispose()


def alchemy_async(url: str) -> Iterator[Ask]:
    engine = create_async_engine(url, pool_size=1, max_overflow=0)

    async def asked(sql: str, params: tuple[Any, ...]) -> Any:
        async with engine.begin() as connection:
            return (await connection.exec_driver_sql(sql, params)).scalar()

    yield lambda sql, params: asyncio.run(asked(sql, params))
    asyncio.run(engine.dispose())


@pytest.mark.parametrize("interface", [native, pooled, dbapi, alchemy, alchemy_async])
def test_forked_children_and_their_parent_get_their_own_answers(
    url: str, interface: Callable[[str], Iterator[Ask]]
) -> None:
    interfaces = interface(url)
    ask = next(interfaces)
    assert ask("SELECT ?", ("before",)) == "before"
    children = [in_child(partial(asks_itself, ask, f"{interface.__name__} child {n}")) for n in range(CHILDREN)]
    assert asks_itself(ask, f"{interface.__name__} parent") == 0
    assert [child() for child in children] == [0] * CHILDREN
    assert ask("SELECT ?", ("after",)) == "after"
    with connect(url) as db:
        count = db.execute(
            "SELECT count(*) FROM w WHERE who LIKE ?", (f"{interface.__name__} %",), read="strict"
        ).value()
    assert count == CALLS * (CHILDREN + 1)
    assert next(interfaces, None) is None


def test_child_neither_continues_nor_ends_a_transaction_of_the_parent(url: str) -> None:
    with connect(url) as db:
        tx = db.begin()
        tx.execute("INSERT INTO w VALUES ('tx')")

        def child() -> list[str]:
            told: list[str] = []
            acts: tuple[Callable[[], object], ...] = (lambda: tx.execute("INSERT INTO w VALUES ('child')"), tx.commit)
            for act in acts:
                try:
                    act()
                except ClientClosedError as error:
                    told.append(str(error))
            tx.rollback()
            told.append(str(db.execute("SELECT count(*) FROM w WHERE who IN ('tx', 'child')").value()))
            db.close()
            return told

        told = in_child(child)()
        assert [("belongs to the parent process" in one) for one in told[:2]] == [True, True]
        assert told[2] == "0"
        tx.execute("INSERT INTO w VALUES ('tx 2')")
        tx.commit()
        assert db.execute("SELECT count(*) FROM w WHERE who IN ('tx', 'tx 2', 'child')").value() == 2


def test_open_transaction_of_the_dbapi_stays_with_the_parent(url: str) -> None:
    db = bedrockish.dbapi.connect(url)
    db.execute("INSERT INTO w VALUES ('dbapi tx')")

    def child() -> str:
        try:
            db.execute("INSERT INTO w VALUES ('dbapi child')")
        except bedrockish.dbapi.ProgrammingError as error:
            db.rollback()
            assert db.execute("SELECT count(*) FROM w WHERE who LIKE 'dbapi %'").fetchone() is not None
            db.close()
            return str(error)
        return "it went through"

    assert "belongs to the parent process" in in_child(child)()
    db.commit()
    assert db.execute("SELECT count(*) FROM w WHERE who IN ('dbapi tx', 'dbapi child')").fetchone() == (1,)
    db.close()


def test_a_lock_that_another_thread_held_does_not_stop_the_child(url: str) -> None:
    pool = connect_pool(url, size=1)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with pool.connection() as db, db._client._lock:
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)

    def child() -> int:
        with pool.connection(timeout=40) as db:
            return int(db.execute("SELECT 7").value())

    wait = in_child(child)
    over.set()
    thread.join()
    assert wait() == 7
    with pool.connection() as db:
        assert db.execute("SELECT 8").value() == 8
    pool.close()


def test_a_trio_client_refuses_calls_in_a_child(url: str) -> None:
    async def main() -> None:
        async with open_client(url) as client:
            await client.execute("SELECT 1")

            def child() -> str:
                try:
                    client._begin(None, 1.0)  # type: ignore[arg-type]
                except ClientClosedError as error:
                    return str(error)
                return "it went through"

            wait = in_child(child)
            assert "opened before a fork" in await trio.to_thread.run_sync(wait)
            assert (await client.execute("SELECT 2")).value() == 2

    trio.run(main)
