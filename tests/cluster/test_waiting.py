"""A node whose file cannot be written waits, and answers with the reason wherever it is asked."""

import re
import resource
from contextlib import suppress
from pathlib import Path

import pytest
import trio

import bedrockish
from bedrockish import open_client
from bedrockish.errors import BedrockishError, UnavailableError
from tests.cluster.story import ready, status_of, until
from tests.forked import program
from tests.http.conftest import Asker
from tools.cluster import LocalCluster, LocalNode, local_cluster

pytestmark = pytest.mark.cluster

LIMIT_BYTES = 64 << 10  # longer files cannot be written, as with a quota; the log stays shorter
REASON = "A.sqlite cannot be written: it has reached the limit of a file's size (ulimit -f)"


def limit_files(node: LocalNode, size: int) -> None:
    """Let a running node write no file beyond so many bytes."""
    assert node.process is not None
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def until_mode(cluster: LocalCluster, mode: str) -> None:
    async def there() -> bool:
        try:
            return bool((await status_of(cluster, 0))["mode"] == mode)
        except UnavailableError:
            return False

    await until(f"A is {mode}", there)


async def fill(cluster: LocalCluster) -> None:
    async with open_client(cluster.url(1)) as client:
        await client.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, x)")
        for _ in range(12):
            await client.execute("INSERT INTO t(x) VALUES (randomblob(20000))")


async def test_node_without_room_answers_everywhere_with_the_reason(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "three", http=True) as cluster:
        await ready(cluster)
        first = cluster.nodes[0]
        assert first.http_port is not None
        asks = Asker(first.http_port, cluster)
        limit_files(first, LIMIT_BYTES)
        await fill(cluster)  # the two other nodes are a quorum
        await until_mode(cluster, "waiting")

        status = await status_of(cluster, 0)
        assert status["trouble"] == REASON
        assert [one["code"] for one in status["troubles"]] == ["cannot_write"]
        done = await trio.to_thread.run_sync(program, "status", cluster.url(0, only=True))
        assert done.returncode == 1
        assert done.stdout.startswith(f"TROUBLE cannot_write: {REASON}\n  to do: make room, raise the quota")
        alive, is_ready = asks("/livez"), asks("/readyz")
        assert (alive.status, is_ready.status) == (200, 503)
        assert is_ready.json["reasons"] == [REASON]
        assert asks("/status").json["trouble"] == REASON
        assert 'bedrockish_trouble{code="cannot_write"} 1' in asks("/metrics").body.decode()
        assert REASON in asks("/").body.decode()
        refused = asks.sql("SELECT 1")
        assert (refused.status, refused.json["code"]) == (503, "unavailable")
        assert REASON in refused.json["message"]
        url = cluster.url(0, only=True, options="timeout=5&discover=no")
        with bedrockish.connect(url) as db, pytest.raises(UnavailableError, match="limit of a file's size"):
            await trio.to_thread.run_sync(db.execute, "SELECT 1")

        async def told() -> bool:
            found = await status_of(cluster, 1)
            return any(one["text"] == f"A: it waits: {REASON}" for one in found["troubles"])

        await until("B tells why A waits, and not that it is away", told)
        assert not [one for one in (await status_of(cluster, 1))["troubles"] if one["code"] == "node_away"]

        limit_files(first, resource.RLIM_INFINITY)
        await until_mode(cluster, "serving")
        await ready(cluster)
        async with open_client(cluster.url(0, only=True)) as client:
            assert (await client.execute("SELECT count(*) FROM t", read="strict")).value() == 12


async def test_node_that_fails_again_for_want_of_room_waits_longer(tmp_path: Path) -> None:
    """The probe fits into the file, and the entries that the node lacks do not: without longer waits it would start
    again and again, and seem well between two starts.

    Each start raises the clock by up to a second, so that the cluster's clock would run away from the machines'.
    """
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        first = cluster.nodes[0]
        limit_files(first, 1 << 20)
        async with open_client(cluster.url(1)) as client:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
            for _ in range(60):
                await client.execute("INSERT INTO t(x) VALUES (randomblob(100000))")

        async def told() -> bool:
            return first.log.read_text().count(f"the node waits, and answers with the reason: {REASON}") > 0

        await until("the node knows that its file is too long", told)
        await trio.sleep(3)
        assert (await status_of(cluster, 0))["trouble"] == REASON
        assert first.log.read_text().count("serves A.sqlite") <= 6
        limit_files(first, resource.RLIM_INFINITY)
        await until_mode(cluster, "serving")
        async with open_client(cluster.url(0, only=True)) as client:
            assert (await client.execute("SELECT count(*) FROM t", read="strict")).value() == 60


def test_waiting_node_ends_on_sigterm(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        trio.run(ready, cluster)
        node = cluster.nodes[0]
        limit_files(node, LIMIT_BYTES)
        with bedrockish.connect(cluster.url(options="timeout=2")) as db, suppress(BedrockishError):
            db.execute("CREATE TABLE t(x)")
            for _ in range(12):
                db.execute("INSERT INTO t VALUES (randomblob(20000))")
        trio.run(until_mode, cluster, "waiting")
        assert node.process is not None
        node.process.terminate()
        assert node.process.wait(60) == 0


def test_program_on_the_file_of_a_waiting_node_gets_the_reason(tmp_path: Path) -> None:
    """The error must not say that the node has stopped, or that a file (the socket) is missing."""
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        trio.run(ready, cluster)
        node = cluster.nodes[0]
        with bedrockish.connect(node.database) as db:
            db.execute("CREATE TABLE t(x)")
            limit_files(node, LIMIT_BYTES)
            with bedrockish.connect(cluster.url(options="timeout=2")) as other, suppress(BedrockishError):
                for _ in range(12):
                    other.execute("INSERT INTO t VALUES (randomblob(20000))")
            trio.run(until_mode, cluster, "waiting")
            for text in ("SELECT count(*) FROM t", "INSERT INTO t VALUES (1)"):
                with pytest.raises(UnavailableError, match=re.escape(f"node A waits: {REASON}; nothing happened")):
                    db.execute(text, timeout=20)
            with pytest.raises(UnavailableError, match=r"runs and does not serve it now: .* 'bedrockish status'"):
                bedrockish.connect(node.database)
            limit_files(node, resource.RLIM_INFINITY)
            trio.run(until_mode, cluster, "serving")
            db.execute("INSERT INTO t VALUES (1)")
        cluster.stop()
        with pytest.raises(UnavailableError, match="its node is stopped; start its node"):
            bedrockish.connect(node.database)
