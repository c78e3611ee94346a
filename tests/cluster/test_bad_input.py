"""Broken bytes, files, ports and statements: each gets one line that says what to do, and the node goes on."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bedrockish import open_client
from bedrockish.errors import UnsupportedError, UsageError
from tests.cluster.story import ready
from tests.forked import program
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster


def one_error_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if "error:" in line.lower()]
    assert len(errors) == 1, done.stderr
    for word in words:
        assert word in errors[0], done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes that outlive all of it."""
    with local_cluster(tmp_path_factory.mktemp("bad") / "cluster") as running:
        yield running
        assert all(node.is_running for node in running.nodes)


async def test_bytes_of_strangers_do_not_affect_clients(cluster: LocalCluster) -> None:
    """Random bytes, half a frame and a frame of 2 GiB: each caller is refused, and clients go on."""
    await ready(cluster)
    port = cluster.nodes[0].port
    for said in (
        os.urandom(4096),
        b"\0\0\1\0\1half",
        (1 << 31).to_bytes(4, "big") + b"\1" + b"x" * 1000,
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(10)
            while stranger.recv(4096):
                pass
    async with open_client(cluster.url(0, only=True)) as client:
        assert (await client.execute("SELECT 1")).rows == [(1,)]
    assert cluster.nodes[0].is_running


async def test_bad_sql_is_refused_with_the_way_out(cluster: LocalCluster) -> None:
    """A syntax error, a missing table and an unsupported statement: typed errors, and the node goes on."""
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        for sql in ("SELEC 1", "SELECT * FROM nowhere", "INSERT INTO t VALUES (", ""):
            with pytest.raises(UsageError):
                await client.execute(sql)
        for sql in (
            "ATTACH 'x' AS y",
            "VACUUM INTO 'x'",
            "PRAGMA trusted_schema = 0",
            "PRAGMA writable_schema = 1",
            "DELETE FROM bedrockish_journal",
        ):
            with pytest.raises(UnsupportedError):
                await client.execute(sql)
        assert (await client.execute("SELECT 1")).rows == [(1,)]


async def test_a_second_process_on_the_same_file_is_refused(cluster: LocalCluster) -> None:
    """The file is locked for the life of the node."""
    await ready(cluster)
    node = cluster.nodes[0]
    done = program("serve", "--config", str(node.config), "--listen", "127.0.0.1:1", cwd=node.directory)
    one_error_line(done, "in use")


async def test_a_taken_port_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    """A second node on the same port names the port and a command that finds its process."""
    await ready(cluster)
    port = cluster.nodes[0].port
    done = program("serve", "--node", "Z", "--database", str(tmp_path / "z.db"), "--listen", f"127.0.0.1:{port}")
    one_error_line(done, str(port))


def test_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    """A user's text file is left alone."""
    path = tmp_path / "letter.txt"
    path.write_text("Dear SQLite,\n" * 1000)
    before = path.read_bytes()
    done = program("serve", "--node", "A", "--database", str(path), "--listen", "127.0.0.1:0")
    one_error_line(done, "letter.txt", "not a SQLite database")
    assert path.read_bytes() == before


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The configuration is missing, is not TOML, or has an unknown key."""
    one_error_line(program("serve", "--config", str(tmp_path / "none.toml")), "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("node = [")
    one_error_line(program("serve", "--config", str(broken)), "broken.toml", "TOML")
    broken.write_text('node = "A"\ndatabase = "x"\nlisten = "127.0.0.1:0"\nsusspicion = 3\n')
    one_error_line(program("serve", "--config", str(broken)), "susspicion")


def test_an_unknown_command_line_is_a_usage_error() -> None:
    """The command ends with 2 and gives a hint."""
    done = program("serv")
    assert done.returncode == 2
    one_error_line(done, "serv")


def test_missing_node_is_reported_in_one_line() -> None:
    """Call a port at which no node listens."""
    one_error_line(program("sql", "bedrockish://127.0.0.1:1/?timeout=1", "SELECT 1"))
