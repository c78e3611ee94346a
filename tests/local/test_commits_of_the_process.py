"""Reads on a node's file see the commits of the program's other connections, as with a SQLite file."""

from pathlib import Path

from bedrockish.api.requests import Token
from bedrockish.local.reads import LocalReads
from tests.local.test_reads import Bench


def test_read_shows_the_commits_of_the_process_s_other_connections(tmp_path: Path) -> None:
    """A connection that holds an older snapshot, while the newest one is not durable, leaves the read to the node."""
    bench = Bench(tmp_path)
    bench.keep()
    assert bench.rows() == []
    bench.write("INSERT INTO t VALUES (1)")
    bench.engine.sync()
    place = ("A", bench.node.tick)
    bench.write("INSERT INTO t VALUES (2)")
    assert bench.rows() == [], "the commit of another process: the read does not wait for the disk"
    other = LocalReads(bench.reads.database)
    other.open()
    other.note_commit(place)
    other.close()
    seen: list[Token] = []
    bench.reads.belong(str, seen.append)
    assert bench.rows() is None
    assert [token.vector for token in seen] == [{"A": place[1]}], "the node gets the place with the read"
    assert bench.rows("stale") == []
    bench.engine.sync()
    assert bench.rows() == [(1,), (2,)]
    bench.reads.close()
    bench.engine.close()
