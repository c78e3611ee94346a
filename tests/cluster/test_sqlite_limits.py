"""Tables at the limits of SQLite in every operation of a cluster: write, back up, restore, join, compare, repair
and verify.
"""

import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import open_client
from bedrockish_journal.verify.replay import digest
from tests.cluster.story import PATIENT, all_safe, insist, level, ready, until
from tests.cluster.test_damage import filled, serving, stop
from tests.cluster.test_members import newcomer, voters
from tests.forked import program
from tools.cluster import LocalCluster, local_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COLUMNS_MAX = 2_000  # columns of a table, of an index and of a result
PARAMETERS_MAX = 32_766
DEPTH = 900  # the depth of an expression; the limit is 1,000, and SQLite adds some levels
ROWID_MAX = sys.maxsize
NAMES = [f"c{place}" for place in range(COLUMNS_MAX)]
MARKS = ", ".join("?" * COLUMNS_MAX)
LONG = "x" * 1_000_000
SCHEMA = [
    f"CREATE TABLE wide({', '.join(NAMES)})",
    f"CREATE INDEX wide_all ON wide({', '.join(reversed(NAMES))})",
    f"CREATE TABLE keyed({', '.join(NAMES)}, PRIMARY KEY({', '.join(NAMES)})) WITHOUT ROWID",
    "CREATE TABLE edge(id INTEGER PRIMARY KEY, v TEXT)",
    "CREATE TABLE loose(v TEXT)",
    f"CREATE TABLE deep(a INTEGER, b INTEGER GENERATED ALWAYS AS (a{' + 1' * DEPTH}) STORED, CHECK (b < 9999))",
    f"CREATE INDEX deep_index ON deep(a{' + 1' * DEPTH})",
    f"CREATE TABLE long(v TEXT DEFAULT '{LONG}', n INTEGER)",
    "CREATE TABLE many(id INTEGER PRIMARY KEY)",
]
WRITES: list[tuple[str, list[Any]]] = [
    ("INSERT INTO wide(c0) VALUES (1)", []),
    (f"INSERT INTO wide VALUES ({MARKS})", [*range(COLUMNS_MAX)]),
    (f"INSERT INTO wide VALUES ({MARKS})", [f"t{place}" for place in range(COLUMNS_MAX)]),
    (f"UPDATE wide SET {', '.join(f'{name} = ?' for name in NAMES)} WHERE c0 = 0", [*range(1, COLUMNS_MAX + 1)]),
    ("UPDATE wide SET rowid = 77, c0 = 'MARK-050-aaaa' WHERE c0 = 't0'", []),
    *((f"INSERT INTO keyed VALUES ({MARKS})", [number, *range(1, COLUMNS_MAX)]) for number in range(3)),
    ("UPDATE keyed SET c1999 = 'changed' WHERE c0 = 1", []),
    ("DELETE FROM keyed WHERE c0 = 2", []),
    ("INSERT INTO edge VALUES (?, 'last'), (?, 'first')", [ROWID_MAX, -ROWID_MAX - 1]),
    ("INSERT INTO loose(rowid, v) VALUES (?, 'last')", [ROWID_MAX]),
    ("INSERT INTO deep(a) VALUES (1), (2)", []),
    ("INSERT INTO long(n) VALUES (1)", []),
    (f"INSERT INTO many VALUES {', '.join(['(?)'] * PARAMETERS_MAX)}", [*range(PARAMETERS_MAX)]),
    ("DELETE FROM many WHERE id % 100", []),
]


async def fill(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url(options=PATIENT)) as client:
        for sql in SCHEMA:
            await client.execute(sql)
        for sql, values in WRITES:
            await client.execute(sql, values)
    await level(cluster)
    await all_safe(cluster)


def run(*arguments: str) -> tuple[int, str]:
    done = program(*arguments, timeout=900)
    return done.returncode, done.stdout + done.stderr


async def cli(*arguments: str) -> tuple[int, str]:
    return await trio.to_thread.run_sync(run, *arguments)


async def succeed(*arguments: object) -> str:
    status, told = await cli(*map(str, arguments))
    assert status == 0, told
    assert "this is a bug" not in told
    return told


async def back_up_and_restore(cluster: LocalCluster, place: Path) -> int:
    """Make both kinds of backup, verify them, and restore from each; return the size of the copy in bytes."""
    backup, folder = place / "backup.db", place / "kept"
    await succeed("backup", cluster.url(), backup)
    await succeed("backup", "verify", backup)
    await succeed("backup", "follow", cluster.url(), folder, "--once")
    await succeed("backup", "verify", folder)
    for source in (backup, folder):
        target = place / f"of_{source.name}"
        await succeed("restore", "--from", source, "--to", target)
        assert digest(target) == digest(cluster.nodes[0].database)
        target.unlink()
    return backup.stat().st_size


async def test_tables_at_the_limits_of_sqlite_survive_all_operations(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", ("A",)) as cluster:
        await fill(cluster)
        await back_up_and_restore(cluster, tmp_path)
        newcomer(cluster, "B", "--voter")
        await voters(cluster, "A", "B")
        await level(cluster)
        await succeed("verify", cluster.url())
        await repair(cluster)
        cluster.stop()
        files = [node.database for node in cluster.nodes]
        await succeed("journal", "verify", *files, "--tables")
        await succeed("audit", *files)
        await succeed("journal", "digest", *files)
        again = tmp_path / "again.db"
        await succeed("journal", "replay", *files, "--to", again, "--order", "random", "--seed", "3")
        assert digest(again) == digest(files[0])
        damage(cluster, 0)
        status, told = await cli("journal", "verify", "--tables", str(files[0]))
        assert (status, "c1999 is 'spoilt' and should be 't1999'" in told) == (1, True), told
        assert "of keyed, c1999" not in told


def damage(cluster: LocalCluster, index: int) -> None:
    """Change the last column of a row in the file of a stopped node, past the node."""
    with closing(sqlite3.connect(cluster.nodes[index].database)) as db, db:
        assert db.execute("UPDATE wide SET c1999 = 'spoilt' WHERE rowid = 77").rowcount == 1


async def repair(cluster: LocalCluster) -> None:
    """Damage a wide row at B: ``verify`` finds it, and B heals when it applies a change of that row."""
    await stop(cluster.nodes[1])
    damage(cluster, 1)
    cluster.nodes[1].start()
    await ready(cluster)
    status, told = await cli("verify", cluster.url())
    assert (status, "row 77 of wide differs" in told) == (1, True), told
    async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
        await client.execute("UPDATE wide SET c5 = 'new' WHERE c0 = 'MARK-050-aaaa'", read="stale")
    await healed(cluster)


async def healed(cluster: LocalCluster) -> None:
    await until("B has been filled again", partial(filled, cluster, 1), 300)
    await serving(cluster)
    await level(cluster)
    assert "Traceback" not in "".join(node.log.read_text() for node in cluster.nodes)


LOCK_PAGE = 1 << 30  # bytes of a file before the page on which SQLite keeps its locks and nothing else
BLOB, BLOBS = 12 << 20, 48


async def test_file_larger_than_the_lock_page_works(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", ("A",)) as cluster:
        await ready(cluster)
        async with open_client(cluster.url(options=PATIENT)) as client:
            await client.execute("CREATE TABLE large(id INTEGER PRIMARY KEY, v BLOB)")
            await client.execute("CREATE TABLE late(id INTEGER PRIMARY KEY, v TEXT)")
            await client.execute("CREATE INDEX by_v ON late(v)")
            for number in range(BLOBS):
                await client.execute("INSERT INTO large VALUES (?, randomblob(?))", [number, BLOB])
            await client.execute(
                "INSERT INTO late WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 20000)"
                " SELECT x, 'MARK-' || x FROM n"
            )
        await level(cluster)
        await all_safe(cluster)
        assert await back_up_and_restore(cluster, tmp_path) > LOCK_PAGE + BLOB
        newcomer(cluster, "B", "--voter")
        await voters(cluster, "A", "B", bound_s=600)
        await level(cluster)
        await succeed("verify", cluster.url())
        await stop(cluster.nodes[1])
        with closing(sqlite3.connect(cluster.nodes[1].database)) as db, db:
            assert db.execute("UPDATE late SET v = 'spoilt' WHERE id = 19999").rowcount == 1
        cluster.nodes[1].start()
        await ready(cluster)
        status, told = await cli("verify", cluster.url())
        assert (status, "row 19999 of late differs" in told) == (1, True), told
        # B votes no before it fills itself again, and a file of more than a gigabyte takes longer than one call waits.
        await insist(cluster.url(0, only=True), "UPDATE late SET v = 'new' WHERE id = ?", [19999], "mark")
        await healed(cluster)
        await succeed("verify", cluster.url())
        cluster.stop()
        files = [node.database for node in cluster.nodes]
        await succeed("journal", "verify", *files, "--tables")
        await succeed("audit", *files)
        assert digest(files[0]) == digest(files[1])
