"""A node ends if its database file, or SQLite's index of the log, is no longer at its path."""

import shutil
from pathlib import Path

import apsw
import pytest

from bedrockish.errors import DamagedError
from tests.engine.conftest import MakeNode

SCHEMA = "CREATE TABLE t(id INTEGER PRIMARY KEY, filler)"


def test_sync_notices_that_the_index_of_the_log_was_removed(make_node: MakeNode) -> None:
    """Programs that opened the file afterwards made an index of their own, and saw no newer commits."""
    node = make_node()
    node.run(SCHEMA)
    node.save()
    node.path.with_name(f"{node.path.name}-shm").unlink()
    node.run("INSERT INTO t(filler) VALUES ('x')")
    node.engine.flush()
    with pytest.raises(DamagedError, match=r"-shm was moved, removed or replaced while the node ran; end the programs"):
        node.engine.sync()
    node.engine.close()
    assert make_node(path=node.path).rows("SELECT filler FROM t") == [("x",)]


@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
@pytest.mark.parametrize("is_read", [False, True], ids=["alone", "with a reader"])
def test_sync_notices_that_the_file_is_not_in_its_place(
    make_node: MakeNode, tmp_path: Path, how: str, is_read: bool
) -> None:
    """The node went on, and after a kill the log of its lost file was applied to the older copy in its place."""
    node = make_node()
    node.run(SCHEMA)
    node.save()
    node.engine.close()
    copy, moved = tmp_path / "copy.db", tmp_path / "moved.db"
    shutil.copy(node.path, copy)
    node = make_node(path=node.path)
    node.run("INSERT INTO t(filler) VALUES ('x')")
    node.save()
    reader = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    if is_read:  # SQLite removes the log only with its last connection
        reader.execute("SELECT count(*) FROM t").fetchall()
    if how == "moved":
        node.path.rename(moved)
    elif how == "removed":
        node.path.unlink()
    else:
        copy.replace(node.path)
    node.run("INSERT INTO t(filler) VALUES ('y')")
    node.engine.flush()
    for _ in range(2):
        with pytest.raises(DamagedError, match="was moved, removed or replaced while the node ran; put it back"):
            node.engine.sync()
    node.engine.close()
    assert not node.path.with_name(f"{node.path.name}-wal").exists(), "no log for the file that is there now"
    reader.close()
    if how == "moved":
        moved.rename(node.path)
    rows = {"moved": [("x",), ("y",)], "replaced": []}
    if how in rows:
        assert make_node(path=node.path).rows("SELECT filler FROM t ORDER BY id") == rows[how]
