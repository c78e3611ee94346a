"""Networks in which some pairs of nodes have no link, and leaders that die between two steps of the protocol.

The nodes are processes; between them are proxies that can cut each direction of each pair, and hold a line from one
message on.
"""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.core.protocol.messages import Approve, Commit
from bedrockish.core.state.settings import Settings
from bedrockish.errors import BedrockishError, OutcomeUnknownError
from tests.cluster.story import BOUND_S, insist, judge_files, level, ready, rows, send_signal, until
from tools.chaos.cluster import ProxiedCluster, proxied_cluster

pytestmark = pytest.mark.cluster

SUSPICION_S = Settings().suspicion_ms / 1000
INSERT = "INSERT INTO work VALUES (?)"
COUNT = "SELECT count(*) FROM work WHERE row = ?"


@asynccontextmanager
async def nodes(directory: Path, names: str) -> AsyncIterator[ProxiedCluster]:
    """Run nodes with a table to work on."""
    async with proxied_cluster(directory / "nodes", names) as cluster:
        await ready(cluster)
        async with open_client(cluster.url()) as client:
            await client.execute("CREATE TABLE work(row TEXT NOT NULL)")
        await level(cluster)
        yield cluster


@asynccontextmanager
async def a_client_each(cluster: ProxiedCluster) -> AsyncIterator[list[Client]]:
    """Open a client to each node that never goes to another."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_client(cluster.url(index, only=True)))
            for index in range(len(cluster.nodes))
        ]


async def has(client: Client, row: str) -> bool:
    """Say whether a node's own tables have a row."""
    return bool((await client.execute(COUNT, [row], read="stale")).value())


@asynccontextmanager
async def delays() -> AsyncIterator[list[float]]:
    """Note for how many seconds this process got no processor during the block; the nodes get as little."""
    late_s = list[float]()

    async def tick() -> None:
        while True:
            due = trio.current_time() + 0.02
            await trio.sleep_until(due)
            late_s.append(trio.current_time() - due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        yield late_s
        nursery.cancel_scope.cancel()


async def arrives(clients: list[Client], row: str, bound_s: float = BOUND_S) -> None:
    for client in clients:

        async def there(client: Client = client) -> bool:
            return await has(client, row)

        await until(f"{row} has arrived", there, bound_s)


async def end(cluster: ProxiedCluster, acknowledged: set[str]) -> None:
    """Heal, wait until all are equal, and look into the files: each acknowledged row is everywhere, once."""
    cluster.network.heal()
    await ready(cluster)
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
    for node in cluster.nodes:
        found = [row for (row,) in rows(node, "SELECT row FROM work")]
        assert len(found) == len(set(found))
        assert acknowledged <= set(found)


async def test_transactions_commit_in_a_chain_of_three_nodes(tmp_path: Path) -> None:
    """While the link between A and C is cut, all three nodes commit, and A's commits reach C through B."""
    async with nodes(tmp_path, "ABC") as cluster:
        done = set[str]()
        with cluster.network.cut(cluster.network.between("A", "C")):
            async with a_client_each(cluster) as clients:
                for round_ in range(5):
                    for index, client in enumerate(clients):
                        await client.execute(INSERT, [row := f"{round_} at {index}"])
                        done.add(row)
                await arrives(clients, "4 at 0")
                await arrives(clients, "4 at 2")
        await end(cluster, done)


async def test_two_halves_that_share_one_node_both_commit_and_lose_no_commit(tmp_path: Path) -> None:
    """{A, B, C} and {C, D, E} all commit, and exchange commits through C. Then C is killed under load."""
    async with nodes(tmp_path, "ABCDE") as cluster:
        done = set[str]()
        with cluster.network.cut(cluster.network.apart("ABC", "CDE")):
            async with a_client_each(cluster) as clients:
                for index, client in enumerate(clients):
                    await client.execute(INSERT, [row := f"at {index}"])
                    done.add(row)
                await arrives(clients, "at 0")
                await arrives(clients, "at 4")

            async def write(index: int) -> None:
                async with open_client(cluster.url(index, only=True)) as client:
                    for count in range(10_000):
                        row = f"{index}-{count}"
                        try:
                            await client.execute(INSERT, [row], timeout=4)
                        except BedrockishError:
                            return  # no quorum any more; no client got the outcome of this row
                        done.add(row)

            async with trio.open_nursery() as nursery:
                for index in (0, 1, 3, 4):
                    nursery.start_soon(write, index)
                before = len(done)

                async def moved() -> bool:
                    return len(done) > before + 12

                await until("both halves commit", moved)
                cluster.nodes[2].kill()
        async with open_client(cluster.url(0)) as client:  # four of five can talk again: they go on without C
            await client.execute(INSERT, ["without C"])
            done.add("without C")
        cluster.nodes[2].start()
        await end(cluster, done)


async def test_isolated_leader_reports_the_known_state_and_one_outcome(tmp_path: Path) -> None:
    """A is cut off while the approvals of its transaction are in transit."""
    async with nodes(tmp_path, "ABC") as cluster:
        lines = [cluster.network.lines["B", "A"], cluster.network.lines["C", "A"]]
        for line in lines:
            line.set_trap(lambda message: isinstance(message, Approve))
        async with a_client_each(cluster) as clients:
            told: list[BedrockishError] = []

            async def ask(row: str) -> None:
                with pytest.raises(BedrockishError) as caught:
                    await clients[0].execute(INSERT, [row], command=row, timeout=3)
                told.append(caught.value)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "on its way")
                for line in lines:
                    await line.caught.wait()
                for line in cluster.network.between("A", "BC"):
                    line.cut()
            assert isinstance(told[0], OutcomeUnknownError)
            assert told[0].details["command"] == "on its way"
            # The others hold the transaction and cannot know whether A has answered, so they commit it.
            await arrives(clients[1:], "on its way")
            await ask("after the cut")
            assert told[1].code in ("unknown", "unavailable", "deadline")
            assert not await has(clients[0], "after the cut")
        cluster.network.heal()
        for row in ("on its way", "after the cut"):
            await insist(cluster.url(0), INSERT, [row], row)
        await end(cluster, {"on its way", "after the cut"})
        assert not rows(cluster.nodes[1], "SELECT row FROM work GROUP BY row HAVING count(*) > 1")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_acknowledged_commit_of_a_silent_leader_reaches_every_survivor(
    how: signal.Signals, tmp_path: Path
) -> None:
    """A has a quorum and has answered its client, but sent no COMMIT. B and C decide the transaction by themselves."""
    async with nodes(tmp_path, "ABC") as cluster, a_client_each(cluster) as clients:
        outgoing = cluster.network.from_node("A")
        for line in outgoing:
            line.set_trap(lambda message: isinstance(message, Commit))
        spoke = trio.current_time()
        await clients[0].execute(INSERT, ["acknowledged"])
        for line in outgoing:
            await line.caught.wait()
        send_signal(cluster.nodes[0], how)
        silent = trio.current_time()
        for line in outgoing:
            line.cut()  # with all messages in transit
        async with delays() as late_s:
            there = [await has(client, "acknowledged") for client in clients[1:]]
            assert not any(there) or trio.current_time() - spoke > SUSPICION_S
            await arrives(clients[1:], "acknowledged")
            took = trio.current_time() - silent
        if os.getloadavg()[0] <= (os.cpu_count() or 1):  # otherwise the machine itself is slow
            assert took < SUSPICION_S + 1 + sum(late_s), f"{took:.2f} s"
        await clients[1].execute(INSERT, ["by B"])
        if how is signal.SIGKILL:
            cluster.nodes[0].kill()
            cluster.nodes[0].start()
        else:
            send_signal(cluster.nodes[0], signal.SIGCONT)
        await end(cluster, {"acknowledged", "by B"})
        adopted = "SELECT repeat FROM bedrockish_journal WHERE leader <> origin"
        labels = "SELECT count(*), sum(repeat) FROM bedrockish_journal WHERE origin = 'A' AND command = ?"
        for node in cluster.nodes:
            assert len(rows(node, adopted)) == 1  # by B or C
            (command,) = rows(node, "SELECT DISTINCT command FROM bedrockish_journal WHERE leader <> origin")[0]
            assert rows(node, labels.replace("?", f"'{command}'")) == [(2, 1)]  # A's own label and theirs, one effect


async def test_two_of_five_killed_at_once_do_not_stop_the_others(tmp_path: Path) -> None:
    async with nodes(tmp_path, "ABCDE") as cluster:
        done = set[str]()
        async with a_client_each(cluster) as clients:
            for index, client in enumerate(clients):
                await client.execute(INSERT, [row := f"before {index}"])
                done.add(row)
            for index in (1, 4):
                cluster.nodes[index].kill()
            for index in (0, 2, 3):
                await clients[index].execute(INSERT, [row := f"after {index}"])
                done.add(row)
        for index in (1, 4):
            cluster.nodes[index].start()
        await end(cluster, done)
