"""Open transactions that run in the program: the answers, errors and guarantees of a URL, and one call at COMMIT."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import bedrockish
from bedrockish import dbapi
from bedrockish.api.requests import Request, Token
from bedrockish.api.wire import COMMIT, Step
from bedrockish.client import socket_driver
from bedrockish.client.blocking import Connection
from bedrockish.client.in_thread import run
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    DeadlineError,
    SqlError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from bedrockish.local import transactions
from bedrockish.local.prepared import decode_prepared, encode_prepared
from bedrockish.node.transactions.programs import AT_ONCE_BYTES
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import encode_changes
from tests.local.conftest import calls_made, here
from tools.cluster import LocalCluster, LocalNode, local_cluster


def test_node_learns_of_a_transaction_at_commit(db: Connection, other: Connection, table: str) -> None:
    with db.transaction() as tx:
        assert tx.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10
        before = calls_made(db)
        for _ in range(2_000):
            assert tx.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 1").rowcount == 1
        assert calls_made(db) == before
        assert tx.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 2010
        assert here(db).has_any
        assert other.status()["open_transactions"] == 0
    assert db.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 2010
    other.token = db.token
    assert other.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 2010


def test_commit_returns_its_place_and_happens_once(db: Connection, table: str) -> None:
    opened = db.begin()
    opened.execute(f"INSERT INTO {table} VALUES (3, 'three', 3)")
    place = opened.commit().place
    assert place is not None
    assert place[0] == "A"
    assert db.settle(opened.command)
    assert not db.settle("c" * 20 + "never")


def test_program_releases_its_snapshot_while_the_node_commits(
    db: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, forget = list[int](), here(db).forget

    def noted(command: str) -> None:
        under_way.append(len(db._client._waiting))
        forget(command)

    with db.transaction() as tx:
        tx.execute(f"UPDATE {table} SET a = 12 WHERE id = 1")
        monkeypatch.setattr(here(db), "forget", noted)
    assert under_way == [1, 0], "the COMMIT is sent before, and answered after"


def test_rollback_leaves_no_state_at_the_node(db: Connection, table: str) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        assert tx.execute(f"DELETE FROM {table}").rowcount / 0
    assert db.execute(f"SELECT count(*) FROM {table}").value() == 2
    opened = db.begin()
    opened.execute(f"DELETE FROM {table}")
    opened.rollback()
    opened.rollback()
    assert db.execute(f"SELECT count(*) FROM {table}").value() == 2


def test_reading_transaction_sends_no_message(db: Connection, table: str) -> None:
    with db.transaction() as tx:
        assert tx.execute(f"SELECT count(*) FROM {table}").value() == 2
        command = tx.command
    assert db._client._core.has_only_read(command) is False, "no call was made for it"


def test_transaction_by_path_keeps_its_snapshot(db: Connection, other: Connection, table: str) -> None:
    with db.transaction() as tx:
        assert tx.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10
        other.execute(f"UPDATE {table} SET b = 11 WHERE id = 1")
        other.execute(f"INSERT INTO {table} VALUES (9, 'nine', 9)")
        assert tx.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10
        assert tx.execute(f"SELECT count(*) FROM {table}").value() == 2


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_read_set_counts_only_when_serializable(db: Connection, other: Connection, table: str, isolation: str) -> None:
    """Write skew: each of two transactions reads the row that the other one writes."""
    opened = db.begin(isolation=isolation)
    assert opened.execute(f"SELECT b FROM {table} WHERE id = 2").value() == 20
    opened.execute(f"UPDATE {table} SET b = 0 WHERE id = 1")
    other.execute(f"UPDATE {table} SET b = 21 WHERE id = 2")
    if isolation == "snapshot":
        opened.commit()
        return
    with pytest.raises(ConflictError) as error:
        opened.commit()
    assert table in error.value.details["table"]
    assert error.value.details["other"]
    assert error.value.retry


def test_two_writes_of_one_row_are_a_conflict(db: Connection, other: Connection, table: str) -> None:
    for isolation in ("serializable", "snapshot"):
        opened = db.begin(isolation=isolation)
        opened.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 1")
        other.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 1")
        with pytest.raises(ConflictError):
            opened.commit()


def test_inserted_phantom_row_is_a_conflict(db: Connection, other: Connection, table: str) -> None:
    opened = db.begin()
    assert opened.execute(f"SELECT count(*) FROM {table} WHERE id > 1").value() == 1
    opened.execute(f"INSERT INTO {table} VALUES (100, 'h', 1)")
    other.execute(f"INSERT INTO {table} VALUES (50, 'f', 1)")
    with pytest.raises(ConflictError):
        opened.commit()


def test_run_transaction_repeats_a_lost_transaction(db: Connection, other: Connection, table: str) -> None:
    tries = 0

    def work(tx: Any) -> int:
        nonlocal tries
        tries += 1
        found = tx.execute(f"SELECT b FROM {table} WHERE id = 1").value()
        if tries == 1:
            other.execute(f"UPDATE {table} SET b = 30 WHERE id = 1")
        tx.execute(f"UPDATE {table} SET b = ? WHERE id = 1", (found + 1,))
        return int(found)

    assert db.run_transaction(work) == 30
    assert tries == 2
    assert db.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 31


def test_savepoints_roll_back_a_part_of_a_transaction(db: Connection, table: str) -> None:
    with db.transaction() as tx:
        tx.execute(f"INSERT INTO {table} VALUES (3, 'three', 3)")
        with pytest.raises(ConstraintError), tx.savepoint():
            tx.run([f"INSERT INTO {table} VALUES (4, 'four', 4)", f"INSERT INTO {table} VALUES (5, 'one', 5)"])
        tx.run(["SAVEPOINT x", f"DELETE FROM {table}", "ROLLBACK TO x", "RELEASE x"])
        with pytest.raises(SqlError, match="no such savepoint"):
            tx.execute("RELEASE y")
        assert tx.execute(f"SELECT id FROM {table} ORDER BY id").rows == [(1,), (2,), (3,)]
    assert db.execute(f"SELECT id FROM {table} ORDER BY id").rows == [(1,), (2,), (3,)]


def test_triggers_foreign_keys_generated_columns_and_returning_work(
    db: Connection, other: Connection, table: str
) -> None:
    for sql in (
        f"CREATE TABLE {table}p(id INTEGER PRIMARY KEY, n INTEGER, twice AS (2 * n), s AS (n + 1) STORED)",
        f"CREATE TABLE {table}c(id INTEGER PRIMARY KEY, p REFERENCES {table}p ON DELETE CASCADE DEFERRABLE INITIALLY "
        "DEFERRED)",
        f"CREATE TABLE {table}log(what)",
        f"CREATE TRIGGER {table}t AFTER INSERT ON {table}p BEGIN INSERT INTO {table}log VALUES ('new ' || new.twice); "
        "END",
    ):
        other.execute(sql)
    db.token = other.token
    with db.transaction() as tx:
        found = tx.execute(f"INSERT INTO {table}p(id, n) VALUES (1, 7), (2, 8) RETURNING id, twice, s")
        assert found.rows == [(1, 14, 8), (2, 16, 9)]
        tx.execute(f"INSERT INTO {table}c VALUES (2, 1)")
        assert tx.execute(f"SELECT what FROM {table}log ORDER BY 1").rows == [("new 14",), ("new 16",)]
        tx.execute(f"INSERT INTO {table}c VALUES (3, 2)")
        tx.execute(f"DELETE FROM {table}p WHERE id = 2")
        assert tx.execute(f"SELECT id FROM {table}c").rows == [(2,)]
    assert db.execute(f"SELECT id FROM {table}c").rows == [(2,)]
    assert db.execute(f"SELECT id, twice, s FROM {table}p").rows == [(1, 14, 8)]


def test_deferred_constraint_can_be_mended(db: Connection, other: Connection, table: str) -> None:
    other.execute(f"CREATE TABLE {table}p(id INTEGER PRIMARY KEY)")
    other.execute(f"CREATE TABLE {table}c(p REFERENCES {table}p DEFERRABLE INITIALLY DEFERRED)")
    db.token = other.token
    with db.transaction() as tx:
        tx.execute(f"INSERT INTO {table}c VALUES (3)")
        with pytest.raises(ConstraintError, match="FOREIGN KEY"):
            tx.commit()
        assert tx.is_open
        tx.execute(f"INSERT INTO {table}p VALUES (3)")
    assert db.execute(f"SELECT p FROM {table}c").rows == [(3,)]


def test_concurrent_delete_of_a_parent_row_is_a_conflict(db: Connection, other: Connection, table: str) -> None:
    other.execute(f"CREATE TABLE {table}p(id INTEGER PRIMARY KEY)")
    other.execute(f"CREATE TABLE {table}c(id INTEGER PRIMARY KEY, p REFERENCES {table}p)")
    other.execute(f"INSERT INTO {table}p VALUES (1)")
    db.token = other.token
    for isolation in ("serializable", "snapshot"):
        opened = db.begin(isolation=isolation)
        opened.execute(f"INSERT INTO {table}c(p) VALUES (1)")
        other.execute(f"DELETE FROM {table}p")
        with pytest.raises(ConflictError):
            opened.commit()
        other.execute(f"INSERT INTO {table}p VALUES (1)")
        db.token = other.token


def test_programs_and_node_give_each_row_its_own_id(
    node: LocalNode, db: Connection, other: Connection, table: str
) -> None:
    """The node leases blocks of ids: no program loses to another one because both insert."""
    other.execute(f"CREATE TABLE {table}i(id INTEGER PRIMARY KEY AUTOINCREMENT, a)")
    lost: list[BedrockishError] = []

    def insert() -> None:
        with bedrockish.connect(node.database, token=other.token) as mine:
            for number in range(40):
                try:
                    with mine.transaction() as tx:
                        first = tx.execute(f"INSERT INTO {table}i(a) VALUES (?)", (number,)).lastrowid
                        again = tx.execute(f"INSERT INTO {table}i(a) VALUES (?) RETURNING id", (number,)).value()
                        assert first is not None
                        assert again > first
                except ConflictError as error:
                    lost.append(error)

    threads = [threading.Thread(target=insert) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(100):
        other.execute(f"INSERT INTO {table}i(a) VALUES (?)", (number,))
    for thread in threads:
        thread.join()
    assert not lost
    assert other.execute(f"SELECT count(*), count(DISTINCT id) FROM {table}i").one() == (420, 420)


def test_ids_of_a_transaction_that_was_rolled_back_are_given_again(db: Connection, table: str) -> None:
    """SQLite does so, too. In a table that was made again, ids begin again, even if the program had leased others."""
    insert, found = f"INSERT INTO {table}i(a) VALUES (1) RETURNING id", list[Any]()
    for _ in range(2):
        db.execute(f"CREATE TABLE {table}i(id INTEGER PRIMARY KEY, a)")
        for _ in range(2):
            opened = db.begin()
            found = [opened.execute(insert).value() for _ in range(3)]
            assert found[0] == 1
            assert found == sorted(set(found))
            opened.rollback()
        with db.transaction() as opened:
            assert [opened.execute(insert).value() for _ in range(3)] == found
        with db.transaction() as opened:
            assert opened.execute(insert).value() > found[-1]
        db.execute(f"DROP TABLE {table}i")


ERRORS: tuple[tuple[str, Any], ...] = (
    ("INSERT INTO {t} VALUES (1, 'x', 1)", None),
    ("INSERT INTO {t} VALUES (7, 'two', 1)", None),
    ("INSERT INTO {t} VALUES (7, 'x', -1)", None),
    ("UPDATE {t} SET id = 'text'", None),
    ("INSERT INTO nothing VALUES (1)", None),
    ("SELEC", None),
    ("SELECT ?", ()),
    ("ATTACH 'x' AS y", None),
    ("INSERT INTO bedrockish_meta VALUES (1, 2)", None),
    ("SELECT abs(-9223372036854775808)", None),
    ("SELECT no_such_function(1)", None),
    ("INSERT OR ROLLBACK INTO {t} VALUES (1, 'x', 1)", None),
    ("INSERT OR FAIL INTO {t} VALUES (8, 'eight', 8), (1, 'x', 1), (10, 'ten', 10)", None),
    ("SELECT RAISE(ABORT, 'x')", None),
    ("SELECT CAST(x'ff' AS TEXT)", None),
)


@pytest.mark.parametrize("place", range(len(ERRORS)))
def test_errors_of_transactions_by_path_equal_those_by_url(
    db: Connection, other: Connection, table: str, place: int
) -> None:
    sql, params = ERRORS[place]
    told = []
    for one in (db, other):
        opened = one.begin()
        opened.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 2")
        with pytest.raises(BedrockishError) as error:
            opened.execute(sql.format(t=table), params)
        rows = opened.execute(f"SELECT * FROM {table} ORDER BY id").rows if opened.is_open else None
        told.append((type(error.value), error.value.message, error.value.details, opened.is_open, rows))
        opened.rollback()
        one.token = db.token
    assert told[0] == told[1]


@pytest.mark.parametrize("before", ["SELECT 1", "CREATE TABLE {t}x(a)"])
@pytest.mark.parametrize("end", ["", "; -- and nothing more"])
def test_statement_with_surplus_values_changes_nothing(
    db: Connection, other: Connection, table: str, before: str, end: str
) -> None:
    sql = f"INSERT INTO {table} VALUES (?, ?, ?){end}"
    for one in (db, other):
        opened = one.begin()
        opened.execute(before.format(t=table))
        opened.execute(sql, (3, "three", 30))
        with pytest.raises(SqlError, match=r"3 parameter.*4 value"):
            opened.execute(sql, (4, "four", 40, 4))
        assert opened.execute(f"SELECT id FROM {table} ORDER BY id").rows == [(1,), (2,), (3,)]
        opened.rollback()
        one.token = db.token


@pytest.mark.parametrize("sql", ["BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT p"])
def test_values_for_a_statement_without_parameters_are_refused(db: Connection, other: Connection, sql: str) -> None:
    for one in (db, other):
        one.execute("BEGIN")
        for params, says in ((5, "should be a list"), (iter([1]), "should be a list"), ([1], r"1 value\(s\)")):
            with pytest.raises(UsageError, match=says):
                one.execute(sql, params)  # type: ignore[arg-type]
        one.execute("SELECT 1")
        one.execute("ROLLBACK")


def test_transaction_id_is_that_of_the_commit(db: Connection) -> None:
    opened = db.begin()
    assert opened.execute("SELECT transaction_id()").value() == opened.command
    opened.rollback()


def test_schema_that_has_changed_ends_a_transaction(db: Connection, other: Connection, table: str) -> None:
    opened = db.begin()
    opened.execute(f"UPDATE {table} SET b = 1 WHERE id = 1")
    other.execute(f"ALTER TABLE {table} ADD COLUMN c DEFAULT 5")
    with pytest.raises(ConflictError):
        opened.commit()
    db.token = other.token
    with db.transaction() as tx:
        assert tx.execute(f"SELECT c FROM {table} WHERE id = 1").value() == 5
        assert here(db).has_any
        tx.execute(f"UPDATE {table} SET c = 6 WHERE id = 1")
    assert db.execute(f"SELECT c FROM {table} WHERE id = 1").value() == 6


def test_strict_transaction_that_only_reads_is_certified(db: Connection, other: Connection, table: str) -> None:
    opened = db.begin(read="strict")
    assert opened.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 10
    other.execute(f"UPDATE {table} SET b = 11 WHERE id = 1")
    with pytest.raises(ConflictError):
        opened.commit()
    with db.transaction(read="strict") as tx:
        tx.execute(f"SELECT b FROM {table} WHERE id = 1")


def test_transaction_covers_the_token_of_its_session(db: Connection, other: Connection, table: str) -> None:
    for number in range(10, 40):
        other.execute(f"INSERT INTO {table} VALUES ({number}, {number}, 1)")
        db.token = other.token
        with db.transaction() as tx:
            assert tx.execute(f"SELECT max(id) FROM {table}").value() == number


def test_transaction_that_is_open_for_too_long_is_rolled_back(
    db: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction's snapshot blocks the node's checkpoints; the thread that releases idle snapshots ends it."""
    monkeypatch.setattr(transactions, "OPEN_S", 0.3)
    opened = db.begin()
    opened.execute(f"UPDATE {table} SET b = 1 WHERE id = 1")
    one = here(db)._open[opened.command]
    until = time.monotonic() + 60
    while one._ended is None and time.monotonic() < until:
        time.sleep(0.05)
    with pytest.raises(DeadlineError, match=r"was open for .* commit each part"):
        opened.execute("SELECT 1")
    assert not one._file_workspace.reader.in_transaction
    opened.rollback()


def test_dbapi_runs_its_transactions_in_the_program(
    node: LocalNode, db: Connection, other: Connection, table: str
) -> None:
    with dbapi.connect(node.database, autocommit=False) as mine:
        assert mine.execute(f"SELECT b FROM {table} WHERE id = 1").fetchone() == (10,)
        mine.execute(f"UPDATE {table} SET b = 12 WHERE id = 1")
        mine.executemany(
            f"INSERT INTO {table}(a, b) VALUES (?, ?)", [(f"x{number}", number) for number in range(2_500)]
        )
        assert mine._link._client.has_open_transactions
        with pytest.raises(dbapi.IntegrityError):
            mine.execute(f"INSERT INTO {table} VALUES (1, 'x', 1)")
    other.token = mine.token
    assert other.execute(f"SELECT count(*) FROM {table}").value() == 2_502
    mine.close()


def test_trio_client_runs_its_transactions_in_the_program(node: LocalNode, db: Connection, table: str) -> None:
    async def work() -> None:
        async with bedrockish.open_client(node.database) as client:
            client.token = db.token
            async with client.transaction() as tx:
                await tx.execute(f"UPDATE {table} SET b = 77 WHERE id = 1")
                assert client.local_steps is not None
                assert client.local_steps.transactions.has_any
            assert (await client.execute(f"SELECT b FROM {table} WHERE id = 1")).value() == 77

    trio.run(work)


def test_child_of_a_fork_has_no_transaction(node: LocalNode, db: Connection, table: str) -> None:
    code = f"""
import os, bedrockish
db = bedrockish.connect({str(node.database)!r})
with db.transaction() as tx:
    tx.execute("UPDATE {table} SET b = 5 WHERE id = 1")
    if not os.fork():
        os._exit(0)
    os.wait()
print(db.execute("SELECT b FROM {table} WHERE id = 1").value())
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stdout == "5\n", told.stderr


# -- the COMMIT at the node ------------------------------------------------------------------------------------------


def prepared(**changes: Any) -> Prepared:
    given: dict[str, Any] = {
        "base": {},
        "schema": 0,
        "readonly": False,
        "changes": encode_changes([]),
        "result": b"\x80",
    }
    given |= changes
    return Prepared(
        given["base"], given["schema"], given["readonly"], "rows", AccessSet(), given["changes"], given["result"]
    )


def send(db: Connection, data: bytes) -> Any:
    return run(db._client._call, Step(0, Request(f"c{os.urandom(8).hex()}", (), timeout_s=5.0), COMMIT, data), 5.0)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"\x80",
        encode_prepared(prepared())[:-1],
        encode_prepared(prepared(base={"A": 1 << 50})),
        encode_prepared(prepared(changes=b"nonsense")),
        encode_prepared(prepared(changes=b"nonsense" * AT_ONCE_BYTES)),
        encode_prepared(prepared(readonly=True)),
    ],
)
def test_malformed_commit_is_refused(db: Connection, data: bytes) -> None:
    with pytest.raises(UsageError):
        send(db, data)


def test_prepared_commit_is_accepted_by_the_socket_only(other: Connection) -> None:
    """Over the network, any client could claim an empty read set."""
    with pytest.raises(UnsupportedError, match="only through the socket next to"):
        send(other, encode_prepared(prepared()))


def test_commit_that_cannot_reach_its_node_did_not_happen(tmp_path: Path) -> None:
    """The session moves to another node, which does not have the transaction."""
    with local_cluster(tmp_path / "three") as cluster:

        async def ready() -> None:
            for place in range(3):
                await cluster.wait_ready(place)

        trio.run(ready)
        cluster.by_file = True
        with bedrockish.connect(cluster.url(0)) as db:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
            opened = db.begin()
            opened.execute("INSERT INTO t VALUES (1)")
            assert here(db).has_any
            db.leave_node()
            with pytest.raises(UnavailableError, match="did not happen"):
                opened.commit(timeout=60)
            assert db.execute("SELECT count(*) FROM t", timeout=60, read="strict").value() == 0


def test_prepared_transaction_is_equal_after_encoding_and_decoding() -> None:
    one = prepared(base={"A": 3, "B": 7}, schema=4)
    assert decode_prepared(encode_prepared(one)) == one


def test_killed_program_leaves_no_state_at_the_node(
    node: LocalNode, db: Connection, other: Connection, table: str
) -> None:
    code = f"""
import bedrockish, sys, time
db = bedrockish.connect({str(node.database)!r})
tx = db.begin()
tx.execute("UPDATE {table} SET b = 1000 WHERE id = 1")
print("ready", flush=True)
time.sleep(60)
"""
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    assert other.status()["open_transactions"] == 0
    other.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 1")
    assert other.execute(f"SELECT b FROM {table} WHERE id = 1").value() == 11


def test_commit_after_a_restart_of_the_node_did_not_happen(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        node = cluster.nodes[0]
        with bedrockish.connect(node.database) as db:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
            opened = db.begin()
            opened.execute("INSERT INTO t VALUES (1)")
            node.kill()
            node.start()
            trio.run(cluster.wait_ready, 0)
            with pytest.raises(UnavailableError, match="since the transaction began"):
                opened.commit()
            opened.rollback()
            again = db.begin()
            again.execute("INSERT INTO t VALUES (2)")
            again.commit()
            assert db.execute("SELECT id FROM t").rows == [(2,)]


def test_first_commit_after_a_restart_reaches_the_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The COMMIT arrives even if no thread has read the end of the link to the earlier process yet."""
    monkeypatch.setattr(socket_driver, "TICK_S", 60.0)
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        node = cluster.nodes[0]
        with bedrockish.connect(node.database) as db:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
            node.kill()
            node.start()
            trio.run(cluster.wait_ready, 0)
            assert db.execute("SELECT id FROM t").rows == []
            again = db.begin()
            again.execute("INSERT INTO t VALUES (2)")
            again.commit()
            assert db.execute("SELECT id FROM t").rows == [(2,)]


def test_transfers_of_programs_at_all_nodes_keep_the_sum(tmp_path: Path) -> None:
    """Three nodes, a program at each file and one by URL: serializable transfers, while nodes are killed."""
    with local_cluster(tmp_path / "three") as cluster:

        async def ready() -> None:
            for place in range(3):
                await cluster.wait_ready(place)

        trio.run(ready)
        with bedrockish.connect(cluster.url()) as first:
            first.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER CHECK (balance >= 0))")
            first.execute("INSERT INTO account VALUES (1, 100), (2, 100), (3, 100), (4, 100)")
            token = first.token
        over, done, wrong = threading.Event(), [0] * 4, list[object]()
        places: list[Any] = [cluster.url(1, options=f"local={node.database}") for node in cluster.nodes]

        def transfer(place: int, where: str) -> None:
            with bedrockish.connect(where, token=token) as db:
                number, until = place, time.monotonic() + 60
                # A program that lost all the time to quicker ones commits once these have stopped.
                while not (over.is_set() and done[place]) and time.monotonic() < until:
                    number += 1
                    source, target = 1 + number % 4, 1 + (number * 7 + place) % 4
                    try:
                        db.run_transaction(move, source, target, timeout=5)
                        done[place] += 1
                        total = db.execute("SELECT sum(balance) FROM account", timeout=5).value()
                        if total != 400:
                            wrong.append(total)
                    except BedrockishError as error:
                        if isinstance(error, UsageError) and not isinstance(error, ConstraintError):
                            wrong.append(error)

        move: Callable[..., None] = _move
        threads = [
            threading.Thread(target=transfer, args=(place, where))
            for place, where in enumerate([*places, cluster.url()])
        ]
        for thread in threads:
            thread.start()
        for victim in (0, 2):
            time.sleep(2)
            cluster.nodes[victim].kill()
            time.sleep(1)
            cluster.nodes[victim].start()
        time.sleep(3)
        over.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert all(done)
        with bedrockish.connect(cluster.url()) as last:
            assert last.execute("SELECT sum(balance) FROM account", read="strict", timeout=60).value() == 400


def _move(tx: Any, source: int, target: int) -> None:
    balance = tx.execute("SELECT balance FROM account WHERE id = ?", (source,)).value()
    other = tx.execute("SELECT balance FROM account WHERE id = ?", (target,)).value()
    if balance >= 10 and source != target:
        tx.execute("UPDATE account SET balance = ? WHERE id = ?", (balance - 10, source))
        tx.execute("UPDATE account SET balance = ? WHERE id = ?", (other + 10, target))


def test_transaction_by_path_begins_without_a_token(node: LocalNode) -> None:
    with bedrockish.connect(node.database) as db:
        assert db._client._core.token == Token()
        with db.transaction() as tx:
            tx.execute("SELECT 1")
            assert here(db).has_any


def test_first_row_without_an_id_reads_only_its_own_keys(node: LocalNode, db: Connection, table: str) -> None:
    """If the run before the lease of ids counted as a read of the table, new sessions would lose to any writer."""
    upsert = f"INSERT INTO {table}n(name, n) VALUES (?, 1) ON CONFLICT(name) DO UPDATE SET n = n + 1"
    db.execute(f"CREATE TABLE {table}n(id INTEGER PRIMARY KEY, name TEXT UNIQUE, n INTEGER)")
    db.execute(f"INSERT INTO {table}n(name, n) VALUES ('other', 1)")
    with bedrockish.connect(node.database, token=db.token) as fresh, fresh.transaction() as transaction:
        transaction.execute(upsert, ("mine",))
        db.execute(f"UPDATE {table}n SET n = n + 1 WHERE name = 'other'")


def test_transaction_of_a_program_has_the_bound_on_changes_of_its_node(tmp_path: Path) -> None:
    """A refused statement leaves the transaction as it was."""
    limits = {"changes_bytes_max": 40 << 20, "result_bytes_max": 1 << 20}
    cluster = LocalCluster(tmp_path, ("A",), settings={"limits": limits})
    with cluster.running():
        trio.run(cluster.wait_ready, 0)
        with bedrockish.connect(f"bedrockish:///?local={cluster.nodes[0].database}&timeout=120") as db:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
            with db.transaction() as transaction:
                transaction.execute(f"INSERT INTO t VALUES (3, zeroblob({39 << 20}))")
                with pytest.raises(TooLargeError, match=str(40 << 20)):
                    transaction.execute(f"INSERT INTO t VALUES (4, zeroblob({1 << 20}))")
                assert len(transaction.execute("SELECT a FROM t").value()) == 39 << 20
                with pytest.raises(TooLargeError, match=str(64 << 20)):  # the results take the program's own memory
                    transaction.execute("SELECT a FROM t, (VALUES (1), (2))")
            assert db.execute("SELECT id, length(a) FROM t").rows == [(3, 39 << 20)]
