"""Large rows and large transactions over three real nodes: they work, or are refused by a limit that is stated."""

from random import Random

import pytest

from bedrockish import open_client
from bedrockish.errors import TooLargeError
from tests.cluster.story import judge_files, level, ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

MANY = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) INSERT INTO t SELECT i, 'row ' || i FROM n"
)


async def test_large_rows_are_replicated_and_an_excess_is_refused(cluster: LocalCluster) -> None:
    """A row of 1 MB, one of 20 MB and twenty thousand rows are replicated; a refused excess affects no other client."""
    await ready(cluster)
    async with open_client(cluster.url(0, only=True)) as client, open_client(cluster.url(1, only=True)) as other:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
        for number, size in enumerate((1_000_000, 20_000_000)):
            sent = bytes([number + 1]) * size
            await client.execute("INSERT INTO t VALUES (?, ?)", [-number - 1, sent])
            other.token = client.token
            assert (await other.execute("SELECT a FROM t WHERE id = ?", [-number - 1])).value() == sent
        assert (await client.execute(MANY, [20_000], timeout=120)).rowcount == 20_000
        for sql, params in (
            ("INSERT INTO t VALUES (50000, zeroblob(25000000)) RETURNING a", []),
            ("INSERT INTO t VALUES (50000, zeroblob(34000000))", []),
            (MANY.replace("SELECT i,", "SELECT i + 50000,"), [2_000_000]),
        ):
            with pytest.raises(TooLargeError):
                await client.execute(sql, params, timeout=120)
        other.token = client.token
        assert (await other.execute("SELECT count(*), sum(length(a)) FROM t WHERE id > 0")).one()[0] == 20_000
        # One of three nodes is dead; after its restart it fetches the missing rows.
        cluster.nodes[2].kill()
        sent = Random("sizes").randbytes(12_000_000)
        await client.execute("INSERT INTO t VALUES (-9, ?)", [sent], timeout=60)
        cluster.nodes[2].start()
        status = await client.status()
        assert not status["counts"].get("rejected_too_late"), "what is large is at a quorum before it takes its clock"
    await level(cluster)
    cluster.stop()
    judge_files(cluster)
