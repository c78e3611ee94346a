"""A node's scratch files are removed after a kill, and leave the disk some room."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.engine.storage import refill, scratch_files, wal
from bedrockish.engine.storage.scratch_files import check_room, room_on_disk, scratch_path
from bedrockish.engine.storage.wal import copy_file
from bedrockish.errors import ConfigError, UnavailableError
from bedrockish_journal.verify.replay import digest
from tests.engine.conftest import MakeNode
from tests.engine.nodes import Engine, TestNode
from tests.engine.test_refill import plain

LEFT = (
    *("a.db.lent", "a.db.lent-journal", "a.db.refill", "a.db.refill-wal", "a.db.moment", "a.db.moment-shm"),
    *("a.db.proof", "a.db.proof.4711.part", "a.db.proof.4711.part-journal", "a.db.proof.4711.compact"),
    *("a.db.refill.moment", "a.db.refill.proof.12.part", "a.db.refill.12.part", "a.db.compact", "a.db.compact-journal"),
    *("a.db.proof.part", "a.db.proof.part-lock", "a.db.proof.part.compact", "a.db.refill.moment.part-journal"),
)
OTHERS = (
    *(
        "a.db.copy",
        "a.db.bak",
        "a.db.proof.pdf",
        "a.db.lent.old",
        "a.db.moments",
        "b.db.lent",
        "a.db.4711.part",
        "a.db.part",
        "a.db.part-lock",
    ),
    *("a-db.lent", "a.db.refill.lent", "xa.db.proof"),
)


def large(node: TestNode) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "INSERT INTO t(x) VALUES (zeroblob(200000))")
    node.save()


def full(monkeypatch: pytest.MonkeyPatch, free: Any) -> None:
    """Give the disk this much free room, of a gigabyte."""
    monkeypatch.setattr(scratch_files, "room_on_disk", lambda _path: {"free_bytes": free(), "total_bytes": 1 << 30})


def test_opening_removes_exactly_the_leftovers_of_a_killed_process(tmp_path: Path) -> None:
    node = TestNode(tmp_path / "a.db")
    node.engine.close()
    for name in (*LEFT, *OTHERS):
        (tmp_path / name).write_bytes(b"rows of somebody")
    (tmp_path / "a.db.proof-wal").mkdir()
    TestNode(tmp_path / "a.db").engine.close()
    found = {path.name for path in tmp_path.iterdir()}
    assert not found & set(LEFT)
    assert found >= set(OTHERS)


def test_leftover_files_stay_while_another_process_has_the_database_open(tmp_path: Path) -> None:
    node = TestNode(tmp_path / "a.db")
    (tmp_path / "a.db.lent").write_bytes(b"on its way to somebody")
    with pytest.raises(ConfigError, match="in use"):
        Engine.open(tmp_path / "a.db", founding=None)
    assert (tmp_path / "a.db.lent").exists()
    node.engine.close()


def test_copy_that_would_use_the_last_disk_space_is_refused(
    node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(node)
    size = node.path.stat().st_size + node.path.with_name(node.path.name + "-wal").stat().st_size
    kept = (1 << 30) // scratch_files.RESERVE_PARTS
    with monkeypatch.context() as patch:
        full(patch, lambda: kept + 150_000)
        with pytest.raises(UnavailableError, match="MiB left, and 0 MiB are needed; the last 20 MiB are kept"):
            node.engine.background.snapshot_to(tmp_path / "copy.db")
        assert not (tmp_path / "copy.db").exists()
        full(patch, lambda: kept + size)
        node.engine.background.snapshot_to(tmp_path / "copy.db")


def test_comparison_ends_before_it_uses_the_last_disk_space(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the tables that the journal rebuilds is not known beforehand."""
    large(node)
    monkeypatch.setattr(refill, "GO_ON_STEPS", 10)
    proof = scratch_path(node.path, scratch_files.PROOF)
    seen = []

    def free() -> int:
        begun = any(path.name.startswith(proof.name) for path in proof.parent.iterdir())
        seen.append(begun)
        return 0 if begun else 1 << 29

    with monkeypatch.context() as patch:
        full(patch, free)
        with pytest.raises(ConfigError, match=r"has 0 MiB left; the last 20 MiB are kept .*free disk space"):
            refill.fits_journal(node.path, plain)
    assert seen[-1]
    assert not seen[0]
    assert not [path.name for path in proof.parent.iterdir() if "proof" in path.name or "moment" in path.name]
    assert refill.fits_journal(node.path, plain)


def test_copy_shows_one_moment_and_can_be_stopped(
    node: TestNode, make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node commits between the steps of the copy. SQLite's own backup would begin again after each commit."""
    large(node)
    before = node.digest()
    monkeypatch.setattr(wal, "COPY_PAGES", 8)
    steps = 0

    def commit() -> None:
        nonlocal steps
        steps += 1
        assert steps < 100
        node.run(f"INSERT INTO t(x) VALUES ({steps})")
        node.save()

    source = node.engine.background.open_reader()
    copy_file(source, tmp_path / "copy.db", commit)
    assert steps > 5
    assert not source.in_transaction
    copy = apsw.Connection(str(tmp_path / "copy.db"))
    assert digest(copy) == before
    copy.close()

    class EndedError(Exception):
        pass

    def end() -> None:
        raise EndedError

    with pytest.raises(EndedError):
        copy_file(source, tmp_path / "ended.db", end)
    assert not source.in_transaction
    source.close()


def test_reported_disk_space_matches_the_system(tmp_path: Path) -> None:
    room = room_on_disk(tmp_path / "a.db")
    assert room is not None
    assert 0 < room["free_bytes"] <= room["total_bytes"]
    with pytest.raises(UnavailableError, match="MiB are needed"):
        check_room(tmp_path / "a.db", room["total_bytes"])
    assert room_on_disk("/no/such/folder/a.db") is None
