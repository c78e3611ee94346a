"""A compacted node's file has the same content, and no bytes of deleted rows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from bedrockish.cli.main import main
from bedrockish.engine.storage.compact import compact
from bedrockish.engine.storage.database_file import FileLock
from bedrockish.errors import ConfigError
from bedrockish_journal.storage.pruning import plan, remove
from bedrockish_journal.storage.store import heads, scan_stored
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.verify import verify
from tests.journal.world import World
from tools.cluster import ROOT, clean_environment

SOMEBODY = b"ann.of.the.hills@example.org"


def nothing(_db: apsw.Connection) -> None:
    """Load no plugins."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a node's file that contained a person's rows; these were deleted, and their entries removed."""
    world = World(tmp_path, 5, ("A",))
    world.begin()
    node = world.nodes["A"]
    for number in range(60):
        row = f"INSERT INTO note(rowid, text) VALUES ({5000 + number}, '{SOMEBODY.decode()} {number}')"
        node.take(world.entry("A", world.transaction("A", "rows", node.execute([row]))))
    gone = ["DELETE FROM note WHERE rowid >= 5000 AND rowid < 5060"]
    node.take(world.entry("A", world.transaction("A", "rows", node.execute(gone))))
    other = ["INSERT INTO note(rowid, text) VALUES (6000, 'somebody else')"]
    node.take(world.entry("A", world.transaction("A", "rows", node.execute(other))))
    with node.db:
        remove(node.db, plan(node.db, world.clock - 1))
    world.close()
    return tmp_path / "A.db"


def held(path: Path) -> tuple[object, ...]:
    db = apsw.Connection(str(path))
    try:
        return digest(db), heads(db), [*scan_stored(db)], db.pragma("user_version"), db.pragma("page_size")
    finally:
        db.close()


def test_compacted_file_keeps_content_and_no_deleted_bytes(file: Path) -> None:
    before = held(file)
    assert SOMEBODY in file.read_bytes()
    os.chmod(file, 0o640)
    done = compact(file, nothing)
    assert SOMEBODY not in file.read_bytes()
    assert held(file) == before
    assert file.stat().st_mode & 0o777 == 0o640
    assert done.after == file.stat().st_size < done.before
    assert verify([file]).findings == []
    assert sorted(path.name for path in file.parent.iterdir()) == ["A.db", "A.db.lock"]
    link = file.parent / "link"
    link.symlink_to(file)
    assert compact(link, nothing).before == done.after
    assert link.is_symlink()


def test_compaction_through_a_link_keeps_a_node_from_the_file(file: Path) -> None:
    """A lock on the link's name would let a node begin on the file, and the new file would lack that node's commits."""
    link = file.parent / "link"
    link.symlink_to(file)
    lock = FileLock(file)
    try:
        with pytest.raises(ConfigError, match=r"A\.db is in use by another node on this machine"):
            compact(link, nothing)
    finally:
        lock.close()
    assert sorted(path.name for path in file.parent.iterdir()) == ["A.db", "A.db.lock", "link"]


def test_rows_without_keys_keep_their_rowids(file: Path) -> None:
    """SQLite's VACUUM would renumber them."""
    db = apsw.Connection(str(file))
    rows = db.execute("SELECT rowid FROM note ORDER BY rowid").fetchall()
    db.close()
    assert (6000,) in rows
    compact(file, nothing)
    db = apsw.Connection(str(file))
    assert db.execute("SELECT rowid FROM note ORDER BY rowid").fetchall() == rows
    db.close()


def test_compaction_removes_the_log_of_the_old_file(file: Path) -> None:
    """A killed node leaves frames in its log, with everything that it wrote."""
    db = apsw.Connection(str(file))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.execute("UPDATE note SET text = 'late' WHERE rowid = 6000")
    db.close()
    assert file.with_name("A.db-wal").stat().st_size > 0
    compact(file, nothing)
    assert not file.with_name("A.db-wal").exists()
    db = apsw.Connection(str(file))
    assert db.execute("SELECT text FROM note WHERE rowid = 6000").get == "late"
    db.close()


def test_refused_compaction_leaves_the_file_unchanged(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    lock = FileLock(file)
    with pytest.raises(ConfigError, match="in use by another node"):
        compact(file, nothing)
    lock.close()
    reader = apsw.Connection(str(file))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM note").fetchall()
    with pytest.raises(ConfigError, match=r"cannot be rewritten: .*locked.* close the file in all other programs"):
        compact(file, nothing)
    reader.close()
    plain = tmp_path / "plain.db"
    db = apsw.Connection(str(plain))
    db.execute("CREATE TABLE t(a)")
    db.close()
    pipe = tmp_path / "pipe.db"
    os.mkfifo(pipe)
    for path, text in (
        (plain, "is not a node's file"),
        (tmp_path / "none.db", "no such file"),
        (pipe, "is not a file"),
    ):
        with pytest.raises(ConfigError, match=text):
            compact(path, nothing)
    plain.write_bytes(b"nonsense" * 1_000)
    with pytest.raises(ConfigError, match="not a database"):
        compact(plain, nothing)
    assert file.read_bytes() == before
    answer = CliRunner().invoke(main, ["compact", str(plain)])
    assert (answer.exit_code, answer.output.count("\n")) == (2, 1)


def test_killed_compaction_leaves_the_old_file(file: Path) -> None:
    before = held(file)
    program = (
        "import os, signal; from pathlib import Path; from bedrockish.engine.storage import compact as it;"
        "it.put_in_place = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        f"it.compact(Path({str(file)!r}), lambda db: None)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=clean_environment(), timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert file.with_name("A.db.compact").exists()
    assert held(file) == before
    compact(file, nothing)
    assert not file.with_name("A.db.compact").exists()
    assert SOMEBODY not in file.read_bytes()
