"""Known reads at the beginning of a transaction on a node's file, which run before it has a writing connection."""

import os
from contextlib import closing
from typing import Any

import apsw
import pytest

from bedrockish import connect, dbapi
from bedrockish.access_sets.access_set_builder import AccessSetBuilder
from bedrockish.client.blocking import Connection
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import EARLY_MAX, EarlyReads
from bedrockish.engine.execution.workspace import Workspace, Writer
from bedrockish.errors import (
    BedrockishError,
    ClientClosedError,
    ConflictError,
    DeadlineError,
    TooLargeError,
    UnavailableError,
    UsageError,
)
from bedrockish.local import connections
from bedrockish.local import transaction as local_transaction
from bedrockish.local.workspace_pool import WorkspacePool
from tests.local.conftest import calls_made, here
from tools.cluster import LocalNode

BY_KEY = ("SELECT b FROM {} WHERE id = ?", (2,))
RANGE = ("SELECT id, b FROM {} WHERE id BETWEEN ? AND ? ORDER BY id", (2, 60))
UPDATE = "UPDATE {} SET b = ? WHERE id = ?"

Read = tuple[str, tuple[int, ...]]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the commands of the transactions that have opened a writing connection."""
    found: list[str] = []
    original = Workspace.open_writer

    def noted(self: Workspace, work: TransactionWork) -> Writer:
        found.append(work.command)
        return original(self, work)

    monkeypatch.setattr(Workspace, "open_writer", noted)
    return found


@pytest.fixture
def mine(db: Connection, table: str, starts: list[str]) -> Connection:
    """Return a connection by path whose session knows the texts of this module."""
    for _ in range(2):
        with db.transaction() as tx:
            for sql, values in (BY_KEY, RANGE):
                tx.execute(sql.format(table), values)
        with db.transaction() as tx:
            tx.execute(UPDATE.format(table), (0, 77))
    starts.clear()
    return db


def overtaken(opened: Any, other: Connection, table: str) -> bool:
    """Change the rows of both reads at the node, then write and commit; return whether that is a conflict."""
    other.execute(f"UPDATE {table} SET b = 21 WHERE id = 2")
    other.execute(f"INSERT INTO {table} VALUES (50, 'f', 1)")
    try:
        opened.execute(UPDATE.format(table), (0, 1))
        opened.commit()
    except ConflictError:
        return True
    return False


def test_transaction_of_known_reads_opens_no_writer_and_sends_no_message(
    mine: Connection, other: Connection, table: str, starts: list[str]
) -> None:
    before = calls_made(mine)
    with mine.transaction() as tx:
        assert tx.execute(BY_KEY[0].format(table), BY_KEY[1]).rows == [(20,)]
        other.execute(f"UPDATE {table} SET b = 21 WHERE id = 2")
        assert tx.execute(BY_KEY[0].format(table), BY_KEY[1]).rows == [(20,)]
        assert tx.execute(RANGE[0].format(table), RANGE[1]).rows == [(2, 20)]
    assert not starts
    assert calls_made(mine) == before
    mine.token = other.token
    with mine.transaction() as tx:
        assert tx.execute(BY_KEY[0].format(table), BY_KEY[1]).rows == [(21,)]
        assert tx.execute(RANGE[0].format(table), RANGE[1]).rows == [(2, 21)]
    assert not starts


def test_early_read_has_the_columns_of_its_snapshot(mine: Connection, other: Connection, table: str) -> None:
    sql = f"SELECT * FROM {table} WHERE id = ?"
    for _ in range(3):
        with mine.transaction() as tx:
            assert tx.execute(sql, (2,)).columns == ("id", "a", "b")
    other.execute(f"ALTER TABLE {table} ADD COLUMN c DEFAULT 7")
    mine.token = other.token
    for _ in range(3):
        with mine.transaction() as tx:
            found = tx.execute(sql, (2,))
            assert (found.columns, found.rows) == (("id", "a", "b", "c"), [(2, "two", 20, 7)])


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("read", [BY_KEY, RANGE], ids=["by key", "range"])
def test_early_read_counts_for_a_later_write(
    mine: Connection, other: Connection, table: str, starts: list[str], read: Read, isolation: str
) -> None:
    opened = mine.begin(isolation=isolation)
    opened.execute(read[0].format(table), read[1])
    assert not starts
    assert overtaken(opened, other, table) is (isolation == "serializable")
    assert starts == [opened.command]


def test_reads_before_a_start_are_bounded_and_all_count(
    mine: Connection, other: Connection, table: str, starts: list[str]
) -> None:
    opened = mine.begin()
    opened.execute(BY_KEY[0].format(table), BY_KEY[1])
    for number in range(EARLY_MAX - 1):
        opened.execute(BY_KEY[0].format(table), (1_000 + number,))
    assert not starts
    assert opened.execute(BY_KEY[0].format(table), BY_KEY[1]).rows == [(20,)]
    assert starts == [opened.command]
    assert overtaken(opened, other, table)


@pytest.mark.parametrize("read", [BY_KEY, RANGE], ids=["by key", "range"])
def test_strict_transaction_of_known_reads_is_certified(
    mine: Connection, other: Connection, table: str, read: Read
) -> None:
    opened = mine.begin(read="strict")
    opened.execute(read[0].format(table), read[1])
    other.execute(f"UPDATE {table} SET b = 21 WHERE id = 2")
    with pytest.raises(ConflictError):
        opened.commit()


def test_failed_early_read_counts_and_the_transaction_goes_on(
    mine: Connection, other: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = mine.begin()
    with monkeypatch.context() as patched:
        patched.setattr(local_transaction, "RESULT_BYTES", 10)
        with pytest.raises(TooLargeError):
            opened.execute(RANGE[0].format(table), RANGE[1])
    assert opened.execute(BY_KEY[0].format(table), (1,)).rows == [(10,)]
    assert overtaken(opened, other, table)


def test_transaction_that_cannot_start_is_over(
    mine: Connection, table: str, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_self: Workspace, _work: TransactionWork) -> Writer:
        raise UnavailableError("the node cannot read its file")

    opened = mine.begin()
    opened.execute(BY_KEY[0].format(table), BY_KEY[1])
    monkeypatch.setattr(Workspace, "open_writer", fails)
    with pytest.raises(UnavailableError):
        opened.execute(UPDATE.format(table), (0, 1))
    monkeypatch.undo()
    with pytest.raises(BedrockishError):
        opened.execute(BY_KEY[0].format(table), BY_KEY[1])
    with pytest.raises(BedrockishError):
        opened.commit()
    opened.rollback()
    assert mine.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10


def test_transaction_whose_early_reads_have_no_keys_is_over(
    mine: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object) -> None:
        raise TooLargeError("too many keys")

    opened = mine.begin()
    opened.execute(RANGE[0].format(table), RANGE[1])
    with monkeypatch.context() as patched:
        patched.setattr(AccessSetBuilder, "add_reads_unchanged", fails)
        with pytest.raises(TooLargeError, match="rolled back"):
            opened.execute(UPDATE.format(table), (0, 1))
    assert not opened.is_open
    assert mine.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10


def test_function_of_the_program_serves_a_transaction_that_has_only_read(
    node: LocalNode, db: Connection, table: str, starts: list[str]
) -> None:
    with closing(dbapi.connect(node.database, isolation_level=None)) as mine:
        for ends in ("ROLLBACK", "ROLLBACK", "ROLLBACK", "COMMIT", ""):
            mine.execute("BEGIN")
            assert mine.execute(BY_KEY[0].format(table), BY_KEY[1]).fetchone() == (20,)
            if ends:
                mine.execute(ends)
        assert len(starts) == 2, "COMMIT and ROLLBACK start no transaction"
        starts.clear()
        mine.create_function("twice", 1, lambda value: 2 * value)
        assert mine.execute(f"SELECT twice(b) FROM {table} WHERE id = 2").fetchone() == (40,)
        assert len(starts) == 1
        mine.execute("COMMIT")


def test_interrupt_between_early_reads_ends_the_transaction(mine: Connection, table: str) -> None:
    opened = mine.begin()
    opened.execute(BY_KEY[0].format(table), BY_KEY[1])
    here(mine).stop_one(opened.command)
    with pytest.raises(DeadlineError):
        opened.execute(BY_KEY[0].format(table), BY_KEY[1])
    opened.rollback()
    with mine.transaction() as tx:
        assert tx.execute(BY_KEY[0].format(table), BY_KEY[1]).rows == [(20,)]


def test_commit_of_reads_fails_after_the_node_has_exchanged_its_file(
    mine: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = mine.begin()
    opened.execute(BY_KEY[0].format(table), BY_KEY[1])
    monkeypatch.setattr(WorkspacePool, "still_serves", lambda _self, _facts: False)
    with pytest.raises(UnavailableError, match="exchanged its file"):
        opened.commit()


def test_transaction_whose_private_copy_cannot_be_opened_begins_at_the_node(
    node: LocalNode, db: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object, **_options: object) -> None:
        raise apsw.CantOpenError("too many open files")

    monkeypatch.setattr(Writer, "__init__", fails)
    connections.KEPT.close_all()
    with closing(connect(node.database)) as fresh, fresh.transaction() as tx:
        assert tx.execute(BY_KEY[0].format(table), BY_KEY[1]).rows == [(20,)]
        assert not here(fresh).has_any


@pytest.mark.parametrize("error", [UnavailableError("no room"), TooLargeError("too many keys"), apsw.IOError("disk")])
def test_transaction_that_could_not_start_to_tell_its_columns_runs_no_statement(
    mine: Connection, table: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Its access set lacks the early reads, so a write could be committed in spite of a conflict."""

    def fails(*_args: object) -> None:
        raise error

    opened = mine.begin()
    opened.execute(BY_KEY[0].format(table), BY_KEY[1])
    with monkeypatch.context() as patched:
        patched.setattr(EarlyReads, "add_to", fails)
        with pytest.raises(BedrockishError):
            opened.columns(BY_KEY[0].format(table))
    for sql, values in ((BY_KEY[0], (1,)), (UPDATE, (0, 1)), ("SELECT max(b) FROM {}", ())):
        with pytest.raises((UnavailableError, TooLargeError)):
            opened.execute(sql.format(table), values)
        assert not opened.is_open
    opened.rollback()
    assert mine.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10


@pytest.mark.parametrize("after", [False, True])
def test_transaction_whose_start_a_signal_ends_in_a_registration_commits_no_row(
    node: LocalNode, other: Connection, db: Connection, table: str, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    real = EarlyReads.add_to

    def interrupted(*arguments: Any) -> None:
        if after:
            real(*arguments)
        raise KeyboardInterrupt

    with closing(dbapi.connect(node.database, isolation_level=None)) as mine:
        for _ in range(3):
            mine.execute("BEGIN")
            mine.execute(BY_KEY[0].format(table), BY_KEY[1])
            mine.execute("ROLLBACK")
        mine.execute("BEGIN")
        assert mine.execute(BY_KEY[0].format(table), BY_KEY[1]).fetchone() == (20,)
        with monkeypatch.context() as patched:
            patched.setattr(EarlyReads, "add_to", interrupted)
            with pytest.raises(KeyboardInterrupt):
                mine.create_function("twice", 1, lambda value: 2 * value)
        other.execute(f"UPDATE {table} SET b = 21 WHERE id = 2")
        with pytest.raises(dbapi.OperationalError, match="did not happen"):
            mine.execute(UPDATE.format(table), (0, 1))
        mine.execute("ROLLBACK")
        assert mine.execute(f"SELECT b FROM {table} WHERE id = 1").fetchone() == (10,)


@pytest.mark.parametrize("sql", [BY_KEY[0], UPDATE])
def test_commit_in_a_forked_child_ends_the_transaction_there_alone(mine: Connection, table: str, sql: str) -> None:
    mine.execute("BEGIN")
    mine.execute(sql.format(table), (1, 2)[: sql.count("?")])
    child = os.fork()
    if not child:
        code = 1
        try:
            mine.execute("COMMIT")
        except ClientClosedError:
            code = int(mine.in_transaction)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert mine.in_transaction
    mine.execute("COMMIT")


def test_commit_of_reads_checks_its_timeout(mine: Connection, table: str) -> None:
    opened = mine.begin()
    opened.execute(BY_KEY[0].format(table), BY_KEY[1])
    with pytest.raises(UsageError, match="positive"):
        opened.commit(timeout=-1)
    opened.commit()
