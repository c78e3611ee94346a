"""A request runs, answers, and leaves nothing behind."""

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bedrockish.api.requests import decode_results
from bedrockish.engine.execution import executor, recipes
from bedrockish.errors import BedrockishError, ConstraintError, SqlError, TooLargeError, UnsupportedError
from bedrockish_journal.model.changes import decode_changes
from tests.engine.nodes import Limits, Sql, TestNode

SCHEMA = "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT UNIQUE, n)"


@pytest.fixture
def table(node: TestNode) -> TestNode:
    node.run(SCHEMA)
    node.run("INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2)")
    return node


def test_executing_a_request_leaves_the_tables_unchanged(table: TestNode) -> None:
    before = table.tables()

    prepared = table.prepare("INSERT INTO t VALUES (3, 'three', 3)", "DELETE FROM t WHERE id = 1", "SELECT * FROM t")

    assert [row[0] for row in decode_results(prepared.result)[2].rows] == [2, 3]
    assert [change.op for change in decode_changes(prepared.changes)] == ["INSERT", "DELETE"]
    assert table.tables() == before
    assert prepared.base == {"A": 2}
    assert prepared.schema == 1


def test_request_sees_applied_and_unflushed_commits(table: TestNode) -> None:
    assert table.rows("SELECT count(*) FROM t") == [(2,)]


def test_results_have_columns_row_counts_and_the_last_rowid(table: TestNode) -> None:
    inserted, updated, returned, read = table.run(
        ("INSERT INTO t(id, name, n) VALUES (3, ?, ?)", ("three", 3)),
        ("UPDATE t SET n = n + :by", {"by": 10}),
        "DELETE FROM t WHERE id = 3 RETURNING id, name AS gone",
        "SELECT id FROM t ORDER BY id",
    )

    assert (inserted.rowcount, inserted.lastrowid, inserted.columns) == (1, 3, ())
    assert updated.rowcount == 3
    assert (returned.columns, returned.rows, returned.rowcount) == (("id", "gone"), [(3, "three")], 1)
    assert (read.rows, read.rowcount) == ([(1,), (2,)], -1)


def test_a_text_of_several_statements_runs_them_all(table: TestNode) -> None:
    results = table.run(
        ("UPDATE t SET n = ? RETURNING id; -- and\n SELECT ?; INSERT INTO t VALUES (9, ?, 0);", (7, 8, "x"))
    )

    assert [result.rows for result in results] == [[(1,), (2,)], [(8,)], []]
    assert table.rows("SELECT n FROM t ORDER BY id") == [(7,), (7,), (0,)]


def test_select_prepares_a_readonly_transaction_without_changes(table: TestNode) -> None:
    prepared = table.prepare("SELECT * FROM t")

    assert prepared.readonly
    assert prepared.changes == b""


def test_failed_statement_rolls_the_whole_request_back(table: TestNode) -> None:
    before = table.tables()

    with pytest.raises(ConstraintError, match=r"UNIQUE constraint failed: t\.name"):
        table.run("INSERT INTO t VALUES (5, 'five', 5)", "INSERT INTO t VALUES (6, 'six', 6), (7, 'one', 7)")

    assert table.tables() == before
    table.run("INSERT INTO t VALUES (8, 'eight', 8)")
    assert [change.after for change in decode_changes(table.entries[-1].transaction.changes)] == [(8, "eight", 8)]


@pytest.mark.parametrize(
    ("sql", "params", "error", "words"),
    [
        ("SELECT ?, ?", (1,), SqlError, r"2 parameter\(s\), but 1 value"),
        ("SELECT ?", (1, 2, 3), SqlError, r"1 parameter\(s\), but 3 value"),
        ("SELECT :a", {"b": 1}, SqlError, "no value for the parameter 'a'"),
        ("SELECT ?", {"b": 1}, SqlError, "has no name"),
        ("SELECT ?", (1 << 63,), SqlError, "64-bit"),
        ("SELECT ?", (object(),), SqlError, "parameter 1: SQLite cannot store a object"),
        ("SELECT ?", ("\ud800",), SqlError, "lone surrogate"),
        ("SELECT '\ud800'", (), SqlError, "lone surrogate"),
        ("SELECT ?", "text", SqlError, "not str"),
        ("SELECT * FROM nowhere", (), SqlError, "no such table: nowhere"),
        ("SELEC", (), SqlError, "syntax error"),
        ("  -- nothing\n", (), SqlError, "no statement"),
        ("", (), SqlError, "no statement"),
        ("SELECT CAST(x'ff' AS TEXT)", (), SqlError, "not UTF-8"),
        ("INSERT INTO t(name) VALUES (CAST(x'ff' AS TEXT))", (), SqlError, "not UTF-8"),
        ("INSERT INTO t(n) VALUES ('' || x'ff')", (), SqlError, "not UTF-8"),
        ("INSERT INTO t(n) VALUES (char(55296))", (), SqlError, "not UTF-8"),
        ("UPDATE t SET n = CAST(? AS TEXT) WHERE id = 1", (b"\xc3",), SqlError, "not UTF-8"),
        ("INSERT INTO t VALUES ('x', 'y', 'z')", (), SqlError, "mismatch"),
    ],
)
def test_bad_requests_get_a_typed_error(
    table: TestNode, sql: str, params: Any, error: type[BedrockishError], words: str
) -> None:
    before = table.tables()

    with pytest.raises(error, match=words):
        table.run((sql, params))

    assert table.tables() == before


@pytest.mark.parametrize("sql", ["SELECT 1\0", "\0", "INSERT INTO t VALUES (9, 'a\0b')", "SELECT 1; SELECT 2\0"])
def test_a_nul_in_a_text_is_a_usage_error(table: TestNode, sql: str) -> None:
    with pytest.raises(SqlError, match="NUL character at"):
        table.run(sql)


def test_values_are_stored_as_sqlite_stores_them(table: TestNode) -> None:
    values = (True, math.nan, math.inf, bytearray(b"b"), memoryview(b"m"), -(1 << 63), "\0é")

    [result] = table.run(("SELECT ?, ?, ?, ?, ?, ?, ?", values))

    assert result.rows == [(1, None, math.inf, b"b", b"m", -(1 << 63), "\0é")]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("BEGIN", "already run as one transaction"),
        ("COMMIT", "already run as one transaction"),
        ("ROLLBACK", "already run as one transaction"),
        ("SAVEPOINT request", "already run as one transaction"),
        ("RELEASE request", "already run as one transaction"),
        ("ROLLBACK TO request", "already run as one transaction"),
        ("ATTACH ':memory:' AS other", "ATTACH"),
        ("DETACH main", "DETACH"),
        ("PRAGMA foreign_keys = OFF", "always enforced"),
        ("PRAGMA temp.user_version = 7", "configuration"),
        ("PRAGMA case_sensitive_like = ON", "a setting of a session"),
        ("PRAGMA query_only = ON", "configuration"),
        ("PRAGMA writable_schema = ON", "ALTER, DROP and CREATE"),
        ("PRAGMA writable_schema = 1", "ALTER, DROP and CREATE"),
        ("/* x */ VACUUM INTO 'file'", "VACUUM works on a whole file"),
        ("INSERT INTO bedrockish_meta VALUES ('node', 'B')", "can only be read"),
        ("DELETE FROM bedrockish_journal", "can only be read"),
        ("ANALYZE; INSERT INTO sqlite_stat1 VALUES ('t', NULL, '1')", "run ANALYZE instead"),
        ("UPDATE bedrockish_vote SET held = 1", "no statement may name it"),
        ("DROP TABLE bedrockish_journal", "belong to the database itself"),
        ("ALTER TABLE bedrockish_meta ADD COLUMN x", "belong to the database itself"),
        ("ALTER TABLE bedrockish_journal ADD COLUMN x", "belong to the database itself"),
        ("ALTER TABLE t RENAME TO bedrockish_t", "belong to the database itself"),
        ("CREATE TABLE bedrockish_mine(x)", "belong to the database itself"),
        ("CREATE INDEX mine ON bedrockish_journal(body)", "belong to the database itself"),
        ("CREATE TRIGGER mine AFTER INSERT ON bedrockish_journal BEGIN SELECT 1; END", "belong to the database itself"),
        ("CREATE VIRTUAL TABLE words USING fts4(text)", "virtual tables"),
        ("CREATE VIRTUAL TABLE pages USING dbstat", "virtual tables"),
        ("CREATE TEMP TABLE scratch(x)", "temporary"),
        ("CREATE TABLE temp.scratch(x)", "temporary"),
        ("CREATE TEMP VIEW v AS SELECT 1", "temporary"),
        ("CREATE TEMP TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END", "temporary"),
        ("VACUUM INTO 'copy.db'", "works on a whole file"),
        ("CREATE TABLE g(a PRIMARY KEY, b AS (a + 1)) WITHOUT ROWID", "STORED"),
        ("CREATE TABLE g(rowid, _rowid_, oid)", "no name is left"),
    ],
)
def test_unreplicable_statements_are_refused_with_a_way_out(table: TestNode, sql: str, words: str) -> None:
    before = table.tables()

    with pytest.raises(UnsupportedError, match=words):
        table.run(sql)

    assert table.tables() == before
    assert table.rows("SELECT count(*) FROM t") == [(2,)]


def test_writing_the_catalogue_is_refused_by_sqlite(table: TestNode) -> None:
    with pytest.raises(SqlError, match="may not be modified"):
        table.run("DELETE FROM sqlite_schema")


@pytest.mark.parametrize(
    "sql",
    ["PRAGMA table_info(t)", "PRAGMA user_version", "SELECT * FROM pragma_table_list", "SELECT * FROM sqlite_schema",
     "EXPLAIN DELETE FROM t", "SELECT * FROM bedrockish_journal", "SELECT value FROM json_each('[1]')"],
)  # fmt: skip
def test_statements_that_read_the_schema_are_allowed(table: TestNode, sql: str) -> None:
    assert table.prepare(sql).readonly
    assert table.run(sql)[0].rows


@pytest.mark.parametrize(
    "sql",
    ["BEGIN IMMEDIATE", "COMMIT", "END", "ROLLBACK", "SAVEPOINT a", "RELEASE a", "ROLLBACK TO a", "ATTACH 'x' AS y",
     "DETACH y"],
)  # fmt: skip
@pytest.mark.parametrize("explain", ["EXPLAIN ", "explain/**/", "EXPLAIN QUERY  PLAN "])
def test_statements_that_a_request_may_not_run_can_be_explained(table: TestNode, explain: str, sql: str) -> None:
    assert table.prepare(explain + sql).readonly


def test_limits_apply_before_memory_is_allocated(make_node: Any) -> None:
    node = make_node(limits=Limits(result_bytes=50_000, changes_bytes=50_000))
    node.run(SCHEMA)
    node.run("INSERT INTO t VALUES (1, 'kept', 0)")
    before = node.tables()
    endless = "WITH RECURSIVE c(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM c)"

    with pytest.raises(TooLargeError, match="results take more than 50000 bytes"):
        node.run(f"{endless} SELECT n FROM c")
    with pytest.raises(TooLargeError, match="changes more than 50000 bytes"):
        node.run(f"{endless} INSERT INTO t SELECT n, NULL, 'x' FROM c")
    with pytest.raises(TooLargeError):
        node.run("SELECT zeroblob(90000000)")

    assert node.tables() == before


def test_a_statement_that_runs_too_long_is_stopped(make_node: Any) -> None:
    ticking = iter(range(1_000_000))
    node = make_node(limits=Limits(statement_s=5, seconds=lambda: float(next(ticking))))
    node.run(SCHEMA)
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"

    with pytest.raises(TooLargeError, match="ran longer than 5 s"):
        node.run(f"{endless} SELECT n FROM c WHERE n < 0")
    with pytest.raises(TooLargeError, match="ran longer than 5 s"):
        node.run("INSERT INTO t VALUES (1, 'x', 1)", f"{endless} UPDATE t SET n = (SELECT n FROM c WHERE n < 0)")

    assert node.tables()["t"] == []


def of_one_text(luck: Random) -> list[Sql]:
    """Return a request with runs of statements of one text, some of which fail, and others between them.

    No row's id equals one that a node assigns, because a repeated execution assigns others.
    """
    kinds: list[tuple[str, Callable[[], Any]]] = [
        ("INSERT INTO t VALUES (?, ?, ?)", lambda: (16 * luck.randrange(300) + 5, f"m{luck.random()}", 0)),
        ("INSERT INTO t(name) VALUES (?)", lambda: (f"m{luck.random()}",)),
        ("INSERT OR IGNORE INTO t VALUES (?, ?, 1)", lambda: (luck.randrange(9), f"{luck.randrange(9)}")),
        ("UPDATE t SET n = ? WHERE id = ?", lambda: (luck.random(), luck.randrange(5))),
        ("UPDATE t SET n = n + :by WHERE n < :by", lambda: {"by": luck.randrange(5)}),
        ("DELETE FROM t WHERE id = ?", lambda: (luck.randrange(9),)),
        ("INSERT INTO v(id, a) VALUES (?, ?)", lambda: (luck.randrange(3000), luck.random())),
        ("SELECT count(*), sum(id) FROM t WHERE id > ?", lambda: (luck.randrange(9),)),
    ]
    made: list[Sql] = []
    for sql, draw in luck.choices(kinds, k=luck.randrange(1, 5)):
        made += [(sql, draw()) for _ in range(luck.choice([1, 3, 5, 260]))]
    return made


def done_with(table: TestNode, statements: list[Sql], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what statements do if none of them run at once, or the error."""
    with monkeypatch.context() as patch:
        patch.setattr(recipes, "ALIKE_MIN", math.inf)
        return done(table, statements)


def done(table: TestNode, statements: list[Sql]) -> Any:
    table.engine._ids._highest.clear()  # both ways shall get the same ids
    try:
        return table.prepare(*statements)
    except BedrockishError as error:
        return type(error), error.message, error.details, error.rests_on


@pytest.mark.parametrize("seed", range(40))
def test_statements_at_once_equal_statements_one_by_one(
    table: TestNode, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Results, row changes, access set and errors are equal, and the batch is unchanged."""
    table.run("CREATE TABLE v(id INTEGER PRIMARY KEY, a, twice AS (a * 2) VIRTUAL)")
    luck = Random(seed)
    before = table.tables()
    for _ in range(6):
        statements = of_one_text(luck)
        assert done(table, statements) == done_with(table, statements, monkeypatch)
        assert table.tables() == before


def test_long_run_of_one_text_is_planned_once(table: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first of a thousand insertions run at once."""
    one_by_one: list[str] = []
    run_piece = executor.Executor.run_piece

    def count(self: Any, piece: Any, *arguments: Any) -> Any:
        one_by_one.append(piece.sql)
        return run_piece(self, piece, *arguments)

    monkeypatch.setattr(executor.Executor, "run_piece", count)
    table.run(*(("INSERT INTO t VALUES (?, ?, 0)", (number, f"{number}")) for number in range(10, 1_010)))
    assert len(one_by_one) == 1
    assert table.rows("SELECT count(*), min(id), max(id) FROM t") == [(1_002, 1, 1_009)]
