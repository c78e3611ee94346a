"""The settings of a session at a node's engine give the rows of SQLite, and have no effect on later statements."""

import random
from collections.abc import Iterator
from contextlib import closing

import apsw
import pytest

from bedrockish.errors import BedrockishError, SqlError, UnsupportedError
from bedrockish.sqltext.session_settings import LIKE, TRIGGERS, Settings, with_settings
from bedrockish_journal.model.transaction import ROWS
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode

SENSITIVE, RECURSIVE = frozenset({LIKE}), frozenset({TRIGGERS})
WORDS = ("a", "A", "ab", "Ab", "aB", "AB", "b", "", "a%", "A_", "ä", "Ä", "abc", None, 1, 2.5)
PATTERNS = ("a%", "A%", "_b", "%B%", "ab", "a\\%", "A\\_%", "%", "", "ä%", "1%", None)


@pytest.fixture
def plain() -> Iterator[apsw.Connection]:
    """SQLite itself, with foreign keys as at a node."""
    with closing(apsw.Connection(":memory:")) as db:
        db.pragma("foreign_keys", 1)
        yield db


def outcome(node: TestNode, sql: str, params: object = ()) -> object:
    try:
        return sorted(node.rows(sql, params), key=repr)
    except BedrockishError as error:
        return error.message.partition(":")[0].lower()


def expected(db: apsw.Connection, sql: str, params: tuple[object, ...] = ()) -> object:
    try:
        return sorted(db.execute(sql, params).fetchall(), key=repr)
    except apsw.Error as error:
        return str(error).partition(":")[0].lower()


def like_statement(luck: random.Random) -> tuple[str, tuple[object, ...]]:
    column, pattern = luck.choice(("n", "c", "x")), luck.choice(PATTERNS)
    given, params = luck.choice((("?", (pattern,)), (apsw.format_sql_value(pattern), ())))
    compared = luck.choice(
        (
            f"{column} LIKE {given}",
            f"{column} NOT LIKE {given}",
            f"{column} LIKE {given} ESCAPE '\\'",
            f"like({given}, {column})",
            f"{column} GLOB {given}",
            f"EXISTS (SELECT 1 FROM t AS u WHERE u.{column} LIKE t.x || {given})",
        )
    )
    text = luck.choice(
        (
            "SELECT id, {0} FROM t",
            "SELECT id FROM t WHERE {0}",
            "SELECT id FROM seen WHERE {0}",
            "UPDATE t SET x = x || 'z' WHERE {0} RETURNING id",
            "DELETE FROM t WHERE id > 20 AND {0}",
            "INSERT INTO t(id, n) SELECT id + 40, n FROM t WHERE id < 20 AND {0}",
        )
    )
    return text.format(compared), params


@pytest.mark.parametrize("seed", range(6))
def test_case_sensitive_like_works_as_in_sqlite(node: TestNode, plain: apsw.Connection, seed: int) -> None:
    """The result is the same with and without an index, by a view and in a trigger, in turn with sessions without the
    setting.
    """
    luck = random.Random(seed)
    schema = (
        "CREATE TABLE t(id INTEGER PRIMARY KEY, n TEXT COLLATE NOCASE, c TEXT, x)",
        "CREATE INDEX by_n ON t(n)",
        "CREATE INDEX by_c ON t(c)",
        "CREATE TABLE said(what)",
        "CREATE VIEW seen AS SELECT * FROM t WHERE n LIKE 'A%'",
        "CREATE TRIGGER says AFTER UPDATE ON t WHEN new.n LIKE 'a%' BEGIN INSERT INTO said VALUES (new.x); END",
    )
    node.run(*schema)
    for sql in schema:
        plain.execute(sql)
    for number in range(30):
        row = (number, *(luck.choice(WORDS) for _ in range(3)))
        node.run(("INSERT INTO t VALUES (?, ?, ?, ?)", row))
        plain.execute("INSERT INTO t VALUES (?, ?, ?, ?)", row)
    for _ in range(60):
        sql, params = like_statement(luck)
        settings: Settings = luck.choice((SENSITIVE, SENSITIVE | RECURSIVE, frozenset()))
        plain.execute(f"PRAGMA case_sensitive_like = {int(LIKE in settings)}")
        assert outcome(node, with_settings(sql, settings), params) == expected(plain, sql, params), (sql, params)
    plain.execute("PRAGMA case_sensitive_like = 0")
    for sql in ("SELECT * FROM t", "SELECT rowid, what FROM said", "SELECT 'a' LIKE 'A'"):
        assert outcome(node, sql) == expected(plain, sql)


TRIGGERED = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, u UNIQUE, d INT)",
    "CREATE TABLE said(what)",
    "CREATE TABLE kids(id INTEGER PRIMARY KEY, p REFERENCES t(id) ON DELETE CASCADE)",
)
BODIES = (
    "INSERT INTO said VALUES (old.id || '{0}')",
    "INSERT OR REPLACE INTO t VALUES (old.id + 1, old.u, old.d - 1)",
    "UPDATE t SET d = d - 1 WHERE id = old.id + 1 AND d > 0",
    "DELETE FROM t WHERE d = old.d - 1",
    "UPDATE kids SET p = NULL WHERE p = old.id",
    "DELETE FROM kids WHERE id = old.id",
)


def triggers(luck: random.Random) -> list[str]:
    found = []
    for number in range(luck.randrange(1, 5)):
        event = luck.choice(("DELETE", "UPDATE", "INSERT", "DELETE"))
        when = luck.choice(("", "WHEN old.d > 0", "WHEN (SELECT count(*) FROM said) < 30"))
        bodies = "; ".join(luck.sample(BODIES, luck.randrange(1, 3))).replace("{0}", f"-{number}")
        sql = f"CREATE TRIGGER r{number} {luck.choice(('BEFORE', 'AFTER'))} {event} ON t {when} BEGIN {bodies}; END"
        found.append(sql.replace("old.", "new.") if event == "INSERT" else sql)
    return found


def firing_statement(luck: random.Random) -> str:
    one, two, three = (luck.randrange(8) for _ in range(3))
    return luck.choice(
        (
            f"REPLACE INTO t VALUES ({one}, {two}, {three})",
            f"INSERT OR IGNORE INTO t VALUES ({one}, {two}, {three})",
            f"INSERT INTO t VALUES ({one}, {two}, {three}) ON CONFLICT DO UPDATE SET d = d + 1",
            f"UPDATE OR REPLACE t SET u = {one} WHERE id >= {two}",
            f"UPDATE t SET d = {one} WHERE id = {two}",
            f"DELETE FROM t WHERE id = {one}",
            f"INSERT OR IGNORE INTO kids VALUES ({one}, {two})",
            f"SELECT * FROM t WHERE id > {one}",
        )
    )


@pytest.mark.parametrize("seed", range(12))
def test_triggers_fire_themselves_as_in_sqlite(make_node: MakeNode, plain: apsw.Connection, seed: int) -> None:
    """REPLACE fires delete triggers, too; a node that applies the rows has the same tables."""
    luck = random.Random(seed)
    node, other = make_node("A"), make_node("B")
    schema = [*TRIGGERED, *triggers(luck)]
    node.run(*schema)
    for sql in schema:
        plain.execute(sql)
    for _ in range(50):
        sql = firing_statement(luck)
        settings: Settings = luck.choice((RECURSIVE, RECURSIVE, frozenset()))
        plain.execute(f"PRAGMA recursive_triggers = {int(TRIGGERS in settings)}")
        assert outcome(node, with_settings(sql, settings)) == expected(plain, sql), (schema, sql)
        for table in ("t", "said", "kids"):
            assert outcome(node, f"SELECT * FROM {table}") == expected(plain, f"SELECT * FROM {table}"), (schema, sql)
    for entry in node.entries:
        other.apply(entry)
    assert other.digest() == node.digest()


def test_recursive_triggers_are_not_switched_without_triggers(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch would make SQLite compile the other clients' statements again."""
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
    monkeypatch.setattr("bedrockish.access_sets.settings_in_force.switch", None)  # a call would fail
    both = SENSITIVE | RECURSIVE
    node.run(with_settings("REPLACE INTO t VALUES (1, 'a')", both), with_settings("SELECT * FROM t", both))
    assert node.rows(with_settings("SELECT name FROM sqlite_schema", both)) == [("t",)]
    node.run("CREATE TRIGGER says AFTER DELETE ON t BEGIN SELECT 1; END")
    with pytest.raises(TypeError):
        node.run(with_settings("REPLACE INTO t VALUES (1, 'b')", both))


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE t(x, CHECK (x LIKE 'a%'))",
        "CREATE TABLE t(x, y AS (x LIKE 'a%'))",
        "CREATE TABLE t(x); CREATE INDEX some ON t(x) WHERE x LIKE 'a%'",
        "CREATE TABLE t(x); CREATE INDEX what ON t(like('a%', x))",
    ],
)
def test_case_sensitive_like_is_refused_if_a_used_definition_has_like(node: TestNode, definition: str) -> None:
    node.run(*definition.split("; "))
    node.run(with_settings("INSERT INTO t(x) VALUES ('ABC')", SENSITIVE))
    assert node.rows(with_settings("SELECT x FROM t", SENSITIVE)) == [("ABC",)]
    with pytest.raises(UnsupportedError, match=r"so does the (table|index) (t|some|what)"):
        node.run(with_settings("SELECT x FROM t WHERE x LIKE 'a%'", SENSITIVE))


def test_a_statement_that_changes_the_schema_and_needs_a_setting_is_refused(node: TestNode) -> None:
    """Every node executes such a statement, and a node of an earlier release would not know the setting."""
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "CREATE TRIGGER says AFTER DELETE ON t BEGIN SELECT 1; END")
    with pytest.raises(UnsupportedError, match="PRAGMA case_sensitive_like is the session's own"):
        node.run(with_settings("CREATE TABLE u AS SELECT * FROM t WHERE x LIKE 'a'", SENSITIVE))
    with pytest.raises(UnsupportedError, match="PRAGMA recursive_triggers is the session's own"):
        node.run("CREATE TABLE v(x)", with_settings("REPLACE INTO t VALUES (1, 'b')", RECURSIVE))
    own = "CREATE TABLE v(x UNIQUE)", "CREATE TRIGGER own AFTER DELETE ON v BEGIN DELETE FROM t; END"
    with pytest.raises(UnsupportedError, match="PRAGMA recursive_triggers is the session's own"):
        node.run(*own, with_settings("REPLACE INTO v VALUES ('b')", RECURSIVE))
    node.run(with_settings("CREATE TABLE w AS SELECT * FROM t", SENSITIVE))
    listing = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'T' AND name NOT LIKE 'sqlite%'"
    told = node.run("CREATE TABLE z(x)", with_settings(listing, SENSITIVE), "INSERT INTO z VALUES (1)", listing)
    assert ([row for (row,) in told[1].rows], [row for (row,) in told[3].rows]) == (["t", "w", "z"], ["w", "z"])
    node.run("CREATE TABLE y(x)", with_settings("INSERT INTO t VALUES (1, 'b')", RECURSIVE))
    assert node.rows("SELECT x FROM t") == [("b",)]


def test_a_failed_statement_leaves_no_setting(node: TestNode) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, x CHECK (x <> 'A'))")
    node.run(
        "CREATE TRIGGER says AFTER DELETE ON t BEGIN SELECT RAISE(ABORT, 'no'); END", "INSERT INTO t VALUES (1, 1)"
    )
    for sql in ("INSERT INTO t SELECT 2, 'A' WHERE 'a' NOT LIKE 'A'", "SELECT abs(-9223372036854775808) LIKE 'a'"):
        with pytest.raises(BedrockishError):
            node.run(with_settings(sql, SENSITIVE))
    with pytest.raises(BedrockishError, match="no"):
        node.run(with_settings("REPLACE INTO t VALUES (1, 2)", RECURSIVE))
    assert node.rows("SELECT 'a' LIKE 'A'") == [(1,)]
    assert node.prepare("REPLACE INTO t VALUES (1, 2)").kind == ROWS


def test_setting_in_any_but_its_plain_form_is_refused(node: TestNode) -> None:
    """A session recognises the setting in its plain form only; a node that accepted another form would ignore it."""
    for sql in ("PRAGMA temp.recursive_triggers = ON", "/* */ PRAGMA [recursive_triggers](1)"):
        with pytest.raises(UnsupportedError, match="a setting of a session"):
            node.run(sql)
    with pytest.raises(UnsupportedError, match="a setting of a session"):
        node.run("PRAGMA case_sensitive_like = ON")
    assert node.run("PRAGMA temp.recursive_triggers = OFF")[0].rows == []


def test_broken_trigger_raises_an_error_only_if_recursive_triggers_fire_it(node: TestNode) -> None:
    """SQLite reports the broken trigger when it compiles the statement, and the client gets SQLite's text."""
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    node.run("CREATE TRIGGER lost AFTER DELETE ON t BEGIN INSERT INTO nowhere VALUES (1); END")
    node.run("REPLACE INTO t VALUES (1)")
    with pytest.raises(SqlError, match=r"no such table: main\.nowhere"):
        node.run(with_settings("REPLACE INTO t VALUES (1)", RECURSIVE))


def test_settings_affect_their_statement_only(node: TestNode) -> None:
    """Other statements of the request run without the setting, also a text that SQLite compiled before."""
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)", "CREATE TABLE said(x)")
    node.run("CREATE TRIGGER gone AFTER DELETE ON t BEGIN INSERT INTO said VALUES (old.id); END")
    like, write = "SELECT 'a' LIKE 'A'", "REPLACE INTO t VALUES (1)"
    for _ in range(2):
        told = node.run(like, with_settings(like, SENSITIVE), like, write, with_settings(write, RECURSIVE), write)
        assert [told[place].rows for place in range(3)] == [[(1,)], [(0,)], [(1,)]]
    assert node.rows("SELECT * FROM said") == [(1,), (1,)]


def test_statements_of_one_text_in_a_batch_all_run_with_their_setting(node: TestNode) -> None:
    """The batch may return rows, and SQLite may have cached the text without the setting."""
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "CREATE TABLE said(x)", "INSERT INTO t VALUES (1, 0)")
    node.run("CREATE TRIGGER gone AFTER DELETE ON t BEGIN INSERT INTO said VALUES (old.x); END")
    for number, text in enumerate(("REPLACE INTO t VALUES (1, ?)", "REPLACE INTO t VALUES (1, ?) RETURNING x")):
        node.run((text, [0]))
        for _ in range(2):
            many = [(with_settings(text, RECURSIVE), [value]) for value in range(6)]
            node.run("DELETE FROM said", *many, (text, [0]))
            assert [x for (x,) in node.rows("SELECT x FROM said")] == [0, 0, 1, 2, 3, 4], number
