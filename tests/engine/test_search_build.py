"""An FTS5 index that is built next to its table equals one that SQLite rebuilds, under any concurrent changes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.access_sets.system_names import PASSING, STAND_IN
from bedrockish.engine.derived.index_keeper import IndexKeeper
from bedrockish.engine.storage import index_build, schema_versions
from bedrockish.engine.storage.index_build import Build, Phase
from bedrockish.engine.storage.refill import replay_own
from bedrockish.engine.storage.search_build import SearchBuild
from bedrockish.engine.storage.stand_in import stand_ins
from bedrockish.engine.storage.wal import copy_file
from bedrockish.errors import UnsupportedError
from bedrockish_journal.model.changes import SchemaStep
from bedrockish_journal.verify.replay import digest
from tests.engine.builds import begin, copy_of, follow, read_sound, rolled_back
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode
from tests.engine.test_index_build import PLAIN, Changes, filled, finish, go_on
from tests.engine.test_versions import decide
from tests.engine.virtual_pair import check_virtual

INDEXES = {
    "plain": "CREATE VIRTUAL TABLE IF NOT EXISTS main.made USING fts5(v, b, content='t')",
    "porter": "CREATE VIRTUAL TABLE made USING fts5(v, n, tokenize=porter, content=t, content_rowid=_rowid_) -- told",
    "no sizes": "CREATE VIRTUAL TABLE [made] USING fts5(v, b, columnsize=0, prefix='1 2', content = \"t\");",
}


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_build, "SLICE_ROWS", 3)


def search(node: TestNode) -> list[Any]:
    """Check that the index is that of the rows; return the schema's objects, and the places of each word."""
    db = read_sound(node)
    copy = node.path.with_name("copy.sqlite")
    copy_file(db, copy)
    db.close()
    db = apsw.Connection(str(copy))
    listed = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid").fetchall()
    check_virtual(db)
    db.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab(main, made, instance)")
    found = db.execute("SELECT term, doc, col, offset FROM words ORDER BY 1, 2, 3, 4").fetchall()
    db.close()
    copy.unlink()
    return [[one for one in listed if not str(one[2]).startswith("bedrockish_")], found]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("table", ["plain", "no id", "generated", "odd names"])
def test_fts5_index_built_online_equals_one_that_sqlite_rebuilds(
    make_node: MakeNode, tmp_path: Path, table: str, index: str
) -> None:
    """Rows before and behind the build's position change, and batches are written again."""
    for seed in range(2):
        places = [tmp_path / f"{seed}-{name}.db" for name in "AB"]
        node, inline, changes = make_node("A", places[0]), make_node("B", places[1]), Changes(seed, table)
        filled(node, table, changes)
        entry = decide(node, INDEXES[index])
        build = begin(node, entry)
        assert isinstance(build, SearchBuild)
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
        found = search(node)
        assert node.engine.builds.current is None
        follow(inline, node, entry, activated)
        assert found == search(inline)
        assert digest(node.path) == digest(inline.path)
        assert found[1]
        changes.one(node)
        node.run("DROP TABLE made")
        read_sound(node).close()


def test_activation_moves_the_built_search_index_without_running_its_statement(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = ready(node)
    monkeypatch.setattr(schema_versions, "run", None)
    assert node.engine.activate(build.txid) == ""
    assert node.engine.batch.is_long, "a thread commits it"
    search(node)
    node.run("UPDATE t SET v = 'zeta' WHERE _rowid_ % 3 = 0")
    assert node.rows("SELECT count(*) FROM made('zeta')") == node.rows("SELECT count(*) FROM t WHERE v = 'zeta'")
    search(node)


FOLLOWING = (
    "CREATE TRIGGER added AFTER INSERT ON t BEGIN INSERT INTO made(rowid, v, b) VALUES (new.id, new.v, new.b); END",
    "/* the usual */ CREATE VIEW shown AS SELECT v FROM t; PRAGMA user_version = 7",
    "DROP VIEW shown",
)


def test_triggers_and_views_may_follow_the_index_in_its_change(make_node: MakeNode) -> None:
    """The index is moved into place first. Triggers and views follow, as at a node that has built nothing."""
    node, inline, changes = make_node("A"), make_node("B"), Changes(4, "plain")
    filled(node, "plain", changes)
    entry = decide(node, INDEXES["plain"], *FOLLOWING)
    build = begin(node, entry)
    finish(node, build)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexKeeper, "rebuild", only_nothing)
        assert node.engine.activate(entry.txid) == ""
    activated = len(node.entries)
    changes.one(node)
    node.run("INSERT INTO t(v, b) VALUES ('omega', 1)")
    found = search(node)
    follow(inline, node, entry, activated)
    assert found == search(inline)
    assert digest(node.path) == digest(inline.path)
    assert node.rows("PRAGMA user_version") == [(7,)]
    assert node.rows("SELECT name FROM sqlite_schema WHERE name IN ('added', 'shown')") == [("added",)]


def only_nothing(_keeper: IndexKeeper, names: Iterable[str]) -> None:
    assert not list(names)


def test_schema_change_whose_later_statement_fails_leaves_no_index(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, inline = make_node("A"), make_node("B")
    filled(node, "plain", Changes(5, "plain"))
    entry = decide(node, INDEXES["plain"], FOLLOWING[0])
    build = begin(node, entry)
    finish(node, build)
    for made in node.entries:
        inline.apply(made)

    def forbidding(db: apsw.Connection, steps: list[SchemaStep]) -> str:
        if len(steps) == 1:  # a statement after the index, executed before the change turns out to be forbidden
            db.execute(steps[0].sql)
        return "the data forbids it"

    monkeypatch.setattr(schema_versions, "run", forbidding)
    assert node.engine.activate(entry.txid) == inline.engine.activate(entry.txid) == "the data forbids it"
    assert node.rows("SELECT name FROM sqlite_schema WHERE name IN ('added', 'made')") == []
    read_sound(node).close()
    read_sound(inline).close()
    assert not stand_ins(node.engine._db)
    assert digest(node.path) == digest(inline.path)


def ready(node: TestNode) -> Build:
    filled(node, "plain", Changes(1, "plain"))
    build = begin(node, decide(node, INDEXES["plain"]))
    finish(node, build)
    assert build.phase is Phase.READY
    return build


@pytest.mark.parametrize(
    "fault",
    [
        f"INSERT INTO {STAND_IN}(rowid, v) VALUES (9999, 'x')",
        f"DELETE FROM {STAND_IN}_docsize WHERE id = (SELECT max(id) FROM {STAND_IN}_docsize)",
        f"DROP TABLE {STAND_IN}_data",
    ],
)
def test_wrong_result_of_an_online_build_is_discarded(node: TestNode, fault: str) -> None:
    build = ready(node)
    db = node.engine._db
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    db.execute(fault, can_cache=False)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    assert node.engine.activate(build.txid) == ""
    search(node)


@pytest.mark.parametrize("is_ready", [False, True])
def test_leftovers_of_a_killed_build_are_removed(node: TestNode, tmp_path: Path, is_ready: bool) -> None:
    """At most, the file then has ordinary tables, which the next process drops before it builds again."""
    filled(node, "plain", Changes(3, "plain"))
    entry = decide(node, INDEXES["plain"])
    build = begin(node, entry)
    for _ in range(10):
        go_on(node, build)
    if is_ready:
        finish(node, build)
    node.save()
    left = copy_of(node, tmp_path / "left.db")
    db = apsw.Connection(str(left))
    assert stand_ins(db)
    assert not db.execute("SELECT 1 FROM sqlite_schema WHERE rootpage = 0").fetchall()
    db.close()
    again = TestNode(left)
    try:
        assert not stand_ins(again.engine._db)
        again.engine.recover()
        second = begin(again, entry)
        finish(again, second)
        assert again.engine.activate(entry.txid) == ""
        assert node.engine.activate(entry.txid) == ""
        node.save()
        assert search(again) == search(node)
    finally:
        again.engine.close()


@pytest.mark.parametrize(("slices_max", "is_finished"), [(1, False), (250, True)])
def test_late_build_is_finished_or_given_up(
    node: TestNode, monkeypatch: pytest.MonkeyPatch, slices_max: int, is_finished: bool
) -> None:
    """A build is finished then, unless the rest is too large for memory; in that case it is given up, and leaves
    nothing.
    """
    monkeypatch.setattr(index_build, "LEFT_MAX", slices_max)
    filled(node, "plain", Changes(2, "plain"))
    entry = decide(node, INDEXES["plain"])
    build = begin(node, entry)
    for _ in range(3):
        go_on(node, build)
    if is_finished:
        monkeypatch.setattr(schema_versions, "run", None)
    assert build.phase is Phase.LOADING
    assert (node.engine.activate(entry.txid), build.phase) == ("", Phase.READY if is_finished else Phase.FAILED)
    search(node)
    monkeypatch.undo()
    node.run("CREATE TABLE taken(x)")
    node.run("INSERT INTO t(v) VALUES ('alpha')")
    search(node)


def test_copies_of_the_file_have_no_part_of_a_running_build(node: TestNode, tmp_path: Path) -> None:
    ready(node)
    node.save()
    before = digest(node.path)
    copy = tmp_path / "copy.db"
    node.engine.background.snapshot_to(copy)
    assert digest(copy) == before
    replay_own(node.path, tmp_path / "own.db", lambda _db: None)
    for path in (copy, tmp_path / "own.db"):
        db = apsw.Connection(str(path))
        assert not {name for (name,) in db.execute("SELECT name FROM sqlite_schema")} & PASSING
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.close()


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE VIRTUAL TABLE made USING fts5(v)",),  # owns its rows
        ("CREATE VIRTUAL TABLE made USING fts5(v, content='t')", "CREATE VIRTUAL TABLE two USING fts5(v, content='t')"),
        ("CREATE VIRTUAL TABLE made USING rtree(id, a, b)",),
        ("CREATE VIRTUAL TABLE made USING fts5(v, content='t')", "CREATE TABLE two(x)"),
        ("CREATE VIRTUAL TABLE made USING fts5(v, content='t')", "INSERT INTO t(v) VALUES ('more')"),
        ("CREATE VIEW two AS SELECT 1", "CREATE VIRTUAL TABLE made USING fts5(v, content='t')"),
    ],
)
def test_unsuitable_statements_are_not_built_beforehand(node: TestNode, statements: tuple[str, ...]) -> None:
    node.run(PLAIN)
    entry = decide(node, *statements)
    assert node.engine.builds.plan(entry.transaction) is None
    assert node.engine.activate(entry.txid) == ""


def test_tables_of_the_build_cannot_be_named(node: TestNode) -> None:
    ready(node)
    for table in (STAND_IN, f"{STAND_IN}_data"):
        with pytest.raises(UnsupportedError, match="belong"):
            node.prepare(f"SELECT * FROM {table}")
