"""A stopping node answers each accepted request, and executes no others."""

import json
import signal
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
import trio

import bedrockish
from bedrockish.errors import BedrockishError, DeadlineError, OutcomeUnknownError, UnavailableError
from bedrockish.node.transactions.manager import USED_S
from tests.cluster.story import BOUND_S, ready
from tools.cluster import LocalCluster, local_cluster

pytestmark = pytest.mark.cluster

NATIVE, HTTP = 6, 4
ATTEMPTS, QUICK_S = 5, 4.0
LONG = "WITH RECURSIVE x(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM x) SELECT count(*) FROM x"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "one", ("A",), http=True) as cluster:
        trio.run(ready, cluster)
        yield cluster


def stop(cluster: LocalCluster, number: int = 0) -> float:
    """Send SIGTERM, and return how many seconds the process took to end."""
    process, began = cluster.nodes[number].process, time.monotonic()
    assert process is not None
    process.terminate()
    assert process.wait(BOUND_S) == 0
    return time.monotonic() - began


def start_again(cluster: LocalCluster) -> None:
    cluster.nodes[0].start()
    trio.run(ready, cluster)


def stops_quickly(cluster: LocalCluster, stop_once: Callable[[], float]) -> int:
    """Check that a node that is stopped interrupts its worker after a second; return the number of attempts.

    Otherwise each stop would take five seconds. On a busy machine a single one may take as long.
    """
    for attempt in range(1, ATTEMPTS):
        if stop_once() < QUICK_S:
            return attempt
        start_again(cluster)
    assert stop_once() < QUICK_S
    return ATTEMPTS


def is_at_work(cluster: LocalCluster, count: int = 1) -> bool:
    """Return whether a node runs so many long statements."""
    with bedrockish.connect(cluster.url()) as db:
        return bool(db.status()["workers"]["running"] == count)


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def post(port: int | None, sql: str) -> int:
    """Execute a statement by HTTP, and return the status of the answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/db/execute", json.dumps([sql]).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=BOUND_S) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def ask_ready(port: int | None) -> tuple[int, list[str]]:
    """Return the status and the reasons of ``/readyz``."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=BOUND_S) as reply:
            return int(reply.status), list(json.load(reply)["reasons"])
    except urllib.error.HTTPError as error:
        with error:
            return error.code, list(json.load(error)["reasons"])


class Writers:
    """Clients that write rows, each until its first error."""

    def __init__(self, url: str, port: int | None) -> None:
        self.answered: set[str] = set()
        self.refused: dict[str, str] = {}
        self.unknown: dict[str, str] = {}
        self._url, self._port = url, port
        kinds = [(self._native, NATIVE), (self._http, HTTP)]
        self._threads = [threading.Thread(target=kind, args=(i,)) for kind, count in kinds for i in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait_for_answers(self, count: int) -> None:
        until = time.monotonic() + BOUND_S
        while len(self.answered) < count:
            assert time.monotonic() < until, f"{len(self.answered)} answers within {BOUND_S} s"
            time.sleep(0.02)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(BOUND_S)

    def _native(self, number: int) -> None:
        with bedrockish.connect(self._url) as db:
            for step in range(100_000):
                key = f"{number}-{step}"
                try:
                    db.execute("INSERT INTO t VALUES (?)", (key,))
                except OutcomeUnknownError as error:
                    self.unknown[key] = str(error)
                    return
                except BedrockishError as error:
                    self.refused[key] = str(error)
                    return
                self.answered.add(key)

    def _http(self, number: int) -> None:
        for step in range(100_000):
            key = f"h{number}-{step}"
            try:
                status = post(self._port, f"INSERT INTO t VALUES ('{key}')")
            except ConnectionRefusedError:
                return
            except OSError as error:
                if isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                    return
                self.unknown[key] = repr(error)
                return
            if status != 200:
                self.refused[key] = str(status)
                return
            self.answered.add(key)


def test_graceful_stop_answers_every_request_that_it_has_taken(alone: LocalCluster) -> None:
    node = alone.nodes[0]
    with bedrockish.connect(alone.url()) as db:
        db.execute("CREATE TABLE t(k TEXT PRIMARY KEY)")
    writers = Writers(alone.url(options="timeout=10&connect_timeout=10"), node.http_port)
    writers.start()
    writers.wait_for_answers(101)
    stop(alone)
    writers.join()
    with closing(sqlite3.connect(node.database)) as file:
        there = {key for (key,) in file.execute("SELECT k FROM t")}
    assert len(writers.answered) > 100
    assert not writers.unknown
    assert there == writers.answered
    assert any("the node is stopping" in text for text in writers.refused.values())


def test_client_with_other_nodes_sees_no_error_while_one_stops(cluster: LocalCluster) -> None:
    trio.run(ready, cluster)
    with bedrockish.connect(cluster.url()) as db:
        db.execute("CREATE TABLE t(k TEXT PRIMARY KEY)")
    failed: list[str] = []
    done, count = threading.Event(), [0] * 4

    def write(number: int) -> None:
        with bedrockish.connect(cluster.url(0)) as db:
            while not done.is_set():
                try:
                    db.execute("INSERT INTO t VALUES (?)", (f"{number}-{count[number]}",))
                except BedrockishError as error:
                    failed.append(repr(error))
                count[number] += 1

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: min(count) > 5)
    stop(cluster)
    before = list(count)
    wait_for(lambda: all(later > earlier + 5 for later, earlier in zip(count, before, strict=True)))
    done.set()
    for thread in threads:
        thread.join(BOUND_S)
    assert not failed


def test_stopping_node_is_not_ready(alone: LocalCluster) -> None:
    """A node that stops refuses new requests, so a proxy must send them elsewhere; ``/livez`` still answers."""
    port, found = alone.nodes[0].http_port, (200, list[str]())

    def read() -> None:
        with suppress(OSError):  # the node may end its links before it has refused the request
            post(port, LONG)

    for _ in range(ATTEMPTS):  # the node stops within a second, in which this process may stand still
        assert ask_ready(port) == (200, [])
        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: is_at_work(alone))
        process = alone.nodes[0].process
        assert process is not None
        process.terminate()
        with suppress(OSError):
            while found[0] == 200:
                found = ask_ready(port)
        assert process.wait(BOUND_S) == 0
        reader.join(BOUND_S)
        if found[0] != 200:
            break
        start_again(alone)
    assert found == (503, ["this node is stopping"])


def test_read_cut_by_a_stop_did_not_happen(alone: LocalCluster) -> None:
    found: list[BedrockishError] = []

    def read() -> None:
        with (
            bedrockish.connect(alone.url(options="timeout=15")) as db,
            pytest.raises((UnavailableError, DeadlineError)) as caught,
        ):
            db.execute(LONG)
        found.append(caught.value)

    def stop_while_it_reads() -> float:
        thread = threading.Thread(target=read)
        thread.start()
        wait_for(lambda: is_at_work(alone))
        took_s = stop(alone)
        thread.join(BOUND_S)
        return took_s

    attempts = stops_quickly(alone, stop_while_it_reads)
    assert len(found) == attempts
    assert not any(isinstance(one, OutcomeUnknownError) for one in found)


def test_open_transaction_commits_while_its_node_stops(alone: LocalCluster) -> None:
    with bedrockish.connect(alone.url()) as db:
        db.execute("CREATE TABLE t(k)")
    for _ in range(ATTEMPTS):
        if commits_while_its_node_stops(alone):
            break
        start_again(alone)
    with closing(sqlite3.connect(alone.nodes[0].database)) as file:
        assert file.execute("SELECT k FROM t ORDER BY 1").fetchall() == [(1,), (2,)]


def commits_while_its_node_stops(cluster: LocalCluster) -> bool:
    """Return whether a transaction commits; on a busy machine its client may be too slow for the node."""
    node, before = cluster.nodes[0], time.monotonic()
    assert node.process is not None
    heard = node.log.read_text().count("SIGTERM: leaving")
    try:
        with bedrockish.connect(cluster.url()) as db, db.transaction() as transaction:
            transaction.execute("INSERT INTO t VALUES (1)")
            before = time.monotonic()
            node.process.terminate()
            wait_for(lambda: node.log.read_text().count("SIGTERM: leaving") > heard)
            transaction.execute("INSERT INTO t VALUES (2)")
    except UnavailableError:
        assert time.monotonic() - before > USED_S
        return False
    finally:
        assert node.process.wait(BOUND_S) == 0
    return True


def test_idle_transaction_gets_an_error_that_its_node_stopped(alone: LocalCluster) -> None:

    def stop_while_it_is_idle() -> float:
        with bedrockish.connect(alone.url(options="timeout=2&connect_timeout=20")) as db, ExitStack() as opened:
            transaction = opened.enter_context(db.transaction())
            transaction.execute("SELECT * FROM t", timeout=20)
            time.sleep(USED_S + 0.2)
            took_s = stop(alone)
            with pytest.raises(UnavailableError, match="did not happen"):
                transaction.execute("INSERT INTO t VALUES (2)")
            opened.pop_all()
        return took_s

    with bedrockish.connect(alone.url()) as db:
        db.execute("CREATE TABLE t(k)")
    stops_quickly(alone, stop_while_it_is_idle)


def test_sighup_without_certificates_changes_nothing(alone: LocalCluster) -> None:
    node = alone.nodes[0]
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "this node has no certificates to read again" in node.log.read_text())
    with bedrockish.connect(alone.url()) as db:
        assert db.execute("SELECT 1").value() == 1


def test_sighup_during_a_start_does_not_end_the_node(tmp_path: Path) -> None:
    """The signal's default action would end the process while the program is still imported, for half a second."""
    cluster = LocalCluster(tmp_path / "one", ("A",))
    cluster.write_files()
    node = cluster.nodes[0]
    node.program = ("-u", "-m", "bedrockish.cli.main")  # a process that has imported nothing, see tests/forked.py
    node.start()
    try:
        assert node.process is not None
        await_ignored(signal.SIGHUP, node.process.pid)
        while node.is_running and "serves" not in node.log.read_text():
            node.process.send_signal(signal.SIGHUP)
            time.sleep(0.005)
        assert node.is_running, node.last_words()
    finally:
        cluster.stop()


def await_ignored(number: signal.Signals, process: int) -> None:
    """Wait until a process ignores a signal."""
    until = time.monotonic() + BOUND_S
    while True:
        status = Path(f"/proc/{process}/status").read_text()
        if int(status.partition("SigIgn:")[2].split()[0], 16) >> (number - 1) & 1:
            return
        assert time.monotonic() < until, "the process does not ignore the signal"
        time.sleep(0.001)


def test_node_stops_without_waiting_for_an_uninterruptible_function_call(alone: LocalCluster) -> None:
    """The process ends without waiting for that thread. Each row of the call takes as long as one call may."""
    found: list[BedrockishError] = []
    rows = ", ".join(f"({number})" for number in range(20))
    text = f"WITH n(i) AS (VALUES {rows}) SELECT sum(?1 LIKE ?2 || i) FROM n"

    def call() -> None:
        with (
            bedrockish.connect(alone.url(options="timeout=15")) as db,
            pytest.raises((UnavailableError, DeadlineError)) as caught,
        ):
            db.execute(text, ("a" * (15 << 20), "%" + "a" * 50 + "b%"))
        found.append(caught.value)

    def stop_while_both_run() -> float:
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: is_at_work(alone, 2))
        took_s = stop(alone)
        for thread in threads:
            thread.join(BOUND_S)
        return took_s

    attempts = stops_quickly(alone, stop_while_both_run)
    assert len(found) == 2 * attempts
    assert not any(isinstance(one, OutcomeUnknownError) for one in found)
