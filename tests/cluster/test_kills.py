"""Nodes are killed with SIGKILL, stopped with SIGSTOP and started again, while clients go on."""

import random
import signal

import pytest
import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError
from tests.cluster.story import BOUND_S, insist, judge_files, level, ready, rows, send_signal, status_of, until
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

COUNTERS = 6


async def found(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE counter(id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
        await client.execute("CREATE TABLE done(command TEXT PRIMARY KEY, counter INTEGER NOT NULL)")
        await client.transact([("INSERT INTO counter VALUES (?, 0)", [number]) for number in range(COUNTERS)])


class Load:
    """Clients that add to counters, each addition as a command of its own, with a record of the acknowledged ones."""

    def __init__(self, cluster: LocalCluster, clients: int) -> None:
        self.cluster, self.clients = cluster, clients
        self.acknowledged: dict[str, int] = {}
        self.stopping = False

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(self.clients):
                nursery.start_soon(self._client, number)

    async def _client(self, number: int) -> None:
        luck = random.Random(number)
        url = self.cluster.url(number % len(self.cluster.nodes))
        for count in range(10_000):
            if self.stopping:
                return
            counter = luck.randrange(COUNTERS)
            command = f"add-{number}-{count}"
            # A trigger-free double entry: the counter and the ledger row must always agree.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._add, url, counter, command)

    async def _add(self, url: str, counter: int, command: str) -> None:
        sql = "INSERT INTO done VALUES (?, ?)"
        await insist(url, sql, [command, counter], command)
        await insist(url, "UPDATE counter SET n = n + 1 WHERE id = ?", [counter], f"{command}-n")
        self.acknowledged[command] = counter

    def judge(self) -> None:
        """Check that every acknowledged addition is there once, and no other."""
        for node in self.cluster.nodes:
            done: dict[str, int] = dict(rows(node, "SELECT command, counter FROM done"))
            assert self.acknowledged.items() <= done.items()
            totals: dict[int, int] = dict(rows(node, "SELECT id, n FROM counter"))
            for counter in range(COUNTERS):
                assert totals[counter] == sum(1 for one in self.acknowledged.values() if one == counter)


async def end(cluster: LocalCluster, load: Load) -> None:
    await level(cluster)
    cluster.stop()
    load.judge()
    judge_files(cluster)


async def test_killed_node_is_equal_after_its_restart_and_commands_happen_once(cluster: LocalCluster) -> None:
    """Each node in turn is killed in the middle of the load and started again; clients retry through it."""
    await found(cluster)
    load = Load(cluster, 6)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        for node in cluster.nodes:
            before = len(load.acknowledged)

            async def moved(before: int = before) -> bool:
                return len(load.acknowledged) > before + 30

            await until("clients get answers", moved)
            node.kill()
            before = len(load.acknowledged)
            await until("clients get answers with a dead node", moved)
            node.start()
            await ready(cluster)
        load.stopping = True
    await end(cluster, load)


async def test_others_recover_for_a_stopped_leader_which_learns_the_outcomes(cluster: LocalCluster) -> None:
    """A leader is stopped for longer than the suspicion time: others end its transactions. Then it serves again."""
    await found(cluster)
    load = Load(cluster, 6)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await trio.sleep(1)
        send_signal(cluster.nodes[0], signal.SIGSTOP)
        try:
            before = len(load.acknowledged)

            async def moved() -> bool:
                return len(load.acknowledged) > before + 30

            await until("clients get answers with a stopped node", moved)

            async def nothing_old() -> bool:
                pending = (await status_of(cluster, 1))["in_doubt"]
                return not any(one["leader"] == "A" for one in pending)

            await until("nothing of the stopped leader is left in doubt", nothing_old)
        finally:
            send_signal(cluster.nodes[0], signal.SIGCONT)
        await ready(cluster)
        load.stopping = True
    await end(cluster, load)


async def test_leader_killed_before_its_vote_is_durable_forgets_a_transaction_that_happens_once(
    cluster: LocalCluster,
) -> None:
    """SIGKILL after BEGIN was sent and before its batch is written: a voter has a vote, and the leader has none."""
    await found(cluster)
    leader, others, forgotten = cluster.nodes[0], cluster.nodes[1:], 0
    for attempt in range(10):
        command, url = f"forgotten-{attempt}", cluster.url(0, only=True)
        await level(cluster)
        for node in others:
            send_signal(node, signal.SIGSTOP)
        try:
            async with open_client(url) as watching, trio.open_nursery() as nursery:
                await watching.status()
                nursery.start_soon(_add_once, url, command)
                with trio.fail_after(BOUND_S):
                    while not (await watching.status())["in_doubt"]:  # at once: the batch is written soon
                        pass
                leader.kill()
            forgotten += not rows(leader, "SELECT 1 FROM bedrockish_vote")
        finally:
            for node in others:
                send_signal(node, signal.SIGCONT)

        async def voted() -> bool:
            found = [await status_of(cluster, index) for index in (1, 2)]
            return any(one["leader"] == "A" for status in found for one in status["in_doubt"])

        await until("a voter has the vote that its leader has not", voted)
        leader.start()
        await ready(cluster)
        await insist(cluster.url(1), "INSERT INTO done VALUES (?, 0)", [command], command)
        await level(cluster)
        for node in cluster.nodes:
            assert rows(node, f"SELECT count(*) FROM done WHERE command = '{command}'") == [(1,)]
        if forgotten:
            break
    assert forgotten, "no leader was killed in that moment"
    cluster.stop()
    judge_files(cluster)


async def _add_once(url: str, command: str) -> None:
    """Send a command to a leader that is killed before it has an answer."""
    async with open_client(url) as client:
        with pytest.raises(BedrockishError):
            await client.execute("INSERT INTO done VALUES (?, 0)", [command], command=command, timeout=8)


async def test_cluster_without_a_majority_commits_nothing_and_clients_get_errors(cluster: LocalCluster) -> None:
    """Two of three nodes are dead: the third answers reads, and fails a write with an unknown outcome or as not
    executed.
    """
    await found(cluster)
    cluster.nodes[1].kill()
    cluster.nodes[2].kill()
    async with open_client(cluster.url(0, only=True)) as client:
        assert (await client.execute("SELECT count(*) FROM counter", read="stale")).rows == [(COUNTERS,)]
        with pytest.raises(BedrockishError) as caught:
            await client.execute("UPDATE counter SET n = 7", command="lonely", timeout=2)
        assert caught.value.code in ("unknown", "deadline", "unavailable")
    cluster.nodes[1].start()
    cluster.nodes[2].start()
    await ready(cluster)
    await insist(cluster.url(1), "UPDATE counter SET n = 7", [], "lonely")
    await level(cluster)
    cluster.stop()
    assert rows(cluster.nodes[0], "SELECT DISTINCT n FROM counter") == [(7,)]
    judge_files(cluster)
