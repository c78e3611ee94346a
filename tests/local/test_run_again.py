"""Known statements of a transaction on a node's file, which run by their recipe from the second time on."""

import sqlite3
from collections import defaultdict
from contextlib import closing, nullcontext
from datetime import date
from threading import Thread
from typing import Any

import apsw
import pytest

import bedrockish
from bedrockish import dbapi
from bedrockish.engine.execution.overlay_transaction import SMALL_CHANGES, OverlayTransaction
from bedrockish.engine.execution.workspace import Writer
from bedrockish.engine.statements import pragmas
from bedrockish.errors import DeadlineError, UsageError
from bedrockish.local.leased_ids import LEASE
from bedrockish.local.reads import LocalReads
from bedrockish.local.transaction import LocalTransaction
from tests.local.conftest import here
from tools.cluster import LocalNode

SCHEMA = "CREATE TABLE {}(id INTEGER PRIMARY KEY, a TEXT UNIQUE, b)"


class Name(str):
    """A name that is printed otherwise, such as a member of an enumeration of texts."""

    __slots__ = ()

    def __str__(self) -> str:
        return "other"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that notes of each call of ``run_again`` whether the text ran."""
    found: list[bool] = []
    original = LocalTransaction.run_again

    def noted(self: LocalTransaction, sql: str, values: Any, **options: bool) -> Any:
        result = original(self, sql, values, **options)
        found.append(result is not None)
        return result

    monkeypatch.setattr(LocalTransaction, "run_again", noted)
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that notes of each call of ``read_again`` whether the text was read."""
    found: list[bool] = []
    original = LocalReads.read_again

    def noted(self: LocalReads, *arguments: Any) -> Any:
        result = original(self, *arguments)
        found.append(result is not None)
        return result

    monkeypatch.setattr(LocalReads, "read_again", noted)
    return found


def told(db: Any, table: str) -> list[Any]:
    """Run each text three times in one transaction; return the results of the DB-API."""
    said: list[Any] = []
    for number in range(3):
        for sql, values in (
            (f"INSERT INTO {table} VALUES (?, ?, ?)", (number + 1, f"x{number}", None)),
            (f"INSERT INTO {table} VALUES (?, ?, ?)", (number + 1, "taken", 1)),
            (f"SELECT a, b FROM {table} WHERE id = ?", (number + 1,)),
            (f"UPDATE {table} SET b = ? WHERE id = ?", (1.5 * number, number + 1)),
            (f"UPDATE {table} SET b = ? WHERE id = ?", (0, 99)),
            (f"SELECT count(*), sum(b) FROM {table}", ()),
            (f"SELECT id FROM {table} WHERE id BETWEEN ? AND ? ORDER BY id", (2, 3)),
            (f"INSERT INTO {table} VALUES (?, ?, ?) RETURNING a, b", (number + 11, f"y{number}", "text")),
            (f"INSERT INTO {table} VALUES (?, ?, ?) RETURNING a, b", (number + 11, "taken", 1)),
            (f"UPDATE {table} SET b = 5 WHERE id = ? RETURNING id, b + 1", (number + 11,)),
            (f"UPDATE {table} SET b = 5 WHERE id = ? RETURNING id", (99,)),
            (f"SELECT upper(a), length(b) FROM {table} WHERE id = ?", (number + 11,)),
            (f"DELETE FROM {table} WHERE a >= 'y' RETURNING lower(a)", ()),
            ("SELECT last_insert_rowid(), changes()", ()),
        ):
            try:
                cursor = db.execute(sql, values)
            except (sqlite3.IntegrityError, dbapi.IntegrityError):
                said.append("taken")
            else:
                said += [cursor.fetchall(), cursor.rowcount, db.total_changes, db.in_transaction]
                said.append(cursor.lastrowid if sql.startswith("INSERT") else None)
    return said


def test_known_statements_run_again_with_the_results_of_sqlite3(node: LocalNode, table: str, runs: list[bool]) -> None:
    with bedrockish.connect(node.database) as other:
        other.execute(SCHEMA.format(table))
        with closing(sqlite3.connect(":memory:")) as plain, closing(dbapi.connect(node.database)) as ours:
            plain.execute(SCHEMA.format(table))
            assert told(ours, table) == told(plain, table)
            ours.commit()
            plain.commit()
            # From the second time on: nine statements twice, and the UPDATE with two values five times. Failed INSERTs
            # and the session's values take the ordinary way.
            assert sum(runs) == 23
            rows = f"SELECT * FROM {table} ORDER BY id"
            assert other.execute(rows).rows == plain.execute(rows).fetchall()


def told_of_literals(db: Any, table: str) -> list[Any]:
    """Run texts that differ only in their literals in one transaction; return the results of the DB-API."""
    said: list[Any] = []
    for number in range(1, 9):
        for sql in (
            f"INSERT INTO {table} VALUES ({number}, 'x{number}', NULL), ({number + 50}, 'it''s {number}', -{number}.5)",
            f"UPDATE {table} SET b = {number}, a = 'y{number}' WHERE id = {number} AND a <> 'none'",
            f"SELECT a, b = 1, b FROM {table} WHERE id = {number}",
            f"SELECT count(*) FROM {table} WHERE id IN ({number}, 51, {number + 1}) OR b BETWEEN -3 AND {number}",
            f"UPDATE {table} SET a = 'taken' WHERE id = {number}",
            f"DELETE FROM {table} WHERE id > {number + 50} AND a = 'y'",
        ):
            try:
                cursor = db.execute(sql)
            except (sqlite3.IntegrityError, dbapi.IntegrityError):
                said.append(("taken", db.in_transaction))
            else:
                names = [column[0] for column in cursor.description or ()]
                said += [names, cursor.fetchall(), cursor.rowcount, db.total_changes]
                said.append(cursor.lastrowid if sql.startswith("INSERT") else None)
    return said


def test_texts_that_differ_in_literals_run_again_with_the_results_of_sqlite3(
    node: LocalNode, table: str, runs: list[bool]
) -> None:
    with bedrockish.connect(node.database) as other:
        other.execute(SCHEMA.format(table))
        other.execute(f"INSERT INTO {table} VALUES (100, 'taken', 0)")
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.execute(SCHEMA.format(table))
        plain.execute(f"INSERT INTO {table} VALUES (100, 'taken', 0)")
        before = plain.total_changes
        expected = told_of_literals(plain, table)
        rows = plain.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()
    with closing(dbapi.connect(node.database)) as mine:
        mine.execute(f"UPDATE {table} SET b = 0 WHERE id = 100")
        assert mine.total_changes == before
        assert told_of_literals(mine, table) == expected
        assert sum(runs) > 15
        with pytest.raises(dbapi.IntegrityError) as caught:
            mine.execute(f"UPDATE {table} SET a = 'taken' WHERE id = 5")
        assert caught.value.details["sql"] == f"UPDATE {table} SET a = 'taken' WHERE id = 5"
        mine.commit()
        assert mine.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() == rows


def test_keys_of_a_read_with_literals_are_certified(node: LocalNode, table: str, runs: list[bool]) -> None:
    with closing(dbapi.connect(node.database)) as mine, bedrockish.connect(node.database) as other:
        other.execute(SCHEMA.format(table))
        other.execute(f"INSERT INTO {table} VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0), (9, 'd', 0)")
        for changed, is_lost in ((3, True), (1, False)):
            mine.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 9")
            for number in (1, 2):
                mine.execute(f"SELECT b FROM {table} WHERE id = {number}").fetchall()
            mine.rollback()
            mine.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 9")
            runs.clear()
            assert len(mine.execute(f"SELECT b FROM {table} WHERE id = 3").fetchall()) == 1
            assert runs == [True]
            other.execute(f"UPDATE {table} SET b = b + 1 WHERE id = {changed}")
            with pytest.raises(dbapi.OperationalError) if is_lost else nullcontext():
                mine.commit()
            mine.rollback()


@pytest.mark.parametrize(
    ("places", "values"),
    [
        ("?, ?", [7, "x"]),
        (":id, :a", {"id": 7, "a": "x"}),
        (":id, coalesce(:a, :id)", {"a": "x", "id": 7, "surplus": 1}),
        ("?, ?", (7, "Zoë")),
        ("?, ?", (7, date(2026, 1, 1))),
        ("?, ?", (True, float("nan"))),
        (":id, :a", {"id": 7, "a": date(2026, 1, 1)}),
        (":id, :a", defaultdict[str, Any](int, a="x")),
        (":id, :a", {"id": 7, "a": "x", 5: "surplus", None: "surplus"}),
        (":id, :a", {Name("id"): 7, "a": "x"}),
        (":id, :a", {Name("id"): 7, "a": date(2026, 1, 1)}),
    ],
)
def test_known_statement_runs_again_whatever_the_form_of_its_parameters(
    node: LocalNode, table: str, runs: list[bool], reads: list[bool], places: str, values: Any
) -> None:
    select, insert = f"SELECT {places}", f"INSERT OR REPLACE INTO {table}(id, b) VALUES ({places})"
    with closing(sqlite3.connect(":memory:")) as plain, closing(dbapi.connect(node.database)) as ours:
        for db in (plain, ours):
            db.execute(SCHEMA.format(table))
            db.commit()
        for _ in range(3):
            assert ours.execute(select, values).fetchall() == plain.execute(select, values).fetchall()
        assert reads[-2:] == [True, True]
        for _ in range(3):
            ours.execute(insert, values)
            plain.execute(insert, values)
        assert runs[-2:] == [True, True] or "(" in places  # a statement with a function takes the ordinary way
        rows = f"SELECT * FROM {table}"
        assert ours.execute(rows).fetchall() == plain.execute(rows).fetchall()


def test_known_statement_runs_again_beside_functions_of_the_program(
    node: LocalNode, table: str, runs: list[bool]
) -> None:
    """Statements of a program with a collation or a progress handler take the ordinary way."""
    with closing(dbapi.connect(node.database)) as db:
        db.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a TEXT)")
        db.commit()
        db.create_function("mine", 1, lambda value: f"{value}!")
        plain, own = f"INSERT OR REPLACE INTO {table} VALUES (?, 'x')", f"UPDATE {table} SET a = mine(a) WHERE id = ?"
        for _ in range(3):
            db.execute(plain, (1,))
            db.execute(own, (1,))
            assert db.execute(f"SELECT a FROM {table} WHERE id = ?", (1,)).fetchall() == [("x!",)]
        assert runs.count(True) == 6  # all three, from the second time on
        db.create_function("mine", 1, lambda _: 1 // 0)
        with pytest.raises(dbapi.OperationalError, match="user-defined function raised"):
            db.execute(own, (1,))
        db.rollback()
        runs.clear()
        db.create_collation("backwards", lambda left, right: (left < right) - (left > right))
        for _ in range(3):
            db.execute(plain, (1,))
        db.rollback()
        db.create_collation("backwards", None)
        db.set_progress_handler(lambda: 0, 1)
        for _ in range(3):
            db.execute(plain, (1,))
        assert not any(runs)


@pytest.mark.filterwarnings("ignore:The default")  # Python 3.12 deprecates its own converters
@pytest.mark.parametrize("detect_types", [1, 2, 3])
def test_known_statement_runs_again_with_converted_values(
    node: LocalNode, table: str, runs: list[bool], reads: list[bool], detect_types: int
) -> None:
    select = f'SELECT d, d AS "e [date]", n FROM {table} WHERE n = ?'
    update, returning = f"UPDATE {table} SET d = ? WHERE n = ?", f"UPDATE {table} SET n = n RETURNING d"
    with (
        closing(sqlite3.connect(":memory:", detect_types=detect_types)) as plain,
        closing(dbapi.connect(node.database, detect_types=detect_types)) as ours,
    ):
        told: list[list[Any]] = [[], []]
        both: tuple[Any, ...] = plain, ours
        for db, said in zip(both, told, strict=True):
            db.execute(f"CREATE TABLE {table}(d DATE, n INTEGER PRIMARY KEY)")
            db.execute(f"INSERT INTO {table} VALUES (?, 1)", (date(2026, 1, 1),))
            db.commit()
            for _ in range(3):
                cursor = db.execute(select, (1,))
                said += [cursor.fetchall(), [column[0] for column in cursor.description], db.in_transaction]
                cursor.execute("SELECT 1")
                said.append(cursor.fetchall())
            for number in range(3):
                said.append(db.execute(update, (date(2026, 1, number + 2), 1)).rowcount)
                said += [db.execute(select, (1,)).fetchall(), db.execute(returning).fetchall()]
            db.rollback()
            db.execute(f"ALTER TABLE {table} RENAME COLUMN d TO f")
            db.execute(f"ALTER TABLE {table} ADD COLUMN d TEXT DEFAULT '2027-01-01'")
            said.append(db.execute(select, (1,)).fetchall())
            db.commit()
            said.append(db.execute(select, (1,)).fetchall())
        assert told[0] == told[1]
        assert reads.count(True) >= 3
        assert runs.count(True) >= 4


@pytest.mark.parametrize("values", [{"id": 7}, {"id": 7, None: "x"}, {}, {"id": 7, "a": "\ud800"}, [7], (7, "x", 1)])
def test_known_statement_refuses_parameters_that_do_not_fit_as_at_its_first_run(
    node: LocalNode, table: str, values: Any
) -> None:
    with closing(dbapi.connect(node.database)) as db:
        db.execute(SCHEMA.format(table))
        db.commit()
        for places in (":id, :a", "?, ?"):
            for sql in (f"SELECT {places}", f"INSERT OR REPLACE INTO {table}(id, b) VALUES ({places})"):
                told = []
                for given in (values, {"id": 7, "a": "x"} if ":" in places else (7, "x"), values):
                    try:
                        told.append(db.execute(sql, given).fetchall())
                    except dbapi.Error as error:
                        told.append([repr(error)])
                assert told[0] == told[2] != told[1]


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_statement_that_ran_while_keys_were_deferred_leaves_no_row_that_it_refuses_later(
    node: LocalNode, table: str, ends: str
) -> None:
    """A statement that SQLite compiled while keys were deferred still defers them; run again, it would keep the row."""
    insert = f"INSERT INTO {table} VALUES (?, ?)"
    with bedrockish.connect(node.database) as other:
        other.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, up REFERENCES {table}(id))")
    with closing(dbapi.connect(node.database, isolation_level=None)) as db:
        db.execute("BEGIN")
        db.execute("PRAGMA defer_foreign_keys = ON")
        db.execute(insert, (2, 1))
        db.execute(insert, (1, None))
        db.execute(ends)
        before = db.execute(f"SELECT count(*) FROM {table}").fetchone()
        for _ in range(2):
            db.execute("BEGIN")
            with pytest.raises(dbapi.IntegrityError):
                db.execute(insert, (5, 6))
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == before
            db.execute("COMMIT")
        assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == before


@pytest.mark.parametrize("at", ["OFF", "ROLLBACK"])
def test_interrupt_when_keys_are_deferred_no_longer_leaves_no_row_that_is_refused_later(
    node: LocalNode, table: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workspace serves the next transaction, whose statements must not be those that were compiled to defer."""
    insert, original = f"INSERT INTO {table} VALUES (?, ?)", pragmas.apply
    with bedrockish.connect(node.database) as other:
        other.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, up REFERENCES {table}(id))")
    with closing(dbapi.connect(node.database, isolation_level=None)) as db:

        def interrupted(connection: apsw.Connection, sql: str) -> None:
            monkeypatch.setattr(pragmas, "apply", original)
            db.interrupt()
            raise apsw.InterruptError("interrupted")

        db.execute("BEGIN")
        db.execute("PRAGMA defer_foreign_keys = ON")
        for number in (2, 3):
            db.execute(insert, (number, 1))
        monkeypatch.setattr(pragmas, "apply", interrupted)
        if at == "OFF":
            with pytest.raises(dbapi.OperationalError):
                db.execute("PRAGMA defer_foreign_keys = OFF")
        db.execute("ROLLBACK")
        assert pragmas.apply is original
        for _ in range(2):
            db.execute("BEGIN")
            with pytest.raises(dbapi.IntegrityError):
                db.execute(insert, (5, 6))
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
            db.execute("COMMIT")


@pytest.mark.parametrize("values", ["(?)", "(?) RETURNING b", "(lower(?))"])
def test_rows_of_known_statements_get_leased_ids_which_a_rollback_returns(
    node: LocalNode, table: str, runs: list[bool], values: str
) -> None:
    insert = f"INSERT INTO {table}(a) VALUES {values}"
    with bedrockish.connect(node.database) as other:
        other.execute(SCHEMA.format(table))
    with closing(dbapi.connect(node.database)) as db:
        db.execute(insert, ("first",))
        db.commit()
        given = []
        for _ in range(2):
            given.append([db.execute(insert, (f"x{number}",)).lastrowid for number in range(LEASE + 3)])
            with pytest.raises(dbapi.IntegrityError):
                db.execute(insert, ("x0",))
            given[-1].append(db.execute(insert, ("last",)).lastrowid)
            db.rollback()
        assert given[0] == given[1]
        assert len(set(given[0])) == LEASE + 4
        assert sum(runs) >= 2 * LEASE
        db.execute(insert, ("kept",))
        db.commit()
        assert db.execute(f"SELECT id FROM {table} WHERE a = 'kept'").fetchone() == (given[0][0],)


def test_known_insert_of_selected_rows_runs_no_more_often_for_its_ids(node: LocalNode, table: str) -> None:
    insert = f"INSERT INTO {table}(b) SELECT mine(value) FROM json_each(?)"
    calls: list[int] = []
    with closing(dbapi.connect(node.database)) as db:

        def mine(value: int) -> int:
            calls[-1] += 1
            return value

        db.execute(SCHEMA.format(table))
        db.commit()
        db.create_function("mine", 1, mine)
        for _ in range(3):
            calls.append(0)
            db.execute(insert, (str([1] * 20 * LEASE),))
        assert calls[1] <= calls[0]
        assert calls[2] <= calls[0]
        db.rollback()


def test_known_statement_that_needs_the_node_moves_its_transaction(
    node: LocalNode, table: str, runs: list[bool]
) -> None:
    with closing(dbapi.connect(node.database)) as db:
        db.execute(SCHEMA.format(table))
        db.commit()
        update = f"UPDATE {table} SET b = CASE WHEN ? THEN transaction_clock() ELSE 7 END"
        db.execute(f"INSERT INTO {table} VALUES (1, 'x', 0)")
        for _ in range(3):
            db.execute(update, (0,))
        assert runs[-2:] == [True, True]
        db.execute(update, (1,))
        assert runs[-1] is False
        assert db.execute(f"SELECT b > 7 FROM {table}").fetchall() == [(1,)]
        db.commit()
        assert db.execute(f"SELECT b > 7 FROM {table}").fetchall() == [(1,)]


@pytest.mark.parametrize("grows_by", ["known statements", "a statement of many rows"])
def test_old_pages_move_from_memory_to_a_file_when_a_transaction_grows(
    node: LocalNode, table: str, monkeypatch: pytest.MonkeyPatch, grows_by: str
) -> None:
    """The rows and savepoints from before the move stay, and a deferred key that is broken then stays broken."""
    modes: list[bool] = []
    original = Writer.use_journal

    def noted(self: Writer, *, in_memory: bool) -> bool:
        done = original(self, in_memory=in_memory)
        modes.append(self.journal_in_memory)
        return done

    monkeypatch.setattr(Writer, "use_journal", noted)
    insert, child = f"INSERT INTO {table} VALUES (?, ?, ?)", f"INSERT INTO {table}_of VALUES (?, ?)"
    with bedrockish.connect(node.database) as other:
        other.execute(SCHEMA.format(table))
        other.execute(f"CREATE TABLE {table}_p(id INTEGER PRIMARY KEY)")
        key = f"REFERENCES {table}_p(id) DEFERRABLE INITIALLY DEFERRED"
        other.execute(f"CREATE TABLE {table}_of(id INTEGER PRIMARY KEY, of {key})")
    with closing(dbapi.connect(node.database)) as db:
        db.execute(insert, (-1, "first", 0))
        db.execute(child, (1, None))
        db.execute(f"SELECT id FROM {table} ORDER BY id")
        db.commit()
        modes.clear()
        db.execute(insert, (0, "kept", 0))
        db.execute(child, (2, 2))
        assert modes == [True]
        db.execute("SAVEPOINT one")
        if grows_by == "known statements":
            for number in range(1, SMALL_CHANGES + 10):
                db.execute(insert, (number, f"x{number}", number))
        else:
            db.execute(f"INSERT INTO {table} SELECT value, 'x' || value, 0 FROM json_each('[1, 2, 3]')")
        assert modes[-1] is False
        assert db.execute(f"SELECT count(*) FROM {table} WHERE id > 0").fetchone()[0] >= 3
        db.execute("ROLLBACK TO one")
        assert db.execute(f"SELECT id FROM {table} ORDER BY id").fetchall() == [(-1,), (0,)]
        with pytest.raises(dbapi.IntegrityError, match="deferred"):
            db.commit()
        db.execute(f"INSERT INTO {table}_p VALUES (2)")
        db.commit()
        assert db.execute(f"SELECT id FROM {table} ORDER BY id").fetchall() == [(-1,), (0,)]
        modes.clear()
        db.execute(insert, (7, "again", 0))
        assert modes == [True]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM {} WHERE id = ?",
        "SELECT id FROM {} WHERE b BETWEEN ? AND 5 ORDER BY a",
        "INSERT INTO {}(a) VALUES (?)",
        "UPDATE {} SET b = ? WHERE id = 1",
    ],
)
def test_transaction_goes_on_after_a_text_with_a_lone_surrogate(node: LocalNode, table: str, text: str) -> None:
    """Each run of the statement raises the same error; an error of Python would lose the transaction."""
    sql = text.format(table)
    with bedrockish.connect(node.database) as db:
        db.execute(SCHEMA.format(table))
        db.execute(f"INSERT INTO {table} VALUES (1, 'x', 1)")
        with db.transaction() as transaction:
            for number in range(3):
                transaction.execute(sql, (f"text {number}",))
            before = transaction.execute(f"SELECT * FROM {table}").rows
            for _ in range(2):
                with pytest.raises(UsageError, match="the text has a lone surrogate at 0; send it as a blob"):
                    transaction.execute(sql, ("\ud800",))
            assert transaction.execute(f"SELECT * FROM {table}").rows == before
        assert db.execute(f"SELECT * FROM {table}").rows == before


@pytest.mark.parametrize("values", ["(?, ?, ?)", "(?, ?, lower(?))", "(?, ?, ?) RETURNING id"])
def test_known_statement_that_rolls_its_transaction_back_leaves_none(node: LocalNode, table: str, values: str) -> None:
    insert = f"INSERT OR ROLLBACK INTO {table} VALUES {values}"
    with closing(dbapi.connect(node.database)) as db:
        db.execute(SCHEMA.format(table))
        for number in range(3):
            db.execute(insert, (number, f"x{number}", "b")).fetchall()
        with pytest.raises(dbapi.IntegrityError, match="rolled back"):
            db.execute(insert, (3, "x0", "b"))
        assert not db.in_transaction
        assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_transaction_has_written_after_a_known_statement_that_failed(node: LocalNode, table: str) -> None:
    insert = f"INSERT OR FAIL INTO {table} SELECT value, nullif(value, 3), 0 FROM json_each(?)"
    with closing(dbapi.connect(node.database, autocommit=False)) as db:
        db.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a NOT NULL, b)")
        db.commit()
        db.execute(insert, ("[1]",))
        db.commit()
        db.execute(f"SELECT count(*) FROM {table}")
        with pytest.raises(dbapi.IntegrityError):
            db.execute(insert, ("[2, 3]",))
        with pytest.raises(dbapi.OperationalError, match="within a transaction"):
            db.execute("BEGIN")
        assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (2,)


def test_called_function_runs_no_known_statement_of_the_transaction(node: LocalNode, table: str) -> None:
    """Inside of a statement, another one would end the capture of the rows that the first one changes."""
    insert, calling = f"INSERT INTO {table} VALUES (?, ?, 0)", f"INSERT INTO {table} VALUES (?, mine(?), 0)"
    told: list[str] = []
    with closing(dbapi.connect(node.database)) as db:

        def mine(value: str) -> str:
            for number in range(3):
                with pytest.raises(dbapi.ProgrammingError, match="calling the program"):
                    db.execute(insert, (100 + number, f"nested {number}"))
                told.append(value)
            return value

        db.execute(SCHEMA.format(table))
        db.commit()
        db.create_function("mine", 1, mine)
        for number in range(3):
            db.execute(insert, (number, f"x{number}"))
        for number in range(3):
            db.execute(calling, (number + 10, f"y{number}"))
        db.commit()
        assert len(told) == 9
        assert [key for (key,) in db.execute(f"SELECT id FROM {table}")] == [0, 1, 2, 10, 11, 12]


def test_called_function_asks_for_no_types_in_the_transaction(node: LocalNode, table: str) -> None:
    """With TEMP objects, the transaction itself returns the types of a statement's columns."""
    update, select = f"UPDATE {table} SET b = mine(b)", f"SELECT a FROM {table}"
    with closing(dbapi.connect(node.database, detect_types=sqlite3.PARSE_DECLTYPES)) as db:

        def mine(value: int) -> int:
            with pytest.raises(dbapi.ProgrammingError, match="calling the program"):
                db.execute(select)
            return value + 1

        db.execute(SCHEMA.format(table))
        db.commit()
        db.create_function("mine", 1, mine)
        db.execute("CREATE TEMP TABLE own(x)")
        db.execute(f"INSERT INTO {table} VALUES (1, 'x', 1)")
        for _ in range(2):
            db.execute(update)
        assert db.execute(f"SELECT b FROM {table}").fetchall() == [(3,)]


def test_pragma_that_another_session_has_run_sets_the_lock_of_this_one(node: LocalNode, table: str) -> None:
    """Sessions of one process use the same known texts, one after the other."""
    told = []
    for has_lock in (False, True):
        with closing(dbapi.connect(node.database, write_lock=has_lock)) as db:
            if not has_lock:
                db.execute(SCHEMA.format(table))
                db.commit()
            db.execute(f"INSERT INTO {table} VALUES (1, 'x', 1)")
            for _ in range(2):
                told.append(db.execute("PRAGMA busy_timeout = 7").fetchall())
            told.append(db.execute("PRAGMA busy_timeout").fetchall())
            db.rollback()
    assert told == [[(0,)]] * 3 + [[(7,)]] * 3


def test_statement_raises_why_its_transaction_was_ended_between_two_of_its_steps(
    node: LocalNode, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread ends old transactions."""
    original, ended = vars(OverlayTransaction)["executor"].fget, list[bool]()

    def executor(self: OverlayTransaction) -> Any:
        late = Thread(target=opened.end_late, args=(DeadlineError("too late"),))
        late.start()
        late.join()
        ended.append(True)
        return original(self)

    with bedrockish.connect(node.database) as db:
        db.execute(SCHEMA.format(table))
        with db.transaction() as transaction:
            insert = f"INSERT INTO {table} VALUES (?, lower(?), 0)"
            transaction.execute(insert, (1, "x"))
            (opened,) = here(db)._open.values()
            monkeypatch.setattr(OverlayTransaction, "executor", property(executor))
            with pytest.raises(DeadlineError, match="too late"):
                transaction.execute(insert, (2, "y"))
            monkeypatch.undo()
            assert ended
            transaction.rollback()
