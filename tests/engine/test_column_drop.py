"""A column that is dropped next to its table leaves the same table as SQLite, under any concurrent changes."""

import random
from pathlib import Path

import apsw
import pytest

from bedrockish.access_sets.system_names import STAND_IN
from bedrockish.engine.storage import column_drop, schema_versions, scratch_files
from bedrockish.engine.storage.build import Phase
from bedrockish.engine.storage.column_drop import ColumnDrop, _spans, drops_column
from bedrockish.engine.storage.wal import copy_file
from bedrockish.errors import UnavailableError
from bedrockish_journal.model.changes import Step
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.verify.replay import digest
from tests.engine import builds
from tests.engine.builds import follow, read_sound, rolled_back
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode
from tests.engine.test_versions import decide

PLAIN = "CREATE TABLE t(id INTEGER PRIMARY KEY, gone, n INTEGER, v TEXT COLLATE NOCASE, r REAL, b)"
TABLES = {
    "plain": PLAIN,
    "no id": "CREATE TABLE t(n INTEGER, v TEXT COLLATE NOCASE, gone TEXT DEFAULT 'x', r REAL, b)",
    "strict": "CREATE TABLE t(id INTEGER PRIMARY KEY, n INT, v TEXT, r REAL, b ANY, gone ANY) STRICT",
    "rowid hidden": "CREATE TABLE t(rowid TEXT, n INTEGER, v TEXT, r REAL, gone, b, oid)",
    "key": "CREATE TABLE t(n INTEGER, v TEXT, r REAL, b, gone, c DEFAULT 7, d INTEGER, PRIMARY KEY (d DESC))",
    "odd names": 'CREATE TABLE "T"("i d" INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER, v, r REAL, b, "gone" REAL)',
    "checks": "CREATE TABLE t(id INTEGER PRIMARY KEY, n CHECK (n IS NOT 12.5), v, r REAL, b, gone NOT NULL DEFAULT 1)",
}
DROP = "ALTER TABLE t DROP COLUMN gone"


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_drop, "ROWS", 3)
    monkeypatch.setattr(column_drop, "ROWS_MAX", 5)


def begin(node: TestNode, entry: Entry) -> ColumnDrop:
    build = builds.begin(node, entry)
    assert isinstance(build, ColumnDrop)
    return build


def go_on(node: TestNode, build: ColumnDrop, took_s: float = 0.0) -> bool:
    did = node.engine.builds.advance()
    build.took(took_s)
    return did


def finish(node: TestNode, build: ColumnDrop) -> None:
    while go_on(node, build):
        pass
    assert build.phase in (Phase.READY, Phase.FAILED)


def sound(node: TestNode) -> None:
    """Nothing is left, SQLite finds no fault, and the column is not there."""
    reader = read_sound(node)
    columns = [name for (name,) in reader.execute("SELECT name FROM pragma_table_xinfo('t')")]
    assert "gone" not in columns
    reader.close()


def content(node: TestNode) -> list[object]:
    """Return the rows of the table, and its schema."""
    db = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT GLOB 'bedrockish_*' ORDER BY rowid"
    listed = db.execute(query).fetchall()
    found = db.execute("SELECT _rowid_, *, typeof(n), typeof(v), typeof(r), typeof(b) FROM t ORDER BY 1").fetchall()
    by_index = db.execute("SELECT _rowid_, n FROM t INDEXED BY by_n WHERE n IS NOT NULL ORDER BY n, 1").fetchall()
    db.close()
    return [listed, found, by_index]


class Changes:
    """Random requests."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)

    def row(self) -> tuple[object, ...]:
        luck = self.luck
        others = [None, 1, 2.0, 0.5, "x", "é" * luck.randrange(9), b"\0", -(1 << 63)]
        return (
            luck.choice([None, 1, 12345678]), luck.choice([None, "a", "B"]), luck.choice([None, 1.0, 0.5, -0.0]),
            luck.choice(others),
        )  # fmt: skip

    def one(self, node: TestNode) -> None:
        luck = self.luck
        there = [int(rowid) for (rowid,) in node.rows("SELECT _rowid_ FROM t ORDER BY 1")]
        rowid = luck.choice(there)
        match luck.randrange(10):
            case 0 | 1:
                node.run(("INSERT INTO t(n, v, r, b) VALUES (?, ?, ?, ?)", self.row()))
            case 2 | 3:
                node.run(("UPDATE t SET n = ?, v = ?, r = ?, b = ? WHERE _rowid_ = ?", (*self.row(), rowid)))
            case 4:
                many = ("UPDATE t SET gone = 'new', b = ? WHERE _rowid_ BETWEEN ? AND ?", (7, rowid, rowid + 20))
                node.run(many)
            case 5:
                node.run(("DELETE FROM t WHERE _rowid_ BETWEEN ? AND ?", (rowid, rowid + luck.randrange(3))))
            case 6:  # the id of a row is another one
                node.run(("UPDATE OR IGNORE t SET _rowid_ = ? WHERE _rowid_ = ?", (luck.randrange(-99, 200), rowid)))
            case 7:  # SQLite takes all of the batch back, which is written again
                rolled_back(node)
            case 8:  # and reads its schema again
                node.prepare("CREATE TABLE tried(x)", "DROP TABLE tried")
            case 9:
                node.save()


def filled(node: TestNode, table: str, changes: Changes) -> None:
    view = "CREATE VIEW seen AS SELECT n, v FROM t"
    trigger = "CREATE TRIGGER t AFTER DELETE ON other BEGIN DELETE FROM t WHERE n = old.x; END"  # has the table's name
    node.run("CREATE TABLE other(x PRIMARY KEY)", trigger, TABLES[table], "CREATE INDEX by_n ON t(n, r)", view)
    for _ in range(12):
        node.run(*(("INSERT INTO t(n, v, r, b) VALUES (?, ?, ?, ?)", changes.row()) for _ in range(5)))
    node.run(
        "UPDATE t SET _rowid_ = -5 WHERE _rowid_ = 3", "UPDATE t SET _rowid_ = -9223372036854775808 WHERE _rowid_ = 7"
    )


@pytest.mark.parametrize("table", TABLES)
def test_dropped_column_leaves_the_same_table_as_sqlite(make_node: MakeNode, tmp_path: Path, table: str) -> None:
    """Rows change before and behind what is copied, batches are written again, and the table is the same."""
    for seed in range(3):
        places = [tmp_path / f"{seed}-{name}.db" for name in "AB"]
        node, inline, changes = make_node("A", places[0]), make_node("B", places[1]), Changes(seed)
        filled(node, table, changes)
        node.run("ALTER TABLE t ADD COLUMN late INTEGER DEFAULT 3")  # of rows that are shorter than the others
        entry = decide(node, DROP)
        build = begin(node, entry)
        while build.phase is Phase.LOADING:
            for _ in range(changes.luck.randrange(4)):
                changes.one(node)
            go_on(node, build, changes.luck.choice([0.0, 1.0]))
        for _ in range(changes.luck.randrange(20)):
            changes.one(node)
        assert build.phase is Phase.READY, build.failure
        activated = len(node.entries)
        assert (node.engine.activate(entry.txid), build.failure) == ("", "")
        if seed % 2:
            rolled_back(node)  # and the activation with it
        changes_after = Changes(seed + 100)
        node.run(("INSERT INTO t(n, v, r, b) VALUES (?, ?, ?, ?)", changes_after.row()))
        node.run("UPDATE t SET n = 4 WHERE _rowid_ = -5", "ALTER TABLE t ADD COLUMN again INTEGER DEFAULT 8")
        sound(node)
        assert node.engine.builds.current is None
        follow(inline, node, entry, activated)
        sound(inline)
        assert content(node) == content(inline)
        assert digest(node.path) == digest(inline.path)


def test_the_table_is_not_written_again_when_it_comes_into_force(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run(PLAIN, "INSERT INTO t(id, n) VALUES (1, 1), (2, 2), (900, 3)")
    entry = decide(node, DROP)
    finish(node, begin(node, entry))
    monkeypatch.setattr(schema_versions, "run", None)
    assert node.engine.activate(entry.txid) == ""
    sound(node)
    assert node.rows("SELECT id, n FROM t") == [(1, 1), (2, 2), (900, 3)]
    node.run("INSERT INTO t(n) VALUES (4)")
    assert node.rows("SELECT id > 900, n FROM t WHERE n = 4") == [(1, 4)]


def test_rows_before_and_behind_the_copied_part_change(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run(PLAIN, *(f"INSERT INTO t(id, n) VALUES ({number}, 0)" for number in range(1, 31)))
    entry = decide(node, DROP)
    build = begin(node, entry)
    while build.phase is Phase.LOADING:
        last, following = build._next - 1, build._next
        for rowid in (last, following):
            node.run(f"UPDATE t SET n = {rowid} WHERE id = {rowid}")
        node.run(f"DELETE FROM t WHERE id = {last - 2}", f"UPDATE t SET id = {last - 1000} WHERE id = {last - 1}")
        go_on(node, build)
    expected = node.rows("SELECT id, n FROM t ORDER BY id")
    monkeypatch.setattr(schema_versions, "run", None)
    assert node.engine.activate(entry.txid) == ""
    sound(node)
    assert node.rows("SELECT id, n FROM t ORDER BY id") == expected
    assert len(expected) < 30


def test_rows_are_as_short_as_those_that_sqlite_writes(node: TestNode) -> None:
    """A whole number in a REAL column has the bytes of an integer."""
    rows = "INSERT INTO t(id, n, v, r, b) VALUES (1, 1, 'x', 5.0, NULL), (2, NULL, 'y', 0.5, x'00')"
    node.run(PLAIN, rows)
    entry = decide(node, DROP)
    finish(node, begin(node, entry))
    assert node.engine.activate(entry.txid) == ""
    node.save()
    plain = apsw.Connection(":memory:")
    plain.execute(f"{PLAIN.replace('gone, ', '')}; {rows}")
    query = "SELECT sum(payload) FROM dbstat WHERE name = 't'"
    assert node.engine.background.open_reader().execute(query).fetchall() == plain.execute(query).fetchall()


@pytest.mark.parametrize("rows", ["", "INSERT INTO t(id) VALUES (1)"])
def test_an_empty_table_and_one_of_one_row(node: TestNode, monkeypatch: pytest.MonkeyPatch, rows: str) -> None:
    node.run(PLAIN, *([rows] if rows else []))
    entry = decide(node, DROP)
    finish(node, begin(node, entry))
    monkeypatch.setattr(schema_versions, "run", None)
    assert node.engine.activate(entry.txid) == ""
    sound(node)


@pytest.mark.parametrize("copied", [4, 16])
def test_one_that_is_not_ready_when_its_time_comes(
    node: TestNode, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    """The build is given up, unless it is nearly done."""
    node.run(PLAIN, *(f"INSERT INTO t(n) VALUES ({number})" for number in range(20)))
    entry = decide(node, DROP)
    build = begin(node, entry)
    while build.rows < copied:
        go_on(node, build)
    assert build.phase is Phase.LOADING
    if copied > 10:
        monkeypatch.setattr(schema_versions, "run", None)
    assert (node.engine.activate(entry.txid), build.phase) == ("", Phase.READY if copied > 10 else Phase.FAILED)
    sound(node)
    assert node.rows("SELECT count(*) FROM t") == [(20,)]


@pytest.mark.parametrize(
    "fault",
    [
        f"DELETE FROM {STAND_IN} WHERE rowid = 1",
        f"DELETE FROM {STAND_IN} WHERE rowid = 2",
        f"UPDATE {STAND_IN} SET c1 = 7.0 WHERE rowid = 2",
        f"INSERT INTO {STAND_IN}(rowid) VALUES (9)",
        f"DROP TABLE {STAND_IN}",
        "CREATE VIEW late AS SELECT gone FROM t",  # as if the schema were another one: SQLite refuses
    ],
)
def test_wrong_build_is_not_used(node: TestNode, fault: str) -> None:
    node.run(PLAIN, "INSERT INTO t(id, n) VALUES (1, 1), (2, 7), (3, 3)")
    entry = decide(node, DROP)
    build = begin(node, entry)
    finish(node, build)
    db = node.engine._db
    db.execute(fault, can_cache=False)
    failure = node.engine.activate(entry.txid)
    if "VIEW" in fault:
        assert "no such column: gone" in failure
        assert node.rows("SELECT id, n, gone FROM t WHERE id = 2") == [(2, 7, None)]
    else:
        assert failure == ""
        sound(node)
        assert node.rows("SELECT id, n FROM t") == [(1, 1), (2, 7), (3, 3)]


def test_a_process_that_is_killed_leaves_nothing(node: TestNode, make_node: MakeNode, tmp_path: Path) -> None:
    node.run(PLAIN, *(f"INSERT INTO t(n) VALUES ({number})" for number in range(20)))
    entry = decide(node, DROP)
    build = begin(node, entry)
    for _ in range(3):
        go_on(node, build)
    node.save()
    copy = tmp_path / "copy.db"
    source = node.engine.background.open_reader()
    copy_file(source, copy)  # as a disk has it after a kill, in the middle of it
    source.close()
    sent = tmp_path / "sent.db"
    node.engine.background.snapshot_to(sent)
    finish(node, build)
    assert node.engine.activate(entry.txid) == ""
    for place in (copy, sent):
        again = make_node("A", place)
        assert again.rows("SELECT name FROM sqlite_schema WHERE name GLOB 'bedrockish_b[au]*'") == []
        assert again.engine.activate(entry.txid) == ""
        sound(again)
        again.engine.close()
    sound(node)


def test_a_disk_with_little_room_is_left_alone(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run(PLAIN, "INSERT INTO t(id, n) VALUES (1, 1)")
    entry = decide(node, DROP)
    node.save()
    plan = node.engine.builds.plan(entry.transaction)
    assert plan is not None
    monkeypatch.setattr(scratch_files, "room_on_disk", lambda _path: {"free_bytes": 4096, "total_bytes": 1 << 30})
    with pytest.raises(UnavailableError, match=r"the disk of .* has 0 MiB left"):
        node.engine.builds.start(plan, entry.txid)
    assert node.engine.builds.current is None
    assert node.engine.activate(entry.txid) == ""
    sound(node)


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE t(id INTEGER PRIMARY KEY, gone, n) WITHOUT ROWID",
        "CREATE TABLE t(id INTEGER PRIMARY KEY, gone, n, g AS (n + 1))",
        "CREATE TABLE t(id INTEGER PRIMARY KEY, gone, n, g AS (n + 1) STORED)",
    ],
)
def test_drop_without_a_build_runs_at_activation(node: TestNode, table: str) -> None:
    node.run(table, "INSERT INTO t(id, n) VALUES (1, 1)")
    entry = decide(node, DROP)
    assert node.engine.builds.plan(entry.transaction) is None
    assert node.engine.activate(entry.txid) == ""
    assert node.rows("SELECT id, n FROM t") == [(1, 1)]


@pytest.mark.parametrize(
    ("sql", "is_one"),
    [
        ("ALTER TABLE t DROP COLUMN a", True),
        ('alter table main."t" drop "a";;', True),
        ("/* x */ ALTER TABLE [t] DROP COLUMN [COLUMN] -- y", True),
        ("ALTER TABLE t DROP COLUMN", True),  # a column of that name
        ("ALTER TABLE t ADD COLUMN a", False),
        ("ALTER TABLE t RENAME COLUMN a TO b", False),
        ("DROP TABLE t", False),
        ("ALTER TABLE t DROP COLUMN a; DROP TABLE t", False),
        ("ALTER TABLE t DROP COLUMN 'a", False),
    ],
)
def test_which_statement_drops_a_column(sql: str, is_one: bool) -> None:
    assert drops_column([Step(sql)]) == is_one
    assert not drops_column([Step(sql)] * 2)


def test_rowids_that_follow_each_other_are_one_span() -> None:
    assert list(_spans([])) == []
    assert list(_spans([5])) == [(5, 5)]
    assert list(_spans([-2, -1, 0, 3, 5, 6])) == [(-2, 0), (3, 3), (5, 6)]
