"""Packs of a node's own old entries: the answers from them, and the time of packing."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from bedrockish.core.protocol.health import DISK_FULL
from bedrockish.engine.engine import Engine
from bedrockish.engine.statements.rights import opened
from bedrockish.errors import SqlError, UnavailableError, UnsupportedError
from bedrockish.node.admin import retention
from bedrockish.node.admin.retention import PACKED_MS, Upkeep
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.storage.packing import ENTRIES_MAX, FUNCTION
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode

EVER = (1 << 63) - 1
COUNT = 2 * ENTRIES_MAX + 60
ALL = "SELECT * FROM bedrockish_journal ORDER BY seq"
CHANGES = "SELECT * FROM bedrockish_changes"


def fill(node: TestNode) -> TestNode:
    """Make some old entries."""
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)", "CREATE INDEX t_v ON t(v)")
    for number in range(COUNT):
        node.run(("INSERT INTO t VALUES (?, ?)", (number, f"text {number}")))
    return node


def pack(engine: Engine) -> int:
    made = 0
    while (run := engine.journal.next_run(EVER)) is not None:
        found = run.pack()
        assert found is not None
        engine.journal.pack(found)
        made += 1
    return made


@pytest.fixture
def old(node: TestNode) -> TestNode:
    return fill(node)


def packed(node: TestNode) -> int:
    """Return how many entries have no bytes of their own."""
    return int(node.engine._db.execute("SELECT count(*) FROM main.bedrockish_journal WHERE body = x''").get)


def test_statements_see_packed_entries_as_written(old: TestNode) -> None:
    before, changes, limited = old.rows(ALL), old.rows(CHANGES), old.engine._db.execute(opened(ALL)).fetchall()
    assert pack(old.engine) == 2
    assert packed(old) == 2 * ENTRIES_MAX
    assert old.rows(ALL) == before
    assert old.rows(CHANGES) == changes
    assert old.engine._db.execute(opened(ALL)).fetchall() == limited
    assert [row[:9] for row in limited] == [row[:9] for row in before]
    old.save()
    reader = old.engine.background.open_reader()
    assert reader.execute(ALL).fetchall() == before
    reader.close()


def test_lent_reader_keeps_no_unpacked_entries(old: TestNode) -> None:
    """A kept entry would be shown after it was removed from the file."""
    assert pack(old.engine) == 2
    old.save()
    read = "SELECT body FROM bedrockish_journal WHERE tick = 10"
    with old.engine.background.reader() as reader:
        assert reader.execute(read).get != b""
    old.engine.set_meta("any", 1)  # opens a batch
    old.engine._db.execute("DELETE FROM bedrockish_packed")
    old.engine.flush()
    with old.engine.background.reader() as again:
        assert again is reader
        assert again.execute(read).get == b""


def test_a_retry_long_after_finds_its_answer(old: TestNode) -> None:
    pack(old.engine)
    for entry in old.entries:
        found = old.engine.journal.find_command(entry.transaction.command)
        assert found == entry
    assert old.engine.read_entries("A", 1, 1 << 30) == old.entries
    assert old.engine.has_short_entries({"A": 1}, COUNT + 10, 1 << 30)
    assert not old.engine.has_short_entries({"A": 1}, COUNT, 1 << 30)


def test_a_file_with_packs_is_opened_again(make_node: MakeNode) -> None:
    node = fill(make_node())
    pack(node.engine)
    node.save()
    before = node.rows(ALL)
    node.engine.close()
    again = make_node(path=node.path)
    assert again.rows(ALL) == before
    assert pack(again.engine) == 0
    again.run("INSERT INTO t VALUES (-1, 'more')")
    assert [row[2] for row in again.rows(ALL)] == list(range(1, COUNT + 3))


def test_packing_is_repeated_after_a_request_rolled_back_the_batch(old: TestNode) -> None:
    """SQLite may roll back the open batch; the engine then writes it again."""
    old.save()
    before = old.rows(ALL)
    pack(old.engine)
    old.engine._db.execute("ROLLBACK")
    old.engine.batch.redo()
    assert packed(old) == 2 * ENTRIES_MAX
    assert old.rows(ALL) == before
    old.save()


@pytest.mark.parametrize(
    "change",
    [
        ["ALTER TABLE t RENAME TO u", "ALTER TABLE u RENAME v TO w", "ALTER TABLE u ADD COLUMN x"],
        ["DROP INDEX t_v", "ALTER TABLE t DROP COLUMN v"],
        ["ALTER TABLE t RENAME TO bedrockless"],
    ],
)
def test_schema_can_be_changed_after_packing(old: TestNode, change: list[str]) -> None:
    """SQLite reads all definitions again then, those of the journal's indexes included."""
    pack(old.engine)
    before = old.rows(ALL)
    old.run(*change)
    assert old.rows(ALL)[: len(before)] == before
    (table,) = old.rows("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB 'bedrockish_*'")[0]
    with pytest.raises(SqlError, match="no such column"):
        old.run(f"ALTER TABLE {table} RENAME COLUMN nowhere TO something")
    assert old.rows(ALL)[: len(before)] == before


@pytest.mark.parametrize("sql", [f"SELECT {FUNCTION}('A', 3, 1)", f'SELECT "{FUNCTION}"(leader, tick, 1) FROM t'])
def test_packed_entries_are_readable_only_through_the_journal_view(old: TestNode, sql: str) -> None:
    pack(old.engine)
    with pytest.raises(UnsupportedError, match=f"{FUNCTION} belongs to the database itself"):
        old.run(sql)
    with pytest.raises(UnsupportedError, match="no client may read it"):
        old.run("SELECT * FROM bedrockish_packed")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM bedrockish_journal",
        "UPDATE bedrockish_journal SET body = x''",
        "INSERT INTO bedrockish_journal(seq) VALUES (1)",
        "REPLACE INTO bedrockish_journal SELECT * FROM bedrockish_journal",
        "DELETE FROM main.bedrockish_journal",
        "DELETE FROM temp.bedrockish_journal",
        "CREATE INDEX i ON bedrockish_journal(tick)",
        "CREATE TRIGGER x AFTER INSERT ON bedrockish_journal BEGIN SELECT 1; END",
        "ALTER TABLE bedrockish_journal RENAME TO x",
        "ALTER TABLE bedrockish_journal ADD COLUMN x",
        "ALTER TABLE bedrockish_journal DROP COLUMN body",
        "DROP TABLE bedrockish_journal",
        "DROP VIEW bedrockish_journal",
        "DROP VIEW temp.bedrockish_journal",
        "DROP TABLE main.bedrockish_journal",
    ],
)
def test_writes_to_the_journal_are_refused_as_system_tables(node: TestNode, sql: str) -> None:
    """On a node's connections the journal is a view; errors about it must not depend on that."""
    with pytest.raises(UnsupportedError, match=r"belongs? to the database itself"):
        node.run(sql)
    assert node.rows(ALL) == []


@pytest.mark.parametrize("column", ["label", "body", "prev", "hash", "HASH"])
def test_views_and_triggers_cannot_read_packed_entries(old: TestNode, column: str) -> None:
    """A view or a trigger of the schema reads the table in the file, where a packed entry is empty."""
    old.run(f"CREATE VIEW peek AS SELECT tick, {column} AS bytes FROM bedrockish_journal")
    old.run("CREATE TABLE u(v)")
    old.run(
        f"CREATE TRIGGER tr AFTER INSERT ON u BEGIN UPDATE u SET v = (SELECT max({column}) FROM bedrockish_journal);END"
    )
    for sql in (
        f"SELECT {column} FROM main.bedrockish_journal",
        "SELECT bytes FROM peek",
        f"WITH j AS (SELECT {column} FROM main.bedrockish_journal) SELECT * FROM j",
        "INSERT INTO u VALUES (1)",
    ):
        with pytest.raises(UnsupportedError, match="name bedrockish_journal in the statement itself"):
            old.run(sql)
    old.run("CREATE VIEW places AS SELECT leader, tick FROM bedrockish_journal")
    assert old.rows("SELECT max(tick) FROM places") == old.rows("SELECT max(tick) FROM main.bedrockish_journal")
    wanted = old.rows(f"SELECT {column} FROM bedrockish_journal")
    pack(old.engine)
    for sql in (
        f"SELECT j.{column} FROM bedrockish_journal AS j",
        f"WITH j AS (SELECT {column} FROM bedrockish_journal) SELECT * FROM j",
        f"SELECT (SELECT {column} FROM bedrockish_journal AS i WHERE i.seq = j.seq) FROM bedrockish_journal AS j",
    ):
        assert old.rows(sql) == wanted


def test_changes_in_a_damaged_pack_are_fetched_from_another_node(old: TestNode) -> None:
    pack(old.engine)
    old.engine._db.execute("UPDATE bedrockish_packed SET entries = zeroblob(9) WHERE first <= 5")
    with pytest.raises(UnavailableError, match="ask another node, and run 'bedrockish journal verify'"):
        old.rows(CHANGES)


@pytest.mark.parametrize("sql", ["CREATE TRIGGER x INSTEAD OF INSERT ON bedrockish_journal BEGIN SELECT 1; END"])
def test_triggers_and_indexes_on_the_journal_are_refused(node: TestNode, sql: str) -> None:
    with pytest.raises((UnsupportedError, SqlError)):
        node.run(sql)
    with pytest.raises((UnsupportedError, SqlError)):
        node.run(sql.replace("x INSTEAD", "main.x INSTEAD"))


class Core:
    """The part of a node that packing needs."""

    def __init__(self, safe: int, *, follows: bool = True, alarm: str = "") -> None:
        self.state = SimpleNamespace(
            me="A",
            roster=SimpleNamespace(membership=Membership(0, {}, "id")),
            clock=SimpleNamespace(follows_wall=follows, safe=safe),
            settings=SimpleNamespace(conflict_window_ms=60_000),
            health=SimpleNamespace(alarms={alarm}),
        )


def upkeep(engine: Engine, core: Core) -> Upkeep:
    async def durable() -> None:
        engine.flush()

    config: Any = None
    return Upkeep(cast("Any", core), engine, config, cast("Any", None), lambda _event: None, durable)


@pytest.mark.parametrize(
    ("core", "made"),
    [
        (Core(moved(0, PACKED_MS + 1)), 2),
        (Core(moved(0, PACKED_MS - 1)), 0),
        (Core(moved(0, 10 * PACKED_MS), follows=False), 0),
        (Core(moved(0, 10 * PACKED_MS), alarm=DISK_FULL), 0),
        (Core(ENTRIES_MAX + 3 + moved(0, PACKED_MS)), 1),
    ],
    ids=["old", "young", "no time", "no room", "some"],
)
def test_node_packs_entries_that_are_old_enough(
    old: TestNode, core: Core, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks here are 1, 2, 3, …, so all entries are of the first millisecond."""
    monkeypatch.setattr(retention, "PACK_REST", 0.0)
    assert not trio.run(upkeep(old.engine, core).pack)
    assert packed(old) == made * ENTRIES_MAX


def test_a_long_journal_does_not_keep_a_node_from_its_other_work(
    old: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning the journal and shrinking the file take turns with it."""
    monkeypatch.setattr(retention, "PACKING_S", 0.0)
    keeper = upkeep(old.engine, Core(moved(0, 10 * PACKED_MS)))
    assert [(trio.run(keeper.pack), packed(old) // ENTRIES_MAX) for _ in range(3)] == [(True, 1), (True, 2), (False, 2)]


@pytest.mark.parametrize("work", ["remove", "give back"])
def test_upkeep_never_uses_the_writer_while_a_thread_has_it(
    old: TestNode, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """A thread gets the writer during each wait for the disk, for example for a change of the schema."""
    for name, value in (("FREE_PAGES_MAX", 0), ("FREE_MAX", 0.0), ("FREE_KEPT", 0.0), ("SHRINK_PAGES", 1)):
        monkeypatch.setattr(retention, name, value)
    monkeypatch.setattr(retention, "SLICE", 1)
    old.run("CREATE TABLE big AS SELECT zeroblob(100000) AS x")
    old.run("DROP TABLE big")
    old.engine.flush()
    batch, waits = old.engine.batch, 0

    def forbidden() -> None:
        raise AssertionError("the loop waits for the thread")

    async def durable() -> None:
        nonlocal waits
        waits += 1
        if batch.is_in_thread:
            batch.take_back()
        else:
            old.engine.flush()
            batch.hand_over(forbidden)

    config: Any = None
    core = cast("Any", Core(moved(0, 10 * PACKED_MS)))
    keeper = Upkeep(core, old.engine, config, cast("Any", None), lambda _event: None, durable)
    done = trio.run(keeper.give_back) if work == "give back" else trio.run(keeper._remove, {"A": 9}, math.inf)
    assert done > 5
    assert waits > 10
    assert not batch.is_in_thread


@pytest.mark.parametrize("order", [{"do": "clock"}, {"do": "clock", "set": "on"}, {"do": "hold", "name": "reader"}])
async def test_order_lets_the_loop_go_on_while_a_thread_has_the_writer(
    old: TestNode, monkeypatch: pytest.MonkeyPatch, order: dict[str, Any]
) -> None:
    keeper = upkeep(old.engine, Core(moved(0, 10 * PACKED_MS)))
    keeper._core.state.holds = {}
    monkeypatch.setattr(keeper, "status", lambda: {"journal": {"holds": {}}})
    batch = old.engine.batch

    def forbidden() -> None:
        raise AssertionError("the loop waits for the thread")

    async def durable() -> None:
        if batch.is_in_thread:
            batch.take_back()
        old.engine.flush()

    keeper._durable = durable
    batch.hand_over(forbidden)
    try:
        assert (await keeper.handle(order))["node"] == "A"
    finally:
        batch.take_back()


def test_removal_ends_in_time_and_goes_on_with_the_next_call(old: TestNode) -> None:
    keeper = upkeep(old.engine, Core(moved(0, 10 * PACKED_MS)))
    upto = {"A": 2 * retention.SLICE + 5}
    assert [trio.run(keeper._remove, upto, -math.inf) for _ in range(4)] == [retention.SLICE, retention.SLICE, 5, 0]


def test_old_command_ids_are_forgotten_in_parts(old: TestNode) -> None:
    keeper = upkeep(old.engine, Core(moved(0, 10 * PACKED_MS)))
    count = 2 * retention.SLICE + 5
    ids = [(f"{number:012x}70008{0:015x}", 1, "A") for number in range(count)]
    old.engine._db.executemany("INSERT INTO bedrockish_past(command, clock, origin) VALUES (?, ?, ?)", ids)
    clock = keeper._core.state.clock
    clock.safe, clock.wall_ms = moved(0, 2 * retention.COMMANDS_KEPT_MS), 2 * retention.COMMANDS_KEPT_MS
    left = []
    for _ in range(4):
        trio.run(keeper._forget_commands, -math.inf)
        left.append(old.engine._db.execute("SELECT count(*) FROM bedrockish_past").get)
    assert left == [count - retention.SLICE, 5, 0, 0]


async def test_prune_that_waited_for_another_one_ends_in_time(old: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = upkeep(old.engine, Core(moved(0, 10 * PACKED_MS)))
    given: list[float] = []

    async def remove(_upto: object, ends: float) -> int:
        given.append(ends)
        return 0

    async def forget(ends: float) -> None:
        given.append(ends)

    monkeypatch.setattr(keeper, "_remove", remove)
    monkeypatch.setattr(keeper, "_forget_commands", forget)
    monkeypatch.setattr(keeper, "bound", lambda *_args, **_named: retention.Bound(0, None, []))
    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        await keeper._pruning.acquire()
        nursery.start_soon(partial(keeper.prune, None, None, force=True))
        await trio.sleep(0.2)
        keeper._pruning.release()
    assert [ends - began < retention.PRUNING_S + 0.1 for ends in given] == [True, True]


async def test_prune_that_ends_early_says_so_to_programs_that_do_not_repeat_it(
    old: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of an earlier release shows the reasons why entries are kept, and gives its order once."""
    keeper = upkeep(old.engine, Core(moved(0, 10 * PACKED_MS)))
    keeper._core.state.clock.wall_ms = 0
    monkeypatch.setattr(keeper, "bound", lambda *_args, **_named: retention.Bound(EVER, None, []))
    monkeypatch.setattr(retention, "PRUNING_S", -1.0)
    told = [await keeper.prune(None, None, force=True) for _ in range(2)]
    assert [one["removed"] for one in told] == [retention.SLICE] * 2
    assert [("give the order again" in "".join(one["kept"]), one["more"]) for one in told] == [(True, True)] * 2
    monkeypatch.setattr(retention, "PRUNING_S", 20.0)
    last = await keeper.prune(None, None, force=True)
    assert (last["kept"], last["more"], last["entries"]) == ([], False, 1)


async def test_pruning_takes_turns_with_the_shrinking_of_the_file(
    old: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file shrinks for minutes."""
    for name, value in (("FREE_PAGES_MAX", 0), ("FREE_MAX", 0.0), ("FREE_KEPT", 0.0), ("SHRINK_PAGES", 1)):
        monkeypatch.setattr(retention, name, value)
    old.run("CREATE TABLE big AS SELECT zeroblob(100000) AS x")
    old.run("DROP TABLE big")
    old.engine.flush()
    keeper = upkeep(old.engine, Core(moved(0, 10 * PACKED_MS)))
    left: list[int] = []

    async def prune() -> None:
        async with keeper._pruning:
            left.append(old.engine.journal.room.free)

    async def durable() -> None:
        old.engine.flush()
        await trio.lowlevel.checkpoint()

    keeper._durable = durable
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.give_back)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(prune)
    assert left[0] > 5


async def test_node_finishes_its_own_prune_before_it_packs_entries(
    old: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = upkeep(old.engine, Core(moved(0, 10 * PACKED_MS)))
    settings = SimpleNamespace(journal_prune=True, journal_keep_minutes=1, journal_keep_mb=1)
    keeper._config = cast("Any", SimpleNamespace(journal=settings))
    done: list[str] = []

    async def prune(*_args: object, force: bool) -> dict[str, Any]:
        assert not force
        done.append("prune")
        await trio.lowlevel.checkpoint()
        return {"removed": 7, "more": len(done) < 3}

    async def pack() -> bool:
        done.append("pack")
        return await trio.sleep_forever()

    monkeypatch.setattr(retention, "LOOK_S", 0.0)
    monkeypatch.setattr(keeper, "prune", prune)
    monkeypatch.setattr(keeper, "pack", pack)
    with trio.move_on_after(0.2):
        await keeper.watch()
    assert done == ["prune", "prune", "prune", "pack"]
