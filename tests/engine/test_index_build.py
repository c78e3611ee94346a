"""An index that is built next to its table equals the one that SQLite builds, under any concurrent changes."""

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from bedrockish.access_sets.system_names import BARE, PASSING, STAND_IN
from bedrockish.access_sets.system_names import STAND_IN_INDEX as BUILT
from bedrockish.engine.storage import index_build, schema_versions
from bedrockish.engine.storage.index_build import Build, IndexBuild, Phase
from bedrockish.engine.storage.refill import replay_own
from bedrockish.engine.storage.rename_copy import strip
from bedrockish.engine.storage.stand_in import root_of
from bedrockish.engine.storage.wal import copy_file
from bedrockish.errors import UnsupportedError
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.verify.replay import digest
from tests.engine import builds
from tests.engine.builds import copy_of, follow, read_sound, rolled_back
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode
from tests.engine.test_versions import decide

PLAIN = "CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER, v TEXT COLLATE NOCASE, r REAL, b)"
TABLES = {
    "plain": PLAIN,
    "no id": "CREATE TABLE t(n INTEGER, v TEXT COLLATE NOCASE, r REAL, b)",
    "strict": "CREATE TABLE t(id INTEGER PRIMARY KEY, n INT, v TEXT COLLATE NOCASE, r REAL, b ANY) STRICT",
    "rowid hidden": "CREATE TABLE t(rowid TEXT, n INTEGER, v TEXT COLLATE NOCASE, r REAL, b, oid)",
    "generated": (
        "CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER, v TEXT COLLATE NOCASE, r REAL, b, "
        "g REAL AS (n + r), s TEXT COLLATE NOCASE AS (v || '!') STORED)"
    ),
    "odd names": (
        'CREATE TABLE "T"("i d" INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER, v TEXT COLLATE NOCASE, r REAL, b)'
    ),
}
INDEXES = {
    "one column": "CREATE INDEX made ON t(n)",
    "several": "CREATE INDEX IF NOT EXISTS main.made ON t(r DESC, v, n)",
    "collation": 'CREATE INDEX "made" ON "t"(v COLLATE BINARY DESC, v COLLATE RTRIM, b)',
    "expression": "CREATE INDEX made ON t(n % 7, lower(v), CAST(r AS INTEGER), (b))",
    "partial": "CREATE INDEX made ON t(b, n) WHERE n % 3 = 0 AND v IS NOT NULL -- told\n",
    "unique": "CREATE UNIQUE INDEX made ON t(n, r, v COLLATE BINARY, b);",
    "generated": "CREATE INDEX made ON t(g DESC, s)",
    "quoted": 'CREATE INDEX made ON t("i d", "n")',
    "hidden": "CREATE INDEX made ON t(rowid, oid, n)",
}
FITS = [
    *(("plain", name) for name in ("one column", "several", "collation", "expression", "partial", "unique")),
    *(("no id", name) for name in ("several", "partial", "unique")),
    *(("strict", name) for name in ("several", "collation", "expression")),
    *(("rowid hidden", name) for name in ("several", "hidden")),
    *(("generated", name) for name in ("generated", "unique")),
    *(("odd names", name) for name in ("several", "quoted")),
]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_build, "SLICE_ROWS", 3)
    monkeypatch.setattr(index_build, "EDIT_ROWS", 2)


def begin(node: TestNode, entry: Entry) -> IndexBuild:
    build = builds.begin(node, entry)
    assert isinstance(build, IndexBuild)
    return build


def go_on(node: TestNode, build: Build) -> bool:
    if build.is_waiting:
        build.fetch()
    return node.engine.builds.advance()


def finish(node: TestNode, build: Build) -> None:
    while build.phase not in (Phase.READY, Phase.FAILED):
        go_on(node, build)


def sound(node: TestNode, *, index: bool = True) -> None:
    """Check that the build left no table, and SQLite finds no fault."""
    reader = read_sound(node)
    names = {name for (name,) in reader.execute("SELECT name FROM sqlite_schema")}
    assert ("made" in names) == index
    reader.close()


def entries(node: TestNode, index: str) -> list[object]:
    """Return the entries of the index in its order, and its schema."""
    db = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT GLOB 'bedrockish_*' ORDER BY rowid"
    listed = db.execute(query).fetchall()
    where = "WHERE n % 3 = 0 AND v IS NOT NULL" if index == "partial" else ""
    address = "_rowid_"
    found = db.execute(f"SELECT {address}, n, v, r, b, typeof(r), typeof(b) FROM t INDEXED BY made {where}").fetchall()
    db.close()
    return [listed, found]


class Changes:
    """Random requests."""

    def __init__(self, seed: int, table: str) -> None:
        self.luck, self.count, self.is_strict = random.Random(seed), 0, table == "strict"

    def value(self) -> object:
        luck = self.luck
        return luck.choice([None, luck.randrange(9), float(luck.randrange(9)), luck.random(), "Ab ", "aB", "é", b"\0x"])

    def row(self) -> tuple[object, ...]:
        """Return a random row. Its first value is unique, so that a unique index can be made."""
        self.count += 1
        luck = self.luck
        texts = [None, "Ab ", "aB", "ab", "é", "x"]
        return (
            luck.choice([self.count, self.count, self.count, None if self.count % 50 == 0 else -self.count]),
            luck.choice(texts), luck.choice([None, 1.0, 2.5, 3.0]), self.value(),
        )  # fmt: skip

    def one(self, node: TestNode) -> None:
        """Run one request, which may fail as requests do."""
        luck = self.luck
        there = [int(rowid) for (rowid,) in node.rows("SELECT _rowid_ FROM t ORDER BY 1")]
        rowid = luck.choice(there)
        match luck.randrange(12):
            case 0 | 1:
                node.run(("INSERT INTO t(n, v, r, b) VALUES (?, ?, ?, ?)", self.row()))
            case 2 | 3 | 4:
                node.run(("UPDATE t SET n = ?, v = ?, r = ?, b = ? WHERE _rowid_ = ?", (*self.row(), rowid)))
            case 5:
                node.run(
                    (
                        "UPDATE t SET b = ? WHERE _rowid_ BETWEEN ? AND ?",
                        (self.value(), rowid, rowid + luck.randrange(25)),
                    )
                )
            case 6:
                node.run(("DELETE FROM t WHERE _rowid_ BETWEEN ? AND ?", (rowid, rowid + luck.randrange(3))))
            case 7:  # a row gets another id
                node.run(("UPDATE OR IGNORE t SET _rowid_ = _rowid_ + 7 WHERE _rowid_ = ?", (rowid,)))
            case 8:  # two rows exchange their values: under a unique index only in the right order
                one, other = rowid, luck.choice(there)
                swap = "UPDATE t SET n = (SELECT sum(n) FROM t WHERE _rowid_ IN (?1, ?2)) - n WHERE _rowid_ IN (?1, ?2)"
                node.run((swap, (one, other)))
            case 9:  # SQLite takes all of the batch back, which is written again
                rolled_back(node)
            case 10:  # and reads its schema again
                node.prepare("CREATE TABLE tried(x)", "DROP TABLE tried")
            case 11:
                node.save()


def filled(node: TestNode, table: str, changes: Changes) -> None:
    node.run("CREATE TABLE other(x PRIMARY KEY)", TABLES[table], "CREATE TABLE last(x)")
    for _ in range(12):
        node.run(*(("INSERT INTO t(n, v, r, b) VALUES (?, ?, ?, ?)", changes.row()) for _ in range(5)))


@pytest.mark.parametrize(("table", "index"), FITS)
def test_built_index_equals_the_one_of_sqlite(make_node: MakeNode, tmp_path: Path, table: str, index: str) -> None:
    """Rows before and behind the build's position change, batches are written again, and the entries are equal."""
    for seed in range(2):
        places = [tmp_path / f"{seed}-{name}.db" for name in "AB"]
        node, inline, changes = make_node("A", places[0]), make_node("B", places[1]), Changes(seed, table)
        filled(node, table, changes)
        entry = decide(node, INDEXES[index])
        build = begin(node, entry)
        while build.phase is not Phase.READY:
            assert build.phase is not Phase.FAILED, build.failure
            for _ in range(changes.luck.randrange(5)):
                changes.one(node)
            go_on(node, build)
        for _ in range(changes.luck.randrange(20)):
            changes.one(node)
        assert build.phase is Phase.READY, build.failure
        activated = len(node.entries)
        assert (node.engine.activate(entry.txid), build.failure) == ("", "")
        if seed % 2:
            rolled_back(node)  # and the activation with it
        changes.one(node)
        sound(node)
        assert node.engine.builds.current is None
        follow(inline, node, entry, activated)
        sound(inline)
        assert entries(node, index) == entries(inline, index)
        assert digest(node.path) == digest(inline.path)


def test_activation_moves_the_built_index_without_running_its_statement(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(node, "plain", Changes(1, "plain"))
    entry = decide(node, INDEXES["unique"])
    finish(node, begin(node, entry))
    monkeypatch.setattr(schema_versions, "run", None)
    assert node.engine.activate(entry.txid) == ""
    sound(node)
    reader = apsw.Connection(str(node.path))
    count = reader.execute("SELECT count(*) FROM t INDEXED BY made WHERE n > -1000").fetchall()
    assert count == reader.execute("SELECT count(n) FROM t NOT INDEXED").fetchall()


@pytest.mark.parametrize(
    ("loaded", "slices_max", "is_finished"), [(30, 250, False), (45, 250, True), (45, 4, False), (60, 0, True)]
)
def test_late_build_is_finished_or_given_up(
    node: TestNode, monkeypatch: pytest.MonkeyPatch, loaded: int, slices_max: int, is_finished: bool
) -> None:
    """A build that has most rows of its snapshot is finished then, if the others fit into memory; otherwise it is given
    up, and SQLite builds the index.
    """
    monkeypatch.setattr(index_build, "LEFT_MAX", slices_max)
    changes = Changes(2, "plain")
    filled(node, "plain", changes)
    entry = decide(node, INDEXES["several"])
    build = begin(node, entry)
    while build.phase is Phase.LOADING and build.rows < loaded:
        changes.one(node)
        go_on(node, build)
    while build.phase is Phase.LOADING and loaded == 60:
        go_on(node, build)
    if is_finished:
        monkeypatch.setattr(schema_versions, "run", None)
    assert build.phase is (Phase.REMOVING if loaded == 60 else Phase.LOADING)
    assert (node.engine.activate(entry.txid), build.phase) == ("", Phase.READY if is_finished else Phase.FAILED)
    sound(node)


@pytest.mark.parametrize("late", [False, True])
def test_duplicate_during_the_build_fails_only_the_schema_change(node: TestNode, late: bool) -> None:
    """SQLite reports the duplicate when the change comes into force, even if the index is built before."""
    node.run(PLAIN, "INSERT INTO t(id, n) VALUES (1, 1), (2, 2), (3, 3), (4, NULL), (5, NULL)")
    entry = decide(node, "CREATE UNIQUE INDEX made ON t(n)")
    build = begin(node, entry)
    if late:
        finish(node, build)
        assert build.phase is Phase.READY
    node.run("UPDATE t SET n = 2 WHERE id = 3")
    finish(node, build)
    assert (build.phase, build.failure) == (Phase.FAILED, f"UNIQUE constraint failed: {STAND_IN}.n")
    node.run("INSERT INTO t(id, n) VALUES (6, 9)")
    assert node.engine.activate(entry.txid) == "UNIQUE constraint failed: t.n"
    sound(node, index=False)
    node.run("DELETE FROM t WHERE id = 3")
    entry = decide(node, "CREATE UNIQUE INDEX made ON t(n)")
    finish(node, begin(node, entry))
    assert node.engine.activate(entry.txid) == ""
    sound(node)


def test_duplicate_removed_before_the_activation_does_not_fail_the_change(node: TestNode) -> None:
    node.run(PLAIN, "INSERT INTO t(id, n) VALUES (1, 1), (2, 2)")
    entry = decide(node, "CREATE UNIQUE INDEX made ON t(n)")
    build = begin(node, entry)
    finish(node, build)
    node.run("INSERT INTO t(id, n) VALUES (3, 1)")
    assert build.phase is Phase.FAILED
    node.run("DELETE FROM t WHERE id = 1")
    assert node.engine.activate(entry.txid) == ""
    sound(node)


@pytest.mark.parametrize(
    "fault",
    [
        f"DELETE FROM {STAND_IN}",  # removes its entries, too
        f"INSERT INTO {STAND_IN} SELECT id, n FROM t",  # is empty always
        f"DROP TABLE {STAND_IN}",
    ],
)
def test_wrong_result_of_an_online_build_is_discarded(node: TestNode, fault: str) -> None:
    node.run(PLAIN, "INSERT INTO t(id, n) VALUES (1, 1), (2, 2), (3, 3)")
    entry = decide(node, "CREATE UNIQUE INDEX made ON t(n)")
    finish(node, begin(node, entry))
    db = node.engine._db
    db.preupdate_hook(None)  # with the hook SQLite deletes row by row
    with suppress(apsw.ConstraintError):
        db.execute(fault, can_cache=False)
    db.preupdate_hook(node.engine._capture._hook)
    assert node.engine.activate(entry.txid) == ""
    sound(node)


def test_index_of_a_replaced_table_is_rebuilt(node: TestNode) -> None:
    node.run(PLAIN, "INSERT INTO t(id, n) VALUES (1, 1), (2, 2), (3, 3)")
    entry = decide(node, "CREATE INDEX made ON t(n)")
    build = begin(node, entry)
    finish(node, build)
    build.plan = replace(build.plan, table_sql="CREATE TABLE t(n)")
    assert node.engine.activate(entry.txid) == ""
    sound(node)


@pytest.mark.parametrize("text", [b"\xff", "x" * 300_000])
def test_build_takes_large_rows_and_fails_at_unreadable_ones(node: TestNode, text: bytes | str) -> None:
    """A text that is not UTF-8 comes from another program; then the index is built by SQLite alone."""
    node.run(PLAIN, ("INSERT INTO t(id, v) VALUES (1, 'a'), (2, ?), (3, 'c'), (4, 'd')", ("x" * 300_000,)))
    if isinstance(text, bytes):
        node.engine._db.execute("UPDATE t SET v = CAST(? AS TEXT) WHERE id = 2", (text,))
    entry = decide(node, "CREATE INDEX made ON t(v)")
    build = begin(node, entry)
    finish(node, build)
    assert build.phase is (Phase.FAILED if isinstance(text, bytes) else Phase.READY)
    assert node.engine.activate(entry.txid) == ""
    sound(node)


def test_abandoned_build_is_forgotten_before_the_next_one(make_node: MakeNode) -> None:
    """The writer caches the stand-in under two names, and must drop both before its root page belongs to another table.

    This matters only at a follower: a leader tries the change, after which SQLite reads its schema again.
    """
    leads, follows = make_node(), make_node("B")
    count = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT 40)"

    def followed() -> None:
        for entry in leads.entries[follows.tick :]:
            follows.apply(entry)
            follows.tick = entry.tick

    def changed(sql: str) -> str:
        entry = decide(leads, sql)
        followed()
        failure = leads.engine.activate(entry.txid)
        assert follows.engine.activate(entry.txid) == failure
        return failure

    changed(PLAIN)
    leads.run(f"INSERT INTO t(n) {count} SELECT i FROM k")
    entry = decide(leads, "CREATE INDEX made ON t(n)")
    followed()
    given_up = begin(follows, entry)
    for _ in range(3):
        go_on(follows, given_up)
    assert given_up.phase is Phase.LOADING
    follows.save()
    assert follows.engine._db.table_exists("main", BARE)
    root = root_of(follows.engine._db, STAND_IN)
    assert (leads.engine.activate(entry.txid), follows.engine.activate(entry.txid)) == ("", "")
    follows.save()
    assert not follows.engine._db.table_exists("main", BARE)
    assert changed("DROP INDEX made") == ""
    assert changed("CREATE TABLE taken(id INTEGER PRIMARY KEY, v)") == ""
    assert root_of(follows.engine._db, "taken") == root
    leads.run(f"INSERT INTO taken {count} SELECT i, i FROM k")
    entry = decide(leads, "CREATE INDEX made ON t(n)")
    followed()
    build = begin(follows, entry)
    finish(follows, build)
    assert (leads.engine.activate(entry.txid), follows.engine.activate(entry.txid)) == ("", "")
    assert follows.rows("SELECT count(*) FROM taken") == [(40,)]
    sound(follows)


@pytest.mark.parametrize("is_ready", [False, True])
def test_leftovers_of_a_killed_build_are_removed(node: TestNode, tmp_path: Path, is_ready: bool) -> None:
    """A copy of the file at any moment equals the file of a process that was killed then."""
    filled(node, "plain", Changes(3, "plain"))
    entry = decide(node, INDEXES["several"])
    build = begin(node, entry)
    for _ in range(10):
        go_on(node, build)
    if is_ready:
        finish(node, build)
    node.save()
    left = copy_of(node, tmp_path / "left.db")
    assert [name for (name,) in apsw.Connection(str(left)).execute("SELECT name FROM sqlite_schema") if name == BUILT]
    again = TestNode(left)
    try:
        assert again.engine.builds.current is None
        recovered = again.engine.recover()
        assert recovered.scheduled is not None
        second = begin(again, entry)
        finish(again, second)
        assert again.engine.activate(entry.txid) == ""
        sound(again)
        assert node.engine.activate(entry.txid) == ""
        node.save()
        assert entries(again, "several") == entries(node, "several")
    finally:
        again.engine.close()


def test_copies_of_the_file_have_no_part_of_a_running_build(node: TestNode, tmp_path: Path) -> None:
    filled(node, "plain", Changes(4, "plain"))
    entry = decide(node, INDEXES["several"])
    build = begin(node, entry)
    for _ in range(10):
        go_on(node, build)
    node.save()
    before = digest(node.path)
    copy, other = tmp_path / "copy.db", tmp_path / "other.db"
    node.engine.background.snapshot_to(copy)
    assert not copy.with_name("copy.db-wal").exists()
    db = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    assert not {name for (name,) in db.execute("SELECT name FROM sqlite_schema")} & PASSING
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
    assert digest(copy) == before
    copy_file(apsw.Connection(str(node.path)), other)  # as another program makes one
    strip(other)
    db = apsw.Connection(str(other))
    assert db.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'bedrockish_*'").fetchall() == []
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    replay_own(node.path, tmp_path / "own.db", lambda _db: None)
    db = apsw.Connection(str(tmp_path / "own.db"))
    assert not {name for (name,) in db.execute("SELECT name FROM sqlite_schema")} & PASSING


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM bedrockish_building",
        "CREATE TABLE bedrockish_building(x)",
        "DROP INDEX bedrockish_built",
        "ALTER TABLE t RENAME TO bedrockish_bare",
    ],
)
def test_unfinished_index_cannot_be_named(node: TestNode, sql: str) -> None:
    node.run(PLAIN, "INSERT INTO t(n) VALUES (1)")
    begin(node, decide(node, "CREATE INDEX made ON t(n)"))
    with pytest.raises(UnsupportedError, match="belong"):
        node.prepare(sql)


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE INDEX made ON w(n)",),  # WITHOUT ROWID
        ("CREATE INDEX made ON t(n)", "CREATE INDEX second ON t(v)"),
        ("CREATE INDEX made ON t(id)",),  # no column of its own
        ("CREATE INDEX made ON t(n) WHERE t.n > 3",),  # named with its table, which the stand-in is not
        ("ALTER TABLE t ADD COLUMN more",),
        ("DROP INDEX old",),
    ],
)
def test_unsuitable_statements_are_not_built_beforehand(node: TestNode, statements: tuple[str, ...]) -> None:
    node.run(PLAIN, "CREATE TABLE w(k PRIMARY KEY, n) WITHOUT ROWID", "CREATE INDEX old ON t(v)")
    entry = decide(node, *statements)
    assert node.engine.builds.plan(entry.transaction) is None
    assert node.engine.activate(entry.txid) == ""


def test_another_schema_change_can_be_prepared_during_an_index_build(node: TestNode) -> None:
    """The hidden index does not count: another schema change that is tried during the build does not see it."""
    node.run(PLAIN, "INSERT INTO t(n) VALUES (1)")
    build = begin(node, decide(node, "CREATE INDEX made ON t(n)"))
    assert node.prepare("CREATE TABLE x(y)").kind == "schema"
    finish(node, build)
    assert build.phase is Phase.READY


def test_node_that_ends_does_not_wait_for_a_build(node: TestNode) -> None:
    filled(node, "plain", Changes(5, "plain"))
    build = begin(node, decide(node, INDEXES["several"]))
    build.fetch()
    node.engine.close()
    build.fetch()  # by a thread that comes late
    assert build.phase is Phase.FAILED


def test_build_given_up_before_its_sort_does_not_sort(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite ignores an interrupt while no statement runs."""
    monkeypatch.setattr(index_build, "ASK_STEPS", 10)
    filled(node, "plain", Changes(6, "plain"))
    build = begin(node, decide(node, INDEXES["several"]))
    assert build._reader is not None
    build.interrupt()
    with pytest.raises(apsw.InterruptError):
        build._reader.execute(build.plan.load).fetchall()
