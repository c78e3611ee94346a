"""SQLAlchemy's asyncio on a node, and transactions that run again, on the kind of loop that FastAPI has."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio
from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table, create_engine, inspect, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload, sessionmaker
from sqlalchemy.pool import NullPool

from bedrockish.sqlalchemy import run_transaction, run_transaction_async
from bedrockish.sqlalchemy.again import MADE_MAX, repeated
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster


class Base(DeclarativeBase):
    """The tables of these tests."""


class Owner(Base):
    __tablename__ = "owner"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String, unique=True)
    pets: Mapped[list["Pet"]] = relationship(back_populates="owner")


class Pet(Base):
    __tablename__ = "pet"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    owner_id: Mapped[int] = mapped_column(ForeignKey("owner.id"))
    owner: Mapped[Owner] = relationship(back_populates="pets")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("node") / "node", ("A",)) as running:
        trio.run(running.wait_ready, 0)
        yield running


def on_asyncio(cluster: LocalCluster, work: Callable[[AsyncEngine], Coroutine[Any, Any, None]]) -> None:
    """Run a function with a new engine and empty tables on asyncio's loop."""

    async def run() -> None:
        engine = create_async_engine(cluster.url(options="/?read=strict"))
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)
            await connection.run_sync(Base.metadata.create_all)
        try:
            await work(engine)
        finally:
            await engine.dispose()

    asyncio.run(run())


def test_sqlalchemy_orm_works_on_asyncio(cluster: LocalCluster) -> None:
    """Objects are stored and loaded with relations, a failed block is rolled back, and errors have their classes."""

    async def work(engine: AsyncEngine) -> None:
        make = async_sessionmaker(engine, expire_on_commit=False)
        async with make.begin() as session:
            session.add(Owner(name="Ann", pets=[Pet(name="Rex"), Pet(name="Tom")]))
        async with make() as session:
            query = select(Owner).options(selectinload(Owner.pets))
            (ann,) = (await session.scalars(query)).all()
            assert sorted(pet.name for pet in ann.pets) == ["Rex", "Tom"]
        with pytest.raises(IntegrityError):
            async with make.begin() as session:
                session.add(Owner(name="Ann"))
        with pytest.raises(ZeroDivisionError):
            await fails(make)
        async with make() as session:
            assert (await session.scalars(select(Owner.name))).all() == ["Ann"]

    on_asyncio(cluster, work)


def test_a_result_is_read_after_its_connection_was_closed(cluster: LocalCluster) -> None:
    """As with other drivers for asyncio: a pool may close the connection as soon as the transaction has ended."""

    async def work(engine: AsyncEngine) -> None:
        alone = create_async_engine(engine.url, poolclass=NullPool)
        async with AsyncSession(alone, expire_on_commit=False) as session:
            session.add_all([Owner(name="Ann"), Owner(name="Bob"), Owner(name="Cleo")])
            await session.commit()
            found = [await session.execute(text("SELECT name FROM owner ORDER BY name")) for _ in range(3)]
            await session.commit()
            assert found[0].scalars().all() == ["Ann", "Bob", "Cleo"]
            assert found[1].first() == ("Ann",)
            assert [found[2].fetchone(), *found[2].fetchmany(5)] == [("Ann",), ("Bob",), ("Cleo",)]
        await alone.dispose()

    on_asyncio(cluster, work)


def test_tasks_that_wait_for_the_write_lock_leave_a_thread_for_its_holder(cluster: LocalCluster) -> None:
    """Also if asyncio has a single thread for all calls of the program."""

    async def work(_: AsyncEngine) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        by_file = f"bedrockish:///{cluster.nodes[0].database}?write_lock=yes&timeout=5"
        engine = create_async_engine(by_file, pool_size=8)

        async def add(number: int) -> None:
            async with AsyncSession(engine) as session:
                session.add(Owner(name=f"Owner {number}"))
                await session.flush()  # has the lock from here on
                await asyncio.sleep(0.01)
                await session.commit()

        await asyncio.gather(*(add(number) for number in range(8)))
        await engine.dispose()

    on_asyncio(cluster, work)


async def fails(make: async_sessionmaker[AsyncSession]) -> None:
    async with make.begin() as session:
        session.add(Owner(name="Ben"))
        await session.flush()
        raise ZeroDivisionError


def test_tasks_of_sqlalchemy_do_not_block_the_asyncio_loop(cluster: LocalCluster) -> None:
    """Many sessions at once, each in a task: the loop is never held."""

    async def work(engine: AsyncEngine) -> None:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        async def insert(number: int) -> None:
            async with engine.begin() as connection:
                await connection.execute(text("INSERT INTO owner(name) VALUES (:name)"), {"name": f"n{number}"})

        beating = asyncio.create_task(beat())
        await asyncio.gather(*(insert(number) for number in range(20)))
        beating.cancel()
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM owner"))).scalar() == 20
        assert beats > 5

    on_asyncio(cluster, work)


def test_sqlalchemy_asyncio_streams_a_result(cluster: LocalCluster) -> None:
    """Rows come as they are fetched, in bounded memory."""

    async def work(engine: AsyncEngine) -> None:
        many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT i FROM n"
        async with engine.connect() as connection:
            total = 0
            async with connection.stream(text(many)) as rows:
                async for (number,) in rows:
                    total += number
            assert total == 20_000 * 20_001 // 2

    on_asyncio(cluster, work)


def test_cancelled_sqlalchemy_task_rolls_its_transaction_back(cluster: LocalCluster) -> None:
    """The connection is not used again, and its uncommitted changes are rolled back."""

    async def work(engine: AsyncEngine) -> None:
        began = asyncio.Event()

        async def slow() -> None:
            async with engine.begin() as connection:
                await connection.execute(text("INSERT INTO owner(name) VALUES ('never')"))
                began.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(slow())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with AsyncSession(engine) as session:
            assert (await session.scalars(select(Owner.name))).all() == []

    on_asyncio(cluster, work)


@pytest.mark.parametrize("by_session", [True, False])
def test_lost_transaction_runs_again(cluster: LocalCluster, *, by_session: bool) -> None:
    """With a sessionmaker and with an engine; an error that a retry cannot help is raised at once."""
    engine = create_engine(cluster.url(options="/?read=strict"))
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    other = create_engine(cluster.url(options="/?read=strict"))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO owner(id, name) VALUES (1, 'a')"))
    seen: list[str] = []

    def rename(session: Any) -> str:
        name: str = session.execute(text("SELECT name FROM owner WHERE id = 1")).scalar()
        seen.append(name)
        if len(seen) == 1:
            with other.begin() as rival:
                rival.execute(text("UPDATE owner SET name = 'b' WHERE id = 1"))
        session.execute(text("UPDATE owner SET name = :name WHERE id = 1"), {"name": name + "!"})
        return name

    maker: Any = sessionmaker(engine) if by_session else engine
    assert run_transaction(maker, rename) == "b"
    assert seen == ["a", "b"]
    with Session(engine) as session:
        assert session.scalars(select(Owner.name)).all() == ["b!"]
    tries = []

    def wrong(session: Any) -> None:
        tries.append(1)
        session.execute(text("SELECT * FROM nowhere"))

    with pytest.raises(OperationalError, match="no such table"):
        run_transaction(maker, wrong)
    assert tries == [1]
    engine.dispose()
    other.dispose()


@pytest.mark.parametrize("by_session", [True, False])
def test_lost_transaction_on_asyncio_runs_again(cluster: LocalCluster, *, by_session: bool) -> None:
    """With an async_sessionmaker and with an engine; what trying again cannot help is raised at once."""

    async def work(engine: AsyncEngine) -> None:
        maker: Any = async_sessionmaker(engine) if by_session else engine
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO owner(id, name) VALUES (1, 'a')"))
        seen: list[str] = []

        async def rename(session: Any) -> str:
            name: str = (await session.execute(text("SELECT name FROM owner WHERE id = 1"))).scalar()
            seen.append(name)
            if len(seen) == 1:
                async with engine.begin() as rival:
                    await rival.execute(text("UPDATE owner SET name = 'b' WHERE id = 1"))
            await session.execute(text("UPDATE owner SET name = :name WHERE id = 1"), {"name": name + "!"})
            return name

        assert await run_transaction_async(maker, rename) == "b"
        assert seen == ["a", "b"]
        tries = []

        async def wrong(session: Any) -> None:
            tries.append(1)
            await session.execute(text("SELECT * FROM nowhere"))

        with pytest.raises(OperationalError, match="no such table"):
            await run_transaction_async(maker, wrong)
        assert tries == [1]
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT name FROM owner"))).scalars().all() == ["b!"]

    on_asyncio(cluster, work)


def test_tasks_that_update_one_row_all_succeed(cluster: LocalCluster) -> None:
    """Each adds one to the value that it read; none is lost and none is applied twice."""

    async def work(engine: AsyncEngine) -> None:
        maker = async_sessionmaker(engine)
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO owner(id, name) VALUES (1, '0')"))

        async def add(session: AsyncSession) -> None:
            owner = await session.get(Owner, 1)
            assert owner is not None
            owner.name = str(int(owner.name) + 1)

        await asyncio.gather(*(run_transaction_async(maker, add) for _ in range(12)))
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT name FROM owner"))).scalar() == "12"

    on_asyncio(cluster, work)


def test_a_transaction_on_asyncio_gives_up_in_time(cluster: LocalCluster) -> None:
    """The error is that of the last attempt, and its writes are rolled back."""

    async def work(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO owner(id, name) VALUES (1, 'a')"))

        async def loses(session: AsyncSession) -> None:
            await session.execute(text("SELECT name FROM owner"))
            async with engine.begin() as rival:
                await rival.execute(text("UPDATE owner SET name = name || 'x'"))
            await session.execute(text("INSERT INTO owner(name) VALUES ('never')"))

        with pytest.raises(OperationalError) as failed:
            await run_transaction_async(async_sessionmaker(engine), loses, timeout=0.5)
        assert getattr(failed.value.orig, "retry", False)
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM owner WHERE name = 'never'"))).scalar() == 0

    on_asyncio(cluster, work)


def test_create_all_of_many_processes_makes_each_table_once(cluster: LocalCluster) -> None:
    """Workers of a web server start like this: each finds all tables, and none gets an error."""
    tables = MetaData()
    for number in range(5):
        Table(f"made{number}", tables, Column("id", Integer, primary_key=True), Column("x", String, index=True))
    ready = threading.Barrier(4)

    def begin() -> list[str]:
        engine = create_engine(cluster.url())
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        ready.wait(60)
        tables.create_all(engine)
        made = [name for name in inspect(engine).get_table_names() if name in tables.tables]
        engine.dispose()
        return made

    with ThreadPoolExecutor(4) as workers:
        found = [worker.result(60) for worker in [workers.submit(begin) for _ in range(4)]]
    assert found == [sorted(tables.tables)] * 4
    engine = create_engine(cluster.url())
    tables.drop_all(engine)
    engine.dispose()


def test_create_all_of_many_tasks_makes_each_table_once(cluster: LocalCluster) -> None:
    """On asyncio ``create_all`` is part of a transaction, which is executed again."""

    async def work(engine: AsyncEngine) -> None:
        tables = MetaData()
        Table("task_made", tables, Column("id", Integer, primary_key=True))

        async def create(connection: AsyncConnection) -> None:
            await connection.run_sync(tables.create_all)

        await asyncio.gather(*(run_transaction_async(engine, create) for _ in range(4)))
        async with engine.begin() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM task_made"))).scalar() == 0
            await connection.run_sync(tables.drop_all)

    on_asyncio(cluster, work)


def test_create_all_of_an_existing_table_fails_soon() -> None:
    """A lookup finds the table again, so no other client created it in between."""
    tried = []

    def make() -> None:
        tried.append(1)
        raise DBAPIError("CREATE TABLE t(x)", {}, Exception("table t already exists"))

    with pytest.raises(DBAPIError, match="already exists"):
        repeated(make)
    assert len(tried) == MADE_MAX + 1
