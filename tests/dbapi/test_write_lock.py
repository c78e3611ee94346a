"""The write lock of SQLite on a node's file: programs that use it as a mutex, and never run a transaction again."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.dialects import registry
from sqlalchemy.exc import OperationalError

import bedrockish.dbapi as db
from bedrockish.client.blocking import Connection as Link
from bedrockish.dbapi import write_lock
from bedrockish.dbapi.write_lock import SUFFIX
from bedrockish.errors import UnavailableError
from bedrockish.local.thread_turn import TURN
from tests.dbapi.conftest import BY_URL

pytestmark = pytest.mark.cluster
BY_PATH = pytest.mark.parametrize("interface", ["path"], indirect=True)
EACH = 15
COUNT = f"""
import sys
import bedrockish.dbapi as db
connection = db.connect(sys.argv[1], 30, isolation_level=None, write_lock=True)
for _ in range({EACH}):
    connection.execute("BEGIN IMMEDIATE")
    (n,) = connection.execute("SELECT n FROM tallied").fetchone()
    connection.execute("UPDATE tallied SET n = ?", (n + 1,))
    connection.execute("COMMIT")
"""
HOLD = """
import sys, time
import bedrockish.dbapi as db
connection = db.connect(sys.argv[1], 30, isolation_level=None, write_lock=True)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(60)
"""
FORK = """
import os, sys
import bedrockish.dbapi as db
connection = db.connect(sys.argv[1], 5, isolation_level=None, write_lock=True)
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE tallied SET n = n + 1")
if not os.fork():
    connection.close()
    try:
        db.connect(sys.argv[1], 0, isolation_level=None, write_lock=True).execute("BEGIN IMMEDIATE")
    except db.OperationalError as error:
        print(error.sqlite_errorname, flush=True)
    os._exit(0)
os.wait()
connection.execute("COMMIT")
"""


FORK_IN_C = """
import ctypes, os, sys, time
import bedrockish.dbapi as db
connection = db.connect(sys.argv[1], 5, isolation_level=None, write_lock=True)
connection.execute("BEGIN IMMEDIATE")
child = ctypes.CDLL(None).fork()
if not child:
    time.sleep(60)
print(child, flush=True)
os._exit(0)
"""


def opened(url: str, wait_s: float = 30) -> db.Connection:
    return db.connect(url, wait_s, isolation_level=None, write_lock=True)


@pytest.fixture
def tallied(url: str) -> Iterator[db.Connection]:
    """A connection with the lock, and a table with a counter."""
    with closing(opened(url)) as connection:
        connection.executescript("DROP TABLE IF EXISTS tallied; CREATE TABLE tallied(n INTEGER NOT NULL)")
        connection.execute("INSERT INTO tallied VALUES (0)")
        yield connection


def value(connection: db.Connection) -> int:
    (n,) = connection.execute("SELECT n FROM tallied").fetchone()
    return int(n)


@BY_PATH
def test_begin_immediate_is_a_mutex_of_processes_and_threads(url: str, tallied: db.Connection) -> None:
    """Without the lock, all but one of the transactions that read the same value lose at COMMIT."""
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, url]) for _ in range(2)]

    def count() -> None:
        with closing(opened(url)) as connection:
            for _ in range(EACH):
                connection.execute("BEGIN EXCLUSIVE TRANSACTION")
                connection.execute("UPDATE tallied SET n = ?", (value(connection) + 1,))
                connection.execute("COMMIT")

    threads = [threading.Thread(target=count) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [one.wait() for one in processes] == [0, 0]
    assert value(tallied) == 4 * EACH


@BY_PATH
def test_transactions_wait_from_their_first_write_on(url: str, tallied: db.Connection) -> None:
    with closing(opened(url)) as holder, closing(opened(url, 0)) as refused:
        holder.isolation_level = ""
        holder.execute("UPDATE tallied SET n = n + 1")
        for write in (
            partial(refused.execute, "UPDATE tallied SET n = n + 1"),
            partial(refused.executemany, "UPDATE tallied SET n = n + ?", [(1,), (1,)]),
            partial(refused.execute, "CREATE TABLE refused(x)"),
            partial(refused.execute, "BEGIN IMMEDIATE"),
        ):
            with pytest.raises(db.OperationalError, match="database is locked") as caught:
                write()
            assert (caught.value.sqlite_errorname, caught.value.retry) == ("SQLITE_BUSY", True)
            assert not refused.in_transaction
        assert value(refused) == 0  # reads do not wait, and TEMP objects need no lock, as in SQLite
        refused.execute("CREATE TEMP TABLE own(x)")
        refused.execute("BEGIN")
        assert value(refused) == 0
        with pytest.raises(db.OperationalError, match="database is locked"):
            refused.execute("UPDATE tallied SET n = n + 1")
        assert refused.in_transaction
        refused.execute("ROLLBACK")
        holder.commit()
        refused.execute("UPDATE tallied SET n = n + 1")
        holder.execute("UPDATE tallied SET n = n + 1")
        holder.commit()
    assert value(tallied) == 3


@BY_PATH
def test_writes_into_temp_tables_need_no_lock(url: str, tallied: db.Connection) -> None:
    with closing(opened(url, 0)) as other:
        other.execute("CREATE TEMP TABLE own(x)")
        tallied.execute("BEGIN IMMEDIATE")
        for write in (
            "INSERT INTO own VALUES (1)",
            "WITH two(x) AS (SELECT 2) INSERT OR IGNORE INTO [Own] SELECT x FROM two",
            "UPDATE OR IGNORE own SET x = x + 1",
            "DELETE FROM temp.own WHERE x = 2",
        ):
            other.execute(write)
        other.execute("BEGIN")
        other.execute("INSERT INTO own VALUES (4)")
        with pytest.raises(db.OperationalError, match="database is locked"):
            other.execute("UPDATE tallied SET n = 5")
        other.execute("COMMIT")
        assert other.execute("SELECT x FROM own").fetchall() == [(3,), (4,)]
        other.execute("CREATE TEMP TRIGGER more AFTER INSERT ON own BEGIN UPDATE tallied SET n = n + 1; END")
        with pytest.raises(db.OperationalError, match="database is locked"):
            other.execute("INSERT INTO own VALUES (1)")


@BY_PATH
def test_name_of_a_dropped_temp_table_needs_the_lock(url: str, tallied: db.Connection) -> None:
    with closing(opened(url, 0)) as other:
        other.executescript("CREATE TEMP TABLE renamed(x); DROP TABLE renamed; CREATE TABLE IF NOT EXISTS renamed(x)")
        tallied.execute("BEGIN IMMEDIATE")
        with pytest.raises(db.OperationalError, match="database is locked"):
            other.execute("INSERT INTO renamed VALUES (1)")


@BY_PATH
def test_busy_timeout_bounds_the_wait_for_the_lock(url: str, tallied: db.Connection) -> None:
    tallied.execute("BEGIN IMMEDIATE")
    with closing(opened(url, 60)) as other:
        assert other.execute("PRAGMA busy_timeout").fetchall() == [(60_000,)]
        assert other.execute("PRAGMA busy_timeout = 30").fetchall() == [(30,)]
        with pytest.raises(db.OperationalError, match=r"for 0\.03 s"):
            other.execute("BEGIN IMMEDIATE")


@BY_PATH
def test_thread_that_waits_for_the_lock_has_no_turn(
    url: str, tallied: db.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = list[int]()
    monkeypatch.setattr(write_lock, "time", SimpleNamespace(sleep=lambda _: holders.append(TURN._holder)))
    with closing(opened(url, 60)) as other:
        tallied.execute("BEGIN IMMEDIATE")
        other.execute("PRAGMA busy_timeout = 20")
        with TURN:
            pass
        assert TURN._holder == threading.get_ident()
        with pytest.raises(db.OperationalError, match="another transaction has held"):
            other.execute("BEGIN IMMEDIATE")
        tallied.execute("ROLLBACK")
    assert holders
    assert not any(holders)


@BY_PATH
def test_error_tells_that_a_forked_process_keeps_the_lock_of_a_dead_one(url: str, tallied: db.Connection) -> None:
    """A fork by C code copies the lock, and runs no code of Python's in the child."""
    with subprocess.Popen([sys.executable, "-c", FORK_IN_C, url], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.wait()
    try:
        if f" {parent.pid} " not in Path("/proc/locks").read_text():
            pytest.skip("the system does not list the locks of processes that have ended")
        tallied.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(db.OperationalError, match=f"process {parent.pid} has ended, and a process that it forked"):
            tallied.execute("BEGIN IMMEDIATE")
    finally:
        os.kill(child, signal.SIGKILL)
    tallied.execute("PRAGMA busy_timeout = 30000")
    tallied.execute("UPDATE tallied SET n = n + 1")


@BY_PATH
def test_lock_ends_with_its_connection_and_its_process(url: str, tallied: db.Connection) -> None:
    other = opened(url)
    other.execute("BEGIN IMMEDIATE")
    other.close()
    tallied.execute("UPDATE tallied SET n = n + 1")
    with subprocess.Popen([sys.executable, "-c", HOLD, url], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        ended = threading.Timer(0.2, holder.send_signal, [signal.SIGKILL])
        since = time.monotonic()
        ended.start()
        tallied.execute("UPDATE tallied SET n = n + 1")
        assert time.monotonic() - since > 0.1
        ended.join()
    assert value(tallied) == 2


@BY_PATH
def test_forked_child_leaves_the_lock_to_its_parent(url: str, tallied: db.Connection) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, url]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert told == "SQLITE_BUSY\n"
    assert value(tallied) == 1


@BY_PATH
def test_closing_ends_the_wait_of_another_thread(url: str, tallied: db.Connection) -> None:
    tallied.execute("BEGIN IMMEDIATE")
    waiting = opened(url)
    ended = threading.Timer(0.2, waiting.close)
    ended.start()
    with pytest.raises(db.ProgrammingError, match="closed"):
        waiting.execute("BEGIN IMMEDIATE")
    ended.join()


@BY_PATH
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EIO, "broken")])
def test_interrupted_call_leaves_no_lock(
    url: str, tallied: db.Connection, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with closing(opened(url, 0)) as interrupted:
        monkeypatch.setattr(os, "pread", fail)
        with pytest.raises((KeyboardInterrupt, db.Error), match=r"broken|^$"):
            interrupted.execute("BEGIN IMMEDIATE")
        monkeypatch.undo()
        tallied.execute("UPDATE tallied SET n = n + 1")
        interrupted.execute("UPDATE tallied SET n = n + 1")
    assert value(tallied) == 2


@BY_PATH
def test_begin_that_fails_leaves_no_lock(url: str, tallied: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise UnavailableError("no room")

    with closing(opened(url, 0)) as failed:
        monkeypatch.setattr(Link, "begin", fail)
        with pytest.raises(db.OperationalError, match="no room"):
            failed.execute("BEGIN IMMEDIATE")
        monkeypatch.undo()
        tallied.execute("UPDATE tallied SET n = n + 1")


@BY_PATH
def test_commit_succeeds_and_releases_the_lock_on_a_full_disk(
    url: str, tallied: db.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with closing(opened(url, 0)) as other:
        monkeypatch.setattr(os, "pwrite", full)
        tallied.execute("UPDATE tallied SET n = n + 1")
        monkeypatch.undo()
        other.execute("UPDATE tallied SET n = n + 1")
    assert value(tallied) == 2


@BY_PATH
def test_lock_excludes_others_after_its_file_was_removed(url: str, tallied: db.Connection) -> None:
    """Otherwise a connection that has the removed file open would write at the same time as one with the next file."""
    with closing(opened(url)) as other, closing(opened(url, 0)) as late:
        late.execute("UPDATE tallied SET n = n + 1")
        os.unlink(url + SUFFIX)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(db.OperationalError, match="database is locked"):
            late.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        late.execute("UPDATE tallied SET n = n + 1")


@BY_PATH
def test_schema_statement_that_commits_has_the_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``schema_commits``, the COMMIT before the statement releases the lock."""
    held: list[bool] = []
    with closing(db.connect(url, 0, autocommit=False, schema_commits=True, write_lock=True)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS counted(n)")
        lock, execute = connection._session.lock, Link.execute
        assert lock is not None

        def noted(link: Link, *arguments: Any, **options: Any) -> Any:
            held.append(lock.is_held)
            return execute(link, *arguments, **options)

        connection.execute("INSERT INTO counted VALUES (1)")
        monkeypatch.setattr(Link, "execute", noted)
        connection.execute("DROP TABLE counted")
        assert not lock.is_held
    assert held == [True]


@BY_PATH
def test_handler_of_a_signal_may_close_the_connection(
    url: str, tallied: db.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the thread that acquires the lock, and must not wait for this thread."""
    connection, read = opened(url, 0), os.pread

    def read_after_signal(*arguments: Any) -> bytes:
        connection.close()
        return read(*arguments)

    monkeypatch.setattr(os, "pread", read_after_signal)
    with pytest.raises(db.Error):
        connection.execute("BEGIN IMMEDIATE")
    monkeypatch.undo()
    tallied.execute("UPDATE tallied SET n = n + 1")


@BY_PATH
def test_url_of_sqlalchemy_asks_for_the_lock(url: str, tallied: db.Connection) -> None:
    registry.register("bedrockish", "bedrockish.sqlalchemy.dialect", "BedrockishDialect")
    tallied.execute("BEGIN IMMEDIATE")
    engine = create_engine(f"bedrockish:///{url}?write_lock=yes", connect_args={"timeout": 0})
    with pytest.raises(OperationalError, match="database is locked"), engine.begin() as connection:
        connection.execute(text("UPDATE tallied SET n = n + 1"))
    engine.dispose()


@BY_URL
def test_lock_is_refused_without_a_file(url: str) -> None:
    with pytest.raises(db.NotSupportedError, match="connect by its path"):
        opened(url)
