"""Calls of functions of time and chance in schema transactions are recorded as the values that the leader computed."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bedrockish.api.requests import decode_results
from bedrockish.engine.statements.constant_calls import with_values
from bedrockish.errors import TooLargeError, UnsupportedError
from bedrockish_journal.model.changes import decode_statements
from tests.engine.nodes import Sql, TestNode
from tests.engine.test_mixed import force, same_in_replays
from tests.engine.test_versions import decide

DEFAULTS = {
    "plain": "'date'",
    "word": "date",
    "at": "CURRENT_TIMESTAMP",
    "it's": "(1 + unixepoch('now'))",
    "code": "(random())",
}


def numbered(sql: str, *without: str) -> str:
    """Return the statement with the number of each computed expression, in order, as its value."""
    count = 0

    def compute(texts: Sequence[str]) -> Sequence[int]:
        nonlocal count
        count += len(texts)
        return range(count - len(texts) + 1, count + 1)

    return with_values(sql, compute, lambda _table: {k: v for k, v in DEFAULTS.items() if k not in without})


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        ("SELECT datetime('now'), CURRENT_DATE", "SELECT (1), (2)"),
        ("SELECT date('now'), date('now')", "SELECT (1), (1)"),
        ("UPDATE t SET a = unixepoch ( ), b = Date('now', '-' || 1 || ' day')", "UPDATE t SET a = (1), b = (2)"),
        ("SELECT strftime('%s', datetime('now', NULL)) + 1", "SELECT (1) + 1"),
        ("SELECT datetime(a, strftime('%s'))", "SELECT datetime(a, (1))"),
        ("SELECT date(:a), time(a), datetime((SELECT 'now'))", "SELECT date(:a), time(a), datetime((SELECT 'now'))"),
        ("SELECT t.current_time, 1 AS current_date, \"date\"('now'), 'date()', date", None),
        ("SELECT random() FROM t -- date()", None),
        ("INSERT INTO t VALUES (random(), randomblob(8)), (random(), 1)", "INSERT INTO t VALUES ((1), (2)), ((3), 1)"),
        ("INSERT INTO t VALUES ((SELECT random())), (random())", "INSERT INTO t VALUES ((SELECT random())), ((1))"),
        ("INSERT INTO t VALUES (randomblob(1000000), randomblob(:n))", None),
        ("INSERT INTO t SELECT random()", None),
        ("SELECT a current_date, (a) current_time FROM t", None),
        ("SELECT \"date('now') || 1\" FROM (SELECT date('now') || 1)", None),
        ("SELECT a FROM t ORDER BY unixepoch('now')", "SELECT a FROM t ORDER BY ifnull(1, NULL)"),
        ("SELECT a FROM t UNION SELECT date()", "SELECT a FROM t UNION SELECT ifnull(1, NULL)"),
        ("SELECT date(", None),
        ("SELECT 1; SELECT date()", None),
    ],
)
def test_calls_with_literal_arguments_become_values(sql: str, made: str | None) -> None:
    assert numbered(sql) == (made or sql)


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        ("INSERT INTO t(a) VALUES (7), (8)", """INSERT INTO t(a, "at", "it's") VALUES (7, (1), (2)), (8, (1), (2))"""),
        (
            "INSERT INTO t(AT, a) VALUES (7, 8) RETURNING a",
            """INSERT INTO t(AT, a, "it's") VALUES (7, 8, (1)) RETURNING a""",
        ),
        ("INSERT INTO t DEFAULT VALUES", """INSERT INTO t ("at", "it's") VALUES ((1), (2))"""),
        (
            "INSERT INTO t(a) SELECT b FROM u ON CONFLICT DO NOTHING",
            'INSERT INTO t(a, "at", "it\'s") WITH bedrockish_rows AS MATERIALIZED (SELECT b FROM u) '
            "SELECT *, (1), (2) FROM bedrockish_rows WHERE true  ON CONFLICT DO NOTHING",
        ),
        ("INSERT INTO t VALUES (1, 2, 3, 4)", None),
        ('INSERT INTO t("At", [it\'s]) VALUES (1, 2)', None),
    ],
)
def test_insert_names_the_columns_whose_defaults_depend_on_the_time(sql: str, made: str | None) -> None:
    assert numbered(sql, "code") == (made or sql)


def test_random_default_becomes_a_value_in_each_row_of_values_but_not_in_a_select() -> None:
    made = numbered("INSERT INTO t(a) VALUES (7), (8)", "at", "it's")
    assert made == 'INSERT INTO t(a, "code") VALUES (7, (1)), (8, (2))'
    assert numbered("INSERT INTO t(a) SELECT b FROM u") == "INSERT INTO t(a) SELECT b FROM u"


def test_many_rows_of_random_values_take_a_moment() -> None:
    """The statement is prepared by the thread that all clients of a node wait for."""
    rows = 20_000
    made = numbered(f"INSERT INTO t VALUES {', '.join(['(random())'] * rows)}")
    assert made.endswith(f"(({rows}))")


MIGRATION = (
    "CREATE TABLE made(id INTEGER PRIMARY KEY, name, at TEXT DEFAULT CURRENT_TIMESTAMP, code DEFAULT (random()))",
    "CREATE INDEX by_day ON made(date(at))",
    "INSERT INTO made(id, name, code) SELECT id, name, 0 FROM item ORDER BY id ON CONFLICT DO NOTHING",
    "INSERT INTO made(id, name) VALUES (8, hex(randomblob(4))), (9, 'x')",
    "UPDATE item SET name = strftime('%Y', 'now', 'localtime')",
    "DROP TABLE item",
    "ALTER TABLE made RENAME TO item",
    "SELECT CURRENT_TIME, datetime('now')",
)


def test_every_node_writes_the_times_and_random_values_of_the_leader(node: TestNode, tmp_path: Path) -> None:
    node.run("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT)")
    node.run("INSERT INTO item VALUES (1, 'a'), (2, 'b')")
    entry = decide(node, *MIGRATION)
    node.run("INSERT INTO item VALUES (3, 'c')")
    assert not force(node, entry)
    texts = decode_statements(entry.transaction.changes)
    assert not any(word in text.lower() for text in texts[2:] for word in ("current_", "'now'", "random"))
    [(rows, times, codes, old)] = node.run(
        "SELECT count(*), count(DISTINCT at), count(DISTINCT code), "
        "sum(abs(strftime('%s', 'now') - strftime('%s', at)) > 600) FROM item"
    )[-1].rows
    assert (rows, codes, old) == (5, 3, 0)
    assert times <= 2
    same_in_replays(node, tmp_path)


def changed(node: TestNode, *statements: Sql) -> None:
    assert not force(node, decide(node, *statements))


def test_recorded_values_have_the_meaning_of_their_calls_and_parameters(node: TestNode) -> None:
    """In ORDER BY, a number is that of a column; in a compound SELECT, a literal gives the column an affinity."""
    node.run("CREATE TABLE item(n INTEGER, name TEXT)")
    node.run("INSERT INTO item VALUES (2, '5'), (1, 'x')")
    first = "unixepoch('1970-01-01 00:00:01')"
    compound = "SELECT * FROM (SELECT name FROM item UNION ALL SELECT {}) AS c WHERE name = 5"
    for order, value, params in ((first, "date('now')", ()), ("?", "?", (1,))):
        results = decode_results(
            node.prepare(
                "CREATE TABLE made(x)",
                (f"SELECT n FROM item ORDER BY {order}", params),
                (compound.format(value), params),
            ).result
        )
        assert [result.rows for result in results[1:]] == [[(2,), (1,)], []]


def test_defaults_may_be_words_and_end_with_comments(node: TestNode) -> None:
    changed(
        node,
        "CREATE TABLE log(id, kind DEFAULT date, at DEFAULT (date('now') -- day\n), code DEFAULT (random() -- one\n))",
        "INSERT INTO log(id) VALUES (1), (2)",
    )
    assert node.rows("SELECT id, kind, at = date('now') OR at = date('now', '-1 day'), typeof(code) FROM log") == [
        (1, "date", 1, "integer"),
        (2, "date", 1, "integer"),
    ]


def test_default_with_another_function_of_one_node_is_refused(node: TestNode) -> None:
    with pytest.raises(UnsupportedError, match="cluster_clock"):
        node.prepare("CREATE TABLE log(id, at DEFAULT (cluster_clock() + random()))", "INSERT INTO log(id) VALUES (1)")


@pytest.mark.parametrize(("value", "params"), [("CURRENT_DATE", ()), ("?", ("x",)), ("date('now') || 'x'", ())])
def test_columns_of_a_created_table_have_the_names_that_they_have_in_sqlite(
    node: TestNode, value: str, params: tuple[str, ...]
) -> None:
    node.run("CREATE TABLE old(a INTEGER, b TEXT)")
    node.run("INSERT INTO old VALUES (2, 'x'), (1, 'y')")
    select = f"SELECT a, b, {value}, {value} AS named, a COLLATE NOCASE, likely(b) FROM old ORDER BY a"
    changed(
        node,
        "CREATE TABLE first(x)",
        (f"CREATE TABLE made AS {select};", (*params, *params)),
        "INSERT INTO first VALUES (1)",
    )
    names = ["a", "b", value, "named", "a:1", "b:1"]
    assert node.rows("SELECT name FROM pragma_table_info('made')") == [(name,) for name in names]
    assert node.rows("SELECT type FROM pragma_table_info('made')") == [
        ("INT",),
        ("TEXT",),
        ("",),
        ("",),
        ("INT",),
        ("",),
    ]
    assert node.rows("SELECT a, b FROM made ORDER BY rowid") == [(1, "y"), (2, "x")]


def test_more_calls_than_a_result_has_columns_are_computed(node: TestNode) -> None:
    days = ", ".join(f"(date('2024-01-01', '+{number} days'))" for number in range(3_000))
    changed(node, "CREATE TABLE day(at)", f"INSERT INTO day VALUES {days}")
    assert node.rows("SELECT count(DISTINCT at), min(at), max(at) FROM day") == [(3_000, "2024-01-01", "2032-03-18")]


def test_random_blobs_beyond_the_limit_of_changes_are_refused_early(node: TestNode) -> None:
    blobs = ", ".join(["(randomblob(999999))"] * 100)
    with pytest.raises(TooLargeError):
        node.prepare("CREATE TABLE lot(x)", f"INSERT INTO lot VALUES {blobs}")
