"""Commands that arrive together at three real nodes share transactions; each has its own answer and rows."""

import uuid

import pytest
import trio

from bedrockish import open_client
from bedrockish.client.feed import Changes
from bedrockish.errors import ConstraintError
from bedrockish_journal.verify.verify import verify
from tests.cluster.story import ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster
INSERT = "INSERT INTO item(id, note) VALUES (?, ?)"
WAIT_S = 60.0
CLIENTS, EACH = 10, 12  # clients of every node, commands of every client
CLASH = 5  # each so many-th command wants a row that is there


async def test_concurrent_inserts_share_transactions(cluster: LocalCluster) -> None:
    """Only the journal shows the sharing; a constraint error reaches only the command that caused it."""
    await ready(cluster)
    told: dict[str, int] = {}
    refused: set[str] = set()
    async with open_client(cluster.url()) as first:
        await first.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, note TEXT)")
        await first.execute(INSERT, (0, "there"))

        async def insert(number: int) -> None:
            async with open_client(cluster.url(number % 3, only=True)) as client:
                for count in range(EACH):
                    command, row = str(uuid.uuid4()), 1 + number * EACH + count
                    clashes = row % CLASH == 0
                    try:
                        await client.execute(INSERT, (0 if clashes else row, command), command=command)
                        assert not clashes
                        told[command] = row
                    except ConstraintError:
                        assert clashes
                        refused.add(command)

        async with trio.open_nursery() as nursery:
            for number in range(3 * CLIENTS):
                nursery.start_soon(insert, number)
        assert len(told) + len(refused) == 3 * CLIENTS * EACH
        rows = (await first.execute("SELECT note, id FROM item WHERE id > 0", read="strict")).rows
        assert dict(rows) == told
        joined = (await first.execute("SELECT count(*) FROM bedrockish_joined", read="strict")).value()
        assert joined > 0
        made = "SELECT transaction_id, row_key FROM bedrockish_changes WHERE table_name = 'item' AND row_key > 0"
        in_feed: dict[str | None, object] = {}
        with trio.fail_after(WAIT_S):
            async for transaction in Changes(first):
                for change, maker in zip(transaction.changes, transaction.makers, strict=True):
                    assert change.after is not None
                    in_feed[maker] = change.after[0]
                if len(in_feed) > len(told):
                    break
        assert {maker: row for maker, row in in_feed.items() if row != 0} == told
        assert dict((await first.execute(made, read="strict")).rows) == told
        one = next(command for (command,) in (await first.execute("SELECT command FROM bedrockish_joined")).rows)
        mine = await first.execute("SELECT row_key FROM bedrockish_changes WHERE transaction_id = ?", (one,))
        assert mine.rows == [(told[one],)]

    # Killed and started again, the nodes still know each command.
    for node in range(3):
        cluster.nodes[node].kill()
        cluster.nodes[node].start()
    await ready(cluster)
    async with open_client(cluster.url(1)) as client:
        for command, row in list(told.items())[:: len(told) // 20]:
            await client.execute(INSERT, (row, command), command=command, resend=True)
        assert (await client.execute("SELECT count(*) FROM item", read="strict")).value() == len(told) + 1
    assert verify([node.database for node in cluster.nodes]).findings == []
