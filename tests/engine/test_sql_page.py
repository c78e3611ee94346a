"""Every line of docs/sql.md, run."""

import re
from pathlib import Path

import pytest

from bedrockish.errors import BedrockishError, ConstraintError, SqlError, UnsupportedError
from bedrockish_journal.model.transaction import SCHEMA as SCHEMA_KIND
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode, contents

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
SCHEMA = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, name UNIQUE, n DEFAULT 0)",
    "CREATE TABLE parent(id INTEGER PRIMARY KEY); CREATE TABLE child(parent REFERENCES parent(id))",
    "CREATE TABLE a(id INTEGER PRIMARY KEY AUTOINCREMENT, x)",
    "CREATE TABLE made(x, y AS (json_array(x)) STORED); INSERT INTO made(x) VALUES (json_array(1) || '')",
    "CREATE TRIGGER never BEFORE INSERT ON a WHEN new.x = 'never' BEGIN SELECT raise(ROLLBACK, 'never'); END",
)


@pytest.fixture
def pair(make_node: MakeNode) -> tuple[TestNode, TestNode]:
    first, second = make_node("A"), make_node("B")
    first.run(*SCHEMA)
    first.run("INSERT INTO t VALUES (1, 'one', 1)")
    return first, second


def catch_up(first: TestNode, second: TestNode) -> None:
    for entry in first.entries[len(second.entries) :]:
        second.apply(entry)
        second.entries.append(entry)
    assert contents(first.engine._db) == contents(second.engine._db)


REFUSED: dict[str, list[tuple[str, type[BedrockishError]]]] = {
    "`BEGIN`": [(text, UnsupportedError) for text in ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT x", "RELEASE x")],
    "`INSERT OR ROLLBACK`": [
        ("INSERT OR ROLLBACK INTO t VALUES (1, 'x', 1)", ConstraintError),
        ("INSERT INTO a(x) VALUES ('never')", ConstraintError),
    ],
    "`OR FAIL` in a request": [("INSERT OR FAIL INTO t VALUES (2, 'x', 1), (1, 'y', 1)", ConstraintError)],
    "`PRAGMA foreign_keys = OFF`": [("PRAGMA foreign_keys = OFF", UnsupportedError)],
    "any other PRAGMA": [
        (f"PRAGMA {text}", UnsupportedError) for text in ("query_only = 1", "writable_schema = 1", "trusted_schema = 0")
    ],
    "the time of day or a random value": [
        ("CREATE TABLE u(x); INSERT INTO u SELECT date(name) FROM t", UnsupportedError),
        ("CREATE TABLE u AS SELECT random() AS x", UnsupportedError),
        ("CREATE TABLE u AS SELECT * FROM sqlite_schema", UnsupportedError),
    ],
    "`CREATE VIRTUAL TABLE` of another module": [
        ("CREATE VIRTUAL TABLE u USING fts4(x)", UnsupportedError),
        ("CREATE VIRTUAL TABLE u USING dbstat", UnsupportedError),
    ],
    "FTS5 with `content=''`": [
        ("CREATE VIRTUAL TABLE u USING fts5(x, content='')", UnsupportedError),
        ("CREATE VIRTUAL TABLE u USING fts5(x, locale=1)", UnsupportedError),
        ("CREATE VIEW v AS SELECT 1 AS x; CREATE VIRTUAL TABLE u USING fts5(x, content='v')", UnsupportedError),
    ],
    "`CREATE TEMP TABLE`": [
        ("CREATE TEMP TABLE u(x)", UnsupportedError),
        ("CREATE TABLE temp.u(x)", UnsupportedError),
        ("CREATE TEMP VIEW u AS SELECT 1", UnsupportedError),
        ("CREATE TEMP TRIGGER u AFTER INSERT ON t BEGIN SELECT 1; END", UnsupportedError),
    ],
    "`ATTACH`": [("ATTACH ':memory:' AS u", UnsupportedError), ("DETACH main", UnsupportedError)],
    "`VACUUM INTO`": [("VACUUM INTO 'copy.db'", UnsupportedError)],
    "functions and collations": [
        ("SELECT my_function(1)", SqlError),
        ("SELECT name FROM t ORDER BY name COLLATE mine", SqlError),
        ("CREATE TABLE u(x COLLATE mine UNIQUE)", SqlError),
    ],
    "`load_extension()`": [("SELECT load_extension('x')", SqlError)],
    "names that begin": [
        ("CREATE TABLE bedrockish_mine(x)", UnsupportedError),
        ("DELETE FROM bedrockish_journal", UnsupportedError),
    ],
    "writing `sqlite_sequence`": [
        ("UPDATE sqlite_sequence SET seq = 0", UnsupportedError),
        ("ANALYZE; INSERT INTO sqlite_stat1 VALUES ('t', NULL, '1')", UnsupportedError),
        ("DELETE FROM sqlite_schema", BedrockishError),
    ],
    "a document that a statement makes": [
        ("INSERT INTO made(x) VALUES (json_array(1))", UnsupportedError),
        ("UPDATE made SET x = json_array(1)", UnsupportedError),
    ],
    "a `UNIQUE` key that rests on": [
        ("CREATE UNIQUE INDEX u ON t(json_array(name))", UnsupportedError),
        ("CREATE TABLE u(x, y AS (json_object('x', x)) UNIQUE)", UnsupportedError),
    ],
    "a `VIRTUAL` generated column": [("CREATE TABLE u(x PRIMARY KEY, y AS (x)) WITHOUT ROWID", UnsupportedError)],
    "a `CHECK` that calls": [
        ("CREATE TABLE u(x CHECK (x > random()))", UnsupportedError),
        ("ALTER TABLE t ADD COLUMN x CHECK (x > cluster_clock())", UnsupportedError),
    ],
    "columns named `rowid`": [('CREATE TABLE u("rowid", _rowid_, oid)', UnsupportedError)],
    "`IF` as a name": [("CREATE VIEW IF NOT EXISTS IF AS SELECT 1", SqlError), ("CREATE TABLE main.IF(x)", SqlError)],
    "a parameter in a definition": [("CREATE TABLE u(x CHECK (0 AND ?))", UnsupportedError)],
    "text that is not UTF-8": [("INSERT INTO t(name) VALUES (CAST(x'ff' AS TEXT))", SqlError)],
}
AS_IN_SQLITE: dict[str, list[str]] = {
    "`PRAGMA user_version": ["PRAGMA user_version = 3; PRAGMA application_id = 4"],
    "`PRAGMA foreign_keys = ON`": ["PRAGMA foreign_keys = ON"],
    "`PRAGMA legacy_alter_table = ON`": [
        "CREATE VIEW lw AS SELECT 1 FROM lt; CREATE TABLE lu(x)",
        "PRAGMA legacy_alter_table = ON; ALTER TABLE lu RENAME TO lt; PRAGMA legacy_alter_table = OFF",
    ],
    "`PRAGMA defer_foreign_keys": [
        "PRAGMA defer_foreign_keys = ON; INSERT INTO child VALUES (9); INSERT INTO parent VALUES (9)"
    ],
    "`journal_mode`, `synchronous`": [
        "PRAGMA journal_mode = DELETE; PRAGMA synchronous = OFF; PRAGMA busy_timeout = 5000; PRAGMA cache_size = -9000",
        "PRAGMA temp_store = 2; PRAGMA mmap_size = 9; PRAGMA wal_checkpoint; PRAGMA secure_delete = 1",
        "PRAGMA fullfsync = 1; PRAGMA soft_heap_limit = 9; PRAGMA shrink_memory",
        "PRAGMA cell_size_check = 1; PRAGMA max_page_count = 9; PRAGMA incremental_vacuum; PRAGMA analysis_limit = 9",
    ],
    "`PRAGMA case_sensitive_like`": ["PRAGMA recursive_triggers", "PRAGMA case_sensitive_like = OFF"],
    "PRAGMAs that read": ["PRAGMA table_info(t)", "PRAGMA foreign_key_check", "PRAGMA user_version"],
    "the time of day or a random value": [
        "CREATE TABLE u(x, at DEFAULT CURRENT_TIMESTAMP); INSERT INTO u(x) SELECT datetime('now') FROM t",
        "CREATE TABLE v(x, y); INSERT INTO v VALUES (random(), randomblob(16)), (unixepoch(), CURRENT_TIME)",
    ],
    "`random()`": ["INSERT INTO t(name, n) VALUES (random(), randomblob(9)), (datetime('now'), CURRENT_TIMESTAMP)"],
    "`CREATE VIRTUAL TABLE … USING fts5`": [
        "CREATE VIRTUAL TABLE u USING fts5(name, content='t', content_rowid='id')",
        "CREATE VIRTUAL TABLE v USING fts5(x)",
        "CREATE VIRTUAL TABLE w USING fts5vocab('u', 'row'); CREATE VIRTUAL TABLE r USING rtree(id, a, b, +name)",
        "CREATE VIRTUAL TABLE i USING rtree_i32(id, a, b); CREATE VIRTUAL TABLE g USING geopoly(name)",
        "INSERT INTO v VALUES ('word'); INSERT INTO r VALUES (1, 0.1, 0.2, 'x'); INSERT INTO i VALUES (1, 2, 3)",
        "INSERT INTO g(_shape) VALUES ('[[0,0],[1,0],[1,1],[0,0]]')",
        "SELECT highlight(u, 0, '<', '>'), rank FROM u('one')",
    ],
    "`CREATE VIRTUAL TABLE … USING vec0`": [
        "CREATE VIRTUAL TABLE u USING vec0(e float[2], n INTEGER)",
        "CREATE VIRTUAL TABLE v USING vec1(e, n)",
        "INSERT INTO u(e, n) VALUES ('[1,2]', 3); INSERT INTO v(e, n) VALUES (vec1_from_json('[1,2]'), 3)",
        "SELECT rowid, distance FROM u WHERE e MATCH '[1,1]' AND k = 1",
        "SELECT rowid FROM v(vec1_from_json('[1,1]'), '{k: 1}') WHERE n = 3",
    ],
    "commands of FTS5": [
        "CREATE VIRTUAL TABLE u USING fts5(name, content='t', content_rowid='id')",
        "INSERT INTO u(u) VALUES ('rebuild'), ('optimize'), ('integrity-check')",
        "INSERT INTO u(u, rank) VALUES ('rank', 'bm25(2.0)')",
    ],
    "NULL in a primary key": ["CREATE TABLE u(x TEXT PRIMARY KEY, y)", "INSERT INTO u VALUES (NULL, 1), (NULL, 2)"],
    "`REPLACE`": [
        "REPLACE INTO t(name) VALUES ('one')",
        "INSERT OR IGNORE INTO t(name) VALUES ('one'), ('two'); INSERT OR ABORT INTO t(name) VALUES ('four')",
        "INSERT INTO t(name) VALUES ('one') ON CONFLICT DO UPDATE SET n = n + 1; INSERT OR FAIL INTO t(n) VALUES (1)",
    ],
    "triggers, foreign-key": [
        "CREATE TABLE u(id INTEGER PRIMARY KEY, x INT CHECK (x > 0), y INT AS (x + 1), z INT AS (x + 2) STORED) STRICT",
        "CREATE INDEX part ON u(x) WHERE x > 5; CREATE INDEX expr ON u(x + 1)",
        "CREATE TABLE v(u INTEGER REFERENCES u(id) ON DELETE CASCADE)",
        "CREATE TRIGGER w AFTER INSERT ON u BEGIN INSERT INTO v VALUES (new.id); INSERT INTO v VALUES (new.id); END",
        "INSERT INTO u(x) VALUES (1), (7)",
        "DELETE FROM u WHERE x = 1",
    ],
    "`last_insert_rowid()`": ["INSERT INTO t(name) VALUES ('x'); SELECT last_insert_rowid(), changes()"],
    "`CREATE TABLE … AS SELECT`": [
        "CREATE TABLE u AS SELECT id, name FROM t ORDER BY id; INSERT INTO u SELECT id + 1, name FROM u",
        "CREATE TABLE IF NOT EXISTS u AS SELECT 1; CREATE TABLE v AS SELECT max(id) AS most FROM u",
    ],
    "`ALTER TABLE`": [
        "CREATE TABLE u(a NOT NULL, b, CONSTRAINT positive CHECK (a > 0))",
        "ALTER TABLE u ADD COLUMN c DEFAULT 5; ALTER TABLE u RENAME COLUMN b TO d; ALTER TABLE u DROP COLUMN d",
        "ALTER TABLE u ADD CONSTRAINT small CHECK (a < 9); ALTER TABLE u DROP CONSTRAINT positive",
        "ALTER TABLE u ALTER COLUMN a DROP NOT NULL; ALTER TABLE u ALTER COLUMN c SET NOT NULL",
        "ALTER TABLE u RENAME TO v",
    ],
    "`ANALYZE`, `PRAGMA optimize`": [
        "ANALYZE; ANALYZE t",
        "PRAGMA optimize",
        "CREATE INDEX i ON t(n)",
        "ANALYZE i",
        "DROP INDEX i",
    ],
    "`VACUUM`, `REINDEX`": ["VACUUM", "REINDEX; SELECT 1; REINDEX t"],
    "`EXPLAIN`": ["EXPLAIN INSERT INTO t(name) VALUES (1)", "EXPLAIN QUERY PLAN SELECT * FROM t"],
}


def cases() -> list[tuple[str, type[BedrockishError]]]:
    return [case for found in REFUSED.values() for case in found]


@pytest.mark.parametrize(("sql", "error"), cases(), ids=[sql for sql, _ in cases()])
def test_documented_refusals_are_refused(
    pair: tuple[TestNode, TestNode], sql: str, error: type[BedrockishError]
) -> None:
    first, second = pair
    catch_up(first, second)
    with pytest.raises(error) as caught:
        first.run("UPDATE t SET n = 2; " + sql if sql.startswith("INSERT") else sql)
    assert caught.value.message
    assert first.rows("SELECT n FROM t") == [(1,)]
    catch_up(first, second)


@pytest.mark.parametrize("texts", AS_IN_SQLITE.values(), ids=AS_IN_SQLITE)
def test_documented_statements_are_accepted(pair: tuple[TestNode, TestNode], texts: list[str]) -> None:
    first, second = pair
    for text in texts:
        first.run(text)
        catch_up(first, second)


def test_every_line_of_the_page_is_run() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("<!-- surface -->")[0]  # what follows is run by another test
    lines = re.findall(r"^\| (?!statement|---)([^|]+) \|", page, re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        assert any(line.startswith(begin) for begin in (*REFUSED, *AS_IN_SQLITE)), line
    for begin in (*REFUSED, *AS_IN_SQLITE):
        assert any(line.startswith(begin) for line in lines), begin


def test_assigned_ids_are_those_of_the_sql_page(pair: tuple[TestNode, TestNode]) -> None:
    first, _ = pair
    ids = [first.run("INSERT INTO a(x) VALUES (1)")[0].lastrowid for _ in range(3)]
    assert ids == [1, 17, 33]
    first.run("DELETE FROM a")
    assert first.rows("INSERT INTO a(x) VALUES (1) RETURNING id") == [(49,)]
    results = first.run("INSERT INTO t(name) VALUES ('x')", "SELECT last_insert_rowid()", "SELECT changes()")
    assert results[1].rows == [(results[0].lastrowid,)]
    assert results[2].rows == [(1,)]
    assert first.rows("SELECT last_insert_rowid()") == [(0,)]


def test_pragma_user_version_is_replicated_as_a_schema_statement(pair: tuple[TestNode, TestNode]) -> None:
    assert pair[0].prepare("PRAGMA user_version = 3").kind == SCHEMA_KIND


def test_defer_foreign_keys_ends_with_its_request(pair: tuple[TestNode, TestNode]) -> None:
    first, _ = pair
    first.run("PRAGMA defer_foreign_keys = ON; INSERT INTO child VALUES (9); INSERT INTO parent VALUES (9)")
    with pytest.raises(ConstraintError):
        first.run("INSERT INTO child VALUES (8); INSERT INTO parent VALUES (8)")


def test_the_system_tables_can_be_read(pair: tuple[TestNode, TestNode]) -> None:
    assert pair[0].rows("SELECT count(*) FROM bedrockish_journal") == [(2,)]


def test_strict_and_without_rowid_tables_refuse_null_primary_keys(pair: tuple[TestNode, TestNode]) -> None:
    first, _ = pair
    first.run("CREATE TABLE u(x TEXT PRIMARY KEY) STRICT; CREATE TABLE v(x TEXT PRIMARY KEY) WITHOUT ROWID")
    for table in ("u", "v"):
        with pytest.raises(ConstraintError):
            first.run(f"INSERT INTO {table} VALUES (NULL)")


def test_statistics_of_users_tables_are_equal_at_all_nodes(pair: tuple[TestNode, TestNode]) -> None:
    first, second = pair
    first.run("CREATE INDEX i ON t(n)")
    first.run("INSERT INTO t(name, n) VALUES ('a', 1), ('b', 1), ('c', 2)")
    first.run("ANALYZE")
    catch_up(first, second)
    found = [
        node.engine._db.execute("SELECT tbl, idx, stat FROM sqlite_stat1 ORDER BY 1, 2").fetchall() for node in pair
    ]
    assert found[0] == found[1]
    assert ("t", "i", "4 2") in found[0]
    assert not any(str(table).startswith("bedrockish_") for table, *_ in found[0])
    first.run("DELETE FROM t WHERE id > 1")
    first.run("ANALYZE")  # SQLite's schema version does not change again, but the statement is replicated
    catch_up(first, second)
    assert ("t", "i", "1 1") in second.engine._db.execute("SELECT tbl, idx, stat FROM sqlite_stat1").fetchall()


def test_optimize_gathers_statistics_where_they_are_lacking(tmp_path: Path) -> None:
    first, second = TestNode(tmp_path / "a.db"), TestNode(tmp_path / "b.db", "B")

    def run(sql: str) -> int:
        count = len(first.entries)
        first.run(sql)
        for entry in first.entries[count:]:
            second.apply(entry)
        return len(first.entries) - count

    run("CREATE TABLE t(id INTEGER PRIMARY KEY, n); CREATE INDEX i ON t(n)")
    run("PRAGMA optimize")  # a table without rows has no statistics
    run("INSERT INTO t(n) VALUES (1), (1), (2)")
    run("PRAGMA optimize")
    statistics = "SELECT tbl, idx, stat FROM sqlite_stat1"
    for node in (first, second):
        assert node.engine._db.execute(statistics).fetchall() == [("t", "i", "3 2")]
    before = first.engine.schema_version
    run("PRAGMA optimize")
    assert first.engine.schema_version == before
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 90)"
    run(f"INSERT INTO t(n) {numbers} SELECT i FROM n")
    run("PRAGMA optimize(0x10002)")
    assert second.engine._db.execute(statistics).fetchall() == [("t", "i", "93 1")]
