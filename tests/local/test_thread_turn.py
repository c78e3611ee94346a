"""The turn of a program's threads passes on, and no thread waits for one that runs no statement."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from bedrockish import dbapi
from bedrockish.api.requests import Request
from bedrockish.client.blocking import connect
from bedrockish.client.socket_driver import SocketDriver
from bedrockish.local import snapshots, thread_turn, workspace_pool
from bedrockish.local.page import Published, PublishedFacts
from bedrockish.local.thread_turn import TURN, ThreadTurn
from bedrockish.local.workspace_pool import WorkspacePool
from tools.cluster import LocalNode

LONG_S = 60.0


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> ThreadTurn:
    """A turn that changes threads where the test says so, and never by time."""
    monkeypatch.setattr(thread_turn, "IDLE_S", LONG_S)
    monkeypatch.setattr(thread_turn, "SLICE_S", LONG_S)
    return ThreadTurn()


def started(job: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(LONG_S / 2)
    return not thread.is_alive()


def until_waiting(turn: ThreadTurn, count: int) -> None:
    """Wait until threads wait for the turn."""
    until = time.monotonic() + LONG_S / 2
    while len(turn._waiting) < count:
        assert time.monotonic() < until
        os.sched_yield()


def one_statement(turn: ThreadTurn, log: list[str], name: str) -> Callable[[], None]:
    """Return a job that runs one statement, and ends its transaction."""

    def job() -> None:
        with turn:
            log.append(name)
        turn.leave()

    return job


def test_thread_keeps_the_turn_over_statements_until_its_transaction_ends(turn: ThreadTurn) -> None:
    log = list[str]()
    with turn:
        others = [started(one_statement(turn, log, "b"))]
        until_waiting(turn, 1)
        others.append(started(one_statement(turn, log, "c")))
        until_waiting(turn, 2)
    for _ in range(3):
        with turn:
            log.append("a")
    turn.leave()
    assert all(map(ended, others))
    assert log == ["a", "a", "a", "b", "c"]


def test_turn_passes_on_after_its_time_when_the_next_statement_begins(
    turn: ThreadTurn, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = list[str]()
    monkeypatch.setattr(thread_turn, "SLICE_S", 0.0)
    with turn:
        other = started(one_statement(turn, log, "b"))
        until_waiting(turn, 1)
    with turn:
        log.append("a")
    assert ended(other)
    assert log == ["b", "a"]


def test_thread_that_runs_no_statement_loses_the_turn_at_once(turn: ThreadTurn) -> None:
    log = list[str]()
    with turn:
        log.append("a")
    assert ended(started(one_statement(turn, log, "b")))
    with turn:
        log.append("a")
    assert log == ["a", "b", "a"]


def test_no_thread_waits_for_the_end_of_a_long_statement(turn: ThreadTurn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_turn, "IDLE_S", 0.001)
    log = list[str]()
    with turn:
        others = [started(one_statement(turn, log, name)) for name in "bcd"]
        assert all(map(ended, others))
    turn.leave()
    assert sorted(log) == ["b", "c", "d"]
    assert not turn._waiting
    assert ended(started(one_statement(turn, log, "e")))


def test_thread_whose_wait_a_signal_ends_leaves_no_place(turn: ThreadTurn, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bell:
        def acquire(self, timeout: float = 0.0) -> bool:
            if timeout:
                raise KeyboardInterrupt
            return True

    running, is_seen = threading.Event(), threading.Event()

    def hold() -> None:
        with turn:
            running.set()
            is_seen.wait(LONG_S)
        turn.leave()

    other = started(hold)
    assert running.wait(LONG_S)
    monkeypatch.setattr(thread_turn, "Lock", Bell)
    with pytest.raises(KeyboardInterrupt), turn:
        pass
    assert not turn._waiting
    is_seen.set()
    assert ended(other)


@pytest.mark.parametrize("method", ["_give_to", "_take"])
def test_finalizer_or_handler_inside_the_turn_may_take_it_and_leave_it(
    turn: ThreadTurn, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Both run between any two operations of a thread."""
    original, calls = getattr(turn, method), list[int]()

    def interrupted(thread: int) -> None:
        if len(calls) < 2:
            calls.append(thread)
            with turn:
                pass
            turn.leave()
        original(thread)

    monkeypatch.setattr(thread_turn, "IDLE_S", 0.001)
    monkeypatch.setattr(turn, method, interrupted)
    assert ended(started(one_statement(turn, [], "a")))
    assert calls
    assert ended(started(one_statement(turn, [], "b")))
    assert not turn._holder


def test_turn_of_a_child_belongs_to_no_thread_of_its_parent(node: LocalNode) -> None:
    with connect(str(node.database)) as db, db.transaction() as transaction:
        transaction.execute("SELECT 1")
        with TURN:
            child = os.fork()
            if not child:
                os._exit(0 if not TURN._holder and not TURN._is_running else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("waiting", ["BEGIN", "statement", "COMMIT"])
def test_each_step_of_a_transaction_waits_for_the_turn_and_its_end_passes_it_on(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch, waiting: str
) -> None:
    monkeypatch.setattr(thread_turn, "IDLE_S", LONG_S)
    monkeypatch.setattr(thread_turn, "SLICE_S", LONG_S)
    is_next, is_taken = threading.Event(), threading.Event()
    found = list[object]()

    def reach(step: str) -> None:
        if step == waiting:
            is_next.set()
            is_taken.wait(LONG_S)

    def job() -> None:
        with connect(str(node.database)) as db:
            reach("BEGIN")
            transaction = db.begin(read="strict")  # so that COMMIT prepares it for the node
            found.append(transaction.execute("SELECT ?", (1,)).value())  # the first statement begins the transaction
            reach("statement")
            found.append(transaction.execute("SELECT ?", (2,)).value())
            reach("COMMIT")
            transaction.commit()
            found.append("committed")

    other = started(job)
    assert is_next.wait(LONG_S)
    with TURN:
        is_taken.set()
        until_waiting(TURN, 1)
        assert found == {"BEGIN": [], "statement": [1], "COMMIT": [1, 2]}[waiting]
    TURN.leave()
    assert ended(other)
    assert found == [1, 2, "committed"]
    assert not TURN._holder


def test_thread_that_waits_for_a_durable_snapshot_has_no_turn(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    take, read, holders = WorkspacePool.snapshot, Published.facts_for_any_thread, list[int]()

    def undurable(published: Published) -> PublishedFacts:
        found = read(published)
        return found if holders else found._replace(durable=-1)

    def snapshot(
        pool: WorkspacePool, workspace: Any, published: Published, _durable: int, request: Request, **options: bool
    ) -> Any:
        assert TURN._holder == threading.get_ident()
        return take(pool, workspace, published, -1, request, **options)

    monkeypatch.setattr(Published, "facts_for_any_thread", undurable)
    monkeypatch.setattr(WorkspacePool, "snapshot", snapshot)
    monkeypatch.setattr(workspace_pool, "time", SimpleNamespace(sleep=lambda _: holders.append(TURN._holder)))
    with connect(str(node.database)) as db, db.transaction() as transaction:
        transaction.execute("SELECT 1")
    assert holders == [0]


def test_thread_that_waits_for_a_node_has_no_turn(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write, and the COMMIT of a transaction, by path."""
    wait, holders = SocketDriver._read_until, list[int]()

    def read_until(driver: SocketDriver, number: int) -> None:
        holders.append(TURN._holder)
        wait(driver, number)

    with connect(str(node.database)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS waits(a)")
        monkeypatch.setattr(SocketDriver, "_read_until", read_until)
        with TURN:
            pass
        assert TURN._holder == threading.get_ident()
        db.execute("INSERT INTO waits VALUES (1)")
        with db.transaction() as transaction:
            transaction.execute("INSERT INTO waits VALUES (2)")
    assert holders
    assert not any(holders)


@pytest.fixture
def reading(node: LocalNode) -> Iterator[list[int]]:
    """The results of a thread that repeats a read on a session of its own, until the fixture ends."""
    found, is_over = list[int](), threading.Event()

    def job() -> None:
        with closing(dbapi.connect(str(node.database))) as db:
            while not is_over.is_set():
                found.extend(db.execute("\n  SELECT ?", (1,)).fetchone())

    with connect(str(node.database)):  # a second session, without which reads take no turns
        thread = started(job)
        yield found
        is_over.set()
        assert ended(thread)


def test_known_reads_of_several_sessions_take_turns(reading: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_turn, "IDLE_S", LONG_S)
    with TURN:
        until_waiting(TURN, 1)
    TURN.leave()


def test_read_whose_text_was_long_waits_for_no_turn(reading: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MEASURE_EVERY", 1)
    monkeypatch.setattr(snapshots, "LONG_S", -1.0)
    until, before = time.monotonic() + LONG_S / 2, len(reading)
    while len(reading) < before + 20:  # a read that began before the patches was not measured by them
        assert time.monotonic() < until
        time.sleep(0.001)
    monkeypatch.setattr(thread_turn, "IDLE_S", LONG_S)
    with TURN:
        before = len(reading)
        while len(reading) < before + 100:
            assert time.monotonic() < until
            time.sleep(0.001)  # a loop without a pause would keep the interpreter's lock from the readers
    TURN.leave()


def test_closed_sessions_need_no_turn(node: LocalNode) -> None:
    gc.collect()  # sessions that earlier tests in this process have left
    before = len(thread_turn.SESSIONS)
    with connect(str(node.database)), connect(str(node.database)):
        assert len(thread_turn.SESSIONS) == before + 2
    assert len(thread_turn.SESSIONS) == before
