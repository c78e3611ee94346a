"""The loop's budget is the thread's own processor time: a stalled machine makes no request slow."""

from dataclasses import replace

import pytest

from bedrockish.engine.engine import Limits
from bedrockish.engine.sqlite.limits import WALL_FACTOR, Budget, Memory, TakesLongError
from bedrockish.errors import MemoryFullError, TooLargeError
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode, request

LONG = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 100000) SELECT count(*) FROM n"


class Clocks:
    """A wall clock and a thread's clock, whose speeds the test sets."""

    def __init__(self) -> None:
        self.wall = self.thread = self.wall_step = self.thread_step = 0.0

    def seconds(self) -> float:
        self.wall += self.wall_step
        return self.wall

    def busy(self) -> float:
        self.thread += self.thread_step
        return self.thread


def test_waiting_for_the_processor_uses_no_budget() -> None:
    clocks = Clocks()
    budget = Budget(Limits(seconds=clocks.seconds, busy=clocks.busy))
    assert not budget.is_over
    budget.allow(0.01)
    clocks.wall += 0.02  # the machine did something else
    assert not budget.is_over
    clocks.thread += 0.011
    assert budget.is_over
    budget.allow(0.01)
    clocks.wall += 0.011 * WALL_FACTOR  # waiting for a disk blocks the loop, too
    assert budget.is_over
    budget.allow(float("inf"))
    assert not budget.is_over


@pytest.mark.parametrize("text", [LONG, "INSERT INTO t(v) " + LONG])
def test_budget_counts_processor_time_and_not_the_wall_clock(make_node: MakeNode, text: str) -> None:
    clocks = Clocks()
    node = make_node(limits=replace(Limits(), seconds=clocks.seconds, busy=clocks.busy))
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    clocks.wall_step = 0.00001
    assert node.engine.execute(request(text), 0.01).base == {"A": 1}
    clocks.wall_step, clocks.thread_step = 0.0, 0.001
    with pytest.raises(TakesLongError):
        node.engine.execute(request(text), 0.01)


def test_a_schema_of_many_tables_is_read_in_a_worker_too(make_node: MakeNode) -> None:
    """The check after the last statement is a part of the request, and of its time."""
    clocks = Clocks()
    node = make_node(limits=replace(Limits(), seconds=clocks.seconds, busy=clocks.busy))
    node.run(*(f"CREATE TABLE t{number}(id INTEGER PRIMARY KEY, v UNIQUE)" for number in range(400)))
    ended = set()
    for milliseconds in range(0, 60, 3):
        clocks.thread_step = milliseconds / 1_000
        try:
            node.engine.execute(request("CREATE TABLE another(x)"), 0.05)
        except TakesLongError:
            ended.add("worker")
        else:
            ended.add("here")
    assert ended == {"here", "worker"}


MANY = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 6000) INSERT INTO t(v) SELECT x FROM n"


def test_exhausted_budget_does_not_interrupt_the_engines_own_work(make_node: MakeNode) -> None:
    """The request is done, or is run again in a worker; it never fails with SQLite's own error."""
    clocks = Clocks()
    node = make_node(limits=replace(Limits(), seconds=clocks.seconds, busy=clocks.busy))
    node.run("CREATE TABLE t(v, w AS (v + 1))")  # rows with computed columns are read again at the end
    clocks.thread_step = 0.03  # over when it is asked for the second time
    ended = set()
    for _ in range(4_000):
        try:
            node.engine.execute(request("INSERT INTO t(v) VALUES (abs(NULL))"), 0.05)  # a brief one is never ended
        except TakesLongError:
            ended.add("worker")
        else:
            ended.add("here")
    assert ended == {"here", "worker"}


@pytest.mark.parametrize("why", ["changes", "memory"])
def test_request_beyond_a_limit_does_not_interrupt_later_statements(make_node: MakeNode, why: str) -> None:
    """SQLite also asks about the engine's own statements; an interrupt of one of those would stop the node."""
    memory = Memory()
    node = make_node(limits=Limits(changes_bytes=2_000) if why == "changes" else Limits(memory=memory))
    node.run("CREATE TABLE t(v)")
    writes = [node.prepare(f"INSERT INTO t(v) VALUES ({number})") for number in range(2_000)]
    if why == "memory":
        memory.max_bytes = 1
    with pytest.raises(TooLargeError if why == "changes" else MemoryFullError):
        node.prepare(MANY)
    for write in writes:
        node.apply(node.entry(write))
    memory.max_bytes = 1 << 62
    assert node.rows("SELECT count(*) FROM t") == [(2_000,)]


@pytest.mark.parametrize("text", ["DROP TABLE t", "drop index i", "DROP TABLE IF EXISTS found", "DROP/**/TABLE t"])
def test_a_table_is_dropped_in_a_worker(node: TestNode, text: str) -> None:
    """SQLite reads all pages of the table in one step, which an interrupt cannot end."""
    node.run("CREATE TABLE t(v)", "CREATE INDEX i ON t(v)", "CREATE VIEW seen AS SELECT v FROM t")
    node.run("CREATE VIRTUAL TABLE found USING fts5(v, content='t')")
    node.run("CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT 1; END")
    with pytest.raises(TakesLongError):
        node.engine.execute(request(text), 0.01)
    for sql in ("DROP VIEW seen", "DROP TRIGGER r", "DROP TABLE IF EXISTS nowhere"):
        node.engine.execute(request(sql), 0.01)
