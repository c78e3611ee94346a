"""SQLite cannot read a page at one node: the node refills itself, or ends and names the remedy.

A commit, a client or an operator's order may find the page first.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from bedrockish import Client, open_client
from bedrockish.errors import BedrockishError
from tests.cluster.story import all_safe, insist, judge_files, level, ready, rows, status_of, until
from tests.cluster.test_damage import filled, processes, said, serving, stop
from tools.cluster import LocalCluster, LocalNode, local_cluster

pytestmark = pytest.mark.cluster

ROWS = "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 2000)"
WRITES = 100
DAMAGED_EXIT = 5


def command(number: int) -> str:
    """Return the id of a command: so long that those of all take several pages of an index."""
    return f"{number:0100d}"


def pages(node: LocalNode, name: str) -> list[int]:
    """Return where in a stopped node's file the leaves of a table or an index are."""
    with closing(sqlite3.connect(node.database)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = db.execute("PRAGMA page_size").fetchone()[0]
        query = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno"
        return [(page - 1) * size for (page,) in db.execute(query, (name,))]


def spoil(node: LocalNode, places: list[int]) -> None:
    """Flip bits at the beginning of pages, so that their type is invalid."""
    with node.database.open("r+b") as file:
        for place in places:
            file.seek(place)
            kind = file.read(1)[0]
            file.seek(place)
            file.write(bytes([kind ^ 0x55]))


async def fill(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as client:
        await client.transact(
            [
                "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT, n INT)",
                "CREATE INDEX t_v ON t(v)",
                f"{ROWS} INSERT INTO t SELECT i, printf('%0100d', i), 0 FROM s",
            ]
        )
        for n in range(WRITES):
            await client.execute("UPDATE t SET n = n + 1 WHERE id = ?", [n], command=command(n))
    await level(cluster)
    await all_safe(cluster)


async def spoil_at_b(cluster: LocalCluster, name: str) -> None:
    """Spoil a table or an index at node B, which reads it again when it is asked for it the next time."""
    node = cluster.nodes[1]
    await stop(node)
    places = pages(node, name)
    node.start()
    await ready(cluster)
    spoil(node, places)


async def healed(cluster: LocalCluster, pids: list[int]) -> None:
    await until("B is filled again", partial(filled, cluster, 1))
    await serving(cluster)
    await level(cluster)
    assert processes(cluster) == pids
    log = cluster.nodes[1].log.read_text()
    assert log.count("tables were filled again") == 1
    assert "the tables are sound" not in log
    assert "Traceback" not in said(cluster)
    cluster.stop()
    judge_files(cluster)
    for node in cluster.nodes:
        with closing(sqlite3.connect(node.database)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def read_by_the_index(client: Client) -> None:
    await client.execute("SELECT count(*) FROM t INDEXED BY t_v", timeout=5)


async def explain(client: Client) -> None:
    await client.explain("SELECT sum(n) FROM t NOT INDEXED", timeout=5)


async def settle(client: Client) -> None:
    await client.settle(command(3), timeout=5)


async def scrub(client: Client) -> None:
    await client.upkeep({"do": "scrub"}, timeout=5)


async def repair(client: Client) -> None:
    await client.upkeep({"do": "repair"}, timeout=20)


async def read_in_a_transaction(client: Client) -> None:
    async with client.transaction() as transaction:
        await transaction.execute("SELECT sum(n) FROM t NOT INDEXED")


async def stream(client: Client) -> None:
    async with client.stream("SELECT * FROM t NOT INDEXED") as rows:
        async for _ in rows:
            pass


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("t_v", read_by_the_index),
        ("bedrockish_journal_command", settle),
        ("t", scrub),
        pytest.param("t", explain, marks=pytest.mark.slow),
        pytest.param("t", repair, marks=pytest.mark.slow),
        pytest.param("t", read_in_a_transaction, marks=pytest.mark.slow),
        pytest.param("t", stream, marks=pytest.mark.slow),
    ],
)
async def test_node_repairs_a_damaged_page_that_a_request_reads(
    cluster: LocalCluster, name: str, ask: Callable[[Client], Awaitable[None]]
) -> None:
    await fill(cluster)
    await spoil_at_b(cluster, name)
    pids = processes(cluster)
    async with open_client(cluster.url(1, only=True)) as client:
        with suppress(BedrockishError, trio.TooSlowError):
            await ask(client)
    await healed(cluster, pids)


async def test_node_repairs_a_damaged_page_that_an_operators_command_reads(tmp_path: Path) -> None:
    settings = {"timings": {"conflict_window_ms": 2000}}
    with LocalCluster(tmp_path / "cluster", settings=settings).running() as cluster:
        await fill(cluster)
        await spoil_at_b(cluster, "bedrockish_journal_command")
        pids = processes(cluster)
        order = {"do": "prune", "older_than_s": 0, "force": True}

        async def met() -> bool:
            """Return whether the order to prune has met the damage; it does not while the entries are too young."""
            async with open_client(cluster.url(1, only=True)) as client:
                with suppress(BedrockishError):
                    await client.upkeep(order, timeout=5)
            return "damage was found at upkeep" in cluster.nodes[1].log.read_text()

        await until("the order meets it", met)
        await healed(cluster, pids)


async def test_node_repairs_a_damaged_page_that_a_commit_reads(cluster: LocalCluster) -> None:
    """The commit of another leader changes a column of the damaged index."""
    await fill(cluster)
    await spoil_at_b(cluster, "t_v")
    pids = processes(cluster)
    await insist(cluster.url(0), "UPDATE t SET v = 'new' WHERE id = 1000", [], "one")
    await healed(cluster, pids)


async def test_node_with_damaged_core_pages_exits_with_advice(cluster: LocalCluster) -> None:
    await fill(cluster)
    node = cluster.nodes[1]
    for name in ("bedrockish_vote", "bedrockish_journal", "bedrockish_meta"):
        await stop(node)
        whole = node.database.read_bytes()
        spoil(node, pages(node, name))
        node.start()
        assert node.process is not None
        assert await trio.to_thread.run_sync(node.process.wait) == DAMAGED_EXIT
        assert "damaged in pages that its node cannot begin without" in node.last_words()
        assert "member replace" in node.last_words()
        assert "bug" not in node.last_words()
        node.database.write_bytes(whole)
        node.start()
        await ready(cluster)
        assert (await status_of(cluster, 1))["mode"] == "serving"


async def test_single_node_repairs_a_damaged_index_from_its_journal(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", ("A",)) as cluster:
        await fill(cluster)
        node = cluster.nodes[0]
        await stop(node)
        spoil(node, pages(node, "t_v"))
        node.start()
        await ready(cluster)
        async with open_client(cluster.url()) as client:
            with suppress(BedrockishError, trio.TooSlowError):
                await read_by_the_index(client)
        await until("A is filled again", partial(filled, cluster, 0))
        await serving(cluster)
        async with open_client(cluster.url()) as client:
            await read_by_the_index(client)


@pytest.mark.parametrize(
    "name", ["bedrockish_journal_place", pytest.param("bedrockish_journal_txid", marks=pytest.mark.slow)]
)
async def test_node_rebuilds_an_index_without_which_it_cannot_start(cluster: LocalCluster, name: str) -> None:
    """The node's tables and votes are intact; the other nodes confirm that its rows are right."""
    await fill(cluster)
    node = cluster.nodes[1]
    await stop(node)
    with closing(sqlite3.connect(node.database)) as db:
        votes = db.execute("SELECT * FROM bedrockish_vote").fetchall()
    store = rows(node, "SELECT value FROM bedrockish_meta WHERE key = 'store'")
    mode = node.database.stat().st_mode
    spoil(node, pages(node, name))
    node.start()
    await ready(cluster)
    await serving(cluster)
    log = node.log.read_text()
    assert "the indexes were rebuilt" in log
    assert "nothing differs any more: its tables are those of A, C" in log
    assert "Traceback" not in log
    assert rows(node, "SELECT value FROM bedrockish_meta WHERE key = 'store'") == store
    assert votes == [] or rows(node, "SELECT * FROM bedrockish_vote") == votes
    assert node.database.stat().st_mode == mode
    async with open_client(cluster.url(1, only=True)) as client:  # it leads again, in its old timeline
        await client.execute("UPDATE t SET n = n + 1 WHERE id = 3")
        with suppress(BedrockishError):
            await client.execute("UPDATE t SET n = n + 1 WHERE id = 3", command=command(3))
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    for one in cluster.nodes:
        assert rows(one, "PRAGMA integrity_check") == [("ok",)]
        assert rows(one, "SELECT n FROM t WHERE id = 3") == [(2,)]


async def test_single_node_with_a_pruned_journal_repairs_a_damaged_index(tmp_path: Path) -> None:
    """The pruned journal no longer contains all rows, and no other node has them; the node's table still does."""
    settings = {"timings": {"conflict_window_ms": 2000}}
    with LocalCluster(tmp_path / "cluster", ("A",), settings=settings).running() as cluster:
        await fill(cluster)
        node = cluster.nodes[0]

        async def pruned() -> bool:
            async with open_client(cluster.url()) as client:
                await client.upkeep({"do": "prune", "older_than_s": 0, "force": True}, timeout=5)
                return int((await client.execute("SELECT count(*) FROM bedrockish_journal")).value()) < WRITES

        await until("the journal's beginning is removed", pruned)
        for name in ("t_v", "bedrockish_journal_place"):
            await stop(node)
            spoil(node, pages(node, name))
            node.start()
            await ready(cluster)
            async with open_client(cluster.url()) as client:
                with suppress(BedrockishError, trio.TooSlowError):
                    await read_by_the_index(client)
            if name == "t_v":
                await until("A is filled again", partial(filled, cluster, 0))
                assert "filling the tables again from its own tables" in node.log.read_text()
            await serving(cluster)
            async with open_client(cluster.url()) as client:
                await read_by_the_index(client)
                await client.execute("UPDATE t SET v = 'new' WHERE id = 7")
        assert node.log.read_text().count("the indexes were rebuilt") == 1
        cluster.stop()
        judge_files(cluster)
        assert rows(node, "PRAGMA integrity_check") == [("ok",)]
