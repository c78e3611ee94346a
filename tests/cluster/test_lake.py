"""A lake in both formats, written by programs that are killed: each change once, and the tables as they are."""

import contextlib
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import trio
from deltalake import DeltaTable

from bedrockish import connect
from bedrockish.client.blocking_transaction import BlockingTransaction
from bedrockish_journal.arrow import read_journal
from bedrockish_journal.feed.change_feed import parse_cursor
from bedrockish_journal.model.changes import Value
from bedrockish_journal.model.plain_names import plain_name
from bedrockish_journal.spark.source.json_rows import parse_row
from bedrockish_journal.spark.source.typed_values import OWN
from tests.cluster.story import all_safe, level, ready
from tests.forked import program
from tools.cluster import LocalCluster, LocalNode, clean_environment

pytestmark = pytest.mark.cluster

PAGE = (Path(__file__).parents[2] / "docs" / "lake.md").read_text()
[STATE] = re.findall(r"```sql\n(SELECT \* EXCLUDE.*?);\n```", PAGE, flags=re.DOTALL)
STEPS = (  # while others write
    ["ALTER TABLE stock ADD COLUMN more INTEGER DEFAULT 7"],
    ["CREATE TABLE pair(a TEXT, b INTEGER, v REAL, PRIMARY KEY (a, b)) WITHOUT ROWID"],
    ["INSERT INTO pair VALUES ('x', 1, 0.5), ('y', 2, NULL), ('', 3, 1e999)"],
    ["ALTER TABLE stock RENAME COLUMN note TO remark"],
    ["CREATE TABLE gone(id INTEGER, n INTEGER)", "INSERT INTO gone SELECT id, n FROM stock LIMIT 3"],
    ["UPDATE pair SET a = 'z', v = -0.0 WHERE b = 1", "DELETE FROM pair WHERE b = 2"],
    ["ALTER TABLE odd RENAME TO odder"],
    ["DROP TABLE gone"],
    ["CREATE TABLE mixed(x)", "INSERT INTO mixed VALUES (1), ('one'), (x'01'), ('12'), (12)",
     "UPDATE stock SET more = 8 WHERE id = 1"],
    ["ALTER TABLE stock DROP COLUMN more", "ALTER TABLE stock ADD COLUMN more TEXT DEFAULT 'now a text'"],
)  # fmt: skip


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that keep little for the protocol's own sake."""
    made = LocalCluster(tmp_path / "forgetful", settings={"timings": {"conflict_window_ms": 1_000}})
    made.write_files()
    try:
        for node in made.nodes:
            node.start()
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def writing(cluster: LocalCluster) -> Iterator[None]:
    """Let a thread at each node change rows."""
    over = threading.Event()
    failed: list[BaseException] = []

    def write(number: int) -> None:
        drawn = random.Random(number)
        try:
            with connect(cluster.url(number)) as db:
                while not over.wait(0.02):
                    row = drawn.randrange(1, 200)
                    db.execute("UPDATE stock SET n = n + 1 WHERE id = ?", (row % 7 + 1,))
                    db.execute("INSERT OR REPLACE INTO stock(id, n) VALUES (?, ?)", (row, drawn.random() < 0.5))
                    db.execute("DELETE FROM stock WHERE id = ?", (drawn.randrange(8, 200),))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(cluster.nodes))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed, failed


def _do(statements: Sequence[str], transaction: BlockingTransaction) -> None:
    for sql in statements:
        transaction.execute(sql)


def lake(cluster: LocalCluster, folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bedrockish.cli.main", "lake", cluster.url(), str(folder), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment())


@contextlib.contextmanager
def killed_at_last(cluster: LocalCluster, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    process = lake(cluster, folder, *more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def gets_somewhere(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("batch "), f"{line!r}, then {process.communicate()[1]}"


def to_the_end(cluster: LocalCluster, folder: Path) -> None:
    process = lake(cluster, folder)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def changes(folder: Path, table: str) -> pa.Table:
    name = table if table.startswith("_") else plain_name(table)
    return DeltaTable(str(folder / name)).to_pyarrow_table()


def state(found: pa.Table) -> list[dict[str, Any]]:
    with duckdb.connect() as db:
        db.register("changes", found)
        table: pa.Table = db.sql(STATE).to_arrow_table()
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


def value_of(row: dict[str, Any], column: str) -> Value:
    """Return a value of SQLite's: what the lake's column cannot hold stands in ``_other``."""
    other = parse_row(row["_other"]) if row["_other"] else {}
    return other.get(column, row[plain_name(column)])


def compare_with_journal(folder: Path, database: Path) -> None:
    """The rows of the lake are those that the journal has with typed columns; but a lake knows schema changes' too."""
    of_rows = {
        (row["_commit_clock"], row["_commit_origin"])
        for row in changes(folder, "_commits").to_pylist()
        if row["_kind"] == "rows"
    }
    for table in ("stock", "pair", "odd", "odder", "gone", "mixed"):
        typed = read_journal(database, rows=table).read_all()
        lake = changes(folder, table)
        names = [name for name in lake.column_names if name in typed.column_names]
        assert set(OWN) < set(names), table
        found = [
            row for row in lake.select(names).to_pylist() if (row["_commit_clock"], row["_commit_origin"]) in of_rows
        ]
        assert sorted(map(repr, typed.select(names).to_pylist())) == sorted(map(repr, found)), table


def judge(folder: Path, database: Path) -> None:
    """Compare a lake with a node's file."""
    db = sqlite3.connect(database)
    commits = changes(folder, "_commits")
    places = [(row["_leader"], row["_tick"]) for row in commits.to_pylist()]
    true = db.execute("SELECT leader, tick FROM bedrockish_journal WHERE repeat = 0").fetchall()
    assert sorted(places) == sorted(true), "each commit is there once"
    for table, key, columns in (
        ("stock", "id", ("id", "n", "remark", "more")),
        ("pair", "b", ("a", "b", "v")),
        ("odder", "rowid", ("any thing", "x_", "_key")),
        ("gone", None, ("id", "n")),
        ("odd", None, ("any thing",)),
    ):
        found = changes(folder, table)
        rows = found.to_pylist()
        seen = [(row["_commit_clock"], row["_commit_origin"], row["_commit_seq"]) for row in rows]
        assert len(set(seen)) == len(seen), f"{table}: each change is there once"
        now = [tuple(value_of(row, column) for column in columns) for row in state(found)]
        names = ", ".join(f'"{column}"' for column in columns)
        then = db.execute(f"SELECT {names} FROM {table} ORDER BY {key}").fetchall() if key else []
        assert sorted(map(repr, now)) == sorted(map(repr, then)), table
    compare_with_journal(folder, database)
    mixed = {(row["x"], row["_other"]) for row in state(changes(folder, "mixed"))}
    assert mixed == {
        ("1", '{"x":1}'),
        ("12", None),
        ("12", '{"x":12}'),
        ("one", None),
        (None, '{"x":{"$blob":"AQ=="}}'),
    }
    db.close()


@pytest.mark.parametrize("kills", [3, pytest.param(len(STEPS), marks=pytest.mark.slow)])
def test_each_change_is_in_the_lake_once_whatever_is_killed(cluster: LocalCluster, tmp_path: Path, kills: int) -> None:
    trio.run(ready, cluster)
    folder = tmp_path / "lake"
    drawn = random.Random(7)
    with connect(cluster.url()) as db:
        db.execute("CREATE TABLE stock(id INTEGER PRIMARY KEY, n INTEGER, note TEXT DEFAULT 'none')")
        db.execute('CREATE TABLE odd("any thing" TEXT, x_, _key INTEGER)')
        db.execute("INSERT INTO odd VALUES ('ü', 'one', 1), (x'00ff', NULL, -9223372036854775808)")
        with writing(cluster):
            for turn in range(kills):
                with killed_at_last(cluster, folder, "--follow", "--every", "0.2") as process:
                    gets_somewhere(process)
                    for statements in STEPS[turn * len(STEPS) // kills : (turn + 1) * len(STEPS) // kills]:
                        db.run_transaction(partial(_do, statements))
                    if turn == kills // 2:
                        cluster.nodes[1].kill()
                        cluster.nodes[1].start()
                    time.sleep(drawn.random())
                    assert process.poll() is None, process.communicate()[1]
    trio.run(level, cluster)
    trio.run(all_safe, cluster)
    to_the_end(cluster, folder)
    batches = changes(folder, "_commits")
    to_the_end(cluster, folder)  # there is nothing more
    assert changes(folder, "_commits").num_rows == batches.num_rows
    judge(folder, cluster.nodes[0].database)


def removed(node: LocalNode) -> int:
    """Return the greatest clock that a node has removed from its journal."""
    with contextlib.closing(sqlite3.connect(node.database)) as file:
        clock: int = file.execute("SELECT coalesce(max(clock), 0) FROM bedrockish_pruned").fetchone()[0]
        return clock


def test_a_lake_of_a_cluster_that_has_removed_its_beginning(forgetful: LocalCluster, tmp_path: Path) -> None:
    cluster = forgetful
    trio.run(ready, cluster)
    with connect(cluster.url()) as db:
        db.execute("CREATE TABLE stock(id INTEGER PRIMARY KEY, n INTEGER)")
        for number in range(50):
            db.execute("INSERT INTO stock VALUES (?, 0)", (number + 1,))
            if number == 25:
                trio.run(all_safe, cluster)
                to_the_end(cluster, tmp_path / "begun")
    trio.run(level, cluster)
    trio.run(all_safe, cluster)
    with contextlib.closing(sqlite3.connect(tmp_path / "begun" / "mirror.db")) as mirror:
        place = parse_cursor(mirror.execute("SELECT cursor FROM bedrockish_lake").fetchone()[0])
    until = time.monotonic() + 120
    while min(map(removed, cluster.nodes)) <= place.clock:  # nodes remove nothing that they may be asked for
        assert time.monotonic() < until
        done = program("journal", "prune", cluster.url(), "--older-than", "0s")
        assert done.returncode == 0, done.stderr
        time.sleep(0.2)
    process = lake(cluster, tmp_path / "new")
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "a lake in a new directory can begin with --copy" in errors

    before = changes(tmp_path / "begun", "stock")
    process = lake(cluster, tmp_path / "begun", "--copy")  # what comes next was removed
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "a lake in a new directory can begin with --copy" in errors, errors
    assert changes(tmp_path / "begun", "stock") == before

    folder = tmp_path / "copied"
    with writing(cluster), killed_at_last(cluster, folder, "--copy", "--follow", "--every", "0.2") as process:
        assert process.stdout is not None
        assert "rows of a copy" in process.stdout.readline()
        gets_somewhere(process)
        time.sleep(1)
        assert process.poll() is None, process.communicate()[1]
    trio.run(level, cluster)
    trio.run(all_safe, cluster)
    process = lake(cluster, folder, "--copy")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    with contextlib.closing(sqlite3.connect(cluster.nodes[0].database)) as file:
        now = sorted((row["id"], row["n"]) for row in state(changes(folder, "stock")))
        assert now == file.execute("SELECT id, n FROM stock ORDER BY id").fetchall()
    commits = changes(folder, "_commits").to_pylist()
    assert [row["_kind"] for row in commits].count("copy") == 1
    places = [(row["_leader"], row["_tick"]) for row in commits]
    assert len(set(places)) == len(places)
