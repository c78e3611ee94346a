"""An index that is well formed and lacks a row of its table, at one node: the scrub finds it, and the node heals."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from bedrockish import open_client
from tests.cluster.story import judge_files, level, ready, status_of, until
from tests.cluster.test_damage import filled, processes, said, serving, stop
from tests.cluster.test_damaged_pages import fill
from tools.cluster import LocalCluster, LocalNode, local_cluster

pytestmark = pytest.mark.cluster


def forget_row(node: LocalNode, table: str, index: str, rowid: int) -> None:
    """Take a row of a stopped node out of one index, and out of nothing else."""
    file = str(node.database)
    with closing(sqlite3.connect(file)) as db, db:
        (columns,) = db.execute(f"SELECT group_concat(name) FROM pragma_table_info('{table}')").fetchone()
        row = db.execute(f"SELECT {columns} FROM {table} WHERE rowid = ?", (rowid,)).fetchone()
        db.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
        others = db.execute(
            "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema WHERE tbl_name = ? AND name = ?",
            (table, index),
        ).fetchall()
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_schema WHERE name = ?", (index,))
    with closing(sqlite3.connect(file)) as db, db:
        marks = ", ".join("?" * len(row))
        db.execute(f"INSERT INTO {table}({columns}) VALUES ({marks})", row)
        db.execute("PRAGMA writable_schema = ON")
        db.executemany("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", others)
    with closing(sqlite3.connect(file)) as db:
        ((found,),) = db.execute("PRAGMA integrity_check(1)").fetchall()
        assert found.startswith("wrong # of entries") or "missing from index" in found, found
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.mark.parametrize(("table", "index"), [("t", "t_v"), ("bedrockish_journal", "bedrockish_journal_command")])
async def test_row_that_an_index_lacks_is_found_and_repaired(cluster: LocalCluster, table: str, index: str) -> None:
    """No client writes the row, and all nodes have it, so a comparison of tables finds nothing."""
    await fill(cluster)
    await stop(cluster.nodes[1])
    forget_row(cluster.nodes[1], table, index, 50)
    cluster.nodes[1].start()
    await ready(cluster)
    pids = processes(cluster)
    async with open_client(cluster.url(1, only=True)) as client:
        await client.upkeep({"do": "scrub"}, timeout=20)
    await until("B is filled again", partial(filled, cluster, 1))
    await serving(cluster)
    await level(cluster)
    assert processes(cluster) == pids
    assert f"row 50 of {table} is not in its index {index}" in cluster.nodes[1].log.read_text()
    assert "Traceback" not in said(cluster)
    async with open_client(cluster.url(1, only=True)) as client:
        await client.upkeep({"do": "scrub"}, timeout=20)

    async def looked() -> bool:
        return bool((await status_of(cluster, 1))["index_scrub"]["passes"])

    await until("its indexes were looked at again", looked)
    assert cluster.nodes[1].log.read_text().count("tables were filled again") == 1
    cluster.stop()
    judge_files(cluster)


async def test_single_node_finds_a_row_that_an_index_lacks(tmp_path: Path) -> None:
    """The node has no other one to compare its tables with, and rebuilds them from its own journal."""
    with local_cluster(tmp_path / "cluster", ("A",)) as cluster:
        await fill(cluster)
        await stop(cluster.nodes[0])
        forget_row(cluster.nodes[0], "t", "t_v", 50)
        cluster.nodes[0].start()
        await until("A is filled again", partial(filled, cluster, 0))
        await serving(cluster)
        async with open_client(cluster.url()) as client:
            found = await client.execute("SELECT id FROM t INDEXED BY t_v WHERE v = ?", [f"{50:0100d}"])
            assert found.value() == 50
