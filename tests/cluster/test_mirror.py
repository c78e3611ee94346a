"""The unchanged mirror of docs/changes.md, while nodes die: it equals the cluster row by row."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import open_client
from bedrockish.errors import UnavailableError
from bedrockish_journal.feed.change_feed import parse_cursor
from tests.cluster.story import all_safe, insist, judge_copy, judge_files, level, ready, status_of
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

PAGE = (Path(__file__).parents[2] / "docs" / "changes.md").read_text()
LAGS = ("closing_lag_ms", "closing_lag_ms_min")
SETUP = (
    "CREATE TABLE stock(id INTEGER PRIMARY KEY, n INTEGER NOT NULL DEFAULT 0, note TEXT)",
    "CREATE TABLE log(text)",
    "CREATE TRIGGER logged AFTER UPDATE ON stock BEGIN INSERT INTO log VALUES (old.n || '>' || new.n); END",
    "INSERT INTO stock(id) VALUES (1), (2), (3), (4), (5)",
)


def mirror_of_the_page() -> Any:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "def mirror" in block]
    names: dict[str, Any] = {}
    exec(compile(code, "docs/changes.md", "exec"), names)
    return names["mirror"]


def judge_mirror(file: Path, node: Path) -> None:
    """Check that a mirror equals a stopped node's file, but for the table in which it notes its place in the feed."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("DROP TABLE mirror_place")
    judge_copy(file, node)


async def test_mirror_from_the_docs_equals_the_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    mirror, file = mirror_of_the_page(), tmp_path / "mirror.db"
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        for statement in SETUP:
            await client.execute(statement)
    stopping = trio.Event()

    async def write(number: int) -> None:
        for count in range(10_000):
            if stopping.is_set():
                return
            choices: list[tuple[str, list[object]]] = [
                ("UPDATE stock SET n = n + 1 WHERE id = ?", [1 + count % 5]),
                ("INSERT INTO stock(n, note) VALUES (?, ?)", [count, f"{number}"]),
                ("DELETE FROM stock WHERE id > 5 AND n = ?", [count - 2]),
            ]
            sql, params = choices[count % 3]
            await insist(cluster.url(number), sql, params, f"m-{number}-{count}")

    async def catch_up(index: int) -> None:
        """Run the mirror on one node to the end of the feed, and stop it; the node may be dead."""
        try:
            await trio.to_thread.run_sync(lambda: mirror(cluster.url(index, only=True), file, follow=False))
        except* UnavailableError:
            pass

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(write, number)
        for turn in range(9):
            if turn == 3:
                cluster.nodes[1].kill()
            if turn == 4:
                async with open_client(cluster.url(2)) as client:
                    await client.execute("ALTER TABLE stock ADD COLUMN more DEFAULT 7")
            if turn == 6:
                cluster.nodes[1].start()
            await catch_up(turn % 3)
            await trio.sleep(0.2)
        stopping.set()
    await ready(cluster)
    await level(cluster)
    await all_safe(cluster)
    await trio.to_thread.run_sync(lambda: mirror(cluster.url(), file, follow=False))
    cluster.stop()
    judge_files(cluster)
    judge_mirror(file, cluster.nodes[0].database)


async def test_mirror_without_follow_stops_at_safe_time(tmp_path: Path) -> None:
    """The mirror lacks later commits, although every node has them; once all are safe, it has all."""
    mirror, file = mirror_of_the_page(), tmp_path / "mirror.db"
    cluster = LocalCluster(tmp_path / "cluster", settings={"timings": dict.fromkeys(LAGS, 3_000)})
    cluster.write_files()
    try:
        for node in cluster.nodes:
            node.start()
        await ready(cluster)
        async with open_client(cluster.url()) as client:
            await client.execute("CREATE TABLE stock(id INTEGER PRIMARY KEY, n)")
            for count in range(5):
                await client.execute("INSERT INTO stock(n) VALUES (?)", [count])
        await level(cluster)  # all nodes have applied everything, but the last commits are not safe for some seconds
        await trio.to_thread.run_sync(lambda: mirror(cluster.url(1, only=True), file, follow=False))
        safe_at_most = (await status_of(cluster, 1))["safe"]
        with closing(sqlite3.connect(file)) as db:
            place = str(db.execute("SELECT cursor FROM mirror_place").fetchone()[0])
        assert parse_cursor(place).clock <= safe_at_most
        await all_safe(cluster)
        await trio.to_thread.run_sync(lambda: mirror(cluster.url(2, only=True), file, follow=False))
    finally:
        cluster.stop()
    judge_files(cluster)
    judge_mirror(file, cluster.nodes[0].database)
