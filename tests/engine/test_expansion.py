"""Definitions and statements that double with each name: refused by their size before SQLite expands them."""

from collections.abc import Sequence

import apsw
import pytest

from bedrockish.access_sets.definitions import Definitions
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements.expansion import Expansion
from bedrockish.engine.statements.import_check import misfits
from bedrockish.errors import TooLargeError
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode, request
from tests.processor import at_most


def chain(count: int, kind: str = "") -> str:
    columns = ", ".join(f"c{n} {kind} AS (c{n - 1} || c{n - 1})" for n in range(1, count))
    return f"CREATE TABLE gc(c0, {columns})"


def views(count: int, first: str = "SELECT 1 x") -> list[str]:
    more = [
        f"CREATE VIEW v{n} AS SELECT (SELECT x FROM v{n - 1}) + (SELECT x FROM v{n - 1}) x" for n in range(1, count)
    ]
    return [f"CREATE VIEW v0 AS {first}", *more]


WIDE = "SELECT " + ", ".join(f"{n} AS x{n}" for n in range(400)) + ", 1 AS x"
ANY_ORDER = ", ".join(f"[c{n}] TEXT AS (c{n - 1} || C{n - 1}) STORED" for n in range(30, 0, -1))
COMMON = ", ".join(
    f"c{n}(x) AS NOT MATERIALIZED (SELECT (SELECT x FROM c{n - 1}) + (SELECT x FROM c{n - 1}))" for n in range(1, 30)
)
REFUSED = {
    "generated columns": [chain(32)],
    "generated columns, declared": [chain(32, "VARCHAR(10) GENERATED ALWAYS")],
    "generated columns, explained": ["EXPLAIN " + chain(40)],
    "generated columns of any order": [f'CREATE TABLE IF NOT EXISTS main."g c"(c0, {ANY_ORDER})'],
    "generated columns added one by one": [
        chain(14),
        "ALTER TABLE gc ADD COLUMN d AS ({})".format("||".join(["(c13 || c13)"] * 400)),
    ],
    "generated columns in a CHECK": [chain(14), "CREATE INDEX i ON gc({})".format("||".join(["c13"] * 400))],
    "generated columns in a query": [chain(14), "SELECT {} FROM gc".format(", ".join(["c13"] * 1_000))],
    "views": views(20),
    "views, the first one last": views(20)[::-1],
    "wide views": views(20, WIDE),
    "common tables": [f"WITH c0(x) AS (SELECT 1), {COMMON} SELECT x FROM c29"],
    "common tables, the first one last": [
        "WITH "
        + ", ".join(f"c{n} AS (SELECT a.x FROM c{n - 1} a, c{n - 1} b)" for n in range(29, 0, -1))
        + ", c0(x) AS (SELECT 1) SELECT x FROM c29"
    ],
    "common tables in a view": [
        "CREATE VIEW w AS WITH c0(x) AS (SELECT 1), "
        + ", ".join(f"c{n}(x) AS (SELECT (SELECT x FROM c{n - 1}) + (SELECT x FROM c{n - 1}))" for n in range(1, 30))
        + " SELECT x FROM c29"
    ],
    "a view in a trigger": [
        *views(12),
        "CREATE TABLE t(x)",
        "CREATE TRIGGER r AFTER INSERT ON t BEGIN {} END".format("SELECT x FROM v11; " * 80),
    ],
    "a view in a trigger that another trigger fires": [
        *views(12),
        "CREATE TABLE t(x)",
        "CREATE TABLE u(x)",
        "CREATE TRIGGER first AFTER INSERT ON t BEGIN INSERT INTO u VALUES (1); END",
        "CREATE TRIGGER r AFTER INSERT ON u BEGIN {} END".format("SELECT x FROM v11; " * 30),
        "CREATE TRIGGER s AFTER INSERT ON u BEGIN {} END".format("SELECT x FROM v11; " * 30),
        "INSERT INTO t VALUES (1)",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_views_that_double_with_each_level_are_refused_at_once(node: TestNode, name: str) -> None:
    *before, last = REFUSED[name]
    with at_most(2), pytest.raises(TooLargeError, match="are expanded"):  # noqa: PT012 - of some kinds an earlier one is refused
        for sql in before:
            node.run(sql)
        node.run(last)
    node.run("CREATE TABLE sound(x)")
    assert node.rows("SELECT count(*) FROM sound") == [(0,)]


def test_import_names_the_view_that_doubles() -> None:
    found = misfits([("table gc", chain(32)), *((f"view {n}", sql) for n, sql in enumerate(views(20)))])
    assert "table gc" in found[0]
    assert "are expanded" in found[0]
    assert any("view" in line and "are expanded" in line for line in found[1:])


TAKEN: list[Sequence[str]] = [
    [chain(10), "INSERT INTO gc(c0) VALUES ('a')", "SELECT c9 FROM gc", "UPDATE gc SET c0 = 'b'"],
    [*views(9), "SELECT x FROM v8"],
    ["CREATE VIEW name AS SELECT 1 AS name", "SELECT name, name, name FROM name WHERE name = (SELECT name FROM name)"],
    ["WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 10) SELECT count(*) FROM n, n m, n o"],
    ["CREATE TABLE w(a, b)", "SELECT sum(a) OVER q, max(b) OVER q FROM w WINDOW q AS (PARTITION BY a ORDER BY b)"],
    ["CREATE TABLE k(a, b CHECK (b IN (1, 2)), c AS (a + b), UNIQUE (a, b))", "INSERT INTO k(a, b) VALUES (1, 2)"],
    ["CREATE VIEW a AS SELECT * FROM b", "CREATE VIEW b AS SELECT * FROM a"],
    [
        "CREATE TABLE t(x, y)",
        "CREATE TABLE log(x)",
        *(
            f"CREATE TRIGGER r{n} AFTER UPDATE ON t WHEN old.x <> {n} BEGIN "
            "INSERT INTO log VALUES (old.x); UPDATE t SET y = new.x WHERE y = old.x; END"
            for n in range(40)
        ),
        "INSERT INTO t VALUES (1, 2)",
        "UPDATE t SET x = 3",
    ],
]  # fmt: skip


@pytest.mark.parametrize("statements", TAKEN)
def test_ordinary_definitions_are_accepted(node: TestNode, statements: Sequence[str]) -> None:
    for sql in statements:
        node.run(sql)


def test_text_that_expands_much_is_compiled_in_a_worker(make_node: MakeNode) -> None:
    node = make_node()
    for sql in views(11):
        node.run(sql)
    with pytest.raises(TakesLongError):
        node.engine.execute(request("SELECT x FROM v10 WHERE x > 7"), 0.01)
    assert node.rows("SELECT x FROM v10 WHERE x > 7") == [(1_024,)]


def test_expanded_size_changes_with_the_schema(node: TestNode) -> None:
    def size() -> int:
        return node.engine._executor.texts._guard.expansion.added("SELECT x FROM v8")

    for sql in views(9):
        node.run(sql)
    before = size()
    assert before > 1_000
    node.run("DROP VIEW v0")
    node.run("CREATE VIEW v0 AS SELECT 1 + 2 + 3 + 4 x")
    assert size() > before
    node.run("DROP VIEW v8")
    assert size() == 0


def test_triggers_of_a_table_add_up(node: TestNode) -> None:
    def size(sql: str) -> int:
        return node.engine._executor.texts._guard.expansion.added(sql)

    node.run("CREATE TABLE t(x)")
    node.run("CREATE TABLE u(x)")
    for n in range(10):
        node.run(
            f"CREATE TRIGGER t{n} AFTER INSERT ON t BEGIN DELETE FROM t WHERE x = {n}; INSERT INTO u VALUES (1); END"
        )
    ten = size("INSERT INTO t VALUES (1)")
    assert size("INSERT INTO t SELECT a.x FROM t a, t b") == ten
    node.run("CREATE TRIGGER t10 AFTER INSERT ON t BEGIN DELETE FROM t WHERE x = 10; INSERT INTO u VALUES (1); END")
    assert size("INSERT INTO t VALUES (1)") == ten // 10 * 11
    node.run("CREATE TRIGGER u0 AFTER INSERT ON u BEGIN {} END".format("DELETE FROM u WHERE x = 2; " * 20))
    assert size("INSERT INTO t VALUES (1)") == ten // 10 * 11 + size("INSERT INTO u VALUES (1)")


@pytest.mark.parametrize("mention", ['"É""w"', '"É""W"', '`É"w`', '[É"W]', "'É\"W'"])
def test_names_are_found_in_any_spelling(mention: str) -> None:
    db = apsw.Connection(":memory:")
    db.execute(f'CREATE VIEW "É""w" AS {WIDE}')
    expansion = Expansion(Definitions(db))
    assert expansion.added(f"SELECT x FROM {mention}") > 1_000
    assert expansion.added("SELECT x FROM w") == 0


def test_computed_size_doubles_when_the_bytecode_doubles() -> None:
    """Twice the size is about twice the program, so a program that doubles has a size that doubles."""
    sizes, programs = [], []
    for count in (6, 8, 10):
        db = apsw.Connection(":memory:")
        db.execute(chain(count))
        sql = f"SELECT c{count - 1} FROM gc"
        programs.append(len(db.execute(f"EXPLAIN {sql}").fetchall()))
        sizes.append(Expansion(Definitions(db)).added(sql))
    assert sizes[2] > 3.5 * sizes[1] > 12 * sizes[0]
    assert programs[2] > 3 * programs[1]
