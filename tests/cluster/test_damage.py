"""One wrong bit, or a machine that fails while it applies, at one node: it heals, keeps its name and its votes, and no
other node is affected. At all nodes: the cluster reads on, and an operator decides.
"""

import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from bedrockish import open_client
from bedrockish.client.feed import Changes
from bedrockish.errors import BedrockishError, ReadOnlyError, VoidedError
from bedrockish_journal.arrow import read_journal
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.transaction import decode_transaction
from tests.cluster import touchy
from tests.cluster.story import BOUND_S, insist, judge_files, level, ready, rows, send_signal, status_of, until
from tests.cluster.test_members import newcomer, voters
from tests.forked import program
from tools.cluster import LocalCluster, LocalNode, local_cluster

pytestmark = pytest.mark.cluster


def flip(node: LocalNode, text: bytes, table: str = "t") -> None:
    """Flip one bit of a text in a table of a stopped node's file, and of nothing else."""
    with closing(sqlite3.connect(node.database)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = db.execute("PRAGMA page_size").fetchone()[0]
        pages = {page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = ?", (table,))}
    data = bytearray(node.database.read_bytes())
    places, place = [], data.find(text)
    while place >= 0:
        places.append(place)
        place = data.find(text, place + 1)
    (hit,) = [place for place in places if place // size + 1 in pages]
    data[hit + len(text) - 1] ^= 1
    node.database.write_bytes(data)


async def stop(node: LocalNode) -> None:
    assert node.process is not None
    send_signal(node, signal.SIGTERM)
    await trio.to_thread.run_sync(node.process.wait)


def run(*arguments: str) -> tuple[int, str]:
    done = program(*arguments)
    return done.returncode, done.stdout + done.stderr


async def cli(*arguments: str) -> tuple[int, str]:
    return await trio.to_thread.run_sync(run, *arguments)


async def fill(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.transact(
            [
                "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT, n INT)",
                *[f"INSERT INTO t VALUES ({n}, 'MARK-{n:03d}-aaaa', 0)" for n in range(100)],
            ]
        )
    await level(cluster)


async def damage(cluster: LocalCluster, *nodes: int) -> None:
    """Flip the same bit in the files of some nodes, and start them again."""
    for index in nodes:
        await stop(cluster.nodes[index])
        flip(cluster.nodes[index], b"MARK-050-aaaa")
    for index in nodes:
        cluster.nodes[index].start()
    await ready(cluster)


async def text_at(cluster: LocalCluster, index: int) -> str:
    async with open_client(cluster.url(index, only=True)) as client:
        return str((await client.execute("SELECT v FROM t WHERE id = 50", read="session")).value())


async def serving(cluster: LocalCluster) -> None:
    async def all_serve() -> bool:
        found = [await status_of(cluster, index) for index in range(len(cluster.nodes))]
        return all(one["mode"] == "serving" for one in found)

    async def holds() -> bool:
        try:
            return await all_serve()
        except BedrockishError:
            return False

    await until("all serve", holds)


def said(cluster: LocalCluster) -> str:
    return "".join(node.log.read_text() for node in cluster.nodes)


async def judge(cluster: LocalCluster, pids: list[int], right: str) -> None:
    """Check that no process has ended, all nodes have the right row, and the files are equal."""
    await serving(cluster)
    await level(cluster)
    for index, node in enumerate(cluster.nodes):
        assert node.is_running
        assert node.process is not None
        assert node.process.pid == pids[index]
        assert await text_at(cluster, index) == right
    assert "Traceback" not in said(cluster)
    status, told = await cli("verify", cluster.url())
    assert status == 0, told
    cluster.stop()
    judge_files(cluster)


def processes(cluster: LocalCluster) -> list[int]:
    return [node.process.pid for node in cluster.nodes if node.process is not None]


async def test_node_repairs_a_flipped_bit_that_a_commit_detects(cluster: LocalCluster) -> None:
    """The next write to the row does not fit at the damaged node, which serves nothing until it has filled itself
    again.
    """
    await fill(cluster)
    await damage(cluster, 1)
    pids = processes(cluster)
    store = (await status_of(cluster, 1))["store"]
    async with open_client(cluster.url(0, only=True)) as client:
        await client.execute("UPDATE t SET n = n + 1 WHERE id = 50")
        for n in range(20):  # the others go on
            await client.execute("UPDATE t SET n = n + 1 WHERE id = ?", [n])
    await until("the node has been filled again", lambda: filled(cluster, 1))
    await serving(cluster)
    assert (await status_of(cluster, 1))["store"] == store
    async with open_client(cluster.url(1, only=True)) as client:  # it leads again, in its old timeline
        await client.execute("UPDATE t SET n = n + 1 WHERE id = 50")
    await judge(cluster, pids, "MARK-050-aaaa")
    assert rows(cluster.nodes[1], "SELECT n FROM t WHERE id = 50") == [(2,)]


async def filled(cluster: LocalCluster, index: int) -> bool:
    return "tables were filled again" in cluster.nodes[index].log.read_text()


async def test_flipped_bit_in_an_unused_row_is_found_and_repaired(cluster: LocalCluster) -> None:
    """``verify`` names table, key and node, and the scrub at that node heals it."""
    await fill(cluster)
    await damage(cluster, 2)
    pids = processes(cluster)
    status, told = await cli("verify", cluster.url())
    assert status == 1
    assert "DIFFERS: row 50 of t differs at C" in told
    async with open_client(cluster.url(0, only=True)) as client:
        await client.upkeep({"do": "scrub"})  # B finds the damage at C, and asks C to compare
    await until("the node has been filled again", lambda: filled(cluster, 2))
    await judge(cluster, pids, "MARK-050-aaaa")


async def test_same_flipped_bit_at_two_of_three_nodes_is_repaired_from_the_third(cluster: LocalCluster) -> None:
    """Two of three nodes have the wrong row, but the journal proves the third right."""
    await fill(cluster)
    await damage(cluster, 1, 2)
    pids = processes(cluster)
    async with open_client(cluster.url(0, only=True)) as client:
        with suppress(BedrockishError):  # the order may have to be repeated while two of three nodes start again
            await client.execute("UPDATE t SET n = n + 1 WHERE id = 50", timeout=40)
    await until("B has been filled again", lambda: filled(cluster, 1))
    await until("C has been filled again", lambda: filled(cluster, 2))
    await judge(cluster, pids, "MARK-050-aaaa")


async def test_leader_with_a_flipped_bit_does_not_spread_it(cluster: LocalCluster) -> None:
    """Voters compare a transaction's before-images with their own rows before they approve."""
    await fill(cluster)
    await damage(cluster, 0)
    pids = processes(cluster)

    async def write(sql: str, command: str) -> None:
        await insist(cluster.url(0), sql, [], command)  # the damaged one first

    await write("UPDATE t SET n = n + 1 WHERE id = 50", "one")
    await write("UPDATE t SET v = v || '!' WHERE id = 50", "two")
    await judge(cluster, pids, "MARK-050-aaaa!")
    assert "tables were filled again" in cluster.nodes[0].log.read_text()
    assert rows(cluster.nodes[0], "SELECT n FROM t WHERE id = 50") == [(1,)]


async def test_damaged_one_of_two_nodes_repairs_itself_without_a_majority(tmp_path: Path) -> None:
    """Each node compares its tables with its own journal; the node whose tables differ fills itself again."""
    with local_cluster(tmp_path / "cluster", ("A", "B")) as cluster:
        await fill(cluster)
        await damage(cluster, 1)
        pids = processes(cluster)
        await insist(cluster.url(1), "UPDATE t SET n = n + 1 WHERE id = 50", [], "one")
        await judge(cluster, pids, "MARK-050-aaaa")


async def test_single_node_repairs_its_tables_from_its_own_journal(tmp_path: Path) -> None:
    """The scrub has no other node to compare with; on request the node compares its tables with its journal."""
    with local_cluster(tmp_path / "cluster", ("A",)) as cluster:
        await fill(cluster)
        await damage(cluster, 0)
        status, told = await cli("journal", "verify", "--tables", str(cluster.nodes[0].database))
        assert status == 1
        assert "MARK-050-aaa`" in told
        status, told = await cli("member", "repair", cluster.url(), "A", "--from-journal")
        assert status == 0, told
        await serving(cluster)
        assert await text_at(cluster, 0) == "MARK-050-aaaa"


async def test_node_with_a_damaged_copy_approves_no_transaction_before_its_repair(tmp_path: Path) -> None:
    """Nodes with the same wrong row would approve each other's transactions; the copy's journal shows the damage."""
    with local_cluster(tmp_path / "cluster", ("A",)) as cluster:
        await fill(cluster)
        await damage(cluster, 0)
        node = newcomer(cluster, "B", "--voter")
        await voters(cluster, "A", "B")
        await until("B says that it is a voter", partial(has_said, cluster, 1, "B is a voter now"))
        told = node.log.read_text()
        assert "are a copy, and differ from a replay of its journal" in told
        assert told.index("filled again from its own journal") < told.index("B is a voter now")
        assert "Traceback" not in told
        assert await text_at(cluster, 1) == "MARK-050-aaaa"
        status = await status_of(cluster, 1)
        assert (status["mode"], status["alarms"]) == ("serving", {})
        code, told = await cli("member", "repair", cluster.url(0, only=True), "A", "--from-journal")
        assert code == 0, told
        await until("A is filled again", partial(filled, cluster, 0))
        await level(cluster)
        assert await text_at(cluster, 0) == "MARK-050-aaaa"


async def test_a_node_on_a_copy_that_is_not_compared_yet_reads_and_is_not_promoted(tmp_path: Path) -> None:
    """A node that was killed during the comparison starts it again."""
    with local_cluster(tmp_path / "cluster", ("A",)) as cluster:
        await fill(cluster)
        node = newcomer(cluster, "B", "--no-serve")
        assert node.process is not None
        assert await trio.to_thread.run_sync(partial(node.process.wait, timeout=60)) == 0
        # a folder with the name of the comparison's file stops it
        proof = node.database.with_name(node.database.name + ".proof")
        proof.mkdir()
        for _ in range(2):
            node.start()
            await ready(cluster)
            assert await text_at(cluster, 1) == "MARK-050-aaaa"
            status = await status_of(cluster, 1)
            assert status["mode"] == "read-only"
            assert "unproven_copy" in [one["code"] for one in status["troubles"]]
            code, told = await cli("member", "promote", cluster.url(0, only=True), "B")
            assert code == 2
            assert "only reads for now" in told
            await until("B says why", partial(has_said, cluster, 1, "cannot be compared with its journal now"))
            assert "Traceback" not in node.log.read_text()
            node.kill()
        proof.rmdir()
        node.start()
        await voters_are_promoted(cluster)


async def voters_are_promoted(cluster: LocalCluster) -> None:
    async def promoted() -> bool:
        code, _ = await cli("member", "promote", cluster.url(0, only=True), "B")
        return code == 0

    await until("B is promoted", promoted)
    await voters(cluster, "A", "B")
    assert (await status_of(cluster, 1))["alarms"] == {}


def spoil_entry(node: LocalNode, tick: int) -> None:
    """Damage an entry of node A's timeline in the journal of a stopped node, and nothing else."""
    with closing(sqlite3.connect(node.database)) as db, db:
        query = "UPDATE bedrockish_journal SET body = CAST(substr(body, 2) AS BLOB) WHERE leader = 'A' AND tick = ?"
        assert db.execute(query, (tick,)).rowcount == 1


async def all_safe(cluster: LocalCluster) -> None:
    """Wait until all commits are safe at A, because a node must know the other ones when it starts."""
    clock = (await status_of(cluster, 0))["clock"]

    async def is_safe() -> bool:
        return bool((await status_of(cluster, 0))["safe"] >= clock)

    await until("all is safe", is_safe)


async def test_damaged_entry_is_fetched_from_another_node_and_its_node_can_be_repaired(cluster: LocalCluster) -> None:
    """A node that joins by a replay has all; the damaged entry is reported once, and the node goes on."""
    await fill(cluster)
    async with open_client(cluster.url(0, only=True)) as client:
        for n in range(40):
            await client.execute("UPDATE t SET n = n + 1 WHERE id = ?", [n])
    await level(cluster)
    await all_safe(cluster)
    await stop(cluster.nodes[0])
    spoil_entry(cluster.nodes[0], 20)
    cluster.nodes[0].start()
    await ready(cluster)
    pids = processes(cluster)
    newcomer(cluster, "D", "--replay")
    await level(cluster)
    log = cluster.nodes[0].log.read_text()
    assert log.count("the entry A20 of this node's journal is damaged") == 1
    assert "Traceback" not in said(cluster)
    (trouble,) = [one for one in (await status_of(cluster, 0))["troubles"] if one["code"] == "journal_damaged"]
    assert trouble["text"].startswith("A20: ")
    code, told = await cli("member", "repair", cluster.url(0, only=True), "A")
    assert code == 0, told
    await until("A is filled again", partial(filled, cluster, 0))
    await serving(cluster)
    await level(cluster)
    assert processes(cluster)[:3] == pids
    assert not (await status_of(cluster, 0))["journal_damaged"]
    cluster.stop()
    judge_files(cluster)


async def test_replay_reports_an_entry_that_is_damaged_at_its_only_holder(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", ("A",)) as cluster:
        await fill(cluster)
        await all_safe(cluster)
        await stop(cluster.nodes[0])
        spoil_entry(cluster.nodes[0], 1)
        cluster.nodes[0].start()
        await ready(cluster)
        newcomer(cluster, "B", "--replay")

        async def is_said() -> bool:
            try:
                return "damaged in them" in str((await status_of(cluster, 1))["trouble"])
            except BedrockishError:
                return False

        await until("B says why it waits", is_said)
        assert "Traceback" not in said(cluster)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes with an index on a function that fails on the word poison, where ``fault`` says so."""
    patient = LocalCluster(tmp_path / "cluster", settings={"timings": {"suspicion_ms": 800}})
    with patient.running(f'plugins = ["{touchy.__name__}"]') as cluster:
        yield cluster


def fault(cluster: LocalCluster, plans: dict[str, str]) -> None:
    for node, plan in plans.items():
        (cluster.directory / f"fault-{node}").write_text(plan)


async def fill_faulty(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.transact(
            [
                "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)",
                "CREATE INDEX t_touchy ON t(touchy(v))",
                "INSERT INTO t VALUES (1, 'sound')",
            ]
        )
    await level(cluster)


async def count_poison(cluster: LocalCluster, index: int, read: str = "session") -> int:
    async with open_client(cluster.url(index, only=True)) as client:
        return int((await client.execute("SELECT count(*) FROM t WHERE id = 2", read=read)).value())


@pytest.mark.parametrize("nodes", ["B", pytest.param("BC", marks=pytest.mark.slow)])
async def test_nodes_repair_themselves_when_an_entry_does_not_fit(faulty: LocalCluster, nodes: str) -> None:
    """The nodes refill themselves from the one that the entry fits, whose journal proves its tables."""
    await fill_faulty(faulty)
    pids = processes(faulty)
    fault(faulty, dict.fromkeys(nodes, "0 once"))
    await insist(faulty.url(0), "INSERT INTO t VALUES (2, 'poison')", [], "one")
    for index in range(3):
        if faulty.nodes[index].name in nodes:
            await until(f"{index} is filled again", partial(filled, faulty, index))
    await serving(faulty)
    await level(faulty)
    assert [await count_poison(faulty, index) for index in range(3)] == [1, 1, 1]
    assert [node.process.pid for node in faulty.nodes if node.process is not None] == pids
    assert "Traceback" not in said(faulty)


async def test_an_entry_that_does_not_fit_at_the_only_node_is_rolled_back(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "alone", ("A",)).running(f'plugins = ["{touchy.__name__}"]') as alone:
        await fill_faulty(alone)
        await insert_misfit(alone, {"A": "2 always"}, "restarting the node: the tables are sound")
        await serving(alone)
        assert await count_poison(alone, 0) == 0
        await insist(alone.url(), "INSERT INTO t VALUES (3, 'later')", [], "two")


async def test_entry_that_does_not_fit_at_its_own_leader_is_rolled_back(faulty: LocalCluster) -> None:
    """No client got an answer, so the transaction is not committed; the node checks its tables, and serves again."""
    await fill_faulty(faulty)
    plans = {"A": "2 always", "B": "0 once", "C": "0 once"}
    await insert_misfit(faulty, plans, "restarting the node: the tables are sound")
    await serving(faulty)
    await level(faulty)
    assert [await count_poison(faulty, index) for index in range(3)] == [0, 0, 0]
    await insist(faulty.url(1), "INSERT INTO t VALUES (3, 'later')", [], "two")
    await level(faulty)


async def insert_misfit(
    cluster: LocalCluster, plans: dict[str, str], words: str, nodes: tuple[int, ...] = (0,)
) -> None:
    """Insert a row that A can execute, and not apply; wait until some node has said so.

    If another transaction delays the first one, A executes it twice, and meets its fault there: then insert it again.
    """
    node = cluster.nodes[0]

    async def is_said() -> bool:
        return any([await has_said(cluster, index, words) for index in nodes])

    async def is_met() -> bool:
        if not node.is_running:
            node.start()
            await ready(cluster)
        fault(cluster, plans)
        async with open_client(cluster.url(0, only=True)) as client:
            with pytest.raises(BedrockishError):
                await client.execute("INSERT INTO t VALUES (2, 'poison')", command="one", timeout=5)
        if "exit" in plans["A"]:
            assert node.process is not None
            assert await trio.to_thread.run_sync(node.process.wait) == 77
        with suppress(AssertionError):
            await until(words, is_said, BOUND_S / 2)
        return await is_said()

    await until("a node has met its fault", is_met, 4 * BOUND_S)


async def has_said(cluster: LocalCluster, index: int, text: str) -> bool:
    return text in cluster.nodes[index].log.read_text()


async def test_entry_that_no_node_can_apply_stops_writes_only(faulty: LocalCluster) -> None:
    """A dead leader's decided entry fits no tables. All nodes still read, and an operator has its changes skipped."""
    await fill_faulty(faulty)
    # B or C has finished the transaction as far as possible; A would give it up.
    plans = {"A": "2 exit", "B": "0 always", "C": "0 always"}
    await insert_misfit(faulty, plans, "does not fit here; waiting for A", nodes=(1, 2))
    node = faulty.nodes[0]
    node.start()

    async def stopped() -> bool:
        found = [await status_of(faulty, index) for index in (1, 2)]
        return all(one["mode"] == "read-only" and one["blocked"] for one in found)

    await until("B and C only read", partial(unless_unavailable, stopped))
    assert [await count_poison(faulty, index) for index in range(3)] == [0, 0, 0]
    for index in range(3):
        async with open_client(faulty.url(index, only=True)) as client:
            found = await client.execute("SELECT v FROM t WHERE id = 1", read="strict", timeout=40)
            assert found.value() == "sound"
    async with open_client(faulty.url(1, only=True)) as client:
        with pytest.raises(ReadOnlyError, match="fits at no node"):
            await client.execute("INSERT INTO t VALUES (4, 'a write')", timeout=5)
    (txid,) = (await status_of(faulty, 1))["blocked"]
    status, told = await cli("member", "resolve", faulty.url(), "A-123")
    assert status != 0
    assert "stops no node" in told
    status, told = await cli("member", "resolve", faulty.url(), txid)
    assert status == 0, told
    assert told.endswith("recorded in the journal\n")
    await serving(faulty)
    status, told = await cli("member", "resolve", faulty.url(), txid)  # a second order has no effect
    assert status == 0, told
    await insist(faulty.url(1), "INSERT INTO t VALUES (3, 'later')", [], "two")
    await level(faulty)
    assert [await count_poison(faulty, index) for index in range(3)] == [0, 0, 0]
    async with open_client(faulty.url()) as client:
        with pytest.raises(VoidedError):
            await client.execute("INSERT INTO t VALUES (2, 'poison')", command="one")
    status, told = await cli("verify", faulty.url())
    assert status == 0, told
    assert "Traceback" not in said(faulty)
    await all_safe(faulty)
    async with open_client(faulty.url(2, only=True)) as client:
        fed = [one async for one in Changes(client, follow=False)]
        listed = (await client.execute("SELECT DISTINCT transaction_id FROM bedrockish_changes")).rows
    assert "one" not in {one.command for one in fed} | {command for (command,) in listed}
    faulty.stop()
    for node in faulty.nodes:
        (faulty.directory / f"fault-{node.name}").unlink(missing_ok=True)
        status, told = await cli("journal", "verify", "--tables", "--plugin", touchy.__name__, str(node.database))
        assert status == 0, told
        changes = read_journal(node.database, table="changes").read_all().to_pylist()
        assert {one["command"] for one in changes} >= {"two"}
        assert "one" not in {one["command"] for one in changes}
    (said_void,) = rows(faulty.nodes[0], "SELECT body FROM bedrockish_journal WHERE kind = 'members'")[-1]
    assert [str(one) for one in read_membership(decode_transaction(said_void).changes).void] == [txid]
    for node in faulty.nodes:
        with closing(sqlite3.connect(node.database)) as db, db:
            db.execute("DELETE FROM bedrockish_meta WHERE key LIKE 'void:%'")
    status, told = await cli("journal", "verify", *[str(node.database) for node in faulty.nodes])
    assert (status, told.count(f"A: void: a membership says that the changes of {txid} are")) == (1, 1), told


async def unless_unavailable(holds: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await holds()
    except BedrockishError:
        return False
