"""Reads on a node's file see the commits of the program's other connections, as with a SQLite file."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from bedrockish.api.requests import Token
from bedrockish.errors import ForeignClusterError
from bedrockish.local import snapshots
from bedrockish.local.reads import LocalReads
from tests.local.test_reads import Bench


def older_snapshot(tmp_path: Path) -> tuple[Bench, tuple[str, int]]:
    """Read an empty table, commit a row durably and another one not; return the place of the first commit."""
    bench = Bench(tmp_path)
    bench.keep()
    assert bench.rows() == []
    bench.write("INSERT INTO t VALUES (1)")
    bench.engine.sync()
    place = ("A", bench.node.tick)
    bench.write("INSERT INTO t VALUES (2)")
    return bench, place


def test_read_shows_the_commits_of_the_process_s_other_connections(tmp_path: Path) -> None:
    """A connection that holds an older snapshot, while the newest one is not durable, leaves the read to the node."""
    bench, place = older_snapshot(tmp_path)
    assert bench.rows() == [], "the commit of another process: the read does not wait for the disk"
    other = LocalReads(bench.reads.database)
    other.open()
    other.note_commit(place, 7)
    other.close()
    seen: list[Token] = []
    bench.reads.belong(str, seen.append)
    assert bench.rows() is None
    assert seen == [Token({"A": place[1]}, 7)], "the node gets the place and the clock with the read"
    assert bench.rows("stale") == []
    bench.engine.sync()
    assert bench.rows() == [(1,), (2,)]
    bench.reads.close()
    bench.engine.close()


def test_repeated_read_compares_the_commits_of_the_process(tmp_path: Path) -> None:
    """The node's page is the same as at the last read if the commit was durable then, and acknowledged afterwards."""
    bench, place = older_snapshot(tmp_path)
    token = bench.seen()
    assert bench.rows(token=token) == []
    known = bench.reads._known
    assert known is not None
    again = "SELECT a FROM t", (), "session", known.token
    assert bench.reads.read_again(*again) == (("a",), [], None)
    bench.reads.note_commit(place, 7)
    assert bench.rows("stale") == [], "a read of another level compares for itself"
    assert bench.reads.read_again(*again) is None
    bench.reads.close()
    bench.engine.close()


def test_session_of_another_cluster_notes_no_commit_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "read_membership", lambda _: SimpleNamespace(cluster_id="this cluster"))
    bench = Bench(tmp_path)
    assert bench.rows() == []
    foreign = LocalReads(bench.reads.database)
    foreign.belong(lambda: "another cluster", lambda _: None)
    with pytest.raises(ForeignClusterError):
        foreign.open()
    foreign.note_commit(("A", bench.node.tick + 1), 7)
    assert bench.rows() == []
    foreign.close()
    bench.reads.close()
    bench.engine.close()
