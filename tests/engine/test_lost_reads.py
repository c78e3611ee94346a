"""Snapshots whose read or end fails: SQLite ends one when a read finds no room for its temporary file."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import apsw
import pytest

from bedrockish.api.requests import Request, Statement
from bedrockish.engine.execution import snapshot as snapshots
from bedrockish.engine.execution.committed_reads import CommittedReads
from bedrockish.engine.execution.snapshot import Readers
from bedrockish.engine.storage import index_check
from bedrockish_journal.verify import row_digests
from tests.engine.nodes import Limits, TestNode

SCHEMA = "CREATE TABLE t(id INTEGER PRIMARY KEY, x); CREATE INDEX by_x ON t(id)"
ROWS = "INSERT INTO t WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT i, ? FROM n"
SORT = "SELECT id FROM t ORDER BY x || random() LIMIT 15000"
LOOKS: dict[str, Callable[[apsw.Connection], object]] = {
    "digest": lambda db: row_digests.digest_range(db, row_digests.Range("t", after=None, limit=10)),
    "indexes": lambda db: index_check.check_range(db, "t", None, 10),
}


@pytest.fixture
def filled(node: TestNode) -> TestNode:
    for text in SCHEMA.split("; "):
        node.run(text)
    node.run((ROWS, ("x" * 400,)))
    node.save()
    return node


def read(sql: str) -> Request:
    return Request("read", (Statement(sql),))


def test_pinned_snapshot_is_released_after_a_sort_without_room(
    filled: TestNode, limited: Callable[[int], None]
) -> None:
    """SQLite has ended the read transaction: a ROLLBACK would fail and end the node, and then the client's next one."""
    reads = CommittedReads(filled.engine.connector())
    reads.learn()
    assert reads.pin(filled.engine.flushed)
    limited(64 << 10)
    assert reads.read_pinned(read(SORT), 10.0) is None
    assert reads.pinned is None  # a later read would not be of its batch
    reads.unpin()
    assert reads.read(read(SORT), filled.engine.flushed, 10.0) is None
    assert reads.read(read("SELECT count(*) FROM t"), filled.engine.flushed, 10.0) is not None
    reads.close()


def test_stream_snapshot_is_given_back_after_a_sort_without_room(
    filled: TestNode, limited: Callable[[int], None]
) -> None:
    readers = Readers(filled.engine.connector().reader, Limits())
    snapshot = readers.take_snapshot()
    limited(64 << 10)
    with pytest.raises(apsw.Error), closing(snapshot.cursor()) as cursor:
        cursor.execute(SORT).fetchall()
    readers.give_back(snapshot)
    assert readers.take_snapshot() is snapshot
    readers.give_back(snapshot)
    readers.close()


def test_snapshot_that_was_interrupted_after_its_statement_is_given_back(
    filled: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a client closes a stream while its last rows are on their way, the interrupt may reach the ROLLBACK.

    This happens about once in 1,000 times. Then the snapshot would stay, and the write-ahead log would grow until the
    node ends.
    """
    monkeypatch.setattr(snapshots, "STEPS", 1)  # the progress handler is called during each statement
    readers = Readers(filled.engine.connector().reader, Limits())
    snapshot = readers.take_snapshot()
    snapshot.interrupt()
    readers.give_back(snapshot)
    assert readers.take_snapshot() is snapshot
    readers.give_back(snapshot)
    readers.close()


def test_snapshot_that_cannot_be_ended_is_closed(filled: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = Readers(filled.engine.connector().reader, Limits())
    snapshot = readers.take_snapshot()

    def fail() -> None:
        raise apsw.IOError

    monkeypatch.setattr(snapshot, "end", fail)
    readers.give_back(snapshot)
    with pytest.raises(apsw.ConnectionClosedError):
        snapshot.cursor()
    other = readers.take_snapshot()
    assert other is not snapshot
    readers.give_back(other)
    readers.close()


@pytest.mark.parametrize("look", LOOKS)
def test_scrub_names_the_error_of_the_disk(look: str, filled: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scrub must not report the failed ROLLBACK in place of the disk: that would count as a bug."""

    def fail(db: apsw.Connection, *_: Any, **__: Any) -> None:
        db.execute("ROLLBACK")  # as SQLite does
        raise apsw.IOError("disk I/O error")

    monkeypatch.setattr(row_digests, "_add_rows", fail)
    monkeypatch.setattr(index_check, "_range", fail)
    with filled.engine.background.reader() as db, pytest.raises(apsw.IOError):
        LOOKS[look](db)
