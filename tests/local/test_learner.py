"""Programs at a learner: they read and execute on its file, and a voter commits for it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import bedrockish
from bedrockish import dbapi
from bedrockish.api.requests import MemberChange, Request
from bedrockish.api.wire import COMMIT, Step
from bedrockish.client.blocking import Connection
from bedrockish.client.in_thread import run
from bedrockish.client.request_builder import new_command
from bedrockish.common.password_hash import SALT_BYTES, hash_password
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import ConflictError, ConstraintError, ForbiddenError, UnavailableError, UnsupportedError
from bedrockish.local.prepared import encode_prepared
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import encode_changes
from bedrockish_journal.model.transaction import ROWS
from tests.forked import program
from tests.local.conftest import is_read_here
from tools.cluster import LocalCluster, LocalNode, free_ports, local_cluster

BOUND_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three voters, and the learner D."""
    with local_cluster(tmp_path_factory.mktemp("learner") / "nodes") as made:
        trio.run(made.wait_ready, 0)
        node = LocalNode("D", free_ports(1)[0], made.directory)
        node.config.write_text(f'node = "D"\ndatabase = "{node.database.name}"\nlisten = "127.0.0.1:{node.port}"\n')
        made.nodes.append(node)
        node.start("join", made.url())
        wait_for_socket(node)
        yield made


@pytest.fixture
def db(cluster: LocalCluster, table: str) -> Iterator[Connection]:
    with bedrockish.connect(cluster.url()) as far, bedrockish.connect(cluster.nodes[3].database) as made:
        far.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a CHECK (a >= 0))")
        far.execute(f"INSERT INTO {table} VALUES (1, 10), (2, 20)")
        made.token = far.token
        yield made


def is_here(db: Connection) -> bool:
    steps = db._client.local_steps
    assert steps is not None
    return steps.is_at_file_node()


def test_transaction_runs_in_the_program_and_a_voter_commits_it(
    db: Connection, cluster: LocalCluster, table: str
) -> None:
    steps: Any = db._client.local_steps
    for number in range(20):
        opened = db.begin()
        opened.execute(f"UPDATE {table} SET a = a + 1 WHERE id = 1")
        assert steps.transactions.has_any, "it is executed in this process"
        place = opened.commit().place
        assert place is not None
        assert place[0] in "ABC", "a voter has led it"
        assert db.settle(opened.command)
        assert db.execute(f"SELECT a FROM {table} WHERE id = 1").value() == 11 + number
    assert is_here(db)
    assert is_read_here(db, f"SELECT a FROM {table} WHERE id = 1")
    assert not db.settle("never" * 5)
    with bedrockish.connect(cluster.url(1, only=True)) as far:
        assert far.execute(f"SELECT a FROM {table} WHERE id = 1", read="strict").value() == 30


def test_rows_inserted_at_a_learner_get_ids_from_a_voter(db: Connection, cluster: LocalCluster, table: str) -> None:
    with bedrockish.connect(cluster.url()) as far:
        for _ in range(3):
            with db.transaction() as tx:
                for _ in range(70):
                    tx.execute(f"INSERT INTO {table}(a) VALUES (5)")
                far.execute(f"INSERT INTO {table}(a) VALUES (6)")
        far.token = db.token
        assert far.execute(f"SELECT count(*) FROM {table}").value() == 2 + 3 * 71
    assert is_here(db)


def test_single_writes_at_a_learner_run_in_the_program(db: Connection, cluster: LocalCluster, table: str) -> None:
    assert db.execute(f"INSERT INTO {table} VALUES (3, 30)").rowcount == 1
    rows = db.transact([f"UPDATE {table} SET a = a + 1 WHERE id > 1", f"DELETE FROM {table} WHERE id = 1"])
    assert [one.rowcount for one in rows] == [2, 1]
    assert db.execute(f"SELECT id, a FROM {table} ORDER BY id").rows == [(2, 21), (3, 31)]
    rows = db.transact([f"SELECT a FROM {table} WHERE id = 3", f"UPDATE {table} SET a = 31 WHERE id = 3"])
    assert (rows[0].value(), rows[1].rowcount) == (31, 1)
    assert is_here(db)
    with pytest.raises(ConstraintError, match="CHECK"):
        db.execute(f"UPDATE {table} SET a = -1")
    with closing(dbapi.connect(cluster.nodes[3].database)) as mine:
        mine.execute(f"INSERT INTO {table} VALUES (9, 9)")
        mine.commit()
        assert mine.execute(f"SELECT a FROM {table} WHERE id = 9").fetchone() == (9,)
    assert is_here(db)


def test_conflict_with_a_commit_that_the_learner_lacks_is_raised(
    db: Connection, cluster: LocalCluster, table: str
) -> None:
    with bedrockish.connect(cluster.url(2, only=True)) as far:
        opened = db.begin()
        opened.execute(f"UPDATE {table} SET a = a + 1 WHERE id = 1")
        far.execute(f"UPDATE {table} SET a = 0 WHERE id = 1")
        with pytest.raises(ConflictError):
            opened.commit()
        assert db.execute(f"SELECT a FROM {table} WHERE id = 1", read="strict").value() == 0


def test_voter_waits_for_commits_that_a_learners_program_has_seen(
    db: Connection, cluster: LocalCluster, table: str
) -> None:
    """The voter has closed the time of the session's earlier answer, and lacks a large commit that came later."""

    def transact() -> str:
        with db.transaction() as tx:
            tx.execute(f"UPDATE {table} SET a = a + length((SELECT max(a) FROM {table} WHERE id > 2)) WHERE id = 1")
            place = tx.commit().place
        assert place is not None
        return place[0]

    db.execute(f"INSERT INTO {table} VALUES (3, 3)")
    voter = "ABC".index(transact())
    process = cluster.nodes[voter].process
    assert process is not None
    time.sleep(1.5)
    process.send_signal(signal.SIGSTOP)
    try:
        with bedrockish.connect(cluster.url((voter + 1) % 3, only=True)) as far:
            far.execute(f"INSERT INTO {table} VALUES (4, randomblob(6000000))")
            db.token = far.token
        threading.Timer(0.5, process.send_signal, (signal.SIGCONT,)).start()
        transact()
    finally:
        process.send_signal(signal.SIGCONT)
    assert db.execute(f"SELECT a FROM {table} WHERE id = 1").value() == 10 + 1 + 6000000
    assert is_here(db)


def test_transfers_of_learners_programs_keep_the_sum(db: Connection, cluster: LocalCluster, table: str) -> None:
    """One voter is stopped and another is killed in the meantime."""
    done, stop = [0, 0], threading.Event()

    def transfer(place: int) -> None:
        with bedrockish.connect(cluster.nodes[3].database, token=db.token) as mine:
            while not stop.is_set():

                def move(tx: Any) -> None:
                    left = tx.execute(f"SELECT a FROM {table} WHERE id = 1").value()
                    by = 1 if left > 0 else -1
                    tx.execute(f"UPDATE {table} SET a = a - ? WHERE id = 1", (by,))
                    tx.execute(f"UPDATE {table} SET a = a + ? WHERE id = 2", (by,))

                try:
                    mine.run_transaction(move, timeout=60)
                    done[place] += 1
                except UnavailableError:
                    continue

    threads = [threading.Thread(target=transfer, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(2)
        process = cluster.nodes[0].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        process.send_signal(signal.SIGCONT)
        cluster.nodes[1].kill()
        time.sleep(1)
        cluster.nodes[1].start()
        before, until = sum(done), time.monotonic() + BOUND_S
        while sum(done) < before + 10 and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert sum(done) >= before + 10
    assert db.execute(f"SELECT sum(a) FROM {table}", read="strict").value() == 30


def test_session_returns_to_the_node_of_its_file(db: Connection, cluster: LocalCluster, table: str) -> None:
    node = cluster.nodes[3]
    url = cluster.url(3, options=f"local={node.database}")
    with bedrockish.connect(url, token=db.token) as mine:
        assert is_here(mine)
        node.kill()
        mine.execute(f"INSERT INTO {table} VALUES (5, 5)", timeout=60)
        assert not is_here(mine)
        node.start()
        trio.run(cluster.wait_ready, 3)
        until = time.monotonic() + BOUND_S
        while not is_here(mine) and time.monotonic() < until:
            with mine.transaction() as tx:
                tx.execute(f"UPDATE {table} SET a = 6 WHERE id = 5")
            time.sleep(0.1)
        assert is_here(mine)
        assert mine.execute(f"SELECT a FROM {table} WHERE id = 5").value() == 6


def test_commit_at_a_voter_is_that_of_the_programs_user(tmp_path: Path) -> None:
    """With certificates and users, the voter accepts a user's name only from a node."""
    certificates = tmp_path / "certificates"
    assert program("tls", certificates, *(f"{name}=127.0.0.1" for name in "ABCD")).returncode == 0
    cluster = LocalCluster(tmp_path / "nodes", ("A", "B", "C"), {"security": {"tls": str(certificates)}})
    with cluster.running():
        wait_for_socket(cluster.nodes[0])
        with bedrockish.connect(cluster.nodes[0].database) as db:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
            for name, role in (("root", "admin"), ("ann", "writer"), ("bob", "reader")):
                secret = str(hash_password("secret", os.urandom(SALT_BYTES)))
                run(db._client.change_members, MemberChange("user add", name, role=role, secret=secret))
        hosts_url = cluster.url().partition("://")[2]
        options = f"?ca={certificates}/ca.pem"
        node = LocalNode("D", free_ports(1)[0], cluster.directory)
        text = f'node = "D"\ndatabase = "{node.database.name}"\nlisten = "127.0.0.1:{node.port}"\n'
        node.config.write_text(f'{text}[security]\ntls = "{certificates}"\n')
        cluster.nodes.append(node)
        node.start("join", f"bedrockish://root:secret@{hosts_url}/{options}")
        wait_for_socket(node)
        far = f"bedrockish://ann:secret@{hosts_url}/{options}"
        with bedrockish.connect(f"{far}&local={node.database}") as ann, bedrockish.connect(far) as other:
            with ann.transaction() as tx:
                tx.execute("INSERT INTO t VALUES (1)")
                steps: Any = ann._client.local_steps
                assert steps.transactions.has_any
            other.token = ann.token
            told = "SELECT user_name FROM bedrockish_changes WHERE table_name = 't' ORDER BY clock DESC LIMIT 1"
            assert other.execute(told).value() == "ann"
            prepared = encode_prepared(Prepared({}, 0, False, ROWS, AccessSet(), encode_changes([]), b""))
            forged = Step(0, Request(new_command(), ()), COMMIT, prepared, "root")
            with pytest.raises(UnsupportedError, match="only a node asks"):
                run(other._client._call, forged, 5)
        with bedrockish.connect(f"{far.replace('ann', 'bob')}&local={node.database}") as bob:
            with pytest.raises(ForbiddenError, match="bob needs the role writer"), bob.transaction() as tx:
                tx.execute("INSERT INTO t VALUES (2)")
            assert bob.execute("SELECT count(*) FROM t").value() == 1


def wait_for_socket(node: LocalNode) -> None:
    """Wait until a node takes programs of this machine."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        with suppress(UnavailableError), bedrockish.connect(node.database) as db:
            db.execute("SELECT 1")
            return
        time.sleep(0.1)
    raise AssertionError(node.last_words())
