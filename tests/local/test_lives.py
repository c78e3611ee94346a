"""A program's connections next to a node: opened a thousand times, killed at any point, the node restored."""

import gc
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

import bedrockish
from bedrockish.api.requests import REMOVE, MemberChange
from bedrockish.client.blocking import Connection
from bedrockish.client.in_thread import run
from bedrockish.errors import BedrockishError, ForeignClusterError, ProtocolMismatchError, UnavailableError, UsageError
from bedrockish.local import connections
from bedrockish.local.reads import LocalReads
from bedrockish.node.published import BEAT_S
from tests.cluster.story import command
from tools.cluster import LocalCluster, LocalNode, clean_environment, local_cluster

KILLS, BOUND_S = 12, 60.0
COUNT, ITEMS = "SELECT count(*), sum(b) FROM item", "SELECT id FROM item"
WORKER = """
import sys
import bedrockish
with bedrockish.connect(sys.argv[1]) as db:
    print("ready", flush=True)
    while True:
        with db.transaction() as transaction:
            for row, change in ((1, -1), (2, 1)):
                transaction.execute("UPDATE pair SET b = b + ? WHERE id = ?", (change, row))
            transaction.execute("INSERT INTO did(note) VALUES ('x')")
        print("did", flush=True)
"""


def own_locks() -> list[str]:
    """Return the locks that this process holds on its open files.

    /proc/locks would list them too, but it is read in pieces: a lock that another process takes between two pieces
    shifts the rest, so that a line is lost or comes twice.
    """
    locks = []
    for descriptor in os.listdir("/proc/self/fdinfo"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            lines = Path("/proc/self/fdinfo", descriptor).read_text(encoding="ascii").splitlines()
            locks += [" ".join([descriptor, *line.split()[2:]]) for line in lines if line.startswith("lock:")]
    return sorted(locks)


def test_thousand_connections_leave_no_descriptor_lock_or_file(node: LocalNode, alone: LocalCluster) -> None:
    """Every connection has read, and every tenth has an open transaction."""
    with bedrockish.connect(alone.url()) as db:
        db.execute("CREATE TABLE opened(id INTEGER PRIMARY KEY, b)")
        db.execute("INSERT INTO opened VALUES (1, 0)")
    bedrockish.connect(node.database).close()
    connections.KEPT.close_all()
    gc.collect()  # files that earlier tests in this process have left close now, and not during this test
    descriptors, locks = sorted(os.listdir("/proc/self/fd")), own_locks()
    files = sorted(os.listdir(node.directory))
    for number in range(1_000):
        with bedrockish.connect(node.database) as db:
            assert db.execute("SELECT b FROM opened").value() == 0
            if number % 10 == 0:
                db.begin().execute("UPDATE opened SET b = 1")
    until = time.monotonic() + 10
    while connections._open and time.monotonic() < until:
        time.sleep(0.05)  # the connections of the last session are kept for a second
    assert not connections._open
    assert sorted(os.listdir("/proc/self/fd")) == descriptors
    assert own_locks() == locks
    assert sorted(os.listdir(node.directory)) == files
    with bedrockish.connect(alone.url()) as db:
        assert db.status()["open_transactions"] == 0


def test_program_in_another_container_uses_the_file(node: LocalNode) -> None:
    """In another container, the node's process id belongs to another process, or to none."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a namespace of processes")
    program = """
import sys
import bedrockish
with bedrockish.connect(sys.argv[1]) as db:
    db.execute("CREATE TABLE contained(id INTEGER PRIMARY KEY, b)")
    with db.transaction() as transaction:
        transaction.execute("INSERT INTO contained VALUES (1, 5)")
    print(db.execute("SELECT b FROM contained").value(), db.execute("SELECT b FROM contained", read="strict").value())
    db.execute("DROP TABLE contained")
"""
    command = [*alone, sys.executable, "-c", program, str(node.database)]
    told = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    assert told.stdout == "5 5\n", told.stderr


def test_shared_memory_of_an_open_file_is_not_copied_by_its_program(node: LocalNode, tmp_path: Path) -> None:
    """A copy of the folder would drop the locks of the readers: the node could write over the rows that they read."""
    shared = Path(f"{node.database}-shm")
    with bedrockish.connect(node.database) as db, db.snapshot():
        db.execute("SELECT 1")
        held = own_locks()
        for way in (shared.read_bytes, lambda: os.open(shared, os.O_RDONLY), lambda: shutil.copy(shared, tmp_path)):
            with pytest.raises(UsageError, match="cannot be opened while this process has the database open"):
                way()
        assert own_locks() == held
    assert shared.read_bytes()


def test_programs_killed_at_any_point_leave_no_state_at_the_node(node: LocalNode, alone: LocalCluster) -> None:
    """A kill may come in the midst of statements, of COMMIT or of its answer; a transaction is there completely, or not
    at all.
    """
    luck = random.Random(34)
    with bedrockish.connect(alone.url()) as db:
        db.execute("CREATE TABLE pair(id INTEGER PRIMARY KEY, b)")
        db.execute("CREATE TABLE did(id INTEGER PRIMARY KEY, note)")
        db.execute("INSERT INTO pair VALUES (1, 0), (2, 0)")
        told = 0
        for number in range(KILLS):
            worker = [sys.executable, "-c", WORKER, str(node.database)]
            with subprocess.Popen(worker, env=clean_environment(), stdout=subprocess.PIPE, text=True) as program:
                assert program.stdout is not None
                assert program.stdout.readline() == "ready\n"
                if number % 2:  # on a busy machine no transaction ends within a tenth of a second
                    assert program.stdout.readline() == "did\n"
                    told += 1
                time.sleep(luck.uniform(0.0, 0.1))
                program.send_signal(signal.SIGKILL)
                program.wait()
                told += program.stdout.read().count("did\n")
        first, second = (row for (row,) in db.execute("SELECT b FROM pair ORDER BY id", read="strict").rows)
        did = db.execute("SELECT count(*) FROM did", read="strict").value()
        assert (first, second) == (-did, did)
        assert told <= did <= told + KILLS
        assert told > 0
        status = db.status()
        assert (status["open_transactions"], status["open_streams"]) == (0, 0)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "three") as cluster:

        async def ready() -> None:
            for place in range(3):
                await cluster.wait_ready(place)

        trio.run(ready)
        yield cluster


def test_file_of_a_node_that_was_removed_is_read_no_more(three: LocalCluster) -> None:
    """The program goes to other nodes, or gets an error."""
    node = three.nodes[2]
    url = three.url(0, options=f"local={node.database}")
    with bedrockish.connect(url) as db, bedrockish.connect(node.database) as path:
        db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, b)")
        path.token = db.token
        assert path.execute("SELECT count(*) FROM item").value() == 0
        opened = path.begin()
        opened.execute("INSERT INTO item VALUES (1, 1)")
        with bedrockish.connect(three.url(0)) as operator:
            remove(operator, "C")
            operator.execute("INSERT INTO item VALUES (2, 2)")
        until = time.monotonic() + BOUND_S
        while path.read_here(ITEMS, None, "stale") is not None and time.monotonic() < until:
            time.sleep(0.05)
        assert path.read_here(ITEMS, None, "stale") is None
        assert db.read_here(ITEMS, None, "stale") is None
        with pytest.raises(BedrockishError):
            opened.commit(timeout=2)
        with pytest.raises(UnavailableError):
            bedrockish.connect(node.database)
        for one in (path, db):  # the others answer: their addresses were learnt
            assert one.execute("SELECT id FROM item", read="strict").rows == [(2,)]


def test_file_of_a_node_that_was_removed_while_it_was_down_is_not_read(three: LocalCluster) -> None:
    """The others send the node no journal any more; their refusal is enough."""
    node = three.nodes[2]
    with bedrockish.connect(three.url(0)) as operator:
        operator.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, b)")
        node.kill()
        remove(operator, "C")
        node.start()
        until = time.monotonic() + BOUND_S
        while "no longer a member" not in node.log.read_text() and time.monotonic() < until:
            time.sleep(0.05)
        with pytest.raises(UnavailableError, match="its node is not serving"):
            connect_until(node, until)


def connect_until(node: LocalNode, until: float) -> None:
    """Connect to a node's file again and again until the connection fails; the node's page changes after a moment."""
    while time.monotonic() < until:
        bedrockish.connect(node.database).close()
        time.sleep(BEAT_S)


def test_restored_file_is_read_as_a_whole_or_refused(tmp_path: Path) -> None:
    """An operator replaces the node's file by an older state, which is another cluster from then on."""
    with local_cluster(tmp_path / "one", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        node, copy, old = cluster.nodes[0], tmp_path / "backup.db", tmp_path / "old.db"
        with bedrockish.connect(node.database) as db:
            db.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, b)")
            db.execute("INSERT INTO item VALUES (1, 1), (2, 2)")
            command("backup", cluster.url(), copy)
            at = db.execute("SELECT cluster_clock()", read="stale").value()
            db.execute("INSERT INTO item VALUES (3, 3)")
            assert db.execute(COUNT).rows == [(3, 6)]
            opened = db.begin()
            opened.execute("UPDATE item SET b = 100")
            stop(node)
            command("restore", "--from", copy, "--to", old)
            for suffix in ("", "-wal", "-shm"):
                Path(f"{node.database}{suffix}").unlink(missing_ok=True)
            shutil.move(old, node.database)
            node.start()
            trio.run(cluster.wait_ready, 0)
            with pytest.raises(BedrockishError):
                opened.commit(timeout=20)
            for level in ("stale", "session", "strict"):
                with pytest.raises((ForeignClusterError, ProtocolMismatchError)):
                    db.execute(COUNT, timeout=20, read=level)
        assert at > 0
        with bedrockish.connect(node.database) as db:
            assert db.execute(COUNT).rows == [(2, 3)]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a program of another user")
def test_program_that_cannot_create_the_shm_file_gets_an_error() -> None:
    """The program runs as another user, who can read the file of a killed node but not create files next to it."""
    nobody = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory() as folder, local_cluster(Path(folder, "one"), ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        node = cluster.nodes[0]
        os.chmod(folder, 0o755)
        os.chmod(node.directory, 0o755)
        node.kill()
        Path(f"{node.database}-shm").unlink()
        for path in node.directory.iterdir():
            path.chmod(0o644)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.setuid(nobody)
            told = "nothing"
            try:
                LocalReads(str(node.database)).open()
            except UnavailableError as error:
                told = str(error)
            os.write(writing, told.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 10_000).decode().startswith(f"{node.database} cannot be ")
        os.close(reading)
        os.close(writing)
        assert not Path(f"{node.database}-shm").exists()


def remove(operator: Connection, name: str) -> None:
    run(operator._client.change_members, MemberChange(REMOVE, name, force=True))


def stop(node: LocalNode) -> None:
    assert node.process is not None
    node.process.terminate()
    node.process.wait(BOUND_S)
