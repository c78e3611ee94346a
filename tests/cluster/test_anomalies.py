"""The anomalies of Adya and of the Hermitage suite, with the competing transactions at different nodes."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from bedrockish import open_client
from bedrockish.api.requests import ISOLATIONS, SERIALIZABLE, SNAPSHOT
from bedrockish.client.transaction import Transaction
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, ConflictError, UnavailableError
from tests.cluster.story import judge_files, level, ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster


@dataclass
class Player:
    """A transaction in a schedule: its reads and its outcome."""

    transaction: Transaction
    seen: list[Any] = field(default_factory=list)
    error: BedrockishError | None = None
    committed: bool = False

    async def do(self, sql: str) -> None:
        """Run a statement, unless the transaction is lost already."""
        if self.error is not None:
            return
        try:
            if sql == "COMMIT":
                await self.transaction.commit()
                self.committed = True
            elif sql == "ROLLBACK":
                await self.transaction.rollback()
            else:
                found = await self.transaction.execute(sql)
                if found.columns:
                    self.seen.append(found.rows)
        except (ConflictError, UnavailableError) as error:
            self.error = error


async def play(clients: list[Client], isolation: str, schedule: str) -> list[Player]:
    """Play lines such as ``2: COMMIT``, transaction n at node n; those that never end are rolled back."""
    writer = clients[2]
    await writer.execute("DELETE FROM test")
    await writer.execute("INSERT INTO test VALUES (1, 10), (2, 20)")
    for client in clients:
        client.token = writer.token
    players = [Player(await client.begin(isolation=isolation)) for client in clients]
    for line in schedule.strip().splitlines():
        number, _, sql = line.strip().partition(": ")
        await players[int(number) - 1].do(sql)
    for player in players:
        await player.transaction.rollback()
    for client in clients:
        writer.token = client.token
    return players


async def table(clients: list[Client]) -> dict[int, int]:
    return dict((await clients[2].execute("SELECT id, value FROM test", read="strict")).rows)


async def open_three(cluster: LocalCluster, nursery: trio.Nursery) -> list[Client]:
    """Open a client at each node, until the nursery ends."""
    clients: list[Client] = []

    async def hold(index: int, task_status: trio.TaskStatus[Client]) -> None:
        async with open_client(cluster.url(index, only=True)) as client:
            task_status.started(client)
            await trio.sleep_forever()

    for index in range(3):
        clients.append(await nursery.start(hold, index))
    return clients


@pytest.mark.parametrize("by_file", [False, True])
async def test_isolation_levels_prevent_the_documented_anomalies(cluster: LocalCluster, by_file: bool) -> None:
    """Allow no anomaly at serializable, and only write skew at snapshot; by URL, and in programs on the files."""
    cluster.by_file = by_file
    await ready(cluster)
    async with trio.open_nursery() as nursery:
        clients = await open_three(cluster, nursery)
        await clients[2].execute("CREATE TABLE test(id INTEGER PRIMARY KEY, value INTEGER)")
        for isolation in ISOLATIONS:
            await _writes(clients, isolation)
            await _dirty_reads(clients, isolation)
            await _vanishing(clients, isolation)
            await _lost_and_skewed_reads(clients, isolation)
            await _write_skew(clients, isolation)
        await _columns(clients)
        nursery.cancel_scope.cancel()
    await level(cluster)
    cluster.stop()
    judge_files(cluster)


async def _writes(clients: list[Client], isolation: str) -> None:
    """G0, dirty writes: the writes of two transactions do not mix."""
    players = await play(
        clients,
        isolation,
        """1: UPDATE test SET value = 11 WHERE id = 1
        2: UPDATE test SET value = 12 WHERE id = 1
        1: UPDATE test SET value = 21 WHERE id = 2
        1: COMMIT
        2: UPDATE test SET value = 22 WHERE id = 2
        2: COMMIT""",
    )
    assert await table(clients) in ({1: 11, 2: 21}, {1: 12, 2: 22})
    assert players[0].committed
    assert isinstance(players[1].error, ConflictError)
    assert players[1].error.details["table"] == "table test"
    assert players[1].error.details["leader"] == "A"
    assert players[1].error.details["other"]
    assert players[1].error.details["key"]


async def _dirty_reads(clients: list[Client], isolation: str) -> None:
    """Try G1a (aborted reads), G1b (intermediate reads) and G1c (circular information flow)."""
    players = await play(
        clients,
        isolation,
        """1: UPDATE test SET value = 101 WHERE id = 1
        2: SELECT value FROM test WHERE id = 1
        1: ROLLBACK
        2: SELECT value FROM test WHERE id = 1
        2: COMMIT""",
    )
    assert players[1].seen == [[(10,)], [(10,)]]
    assert players[1].committed
    players = await play(
        clients,
        isolation,
        """1: UPDATE test SET value = 101 WHERE id = 1
        2: SELECT value FROM test WHERE id = 1
        1: UPDATE test SET value = 11 WHERE id = 1
        1: COMMIT
        2: SELECT value FROM test WHERE id = 1
        2: COMMIT""",
    )
    assert players[1].seen == [[(10,)], [(10,)]]
    players = await play(
        clients,
        isolation,
        """1: UPDATE test SET value = 11 WHERE id = 1
        2: UPDATE test SET value = 22 WHERE id = 2
        1: SELECT value FROM test WHERE id = 2
        2: SELECT value FROM test WHERE id = 1
        1: COMMIT
        2: COMMIT""",
    )
    assert players[0].seen == [[(20,)]]
    assert players[1].seen == [[(10,)]]
    assert players[0].committed
    assert players[1].committed is (isolation == SNAPSHOT)  # it has read no uncommitted value: this is write skew


async def _vanishing(clients: list[Client], isolation: str) -> None:
    """OTV, an observed transaction vanishes; PMP, a predicate with many preceders."""
    players = await play(
        clients,
        isolation,
        """1: UPDATE test SET value = 11 WHERE id = 1
        1: UPDATE test SET value = 19 WHERE id = 2
        2: UPDATE test SET value = 12 WHERE id = 1
        1: COMMIT
        3: SELECT value FROM test WHERE id = 1
        2: UPDATE test SET value = 18 WHERE id = 2
        3: SELECT value FROM test WHERE id = 2
        2: COMMIT
        3: SELECT value FROM test WHERE id = 2
        3: SELECT value FROM test WHERE id = 1
        3: COMMIT""",
    )
    first, second, third, fourth = [seen[0][0] for seen in players[2].seen]
    assert (first, second) in ((10, 20), (11, 19))
    assert (second, first) == (third, fourth)
    assert not players[1].committed
    players = await play(
        clients,
        isolation,
        """1: SELECT * FROM test WHERE value = 30
        2: INSERT INTO test VALUES (3, 30)
        2: COMMIT
        1: SELECT * FROM test WHERE value % 3 = 0
        1: COMMIT""",
    )
    assert players[0].seen == [[], []]
    players = await play(
        clients,
        isolation,
        """1: UPDATE test SET value = value + 10
        2: DELETE FROM test WHERE value = 20
        1: COMMIT
        2: COMMIT""",
    )
    assert await table(clients) == {1: 20, 2: 30}
    assert not players[1].committed


async def _lost_and_skewed_reads(clients: list[Client], isolation: str) -> None:
    """P4, lost updates; G-single, read skew."""
    players = await play(
        clients,
        isolation,
        """1: SELECT value FROM test WHERE id = 1
        2: SELECT value FROM test WHERE id = 1
        1: UPDATE test SET value = 11 WHERE id = 1
        2: UPDATE test SET value = 11 WHERE id = 1
        1: COMMIT
        2: COMMIT""",
    )
    assert [player.committed for player in players[:2]] == [True, False]
    players = await play(
        clients,
        isolation,
        """1: SELECT value FROM test WHERE id = 1
        2: SELECT value FROM test WHERE id = 1
        2: SELECT value FROM test WHERE id = 2
        2: UPDATE test SET value = 12 WHERE id = 1
        2: UPDATE test SET value = 18 WHERE id = 2
        2: COMMIT
        1: SELECT value FROM test WHERE id = 2
        1: COMMIT""",
    )
    assert players[0].seen == [[(10,)], [(20,)]]
    assert players[0].committed
    assert players[1].committed
    players = await play(
        clients,
        isolation,
        """1: SELECT value FROM test WHERE id = 1
        2: UPDATE test SET value = 12 WHERE id = 1
        2: UPDATE test SET value = 18 WHERE id = 2
        2: COMMIT
        1: DELETE FROM test WHERE value = 20
        1: COMMIT""",
    )
    assert not players[0].committed
    assert await table(clients) == {1: 12, 2: 18}


async def _write_skew(clients: list[Client], isolation: str) -> None:
    """G2-item and G2: each transaction writes a row that the other has read, by key and by predicate."""
    for schedule in (
        """1: SELECT value FROM test WHERE id IN (1, 2)
        2: SELECT value FROM test WHERE id IN (1, 2)
        1: UPDATE test SET value = 11 WHERE id = 1
        2: UPDATE test SET value = 21 WHERE id = 2
        1: COMMIT
        2: COMMIT""",
        """1: SELECT * FROM test WHERE value % 3 = 0
        2: SELECT * FROM test WHERE value % 3 = 0
        1: INSERT INTO test VALUES (3, 30)
        2: INSERT INTO test VALUES (4, 42)
        1: COMMIT
        2: COMMIT""",
    ):
        players = await play(clients, isolation, schedule)
        assert players[0].committed
        assert players[1].committed is (isolation == SNAPSHOT)
        assert isolation == SNAPSHOT or isinstance(players[1].error, ConflictError)


async def _columns(clients: list[Client]) -> None:
    """Check that a reader of a column conflicts with a change of this column, and not with one of another column."""
    await clients[2].execute("CREATE TABLE pair(id INTEGER PRIMARY KEY, a INTEGER, b INTEGER)")
    await clients[2].execute("INSERT INTO pair VALUES (1, 0, 0), (2, 0, 0)")
    players = await play(
        clients,
        SERIALIZABLE,
        """1: SELECT a FROM pair WHERE id = 1
        2: SELECT b FROM pair WHERE id = 2
        1: UPDATE pair SET b = 1 WHERE id = 2
        2: UPDATE pair SET a = 1 WHERE id = 1
        1: COMMIT
        2: COMMIT""",
    )
    assert players[0].committed
    assert isinstance(players[1].error, ConflictError)
    players = await play(
        clients,
        SERIALIZABLE,
        """1: SELECT a FROM pair WHERE id = 1
        2: SELECT b FROM pair WHERE id = 2
        1: UPDATE pair SET a = 2 WHERE id = 2
        2: UPDATE pair SET b = 2 WHERE id = 1
        2: COMMIT
        1: COMMIT""",
    )
    assert [player.committed for player in players[:2]] == [True, True]
    players = await play(
        clients,
        SERIALIZABLE,
        """1: SELECT a FROM pair WHERE id = 1
        1: INSERT INTO test VALUES (3, 0)
        2: DELETE FROM pair WHERE id = 1
        2: COMMIT
        1: COMMIT""",
    )
    assert players[1].committed
    assert isinstance(players[0].error, ConflictError)
    assert players[0].error.details["table"] == "columns of pair"
