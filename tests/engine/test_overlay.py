"""The overlay's file, over plain SQLite: it shows the pinned snapshot after every change of the WAL."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest

from bedrockish.engine.storage import overlay_vfs
from bedrockish.engine.storage.overlay_vfs import FileState, Overlay, OverlayFile, salt_of

SUM = "SELECT count(*), sum(n), sum(id * n), sum(length(note)) FROM t"


@dataclass
class Bench:
    """A writer, a reader that pins a snapshot, and an overlay of that snapshot."""

    path: Path
    commits: int = 0
    frames: int = 0
    overlay: Overlay | None = None
    db: apsw.Connection | None = None
    writer: apsw.Connection = field(init=False)
    pin: apsw.Connection = field(init=False)
    wal: int = -1

    def __post_init__(self) -> None:
        self.writer = apsw.Connection(str(self.path))
        self.writer.pragma("journal_mode", "wal")
        self.writer.wal_autocheckpoint(0)
        self.writer.set_wal_hook(self._committed)
        self.writer.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER, note TEXT)")
        self.write(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
            "INSERT INTO t SELECT i, 1, printf('%100d', i) FROM n"
        )
        self.pin = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        self.wal = os.open(f"{self.path}-wal", os.O_RDONLY)

    def _committed(self, _db: apsw.Connection, _name: str, frames: int) -> int:
        self.frames = frames
        return apsw.SQLITE_OK

    def write(self, sql: str) -> None:
        self.commits += 1
        self.writer.execute(sql)

    def checkpoint(self) -> bool:
        """Copy the WAL into the database file; return whether all of it was copied."""
        frames, copied = self.writer.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
        return bool(frames == copied)

    def begin(self) -> FileState:
        self.pin.execute("BEGIN; SELECT 1 FROM sqlite_schema").fetchall()
        return FileState(self.frames, salt_of(self.wal), self.commits)

    def look(self, moment: FileState) -> apsw.Connection:
        pages = self.pin.pragma("page_count")

        def start(file: OverlayFile) -> None:
            file.move(moment, pages)

        if self.db is None:
            self.overlay = Overlay(str(self.path), self.wal, self.writer.pragma("page_size"))
            self.db = self.overlay.connect(start)
        else:
            assert self.overlay is not None
            assert self.overlay.file is not None
            start(self.overlay.file)
        return self.db

    def end(self) -> None:
        self.pin.execute("ROLLBACK")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "a.db")
    yield bench
    for db in (bench.db, bench.pin, bench.writer):
        if db is not None:
            db.close()
    os.close(bench.wal)


def test_restarted_wal_is_not_read(bench: Bench) -> None:
    """All frames were in the database file when the snapshot was taken, so the snapshot does not pin the WAL."""
    for late in (False, True):
        bench.write("UPDATE t SET n = n + 1")
        assert bench.checkpoint()
        bench.write("UPDATE t SET n = n + 1")  # the first of a new WAL
        assert bench.checkpoint()
        moment = bench.begin()
        if late:
            assert bench.look(moment).execute(SUM).fetchall() == bench.pin.execute(SUM).fetchall()
        salt = salt_of(bench.wal)
        for _ in range(5):  # enough to overwrite the whole WAL
            bench.write("UPDATE t SET n = n + 100, note = 'new'")
        assert bench.frames > moment.frames
        assert salt_of(bench.wal) != salt
        db = bench.look(moment)
        db.execute("BEGIN; UPDATE t SET note = note || 'mine' WHERE id = 7")
        assert db.execute(SUM).fetchall() != bench.writer.execute(SUM).fetchall()
        db.execute("ROLLBACK")
        assert db.execute(SUM).fetchall() == bench.pin.execute(SUM).fetchall()
        assert db.pragma("integrity_check") == "ok"
        bench.end()


def test_views_of_one_wal_read_the_header_of_each_frame_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each view keeps its own snapshot, and the headers are read once also after a restart of the WAL.

    A view that begins after the others have ended reads none either.
    """
    heads, pread = list[int](), os.pread

    def noted(file: int, count: int, at: int) -> bytes:
        if file == bench.wal and count == 4:
            heads.append(at)
        return pread(file, count, at)

    monkeypatch.setattr(os, "pread", noted)
    for _ in range(2):
        heads.clear()
        bench.write("UPDATE t SET n = n + 1 WHERE id = 1")
        old = bench.begin()
        first, second = (overlay_vfs.Frames(bench.wal, 4096) for _ in range(2))
        first.move(old)
        bench.write("UPDATE t SET n = n + 1 WHERE id % 50 = 1")
        new = FileState(bench.frames, salt_of(bench.wal), bench.commits)
        second.move(new)
        assert len(heads) == len(set(heads)) == new.frames
        assert first._places != second._places
        first.move(new)
        assert first._places == second._places
        del first, second
        overlay_vfs.Frames(bench.wal, 4096).move(new)
        assert len(heads) == new.frames
        bench.end()
        assert bench.checkpoint()


def test_later_commits_and_checkpoints_are_not_seen(bench: Bench) -> None:
    """A snapshot in the middle of the WAL is read before and after later commits."""
    for number in range(5):
        bench.write("UPDATE t SET n = n + 1 WHERE id % 3 = 0")
        moment = bench.begin()
        bench.write(f"DELETE FROM t WHERE id % 100 = {number}")
        assert not bench.checkpoint()
        bench.write("INSERT INTO t SELECT 5000 + max(id), 1, printf('%5000d', 1) FROM t")
        assert bench.look(moment).execute(SUM).fetchall() == bench.pin.execute(SUM).fetchall()
        bench.end()


@pytest.mark.parametrize("copied", [False, True])
def test_overlay_shows_the_old_pages_of_a_file_that_was_shortened(bench: Bench, copied: bool) -> None:
    """Free pages are returned while an overlay shows their old content; without a reader the file shrinks."""
    bench.write("PRAGMA auto_vacuum = 2")
    bench.write("VACUUM")
    bench.write(
        "CREATE TABLE gone AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) "
        "SELECT i AS n, printf('%500d', i) AS note FROM n"
    )
    bench.write("UPDATE t SET n = 2")  # the pages of t lie behind those of the other table
    if copied:
        assert bench.checkpoint()
    size = bench.path.stat().st_size
    db = bench.look(bench.begin())
    bench.write("DROP TABLE gone")
    for _ in bench.writer.execute("PRAGMA incremental_vacuum"):
        pass
    bench.commits += 1
    assert bench.writer.pragma("freelist_count") == 0
    bench.checkpoint()
    bench.write("UPDATE t SET n = 3")
    bench.checkpoint()
    assert db.execute("SELECT count(*), sum(n), sum(length(note)) FROM gone").fetchall() == [
        (3000, 3000 * 3001 // 2, 3000 * 500)
    ]
    assert db.execute(SUM).fetchall()[0][:2] == (2000, 4000)
    db.execute("DELETE FROM gone WHERE n > 5")
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    bench.end()
    bench.write("UPDATE t SET n = 4")
    assert bench.checkpoint()
    assert bench.path.stat().st_size < max(size, 1_700_000) - 1_000_000
    db = bench.look(bench.begin())
    assert db.execute(SUM).fetchall()[0][:2] == (2000, 8000)
    assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("t",)]
    bench.end()


def test_rolled_back_overlay_writes_are_invisible_at_the_next_moment(bench: Bench) -> None:
    """The test includes pages that SQLite wrote because its cache was full, and restored at the rollback."""
    moment = bench.begin()
    db = bench.look(moment)
    db.pragma("cache_size", 10)
    db.execute("BEGIN; UPDATE t SET n = 9, note = printf('%300d', id)")
    assert bench.overlay is not None
    assert bench.overlay.file is not None
    assert bench.overlay.file.written_bytes > 100_000
    db.execute("ROLLBACK")
    assert db.execute(SUM).fetchall() == bench.pin.execute(SUM).fetchall()
    bench.end()
    bench.write("UPDATE t SET n = n + 5")
    assert bench.look(bench.begin()).execute(SUM).fetchall() == bench.pin.execute(SUM).fetchall()
    bench.end()


def test_large_overlay_is_spilled_to_disk(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither new nor old pages stay in memory; the folder has no extra file, and rows equal those of SQLite."""
    room = 40_000
    monkeypatch.setattr("bedrockish.engine.storage.overlay_vfs.MEMORY_BYTES", room)
    plain = apsw.Connection(":memory:")
    bench.writer.execute("PRAGMA auto_vacuum = INCREMENTAL; VACUUM")
    with plain.backup("main", bench.writer, "main") as backup:
        backup.step(-1)
    files = sorted(tmp_path.iterdir())
    for _ in range(2):
        db = bench.look(bench.begin())
        assert bench.overlay is not None
        assert bench.overlay.file is not None
        assert db.pragma("journal_mode") == "delete"
        db.pragma("cache_size", 10)
        for sql in (
            "BEGIN",
            "UPDATE t SET n = id, note = printf('%900d', id)",
            "SAVEPOINT s",
            "DELETE FROM t WHERE id % 10 > 0",
            "PRAGMA incremental_vacuum",  # the file ends earlier
            "CREATE INDEX tn ON t(note)",
            "ROLLBACK TO s",
            "DELETE FROM t WHERE id % 3 = 0",
            "CREATE INDEX tn ON t(note)",
            "INSERT INTO t SELECT id + 10000, n, note || 'x' FROM t",
            "ALTER TABLE t ADD COLUMN m DEFAULT 'm'",
        ):
            db.execute(sql).fetchall()
            plain.execute(sql).fetchall()
            if "VACUUM" not in sql and "INDEX" not in sql:
                assert db.execute(SUM).fetchall() == plain.execute(SUM).fetchall(), sql
            assert bench.overlay.file.memory_bytes <= room + 65536
            assert sorted(tmp_path.iterdir()) == files
        assert db.pragma("integrity_check") == "ok"
        assert (
            db.execute("SELECT * FROM t ORDER BY note").fetchall()
            == plain.execute("SELECT * FROM t ORDER BY note").fetchall()
        )
        db.execute("ROLLBACK")
        plain.execute("ROLLBACK")
        assert db.execute(SUM).fetchall() == bench.pin.execute(SUM).fetchall()
        bench.end()
    plain.close()


def test_full_disk_ends_only_the_statement_in_a_workspace(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is SQLite's own, and the workspace can be used again."""
    monkeypatch.setattr("bedrockish.engine.storage.overlay_vfs.MEMORY_BYTES", 0)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    db = bench.look(bench.begin())
    db.pragma("cache_size", 10)
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        with pytest.raises(apsw.FullError):
            db.execute("BEGIN; UPDATE t SET n = 9, note = printf('%900d', id)")
    if db.in_transaction:
        db.execute("ROLLBACK")
    assert db.execute(SUM).fetchall() == bench.pin.execute(SUM).fetchall()
    bench.end()


def test_overlay_does_not_change_the_file_and_its_locks(bench: Bench, tmp_path: Path) -> None:
    """No file is created or written, and SQLite's locks outlive the overlay."""
    before = bench.path.read_bytes(), sorted(tmp_path.iterdir())
    db = bench.look(bench.begin())
    db.execute("BEGIN; DELETE FROM t WHERE id > 3; CREATE TABLE u(x)")
    db.execute("COMMIT")
    assert db.execute("SELECT count(*) FROM t").fetchall() == [(3,)]
    bench.writer.execute("BEGIN IMMEDIATE")
    db.close()
    bench.db = None
    assert (bench.path.read_bytes(), sorted(tmp_path.iterdir())) == before
    other = apsw.Connection(str(bench.path))
    with pytest.raises(apsw.BusyError):
        other.execute("BEGIN IMMEDIATE")
    other.close()
    bench.end()
