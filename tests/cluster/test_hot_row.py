"""All clients increment one row at three real nodes: each command counts once, even if it is repeated."""

import uuid

import pytest
import trio

from bedrockish import open_client
from bedrockish.client.feed import Changes
from bedrockish_journal.verify.verify import verify
from tests.cluster.story import ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster
COUNT = "UPDATE counter SET n = n + 1 WHERE id = 1 RETURNING n"
WAIT_S = 60.0
CLIENTS, EACH = 8, 10  # clients of each node; commands of each client


async def test_increments_of_all_clients_in_one_row_are_counted(cluster: LocalCluster) -> None:
    """Waiting commands share transactions; only the journal shows it, with fewer entries."""
    await ready(cluster)
    told: dict[str, int] = {}
    async with open_client(cluster.url()) as first:
        await first.execute("CREATE TABLE counter(id INTEGER PRIMARY KEY, n INTEGER)")
        await first.execute("INSERT INTO counter VALUES (1, 0)")

        async def count(node: int) -> None:
            async with open_client(cluster.url(node, only=True)) as client:
                for _ in range(EACH):
                    command = str(uuid.uuid4())
                    told[command] = (await client.execute(COUNT, command=command)).value()

        async with trio.open_nursery() as nursery:
            for number in range(3 * CLIENTS):
                nursery.start_soon(count, number % 3)
        assert sorted(told.values()) == list(range(1, 3 * CLIENTS * EACH + 1))
        joined = (await first.execute("SELECT count(*) FROM bedrockish_joined", read="strict")).value()
        led = "SELECT count(*) FROM bedrockish_journal WHERE repeat = 0 AND kind = 'rows'"
        assert joined > 0
        assert (await first.execute(led, read="strict")).value() + joined == len(told) + 1
        in_feed: list[str] = []
        with trio.fail_after(WAIT_S):
            async for transaction in Changes(first):
                assert len(transaction.changes) <= 1 + len(transaction.joined)
                in_feed += {transaction.command, *transaction.joined} & told.keys()
                if len(in_feed) == len(told):
                    break
        assert set(in_feed) == told.keys()

    # Killed and started again, the nodes still know each command and its answer.
    for node in range(3):
        cluster.nodes[node].kill()
        cluster.nodes[node].start()
    await ready(cluster)
    async with open_client(cluster.url(1)) as client:
        for command, n in told.items():
            assert (await client.execute(COUNT, command=command, resend=True)).value() == n
        assert (await client.execute("SELECT n FROM counter", read="strict")).value() == len(told)
    assert verify([node.database for node in cluster.nodes]).findings == []
