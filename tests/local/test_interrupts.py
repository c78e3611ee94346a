"""The end of a statement by another thread: an interrupt, the close of its session, the end of its transaction."""

import threading
import time
from typing import Any

import apsw
import pytest

import bedrockish
from bedrockish import dbapi
from bedrockish.api.requests import Statement
from bedrockish.client.blocking import Connection
from bedrockish.client.in_thread import run
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.errors import DeadlineError, UnavailableError
from bedrockish.local.workspace_pool import WorkspacePool
from tests.local.conftest import here, interrupted
from tools.cluster import LocalCluster, LocalNode

pytestmark = pytest.mark.cluster
BOUND_S, ENDS_S = 60.0, 600.0  # how long a test waits at most, and how long its endless statements may run


def test_interrupt_ends_a_statement(db: Connection, table: str) -> None:
    long = f"WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n, {table}"
    opened = db.begin()
    opened.execute(f"UPDATE {table} SET b = 1 WHERE id = 1")
    for what in (opened.execute, db._client.execute):
        began = time.monotonic()
        with interrupted(db), pytest.raises(DeadlineError) as error:
            what(long, timeout=ENDS_S) if what is opened.execute else run(what, long, timeout=ENDS_S)  # type: ignore[arg-type]
        assert error.value.details["interrupted"]
        assert time.monotonic() - began < BOUND_S
    opened.rollback()


@pytest.mark.parametrize("kind", ["read", "transaction", "temporary"])
def test_close_ends_the_statement_of_another_thread(node: LocalNode, table: str, kind: str) -> None:
    """Otherwise ``close`` would wait for a read, and a transaction would run on and keep the file open."""
    mine = dbapi.connect(node.database, timeout=ENDS_S, isolation_level=None)
    began = threading.Event()
    mine.create_function("begun", 0, began.set)  # returns NULL
    if kind == "temporary":
        mine.execute("CREATE TEMP TABLE own(a)")
    if kind != "read":
        mine.execute("BEGIN")
    failures: list[BaseException] = []

    def count() -> None:
        try:
            mine.execute("WITH n(i) AS (VALUES (begun()) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
        except dbapi.Error as error:
            failures.append(error)

    thread = threading.Thread(target=count)
    thread.start()
    assert began.wait(BOUND_S)
    until = time.monotonic() + BOUND_S
    mine.close()
    thread.join()
    assert time.monotonic() < until
    assert [getattr(error, "code", "") for error in failures] == ["closed"]
    with dbapi.connect(node.database) as again:
        assert again.execute("SELECT 1").fetchone() == (1,)
    again.close()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_failing_sql_of_the_engine_raises_a_typed_error(
    db: Connection, table: str, monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
) -> None:
    """An interrupt may end the EXPLAIN that derives a read set; the program must not get APSW's error."""
    opened = db.begin()
    opened.execute(f"UPDATE {table} SET b = 1 WHERE id = 1")
    one = here(db)._open[opened.command]

    def run(*_: Any, **__: Any) -> Any:
        if is_stopped:
            one.interrupt()
        raise apsw.InterruptError("interrupted")

    with monkeypatch.context() as patched:
        patched.setattr(OverlayTransaction, "run", run)
        with pytest.raises(DeadlineError if is_stopped else UnavailableError, match="did not happen"):
            opened.execute(f"SELECT max(b) FROM {table}")
    opened.rollback()
    with db.transaction() as again:
        assert again.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10


def test_statement_that_waits_for_the_end_of_its_transaction_is_refused(db: Connection, table: str) -> None:
    """Otherwise the statement would run on a connection that the other thread has closed."""
    opened = db.begin()
    opened.execute(f"UPDATE {table} SET b = 1 WHERE id = 1")
    one = here(db)._open[opened.command]
    failures: list[BaseException] = []

    def count() -> None:
        try:
            one.run(Statement(f"SELECT count(*) FROM {table}", ()))
        except BaseException as error:
            failures.append(error)

    with one.lock:
        thread = threading.Thread(target=count)
        thread.start()
        time.sleep(0.2)
        one.end(DeadlineError("too late"))
        one._file_workspace.close()
    thread.join()
    assert [type(error) for error in failures] == [DeadlineError]
    here(db).pool._idle.clear()
    opened.rollback()


def close_while_it_begins(closing: Connection, sql: str, monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException]]:
    """Close a session while another thread has the snapshot of a new transaction; return that thread's errors."""
    is_begun, is_closed, failures = threading.Event(), threading.Event(), list[type[BaseException]]()
    snapshot = WorkspacePool.snapshot

    def wait(*arguments: Any, **options: Any) -> Any:
        moment = snapshot(*arguments, **options)
        is_begun.set()
        is_closed.wait(BOUND_S)
        return moment

    def begin() -> None:
        try:
            closing.begin().execute(sql)
        except BaseException as error:
            failures.append(type(error))

    monkeypatch.setattr(WorkspacePool, "snapshot", wait)
    thread = threading.Thread(target=begin)
    thread.start()
    assert is_begun.wait(BOUND_S)
    closing.close()
    is_closed.set()
    thread.join()
    return failures


def test_transaction_that_begins_while_its_session_is_closed_ends(
    node: LocalNode, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``close`` does not see the transaction yet, so the beginning thread must end it."""
    long = f"SELECT count(*) FROM {table}, {table}, {table}"
    failures = close_while_it_begins(bedrockish.connect(node.database), long, monkeypatch)
    assert failures == [bedrockish.ClientClosedError]


def test_transaction_with_temp_objects_that_begins_while_its_session_is_closed_ends(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``close`` must not close the connections that the beginning thread is using."""
    closing = bedrockish.connect(node.database)
    closing.execute("CREATE TEMP TABLE t(a)")
    mine = here(closing)
    failures = close_while_it_begins(closing, "SELECT count(*) FROM t", monkeypatch)
    assert failures == [bedrockish.ClientClosedError]
    assert mine._temporary is None, "the file was left open"


@pytest.mark.parametrize("is_temporary", [False, True])
def test_begin_on_a_closed_page_raises_client_closed_error(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch, is_temporary: bool
) -> None:
    """The error must not advise to start the node of the file."""
    closing = bedrockish.connect(node.database)
    if is_temporary:
        closing.execute("CREATE TEMP TABLE t(a)")
    serving = WorkspacePool.serving

    def close_first(pool: WorkspacePool) -> Any:
        found = serving(pool)
        closing.close()
        return found

    monkeypatch.setattr(WorkspacePool, "serving", close_first)
    with pytest.raises(bedrockish.ClientClosedError):
        closing.begin().execute("SELECT 1")


def test_interrupt_of_a_statement_that_has_just_ended_does_nothing(db: Connection, table: str) -> None:
    """The interrupting thread must not get APSW's ConnectionClosedError."""
    opened = db.begin()
    opened.execute(f"UPDATE {table} SET b = 1 WHERE id = 1")
    one = here(db)._open[opened.command]
    one._file_workspace.close()
    one.interrupt()
    here(db)._open.clear()


def test_interrupt_of_an_ended_transaction_does_not_reach_the_next_one(db: Connection, table: str) -> None:
    """Both have the same workspace."""
    opened = db.begin()
    opened.execute(f"UPDATE {table} SET b = 1 WHERE id = 1")
    ended = here(db).find(opened.command)
    assert ended is not None
    opened.rollback()
    with db.transaction() as tx:
        tx.execute(f"UPDATE {table} SET b = 2 WHERE id = 1")
        one = here(db).find(tx.command)
        assert one is not None
        assert one._file_workspace is ended._file_workspace
        ended.interrupt()
        tx.execute(f"UPDATE {table} SET b = 3 WHERE id = 1")


def test_closing_by_url_ends_a_transaction_that_runs_a_statement(db: Connection, alone: LocalCluster) -> None:
    """Otherwise the transaction and its row locks would stay until the statement has ended."""
    own = dbapi.connect(alone.url(), isolation_level=None, check_same_thread=False)
    own.execute("BEGIN")
    timer = threading.Timer(0.5, own.close)
    timer.start()
    with pytest.raises(dbapi.Error):
        own.execute("WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
    timer.join()
    until = time.monotonic() + BOUND_S
    while db.status()["open_transactions"]:
        assert time.monotonic() < until
        time.sleep(0.05)
