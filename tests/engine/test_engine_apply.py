"""A transaction that one node has prepared applies at any: tables equal those of plain SQLite."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bedrockish.core.protocol.records import Vote
from bedrockish.engine import entry_applier
from bedrockish.engine.storage.row_applier import PIECE, RowApplier
from bedrockish.errors import ConstraintError, DamagedError, EntryMismatchError, UnsupportedError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change, decode_changes, encode_changes
from bedrockish_journal.model.transaction import ROWS, Txid
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode, contents, ids_like_sqlite, request

SCHEMA = (
    "CREATE TABLE parent(id INTEGER PRIMARY KEY, code TEXT UNIQUE, r REAL)",
    "CREATE TABLE child(k TEXT, n INT, parent INTEGER REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE,"
    " s AS (n * 2) STORED, PRIMARY KEY(n, k)) WITHOUT ROWID",
    "CREATE TABLE weak(code TEXT REFERENCES parent(code) ON DELETE SET NULL ON UPDATE SET NULL, x)",
    "CREATE INDEX weak_code ON weak(code)",
    "CREATE TABLE made(x, v AS (x || '!'), y UNIQUE, d DEFAULT 5)",
    "CREATE TABLE auto(id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT)",
    "CREATE TRIGGER log_parent AFTER INSERT ON parent BEGIN INSERT INTO auto(what) VALUES ('new ' || new.id); END",
    "CREATE TRIGGER log_child AFTER DELETE ON child BEGIN INSERT INTO auto(what) VALUES ('gone ' || old.k);"
    " UPDATE parent SET r = r + 1 WHERE id = 1; END",
    "CREATE TRIGGER skip BEFORE UPDATE ON weak WHEN new.x = 3 BEGIN SELECT raise(IGNORE); END",
    "CREATE TRIGGER stop BEFORE INSERT ON made WHEN new.x = 'stop' BEGIN SELECT raise(ROLLBACK, 'stopped'); END",
)
small = st.integers(0, 5)
code = st.sampled_from(["a", "b", "c", "D", None])
value = st.one_of(small, st.sampled_from([None, 1.5, 2.0, "x", b"\x00", "stop", 1 << 60]))
STATEMENTS = (
    ("INSERT INTO parent VALUES (?, ?, ?)", small, code, value),
    ("INSERT OR REPLACE INTO parent VALUES (?, ?, ?)", small, code, value),
    ("INSERT OR IGNORE INTO parent VALUES (?, ?, ?)", small, code, value),
    ("INSERT OR ROLLBACK INTO parent VALUES (?, ?, ?)", small, code, value),
    ("INSERT OR FAIL INTO parent VALUES (?, ?, 0), (?, NULL, 1)", small, code, small),
    ("INSERT INTO parent VALUES (?, ?, 1) ON CONFLICT(code) DO UPDATE SET r = r + 1", small, code),
    ("UPDATE parent SET id = ? WHERE id = ?", small, small),
    ("UPDATE parent SET id = id + ?", small),
    ("UPDATE OR REPLACE parent SET code = ? WHERE id >= ?", code, small),
    ("UPDATE OR IGNORE parent SET code = ?, r = ? WHERE id >= ?", code, value, small),
    ("DELETE FROM parent WHERE id = ?", small),
    ("DELETE FROM parent",),
    ("INSERT INTO child(k, n, parent) VALUES (?, ?, ?)", code, small, small),
    ("REPLACE INTO child(k, n, parent) VALUES (?, ?, ?)", code, small, small),
    ("UPDATE child SET n = ?, k = ? WHERE n = ?", small, code, small),
    ("UPDATE child SET parent = NULL WHERE n = ?", small),
    ("DELETE FROM child",),
    ("INSERT INTO weak VALUES (?, ?)", code, value),
    ("INSERT INTO weak(rowid, code, x) VALUES (?, ?, ?)", small, code, value),
    ("UPDATE weak SET x = ?", value),
    ("UPDATE weak SET rowid = ? WHERE rowid = ?", small, small),
    ("DELETE FROM weak WHERE x = ?", value),
    ("INSERT INTO made(x, y) VALUES (?, ?)", value, value),
    ("REPLACE INTO made(x, y) VALUES (?, ?)", value, value),
    ("UPDATE made SET y = (SELECT max(y) FROM made) - y WHERE typeof(y) = 'integer'",),
    ("UPDATE made SET x = ?, y = ? WHERE rowid = ?", value, value, small),
    ("UPDATE made SET rowid = rowid + ?", small),
    ("DELETE FROM made WHERE x = ?", value),
    ("INSERT INTO auto(what) VALUES ('mine')",),
    ("DELETE FROM auto WHERE id > ?", small),
)
statement = st.sampled_from(STATEMENTS).flatmap(lambda one: st.tuples(st.just(one[0]), st.tuples(*one[1:])))
transaction = st.lists(statement, min_size=1, max_size=4)


def plain(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA foreign_keys = ON")
    for text in SCHEMA:
        db.execute(text)
    return db


def run_plain(db: apsw.Connection, statements: list[tuple[str, tuple[Any, ...]]]) -> bool:
    db.execute("BEGIN")
    try:
        for sql, params in statements:
            db.execute(sql, params).fetchall()
        db.execute("COMMIT")
    except apsw.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        return False
    return True


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(transactions=st.lists(transaction, min_size=1, max_size=8))
def test_every_node_ends_with_the_tables_of_plain_sqlite(
    tmp_path_factory: pytest.TempPathFactory, transactions: list[list[tuple[str, tuple[Any, ...]]]]
) -> None:
    place = tmp_path_factory.mktemp("same")
    leader, follower = ids_like_sqlite(TestNode(place / "a.db")), TestNode(place / "b.db", "B")
    alone = plain(place / "plain.db")
    try:
        leader.run(*SCHEMA)
        follower.apply(leader.entries[-1])
        for statements in transactions:
            entries = len(leader.entries)
            try:
                leader.run(*statements)
                done = True
            except ConstraintError:
                done = False
            except Exception as error:  # a datatype mismatch
                assert "mismatch" in str(error)  # noqa: PT017
                done = False
            assert done == run_plain(alone, statements)
            for entry in leader.entries[entries:]:
                follower.apply(entry)
            assert leader.tables() == contents(alone)
        assert follower.tables() == contents(alone)
        leader.save()
        follower.save()
        assert leader.digest() == follower.digest()
    finally:
        alone.close()
        leader.engine.close()
        follower.engine.close()


@pytest.fixture
def pair(make_node: MakeNode) -> tuple[TestNode, TestNode]:
    leader, follower = make_node(), make_node("B")
    leader.run(*SCHEMA)
    follower.apply(leader.entries[-1])
    return leader, follower


def test_effects_of_triggers_and_cascades_are_applied_once(pair: tuple[TestNode, TestNode]) -> None:
    leader, follower = pair
    leader.run("INSERT INTO parent VALUES (1, 'a', 0), (2, 'b', 0)")
    leader.run("INSERT INTO child(k, n, parent) VALUES ('x', 1, 2)")
    leader.run("DELETE FROM parent WHERE id = 2")
    for entry in leader.entries[1:]:
        follower.apply(entry)

    assert follower.tables() == leader.tables()
    assert [row[2] for row in follower.tables()["auto"]] == ["new 1", "new 2", "gone x"]
    follower.run("INSERT INTO parent VALUES (3, 'c', 0)")  # and they are on again
    assert follower.tables()["auto"][-1][2] == "new 3"


def test_a_deferred_foreign_key_is_checked_at_the_end_of_the_request(node: TestNode) -> None:
    node.run("CREATE TABLE p(id INTEGER PRIMARY KEY)", "CREATE TABLE c(p REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
    node.run("INSERT INTO c VALUES (1)", "INSERT INTO p VALUES (1)")

    with pytest.raises(ConstraintError, match="FOREIGN KEY"):
        node.run("INSERT INTO c VALUES (2)")

    assert node.rows("SELECT p FROM c") == [(1,)]


def test_delete_of_a_whole_table_is_captured_row_by_row(node: TestNode) -> None:
    node.run("CREATE TABLE t(x)")
    node.run("INSERT INTO t VALUES (1), (2)")
    node.run("DELETE FROM t")

    assert [change.op for change in decode_changes(node.entries[-1].transaction.changes)] == [DELETE, DELETE]


def test_an_update_names_only_the_columns_that_changed(node: TestNode) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b)", "CREATE INDEX ta ON t(a)")
    node.run("INSERT INTO t VALUES (1, 'a', 'b')")
    node.run("UPDATE t SET a = a, b = 'c'")

    texts = [text for text, _ in node.engine._applier._texts.values()]
    assert any(text.startswith('UPDATE OR ABORT "t" SET "b" = ? WHERE "id" = ? AND ') for text in texts)


def test_transaction_may_swap_unique_values(make_node: MakeNode) -> None:
    leader, follower = make_node(), make_node("B")
    leader.run("CREATE TABLE t(id INTEGER PRIMARY KEY, u UNIQUE, v AS (u))", "CREATE TABLE w(k PRIMARY KEY, u UNIQUE)")
    leader.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO w VALUES (1, 'a'), (2, 'b')")
    for table in ("t", "w"):
        key = "id" if table == "t" else "k"
        leader.run(
            f"UPDATE {table} SET u = 'x' WHERE {key} = 1",
            f"UPDATE {table} SET u = 'a' WHERE {key} = 2",
            f"UPDATE {table} SET u = 'b' WHERE {key} = 1",
        )
    for entry in leader.entries:
        follower.apply(entry)

    assert follower.rows("SELECT id, u FROM t ORDER BY id") == [(1, "b"), (2, "a")]
    assert follower.rows("SELECT k, u FROM w ORDER BY k") == [(1, "b"), (2, "a")]


def test_row_inserted_and_deleted_is_not_a_change(node: TestNode) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY AUTOINCREMENT, v AS (id))", "CREATE TABLE u(x)")
    node.run("INSERT INTO u VALUES (1)", "DELETE FROM u")

    assert node.tables()["u"] == []


def test_columns_added_later_have_their_default_in_old_rows(make_node: MakeNode) -> None:
    leader, follower = make_node(), make_node("B")
    leader.run("CREATE TABLE t(x)")
    leader.run("INSERT INTO t VALUES (1)")
    leader.run("ALTER TABLE t ADD COLUMN y DEFAULT 'd'")
    leader.run("UPDATE t SET x = 2")
    for entry in leader.entries:
        follower.apply(entry)

    [change] = decode_changes(leader.entries[-1].transaction.changes)
    assert (change.op, change.before, change.after) == (UPDATE, (1, "d"), (2, "d"))
    assert follower.tables() == leader.tables()
    assert follower.engine.schema_version == leader.engine.schema_version == 2


def test_schema_change_that_changes_nothing_is_checked_like_a_read(node: TestNode) -> None:
    node.run("CREATE TABLE t(x)")

    node.run("CREATE INDEX i ON t(x)")

    nothing = (
        "CREATE TABLE IF NOT EXISTS t(x)",
        "CREATE INDEX IF NOT EXISTS i ON t(x)",
        "DROP TABLE IF EXISTS missing",
    )
    for sql in nothing:
        prepared = node.prepare(sql)
        assert (prepared.kind, prepared.readonly) == ("schema", True)
    made = node.prepare("CREATE TABLE IF NOT EXISTS u(x)")
    assert (made.kind, made.readonly) == ("schema", False)


def test_prepared_schema_change_does_not_change_the_schema_yet(node: TestNode) -> None:
    node.run("CREATE TABLE t(x)")
    node.engine.flush()
    prepared = node.prepare("CREATE TABLE u(y)", "ALTER TABLE t ADD COLUMN z; CREATE INDEX tz ON t(z)")

    assert prepared.kind == "schema"
    assert prepared.access_set == AccessSet()  # the core adds the keys; the statement runs at its activation
    assert set(node.tables()) == {"t", "sqlite_sequence"}
    assert node.rows("SELECT * FROM t") == []
    node.apply(node.entry(prepared))
    assert node.run("SELECT * FROM t")[0].columns == ("x", "z")


def test_change_that_does_not_fit_the_table_raises_damaged_error(pair: tuple[TestNode, TestNode]) -> None:
    leader, _ = pair
    prepared = leader.prepare("INSERT INTO auto(what) VALUES ('x')")
    wrong = Change("auto", ("id", "what"), UPDATE, 99, 99, (99, "x"), (99, "y"))
    for change in (wrong, Change("auto", ("id",), INSERT, 1, 1, None, (1,))):
        forged = type(prepared)(
            prepared.base, 1, False, ROWS, prepared.access_set, encode_changes([change]), prepared.result
        )
        tick, head = leader.tick, leader.head
        with pytest.raises(DamagedError, match=r"A2 does not fit .* of auto"):
            leader.apply(leader.entry(forged))
        leader.tick, leader.head = tick, head


def test_open_batch_survives_a_statement_with_or_rollback(pair: tuple[TestNode, TestNode]) -> None:
    leader, _ = pair
    leader.save()
    leader.run("INSERT INTO parent VALUES (1, 'a', 0)")
    leader.engine.set_meta("clock_ceiling", 77)
    vote = Vote(Txid(9, "B"), None, promised=1)
    leader.engine.votes.save(vote)
    vote.promised = 2  # the core changes its own vote later
    before = leader.tables()

    for sql in ("INSERT OR ROLLBACK INTO parent VALUES (1, 'b', 0)", "INSERT INTO made(x) VALUES ('stop')"):
        with pytest.raises(ConstraintError):
            leader.engine.execute(request("INSERT INTO auto(what) VALUES ('lost')", sql))

    assert leader.tables() == before
    assert leader.engine.flush()
    assert leader.engine.recover().ceiling == 77
    assert [kept.promised for kept in leader.engine.recover().votes] == [1]
    assert leader.engine.journal.find_command("A2") == leader.entries[-1]


def test_entry_applied_as_a_repeat_changes_no_rows(pair: tuple[TestNode, TestNode]) -> None:
    leader, follower = pair
    leader.run("INSERT INTO auto(what) VALUES ('once')")
    follower.apply(leader.entries[1], repeat=True)

    assert follower.tables()["auto"] == []
    assert follower.engine.applied == {"A": 2}


def test_many_rows_are_applied_at_once_in_their_order(make_node: MakeNode) -> None:
    """The transaction has more rows than one piece, of several tables and kinds; some undo earlier ones."""
    leader, follower = make_node(), make_node("B")
    leader.run("CREATE TABLE t(id INTEGER PRIMARY KEY, u UNIQUE)", "CREATE TABLE w(k PRIMARY KEY, n) WITHOUT ROWID")
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {PIECE + 200})"
    leader.run(
        f"INSERT INTO t {numbers} SELECT i, i FROM n",
        "INSERT INTO w SELECT 'k' || id, id FROM t",
        "UPDATE t SET u = -u",
        "UPDATE t SET u = -u + 1",
        "UPDATE w SET k = k || 'x', n = NULL WHERE n % 3 = 0",
        "DELETE FROM t WHERE id % 7 = 0",
        "INSERT INTO t SELECT id + 10000, u + 10000 FROM t",
    )
    leader.run("CREATE TABLE s(id INTEGER PRIMARY KEY, a, b)")
    leader.run("INSERT INTO s SELECT id, 0, 0 FROM t LIMIT 20")
    leader.run("UPDATE s SET a = 1, b = 1", "UPDATE s SET a = 2")  # different statements on the same rows
    for entry in leader.entries:
        follower.apply(entry)

    assert follower.tables() == leader.tables()
    assert len(follower.rows("SELECT * FROM t")) > PIECE
    assert set(follower.rows("SELECT a, b FROM s")) == {(2, 1)}


@pytest.mark.parametrize("rows", [1, 30])
def test_rows_of_several_tables_are_applied_table_by_table(
    make_node: MakeNode, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers apply each table's rows together, before others in between; the rows refer to each other."""
    leader, follower = make_node(), make_node("B")
    leader.run(
        "CREATE TABLE parent(id INTEGER PRIMARY KEY, n)",
        "CREATE TABLE child(id INTEGER PRIMARY KEY, p REFERENCES parent ON DELETE CASCADE, u UNIQUE)",
        "CREATE TABLE log(id INTEGER PRIMARY KEY AUTOINCREMENT, what)",
        "CREATE TRIGGER noted AFTER UPDATE ON child BEGIN INSERT INTO log(what) VALUES (new.id); END",
    )
    many = range(rows)
    leader.run(
        *(
            sql.format(k)
            for k in many
            for sql in ("INSERT INTO parent VALUES ({0}, 0)", "INSERT INTO child VALUES ({0}, {0}, {0})")
        )
    )
    leader.run(
        *(
            sql.format(k)
            for k in many
            for sql in (
                "UPDATE child SET u = -1 - u WHERE id = {0}",
                "UPDATE parent SET n = n + 1 WHERE id = {0}",
                "INSERT INTO child VALUES ({0} + 1000, {0}, {0})",  # with a value that the first row has given up
                "DELETE FROM parent WHERE id = {0} AND id % 3 = 0",
            )
        )
    )
    fits, make = list[bool | None](), RowApplier.make_or_break

    def noted(self: RowApplier, changes: list[Change]) -> bool | None:
        fits.append(make(self, changes))
        return fits[-1]

    monkeypatch.setattr(RowApplier, "make_or_break", noted)
    for entry in leader.entries:
        follower.apply(entry)

    assert fits == [True, True]
    assert follower.tables() == leader.tables()
    assert len(follower.rows("SELECT * FROM log")) == rows
    follower.save()
    leader.save()
    assert follower.digest() == leader.digest()


@pytest.mark.parametrize("rows", [2, 30])
def test_misfit_entry_of_few_rows_is_taken_out_of_the_batch(make_node: MakeNode, rows: int) -> None:
    """The engine writes the batch again, without a savepoint; the earlier and later entries stay as they were."""
    leader, follower = make_node(), make_node("B")
    leader.run("CREATE TABLE t(id INTEGER PRIMARY KEY, n)", "CREATE TABLE w(k PRIMARY KEY, n) WITHOUT ROWID")
    leader.run(*(f"INSERT INTO t VALUES ({number}, 0)" for number in range(rows)))
    leader.run(*(f"INSERT INTO w VALUES ({number}, 0)" for number in range(rows)))
    leader.run("UPDATE w SET n = 1")
    for entry in leader.entries[:3]:
        follower.apply(entry)
    follower.save()
    follower.apply(leader.entries[3])  # an entry in the open batch
    before = follower.tables()
    misfit = leader.prepare("UPDATE t SET n = n + 1")
    changes = decode_changes(misfit.changes)
    last = changes[-1]
    assert last.before is not None
    changes[-1] = Change(last.table, last.columns, last.op, last.rowid, last.rowid, (last.before[0], 7), last.after)
    wrong = leader.entry(replace(misfit, changes=encode_changes(changes)))
    with pytest.raises(EntryMismatchError, match=f"UPDATE of t {rows - 1}: expected n 7, found n 0"):
        follower.apply(wrong)
    assert follower.tables() == before
    assert not follower.engine.batch.failed
    assert follower.engine.flush()


@pytest.mark.parametrize("place", [0, 7, 49])
@pytest.mark.parametrize("is_missing", [True, False])
def test_misfit_among_many_rows_is_named(pair: tuple[TestNode, TestNode], place: int, is_missing: bool) -> None:
    """The misfit changes a missing row, or inserts a row that SQLite refuses."""
    leader, _ = pair
    columns = ("id", "what")
    changes = [Change("auto", columns, INSERT, number, number, None, (number, "x")) for number in range(100, 150)]
    if is_missing:
        changes.insert(place, Change("auto", columns, UPDATE, 99, 99, (99, "x"), (99, "y")))
        why = "99: there is no such row"
    else:
        changes.insert(place + 1, changes[place])
        why = f"{100 + place}: UNIQUE constraint failed"
    prepared = replace(leader.prepare("INSERT INTO auto(what) VALUES ('x')"), changes=encode_changes(changes))

    with pytest.raises(DamagedError, match=f"A2 does not fit .* of auto {why}"):
        leader.apply(leader.entry(prepared))


def test_rows_that_a_transaction_was_made_of_are_compared_before_it_is_approved(tmp_path: Path) -> None:
    """A node that has applied the base finds the same rows, or names the first that differs."""
    leader, voter = TestNode(tmp_path / "A.db", "A"), TestNode(tmp_path / "B.db", "B")
    leader.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT COLLATE NOCASE, n REAL)")
    leader.run("CREATE TABLE p(a TEXT COLLATE NOCASE, b INT, c, PRIMARY KEY(a, b)) WITHOUT ROWID")
    leader.run(*[f"INSERT INTO t VALUES ({n}, 'text', {n})" for n in range(4)], "INSERT INTO p VALUES ('x', 1, NULL)")
    for entry in leader.entries:
        voter.apply(entry)

    def why_rows_differ(*statements: str) -> str:
        prepared = leader.prepare(*statements)
        entry = leader.entry(prepared)
        leader.tick -= 1
        leader.head = leader.entries[-1].hash
        return voter.engine.entries.why_rows_differ(entry.transaction)

    several = (
        "UPDATE t SET n = n + 1 WHERE id = 1",
        "UPDATE t SET n = n + 1 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "INSERT INTO t VALUES (2, 'again', 0), (9, 'new', 1)",
        "UPDATE t SET v = 'z' WHERE id IN (2, 9)",
        "UPDATE t SET id = 20 WHERE id = 3",
        "UPDATE t SET n = 7 WHERE id = 20",
        "UPDATE p SET a = 'X', c = 5",
        "UPDATE p SET b = 2",
        "UPDATE p SET c = 6",
    )
    assert why_rows_differ(*several) == ""
    assert why_rows_differ("INSERT INTO t VALUES (50, 'ghost', 0)") == ""
    voter.engine._db.execute("UPDATE t SET v = 'Text' WHERE id = 1")  # equal by its collation, but another value
    voter.engine._db.execute("UPDATE p SET c = 0")
    assert why_rows_differ("UPDATE t SET n = 0 WHERE id = 0") == ""
    assert why_rows_differ("UPDATE t SET n = 0 WHERE id = 1") == "row (1,) of t differs here or is missing"
    assert why_rows_differ("DELETE FROM t WHERE id = 1") == "row (1,) of t differs here or is missing"
    assert why_rows_differ("DELETE FROM p") == "row ('x', 1) of p differs here or is missing"
    voter.engine._db.execute("DELETE FROM t WHERE id = 0")
    assert "is missing" in why_rows_differ("UPDATE t SET n = 0 WHERE id = 0")
    leader.run("CREATE TABLE late(x)")
    assert why_rows_differ("UPDATE t SET n = 0 WHERE id = 0") == "", "on a schema that is not in force there"


def test_changes_that_a_check_has_decoded_are_not_decoded_again_to_be_applied(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    entry = node.entry(node.prepare("INSERT INTO t VALUES (1, 2)"))
    changes = node.engine.entries.decode(entry.transaction.changes)
    assert [change.after for change in changes] == [(1, 2)]
    monkeypatch.setattr(entry_applier, "decode_changes", lambda _: pytest.fail("it is decoded again"))
    node.apply(entry)
    assert node.rows("SELECT * FROM t") == [(1, 2)]


def test_leader_applies_its_executed_changes_as_if_it_had_decoded_them(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, r REAL, v, g AS (v || 'x') STORED); CREATE TABLE w(a TEXT PRIMARY KEY, "
        "b) WITHOUT ROWID; CREATE VIRTUAL TABLE s USING fts5(x); CREATE TABLE g(id INTEGER PRIMARY KEY, "
        "v AS (id + 1) VIRTUAL)"
    )
    for sql in (
        "INSERT INTO t(id, r, v) VALUES (1, 2, NULL), (2, -0.0, x'0061'), (3, 1e300, 'é'), (4, 7.5, 1 << 62)",
        "INSERT INTO w VALUES ('a', 1.0), ('b', -1)",
        "UPDATE t SET r = id, id = id + 10 WHERE id > 1",
        "UPDATE w SET a = a || 'c', b = NULL",
        "DELETE FROM t WHERE id = 1",
        "INSERT INTO s VALUES ('some words')",
        "INSERT INTO g(id) VALUES (1), (2)",
        "UPDATE s SET x = 'others'",
    ):
        prepared = node.prepare(sql)
        kept, decoded = node.engine.entries._decoded[prepared.changes], decode_changes(prepared.changes)
        assert kept == decoded, sql
        assert repr(kept) == repr(decoded), sql
        with monkeypatch.context() as patch:
            patch.setattr(entry_applier, "decode_changes", lambda _: pytest.fail("the leader decodes its own changes"))
            node.apply(node.entry(prepared))
        assert prepared.changes not in node.engine.entries._decoded


def test_a_voter_reads_the_changes_of_a_short_transaction_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The voter decodes the changes to compare the rows, and keeps them for the commit, but few of undecided ones."""
    leader, voter = TestNode(tmp_path / "A.db", "A"), TestNode(tmp_path / "B.db", "B")
    leader.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    voter.apply(leader.entries[-1])
    read = list[bytes]()

    def noted(data: bytes) -> list[Change]:
        read.append(data)
        return decode_changes(data)

    monkeypatch.setattr(entry_applier, "decode_changes", noted)
    for number, value in enumerate(("short", "x" * 10_000)):
        leader.run(f"INSERT INTO t VALUES ({number}, '{value}')")
        assert voter.engine.entries.why_rows_differ(leader.entries[-1].transaction) == ""
        voter.apply(leader.entries[-1])
    assert [data for data in read if b"short" in data] == [leader.entries[-2].transaction.changes], "the voter, once"
    for number in range(2, 200):
        assert (
            voter.engine.entries.why_rows_differ(
                leader.entry(leader.prepare(f"INSERT INTO t VALUES ({number}, 1)")).transaction
            )
            == ""
        )
    assert len(voter.engine.entries._decoded) == entry_applier.KEPT_MAX
    assert voter.tables() == leader.tables()


DERIVED = "CREATE TABLE derived(id INTEGER PRIMARY KEY, a, g AS (json_array(a)) STORED UNIQUE, b)"


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO derived(id, a) VALUES (3, json_array(1))",
        "INSERT INTO derived(id, a) VALUES (2, 0) ON CONFLICT(id) DO UPDATE SET a = json_array(1)",
        "UPDATE derived SET a = json_array(1) WHERE id = 2",
    ],
)
def test_generated_column_of_a_document_that_the_row_does_not_repeat_is_refused(make_node: MakeNode, sql: str) -> None:
    """SQLite computes '[[1]]' from the new document, and '["[1]"]' from the stored row: the entry would fit no node."""
    node = make_node()
    node.run(DERIVED)
    node.run("INSERT INTO derived(id, a) VALUES (1, json_array(1) || ''), (2, '{}')")
    with pytest.raises(UnsupportedError, match=r"derived\.g .*store the document as a text"):
        node.prepare(sql)
    assert node.rows("SELECT id, g FROM derived") == [(1, '["[1]"]'), (2, '["{}"]')]
    with pytest.raises(ConstraintError, match="UNIQUE"):
        node.prepare("INSERT INTO derived(id, a) VALUES (3, json_array(1) || '')")


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE derived(id INTEGER PRIMARY KEY, a, g AS (json_extract(a, '$.x')) STORED, r REAL AS (id) STORED)",
        "CREATE TABLE derived(id, a, g AS (json_extract(a, '$.x')) STORED, PRIMARY KEY(id)) WITHOUT ROWID",
        "CREATE TABLE derived(id, a TEXT NOT NULL CHECK(json_valid(a)), g INTEGER AS (a ->> '$.x') STORED)",
    ],
)
def test_generated_column_that_reads_a_document_is_stored(make_node: MakeNode, tmp_path: Path, table: str) -> None:
    one, other = make_node(), make_node(path=tmp_path / "other.db")
    for node in (one, other):
        node.run(table)
    statements = [
        "INSERT INTO derived(id, a) VALUES (1, json_object('x', 7)), (2, json('{\"x\": [1]}'))",
        "UPDATE derived SET a = json_set(a, '$.x', 8) WHERE id = 1",
        "DELETE FROM derived WHERE id = 2",
    ]
    entry = one.entry(one.prepare(*statements))
    for node in (one, other):
        node.apply(entry)
    assert one.rows("SELECT g FROM derived") == other.rows("SELECT g FROM derived") == [(8,)]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE UNIQUE INDEX one ON doc(json_array(a))",
        "create unique index if not exists one on doc(id, \"json_object\"('x', a)) WHERE a IS NOT NULL",
        "CREATE TABLE other(id INTEGER PRIMARY KEY, a, v AS (jsonb_set('{}', '$.x', a)) UNIQUE)",
        "CREATE TABLE other(a, v AS (json_array(a))); CREATE UNIQUE INDEX one ON other(v)",
    ],
)
def test_unique_key_on_a_function_of_documents_is_refused(make_node: MakeNode, sql: str) -> None:
    """SQLite's own index would lack such a row, by its integrity check."""
    node = make_node()
    node.run("CREATE TABLE doc(id INTEGER PRIMARY KEY, a)")
    with pytest.raises(UnsupportedError, match="in a STORED column, and make that UNIQUE"):
        node.prepare(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE UNIQUE INDEX one ON doc(json_extract(a, '$.x'))",
        "CREATE INDEX one ON doc(json_array(a))",
        "CREATE TABLE other(id INTEGER PRIMARY KEY, a, v AS (a ->> '$.x') UNIQUE)",
        "CREATE TABLE other(id INTEGER PRIMARY KEY, json_array UNIQUE, v AS (id) VIRTUAL)",
    ],
)
def test_other_unique_keys_on_documents_are_accepted(make_node: MakeNode, sql: str) -> None:
    node = make_node()
    node.run("CREATE TABLE doc(id INTEGER PRIMARY KEY, a)")
    node.run(sql)


def test_stored_document_is_refused_with_any_column_name(make_node: MakeNode) -> None:
    node = make_node()
    node.run('CREATE TABLE "t?"("a?" TEXT, "g?" AS (json_array("a?")) STORED)')
    node.run("""INSERT INTO "t?"("a?") VALUES ('x')""")
    with pytest.raises(UnsupportedError, match="store the document as a text"):
        node.prepare("""INSERT INTO "t?"("a?") VALUES (json_array(1))""")
