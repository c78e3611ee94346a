"""Rows and schema changes in one transaction: tried at once, and executed at the same cut by all nodes."""

from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from bedrockish.api.requests import decode_results
from bedrockish.core.coordinator.request import schema_failed
from bedrockish.engine.execution.ddl_execution import literal
from bedrockish.engine.sqlite.limits import Limits, TakesLongError
from bedrockish.errors import ConflictError, ConstraintError, SqlError, TooLargeError, UnsupportedError
from bedrockish_journal.model.changes import OVERTAKEN, decode_statements
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.verify.replay import digest, replay
from tests.engine.nodes import Sql, TestNode, request
from tests.engine.test_versions import decide

REMAKE: tuple[Sql, ...] = (
    "PRAGMA foreign_keys = OFF",
    'CREATE TABLE "new__item"(id INTEGER PRIMARY KEY, name TEXT NOT NULL, price INTEGER)',
    'INSERT INTO "new__item"(id, name, price) SELECT id, name, 0 FROM item',
    "DROP TABLE item",
    'ALTER TABLE "new__item" RENAME TO item',
    "CREATE INDEX by_name ON item(name)",
    "PRAGMA foreign_key_check",
    ("INSERT INTO migration(app, at) VALUES (?, :at)", ["shop", -5]),
)


@pytest.fixture
def shop(node: TestNode) -> TestNode:
    node.run("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT)")
    node.run("CREATE TABLE part(item INTEGER REFERENCES item(id) ON DELETE CASCADE, n)")
    node.run("CREATE TABLE migration(id INTEGER PRIMARY KEY AUTOINCREMENT, app TEXT, at)")
    node.run("INSERT INTO item VALUES (1, 'a'), (2, 'b')")
    node.run("INSERT INTO part VALUES (1, 10), (2, 20)")
    return node


def force(node: TestNode, entry: Entry) -> str:
    failure = node.engine.versions.activate(entry.txid)
    node.engine.flush()
    return failure


def same_in_replays(node: TestNode, directory: Path) -> None:
    for number, draw in enumerate((None, Random(1).random)):
        made = replay([node.path], directory / f"{number}.sqlite", draw=draw)
        assert made.digest == digest(node.path)


def test_table_is_rebuilt_with_its_rows(shop: TestNode, tmp_path: Path) -> None:
    """Rows committed between the decision and the activation are copied, too; children keep their rows."""
    entry = decide(shop, *REMAKE)
    assert decode_statements(entry.transaction.changes) == [
        *REMAKE[:6],
        "INSERT INTO migration(app, at) VALUES (('shop'), (-5))",
    ]
    shop.run("INSERT INTO item VALUES (3, 'c')")
    shop.run("INSERT INTO part VALUES (3, 30)")
    assert force(shop, entry) == ""
    assert shop.rows("SELECT * FROM item") == [(1, "a", 0), (2, "b", 0), (3, "c", 0)]
    assert shop.rows("SELECT * FROM part") == [(1, 10), (2, 20), (3, 30)]
    assert shop.rows("SELECT id, app, at FROM migration") == [(1, "shop", -5)]
    with pytest.raises(ConstraintError):
        shop.run("INSERT INTO part VALUES (99, 0)")  # enforced again
    same_in_replays(shop, tmp_path)


LEGACY = "PRAGMA legacy_alter_table = "


def test_legacy_alter_table_holds_for_each_alter_of_its_transaction_alone(shop: TestNode, tmp_path: Path) -> None:
    """After the transaction, RENAME writes the new name into a view again, at the nodes and in a replay."""
    shop.run("CREATE VIEW names AS SELECT name FROM item")
    on, off = f"{LEGACY}ON", f"{LEGACY}OFF"
    renames = "ALTER TABLE item RENAME TO old", "ALTER TABLE item RENAME TO other"
    entry = decide(shop, on, renames[0], "CREATE TABLE item(name)", off, renames[1])
    assert decode_statements(entry.transaction.changes) == [on, renames[0], off, "CREATE TABLE item(name)", renames[1]]
    assert force(shop, entry) == ""
    assert shop.rows("SELECT * FROM names") == []
    shop.run("ALTER TABLE other RENAME TO third")
    shop.run("INSERT INTO third VALUES ('z')")
    assert shop.rows("SELECT * FROM names") == [("z",)]
    same_in_replays(shop, tmp_path)


@pytest.mark.parametrize("rest", [[], ["SELECT 1"], ["INSERT INTO part VALUES (1, 1)"]])
def test_legacy_alter_table_without_a_schema_change_is_refused(shop: TestNode, rest: list[str]) -> None:
    with pytest.raises(UnsupportedError, match="transaction that changes the schema"):
        shop.prepare(f"{LEGACY}ON", *rest)
    shop.run("CREATE VIEW names AS SELECT name FROM item")
    shop.run("ALTER TABLE item RENAME TO other")
    assert shop.rows("SELECT * FROM names") == [("a",), ("b",)]


def test_mixed_schema_change_returns_the_results_of_its_statements(shop: TestNode) -> None:
    results = decode_results(shop.prepare(*REMAKE, "SELECT count(*) FROM item").result)
    assert [result.rowcount for result in results[:3]] == [-1, -1, 2]
    assert results[-1].rows == [(2,)]
    assert results[-2].lastrowid == 1
    assert shop.rows("SELECT name FROM item") == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("statements", "between", "fails"),
    [
        (["SELECT name FROM item WHERE id = 1"], "UPDATE item SET name = 'z' WHERE id = 1", True),
        (["SELECT name FROM item WHERE id = 1"], "UPDATE item SET name = 'z' WHERE id = 2", False),
        (["SELECT id FROM item ORDER BY name"], "UPDATE item SET name = 'z' WHERE id = 1", True),
        (["UPDATE item SET name = 'x' WHERE id = 2"], "DELETE FROM item WHERE id = 2", True),
        (["UPDATE item SET name = 'x'"], "DELETE FROM item WHERE id = 2", True),  # two rows became one
        (["UPDATE item SET name = 'x'"], "INSERT INTO item VALUES (3, 'c')", False),  # many stay many
        (["INSERT INTO item(name) VALUES ('c')"], "INSERT INTO item VALUES (3, 'z')", True),  # another id
        (["INSERT INTO item(name) VALUES ('c') RETURNING id"], "INSERT INTO item VALUES (3, 'z')", True),
        (["DELETE FROM item RETURNING name"], "UPDATE item SET name = 'z' WHERE id = 1", True),
    ],
)
def test_schema_change_fails_if_an_answer_differs_at_its_activation(
    shop: TestNode, statements: list[str], between: str, fails: bool
) -> None:
    entry = decide(shop, "ALTER TABLE migration ADD COLUMN more", *statements)
    shop.run(between)
    before = shop.tables()
    failure = force(shop, entry)
    assert failure.startswith(OVERTAKEN) == bool(failure) == fails
    if fails:
        assert shop.tables() == before
        assert isinstance(schema_failed(failure), ConflictError)
        assert shop.rows("SELECT state FROM bedrockish_schema ORDER BY version DESC LIMIT 1") == [("failed",)]


def test_change_fails_if_data_breaks_its_constraint_before_activation(shop: TestNode, tmp_path: Path) -> None:
    """If a change was tried with success and fails later, the error is a conflict; otherwise it is the constraint's."""
    entry = decide(shop, "CREATE TABLE other(name UNIQUE)", "INSERT INTO other SELECT name FROM item")
    shop.run("INSERT INTO item VALUES (3, 'a')")
    failure = force(shop, entry)
    assert failure.endswith("fails: UNIQUE constraint failed: other.name")
    assert isinstance(schema_failed(failure), ConflictError)
    shop.run("DELETE FROM item WHERE id = 3")
    entry = decide(shop, "UPDATE part SET n = n + 1", "CREATE UNIQUE INDEX one ON item(name)")
    shop.run("INSERT INTO item VALUES (3, 'a')")
    failure = force(shop, entry)
    assert failure == "UNIQUE constraint failed: item.name"
    assert isinstance(schema_failed(failure), ConstraintError)
    shop.run("INSERT INTO item VALUES (4, 'a')")
    shop.engine.flush()
    same_in_replays(shop, tmp_path)


def test_row_that_breaks_a_new_constraint_fails_the_change_not_the_node(shop: TestNode) -> None:
    entry = decide(shop, "CREATE TABLE number(id INTEGER PRIMARY KEY)", "INSERT INTO number SELECT n FROM part")
    shop.run("INSERT INTO part VALUES (1, 'no number')")
    assert force(shop, entry).endswith("fails: datatype mismatch")


def test_change_that_orphans_a_row_fails(shop: TestNode) -> None:
    with pytest.raises(ConstraintError, match="FOREIGN KEY") as caught:
        shop.prepare("PRAGMA foreign_keys = OFF", "ALTER TABLE item ADD COLUMN x", "DELETE FROM item WHERE id = 1")
    assert caught.value.details["sqlite"] == apsw.SQLITE_CONSTRAINT_FOREIGNKEY
    entry = decide(shop, "PRAGMA foreign_keys = OFF", "ALTER TABLE part ADD x", "DELETE FROM item WHERE id = 7")
    shop.run("INSERT INTO item VALUES (7, 'g')")
    assert OVERTAKEN in force(shop, entry)
    shop.run("INSERT INTO item VALUES (8, 'h'), (9, 'i')")
    entry = decide(shop, "PRAGMA foreign_keys = OFF", "ALTER TABLE part ADD x", "DELETE FROM item WHERE id > 7")
    shop.run("INSERT INTO part VALUES (8, 0)")
    assert force(shop, entry) == "FOREIGN KEY constraint failed"
    with pytest.raises(ConstraintError):
        shop.run("INSERT INTO part VALUES (99, 0)")


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE item SET name = random()",
        "INSERT INTO item(name) SELECT random() FROM item",
        "INSERT INTO item(name) VALUES ((SELECT max(random()) FROM item))",
        "INSERT INTO item(name) VALUES (hex(randomblob(1000000000)))",
        "INSERT INTO lot(id) SELECT id FROM item",
        "UPDATE item SET name = date(name)",
        "UPDATE item SET name = datetime('n' || substr(name, 1, 0) || 'ow')",
        "SELECT last_insert_rowid(), datetime('now')",
        "INSERT INTO traced VALUES (1)",
        "SELECT changes()",
        "SELECT cluster_clock()",
        "INSERT OR ROLLBACK INTO item VALUES (1, 'a')",
        "INSERT OR FAIL INTO item VALUES (1, 'a')",
        "SELECT * FROM bedrockish_journal",
        "SELECT * FROM item, sqlite_master",
        "INSERT INTO item(name) SELECT name FROM sqlite_master",
        "SELECT seq FROM sqlite_sequence",
        "SELECT count(*) FROM pragma_foreign_key_check",
        "SELECT name FROM dbstat",
    ],
)
def test_nondeterministic_statements_of_a_schema_change_are_refused(shop: TestNode, sql: str) -> None:
    shop.run("CREATE TABLE stamped(id, at DEFAULT CURRENT_TIMESTAMP)")
    shop.run("CREATE TABLE lot(id, code DEFAULT (hex(randomblob(4))))")
    shop.run("CREATE TABLE traced(id)")
    shop.run("CREATE TRIGGER trace AFTER INSERT ON traced BEGIN UPDATE item SET name = random(); END")
    with pytest.raises(UnsupportedError) as caught:
        shop.prepare("ALTER TABLE migration ADD COLUMN more", sql)
    assert "every node runs each statement" in caught.value.message


@pytest.mark.parametrize("sql", ["INSERT INTO item(name) {}", "SELECT EXISTS ({})", "CREATE TABLE told AS {}"])
def test_statistics_that_a_schema_change_has_gathered_are_not_read_in_it(shop: TestNode, sql: str) -> None:
    """Until the end of the change, the statistics include the node's own tables, and so differ between nodes."""
    shop.run("ANALYZE")
    reads = sql.format("SELECT stat FROM sqlite_stat1 WHERE tbl GLOB 'bedrockish*'")
    shop.prepare("ALTER TABLE migration ADD COLUMN more", reads)
    with pytest.raises(UnsupportedError, match="read them in another transaction"):
        shop.prepare("ANALYZE", reads)


@pytest.mark.parametrize("rows", ["(2)", "(2), (3)"])
@pytest.mark.parametrize(
    "made", ["CREATE TABLE own(id INTEGER PRIMARY KEY AUTOINCREMENT, app)", "CREATE TABLE other(x)"]
)
def test_used_up_ids_of_a_schema_change_are_an_error_of_the_table(shop: TestNode, made: str, rows: str) -> None:
    """SQLite reports a full disk, for which the client would try the request again."""
    table = "own" if "own" in made else "migration"
    last = f"INSERT INTO {table}(id, app) VALUES (9223372036854775807, 1)"
    with pytest.raises(ConstraintError, match=f"table {table} is AUTOINCREMENT and its ids are used up"):
        shop.prepare(made, last, f"INSERT INTO {table}(app) VALUES {rows}")
    shop.prepare(made, last)


def test_deterministic_statements_of_a_schema_change_are_accepted(shop: TestNode) -> None:
    shop.prepare(
        "ALTER TABLE migration ADD COLUMN more",
        "SELECT name FROM sqlite_master WHERE name <> 'sqlite_sequence'",
        "PRAGMA table_info(item)",
        "SELECT upper(name), sum(id), group_concat(name) FROM item GROUP BY 1",
        "SELECT abs(-1), value FROM json_each('[1, 2]')",
        "EXPLAIN SELECT 1",
        "EXPLAIN QUERY PLAN SELECT name FROM item WHERE id = 1",
        "EXPLAIN INSERT INTO migration(app, more) SELECT name, id FROM item",
    )


def test_foreign_keys_off_is_for_schema_changes(shop: TestNode) -> None:
    with pytest.raises(UnsupportedError, match="always enforced"):
        shop.prepare("PRAGMA foreign_keys = OFF", "INSERT INTO part VALUES (99, 1)")
    with pytest.raises(ConstraintError):
        shop.run("INSERT INTO part VALUES (99, 1)")


def test_too_many_statements_are_refused(tmp_path: Path) -> None:
    node = TestNode(tmp_path / "small.sqlite", limits=Limits(changes_bytes=1_000))
    with pytest.raises(TooLargeError, match="statements with their values"):
        node.prepare("CREATE TABLE t(x)", ("INSERT INTO t VALUES (?)", ["x" * 2_000]))
    node.engine.close()


def test_schema_transaction_with_invalid_sql_is_refused(shop: TestNode) -> None:
    with pytest.raises(SqlError):
        shop.prepare("ALTER TABLE migration ADD COLUMN more", "INSERT INTO nowhere VALUES (1)")
    assert shop.rows("SELECT count(*) FROM item") == [(2,)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        -5,
        -(1 << 63),
        (1 << 63) - 1,
        0.1,
        -0.0,
        1e300,
        float("-inf"),
        "it's",
        "a\0b",
        b"",
        b"\0\1",
        b"\xf0\x9f",
        "🙂",
    ],
)
def test_literal_writes_exact_values_into_the_text(shop: TestNode, value: Any) -> None:
    sql = literal("SELECT 1-?1, ?, typeof(:a), '?' -- ?\n, :a", (value, "b", value))
    (row,) = shop.rows(sql)
    assert (row[1], row[4]) == ("b", value)
    entry = decide(shop, "CREATE TABLE t(x)", ("INSERT INTO t VALUES (?)", [value]))
    assert force(shop, entry) == ""
    assert repr(shop.rows("SELECT x FROM t")) == repr([(value,)])
    assert decode_statements(entry.transaction.changes)[0] == "CREATE TABLE t(x)"


def test_long_statement_is_remembered_by_its_sent_text(shop: TestNode) -> None:
    """The node then executes the text in a worker; it ignores the text with the inserted values."""
    many = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT ?) INSERT INTO u SELECT i FROM k"
    asked = request("CREATE TABLE u(x)", (many, [10_000_000]))
    with pytest.raises(TakesLongError) as caught:
        shop.engine.execute(asked, budget_s=0.01)
    assert caught.value.sql == many
    assert shop.rows("SELECT count(*) FROM item") == [(2,)]


def test_foreign_key_that_cannot_be_checked_is_refused(shop: TestNode) -> None:
    shop.run("CREATE TABLE odd(name REFERENCES item(name))")
    with pytest.raises(SqlError, match="foreign key mismatch"):
        shop.prepare("PRAGMA foreign_keys = OFF", "ALTER TABLE part ADD COLUMN more")


HIGHEST = 2**63 - 1
DRAWS = {
    "after a given one": [f"INSERT INTO big VALUES ({HIGHEST}, 'a')", "INSERT INTO big(x) VALUES ('b'), ('c')"],
    "in one statement": [f"INSERT INTO big VALUES ({HIGHEST}, 'a'), (NULL, 'b'), (NULL, 'c')"],
    "one row": [f"INSERT INTO big VALUES ({HIGHEST}, 'a')", "INSERT INTO big(x) VALUES ('b')"],
    "where it was replaced": [f"INSERT INTO big VALUES ({HIGHEST}, 'a')", "REPLACE INTO big(x) VALUES ('a')"],
    "after an update": [
        "INSERT INTO big(x) VALUES ('a')",
        f"UPDATE big SET id = {HIGHEST}",
        "INSERT INTO big(x) SELECT 1",
    ],
    "in a trigger": [
        f"""CREATE TRIGGER draws AFTER INSERT ON item BEGIN INSERT INTO big VALUES ({HIGHEST}, 0);
        INSERT INTO big(x) VALUES (1); DELETE FROM big WHERE x = 0; END""",
        "INSERT INTO item VALUES (7, 'g')",
    ],
    "under another name": [
        f"INSERT INTO big VALUES ({HIGHEST}, 'a')",
        "ALTER TABLE big RENAME TO huge",
        "INSERT INTO huge(x) VALUES ('b'), ('c')",
    ],
    "without a key": [
        "CREATE TABLE bare(x)",
        f"INSERT INTO bare(rowid, x) VALUES ({HIGHEST}, 'a')",
        "INSERT INTO bare SELECT 1 UNION ALL SELECT 2",
    ],
}


@pytest.mark.parametrize("statements", DRAWS.values(), ids=DRAWS)
def test_statement_that_could_draw_random_ids_is_refused(shop: TestNode, statements: list[str]) -> None:
    """If the highest id is taken, SQLite draws random ids.

    Each node would draw others, and the tables of the nodes would differ.
    """
    with pytest.raises(UnsupportedError, match="draw ids at random"):
        shop.prepare("CREATE TABLE big(id INTEGER PRIMARY KEY, x UNIQUE)", *statements)


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE made AS SELECT CAST(x'ff' AS TEXT) AS a UNION ALL SELECT 'b'"],
        ["ALTER TABLE item ADD COLUMN w", "INSERT INTO item(id, w) VALUES (8, 'a'), (9, '' || x'ff')"],
        ["ALTER TABLE item ADD COLUMN w", "UPDATE item SET w = CAST(x'ff' AS TEXT) WHERE id = 2"],
        ["CREATE TABLE w(a PRIMARY KEY) WITHOUT ROWID", "REPLACE INTO w VALUES (char(55296))"],
        ["CREATE TABLE w(a, b AS (hex(a)))", "INSERT INTO w(a) VALUES ('a'), (CAST(x'ff' AS TEXT))"],
        [
            "CREATE TRIGGER t AFTER UPDATE ON item BEGIN INSERT INTO part VALUES (1, CAST(x'ff' AS TEXT)); END",
            "UPDATE item SET name = 'c'",
        ],
        ["CREATE VIRTUAL TABLE f USING fts5(a)", "INSERT INTO f VALUES (CAST(x'ff' AS TEXT))"],
    ],
)
def test_schema_change_that_writes_a_text_that_is_not_utf_8_is_refused(shop: TestNode, statements: list[str]) -> None:
    """No statement on rows could change or remove the row again, since its text cannot be captured."""
    with pytest.raises(SqlError, match="is not UTF-8; store it as a blob"):
        shop.prepare(*statements)
    shop.run("CREATE TABLE made AS SELECT name, CAST('ü' AS BLOB) AS b FROM item")
    assert shop.rows("SELECT count(*) FROM made") == [(2,)]


def test_schema_change_that_would_draw_random_ids_at_its_activation_fails(shop: TestNode, tmp_path: Path) -> None:
    """If the highest id is taken after the trial, the change fails on all nodes alike."""
    entry = decide(shop, "ALTER TABLE item ADD COLUMN w", "INSERT INTO item(name) VALUES ('x'), ('y')")
    shop.run(f"INSERT INTO item VALUES ({HIGHEST}, 'last')")
    failure = force(shop, entry)
    assert failure.startswith(OVERTAKEN)
    assert "draw ids at random" in failure
    assert shop.rows("SELECT name FROM item ORDER BY id") == [("a",), ("b",), ("last",)]
    same_in_replays(shop, tmp_path)


def test_change_succeeds_at_the_highest_id_if_no_id_is_drawn(shop: TestNode, tmp_path: Path) -> None:
    """A table with the highest id can be rebuilt, and others be written; one that counts its ids is full."""
    shop.run(f"INSERT INTO item VALUES ({HIGHEST}, 'last')")
    entry = decide(shop, *REMAKE, "INSERT INTO part(item, n) VALUES (1, 2), (1, 3)", "UPDATE item SET price = 1")
    assert force(shop, entry) == ""
    same_in_replays(shop, tmp_path)
    row = f"INSERT INTO migration(id, app) VALUES ({HIGHEST}, 'last')"
    entry = decide(shop, "CREATE TABLE more(x)", row, "INSERT INTO migration(id, app) VALUES (77, 'given')")
    assert force(shop, entry) == ""
    with pytest.raises(ConstraintError, match="ids"):
        shop.prepare("CREATE TABLE other(x)", "INSERT INTO migration(app) VALUES ('none is left')")
