"""Restore: each moment equals an application commit by commit, and a moment that the files lack is refused."""

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest

from bedrockish_journal.model.changes import decode_changes
from bedrockish_journal.model.clock import pack
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import (
    ForkError,
    JournalPrunedError,
    MomentError,
    TargetExistsError,
    TargetUnwritableError,
)
from bedrockish_journal.model.moment import Moment, parse_moment, time_text
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.storage import pruning
from bedrockish_journal.storage.store import find_places, scan
from bedrockish_journal.storage.table_layout import Applier
from bedrockish_journal.verify.new_file import NewFile
from bedrockish_journal.verify.replay import digest, replay
from bedrockish_journal.verify.restore import restore
from tests.journal.world import SCHEMA_SQL, World

NOW = 1_795_442_580_000


def copy(node: Path, target: Path) -> Path:
    """Return a backup: the file as it is now."""
    source, made = apsw.Connection(str(node)), apsw.Connection(str(target))
    with made.backup("main", source, "main") as backup:
        backup.step(-1)
    made.pragma("journal_mode", "delete")
    made.close()
    source.close()
    return target


def complete(path: Path, clock: int) -> None:
    """Record that a file is complete up to a clock, as a node does."""
    db = apsw.Connection(str(path))
    db.execute("INSERT OR REPLACE INTO bedrockish_meta VALUES ('safe', ?)", (clock,))
    db.close()


def prune(path: Path, clock: int) -> None:
    db = apsw.Connection(str(path))
    with db:
        pruning.remove(db, pruning.plan(db, clock))
    db.close()


def at(clock: int) -> Moment:
    return parse_moment(str(clock), NOW)


class Lived:
    """A cluster's life, with a backup of A in the middle; at its end all nodes have all entries."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.world = folder, World(folder, seed)
        self.world.begin()
        for _ in range(60):
            self.world.step()
        self.backup = copy(self.world.nodes["A"].path, folder / "backup.db")
        for _ in range(60):
            self.world.step()
        self.world.settle()
        self.last = self.world.clock
        for path in self.world.paths:
            complete(path, self.last)
        self.entries: dict[object, Entry] = {}
        for entry in scan(self.world.nodes["A"].db):
            self.entries.setdefault(entry.txid, entry)

    def expected(self, clock: int) -> str:
        """Return the digest at a clock: each commit up to it, in the order of the clock."""
        db = apsw.Connection(":memory:")
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        for entry in sorted(self.entries.values(), key=lambda entry: entry.txid):
            if entry.txid.clock > clock:
                continue
            if entry.transaction.kind == ROWS:
                for change in decode_changes(entry.transaction.changes):
                    Applier(db).apply(change)
            else:
                for statement in SCHEMA_SQL:
                    db.execute(statement)
        return digest(db)

    def path(self, name: str) -> Path:
        return self.world.nodes[name].path


@pytest.fixture(params=range(3))
def lived(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lived]:
    lived = Lived(tmp_path, request.param)
    yield lived
    lived.world.close()


def test_restore_to_a_clock_equals_its_commits(lived: Lived, tmp_path: Path) -> None:
    first = lived.last - lived.world.commands + 1
    middle = max(entry.txid.clock for entry in scan(apsw.Connection(str(lived.backup))))
    for number, clock in enumerate(range(first, lived.last + 1, 7)):
        expected = lived.expected(clock)
        target = tmp_path / f"{number}.db"
        # Forwards from the older backup; or from its journal, for an earlier moment.
        made = restore(lived.backup, target, journals=[lived.path("B")], until=at(clock))
        assert (made.digest, digest(target)) == (expected, expected), clock
        assert (made.clock <= clock, made.later > 0) == (True, clock < lived.last)
        back = restore(lived.path("C"), tmp_path / f"{number}-back.db", until=at(clock))
        assert back.digest == expected
        drawn = replay(
            lived.world.paths, tmp_path / f"{number}-r.db", until=at(clock), draw=random.Random(number).random
        )
        assert drawn.digest == expected
    assert first < middle < lived.last


def test_restored_file_has_no_state_of_the_node_and_no_free_pages(lived: Lived, tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    restore(lived.backup, target, journals=[lived.path("B")])
    db = apsw.Connection(str(target))
    assert not db.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'bedrockish*'").fetchall()
    assert (db.pragma("freelist_count"), db.pragma("journal_mode"), db.pragma("integrity_check")) == (0, "delete", "ok")
    db.close()
    assert sorted(path.name for path in tmp_path.glob("new.db*")) == ["new.db"]
    assert digest(target) == digest(lived.path("A"))


def test_restore_to_a_vector_equals_the_node_at_that_vector(tmp_path: Path) -> None:
    world, stood = World(tmp_path, 5), []
    world.begin()
    for _ in range(80):
        world.step()
        node = world.nodes["B"]
        stood.append((dict(node.applied), digest(node.path)))
    world.settle()
    for number, (vector, expected) in enumerate(stood[::9]):
        text = ",".join(f"{node}:{tick}" for node, tick in vector.items())
        made = replay([world.nodes["C"].path], tmp_path / f"{number}.db", until=parse_moment(text, NOW))
        assert (made.digest, made.applied) == (expected, vector)
    world.close()


def test_restore_joins_a_backup_and_a_pruned_journal(lived: Lived, tmp_path: Path) -> None:
    backup_clock = min(
        max(entry.txid.clock for entry in scan(apsw.Connection(str(lived.backup))) if entry.leader == leader)
        for leader in lived.world.names
    )
    shorter = copy(lived.path("B"), tmp_path / "shorter.db")
    prune(shorter, backup_clock // 2 + lived.last // 2)
    with pytest.raises(JournalPrunedError, match="restore from a younger backup, or add a file"):
        restore(lived.backup, tmp_path / "no.db", journals=[shorter], until=at(lived.last))
    between = restore(lived.backup, tmp_path / "yes.db", journals=[shorter, lived.path("C")], until=at(lived.last))
    assert between.digest == lived.expected(lived.last)
    # By default a restore goes to the end of the file, although its journal lacks the beginning; it cannot go back.
    assert restore(shorter, tmp_path / "end.db").digest == lived.expected(lived.last)
    with pytest.raises(MomentError, match=r"cannot go back: the beginning of the journal was removed.*older backup"):
        restore(shorter, tmp_path / "no.db", until=at(lived.last - 5))
    with pytest.raises(JournalPrunedError):
        replay([shorter], tmp_path / "no.db", until=at(lived.last))
    meets = copy(lived.path("B"), tmp_path / "meets.db")
    prune(meets, min(entry.txid.clock for entry in lived.entries.values()) + 3)
    made = restore(lived.backup, tmp_path / "meets-yes.db", journals=[meets], until=at(lived.last))
    assert made.digest == lived.expected(lived.last)
    assert not (tmp_path / "no.db").exists()


def test_restore_refuses_a_moment_that_is_not_in_the_files(lived: Lived, tmp_path: Path) -> None:
    target = tmp_path / "no.db"
    with pytest.raises(MomentError, match=f"up to clock {lived.last} .*a later backup, or an earlier moment"):
        restore(lived.path("A"), target, until=at(lived.last + 1))
    with pytest.raises(MomentError, match="is too late: the files are complete up to clock 0"):
        restore(lived.backup, target, until=at(lived.last))
    with pytest.raises(MomentError, match="less than A:9999"):
        restore(lived.path("A"), target, until=parse_moment("A:9999", NOW))
    with pytest.raises(MomentError, match="before the first commit"):
        restore(lived.path("A"), target, until=at(1_795_442_580))
    seen = next(entry for entry in lived.entries.values() if {*entry.after} - {entry.leader})
    alone = parse_moment(f"{seen.leader}:{seen.tick}", NOW)
    with pytest.raises(MomentError, match=r"is not a moment: .* has seen .*, which is not in it"):
        restore(lived.path("A"), target, until=alone)
    with pytest.raises(TargetUnwritableError, match="is not a directory"):
        restore(lived.path("A"), tmp_path / "nowhere" / "x.db")
    (tmp_path / "mine.db").write_text("mine")
    with pytest.raises(TargetExistsError):
        restore(lived.path("A"), tmp_path / "mine.db")
    assert (tmp_path / "mine.db").read_text() == "mine"
    assert not list(tmp_path.glob("no.db*"))


def test_reason_why_the_target_cannot_be_written_is_printed(
    lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite reports "not an error" if the disk is full during a VACUUM, and does not mention permissions."""

    def full(file: NewFile, _: apsw.Connection) -> None:
        raise apsw.FullError("not an error")

    with monkeypatch.context() as patch:
        patch.setattr(NewFile, "compact", full)
        with pytest.raises(TargetUnwritableError, match="cannot be written: there is no room; check the disk"):
            restore(lived.backup, tmp_path / "no.db")
    folder = tmp_path / "closed"
    folder.mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: real(path, mode) and Path(path) != folder)
    error = apsw.CantOpenError("unable to open database file")
    assert NewFile(folder / "x.db").why_not(error) == f"this user has no right to write in {folder}"
    assert NewFile(tmp_path / "x.db").why_not(error) == "unable to open database file"


def test_journals_that_do_not_continue_the_backup_are_refused(lived: Lived, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = World(tmp_path / "other", 99, ("A", "B", "C", "D")).run(10)
    with pytest.raises(MomentError, match="of different clusters"):
        restore(lived.backup, tmp_path / "no.db", journals=[other.nodes["A"].path])
    (tmp_path / "fork").mkdir()
    fork = World(tmp_path / "fork", 77).run(200)
    with pytest.raises(ForkError):
        restore(lived.backup, tmp_path / "no.db", journals=[fork.nodes["A"].path])
    other.close()
    fork.close()


def test_adopted_commit_is_restored_by_its_clock(tmp_path: Path) -> None:
    """A timeline has the order of decisions, and of two concurrent commits either may be first."""
    world = World(tmp_path, 3)
    world.begin()
    sql = ["INSERT INTO note(rowid, text) VALUES (1, 'old')"], ["INSERT INTO note(rowid, text) VALUES (2, 'new')"]
    older, newer = (world.transaction("A", ROWS, world.nodes["A"].execute(one)) for one in sql)
    world.commit("A", newer)
    world.commit("A", older)
    world.settle()
    complete(world.nodes["B"].path, world.clock)
    made = restore(world.nodes["B"].path, tmp_path / "new.db", until=at(older.txid.clock))
    assert apsw.Connection(made.target).execute("SELECT text FROM note").fetchall() == [("old",)]
    assert (made.entries, made.later) == (2, 1)
    world.close()


def test_a_second_label_after_the_backup_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, 4)
    world.begin()
    transaction = world.transaction("A", ROWS, world.nodes["A"].execute(["INSERT INTO note VALUES ('x', 1)"]))
    world.nodes["A"].take(world.entry("A", transaction))
    world.commit("B", transaction)
    world.commit("B", world.transaction("B", ROWS, world.nodes["B"].execute(["INSERT INTO note VALUES ('y', 2)"])))
    world.nodes["C"].settle(random.Random(1))
    backup = copy(world.nodes["C"].path, tmp_path / "backup.db")
    world.nodes["A"].settle(random.Random(1))
    made = restore(backup, tmp_path / "new.db", journals=[world.nodes["A"].path])
    assert (made.repeats, made.digest) == (1, digest(world.nodes["A"].path))
    prune(backup, transaction.txid.clock)
    assert not find_places(apsw.Connection(str(backup)), transaction.txid)
    assert restore(backup, tmp_path / "again.db", journals=[world.nodes["A"].path]).digest == made.digest
    world.close()


KILLED = """
import sys, time
from bedrockish_journal.verify import replay
from bedrockish_journal.verify.restore import restore
replay.PROGRESS_EVERY = 1
def progress(entries):
    if entries == 30:
        print("there", flush=True)
        time.sleep(60)
restore(sys.argv[1], sys.argv[2], journals=[sys.argv[3]], progress=progress)
"""


def test_next_restore_removes_the_unfinished_files_of_a_killed_one(tmp_path: Path) -> None:
    lived, target = Lived(tmp_path, 1), tmp_path / "new.db"
    command = [sys.executable, "-c", KILLED, str(lived.backup), str(target), str(lived.path("B"))]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "there\n"
    running.send_signal(signal.SIGKILL)
    running.wait()
    running.stdout.close()
    assert not target.exists()
    assert {path.name for path in tmp_path.glob("new.db.*")} >= {"new.db.part", "new.db.part-lock"}
    assert restore(lived.backup, target, journals=[lived.path("B")]).digest == digest(lived.path("A"))
    assert list(tmp_path.glob("new.db*")) == [target]
    lived.world.close()


def test_restore_refuses_a_target_that_another_process_writes(tmp_path: Path) -> None:
    lived, target = Lived(tmp_path, 1), tmp_path / "new.db"
    other = NewFile(target)
    Path(other.path).write_text("of the other process")
    with pytest.raises(TargetExistsError, match=r"another process writes .*new\.db now; wait until it has ended"):
        restore(lived.backup, target)
    assert Path(other.path).read_text() == "of the other process"
    other.drop()
    assert restore(lived.backup, target).digest
    lived.world.close()


def test_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_file: int, _operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(TargetUnwritableError, match=r"no file locks \(flock\), .* name a folder on another one"):
        NewFile(tmp_path / "new.db")
    assert list(tmp_path.iterdir()) == []


def test_restore_to_a_time_takes_all_commits_before_it(tmp_path: Path) -> None:
    del tmp_path
    moment = parse_moment("2026-11-23T14:03:00.125+01:00", NOW)
    unix_ms = int(datetime(2026, 11, 23, 13, 3, 0, 125_000, UTC).timestamp() * 1000)
    assert moment.clock == pack(unix_ms) - 1
    assert parse_moment(time_text(pack(unix_ms)), NOW).clock == moment.clock
    assert parse_moment("20261123T130300.125Z", NOW).clock == moment.clock
    assert parse_moment("A:12, B:3,C:0", NOW).vector == {"A": 12, "B": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-11-23T14:03:00", "in which zone"),
        ("2026-11-23T25:03:00Z", "is not a time"),
        ("2031-11-23T14:03:00Z", "is in the future: now it is 2026-11-23T14:03:00.000Z"),
        ("1931-11-23T14:03:00Z", "before any cluster"),
        ("yesterday", "is not a moment; give a clock"),
        ("A:1,A:2", "is not a moment"),
        ("A:1,,B:2", "is not a moment"),
        ("", "is not a moment"),
        ("-5", "is not a moment"),
        ("9" * 40, "beyond the range of clocks"),
    ],
)
def test_malformed_moment_is_refused(text: str, words: str) -> None:
    with pytest.raises(MomentError, match=words):
        parse_moment(text, NOW)
