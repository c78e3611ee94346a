"""Exceptions of signal handlers, such as Ctrl-C, at any moment of a call on a node's file."""

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import apsw
import pytest

from bedrockish import connect_pool, dbapi
from bedrockish.client import pool as client_pool
from bedrockish.client.blocking import Connection
from bedrockish.client.local_steps import LocalSteps
from bedrockish.client.socket_driver import SocketDriver
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.temporary import TemporaryTransaction
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.statements.rowid_allocator import AutoIds
from bedrockish.errors import DeadlineError, TemporaryLostError
from bedrockish.local import connections
from bedrockish.local.page import Published
from bedrockish.local.reads import LocalReads
from bedrockish.local.transaction import LocalTransaction
from bedrockish.local.transactions import LocalTransactions
from bedrockish.local.workspace_pool import WorkspacePool
from tests.local.conftest import here
from tools.cluster import LocalNode

pytestmark = pytest.mark.cluster
Interrupt = Callable[[type, str], None]


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Return a function that lets the next call of a method do its work, and then raise ``KeyboardInterrupt``."""

    def once(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def interrupted(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(owner, name, real)
            real(*args, **options)
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, interrupted)

    return once


def snapshots_of(node: LocalNode) -> int:
    """Return the number of connections of this process that hold a snapshot of the node's file."""
    gc.collect()
    while True:
        try:
            return sum(one.filename == str(node.database) and one.in_transaction for one in apsw.connections())
        except apsw.ThreadingViolationError:  # another thread runs a statement
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("owner", "name", "runs"),
    [
        (OverlayTransaction, "run", 0),
        (OverlayTransaction, "run_again", 2),
        (LocalTransaction, "_log_statement", 0),
        (LocalTransaction, "_log_statement", 2),
        (LocalTransaction, "_check_open", 0),
    ],
)
def test_statement_that_a_signal_leaves_half_done_loses_its_transaction(
    node: LocalNode, table: str, db: Connection, interrupt: Interrupt, owner: type, name: str, runs: int
) -> None:
    """COMMIT could lack a row that the transaction has shown, or have one that it has not shown."""
    insert = f"INSERT INTO {table} VALUES (abs(random()), ?, 1)"  # leases no id
    mine = dbapi.connect(node.database)
    mine.execute(f"UPDATE {table} SET b = 2")
    for number in range(runs):
        mine.execute(insert, (f"before {number}",))
    interrupt(owner, name)
    with pytest.raises(KeyboardInterrupt):
        mine.execute(insert, ("half",))
    for _ in range(2):
        with pytest.raises(dbapi.OperationalError, match="interrupted") as error:
            mine.execute(insert, ("after",))
        assert error.value.sqlite_errorname == "SQLITE_INTERRUPT"
    with pytest.raises(dbapi.OperationalError, match="interrupted"):
        mine.commit()
    mine.rollback()
    mine.execute(insert, ("again",))
    mine.commit()
    mine.close()
    assert db.execute(f"SELECT a FROM {table} WHERE b = 1").rows == [("again",)]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(WorkspacePool, "snapshot"), (LocalTransactions, "_begin"), (WorkspacePool, "take"), (LocalTransaction, "_open")],
)
def test_begin_that_a_signal_ends_leaves_no_snapshot(
    node: LocalNode, db: Connection, table: str, interrupt: Interrupt, owner: type, name: str
) -> None:
    """A snapshot keeps the write-ahead log from starting over, and a connection other libraries from the file."""
    gc.collect()
    opened = len(connections._open)
    mine = dbapi.connect(node.database)
    before = snapshots_of(node)
    interrupt(owner, name)
    with pytest.raises(KeyboardInterrupt):
        mine.execute(f"DELETE FROM {table}")
    mine.rollback()
    assert snapshots_of(node) <= before
    assert not here(mine._link).has_any
    mine.execute(f"DELETE FROM {table}")
    mine.commit()
    mine.close()
    gc.collect()
    assert len(connections._open) <= opened


@pytest.mark.parametrize(
    ("owner", "name"),
    [(LocalSteps, "has"), (LocalTransaction, "give_ids_back"), (LocalTransaction, "end"), (WorkspacePool, "_keep")],
)
def test_rollback_that_a_signal_ends_leaves_no_snapshot(
    node: LocalNode, db: Connection, table: str, interrupt: Interrupt, owner: type, name: str
) -> None:
    before = snapshots_of(node)
    opened = db.begin()
    opened.execute(f"SELECT b FROM {table} WHERE id = 1")
    interrupt(owner, name)
    with pytest.raises(KeyboardInterrupt):
        opened.rollback()
    assert snapshots_of(node) <= before
    assert not here(db).has_any


def test_exception_of_a_signal_is_raised_while_another_thread_imports_trio(
    db: Connection, table: str, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trio", ModuleType("trio"))  # as in the middle of the import
    interrupt(LocalTransactions, "_begin")
    with pytest.raises(KeyboardInterrupt), db.transaction() as tx:
        tx.run([(f"DELETE FROM {table}", ()), (f"DELETE FROM {table}", ())])


@pytest.mark.parametrize("name", ["pin", "unpin"])
def test_snapshot_block_that_a_signal_ends_at_its_border_holds_nothing(
    db: Connection, other: Connection, table: str, interrupt: Interrupt, name: str
) -> None:
    """The connection would show old rows, and after a minute none."""
    read = f"SELECT b FROM {table} WHERE id = 1"
    interrupt(LocalReads, name)

    def block() -> None:
        with db.snapshot():
            db.execute(read)

    with pytest.raises(KeyboardInterrupt):
        block()
    gc.collect()
    other.execute(f"UPDATE {table} SET b = 11 WHERE id = 1")
    db.token = other.token
    assert db.read_here(read, None, "session") is not None
    assert db.execute(read).value() == 11


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (TemporaryTransaction, "open"),
        (TemporaryTransaction, "__init__"),
        (WorkspacePool, "snapshot"),
        (TemporaryTransaction, "run"),
        (TemporaryTransaction, "close"),
        (Workspace, "leave_work"),
    ],
)
def test_session_goes_on_after_a_signal_in_a_transaction_with_temp_objects(
    node: LocalNode, db: Connection, table: str, interrupt: Interrupt, owner: type, name: str
) -> None:
    mine = dbapi.connect(node.database)
    mine.execute("CREATE TEMP TABLE own(a)")
    interrupt(owner, name)

    def change() -> None:
        mine.execute(f"UPDATE {table} SET b = 0")
        mine.rollback()

    with pytest.raises(KeyboardInterrupt):
        change()
    mine.rollback()
    try:
        mine.execute("INSERT INTO own VALUES (1)")
    except dbapi.OperationalError as error:
        if not isinstance(error.__cause__, TemporaryLostError):
            raise
        mine.rollback()
    mine.execute("CREATE TEMP TABLE IF NOT EXISTS own(a)")
    mine.execute("INSERT INTO own VALUES (1)")
    mine.execute(f"UPDATE {table} SET b = 5 WHERE id = 1")
    mine.commit()
    assert mine.execute("SELECT a FROM own").fetchall() == [(1,)]
    mine.close()
    assert db.execute(f"SELECT b FROM {table} ORDER BY id").rows == [(5,), (20,)]


def test_statement_of_its_own_that_a_signal_ends_leaves_no_transaction(
    node: LocalNode, table: str, interrupt: Interrupt
) -> None:
    mine = dbapi.connect(node.database, isolation_level=None)
    mine.execute("CREATE TEMP TABLE own(a)")
    interrupt(LocalTransaction, "finish")
    with pytest.raises(KeyboardInterrupt):
        mine.execute("INSERT INTO own VALUES (1)")
    assert not here(mine._link).has_any
    assert mine.execute("SELECT a FROM own").fetchall() == []
    mine.close()


def test_pool_keeps_its_size_if_a_signal_ends_the_rollback_of_a_lent_connection(
    node: LocalNode, db: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> bool:
        raise KeyboardInterrupt

    def use() -> None:
        with pool.connection(timeout=5) as lent:
            lent.execute("BEGIN")
            lent.execute(f"DELETE FROM {table}")

    with connect_pool(str(node.database), size=1) as pool:
        monkeypatch.setattr(client_pool, "_is_clean", interrupted)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                use()
        monkeypatch.undo()
        use()
    assert db.execute(f"SELECT count(*) FROM {table}").value() == 2


def test_pool_acquires_no_lock_in_python_code(node: LocalNode, db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal could come after such code has acquired the lock, which then stays locked; so in a semaphore."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with connect_pool(str(node.database), size=1) as pool, pool.connection(timeout=5) as first:
        assert first.execute("SELECT 1").value() == 1
        monkeypatch.setattr(threading.Condition, "__enter__", interrupted)
        with pytest.raises(DeadlineError), pool.connection(timeout=0.05):
            pass
        monkeypatch.undo()


@pytest.mark.parametrize(("owner", "name"), [(LocalTransaction, "end"), (WorkspacePool, "_keep")])
def test_rollback_that_a_signal_ends_can_be_repeated(
    node: LocalNode, db: Connection, table: str, interrupt: Interrupt, owner: type, name: str
) -> None:
    opened = db.begin()
    opened.execute(f"DELETE FROM {table}")
    interrupt(owner, name)
    with pytest.raises(KeyboardInterrupt):
        opened.rollback()
    opened.rollback()
    here(db).forget(opened.command)
    for _ in range(2):  # two transactions must not get one workspace
        one, two = db.begin(), db.begin()
        one.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 1")
        two.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 2")
        one.commit()
        two.commit()
    assert db.execute(f"SELECT b FROM {table} ORDER BY id").rows == [(12,), (22,)]


def test_savepoint_block_passes_the_exception_of_a_signal_on(db: Connection, table: str, interrupt: Interrupt) -> None:
    def block() -> None:
        with db.transaction() as opened, opened.savepoint():
            interrupt(OverlayTransaction, "run")
            opened.execute(f"DELETE FROM {table}")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert db.execute(f"SELECT count(*) FROM {table}").value() == 2


def test_function_that_runs_a_statement_in_the_transaction_that_calls_it_is_refused(
    node: LocalNode,
    db: Connection,  # has made the table
    table: str,
) -> None:
    mine = dbapi.connect(node.database)
    refused: list[BaseException] = []

    def count(_: object) -> int:
        try:
            mine.execute(f"DELETE FROM {table}")
        except dbapi.Error as error:
            refused.append(error)
        return 1

    mine.create_function("counted", 1, count)
    mine.execute(f"INSERT INTO {table}(a, b) VALUES ('new', counted(1))")
    assert ["another connection" in str(error) for error in refused] == [True] * len(refused) != []
    mine.commit()
    assert mine.execute(f"SELECT count(*) FROM {table}").fetchone() == (3,)
    mine.close()


def test_connection_that_an_exception_leaves_to_no_one_is_closed(node: LocalNode, table: str) -> None:
    """An open connection would hold its snapshot for ever: SQLite's functions and tables must not refer to the
    connection.
    """
    connections.KEPT.close_all()
    published = Published(str(node.database))
    facts = published.facts()
    made = connections.connect(published, facts)
    AutoIds().register(made)
    made.execute("SELECT safe_clock(), (SELECT count(*) FROM bedrockish_users), count(label) FROM bedrockish_journal")
    made.execute("SELECT count(*) FROM bedrockish_changes")
    left = weakref.ref(made)
    del made
    gc.collect()
    assert left() is None
    assert (facts.device, facts.inode) not in connections._open.values()
    published.close()


def test_stream_keeps_rows_that_arrived_before_the_handler_of_a_signal_raises(
    other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = other.open_stream("WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) SELECT i FROM n")
    request, found = stream._stream._request_batch, []

    def interrupted() -> None:
        request()
        raise KeyboardInterrupt  # as the handler of Ctrl-C may after each step

    monkeypatch.setattr(stream._stream, "_request_batch", interrupted)
    interrupts = 0
    while True:
        try:
            row = next(stream, None)
        except KeyboardInterrupt:
            interrupts += 1
            continue
        if row is None:
            break
        found.append(row[0])
    assert interrupts > 1
    assert found == list(range(1, 20_001))


def test_second_signal_while_links_are_given_up_leaves_the_connection_usable(
    other: Connection, interrupt: Interrupt
) -> None:
    assert other.execute("SELECT 1").value() == 1
    interrupt(SocketDriver, "_perform")
    interrupt(SocketDriver, "_drop")
    with pytest.raises(KeyboardInterrupt):
        other.execute("SELECT 2")
    assert other.execute("SELECT 3").value() == 3
