"""Rows by column from the engine: the same rows under the same limits, and lists wherever the journal keeps them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest

from bedrockish.api.column_blocks import BLOCK_BYTES, ROWS_MIN
from bedrockish.api.requests import Statement, decode_results
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.cursor import Batches, compile_read
from bedrockish.errors import TooLargeError
from tests.engine.nodes import Limits, Sql, TestNode, request
from tests.engine.test_interactive import Desk

ROWS = 2_000
FILL = (
    f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {ROWS}) "
    "INSERT INTO t SELECT i, 'row ' || i, i * 3e9, iif(i % 7, i / 3.0, NULL), zeroblob(i % 5) FROM n"
)
READ = "SELECT id, a, b, c, d FROM t"


@pytest.fixture
def table(make_node: Any) -> TestNode:
    node: TestNode = make_node(limits=Limits(result_bytes=1 << 20))
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b INTEGER, c REAL, d)")
    node.run(FILL)
    return node


def executed(node: TestNode, *statements: Sql, by_column: bool = True) -> Prepared:
    return node.engine.execute(replace(request(*statements), by_column=by_column))


def forms(results: bytes) -> list[int]:
    """Return the number of items of each result: 4 for lists of rows, 5 for rows by column."""
    return [len(one) for one in cbor2.loads(results)]


@pytest.mark.parametrize(
    "sql", [READ, f"{READ};\n", f"{READ} ORDER BY a DESC", f"{READ} WHERE id <= {ROWS_MIN}", f"{READ} WHERE c IS NULL"]
)
def test_executed_and_read_results_have_the_same_rows_in_both_forms(table: TestNode, sql: str) -> None:
    rows = executed(table, sql, by_column=False)
    blocks = executed(table, sql)
    assert forms(rows.result) == [4]
    assert forms(blocks.result) == [5]
    assert decode_results(blocks.result) == decode_results(rows.result)
    assert blocks.access_set == rows.access_set
    assert blocks.readonly
    read = table.engine.read(replace(request(sql), by_column=True), 10.0)
    assert read is not None
    assert forms(read) == [5]
    assert decode_results(read)[0].rows == decode_results(rows.result)[0].rows


@pytest.mark.parametrize(
    "statements",
    [
        ["INSERT INTO t(id) VALUES (0)", READ],
        [READ, "INSERT INTO t(id) VALUES (0)"],
        [f"{READ}; INSERT INTO t(id) VALUES (0)"],
        [f"INSERT INTO t(id) VALUES (0); {READ}"],
        ["UPDATE t SET d = 1 RETURNING *"],
    ],
)
def test_results_of_a_transaction_that_writes_stay_lists(table: TestNode, statements: list[str]) -> None:
    prepared = executed(table, *statements)
    assert not prepared.readonly
    assert set(forms(prepared.result)) == {4}
    assert prepared.result == executed(table, *statements, by_column=False).result
    assert max(len(one.rows) for one in decode_results(prepared.result)) >= ROWS


def test_several_reads_have_their_rows_by_column(table: TestNode) -> None:
    prepared = executed(table, READ, "SELECT 1", READ)
    assert forms(prepared.result) == [5, 4, 5]
    assert decode_results(prepared.result) == decode_results(
        executed(table, READ, "SELECT 1", READ, by_column=False).result
    )


def test_bound_of_results_is_the_same_in_both_forms(make_node: Any) -> None:
    read = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) SELECT i, 'text' FROM n"
    cost = 24 + 2 * 9 + 4
    node: TestNode = make_node(limits=Limits(result_bytes=cost * ROWS))
    assert cost * ROWS > 2 * BLOCK_BYTES
    for by_column in (False, True):
        (found,) = decode_results(executed(node, (read, (ROWS,)), by_column=by_column).result)
        assert len(found.rows) == ROWS
        with pytest.raises(TooLargeError, match=f"the results take more than {cost * ROWS} bytes"):
            executed(node, (read, (ROWS + 1,)), by_column=by_column)


def test_batches_of_a_stream_have_the_same_rows_in_both_forms(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "A.db")
    desk.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b INTEGER, c REAL, d)")
    desk.node.run(FILL)
    desk.node.engine.flush()
    interactive = desk.interactive
    found = []
    for by_column in (False, True):
        piece, values, plan = compile_read(interactive.parts.executor, Statement(READ, None))
        batches = Batches(interactive.readers.take_snapshot(), piece, values, plan.lengths, by_column=by_column)
        encoded, count, more = batches.next_batch()
        batches.close()
        assert (count, more) == (ROWS, False)
        assert forms(encoded) == [5 if by_column else 4]
        found.append(decode_results(encoded)[0].rows)
    assert found[0] == found[1]
