"""An open transaction of a program moves to the node with its first statement that only the node can run."""

from contextlib import suppress

import pytest

from bedrockish.client.blocking import Connection
from bedrockish.errors import ConflictError, ConstraintError
from tests.local.conftest import here

NODES = (
    "SELECT transaction_clock() > 0",
    "SELECT cluster_clock() > 0",
    "SELECT skip_locked('{t}', 1)",
    "CREATE TABLE {t}x(a)",
    "ALTER TABLE {t} ADD COLUMN c",
    "EXPLAIN QUERY PLAN SELECT 1",
)


@pytest.mark.parametrize("place", range(len(NODES)))
@pytest.mark.parametrize("first", [True, False])
def test_statement_that_needs_the_node_moves_the_transaction_there(
    db: Connection, table: str, place: int, first: bool
) -> None:
    # A clock that the client has got is too old for its COMMIT if the disk stalls for ``closing_lag_ms``.
    losses = (ConflictError,) if "transaction_clock" in NODES[place] else ()
    for _ in range(20):
        with suppress(*losses):
            _move_and_commit(db, table, NODES[place], first=first)
            break
    assert db.execute(f"SELECT b FROM {table} WHERE id = 1").value() == (11 if first else 12)


def _move_and_commit(db: Connection, table: str, text: str, *, first: bool) -> None:
    """Run a transaction with a statement that needs the node, as its first one or after others."""
    opened = db.begin()
    if not first:
        assert opened.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10
        opened.execute(f"UPDATE {table} SET b = 11 WHERE id = 1")
        with pytest.raises(ConstraintError):
            opened.execute(f"INSERT INTO {table} VALUES (1, 'x', 1)")
        opened.execute("SAVEPOINT s")
        assert here(db).has_any
    opened.execute(text.format(t=table))
    assert not here(db).has_any
    opened.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 1")
    opened.commit(timeout=30)


def test_moved_transaction_keeps_the_ids_of_its_rows(db: Connection, other: Connection, table: str) -> None:
    for number in range(3):
        opened = db.begin()
        told = [opened.execute(f"INSERT INTO {table}(a) VALUES (?)", (f"m{number}{each}",)).lastrowid for each in "xyz"]
        opened.execute(f"CREATE TABLE {table}m{number}(c)")
        opened.execute(f"INSERT INTO {table}(a) VALUES (?)", (f"m{number}",))
        opened.commit()
        other.token = db.token
        rows = other.execute(f"SELECT id FROM {table} WHERE a GLOB 'm{number}?' ORDER BY id").rows
        assert [row[0] for row in rows] == told
    ids = [row[0] for row in other.execute(f"SELECT id FROM {table}").rows]
    assert len(ids) == len(set(ids)) == 2 + 3 * 4


def test_moved_transaction_with_another_result_is_lost(db: Connection, other: Connection, table: str) -> None:
    opened = db.begin()
    assert opened.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10
    other.execute(f"UPDATE {table} SET b = 99 WHERE id = 1")
    with pytest.raises(ConflictError, match="moved to the node"):
        opened.execute("SELECT cluster_clock()")
    opened.rollback()
    with db.transaction() as tx:  # the next one begins at the node
        tx.execute("SELECT cluster_clock()")
    assert other.status()["open_transactions"] == 0
