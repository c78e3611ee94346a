"""Known statements of some microseconds, which a program's event loop runs itself instead of in a thread."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import greenlet_spawn

from bedrockish import dbapi
from bedrockish.api.requests import Request
from bedrockish.client.blocking import Connection
from bedrockish.common.pauses import monotonic
from bedrockish.errors import BedrockishError, DeadlineError, UnavailableError
from bedrockish.local import transaction
from bedrockish.local.transaction import LocalTransaction
from bedrockish.local.transactions import LocalTransactions
from bedrockish.sqlalchemy import asynchronous
from tests.local.conftest import BOUND_S
from tools.cluster import LocalCluster, LocalNode

READ, RANGE, UPDATE = (
    "SELECT b FROM {} WHERE id = ?",
    "SELECT id FROM {} WHERE b BETWEEN ? AND 100",
    "UPDATE {} SET b = ? WHERE id = 1",
)


@pytest.fixture
def mine(node: LocalNode, db: Connection, table: str) -> Iterator[dbapi.Connection]:
    """A connection with ``autocommit=False`` that has run the texts of this module before."""
    with closing(dbapi.connect(node.database, autocommit=False)) as made:
        for _ in range(2):
            for sql in (READ, RANGE, UPDATE):
                made.execute(sql.format(table), (10,))
            made.rollback()
            for sql in (RANGE, READ):
                made.execute(sql.format(table), (10,))
            made.commit()
        assert not made.in_transaction
        yield made


def until_begun(db: dbapi.Connection, table: str) -> dbapi.Cursor:
    """Return a cursor that has begun a transaction at once, as soon as the newest snapshot is durable."""
    cursor, until = db.cursor(), monotonic() + BOUND_S
    while not cursor.execute_at_once(READ.format(table), (2,)):
        assert not db.in_transaction
        assert monotonic() < until
    return cursor


def test_known_read_by_key_begins_a_transaction_at_once_and_its_end_needs_no_call(
    mine: dbapi.Connection, other: Connection, table: str
) -> None:
    for commits in (True, False):
        cursor = until_begun(mine, table)
        assert cursor.fetchall() == [(20,)]
        assert [one[0] for one in cursor.description or ()] == ["b"]
        other.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 1")
        assert cursor.execute_at_once(READ.format(table), [1])
        assert cursor.fetchall() == [(10 if commits else 11,)]
        assert mine.in_transaction
        assert mine.end_at_once(commits=commits)
        assert not mine.in_transaction
        mine._link.token = other.token


def test_statement_that_may_take_long_is_left_to_execute(mine: dbapi.Connection, table: str) -> None:
    cursor = mine.cursor()
    for sql, values in (
        (RANGE.format(table), (10,)),
        (UPDATE.format(table), (1,)),
        (f"SELECT max(b) FROM {table}", ()),
        (f"SELECT b FROM {table} WHERE id = 2", ()),
        ("SELEC", ()),
        (READ.format(table), ("\ud800",)),
        (READ.format(table), ()),
    ):
        assert not cursor.execute_at_once(sql, values)
        assert not mine.in_transaction
    cursor = until_begun(mine, table)
    for sql, values in ((RANGE.format(table), (10,)), (f"SELECT max(b) FROM {table}", ()), ("COMMIT", ())):
        assert not cursor.execute_at_once(sql, values)
    assert cursor.fetchall() == [(20,)]
    assert mine.in_transaction
    mine.rollback()


def test_transaction_that_writes_ends_by_a_call(mine: dbapi.Connection, other: Connection, table: str) -> None:
    cursor = until_begun(mine, table)
    assert cursor.execute_at_once(UPDATE.format(table), (7,))
    assert cursor.rowcount == 1
    for commits in (True, False):
        assert not mine.end_at_once(commits=commits)
    other.execute(f"UPDATE {table} SET b = 21 WHERE id = 2")
    with pytest.raises(dbapi.OperationalError, match="has changed"):  # the read that has begun the transaction counts
        mine.commit()
    mine.rollback()


def test_strict_transaction_that_only_reads_is_certified_by_a_call(
    node: LocalNode, mine: dbapi.Connection, other: Connection, table: str
) -> None:
    with closing(dbapi.connect(f"bedrockish:///?local={node.database}&read=strict", autocommit=False)) as strict:
        for _ in range(2):
            strict.execute(READ.format(table), (2,))
            strict.rollback()
        until_begun(strict, table)
        assert not strict.end_at_once(commits=True)
        other.execute(f"UPDATE {table} SET b = 21 WHERE id = 2")
        with pytest.raises(dbapi.OperationalError, match="has changed"):
            strict.commit()
        strict.rollback()


@pytest.mark.parametrize(
    "options", [{"autocommit": True}, {"autocommit": False, "replay": True}, {"isolation_level": None}]
)
def test_other_connections_run_nothing_at_once(
    node: LocalNode, mine: dbapi.Connection, table: str, options: dict[str, Any]
) -> None:
    with closing(dbapi.connect(node.database, **options)) as db:
        cursor = db.cursor()
        for _ in range(3):
            assert not cursor.execute_at_once(READ.format(table), (2,))
            assert cursor.execute(READ.format(table), (2,)).fetchall() == [(20,)]
            assert db.in_transaction is (options.get("autocommit") is False)
            db.rollback()


def test_connection_by_url_runs_nothing_at_once(alone: LocalCluster, db: Connection, table: str) -> None:
    with closing(dbapi.connect(alone.url(), autocommit=False)) as mine:
        cursor = mine.cursor()
        for _ in range(3):
            assert not cursor.execute_at_once(READ.format(table), (2,))
            cursor.execute(READ.format(table), (2,))
            assert not mine.end_at_once(commits=True)
            mine.commit()


def test_first_read_that_fails_leaves_no_transaction_open(
    mine: dbapi.Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "RESULT_BYTES", 10)
    with pytest.raises(dbapi.DataError):
        mine.execute(RANGE.format(table), (10,))
    assert not mine.in_transaction
    monkeypatch.undo()
    assert mine.execute(RANGE.format(table), (10,)).fetchall() == [(1,), (2,)]


def test_first_read_whose_transaction_is_lost_is_repeated(
    mine: dbapi.Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LocalTransaction._run_known
    for kind in (UnavailableError, DeadlineError):
        errors: list[BedrockishError] = [kind("the transaction is over")]

        def fail_once(self: LocalTransaction, *given: Any, _errors: Any = errors, **options: Any) -> Any:
            if _errors:
                raise _errors.pop()
            return original(self, *given, **options)

        with monkeypatch.context() as patch:
            patch.setattr(LocalTransaction, "_run_known", fail_once)
            cursor = mine.cursor()
            if kind is UnavailableError:
                assert cursor.execute(READ.format(table), (2,)).fetchall() == [(20,)]
            else:  # a repetition would take as long again
                with pytest.raises(dbapi.OperationalError, match="is over"):
                    cursor.execute(READ.format(table), (2,))
            assert not errors
            assert mine.in_transaction
            mine.rollback()


def test_first_statement_without_a_recipe_begins_one_transaction(
    mine: dbapi.Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    original = LocalTransactions._begin

    def noted(self: LocalTransactions, request: Request, *, may_wait: bool) -> LocalTransaction | None:
        begun.append(request.command)
        return original(self, request, may_wait=may_wait)

    monkeypatch.setattr(LocalTransactions, "_begin", noted)

    def begins(sql: str) -> int:
        """Return how many transactions a known first statement begins."""
        for _ in range(3):
            begun.clear()
            mine.execute(sql, (2,)).fetchall()
            mine.rollback()
        return len(begun)

    assert begins(f"SELECT b FROM {table} WHERE id = ? AND length(b) > 0") == 1
    assert begins(READ.format(table)) == 1
    mine.create_function("twice", 1, lambda value: 2 * value)
    assert begins(READ.format(table)) == 1


def test_transaction_that_has_moved_to_the_node_ends_by_a_call(mine: dbapi.Connection, table: str) -> None:
    mine.execute(READ.format(table), (2,))
    mine.execute("SELECT transaction_clock()").fetchall()
    for commits in (True, False):
        assert not mine.end_at_once(commits=commits)
    assert mine.in_transaction
    mine.rollback()


def test_known_read_beside_the_end_of_the_transaction_in_another_thread_runs_alone(
    node: LocalNode, mine: dbapi.Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending:
        """A lock that another thread has held to end the transaction."""

        def acquire(self, *_: object, **__: object) -> bool:
            db._lock = lock
            db.commit()
            return lock.acquire()

        def release(self) -> None:
            lock.release()

    with closing(dbapi.connect(node.database)) as db:
        lock = db._lock
        for _ in range(3):
            db.execute("BEGIN")
            db.execute(READ.format(table), (2,))
            db.rollback()
        db.execute("BEGIN")
        monkeypatch.setattr(db, "_lock", Ending())
        assert db.execute(READ.format(table), (2,)).fetchall() == [(20,)]
        assert not db.in_transaction


def test_known_read_that_fails_leaves_no_result(
    mine: dbapi.Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = mine.cursor()
    cursor.execute(READ.format(table), (2,))
    monkeypatch.setattr(transaction, "RESULT_BYTES", 10)
    with pytest.raises(dbapi.DataError):
        cursor.execute(RANGE.format(table), (10,))
    assert (cursor.description, cursor.rowcount, cursor.fetchall()) == (None, -1, [])
    mine.rollback()


# -- SQLAlchemy's asyncio ------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the calls that SQLAlchemy's connections have made in threads."""
    found: list[str] = []
    original = asynchronous._threads.run

    async def noted(call: Callable[..., Any], *arguments: Any) -> Any:
        found.append(call.__name__)
        return await original(call, *arguments)

    monkeypatch.setattr(asynchronous._threads, "run", noted)
    return found


def on_asyncio(node: LocalNode, table: str, work: Callable[[AsyncEngine], Coroutine[Any, Any, None]]) -> None:
    """Run a function with an engine on the node's file whose connection knows ``READ``."""

    async def run() -> None:
        engine = create_async_engine(f"bedrockish:///{node.database}")
        try:
            for _ in range(3):
                assert await read(engine, table) == 20
            await work(engine)
        finally:
            await engine.dispose()

    asyncio.run(run())


async def read(engine: AsyncEngine, table: str) -> Any:
    async with engine.connect() as connection:
        return (await connection.execute(text(f"SELECT b FROM {table} WHERE id = :id"), {"id": 2})).scalar()


async def read_until(engine: AsyncEngine, table: str, until: float) -> None:
    while monotonic() < until:
        await read(engine, table)


def test_transaction_of_a_known_read_makes_no_call_in_a_thread(
    node: LocalNode, db: Connection, table: str, calls: list[str]
) -> None:
    async def work(engine: AsyncEngine) -> None:
        until = monotonic() + BOUND_S
        while monotonic() < until:
            calls.clear()
            assert await read(engine, table) == 20
            if not calls:
                return
        raise AssertionError("each transaction makes calls in threads")

    on_asyncio(node, table, work)


def test_tasks_run_and_are_cancelled_between_known_reads(node: LocalNode, db: Connection, table: str) -> None:
    async def work(engine: AsyncEngine) -> None:
        ended = asyncio.Event()

        async def other() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            ended.set()

        task, until = asyncio.create_task(other()), monotonic() + BOUND_S
        while not ended.is_set():
            assert await read(engine, table) == 20
            assert monotonic() < until
        await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read_until(engine, table, until), 0.1)
        assert await read(engine, table) == 20

    on_asyncio(node, table, work)


def test_tasks_run_between_uses_of_connections_without_statements(node: LocalNode, db: Connection, table: str) -> None:
    async def work(engine: AsyncEngine) -> None:
        async def take_and_return() -> None:
            until = monotonic() + BOUND_S
            while monotonic() < until:
                connection = await engine.connect()
                await connection.close()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(take_and_return(), 0.1)

    on_asyncio(node, table, work)


def test_statement_that_fails_in_the_loop_leaves_no_rows() -> None:
    class Failing:
        """A cursor that knows its first statement, and fails in the second one."""

        runs = 0

        def execute_at_once(self, sql: str, parameters: Any) -> bool:
            self.runs += 1
            if self.runs > 1:
                raise dbapi.DataError("the result is too large")
            return True

        def fetchall(self) -> list[Any]:
            return [(1,)]

    async def work() -> None:
        def run() -> None:
            cursor = asynchronous.AsyncCursor(Failing())
            cursor.execute("SELECT 1")
            with pytest.raises(dbapi.DataError):
                cursor.execute("SELECT 2")
            assert cursor.fetchall() == []

        await greenlet_spawn(run)

    asyncio.run(work())
