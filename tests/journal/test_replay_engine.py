"""The engine's file equals a replay of its journal, with all table features."""

from pathlib import Path
from random import Random

import apsw
import pytest

from bedrockish_journal.verify.replay import digest, replay
from bedrockish_journal.verify.verify import verify
from tests.engine.nodes import TestNode

STORIES = {
    "types": [
        "CREATE TABLE t(id INTEGER PRIMARY KEY, a REAL, b TEXT, c BLOB, d, e INT)",
        "INSERT INTO t VALUES (1, 5, 5, x'05', 5.0, '5'), (2, -0.0, 'é', x'', 9e999, NULL)",
        "INSERT INTO t VALUES (-9223372036854775808, 1e300, '', x'00ff', -9e999, 9223372036854775807)",
        "UPDATE t SET a = 7 WHERE id = 1",
        "UPDATE t SET id = 9 WHERE id = 2",
        "DELETE FROM t WHERE id = 1",
    ],
    "triggers and foreign keys": [
        "CREATE TABLE p(id INTEGER PRIMARY KEY, n INT)",
        "CREATE TABLE c(id INTEGER PRIMARY KEY, p REFERENCES p ON DELETE CASCADE)",
        "CREATE TABLE log(id INTEGER PRIMARY KEY, what TEXT)",
        "CREATE TRIGGER told AFTER UPDATE ON p BEGIN INSERT INTO log(id, what) VALUES (new.n, 'n'); END",
        "INSERT INTO p VALUES (1, 1), (2, 2)",
        "INSERT INTO c VALUES (1, 1), (2, 1), (3, 2)",
        "UPDATE p SET n = n + 10",
        "DELETE FROM p WHERE id = 1",
    ],
    "keys": [
        "CREATE TABLE w(a TEXT COLLATE NOCASE, b INT, v, PRIMARY KEY (b, a)) WITHOUT ROWID",
        "CREATE TABLE u(a INT UNIQUE, b)",
        "INSERT INTO w VALUES ('x', 1, 1), ('y', 1, 2)",
        "UPDATE w SET a = 'X' WHERE a = 'x'",
        "INSERT OR REPLACE INTO w VALUES ('Y', 1, 3)",
        "INSERT INTO u(rowid, a, b) VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3)",
        "UPDATE u SET a = -a",
        "UPDATE OR REPLACE u SET a = -3 WHERE a = -2",
    ],
    "generated columns": [
        "CREATE TABLE g(id INTEGER PRIMARY KEY, a INT, b AS (a * 2) STORED)",
        "INSERT INTO g(id, a) VALUES (1, 1), (2, 2)",
        "UPDATE g SET a = a + 1",
        "DELETE FROM g WHERE b = 4",
    ],
    "empty names": [
        'CREATE TABLE ""("" UNIQUE, x)',
        'CREATE TABLE p("" INTEGER PRIMARY KEY, x)',
        'CREATE TABLE w("" PRIMARY KEY, x) WITHOUT ROWID',
        'CREATE TABLE g(a, "" AS (a + 1), b AS ("" + 1) STORED)',
        'INSERT INTO "" VALUES (1, 2), (3, 4)',
        'UPDATE "" SET "" = 5 WHERE x = 2',
        'DELETE FROM "" WHERE "" = 3',
        "INSERT INTO p VALUES (1, 2), (3, 4)",
        'UPDATE p SET "" = 5 WHERE x = 2',
        "INSERT INTO w VALUES (1, 2), (3, 4)",
        'UPDATE w SET "" = 5 WHERE x = 2',
        "INSERT INTO g(a) VALUES (1), (2)",
        "UPDATE g SET a = 5 WHERE b = 3",
    ],
    "zeros": [
        "CREATE TABLE z(id INTEGER PRIMARY KEY, a, n INT, r REAL)",
        "INSERT INTO z VALUES (1, 0.0, 1, 0.0), (2, -0.0, 1, -0.0), (3, 0, 1, 0), (4, 0.0, 1, 0.0)",
        "UPDATE z SET a = -0.0, n = 2, r = -0.0 WHERE id = 1",
        "UPDATE z SET a = 0.0, n = 2, r = 0.0 WHERE id = 2",
        "UPDATE z SET a = -0.0 WHERE id = 4",
    ],
    "schema changes": [
        "CREATE TABLE s(id INTEGER PRIMARY KEY, a)",
        "INSERT INTO s VALUES (1, 'one')",
        "ALTER TABLE s ADD COLUMN b DEFAULT 7",
        "INSERT INTO s VALUES (2, 'two', 2)",
        "UPDATE s SET b = 8 WHERE id = 1",
        "CREATE INDEX s_b ON s(b)",
        "ALTER TABLE s RENAME COLUMN a TO name",
        "DELETE FROM s WHERE name = 'two'",
        "DROP INDEX s_b",
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_a_replay_makes_the_same_database_as_the_engine(story: str, tmp_path: Path) -> None:
    node = TestNode(tmp_path / "node.db")
    for statement in STORIES[story]:
        node.run(statement)
    node.save()
    one = replay([node.path], tmp_path / "one.db")
    two = replay([node.path], tmp_path / "two.db", draw=Random(1).random)
    assert one.entries == len(STORIES[story])
    assert {digest(node.path), one.digest, two.digest} == {digest(node.path)}
    checks = {finding.check for finding in verify([node.path]).findings}
    assert checks == {"quorum"}, "the node of this test approves alone, which is one too few of two"
    node.engine.close()


def test_replay_does_not_evaluate_checks(tmp_path: Path) -> None:
    """The leader has evaluated them, and a plugin's function may have another result today."""
    answer = {"fine": 1}

    def prepare(db: apsw.Connection) -> None:
        db.create_scalar_function("is_fine", lambda *_: answer["fine"], 1, deterministic=True)

    node = TestNode(tmp_path / "node.db", prepare=prepare)
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, n CHECK (is_fine(n)))")
    node.run("INSERT INTO t VALUES (1, 1)")
    node.run("UPDATE t SET n = 2")
    node.save()
    answer["fine"] = 0
    for number, draw in enumerate((None, Random(0).random)):
        assert replay([node.path], tmp_path / f"{number}.db", draw=draw, prepare=prepare).digest == digest(node.path)
    node.engine.close()
