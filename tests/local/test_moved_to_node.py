"""An open transaction of a program moves to the node with its first statement that only the node can run."""

from contextlib import closing, suppress

import pytest

from bedrockish import dbapi
from bedrockish.client.blocking import Connection
from bedrockish.errors import ConflictError, ConstraintError, UnsupportedError
from bedrockish.local import transaction
from bedrockish.local.leased_ids import LEASE_MAX
from tests.local.conftest import here
from tools.cluster import LocalNode

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


def test_moved_transaction_keeps_the_ids_of_several_leases(node: LocalNode, table: str) -> None:
    """sqlite3's ``executemany`` before a CREATE INDEX in the same transaction."""
    with closing(dbapi.connect(node.database)) as own:
        own.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)")
        own.commit()
        own.executemany(f"INSERT INTO {table}(a) VALUES (?)", [(number,) for number in range(2 * LEASE_MAX + 1)])
        told = own.execute(f"SELECT id, a FROM {table} ORDER BY id").fetchall()
        own.execute(f"CREATE INDEX {table}a ON {table}(a)")
        own.commit()
        assert own.execute(f"SELECT id, a FROM {table} ORDER BY id").fetchall() == told


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


@pytest.mark.parametrize("text", [*NODES[:2], *NODES[3:], "SELECT no_such_function(1)"])
def test_transaction_that_is_too_long_to_move_goes_on_without_the_statement(
    db: Connection, table: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction stays open in the program, where its later steps and its COMMIT run."""
    monkeypatch.setattr(transaction, "LOG_MAX", 2)
    opened = db.begin()
    for number in range(3):
        opened.execute(f"UPDATE {table} SET b = {number} WHERE id = 1")
    with pytest.raises(UnsupportedError, match="the statement did not run"):
        opened.execute(text.format(t=table))
    assert opened.is_open
    opened.execute(f"UPDATE {table} SET b = b + 5 WHERE id = 1")
    opened.commit()
    assert db.execute(f"SELECT b FROM {table} WHERE id = 1", read="strict").value() == 7


def test_first_statements_that_are_too_many_to_move_leave_the_transaction_open(
    node: LocalNode, table: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "LOG_MAX", 2)
    with closing(dbapi.connect(node.database, isolation_level=None)) as own:
        own.execute("BEGIN")
        own.executemany(f"INSERT INTO {table} VALUES (?, ?, 1)", [(number, number) for number in range(3, 9)])
        with pytest.raises(dbapi.NotSupportedError, match="too long to move"):
            own.execute(f"INSERT INTO {table} SELECT 9, cluster_clock(), 1")
        assert own.in_transaction
        own.execute("COMMIT")
    assert db.execute(f"SELECT count(*) FROM {table}", read="strict").value() == 8


@pytest.mark.parametrize("most", [2, 100])
def test_strict_write_that_reads_the_clusters_tables_writes_nothing_before_it_moves(
    db: Connection, table: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the statement wrote its row in the program first, the same statement at the node would find the row in its
    way.
    """
    monkeypatch.setattr(transaction, "LOG_MAX", most)
    opened = db.begin(read="strict")
    for number in range(3):
        opened.execute(f"UPDATE {table} SET b = {number} WHERE id = 1")
    text = f"INSERT INTO {table} SELECT 3, count(*), 1 FROM bedrockish_journal"
    if most < 3:
        with pytest.raises(UnsupportedError, match="did not run"):
            opened.execute(text)
    else:
        opened.execute(text)
        assert not here(db).has_any
    opened.commit()
    assert db.execute(f"SELECT count(*) FROM {table}", read="strict").value() == (2 if most < 3 else 3)
