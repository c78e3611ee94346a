"""The functions that a CHECK, an index or a generated column may call: none that varies by node or time."""

import sqlite3
from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.engine.statements.import_check import misfits
from bedrockish.errors import ConfigError, SqlError, UnsupportedError
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode

SWITCHES = (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, apsw.SQLITE_DBCONFIG_ENABLE_FKEY)


def register(db: apsw.Connection) -> None:
    db.create_scalar_function("stable", lambda *_: 1, 1, deterministic=True)
    db.create_scalar_function("loose", lambda *_: 1, 1)


@pytest.fixture
def plugged(make_node: MakeNode) -> TestNode:
    return make_node(prepare=register)


UNSTABLE = {
    "CREATE TABLE t(x CHECK (x > abs(random()) % 2))": "random",
    "CREATE TABLE t(until INT CHECK (until > cluster_clock()))": "cluster_clock",
    "CREATE TABLE t(id INTEGER PRIMARY KEY, x INT, CHECK (x <> transaction_clock())) STRICT": "transaction_clock",
    "CREATE TABLE t(x CHECK (x < CURRENT_TIMESTAMP))": "current_timestamp",
    "CREATE TABLE t(x CHECK (loose(x)))": "loose",
    "CREATE TABLE t(x, y CHECK (x LIKE y AND coalesce(x, total_changes()) > 0), b CHECK (b <> x'ff'))": "total_changes",
    "CREATE TABLE t(x PRIMARY KEY, y, CONSTRAINT c CHECK (y > randomblob(2))) WITHOUT ROWID": "randomblob",
    "CREATE TABLE t(x, y AS (x + 1) CHECK (y > random()))": "random",
    "ALTER TABLE there ADD COLUMN y CHECK (y > random())": "random",
}


@pytest.mark.parametrize("sql", UNSTABLE)
def test_a_check_that_does_not_depend_on_the_row_alone_is_refused(plugged: TestNode, sql: str) -> None:
    plugged.run("CREATE TABLE there(x)")
    others: tuple[Any, ...]
    for others in ((), ("CREATE TABLE copy(x)", "INSERT INTO copy SELECT x FROM there")):
        with pytest.raises(UnsupportedError, match=rf"a CHECK of table (t|there) calls {UNSTABLE[sql]}\(\)"):
            plugged.prepare(*others, sql)
    plugged.run("INSERT INTO there(x) VALUES (1)")


STABLE = (
    "CREATE TABLE t(x INT CHECK (x > 0) REFERENCES yet_to_come)",
    "CREATE TABLE t(x INT CHECK (x > 0), n DEFAULT (random()), r REFERENCES t(n))",
    "CREATE TABLE t(x CHECK (x > 0 AND stable(x) AND x LIKE '%' AND x <> x'fffe'), y DEFAULT (random()))",
    "CREATE TABLE t(x CHECK (x > 0), n NOT NULL ON CONFLICT REPLACE DEFAULT (random()))",
    "CREATE TABLE t(x CHECK (date(x) > '2020-01-01'), y DEFAULT (loose(1)), z DEFAULT CURRENT_TIMESTAMP)",
    "CREATE TABLE t(x CHECK (x > 0) DEFAULT (cluster_clock()), g AS (x + 1) STORED, v AS (stable(g)) CHECK (v > 0))",
)


@pytest.mark.parametrize("sql", STABLE)
def test_nondeterministic_functions_are_allowed_in_defaults_and_triggers(plugged: TestNode, sql: str) -> None:
    plugged.run(sql)
    plugged.run(
        "CREATE TRIGGER told BEFORE INSERT ON t WHEN random() = 0 BEGIN DELETE FROM nowhere WHERE x = random(); END"
    )
    before = [plugged.engine._db.config(one, -1) for one in SWITCHES]
    plugged.run("ALTER TABLE t ADD COLUMN late CHECK (late <> 'no')")
    assert [plugged.engine._db.config(one, -1) for one in SWITCHES] == before == [1, 1]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE INDEX i ON there(random())",
        "CREATE UNIQUE INDEX i ON there(x) WHERE loose(x)",
        "CREATE INDEX i ON there(cluster_clock() + x)",
        "CREATE TABLE t(x, y AS (random()))",
        "ALTER TABLE there ADD COLUMN y AS (loose(x))",
        "ALTER TABLE there ADD COLUMN y DEFAULT (random())",
    ],
)
def test_sqlite_refuses_the_same_in_indexes_generated_columns_and_rows_that_are_there(
    plugged: TestNode, sql: str
) -> None:
    plugged.run("CREATE TABLE there(x)")
    plugged.run("INSERT INTO there VALUES (1)")
    with pytest.raises(SqlError, match=r"non-deterministic|non-constant"):
        plugged.prepare(sql)


def test_existing_unstable_check_does_not_block_other_changes(
    plugged: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of an earlier version may have one; it can be replaced."""
    with monkeypatch.context() as patch:
        patch.setattr("bedrockish.access_sets.table_layout._refuse_unstable_checks", lambda *_: None)
        plugged.run("CREATE TABLE old(x CHECK (x > random()))")
    plugged.run("CREATE TABLE other(x CHECK (x > 0))")
    plugged.run("INSERT INTO old VALUES ('text is more')")
    with pytest.raises(UnsupportedError, match="a CHECK of table old calls random"):
        plugged.prepare("ALTER TABLE old ADD COLUMN y")
    plugged.run(
        "CREATE TABLE better(x)", "INSERT INTO better SELECT x FROM old", "DROP TABLE old",
        "ALTER TABLE better RENAME TO old",
    )  # fmt: skip
    assert plugged.rows("SELECT * FROM old") == [("text is more",)]


@pytest.mark.parametrize(
    ("check", "why"), [("x > random()", r"calls random\(\)"), ("x > cluster_clock()", "unknown function")]
)
def test_existing_file_with_an_unstable_check_is_refused(
    make_node: MakeNode, tmp_path: Path, check: str, why: str
) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as db:
        db.create_function("cluster_clock", 0, lambda: 1)
        db.execute(f"CREATE TABLE t(x CHECK ({check}))")
    db.close()
    with pytest.raises(ConfigError, match=f"old.db cannot be a node's file: .*{why}"):
        make_node(path=path)
    [found] = misfits([("table t", f"CREATE TABLE t(x CHECK ({check}))")])
    assert "random" in found or "no such function" in found or "unknown function" in found
