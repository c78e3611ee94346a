"""The write lock of SQLite on a node's file: programs that use it as a mutex, and never run a transaction again."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.dialects import registry
from sqlalchemy.exc import OperationalError

import bedrockish.dbapi as db
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
def test_lock_ends_with_its_connection_and_its_process(url: str, tallied: db.Connection) -> None:
    other = opened(url)
    other.execute("BEGIN IMMEDIATE")
    other.close()
    tallied.execute("UPDATE tallied SET n = n + 1")
    with subprocess.Popen([sys.executable, "-c", HOLD, url], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        ended = threading.Timer(0.2, holder.send_signal, [signal.SIGKILL])
        ended.start()
        since = time.monotonic()
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
