"""Large transactions that are unpacked before their turn: the same tables as change by change, or nothing of them."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import cbor2
import pytest

from bedrockish.core.protocol.records import Vote
from bedrockish.engine import entry_applier
from bedrockish.engine.execution.snapshot import Readers
from bedrockish.engine.sqlite.limits import Limits, Memory
from bedrockish.engine.storage import staged_changes
from bedrockish.engine.storage.database_file import CACHE_KIB
from bedrockish.engine.storage.row_applier import RowApplier
from bedrockish.engine.storage.staged_changes import KEPT_MAX, ChangeRun, StagedChanges, stage
from bedrockish.errors import DamagedError, EntryMismatchError, NoRoomError
from bedrockish_journal.model.changes import decode_changes, encode_changes
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.storage import store
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode

SCHEMA = (
    "CREATE TABLE parent(id INTEGER PRIMARY KEY, code TEXT UNIQUE COLLATE NOCASE)",
    "CREATE TABLE item(id INTEGER PRIMARY KEY AUTOINCREMENT, parent REFERENCES parent ON DELETE CASCADE, v, r REAL, "
    "twice AS (v || v) STORED, CHECK (r IS NULL OR r < 1e9))",
    "CREATE INDEX item_v ON item(v)",
    "CREATE TABLE bare(v TEXT COLLATE NOCASE, n INT UNIQUE)",
    "CREATE TABLE noted(what)",
    "CREATE TRIGGER note AFTER UPDATE ON item WHEN new.r < 0 BEGIN INSERT INTO noted VALUES (new.id); END",
)
COUNT = "WITH k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT 40) "
FILL = (
    COUNT + "INSERT INTO parent SELECT i, 'Code' || i FROM k",
    COUNT + "INSERT INTO item(id, parent, v, r) SELECT i, i % 40 + 1, 'v' || i, i / 2.0 FROM k",
    COUNT + "INSERT INTO bare SELECT 'b' || i, i FROM k",
)
STATEMENTS = (
    "UPDATE item SET r = r + 1",
    "UPDATE item SET r = -r WHERE id < 20",  # rows of the trigger come in between
    "UPDATE item SET v = CASE id % 3 WHEN 0 THEN 1 WHEN 1 THEN 1.0 ELSE x'0061' END",
    "UPDATE item SET v = CASE typeof(v) WHEN 'real' THEN CAST(v AS INT) ELSE v END",
    "UPDATE item SET v = 0.0 WHERE id > 5",
    "UPDATE item SET v = -0.0 WHERE id > 5",
    "UPDATE bare SET n = n - 1",
    "UPDATE bare SET n = 100 - n",
    "UPDATE bare SET v = upper(v)",
    "UPDATE bare SET rowid = rowid + 1000 WHERE n % 2",
    "DELETE FROM item WHERE id % 3 = 1",
    "DELETE FROM parent WHERE id % 4 = 1",  # and their items
    "DELETE FROM bare WHERE n < 30",
    COUNT + "INSERT INTO bare SELECT 'c' || i, i + 1000 FROM k",
    COUNT + "INSERT INTO item(v) SELECT NULL FROM k",
    "UPDATE item SET v = v",
    "UPDATE item SET id = id + 1000, v = 'moved' WHERE id > 30",
)


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_changes, "STAGED_MIN", 5)


@pytest.fixture
def pair(make_node: MakeNode) -> tuple[TestNode, TestNode]:
    """Two nodes with the same rows: the changes of the first one are applied at the second."""
    first, second = make_node("A"), make_node("B")
    for sql in (*SCHEMA, *FILL):
        first.run(sql)
    for entry in first.entries:
        second.apply(entry)
    first.save()
    second.save()
    return first, second


def unpacked(node: TestNode, changes: bytes) -> StagedChanges | None:
    return stage(changes, node.engine.tables, node.engine.schema_version)


def apply_unpacked(node: TestNode, entry: Entry) -> StagedChanges:
    staged = unpacked(node, entry.transaction.changes)
    assert staged is not None
    node.engine.entries.staged.keep(staged)
    node.apply(entry)
    return staged


def row_by_row(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the changes that are applied row by row."""
    made: list[str] = []
    make, make_or_break = RowApplier._make, RowApplier.make_or_break

    def noted(self: RowApplier, changes: Any) -> None:
        made.extend(change.op for change in changes)
        make(self, changes)

    def noted_or_not(self: RowApplier, changes: Any) -> bool | None:
        fits = make_or_break(self, changes)
        if fits:
            made.extend(change.op for change in changes)
        return fits

    monkeypatch.setattr(RowApplier, "_make", noted)
    monkeypatch.setattr(RowApplier, "make_or_break", noted_or_not)
    return made


@pytest.mark.parametrize("sql", STATEMENTS)
def test_staged_changes_give_the_same_rows_as_single_changes(
    pair: tuple[TestNode, TestNode], sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    first.run("UPDATE item SET v = 0.0 WHERE id > 5")
    second.apply(first.entries[-1])
    first.run(sql)
    entry = first.entries[-1]
    assert len(decode_changes(entry.transaction.changes)) >= 5
    staged = unpacked(second, entry.transaction.changes)
    made = row_by_row(monkeypatch)
    if staged is not None:
        second.engine.entries.staged.keep(staged)
    second.apply(entry)
    assert (made == []) == (staged is not None and "id + 1000" not in sql), made
    assert second.tables() == first.tables()
    second.save()
    assert second.digest() == first_digest(first)
    assert len(second.engine.entries.staged) == 0
    assert second.engine.entries.staged.attached == []


def first_digest(first: TestNode) -> str:
    first.save()
    return first.digest()


def test_random_changes_are_applied_as_one_by_one(make_node: MakeNode, pair: tuple[TestNode, TestNode]) -> None:
    """Some transactions have several statements, which may change a row twice."""
    first, second = pair
    luck = random.Random(5)
    used = 0
    for number in range(60):
        chosen = luck.sample(STATEMENTS[:13], luck.randint(1, 3))
        try:
            first.run(*chosen)
        except Exception:  # some combinations are forbidden
            continue
        entry = first.entries[-1]
        staged = unpacked(second, entry.transaction.changes)
        if staged is not None:
            used += 1
            second.engine.entries.staged.keep(staged)
        second.apply(entry)
        assert second.tables() == first.tables(), (number, chosen)
        if luck.random() < 0.3:
            second.save()
        if number % 10 == 9:
            for sql in ("DELETE FROM item", "DELETE FROM parent", "DELETE FROM bare", "DELETE FROM noted", *FILL):
                first.run(sql)
                second.apply(first.entries[-1])
    assert used > 10


def test_entry_with_one_differing_row_is_not_applied(pair: tuple[TestNode, TestNode]) -> None:
    first, second = pair
    second.engine.batch.write(
        lambda: second.engine._db.execute("UPDATE bare SET v = 'B7' WHERE n = 7").get
    )  # NOCASE: equal
    before = second.tables()
    for sql in ("UPDATE bare SET n = n + 500", "DELETE FROM bare"):
        entry = first.entry(first.prepare(sql))
        with pytest.raises(EntryMismatchError, match="B7"):
            apply_unpacked(second, entry)
        first.tick -= 1
        first.head = first.entries[-1].hash
        assert second.tables() == before
    second.save()
    assert second.tables() == before


def test_batch_that_sqlite_rolls_back_is_written_again_with_staged_rows(pair: tuple[TestNode, TestNode]) -> None:
    first, second = pair
    first.run("UPDATE item SET v = 'again'")
    apply_unpacked(second, first.entries[-1])
    with pytest.raises(Exception, match="UNIQUE"):
        second.prepare("INSERT INTO bare VALUES ('x', 5000)", "INSERT OR ROLLBACK INTO bare VALUES ('y', 1)")
    assert second.tables() == first.tables()
    second.save()
    assert second.tables() == first.tables()
    assert len(second.engine.entries.staged) == 0


@pytest.mark.parametrize("is_long", [False, True])
def test_long_entry_that_was_not_unpacked_ahead_is_unpacked_when_it_is_applied(
    pair: tuple[TestNode, TestNode], monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """A learner, a node that catches up, and one that was too slow to vote have not unpacked it."""
    first, second = pair
    made = row_by_row(monkeypatch)
    if is_long:
        monkeypatch.setattr(entry_applier, "LONG_BYTES", 0)
    for number in range(KEPT_MAX + 1):  # more of them than the engine keeps before the batch is committed
        first.run(f"UPDATE item SET v = {number}")
        del made[:]
        second.apply(first.entries[-1])
        assert (made == []) == (is_long and number < KEPT_MAX)
    assert second.tables() == first.tables()
    assert len(second.engine.entries.staged) == (KEPT_MAX if is_long else 0)

    with pytest.raises(Exception, match="UNIQUE"):  # the batch is done again
        second.prepare("INSERT INTO noted VALUES ('x')", "INSERT OR ROLLBACK INTO bare VALUES ('y', 1)")
    assert second.tables() == first.tables()
    second.save()
    assert len(second.engine.entries.staged) == 0


@pytest.mark.parametrize("is_table", [False, True])
def test_unpacked_rows_of_another_schema_are_not_used(
    pair: tuple[TestNode, TestNode], monkeypatch: pytest.MonkeyPatch, is_table: bool
) -> None:
    first, second = pair
    first.run("UPDATE item SET v = 'again'")
    staged = unpacked(second, first.entries[-1].transaction.changes)
    assert staged is not None
    if is_table:
        staged.runs[0].table = replace(staged.runs[0].table, unique=True)
    else:
        staged.version += 1
    second.engine.entries.staged.keep(staged)
    made = row_by_row(monkeypatch)
    second.apply(first.entries[-1])
    assert len(made) == 40
    assert second.tables() == first.tables()


def test_few_staged_changes_are_kept_and_those_of_the_open_batch_stay(pair: tuple[TestNode, TestNode]) -> None:
    first, second = pair
    first.run("UPDATE item SET v = 'one'")
    used = apply_unpacked(second, first.entries[-1])
    others = [first.prepare(f"UPDATE item SET v = '{number}'").changes for number in range(5)]
    for changes in others:
        kept = unpacked(second, changes)
        assert kept is not None
        second.engine.entries.staged.keep(kept)
    twice = unpacked(second, used.changes)
    assert twice is not None
    second.engine.entries.staged.keep(twice)
    assert [*second.engine.entries.staged._kept] == [used.changes, *others[-3:]]
    second.save()
    assert used.changes not in second.engine.entries.staged._kept
    for changes in others:
        second.engine.entries.staged.drop(changes)
    assert len(second.engine.entries.staged) == 0


def test_open_cursor_on_staged_rows_only_delays_their_removal(pair: tuple[TestNode, TestNode]) -> None:
    first, second = pair
    first.run("UPDATE item SET v = 'one'")
    staged = apply_unpacked(second, first.entries[-1])
    cursor = second.engine._db.cursor()
    rows = cursor.execute(f"SELECT k FROM {staged._attached}.{staged.runs[0].name}")
    next(rows)
    second.save()
    assert second.engine.entries.staged.attached == [staged]
    cursor.close()
    second.run("INSERT INTO noted VALUES ('x')")
    second.save()
    assert second.engine.entries.staged.attached == []
    assert len(second.engine.entries.staged) == 0


def test_comparison_by_one_query_equals_the_comparison_row_by_row(pair: tuple[TestNode, TestNode]) -> None:
    first, second = pair
    readers = Readers(second.engine.background.open_reader, second.engine._limits)
    for sql in ("UPDATE item SET v = 'one'", "DELETE FROM bare", COUNT + "INSERT INTO bare SELECT 'c', i + 99 FROM k"):
        changes = first.prepare(sql).changes
        for spoilt in (False, True):
            if spoilt:
                touched = "UPDATE item SET r = 77 WHERE id = 9" if "item" in sql else "DELETE FROM bare WHERE n = 9"
                second.engine.batch.write(lambda text: second.engine._db.execute(text).get, touched)
                second.save()
            snapshot = readers.take_snapshot()
            staged = unpacked(second, changes)
            assert staged is not None
            found = snapshot.compare(changes, second.engine.tables, staged)
            readers.give_back(snapshot)
            assert snapshot._attached is None
            assert ("differs here or is missing" in found) == (spoilt and "INSERT" not in sql), (sql, found)
            staged.close()
    readers.close()


def packed(heads: Sequence[Any], rows: Sequence[Any]) -> bytes:
    return cbor2.dumps([heads, rows])


HEAD = [["bare", ["v", "n"]]]
GOOD = [[0, "UPDATE", n, n, [f"b{n}", n], [f"b{n}", -n]] for n in range(1, 11)]


@pytest.mark.parametrize(
    "rows",
    [
        [*GOOD, [0, "UPSERT", 11, 11, ["b11", 11], ["b11", -11]]],
        [*GOOD, [0, "UPDATE", 11, 11, ["b11", 11], ["b11", -11], 1]],
        [*GOOD, [0, "UPDATE", None, None, ["b11", 11], ["b11", -11]]],
        [*GOOD, [0, "UPDATE", 11, 11, ["b11"], ["b11", -11]]],
        [*GOOD, [0, "UPDATE", 11, 11, ["b11", 11], ["b11", -11, 3]]],
        [*GOOD, [0, "UPDATE", 11, 11, None, ["b11", -11]]],
        [*GOOD, [0, "UPDATE", 11, 11, ["b11", 11], ["b11", [1]]]],
        [*GOOD, [0, "UPDATE", 11, 11, ["b11", 11], ["b11", 1 << 70]]],
        [*GOOD, [9, "UPDATE", 11, 11, ["b11", 11], ["b11", -11]]],
        [*GOOD, [0, "DELETE", 1, 1, ["b1", -1], None], *GOOD[:1], [0, "DELETE", 1, 1, ["b1", -1], None], *GOOD] * 9,
        [*GOOD, GOOD[0]],
        [*GOOD, 7],
    ],
)
def test_unsuitable_changes_are_not_staged(pair: tuple[TestNode, TestNode], rows: Sequence[Any]) -> None:
    assert unpacked(pair[1], packed(HEAD, GOOD)) is not None
    assert unpacked(pair[1], packed(HEAD, rows)) is None


def test_few_changes_and_those_of_tables_without_rowid_or_with_other_columns_are_not_staged(
    pair: tuple[TestNode, TestNode],
) -> None:
    node = pair[0]
    assert unpacked(node, packed([["bare", ["n", "v"]]], GOOD)) is None
    node.run("CREATE TABLE w(a PRIMARY KEY, b) WITHOUT ROWID")
    assert unpacked(node, node.prepare(COUNT + "INSERT INTO w SELECT i, i FROM k").changes) is None
    few = decode_changes(node.prepare("UPDATE bare SET n = -n WHERE n < 5").changes)
    assert unpacked(node, encode_changes(few)) is None


def test_staged_update_writes_only_changed_columns(pair: tuple[TestNode, TestNode]) -> None:
    """Otherwise every index would be written. An equal value that is not identical counts as another one."""
    node = pair[0]
    node.run("UPDATE item SET v = 0.0")
    for sql, written in (
        ("UPDATE item SET r = r + 1", {3}),
        (("UPDATE item SET v = ?", (-0.0,)), {2, 4}),  # the column, and those computed from it
        ("UPDATE item SET v = 0", {2, 4}),
        ("UPDATE item SET v = v", set[int]()),
    ):
        staged = unpacked(node, node.prepare(sql).changes)
        assert staged is not None
        assert staged.runs[0].written == written - {4}, sql
        staged.close()


RANGES = (  # the deleted rows, additional rows in the other node's table, and whether the deletion is one range there
    ("DELETE FROM bare WHERE n BETWEEN 5 AND 30", "", True),
    ("DELETE FROM bare WHERE n BETWEEN 5 AND 30 AND n % 10", "", False),  # every tenth row stays
    ("DELETE FROM bare WHERE n > 40 OR n < 20", "", True),  # what was deleted before leaves no rows between
    ("DELETE FROM bare WHERE n % 2", "INSERT INTO bare(rowid, n) VALUES (1000, 1000)", False),
    ("DELETE FROM bare", "INSERT INTO bare(rowid, n) VALUES (50, 1000)", False),  # and that row stays
    ("DELETE FROM bare", "INSERT INTO bare(rowid, n) VALUES (1000, 1000)", True),
)


@pytest.mark.parametrize(("sql", "besides", "is_range"), RANGES)
def test_adjacent_rows_are_deleted_as_a_range(
    pair: tuple[TestNode, TestNode], monkeypatch: pytest.MonkeyPatch, sql: str, besides: str, is_range: bool
) -> None:
    first, second = pair
    ends = "INSERT INTO bare(rowid, n) VALUES (-9223372036854775808, -1), (-1, 50), (9223372036854775807, 60)"
    for text in (ends, "DELETE FROM bare WHERE n > 20 AND n % 3 = 0"):
        first.run(text)
        second.apply(first.entries[-1])
    if besides:
        second.engine.batch.write(lambda: second.engine._db.execute(besides).get)
    first.run(sql)
    ranges: list[int] = []
    range_delete = StagedChanges.range_delete

    def noted(self: StagedChanges, run: ChangeRun) -> str:
        ranges.append(run.changes)
        return range_delete(self, run)

    monkeypatch.setattr(StagedChanges, "range_delete", noted)
    made = row_by_row(monkeypatch)
    apply_unpacked(second, first.entries[-1])
    assert made == []
    assert ranges == ([len(decode_changes(first.entries[-1].transaction.changes))] if is_range else [])
    if besides:
        assert second.rows("SELECT count(*) FROM bare WHERE n = 1000") == [(1,)]
        second.engine.batch.write(lambda: second.engine._db.execute("DELETE FROM bare WHERE n = 1000").get)
    assert second.tables() == first.tables()


VOTE = Vote(Txid(77, "B"), None, promised=1)


def with_an_open_batch(pair: tuple[TestNode, TestNode]) -> dict[str, Any]:
    """Let the second node apply entries and vote in an open batch; return its tables."""
    first, second = pair
    for sql in ("INSERT INTO noted VALUES ('first')", "UPDATE item SET v = 'taken'", "DELETE FROM bare WHERE n = 3"):
        first.run(sql)
        apply_unpacked(second, first.entries[-1]) if "item" in sql else second.apply(first.entries[-1])
    second.engine.votes.save(VOTE)
    return second.tables()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("UPDATE bare SET v = 'B17' WHERE n = 17", "expected v 'b17', found v 'B17'"),
        ("DELETE FROM bare WHERE n = 17", "there is no such row"),
        ("INSERT INTO bare VALUES ('extra', 517)", "UNIQUE constraint failed"),  # this error ends SQLite's transaction
    ],
)
def test_entry_that_does_not_fit_the_rows_leaves_the_open_batch_unchanged(
    pair: tuple[TestNode, TestNode], damage: str, why: str
) -> None:
    """All earlier uncommitted changes and promises are there; and nothing of the entry."""
    first, second = pair
    second.engine.batch.write(lambda: second.engine._db.execute(damage).get)
    second.save()
    before = with_an_open_batch(pair)
    prepared = first.prepare("UPDATE item SET r = 7", "UPDATE bare SET n = n + 500")
    entry = first.entry(prepared)
    assert [run.changes for run in apart(second, entry)] == [40, 39]

    for _ in range(2):  # the second time the run is not tried as a whole
        with pytest.raises(EntryMismatchError) as caught:
            apply_unpacked(second, entry)
        assert caught.value.details["table"] == "bare"
        assert why in str(caught.value)
        assert second.tables() == before
        assert second.engine.applied == {"A": entry.tick - 1}
    assert not second.engine.batch.failed
    second.save()
    assert len(second.engine.entries.staged) == 0
    second.engine.close()
    again = TestNode(second.path, "B")
    try:
        assert again.tables() == before
        assert [vote.txid for vote in again.engine.recover().votes] == [VOTE.txid]
        assert again.engine.applied == {"A": entry.tick - 1}
    finally:
        again.engine.close()


def apart(node: TestNode, entry: Entry) -> list[ChangeRun]:
    """Return the runs of an entry."""
    staged = unpacked(node, entry.transaction.changes)
    assert staged is not None
    staged.close()
    return staged.runs


def test_rows_that_fit_in_their_order_only_are_applied_one_by_one(
    pair: tuple[TestNode, TestNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run applies rows by rowid, and sets a value before its owner has released it."""
    first, second = pair
    with_an_open_batch(pair)
    first.run("UPDATE bare SET n = n + 1000 WHERE n > 20", "UPDATE bare SET n = n + 20 WHERE n <= 20")
    entry = first.entries[-1]
    assert [run.changes for run in apart(second, entry)] == [39]
    made = row_by_row(monkeypatch)
    staged = apply_unpacked(second, entry)
    assert len([op for op in made if op == "UPDATE"]) == 39
    assert second.tables() == first.tables()

    with pytest.raises(Exception, match="UNIQUE"):  # the batch is done again once more, and is the same
        second.prepare("INSERT INTO noted VALUES ('x')", "INSERT OR ROLLBACK INTO bare VALUES ('y', 1030)")
    assert second.tables() == first.tables()
    assert not staged.fits
    second.save()
    assert second.digest() == first_digest(first)


def test_misfit_of_a_repeated_entry_stops_the_node(
    pair: tuple[TestNode, TestNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    first.run("UPDATE item SET v = 'one'")
    apply_unpacked(second, first.entries[-1])
    monkeypatch.setattr(RowApplier, "_apply_run", lambda *_: False)
    with pytest.raises(DamagedError, match=f"A{first.tick} fitted the tables"):
        second.prepare("INSERT OR ROLLBACK INTO bare VALUES ('y', 1)")
    with pytest.raises(DamagedError, match="nothing more is written"):
        second.engine.flush()


@pytest.mark.parametrize("failure", [apsw.IOError("the disk failed"), MemoryError("no more")])
def test_rows_without_their_journal_entry_are_never_left(
    pair: tuple[TestNode, TestNode], monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    first, second = pair
    before = second.tables()
    first.run("UPDATE item SET v = 'one'")

    def failing(*_arguments: Any, **_options: Any) -> None:
        raise failure

    monkeypatch.setattr(store, "append", failing)
    with pytest.raises((DamagedError, MemoryError), match=str(failure)):
        apply_unpacked(second, first.entries[-1])
    with pytest.raises(DamagedError, match="nothing more is written"):
        second.engine.flush()
    assert second.tables() == before


def test_voided_entry_is_not_applied(pair: tuple[TestNode, TestNode]) -> None:
    first, second = pair
    before = second.tables()
    first.run("UPDATE item SET v = 'one'")
    second.engine.entries.void.add(first.entries[-1].txid)
    apply_unpacked(second, first.entries[-1])
    assert second.tables() == before
    assert second.engine.applied == first.engine.applied


LEAVES = "SELECT pageno FROM dbstat WHERE name = 'big_x' AND pagetype = 'leaf' ORDER BY path"


def large(tmp_path: Path) -> tuple[Path, Entry, list[int]]:
    """Return a node's file of many pages, an entry that changes all rows, and the pages of an index that it changes."""
    node = TestNode(tmp_path / "big.db")
    node.run("CREATE TABLE big(id INTEGER PRIMARY KEY, x, n)", "CREATE INDEX big_x ON big(x)")
    node.run(COUNT.replace("40", "5000") + "INSERT INTO big SELECT i, hex(zeroblob(50)) || i, 0 FROM k")
    node.save()
    entry = node.entry(node.prepare("UPDATE big SET x = 'new' || x || x, n = id"))
    pages: list[Any] = node.engine._db.execute(LEAVES).fetchall()
    node.engine.close()
    return node.path, entry, [page for (page,) in pages]


def end_amid(place: Path, entry: Entry, error: type[DamagedError], why: str) -> TestNode:
    """Let an entry fail in the middle, when pages are written already, and return the restarted node."""
    node = TestNode(place)
    node.engine._db.pragma("cache_size", 10)
    node.engine.pages.is_wide = True  # the cache stays small
    wal = Path(f"{place}-wal")
    assert wal.stat().st_size < 10_000
    with pytest.raises(error, match=why):
        apply_unpacked(node, entry)
    assert wal.stat().st_size > 100_000
    with pytest.raises(DamagedError, match="nothing more is written"):
        node.engine.flush()
    node.engine.close()
    again = TestNode(place)
    assert again.engine.applied == {"A": entry.tick - 1}
    assert again.rows("SELECT count(*) FROM big WHERE n > 0") == [(0,)]
    return again


def test_full_disk_during_staged_rows_ends_the_node_without_a_part_of_the_entry(
    tmp_path: Path, limited: Callable[[int], None]
) -> None:
    place, entry, _ = large(tmp_path)
    limited(place.stat().st_size)
    again = end_amid(place, entry, NoRoomError, "the disk is full")
    limited(1 << 30)
    apply_unpacked(again, entry)  # with more room the node goes on
    again.save()
    assert again.rows("SELECT count(*) FROM big WHERE n = id") == [(5000,)]
    assert again.engine._db.pragma("integrity_check") == "ok"
    again.engine.close()


def test_damaged_page_during_staged_rows_ends_the_node_without_a_part_of_the_entry(tmp_path: Path) -> None:
    place, entry, pages = large(tmp_path)
    with open(place, "r+b") as file:
        file.seek((pages[len(pages) // 2] - 1) * 4096)
        file.write(b"\xff" * 4096)
    end_amid(place, entry, DamagedError, "a page of the database file is damaged").engine.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from bedrockish.engine.storage import staged_changes
from bedrockish.engine.storage.database_file import CACHE_KIB
from bedrockish.engine.storage.row_applier import RowApplier
from tests.engine.nodes import TestNode
from tests.engine.test_staged_changes import COUNT, apply_unpacked
node = TestNode(Path(sys.argv[1]))
take = RowApplier._apply_run
runs = []
def killed(self, staged, run):
    done = take(self, staged, run)
    runs.append(run)
    if len(runs) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return done
RowApplier._apply_run = killed
node.engine._db.pragma("cache_size", -100)  # pages of it go to the file before it is committed
node.run("UPDATE big SET x = 'saved' WHERE id = 1")
node.save()
prepared = node.prepare("UPDATE big SET x = hex(zeroblob(200))", "DELETE FROM big WHERE id % 3 = 0")
apply_unpacked(node, node.entry(prepared))
node.engine.flush()
"""


@pytest.mark.parametrize("at", [1, 2])
def test_process_killed_during_staged_rows_has_applied_no_row(tmp_path: Path, at: int) -> None:
    place = tmp_path / "A.db"
    node = TestNode(place)
    node.run("CREATE TABLE big(id INTEGER PRIMARY KEY, x)")
    node.run(COUNT.replace("40", "5000") + "INSERT INTO big SELECT i, 'row' FROM k")
    node.save()
    node.engine.close()
    ran = subprocess.run([sys.executable, "-c", KILLED, str(place), str(at)], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert os.path.getsize(f"{place}-wal") > 100_000
    again = TestNode(place)
    assert again.rows("SELECT count(*), sum(x = 'row') FROM big") == [(5000, 4999)]
    assert apsw.Connection(str(place)).pragma("integrity_check") == "ok"
    assert again.tick == 3
    again.engine.close()


@pytest.mark.parametrize(("memory_mib", "wide_kib"), [(1024, 256 << 10), (512, 128 << 10), (200, 64 << 10)])
def test_writer_caches_more_pages_until_a_large_entry_is_written(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, memory_mib: int, wide_kib: int
) -> None:
    """Overflowing pages are written to the log early, and read again; yet they are part of the shared budget."""
    node = make_node(limits=Limits(memory=Memory(memory_mib << 20)))
    node.run("CREATE TABLE t(x)")

    def kept() -> int:
        size: int = node.engine._db.pragma("cache_size")
        return -size

    node.run("INSERT INTO t VALUES (1)")
    assert kept() == CACHE_KIB
    monkeypatch.setattr(entry_applier, "LONG_BYTES", 0)
    node.run("INSERT INTO t VALUES (2)")
    assert kept() == wide_kib
    node.run("INSERT INTO t VALUES (3)")
    node.save()
    assert kept() == CACHE_KIB


def test_hook_sees_no_staged_row_and_every_later_one(
    pair: tuple[TestNode, TestNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    seen: list[str] = []
    hook = second.engine._capture._hook

    def look(update: apsw.PreUpdate) -> None:
        seen.append(update.table_name)
        hook(update)

    monkeypatch.setattr(second.engine._capture, "_hook", look)
    second.engine._db.preupdate_hook(look)
    entry = first.entry(first.prepare("UPDATE item SET v = 'new'"))
    apply_unpacked(second, entry)
    assert "item" not in seen
    prepared = second.prepare("DELETE FROM item")
    assert seen.count("item") == 40
    assert len(decode_changes(prepared.changes)) == 40
