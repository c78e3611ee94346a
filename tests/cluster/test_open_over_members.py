"""Open transactions go on while the members of the cluster change."""

from pathlib import Path

import pytest

from bedrockish import open_client
from bedrockish.api.requests import ADD, ADDRESS, DEMOTE, PROMOTE, MemberChange
from tests.cluster.story import ready
from tools.cluster import local_cluster

pytestmark = pytest.mark.cluster


async def test_open_transaction_goes_on_over_a_change_of_the_members(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        third = f"127.0.0.1:{cluster.nodes[2].port}"
        changes = (
            MemberChange(ADD, "D", "127.0.0.1:1"),
            MemberChange(ADDRESS, "D", "127.0.0.1:2"),
            MemberChange(DEMOTE, "C", force=True),
            MemberChange(PROMOTE, "C"),
            MemberChange(ADDRESS, "C", third),
        )
        async with open_client(cluster.url(0)) as client, open_client(cluster.url(1)) as operator:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, k UNIQUE)")
            for number, change in enumerate(changes):
                for isolation in ("serializable", "snapshot"):
                    async with client.transaction(isolation=isolation) as transaction:
                        await transaction.execute("INSERT INTO t(k) VALUES (?)", (f"{number}{isolation}",))
                        await operator.change_members(change if isolation == "serializable" else changes[1])
                        await transaction.execute("SELECT count(*) FROM t")
                        await transaction.execute("UPDATE t SET k = k || '!' WHERE k = ?", (f"{number}{isolation}",))
            assert (await client.execute("SELECT count(*) FROM t WHERE k LIKE '%!'")).value() == 2 * len(changes)
