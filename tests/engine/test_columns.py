"""Reads of some columns and changes of others do not conflict, unless the read could notice the change."""

import pytest

from bedrockish.access_sets.key_encoding import column_key, encode, table_key
from bedrockish.api.requests import SNAPSHOT, Request, Statement
from bedrockish_journal.model.access_set import conflict
from tests.engine.nodes import TestNode

DDL = (
    "CREATE TABLE branch(id INTEGER PRIMARY KEY, name TEXT, tax INTEGER, takings INTEGER, "
    "sign TEXT AS (name || '!') STORED)",
    "CREATE TABLE customer(id INTEGER PRIMARY KEY, branch INTEGER, name TEXT)",
    "CREATE TABLE visit(branch INTEGER REFERENCES branch(id) ON UPDATE CASCADE, day TEXT, note TEXT)",
    "CREATE VIEW sold AS SELECT c.name AS who, b.tax AS tax FROM customer c JOIN branch b ON b.id = c.branch",
    "CREATE TABLE log(k, n)",
    "CREATE TRIGGER seen AFTER INSERT ON log BEGIN "
    "UPDATE customer SET name = (SELECT name FROM branch WHERE id = new.n) WHERE id = new.k; END",
    "INSERT INTO branch(id, name, tax, takings) VALUES (1, 'North', 19, 0), (2, 'South', 7, 0)",
    "INSERT INTO customer VALUES (1, 1, 'Ann')",
)
ROW = b"u:branch\0" + encode(1)


@pytest.fixture
def shop(node: TestNode) -> TestNode:
    for sql in DDL:
        node.run(sql)
    return node


def meets(node: TestNode, reader: str, writer: str) -> bool:
    read, write = node.prepare(reader), node.prepare(writer)
    assert not write.readonly, "a change of nothing shows nothing"
    return conflict(read.access_set, write.access_set) is not None


TAKINGS, TAX = "UPDATE branch SET takings = takings + 1 WHERE id = 1", "UPDATE branch SET tax = 20 WHERE id = 1"
UPSERT = "INSERT INTO branch(id) VALUES (1) ON CONFLICT DO UPDATE SET tax = 1"
OF_TAX = (
    "SELECT tax FROM branch WHERE id = 1",
    "SELECT name FROM branch WHERE id = 1 AND tax > 5",
    "SELECT 1 FROM branch WHERE id IN (1, 2) ORDER BY tax",
    "SELECT c.name, b.tax FROM customer c JOIN branch b ON b.id = c.branch WHERE c.id = 1",
    "SELECT c.name, b.tax FROM customer c LEFT JOIN branch b ON b.id = c.branch",
    "SELECT who, tax FROM sold",
    "WITH one AS MATERIALIZED (SELECT tax FROM branch WHERE id = 1) SELECT * FROM one",
    "SELECT (SELECT max(tax) FROM branch WHERE id = 1)",
    "SELECT name FROM customer WHERE (SELECT (tax, name) = (19, 'North') FROM branch WHERE id = customer.branch)",
    "INSERT INTO customer SELECT 9, 1, tax FROM branch WHERE id = 1",
    "UPDATE customer SET name = (SELECT tax FROM branch WHERE id = 1) WHERE id = 1 RETURNING name",
    "DELETE FROM customer WHERE id = (SELECT tax - 18 FROM branch WHERE id = 1)",
)


@pytest.mark.parametrize("reader", OF_TAX)
def test_read_conflicts_only_with_changes_of_its_columns(shop: TestNode, reader: str) -> None:
    assert meets(shop, reader, TAX)
    assert not meets(shop, reader, TAKINGS)


@pytest.mark.parametrize("reader", [*OF_TAX, "SELECT 1 FROM branch WHERE id = 1", "SELECT id FROM branch WHERE id = 1"])
@pytest.mark.parametrize(
    "writer",
    [
        "DELETE FROM branch WHERE id = 1",
        "UPDATE branch SET id = 3 WHERE id = 1",
        "INSERT OR REPLACE INTO branch(id, name, tax, takings) VALUES (1, 'North', 19, 0)",
        "UPDATE OR REPLACE branch SET id = 1 WHERE id = 2",
    ],
)
def test_insert_and_delete_conflict_with_every_read_of_the_row(shop: TestNode, reader: str, writer: str) -> None:
    assert meets(shop, reader, writer)


def test_missing_row_counts_as_read(shop: TestNode) -> None:
    assert meets(shop, "SELECT name FROM branch WHERE id = 7", "INSERT INTO branch(id) VALUES (7)")
    assert meets(shop, "SELECT name FROM branch WHERE id = 7", "UPDATE branch SET id = 7 WHERE id = 2")
    assert not meets(shop, "SELECT name FROM branch WHERE id = 7", "INSERT INTO branch(id) VALUES (8)")


@pytest.mark.parametrize(
    ("reader", "writer", "whether"),
    [
        ("SELECT typeof(tax) FROM branch WHERE id = 1", "UPDATE branch SET tax = tax || 'x' WHERE id = 1", True),
        ("SELECT sign FROM branch WHERE id = 1", "UPDATE branch SET name = 'N' WHERE id = 1", True),
        ("SELECT sign FROM branch WHERE id = 1", TAX, False),
        ("SELECT name FROM branch WHERE id = 1", "UPDATE branch SET name = name, tax = 3 WHERE id = 1", False),
        ("SELECT name FROM branch WHERE id = 1", UPSERT, False),
        ("SELECT tax FROM branch WHERE id = 1", UPSERT, True),
        ("INSERT INTO log VALUES (1, 1)", TAX, False),
        ("INSERT INTO log VALUES (1, 1)", "UPDATE branch SET name = 'x' WHERE id = 1", True),
        ("INSERT INTO visit VALUES (1, 'today', '')", TAKINGS, False),
        ("INSERT INTO visit VALUES (1, 'today', '')", "DELETE FROM branch WHERE id = 1", True),
        # Only reads of single rows by their ids read by column; other statements read whole rows.
        ("SELECT name FROM branch", TAKINGS, True),
        ("SELECT count(*) FROM branch", TAKINGS, True),
        ("SELECT name FROM branch WHERE id < 5", TAKINGS, True),
        ("SELECT * FROM branch WHERE id = 1", TAKINGS, True),
        ("SELECT a.name, b.tax FROM branch a JOIN branch b ON b.id = 2 WHERE a.id = 1", TAKINGS, True),
        ("UPDATE branch SET name = 'x' WHERE id = 1", TAKINGS, True),
        ("SELECT name FROM branch WHERE id = 1; UPDATE branch SET tax = 2 WHERE id = 2", TAKINGS, False),
    ],
)  # fmt: skip
def test_read_by_column_conflicts_only_with_changes_of_its_columns(
    shop: TestNode, reader: str, writer: str, whether: bool
) -> None:
    assert meets(shop, reader, writer) == whether


def test_look_ups_and_updates_have_the_keys_of_their_columns(shop: TestNode) -> None:
    read = shop.prepare("SELECT name, tax FROM branch WHERE id = 1").access_set
    assert read.read_points == {ROW, column_key(ROW, "name"), column_key(ROW, "tax")}
    assert not read.read_ranges
    written = shop.prepare("UPDATE branch SET name = 'x' WHERE id = 1").access_set.write_points
    assert written == {table_key("branch", 1), column_key(ROW, "name"), column_key(ROW, "sign")}
    gone = shop.prepare("DELETE FROM branch WHERE id = 1").access_set.write_points
    assert gone == {table_key("branch", 1), b"i:branch\0" + encode(1), ROW}


def test_read_of_nine_columns_counts_as_a_read_of_the_row(shop: TestNode) -> None:
    """With very many columns, a key for each read column, or for each column except the id, would cost more than it
    gains.
    """
    shop.run(f"CREATE TABLE wide(id INTEGER PRIMARY KEY, {', '.join(f'c{number}' for number in range(40))})")
    for count in (8, 9):
        found = shop.prepare(f"SELECT {', '.join(f'c{number}' for number in range(count))} FROM wide WHERE id = 1")
        assert (found.access_set.read_points == {table_key("wide", 1)}) == (count == 9)
    for columns in ("branch, name", "*"):
        found = shop.prepare(f"SELECT {columns} FROM customer WHERE id = 1")
        assert found.access_set.read_points == {table_key("customer", 1)}


@pytest.mark.parametrize("ddl", ["CREATE TABLE t(id INTEGER PRIMARY KEY, a, b, c) WITHOUT ROWID",
                                 "CREATE TABLE t(id INTEGER PRIMARY KEY, a, b, c, v AS (a + 1))"])  # fmt: skip
def test_tables_of_other_kinds_are_read_by_row(shop: TestNode, ddl: str) -> None:
    shop.run(ddl)
    shop.run("INSERT INTO t(id, a, b, c) VALUES (1, 1, 1, 1)")
    assert meets(shop, "SELECT a FROM t WHERE id = 1", "UPDATE t SET b = 2 WHERE id = 1")
    assert not any(key.startswith(b"u:") for key in shop.prepare("DELETE FROM t").access_set.write_points)


def test_bulk_statement_writes_all_columns(shop: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedrockish.access_sets.analysis.ROWS_MAX", 1)
    assert meets(shop, "SELECT name FROM branch WHERE id = 1", "UPDATE branch SET takings = 5")
    assert not meets(shop, "SELECT name FROM branch WHERE id = 3", "UPDATE branch SET takings = 5")


def test_snapshot_isolation_leaves_reads_out_of_the_access_set(shop: TestNode) -> None:
    texts = (Statement("SELECT name FROM branch WHERE id = 1"), Statement("UPDATE customer SET name = 'x'"))
    assert not shop.engine.execute(Request("c", texts, isolation=SNAPSHOT)).access_set.read_points
