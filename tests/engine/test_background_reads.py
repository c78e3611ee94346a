"""Connections for brief reads in the background."""

from pathlib import Path

import apsw
import pytest

from tests.engine.nodes import TestNode


@pytest.fixture
def node(tmp_path: Path) -> TestNode:
    made = TestNode(tmp_path / "A.sqlite")
    made.run("CREATE TABLE t(a)")
    made.run("INSERT INTO t VALUES ('before')")
    made.engine.flush()
    return made


def test_background_reader_connection_is_reused(node: TestNode) -> None:
    """A new connection parses all definitions, which takes a tenth of a second with some thousand tables."""
    background = node.engine.background
    with background.reader() as first:
        pass
    with background.reader() as second, background.reader() as third:
        assert second is first
        assert third is not first
    node.run("CREATE TABLE later(a)")
    node.engine.flush()
    with background.reader() as again:
        assert again.execute("SELECT count(*) FROM later").get == 0
    node.engine.close()
    with pytest.raises(apsw.ConnectionClosedError):
        again.execute("SELECT 1")


def test_reader_is_closed_after_an_error(node: TestNode) -> None:
    """A reader may be in a transaction, which would keep the log from starting over."""
    background = node.engine.background
    lent: list[apsw.Connection] = []

    def fail() -> None:
        with background.reader() as reader:
            lent.append(reader)
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM missing")

    with pytest.raises(apsw.SQLError):
        fail()
    with pytest.raises(apsw.ConnectionClosedError):
        lent[0].execute("SELECT 1")
    with background.reader() as reader:
        assert not reader.in_transaction


def test_background_reader_reads_the_present_bytes_of_the_disk(node: TestNode) -> None:
    """The scrub has to find a page that has changed on the disk, so no page may come from an earlier read."""
    background, path = node.engine.background, node.path
    node.engine.sync()
    node.engine.wal.checkpoint()
    with background.reader() as reader:
        assert reader.execute("SELECT a FROM t").get == "before"
    with path.open("r+b") as file:
        file.write(path.read_bytes().replace(b"before", b"BEFORE"))  # in the row, and in the journal
    with background.reader() as again:
        assert again is reader
        assert again.execute("SELECT a FROM t").get == "BEFORE"
