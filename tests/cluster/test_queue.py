"""Workers at three real nodes take jobs from one queue: each job is handed out once, and none is left."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.errors import ConflictError
from tests.cluster.story import PATIENT, ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster
WORKERS, JOBS = 12, 72
FIRST = "SELECT id FROM jobs WHERE state = 'new' AND skip_locked('jobs', id) ORDER BY id LIMIT 1"
TAKE = f"UPDATE jobs SET state = 'taken' WHERE id = ({FIRST}) RETURNING id"
WAIT_S = 120.0


async def in_steps(client: Client) -> list[int]:
    """Look for a job, and take it: an open transaction."""
    async with client.transaction() as tx:
        found = [number for (number,) in await tx.execute(FIRST)]
        for number in found:
            await tx.execute("UPDATE jobs SET state = 'taken' WHERE id = ?", [number])
    return found


async def at_once(client: Client) -> list[int]:
    """Take a job by one request."""
    return [number for (number,) in await client.execute(TAKE)]


@pytest.mark.parametrize("take", [in_steps, at_once])
async def test_queue_hands_out_each_job_once(
    cluster: LocalCluster, take: Callable[[Client], Awaitable[list[int]]]
) -> None:
    await ready(cluster)
    handed: list[int] = []
    lost = 0
    async with open_client(cluster.url(options=PATIENT)) as first:
        await first.execute("CREATE TABLE jobs(id INTEGER PRIMARY KEY, state TEXT NOT NULL)")
        await first.execute("CREATE INDEX by_state ON jobs(state, id)")
        await first.transact([("INSERT INTO jobs VALUES (?, 'new')", (number,)) for number in range(JOBS)])

        async def work(node: int) -> None:
            nonlocal lost
            async with open_client(cluster.url(node, only=True, options=PATIENT)) as client:
                while len(handed) < JOBS:
                    try:
                        found = await take(client)
                    except ConflictError:
                        lost += 1
                        continue
                    handed.extend(found)
                    if not found:
                        await trio.sleep(0.05)  # other workers have the remaining jobs, and may give them up

        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                for number in range(WORKERS):
                    nursery.start_soon(work, number % 3)
        assert sorted(handed) == list(range(JOBS))
        assert (await first.execute("SELECT count(*) FROM jobs WHERE state = 'new'", read="strict")).value() == 0
    assert lost < JOBS  # if all workers chose the first job, each job would cost several executions
