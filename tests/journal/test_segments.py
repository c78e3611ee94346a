"""Segments: pieces of a journal in files of their own, from which any moment can be restored."""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.api.requests import Rows
from bedrockish.transfer.continuous import BackupPlan, _Backup
from bedrockish_journal.model.errors import (
    ChainBrokenError,
    FileMissingError,
    JournalPrunedError,
    MomentError,
    TargetUnwritableError,
)
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.storage.segment import Segment, create, ends
from bedrockish_journal.storage.store import open_readonly, scan
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.restore import choose, restore
from tests.journal.test_restore import Lived, at, complete, copy
from tests.journal.unfinished import leave_unfinished
from tests.journal.world import World


def bootstrap(path: Path) -> bytes:
    db = open_readonly(path)
    found = db.execute("SELECT value FROM bedrockish_meta WHERE key = 'bootstrap'").get
    db.close()
    assert isinstance(found, bytes)
    return found


def written(folder: Path, lived: Lived) -> list[Path]:
    """Return a directory with the backup of the middle as its snapshot and the rest in three segments."""
    folder.mkdir()
    snapshot = copy(lived.backup, folder / "snapshot-000001.db")
    db = open_readonly(snapshot)
    heads = ends(db)
    db.close()
    segment = create(folder / "journal-000001.db", heads, 1, bootstrap(snapshot))
    rest = [
        entry
        for entry in scan(apsw.Connection(str(lived.path("B"))))
        if entry.tick > heads.get(entry.leader, (0, b""))[0]
    ]
    third = len(rest) // 3
    for number, piece in enumerate((rest[:third], rest[third : 2 * third], rest[2 * third :]), 1):
        if number > 1:
            before = segment
            before.close(finish=True)
            segment = create(folder / f"journal-{number:06}.db", before.heads, before.safe, before.bootstrap)
        # In this world every clock below all later ones is safe.
        later = [one.txid.clock for one in rest[number * third :]] if number < 3 else [lived.last + 1]
        segment.append(piece, min(later) - 1, [], 0)
    segment.close()
    return sorted(folder.glob("journal-*.db"))


@pytest.fixture
def lived(tmp_path: Path) -> Lived:
    return Lived(tmp_path, 6)


def test_every_moment_of_a_directory_can_be_restored(lived: Lived, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    written(folder, lived)
    first = lived.last - lived.world.commands + 1
    for number, clock in enumerate(range(first, lived.last + 1, 9)):
        snapshot, journals, until = choose(folder, at(clock))
        made = restore(snapshot, tmp_path / f"{number}.db", journals=journals, until=until)
        assert made.digest == lived.expected(clock), clock
    snapshot, journals, until = choose(folder, None)
    assert until is not None
    assert (until.clock, len(journals)) == (lived.last, 3)
    made = restore(snapshot, tmp_path / "end.db", journals=journals, until=until)
    assert made.digest == digest(lived.path("C"))
    # A restore also continues from a later snapshot, and uses the last segment only for its safe time.
    copy(lived.path("A"), folder / "snapshot-000004.db")
    assert choose(folder, None)[:2] == (folder / "snapshot-000004.db", [folder / "journal-000003.db"])
    with pytest.raises(FileMissingError, match="has no snapshot in it"):
        choose(tmp_path, None)


def test_segments_with_a_gap_are_refused(lived: Lived, tmp_path: Path) -> None:
    """The gap is found even if no remaining entry follows a missing one."""
    files = written(tmp_path / "kept", lived)
    files[1].unlink()
    snapshot, journals, until = choose(tmp_path / "kept", None)
    with pytest.raises(JournalPrunedError, match=r"no longer holds .*; restore from a younger backup"):
        restore(snapshot, tmp_path / "no.db", journals=journals, until=until)
    assert not (tmp_path / "no.db").exists()


def test_segment_takes_no_entry_if_one_breaks_the_chain(lived: Lived, tmp_path: Path) -> None:
    entries = list(scan(apsw.Connection(str(lived.path("B")))))
    segment = create(tmp_path / "journal-000001.db", {}, 0, b"x")
    segment.append([entries[0]], 5, ["void:A-1"], 0)
    random.Random(1).shuffle(entries)
    with pytest.raises(ChainBrokenError):
        segment.append(entries, 9, [], 0)
    assert len(segment.heads) == 1
    segment.close()
    again = Segment(tmp_path / "journal-000001.db")
    assert (len(again.heads), again.safe, again.bootstrap) == (1, 5, b"x")
    again.close(finish=True)
    assert sorted(path.name for path in tmp_path.glob("journal-*")) == ["journal-000001.db"]
    with pytest.raises(TargetUnwritableError, match="cannot be written"):
        create(tmp_path / "nowhere" / "journal-000001.db", {}, 0, b"x")


class OneNode:
    """The client of a follower, answered from a node's file."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))

    async def transact(self, asked: list[Any], **_options: Any) -> list[Rows]:
        found = []
        for one in asked:
            sql, values = (one, ()) if isinstance(one, str) else one
            found.append(Rows(("?",), [tuple(row) for row in self.db.execute(sql, values)]))
        return found

    async def execute(self, *one: Any, **_options: Any) -> Rows:
        return (await self.transact([one]))[0]

    @asynccontextmanager
    async def stream(self, *one: Any, **options: Any) -> AsyncIterator[AsyncIterator[Any]]:
        found = await self.execute(*one, **options)

        async def rows() -> AsyncIterator[Any]:
            for row in found.rows:
                yield row

        yield rows()


def begun(folder: Path, node: Path) -> Path:
    """Return a directory whose snapshot was made before the first commit."""
    folder.mkdir()
    snapshot = copy(node, folder / "snapshot-000001.db")
    complete(snapshot, 0)
    with closing(apsw.Connection(str(snapshot))) as db:
        db.execute("DELETE FROM bedrockish_journal").fetchall()
        names: list[Any] = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (name,) in names:
            if not name.startswith("bedrockish"):
                db.execute(f"DROP TABLE {name}")
    create(folder / "journal-000001.db", {}, 0, bootstrap(node)).close()
    return folder


async def follower(folder: Path) -> Any:
    backup = _Backup("nowhere", folder, BackupPlan(1e9, None), lambda _: None)
    await backup.open()
    return backup


async def test_every_safe_moment_can_be_restored(lived: Lived, tmp_path: Path) -> None:
    node, folder = OneNode(lived.path("C")), begun(tmp_path / "kept", lived.path("C"))
    backup = await follower(folder)
    first = lived.last - lived.world.commands + 1
    for number, safe in enumerate(range(first, lived.last + 1, 8)):
        complete(lived.path("C"), safe)
        while await backup.step(node):
            pass
        snapshot, journals, until = choose(folder, at(safe))
        made = restore(snapshot, tmp_path / f"{number}.db", journals=journals, until=until)
        assert made.digest == lived.expected(safe), safe
        with pytest.raises(MomentError, match="is too late: the files are complete up to"):
            restore(snapshot, tmp_path / "no.db", journals=journals, until=at(safe + 1))
    backup.close()


async def test_segment_includes_unsafe_entries_before_a_safe_one_with_their_bases(tmp_path: Path) -> None:
    """A timeline is not in the order of clocks: a safe entry may follow an unsafe one."""
    world = World(tmp_path, 8)
    world.begin()
    insert = "INSERT INTO note(rowid, text) VALUES ({0}, 'note {0}')"
    old = world.transaction("A", ROWS, world.nodes["A"].execute([insert.format(1)]))
    world.commit("B", world.transaction("B", ROWS, world.nodes["B"].execute([insert.format(2)])))
    world.settle()
    world.commit("A", world.transaction("A", ROWS, world.nodes["A"].execute([insert.format(3)])))
    world.commit("A", old)
    world.settle()
    path = world.nodes["C"].path
    complete(path, old.txid.clock)
    folder = begun(tmp_path / "kept", path)
    backup = await follower(folder)
    await backup.step(OneNode(path))
    backup.close()
    snapshot, journals, until = choose(folder, None)
    made = restore(snapshot, tmp_path / "new.db", journals=journals, until=until)
    with closing(apsw.Connection(made.target)) as db:
        assert db.execute("SELECT text FROM note").fetchall() == [("note 1",)]
    assert made.later == 2
    world.close()


def test_backup_whose_writer_was_killed_as_it_finished_a_segment_can_be_restored(lived: Lived, tmp_path: Path) -> None:
    """If the cluster is lost as well, no later run can finish the segment."""
    folder = tmp_path / "kept"
    leave_unfinished(written(folder, lived)[-1])
    snapshot, journals, until = choose(folder, None)
    assert until is not None
    assert restore(snapshot, tmp_path / "end.db", journals=journals, until=until).digest == digest(lived.path("C"))


def test_names_of_a_segment_are_durable_before_its_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite ignores a failed sync of the folder: then a power cut would bring a used rollback journal back."""
    synced: list[set[str]] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append({path.name for path in tmp_path.glob("journal-*")})
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    segment = create(tmp_path / "journal-000001.db", {}, 0, b"x")
    assert synced == [{"journal-000001.db"}] * 2, "after the rename, and after the change of mode"
    segment.close(finish=True)
    assert synced[-1] == {"journal-000001.db"}
