"""Statements with lists of different lengths share few plans, which read the same keys as a plan of their own."""

import random
from collections.abc import Sequence
from time import thread_time

import apsw
import pytest

from bedrockish.access_sets.access_set_builder import UnchangedStatement
from bedrockish.access_sets.analysis import Analysis
from bedrockish.access_sets.catalog import read_schema
from bedrockish.access_sets.query_names import connection_query
from bedrockish.access_sets.readset import analyse
from bedrockish.errors import TooLargeError
from bedrockish.sqltext.text_forms import LONGER_MAX, longer_length, with_longer_lists
from tests.engine.nodes import TestNode

DDL = """
CREATE TABLE plain(id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE UNIQUE, number INTEGER, note);
CREATE INDEX by_number ON plain(number, note DESC);
CREATE INDEX few ON plain(note) WHERE number > 3;
CREATE TABLE keyed(day TEXT, number INTEGER, note, PRIMARY KEY(day, number)) WITHOUT ROWID;
CREATE TABLE children(id INTEGER PRIMARY KEY, parent INTEGER REFERENCES plain(id) ON DELETE CASCADE, note UNIQUE);
CREATE INDEX by_parent ON children(parent);
CREATE TABLE seen(note PRIMARY KEY, count INTEGER);
CREATE TRIGGER counts AFTER INSERT ON keyed BEGIN UPDATE seen SET count = count + 1 WHERE note = new.note; END;
WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
    INSERT INTO plain SELECT i, 'n' || i, i % 7, i % 5 FROM n;
INSERT INTO children SELECT id, id % 9 + 1, 'c' || id FROM plain;
INSERT INTO keyed SELECT 'd' || (id % 3), id, note FROM plain;
"""
QUERIES = [
    "SELECT * FROM plain WHERE id IN ({})",
    "SELECT name FROM plain WHERE number = ? AND note IN ({}) AND id > ?",
    "SELECT count(*) FROM plain WHERE id NOT IN ({}) OR number IN ({})",
    "SELECT * FROM keyed WHERE day IN ({}) AND number IN ({})",
    "SELECT c.note FROM plain AS p JOIN children AS c ON c.parent = p.id WHERE p.name IN ({}) ORDER BY c.id",
    "SELECT note FROM children WHERE parent IN (SELECT id FROM plain WHERE number IN ({}))",
    "SELECT number, max(id) FROM plain WHERE number IN ({}) GROUP BY number",
    "UPDATE plain SET note = ? WHERE id IN ({}) AND number < ?",
    "UPDATE children SET parent = ? WHERE note IN ({}) RETURNING id",
    "DELETE FROM plain WHERE id IN ({})",
]
INSERTS = [
    ("INSERT INTO plain(id, name) VALUES {}", 2),
    ("INSERT OR IGNORE INTO children VALUES {}", 3),
    ("INSERT INTO keyed VALUES {} ON CONFLICT(day, number) DO UPDATE SET note = excluded.note", 3),
    ("REPLACE INTO plain(name, number, note) VALUES {} RETURNING id", 3),
]


@pytest.fixture
def db() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
    connection.execute(DDL).fetchall()
    return connection


def with_lists(template: str, width: int, chance: random.Random) -> tuple[str, list[object]]:
    """Return a text with lists of random lengths in place of ``{}``, of parameters and literals, and the parameters."""
    params: list[object] = []

    def one() -> str:
        kind, number = chance.randrange(6), chance.randrange(70)
        if kind == 0:
            return chance.choice([f"'n{number}'", str(number), "NULL", f"-{number}.5", "'it''s, (?)'"])
        params.append(chance.choice([number, f"n{number}", f"d{number % 3}", None, float(number), str(number)]))
        return "?"

    parts = template.replace("?", "\0").split("{}")
    text = ""
    for place, part in enumerate(parts):
        for at, piece in enumerate(part.split("\0")):
            if at:
                text += "?"
                params.append(chance.randrange(9))
            text += piece
        if place < len(parts) - 1:
            length = chance.randrange(1, 40)
            items = [", ".join(one() for _ in range(width)) for _ in range(length)]
            text += ", ".join(f"({item})" for item in items) if "VALUES" in template else ",".join(items)
    return text, params


@pytest.mark.parametrize(("template", "width"), [*((one, 1) for one in QUERIES), *INSERTS])
def test_plan_of_longer_lists_reads_the_keys_of_the_statement(db: apsw.Connection, template: str, width: int) -> None:
    schema, analysis, chance = read_schema(db), Analysis(db, lambda _: None), random.Random(template)
    query, texts = connection_query(db), 60
    for _ in range(texts):
        sql, params = with_lists(template, width, chance)
        own = analyse(db, schema, sql, len(params), is_what_runs=False)
        plan = analysis.plan(UnchangedStatement(sql, [None] * len(params)))
        assert sets(plan.bind(params)) == sets(own.bind(params)), sql
        assert sets(plan.bind_failed(params)) == sets(own.bind_failed(params)), sql
        assert sets(plan.resolve(params, query).keys()) == sets(own.resolve(params, query).keys()), sql
        assert plan.lengths.is_brief == own.lengths.is_brief
        assert plan.readonly == own.readonly
    assert 0 < len(analysis._longer) < texts - 10


def sets(reads: Sequence[object]) -> tuple[set[bytes], set[tuple[bytes, bytes]]]:
    points, ranges = reads
    return set(points), set(ranges)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("sql", "letters", "longer", "values"),
    [
        (
            "SELECT 1 WHERE ? IN (?, ? ,\t?,?, ?) AND ?",
            "abcdefg",
            "SELECT 1 WHERE ? IN (?, ?, ?, ?, ?, ?) AND ?",
            "abcdeffg",
        ),
        (
            "DELETE FROM t WHERE a in(1,?,'b',NULL,-2)",
            "a",
            "DELETE FROM t WHERE a in(?, ?, ?, ?, ?, ?)",
            (1, "a", "b", None, -2, -2),
        ),
        (
            "INSERT INTO t VALUES (?, 1), (?,2), (?,3),(?,4),(?,'5');",
            "abcde",
            "INSERT INTO t VALUES (?, ?), (?, ?), (?, ?), (?, ?), (?, ?), (?, ?);",
            ("a", 1, "b", 2, "c", 3, "d", 4, "e", "5", "e", "5"),
        ),
        (
            "/* IN (1,2,3,4,5) */ SELECT 'IN (?,?,?,?,?)', \"VALUES (1),(?)\" FROM t WHERE a IN (1,2,3,4,5)",
            "",
            "/* IN (1,2,3,4,5) */ SELECT 'IN (?,?,?,?,?)', \"VALUES (1),(?)\" FROM t WHERE a IN (?, ?, ?, ?, ?, ?)",
            (1, 2, 3, 4, 5, 5),
        ),
    ],
)  # fmt: skip
def test_last_value_of_a_list_is_repeated(sql: str, letters: str, longer: str, values: Sequence[object]) -> None:
    found = with_longer_lists(sql, len(letters))
    assert found is not None
    assert (found.sql, found.parameters) == (longer, len(values))
    assert found.convert(tuple(letters)) == tuple(values)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t WHERE a IN (1, 2, 3, 4)",
        "SELECT * FROM t WHERE a IN (1, 2, 3, 4, 5) LIMIT 3",
        "SELECT a, (SELECT Min (b) FROM u) FROM t WHERE a IN (1, 2, 3, 4, 5)",
        "SELECT * FROM t WHERE a IN (1, 2, 3, 4, 5 + 1)",
        "SELECT * FROM t WHERE a IN (1, 2, 3, 4, 1e5)",
        "SELECT * FROM t WHERE a IN (1, 2, 3, 4, 9223372036854775808)",
        "SELECT win(1, 2, 3, 4, 5), \u0131n(1, 2, 3, 4, 5), in_(1, 2, 3, 4, 5)",
        "SELECT * FROM (VALUES (1), (2), (3), (4), (5))",
        "INSERT INTO t SELECT * FROM (VALUES (1), (2), (3), (4), (5))",
        "INSERT INTO t VALUES (1), (2), (3), (4), (5), (random())",
        "INSERT INTO t(\"a IN (1,2,3,4,5)\", [VALUES (1),(2),(3),(4),(5)]) VALUES (1, 2)",
        "INSERT INTO t(a, b) VALUES " + ", ".join(["(1, 2)"] * (LONGER_MAX // 2 + 1)),
    ],
)  # fmt: skip
def test_other_statements_keep_their_own_plan(sql: str) -> None:
    assert with_longer_lists(sql, 0) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM plain INDEXED BY few WHERE note = 1 AND number IN (4, 5, 6, 7, 8)",
        "SELECT id IN (1, 2, 3, 4, 5) FROM plain UNION SELECT number FROM plain ORDER BY id IN (1, 2, 3, 4, 5)",
        "INSERT INTO children VALUES (1, 2, 3) ON CONFLICT(note) WHERE id IN (1, 2, 3, 4, 5) DO UPDATE SET parent = 1",
    ],
)
def test_statement_that_needs_its_list_has_its_own_lengths(db: apsw.Connection, sql: str) -> None:
    db.execute("DROP INDEX few; CREATE INDEX few ON plain(note) WHERE number IN (4, 5, 6, 7, 8)")
    db.execute("DROP TABLE children; CREATE TABLE children(id INTEGER, parent, note)")
    db.execute("CREATE UNIQUE INDEX some ON children(note) WHERE id IN (1, 2, 3, 4, 5)")
    piece = UnchangedStatement(sql, [])
    with pytest.raises(apsw.SQLError):
        db.execute(f"EXPLAIN {with_longer_lists(sql, 0).sql}")  # type: ignore[union-attr]
    assert Analysis(db, lambda _: None).lengths(piece) == analyse(db, read_schema(db), sql, 0).lengths


def test_maximum_in_a_list_reads_the_end_of_each_range(db: apsw.Connection) -> None:
    reads = []
    for count in (3, 5):
        sql = f"SELECT max(number) FROM keyed WHERE day IN ({', '.join('?' * count)})"
        plan = Analysis(db, lambda _: None).plan(UnchangedStatement(sql, [None] * count))
        reads.append(sets(plan.resolve(("d0", "d1", "d7", "d7", "d7")[:count], connection_query(db)).keys()))
    assert reads[0] == reads[1]
    assert len(reads[0][1]) == 3


def test_search_in_a_statement_with_a_long_list_is_bounded(node: TestNode) -> None:
    node.run("CREATE VIRTUAL TABLE f USING fts5(x)")
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    node.run("INSERT INTO t(id, a) VALUES (1, 1)")
    words = " ".join(f"w{number}" for number in range(12_000))
    for sql in (
        "SELECT id FROM t WHERE id IN (?, ?, ?, ?, ?) AND a IN (SELECT rowid FROM f WHERE f MATCH ?)",
        "DELETE FROM t WHERE id IN (?, ?, ?, ?, ?) AND a IN (SELECT rowid FROM f WHERE f MATCH ?)",
    ):
        for _ in range(2):
            with pytest.raises(TooLargeError, match="MATCH"):
                node.run((sql, [1, 2, 3, 4, 5, words]))
            assert node.rows("SELECT id FROM t") == [(1,)]


def test_pattern_in_one_of_many_rows_may_be_long(node: TestNode) -> None:
    node.run("CREATE TABLE t(a)")
    node.run("CREATE TABLE patterns(a)")
    node.run("CREATE TRIGGER finds AFTER INSERT ON patterns BEGIN UPDATE t SET a = 1 WHERE a LIKE new.a; END")
    node.run("INSERT INTO t VALUES ('a')")
    row = f"('%{'a' * 100}%')"
    for count in (2, 6, 7):
        node.run(f"INSERT INTO patterns VALUES {', '.join([row] * count)}")
    assert node.rows("SELECT count(*) FROM patterns") == [(15,)]


def test_long_text_of_rows_is_searched_for_lists_at_once() -> None:
    begun = thread_time()
    for part in ("VALUES (1) ", "VALUES (1),", "(VALUES "):
        assert with_longer_lists("INSERT INTO t SELECT 1, 2, 3, 4, 5, " + part * 200_000, 0) is None
    assert thread_time() - begun < 4


def test_lengths_are_few() -> None:
    assert [longer_length(one) for one in (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25, 96, 97, 128, 129)] == [
        1, 2, 3, 4, 6, 6, 8, 12, 16, 24, 32, 96, 128, 128, 192,
    ]  # fmt: skip
    assert len({longer_length(one) for one in range(1, 10_000)}) == 27
