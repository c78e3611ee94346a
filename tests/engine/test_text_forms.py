"""Texts of literals run as one text with parameters, and have the effect that they have in SQLite."""

import random
import sqlite3
from contextlib import closing

import apsw
import pytest

from bedrockish.api.requests import Request, Statement, decode_results
from bedrockish.engine.execution.explain import explain
from bedrockish.errors import ConstraintError, ForbiddenError, SqlError
from bedrockish.sqltext import text_forms
from bedrockish.sqltext.literals import literal
from bedrockish.sqltext.text_forms import FORM_MAX, TEXT_MAX, with_parameters
from bedrockish_journal.model.membership import READER, WRITER, UserSaid
from bedrockish_journal.model.transaction import ROWS, SCHEMA
from tests.engine.nodes import TestNode, request


@pytest.mark.parametrize(
    ("sql", "form", "values"),
    [
        ("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (?)", (1,)),
        ("insert or ignore into t values('it''s',''); ", "insert or ignore into t values(?,?)", ("it's", "")),
        (
            'INSERT INTO main."a ""b"(x , "y,)") VALUES (-5, +007, NULL, x\'00fF\', 1.50, -0.0, X\'\')',
            'INSERT INTO main."a ""b"(x , "y,)") VALUES (?, ?, NULL, ?, ?, ?, ?)',
            (-5, 7, b"\0\xff", 1.5, -0.0, b""),
        ),
        ("INSERT INTO t VALUES ( 'a''); --','é\n' )", "INSERT INTO t VALUES ( ?,? )", ("a'); --", "é\n")),
        ("INSERT INTO t VALUES (9223372036854775807)", "INSERT INTO t VALUES (?)", (2**63 - 1,)),
        ("INSERT INTO t VALUES (-9223372036854775808)", "INSERT INTO t VALUES (?)", (-(2**63),)),
    ],
)
def test_literals_of_rows_become_parameters(sql: str, form: str, values: tuple[object, ...]) -> None:
    found = with_parameters(sql)
    assert found == (form, values)
    assert [repr(one) for one in found[1]] == [repr(one) for one in values]
    with closing(apsw.Connection(":memory:")) as db:
        literals = sql.partition("alues" if "alues" in sql else "ALUES")[2]
        read = db.execute(f"VALUES {literals}").get
        assert [one for one in (read if isinstance(read, tuple) else (read,)) if one is not None] == list(values)


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("SELECT a FROM t WHERE b={}", (1,)),
        ("delete from t where a<>{} or [b c] >= {}", ("x", -2.5)),
        ("UPDATE t SET a1 = a1 - {}, b = {} WHERE a = {}", (5, "c'd", 1)),
        ("SELECT 7 FROM t JOIN u ON t.a = {} WHERE u.\"x=1\" IN ({}, NULL, {})", (3, 1, "b")),
        ("SELECT * FROM t WHERE a BETWEEN {} AND {} AND b = {}", (1, "c", 2)),
        ("SELECT * FROM (SELECT 1, a FROM t WHERE b = {}) WHERE a = {}", (2, 3)),
        ("SELECT a = 1 FROM t WHERE a = (SELECT 2 FROM u WHERE b = {}) GROUP BY a = 1 HAVING b = 4", (3,)),
        ("INSERT INTO t(a) VALUES ({}) ON CONFLICT(a) DO UPDATE SET b = {} RETURNING a = 3", (1, 2)),
        ("INSERT INTO t VALUES ({}),\n(NULL)\n, ({})", (1, "b")),
        ("INSERT INTO t SELECT 1, a FROM u WHERE b = {}", (2,)),
        ("SELECT * FROM t WHERE a - {} = 3 AND 'b = 4' = c", (-5,)),
    ],
)  # fmt: skip
def test_compared_and_assigned_literals_become_parameters(form: str, values: tuple[float | str, ...]) -> None:
    for end in ("", ";", " ;; \n"):
        sql = form.format(*map(literal, values)) + end
        assert with_parameters(sql) == (form.replace("{}", "?"), values)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (NULL)",
        "SELECT a = 1, (SELECT b FROM u WHERE c = 2), sum(e) FILTER (WHERE d = 3) FROM t GROUP BY a = 1 ORDER BY b = 1",
        "SELECT * FROM t WHERE 5 = a AND -5 < a AND a = NULL AND lower(a) = 'b' AND a -> 'b' AND a IS 5 AND -1 = a",
        "SELECT * FROM t WHERE a -5 > b AND a LIKE 'x%' AND a IN (1, 1 + 1) LIMIT 5 OFFSET 10",
        "SELECT a IS DISTINCT FROM b, (SELECT c FROM u WHERE d = 5) FROM t",
        "SELECT * FROM t WHERE a = 1 AND b = ?",
        "SELECT * FROM t WHERE a = 1 AND b = :b",
        "SELECT * FROM t WHERE a = 1 -- AND b = 2",
        "SELECT * FROM t WHERE a = /* 1 */ 1",
        "SELECT * FROM t WHERE a = 1)",
        "UPDATE t SET a = 1; UPDATE t SET a = 2",
        "WITH c AS (SELECT 1) SELECT * FROM c WHERE a = 1",
        "PRAGMA user_version = 5",
        "CREATE INDEX i ON t(a) WHERE a = 5",
        "INSERT INTO t VALUES (1); SELECT 1",
        "INSERT INTO t VALUES (1 + 1)",
        "INSERT INTO t VALUES (?)",
        "INSERT INTO t VALUES ('a' 'b')",
        "INSERT INTO t VALUES ('a)",
        "INSERT INTO t VALUES (x'a')",
        "INSERT INTO t VALUES (0x10)",
        "INSERT INTO t VALUES (1e3)",
        "INSERT INTO t VALUES (1_000)",
        "INSERT INTO t VALUES (9223372036854775808)",
        "INSERT INTO t VALUES (0.123456789012345678)",
        'INSERT INTO t VALUES ("a")',
        "INSERT INTO t VALUES (current_time)",
        "INSERT INTO t DEFAULT VALUES",
        "INSERT INTO t SELECT 1",
        "INSERT /* a */ INTO t VALUES (1)",
        "INSERT INTO t VALUES ('a\0b')",
        "INSERT INTO t VALUES ('\ud800')",
        f"INSERT INTO t VALUES ('{'x' * TEXT_MAX}')",
        f"INSERT INTO t VALUES ({'1,' * FORM_MAX}1)",
        "INSERT INTO t VALUES (\v1)",
        "INSERT INTO t(T) VALUES ('rebuild')",
        'INSERT INTO main.t(a, "t") VALUES (1, 2)',
        'INSERT INTO "T" ( t, rank ) VALUES (1, 2)',
        "INSERT INTO v(Cmd, arg) VALUES (1, 2)",
        "INSERT INTO t AS u(t) VALUES ('rebuild')",
        'INSERT INTO t as"u" ( a, T ) VALUES (1, 2)',
    ],
)
def test_other_texts_stay_as_they_are(sql: str) -> None:
    assert with_parameters(sql) is None


def test_long_text_of_quotes_is_recognized_at_once() -> None:
    for text in ("'" * (TEXT_MAX - 30), "('" + "''" * 7000, "(" + "1," * 7000, "(a, " + "b," * 6000):
        assert with_parameters(f"INSERT INTO t VALUES {text}") is None
        assert with_parameters(f"INSERT INTO t{text}") is None


def test_form_of_a_long_text_is_found_once(node: TestNode) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    names = ", ".join(f"a AS name_{number}" for number in range(200))
    before = text_forms._cached_long_form.cache_info().misses
    for number in (1, 2, 2, 2):
        node.run(f"SELECT {names} FROM t WHERE id = {number}")
    assert text_forms._cached_long_form.cache_info().misses == before + 2
    assert with_parameters(f"SELECT {names} FROM t WHERE a = '{'x' * TEXT_MAX}'") is None
    assert text_forms._cached_long_form.cache_info().misses == before + 2


def test_second_insert_of_a_form_is_not_compiled_again(node: TestNode) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b UNIQUE)")
    compiled: list[str] = []
    guard, compile_next = node.engine._executor.texts._guard, node.engine._executor.texts._guard.compile_next

    def note(sql: str, *args: int, **options: bool) -> object:
        compiled.append(sql)
        return compile_next(sql, *args, **options)

    guard.compile_next = note  # type: ignore[assignment, method-assign]
    for number in range(5):
        node.run(f"INSERT INTO t(a, b) VALUES ('v{number}', {number})")
    assert compiled == ["INSERT INTO t(a, b) VALUES ('v0', 0)", "INSERT INTO t(a, b) VALUES (?, ?)"]
    with pytest.raises(ConstraintError, match=r"t\.b") as caught:
        node.run("INSERT INTO t(a, b) VALUES ('again', 3)")
    assert caught.value.details["sql"] == "INSERT INTO t(a, b) VALUES ('again', 3)"
    with pytest.raises(ConstraintError, match=r"t\.b") as caught:
        node.run(("INSERT INTO t(a, b) VALUES (?, ?)", ["again", 3]))
    assert caught.value.details["sql"] == "INSERT INTO t(a, b) VALUES (?, ?)"
    assert node.rows("SELECT a, b FROM t ORDER BY id") == [(f"v{number}", number) for number in range(5)]


def test_lookup_with_other_literals_runs_as_a_lookup(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    node.run("INSERT INTO t VALUES (1, 'one'), (2, 'two')")

    def read(number: int) -> list[tuple[object, ...]]:
        found = node.engine.read(request(f" SELECT a FROM t WHERE id = {number}; "), 0.01)
        assert found is not None
        return decode_results(found)[0].rows

    assert [read(number) for number in (1, 2, 3)] == [[("one",)], [("two",)], []]
    monkeypatch.setattr(node.engine._executor, "run_piece", None)
    assert [read(number) for number in (3, 2, 1)] == [[], [("two",)], [("one",)]]


def test_error_of_a_known_form_has_the_text_of_the_client(node: TestNode) -> None:
    node.run("CREATE TABLE t(a, b)")
    for number in range(3):
        node.run(f"INSERT INTO t VALUES ({number}, 0)")
    sql = "INSERT INTO t VALUES (4, 0)"
    [told] = explain(node.engine._executor, Statement(f" {sql} "))
    assert told["sql"] == sql
    for change in ("ALTER TABLE t ADD COLUMN c", "DROP TABLE t"):
        node.run(change)
        with pytest.raises(SqlError) as caught:
            node.run(sql)
        assert caught.value.details["sql"] == sql
    node.run("CREATE TABLE t(a, b)")
    node.run(sql)
    users = {"writer": UserSaid("", WRITER, 1), "reader": UserSaid("", READER, 1)}
    node.engine.access.learn(users, ["A"])
    for number in range(2):
        node.engine.execute(Request("c", (Statement(f"INSERT INTO t VALUES ({number}, 1)"),), user="writer"))
        read = Request("c", (Statement(f"SELECT b FROM t WHERE a = {number}"),), user="reader")
        assert node.engine.read(read, 0.01) is not None
    with pytest.raises(ForbiddenError) as refused:
        node.engine.execute(Request("c", (Statement("INSERT INTO t VALUES (5, 1)"),), user="reader"))
    assert refused.value.details["sql"] == "INSERT INTO t VALUES (5, 1)"


def test_tables_whose_indexes_may_need_a_literal_have_no_forms(node: TestNode) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b)")
    node.run("CREATE TABLE u(id INTEGER PRIMARY KEY, a, b)")
    node.run("CREATE VIEW v AS SELECT * FROM u")
    texts = node.engine._executor.texts
    for number in range(2):
        node.rows(f"SELECT id FROM t WHERE a = {number}")
        node.rows(f"SELECT id FROM v WHERE a = {number}")
    assert texts.known_form("SELECT id FROM t WHERE a = 7") == ("SELECT id FROM t WHERE a = ?", (7,))
    assert texts.known_form("SELECT id FROM v WHERE a = 7") is not None
    node.run("CREATE INDEX part ON t(b) WHERE a = 7")
    node.run("CREATE INDEX expression ON u(a = 7)")
    assert texts.known_form("SELECT id FROM t WHERE a = 7") is None
    for number in range(2):
        node.rows(f"SELECT id FROM t WHERE a = {number}")
        node.rows(f"SELECT id FROM v WHERE a = {number}")
        node.run(f"INSERT INTO t(a) VALUES ({number})")
    assert texts.known_form("SELECT id FROM t WHERE a = 7") is None
    assert texts.known_form("SELECT id FROM v WHERE a = 7") is None
    assert texts.known_form("INSERT INTO t(a) VALUES (7)") is not None


def test_statements_of_literals_have_the_effect_of_sqlite(node: TestNode) -> None:
    """Forms repeat, and columns have all affinities."""
    luck = random.Random(11)
    tables = [
        "CREATE TABLE t(id INTEGER PRIMARY KEY, i INT, s TEXT COLLATE NOCASE, r REAL, a)",
        "CREATE INDEX by_i ON t(i, s)",
        "CREATE UNIQUE INDEX by_r ON t(r)",
        "CREATE TABLE u(k TEXT PRIMARY KEY, i INT) WITHOUT ROWID",
    ]

    def one_literal() -> str:
        return luck.choice(["1", "2", "-3", "+4", "'1'", "'b'", "'B'", "''", "2.0", "x'62'", "NULL", "'it''s'", "1e0"])

    def term() -> str:
        column, one, two = luck.choice(["id", "i", "s", "r", "a"]), one_literal(), one_literal()
        operator = luck.choice(["=", "<", ">", "<=", ">=", "<>", "==", "!=", "IS", "IS NOT"])
        return luck.choice(
            [
                f"{column} {operator} {one}",
                f"{column} BETWEEN {one} AND {two}",
                f"{column} IN ({one}, {two})",
                f"{column} NOT IN ({one},{two}, 5)",
                f"{column} + 1 > {one}",
                f"{column} - 2 = {one}",
                f"{one} = {column}",
                f"(SELECT count(*) FROM u WHERE u.i = {one}) > {two}",
                f"id IN (SELECT i FROM u WHERE k >= {one})",
            ]
        )

    def statement() -> str:
        where = f"{term()} {luck.choice(['AND', 'OR'])} {term()}" if luck.random() < 0.5 else term()
        return luck.choice(
            [
                f"SELECT id, s = 'b', typeof(a) FROM t WHERE {where} ORDER BY id",
                f"SELECT i = 1, count(*), total(r) FROM t WHERE {where} GROUP BY i = 1 ORDER BY 1",
                f"SELECT max(id) FROM (SELECT id, 5 FROM t WHERE {where})",
                f"UPDATE t SET i = {one_literal()}, a = {one_literal()} WHERE {where}",
                f"UPDATE t SET s = {one_literal()}, a = i * 2 WHERE {where} RETURNING id, a = 5",
                f"DELETE FROM t WHERE id > 20 AND {where}",
                f"INSERT INTO t(id, i, s) VALUES ({luck.randrange(40)}, {one_literal()}, {one_literal()}) "
                f"ON CONFLICT(id) DO UPDATE SET a = {one_literal()}",
                f"INSERT OR IGNORE INTO u VALUES ({one_literal()}, {one_literal()}), ({one_literal()}, 3)",
            ]
        )

    runs = 0
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for sql in tables:
            db.execute(sql)
            node.run(sql)
        for _ in range(1_500):
            sql = statement()
            runs += node.engine._executor.texts.known_form(sql) is not None
            try:
                cursor = db.execute(sql)
                expected = cursor.fetchall()
            except sqlite3.IntegrityError:
                with pytest.raises(ConstraintError):
                    node.run(sql)
                continue
            [result] = node.run(sql)
            assert result.rows == expected, sql
            assert list(result.columns) == [column[0] for column in cursor.description or ()]
        assert runs > 300
        for name in ("t", "u"):
            assert node.rows(f"SELECT * FROM {name}") == db.execute(f"SELECT * FROM {name}").fetchall()


def test_commands_of_virtual_tables_run_as_their_words_say(node: TestNode) -> None:
    node.run("CREATE VIRTUAL TABLE f USING fts5(x)")
    node.run("INSERT INTO f(f, rank) VALUES ('integrity-check', 0)")
    node.run(("INSERT INTO f(f) VALUES (?)", ["integrity-check"]))
    for command in ("('merge', 500)", "('merge', 501)", "('merge', 502)"):
        assert node.prepare(f"INSERT INTO f(f, rank) VALUES {command}").readonly
    for command in ("rebuild", "optimize"):
        assert node.prepare(f"INSERT INTO f(f) VALUES ('{command}')").readonly
        assert node.prepare(f"INSERT INTO f AS g(f) VALUES ('{command}')").readonly
    assert node.prepare("INSERT INTO f(f, rank) VALUES ('integrity-check', 1)").kind == ROWS
    assert node.prepare("INSERT INTO f(f, rank) VALUES ('pgsz', 1000)").kind == SCHEMA


def test_rows_of_literals_are_those_of_sqlite(node: TestNode) -> None:
    """Each column has another affinity, and each form runs several times."""
    luck = random.Random(7)
    table = "CREATE TABLE t(id INTEGER PRIMARY KEY, i INT, s TEXT, r REAL, n NUMERIC, b BLOB, a ANY)"

    def one_literal() -> str:
        text = "".join(luck.choices("ab'\"%;()?é1.", k=luck.randrange(6))).replace("'", "''")
        number = f"{luck.choice(['', '-', '+'])}{luck.getrandbits(luck.choice([3, 30, 63]))}"
        decimal = f"{luck.randrange(10**6)}.{luck.randrange(10 ** luck.randrange(1, 9))}"
        return luck.choice(
            [f"'{text}'", number, decimal, f"'{number}'", f"x'{luck.randbytes(2).hex()}'", "NULL", "1.", "1e2"]
        )

    statements = [
        f"INSERT INTO t(id, i, s, r, n, b, a) VALUES ({n}, {', '.join(one_literal() for _ in range(6))})"
        for n in range(1, 400)
    ]
    with closing(apsw.Connection(":memory:")) as db:
        for sql in (table, *statements):
            db.execute(sql)
        node.run(table)
        for sql in statements:
            node.run(sql)
        asked = "SELECT *, typeof(i), typeof(s), typeof(r), typeof(n), typeof(b), typeof(a) FROM t ORDER BY id"
        assert node.rows(asked) == db.execute(asked).fetchall()


def test_parameters_of_a_text_of_literals_are_refused(node: TestNode) -> None:
    node.run("CREATE TABLE t(a)")
    for _ in range(3):
        node.run("INSERT INTO t VALUES (1)")
    statement = Statement("INSERT INTO t VALUES (1)", (5,))
    with pytest.raises(Exception, match="0 parameter"):
        list(node.engine._executor.texts.pieces(statement))
