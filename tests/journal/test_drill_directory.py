"""The drill of a continuous backup: a good one passes, and the report on a bad one names the wrong file."""

import json
from pathlib import Path

import apsw
import pytest

from bedrockish_journal.model.errors import FileMissingError
from bedrockish_journal.storage import store
from bedrockish_journal.storage.segment import Segment, create, ends
from bedrockish_journal.storage.store import open_readonly
from bedrockish_journal.verify.drill_directory import drill_directory
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.restore import choose, restore
from tests.journal.test_drill import run, spoil
from tests.journal.test_restore import complete, copy, prune
from tests.journal.world import World

FOLLOW = "does not follow from"


class Kept:
    """A cluster's life, and the directory of a continuous backup that goes with it."""

    def __init__(self, home: Path, seed: int = 3) -> None:
        self.folder, self.world = home / "kept", World(home, seed)
        self.folder.mkdir()
        self.world.begin()
        self.segment: Segment | None = None
        self.number = 0

    def live(self, steps: int = 40) -> None:
        for _ in range(steps):
            self.world.step()
        self.world.settle()
        complete(self.node, self.world.clock)

    @property
    def node(self) -> Path:
        return self.world.nodes["A"].path

    def snapshot(self, *, after_gap: bool = False) -> Path:
        """Make a snapshot and the segment after it, which begins at the snapshot if ``after_gap`` is true."""
        self.number += 1
        path = copy(self.node, self.folder / f"snapshot-{self.number:06}.db")
        db = open_readonly(path)
        bootstrap = db.execute("SELECT value FROM bedrockish_meta WHERE key = 'bootstrap'").get
        before = self.segment
        heads = ends(db) if before is None or after_gap else before.heads
        safe = self.world.clock if before is None or after_gap else before.safe
        db.close()
        if before is not None:
            before.close(finish=True)
        self.segment = create(self.folder / f"journal-{self.number:06}.db", heads, safe, bootstrap)
        return path

    def follow(self) -> Path:
        """Add the new entries to the segment."""
        assert self.segment is not None
        db = open_readonly(self.node)
        new = [one for one in store.scan(db) if one.tick > self.segment.heads.get(one.leader, (0, b""))[0]]
        db.close()
        self.segment.append(new, self.world.clock, [], 0)
        return self.segment.path

    def close(self) -> None:
        if self.segment is not None:
            self.segment.close(finish=True)
        self.world.close()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Three snapshots, with commits between them and after the last one."""
    kept = Kept(tmp_path)
    for _ in range(3):
        kept.live()
        kept.snapshot()
        kept.live()
        kept.follow()
    kept.close()
    return kept


def test_drill_proves_a_sound_continuous_backup(kept: Kept) -> None:
    found = drill_directory(kept.folder)
    assert (found.faults, found.unproven, found.gaps, found.snapshots, found.since) == ([], "", [], 3, 0)
    assert found.digest == digest(kept.node)
    assert (found.complete, found.latest) == (kept.world.clock, kept.world.clock)
    result = run(kept.folder, "--proven")
    assert result.exit_code == 0, result.output
    assert "3 snapshots" in result.output
    assert "any moment from its cluster's beginning on" in result.output
    assert "equal to a replay of its journal; digest" in result.output
    data = json.loads(run(kept.folder, "--json").output)
    assert (data["good"], data["gaps"], data["digest"]) == (True, [], found.digest)


def test_drill_proves_a_continuous_backup_while_it_grows(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.live()
    kept.snapshot()
    kept.live()
    kept.follow()
    assert kept.segment is not None
    before = digest(kept.node)

    def say(what: str) -> None:
        if what == "restoring":
            kept.live(5)
            kept.follow()

    found = drill_directory(kept.folder, say=say)
    assert (found.faults, found.digest) == ([], before), "what came after it began belongs to the next one"
    kept.close()


@pytest.mark.parametrize(
    ("name", "statement", "words"),
    [
        ("snapshot-000001.db", "DELETE FROM account WHERE id = (SELECT max(id) FROM account)", ": tables: "),
        ("snapshot-000002.db", "DELETE FROM account WHERE id = (SELECT max(id) FROM account)", ": tables: "),
        ("snapshot-000003.db", "DELETE FROM note WHERE rowid = (SELECT min(rowid) FROM note)", ": tables: "),
        ("journal-000001.db", "UPDATE bedrockish_journal SET body = CAST(body || x'00' AS BLOB) WHERE seq = 5", FOLLOW),
        ("journal-000002.db", "DELETE FROM bedrockish_journal WHERE seq = 5", "it cannot be"),
        ("journal-000003.db", "UPDATE bedrockish_journal SET hash = randomblob(32) WHERE seq = 5", "it cannot be"),
    ],
)
def test_drill_names_the_wrong_file_of_a_backup_directory(kept: Kept, name: str, statement: str, words: str) -> None:
    spoil(kept.folder / name, statement)
    faults = drill_directory(kept.folder).faults
    named = name if words == ": tables: " else ""
    assert any(named + words in fault for fault in faults), faults
    assert run(kept.folder).exit_code == 1


def test_a_damaged_page_is_found_in_any_file(kept: Kept) -> None:
    path = kept.folder / "journal-000002.db"
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * 4096)
    faults = drill_directory(kept.folder).faults
    assert faults
    assert all(fault.startswith("journal-000002.db") for fault in faults), faults
    path.write_bytes(b"no database at all" * 100)
    assert "cannot be read" in drill_directory(kept.folder).faults[0]


def test_missing_file_of_a_backup_is_reported(kept: Kept) -> None:
    (kept.folder / "journal-000002.db").unlink()
    assert "an earlier file is missing" in run(kept.folder).output
    assert run(kept.folder).exit_code == 1
    for path in kept.folder.glob("snapshot-*"):
        path.unlink()
    with pytest.raises(FileMissingError, match="has no snapshot in it"):
        drill_directory(kept.folder)


def test_gap_in_a_continuous_backup_is_not_a_fault(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.live()
    kept.snapshot()
    kept.live()
    kept.follow()
    kept.live()
    second = kept.snapshot(after_gap=True)
    kept.live()
    kept.follow()
    kept.close()
    found = drill_directory(kept.folder)
    assert (found.faults, found.snapshots, len(found.gaps)) == ([], 2, 1)
    assert found.gaps[0][0] < found.gaps[0][1]
    result = run(kept.folder)
    assert (result.exit_code, "no moment between" in result.output) == (0, True), result.output
    spoil(second, "UPDATE note SET text = 'x' WHERE rowid = (SELECT min(rowid) FROM note)")
    assert "snapshot-000002.db: tables" in drill_directory(kept.folder).faults[0]


def test_the_first_snapshot_of_a_short_journal_is_proven_by_an_older_backup(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.live()
    older = copy(kept.node, tmp_path / "older.db")
    kept.live()
    prune(kept.node, kept.world.clock // 2)
    db = apsw.Connection(str(kept.node))
    clocks = [entry.txid.clock for entry in store.scan(db)]
    db.close()
    prune(kept.node, sorted(clocks)[len(clocks) // 3])
    kept.snapshot()
    kept.live()
    kept.follow()
    kept.close()
    found = drill_directory(kept.folder)
    assert ("was removed" in found.unproven, found.since > 0, found.faults) == (True, True, [])
    assert "its first snapshot's tables are not compared with a journal: the beginning" in run(kept.folder).output
    assert run(kept.folder, "--proven").exit_code == 1
    proven = run(kept.folder, "--proven", "--older", older)
    assert proven.exit_code == 0, proven.output


def test_new_continuous_backup_is_restored_as_it_is(tmp_path: Path) -> None:
    """The backup's one snapshot is later than its complete part, and its journal may have lost its beginning."""
    kept = Kept(tmp_path)
    kept.live()
    complete(kept.node, kept.world.clock - 3)
    db = apsw.Connection(str(kept.node))
    clocks = sorted(entry.txid.clock for entry in store.scan(db))
    db.close()
    prune(kept.node, clocks[len(clocks) // 3])
    path = kept.snapshot()
    assert kept.segment is not None
    with kept.segment._db as db:
        db.execute("UPDATE bedrockish_meta SET value = ? WHERE key = 'safe'", (kept.world.clock - 3,))
    kept.close()
    snapshot, journals, until = choose(kept.folder, None)
    assert restore(snapshot, tmp_path / "new.db", journals=journals, until=until).digest == digest(path)
    found = drill_directory(kept.folder)
    assert (found.faults, found.digest) == ([], digest(path))
