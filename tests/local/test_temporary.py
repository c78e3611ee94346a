"""TEMP objects of a session with a node's file: they are in the program's process, and rows of others are certified."""

import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import bedrockish
from bedrockish import dbapi
from bedrockish.api.wire import COMMIT, Step
from bedrockish.client.blocking import Connection
from bedrockish.errors import (
    ConflictError,
    ConstraintError,
    OutcomeUnknownError,
    SqlError,
    TemporaryLostError,
    UnsupportedError,
)
from bedrockish.local import transaction
from tests.local.conftest import here
from tools.cluster import LocalCluster, LocalNode, local_cluster


@pytest.fixture
def db(node: LocalNode, table: str) -> Iterator[Connection]:
    with bedrockish.connect(node.database) as made:
        made.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a CHECK (a >= 0))")
        made.execute(f"INSERT INTO {table} VALUES (1, 10), (2, 20)")
        yield made
        assert not here(made).has_any


def calls_of(db: Connection, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    plain = db._client._call

    async def noted(what: Any, timeout_s: float) -> Any:
        made.append(what)
        return await plain(what, timeout_s)

    monkeypatch.setattr(db._client, "_call", noted)
    return made


def test_a_temporary_table_gets_a_computed_column(db: Connection) -> None:
    db.execute("CREATE TEMP TABLE computed(a)")
    db.execute("INSERT INTO computed VALUES (1)")
    db.execute("ALTER TABLE computed ADD COLUMN b AS (a + 1) CHECK (b < 5)")
    assert db.execute("SELECT a, b FROM computed").rows == [(1, 2)]
    with pytest.raises(ConstraintError, match="CHECK"):
        db.execute("INSERT INTO computed(a) VALUES (7)")


def test_failed_alter_of_a_temporary_table_keeps_the_table(db: Connection) -> None:
    db.execute("CREATE TEMP TABLE mine(a)")
    db.execute("INSERT INTO mine VALUES (1), (NULL)")
    opened = db.begin()
    for at in (opened, db):
        for check, name in (("a != 1", "CHECK"), ("a != 2", "NOT NULL")):
            with pytest.raises(SqlError, match=name):
                at.execute(f"ALTER TABLE mine ADD COLUMN b AS (a + 1) NOT NULL CHECK ({check})")
            assert at.execute("SELECT * FROM mine").rows == [(1,), (None,)]
        opened.rollback()


def test_temporary_objects_are_in_the_programs_process(
    db: Connection, alone: LocalCluster, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of(db, monkeypatch)
    db.execute("CREATE TEMP TABLE mine(id INTEGER PRIMARY KEY, a)")
    db.execute(f"INSERT INTO mine SELECT * FROM {table}")
    db.execute(f"CREATE TEMP VIEW both AS SELECT t.id, t.a, m.a AS was FROM {table} t JOIN mine m USING (id)")
    db.execute("CREATE TEMP TABLE log(what)")
    db.execute(f"CREATE TEMP TRIGGER noted AFTER UPDATE ON {table} BEGIN INSERT INTO log VALUES (new.a); END")
    assert not calls, "the node hears of nothing"
    db.execute(f"UPDATE {table} SET a = 11 WHERE id = 1")
    assert [(type(one), one.op) for one in calls] == [(Step, COMMIT)]
    assert db.execute("SELECT * FROM both ORDER BY id").rows == [(1, 11, 10), (2, 20, 20)]
    assert db.execute("SELECT what FROM log").rows == [(11,)]
    with bedrockish.connect(alone.url()) as other:
        assert other.execute(f"SELECT a FROM {table} WHERE id = 1", read="strict").value() == 11
        other.execute(f"UPDATE {table} SET a = 12 WHERE id = 1")
        db.token = other.token
        assert db.execute("SELECT a, was FROM both WHERE id = 1").rows == [(12, 10)]
        with pytest.raises(SqlError, match="no such table: mine"):
            other.execute("SELECT * FROM mine")


def test_rollback_and_savepoints_restore_temporary_rows(db: Connection, table: str) -> None:
    db.execute("CREATE TEMP TABLE mine(a)")
    opened = db.begin()
    opened.execute("INSERT INTO mine VALUES (1)")
    opened.execute(f"UPDATE {table} SET a = 0")
    opened.rollback()
    assert db.execute("SELECT count(*) FROM mine").value() == 0
    with db.transaction() as tx:
        tx.execute("INSERT INTO mine VALUES (1)")
        tx.execute("SAVEPOINT one")
        tx.execute("INSERT INTO mine VALUES (2)")
        tx.execute(f"UPDATE {table} SET a = 0 WHERE id = 2")
        tx.execute("ROLLBACK TO one")
        with pytest.raises(ConstraintError):
            tx.execute(f"UPDATE {table} SET a = -1")
        assert tx.execute(f"SELECT sum(a) FROM {table}").value() == 30
    assert db.execute("SELECT a FROM mine").rows == [(1,)]


def test_lost_transaction_rolls_its_temporary_rows_back(db: Connection, alone: LocalCluster, table: str) -> None:
    db.execute("CREATE TEMP TABLE mine(a)")
    with bedrockish.connect(alone.url()) as other:
        opened = db.begin()
        opened.execute(f"INSERT INTO mine SELECT a FROM {table} WHERE id = 1")
        opened.execute(f"UPDATE {table} SET a = 0 WHERE id = 2")
        other.execute(f"UPDATE {table} SET a = 5 WHERE id = 1")
        with pytest.raises(ConflictError):
            opened.commit()
    assert db.execute("SELECT count(*) FROM mine").value() == 0


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_transaction_goes_on_after_its_first_temporary_object(
    db: Connection, alone: LocalCluster, table: str, *, is_overtaken: bool
) -> None:
    """The transaction goes on in the session's workspace, at its own moment, or as if it had begun there."""
    with bedrockish.connect(alone.url()) as other:
        opened = db.begin()
        assert opened.execute(f"SELECT a FROM {table} WHERE id = 1").value() == 10
        opened.execute(f"UPDATE {table} SET a = 21 WHERE id = 2")
        other.execute(f"INSERT INTO {table} VALUES (7, 70)")  # elsewhere
        db.token = other.token
        if is_overtaken:
            other.execute(f"UPDATE {table} SET a = 9 WHERE id = 1")
            db.token = other.token
            with pytest.raises(ConflictError, match="create the TEMP object first"):
                opened.execute("CREATE TEMP TABLE mine(a)")
            opened.rollback()
            return
        opened.execute("CREATE TEMP TABLE mine(a)")
        opened.execute(f"INSERT INTO mine SELECT a FROM {table} WHERE id < 3")
        assert opened.execute("SELECT a FROM mine ORDER BY a").rows == [(10,), (21,)]
        opened.commit()
        assert other.execute(f"SELECT a FROM {table} WHERE id = 2", read="strict").value() == 21
    assert db.execute("SELECT count(*) FROM mine").value() == 2


def test_transaction_that_is_too_long_for_its_first_temporary_object_tells_the_reason(
    db: Connection, alone: LocalCluster, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the length of the transaction, and no rows that another transaction has changed."""
    monkeypatch.setattr(transaction, "LOG_MAX", 2)
    with bedrockish.connect(alone.url()) as other:
        opened = db.begin()
        for number in range(3):
            opened.execute(f"UPDATE {table} SET a = {number} WHERE id = 1")
        other.execute(f"INSERT INTO {table} VALUES (7, 70)")
        db.token = other.token
        for text in ("CREATE TEMP TABLE mine(a)", f"SELECT a FROM {table}"):
            with pytest.raises(ConflictError, match="too long to be run again on them; it did not happen"):
                opened.execute(text)
        with pytest.raises(ConflictError, match="it did not happen"):
            opened.commit()
    assert db.execute(f"SELECT a FROM {table} WHERE id = 1").value() == 10


def test_deferred_key_stays_broken_when_the_first_temporary_object_is_made(db: Connection, table: str) -> None:
    """The count of broken keys is SQLite's, on the connection that the transaction leaves."""
    key = f"REFERENCES {table}(id) DEFERRABLE INITIALLY DEFERRED"
    db.execute(f"CREATE TABLE {table}_of(id INTEGER PRIMARY KEY, of {key})")
    opened = db.begin()
    opened.execute(f"INSERT INTO {table}_of VALUES (1, 9)")
    opened.execute("CREATE TEMP TABLE mine(a)")
    with pytest.raises(ConstraintError, match="deferred"):
        opened.commit()
    opened.execute(f"INSERT INTO {table} VALUES (9, 90)")
    opened.commit()
    assert db.execute(f"SELECT of FROM {table}_of").value() == 9


def test_deferred_keys_of_temporary_tables_are_checked_at_commit(db: Connection, table: str) -> None:
    """Otherwise COMMIT would succeed without its TEMP rows, and the session would lose its TEMP objects."""
    db.execute("CREATE TEMP TABLE parent(id INTEGER PRIMARY KEY)")
    db.execute("CREATE TEMP TABLE child(p REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(ConstraintError, match="FOREIGN KEY"):
        db.execute("INSERT INTO child VALUES (5)")
    opened = db.begin()
    opened.execute("INSERT INTO child VALUES (6)")
    opened.execute(f"INSERT INTO {table} VALUES (6, 60)")
    with pytest.raises(ConstraintError, match="deferred"):
        opened.commit()
    opened.execute("INSERT INTO parent VALUES (6)")
    opened.commit()
    assert db.execute(f"SELECT p FROM child JOIN {table} ON id = p").rows == [(6,)]


def test_conflict_clause_fail_keeps_the_rows_of_a_temporary_table(db: Connection) -> None:
    db.execute("CREATE TEMP TABLE mine(id INTEGER PRIMARY KEY, a CHECK (a > 0), p REFERENCES mine(id))")
    opened = db.begin()
    for sql, left in (
        ("INSERT OR FAIL INTO mine VALUES (1, 1, 1), (2, 0, 1)", "1"),
        ("INSERT OR ABORT INTO mine VALUES (3, 1, 1), (4, 0, 1)", "1"),
        ("INSERT OR FAIL INTO mine VALUES (5, 1, 1), (6, 1, 9)", "1"),
    ):
        with pytest.raises(ConstraintError):
            opened.execute(sql)
        assert opened.execute("SELECT group_concat(id) FROM mine").value() == left
    opened.commit()
    assert db.execute("SELECT count(*) FROM mine").value() == 1


def test_functions_and_attached_files_work_beside_temporary_objects(node: LocalNode, table: str, tmp_path: Any) -> None:
    import sqlite3

    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as made:
        made.execute("CREATE TABLE x(id INTEGER PRIMARY KEY, word)")
        made.execute("INSERT INTO x VALUES (1, 'one')")
        made.commit()
    with closing(dbapi.connect(node.database)) as mine:
        mine.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, word)")
        mine.execute("CREATE TEMP TABLE short(id, word)")
        mine.create_function("loud", 1, str.upper)
        mine.execute("ATTACH ? AS other", (str(tmp_path / "other.sqlite"),))
        mine.execute("INSERT INTO short SELECT id, loud(word) FROM other.x")
        mine.execute(f"INSERT INTO {table} SELECT * FROM short")
        mine.commit()
        assert mine.execute(f"SELECT * FROM {table}").fetchall() == [(1, "ONE")]
        mine.execute("DETACH other")
        assert mine.execute("SELECT word FROM short").fetchall() == [("ONE",)]
        described = mine.execute("SELECT id AS x, word FROM short WHERE 0").description or ()
        assert [one[0] for one in described] == ["x", "word"]


def test_statements_that_need_the_node_are_refused_by_name(db: Connection, table: str) -> None:
    db.execute("CREATE TEMP TABLE mine(a)")
    opened = db.begin()
    for sql, why in {
        "SELECT cluster_clock()": r"needs the node .* run it on another connection",
        f"CREATE TABLE {table}x(a)": "cannot change the schema of the database",
        f"CREATE TEMP TABLE {table}(a)": "the database has an object of this name",
    }.items():
        with pytest.raises(UnsupportedError, match=why):
            opened.execute(sql)
    opened.rollback()
    db.execute(f"CREATE TABLE {table}y(a)")
    assert db.execute(f"SELECT count(*) FROM {table}y, mine").value() == 0


def test_unknown_outcome_ends_the_temporary_objects(
    db: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows may belong to a committed transaction or to another one."""
    db.execute("CREATE TEMP TABLE mine(a)")
    opened = db.begin()
    opened.execute("INSERT INTO mine VALUES (1)")
    opened.execute(f"UPDATE {table} SET a = 0")

    async def lost(_what: Any, _timeout_s: float) -> Any:
        raise OutcomeUnknownError("the answer was lost", command="x")

    with monkeypatch.context() as patched:
        patched.setattr(db._client, "_call", lost)
        with pytest.raises(OutcomeUnknownError):
            opened.commit()
    with pytest.raises(TemporaryLostError):
        db.execute("SELECT * FROM mine")
    db.execute("CREATE TEMP TABLE mine(a)")
    assert db.execute("SELECT count(*) FROM mine").value() == 0


def test_temporary_objects_end_with_the_node_process() -> None:
    with bedrockish.node() as node, node.connect() as db:
        db.execute("CREATE TABLE t(a)")
        db.execute("CREATE TEMP TABLE mine(a)")
        temporary = here(db)._temporary
        assert temporary is not None
        before = temporary.facts
        temporary.facts = before._replace(generation=before.generation + 1)  # as after its restart
        with pytest.raises(TemporaryLostError, match="make the objects again"):
            db.execute("SELECT * FROM mine")
        with pytest.raises(SqlError, match="no such table"):
            db.execute("SELECT * FROM mine")
        db.execute("CREATE TEMP TABLE mine(a)")


@pytest.mark.parametrize("way", ["path", "URL"])
def test_exhausted_ids_of_a_temporary_table_raise_an_error(node: LocalNode, alone: LocalCluster, way: str) -> None:
    """SQLite reports exhausted ids as a full disk; the error must not say that the TEMP tables are too large."""
    with bedrockish.connect(node.database if way == "path" else alone.url()) as db:
        db.execute("CREATE TEMP TABLE numbered(id INTEGER PRIMARY KEY AUTOINCREMENT, a)")
        db.execute("INSERT INTO numbered VALUES (9223372036854775807, 1)")
        with pytest.raises(ConstraintError, match="numbered is AUTOINCREMENT and its ids are used up; give an id"):
            db.execute("INSERT INTO numbered(a) VALUES (2)")
        db.execute("INSERT INTO numbered VALUES (7, 2)")
        assert db.execute("SELECT count(*) FROM numbered").value() == 2


@contextmanager
def limited_files(process: int) -> Iterator[None]:
    """Let a process write no file beyond 4 MiB: TEMP rows that do not fit into memory are in such a file."""
    before = resource.prlimit(process, resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("way", ["path", "URL"])
def test_temporary_file_without_room_ends_the_temporary_objects(tmp_path: Path, way: str) -> None:
    """SQLite may lose pages of the TEMP tables in such a write, and later reports a malformed database.

    So the session loses its TEMP objects, in the program and at the node; it is not blocked, and the error is not
    internal.
    """
    fill = "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 30000) SELECT zeroblob(500) FROM s"
    with local_cluster(tmp_path / "one", ("A",)) as cluster:  # a new node, whose own files are short
        trio.run(cluster.wait_ready, 0)
        node = cluster.nodes[0]
        assert node.process is not None
        process = os.getpid() if way == "path" else node.process.pid
        with bedrockish.connect(node.database if way == "path" else cluster.url()) as db:
            db.execute("CREATE TABLE t(a)")
            db.execute("CREATE TEMP TABLE mine(a)")
            with limited_files(process):
                with pytest.raises(TemporaryLostError, match=r"temporary files could not be written; .*make room"):
                    db.execute(f"INSERT INTO mine {fill}")
                with pytest.raises(SqlError, match="no such table: mine"):
                    db.execute("SELECT * FROM mine")
                db.execute("INSERT INTO t VALUES (1)")
                db.execute("CREATE TEMP TABLE mine(a)")
                db.execute("INSERT INTO mine VALUES (1)")
            assert db.execute("SELECT count(*) FROM mine, t").value() == 1
            db.execute(f"INSERT INTO mine {fill}")
            assert db.execute("SELECT count(*) FROM mine").value() == 30_001
        assert "internal error" not in node.log.read_text()
