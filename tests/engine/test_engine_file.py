"""The file of a node after a power cut and after a kill, and the bounded size of the WAL."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from hashlib import sha256
from pathlib import Path
from random import Random
from types import SimpleNamespace

import apsw
import pytest

from bedrockish.core.protocol.pieces import Part
from bedrockish.core.protocol.records import Vote
from bedrockish.engine.batch import FRAMES as BATCH_FRAMES
from bedrockish.engine.storage.rename_copy import strip
from bedrockish.engine.storage.wal import FRAME_BYTES, RESERVE_BYTES, RESERVE_LEAST
from bedrockish.errors import ConfigError, DamagedError, NoRoomError
from bedrockish.node.admin.wal_readers import HELD_FRAMES_MIN, describe_held_wal, readers_of
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import encode_changes
from bedrockish_journal.model.membership import Member, Membership, pack_membership
from bedrockish_journal.model.transaction import MEMBERS, Transaction, Txid
from tests.engine.conftest import MakeNode
from tests.engine.nodes import MEMBERSHIP, Engine, Founding, Limits, TestNode

FOUNDING = Founding("A", MEMBERSHIP, "store-A")
SCHEMA = "CREATE TABLE t(id INTEGER PRIMARY KEY, filler)"


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def cut(source: Path, wal: bytes, target: Path, length: int) -> Path:
    """Return the file as a power cut leaves it: the database and the first ``length`` bytes of its WAL."""
    target.mkdir()
    shutil.copy(source, target / "cut.db")
    (target / "cut.db-wal").write_bytes(wal[:length])
    return target / "cut.db"


def batches_in(path: Path) -> tuple[int, int]:
    """Return the batches and entries that recovery finds."""
    engine = Engine.open(path, founding=None)
    try:
        applied = engine.recover().applied.get("A", 0)
        db = engine._db
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = db.execute("SELECT count(*), max(id) FROM t").fetchone() if applied else (0, None)
        assert rows is not None
        assert rows[0] == max(0, applied - 1)  # one row for each entry after the first: rows and journal agree
        return engine.batch.number, applied
    finally:
        engine.close()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_power_cut_leaves_a_prefix_with_every_synced_batch(
    make_node: MakeNode, tmp_path: Path, checkpointed: bool
) -> None:
    luck = Random(5)
    node = make_node(limits=Limits(wal_frames_max=60 if checkpointed else 1 << 30))
    node.run(SCHEMA)
    node.save()
    states: dict[int, int] = {node.engine.batch.number: node.tick}
    restarts, frames = 0, 0
    for _ in range(60):
        for _ in range(luck.randint(1, 3)):
            node.run(("INSERT INTO t(filler) VALUES (?)", (luck.randbytes(luck.randint(1, 3000)),)))
        if luck.random() < 0.3:
            node.engine.wal.checkpoint()
        node.engine.flush()
        node.engine.sync()
        restarts += node.engine.wal.frames < frames
        frames = node.engine.wal.frames
        states[node.engine.batch.number] = node.tick
    assert (restarts > 0) == checkpointed
    synced, synced_size, before = node.engine.batch.number, 32 + frames * FRAME_BYTES, wal_of(node.path).read_bytes()
    for _ in range(10):  # these are flushed without a sync
        node.run(("INSERT INTO t(filler) VALUES (?)", (luck.randbytes(luck.randint(1, 3000)),)))
        node.engine.flush()
        states[node.engine.batch.number] = node.tick
    written = 32 + node.engine.wal.frames * FRAME_BYTES
    wal = wal_of(node.path).read_bytes()
    found = set()
    # A WAL that has restarted since the last sync has no synced frame: these are in the database file.
    low = synced_size if written > synced_size else 0
    assert low or checkpointed

    for number in range(40):
        length = luck.randint(low, written) if number > 1 else (low, written)[number]
        rest = before[length:]  # a restarted WAL overwrites an older one
        batches, applied = batches_in(
            cut(node.path, wal[:length] + rest, tmp_path / f"cut{number}", length + len(rest))
        )
        assert batches >= synced
        assert states[batches] == applied
        found.add(batches)

    assert node.engine.batch.number in found
    assert checkpointed or synced in found
    assert len(found) > 2


def test_a_torn_tail_is_cut_off(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.save()
    kept = node.engine.batch.number
    synced_size = 32 + node.engine.wal.frames * FRAME_BYTES  # the log may have restarted in a longer file
    node.run("INSERT INTO t(filler) VALUES ('x')")
    node.engine.flush()
    wal = bytearray(wal_of(node.path).read_bytes())
    wal[synced_size + 100] ^= 1  # a sector of the last batch did not reach the disk

    assert batches_in(cut(node.path, bytes(wal), tmp_path / "torn", len(wal))) == (kept, 1)


def test_unflushed_commits_are_lost_in_a_crash(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.save()
    node.run("INSERT INTO t(filler) VALUES ('x')")
    wal = wal_of(node.path).read_bytes()

    assert batches_in(cut(node.path, wal, tmp_path / "cut", len(wal)))[1] == 1


def test_sync_notices_that_the_wal_was_removed(make_node: MakeNode) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.engine.flush()
    wal_of(node.path).unlink()

    with pytest.raises(DamagedError, match="was removed while the node ran"):
        node.engine.sync()


def test_sync_notices_that_the_wal_was_replaced_by_a_copy(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.engine.flush()
    shutil.copy(wal_of(node.path), tmp_path / "copy")
    os.replace(tmp_path / "copy", wal_of(node.path))

    with pytest.raises(DamagedError, match=r"was replaced by another file while the node ran; run .* member replace"):
        node.engine.sync()


@pytest.mark.parametrize(("number", "culprit"), [(errno.EACCES, "permissions of its folder"), (errno.EIO, "disk")])
def test_failed_sync_names_the_permissions_or_the_disk(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, number: int, culprit: str
) -> None:
    node = make_node()

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(DamagedError, match=f"check the {culprit} and start"):
        node.engine.sync()
    monkeypatch.undo()


READS_AGAIN = """
import sqlite3, sys
db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
print(db.execute("SELECT filler FROM t").fetchall(), flush=True)
sys.stdin.readline()
print(db.execute("SELECT filler FROM t").fetchall(), flush=True)
"""


def test_removed_log_is_copied_into_the_file_although_a_program_has_it_open(make_node: MakeNode) -> None:
    """The file had lost all commits of its log, and the program would have read a new log by the old one's index."""
    node = make_node()
    node.run(SCHEMA)
    node.save()
    reads = [sys.executable, "-c", READS_AGAIN, str(node.path)]
    with subprocess.Popen(reads, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "[]\n"
        node.run("INSERT INTO t(filler) VALUES ('x')")
        wal_of(node.path).unlink()
        node.engine.flush()
        with pytest.raises(DamagedError, match="was removed while the node ran"):
            node.engine.sync()
        node.engine.close()
        later = make_node(path=node.path)
        assert later.rows("SELECT filler FROM t") == [("x",)]
        later.run("INSERT INTO t(filler) VALUES ('y')")
        later.save()
        assert reader.communicate("again\n", timeout=60)[0] == "[('x',)]\n", "a whole state, if not the newest"


def test_sync_survives_other_readers_closing_the_file(make_node: MakeNode) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.save()
    reader = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
    reader.close()
    node.run("INSERT INTO t(filler) VALUES ('x')")
    node.save()

    assert wal_of(node.path).exists()


def test_an_empty_batch_is_not_committed(node: TestNode) -> None:
    node.run(SCHEMA)

    assert node.engine.flush()
    assert not node.engine.flush()
    node.rows("SELECT * FROM t")
    assert not node.engine.flush()


def test_the_wal_stays_small_under_steady_writing(make_node: MakeNode) -> None:
    node = make_node(limits=Limits(wal_frames=80, wal_frames_max=100))
    node.run(SCHEMA)
    largest = 0
    for _ in range(300):
        node.run("INSERT INTO t(filler) VALUES (zeroblob(3000))")
        node.save()
        if node.engine.checkpoint_due:
            node.engine.wal.checkpoint()
        largest = max(largest, wal_of(node.path).stat().st_size)

    assert largest < 120 * FRAME_BYTES


READER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
print(db.execute("SELECT count(*) FROM t").fetchone()[0], flush=True)
sys.stdin.readline()
"""


def test_stopped_program_that_holds_the_wal_is_named(make_node: MakeNode) -> None:
    node = make_node(limits=Limits(wal_frames=40, wal_frames_max=60))
    node.run(SCHEMA)
    node.save()
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(node.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "0\n"
        program.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED)
        for _ in range(100):
            node.run("INSERT INTO t(filler) VALUES (zeroblob(3000))")
            node.save()
            if node.engine.checkpoint_due:
                node.engine.wal.checkpoint()
        held = node.engine.wal.held_frames
        assert held == node.engine.wal.frames > 100
        assert describe_held_wal(str(node.path), held) is None
        told = describe_held_wal(str(node.path), HELD_FRAMES_MIN)
        assert told is not None
        assert [name.partition(" ")[0] for name in told["readers"]] == [str(program.pid)]
        assert "stopped" in told["readers"][0]
        program.send_signal(signal.SIGCONT)
        program.communicate("\n")
    node.engine.wal.checkpoint()
    assert node.engine.wal.held_frames == 0
    assert readers_of(str(node.path)) == []


def test_large_transaction_is_checkpointed_in_the_background(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background copies the pages, and the end of a later batch the rest; without the background, all of them."""
    node = make_node(limits=Limits(wal_frames=40, wal_frames_max=60))
    wal, finished = node.engine.wal, list[int]()
    finish = wal.finish

    def counted(db: apsw.Connection, most: int) -> None:
        finished.append(wal.grown())
        finish(db, most)

    monkeypatch.setattr(wal, "finish", counted)
    node.run(SCHEMA)
    node.save()
    node.run("INSERT INTO t(filler) VALUES (zeroblob(150000))")
    node.save()
    assert 60 < wal.frames < 120
    assert (finished, node.engine.checkpoint_due) == ([], True)
    node.engine.wal.checkpoint()
    node.run("INSERT INTO t(filler) VALUES (1)")
    node.save()
    assert (len(finished), wal.frames) == (1, 0)
    assert finished[0] < 10
    for _ in range(2):
        node.run("INSERT INTO t(filler) VALUES (zeroblob(150000))")
        node.save()
    assert (len(finished), wal.frames) == (2, 0)


def test_a_reader_only_delays_the_end_of_a_checkpoint(make_node: MakeNode) -> None:
    node = make_node(limits=Limits(wal_frames=10, wal_frames_max=20))
    node.run(SCHEMA)
    node.save()
    reader = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
    for _ in range(50):
        node.run("INSERT INTO t(filler) VALUES (zeroblob(3000))")
        node.save()
    assert wal_of(node.path).stat().st_size > 50 * 4096
    assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
    reader.close()
    for _ in range(3):
        node.run("INSERT INTO t(filler) VALUES (1)")
        node.save()

    assert wal_of(node.path).stat().st_size < 25 * FRAME_BYTES
    assert node.rows("SELECT count(*) FROM t") == [(53,)]


def test_flushed_commits_survive_a_kill(tmp_path: Path) -> None:
    program = f"""
        import os, signal
        from pathlib import Path
        from tests.engine.nodes import TestNode
        node = TestNode(Path({str(tmp_path / "a.db")!r}))
        node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, filler)")
        node.run("INSERT INTO t(filler) VALUES ('kept')")
        node.engine.set_meta("clock_ceiling", 5)
        node.save()
        node.run("INSERT INTO t(filler) VALUES ('lost')")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=root, check=False, timeout=60)
    assert done.returncode == -9

    node = TestNode(tmp_path / "a.db")
    try:
        recovered = node.engine.recover()
        assert (recovered.node, recovered.store, recovered.membership) == ("A", "store-A", MEMBERSHIP)
        assert (recovered.applied, recovered.ceiling, recovered.batches) == ({"A": 2}, 5, 1)
        window = list(recovered.window)
        assert [entry.place for entry in window] == [("A", 1), ("A", 2)]
        assert recovered.heads == {"A": window[-1].hash}
        assert node.rows("SELECT filler FROM t") == [("kept",)]
        assert node.engine.schema_version == 1
    finally:
        node.engine.close()


def transaction(clock: int) -> Transaction:
    return Transaction(
        Txid(clock, "B"), {}, 0, 0, 0, f"vote{clock}", "serializable", "rows", AccessSet(), b"\x82\x80\x80", b"\x80"
    )


def test_votes_are_restored_as_they_were_saved(make_node: MakeNode) -> None:
    node = make_node()
    first, second = Vote(Txid(7, "B"), transaction(7), held=True), Vote(Txid(8, "B"), None, promised=1)
    node.engine.votes.save(first)
    first.promised, first.accepted = 3, (3, True)  # the core goes on with its own
    node.engine.votes.save(second)
    node.engine.votes.save(Vote(Txid(9, "B"), transaction(9), True, 2, (2, False)))
    node.engine.votes.drop(Txid(8, "B"))
    node.save()
    node.engine.close()

    votes = make_node(path=node.path).engine.recover().votes

    assert [(vote.txid.clock, vote.held, vote.promised, vote.accepted) for vote in votes] == [
        (7, True, 0, None),
        (9, True, 2, (2, False)),
    ]
    assert votes[0].transaction == transaction(7)


def test_a_membership_entry_changes_the_membership(make_node: MakeNode) -> None:
    node = make_node()
    node.run(SCHEMA)
    prepared = node.prepare("INSERT INTO t(filler) VALUES (1)")
    after = Membership(1, {**MEMBERSHIP.members, "C": Member("C", "localhost:C", voter=False)})
    members = type(prepared)(prepared.base, 1, False, MEMBERS, AccessSet(), pack_membership(after), prepared.result)
    node.apply(node.entry(members))

    assert node.engine.recover().membership == after


def test_membership_entry_voids_transactions_durably(make_node: MakeNode) -> None:
    """A node that missed the operator's order follows the entry."""
    node = make_node()
    node.run(SCHEMA)
    prepared = node.prepare("INSERT INTO t(filler) VALUES (1)")
    after = Membership(1, MEMBERSHIP.members, void=(Txid(5, "B"),))
    members = type(prepared)(prepared.base, 1, False, MEMBERS, AccessSet(), pack_membership(after), prepared.result)
    node.apply(node.entry(members))
    assert node.engine.entries.void == {Txid(5, "B")}
    node.engine.flush()
    node.engine.close()

    again = Engine.open(node.path, founding=None)
    assert again.entries.void == {Txid(5, "B")}
    again.close()


def test_entries_are_found_by_place_command_and_name(node: TestNode) -> None:
    node.run(SCHEMA)
    node.run("INSERT INTO t(filler) VALUES (1)")
    first, second = node.entries

    assert node.engine.journal.find_command("A2") == second
    assert node.engine.journal.find_command("never") is None
    assert node.engine.journal.places(Txid(1, "A")) == [first.place]
    assert node.engine.read_entries("A", 1, 1 << 20) == [first, second]
    assert node.engine.read_entries("A", 2, 0) == [second]


def test_a_snapshot_is_a_node_file_with_the_same_rows(node: TestNode, make_node: MakeNode, tmp_path: Path) -> None:
    node.run("CREATE TABLE t(x)")
    node.run("INSERT INTO t(rowid, x) VALUES (7, 'a'), (3, 'b')")
    node.save()
    node.run("INSERT INTO t VALUES ('later')")
    node.engine.background.snapshot_to(tmp_path / "copy.db")

    copy = make_node(path=tmp_path / "copy.db")

    assert copy.tables()["t"] == [(3, "b"), (7, "a")]
    assert copy.digest() == node.digest()
    assert copy.engine.applied == {"A": 2}
    with pytest.raises(ConfigError, match="is there already"):
        node.engine.background.snapshot_to(tmp_path / "copy.db")


def test_a_vote_in_pieces_is_whole_after_a_restart(make_node: MakeNode) -> None:
    """The pieces are saved before the vote that names them. A missing piece is damage, and is reported."""
    node = make_node()
    body = Transaction(Txid(9, "B"), {}, 0, 0, 0, "c", "snapshot", "rows", AccessSet(), encode_changes([]), b"x" * 500)
    names = [(sha256(body.body[at : at + 100]).digest(), 100) for at in (100, 200)]
    parts: tuple[Part, ...] = (body.body[:100], *names, body.body[300:])
    for at, (digest, _) in zip((100, 200), names, strict=True):
        node.engine.votes.save_piece(digest, body.body[at : at + 100])
    node.engine.votes.save(Vote(body.txid, body, held=True), parts)
    assert node.engine.votes.assemble(parts) == body.body
    node.save()
    node.engine.close()
    again = Engine.open(node.path, founding=None)
    found = again.recover()
    assert found.votes == (Vote(body.txid, body, held=True),)
    assert found.pieces == dict(names)
    assert found.named == {body.txid: tuple(digest for digest, _ in names)}
    again.votes.drop_pieces((names[0][0],))
    with pytest.raises(DamagedError, match="lacks the piece"):
        again.votes.assemble(parts)
    again.close()


def test_an_export_keeps_every_rowid(node: TestNode, tmp_path: Path) -> None:
    """The change feed names rows by rowid, and a reader that starts from an export continues with the feed."""
    node.run("CREATE TABLE log(text)")
    node.run("INSERT INTO log VALUES ('a'), ('b'), ('c')")
    node.run("DELETE FROM log WHERE text = 'b'")
    node.engine.flush()
    copy = tmp_path / "copy.db"
    node.engine.background.snapshot_to(copy)
    vector, _, _ = strip(copy)
    db = apsw.Connection(str(copy))
    assert db.execute("SELECT rowid, text FROM log").fetchall() == node.rows("SELECT rowid, text FROM log")
    assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("log",)]
    assert (vector, db.pragma("freelist_count")) == ({"A": 3}, 0)
    db.close()
    assert [path.name for path in tmp_path.glob("copy.db*")] == ["copy.db"]


@pytest.mark.parametrize("held", [False, True])
def test_batch_that_may_restart_the_wal_counts_as_long(make_node: MakeNode, held: bool) -> None:
    """Such a batch copies the rest of the WAL at its end, and truncates the WAL, which takes a tenth of a second. While
    a reader of an old snapshot prevents that, no batch counts as long, however long the WAL is.
    """
    node = make_node(limits=Limits(wal_frames=40, wal_frames_max=BATCH_FRAMES + 60))
    engine = node.engine
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
    node.save()
    reader = engine.background.open_reader()
    if held:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()
    seen = set[bool]()
    while engine.wal.frames < 100:
        node.run("INSERT INTO t(x) VALUES (zeroblob(20000))")
        engine.wal.checkpoint()
        assert engine.batch.is_long == (not held and engine.wal.frames >= 60)
        seen.add(engine.batch.is_long)
        node.save()
    assert seen == ({False} if held else {False, True})
    assert not engine.batch.is_long  # there is nothing to write
    reader.close(True)


def test_free_pages_are_given_back_to_the_disk(make_node: MakeNode) -> None:
    node = make_node()
    node.run(SCHEMA, "CREATE TABLE gone(id INTEGER PRIMARY KEY, filler)", "CREATE INDEX fillers ON t(filler)")
    for number in range(1, 60):
        node.run(
            ("INSERT INTO gone VALUES (?, randomblob(100000))", (number,)),
            ("INSERT INTO t VALUES (?, ?)", (number, f"row {number}" * 100)),
        )
    node.run("DROP TABLE gone")
    journal, path = node.engine.journal, node.path
    node.save()
    node.engine.wal.checkpoint()
    reader = apsw.Connection(str(path))  # a reader still holds the old pages
    reader.execute("BEGIN; SELECT count(*) FROM t").fetchall()
    before = journal.room
    assert path.stat().st_size == 4096 * before.pages
    assert before.can_shrink
    assert before.free > 500
    for _ in range(before.free // 100 + 1):
        journal.shrink(100)
        node.engine.flush()
    assert journal.room.free == 0
    assert journal.room.pages < before.pages - before.free + 5
    assert reader.execute("SELECT count(*) FROM t").fetchall() == [(59,)]
    reader.close()
    # The page caches of all connections are valid for the rebuilt file.
    assert node.run("SELECT count(*), max(filler) FROM t INDEXED BY fillers")[0].rows == [(59, "row 9" * 100)]
    node.run("INSERT INTO t VALUES (100, 'new')", "CREATE TABLE another(id INTEGER PRIMARY KEY)")
    node.save()
    node.engine.wal.checkpoint()
    assert path.stat().st_size == 4096 * journal.room.pages < 4096 * before.pages - 4_000_000
    assert node.engine._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_pages_held_back_by_a_reader_are_copied_in_the_background(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long snapshot holds back many pages, and the end of the next batch must not copy all of them."""
    node = make_node(limits=Limits(wal_frames=40, wal_frames_max=60))
    wal, left = node.engine.wal, list[int]()
    finish = wal.finish

    def counted(db: apsw.Connection, most: int) -> None:
        left.append(wal.frames - wal._copied)
        finish(db, most)

    monkeypatch.setattr(wal, "finish", counted)
    node.run(SCHEMA)
    node.save()
    node.engine.wal.checkpoint()
    reader = node.engine.background.open_reader()
    reader.execute("BEGIN; SELECT count(*) FROM t")
    for _ in range(30):
        node.run("INSERT INTO t(filler) VALUES (zeroblob(30000))")
        node.save()
        if node.engine.checkpoint_due:
            node.engine.wal.checkpoint()
    assert wal.frames > 240
    reader.close()
    node.run("INSERT INTO t(filler) VALUES (1)")
    node.save()
    assert left == []
    node.engine.wal.checkpoint()
    node.run("INSERT INTO t(filler) VALUES (1)")
    node.save()
    assert (len(left), left[0] < 20, wal.frames) == (1, True, 0)


def test_wal_file_is_lengthened_ahead_of_short_batches(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.save()
    wal = wal_of(node.path)
    lengths = set[int]()
    for _ in range(30):
        node.run(("INSERT INTO t(filler) VALUES ('a')", ()))
        node.engine.flush()
        lengths.add(wal.stat().st_size)
        end = 32 + node.engine.wal.frames * FRAME_BYTES
        assert wal.stat().st_size >= end + RESERVE_LEAST * FRAME_BYTES
    assert len(lengths) < 4
    node.engine.sync()
    whole = wal.read_bytes()
    place = cut(node.path, whole, tmp_path / "whole", len(whole))
    assert batches_in(place) == (node.engine.batch.number, node.tick)


def test_wal_is_not_lengthened_ahead_of_long_batches(make_node: MakeNode) -> None:
    node = make_node()
    node.run(SCHEMA)
    node.save()
    wal = wal_of(node.path)
    node.run(("INSERT INTO t(filler) VALUES (zeroblob(2000000))", ()))
    node.engine.flush()
    for _ in range(4):
        node.run(("INSERT INTO t(filler) VALUES (zeroblob(2000000))", ()))
        before = node.engine.wal.frames
        node.engine.flush()
        assert node.engine.wal.frames > before + RESERVE_LEAST
        end = 32 + node.engine.wal.frames * FRAME_BYTES
        assert wal.stat().st_size - end < RESERVE_LEAST * FRAME_BYTES


def test_batch_is_written_although_the_wal_cannot_be_lengthened_ahead(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node()
    node.run(SCHEMA)
    refused = list[int]()

    def refuse(_file: int, data: bytes, _place: int) -> int:
        refused.append(len(data))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    node.save()
    node.run(("INSERT INTO t(filler) VALUES ('a')", ()))
    node.engine.flush()
    node.engine.sync()
    assert RESERVE_BYTES in refused
    assert wal_of(node.path).stat().st_size < RESERVE_BYTES


def test_failed_sync_of_a_checkpoint_is_damage(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts the pages as written: the next sync would succeed without the data."""
    node = make_node()
    node.run(SCHEMA)
    node.save()
    node.engine.wal.checkpoint()

    def fail(code: int) -> SimpleNamespace:
        def checkpoint(*_: object) -> None:
            raise apsw.exception_for(code)

        return SimpleNamespace(
            execute=lambda _: SimpleNamespace(fetchall=list), wal_checkpoint=checkpoint, close=node.engine.flush
        )

    monkeypatch.setattr(node.engine.wal, "_checkpointer", fail(apsw.SQLITE_IOERR_FSYNC))
    with pytest.raises(DamagedError, match="cannot be synced"):
        node.engine.wal.checkpoint()
    monkeypatch.setattr(node.engine.wal, "_checkpointer", fail(apsw.SQLITE_IOERR_READ))
    with pytest.raises(apsw.IOError):
        node.engine.wal.checkpoint()


def test_log_that_cannot_be_written_at_a_start_stays_closed(
    make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node opens its file again and again until there is room."""
    node = make_node()
    node.run(SCHEMA)
    node.save()
    (tmp_path / "left").mkdir()
    left = tmp_path / "left" / node.path.name
    shutil.copy(node.path, left)
    shutil.copy(wal_of(node.path), wal_of(left))

    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", write)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(NoRoomError, match="-wal cannot be written"):
        Engine.open(left, founding=None)
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("reads_the_end", [False, True])
def test_frames_of_an_earlier_process_are_written_again_at_a_start_before_they_are_copied(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, reads_the_end: bool
) -> None:
    """The last sync of the process before may have failed: then the kernel writes only what is written again.

    A reader of the log's end lets the node copy all frames, but not start the log over: later commits follow them.
    """
    node = make_node()
    node.run(SCHEMA)
    node.save()
    reader = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
    for _ in range(300):
        node.run("INSERT INTO t(filler) VALUES (zeroblob(5000))")
    node.save()
    if reads_the_end:
        reader.execute("ROLLBACK")
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(300,)]
    end = 32 + node.engine.wal.frames * FRAME_BYTES
    node.engine.close()
    before = wal_of(node.path).read_bytes()
    written, real, length = bytearray(end), os.pwrite, node.path.stat().st_size

    def write(file: int, data: bytes, place: int) -> int:
        assert node.path.stat().st_size == length, "no frame was copied before"
        done = real(file, data[:100_000], place)
        written[place : place + done] = data[:done]
        return done

    monkeypatch.setattr(os, "pwrite", write)
    again = Engine.open(node.path, founding=None)
    try:
        assert bytes(written[:end]) == before[:end]
        assert wal_of(node.path).read_bytes()[:end] == before[:end]
    finally:
        again.close()
        reader.close()
