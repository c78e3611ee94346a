"""Virtual tables on three real nodes: kills, damage, repair, replay, backup, join, import and export."""

import json
import random
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import sqlite_utils
import trio

import bedrockish.dbapi
from bedrockish import open_client
from bedrockish.errors import BedrockishError, SqlError
from bedrockish_journal.storage.vector_modules import ModuleConnection
from bedrockish_journal.verify.replay import digest, replay
from tests.cluster.story import all_safe, command, insist, judge_files, level, ready, until
from tests.cluster.test_damage import filled, processes, serving, stop
from tests.cluster.test_damaged_pages import pages, spoil, spoil_at_b
from tests.cluster.test_members import newcomer, voters
from tests.engine.test_virtual_random import SCHEMA_CHANGES, VALUES, texts
from tests.engine.test_virtual_tables import DOCS, INDEX, TRIGGERS
from tests.engine.virtual_pair import check_virtual
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster

NOTES = "CREATE VIRTUAL TABLE notes USING fts5(title, body)"
BOXES = "CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1, +name)"
NEAR = "CREATE VIRTUAL TABLE near USING vec0(e float[2], label TEXT, n INTEGER, +note TEXT)"
CLOSE = "CREATE VIRTUAL TABLE close USING vec1(e, n)"
AREAS = "CREATE VIRTUAL TABLE areas USING geopoly(name)"
WORDS = "CREATE VIRTUAL TABLE words USING fts5vocab('found', 'row')"
AREA = "SELECT rowid, geopoly_json(_shape), name FROM areas ORDER BY rowid"  # Python's sqlite3 may lack geopoly
SEARCHES = (
    "SELECT rowid, round(rank, 9), highlight(found, 0, '<', '>') FROM found('alpha') ORDER BY rank, rowid",
    "SELECT rowid, round(rank, 9) FROM notes('alpha OR beta') ORDER BY rank, rowid",
    "SELECT id, name FROM boxes WHERE x1 < 3 ORDER BY id",
    "SELECT term, doc, cnt FROM words",
    "WITH found AS MATERIALIZED (SELECT rowid, distance, note FROM near WHERE e MATCH '[3,1]' AND k = 900 AND n < 4) "
    "SELECT * FROM found ORDER BY 1",
    "SELECT rowid, n FROM close(vec1_from_json('[3,1]'), '{k: 900}') WHERE n < 4 ORDER BY rowid",
)


OF_SQLITE = 4
"""So many of the searches need no module that is not in SQLite itself."""


async def fill(cluster: LocalCluster, documents: int) -> None:
    await create(cluster)
    await write_at_all(cluster, documents)


async def create(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as client:
        await client.transact([DOCS, INDEX, *TRIGGERS])
        for sql in (NOTES, BOXES, AREAS, WORDS, NEAR, CLOSE):
            await client.execute(sql)
        await client.execute("INSERT INTO close(cmd, arg) VALUES ('rebuild', ?)", ['{index: "flat"}'])


async def write_at_all(cluster: LocalCluster, documents: int, enough: trio.Event | None = None) -> None:
    async with trio.open_nursery() as nursery:
        for index in range(len(cluster.nodes)):
            nursery.start_soon(write, cluster, index, documents, enough)


async def write(cluster: LocalCluster, index: int, documents: int, enough: trio.Event | None) -> None:
    """Write at one node, also while it is killed and restarted, until ``enough`` is set or all rows are written."""
    url = cluster.url(index)
    for number in range(documents // 30):
        if enough is not None and enough.is_set():
            break
        values = ", ".join(f"('alpha {number} {i}', 'beta{i % 7}')" for i in range(10))
        await insist(url, f"INSERT INTO docs(title, body) VALUES {values}", [], f"docs-{index}-{number}")
        await insist(url, f"INSERT INTO notes(title, body) VALUES {values}", [], f"notes-{index}-{number}")
        box = "INSERT INTO boxes(x0, x1, name) VALUES (?, ?, 'n')"
        await insist(url, box, [number / 7, number / 3 + 1], f"boxes-{index}-{number}")
        e = [number / 3 + index, float(number % 5)]
        vector = "INSERT INTO near(e, label, n, note) VALUES (?, ?, ?, 'x')"
        await insist(url, vector, [json.dumps(e), "long label" * (number % 3), number % 6], f"near-{index}-{number}")
        vector = "INSERT INTO close(e, n) VALUES (vec1_from_json(?), ?)"
        await insist(url, vector, [json.dumps(e), number % 6], f"close-{index}-{number}")
        await insist(url, "UPDATE near SET n = n - 1 WHERE rowid % 11 = ?", [number], f"moved-{index}-{number}")
        await insist(url, "UPDATE docs SET title = 'gamma' WHERE id % 13 = ?", [number], f"update-{index}-{number}")
        await insist(url, "DELETE FROM docs WHERE id % 17 = ?", [number], f"delete-{index}-{number}")
    area = "INSERT INTO areas(_shape, name) VALUES ('[[0,0],[1,0],[1,1],[0,0]]', ?)"
    await insist(url, area, [str(index)], f"area-{index}")


async def answers(cluster: LocalCluster, index: int, count: int = len(SEARCHES)) -> list[list[tuple[Any, ...]]]:
    async with open_client(cluster.url(index, only=True)) as client:
        return [list(await client.execute(sql)) for sql in SEARCHES[:count]]


async def judge(cluster: LocalCluster) -> None:
    """Check that all nodes answer alike, and that their files are sound, equal, and equal to the result of a replay."""
    await level(cluster)
    found = [await answers(cluster, index) for index in range(len(cluster.nodes))]
    assert all(one == found[0] for one in found)
    assert all(rows for rows in found[0])
    async with open_client(cluster.url()) as client:
        assert len(list(await client.execute(AREA))) == 3
    await all_safe(cluster)
    cluster.stop()
    judge_files(cluster)
    for node in cluster.nodes:
        judge_database(node.database, found[0])


def judge_database(path: Path, wanted: list[list[tuple[Any, ...]]]) -> None:
    with closing(ModuleConnection(str(path))) as db:
        assert [db.execute(sql).fetchall() for sql in SEARCHES[: len(wanted)]] == wanted
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if list(db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'areas'")):
            assert len(db.execute(AREA).fetchall()) == 3
        check_virtual(db)


async def test_killed_nodes_come_back_with_equal_rows_and_indexes(cluster: LocalCluster, tmp_path: Path) -> None:
    await create(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_at_all, cluster, 100_000, enough := trio.Event())
        for node in cluster.nodes[1:]:
            await trio.sleep(1)
            assert nursery.child_tasks  # otherwise no kill would have interrupted a write
            node.kill()
            await trio.sleep(0.5)
            node.start()
        enough.set()
    await judge(cluster)
    paths = [node.database for node in cluster.nodes]
    made = replay(paths, tmp_path / "made.db", draw=random.Random(5).random)
    assert made.digest == digest(paths[0])
    judge_database(tmp_path / "made.db", _answers(paths[0]))


def _answers(path: Path, count: int = len(SEARCHES)) -> list[list[tuple[Any, ...]]]:
    with closing(ModuleConnection(str(path))) as db:
        return [db.execute(sql).fetchall() for sql in SEARCHES[:count]]


async def test_indexes_equal_rebuilt_ones_after_random_work_at_all_nodes(cluster: LocalCluster, tmp_path: Path) -> None:
    """Documents, rollbacks and schema changes at each node, across kills and a repair; then each index is compared."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as client:
        await client.transact([DOCS, INDEX, *TRIGGERS, NOTES, BOXES])
    async with trio.open_nursery() as nursery:
        done, enough = [0, 0, 0], trio.Event()
        for index in range(3):
            nursery.start_soon(work_at_random, cluster, index, done, enough)
        for node in cluster.nodes[1:]:
            await trio.sleep(2)
            node.kill()
            await trio.sleep(0.5)
            node.start()
        await ready(cluster)

        async def all_work() -> bool:
            return min(done) > 5

        await until("each node has executed some requests", all_work)
        enough.set()
    await level(cluster)
    await all_safe(cluster)
    await spoil_at_b(cluster, "docs")
    async with open_client(cluster.url(1, only=True)) as client:
        await client.upkeep({"do": "scrub"}, timeout=20)
    await until("B is filled again", partial(filled, cluster, 1))
    await serving(cluster)
    for index in range(3):  # a schema change may have rebuilt the index of the earlier rows
        async with open_client(cluster.url(index, only=True)) as client:
            await client.execute("INSERT INTO docs(title, body) VALUES ('alpha', 'beta')")
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    paths = [node.database for node in cluster.nodes]
    made = replay(paths, tmp_path / "made.db", draw=random.Random(7).random)
    for path in (*paths, tmp_path / "made.db"):
        assert digest(path) == made.digest
        with closing(ModuleConnection(str(path))) as db:
            check_virtual(db)


async def work_at_random(cluster: LocalCluster, index: int, done: list[int], enough: trio.Event) -> None:
    """Send requests to one node, some of which fail, until there are enough."""
    luck = random.Random(index)
    async with open_client(cluster.url(index, only=True, options="timeout=20")) as client:
        while not enough.is_set():
            drawn = luck.randrange(1, 13), luck.randrange(1, 41), luck.choice(VALUES), luck.choice(VALUES)
            statement, change = luck.choice(texts(*drawn)), luck.choice(SCHEMA_CHANGES)
            try:
                match luck.randrange(10):
                    case 0:
                        await client.transact(list(change))
                    case 1:
                        opened = await client.begin()
                        await opened.execute(statement)
                        await opened.rollback()
                    case _:
                        await client.execute(statement)
                done[index] += 1
            except BedrockishError:  # an error of the statement, or of a killed node
                await trio.sleep(0.02)


@pytest.mark.parametrize("table", ["found_data", "docs", "notes_content"])
async def test_node_with_virtual_tables_repairs_a_damaged_page(cluster: LocalCluster, table: str) -> None:
    await fill(cluster, 90)
    await level(cluster)
    await all_safe(cluster)
    node = cluster.nodes[1]
    await stop(node)
    places = pages(node, table)
    node.start()
    await ready(cluster)
    spoil(node, places)
    async with open_client(cluster.url(0, only=True)) as client:
        for sql in (
            "UPDATE docs SET title = 'alpha delta'",
            "UPDATE notes SET body = 'delta'",
            "DELETE FROM boxes WHERE id = 1",
        ):
            await client.execute(sql, timeout=30)
    await until("B is filled again", partial(filled, cluster, 1))
    await serving(cluster)
    await judge(cluster)


async def test_corrupt_index_is_rebuilt_without_an_end_of_the_node(cluster: LocalCluster) -> None:
    await fill(cluster, 90)
    await level(cluster)
    await all_safe(cluster)
    node = cluster.nodes[1]
    await stop(node)
    with closing(apsw.Connection(str(node.database))) as db:
        db.execute("UPDATE found_data SET block = x'0000' WHERE id > 100")
    node.start()
    await ready(cluster)
    pid = processes(cluster)[1]
    async with open_client(cluster.url(1, only=True)) as client:
        with pytest.raises(SqlError, match="drop and create the virtual table"):
            await client.execute(SEARCHES[0])
        await client.upkeep({"do": "scrub"}, timeout=20)

        async def answers_again() -> bool:
            try:
                return bool(list(await client.execute(SEARCHES[0])))
            except SqlError:
                return False

        await until("the index is rebuilt", answers_again)
    assert processes(cluster)[1] == pid
    assert "rebuilds the corrupt index found" in node.log.read_text()
    await judge(cluster)


async def test_backup_restore_and_join_keep_virtual_tables_and_their_indexes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await fill(cluster, 90)
    await level(cluster)
    await all_safe(cluster)
    wanted = await answers(cluster, 0)
    backup = tmp_path / "backup.db"
    await trio.to_thread.run_sync(command, "backup", cluster.url(), backup)
    judge_database(backup, wanted)
    restored = tmp_path / "restored.db"
    await trio.to_thread.run_sync(command, "restore", "--from", backup, "--to", restored)
    judge_database(restored, wanted)
    exported = tmp_path / "exported.db"
    await trio.to_thread.run_sync(command, "export", cluster.url(), exported)
    judge_database(exported, wanted)
    newcomer(cluster, "D", "--voter")
    await voters(cluster, "A", "B", "C", "D")
    await judge(cluster)


def make_source(path: Path) -> list[list[tuple[Any, ...]]]:
    """Make a file as programs on SQLite have it, with an index that fell behind its table."""
    with closing(apsw.Connection(str(path))) as db:
        for sql in (DOCS, INDEX, *TRIGGERS, NOTES, BOXES, WORDS):
            db.execute(sql)
        db.execute("INSERT INTO docs VALUES (7, 'alpha', 'beta', 1), (9, 'alpha alpha', NULL, 2)")
        db.execute("INSERT INTO notes(rowid, title) VALUES (77, 'alpha'), (99, 'beta')")
        db.execute("INSERT INTO boxes VALUES (5, 0.1, 0.2, 'n')")
    wanted = _answers(path, OF_SQLITE)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("INSERT INTO found(found) VALUES ('delete-all')")
    return wanted


async def test_file_with_virtual_tables_is_imported_dumped_and_exported(tmp_path: Path) -> None:
    wanted = make_source(tmp_path / "source.db")
    with local_cluster(tmp_path / "own", ("A",)) as running:
        await running.wait_ready(0)
        said = await trio.to_thread.run_sync(command, "import", running.url(), tmp_path / "source.db")
        assert "docs: 2 rows" in said
        assert await answers(running, 0, OF_SQLITE) == wanted
        script = await trio.to_thread.run_sync(command, "sql", running.url(), ".dump")
        with closing(sqlite3.connect(tmp_path / "dumped.db")) as db:
            db.executescript(script)
        judge_database(tmp_path / "dumped.db", wanted)

        def dump() -> None:
            with (
                closing(bedrockish.dbapi.connect(running.url())) as source,
                closing(sqlite3.connect(tmp_path / "whole.db")) as target,
                closing(sqlite3.connect(tmp_path / "iterdump.db")) as other,
            ):
                source.backup(target)
                other.executescript("\n".join(source.iterdump()))

        await trio.to_thread.run_sync(dump)
        judge_database(tmp_path / "whole.db", wanted)
        judge_database(tmp_path / "iterdump.db", wanted)


async def test_full_text_search_works_with_sqlite_utils_and_datasette(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "own", ("A",)) as running:
        await running.wait_ready(0)
        await trio.to_thread.run_sync(use_sqlite_utils, running.url())
        file = running.nodes[0].database
        await stop(running.nodes[0])
        page = f"/{file.stem}/docs.json?_shape=array&_search=dog"
        words = [sys.executable, "-m", "datasette", str(file), "--get", page]
        done = await trio.run_process(words, capture_stdout=True, capture_stderr=True)
        assert sorted(row["id"] for row in json.loads(done.stdout)) == [2, 3]


def use_sqlite_utils(url: str) -> None:
    """Do what its documentation shows of full-text search."""
    with closing(bedrockish.dbapi.connect(url)) as connection:
        like_sqlite3: Any = connection
        db: Any = sqlite_utils.Database(like_sqlite3)
        table = db["docs"]
        table.insert_all(
            [{"id": 1, "title": "alpha dogs", "body": "x"}, {"id": 2, "title": "beta", "body": "y"}], pk="id"
        )
        table.enable_fts(["title", "body"], create_triggers=True, tokenize="porter")
        assert [row["id"] for row in table.search("dog")] == [1]
        table.insert({"id": 3, "title": "dog", "body": "y"})
        table.upsert({"id": 2, "title": "gamma dog"}, pk="id")
        table.insert({"id": 1, "title": "cat", "body": "z"}, replace=True)
        for _ in range(2):
            assert [row["id"] for row in table.search("dog", order_by="id")] == [2, 3]
            table.rebuild_fts()
            table.optimize()
        table.enable_fts(["title"], replace=True, create_triggers=True)
        assert table.detect_fts() == "docs_fts"
        assert [row["id"] for row in table.search("dog", order_by="id")] == [2, 3]
