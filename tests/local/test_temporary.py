"""TEMP objects of a session with a node's file: they are at the node, like those of a session with a URL."""

from collections.abc import Iterator

import pytest

import bedrockish
from bedrockish.client.blocking import Connection
from bedrockish.errors import ConflictError, ConstraintError, SqlError
from tests.local.conftest import here
from tools.cluster import LocalCluster, LocalNode


@pytest.fixture
def db(node: LocalNode, table: str) -> Iterator[Connection]:
    with bedrockish.connect(node.database) as made:
        made.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a CHECK (a >= 0))")
        made.execute(f"INSERT INTO {table} VALUES (1, 10), (2, 20)")
        yield made
        assert not here(made).has_any


def test_session_with_a_file_has_temporary_objects(db: Connection, alone: LocalCluster, table: str) -> None:
    db.execute("CREATE TEMP TABLE mine(id INTEGER PRIMARY KEY, a)")
    db.execute(f"INSERT INTO mine SELECT * FROM {table}")
    db.execute(f"CREATE TEMP VIEW both AS SELECT t.id, t.a, m.a AS was FROM {table} t JOIN mine m USING (id)")
    db.execute("CREATE TEMP TABLE log(what)")
    db.execute(f"CREATE TEMP TRIGGER noted AFTER UPDATE ON {table} BEGIN INSERT INTO log VALUES (new.a); END")
    db.execute(f"UPDATE {table} SET a = 11 WHERE id = 1")
    assert db.execute("SELECT * FROM both ORDER BY id").rows == [(1, 11, 10), (2, 20, 20)]
    assert db.execute("SELECT what FROM log").rows == [(11,)]
    with bedrockish.connect(alone.url()) as other:
        assert other.execute(f"SELECT a FROM {table} WHERE id = 1", read="strict").value() == 11
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


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_transaction_goes_on_after_its_first_temporary_object(
    db: Connection, alone: LocalCluster, table: str, *, is_overtaken: bool
) -> None:
    """The transaction moves to the node, if its statements have the same results there."""
    with bedrockish.connect(alone.url()) as other:
        opened = db.begin()
        assert opened.execute(f"SELECT a FROM {table} WHERE id = 1").value() == 10
        opened.execute(f"UPDATE {table} SET a = 21 WHERE id = 2")
        other.execute(f"INSERT INTO {table} VALUES (7, 70)")  # elsewhere
        db.token = other.token
        if is_overtaken:
            other.execute(f"UPDATE {table} SET a = 9 WHERE id = 1")
            db.token = other.token
            with pytest.raises(ConflictError, match="was moved to the node"):
                opened.execute("CREATE TEMP TABLE mine(a)")
            opened.rollback()
            return
        opened.execute("CREATE TEMP TABLE mine(a)")
        opened.execute(f"INSERT INTO mine SELECT a FROM {table} WHERE id < 3")
        assert opened.execute("SELECT a FROM mine ORDER BY a").rows == [(10,), (21,)]
        opened.commit()
        assert other.execute(f"SELECT a FROM {table} WHERE id = 2", read="strict").value() == 21
    assert db.execute("SELECT count(*) FROM mine").value() == 2


@pytest.mark.parametrize("way", ["path", "URL"])
def test_used_up_ids_of_a_temporary_table_are_told(node: LocalNode, alone: LocalCluster, way: str) -> None:
    """SQLite reports them as a full disk, and the TEMP tables seemed too large."""
    with bedrockish.connect(node.database if way == "path" else alone.url()) as db:
        db.execute("CREATE TEMP TABLE numbered(id INTEGER PRIMARY KEY AUTOINCREMENT, a)")
        db.execute("INSERT INTO numbered VALUES (9223372036854775807, 1)")
        with pytest.raises(ConstraintError, match="numbered is AUTOINCREMENT and its ids are used up; give an id"):
            db.execute("INSERT INTO numbered(a) VALUES (2)")
        db.execute("INSERT INTO numbered VALUES (7, 2)")
        assert db.execute("SELECT count(*) FROM numbered").value() == 2
