"""Explanations of the reads and writes of a statement, in words."""

from typing import Any

import pytest

from bedrockish.api.requests import Statement
from bedrockish.errors import SqlError, UnsupportedError
from tests.engine.nodes import TestNode


@pytest.fixture
def shop(node: TestNode) -> TestNode:
    node.run(
        "CREATE TABLE parent(id INTEGER PRIMARY KEY, owner TEXT COLLATE NOCASE, n)",
        "CREATE INDEX by_owner ON parent(owner)",
        "CREATE TABLE child(x UNIQUE, parent INTEGER REFERENCES parent(id))",
    )
    node.run("INSERT INTO parent VALUES (5, 'Bob', 1)")
    return node


def told(node: TestNode, sql: str, *params: Any) -> dict[str, Any]:
    before = node.tables()
    (found,) = node.engine.explain(Statement(sql, params))
    assert node.tables() == before
    return found


def test_explain_lists_the_keys_of_an_insert(shop: TestNode) -> None:
    assert told(shop, "INSERT INTO child VALUES (?, 5)", 7) == {
        "sql": "INSERT INTO child VALUES (?, 5)",
        "kind": "write",
        "ids": True,
        "reads": ["key of table parent: 5"],
        "writes": [
            "index sqlite_autoindex_child_1 of child: 7",
            "index sqlite_autoindex_child_1 of child: 7, 1",
            "table child: 1",
            "columns of child: 1",
        ],
        "wider": [],
        "advice": [],
        "error": "",
    }


@pytest.mark.parametrize(
    ("sql", "params", "reads"),
    [
        ("SELECT * FROM parent WHERE id = ?", (5,), ["table parent: 5"]),
        ("SELECT * FROM parent WHERE id BETWEEN 3 AND ?", (7,), ["table parent: from 3 to 7"]),
        ("SELECT * FROM parent WHERE id > 3", (), ["table parent: after 3"]),
        ("SELECT * FROM parent WHERE owner = 'BOB'", (), ["index by_owner of parent: 'bob'"]),
        ("SELECT n FROM parent", (), ["table parent: all"]),
        ("PRAGMA table_info(parent)", (), []),
        ("PRAGMA foreign_keys = ON", (), []),
    ],
)
def test_reads_of_statements_are_explained(shop: TestNode, sql: str, params: tuple[Any, ...], reads: list[str]) -> None:
    found = told(shop, sql, *params)
    assert (found["kind"], found["reads"], found["writes"]) == ("read", reads, [])


def test_explain_gives_the_reason_of_a_wide_read(shop: TestNode) -> None:
    found = told(shop, "DELETE FROM parent WHERE id = (SELECT max(id) + 0 FROM parent)")
    assert sorted(found["wider"]) == [
        ["table parent", "Last with no bound"],
        ["table parent", "SeekRowid by a value from another row"],
    ]


def test_explain_advises_against_wide_reads(shop: TestNode) -> None:
    found = told(shop, "SELECT id FROM parent WHERE n = 5")
    assert found["advice"] == ['CREATE INDEX ... ON "parent"("n"), so that it need not scan all']
    found = told(shop, "SELECT * FROM child c JOIN parent p ON p.id = c.parent + 1 WHERE c.rowid = 1")
    assert found["advice"] == ["look that value up by a statement of its own, and give it as a parameter"]
    assert told(shop, "SELECT * FROM child c JOIN parent p ON p.id = c.parent WHERE c.rowid = 1")["advice"] == []


def test_explain_reports_the_error_of_a_schema_statement(shop: TestNode) -> None:
    found = told(shop, "CREATE TABLE t(x)")
    assert (found["kind"], found["reads"], found["writes"], found["error"]) == ("schema", [], ["the schema"], "")
    assert told(shop, "CREATE UNIQUE INDEX one ON child(parent)")["error"] == ""
    shop.run("INSERT INTO child VALUES (1, 5), (2, 5)")
    assert "UNIQUE constraint failed" in told(shop, "CREATE UNIQUE INDEX one ON child(parent)")["error"]
    several = shop.engine.explain(Statement("CREATE TABLE t(x); CREATE INDEX i ON t(x)"))  # each sees those before it
    assert [one["error"] for one in several] == ["", ""]
    with pytest.raises(SqlError, match="column"):
        told(shop, "CREATE TABLE t(x); CREATE INDEX i ON t(y)")


def test_explain_reports_a_failing_statement_and_stops(shop: TestNode) -> None:
    for clause in ("", "OR ROLLBACK "):
        (found,) = shop.engine.explain(Statement(f"INSERT {clause}INTO parent VALUES (5, '', 1); SELECT 1"))
        assert found["error"] == "UNIQUE constraint failed: parent.id"
    assert shop.rows("SELECT count(*) FROM parent") == [(1,)]


def test_explain_shortens_long_lists_of_keys(shop: TestNode) -> None:
    many = "INSERT INTO parent(n) WITH RECURSIVE k(i) AS (SELECT 1 UNION SELECT i + 1 FROM k LIMIT 300) SELECT i FROM k"
    first, second = shop.engine.explain(Statement(f"SELECT ?; {many}", (1,)))
    assert (first["sql"], first["reads"], second["ids"]) == ("SELECT ?;", [], True)
    assert second["writes"][-1] == "and 1100 more"


def test_invalid_statement_cannot_be_explained(shop: TestNode) -> None:
    with pytest.raises(SqlError, match="1 parameter"):
        told(shop, "SELECT ?")
    with pytest.raises(UnsupportedError):
        told(shop, "ATTACH 'other.db' AS other")
