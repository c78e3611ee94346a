"""Definitions that SQLite could not read again: refused, so that no node takes its file for damaged."""

import apsw
import pytest

from bedrockish.engine.statements.defined_name import check_defined_name
from bedrockish.errors import SqlError
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
