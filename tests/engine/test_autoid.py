"""Rows without an id get a cluster-wide unique one, and otherwise equal the rows of plain SQLite for the same text."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from bedrockish.core.protocol.records import Vote
from bedrockish.engine.statements.insert_rewriter import rewrite
from bedrockish.engine.statements.rowid_allocator import stripe
from bedrockish.errors import ConstraintError, SqlError, UnsupportedError
from bedrockish_journal.model.access_set import conflict
from bedrockish_journal.model.changes import decode_changes
from bedrockish_journal.model.membership import Member, Membership, pack_membership
from bedrockish_journal.model.transaction import MEMBERS, Transaction, Txid
from tests.engine.conftest import MakeNode
from tests.engine.nodes import Sql, TestNode, ids_like_sqlite

SCHEMA = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT UNIQUE, n DEFAULT 7)",
    "CREATE TABLE a(x, id INTEGER PRIMARY KEY AUTOINCREMENT)",
    'CREATE TABLE "odd \'one"(x, "rowid" TEXT, y DEFAULT 2)',
    "CREATE TABLE made(x, v AS (x || '!'), id INTEGER PRIMARY KEY, s AS (x || '?') STORED, y)",
    "CREATE TABLE w(id INTEGER, x, PRIMARY KEY(id)) WITHOUT ROWID",
    "CREATE TABLE log(what)",
    "CREATE TABLE watched(id INTEGER PRIMARY KEY, x)",
    "CREATE TRIGGER watch BEFORE INSERT ON watched BEGIN INSERT INTO log(rowid, what) VALUES (new.x, 'new'); END",
    "CREATE TABLE again(id INTEGER PRIMARY KEY, x)",
    "CREATE TRIGGER once_more AFTER INSERT ON again WHEN new.x > 0 BEGIN INSERT INTO again(x) VALUES (0); END",
    "CREATE TABLE moved(id INTEGER PRIMARY KEY, x)",
    "CREATE TRIGGER mover AFTER INSERT ON moved BEGIN UPDATE moved SET id = id + 1 WHERE id = new.id; END",
    "CREATE TABLE stamped(id INTEGER PRIMARY KEY, x)",
    "CREATE TRIGGER stamp AFTER INSERT ON stamped BEGIN UPDATE stamped SET x = x || '.' WHERE id = new.id; END",
    "CREATE VIEW seen AS SELECT name FROM t",
    "CREATE TRIGGER into_seen INSTEAD OF INSERT ON seen BEGIN INSERT INTO t(name) VALUES (new.name); END",
)
SEED = "INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2)"


@pytest.fixture
def full(node: TestNode) -> TestNode:
    node.run(*SCHEMA)
    node.run(SEED)
    return node


def rewritten(node: TestNode, sql: str) -> str | None:
    """Return the text that the node runs instead of a text that SQLite accepts."""
    executor = node.engine._executor
    piece = executor.texts._guard.compile(sql)
    auto = executor.texts.with_ids(piece)
    return None if auto is None else auto.sql


ALIKE: list[Sql] = [
    "INSERT INTO t(name) VALUES ('x')",
    "INSERT INTO t(name) VALUES ('x'), ('y'), ('z') RETURNING *",
    "insert into main . [t] as q (name, n) values /* ( */ ('x)', '(') -- and so on",
    "INSERT INTO t VALUES (NULL, 'x', 5)",
    "INSERT INTO t VALUES (NULL, 'x', 5), (9, 'y', 5), (NULL, 'z', 5);",
    "INSERT INTO t(n, id, name) VALUES (5, NULL, 'x'), (5, -9, 'y'), (5, '12', 'z')",
    ("INSERT INTO t VALUES (?, ?, ?), (?, ?, ?)", (None, "x", 5, 9, "y", 5)),
    ("INSERT INTO t VALUES (?, ?, ?), (?, ?, ?)", (9, "x", 5, None, "y", 5)),
    ("INSERT INTO t VALUES (?3, ?1, ?2)", ("x", 5, None)),
    ("INSERT INTO t VALUES (:id, :name, :id)", {"id": None, "name": "x"}),
    ("INSERT INTO t(rowid, name) VALUES (nullif(?, 3), ?) RETURNING rowid, *", (3, "x")),
    ("INSERT INTO t(oid, name) VALUES (nullif(?, 3), ?) RETURNING oid", (4, "x")),
    "INSERT INTO t DEFAULT VALUES RETURNING id, n",
    'INSERT INTO"t"DEFAULT VALUES',
    "INSERT INTO t(name, n) SELECT name || '!', n FROM t ORDER BY n DESC",
    "INSERT INTO t(name, n) SELECT n, n FROM t ORDER BY n DESC LIMIT 1 RETURNING name",
    "INSERT INTO t(name) SELECT 'x' UNION ALL SELECT 'y' UNION ALL VALUES ('z')",
    "INSERT INTO t(name) VALUES ('x'), ('y') UNION ALL SELECT 'z'",
    "INSERT INTO t SELECT NULL, name || '!', n FROM t ORDER BY id DESC",
    "INSERT INTO t SELECT DISTINCT NULL AS id, 'x', 7 FROM t",
    ("INSERT INTO t SELECT ?, name || ?, n FROM t", (None, "!")),
    "INSERT INTO t SELECT NULL, 'x', 1 UNION ALL SELECT 12, 'y', 1 UNION ALL SELECT NULL, 'z', 1",
    "INSERT INTO t SELECT id + 5, name || '!', n FROM t",
    "WITH c(v) AS (VALUES ('x'), ('y')) INSERT INTO t(name) SELECT v FROM c",
    "WITH RECURSIVE c(v) AS NOT MATERIALIZED (SELECT 1 UNION SELECT v + 1 FROM c LIMIT 9), d AS MATERIALIZED (SELECT 5)"
    " INSERT INTO t(name) WITH e AS (SELECT v FROM c) SELECT v FROM e ORDER BY v DESC RETURNING name",
    "WITH c AS (SELECT 'x' AS v) INSERT INTO t(name) VALUES ((SELECT v FROM c))",
    "INSERT OR IGNORE INTO t(name) VALUES ('one'), ('x')",
    "INSERT OR REPLACE INTO t(name) VALUES ('one')",
    "REPLACE INTO t(name, n) VALUES ('two', 1), ('x', 1)",
    "INSERT OR FAIL INTO t(name) VALUES ('x')",
    "INSERT INTO t(name) VALUES ('one'), ('x') ON CONFLICT(name) DO UPDATE SET n = excluded.name || n RETURNING n",
    "INSERT INTO t(name) VALUES ('one') ON CONFLICT DO NOTHING",
    "INSERT INTO t(name) SELECT 'one' WHERE true ON CONFLICT(name) DO UPDATE SET n = n + 1",
    "INSERT INTO t(name) SELECT one.name || 'x' FROM t AS one JOIN t AS two ON one.id = two.n RETURNING name",
    "INSERT INTO a(x) VALUES (1), (2)",
    "INSERT INTO a VALUES (1, NULL)",
    "INSERT INTO a DEFAULT VALUES",
    'INSERT INTO "odd \'one"(x) VALUES (1), (2) RETURNING rowid',
    "INSERT INTO [odd 'one] VALUES (1, 2, 3)",
    "INSERT INTO `odd 'one` DEFAULT VALUES",
    'INSERT INTO "odd \'one" SELECT 1, 2, 3 UNION ALL SELECT 4, 5, 6',
    'INSERT INTO "odd \'one"("rowid", x) VALUES (\'text\', 1)',
    "INSERT INTO made VALUES ('x', NULL, 'y')",
    "INSERT INTO made(y, x) VALUES (1, 2)",
    "INSERT INTO w VALUES (1, 2)",
    "INSERT INTO watched(x) VALUES (1)",
    "INSERT INTO watched(x) VALUES (1), (2)",
    ("INSERT INTO watched VALUES (?, ?)", (None, 1)),
    "INSERT INTO watched SELECT NULL, 5",
    "INSERT INTO again(x) VALUES (1), (0), (1)",
    "INSERT INTO moved(x) VALUES (1)",
    "INSERT INTO stamped(x) VALUES ('a'), ('b')",
    "INSERT INTO seen VALUES ('x')",
]


# Python 3.12 takes ?1 of sqlite3 for a name.
@pytest.mark.filterwarnings("ignore:Binding:DeprecationWarning")
@pytest.mark.parametrize("statement", ALIKE, ids=str)
def test_automatic_ids_match_plain_sqlite(full: TestNode, statement: Sql) -> None:
    """With ids as in SQLite the tables are equal to the last byte; with stripes, all columns but the ids are equal."""
    ids_like_sqlite(full)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as alone:
        for text in (*SCHEMA, SEED):
            alone.execute(text)
        sql, params = (statement, ()) if isinstance(statement, str) else statement

        (result,) = full.run(statement)
        cursor = alone.execute(sql, params)

        assert result.rows == cursor.fetchall()
        if "IGNORE" in sql or "ON CONFLICT" in sql:  # a row that is not inserted after all has its id for nothing
            query = "SELECT name, n, id > 2 FROM t ORDER BY id"
            assert full.rows(query) == alone.execute(query).fetchall()
            return
        assert full.tables() == _contents(alone)
        if "seen" not in sql:
            assert result.lastrowid in (cursor.lastrowid, None)  # None for a table WITHOUT ROWID


def _contents(alone: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for name, without_rowid in alone.execute(
        "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name != 'sqlite_schema'"
    ).fetchall():
        rowid = "" if without_rowid else "rowid, "
        quoted = name.replace('"', '""')
        found[name] = sorted(alone.execute(f'SELECT {rowid}* FROM "{quoted}"').fetchall(), key=repr)
    found["sqlite_sequence"] = sorted(row[1:] for row in found["sqlite_sequence"] if row[2] != 0)
    return found


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (5, 'x', 1)",
        "INSERT INTO t(id, name) VALUES (-5, 'x'), (+7, 'y'), (x'', 'z')",
        "INSERT INTO t SELECT * FROM t",
        "INSERT INTO t SELECT id, name, n FROM t",
        "INSERT INTO t SELECT coalesce(NULL, 5), 'x', 1",
        "INSERT INTO w VALUES (1, 2)",
        "INSERT INTO seen VALUES ('x')",
        "INSERT INTO again(x) VALUES (1)",
        "INSERT INTO moved(x) VALUES (1)",
        "INSERT INTO t(id, rowid, name) VALUES (NULL, NULL, 'x')",
        "UPDATE t SET n = 1",
        "DELETE FROM t",
    ],
)
def test_inserts_that_need_no_id_are_left_unchanged(full: TestNode, sql: str) -> None:
    assert rewritten(full, sql) is None


def test_texts_that_sqlite_would_refuse_are_not_rewritten(full: TestNode) -> None:
    tables = full.engine._executor._tables.by_name
    for sql in (
        "",
        "INSERT",
        "INSERT OR",
        "INSERT OR x INTO t",
        "INSERT INTO",
        "INSERT INTO t",
        "INSERT INTO t(",
        "WITH",
    ):
        assert rewrite(sql, tables) is None
    for rest in ("(name)", "(", "(name,) VALUES (1)", "(1) VALUES (1)", "VALUES", "VALUES ()", "DEFAULT", "VALUES (1"):
        assert rewrite(f"INSERT INTO t {rest}", tables) is None
    for rest in ("VALUES (1))", "VALUES (NULL); ;", "(id, name) VALUES (NULL)", "(name) DEFAULT VALUES", "VALUES ('"):
        assert rewrite(f"INSERT INTO t{rest}", tables) is None
    assert rewrite("INSERT INTO temp.t VALUES (NULL, 1, 2)", tables) is None


@pytest.mark.parametrize("statement", ALIKE, ids=str)
def test_rewriter_assigns_ids_in_the_documented_statements(full: TestNode, statement: Sql) -> None:
    sql = statement if isinstance(statement, str) else statement[0]
    left_alone = ("INTO w ", "INTO again", "INTO moved", "INTO seen", "INTO t SELECT id + 5")
    assert (rewritten(full, sql) is None) is any(part in sql for part in left_alone)


def test_ids_rise_in_the_order_of_the_rows(full: TestNode) -> None:
    full.run(
        "INSERT INTO t(name, n) SELECT value, value % 7 FROM json_each('[3, 1, 2, 5, 4, 9, 8]') ORDER BY value % 7"
    )
    assert full.rows("SELECT n FROM t WHERE id > 2 ORDER BY id") == [(1,), (1,), (2,), (2,), (3,), (4,), (5,)]


def test_rewritten_insert_keeps_the_rest_of_its_text(full: TestNode) -> None:
    assert (
        rewritten(full, "insert  into t( name )values( ? ) -- mine")
        == "insert  into t( name, \"id\" )values( ?, bedrockish_id('t') ) -- mine"
    )


def test_a_given_id_needs_no_rewriting(full: TestNode) -> None:
    piece = full.engine._executor.texts._guard.compile("INSERT INTO t VALUES (?2, ?1, 1), (?4, ?3, 1)")
    piece.with_ids = full.engine._executor.texts.with_ids(piece)
    assert piece.text(("x", 5, "y", 6)) == piece.sql
    assert "bedrockish_id" in piece.text(("x", 5, "y", None))


def test_too_many_columns_are_left_to_sqlite(node: TestNode) -> None:
    columns = [f"c{number}" for number in range(2000)]
    node.run(f"CREATE TABLE wide({', '.join(columns)})")
    assert node.run("INSERT INTO wide(c0) VALUES (1)")[0].lastrowid == 1


# -- who gives what ----------------------------------------------------------------------------------------------------


def test_each_node_has_its_own_stripe_of_ids() -> None:
    for count in (1, 3, 16, 17, 40):
        nodes = [f"n{number}" for number in range(count)]
        found = [stripe(node, nodes) for node in nodes]
        assert len(set(found)) == count
        assert {stripes for stripes, _ in found} == {max(16, 1 << (count - 1).bit_length())}
        assert all(1 <= own <= stripes for stripes, own in found)


def ids_of(node: TestNode, *statements: Sql) -> list[int]:
    prepared = node.prepare(*statements)
    return [change.rowid for change in decode_changes(prepared.changes) if change.rowid is not None]


def test_nodes_and_transactions_in_flight_use_different_ids(make_node: MakeNode) -> None:
    first, second = make_node("A"), make_node("B")
    first.run(*SCHEMA)
    second.apply(first.entries[-1])

    mine = [first.prepare(f"INSERT INTO a(x) VALUES ({n}), ({n})") for n in range(20)]
    yours = [second.prepare(f"INSERT INTO a(x) VALUES ({n}), ({n})") for n in range(20)]

    ids = [change.rowid or 0 for made in mine + yours for change in decode_changes(made.changes)]
    assert len(set(ids)) == 80
    assert sorted(ids)[:4] == [1, 2, 17, 18]
    access_sets = [made.access_set for made in mine + yours]
    assert not any(conflict(one, other) for n, one in enumerate(access_sets) for other in access_sets[:n])


def test_ids_are_above_those_in_the_table_and_of_other_nodes(full: TestNode) -> None:
    full.run("INSERT INTO t VALUES (1000, 'far', 1)")
    assert ids_of(full, "INSERT INTO t(name) VALUES ('x')") == [1009]
    assert ids_of(full, "INSERT INTO t VALUES (2000, 'x', 1)", "INSERT INTO t(name) VALUES ('y')") == [2000, 2001]


def test_statement_with_given_and_missing_ids_assigns_no_id_twice(full: TestNode) -> None:
    ids = ids_of(full, "INSERT INTO t SELECT NULL, 'x', 1 UNION ALL SELECT 33, 'y', 1 UNION ALL SELECT NULL, 'z', 1")
    assert ids == [17, 33, 49]


@pytest.mark.parametrize("given", ["17", "'17'", "'17.0'", "17.0", "' 1.7e1 '"])
def test_given_id_of_another_type_is_converted(full: TestNode, given: str) -> None:
    assert ids_of(full, f"INSERT INTO t VALUES ({given}, 'x', 1), (NULL, 'y', 1)") == [17, 33]


def test_an_id_is_not_given_again_when_its_transaction_failed(full: TestNode) -> None:
    with pytest.raises(ConstraintError):
        full.prepare("INSERT INTO a(x) VALUES (1)", "INSERT INTO t(name) VALUES ('one')")
    assert ids_of(full, "INSERT INTO a(x) VALUES (1)") == [17]


def test_autoincrement_never_gives_an_id_of_a_deleted_row(full: TestNode, make_node: MakeNode) -> None:
    full.run("INSERT INTO a(x, id) VALUES (1, 100)")
    full.run("DELETE FROM a")
    full.save()
    full.engine.close()
    again = make_node("A", path=full.path)
    assert ids_of(again, "INSERT INTO a(x) VALUES (1)") == [113]


def test_restarted_node_continues_above_ids_it_voted_for(full: TestNode, make_node: MakeNode) -> None:
    prepared = full.prepare("INSERT INTO t(name) VALUES ('x'), ('y')")
    entry = full.entry(prepared)
    body: Transaction = entry.transaction
    full.engine.votes.save(Vote(body.txid, body, True, 0, None))
    full.engine.votes.save(Vote(Txid(99, "B"), None, False, 0, None))
    full.save()
    full.engine.close()

    again = make_node("A", path=full.path)

    assert ids_of(again, "INSERT INTO t(name) VALUES ('z')") == [49]


def test_a_changed_membership_gives_new_stripes(full: TestNode) -> None:
    prepared = full.prepare(SEED.replace("1,", "5,").replace("2,", "6,").replace("one", "5").replace("two", "6"))
    membership = Membership(1, {name: Member(name, f"h:{name}") for name in "0A"})
    entry = full.entry(prepared)
    changed = Transaction(
        *(Txid(9, "A"), prepared.base, 0, prepared.schema, 1, "m", "serializable", MEMBERS),
        prepared.access_set,
        pack_membership(membership),
        prepared.result,
    )
    full.apply(type(entry)(entry.leader, entry.tick, entry.after, changed, None, entry.prev))
    assert ids_of(full, "INSERT INTO a(x) VALUES (1)") == [2]


def test_id_after_the_highest_is_random_and_refused_with_autoincrement(full: TestNode) -> None:
    last = (1 << 63) - 1
    full.run(f"INSERT INTO t VALUES ({last}, 'x', 1)")
    full.run(f"INSERT INTO a(id) VALUES ({last})")
    (rowid,) = ids_of(full, "INSERT INTO t(name) VALUES ('y')")
    assert 0 < rowid < last
    with pytest.raises(ConstraintError, match="used up"):
        full.run("INSERT INTO a(x) VALUES (1)")
    full.run("CREATE TRIGGER also AFTER INSERT ON log BEGIN INSERT INTO a(x) VALUES (1); END")
    with pytest.raises(ConstraintError, match="used up"):  # SQLite says that the disk is full
        full.run("INSERT INTO log VALUES (1)")
    assert full.rows("SELECT count(*) FROM a") == [(1,)]


@pytest.mark.parametrize(
    "texts",
    [
        ["SELECT bedrockish_id('t')"],
        ["INSERT INTO t(id, name) VALUES (BEDROCKISH_ID('t'), 'x')"],
        ["CREATE TABLE bad(x DEFAULT (bedrockish_id('t')))", "INSERT INTO bad DEFAULT VALUES"],
        [
            "CREATE TRIGGER bad AFTER INSERT ON log BEGIN INSERT INTO t(id) VALUES (bedrockish_id('t')); END",
            "INSERT INTO log VALUES (1)",
        ],
    ],
)
def test_clients_cannot_call_the_id_function(full: TestNode, texts: list[str]) -> None:
    def run() -> None:
        for text in texts:
            full.run(text)

    with pytest.raises((UnsupportedError, SqlError), match="bedrockish_id"):
        run()


def test_reads_of_a_rewritten_insert_are_those_of_its_original_text(full: TestNode) -> None:
    for sql in (
        "INSERT INTO t(name) VALUES (?)",
        "INSERT OR IGNORE INTO t VALUES (NULL, ?, 1)",
        "INSERT INTO a(x) VALUES (?)",
    ):
        access_set = full.prepare((sql, ("x",))).access_set
        assert not [one for one in access_set.read_ranges if one[0].startswith((b"t:t\0", b"t:a\0"))]
        assert not [point for point in access_set.read_points if point.startswith(b"t:")]


def test_error_for_a_rewritten_insert_shows_the_clients_text(full: TestNode) -> None:
    sql = "INSERT INTO t(name) VALUES ('one')"
    with pytest.raises(ConstraintError) as caught:
        full.run(sql)
    assert caught.value.details["sql"] == sql


def test_insert_select_reads_all_rows_before_it_assigns_ids(full: TestNode) -> None:
    """For each subquery, ids follow its ORDER BY, and a trigger does not run it twice."""
    db = full.engine._db
    for sql in (
        "INSERT INTO t(name) SELECT name || 'x' FROM t ORDER BY name DESC",
        "INSERT INTO t SELECT NULL, name || 'x', 1 FROM t",
        "INSERT INTO watched(x) VALUES (1)",
        "INSERT INTO watched VALUES (NULL, 1)",
    ):
        text = rewritten(full, sql)
        assert text is not None
        plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + text).fetchall()]
        assert "MATERIALIZE bedrockish_rows" in plan, plan


def test_only_leased_ids_are_taken_back(make_node: MakeNode) -> None:
    """If the greatest id counted as taken back, for example, the next INSERT would use it and leave no higher id."""
    node = make_node()
    node.run("CREATE TABLE item(id INTEGER PRIMARY KEY, x)")
    ids = node.engine._executor._ids
    leased = ids.lease(node.engine._db, "item", 0, 3)
    ids.take_back("item", [2**63 - 1, leased[-1] + 1, -1, *leased])
    ids.take_back("absent", [1])
    ids.take_back("item", leased)  # as a repeated call does
    assert list(ids._back["item"]) == leased[::-1]
    node.run("INSERT INTO item(x) VALUES (1), (2), (3), (4)")
    found = [rowid for (rowid,) in node.engine._db.execute("SELECT id FROM item ORDER BY id")]
    assert found[:3] == leased
    assert found[3] < 100
    assert "absent" not in ids._back


def test_ids_of_one_statement_rise_even_if_ids_were_returned_in_another_order(make_node: MakeNode) -> None:
    """SQLAlchemy gives the ids of an INSERT of many objects to the objects in this order."""
    node = make_node()
    node.run("CREATE TABLE item(id INTEGER PRIMARY KEY, x)")
    ids = node.engine._executor._ids
    leased = ids.lease(node.engine._db, "item", 0, 4)
    ids.take_back("item", leased[:2])
    ids.take_back("item", leased[2:])
    node.run("INSERT INTO item(x) VALUES (1), (2), (3), (4), (5)")
    found = [x for (x,) in node.engine._db.execute("SELECT x FROM item ORDER BY id")]
    assert found == [1, 2, 3, 4, 5]
