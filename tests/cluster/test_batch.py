"""``bedrockish batch`` is killed again and again, a node dies, and each row is changed once."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from bedrockish import connect
from tests.cluster.story import command, level
from tools.cluster import LocalCluster, clean_environment

pytestmark = pytest.mark.cluster
ADD = "UPDATE t SET n = n + 1 WHERE {} BETWEEN :first AND :last"


def start(*arguments: object) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "bedrockish.cli.main", "batch", *map(str, arguments)]
    return subprocess.Popen(program, env=clean_environment(), stdout=subprocess.DEVNULL)


async def test_batch_changes_each_row_once_despite_kills(cluster: LocalCluster, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for node in range(3):
        await cluster.wait_ready(node)
    with connect(cluster.url(options="/?timeout=60")) as db:
        db.execute("CREATE TABLE t(name TEXT PRIMARY KEY COLLATE NOCASE, n INTEGER, part INTEGER)")
        db.execute(
            "WITH RECURSIVE i(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM i LIMIT 40000) "
            "INSERT INTO t SELECT printf('Row %06d', x), 0, x % 7 FROM i"
        )
        db.execute("INSERT INTO t VALUES (NULL, 0, 0)")
        arguments = (cluster.url(), "t", ADD.format("name"), "--key", "name", "--rows", 20, "--state", state)
        for number in range(5):
            before = state.read_bytes() if state.exists() else b""
            running = start(*arguments, "--pause", "0.1s")
            until = time.monotonic() + 40
            while (state.read_bytes() if state.exists() else b"") == before:
                assert time.monotonic() < until
                assert running.poll() is None
                await trio.sleep(0.01)
            await trio.sleep(0.11 * number)
            running.kill()
            running.wait()
            if number == 2:
                cluster.nodes[0].kill()
        assert 0 < int(db.execute("SELECT sum(n) FROM t", read="strict").value()) < 40000
        cluster.nodes[0].start()
        assert "ranges" in command("batch", *arguments)
        assert db.execute("SELECT n, count(*) FROM t GROUP BY n", read="strict").rows == [(0, 1), (1, 40000)]
        assert "ranges" in command("batch", *arguments), "it is finished, and nothing is done again"
        assert int(db.execute("SELECT sum(n) FROM t", read="strict").value()) == 40000
        assert json.loads(state.read_text())["finished"] is True
    await level(cluster)


async def test_batch_refuses_unsuitable_statements_and_state(cluster: LocalCluster, tmp_path: Path) -> None:
    url, state = cluster.url(), tmp_path / "state.json"
    await cluster.wait_ready(0)
    with connect(f"{url}/?timeout=60") as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER)")
        db.execute("CREATE TABLE w(k REAL PRIMARY KEY, n INTEGER) WITHOUT ROWID")
        db.execute("INSERT INTO t VALUES (1, 0), (2, 0)")
        db.execute("INSERT INTO w VALUES (1.5, 0)")

        def said(*arguments: object, status: int = 2) -> str:
            return command("batch", url, *arguments, "--state", state, status=status)

        assert "which rows" in said("t", "DELETE FROM t")
        assert "no such column" in said("w", "DELETE FROM w WHERE rowid BETWEEN :first AND :last")
        assert "no integers and no texts" in said("w", "DELETE FROM w WHERE k BETWEEN :first AND :last", "--key", "k")
        assert "no such table" in said("nothing", ADD.format("rowid"))
        assert "range 1 to 2" in said("t", "UPDATE t SET x = 1 WHERE rowid BETWEEN :first AND :last")
        assert "another batch" in said("t", ADD.format("rowid"))
        state.write_text("{")
        assert "not the file of a batch" in said("t", ADD.format("rowid"))
        state.unlink()
        assert "2 rows changed" in said("t", ADD.format("id"), status=0)
        assert db.execute("SELECT count(*) FROM w").value() == 1
        assert db.execute("SELECT sum(n) FROM t").value() == 2
