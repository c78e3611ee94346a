"""INSERTs of one row of literals run as one text with parameters, and have the effect that they have in SQLite."""

import random
from contextlib import closing

import apsw
import pytest

from bedrockish.api.requests import Request, Statement
from bedrockish.engine.execution.explain import explain
from bedrockish.errors import ConstraintError, ForbiddenError, SqlError
from bedrockish.sqltext.literal_inserts import FORM_MAX, TEXT_MAX, with_parameters
from bedrockish_journal.model.membership import READER, WRITER, UserSaid
from bedrockish_journal.model.transaction import ROWS, SCHEMA
from tests.engine.nodes import TestNode


@pytest.mark.parametrize(
    ("sql", "form", "values"),
    [
        ("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (?)", (1,)),
        ("insert or ignore into t values('it''s',''); ", "insert or ignore into t values(?, ?)", ("it's", "")),
        (
            'INSERT INTO main."a ""b"(x , "y,)") VALUES (-5, +007, NULL, x\'00fF\', 1.50, -0.0, X\'\')',
            'INSERT INTO main."a ""b"(x , "y,)") VALUES (?, ?, NULL, ?, ?, ?, ?)',
            (-5, 7, b"\0\xff", 1.5, -0.0, b""),
        ),
        ("INSERT INTO t VALUES ( 'a''); --','é\n' )", "INSERT INTO t VALUES (?, ?)", ("a'); --", "é\n")),
        ("INSERT INTO t VALUES (9223372036854775807)", "INSERT INTO t VALUES (?)", (2**63 - 1,)),
        ("INSERT INTO t VALUES (-9223372036854775808)", "INSERT INTO t VALUES (?)", (-(2**63),)),
    ],
)
def test_literals_become_parameters(sql: str, form: str, values: tuple[object, ...]) -> None:
    found = with_parameters(sql)
    assert found == (form, values)
    assert [repr(one) for one in found[1]] == [repr(one) for one in values]
    with closing(apsw.Connection(":memory:")) as db:
        literals = sql.partition("alues" if "alues" in sql else "ALUES")[2]
        read = db.execute(f"VALUES {literals}").get
        assert [one for one in (read if isinstance(read, tuple) else (read,)) if one is not None] == list(values)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (NULL)",
        "INSERT INTO t VALUES (1), (2)",
        "INSERT INTO t VALUES (1) RETURNING a",
        "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING",
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
        "INSERT INTO t VALUES (1)\v",
        "INSERT INTO t(T) VALUES ('rebuild')",
        'INSERT INTO main.t(a, "t") VALUES (1, 2)',
        'INSERT INTO "T" ( t, rank ) VALUES (1, 2)',
        "INSERT INTO v(Cmd, arg) VALUES (1, 2)",
        "UPDATE t SET a = 1",
    ],
)
def test_other_texts_stay_as_they_are(sql: str) -> None:
    assert with_parameters(sql) is None


def test_long_text_of_quotes_is_recognized_at_once() -> None:
    for text in ("'" * (TEXT_MAX - 30), "('" + "''" * 7000, "(" + "1," * 7000, "(a, " + "b," * 6000):
        assert with_parameters(f"INSERT INTO t VALUES {text}") is None
        assert with_parameters(f"INSERT INTO t{text}") is None


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
    with pytest.raises(ForbiddenError) as refused:
        node.engine.execute(Request("c", (Statement("INSERT INTO t VALUES (5, 1)"),), user="reader"))
    assert refused.value.details["sql"] == "INSERT INTO t VALUES (5, 1)"


def test_commands_of_virtual_tables_run_as_their_words_say(node: TestNode) -> None:
    node.run("CREATE VIRTUAL TABLE f USING fts5(x)")
    node.run("INSERT INTO f(f, rank) VALUES ('integrity-check', 0)")
    node.run(("INSERT INTO f(f) VALUES (?)", ["integrity-check"]))
    for command in ("('merge', 500)", "('merge', 501)", "('merge', 502)"):
        assert node.prepare(f"INSERT INTO f(f, rank) VALUES {command}").readonly
    for command in ("rebuild", "optimize"):
        assert node.prepare(f"INSERT INTO f(f) VALUES ('{command}')").readonly
    assert node.prepare("INSERT INTO f(f, rank) VALUES ('integrity-check', 1)").kind == ROWS
    assert node.prepare("INSERT INTO f(f, rank) VALUES ('pgsz', 1000)").kind == SCHEMA


def test_rows_of_literals_are_those_of_sqlite(node: TestNode) -> None:
    """Each column has another affinity, and each form runs several times."""
    luck = random.Random(7)
    table = "CREATE TABLE t(id INTEGER PRIMARY KEY, i INT, s TEXT, r REAL, n NUMERIC, b BLOB, a ANY)"

    def literal() -> str:
        text = "".join(luck.choices("ab'\"%;()?é1.", k=luck.randrange(6))).replace("'", "''")
        number = f"{luck.choice(['', '-', '+'])}{luck.getrandbits(luck.choice([3, 30, 63]))}"
        decimal = f"{luck.randrange(10**6)}.{luck.randrange(10 ** luck.randrange(1, 9))}"
        return luck.choice(
            [f"'{text}'", number, decimal, f"'{number}'", f"x'{luck.randbytes(2).hex()}'", "NULL", "1.", "1e2"]
        )

    statements = [
        f"INSERT INTO t(id, i, s, r, n, b, a) VALUES ({n}, {', '.join(literal() for _ in range(6))})"
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
