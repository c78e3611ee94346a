"""A real cluster that lived through kills, adoption, schema and membership changes: its journals pass every audit."""

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trio

from bedrockish import open_client
from bedrockish.cli.audit import _replay
from bedrockish.requests import DEMOTE, PROMOTE, MemberChange
from tests.cluster.story import insist, level, ready, send_signal, status_of, until
from tools.cluster import ROOT, LocalCluster, clean_environment, local_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.slow]


async def load(cluster: LocalCluster, name: str, nodes: tuple[int, ...] = (0, 1, 2)) -> None:
    """Insert and update rows at some nodes, each client until it has its answers."""

    async def some(node: int) -> None:
        for number in range(12):
            command = f"{name}-{node}-{number}"
            await insist(cluster.url(node), "INSERT INTO t(name, n) VALUES (?, 0)", [command], command)
            await insist(cluster.url(node), "UPDATE t SET n = n + 1 WHERE id = 1", [], f"{command}-more")

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(some, node)


async def adopted(cluster: LocalCluster) -> int:
    """Return how many commits in the journal stand in another timeline than that of who began them."""
    async with open_client(cluster.url(1, only=True)) as client:
        asked = await client.execute("SELECT count(*) FROM bedrockish_journal WHERE leader <> origin", read="stale")
        return int(asked.value())


async def live(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT UNIQUE, n INTEGER)")
    await load(cluster, "first")
    for number, node in enumerate(cluster.nodes[1:], 1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, cluster, f"kill-{number}")
            await trio.sleep(0.3)
            node.kill()
            await trio.sleep(1.5)
            node.start()
            await cluster.wait_ready(number)
    for attempt in range(8):
        if await adopted(cluster):
            break
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(load, cluster, f"stop-{attempt}-{number}", (0,))
            await trio.sleep(0.5)
            send_signal(cluster.nodes[0], signal.SIGSTOP)  # it finds out later what became of its transactions
            await trio.sleep(4)
            send_signal(cluster.nodes[0], signal.SIGCONT)
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.execute("ALTER TABLE t ADD COLUMN note TEXT")
        await client.change_members(MemberChange(DEMOTE, "C"))
        await client.execute("UPDATE t SET note = 'two voters' WHERE id < 5")
        await client.change_members(MemberChange(PROMOTE, "C"))

    async def voter() -> bool:
        role: str = (await status_of(cluster, 2))["nodes"]["C"]["role"]
        return role == "voter"

    await until("C votes again", voter)
    await load(cluster, "last")
    await level(cluster)


def test_honest_journals_are_silent_and_an_edited_row_is_named(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster") as cluster:
        trio.run(live, cluster)
    paths = [node.database for node in cluster.nodes]
    with closing(sqlite3.connect(paths[0])) as db:
        (strangers,) = db.execute("SELECT count(*) FROM bedrockish_journal WHERE leader <> origin").fetchone()
        (members,) = db.execute("SELECT count(*) FROM bedrockish_journal WHERE kind = 'members'").fetchone()
    assert strangers > 0
    assert members >= 2
    command = [sys.executable, "-m", "bedrockish.cli.main", "audit", *map(str, paths), "--strict", "--replay", "--json"]
    ended = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, check=False, timeout=400)
    report = json.loads(ended.stdout)
    assert [check for check in report["checks"] if check["findings"]] == []
    assert (ended.returncode, report["holds"]) == (0, True)
    with closing(sqlite3.connect(paths[1])) as db:
        (row,) = db.execute("SELECT max(id) FROM t").fetchone()
        db.execute("UPDATE t SET n = n + 1 WHERE id = ?", (row,))
        db.commit()
    (found,), counts = _replay({node.name: str(node.database) for node in cluster.nodes}, 20)
    assert (found["node"], found["table"], found["key"]) == ("B", "t", str(row))
    assert found["text"] == f"in the row {row} of t, n is 1 and should be 0"
    assert counts == {"fault": 1, "information": 0}
