"""Sessions that use the connections of a closed session, and the ends of connections that no session uses."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

import bedrockish
from bedrockish import dbapi
from bedrockish.api.requests import Token, seal_token
from bedrockish.client.local_steps import LocalSteps
from bedrockish.client.session import Session
from bedrockish.client.socket_driver import SocketDriver
from bedrockish.errors import AuthenticationError, UnavailableError
from bedrockish.local import connections
from bedrockish.local.reads import KEEPER
from bedrockish.local.snapshots import FileConnections
from tests.local.conftest import BOUND_S, calls_made, here
from tools.cluster import LocalCluster, LocalNode, local_cluster


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Return a list that notes each connection of SQLite that a session opens."""
    found: list[object] = []
    original = connections.connect

    def noted(*arguments: Any) -> Any:
        found.append(arguments)
        return original(*arguments)

    connections.KEPT.close_all()
    monkeypatch.setattr(connections, "connect", noted)
    yield found
    connections.KEPT.close_all()


@pytest.fixture
def filled(node: LocalNode, table: str) -> str:
    with closing(dbapi.connect(node.database)) as db:
        db.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)")
        db.execute(f"INSERT INTO {table} VALUES (1, 'one')")
        db.commit()
    return table


def session(node: LocalNode, table: str) -> Any:
    """Read and write in a session of its own; return the row that the session has read."""
    with closing(dbapi.connect(node.database)) as db:
        found = db.execute(f"SELECT a FROM {table} WHERE id = 1").fetchone()
        db.execute(f"UPDATE {table} SET a = a || '+' WHERE id = 1")
        db.commit()
        return found[0]


def wait(until: Callable[[], object]) -> None:
    end = time.monotonic() + BOUND_S
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_session_opens_no_connection_after_another_has_closed(
    node: LocalNode, filled: str, opened: list[object]
) -> None:
    assert session(node, filled) == "one"
    assert len(opened) == 3  # two for reads, and one for transactions, whose overlay is a file of its own
    assert session(node, filled) == "one+"
    assert session(node, filled) == "one++"
    assert len(opened) == 3


def test_session_that_takes_over_connections_makes_no_call_before_it_needs_the_node(
    node: LocalNode, filled: str, alone: LocalCluster
) -> None:
    connections.KEPT.close_all()
    with closing(dbapi.connect(node.database)) as db:
        assert calls_made(db._link) > 0
        known = db._link.cluster_id
    with closing(dbapi.connect(node.database)) as db:
        assert db.execute(f"SELECT a FROM {filled}").fetchall() == [("one",)]
        assert calls_made(db._link) == 0
        assert db._link.cluster_id == known
        token = db.token
        db.execute("BEGIN")
        db.execute(f"UPDATE {filled} SET a = 'two'")
        assert here(db._link).has_any
        assert (calls_made(db._link) > 0, db._link.cluster_id) == (True, known)
    with closing(dbapi.connect(alone.url(), token=token)) as other:
        assert other._link.cluster_id == known
    foreign = seal_token(Token({"A": 1}, 1), "another")
    with pytest.raises(dbapi.ProgrammingError, match="this is the cluster another"):
        dbapi.connect(node.database, token=foreign)
    with closing(dbapi.connect(f"{alone.url()}?local={node.database}")) as db:
        assert calls_made(db._link) > 0  # its other nodes may belong to another cluster


@pytest.mark.parametrize("other", [False, True])
def test_session_after_one_that_failed_to_reach_the_node_tries_to_reach_it(
    node: LocalNode, filled: str, monkeypatch: pytest.MonkeyPatch, other: bool, alone: LocalCluster
) -> None:
    """The first session reaches no node, or another one than that of the file."""
    connections.KEPT.close_all()
    with monkeypatch.context() as patch:
        patch.setattr(LocalSteps, "is_at_file_node", lambda _: False)
        if other:
            dbapi.connect(f"{alone.url()}?local={node.database}").close()
        else:
            patch.setattr(Session, "ping", denied)
            with pytest.raises(dbapi.OperationalError, match="denied"):
                dbapi.connect(node.database)
    with closing(dbapi.connect(node.database)) as db:
        assert calls_made(db._link) > 0
        assert db.execute(f"SELECT a FROM {filled}").fetchall() == [("one",)]


def test_first_call_of_a_session_that_takes_over_connections_waits_no_longer_than_its_timeout(
    node: LocalNode, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(node, filled)
    waits: list[float] = []

    async def gone(_driver: SocketDriver, _what: object, timeout_s: float) -> None:
        waits.append(timeout_s)
        raise UnavailableError("gone")

    update = f"UPDATE {filled} SET a = 'two'"
    for in_statement in (True, False):
        with bedrockish.connect(node.database) as db, monkeypatch.context() as patch:
            patch.setattr(SocketDriver, "_call", gone)
            run = db.execute if in_statement else db.begin(timeout=0.5).execute
            with pytest.raises(UnavailableError, match="gone"):
                run(update, timeout=0.5)
    assert waits == [0.5] * 2


def test_session_bound_to_a_cluster_by_its_url_reaches_the_node(node: LocalNode, filled: str) -> None:
    session(node, filled)
    with closing(dbapi.connect(f"bedrockish:///?local={node.database}")) as db:
        assert calls_made(db._link) == 0
    with pytest.raises(dbapi.Error, match="of cluster 'another'"):
        dbapi.connect(f"bedrockish:///?local={node.database}&cluster=another")
    with closing(dbapi.connect(f"bedrockish:///?local={node.database}&cluster=bedrockish")) as db:
        assert calls_made(db._link) > 0


async def denied(_session: Session) -> None:
    raise AuthenticationError("denied")


def test_end_of_a_session_waits_for_no_lock_of_the_keeper(node: LocalNode, filled: str) -> None:
    """The collector may end a session while the same thread has the lock."""
    db = dbapi.connect(node.database)
    thread = threading.Thread(target=db.close)
    with KEEPER._lock:
        thread.start()
        thread.join(2)
        assert not thread.is_alive()
    assert connections.KEPT._kept
    assert connections.KEPT in KEEPER._kept


def test_sessions_that_are_open_together_have_connections_of_their_own(node: LocalNode, filled: str) -> None:
    session(node, filled)
    with closing(dbapi.connect(node.database)) as first, closing(dbapi.connect(node.database)) as second:
        first.execute(f"UPDATE {filled} SET a = 'first'")
        second.execute(f"UPDATE {filled} SET a = 'second'")
        mine = f"SELECT a FROM {filled}"
        assert [db.execute(mine).fetchone() for db in (first, second)] == [("first",), ("second",)]
        second.rollback()
        first.commit()
        assert second.execute(mine).fetchone() == ("first",)


def test_next_session_sees_nothing_of_an_open_transaction_that_was_closed(
    node: LocalNode, filled: str, opened: list[object]
) -> None:
    with closing(dbapi.connect(node.database)) as db:
        db.execute(f"UPDATE {filled} SET a = 'lost'")
        db.execute(f"INSERT INTO {filled}(a) VALUES ('lost')")
    before = len(opened)
    with closing(dbapi.connect(node.database)) as db:
        for begin in ("SELECT 1", "BEGIN"):
            db.execute(begin)
            assert db.execute(f"SELECT a FROM {filled}").fetchall() == [("one",)]
            assert not db.in_transaction or begin == "BEGIN"
        assert (db.total_changes, db.execute("SELECT changes(), last_insert_rowid()").fetchone()) == (0, (0, 0))
    assert len(opened) == before


@pytest.mark.parametrize("own", ["function", "collation", "handler", "attached", "detached", "temporary"])
def test_next_session_lacks_the_functions_files_and_tables_of_a_closed_session(
    node: LocalNode, filled: str, own: str, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE hidden(a)")
    with closing(dbapi.connect(node.database)) as db:
        if own == "function":
            db.create_function("mine", 0, lambda: 7)
        elif own == "collation":
            db.create_collation("mine", lambda a, b: (a > b) - (a < b))
        elif own == "handler":
            db.set_progress_handler(lambda: 0, 1)
        elif own == "temporary":
            db.execute("CREATE TEMP TABLE hidden(a)")
        else:
            db.execute(f"ATTACH '{tmp_path / 'other.sqlite'}' AS other")
            if own == "detached":
                db.execute("DETACH other")
        db.execute(f"UPDATE {filled} SET a = 'two'")
        db.commit()
    with closing(dbapi.connect(node.database)) as db:
        for begin in ("SELECT 1", "BEGIN"):
            db.execute(begin)
            assert db.execute(f"SELECT a FROM {filled}").fetchall() == [("two",)]
            for sql in ("SELECT mine()", f"SELECT a FROM {filled} ORDER BY a COLLATE mine", "SELECT a FROM hidden"):
                with pytest.raises(dbapi.Error, match="no such"):
                    db.execute(sql)
                db.rollback()
                db.execute(begin)


def test_next_session_uses_the_schema_of_a_change_in_between(node: LocalNode, filled: str, alone: LocalCluster) -> None:
    with bedrockish.connect(alone.url()) as other:
        for number in range(3):
            session(node, filled)
            other.execute(f"ALTER TABLE {filled} ADD COLUMN c{number} DEFAULT {number}")
            with closing(dbapi.connect(node.database, token=other.token)) as db:
                found = [db.execute(f"SELECT * FROM {filled}").fetchone()[2:]]
                db.execute("BEGIN")
                found.append(db.execute(f"SELECT * FROM {filled}").fetchone()[2:])
                assert found == [tuple(range(number + 1))] * 2


def test_unused_connections_are_closed_after_a_second(
    node: LocalNode, filled: str, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connections.KEEP_S == 1
    with monkeypatch.context() as patched:
        patched.setattr(connections, "KEEP_S", 1e9)
        session(node, filled)
        assert connections.KEPT._kept
    place = os.stat(node.database)
    wait(lambda: not connections.KEPT._kept)
    assert (place.st_dev, place.st_ino) not in connections._open.values()
    assert session(node, filled) == "one+"
    assert len(opened) == 6


def test_unused_connections_are_closed_when_their_node_no_longer_serves(
    node: LocalNode, filled: str, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEEP_S", 1e9)
    session(node, filled)
    monkeypatch.setattr(FileConnections, "is_served", lambda _: False)
    wait(lambda: not connections.KEPT._kept)
    monkeypatch.undo()
    assert session(node, filled) == "one+"


def test_connect_after_a_kill_of_the_node_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_S", 1e9)
    with local_cluster(tmp_path / "node", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        node = cluster.nodes[0]
        for _ in range(2):
            with bedrockish.connect(node.database) as db:
                assert db.execute("SELECT 1").value() == 1
        assert connections.KEPT._kept
        node.kill()
        with pytest.raises(UnavailableError):
            bedrockish.connect(node.database)


def test_connections_to_a_file_that_was_exchanged_are_not_used(
    node: LocalNode, filled: str, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.KEPT, "tick", lambda: None)
    session(node, filled)
    kept: Any = connections.KEPT._kept[0][1]
    for reader in kept.released.readers:
        reader.facts = reader.facts._replace(generation=reader.facts.generation + 1)
    assert session(node, filled) == "one+"
    assert len(opened) == 6


def test_sqlite3_may_open_the_file_as_soon_as_all_sessions_are_closed(node: LocalNode, filled: str) -> None:
    session(node, filled)
    with closing(sqlite3.connect(f"file:{node.database}?mode=ro", uri=True)) as db:
        assert db.execute(f"SELECT a FROM {filled}").fetchall() == [("one+",)]
    session(node, filled)
    with open(f"{node.database}-shm", "rb") as file:
        assert file.read(4)


def test_closed_statement_of_another_thread_leaves_no_connection(
    node: LocalNode, filled: str, opened: list[object]
) -> None:
    db = dbapi.connect(node.database)
    failed: list[dbapi.Error] = []

    def run() -> None:
        try:
            db.execute("WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")
        except dbapi.Error as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait(lambda: db._link.file is not None and db._link.file._is_running)
    db.close()
    thread.join(BOUND_S)
    assert failed
    assert not connections.KEPT._kept
    assert session(node, filled) == "one"


def test_session_of_another_user_has_connections_of_its_own() -> None:
    ends: list[str] = []

    class Left:
        def is_served(self) -> bool:
            return True

        def close(self) -> None:
            ends.append("closed")

    kept = connections.KeptConnections()
    kept.keep(("A.sqlite", "ann"), Left())
    assert kept.take(("A.sqlite", "bob")) is None
    assert kept.take(("A.sqlite", "ann")) is not None
    for _ in range(connections.KEPT_MAX + 2):
        kept.keep(("A.sqlite", "ann"), Left())
    assert len(ends) == 2
    kept.end()
    kept.keep(("A.sqlite", "ann"), Left())
    assert len(ends) == connections.KEPT_MAX + 3


PROGRAM = """
import os, sys
from bedrockish import dbapi
from bedrockish.local import connections
def read():
    db = dbapi.connect(sys.argv[1])
    return db, db.execute("SELECT a FROM {table}").fetchall()
read()[0].close()
child = os.fork()
if not child:
    assert not connections.KEPT._kept
    os._exit(read()[1] != [("one",)])
assert os.waitpid(child, 0)[1] == 0
left, rows = read()
read()[0].close()
assert connections.KEPT._kept
print(rows)
"""


def test_forked_child_and_the_end_of_the_program_leave_the_connections_alone(node: LocalNode, filled: str) -> None:
    """The program ends with a session open, and with connections that no session uses."""
    command = [sys.executable, "-X", "dev", "-c", PROGRAM.format(table=filled), str(node.database)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert (told.stdout, told.returncode) == ("[('one',)]\n", 0), told.stderr
    assert "Error" not in told.stderr
