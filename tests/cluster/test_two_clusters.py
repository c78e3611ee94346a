"""Two clusters with equal names, nodes and tables, and one wrong address between them."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from bedrockish import ProtocolMismatchError, connect, open_client
from bedrockish.api.requests import ADDRESS, MemberChange
from tests.cluster.story import PATIENT, ready, status_of, until
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster


async def insert(cluster: LocalCluster, node: int, value: int) -> None:
    async with open_client(cluster.url(node, only=True, options=PATIENT)) as client:
        await client.execute("INSERT INTO t VALUES (?)", [value])


async def test_wrong_address_of_another_cluster_affects_no_other_link(tmp_path: Path) -> None:
    """In the second cluster B's address is that of the first cluster's B, which refuses the link; nothing else changes.

    Both clusters go on, also after restarts. The second reports the fault, and is healthy again after the
    correction.
    """
    with ExitStack() as stack:
        first, second = (stack.enter_context(local_cluster(tmp_path / name)) for name in ("first", "second"))
        for cluster in (first, second):
            await ready(cluster)
            async with open_client(cluster.url(options=PATIENT)) as client:
                await client.execute("CREATE TABLE t(a)")
        ids = {str((await status_of(cluster, node))["cluster_id"]) for cluster in (first, second) for node in range(3)}
        assert len(ids) == 2

        async def move(port: int) -> None:
            async with open_client(second.url(options=PATIENT)) as client:
                await client.change_members(MemberChange(ADDRESS, "B", f"127.0.0.1:{port}", force=True))

        await move(first.nodes[1].port)

        async def noticed() -> bool:
            troubles = [(await status_of(second, node))["nodes"]["B"]["trouble"] for node in (0, 2)]
            return all("of another cluster of the same name" in (trouble or "") for trouble in troubles)

        await until("A and C of the second cluster say who answers instead of B", noticed)
        for node in (0, 2):
            await insert(second, node, node)
        for node in (0, 2):
            second.nodes[node].kill()
            second.nodes[node].start()
        for node in (0, 2):
            await second.wait_ready(node)
        for cluster in (first, second):
            for node in (0, 2):
                await insert(cluster, node, 10 + node)
                assert (await status_of(cluster, node))["trouble"] is None
        await until("it is noticed again", noticed)
        await move(second.nodes[1].port)
        await ready(second)
        await insert(second, 1, 20)
        for cluster in (first, second):
            for node in range(3):
                status = await status_of(cluster, node)
                assert status["trouble"] is None
                assert {name for name, one in status["nodes"].items() if one["trouble"]} == set()


@pytest.mark.parametrize("driver", ["blocking", "trio"])
async def test_a_session_does_not_follow_an_address_to_another_cluster(tmp_path: Path, driver: str) -> None:
    """Another cluster's node has the address of the session's node: rows written there would be lost to the session."""
    one, other = LocalCluster(tmp_path / "one", "A"), LocalCluster(tmp_path / "other", "A")
    other.nodes[0].port = one.nodes[0].port
    with one.running():
        await one.wait_ready(0)
        async with open_client(one.url()) as client:
            await client.execute("CREATE TABLE t(x)")
            blocking = await trio.to_thread.run_sync(connect, one.url())
            await trio.to_thread.run_sync(blocking.execute, "INSERT INTO t VALUES (1)")
            one.stop()
            with other.running():
                await other.wait_ready(0)
                async with open_client(other.url()) as there:
                    await there.execute("CREATE TABLE t(x)")
                    insert_there = partial(blocking.execute, "INSERT INTO t VALUES (2)")
                    with pytest.raises(ProtocolMismatchError, match="is now a node of another cluster"):
                        await (
                            client.execute("INSERT INTO t VALUES (2)")
                            if driver == "trio"
                            else trio.to_thread.run_sync(insert_there)
                        )
                    assert (await there.execute("SELECT count(*) FROM t")).value() == 0
            await trio.to_thread.run_sync(blocking.close)
