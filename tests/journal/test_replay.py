"""Replay: every causally valid order rebuilds the same database; entries that do not fit are refused by name."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from random import Random

import apsw
import pytest

from bedrockish_journal.model.changes import Change, encode_changes, encode_statements
from bedrockish_journal.model.errors import (
    ChainBrokenError,
    FileMissingError,
    ForkError,
    JournalError,
    MomentError,
    ReplayBlockedError,
    ReplayMismatchError,
    TargetExistsError,
)
from bedrockish_journal.storage.table_layout import Applier, RowMismatchError, find_table, print_key, same, user_tables
from bedrockish_journal.verify.replay import digest, replay
from tests.journal.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, 11)
    world.begin()
    yield world
    world.close()


@pytest.mark.parametrize("seed", range(4))
def test_every_node_and_every_replay_has_the_same_digest(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed).run(120)
    expected = {digest(path) for path in world.paths}
    assert len(expected) == 1
    reports = [replay(world.paths[:1], tmp_path / "journal.db")]
    for draw in range(4):
        reports.append(replay(world.paths[draw % 3 :], tmp_path / f"{draw}.db", draw=Random(draw).random))
    assert {report.digest for report in reports} == expected
    assert {digest(report.target) for report in reports} == expected
    assert reports[0].repeats > 0
    assert len({(report.entries, report.changes, report.statements) for report in reports}) == 1
    assert reports[0].applied == world.nodes["A"].applied
    world.close()


def test_two_journals_with_different_gaps_suffice_together(world: World, tmp_path: Path) -> None:
    inserts = {"A": "INSERT INTO note VALUES ('mine', 1)", "B": "INSERT INTO pair VALUES ('p', 1, 2.5)"}
    made = [world.transaction(name, "rows", world.nodes[name].execute([sql])) for name, sql in inserts.items()]
    for name, transaction in zip("AB", made, strict=True):
        world.commit(name, transaction)
    paths = world.paths[:2]
    assert digest(paths[0]) != digest(paths[1])
    both = replay(paths, tmp_path / "both.db")
    assert both.entries == 3
    assert replay(paths[::-1], tmp_path / "again.db", draw=Random(1).random).digest == both.digest
    world.settle()
    assert {digest(path) for path in world.paths} == {both.digest}


def test_journals_of_two_clusters_are_not_replayed_together(world: World, tmp_path: Path) -> None:
    """Entries of both clusters have the same places, so a replay would take them from either."""
    (tmp_path / "other").mkdir()
    other = World(tmp_path / "other", 99, ("A", "B", "C", "D")).run(10)
    for draw in (None, Random(0).random):
        with pytest.raises(MomentError, match="of different clusters"):
            replay([world.paths[0], other.paths[1]], tmp_path / "no.db", draw=draw)
    assert not (tmp_path / "no.db").exists()
    other.close()


def test_replay_of_incomplete_journals_is_blocked_and_leaves_no_file(world: World, tmp_path: Path) -> None:
    world.commit("A", world.transaction("A", "rows", world.nodes["A"].execute([])))
    world.nodes["A"].db.execute("DELETE FROM bedrockish_journal WHERE tick = 1")
    with pytest.raises(ReplayBlockedError, match="missing: A1"):
        replay([world.nodes["A"].path], tmp_path / "x.db", draw=Random(0).random)
    with pytest.raises(ReplayMismatchError, match="the entry is before"):
        replay([world.nodes["A"].path], tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


def test_replay_names_a_change_that_does_not_find_its_row(world: World, tmp_path: Path) -> None:
    gone = Change("note", ("text", "rowid_"), "DELETE", 5, 5, ("x", 1), None)
    entry = world.entry("A", world.transaction("A", "rows", encode_changes([gone])))
    node = world.nodes["A"]
    node._change = lambda entry: None  # type: ignore[method-assign]  # as if it had gone well here
    node.take(entry)
    with pytest.raises(ReplayMismatchError, match=r"cannot be applied at note 5: there is no such row") as caught:
        replay([node.path], tmp_path / "x.db")
    error = caught.value
    assert (error.node, error.leader, error.tick, error.table, error.key) == ("A", "A", 2, "note", "5")
    assert not (tmp_path / "x.db").exists()


def test_a_schema_change_that_sqlite_refuses_is_named(world: World, tmp_path: Path) -> None:
    node = world.nodes["A"]
    node._change = lambda entry: None  # type: ignore[method-assign]
    change = world.transaction("A", "schema", encode_statements(["CREATE TABLE note(a)"]))
    node.take(world.entry("A", dataclasses.replace(change, activates=0, body=b"")))
    with pytest.raises(ReplayMismatchError, match=r"A2 of node .* refuses the schema change 'CREATE TABLE note"):
        replay([node.path], tmp_path / "x.db")


def test_two_journals_with_different_histories_are_a_fork(world: World, tmp_path: Path) -> None:
    base = world.transaction("A", "rows", world.nodes["A"].execute([]), command="one")
    other = world.transaction("A", "rows", world.nodes["A"].execute([]), command="two")
    first, second = world.entry("A", base), world.entry("A", other)
    world.nodes["A"].take(first)
    world.nodes["B"].take(second)
    with pytest.raises(ForkError, match="A2 is one commit in"):
        replay(world.paths[:2], tmp_path / "x.db", draw=Random(0).random)
    assert not (tmp_path / "x.db").exists()


def test_a_broken_chain_is_not_replayed(world: World, tmp_path: Path) -> None:
    entry = world.entry("A", world.transaction("A", "rows", world.nodes["A"].execute([])))
    world.nodes["A"].heads["A"] = bytes(32)
    world.commit("A", entry.transaction)
    with pytest.raises(ChainBrokenError, match="A is broken at A2"):
        replay([world.nodes["A"].path], tmp_path / "x.db")


def test_replay_does_not_overwrite_an_existing_file(world: World, tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("mine")
    with pytest.raises(TargetExistsError):
        replay(world.paths, tmp_path / "x.db")
    assert (tmp_path / "x.db").read_text() == "mine"
    with pytest.raises(FileMissingError):
        replay([tmp_path / "none.db"], tmp_path / "y.db")


def database(*statements: str, page_size: int = 4096) -> apsw.Connection:
    db = apsw.Connection(":memory:")
    db.execute(f"PRAGMA page_size = {page_size}")
    for statement in statements:
        db.execute(statement).fetchall()
    return db


def test_digest_does_not_depend_on_the_physical_order_of_rows() -> None:
    make = "CREATE TABLE t(id INTEGER PRIMARY KEY, a, b)"
    one = database(make, "INSERT INTO t(id, a, b) VALUES (1, 2, 3), (5, 6, 7)")
    two = database(
        make,
        "CREATE TABLE bedrockish_meta(key)",
        "INSERT INTO t(id, a, b) VALUES (5, 0, 7), (9, 9, 9), (1, 2, 3)",
        "DELETE FROM t WHERE id = 9",
        "UPDATE t SET a = 6 WHERE id = 5",
        "ANALYZE",
        "VACUUM",
        page_size=512,
    )
    assert digest(one) == digest(two)
    assert not one.in_transaction


def test_digest_differs_for_equal_looking_values_of_other_types() -> None:
    values = ["1", "1.0", "'1'", "x'31'", "NULL", "''", "x''", "9e999", "-9e999", "9223372036854775807", "0", "0.5"]
    digests = {digest(database("CREATE TABLE t(a)", f"INSERT INTO t VALUES ({value})")) for value in values}
    assert len(digests) == len(values)


@pytest.mark.parametrize(
    "more",
    [
        "INSERT INTO t VALUES (1)",
        "CREATE INDEX i ON t(a)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE u(a)",
        "INSERT INTO w VALUES ('x', 2)",
        "ALTER TABLE t ADD COLUMN c",
    ],
)
def test_digest_covers_rows_and_definitions(more: str) -> None:
    make = ("CREATE TABLE t(a)", "CREATE TABLE w(k TEXT PRIMARY KEY, v) WITHOUT ROWID")
    assert digest(database(*make)) != digest(database(*make, more))


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_digest_covers_text_that_is_not_utf_8(encoding: str) -> None:
    """An editor of a file can put any bytes into a text: the digest differs, but only for that row."""
    digests = set()
    for text in ("x'41ff'", "x'41fe'", "x'00d8'", "x'4142'", "NULL"):
        db = apsw.Connection(":memory:")
        db.execute(f"PRAGMA encoding = '{encoding}'")
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b)")
        db.execute(f"INSERT INTO t VALUES (1, 'é', 1.0), (2, CAST({text} AS TEXT), 2), (3, NULL, x'ff')")
        digests.add(digest(db))
        db.execute("UPDATE t SET b = 3 WHERE id = 3")
        digests.add(digest(db))
    assert len(digests) == 10


def test_digest_changes_if_values_move_between_columns_or_rows() -> None:
    one = database("CREATE TABLE t(a, b)", "INSERT INTO t VALUES ('x', 'yz')")
    two = database("CREATE TABLE t(a, b)", "INSERT INTO t VALUES ('xy', 'z')")
    assert digest(one) != digest(two)


ODD = [
    ("CREATE TABLE t(rowid, _rowid_, oid)", "INSERT INTO t VALUES (3, 2, 1), (1, 2, 3)"),
    ("CREATE TABLE t(rowid INTEGER PRIMARY KEY, _rowid_, oid)", "INSERT INTO t VALUES (3, 2, 1), (1, 2, 3)"),
    ("CREATE TABLE t(id INTEGER PRIMARY KEY DESC, v)", "INSERT INTO t VALUES (3, 2), (1, 2)"),
    ("CREATE TABLE t(id INT PRIMARY KEY, v)", "INSERT INTO t VALUES (3, 2), (NULL, 2)"),
    ('CREATE TABLE "t"("a""b", [c d])', "INSERT INTO t VALUES (3, 2)"),
]


@pytest.mark.parametrize(("make", "fill"), ODD)
def test_digest_covers_tables_with_odd_definitions(make: str, fill: str) -> None:
    assert digest(database(make, fill)) == digest(database(make, fill)) != digest(database(make))


def test_user_tables_describes_rowids_keys_and_generated_columns() -> None:
    db = database(
        "CREATE TABLE a(id INTEGER PRIMARY KEY, rowid, g AS (id + 1), s AS (id + 2) STORED)",
        "CREATE TABLE b(x, y, PRIMARY KEY (y, x)) WITHOUT ROWID",
        "CREATE TABLE c(id INTEGER PRIMARY KEY DESC)",
        "CREATE VIEW v AS SELECT 1",
    )
    a, b, c = user_tables(db)
    assert (a.rowid, a.alias, sorted(a.generated)) == ("_rowid_", "id", ["g", "s"])
    assert a.columns == ("id", "rowid", "g", "s")
    assert (b.rowid, b.alias, b.primary) == (None, None, ("y", "x"))
    assert (c.rowid, c.alias) == ("rowid", None)
    assert find_table(db, "A") == a
    assert find_table(db, "v") is None
    change = Change("b", ("x", "y"), "INSERT", None, None, None, (1, "k"))
    assert print_key(change, b.primary) == "('k', 1)"


REFUSED = [
    (Change("no", ("a",), "INSERT", 1, 1, None, (1,)), "no such table"),
    (Change("t", ("a",), "INSERT", 1, 1, None, (1,)), "SQLite refuses the change"),
    (Change("t", ("a",), "UPDATE", 2, 2, (1,), (2,)), "no such row"),
    (Change("t", ("a",), "UPDATE", 1, 1, ("1",), (2,)), "column a should be '1' and is 1"),
    (Change("t", ("a",), "DELETE", 1, 1, (2,), None), "column a should be 2 and is 1"),
    (Change("t", ("z",), "DELETE", 1, 1, (2,), None), "SQLite refuses the change"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_a_change_is_applied_to_exactly_its_row_or_not_at_all(change: Change, words: str) -> None:
    db = database("CREATE TABLE t(a)", "INSERT INTO t VALUES (1)")
    before = digest(db)
    with pytest.raises(RowMismatchError, match=words):
        Applier(db).apply(change)
    assert digest(db) == before


@pytest.mark.parametrize("options", ["WITHOUT ROWID", ""])
def test_rows_are_found_by_the_collation_of_the_primary_key(options: str) -> None:
    """By the column's own collation two keys may be equal, and a replay, and so a restore, would refuse the table."""
    named = "" if options else "rowid, oid, _rowid_, "  # a table without a name for its rowid
    db = database(
        f"CREATE TABLE t({named}id TEXT COLLATE RTRIM, n, PRIMARY KEY(id COLLATE NOCASE)) {options}",
        "INSERT INTO t(id, n) VALUES ('a', 1), ('b', 2)",
    )
    columns = (*named.replace(" ", "").split(",")[:-1], "id", "n")
    none = (None,) * (len(columns) - 2)
    applier = Applier(db)
    for op, before, after in (
        ("INSERT", None, (*none, "a ", 3)),
        ("UPDATE", (*none, "a ", 3), (*none, "a ", 4)),
        ("DELETE", (*none, "a", 1), None),
    ):
        applier.apply(Change("t", columns, op, None, None, before, after))
    assert db.execute("SELECT id, n FROM t ORDER BY n").fetchall() == [("b", 2), ("a ", 4)]


def test_values_are_the_same_only_with_the_same_type() -> None:
    assert same(1, 1)
    assert same(1, 1.0)  # an integer in a REAL column
    assert same(None, None)
    assert not same(1.0, 1)
    assert not same("1", 1)
    assert not same(b"1", "1")
    assert not same(None, 0)


def test_every_error_of_a_replay_is_a_journal_error() -> None:
    for error in (ForkError, ReplayMismatchError, TargetExistsError, ReplayBlockedError, ChainBrokenError):
        assert issubclass(error, JournalError)
