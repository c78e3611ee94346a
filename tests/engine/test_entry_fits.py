"""An entry is applied completely, to the rows from which it was made, or not at all; a decided entry applies."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.engine.storage.row_applier import PIECE_MIN
from bedrockish.errors import ConstraintError, DamagedError, EntryMismatchError
from bedrockish_journal.storage import store
from bedrockish_journal.storage.schema_steps import enforce_checks
from bedrockish_journal.verify.replay import digest
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode, request

Pair = tuple[TestNode, TestNode]


def follow(leader: TestNode, follower: TestNode) -> None:
    """Let a node apply its missing entries."""
    for entry in leader.entries[follower.engine.applied.get(leader.node, 0) :]:
        follower.apply(entry)


@pytest.fixture
def pair(make_node: MakeNode) -> Pair:
    leader, follower = make_node(), make_node("B")
    leader.run(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE, n INT, r REAL, b BLOB)",
        "CREATE TABLE k(name TEXT COLLATE NOCASE, n, d DEFAULT 'd', PRIMARY KEY(name)) WITHOUT ROWID",
        "CREATE TABLE g(id INTEGER PRIMARY KEY, x TEXT, up AS (upper(x)) STORED, low AS (lower(x)))",
        "CREATE INDEX t_n ON t(n)",
    )
    leader.run(
        "INSERT INTO t VALUES (1, 'one', 1, 1.0, x'01'), (2, NULL, NULL, NULL, NULL), (3, 'three', 3, 3.5, x'')",
        "INSERT INTO k(name, n) VALUES ('Key', 5)",
        "INSERT INTO g(id, x) VALUES (1, 'Text')",
    )
    follow(leader, follower)
    return leader, follower


def damage(node: TestNode, sql: str) -> None:
    """Change a row without the node, as a bad disk does; the change survives a repetition of the batch."""

    def write() -> None:
        node.engine._db.execute(sql)

    node.engine.batch.write(write)


DAMAGES = (  # the damage of the follower's row, the led statement, and the table, key and columns in the error
    ("UPDATE t SET name = 'ONE' WHERE id = 1", "UPDATE t SET n = 7 WHERE id = 1", "t", "1", {"name"}),
    ("UPDATE t SET b = x'00' WHERE id = 1", "UPDATE t SET name = 'x' WHERE id = 1", "t", "1", {"b"}),
    ("UPDATE t SET r = 1.5, n = 2 WHERE id = 1", "DELETE FROM t WHERE id = 1", "t", "1", {"r", "n"}),
    ("UPDATE t SET n = 0 WHERE id = 2", "UPDATE t SET name = 'x' WHERE id = 2", "t", "2", {"n"}),
    ("UPDATE t SET n = NULL WHERE id = 1", "UPDATE t SET id = 9 WHERE id = 1", "t", "1", {"n"}),
    (
        "UPDATE t SET name = CAST(x'6f6e' || x'e5' AS TEXT) WHERE id = 1",
        "DELETE FROM t WHERE id = 1",
        "t",
        "1",
        {"name"},
    ),
    ("UPDATE k SET name = 'KEY'", "UPDATE k SET n = 6", "k", "('Key',)", {"name"}),
    ("UPDATE k SET d = 'e'", "DELETE FROM k", "k", "('Key',)", {"d"}),
    ("UPDATE g SET x = 'text'", "UPDATE g SET x = 'other'", "g", "1", {"x"}),
    ("UPDATE g SET x = 'Txet'", "DELETE FROM g", "g", "1", {"x", "up"}),
)


@pytest.mark.parametrize(("damaged", "led", "table", "key", "columns"), DAMAGES)
def test_row_that_differs_from_the_entry_is_named_and_no_row_applied(
    pair: Pair, damaged: str, led: str, table: str, key: str, columns: set[str]
) -> None:
    leader, follower = pair
    damage(follower, damaged)
    before = digest(follower.engine._db)
    leader.run("INSERT INTO t(id) VALUES (50)", led)

    with pytest.raises(EntryMismatchError, match=f"A3 does not fit .* of {table} ") as caught:
        follow(leader, follower)

    details = caught.value.details
    assert (details["entry"], details["table"], details["key"]) == ("A3", table, key)
    assert set(details["expected"]) == set(details["found"]) == columns
    assert details["expected"] != details["found"]
    assert digest(follower.engine._db) == before
    assert follower.engine.applied == {"A": 2}
    assert not follower.engine.batch.failed


def test_entry_that_updates_a_missing_row_is_refused_with_the_expected_row(pair: Pair) -> None:
    leader, follower = pair
    damage(follower, "DELETE FROM t WHERE id = 1")
    leader.run("UPDATE t SET n = 7 WHERE id = 1")

    with pytest.raises(EntryMismatchError, match="there is no such row") as caught:
        follow(leader, follower)
    assert caught.value.details["found"] is None
    assert caught.value.details["expected"]["name"] == "'one'"


def test_entry_that_inserts_an_existing_row_is_refused_with_that_row(pair: Pair) -> None:
    leader, follower = pair
    damage(follower, "INSERT INTO t(id, name) VALUES (7, 'extra')")
    leader.run("INSERT INTO t(id, name) VALUES (7, 'seven')")

    with pytest.raises(EntryMismatchError, match="UNIQUE constraint failed") as caught:
        follow(leader, follower)
    assert caught.value.details["expected"] is None
    assert caught.value.details["found"]["name"] == "'extra'"


def test_no_row_of_a_large_misfit_entry_is_applied(pair: Pair) -> None:
    leader, follower = pair
    leader.run(f"WITH RECURSIVE i(n) AS (SELECT 100 UNION ALL SELECT n + 1 FROM i WHERE n < {100 + 5 * PIECE_MIN}) "
               "INSERT INTO t(id, n) SELECT n, n FROM i")  # fmt: skip
    follow(leader, follower)
    damage(follower, "UPDATE t SET n = -1 WHERE id = 120")
    before = follower.tables()
    leader.run("UPDATE t SET n = n + 1")

    with pytest.raises(EntryMismatchError, match=r"UPDATE of t 120: expected n 120, found n -1"):
        follow(leader, follower)
    assert follower.tables() == before


def test_misfit_entry_leaves_the_batch_unchanged(pair: Pair, tmp_path: Path) -> None:
    """The node can go on: its earlier entries are committed, and after the repair of the row it applies the entry."""
    leader, follower = pair
    follower.save()
    leader.run("INSERT INTO t(id) VALUES (50)")
    follow(leader, follower)
    damage(follower, "UPDATE t SET n = 0 WHERE id = 1")
    leader.run("UPDATE t SET n = 7 WHERE id = 1")
    with pytest.raises(EntryMismatchError):
        follow(leader, follower)
    assert follower.engine.flush()

    damage(follower, "UPDATE t SET n = 1 WHERE id = 1")
    follow(leader, follower)
    assert follower.tables() == leader.tables()


@pytest.mark.parametrize("many", [False, True])
def test_rows_without_their_journal_entry_are_never_left(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    leader, follower = pair
    follower.save()
    before = follower.tables()
    leader.run(*[f"INSERT INTO t(id) VALUES ({number})" for number in range(50, 50 + (PIECE_MIN if many else 1))])

    def failing(*_arguments: Any, **_options: Any) -> None:
        raise apsw.IOError("the disk failed")

    monkeypatch.setattr(store, "append", failing)
    with pytest.raises(DamagedError, match="the disk failed"):
        follow(leader, follower)

    assert follower.tables() == before
    assert follower.engine.batch.failed
    with pytest.raises(DamagedError, match="nothing more is written"):
        follower.engine.flush()


CHECKED = "CREATE TABLE c(id INTEGER PRIMARY KEY, n INT CHECK (is_fine(n)), m)"


def with_check(make_node: MakeNode, answers: dict[str, int], **options: Any) -> Pair:
    """Return two nodes at which the function of a CHECK returns the present value of ``answers``."""

    def prepare(node: str) -> Any:
        return lambda db: db.create_scalar_function("is_fine", lambda _: answers[node], 1, deterministic=True)

    leader, follower = make_node(prepare=prepare("A")), make_node("B", prepare=prepare("B"))
    leader.run(CHECKED, "CREATE TABLE p(id INTEGER PRIMARY KEY, c REFERENCES c CHECK (is_fine(c)))", *options)
    follow(leader, follower)
    return leader, follower


def test_checks_do_not_run_when_entries_are_applied(make_node: MakeNode) -> None:
    answers = {"A": 1, "B": 0}
    leader, follower = with_check(make_node, answers)
    leader.run("INSERT INTO c(id, n) VALUES (1, 1), (2, 2)", "INSERT INTO p VALUES (1, 1)")
    leader.run("UPDATE c SET n = 5, m = 1 WHERE id = 1", "UPDATE p SET c = 2")
    leader.run("DELETE FROM p", "DELETE FROM c WHERE id = 2")
    follow(leader, follower)

    assert follower.tables() == leader.tables()


def test_clients_obey_checks_also_with_the_text_of_a_statement_that_applies_rows(make_node: MakeNode) -> None:
    answers = {"A": 1, "B": 0}
    leader, follower = with_check(make_node, answers)
    leader.run("INSERT INTO c(id, n) VALUES (1, 1)")
    leader.run("UPDATE c SET n = 2 WHERE id = 1")
    follow(leader, follower)
    texts = [text for text, _ in follower.engine._applier._texts.values()]
    assert len(texts) == 2

    for text in texts:
        values = (9, 9, 9) if text.startswith("INSERT") else (3, 1, 1, 2, None)
        for _ in range(2):
            with pytest.raises(ConstraintError, match="CHECK constraint failed"):
                follower.engine.execute(request((text, values)))
    follow(leader, follower)
    leader.run("INSERT INTO c(id, n) VALUES (2, 2)")
    follow(leader, follower)
    assert follower.tables() == leader.tables()


def test_switching_checks_compiles_no_cached_statement_again(tmp_path: Path) -> None:
    """SQLite sets the flag when it compiles the PRAGMA; running it would expire every statement of the connection."""
    db = apsw.Connection(str(tmp_path / "x.db"))
    db.execute("CREATE TABLE t(x CHECK (x < 5))")
    own = apsw.SQLITE_PREPARE_PERSISTENT
    enforce_checks(db, on=False)
    db.execute("INSERT INTO t VALUES (?)", (9,), prepare_flags=own)
    enforce_checks(db, on=True)
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT INTO t VALUES (?)", (9,))
    db.execute("INSERT INTO t VALUES (?)", (9,), prepare_flags=own)  # as it was compiled first
    db.execute("PRAGMA ignore_check_constraints = 0")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT INTO t VALUES (?)", (9,), prepare_flags=own)
    db.close()
