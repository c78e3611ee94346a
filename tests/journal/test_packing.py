"""Old entries in packs: every reader of the journal sees the entries as written, and no entry of a damaged pack."""

import bz2
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import apsw
import cbor2
import pytest

from bedrockish_journal.feed.change_feed import Feed
from bedrockish_journal.model.changes import encode_changes
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.spark.source.files import open_file_feed
from bedrockish_journal.spark.source.plans import WantedEntries
from bedrockish_journal.storage import packing, pruning, store
from bedrockish_journal.storage.packing import Pack, PackRun, find, next_run, write
from bedrockish_journal.verify.replay import digest, replay
from bedrockish_journal.verify.verify import verify
from tests.journal import foreign_reader
from tests.journal.world import NODES, World

EVER = (1 << 63) - 1
UPDATE = "UPDATE main.bedrockish_journal SET"
CHAIN = """SELECT leader, tick FROM bedrockish_journal AS later
 WHERE prev <> coalesce((SELECT hash FROM bedrockish_journal AS before
   WHERE before.leader = later.leader AND before.tick = later.tick - 1),
  (SELECT hash FROM bedrockish_pruned AS mark WHERE mark.leader = later.leader AND mark.tick = later.tick - 1),
  zeroblob(32))"""  # as docs/journal.md has it


@pytest.fixture(params=range(2))
def world(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Journals of adopted, joined and repeated entries, with a change of the membership in the middle."""
    monkeypatch.setattr(packing, "ENTRIES_MAX", 7)
    monkeypatch.setattr(packing, "ENTRIES_MIN", 3)
    world = World(tmp_path, request.param).run(60)
    world.members("A", 1, NODES[:3])
    world.settle()
    world.config = 1
    for _ in range(60):
        world.step()
    world.settle()
    for node in world.nodes.values():
        packing.unpack_on(node.db)
    yield world
    world.close()


def pack(db: apsw.Connection, clock: int = EVER) -> list[Pack]:
    """Pack all entries that can be packed, as a node does."""
    made: list[Pack] = []
    begin: dict[str, int] = {}
    with db:
        upto = {leader: tick - 1 for leader, tick in store.applied(db).items()}
        while (run := next_run(db, upto, clock, begin)) is not None:
            packed = run.pack()
            assert packed is not None
            made.append(packed)
            write(db, packed)
    return made


def everything(db: Any, table: str = "bedrockish_journal") -> list[Any]:
    return [tuple(row) for row in db.execute(f"SELECT * FROM {table} ORDER BY seq")]


def test_packed_entries_are_read_with_their_original_bytes(world: World) -> None:
    db = world.nodes["B"].db
    before, heads = everything(db), store.heads(db)
    made = pack(db)
    assert len(made) > 6
    assert max(one.last - one.first + 1 for one in made) == 7
    assert everything(db) == before
    assert store.heads(db) == heads
    bare = everything(db, "main.bedrockish_journal")
    assert sum(row[9] == b"" for row in bare) == sum(one.last - one.first + 1 for one in made)
    assert [row[:9] for row in bare] == [row[:9] for row in before]
    assert {row[6] for row in bare if row[9] == b""} == {ROWS}
    assert all(row[9] for row in bare if (row[1], row[2]) in {(leader, tick) for leader, (tick, _) in heads.items()})
    assert pack(db) == []
    for row in before:
        entry = store.find_command(db, row[5])
        assert entry is not None
        assert entry in store.find_txid(db, entry.txid)
    joined = [command for (command,) in db.execute("SELECT command FROM bedrockish_joined")]
    assert joined
    assert all(store.find_command(db, command) is not None for command in joined)
    for leader, (tick, _) in heads.items():
        read = store.read(db, leader, 2, 1 << 30)
        assert [entry.tick for entry in read] == list(range(2, tick + 1))


def test_verify_replay_and_feed_read_packed_files(world: World, tmp_path: Path) -> None:
    whole = digest(world.paths[1])
    for node in world.nodes.values():
        pack(node.db)
    report = verify(world.paths)
    assert report.findings == []
    assert replay([world.paths[1]], tmp_path / "again.db", draw=Random(3).random).digest == whole
    with closing(store.open_readonly(world.paths[1])) as db, open_file_feed(str(world.paths[1])) as feed:
        stored = list(store.scan_stored(db))
        assert len(stored) == len({row.hash for row in stored})
        for leader, (tick, _) in store.heads(db).items():
            wanted = sorted([row for row in stored if row.leader == leader], key=lambda row: row.tick)
            assert list(feed.scan([(leader, 1, tick)], WantedEntries())) == wanted


def test_documented_query_finds_no_gap_on_plain_sqlite(world: World) -> None:
    """A tool that does not know packs sees empty bytes, and the hashes at the ends of packs."""
    made = pack(world.nodes["C"].db)
    with closing(sqlite3.connect(world.paths[2])) as db:
        assert db.execute(CHAIN).fetchall() == []
        db.execute("UPDATE bedrockish_journal SET hash = zeroblob(32) WHERE leader = ? AND tick = ?", place_of(made[1]))
        assert db.execute(CHAIN).fetchall() == [(made[1].leader, made[1].last + 1)]


def test_a_decoder_written_from_the_page_reads_packs(world: World) -> None:
    before = list(foreign_reader.journal(str(world.paths[2])))
    made = pack(world.nodes["C"].db)
    assert made
    assert list(foreign_reader.journal(str(world.paths[2]))) == before
    statement, params = spoiled(made[0])["forged"]
    with world.nodes["C"].db as db:
        db.execute(statement, params)
    with pytest.raises(AssertionError, match=f"the pack of {made[0].leader}{made[0].last} is not what was packed"):
        list(foreign_reader.journal(str(world.paths[2])))


def place_of(pack: Pack) -> tuple[str, int]:
    return pack.leader, pack.last


def test_packing_does_not_change_the_feed(world: World) -> None:
    db = world.nodes["A"].db
    with db:
        db.execute("INSERT OR REPLACE INTO bedrockish_meta VALUES ('safe', ?)", (EVER,))
    whole = list(pages(db, 1000, 1 << 30))
    assert len(whole) > 60
    pack(db)
    assert list(pages(db, 1000, 1 << 30)) == whole
    assert list(pages(db, 9, 1 << 30)) == whole
    assert list(pages(db, 1000, 500)) == whole


def pages(db: apsw.Connection, limit: int, size: int) -> Iterator[Any]:
    """Read the feed page by page; each has so many transactions, and so many bytes and one transaction, at most."""
    feed = Feed()
    while True:
        sql, params = feed.question(limit)
        rows: list[Any] = db.execute(sql, (*params[:3], size)).fetchall()
        assert len(rows) - 1 <= limit
        assert sum(len(row[5]) for row in rows[1:-1]) < size
        found = feed.take(rows)
        yield from found
        if len(rows) == 1:
            return


def test_only_old_small_row_entries_are_packed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    node = world.nodes["A"]
    monkeypatch.setattr(packing, "_CANDIDATES", packing._CANDIDATES.replace(str(packing.BODY_BYTES_MAX), "900"))
    large = world.transaction("A", ROWS, encode_changes([]))
    world.commit("A", replace(large, result=bytes(1_000), body=b""))
    for _ in range(12):
        world.commit("A", world.transaction("A", ROWS, encode_changes([])))
    middle = sorted(row[3] for row in everything(node.db))[40]
    assert pack(node.db, middle)
    packed = [row for row in everything(node.db, "main.bedrockish_journal") if row[9] == b""]
    assert packed
    assert max(row[3] for row in packed) <= middle
    pack(node.db)
    left = {(row[6], len(row[10]) > 900) for row in everything(node.db, "main.bedrockish_journal") if row[9]}
    assert {("members", False), ("rows", True), ("schema", False)} <= left


def test_packing_does_not_hide_a_broken_chain(world: World) -> None:
    """Damage before the packing is still there afterwards, unchanged for an investigation."""
    db = world.nodes["A"].db
    with db:
        db.execute(f"{UPDATE} body = CAST(body || x'00' AS BLOB) WHERE leader = 'B' AND tick = 5")
        db.execute(f"{UPDATE} hash = zeroblob(32) WHERE leader = 'C' AND tick = 6")
        db.execute(f"{UPDATE} label = 'no blob' WHERE leader = 'C' AND tick = 8")
        db.execute(f"{UPDATE} prev = 7 WHERE leader = 'C' AND tick = 9")
    before = everything(db)
    pack(db)
    assert everything(db) == before
    kept = db.execute("SELECT leader, tick FROM main.bedrockish_journal WHERE label <> x''").fetchall()
    assert {("B", 5), ("C", 6), ("C", 8), ("C", 9)} <= set(kept)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_removed_entries_leave_no_bytes_in_packs(world: World, share: float) -> None:
    db = world.nodes["B"].db
    pack(db)
    upto = pruning.plan(db, pruning.clock_at(db, share))
    gone = [row for row in everything(db) if row[2] <= upto.get(row[1], 0)]
    assert gone
    with db:
        while pruning.remove(db, upto, 3):
            pass
    assert {leader: mark.tick for leader, mark in pruning.marks(db).items()} == upto
    assert verify(world.paths).findings == []
    left: list[Any] = db.execute("SELECT leader, first, last, entries FROM bedrockish_packed").fetchall()
    assert all(first > upto.get(leader, 0) for leader, first, _, _ in left)
    raw = b"".join(bz2.decompress(entries) for *_, entries in left)
    assert raw
    assert not any(row[10] in raw for row in gone)


def spoiled(made: Pack) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Return statements that damage a pack, one way each."""
    labels, bodies = cbor2.loads(bz2.decompress(made.entries))
    where = f"WHERE leader = '{made.leader}' AND first = {made.first}"
    forged = bz2.compress(cbor2.dumps([labels, [bodies[0] + b"\0", *bodies[1:]]]))
    return {
        "a bit": (f"UPDATE bedrockish_packed SET entries = ? {where}", (made.entries[:60] + b"?" + made.entries[61:],)),
        "cut off": (f"UPDATE bedrockish_packed SET entries = ? {where}", (made.entries[:-4],)),
        "forged": (f"UPDATE bedrockish_packed SET entries = ? {where}", (forged,)),
        "nonsense": (f"UPDATE bedrockish_packed SET entries = ? {where}", (bz2.compress(cbor2.dumps([1, {}])),)),
        "no CBOR": (f"UPDATE bedrockish_packed SET entries = ? {where}", (bz2.compress(b"\xff\xff"),)),
        "a text": (f"UPDATE bedrockish_packed SET entries = 'x' {where}", ()),
        "unfolds": (f"UPDATE bedrockish_packed SET entries = ? {where}", (bz2.compress(bytes(50_000_000)),)),
        "gone": (f"DELETE FROM bedrockish_packed {where}", ()),
        "elsewhere": (f"UPDATE bedrockish_packed SET first = first + 1 {where}", ()),
    }


@pytest.mark.parametrize(
    "how", ["a bit", "cut off", "forged", "nonsense", "no CBOR", "a text", "unfolds", "gone", "elsewhere"]
)
def test_damaged_pack_returns_no_entries_and_is_reported(world: World, how: str) -> None:
    db = world.nodes["B"].db
    made = pack(db)[1]
    before = everything(db)
    statement, params = spoiled(made)[how]
    with db:
        db.execute(statement, params)
    packing.unpack_on(db)
    with closing(store.open_readonly(world.paths[1])) as fresh:
        for row in store.scan_stored(fresh):
            within = row.leader == made.leader and made.first <= row.tick <= made.last
            if within:
                assert row.label == row.body == b""
                with pytest.raises(EntryMalformedError, match="its pack is damaged or missing"):
                    row.entry()
            else:
                assert tuple(row) in before
    report = verify(world.paths)
    told = {(one.leader, one.tick) for one in report.findings if one.node == "B"}
    assert {(made.leader, tick) for tick in range(made.first, made.last + 1)} <= told


def test_journal_with_a_damaged_pack_can_be_pruned(world: World) -> None:
    """The removal then ends at the end of the pack, whose hash is known, or before it."""
    node = world.nodes["B"]
    made = pack(node.db)[1]
    with node.db:
        node.db.execute("DELETE FROM bedrockish_packed WHERE leader = ? AND last = ?", place_of(made))
    with closing(apsw.Connection(str(world.paths[1]))) as db, db:
        packing.unpack_on(db)
        assert pruning.remove(db, {made.leader: made.first + 1}) == made.first - 1
        assert pruning.marks(db)[made.leader].tick == made.first - 1
        assert pruning.remove(db, {made.leader: made.first + 1}) == 0
        assert pruning.remove(db, {made.leader: made.last + 1}, 2) == made.last - made.first + 1
        assert pruning.marks(db)[made.leader] == pruning.marks(db)[made.leader]._replace(tick=made.last, hash=made.hash)


def test_pack_is_found_by_each_of_its_places(world: World) -> None:
    db = world.nodes["A"].db
    made = pack(db)[2]
    for tick in range(made.first, made.last + 1):
        assert find(db, made.leader, tick) == made
    beside = find(db, made.leader, made.first - 1)
    assert beside is None or beside.last < made.first
    assert PackRun(made.leader, made.first, made.unpack()).pack() == made


def test_entry_that_would_not_unpack_stays_unpacked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the packing, only the pack would have the bytes of its entries."""
    db = world.nodes["A"].db
    upto = {leader: tick - 1 for leader, tick in store.applied(db).items()}
    run = next_run(db, upto, EVER, {})
    assert run is not None
    assert run.pack() is not None
    monkeypatch.setattr(packing, "RAW_BYTES_MAX", 100)
    assert run.pack() is None


def test_size_of_a_journal_is_exact_after_many_cuts(world: World) -> None:
    """A node removes a few entries at a time, for ever."""
    db = world.nodes["A"].db
    pack(db)
    with db:
        for _ in range(60):
            assert pruning.remove(db, pruning.plan(db, EVER - 1), 1) == 1
            assert packing.packed_bytes(db) == db.execute("SELECT total(length(entries)) FROM bedrockish_packed").get
    assert verify(world.paths).findings == []


def test_journal_size_includes_packs(world: World) -> None:
    db = world.nodes["A"].db
    entries, size, oldest = pruning.size(db)
    made = pack(db)
    found = pruning.size(db)
    assert (found[0], found[2]) == (entries, oldest)
    assert sum(len(one.entries) for one in made) < found[1] < size
