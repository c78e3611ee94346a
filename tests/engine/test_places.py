"""A node ends if its database file, or SQLite's index of the log, is no longer at its path."""

import shutil
from pathlib import Path

import apsw
import pytest

from bedrockish.engine.storage import wal
from bedrockish.engine.storage.database_file import FileLock
from bedrockish.errors import ConfigError, DamagedError
from tests.engine.conftest import MakeNode

SCHEMA = "CREATE TABLE t(id INTEGER PRIMARY KEY, filler)"


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def test_sync_notices_that_the_index_of_the_log_was_removed(make_node: MakeNode) -> None:
    """Programs that open the file afterwards make an index of their own, and would see no newer commits."""
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
    """Otherwise, after a kill, SQLite would apply the log of the lost file to the older copy in its place."""
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
    assert not log_of(node.path).exists(), "no log for the file that is there now"
    reader.close()
    if how == "moved":
        moved.rename(node.path)
    rows = {"moved": [("x",), ("y",)], "replaced": []}
    if how in rows:
        assert make_node(path=node.path).rows("SELECT filler FROM t ORDER BY id") == rows[how]


@pytest.mark.parametrize("is_replaced", [False, True], ids=["moved", "replaced"])
def test_log_of_a_moved_file_is_kept_while_a_reader_prevents_its_checkpoint(
    make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """If the log were removed after a part of it was copied, the moved file would be malformed without the rest."""
    monkeypatch.setattr(wal, "READERS_MS", 10)
    node = make_node()
    node.run(SCHEMA)
    node.run("INSERT INTO t(filler) VALUES ('x')")
    node.save()
    reader = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchall()
    node.run("INSERT INTO t(filler) VALUES ('y')")
    node.save()
    moved = tmp_path / "moved.db"
    node.path.rename(moved)
    if is_replaced:
        node.path.write_bytes(b"another file")
    node.engine.close()
    reader.close()
    log, kept = log_of(node.path), Path(f"{log_of(node.path)}.of-moved")
    assert (log.exists(), kept.exists()) == (not is_replaced, is_replaced)
    if is_replaced:
        kept.rename(log)
    moved.rename(node.path)
    assert make_node(path=node.path).rows("SELECT filler FROM t ORDER BY id") == [("x",), ("y",)]


def test_end_of_a_node_takes_the_log_of_a_replaced_file_along_without_a_sync(
    make_node: MakeNode, tmp_path: Path
) -> None:
    """A node that ends without a further commit must not leave the log, or SQLite would apply it to the new file."""
    node = make_node()
    node.run(SCHEMA)
    node.save()
    node.engine.close()
    copy = tmp_path / "copy.db"
    shutil.copy(node.path, copy)
    node = make_node(path=node.path)
    node.run("INSERT INTO t(filler) VALUES ('x')")
    node.save()
    copy.replace(node.path)
    node.engine.close()
    assert make_node(path=node.path).rows("SELECT filler FROM t") == []


def test_checkpoint_copies_no_log_into_another_file(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.save()
    node.path.rename(tmp_path / "moved.db")
    node.path.write_bytes(b"")
    with pytest.raises(DamagedError, match="was moved, removed or replaced"):
        node.engine.wal.checkpoint()
    assert node.path.read_bytes() == b""


def test_removed_lock_is_made_again_before_another_node_takes_the_file(make_node: MakeNode) -> None:
    """A cleanup of "stale" lock files let a second process serve the same file, and both voted."""
    node = make_node()
    lock = node.path.with_name(f"{node.path.name}.lock")
    assert not node.engine.keep_lock()
    lock.unlink()
    assert node.engine.keep_lock()
    assert not node.engine.keep_lock()
    with pytest.raises(ConfigError, match="is in use by another node"):
        FileLock(node.path)
    lock.unlink()
    other = FileLock(node.path)
    try:
        with pytest.raises(DamagedError, match="another process has it now; stop that process"):
            node.engine.keep_lock()
    finally:
        other.close()
