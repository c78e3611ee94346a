"""Statements that a transaction in the program runs at once, in the calling thread, and statements that it does not."""

from typing import Any

import pytest

from bedrockish.client.blocking import Connection
from bedrockish.client.local_steps import LocalSteps
from bedrockish.errors import ConstraintError, SqlError

ADD = "UPDATE {} SET b = b + 1 WHERE id = ?"


@pytest.fixture
def not_run_at_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the statements that did not run at once."""
    found, run_here = list[str](), LocalSteps.run_here

    async def noted(self: LocalSteps, command: str, statements: Any, *rest: Any) -> Any:
        found.extend(one.sql for one in statements)
        return await run_here(self, command, statements, *rest)

    monkeypatch.setattr(LocalSteps, "run_here", noted)
    return found


def test_known_statement_runs_at_once(db: Connection, table: str, not_run_at_once: list[str]) -> None:
    read, add = f"SELECT b FROM {table} WHERE id = ?", ADD.format(table)
    with db.transaction() as tx:
        told = []
        for number in (1, 2, 1):
            told.append(tx.execute(read, (number,)).rows)
            assert tx.execute(add, (number,)).rowcount == 1
        assert told == [[(10,)], [(20,)], [(11,)]]
    assert not not_run_at_once
    assert [row[0] for row in db.execute(f"SELECT b FROM {table} ORDER BY id").rows] == [12, 21]
    assert db.execute("SELECT changes(), total_changes()").rows[0][0] == 1


def test_statement_that_needs_ids_leases_them(db: Connection, table: str, not_run_at_once: list[str]) -> None:
    insert = f"INSERT INTO {table}(a) VALUES (?)"
    with db.transaction() as tx:
        ids = [tx.execute(insert, (f"row {number}",)).lastrowid or 0 for number in range(150)]
        assert ids == sorted({*ids})
        assert db.execute("SELECT last_insert_rowid()").value() == ids[-1]
    assert 0 < len(not_run_at_once) < 20
    assert db.execute(f"SELECT count(*) FROM {table}").value() == 152


def test_statement_that_needs_the_node_on_a_later_run_moves_there(db: Connection, table: str) -> None:
    clock = f"SELECT CASE WHEN b > 10 THEN transaction_clock() ELSE 0 END FROM {table} WHERE id = 1"
    with db.transaction() as tx:
        assert [tx.execute(clock).value() for _ in range(2)] == [0, 0]
        tx.execute(ADD.format(table), (1,))
        assert tx.execute(clock).value() > 0
    assert db.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 11


def test_failed_statement_leaves_the_transaction_open(db: Connection, table: str, not_run_at_once: list[str]) -> None:
    add, insert = ADD.format(table), f"INSERT INTO {table} VALUES (?, 'two', 0)"
    with db.transaction() as tx:
        tx.execute(add, (1,))
        for number in (3, 4):
            with pytest.raises(ConstraintError) as error:
                tx.execute(insert, (number,))
            assert error.value.details["statement"] == 0
        with pytest.raises(SqlError):
            tx.execute(add, (1, 2))
        tx.execute(add, (1,))
    assert not not_run_at_once
    assert db.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 12


def test_statement_that_ends_the_transaction_raises_an_error_marked_ended(db: Connection, table: str) -> None:
    insert = f"INSERT OR ROLLBACK INTO {table} VALUES (?, ?, 0)"
    opened = db.begin()
    opened.execute(insert, (3, "three"))
    with pytest.raises(ConstraintError, match="was rolled back") as error:
        opened.execute(insert, (4, "three"))
    assert error.value.details["ended"]
    assert not opened.is_open
    assert db.execute(f"SELECT count(*) FROM {table}").value() == 2


def test_statements_with_settings_or_session_values_run_without_a_recipe(
    db: Connection, table: str, not_run_at_once: list[str]
) -> None:
    with db.transaction() as tx:
        tx.execute(ADD.format(table), (1,))
        assert [tx.execute("SELECT changes()").value() for _ in range(2)] == [1, 1]
        assert len(not_run_at_once) == 2
        with pytest.raises(ConstraintError):
            tx.execute(f"INSERT INTO {table}(id) SELECT id FROM {table} LIMIT 1")
        assert tx.execute("SELECT changes()").value() == 0
        tx.execute("PRAGMA case_sensitive_like = on")
        like = f"SELECT count(*) FROM {table} WHERE a LIKE 'ONE'"
        assert [tx.execute(like).value() for _ in range(2)] == [0, 0]


def test_open_transaction_describes_the_columns_of_a_statement(db: Connection, table: str) -> None:
    """The node was asked about a transaction that it does not know, and the transaction ended."""
    with db.transaction() as tx:
        tx.execute(ADD.format(table), (1,))
        assert tx.columns(f"SELECT id, b + 1 AS more FROM {table}") == [("id", "INTEGER"), ("more", None)]
        assert tx.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 11
