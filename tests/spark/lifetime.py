"""A cluster with a long life, for its journals.

``python -m tests.spark.lifetime DIRECTORY`` runs real nodes through kills under load, an adoption, schema changes,
and members that are added, demoted, removed and replaced. It prints the remaining files, for an audit.
"""

import contextlib
import signal
import sqlite3
import sys
from pathlib import Path

import trio

from bedrockish import open_client
from bedrockish.api.requests import DEMOTE, REMOVE, REPLACE, MemberChange
from bedrockish.errors import BedrockishError
from tests.cluster.story import insist, level, ready, send_signal, until
from tests.cluster.test_members import newcomer, voters
from tools.cluster import LocalCluster, free_ports, local_cluster

ROWS = 12
STOPS_MOST = 8


async def load(cluster: LocalCluster, name: str, nodes: tuple[int, ...] = (0, 1, 2)) -> None:
    """Insert and update rows at some nodes, with a client at each that waits for its answers."""

    async def some(node: int) -> None:
        for number in range(ROWS):
            command = f"{name}-{node}-{number}"
            await insist(cluster.url(node), "INSERT INTO t(name, n) VALUES (?, 0)", [command], command)
            await insist(cluster.url(node), "UPDATE t SET n = n + 1 WHERE id = 1", [], f"{command}-more")

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(some, node)


async def run(cluster: LocalCluster, *statements: str) -> None:
    """Run statements one after the other."""
    async with open_client(cluster.url()) as client:
        for statement in statements:
            await client.execute(statement)


async def adopted(cluster: LocalCluster) -> int:
    """Return the number of commits in timelines of other leaders than their own."""
    async with open_client(cluster.url(1, only=True)) as client:
        asked = await client.execute("SELECT count(*) FROM bedrockish_journal WHERE leader <> origin", read="stale")
        return int(asked.value())


async def change(cluster: LocalCluster, wanted: MemberChange) -> None:
    """Change the membership, if necessary after another change."""

    async def done() -> bool:
        async with open_client(cluster.url()) as client:
            try:
                await client.change_members(wanted)
            except BedrockishError as error:
                if not error.retry:
                    raise
                return False
        return True

    await until(str(wanted), done)


async def kills(cluster: LocalCluster) -> None:
    """Kill B, then C, while clients write everywhere."""
    for number, node in enumerate(cluster.nodes[1:], 1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, cluster, f"kill-{number}")
            await trio.sleep(0.3)
            node.kill()
            await trio.sleep(1.5)
            node.start()
            await cluster.wait_ready(number)


async def adoption(cluster: LocalCluster) -> None:
    """Stop A until another node has adopted its transactions; A learns their outcome later."""
    for attempt in range(STOPS_MOST):
        if await adopted(cluster):
            return
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(load, cluster, f"stop-{attempt}-{number}", (0,))
            await trio.sleep(0.5)
            send_signal(cluster.nodes[0], signal.SIGSTOP)
            await trio.sleep(4)
            send_signal(cluster.nodes[0], signal.SIGCONT)


async def members(cluster: LocalCluster) -> None:
    """Add D, remove C, and put E in the place of B."""
    newcomer(cluster, "D", "--voter")
    await voters(cluster, "A", "B", "C", "D")
    await load(cluster, "four", (0, 1, 2, 3))
    await change(cluster, MemberChange(DEMOTE, "C", force=True))
    await change(cluster, MemberChange(REMOVE, "C"))
    cluster.nodes.pop(2).kill()
    await load(cluster, "without-c", (0, 1, 2))
    lost = cluster.nodes.pop(1)
    lost.kill()
    await change(cluster, MemberChange(REPLACE, "B", f"127.0.0.1:{free_ports(1)[0]}", "E", force=True))
    newcomer(cluster, "E", "--voter")
    await voters(cluster, "A", "D", "E")


async def live(cluster: LocalCluster) -> None:
    """Run all phases, and wait until all nodes are equal."""
    await ready(cluster)
    await run(cluster, "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT UNIQUE, n INTEGER)")
    await load(cluster, "first")
    await kills(cluster)
    await adoption(cluster)
    await ready(cluster)
    await run(cluster, "ALTER TABLE t ADD COLUMN note TEXT", "UPDATE t SET note = 'new column' WHERE id < 5")
    await members(cluster)
    await run(cluster, "CREATE INDEX by_n ON t(n)", "CREATE TABLE u(id INTEGER PRIMARY KEY, blob BLOB)")
    await run(cluster, "INSERT INTO u VALUES (1, x'00ff'), (2, NULL)", "DELETE FROM u WHERE id = 2")
    await load(cluster, "last")
    await level(cluster)


def lifetime(directory: Path) -> list[Path]:
    """Run a cluster in a directory; return the files of its last members."""
    with local_cluster(directory) as cluster:
        trio.run(live, cluster)
        return [node.database for node in cluster.nodes]


def counts(path: Path) -> dict[str, int]:
    """Return how often each rare feature occurs in a journal."""
    queries = {
        "adopted": "leader <> origin",
        "repeats": "repeat = 1",
        "members": "kind = 'members'",
        "schema": "kind = 'schema'",
        "all": "1",
    }
    with contextlib.closing(sqlite3.connect(path)) as db:
        return {
            name: db.execute(f"SELECT count(*) FROM bedrockish_journal WHERE {where}").fetchone()[0]
            for name, where in queries.items()
        }


if __name__ == "__main__":
    for file in lifetime(Path(sys.argv[1])):
        print(file, counts(file))
