"""INSERTs of one row each into a table of the same schema transaction are recorded as one statement."""

from pathlib import Path
from typing import Any

import pytest

from bedrockish.api.requests import decode_results
from bedrockish.engine.execution.ddl_execution import STEP_BYTES
from bedrockish.engine.execution.merged_inserts import ROWS_MAX, made_table, one_row
from bedrockish.errors import ConstraintError, SqlError, UnsupportedError
from bedrockish_journal.model.changes import OVERTAKEN, decode_statements
from tests.engine.nodes import Limits, Sql, TestNode
from tests.engine.test_mixed import force, same_in_replays
from tests.engine.test_versions import decide


def texts_of(node: TestNode, *statements: Sql) -> list[str]:
    return decode_statements(node.prepare(*statements).changes)


@pytest.fixture
def shop(node: TestNode) -> TestNode:
    node.run("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT)")
    node.run("INSERT INTO item VALUES (1, 'a'), (2, 'b')")
    return node


KEYED = "CREATE TABLE made(id INTEGER PRIMARY KEY, a)"
TABLES: list[tuple[str, str, list[Any]]] = [
    ("CREATE TABLE made(a, b)", "INSERT INTO made(a, b) VALUES (?, upper(?) || ')');", [[1, "x"], [None, b"\0"]]),
    (KEYED, "insert into main.Made(a) values (:a)", [{"a": 1.5}, {"a": "it's"}, {"a": -0.0}]),
    (KEYED, "INSERT INTO made VALUES (?2, ?1 -- )\n)", [[1, 70], [2, 5], [3, -9]]),
    ("CREATE TABLE made(id INTEGER PRIMARY KEY AUTOINCREMENT, a)", "INSERT INTO made(a) VALUES (?)", [[1], [2]]),
    ("CREATE TABLE made(a PRIMARY KEY, b) WITHOUT ROWID", "INSERT INTO made VALUES (?, 7)", [[1], [2]]),
    ("CREATE TABLE made(rowid, a UNIQUE)", "INSERT INTO made(_rowid_, a) VALUES (?, 1 + ?)", [[30, 1], [20, 2]]),
    ("CREATE TABLE made(rowid, a)", "INSERT INTO made(rowid, a) VALUES (?, ?)", [["r", 1], ["s", 2]]),
    ("CREATE TABLE made(a)", "INSERT INTO made VALUES ((SELECT id FROM item ORDER BY -id, ? LIMIT 1))", [[1], [1]]),
    ("CREATE TABLE made(a)", "INSERT INTO made VALUES ((SELECT -id FROM item ORDER BY ? LIMIT 1))", [[1], [1]]),
    ("CREATE TABLE made(a, at DEFAULT CURRENT_TIMESTAMP)", "INSERT INTO made(a) VALUES (?)", [[1], [2]]),
    ("CREATE TABLE made(g AS (a), id INTEGER PRIMARY KEY, a)", "INSERT INTO made VALUES (?, ?)", [[70, 1], [80, 2]]),
    (KEYED, "INSERT INTO made VALUES (?, 1)", [[7], [0], [9]]),
    (KEYED, "INSERT INTO made VALUES (?, 2)", [[7], [-2], [0]]),
]


@pytest.mark.parametrize(("table", "insert", "rows"), TABLES, ids=[insert for _, insert, _ in TABLES])
def test_alike_inserts_become_one_statement_with_the_same_ids(
    shop: TestNode, tmp_path: Path, table: str, insert: str, rows: list[Any]
) -> None:
    alone = shop.prepare(table, *((f"{insert} -- {number}", row) for number, row in enumerate(rows)))
    assert len(decode_statements(alone.changes)) == 1 + len(rows)
    prepared = shop.prepare(table, *((insert, row) for row in rows))
    assert decode_results(prepared.result) == decode_results(alone.result)
    entry = decide(shop, table, *((insert, row) for row in rows))
    assert len(decode_statements(entry.transaction.changes)) == 2
    assert not force(shop, entry)
    told = [result.lastrowid for result in decode_results(prepared.result)[1:]]
    found = shop.rows("SELECT * FROM made")
    assert len(found) == len(rows)
    if "WITHOUT" not in table and [0] not in rows:  # an id 0 leaves the last id as it was
        hidden = "_rowid_" if "rowid" in table else "rowid"
        assert sorted(one for one in told if one) == sorted(one for (one,) in shop.rows(f"SELECT {hidden} FROM made"))
    same_in_replays(shop, tmp_path)


def test_many_rows_become_a_few_statements(shop: TestNode) -> None:
    rows = [("INSERT INTO made VALUES (?)", [number]) for number in range(2 * ROWS_MAX + 1)]
    texts = texts_of(shop, "CREATE TABLE made(a)", *rows, "DELETE FROM made WHERE a = 7")
    assert len(texts) == 1 + 3 + 1
    assert texts[3] == f"INSERT INTO made VALUES (({2 * ROWS_MAX}))"


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE item ADD COLUMN more", *[("INSERT INTO item(name) VALUES (?)", ["x"])] * 2],
        ["DROP TABLE item", "CREATE TABLE item(a)", *[("INSERT INTO item VALUES (?)", [1])] * 2],
        ["ALTER TABLE item RENAME TO made", *[("INSERT INTO made(name) VALUES (?)", ["x"])] * 2],
        ["CREATE TABLE made(a)", "ALTER TABLE made ADD COLUMN b", *[("INSERT INTO made(a) VALUES (?)", [1])] * 2],
        ["CREATE TABLE made(a UNIQUE ON CONFLICT IGNORE)", *[("INSERT INTO made VALUES (?)", [1])] * 2],
        ["CREATE TABLE made(a UNIQUE)", *[("INSERT OR IGNORE INTO made VALUES (?)", [1])] * 2],
        ["CREATE TABLE made(a UNIQUE)", *[("INSERT INTO made VALUES (?) ON CONFLICT DO NOTHING", [1])] * 2],
        ["CREATE TABLE made(a)", *[("INSERT INTO made VALUES (?) RETURNING a", [1])] * 2],
        ["CREATE TABLE made(a)", *[("INSERT INTO made SELECT ?", [1])] * 2],
        ["CREATE TABLE made(a)", *[("INSERT INTO made VALUES (1), (?)", [1])] * 2],
        [KEYED, *[("INSERT INTO made VALUES (?, 1)", [None])] * 2],
        [KEYED, "INSERT INTO made VALUES (10 + 1, 1)", *[("UPDATE made SET a = ?", [1])] * 2],
        ["CREATE TABLE made(a)", *[("INSERT INTO made VALUES ((SELECT count(*) FROM made) + ?)", [0])] * 2],
        ["CREATE TABLE made(a)", *[("INSERT INTO made VALUES (? IN made)", [0])] * 2],
        ["CREATE TABLE made(a UNIQUE, b REFERENCES made(a))", *[("INSERT INTO made VALUES (?, NULL)", [None])] * 2],
        [
            "CREATE TABLE made(a)",
            "CREATE TRIGGER made_more AFTER INSERT ON made WHEN new.a > 0 BEGIN INSERT INTO made VALUES (-new.a); END",
            *[("INSERT INTO made VALUES (?)", [1])] * 2,
        ],
    ],
)
def test_other_statements_run_one_by_one(shop: TestNode, statements: list[Sql]) -> None:
    assert len(texts_of(shop, *statements)) == len(statements)


def test_failed_row_leaves_the_rows_before_it(shop: TestNode) -> None:
    """The error names the statement of that row, and the statements before it are recorded one by one."""
    insert = "INSERT INTO made VALUES (?)"
    with pytest.raises(ConstraintError, match="UNIQUE"):
        shop.prepare("CREATE TABLE made(a UNIQUE)", (insert, [1]), (insert, [2]), (insert, [1]))
    with pytest.raises(SqlError, match="1 parameter"):
        shop.prepare("CREATE TABLE made(a)", (insert, [1]), (insert, [2]), (insert, [1, 2]))


def test_row_that_needs_the_row_after_it_is_refused(shop: TestNode) -> None:
    insert = "INSERT INTO made VALUES (?, ?)"
    with pytest.raises(ConstraintError, match="FOREIGN KEY"):
        shop.prepare(
            "CREATE TABLE made(id INTEGER PRIMARY KEY, p REFERENCES made)", (insert, [2, 1]), (insert, [1, None])
        )


def test_rows_that_read_data_of_one_node_are_refused(shop: TestNode) -> None:
    for table in ("bedrockish_journal", "sqlite_schema", "dbstat", "pragma_database_list"):
        insert = f"INSERT INTO made VALUES ((SELECT count(*) FROM {table}))"
        with pytest.raises(UnsupportedError, match=r"own: |of one node"):
            shop.prepare("CREATE TABLE made(a)", insert, insert)


def test_ids_after_zero_are_those_of_the_rows(shop: TestNode) -> None:
    """After a row with a negative id, SQLite counts on; an id 0 leaves the last id as it was."""
    rows = [("INSERT INTO made(a) VALUES (?)", [number]) for number in range(3)]
    prepared = shop.prepare(KEYED, "INSERT INTO made VALUES (-3, 1)", *rows)
    assert [result.lastrowid for result in decode_results(prepared.result)] == [None, -3, -2, -1, -1]


def test_failed_merge_leaves_no_table_with_the_highest_id(shop: TestNode) -> None:
    """Only the row after the highest id is refused, and not those before it."""
    insert = "INSERT INTO made VALUES (?, 1)"
    with pytest.raises(UnsupportedError) as refused:
        shop.prepare(KEYED, (insert, [2**63 - 2]), (insert, [2**63 - 1]), (insert, [3]))
    assert refused.value.details["sql"] == "INSERT INTO made VALUES ((3), 1)"
    counted = "CREATE TABLE made(id INTEGER PRIMARY KEY AUTOINCREMENT, a)"
    rows = [("INSERT INTO made(a) VALUES (?)", [number]) for number in range(2)]
    with pytest.raises(ConstraintError, match="used up"):
        shop.prepare(counted, f"INSERT INTO made VALUES ({2**63 - 2}, 1)", *rows)


def test_merge_without_room_for_its_query_leaves_nothing(tmp_path: Path) -> None:
    """The query for the highest id counts, too; one by one, these rows still have room."""
    insert, values = "INSERT INTO made(a) VALUES (?)", ["x" * 5000, "y" * 5000]
    texts = [KEYED, *(insert.replace("?", f"('{value}')") for value in values)]
    limits = Limits(changes_bytes=sum(len(text) + STEP_BYTES for text in texts))
    small = TestNode(tmp_path / "small.sqlite", limits=limits)
    assert texts_of(small, KEYED, *((insert, [value]) for value in values)) == texts


def test_change_fails_if_the_rows_would_get_other_ids(shop: TestNode) -> None:
    rows = [("INSERT INTO made(name) VALUES (?)", [name]) for name in "xy"]
    entry = decide(shop, "CREATE TABLE made AS SELECT name FROM item", *rows)
    shop.run("INSERT INTO item VALUES (3, 'c')")
    assert OVERTAKEN in force(shop, entry)


def test_parts_of_statements() -> None:
    for sql in ("INSERT INTO t VALUES (?), (?)", "REPLACE INTO t VALUES (?)", "INSERT INTO temp.t VALUES (?)", "(", ""):
        assert one_row(sql) is None
    found = one_row('INSERT INTO "a b"(x) VALUES (:x || :x, 5)')
    assert found is not None
    assert (found.table, found.row(("it's",)), found.values) == ("a b", "(('it''s') || ('it''s'), 5)", (0, 0))
    made = {
        "CREATE TABLE t(a)": "t",
        'create table main."T t"(a);': "T t",
        "CREATE TABLE t AS SELECT 1": "t",
        "CREATE TABLE IF NOT EXISTS t(a)": "",
        "CREATE TABLE t(a PRIMARY KEY ON CONFLICT REPLACE)": "",
        "CREATE TEMP TABLE t(a)": "",
        "CREATE VIRTUAL TABLE t USING fts5(a)": "",
        "DROP TABLE t": "",
        "CREATE TABLE t(a)\0": "",
    }
    assert {sql: made_table(sql) for sql in made} == made
