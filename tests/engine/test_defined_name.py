"""Definitions that SQLite accepts and nodes could not bring into force: refused, so that no node ends."""

import apsw
import pytest

from bedrockish.engine.statements.defined_name import check_defined_name
from bedrockish.errors import SqlError, UnsupportedError
from tests.engine.nodes import TestNode

MALFORMED = [
    "CREATE TABLE IF NOT EXISTS IF(a)",
    "CREATE TABLE main.IF(a)",
    "CREATE TEMP TABLE IF NOT EXISTS if(a)",
    "create /* as */ table temp . if(a)",
    "CREATE TABLE IF NOT EXISTS main.IF(a)",
    "CREATE VIEW IF NOT EXISTS IF AS SELECT 1",
    "CREATE VIEW main.IF AS SELECT 1",
    "CREATE UNIQUE INDEX main.IF ON t(a)",
    "CREATE INDEX IF NOT EXISTS IF ON t(a)",
    "CREATE TRIGGER IF NOT EXISTS IF AFTER INSERT ON t BEGIN SELECT 1; END",
    "CREATE TRIGGER main.IF AFTER INSERT ON t BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE IF NOT EXISTS IF USING fts5(a)",
]
SOUND = [
    'CREATE TABLE main."IF"(a)',
    "CREATE TABLE IF NOT EXISTS t(a)",
    "CREATE TABLE main.IF AS SELECT 1",
    "CREATE TABLE IF NOT EXISTS IF AS SELECT 1",
    "CREATE VIEW IF NOT EXISTS [IF] AS SELECT 1 AS 'IF'",
    "CREATE TABLE IF NOT EXISTS u(IF, NOT_, EXISTS_)",
    "CREATE TRIGGER IF NOT EXISTS AFTER INSERT ON t BEGIN SELECT 1; END",
    "CREATE INDEX main.i ON t(a)",
]


@pytest.mark.parametrize("sql", MALFORMED)
def test_a_name_that_sqlite_could_not_read_again_is_refused(sql: str) -> None:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE t(a)")
    with pytest.raises(apsw.CorruptError, match="malformed database schema"):
        db.execute(sql)
    with pytest.raises(SqlError, match="in quotes"):
        check_defined_name(sql)


@pytest.mark.parametrize("sql", SOUND)
def test_a_name_that_sqlite_can_read_again_is_accepted(sql: str) -> None:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE t(a)")
    db.execute(sql)
    check_defined_name(sql)


@pytest.mark.parametrize("sql", MALFORMED[5:])
def test_a_definition_that_sqlite_could_not_read_again_leaves_the_node_as_it_was(node: TestNode, sql: str) -> None:
    node.run("CREATE TABLE t(a)")
    with pytest.raises(SqlError, match="in quotes"):
        node.run(sql)
    with pytest.raises(SqlError, match="in quotes"):
        node.run("INSERT INTO t VALUES (1)", sql)
    node.run("INSERT INTO t VALUES (2)")
    assert node.rows("SELECT a FROM t") == [(2,)]
    assert node.rows("SELECT name FROM sqlite_schema") == [("t",)]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE INDEX i ON t(a) WHERE 0 AND ?",
        "CREATE INDEX i ON t(a, 0 AND ?1)",
        "CREATE TABLE x(a CHECK (0 AND :value))",
        "CREATE TABLE x(a DEFAULT (0 AND ?))",
        "CREATE TABLE x(a, b AS (0 AND ?))",
        "CREATE TRIGGER x AFTER INSERT ON t WHEN 0 AND ? BEGIN SELECT 1; END",
        "CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 0 AND ?; END",
        "ALTER TABLE t ADD COLUMN c CHECK (0 AND ?)",
        "ALTER TABLE t ADD CHECK (a OR (0 AND ?))",
        "CREATE TABLE x(a CHECK (a IN () AND ?))",
    ],
)
def test_a_definition_with_a_parameter_that_sqlite_leaves_out_is_refused(node: TestNode, sql: str) -> None:
    """SQLite accepts it with a value, which nodes lack when the definition comes into force: all would end."""
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE t(a)")
    db.execute(sql, {"value": 1} if ":" in sql else (1,))
    node.run("CREATE TABLE t(a)")
    for given in ({"value": 1} if ":" in sql else (1,), None):
        with pytest.raises(UnsupportedError, match="write the values into the text"):
            node.run((sql, given))
        with pytest.raises(UnsupportedError, match="write the values into the text"):
            node.run("INSERT INTO t VALUES (1)", (sql, given))
    node.run(("CREATE TABLE filled AS SELECT ? AS a, 0 AND ?", (7, 8)))
    assert node.rows("SELECT a FROM filled") == [(7,)]
