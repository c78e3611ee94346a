"""Other files attached to read, on a connection by the path of a node's file."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import bedrockish
import bedrockish.dbapi as dbapi
from bedrockish.errors import SqlError, UnsupportedError, UsageError
from tests.journal.unfinished import leave_unfinished

pytestmark = pytest.mark.cluster


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "o'ther file?.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE x(id INTEGER PRIMARY KEY, word); INSERT INTO x VALUES (1, 'one'), (2, 'two')")
    return path


def test_attached_file_of_a_killed_program_is_rolled_back_first(other: Path) -> None:
    leave_unfinished(other)
    with bedrockish.node() as node, node.connect() as db:
        db.execute("ATTACH ? AS other", [str(other)])
        assert db.execute("SELECT count(*) FROM other.x").value() == 2
        assert db.execute("SELECT name FROM other.sqlite_schema").rows == [("x",)]


def test_attached_files_are_read_and_copied_from(other: Path) -> None:
    """Reads join them, and transactions copy rows from them, also when attached later; they are never written."""
    with bedrockish.node() as node, node.connect() as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, word)")
        db.execute("INSERT INTO t VALUES (1, 'uno')")
        with db.transaction() as tx:
            assert tx.execute("SELECT count(*) FROM t").value() == 1
        db.execute("ATTACH ? AS other", [str(other)])
        assert db.execute("SELECT x.word FROM t JOIN other.x USING (id)").rows == [("one",)]
        with db.transaction() as tx:
            assert tx.execute("SELECT max(id) FROM other.x").value() == 2
            tx.execute("INSERT INTO t SELECT id + 10, word FROM other.x")
            with pytest.raises(UnsupportedError, match="attached for reading only"):
                tx.execute("INSERT INTO other.x VALUES (3, 'three')")
        assert db.execute("SELECT id, word FROM t WHERE id > 10 ORDER BY id").rows == [(11, "one"), (12, "two")]
        with node.connect() as second:
            assert second.execute("SELECT count(*) FROM t").value() == 3
            with pytest.raises(SqlError, match="no such table"):
                second.execute("SELECT * FROM other.x")
            with second.transaction() as tx, pytest.raises(UnsupportedError, match="by the path of a node's file"):
                tx.execute(f"ATTACH '{other.parent}/x' AS other")
        db.execute("DETACH DATABASE other")
        with pytest.raises(SqlError, match="no such table"):
            db.execute("SELECT * FROM other.x")
        with db.transaction() as tx, pytest.raises(SqlError, match="no such table"):
            tx.execute("SELECT * FROM other.x")


def test_files_that_cannot_be_attached_are_named(other: Path, tmp_path: Path) -> None:
    """A missing file, a text file, a used name, and an attachment in the block of a snapshot."""
    (tmp_path / "text").write_text("this is no database at all, but a text that is long enough to have a header" * 9)
    with bedrockish.node() as node, node.connect() as db:
        db.execute("ATTACH ? AS other", [str(other)])
        for sql, why in {
            f"ATTACH '{tmp_path}/missing' AS a": "no such file",
            f"ATTACH '{tmp_path}/text' AS a": "not a database",
            f"ATTACH '{tmp_path}/text' AS Other": "already in use",
            "DETACH nothing": "no such database",
        }.items():
            with pytest.raises(SqlError, match=why):
                db.execute(sql)
        for place in (":memory:", ""):
            with pytest.raises(UnsupportedError, match="use CREATE TEMP TABLE"):
                db.execute("ATTACH ? AS a", [place])
        with db.snapshot(), pytest.raises(UsageError, match="outside of a snapshot"):
            db.execute("DETACH other")
        assert db.execute("SELECT count(*) FROM other.x").value() == 2


def test_program_may_attach_as_many_files_as_sqlite_allows(other: Path) -> None:
    with bedrockish.node() as node, node.connect() as db:
        attached, error = 0, ""
        while not error:
            try:
                db.execute(f"ATTACH ? AS other{attached}", [str(other)])
                attached += 1
            except SqlError as failure:
                error = str(failure)
        assert "too many attached databases" in error
        assert attached >= 10
        joined = " UNION ALL ".join(f"SELECT count(*) FROM other{number}.x" for number in range(attached))
        assert db.execute(joined).rows == [(2,)] * attached
        for number in range(attached):
            db.execute(f"DETACH other{number}")


def test_rows_are_copied_through_the_dbapi(other: Path) -> None:
    """A program that attaches a file, copies, commits and detaches runs as on sqlite3."""
    with bedrockish.node() as node, closing(dbapi.connect(str(node.path))) as connection:
        connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, word)")
        connection.execute("ATTACH DATABASE ? AS other", (str(other),))
        connection.execute("INSERT INTO t SELECT * FROM other.x")
        connection.commit()
        connection.execute("DETACH DATABASE other")
        assert connection.execute("SELECT * FROM t ORDER BY id").fetchall() == [(1, "one"), (2, "two")]


def test_temp_objects_and_attached_files_work_in_the_program(other: Path) -> None:
    with bedrockish.node() as node, node.connect() as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, word)")
        db.execute("ATTACH ? AS other", [str(other)])
        db.execute("CREATE TEMP TABLE short AS SELECT * FROM other.x")
        with pytest.raises(SqlError, match="already in use"):
            db.execute("ATTACH ? AS other", [str(other)])
        db.execute("DETACH other")
        db.execute("ATTACH ? AS again", [str(other)])
        assert db.execute("SELECT count(*) FROM short JOIN again.x USING (id)").value() == 2


def test_temp_objects_at_the_node_and_attached_files_are_refused_by_name(
    other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TEMP objects are at the node if it did not serve its file when the first was created."""
    with bedrockish.node() as node, node.connect() as db:
        steps = db._client.local_steps
        assert steps is not None

        async def nowhere(_timeout_s: float) -> bool:
            return False

        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, word)")
        monkeypatch.setattr(steps, "_return_to_file_node", nowhere)
        db.execute("ATTACH ? AS other", [str(other)])
        with pytest.raises(UnsupportedError, match=r"TEMP objects: .*; DETACH the files first"):
            db.execute("CREATE TEMP TABLE short(a)")
        db.execute("INSERT INTO t VALUES (1, 'one')")  # the session continues
        db.execute("DETACH other")
        db.execute("CREATE TEMP TABLE short(a)")
        with pytest.raises(UnsupportedError, match=r"ATTACH: .*; attach the file on a connection of its own"):
            db.execute("ATTACH ? AS other", [str(other)])
        assert db.execute("SELECT count(*) FROM short").value() == 0
