"""A refused, stopped or slow request leaves nothing behind that ends, delays or changes another one."""

import threading
from functools import partial

import pytest

from bedrockish.api.requests import Statement
from bedrockish.engine.engine import Limits
from bedrockish.engine.execution.cursor import Batches, compile_read
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.snapshot import Snapshot
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.limits import Memory
from bedrockish.engine.sqlite.watchdog import Interrupter
from bedrockish.errors import ConstraintError, DeadlineError, TooLargeError, UnsupportedError
from tests.engine.conftest import MakeNode
from tests.engine.nodes import TestNode, request

ROWS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 5000) INSERT INTO t(v) SELECT x FROM n"


def interactive(node: TestNode) -> Interactive:
    return Interactive(node.engine, lambda _access_set, _base: None)


def run(transactions: Interactive, work: TransactionWork, sql: str) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for piece, params in transactions.pieces(work, Statement(sql, ())):
        rows = transactions.run(work, piece, params, 1 << 20)[0].rows
    return rows


def test_late_stop_of_a_stream_does_not_interrupt_the_next_statement_on_its_connection(make_node: MakeNode) -> None:
    """A client leaves while its batch is encoded.

    Its interrupt must not reach the next work on that connection: an interrupted comparison of a large transaction
    would stop the node.
    """
    node = make_node()
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", ROWS)
    update = node.prepare("UPDATE t SET v = v + 1")
    node.engine.flush()
    transactions = interactive(node)
    snapshot = transactions.readers.take_snapshot()
    piece, params, plan = compile_read(transactions.parts.executor, Statement("SELECT 1", ()))
    batches = Batches(snapshot, piece, params, plan.lengths)
    assert batches.next_batch()[1:] == (1, False)
    batches.stop()
    batches.close()
    transactions.readers.give_back(snapshot)
    again: Snapshot = transactions.readers.take_snapshot()
    assert again is snapshot
    assert again.compare(update.changes) == ""
    transactions.readers.give_back(again)
    transactions.close()


@pytest.mark.parametrize("in_transaction", [False, True])
def test_error_of_a_write_that_was_too_large_is_raised_once(make_node: MakeNode, in_transaction: bool) -> None:
    node = make_node(limits=Limits(changes_bytes=2_000))
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", "CREATE TABLE u(v)", "INSERT INTO u VALUES (1)")
    transactions = interactive(node)
    mine, other = TransactionWork(True, "mine"), TransactionWork(True, "other")
    run(transactions, mine, "INSERT INTO u VALUES (2)")
    write = partial(run, transactions, other) if in_transaction else node.prepare
    with pytest.raises(TooLargeError):
        write(ROWS)
    if in_transaction:
        assert run(transactions, other, "SELECT count(*) FROM t") == [(0,)]
    assert run(transactions, mine, "SELECT v FROM u") == [(1,), (2,)]
    for work in (mine, other):
        transactions.end(work)
    transactions.close()


@pytest.mark.parametrize("how", ["stream", "explain", "transaction", "together", "request"])
def test_a_pragma_is_set_for_its_own_request_only(make_node: MakeNode, how: str) -> None:
    """SQLite sets this PRAGMA at compile time; compiling it alone, without running it, has no effect."""
    node = make_node()
    node.run("CREATE TABLE p(id INTEGER PRIMARY KEY)", "CREATE TABLE c(id INTEGER PRIMARY KEY, p REFERENCES p(id))")
    transactions = interactive(node)
    text = Statement("PRAGMA defer_foreign_keys = ON", ())
    setting = request(text.sql, "INSERT INTO c VALUES (7, 7)", "INSERT INTO p VALUES (7)")
    match how:
        case "stream":
            with pytest.raises(UnsupportedError):
                compile_read(transactions.parts.executor, text)
        case "explain":
            node.engine.explain(text)
        case "transaction":
            work = TransactionWork(True, "it")
            for sql in ("INSERT INTO p VALUES (1)", text.sql, "INSERT INTO c VALUES (7, 7)"):
                run(transactions, work, sql)
            transactions.end(work)
        case "together":
            assert not node.engine.execute_together([request("INSERT INTO p VALUES (5)"), setting], 1.0).joined
        case _:
            assert not node.engine.execute(setting).readonly
    with pytest.raises(ConstraintError):
        node.engine.execute(request("INSERT INTO c VALUES (1, 1)", "INSERT INTO p VALUES (1)"))
    assert node.engine._db.pragma("defer_foreign_keys") == 0
    transactions.close()


def test_later_pragma_in_a_request_keeps_deferred_keys(make_node: MakeNode) -> None:
    node = make_node()
    node.run("CREATE TABLE p(id INTEGER PRIMARY KEY)", "CREATE TABLE c(id INTEGER PRIMARY KEY, p REFERENCES p(id))")
    statements = ("PRAGMA defer_foreign_keys = ON", "PRAGMA foreign_keys = ON", "PRAGMA defer_foreign_keys")
    node.run(*statements, "INSERT INTO c VALUES (1, 1)", "INSERT INTO p VALUES (1)")


class StoppedError(BaseException):
    """Raised in a thread between any two steps."""


def test_interrupted_function_releases_its_memory_account(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst place is the cleanup after a statement."""
    memory = Memory()
    node = make_node(limits=Limits(memory=memory, result_bytes=1 << 30))
    node.engine.flush()
    place = Workspace(node.engine.connector())
    place.take_snapshot(node.engine.flushed, node.engine.file_state())
    place.scope.begin_in_worker("it", 0, lambda: 0)
    found: list[BaseException] = []
    end = Interrupter.end

    def stopped(interrupter: Interrupter) -> None:
        if any(memory._running.values()):
            raise StoppedError
        end(interrupter)

    select = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT zeroblob(100000) FROM n"

    def in_thread() -> None:
        try:
            work = OverlayTransaction(place, TransactionWork(True, "it"))
            work.start()
            work.run(Statement(select, ()), 1 << 30)
        except BaseException as error:
            found.append(error)

    monkeypatch.setattr(Interrupter, "end", stopped)
    thread = threading.Thread(target=in_thread)
    thread.start()
    while not any(memory._running.values()):
        assert thread.is_alive()
    place.stop(DeadlineError("it took too long"))
    thread.join(60)
    monkeypatch.setattr(Interrupter, "end", end)
    assert isinstance(found[0], StoppedError)
    assert memory._running
    place.end()
    place.close()
    assert not memory._running
