"""Random statements on sqlite3 and on a node, by URL and by path, with the same results, errors and open transactions.

The test leaves out the differences of docs/sql.md: generated ids, FAIL outside of a transaction, and
``total_changes()``, which counts rows of triggers in SQLite.
"""

import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import pytest

import bedrockish.dbapi as db

pytestmark = pytest.mark.cluster
TABLES = ("a ORDER BY id", "b ORDER BY id", "c ORDER BY k, n", "s ORDER BY id", "d ORDER BY id", "l ORDER BY what, new")
SCHEMA = """
DROP VIEW IF EXISTS v; DROP TABLE IF EXISTS d; DROP TABLE IF EXISTS b; DROP TABLE IF EXISTS a;
DROP TABLE IF EXISTS c; DROP TABLE IF EXISTS s; DROP TABLE IF EXISTS l;
CREATE TABLE a(
  id INTEGER PRIMARY KEY, v INTEGER CHECK (v < 90), name TEXT UNIQUE ON CONFLICT {clause}, d DEFAULT (7 + 1),
  w AS (v + 1) VIRTUAL
);
CREATE TABLE b(
  id INTEGER PRIMARY KEY AUTOINCREMENT, a INTEGER REFERENCES a(id) ON DELETE CASCADE ON UPDATE SET NULL,
  x TEXT COLLATE NOCASE, UNIQUE (x, a)
);
CREATE TABLE c(k TEXT, n INTEGER, g AS (n * 2) STORED, PRIMARY KEY (k, n)) WITHOUT ROWID;
CREATE TABLE s(id INTEGER PRIMARY KEY, i INT NOT NULL, r REAL, t TEXT, z ANY) STRICT;
CREATE TABLE d(id INTEGER PRIMARY KEY, a INTEGER REFERENCES a(id) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE l(what TEXT, new);
CREATE UNIQUE INDEX part ON a(v) WHERE v > 60;
CREATE INDEX expression ON a(abs(v));
CREATE VIEW v AS SELECT a.id, a.v, b.x FROM a LEFT JOIN b ON b.a = a.id;
CREATE TRIGGER log AFTER UPDATE OF v ON a WHEN new.v > 50 BEGIN INSERT INTO l VALUES ('u', new.v); END;
CREATE TRIGGER refuse BEFORE INSERT ON c WHEN new.n = 13 BEGIN SELECT RAISE({raised}, 'thirteen'); END;
CREATE TRIGGER instead INSTEAD OF INSERT ON v BEGIN
  INSERT INTO a(id, v) VALUES (new.id, new.v); INSERT INTO b(id, a, x) VALUES (new.id, new.id, new.x);
END;
CREATE TRIGGER after AFTER DELETE ON b BEGIN
  UPDATE c SET n = n + 1 WHERE k = old.x; INSERT INTO l VALUES ('d', old.x);
END;
"""
# Each statement with the kinds of its values; see ``draw``.
STATEMENTS: Sequence[tuple[str, str]] = [
    ("INSERT INTO a(id, v, name) VALUES (?, ?, ?)", "kin"),
    ("INSERT INTO a(id, v) VALUES (:k, :i)", "named"),
    ("INSERT OR REPLACE INTO a(id, v, name) VALUES (?, ?, ?)", "kin"),
    ("INSERT OR ROLLBACK INTO a(id, v) VALUES (?, ?)", "ki"),
    ("INSERT OR FAIL INTO a(id, v) SELECT ? + n, n FROM c WHERE n IS NOT NULL", "k"),
    ("UPDATE a SET v = v + ? WHERE id > ?", "ii"),
    ("UPDATE a SET id = id + ? WHERE id = ?", "ii"),
    ("UPDATE a SET id = 'text' WHERE id = ?", "k"),
    ("UPDATE a SET v = length(b.x) FROM b WHERE b.a = a.id AND b.a < ?", "i"),
    ("UPDATE a SET name = ? WHERE id = ? RETURNING name, v", "nk"),
    ("DELETE FROM a WHERE id = ?", "k"),
    ("DELETE FROM a", ""),
    ("INSERT OR IGNORE INTO b VALUES (?, ?, ?)", "kkn"),
    ("INSERT INTO b VALUES (?, ?, ?) RETURNING x", "kkn"),
    ("INSERT INTO b VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET x = excluded.x RETURNING *", "kkn"),
    ("REPLACE INTO b VALUES (?, ?, ?)", "kkn"),
    ("INSERT INTO b SELECT id, id, name FROM a WHERE v > ?", "i"),
    ("DELETE FROM b WHERE a < ? RETURNING x", "i"),
    ("INSERT INTO c(k, n) VALUES (?, ?)", "ni"),
    ("INSERT INTO c(k, n) VALUES (?, ?), (?, 13), ('q', ?)", "nini"),
    ("INSERT INTO c(k, n) VALUES (?, ?) ON CONFLICT DO NOTHING", "ni"),
    ("UPDATE c SET n = n + ? WHERE k > ?", "in"),
    ("UPDATE OR REPLACE c SET n = ? WHERE k = ?", "in"),
    ("UPDATE OR FAIL c SET n = ?", "i"),
    ("DELETE FROM c WHERE n = (SELECT min(n) FROM c)", ""),
    ("INSERT INTO s VALUES (?, ?, ?, ?, ?)", "kmmmm"),
    ("UPDATE s SET i = ?, t = t || ? WHERE i < ?", "mni"),
    ("INSERT INTO v VALUES (?, ?, ?)", "kin"),
    ("INSERT INTO d VALUES (?, ?)", "kk"),
    ("UPDATE d SET a = ?", "k"),
    ("DELETE FROM d WHERE a NOT IN (SELECT id FROM a)", ""),
    ("INSERT INTO l VALUES ('m', ?)", "m"),
    *[(f"SELECT * FROM {table}", "") for table in TABLES],
    ("SELECT * FROM v ORDER BY 1, 2, 3", ""),
    ("SELECT count(*), sum(v), group_concat(name) FROM (SELECT * FROM a ORDER BY id)", ""),
    ("SELECT id FROM a WHERE name = ? COLLATE NOCASE ORDER BY id", "n"),
    ("SELECT :k, @i, $n, ?5", "named"),
    *[(sql, "m") for sql in ("SELECT ?", "SELECT abs(?)", "SELECT nosuch(?)")],
    *[(sql, "") for sql in ("SAVEPOINT p", "SAVEPOINT q", "RELEASE p", "RELEASE q", "ROLLBACK TO p", "ROLLBACK TO q")],
    *[(sql, "") for sql in ("BEGIN", "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK", "COMMIT", "BEGIN")],
    *[(sql, "") for sql in ("INSERT INTO nosuch VALUES (1)", "SELEKT", "SELECT 1; SELECT 2")],
    # From Python 3.12 on, sqlite3 may raise the error of an earlier statement for a text without one.
    *[(sql, "") for sql in ("", "-- only", ";") if sys.version_info < (3, 12)],
]
KINDS: Mapping[str, Sequence[Any]] = {
    "k": range(40),
    "i": [*range(8), *range(0, 100, 9), None, -1],
    "n": ["x", "X", "y", "thirteen", "", None, "zé", "a" * 50],
    "m": [1, 2.5, "t", b"\x00\xff", None, 2**63 - 1, "12", 1e300, float("inf"), True, "1.0", -0.0],
}


def draw(luck: Random, kinds: str) -> Any:
    """Return values for a statement, sometimes one too few or too many."""
    if kinds == "named":
        names = [name for name in "kin" if luck.random() < 0.9] + ["more"] * (luck.random() < 0.2)
        return {name: luck.choice(KINDS.get(name, [1])) for name in names}
    values = [luck.choice(KINDS[kind]) for kind in kinds]
    odd = luck.random()
    if odd < 0.04:
        values.append(1)
    elif odd < 0.08:
        del values[-1:]
    return tuple(values)


def answer(connection: Any, sql: str, values: Any) -> tuple[Any, ...]:
    """Run a statement; return everything that a program can see of it, or the class of its error."""
    try:
        cursor = connection.execute(sql, values)
        rows = [tuple((type(value), value) for value in row) for row in cursor.fetchall()]
        names = [column[0] for column in cursor.description] if cursor.description else None
        return names, rows, cursor.rowcount, connection.in_transaction
    except (db.Error, sqlite3.Error) as error:
        return type(error).__name__, connection.in_transaction


@pytest.fixture
def pair(url: str) -> Iterator[tuple[Any, Any]]:
    ours, plain = db.connect(url, isolation_level=None), sqlite3.connect(":memory:", isolation_level=None)
    plain.execute("PRAGMA foreign_keys = ON")
    yield ours, plain
    ours.close()
    plain.close()


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
def test_random_statements_have_the_answers_of_sqlite3(pair: tuple[Any, Any], seed: int) -> None:
    luck = Random(seed)
    clause, raised = luck.choice(["ABORT", "REPLACE", "IGNORE", "ROLLBACK"]), luck.choice(["ABORT", "ROLLBACK"])
    for one in pair:
        one.executescript(SCHEMA.format(clause=clause, raised=raised))
    ours, plain = pair
    for _ in range(400):
        sql, kinds = luck.choice(STATEMENTS)
        values = draw(luck, kinds)
        if "FAIL" in sql and not plain.in_transaction:
            continue
        assert answer(ours, sql, values) == answer(plain, sql, values), (sql, values)
    for one in pair:
        if one.in_transaction:
            one.rollback()
    for table in TABLES:
        assert answer(ours, f"SELECT * FROM {table}", ()) == answer(plain, f"SELECT * FROM {table}", ()), table
