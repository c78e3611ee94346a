"""Random statements on tables with every kind of constraint, and SQLite itself with the same tables."""

import random
import re
from collections.abc import Sequence
from typing import Any

import apsw

SCHEMA = (
    "CREATE TABLE p(id INTEGER PRIMARY KEY, code TEXT UNIQUE, n INT CHECK (n < 1000))",
    "CREATE TABLE q(id INTEGER PRIMARY KEY, p INT REFERENCES p(id) DEFERRABLE INITIALLY DEFERRED, v)",
    "CREATE INDEX q_p ON q(p)",
    "CREATE TABLE r(id INTEGER PRIMARY KEY, p INT REFERENCES p(id) ON DELETE CASCADE ON UPDATE CASCADE, v UNIQUE)",
    "CREATE TABLE s(id INTEGER PRIMARY KEY, code REFERENCES p(code) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE w(a TEXT, b INT, c, PRIMARY KEY (a, b)) WITHOUT ROWID",
    "CREATE TABLE g(id INTEGER PRIMARY KEY, a INT, twice AS (2 * a), more AS (a + 1) STORED UNIQUE)",
    "CREATE TABLE e(id INTEGER PRIMARY KEY, v UNIQUE ON CONFLICT REPLACE, u UNIQUE ON CONFLICT FAIL)",
    "CREATE TABLE tree(id INTEGER PRIMARY KEY, up INT REFERENCES tree(id) ON DELETE CASCADE, k UNIQUE)",
    "CREATE TABLE auto(id INTEGER PRIMARY KEY AUTOINCREMENT, v UNIQUE)",
    "CREATE TABLE strict(id INTEGER PRIMARY KEY, a INT NOT NULL, b TEXT COLLATE NOCASE) STRICT",
    "CREATE UNIQUE INDEX partial ON strict(b) WHERE a > 5",
    "CREATE TABLE log(id INTEGER PRIMARY KEY, r)",
    "CREATE TRIGGER r_new AFTER INSERT ON r BEGIN "
    "INSERT INTO log SELECT coalesce(max(id), 0) + 1, new.id FROM log; END",
    "CREATE TRIGGER p_set AFTER UPDATE ON p WHEN new.n > 500 BEGIN UPDATE w SET c = new.n WHERE b = new.id; END",
    "CREATE TRIGGER w_old BEFORE DELETE ON w BEGIN SELECT RAISE(IGNORE) WHERE old.c = 'a'; "
    "SELECT RAISE(FAIL, 'no') WHERE old.c = 'b'; SELECT RAISE(ROLLBACK, 'all') WHERE old.c = 'c'; END",
    "CREATE VIEW sums AS SELECT p.id AS id, n, count(q.id) AS many FROM p LEFT JOIN q ON q.p = p.id GROUP BY p.id",
    "CREATE TRIGGER sums_new INSTEAD OF INSERT ON sums BEGIN INSERT INTO p VALUES (new.id, 'v' || new.id, new.n); END",
    "CREATE VIRTUAL TABLE words USING fts5(a, b)",
)
TABLES = ("q", "r", "s", "tree", "p", "w", "g", "e", "auto", "strict", "log", "words")
# ``:k`` is a small number, ``:n`` a larger one, ``:w`` a word; ``<or>``, ``<long>`` and ``<back>`` may be empty.
STATEMENTS = (
    "INSERT<or> INTO p VALUES (:k, :w, :n<long>)<back>",
    "INSERT<or> INTO q VALUES (:k, :k, :k<long>)",
    "INSERT<or> INTO r VALUES (:k<long>, :k, :k)<back>",
    "INSERT<or> INTO s VALUES (:k, :w)",
    "INSERT<or> INTO w VALUES (:w, :k, :w)",
    "INSERT<or> INTO g(id, a) VALUES (:k, :k<long>)<back>",
    "INSERT<or> INTO e VALUES (:k, :k, :k<long>), (:k, :k, :k)",
    "INSERT<or> INTO tree VALUES (:k, :k, :k)",
    "INSERT<or> INTO tree VALUES (:k, NULL, :k)",
    "INSERT<or> INTO auto VALUES (:k, :k<long>)<back>",
    "INSERT<or> INTO strict VALUES (:k, :k, :w)<back>",
    "INSERT<or> INTO strict VALUES (:k, :w, :w)",
    "INSERT<or> INTO sums(id, n) VALUES (:k, :k<long>)",
    "INSERT<or> INTO words(rowid, a, b) VALUES (:k, :w, :w)",
    "INSERT<or> INTO q SELECT id + :k, p, v<long> FROM q WHERE id < 10",
    "INSERT INTO p VALUES (:k, :w, 1) ON CONFLICT(id) DO UPDATE SET n = n + 1<long> ON CONFLICT(code) DO NOTHING",
    "REPLACE INTO e SELECT id, v, u<long> FROM e WHERE id > :k",
    "UPDATE<or> p SET n = n + :n<long> WHERE id = :k",
    "UPDATE<or> p SET id = id + 1 WHERE id > :k<long>",
    "UPDATE<or> p SET code = :w WHERE id = :k",
    "UPDATE<or> q SET p = :k WHERE id < :k<long>",
    "UPDATE<or> r SET v = :k, p = :k WHERE id >= :k<back>",
    "UPDATE<or> w SET b = b + 1 WHERE b > :k<long>",
    "UPDATE<or> g SET a = a + :k WHERE id > :k",
    "UPDATE<or> e SET v = v + 1, u = u<long> WHERE id > :k",
    "UPDATE<or> tree SET k = k + 1, up = :k WHERE id > :k",
    "UPDATE<or> strict SET a = a + :k, b = :w WHERE id > :k",
    "UPDATE words SET a = :w WHERE rowid = :k",
    "DELETE FROM p WHERE id = :k<long>",
    "DELETE FROM q WHERE id % 3 = :k",
    "DELETE FROM w WHERE b >= :k<long><back>",
    "DELETE FROM tree WHERE id = :k<long><back>",
    "DELETE FROM words WHERE words MATCH 'b'",
    "SELECT count(*), sum(n)<long> FROM p WHERE id > :k",
    "SELECT * FROM q WHERE p = :k ORDER BY id",
    "SELECT * FROM sums ORDER BY id",
    "SELECT rowid, a, b FROM words WHERE words MATCH 'a' ORDER BY rowid",
    *("SAVEPOINT one", "SAVEPOINT two", "ROLLBACK TO one", "ROLLBACK TO two", "RELEASE one", "RELEASE two"),
    "PRAGMA defer_foreign_keys = ON",
)
LONG = " + 0 * (WITH RECURSIVE z(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM z LIMIT 200000) SELECT sum(i) FROM z)"
CLAUSES = ("", "", "", " OR FAIL", " OR IGNORE", " OR REPLACE", " OR ABORT", " OR ROLLBACK")
Values = tuple[Any, ...]


def draw(luck: random.Random) -> tuple[str, Values]:
    """Draw a statement with its parameters."""
    sql = luck.choice(STATEMENTS)
    clause = luck.choice(CLAUSES) if luck.random() < 0.7 else ""
    sql = sql.replace("<or>", clause).replace("<long>", LONG if luck.random() < 0.1 else "")
    sql = sql.replace("<back>", luck.choice(("", "", " RETURNING *")))
    known: dict[str, Sequence[Any]] = {":k": range(1, 12), ":n": (1, 500, 2000), ":w": "abcd"}
    values = tuple(luck.choice(known[kind]) for kind in re.findall(r":[knw]\b", sql))
    return re.sub(r":[knw]\b", "?", sql), values


def plain() -> apsw.Connection:
    """Return SQLite itself with the same tables."""
    # Without a cache: SQLite 3.54 keeps the row that a statement refuses if it was compiled while keys were deferred.
    db = apsw.Connection(":memory:", statementcachesize=0)
    db.pragma("foreign_keys", 1)
    for sql in SCHEMA:
        db.execute(sql)
    return db
