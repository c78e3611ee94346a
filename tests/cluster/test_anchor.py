"""Anchors of running clusters: confirmed by the voters, and checked later."""

import shutil
import sqlite3
from hashlib import sha256
from pathlib import Path

import cbor2
import pytest
import trio

from bedrockish import connect
from bedrockish_journal.verify.anchored import read_anchors
from tests.cluster.story import ready
from tests.forked import program
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

RESULT = 12  # place in a body


def start(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        node.start()
    trio.run(ready, cluster)


def fill(cluster: LocalCluster, rows: int) -> None:
    for first in range(len(cluster.nodes)):
        with connect(cluster.url(first)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS t(x)")
            for _ in range(rows):
                db.execute("INSERT INTO t VALUES (1)")


def answer_changed(path: Path, tick: int) -> None:
    """Put another answer into an entry of A's, and hash all of the timeline again."""
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT tick, label, body, prev FROM bedrockish_journal WHERE leader = 'A' ORDER BY tick")
        head = None
        for at, label, body, prev in rows.fetchall():
            if at == tick:
                fields = cbor2.loads(body)
                fields[RESULT] = cbor2.dumps("another answer")
                body = cbor2.dumps(fields)
            head = prev if head is None else head
            found = sha256(head + label + body).digest()
            query = "UPDATE bedrockish_journal SET body = ?, prev = ?, hash = ? WHERE leader = 'A' AND tick = ?"
            db.execute(query, (body, head, found, at))
            head = found
    db.close()


def test_anchor_reveals_later_changes_of_the_journal(cluster: LocalCluster, tmp_path: Path) -> None:
    trio.run(ready, cluster)
    fill(cluster, 5)
    log = tmp_path / "anchors"
    done = program("anchor", cluster.url(), str(log))
    assert done.returncode == 0, done.stderr
    assert "confirmed by A, B, C" in done.stdout
    fill(cluster, 3)

    cluster.nodes[2].kill()  # a majority is enough, and the missing node is named
    with log.open("ab") as torn:
        torn.write(b'{"statement": "{' + bytes(9))  # the power failed while a program wrote the anchor
    done = program("anchor", cluster.url(), str(log))
    assert (done.returncode, "anchor 2: " in done.stdout, "confirmed by A, B" in done.stdout) == (0, True, True)
    assert "C has not confirmed it: " in done.stderr
    cluster.nodes[1].kill()
    before = log.read_bytes()
    done = program("anchor", cluster.url(0), str(log))
    assert done.returncode == 3
    assert "only 1 of 3 voters confirm" in done.stderr
    assert log.read_bytes() == before
    assert [one.statement.number for one in read_anchors(log)] == [1, 2]
    cluster.nodes[0].kill()

    files = [Path(shutil.copy(node.database, tmp_path)) for node in cluster.nodes]
    for node, file in zip(cluster.nodes, files, strict=True):
        for end in ("-wal", "-shm"):
            if Path(f"{node.database}{end}").exists():
                shutil.copy(f"{node.database}{end}", f"{file}{end}")
    given = ("--anchor", str(log))
    done = program("journal", "verify", *map(str, files), *given)
    assert done.returncode == 0, done.stdout
    assert "2 anchors with " in done.stdout

    for file in files:
        answer_changed(file, 3)
    done = program("journal", "verify", *map(str, files))
    assert done.returncode == 0, done.stdout  # the files alone show no fault
    done = program("journal", "verify", *map(str, files), *given)
    assert done.returncode == 1
    assert "but anchor 1 says" in done.stdout
    assert "this entry or an earlier one was changed" in done.stdout


def test_anchor_command_changes_no_file_of_another_cluster_or_kind(tmp_path: Path) -> None:
    """An anchor of another cluster, and a file of another kind, is left as it is."""
    log = tmp_path / "anchors"
    for name in ("one", "other"):
        cluster = LocalCluster(tmp_path / name, ["A"])
        cluster.write_files()
        try:
            start(cluster)
            fill(cluster, 1)
            done = program("anchor", cluster.url(), str(log))
            if name == "one":
                assert done.returncode == 0, done.stderr
                assert "confirmed by A" in done.stdout
                done = program("anchor", cluster.url(), str(tmp_path / "no" / "such"))
                assert (done.returncode != 0, "cannot be written" in done.stderr) == (True, True)
                (tmp_path / "else").write_text("what is this\nand this")
                done = program("anchor", cluster.url(), str(tmp_path / "else"))
                assert (done.returncode != 0, "is not an anchor" in done.stderr) == (True, True)
                assert (tmp_path / "else").read_text() == "what is this\nand this"
            else:
                assert "anchors of another cluster" in done.stderr
                assert len(read_anchors(log)) == 1
        finally:
            cluster.stop()
