"""The clock's functions in SQL: their values, where they may stand, and refused uses."""

import sqlite3
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from bedrockish.api.requests import decode_results
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.errors import BedrockishError, SqlError, UnsupportedError
from bedrockish_journal.model.clock import pack
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode, request


@pytest.fixture
def clocked(make_node: MakeNode) -> Iterator[TestNode]:
    node = make_node()
    values = count(1000)
    node.engine.scope.tick = lambda: next(values)
    return iter([node])


@pytest.fixture
def one(clocked: Iterator[TestNode]) -> TestNode:
    return next(clocked)


def execute(node: TestNode, *statements: Any, clock: int = 0, command: str = "order-1") -> Any:
    """Execute a request with a transaction clock, and apply its writes; return the rows of its last statement."""
    prepared = node.engine.execute(request(*statements, command=command), clock=clock)
    if not prepared.readonly:
        node.apply(node.entry(prepared))
    return prepared, decode_results(prepared.result)[-1].rows


def test_each_call_of_the_clusters_clock_is_later(one: TestNode) -> None:
    assert one.rows("SELECT cluster_clock() UNION ALL SELECT cluster_clock()") == [(1000,), (1001,)]
    assert one.rows("SELECT CLUSTER_CLOCK()") == [(1002,)]


def test_transaction_clock_needs_a_request_and_is_the_same_in_each_call(one: TestNode) -> None:
    with pytest.raises(ClockNeededError):
        one.prepare("SELECT transaction_clock()")
    prepared, rows = execute(one, "SELECT transaction_clock(), transaction_clock(), transaction_id()", clock=77)
    assert rows == [(77, 77, "order-1")]
    assert prepared.clock == 77
    assert execute(one, "SELECT 1", clock=77)[0].clock == 0, "nobody called it"


def test_clock_functions_work_in_defaults_triggers_and_views(one: TestNode) -> None:
    one.run(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, a, c INTEGER DEFAULT (cluster_clock()), x DEFAULT (transaction_id()))",
        "CREATE TABLE log(id, at, who)",
        "CREATE TRIGGER logged AFTER INSERT ON t BEGIN "
        "INSERT INTO log VALUES (new.id, transaction_clock(), transaction_id()); END",
        "CREATE VIEW v AS SELECT id, clock_time(c) AS at, is_after(c, 1000) AS later FROM t",
    )
    with pytest.raises(ClockNeededError):
        one.prepare("INSERT INTO t(id, a) VALUES (1, 2)")
    execute(one, "INSERT INTO t(id, a) VALUES (1, 2), (2, 3)", clock=500)
    assert one.rows("SELECT * FROM log") == [(1, 500, "order-1"), (2, 500, "order-1")]
    rows = one.rows("SELECT c, x FROM t ORDER BY id")
    assert rows[0][0] < rows[1][0]
    assert {row[1] for row in rows} == {"order-1"}
    assert one.rows("SELECT at, later FROM v WHERE id = 2") == [("1970-01-01 00:00:00.000", 1)]


def test_statement_that_needs_a_clock_leaves_no_changes(one: TestNode) -> None:
    one.run("CREATE TABLE t(a UNIQUE, c)")
    for text in (
        "INSERT OR IGNORE INTO t VALUES (1, transaction_clock())",
        "REPLACE INTO t SELECT 1, transaction_clock()",
    ):
        with pytest.raises(ClockNeededError):
            one.prepare("INSERT INTO t VALUES (9, 9)", text)
    assert one.rows("SELECT * FROM t") == []


def test_safe_clock_reads_the_stored_safe_time(one: TestNode) -> None:
    assert one.rows("SELECT safe_clock()") == [(0,)]
    one.engine.set_meta("safe", 1234)
    assert one.rows("SELECT safe_clock()") == [(1234,)]


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        (f"clock_time({pack(1_790_000_000_123, 7)})", "2026-09-21 14:13:20.123"),
        ("clock_time(NULL)", None),
        ("clock_time(0)", "1970-01-01 00:00:00.000"),
        (f"clock_time({(1 << 63) - 1})", "4267-05-28 08:25:56.479"),
        ("is_after(2, 1)", 1),
        ("is_after(1, 1)", 0),
        ("is_after(1, 2)", 0),
        ("is_after(NULL, 2)", None),
        ("is_after(1, NULL)", None),
    ],
)
def test_clock_functions_return_times_and_compare_clocks(one: TestNode, sql: str, found: Any) -> None:
    assert one.rows(f"SELECT {sql}") == [(found,)]


@pytest.mark.parametrize("sql", ["clock_time('x')", "clock_time(-1)", "clock_time(1.5)", "is_after(x'00', 1)"])
def test_malformed_clock_is_refused(one: TestNode, sql: str) -> None:
    with pytest.raises(SqlError, match="takes clocks"):
        one.rows(f"SELECT {sql}")
    assert one.rows("SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE INDEX i ON t(clock_time(a))",
        "CREATE TABLE u(a, b AS (clock_time(a)))",
        "CREATE TABLE u(a CHECK (is_after(a, 1)))",
        "CREATE INDEX i ON t(a) WHERE is_after(a, 1)",
    ],
)
def test_schema_cannot_depend_on_clock_functions(one: TestNode, sql: str) -> None:
    one.run("CREATE TABLE t(a)")
    with pytest.raises(BedrockishError):
        one.run(sql, "INSERT INTO u VALUES (1)") if "CHECK" in sql else one.run(sql)


def test_sqlite_without_clock_functions_reads_the_file(one: TestNode) -> None:
    one.run("CREATE TABLE t(a, c DEFAULT (cluster_clock()))", "CREATE VIEW v AS SELECT clock_time(c) FROM t")
    one.run("INSERT INTO t(a) VALUES (1)")
    one.save()
    db = sqlite3.connect(one.path)
    assert db.execute("SELECT a FROM t").fetchall() == [(1,)]
    db.close()


def test_clock_functions_are_refused_in_explanations(one: TestNode) -> None:
    one.engine.scope.tick = None
    with pytest.raises(UnsupportedError, match="streamed result or an explanation") as found:
        one.rows("SELECT transaction_id()")
    assert "plain request" in str(found.value)
