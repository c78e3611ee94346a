"""Transactions that change the schema and rows, on three real nodes under load, and with one that dies."""

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

import bedrockish.dbapi as db
from bedrockish import open_client
from bedrockish.client.transaction import Transaction
from bedrockish.errors import BedrockishError, ConflictError, ConstraintError
from bedrockish_journal.verify.replay import replay
from tests.cluster.schema_load import Load
from tests.cluster.story import PATIENT, all_safe, heard, judge_copy, judge_files, level, ready, rows, until
from tests.cluster.test_mirror import judge_mirror, mirror_of_the_page
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster


def make_anew(url: str, number: int, of: str) -> None:
    """Rebuild ``account`` with one more column, as Django's schema editor does on SQLite; note it in a table."""
    connection = db.connect(url)
    try:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("BEGIN")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(account)")]
        kept = ", ".join(columns)
        connection.execute(
            'CREATE TABLE "new__account"(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance > -1000000), '
            f"note TEXT{''.join(f', {name}' for name in columns[3:])}, {of} DEFAULT 0)"
        )
        connection.execute(f'INSERT INTO "new__account" ({kept}, {of}) SELECT {kept}, id * {number} FROM account')
        connection.execute("DROP TABLE account")
        connection.execute('ALTER TABLE "new__account" RENAME TO account')
        connection.execute(f"CREATE INDEX by_{of} ON account({of})")
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        cursor = connection.execute(
            "INSERT INTO migration(name, number) VALUES (?, ?) RETURNING id", (f"it's {of}", number)
        )
        assert len(cursor.fetchall()) == 1
        connection.commit()
        connection.execute("PRAGMA foreign_keys = ON")
        assert connection.execute(f"SELECT {of} FROM account WHERE id = 10").fetchone() == (10 * number,)
    finally:
        connection.close()


async def test_tables_are_rebuilt_while_others_write_them(cluster: LocalCluster, tmp_path: Path) -> None:
    """No transaction of a client fails; all copies, replays and the mirror are the same in the end."""
    await ready(cluster)
    load = Load(cluster)
    await load.prepare()
    async with open_client(cluster.url(0)) as client:
        await client.execute("CREATE TABLE migration(id INTEGER PRIMARY KEY AUTOINCREMENT, name, number REAL)")
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(load.write, number)
        for index in range(3):
            url = cluster.url(index, only=True, options=PATIENT)
            await trio.to_thread.run_sync(make_anew, url, index + 1, f"c{index}")
            await heard(cluster, index)
        await _lost_and_run_again(cluster)
        await _sent_twice(cluster)
        await _takes_long(cluster)
        load.stopping = True
    assert load.failures == []
    await level(cluster)
    async with open_client(cluster.url(1)) as client:
        assert (
            await client.execute("SELECT count(*) FROM event LEFT JOIN account USING (id) WHERE balance IS NULL")
        ).rows
    mirror = tmp_path / "mirror.db"
    await all_safe(cluster)
    await trio.to_thread.run_sync(lambda: mirror_of_the_page()(cluster.url(2), mirror, follow=False))
    cluster.stop()
    judge_files(cluster)
    paths = [node.database for node in cluster.nodes]
    judge_mirror(mirror, paths[0])
    for seed in range(3, 6):
        replayed = tmp_path / f"replayed-{seed}.sqlite"
        replay(paths, replayed, draw=Random(seed).random)
        judge_copy(replayed, paths[0])
    names = rows(cluster.nodes[1], "SELECT name, number FROM migration ORDER BY id")
    assert names == [("it's c0", 1.0), ("it's c1", 2.0), ("it's c2", 3.0), ("twice", 0.0)]
    history = [rows(node, "SELECT * FROM bedrockish_schema ORDER BY version") for node in cluster.nodes]
    assert history[0] == history[1] == history[2]


async def _lost_and_run_again(cluster: LocalCluster) -> None:
    """Check that a migration has no effect and runs again if a row that it read changes before its activation."""
    runs: list[Any] = []
    async with open_client(cluster.url(0, only=True)) as client, open_client(cluster.url(1, only=True)) as other:
        await other.execute("CREATE TABLE quiet(id INTEGER PRIMARY KEY, n)")
        await other.execute("INSERT INTO quiet VALUES (1, 0)")
        client.token = other.token

        async def migrate(tx: Transaction) -> None:
            await tx.execute("CREATE TABLE total(n)")
            runs.append((await tx.execute("SELECT sum(n) FROM quiet")).value())
            await tx.execute("INSERT INTO total VALUES (?)", [runs[-1]])
            if len(runs) == 1:
                await other.execute("UPDATE quiet SET n = 5")

        await client.run_transaction(migrate, timeout=40)
        assert runs == [0, 5]
        assert (await client.execute("SELECT n FROM total")).rows == [(5,)]
        tx = await client.begin()
        await tx.execute("SELECT n FROM quiet")  # a read before the schema change
        await tx.execute("ALTER TABLE quiet ADD COLUMN more")
        await other.execute("UPDATE quiet SET n = 6")
        with pytest.raises(ConflictError):
            await tx.commit()
        with pytest.raises(ConstraintError):
            await client.transact(["CREATE TABLE one(n UNIQUE)", "INSERT INTO one VALUES (1), (1)"])
        async with client.transaction() as tx:
            await tx.execute("CREATE TABLE one(n UNIQUE)")
            await tx.execute("INSERT INTO one VALUES (1)")
            with pytest.raises(ConstraintError):
                await _spoil(tx)
        other.token = client.token
        assert (await other.execute("SELECT n FROM one")).rows == [(1,)]


async def _spoil(tx: Transaction) -> None:
    async with tx.savepoint():
        await tx.execute("INSERT INTO one VALUES (2)")
        await tx.execute("INSERT INTO one VALUES (1)")


async def _takes_long(cluster: LocalCluster) -> None:
    """Check that a migration over the loop's budget runs in a worker, and then on every node."""
    many = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT ?) INSERT INTO long SELECT i FROM k"
    async with open_client(cluster.url(1, only=True, options=PATIENT)) as client:
        await client.transact(["CREATE TABLE long(x)", (many, [100_000])])
        assert (await client.execute("SELECT count(*) FROM long")).value() == 100_000


async def _sent_twice(cluster: LocalCluster) -> None:
    """Check that a command that two nodes receive is executed once, and that both give the same answer."""
    statements = ["CREATE TABLE once(x)", "INSERT INTO migration(name, number) VALUES ('twice', 0) RETURNING id"]
    answers = []
    for index in (2, 0):
        async with open_client(cluster.url(index, only=True)) as client:
            answers.append((await client.transact(list(statements), command="once-and-for-all"))[1].rows)
    assert answers[0] == answers[1]


async def test_leader_dies_between_commit_and_activation_of_a_schema_change(tmp_path: Path) -> None:
    """The change is decided, so it comes into force at the others, and at the dead node after its restart."""
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.write_files()
    for node in cluster.nodes:
        with node.config.open("a") as config:
            config.write("\n[timings]\nschema_delay_ms = 400\n")
    try:
        for node in cluster.nodes:
            node.start()
        await ready(cluster)
        await _dies(cluster)
    finally:
        cluster.stop()


async def _dies(cluster: LocalCluster) -> None:
    async with open_client(cluster.url(1)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        await client.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    await level(cluster)

    async def migrate() -> None:
        async with open_client(cluster.url(0, only=True, options="/?timeout=3")) as client:
            with contextlib.suppress(BedrockishError):
                async with client.transaction() as tx:
                    await tx.execute("CREATE TABLE u(id INTEGER PRIMARY KEY, n INTEGER)")
                    await tx.execute("INSERT INTO u SELECT id, n + ? FROM t", [10])
                    await tx.execute("DROP TABLE t")

    async with trio.open_nursery() as nursery, open_client(cluster.url(2, only=True)) as other:
        nursery.start_soon(migrate)

        async def decided() -> bool:
            query = "SELECT count(*) FROM bedrockish_schema WHERE version = 2"
            return bool((await other.execute(query, read="stale")).value())

        await until("the change is decided", decided)
        cluster.nodes[0].kill()

        async def in_force() -> bool:
            try:
                return bool((await other.execute("SELECT sum(n) FROM u")).value() == 23)
            except BedrockishError:
                return False

        await until("it is in force at the others", in_force)
    cluster.nodes[0].start()
    await ready(cluster)
    await level(cluster)
    async with open_client(cluster.url(0, only=True)) as client:
        await client.execute("INSERT INTO u(n) VALUES (0)")
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    assert rows(cluster.nodes[0], "SELECT n FROM u ORDER BY n") == [(0,), (11,), (12,)]
