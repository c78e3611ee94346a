"""A damaged file is filled again with the data of a copy that has all of its commits, and keeps the node's promises."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.common.durable_files import sync
from bedrockish.core.protocol.health import DAMAGED_TABLES, Alarm, Mode, encode_alarm
from bedrockish.core.protocol.records import Vote
from bedrockish.engine.storage import refill, rename_copy
from bedrockish.engine.storage.system_tables import ALARM, BLOCKED, VOID
from bedrockish.errors import ConfigError, DamagedError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import encode_changes
from bedrockish_journal.model.errors import JournalError, TargetUnwritableError
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.storage.pruning import FORGOTTEN_KEY
from bedrockish_journal.verify.replay import digest, replay
from tests.engine.nodes import Engine, Founding, TestNode
from tests.engine.test_compare import MEMBERS

HELD = Txid(902, "A")
NO_CHANGES = encode_changes([])


def plain(_db: apsw.Connection) -> None:
    """Register no plugin."""


class Pair:
    """A, which is sound, and B, which is damaged and has applied some of A's commits."""

    def __init__(self, folder: Path, lacks: int = 1) -> None:
        self.source = TestNode(folder / "A.db", "A")
        self.source.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)", "CREATE INDEX t_v ON t(v)")
        for n in range(5):
            self.source.run(f"INSERT INTO t VALUES ({n}, 'text {n}')")
        self.source.save()
        self.path, self.copy = folder / "B.db", folder / "copy.db"
        self.engine = Engine.open(self.path, founding=Founding("B", MEMBERS, "store of B"))
        for entry in self.source.entries[: len(self.source.entries) - lacks]:
            self.engine.apply(entry, repeat=False, applied_ms=0)
        for txid in (Txid(900, "A"), Txid(901, "C")):
            self.engine.votes.save(Vote(txid, None, promised=7, accepted=(7, False)))
        alarm = encode_alarm(Alarm(Mode.DAMAGED, "row 3 differs", {}))
        for key, value in {
            ALARM + DAMAGED_TABLES: alarm,
            "clock_ceiling": 5000,
            "cut": 3,
            "seen:A": b"seen",
            "starts": b"starts",
            f"{VOID}A-9": 1,
            f"{BLOCKED}A-a": 1,
        }.items():
            self.engine.set_meta(key, value)
        self.engine._db.execute("UPDATE t SET v = 'wrong' WHERE id = 3")
        self.engine.flush()

        self.held = Transaction(HELD, {}, 0, 0, 0, "c", "snapshot", "rows", AccessSet(), NO_CHANGES, bytes(300))
        piece, digest = self.held.body[:200], sha256(self.held.body[:200]).digest()
        self.engine.votes.save_piece(digest, piece)
        self.engine.votes.save(Vote(self.held.txid, self.held, held=True), ((digest, 200), self.held.body[200:]))
        self.engine.flush()

    def fetch(self) -> None:
        """Copy A's file, which has promises of its own."""
        engine = self.source.engine
        engine.votes.save(Vote(Txid(999, "C"), None, promised=2))
        for key, value in {"clock_ceiling": 400, "cut": 8, "safe": 8, "seen:B": b"x", "lost": "A is lost"}.items():
            engine.set_meta(key, value)
        engine.set_meta(FORGOTTEN_KEY, 77)
        self.source.save()
        engine.background.snapshot_to(self.copy)

    def reopen(self) -> Engine:
        return Engine.open(self.path, founding=Founding("B", MEMBERS, "another"))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_refill_takes_the_data_of_the_copy_and_keeps_the_promises_of_the_node(pair: Pair) -> None:
    """Name, id, votes, ceiling, cut, starts and its memory of other nodes stay; the alarm goes, other alarms stay."""
    pair.fetch()
    batches = pair.engine.batch.number
    pair.path.chmod(0o640)
    assert refill.check_copy(pair.copy, pair.engine.applied) == pair.source.engine.applied
    refill.prove_copy(pair.copy, plain)
    pair.engine.close()
    refill.install(pair.path, pair.copy)
    assert not pair.copy.exists()
    assert pair.path.stat().st_mode & 0o777 == 0o640
    assert digest(pair.path) == digest(pair.source.path)
    engine = pair.reopen()
    found = engine.recover()
    assert (found.node, found.store, found.batches) == ("B", "store of B", batches)
    assert [(vote.txid, vote.promised) for vote in found.votes[:2]] == [(Txid(900, "A"), 7), (Txid(901, "C"), 7)]
    assert found.votes[2].transaction == pair.held, "a vote that is kept in pieces is whole"
    assert len(found.pieces) == 1
    assert (found.ceiling, found.cut, found.safe) == (5000, 8, 8)
    assert (found.alarms, found.lost) == ({}, "")
    assert found.blocked == {Txid(10, "A")}
    # Removed entries and forgotten command ids are now those of the copy.
    assert engine.journal.forgotten_ms == 77
    assert engine.entries.void == {Txid(9, "A")}
    assert engine.get_meta("s")["starts"] == b"starts"
    assert engine.get_meta("seen:") == {"seen:A": b"seen"}
    assert engine.applied == pair.source.engine.applied
    engine.close()


def test_old_log_is_durably_gone_before_the_new_file_has_its_name(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite empties a log without a sync: after a power cut, its old frames would be applied to the new file."""
    pair.fetch()
    pair.engine.close()
    reader = apsw.Connection(str(pair.path))  # keeps the log from being removed with the last connection
    reader.execute("SELECT count(*) FROM t").fetchall()
    log, durable = Path(f"{pair.path}-wal"), list[set[str]]()
    put = rename_copy.put_in_place

    def synced(path: Path) -> None:
        if path.is_dir():
            durable.append({one.name for one in path.iterdir()})
        sync(path)

    def put_in_place(copy: Path, path: Path) -> None:
        assert log.name not in durable[-1]
        put(copy, path)

    monkeypatch.setattr(rename_copy, "sync", synced)
    monkeypatch.setattr(rename_copy, "put_in_place", put_in_place)
    assert log.exists()
    refill.install(pair.path, pair.copy)
    reader.close()
    assert len(durable) == 2, "before the rename, and after it"
    assert digest(pair.path) == digest(pair.source.path)


def test_copy_that_lacks_a_commit_is_refused(pair: Pair) -> None:
    """Otherwise the node would assign ticks of its timeline a second time."""
    pair.fetch()
    pair.engine.apply(pair.source.entries[-1], repeat=False, applied_ms=0)
    pair.source.run("INSERT INTO t VALUES (50, 'later')")
    pair.engine.apply(pair.source.entries[-1], repeat=False, applied_ms=0)
    pair.engine.flush()
    with pytest.raises(ConfigError, match="lacks commits"):
        refill.check_copy(pair.copy, pair.engine.applied)
    pair.engine.close()
    before = pair.path.read_bytes()
    with pytest.raises(ConfigError, match="lacks commits"):
        refill.install(pair.path, pair.copy)
    assert pair.path.read_bytes()[:100] == before[:100]
    assert Path(pair.copy).exists()


def test_copy_whose_tables_differ_from_its_journal_is_refused(pair: Pair) -> None:
    pair.fetch()
    with apsw.Connection(str(pair.copy)) as db:
        db.execute("UPDATE t SET v = 'wrong' WHERE id = 1")
    db.close()
    with pytest.raises(DamagedError, match="differ from a replay of its journal"):
        refill.prove_copy(pair.copy, plain)
    with apsw.Connection(str(pair.copy)) as db:
        db.execute("UPDATE bedrockish_meta SET value = 1 WHERE key = 'began_with'")
    db.close()
    with pytest.raises(refill.NotWholeError, match="had tables already"):
        refill.prove_copy(pair.copy, plain)


def test_copy_with_an_unreadable_page_is_refused(pair: Pair) -> None:
    pair.fetch()
    data = bytearray(pair.copy.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 100] = b"\xee" * 100
    pair.copy.write_bytes(data)
    with pytest.raises(DamagedError, match="damaged itself"):
        refill.check_copy(pair.copy, {})


def test_tables_are_made_again_from_the_nodes_own_journal(pair: Pair) -> None:
    """No other node is needed, and everything else stays unchanged."""
    assert not refill.fits_journal(pair.path, plain)
    target = refill.refill_path(pair.path)
    refill.replay_own(pair.path, target, plain)
    batches, applied = pair.engine.batch.number, dict(pair.engine.applied)
    pair.engine.close()
    refill.install(pair.path, target)
    assert refill.fits_journal(pair.path, plain)
    engine = pair.reopen()
    assert (engine.applied, engine.batch.number) == (applied, batches)
    rows = engine._db.execute("SELECT v FROM t WHERE id = 3").fetchall()
    assert rows == [("text 3",)]
    assert engine._db.execute("SELECT id FROM t WHERE v = 'text 3'").fetchall() == [(3,)]
    assert [vote.txid for vote in engine.recover().votes] == [Txid(900, "A"), Txid(901, "C"), HELD]
    engine.apply(pair.source.entries[-1], repeat=False, applied_ms=0)  # the next entry can be applied
    engine.close()


def test_damaged_own_journal_is_not_replayed(pair: Pair) -> None:
    pair.engine._db.execute("UPDATE main.bedrockish_journal SET body = substr(body, 1, 20) WHERE tick = 2")
    pair.engine.batch._actions.append((lambda: None, ()))
    pair.engine.flush()
    with pytest.raises(JournalError):
        refill.fits_journal(pair.path, plain)
    with pytest.raises(JournalError):
        refill.replay_own(pair.path, refill.refill_path(pair.path), plain)
    pair.engine.close()


def test_comparison_with_the_journal_ignores_later_commits(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit between reading the journal and reading the tables is not damage."""
    node = pair.source

    def replay_and_go_on(*arguments: Any, **options: Any) -> Any:
        report = replay(*arguments, **options)
        node.run("INSERT INTO t VALUES (77, 'meanwhile')")
        node.save()
        return report

    monkeypatch.setattr("bedrockish.engine.storage.refill.replay", replay_and_go_on)
    assert refill.fits_journal(node.path, plain)
    assert sorted(path.name for path in node.path.parent.glob("*.moment*")) == []


def test_comparison_without_disk_space_does_not_report_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is not damage, and an interruption ends the comparison."""
    node = TestNode(tmp_path / "a.db")
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    node.save()

    def full(*_arguments: object, **_options: object) -> None:
        raise TargetUnwritableError("x.proof", "x.proof cannot be written: database or disk is full")

    class EndedError(Exception):
        pass

    def end() -> None:
        raise EndedError

    monkeypatch.setattr(refill, "GO_ON_STEPS", 10)
    with pytest.raises(EndedError):
        refill.fits_journal(node.path, plain, end)
    assert refill.fits_journal(node.path, plain)
    monkeypatch.setattr(refill, "replay", full)
    with pytest.raises(ConfigError, match="free disk space"):
        refill.fits_journal(node.path, plain)
    assert not list(node.path.parent.glob("*.proof*"))
    assert not list(node.path.parent.glob("*.moment*"))


def test_long_refill_ends_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay takes minutes, and an operator would kill a node that waits for that."""
    pair = Pair(tmp_path, lacks=0)
    pair.fetch()
    pair.engine.close()
    target = refill.refill_path(pair.path)
    monkeypatch.setattr(refill, "GO_ON_STEPS", 10)

    class EndedError(Exception):
        pass

    def end() -> None:
        raise EndedError

    with pytest.raises(EndedError):
        refill.check_copy(pair.copy, {}, end)
    with pytest.raises(EndedError):
        refill.prove_copy(pair.copy, plain, end)
    with pytest.raises(EndedError):
        refill.replay_own(pair.path, target, plain, end)
    refill.replay_own(pair.path, target, plain)
    assert refill.check_copy(target, {}) == refill.check_copy(pair.copy, {})
