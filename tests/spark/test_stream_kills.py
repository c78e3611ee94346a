"""Spark is killed ten times while it streams from a running cluster, whose node is killed as well: each commit once."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import trio

from bedrockish import open_client
from bedrockish_journal.storage.store import reading
from tests.cluster.story import insist, level, ready
from tools.cluster import ROOT, LocalCluster, clean_environment, local_cluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]

KILLS = 10
BOUND_S = 600.0  # for one batch: on a machine that is busy with other tests Spark alone takes a minute to begin


class Streamer:
    """The Spark program, in a process group of its own: Python, the JVM and its workers die together."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.out = directory / "out"
        self._arguments = [str(path), str(self.out), str(directory / "checkpoint"), "40"]
        self._log = directory / "log"

    def start(self, *more: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.spark.streamer", *self._arguments, *more]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=clean_environment(), process_group=0, stdout=log, stderr=log)

    @property
    def batches(self) -> int:
        return len(list(self.out.glob("batch=*")))


def wait(what: str, holds: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + BOUND_S
    while not holds():
        assert process.poll() is None, f"Spark ended while waiting: {what}"
        assert time.monotonic() < deadline, f"not within {BOUND_S} s: {what}"
        time.sleep(0.02)


def to_the_end(streamer: Streamer, log: Path) -> None:
    """Let the stream read all commits, without a time limit while it writes further batches."""
    process = streamer.start("once")
    try:
        while process.poll() is None:
            before = streamer.batches
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(BOUND_S)
            assert process.poll() is not None or streamer.batches > before, f"no batch within {BOUND_S} s"
        assert process.returncode == 0, log.read_text()[-2000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def found(cluster: LocalCluster) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as client:
        await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, note TEXT)")


async def load(cluster: LocalCluster, first: int) -> None:
    """Commit 100 rows at all nodes."""

    async def some(node: int) -> None:
        for number in range(first + node, first + 100, len(cluster.nodes)):
            await insist(cluster.url(node), "INSERT INTO t VALUES (?, 'x')", [number], f"row-{number}")

    async with trio.open_nursery() as nursery:
        for node in range(len(cluster.nodes)):
            nursery.start_soon(some, node)


def test_each_commit_is_in_the_parquet_once_though_spark_is_killed_ten_times(tmp_path: Path) -> None:
    luck = random.Random(7)
    with local_cluster(tmp_path / "cluster") as cluster:
        trio.run(found, cluster)
        read = cluster.nodes[1]
        streamer = Streamer(read.database, tmp_path)
        for kill in range(KILLS):
            trio.run(load, cluster, 100 * kill)
            before, process = streamer.batches, streamer.start()
            try:
                wait("a new batch", lambda: streamer.batches > before, process)  # noqa: B023  called before the next
                if kill % 3 == 1:
                    read.kill()
                    read.start()
                time.sleep(luck.uniform(0, 1.5))  # at a random moment of its work
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            trio.run(ready, cluster)
        trio.run(level, cluster)
        to_the_end(streamer, tmp_path / "log")
    with reading(read.database) as db:
        held = db.execute("SELECT leader, tick, hash FROM bedrockish_journal ORDER BY 1, 2").fetchall()
    table = pq.read_table(streamer.out, columns=["leader", "tick", "hash"])
    assert sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True)) == held
    assert len(held) > 1000
