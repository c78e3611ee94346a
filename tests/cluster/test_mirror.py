"""The mirror of docs/changes.md, run as it stands there, while nodes die: it is what the cluster is, row for row."""

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import open_client
from bedrockish.errors import UnavailableError
from journal.replay import digest
from tests.cluster.story import insist, judge_files, level, ready, until
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

PAGE = (Path(__file__).parents[2] / "docs" / "changes.md").read_text()
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


async def test_the_mirror_of_the_page_is_what_the_cluster_is(cluster: LocalCluster, tmp_path: Path) -> None:
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
    last = 0
    async with open_client(cluster.url()) as client:
        last = int((await client.execute("SELECT max(clock) FROM bedrockish_journal")).value())

        async def safe() -> bool:
            return await client.safe_clock() >= last

        await until("all of it is safe", safe)
    await trio.to_thread.run_sync(lambda: mirror(cluster.url(), file, follow=False))
    cluster.stop()
    judge_files(cluster)
    assert digest(file) == digest(cluster.nodes[0].database)
