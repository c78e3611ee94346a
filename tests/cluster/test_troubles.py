"""Every interface for operators names a cluster's troubles first."""

import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError
from tests.cluster.story import ready, status_of, until
from tests.forked import program
from tests.http.conftest import Asker
from tools.cluster import LocalCluster, LocalNode, local_cluster

pytestmark = pytest.mark.cluster


def asker(cluster: LocalCluster, index: int) -> Asker:
    port = cluster.nodes[index].http_port
    assert port is not None
    return Asker(port, cluster)


def said(cluster: LocalCluster, index: int) -> tuple[int, list[str]]:
    """Return the exit status of ``bedrockish status`` and its first lines."""
    done = program("status", cluster.url(index, only=True), timeout=60)
    return done.returncode, done.stdout.splitlines()


def send(node: LocalNode, number: signal.Signals) -> None:
    assert node.process is not None
    node.process.send_signal(number)


async def until_told(cluster: LocalCluster, index: int, wanted: set[str]) -> list[dict[str, Any]]:
    """Wait until a node has just these troubles."""
    found: list[dict[str, Any]] = []

    async def told() -> bool:
        found[:] = (await status_of(cluster, index))["troubles"]
        return {one["code"] for one in found} == wanted

    await until(f"{cluster.nodes[index].name} tells of {wanted}", told)
    return found


async def test_hanging_nodes_and_a_lost_quorum_are_reported(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "three", http=True) as cluster:
        await ready(cluster)
        await until_told(cluster, 0, set())
        assert said(cluster, 0)[0] == 0
        async with open_client(cluster.url(0, only=True)) as client:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
            await client.execute("INSERT INTO t VALUES (1, 1)")
            send(cluster.nodes[2], signal.SIGSTOP)
            try:
                await until_told(cluster, 0, {"node_away"})
                status, lines = await trio.to_thread.run_sync(said, cluster, 0)
                assert status == 1
                assert lines[0].startswith("TROUBLE node_away: C has not been heard for ")
                modes = {name: one["mode"] for name, one in (await client.nodes()).items()}
                assert modes == {"A": "serving", "B": "serving", "C": "away"}
                assert lines[1].strip().startswith("to do: start it")
                assert (await trio.to_thread.run_sync(asker(cluster, 0), "/readyz")).status == 200
                send(cluster.nodes[1], signal.SIGSTOP)
                with pytest.raises(BedrockishError):
                    await client.execute("UPDATE t SET x = 2", timeout=2)
                await until_told(cluster, 0, {"no_quorum", "in_doubt", "safe_time", "node_away"})
                found = await status_of(cluster, 0)
                assert found["trouble"] == "1 voter is in reach, and 2 are needed to commit"
                status, lines = await trio.to_thread.run_sync(said, cluster, 0)
                assert (status, lines[0].split(":")[0]) == (1, "TROUBLE no_quorum")
                reply = await trio.to_thread.run_sync(asker(cluster, 0), "/readyz")
                assert reply.status == 503
                assert reply.json["reasons"] == [found["trouble"]]

                async def metrics_agree() -> bool:
                    metrics = (await trio.to_thread.run_sync(asker(cluster, 0), "/metrics")).body.decode()
                    told = {
                        line.split('"')[1]
                        for line in metrics.splitlines()
                        if line.startswith("bedrockish_trouble{") and line.endswith(" 1.0")
                    }
                    return told == {one["code"] for one in (await status_of(cluster, 0))["troubles"]}

                await until("the metrics tell the same troubles", metrics_agree)
            finally:
                for node in cluster.nodes[1:]:
                    send(node, signal.SIGCONT)
            await until_told(cluster, 0, set())
            assert (await trio.to_thread.run_sync(said, cluster, 0))[0] == 0


async def test_wrong_clock_is_reported_at_both_nodes(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        cluster.nodes[2].kill()
        cluster.nodes[2].start("serve", "--set", "wall_offset_ms=-4000")
        await ready(cluster)
        found = await until_told(cluster, 0, {"clock_skew"})
        assert found[0]["text"].startswith("the clock of C is ")
        assert "behind this machine's" in found[0]["text"]
        found = await until_told(cluster, 2, {"clock_skew"})
        assert "behind most others'" in found[0]["text"]
        cluster.nodes[2].kill()
        cluster.nodes[2].start("serve", "--set", "wall_offset_ms=3600000")
        await ready(cluster)
        found = await until_told(cluster, 2, {"clock_skew"})  # but neither stuck safe time nor a slow node
        assert "ahead of most others'" in found[0]["text"]
