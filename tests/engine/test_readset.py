"""The declared reads of statements: the shapes that must be exact, and those that must not be."""

import apsw
import pytest

from bedrockish.access_sets.catalog import read_schema
from bedrockish.access_sets.key_encoding import Spec, column_key, encode, table_key
from bedrockish.access_sets.readset import EVERYTHING, analyse
from bedrockish.api.requests import decode_results
from bedrockish_journal.model.access_set import HIGH, Range, object_range
from tests.engine.index_keys import index_prefix, prefix_range
from tests.engine.nodes import TestNode

DDL = """
CREATE TABLE accounts(id INTEGER PRIMARY KEY, owner TEXT COLLATE NOCASE, email TEXT UNIQUE, balance INTEGER);
CREATE INDEX by_owner ON accounts(owner, balance DESC);
CREATE INDEX by_half ON accounts(balance / 2);
CREATE TABLE entries(day TEXT, number INTEGER, account INTEGER REFERENCES accounts(id), PRIMARY KEY(day, number))
    WITHOUT ROWID;
CREATE INDEX by_account ON entries(account);
CREATE TABLE hits(page TEXT PRIMARY KEY, count INTEGER);
CREATE TRIGGER seen AFTER INSERT ON entries WHEN new.number > 100 BEGIN
    UPDATE hits SET count = count + 1 WHERE page = new.day;
END;
CREATE TABLE parents(id INTEGER PRIMARY KEY, note TEXT);
CREATE TABLE children(id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents(id) ON DELETE CASCADE);
"""


@pytest.fixture
def db() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
    connection.execute(DDL).fetchall()
    return connection


def reads(db: apsw.Connection, sql: str, *params: object) -> tuple[list[bytes], list[Range]]:
    return analyse(db, read_schema(db), sql, len(params)).bind(params)


OWNER = (Spec("NOCASE"), Spec(descending=True), Spec())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM accounts WHERE id = ?",
        "UPDATE accounts SET balance = balance - 1 WHERE id = ?",
        "DELETE FROM accounts WHERE id = ? RETURNING *",
    ],
)
def test_lookup_by_rowid_reads_one_point(db: apsw.Connection, sql: str) -> None:
    assert reads(db, sql, 5) == ([table_key("accounts", 5)], [])


def row_key(rowid: int) -> bytes:
    """Return the key under which a row of accounts is read by its columns."""
    return b"u:accounts\0" + encode(rowid)


def test_row_is_read_by_its_needed_columns(db: apsw.Connection) -> None:
    points, ranges = reads(db, "SELECT (SELECT balance FROM accounts WHERE id = ?)", 5)
    assert (set(points), ranges) == ({row_key(5), column_key(row_key(5), "balance")}, [])
    counted = "WITH one AS (SELECT * FROM accounts WHERE id = ?) SELECT count(*) FROM one"
    assert reads(db, counted, 5) == ([row_key(5)], [])


def test_rowid_given_as_text_is_read_as_the_same_point(db: apsw.Connection) -> None:
    points, ranges = reads(db, "SELECT * FROM accounts WHERE id = ?", "5")
    assert table_key("accounts", 5) in points
    assert ranges == []


def test_full_primary_key_is_read_as_a_point_and_a_prefix_of_it_as_a_range(db: apsw.Connection) -> None:
    key = b"t:entries\0" + encode("mon") + encode(3)
    assert reads(db, "SELECT * FROM entries WHERE day = ? AND number = ?", "mon", 3) == ([key], [])
    half = prefix_range(b"t:entries\0" + encode("mon"))
    assert reads(db, "SELECT * FROM entries WHERE day = ?", "mon") == ([], [half])


def test_equality_in_an_index_is_the_range_of_its_prefix(db: apsw.Connection) -> None:
    expected = prefix_range(index_prefix("by_owner", ["ANN"], OWNER))
    assert reads(db, "SELECT * FROM accounts WHERE owner = ?", "ann") == ([], [expected])
    assert reads(db, "SELECT * FROM accounts WHERE owner = 'Ann'") == ([], [expected])


def test_range_of_a_descending_column_is_read_with_both_ends(db: apsw.Connection) -> None:
    low = index_prefix("by_owner", ["ann", 20], OWNER)
    high = index_prefix("by_owner", ["ann", 10], OWNER) + HIGH
    sql = "SELECT * FROM accounts WHERE owner = ? AND balance BETWEEN ? AND ?"
    assert reads(db, sql, "ann", 10, 20) == ([], [(low, high)])


def test_range_of_rowids_is_read_with_both_ends(db: apsw.Connection) -> None:
    points, ranges = reads(db, "SELECT * FROM accounts WHERE id > ? AND id <= ?", 3, 9)
    assert points == []
    assert ranges == [(table_key("accounts", 3) + HIGH, table_key("accounts", 9) + HIGH)]


def test_between_on_a_descending_key_reads_the_range_between_its_ends(db: apsw.Connection) -> None:
    db.execute("CREATE TABLE down(a TEXT, PRIMARY KEY(a DESC)) WITHOUT ROWID").fetchall()
    _, ranges = reads(db, "SELECT * FROM down WHERE a BETWEEN ? AND ?", "b", "d")
    inside = b"t:down\0" + index_prefix("x", ["c"], (Spec(descending=True),))[len(b"i:x\0") :]
    assert any(low <= inside < high for low, high in ranges)


def test_an_empty_range_reads_nothing(db: apsw.Connection) -> None:
    assert reads(db, "SELECT * FROM accounts WHERE id BETWEEN ? AND ?", 9, 3) == ([], [])


def test_each_value_of_an_in_list_is_read_as_its_own_key(db: apsw.Connection) -> None:
    points, ranges = reads(db, "SELECT * FROM accounts WHERE id IN (?, ?, 3)", 1, 2)
    assert (sorted(points), ranges) == ([table_key("accounts", number) for number in (1, 2, 3)], [])
    points, ranges = reads(db, "SELECT * FROM accounts WHERE owner IN (?, 'bob')", "ann")
    assert sorted(ranges) == [prefix_range(index_prefix("by_owner", [name], OWNER)) for name in ("ann", "bob")]


def test_constants_of_64_bits_are_exact(db: apsw.Connection) -> None:
    wide = 2**53 + 1
    assert reads(db, f"SELECT * FROM accounts WHERE id = {wide}") == ([table_key("accounts", wide)], [])
    assert reads(db, "SELECT * FROM accounts WHERE id = -9223372036854775808")[0] == [table_key("accounts", -(2**63))]


def test_like_with_a_constant_prefix_reads_a_range(db: apsw.Connection) -> None:
    points, ranges = reads(db, "SELECT * FROM accounts WHERE owner LIKE 'an%'")
    assert points == []
    assert all(low.startswith(b"i:by_owner\0 ") for low, _ in ranges)


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SELECT * FROM accounts WHERE balance = ?", "t:accounts"),
        (
            "SELECT * FROM entries e JOIN hits h ON h.page = e.day || '!' WHERE e.account = ?",
            "i:sqlite_autoindex_hits_1",
        ),
        ("SELECT * FROM accounts WHERE id = (SELECT max(number) + 1 FROM entries WHERE day = ?)", "t:accounts"),
    ],
)
def test_value_computed_from_other_rows_reads_a_whole_object_and_is_reported(
    db: apsw.Connection, sql: str, name: str
) -> None:
    plan = analyse(db, read_schema(db), sql, 1)
    assert object_range(name) in plan.bind((1,))[1]
    assert name in {fallen for _, fallen in plan.fallbacks}


def test_an_index_on_an_expression_is_read_by_value(db: apsw.Connection) -> None:
    one, low, high = (index_prefix("by_half", [value], (Spec(),)) for value in (1, 3, 7))
    assert reads(db, "SELECT * FROM accounts WHERE balance / 2 = ?", 1) == ([], [prefix_range(one)])
    assert reads(db, "SELECT id FROM accounts WHERE balance / 2 BETWEEN ? AND ?", 3, 7) == ([], [(low, high + HIGH)])


def test_index_is_read_by_values_up_to_a_column_with_an_application_s_collation() -> None:
    db = apsw.Connection(":memory:")
    db.create_collation("backwards", lambda a, b: (a[::-1] > b[::-1]) - (a[::-1] < b[::-1]))
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER, twice INTEGER AS (n * 2) VIRTUAL, name TEXT)")
    db.execute("CREATE INDEX by_twice ON t(twice, lower(name))")
    db.execute("CREATE INDEX by_name ON t(n, name COLLATE backwards)")
    db.execute("CREATE INDEX odd ON t(name COLLATE backwards)")
    first = index_prefix("by_twice", [4, "ann"], (Spec(), Spec()))
    assert reads(db, "SELECT id FROM t WHERE twice = ? AND lower(name) = ?", 4, "ann") == ([], [prefix_range(first)])
    named = prefix_range(index_prefix("by_name", [1], (Spec(),)))
    assert reads(db, "SELECT id FROM t WHERE n = ? AND name = ? COLLATE backwards", 1, "x") == ([], [named])
    plan = analyse(db, read_schema(db), "SELECT id FROM t WHERE name = ? COLLATE backwards", 1)
    assert object_range("i:odd") in plan.bind(("x",))[1]
    assert "i:odd" in {name for _, name in plan.fallbacks}


def test_read_plan_includes_the_reads_of_triggers(db: apsw.Connection) -> None:
    plan = analyse(db, read_schema(db), "INSERT INTO entries VALUES (?, ?, NULL)", 2)
    assert "hits" in plan.tables
    assert plan.bind(("mon", 1))[1] == [prefix_range(index_prefix("sqlite_autoindex_hits_1", ["mon"], (Spec(),)))]


def test_insert_reads_the_keys_of_constraints_only_if_it_failed(db: apsw.Connection) -> None:
    plan = analyse(db, read_schema(db), "INSERT INTO accounts VALUES (?, ?, ?, ?)", 4)
    params = (1, "ann", "a@b", 0)
    assert plan.bind(params) == ([], [])
    points, ranges = plan.bind_failed(params)
    assert points == [table_key("accounts", 1)]
    assert prefix_range(index_prefix("sqlite_autoindex_accounts_1", ["a@b"], (Spec(),))) in ranges


def test_insert_or_ignore_reads_the_keys_of_possible_conflicts(db: apsw.Connection) -> None:
    points, ranges = reads(db, "INSERT OR IGNORE INTO accounts VALUES (?, ?, ?, ?)", 1, "ann", "a@b", 0)
    assert points == [table_key("accounts", 1)]
    assert prefix_range(index_prefix("sqlite_autoindex_accounts_1", ["a@b"], (Spec(),))) in ranges


def test_foreign_keys_and_their_actions_are_left_to_the_rows(db: apsw.Connection) -> None:
    assert reads(db, "INSERT INTO children VALUES (?, ?)", 1, 2) == ([], [])
    plan = analyse(db, read_schema(db), "DELETE FROM parents WHERE id = ?", 1)
    assert plan.bind((4,)) == ([table_key("parents", 4)], [])
    assert plan.tables >= {"parents", "children"}
    assert object_range("t:children") in plan.bind_failed((4,))[1]


def test_read_plan_is_readonly_for_queries_only(db: apsw.Connection) -> None:
    schema = read_schema(db)
    assert analyse(db, schema, "SELECT 1", 0).readonly
    assert analyse(db, schema, "SELECT * FROM accounts", 0).readonly
    assert not analyse(db, schema, "DELETE FROM accounts WHERE id = ?", 1).readonly


def test_unknown_statements_read_everything(db: apsw.Connection) -> None:
    db.execute("CREATE VIRTUAL TABLE words USING fts5(text)").fetchall()
    for sql in ("SELECT * FROM words WHERE words MATCH 'a'", "SELECT * FROM pragma_table_info('accounts')", "VACUUM"):
        plan = analyse(db, read_schema(db), sql, 0)
        assert set(plan.bind(())[1]) >= set(EVERYTHING), sql
        assert plan.fallbacks


def test_table_valued_functions_read_no_keys(db: apsw.Connection) -> None:
    assert reads(db, "SELECT value FROM json_each(?)", "[1]") == ([], [])


def test_parameters_that_no_column_can_hold_read_the_whole_object(db: apsw.Connection) -> None:
    for value in (2**70, object()):
        assert reads(db, "SELECT * FROM accounts WHERE id = ?", value) == ([], [object_range("t:accounts")])


def test_parameter_used_twice_gives_the_same_point(db: apsw.Connection) -> None:
    points, _ = reads(db, "SELECT * FROM accounts WHERE id = :id OR id = :id + 0 OR id = :other", 4, 6)
    assert {table_key("accounts", 4), table_key("accounts", 6)} <= set(points) or points == []


def test_an_unknown_opcode_reads_everything(db: apsw.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedrockish.access_sets.cursor_ranges.KNOWN", frozenset({"Init", "Transaction", "OpenRead"}))
    assert set(reads(db, "SELECT * FROM accounts WHERE id = 1")[1]) == set(EVERYTHING)


def test_blob_literal_that_is_not_text_hides_no_reads(db: apsw.Connection) -> None:
    """SQLite prints such a blob as malformed text. In a statement that is harmless; in a definition it would break the
    schema.
    """
    points, ranges = reads(db, "SELECT x'ff00', balance FROM accounts WHERE id = 5")
    assert (set(points), ranges) == ({row_key(5), column_key(row_key(5), "balance")}, [])
    deleted = "DELETE FROM accounts WHERE 1 AND id = 5 RETURNING X'FE'"
    assert reads(db, deleted) == ([table_key("accounts", 5)], [])
    _, ranges = reads(db, "SELECT '''x''ff''', id FROM accounts WHERE owner = x'ff' AND email = 'x''ff'")
    assert ranges
    db.execute("CREATE TABLE marked(id INTEGER PRIMARY KEY, mark DEFAULT x'ff')")
    plan = analyse(db, read_schema(db), "INSERT INTO marked(id) VALUES (5)", 0)
    assert plan.bind(()) == ([], list(EVERYTHING))
    assert plan.fallbacks == (("blob in a definition", "everything"),)
    assert "marked" in plan.tables


def test_analysis_of_a_long_in_list_takes_linear_time(node: TestNode) -> None:
    """With thousands of parameters after IN, each is a read key, and the analysis takes linear time.

    The test uses no clock: a comparison of all pairs would not end in time.
    """
    node.run("CREATE TABLE many(id INTEGER PRIMARY KEY, v TEXT)")
    node.run("CREATE INDEX many_v ON many(v)")
    node.run("INSERT INTO many VALUES (7, 'a'), (8, 'b')")
    values = list(range(8_000))
    marks = ", ".join("?" * len(values))
    prepared = node.prepare((f"SELECT v FROM many WHERE id IN ({marks})", values))
    assert decode_results(prepared.result)[0].rows == [("a",), ("b",)]
    (found,) = node.run((f"SELECT id FROM many WHERE v IN ({marks})", [*map(str, values[1:]), "b"]))
    assert found.rows == [(8,)]
    (found,) = node.run((f"SELECT ? IN ({marks})", [5, *values]))
    assert found.rows == [(1,)]
    node.run((f"UPDATE many SET v = 'c' WHERE id IN ({marks})", values))
    (found,) = node.run("SELECT v FROM many")
    assert [v for (v,) in found.rows] == ["c", "c"]
