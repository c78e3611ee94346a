"""A memory budget for all requests of a node together: over it, the newest is refused, and decided commits never
are.
"""

import sys
from dataclasses import replace

import apsw
import pytest

from bedrockish.api.requests import Statement
from bedrockish.engine.engine import Limits
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.sqlite.limits import Memory, TakesLongError
from bedrockish.errors import MemoryFullError, TooLargeError
from tests.engine.conftest import MakeNode
from tests.engine.nodes import request

ROWS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 3000000)"
BOMBS = (
    f"{ROWS} SELECT length(group_concat(hex(zeroblob(1000)), '')) FROM n",
    f"{ROWS} SELECT length(json_group_array(x)) FROM n",
    f"{ROWS}, m(y) AS (SELECT x FROM n UNION SELECT x + 1 FROM n) SELECT count(*) FROM m",
)


def test_newest_request_is_refused_when_memory_is_full() -> None:
    used, now = [0], [0.0]
    memory = Memory(100, lambda: used[0], lambda: now[0])
    old, new = memory.register(), memory.register()
    assert not memory.must_end(old)
    assert not memory.must_end(new)
    used[0] = 60
    memory.hold("a client", 50)
    assert (memory.must_end(old), memory.must_end(new)) == (False, True)
    memory.check()  # a small request may exceed the limit a little
    with pytest.raises(MemoryFullError, match="memory_max"):
        memory.check_large()
    memory.record(old, 30)
    with pytest.raises(MemoryFullError, match="the statement was ended"):
        memory.record(new, 20)
    memory.record(old, 80)
    assert memory.taken == 210
    with pytest.raises(MemoryFullError, match="memory_max"):
        memory.check()
    memory.record(old, 0)
    memory._running[new] = 0
    assert memory.describe() == {"taken_bytes": 110, "max_bytes": 100, "recently_refused": 3}
    memory.end(new)
    assert memory.must_end(old)
    memory.move("a client", 10)
    assert (memory.held("a client"), memory.elsewhere, memory.taken) == (40, 10, 110)
    memory.hold("a client", -40)
    assert not memory.is_full
    memory.elsewhere = 50
    assert memory.is_full
    now[0] = 61.0
    assert memory.describe()["recently_refused"] == 0


@pytest.mark.parametrize("sql", BOMBS[:2])
def test_no_value_is_longer_than_a_transaction_on_any_connection(make_node: MakeNode, sql: str) -> None:
    node = make_node(limits=Limits(statement_s=60))
    with pytest.raises(TooLargeError, match=r"too big|is too long for this statement"):
        node.run(
            sql.replace("3000000", "100000").replace("json_group_array(x)", "json_group_array(hex(zeroblob(1000)))")
        )
    reader = node.engine.background.open_reader()
    with pytest.raises(Exception, match="too big"):
        reader.execute("SELECT zeroblob(200000000)").fetchall()
    reader.close()


@pytest.mark.parametrize("sql", BOMBS)
def test_statement_that_takes_too_much_memory_is_ended(make_node: MakeNode, sql: str) -> None:
    memory = Memory(apsw.memory_used() + (12 << 20))
    node = make_node(limits=replace(Limits(), memory=memory))
    with pytest.raises(MemoryFullError, match="the statement was ended"):
        node.run(sql)
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    assert node.rows("SELECT count(*) FROM t") == [(0,)]
    assert not memory._running


@pytest.mark.parametrize("is_open", [False, True])
def test_large_rows_of_a_lookup_are_counted_as_memory(make_node: MakeNode, is_open: bool) -> None:
    """A brief statement has no memory account before that."""
    memory = Memory()
    node = make_node(limits=replace(Limits(), memory=memory, result_bytes=4 << 20))
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    node.run("INSERT INTO t VALUES (1, zeroblob(3000000)), (2, zeroblob(5000000)), (3, zeroblob(1000))")

    def read(key: int) -> None:
        if not is_open:
            node.prepare(("SELECT v FROM t WHERE id = ?", (key,)))
            return
        interactive, work = Interactive(node.engine, lambda *_: None), TransactionWork(serializable=True)
        interactive.take_snapshot(work)
        try:
            ((piece, params),) = interactive.pieces(work, Statement("SELECT v FROM t WHERE id = ?", (key,)))
            interactive.run(work, piece, params, 4 << 20)
        finally:
            interactive.end(work)
            interactive.close()

    node.engine.flush()
    read(1)
    with pytest.raises(TooLargeError, match="4194304 bytes"):
        read(2)
    memory.max_bytes = memory.taken + (2 << 20)
    read(3)
    with pytest.raises(MemoryFullError, match="the statement was ended"):
        read(1)
    assert not memory._running


def test_parameters_of_a_failed_statement_are_released(make_node: MakeNode) -> None:
    node = make_node()
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    value = bytes(2 << 20)
    given = request(("INSERT INTO t VALUES (1, ?)", [value]))  # as they come from a client: not the tuple that is bound
    before = sys.getrefcount(value)
    with pytest.raises(TakesLongError):
        node.engine.execute(given, 0.01)
    assert sys.getrefcount(value) == before
