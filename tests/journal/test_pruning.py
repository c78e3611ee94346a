"""Journals whose beginning was removed: the rest is verified from the mark, and no reader skips the gap."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from bedrockish_journal.feed.change_feed import Feed
from bedrockish_journal.model.changes import encode_statements
from bedrockish_journal.model.errors import EntryMalformedError, JournalPrunedError
from bedrockish_journal.model.transaction import SCHEMA
from bedrockish_journal.storage import schema_history as schema
from bedrockish_journal.storage import store
from bedrockish_journal.storage.pruning import REAL_TIME, aged, clock_at, horizon, marks, plan, remove, size
from bedrockish_journal.verify.replay import digest, replay
from bedrockish_journal.verify.verify import verify
from tests.journal.world import NODES, World


@pytest.fixture(params=range(3))
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path, request.param).run(40)
    world.members("A", 1, NODES[:3])
    world.settle()
    world.config = 1
    for _ in range(40):
        world.step()
    world.settle()
    yield world
    world.close()


def clocks(db: apsw.Connection) -> list[int]:
    return [row[0] for row in db.execute("SELECT clock FROM bedrockish_journal WHERE repeat = 0 ORDER BY clock")]


def prune(world: World, node: str, share: float) -> dict[str, int]:
    db = world.nodes[node].db
    with db:
        upto = plan(db, clock_at(db, share))
        remove(db, upto)
    return upto


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
def test_pruned_journal_verifies_from_its_mark(world: World, share: float) -> None:
    upto = prune(world, "B", share)
    report = verify(world.paths)
    assert report.findings == []
    assert [count.removed for count in report.counts] == [{}, upto, {}]
    assert report.lacks == {}


def test_verify_accepts_journals_that_are_pruned_at_all_nodes(world: World) -> None:
    for node, share in (("A", 0.3), ("B", 0.6), ("C", 0.9)):
        prune(world, node, share)
    assert verify(world.paths).findings == []


def test_entries_are_removed_in_slices_from_the_last_pruning_mark_on(world: World) -> None:
    db = world.nodes["A"].db
    prune(world, "A", 0.3)
    before = store.applied(db)
    upto = plan(db, clock_at(db, 0.7))
    slices = 0
    with db:
        while remove(db, upto, 3):
            slices += 1
    assert slices > 3
    assert {leader: mark.tick for leader, mark in marks(db).items() if leader in upto} == upto
    assert store.applied(db) == before
    assert verify(world.paths).findings == []


def test_pruning_keeps_the_last_entries_and_those_that_peers_need(world: World) -> None:
    db = world.nodes["A"].db
    assert plan(db, 0) == {}
    assert plan(db, clocks(db)[-1], {}) == {}
    assert all(tick <= 2 for tick in plan(db, clocks(db)[-1], dict.fromkeys(NODES, 2)).values())
    everything = plan(db, 1 << 62)
    assert everything == {leader: tick - 1 for leader, tick in store.applied(db).items()}


@contextmanager
def counted(db: apsw.Connection) -> Iterator[Counter[str]]:
    """Count the steps of SQLite within the block, as ``steps``."""
    count = Counter[str]()
    db.set_progress_handler(lambda: bool(count.update(["steps"])), 1)
    try:
        yield count
    finally:
        db.set_progress_handler(None)
    assert count["steps"] > 0


def test_plan_takes_no_more_steps_in_a_longer_journal(world: World) -> None:
    """A node asks every ten seconds, in its loop."""
    db = world.nodes["A"].db

    def steps() -> int:
        with counted(db) as count:
            plan(db, 0)
        assert size(db)[0] == len(db.execute("SELECT seq FROM bedrockish_journal").fetchall())
        return count["steps"]

    before = steps()
    for _ in range(80):
        world.step()
    world.settle()
    assert steps() <= before + 10


def test_removal_does_not_read_the_joined_commands_of_other_entries(world: World) -> None:
    db = world.nodes["A"].db

    def steps() -> int:
        with db:
            upto = plan(db, clock_at(db, 0.9))
            with counted(db) as count:
                assert remove(db, upto, 3) == 3
        return count["steps"]

    before = steps()
    others = [(f"other-{number}", (1 << 40) + number) for number in range(2_000)]
    db.executemany("INSERT INTO bedrockish_joined(command, seq) VALUES (?, ?)", others)
    assert steps() < before + 1_000
    assert db.execute("SELECT count(*) FROM bedrockish_joined WHERE seq > 1 << 39").get == 2_000


def test_only_old_entries_are_pruned(world: World) -> None:
    db = world.nodes["C"].db
    bound = clocks(db)[len(clocks(db)) // 2]
    later = [clock for clock in clocks(db) if clock > bound]
    with db:
        remove(db, plan(db, bound))
    assert [clock for clock in clocks(db) if clock > bound] == later
    assert horizon(db)[0] <= bound
    missing = {leader: mark.tick for leader, mark in marks(db).items()}
    assert missing


def test_feed_of_a_pruned_journal_has_every_transaction_or_raises(world: World) -> None:
    whole, part = world.nodes["A"].db, world.nodes["B"].db
    for db in (whole, part):
        db.execute(schema.DDL).fetchall()
    whole.execute("INSERT INTO bedrockish_meta VALUES ('safe', ?)", (1 << 60,))
    feed = Feed()
    everything = feed.take(whole.execute(*feed.question(10_000)).fetchall())
    prune(world, "B", 0.5)
    part.execute("INSERT INTO bedrockish_meta VALUES ('safe', ?)", (1 << 60,))
    removed = horizon(part)
    for place, one in enumerate(everything):
        feed = Feed(str(one.cursor))
        rows = part.execute(*feed.question(10_000)).fetchall()
        if (one.clock, one.leader) < removed:
            with pytest.raises(Exception, match="were removed to make room"):
                feed.take(rows)
        else:
            assert [each.cursor for each in feed.take(rows)] == [each.cursor for each in everything[place + 1 :]]


def test_reader_behind_a_pruned_scheduled_change_gets_an_error(world: World) -> None:
    """In the feed the change comes at its activation, so a reader before that point has not seen it."""
    db = world.nodes["A"].db
    plain = world.transaction("A", SCHEMA, encode_statements(["CREATE TABLE later(a)"]))
    change = replace(plain, activates=1 << 50, body=b"")
    entry = world.entry("A", change)
    with db:
        store.append(db, entry, repeat=False, applied_ms=1)
    world.nodes["A"].applied["A"], world.nodes["A"].heads["A"] = entry.tick, entry.hash
    after = world.entry("A", world.transaction("A", SCHEMA, encode_statements(["CREATE TABLE last(a)"])))
    with db:
        store.append(db, after, repeat=False, applied_ms=1)
        remove(db, plan(db, change.txid.clock))
    assert horizon(db) == (1 << 50, "A")


def test_rows_written_with_definitions_leave_with_the_entry(world: World) -> None:
    db = world.nodes["A"].db
    statements = [
        "CREATE TABLE person(id INTEGER PRIMARY KEY, mail TEXT)",
        "INSERT INTO person VALUES (1, 'ann@example.org')",
        "/* as before */ create INDEX person_mail ON person(mail)",
        "WITH n(x) AS (SELECT 'ann@example.org') INSERT INTO person SELECT 2, x FROM n",
        "/* a comment */" * 40 + "INSERT INTO person VALUES (3, 'ann@example.org')",
    ]
    entries = []
    for texts in (statements, ["CREATE TABLE last(a)"]):
        transaction = world.transaction("A", SCHEMA, encode_statements(texts))
        entries.append(world.entry("A", transaction))
        with db:
            store.append(db, entries[-1], repeat=False, applied_ms=1)
            schema.schedule(db, transaction, 100 + len(entries), texts)
        world.nodes["A"].applied["A"], world.nodes["A"].heads["A"] = entries[-1].tick, entries[-1].hash
    query = "SELECT statements FROM bedrockish_schema WHERE version = 101"
    assert db.execute(query).get == ";\n".join(statements)
    with db:
        remove(db, plan(db, entries[0].txid.clock))
    assert db.execute(query).get == f"{statements[0]};\n{statements[2]}"
    assert db.execute("SELECT count(*) FROM bedrockish_schema WHERE instr(statements, 'ann@')").get == 0


def test_verify_finds_an_altered_pruning_mark(world: World) -> None:
    prune(world, "A", 0.5)
    db = world.nodes["A"].db
    leader = random.Random(1).choice(sorted(marks(db)))
    db.execute("UPDATE bedrockish_pruned SET hash = zeroblob(32) WHERE leader = ?", (leader,))
    assert "link" in {finding.check for finding in verify(world.paths[:1]).findings}
    db.execute("UPDATE bedrockish_pruned SET tick = tick + 1, hash = zeroblob(32) WHERE leader = ?", (leader,))
    assert "density" in {finding.check for finding in verify(world.paths[:1]).findings}
    db.execute("UPDATE bedrockish_pruned SET hash = 'x'")
    with pytest.raises(EntryMalformedError, match="fill this node again"):
        marks(db)
    assert "bytes" in {finding.check for finding in verify(world.paths[:1]).findings}


def test_a_database_is_rebuilt_from_a_whole_journal_only(world: World, tmp_path: Path) -> None:
    prune(world, "A", 0.5)
    with pytest.raises(JournalPrunedError, match=r"bedrockish export"):
        replay(world.paths, tmp_path / "again.db")
    assert not (tmp_path / "again.db").exists()
    report = replay([world.paths[1], world.paths[0]], tmp_path / "again.db")
    assert report.digest == digest(world.nodes["A"].db)
    assert replay(world.paths, tmp_path / "drawn.db", draw=random.Random(0).random).digest == report.digest
    prune(world, "B", 0.5)
    prune(world, "C", 0.5)
    with pytest.raises(JournalPrunedError):
        replay(world.paths, tmp_path / "no.db", draw=random.Random(0).random)


def test_size_of_a_journal_is_estimated(world: World) -> None:
    db = world.nodes["A"].db
    entries, about, oldest = size(db)
    assert entries == len(list(store.scan(db)))
    true = sum(len(e.label) + len(e.transaction.body) + len(e.transaction.command) + 220 for e in store.scan(db))
    assert 0.5 * true < about < 2 * true
    assert oldest == clocks(db)[0]
    prune(world, "A", 0.9)
    assert size(db)[1] < 0.5 * about


def test_file_of_an_earlier_version_has_no_pruning_marks() -> None:
    db = apsw.Connection(":memory:")
    db.execute(store.DDL).fetchall()
    assert marks(db) == {}
    assert horizon(db) == (0, "")
    assert size(db) == (0, 0, 0)
    assert clock_at(db, 0.5) == 0
    store.complete(db)
    store.complete(db)
    assert marks(db) == {}
    db.close()


def test_entries_with_counted_clocks_have_the_age_of_the_next_wall_clock(world: World) -> None:
    db, now = world.nodes["A"].db, REAL_TIME + (1 << 60)
    assert aged(db, now) == 0, "nothing tells how old any of it is"
    with db:
        db.execute("UPDATE bedrockish_journal SET clock = clock + ? WHERE clock >= ?", (now, clock_at(db, 0.5)))
    first = min(clock for clock in clocks(db) if clock >= REAL_TIME)
    assert clocks(db)[0] < REAL_TIME
    assert (aged(db, first - 1), aged(db, first), aged(db, first + 5)) == (0, first, first + 5)


def test_bodies_bound_the_entries_that_are_removed_at_a_time(world: World) -> None:
    """The node's loop decodes each body."""
    db = world.nodes["A"].db
    first = int(db.execute("SELECT min(tick) FROM bedrockish_journal WHERE leader = 'B'").get)
    upto = plan(db, max(clocks(db)))["B"]
    whole = "SELECT sum(length(body)) FROM bedrockish_journal WHERE leader = 'B' AND tick < ?"
    three = int(db.execute(whole, (first + 3,)).get)
    assert remove(db, {"B": upto}, 100, three) == 3
    assert remove(db, {"B": upto}, 100, 1) == 1, "a large one goes alone"
    assert remove(db, {"B": upto}, 2) == 2
    assert marks(db)["B"].tick == first + 5
