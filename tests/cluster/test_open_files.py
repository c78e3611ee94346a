"""Too many open files: present clients go on, new ones wait or are refused, and the node recovers by itself."""

import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import pytest

from bedrockish import open_client
from bedrockish.errors import BedrockishError
from tests.cluster.story import PATIENT, ready, until
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

FILES = 360  # 120 of them are kept for present clients


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes, of which the first may have few files open: it learns its limit when it starts."""
    cluster = LocalCluster(tmp_path / "files")
    cluster.add_http()
    cluster.write_files()
    try:
        for node in cluster.nodes[1:]:
            node.start()
        cluster.nodes[0].files_max = FILES
        cluster.nodes[0].start()
        yield cluster
    finally:
        cluster.stop()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def knock(crowd: ExitStack, port: int) -> None:
    """Open a connection and say nothing."""
    end = crowd.enter_context(socket.socket())
    end.settimeout(5)
    with suppress(OSError):  # turned away
        end.connect(("127.0.0.1", port))


async def come_until_turned_away(url: str) -> None:
    """Open links until the node refuses one; the first may take the places of silent ones that the node has closed."""
    async with AsyncExitStack() as stack:
        for _ in range(FILES):
            client = await stack.enter_async_context(open_client(f"{url}?timeout=5"))
            await client.execute("SELECT 1")


async def test_open_clients_go_on_when_file_descriptors_run_out(cluster: LocalCluster) -> None:
    node = cluster.nodes[0]
    await ready(cluster)
    assert node.process is not None
    http = node.http_port
    assert http is not None
    async with open_client(cluster.url(0, only=True, options=PATIENT)) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        await client.execute("INSERT INTO t VALUES (1, 0)")
        with ExitStack() as crowd:

            async def is_told() -> bool:
                crowd.close()  # the node closes a silent connection after seconds, so each check needs new ones
                for number in range(2 * FILES):
                    knock(crowd, http if number % 2 else node.port)
                status = await client.status()
                return "files" in [one["code"] for one in status["troubles"]]

            await until("the status says so", is_told)
            with pytest.raises(BedrockishError, match="open files"):
                await come_until_turned_away(cluster.url(0, only=True))
            began, used = time.monotonic(), cpu_s(node.process.pid)
            for _ in range(20):  # also what takes a thread and connections of its own
                await client.execute("UPDATE t SET n = n + 1 WHERE id = 1")
            rows = await client.execute("SELECT length(hex(zeroblob(2000000))), n FROM t")
            assert rows.rows == [(4_000_000, 20)]
            async with client.transaction() as tx:
                await tx.execute("SELECT n FROM t")
                await tx.execute("UPDATE t SET n = n + 1 WHERE id = 1")
            assert cpu_s(node.process.pid) - used < 0.7 * (time.monotonic() - began) + 1, "it spins"

        async def is_over() -> bool:
            return "files" not in [one["code"] for one in (await client.status())["troubles"]]

        await until("it is over", is_over)
        async with open_client(cluster.url(0, only=True, options=PATIENT)) as late:
            late.token = client.token
            assert (await late.execute("SELECT n FROM t")).value() == 21
        assert "damage" not in node.log.read_text().lower()
