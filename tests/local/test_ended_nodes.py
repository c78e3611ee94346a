"""Reads in a program whose node ends: other nodes answer, and the file of a stopped node is refused."""

import signal
import time
from pathlib import Path

import pytest
import trio

import bedrockish
from bedrockish.errors import UnavailableError
from bedrockish.local import page
from tests.local.conftest import is_read_here, stopped_node, was_read_here
from tools.cluster import local_cluster


def test_other_nodes_answer_while_the_local_one_is_down(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "three") as cluster:

        async def ready() -> None:
            for place in range(3):
                await cluster.wait_ready(place)

        trio.run(ready)
        node = cluster.nodes[0]
        url = cluster.url(1, options=f"local={node.database}")
        with bedrockish.connect(url) as db, bedrockish.connect(node.database) as alone:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
            db.execute("INSERT INTO t VALUES (1)")
            assert is_read_here(db, "SELECT count(*) FROM t")
            assert alone.execute("SELECT count(*) FROM t").value() == 1
            node.kill()
            wal = (node.directory / "A.sqlite-wal").stat()
            alone.close()
            after = (node.directory / "A.sqlite-wal").stat()
            assert (after.st_size, after.st_mtime_ns) == (wal.st_size, wal.st_mtime_ns), "a close copies nothing"
            db.execute("INSERT INTO t VALUES (2)")
            assert db.execute("SELECT count(*) FROM t").value() == 2
            node.start()
            trio.run(cluster.wait_ready, 0)
            assert is_read_here(db, "SELECT count(*) FROM t")
            assert db.execute("SELECT count(*) FROM t").value() == 2
            assert node.process is not None
            node.process.send_signal(signal.SIGSTOP)
            try:
                time.sleep(page.SILENT_NS / 1e9 + 0.5)
                assert not was_read_here(db, "SELECT count(*) FROM t"), "others may have removed it meanwhile"
                assert db.execute("SELECT count(*) FROM t").value() == 2
            finally:
                node.process.send_signal(signal.SIGCONT)


def test_path_of_a_stopped_node_is_refused(tmp_path: Path) -> None:
    with stopped_node(tmp_path / "one") as node, pytest.raises(UnavailableError, match="bedrockish serve"):
        bedrockish.connect(node.database)
    with pytest.raises(UnavailableError, match="no node has published"):
        bedrockish.connect(tmp_path / "nothing.sqlite")
