"""Batches of a long result: bounded, in order, and ended on request."""

import threading
from pathlib import Path

import pytest

from bedrockish.api.requests import Statement, decode_results
from bedrockish.engine.execution.cursor import BATCH_BYTES, Batches, access_set_of, compile_read
from bedrockish.errors import SqlError, TooLargeError, UnavailableError
from tests.engine.test_interactive import Desk

MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) SELECT i, zeroblob(?) FROM n"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path / "A.db")
    desk.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    desk.node.engine.flush()
    return desk


def batches(desk: Desk, sql: str, *params: object) -> Batches:
    interactive = desk.interactive
    piece, values, plan = compile_read(interactive.parts.executor, Statement(sql, params))
    return Batches(interactive.readers.take_snapshot(), piece, values, plan.lengths)


def test_batches_have_all_rows_in_order_and_bounded_lengths(desk: Desk) -> None:
    """A batch is over when it has enough bytes, however long the last row is."""
    for count, size in ((1000, 1000), (10, BATCH_BYTES * 3), (1, 0), (0, 0)):
        rows, more, taken = [], True, batches(desk, MANY + " LIMIT ?", max(count, 1), size, count)
        while more:
            encoded, number, more = taken.next_batch()
            assert len(encoded) < 2 * BATCH_BYTES + size
            found = decode_results(encoded)[0].rows
            assert len(found) == number
            rows += found
        taken.close()
        assert [row[0] for row in rows] == [*range(1, count + 1)]


def test_stream_fails_at_a_row_that_cannot_be_computed(desk: Desk) -> None:
    """SQLite's own error, the node's for an invalid text, and the node's for a row that takes too long."""
    with pytest.raises(SqlError, match="overflow"):
        batches(desk, "SELECT abs(-9223372036854775808)").next_batch()
    with pytest.raises(SqlError, match="UTF-8"):
        batches(desk, "SELECT CAST(x'ff' AS TEXT)").next_batch()
    hurried = Desk(desk.node.path.parent / "B.db", statement_s=0.05)
    with pytest.raises(TooLargeError, match="no further row"):
        batches(hurried, f"SELECT max(i) FROM ({ENDLESS})").next_batch()


def test_stream_is_stopped_from_another_thread(desk: Desk) -> None:
    """The stop comes before the first row, or during the search for one."""
    stopped = batches(desk, ENDLESS)
    stopped.stop()
    with pytest.raises(UnavailableError):
        stopped.next_batch()
    endless = batches(desk, f"SELECT max(i) FROM ({ENDLESS})")
    timer = threading.Timer(0.1, endless.stop)
    timer.start()
    with pytest.raises(UnavailableError):
        endless.next_batch()
    timer.join()


def test_access_set_of_a_stream_has_its_reads(desk: Desk) -> None:
    """The node asks a majority about the reads of a strict stream."""
    parts = desk.interactive.parts
    _, params, plan = compile_read(parts.executor, Statement("SELECT v FROM t WHERE id = ?", (7,)))
    snapshot = desk.interactive.readers.take_snapshot()
    access_set = access_set_of(parts.executor, plan, params, snapshot)
    desk.interactive.readers.give_back(snapshot)
    assert access_set.read_points
    assert not access_set.read_ranges
    assert not access_set.write_points


def test_explain_in_a_stream_uses_the_current_schema(desk: Desk) -> None:
    """SQLite does not look whether an EXPLAIN in its cache is out of date, and would read freed memory."""
    for number in range(30):
        desk.node.run(f"CREATE TABLE more_{number}(id INTEGER PRIMARY KEY, a NOT NULL, b CHECK (b > {number}))")
        desk.node.engine.flush()
        for sql in ("EXPLAIN PRAGMA integrity_check", "EXPLAIN SELECT * FROM t", "SELECT count(*) FROM sqlite_schema"):
            taken = batches(desk, sql)
            rows = decode_results(taken.next_batch()[0])[0].rows
            taken.close()
            desk.interactive.readers.give_back(taken._snapshot)
            if sql == "EXPLAIN PRAGMA integrity_check":
                assert any(f"more_{number}" in str(row) for row in rows)
