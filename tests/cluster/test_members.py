"""Nodes join, leave, are replaced and are restarted one after the other, while clients go on."""

import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio

from bedrockish import open_client
from bedrockish.api.requests import DEMOTE, PROMOTE, REMOVE, REPLACE, MemberChange
from bedrockish.errors import BedrockishError, MembershipError, UnavailableError
from tests.cluster.story import BOUND_S, judge_files, level, ready, rows, status_of, until
from tests.forked import program
from tools.cluster import LocalCluster, LocalNode, free_ports, local_cluster

pytestmark = pytest.mark.cluster

PAUSE_S = 0.02  # between two commits of a client; without it, four clients take all processors


class Work:
    """Clients that write one row after the other; every failure that a client sees is counted as one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.done: set[str] = set()
        self.failed: list[BedrockishError] = []
        self.stopping = False

    async def client(self, name: int) -> None:
        async with open_client(self.url) as client:
            for count in range(100_000):
                if self.stopping:
                    return
                row = f"{name}-{count}"
                try:
                    await client.execute("INSERT INTO work VALUES (?)", [row])
                    self.done.add(row)
                except BedrockishError as error:
                    self.failed.append(error)
                await trio.sleep(PAUSE_S)

    async def moves(self) -> None:
        """Wait until some more rows are in."""
        before = len(self.done)

        async def more() -> bool:
            return len(self.done) > before + 20

        await until("clients get on", more)


@asynccontextmanager
async def working(cluster: LocalCluster, clients: int = 4) -> AsyncIterator[Work]:
    """Run clients in parallel with the block; at its end, no command may have failed."""
    await ready(cluster)
    work = Work(cluster.url())
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE work(row TEXT PRIMARY KEY)")
    async with trio.open_nursery() as nursery:
        for name in range(clients):
            nursery.start_soon(work.client, name)
        await work.moves()
        yield work
        await work.moves()
        work.stopping = True
    assert not work.failed, work.failed[:3]


def newcomer(cluster: LocalCluster, name: str, *options: str, port: int = 0) -> LocalNode:
    """Start a joining node, and add it to those that the helpers check."""
    url = cluster.url()
    node = LocalNode(name, port or free_ports(1)[0], cluster.directory)
    node.config.write_text(f'node = "{name}"\ndatabase = "{node.database.name}"\nlisten = "127.0.0.1:{node.port}"\n')
    cluster.nodes.append(node)
    node.start("join", url, *options)
    return node


async def voters(cluster: LocalCluster, *expected: str, bound_s: float = BOUND_S) -> None:
    """Wait until every node knows these to be the voters."""

    async def agreed() -> bool:
        try:
            found = [await status_of(cluster, index) for index in range(len(cluster.nodes))]
        except BedrockishError:
            return False
        seen = [{name for name, node in one["nodes"].items() if node["role"] == "voter"} for one in found]
        return all(one == set(expected) for one in seen) and not any(one["trouble"] for one in found)

    await until(f"the voters are {expected}", agreed, bound_s)


def judge(cluster: LocalCluster, work: Work) -> None:
    """Nothing acknowledged is lost, on any node; all files are equal and sound."""
    cluster.stop()
    for node in cluster.nodes:
        assert work.done <= {row for (row,) in rows(node, "SELECT row FROM work")}
    judge_files(cluster)


async def change(cluster: LocalCluster, wanted: MemberChange, first: int = 0) -> None:
    async with open_client(cluster.url(first)) as client:
        await client.change_members(wanted)


async def test_one_node_grows_to_three_under_load(tmp_path: Path) -> None:
    """No command fails while B and C join and are promoted."""
    with local_cluster(tmp_path / "cluster", ("A",)) as cluster:
        async with working(cluster) as work:
            for name, expected in (("B", ("A", "B")), ("C", ("A", "B", "C"))):
                newcomer(cluster, name, "--voter")
                await voters(cluster, *expected)
                await work.moves()
        async with open_client(cluster.url(2, only=True)) as client:
            await client.execute("INSERT INTO work VALUES ('by C')")
        await level(cluster)
        judge(cluster, work)


@pytest.mark.parametrize("option", ["--replay", "--voter"])
async def test_a_fresh_node_joins_three_under_load(cluster: LocalCluster, option: str) -> None:
    """With a copy of a file, and by replaying the journal, it ends up equal; a learner passes on what writes."""
    async with working(cluster) as work:
        node = newcomer(cluster, "D", option)
        await voters(cluster, *(("A", "B", "C", "D") if option == "--voter" else ("A", "B", "C")))
        await work.moves()
    await level(cluster)
    async with open_client(cluster.url(3, only=True)) as client:
        assert (await client.execute("SELECT count(*) FROM work")).value() >= len(work.done)
        await client.execute("INSERT INTO work VALUES ('through D')")
    node.kill()
    node.start()  # the file now belongs to a member
    await ready(cluster)
    await level(cluster)
    judge(cluster, work)


async def test_cluster_works_after_the_removal_of_a_dead_node(cluster: LocalCluster) -> None:
    """Of three voters, a dead one can be demoted and removed, and a living one cannot: it is needed for a quorum."""
    async with working(cluster) as work:
        dead = cluster.nodes.pop()
        dead.kill()
        await work.moves()
        with pytest.raises(MembershipError) as refused:
            await change(cluster, MemberChange(REMOVE, "A"))  # B and the dead C would have no quorum
        assert refused.value.details["reason"] == "quorum"
        await change(cluster, MemberChange(DEMOTE, "C"))
        await voters(cluster, "A", "B")
        await work.moves()
        await change(cluster, MemberChange(REMOVE, "C"), first=1)
        await work.moves()
    status = await status_of(cluster, 0)
    assert set(status["nodes"]) == {"A", "B"}
    assert status["quorum"] == 2
    dead.start()  # the dead node does not know of its removal yet
    cluster.nodes.append(dead)

    async def told() -> bool:
        try:
            return "no longer a member of the cluster, according to A, B" in (
                (await status_of(cluster, 2))["trouble"] or ""
            )
        except BedrockishError:
            return False

    await until("the removed node knows that it is turned away", told)
    async with open_client(cluster.url(2, only=True, options="/?timeout=5")) as client:
        with pytest.raises(UnavailableError, match="no longer a member"):
            await client.execute("SELECT count(*) FROM work", read="stale")
    cluster.nodes.pop()
    dead.kill()
    await level(cluster)
    judge(cluster, work)


async def test_node_that_stopped_just_now_does_not_answer_an_order(cluster: LocalCluster) -> None:
    """An order asks each member whether it is alive; a message from before the order proves nothing."""
    await ready(cluster)
    successor = MemberChange(REPLACE, "C", f"127.0.0.1:{free_ports(1)[0]}", "D")
    with pytest.raises(MembershipError, match="C answers"):
        await change(cluster, successor)
    stopped = cluster.nodes[2].process
    assert stopped is not None
    stopped.send_signal(signal.SIGSTOP)  # unlike after a kill, its links stay open
    try:
        reason = "spare"
        for _ in range(3):  # a word of C that is on its way still counts
            if reason == "spare":
                with pytest.raises(MembershipError) as refused:
                    await change(cluster, MemberChange(DEMOTE, "B"))
                reason = str(refused.value.details["reason"])
        assert reason == "quorum", "A and the stopped C could decide nothing"
    finally:
        stopped.send_signal(signal.SIGCONT)
    await ready(cluster)
    stopped.send_signal(signal.SIGSTOP)

    async def replaced() -> bool:
        try:
            await change(cluster, successor)
        except MembershipError:  # a word of C was on its way
            return False
        return True

    try:
        await until("C is replaced", replaced)
    finally:
        stopped.kill()
        stopped.send_signal(signal.SIGCONT)
    assert set((await status_of(cluster, 0))["nodes"]) == {"A", "B", "D"}


async def test_running_node_learns_of_its_removal(cluster: LocalCluster) -> None:
    """The removed node sends its clients to other nodes."""
    await ready(cluster)
    await change(cluster, MemberChange(REMOVE, "C", force=True))

    async def told() -> bool:
        return "no longer a member" in ((await status_of(cluster, 2))["trouble"] or "")

    await until("C knows that it was removed", told)
    async with open_client(cluster.url(2)) as client:
        await client.execute("CREATE TABLE t(a)")
    async with open_client(cluster.url(2, only=True, options="/?timeout=40")) as client:
        assert (await client.execute("SELECT count(*) FROM t")).value() == 0, "it names the voters"
        with pytest.raises(MembershipError, match="'C' is not a member"):
            await client.change_members(MemberChange(PROMOTE, "C"))


async def test_a_node_with_a_lost_file_refuses_to_vote_and_is_replaced(cluster: LocalCluster) -> None:
    """With an empty file a voter would break its promises.

    So peers refuse the voter, its status says so, and a new node replaces it.
    """
    async with working(cluster) as work:
        lost = cluster.nodes[2]
        lost.kill()
        for path in cluster.directory.glob(f"{lost.name}.sqlite*"):
            path.unlink()
        lost.start()

        async def troubled() -> bool:
            try:
                return "member replace" in ((await status_of(cluster, 2))["trouble"] or "")
            except BedrockishError:
                return False

        await until("C says what is wrong", troubled)
        assert "member replace" in lost.log.read_text()
        others = await status_of(cluster, 0)
        assert "another file" in others["nodes"]["C"]["trouble"]
        assert not others["nodes"]["C"]["up"]
        await work.moves()
        lost.kill()
        cluster.nodes.remove(lost)
        with pytest.raises(MembershipError, match="new name"):
            await change(cluster, MemberChange("replace", "C", successor="C"))
        await change(cluster, MemberChange("replace", "C", f"127.0.0.1:{free_ports(1)[0]}", "D"))
        newcomer(cluster, "D", "--voter")
        await voters(cluster, "A", "B", "D")
        await work.moves()
    await level(cluster)
    judge(cluster, work)


async def test_older_file_put_back_is_refused(cluster: LocalCluster) -> None:
    """A copy that lacks some votes is as unsafe as an empty file."""
    async with working(cluster) as work:
        old = cluster.nodes[2]
        assert old.process is not None
        old.process.send_signal(signal.SIGTERM)
        await trio.to_thread.run_sync(old.process.wait)
        copies = {path.name: path.read_bytes() for path in cluster.directory.glob(f"{old.name}.sqlite*")}
        old.start()
        await ready(cluster)
        await work.moves()
        old.kill()
        for path in cluster.directory.glob(f"{old.name}.sqlite*"):
            path.unlink()
        for name, content in copies.items():
            (cluster.directory / name).write_bytes(content)
        old.start()

        async def troubled() -> bool:
            try:
                return "forgotten promises" in ((await status_of(cluster, 2))["trouble"] or "")
            except BedrockishError:
                return False

        await until("C says what is wrong", troubled)
        assert old.process is not None
        old.process.send_signal(signal.SIGTERM)
        await trio.to_thread.run_sync(old.process.wait)
        with closing(sqlite3.connect(old.database)) as db:
            kept = dict(db.execute("SELECT key, value FROM bedrockish_meta WHERE key = 'lost'"))
        # the file itself records the refusal, even if the others forget it
        assert "older state of its file" in kept["lost"]
        await work.moves()


async def test_a_rolling_restart_fails_no_command(cluster: LocalCluster) -> None:
    """Under load, each node in turn is ended by SIGTERM and started again."""
    async with working(cluster) as work:
        for node in cluster.nodes:
            assert node.process is not None
            os.kill(node.process.pid, signal.SIGTERM)
            assert await trio.to_thread.run_sync(node.process.wait) == 0
            await work.moves()
            node.start()
            await ready(cluster)
    await level(cluster)
    judge(cluster, work)


async def test_cluster_founded_with_tables_is_joined_and_backed_up_by_copies_only(tmp_path: Path) -> None:
    """The journal does not contain the first tables, so a replay and a continuous backup are refused, and a copy is
    not.
    """
    cluster = LocalCluster(tmp_path / "cluster", ("A",))
    cluster.write_files()
    with closing(sqlite3.connect(cluster.nodes[0].database)) as db:
        db.executescript("CREATE TABLE old(id INTEGER PRIMARY KEY, word TEXT); INSERT INTO old VALUES (1, 'before')")
    try:
        cluster.nodes[0].start()
        await ready(cluster)
        refused = newcomer(cluster, "B", "--replay")
        assert refused.process is not None
        assert await trio.to_thread.run_sync(refused.process.wait) == 2
        assert "join without --replay" in refused.last_words()
        refused.start("join", cluster.url(0, only=True))
        async with open_client(cluster.url()) as client:
            await client.execute("UPDATE old SET word = 'after'")
        await voters(cluster, "A")
        await level(cluster)
        copy = tmp_path / "backup.db"
        done = await trio.to_thread.run_sync(lambda: program("backup", cluster.url(1), str(copy), cwd=tmp_path))
        assert done.returncode == 0, done.stderr
        assert program("journal", "verify", str(copy), cwd=tmp_path).returncode == 0
        assert sorted(os.listdir(tmp_path)) == ["backup.db", "cluster"]
        with closing(sqlite3.connect(copy)) as db:
            assert db.execute("SELECT * FROM old").fetchall() == [(1, "after")]
        again = program("backup", cluster.url(1), str(copy), cwd=tmp_path)
        assert again.returncode == 2
        assert "exists already" in again.stderr
    finally:
        cluster.stop()
    judge_files(cluster)
