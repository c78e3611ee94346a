"""A worker on a private snapshot in a thread returns the same as the loop."""

import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.api.requests import Statement, decode_results
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution import executor
from bedrockish.engine.execution import workspace as workspaces
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.temporary import TemporaryTransaction, TemporaryWorkspace
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    DamagedError,
    DeadlineError,
    SqlError,
    StatementTimeoutError,
    TooLargeError,
    UnsupportedError,
)
from bedrockish.sqltext.transaction_control import ROLLBACK_TO, SAVEPOINT, Control
from bedrockish_journal.model.access_set import written_in
from bedrockish_journal.model.errors import ReplayMismatchError
from bedrockish_journal.verify.replay import replay
from tests.cluster.functions import register
from tests.engine.nodes import Limits, Sql, TestNode, contents, ids_like_sqlite, request

SCHEMA = [
    "CREATE TABLE person(id INTEGER PRIMARY KEY, name TEXT UNIQUE COLLATE NOCASE, age INT CHECK (age >= 0))",
    "CREATE TABLE pet(id INTEGER PRIMARY KEY, owner INT REFERENCES person(id) ON DELETE CASCADE, kind TEXT)",
    "CREATE INDEX pet_kind ON pet(kind, owner)",
    "CREATE TABLE late(id INTEGER PRIMARY KEY, owner INT REFERENCES person(id) DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE word(word TEXT PRIMARY KEY, n INT) WITHOUT ROWID",
    "CREATE TABLE sum2(id INTEGER PRIMARY KEY, a INT, b INT, c AS (a + b))",
    "CREATE TABLE log(id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT)",
    "CREATE TRIGGER pets AFTER INSERT ON pet BEGIN INSERT INTO log(what) VALUES ('pet ' || new.kind); END",
    "CREATE VIEW grown AS SELECT name FROM person WHERE age >= 18",
]
ROWS = [
    "INSERT INTO person VALUES (1, 'Ada', 36), (2, 'Bob', 17), (3, 'Cyd', 50)",
    "INSERT INTO pet(id, owner, kind) VALUES (1, 1, 'cat'), (2, 1, 'dog'), (3, 3, 'cat')",
    "INSERT INTO word VALUES ('one', 1), ('two', 2)",
    "INSERT INTO sum2(id, a, b) VALUES (1, 1, 2), (2, 3, 4)",
]
REQUESTS: list[tuple[Sql, ...]] = [
    ("SELECT * FROM person WHERE age > 20",),
    ("SELECT name, count(*) FROM person JOIN pet ON owner = person.id GROUP BY 1 ORDER BY 1", "SELECT * FROM grown"),
    ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) SELECT sum(i) FROM n",),
    (("SELECT * FROM pet WHERE kind = ? AND owner = :who", {"1": "cat", "who": 1}),),
    (("UPDATE person SET age = age + ? WHERE name = ?", (1, "ada")), "SELECT age FROM person WHERE id = 1"),
    ("SELECT 1", "INSERT INTO pet(owner, kind) VALUES (2, 'fish')", "SELECT count(*) FROM pet", "SELECT changes()"),
    ("DELETE FROM person WHERE id = 1", "SELECT * FROM pet"),
    ("INSERT INTO late VALUES (1, 9)", "INSERT INTO person VALUES (9, 'Joe', 1)"),
    ("INSERT INTO late VALUES (1, 9)",),
    ("PRAGMA defer_foreign_keys = ON", "INSERT INTO pet VALUES (9, 9, 'x')", "INSERT INTO person VALUES (9, 'J', 1)"),
    ("INSERT INTO word VALUES ('one', 5) ON CONFLICT DO UPDATE SET n = n + excluded.n RETURNING n",),
    ("REPLACE INTO person VALUES (7, 'BOB', 1)",),
    ("UPDATE sum2 SET a = a * 10 WHERE c > 3", "SELECT c FROM sum2"),
    ("INSERT INTO person(name, age) VALUES ('Eve', 20), ('Fay', 21)", "SELECT last_insert_rowid()"),
    ("INSERT INTO person VALUES (8, 'ADA', 1)",),
    ("INSERT INTO person VALUES (8, 'Zoe', -1)",),
    ("INSERT OR ROLLBACK INTO person VALUES (8, 'ADA', 1)",),
    ("INSERT INTO log(what) VALUES ('a'), ('b')", "DELETE FROM log"),
    ("CREATE TABLE fresh(x)", "CREATE INDEX fresh_x ON fresh(x)"),
    ("SELECT nothing FROM nowhere",),
    ("ATTACH 'x' AS y",),
    ("DELETE FROM word", "INSERT INTO word SELECT name, age FROM person"),
    tuple(("INSERT INTO word VALUES (?, ?)", (f"w{number}", number)) for number in range(300)),
    tuple(("INSERT INTO word VALUES (?, 0)", (f"w{number % 290}",)) for number in range(300)),
    (
        *[("INSERT INTO pet(owner, kind) VALUES (?, 'bird')", (number % 3 + 1,)) for number in range(9)],
        "DELETE FROM log",
    ),
    tuple(("INSERT OR ROLLBACK INTO person VALUES (?, ?, 1)", (number % 8, f"{number}")) for number in range(20)),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TestNode]:
    node = ids_like_sqlite(TestNode(tmp_path / "a.db", limits=Limits(statement_s=20)))
    node.run(*SCHEMA)
    for text in ROWS:
        node.run(text)
    node.save()
    yield node
    node.engine.close()


@pytest.fixture
def workspace(node: TestNode) -> Iterator[Workspace]:
    workspace = Workspace(node.engine.connector())
    yield workspace
    workspace.close()


def begin(node: TestNode, workspace: Workspace) -> None:
    node.save()
    workspace.take_snapshot(node.engine.flushed, node.engine.file_state())


def outcome(action: Callable[[], Prepared]) -> Any:
    try:
        return action()
    except BedrockishError as error:
        return type(error), error.message


def in_thread(action: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(outcome(action)))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return found[0]


@pytest.mark.parametrize("statements", REQUESTS, ids=lambda statements: str(statements[0])[:60])
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_worker_returns_the_same_as_the_loop(
    node: TestNode, workspace: Workspace, statements: tuple[Sql, ...], isolation: str
) -> None:
    """Results, changes, access set and errors are equal, and the next use of the workspace starts fresh."""
    wanted = replace(request(*statements), isolation=isolation)
    expected = outcome(lambda: node.engine.execute(wanted))
    before = node.tables()
    for _ in range(2):
        begin(node, workspace)
        node.engine._ids._highest.clear()  # otherwise ids would continue after unused ones
        assert in_thread(lambda: workspace.execute(wanted)) == expected
        workspace.end()
    assert node.tables() == before
    assert not workspace.is_broken


def test_worker_has_the_keys_of_the_row_it_read_after_an_analyze_was_rolled_back(
    node: TestNode, workspace: Workspace
) -> None:
    """SQLite keeps such statistics on the writing connection, and reads run on the other one: they have two plans."""
    fill = (
        "WITH n(i) AS (SELECT 11 UNION ALL SELECT i + 1 FROM n LIMIT 500) INSERT INTO s SELECT i, {}, i, {}, i FROM n"
    )
    node.run("CREATE TABLE s(id INTEGER PRIMARY KEY, a, p, b, q)", "CREATE INDEX s_a ON s(a, p)")
    node.run("CREATE INDEX s_b ON s(b, q)")
    node.run("INSERT INTO s VALUES (1, 1, 1, 1, 2), (2, 1, 2, 1, 1)")  # by s_a the first row is 1, and by s_b it is 2
    for text in (fill.format(1, "i"), "ANALYZE", "DELETE FROM s WHERE id > 8", fill.format("i", 1)):
        node.run(text)
    begin(node, workspace)
    workspace.execute(request("ANALYZE"))
    workspace.end()
    begin(node, workspace)
    prepared = workspace.execute(request("SELECT id FROM s WHERE a = 1 AND b = 1 LIMIT 1"))
    workspace.end()
    (row,) = decode_results(prepared.result)[0].rows
    writer = node.prepare(("DELETE FROM s WHERE id = ?", row))
    assert written_in(writer.access_set, prepared.access_set) is not None


def test_workspace_sees_its_snapshot_while_others_commit_and_the_wal_restarts(
    node: TestNode, workspace: Workspace
) -> None:
    """Both connections of the workspace show the snapshot of ``begin``, however the file changes."""
    draw = random.Random(5)
    engine = node.engine
    question = "SELECT group_concat(id || name || age) FROM (SELECT * FROM person ORDER BY id)"
    write = ("UPDATE person SET age = 1000 WHERE id % 3 = 0", question)
    for number in range(120):
        begin(node, workspace)
        expected = node.prepare(question).result, node.prepare(*write).result
        for _ in range(draw.randint(0, 4)):
            values = draw.randrange(200), str(draw.random()) * draw.randint(1, 200), draw.randrange(99)
            node.run(("REPLACE INTO person VALUES (?, ?, ?)", values))
            node.save()
        if draw.random() < 0.3:
            engine.wal.checkpoint()
        if draw.random() < 0.2:
            engine._limits = Limits(wal_frames_max=1)  # finish the checkpoint and truncate, if no snapshot forbids it
            node.run("UPDATE word SET n = n + 1")
            node.save()
            engine._limits = Limits()
        found = (
            in_thread(lambda: workspace.execute(request(question))),
            in_thread(lambda: workspace.execute(request(*write))),
        )
        assert (found[0].result, found[1].result) == expected, number
        workspace.end()


def test_a_change_larger_than_the_page_cache_is_rolled_back(node: TestNode, workspace: Workspace) -> None:
    """Pages that SQLite writes before the end of a transaction are in memory, and are dropped afterwards."""
    node.run("CREATE TABLE big(id INTEGER PRIMARY KEY, x BLOB)")
    many = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
        "INSERT INTO big SELECT i, randomblob(30000) FROM n"
    )
    for _ in range(2):
        begin(node, workspace)
        prepared = in_thread(lambda: workspace.execute(request(many, "SELECT count(*), sum(length(x)) FROM big")))
        assert decode_results(prepared.result)[1].rows == [(500, 15_000_000)]
        assert len(prepared.changes) > 15_000_000
        workspace.end()
    assert node.rows("SELECT count(*) FROM big") == [(0,)]


def test_statement_in_a_workspace_can_be_stopped_from_the_loop(node: TestNode, workspace: Workspace) -> None:
    """An endless statement ends with the error of its interruption, and the workspace can be used again."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    writing = f"INSERT INTO word {endless.replace('count(*)', 'i, 1')}"
    for statements in ([endless], ["DELETE FROM word", endless], [writing]):
        begin(node, workspace)
        timer = threading.Timer(0.2, workspace.stop, [DeadlineError("enough")])
        timer.start()
        found = in_thread(partial(workspace.execute, request(*statements)))
        timer.join()
        assert found == (DeadlineError, "enough")
        workspace.end()
    begin(node, workspace)
    assert decode_results(in_thread(lambda: workspace.execute(request("SELECT count(*) FROM word"))).result)[
        0
    ].rows == [(2,)]
    workspace.end()


@pytest.mark.parametrize(
    ("action", "owner", "method"),
    [("run", Interactive, "run"), ("finish", Interactive, "finish"), ("control", OverlayTransaction, "enter")],
)
def test_interrupt_of_sql_of_the_engine_raises_the_error_of_its_stop(
    node: TestNode, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, action: str, owner: type, method: str
) -> None:
    """An interrupt between the statements of an open transaction must not become an internal error of the node."""
    running = OverlayTransaction(workspace, TransactionWork(True, "command", ""), lambda: 1)
    node.save()
    engine = node.engine
    running.take_snapshot(engine.flushed, engine.file_state())
    assert in_thread(running.open) is None

    def interrupted(*_: Any) -> None:
        workspace.stop(DeadlineError("enough"))
        raise apsw.InterruptError("interrupted")

    monkeypatch.setattr(owner, method, interrupted)
    actions: dict[str, Callable[[], Any]] = {
        "run": lambda: running.run(Statement("SELECT 1", ()), 1 << 20),
        "finish": running.finish,
        "control": lambda: running.control(Control(SAVEPOINT, "p")),
    }
    assert in_thread(actions[action]) == (DeadlineError, "enough")
    monkeypatch.undo()
    workspace.leave_work()
    workspace.end()


def test_workspace_stopped_before_a_statement_does_not_run_it(node: TestNode, workspace: Workspace) -> None:
    begin(node, workspace)
    workspace.stop(DeadlineError("enough"))
    assert in_thread(lambda: workspace.execute(request("SELECT 1"))) == (DeadlineError, "enough")
    workspace.end()


def test_temporary_objects_outlive_an_interrupt_after_the_last_statement(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an interrupt would hit the ROLLBACK once in 1,000 times, and the session lose its TEMP objects."""
    for place in (executor, workspaces):
        monkeypatch.setattr(place, "STEPS", 1)  # the progress handler is called during each statement
    node.save()
    engine = node.engine
    held = TemporaryWorkspace(engine.connector(), 1 << 20)
    for _ in range(2):
        running = TemporaryTransaction(held, TransactionWork(True, "command", ""), lambda: 1)
        running.take_snapshot(engine.flushed, engine.file_state())
        assert in_thread(running.open) is None
        held.stop(DeadlineError("enough"))
        running.close()
        assert not held.is_broken
    held.close()


def test_rows_and_texts_of_a_closed_workspace_need_no_garbage_collector(node: TestNode) -> None:
    node.save()
    engine = node.engine
    held = TemporaryWorkspace(engine.connector(), 1 << 20)
    work = TransactionWork(True, "command", "")
    running = TemporaryTransaction(held, work, lambda: 1)
    running.take_snapshot(engine.flushed, engine.file_state())
    gc.disable()
    try:
        running.open()
        running.run(Statement("INSERT INTO word VALUES ('three', 3)"), 1 << 20)
        assert work.changes
        texts, rows = running.executor.texts, weakref.ref(running)
        running.close()
        del running, work
        assert rows() is None
        held.close()
        assert not texts._all.texts
    finally:
        gc.enable()


def test_transaction_with_temporary_objects_that_is_stopped_before_it_opens_raises_that_error(tmp_path: Path) -> None:
    """An overtaken transaction raises its ConflictError, for example, after which the client begins it again."""
    node = TestNode(tmp_path / "a.db")
    node.run("CREATE TABLE t(x)")
    node.save()
    engine = node.engine
    held = TemporaryWorkspace(engine.connector(), 1 << 20)
    running = TemporaryTransaction(held, TransactionWork(True, "command", ""), lambda: 1)
    running.take_snapshot(engine.flushed, engine.file_state())
    running.stop(ConflictError("overtaken"))
    with pytest.raises(ConflictError, match="overtaken"):
        running.open()
    running.close()
    held.close()
    engine.close()


def test_statement_over_its_time_limit_is_interrupted_in_loop_and_worker(tmp_path: Path) -> None:
    """The limit interrupts an endless statement with its own error, in loop and worker, for reads and for writes."""
    node = TestNode(tmp_path / "a.db", limits=Limits(statement_s=0.05))
    node.run("CREATE TABLE t(x)")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0"
    workspace = Workspace(node.engine.connector())
    for text in (endless, f"INSERT INTO t {endless}"):
        with pytest.raises(StatementTimeoutError, match=r"longer than 0\.05 s") as caught:
            node.prepare(text)
        assert caught.value.details == {"sql": text, "limit_s": 0.05}
        begin(node, workspace)
        assert in_thread(partial(workspace.execute, request(text)))[0] is StatementTimeoutError
        workspace.end()
    workspace.close()
    node.engine.close()


def test_request_over_the_loops_budget_is_sent_to_a_worker(node: TestNode) -> None:
    """This holds for one long statement, many short ones, and schema changes; the open batch stays intact."""
    long = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) "
        "INSERT INTO word SELECT i, max(i) FROM n"
    )
    entry = node.entry(node.prepare("INSERT INTO word VALUES ('kept', 1)"))
    node.apply(entry)  # not flushed yet: SQLite rolls it back together with the statement
    with pytest.raises(TakesLongError) as caught:
        node.engine.execute(request(long), 0.01)
    assert caught.value.sql == long
    with pytest.raises(TakesLongError):
        node.engine.execute(request(*["UPDATE word SET n = n + 1"] * 5_000), 0.01)
    assert ("kept", 1) in contents(node.engine._db)["word"]
    node.run("CREATE TABLE numbers(x)")
    schema = request("CREATE INDEX i ON numbers(x)", "DROP TABLE numbers")
    with pytest.raises(TakesLongError):
        node.engine.execute(schema, 0.0)
    workspace = Workspace(node.engine.connector())
    begin(node, workspace)
    assert in_thread(lambda: workspace.execute(schema)) == node.engine.execute(schema)
    workspace.end()
    workspace.close()


def test_ids_that_were_given_in_a_worker_are_not_given_again(tmp_path: Path) -> None:
    node = TestNode(tmp_path / "a.db")
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
    node.run("CREATE TABLE u(id INTEGER PRIMARY KEY, x)")
    workspace = Workspace(node.engine.connector())
    seen: set[int] = set()
    text = "INSERT INTO t(x) VALUES (1), (2) RETURNING id"
    for _ in range(3):
        begin(node, workspace)
        for prepared in (in_thread(lambda: workspace.execute(request(text))), node.prepare(text)):
            ids = {row[0] for row in decode_results(prepared.result)[0].rows}
            assert not ids & seen
            seen |= ids
        workspace.end()
    node.run("DROP TABLE t")
    begin(node, workspace)
    assert decode_results(in_thread(lambda: workspace.execute(request("INSERT INTO u(x) VALUES (1)"))).result)
    workspace.end()
    workspace.close()
    node.engine.close()


def run(desk: OverlayTransaction, sql: str, room: int = 1 << 20, *, read_only: bool = False) -> list[Any]:
    """Run a statement, and return its rows."""
    return desk.run(Statement(sql), room, read_only=read_only)[0].rows


def work(workspace: Workspace, action: Callable[[OverlayTransaction], Any]) -> tuple[Any, Any]:
    told: list[Any] = []

    def act() -> Prepared:
        desk = OverlayTransaction(workspace, TransactionWork(True, "c"))
        desk.start()
        try:
            told.append(action(desk))
            return desk.finish()
        finally:
            workspace.leave_work()

    prepared = in_thread(act)
    return (told[0] if told else None), prepared


def test_work_sees_its_own_writes_and_survives_a_failed_statement(node: TestNode, workspace: Workspace) -> None:
    def action(desk: OverlayTransaction) -> Any:
        first = run(desk, "SELECT count(*) FROM person")
        run(desk, "INSERT INTO person VALUES (10, 'Kim', 3)")
        with pytest.raises(ConstraintError):
            run(desk, "INSERT INTO person VALUES (11, 'KIM', 3)")
        desk.control(Control(SAVEPOINT, "s"))
        run(desk, "DELETE FROM person")
        gone = run(desk, "SELECT count(*) FROM person")
        desk.control(Control(ROLLBACK_TO, "s"))
        return first, gone, run(desk, "SELECT count(*) FROM person")

    begin(node, workspace)
    told, prepared = work(workspace, action)
    workspace.end()
    assert told == ([(3,)], [(0,)], [(4,)])
    assert not prepared.readonly
    node.apply(node.entry(prepared))
    assert (10, 10, "Kim", 3) in node.tables()["person"]
    assert len(node.tables()["pet"]) == 3


def test_workspace_refuses_writes_of_read_only_work_and_schema_changes(node: TestNode, workspace: Workspace) -> None:
    def action(desk: OverlayTransaction) -> Any:
        with pytest.raises(UnsupportedError, match="may only read"):
            run(desk, "DELETE FROM person", read_only=True)
        for text in ("CREATE TABLE x(y)", "BEGIN", "COMMIT", "PRAGMA user_version = 3"):
            with pytest.raises(UnsupportedError):
                run(desk, text)
        with pytest.raises(SqlError):
            run(desk, "SELEC")
        return run(desk, "SELECT 1", read_only=True)

    begin(node, workspace)
    told, prepared = work(workspace, action)
    workspace.end()
    assert told == [(1,)]
    assert prepared.readonly


def test_read_set_of_a_command_is_that_of_its_statements(node: TestNode, workspace: Workspace) -> None:
    """The points and ranges equal those of a request with the same statements."""
    texts = ["SELECT * FROM person WHERE id = 1", "SELECT * FROM pet WHERE kind = 'cat'", "UPDATE word SET n = 3"]
    begin(node, workspace)
    _, prepared = work(workspace, lambda desk: [run(desk, text) for text in texts])
    workspace.end()
    assert prepared.access_set == node.prepare(*texts).access_set
    assert prepared.changes == node.prepare(*texts).changes


def test_rows_of_each_statement_in_a_workspace_are_bounded(tmp_path: Path) -> None:
    """The limit holds for each statement, not for their sum: a command that reads much reads it piece by piece."""
    node = TestNode(tmp_path / "a.db", limits=Limits(result_bytes=10_000))
    workspace = Workspace(node.engine.connector())
    begin(node, workspace)
    told, _ = work(workspace, lambda desk: [len(run(desk, "SELECT randomblob(1000)", 10_000)) for _ in range(20)])
    assert told == [1] * 20
    _, failed = work(workspace, lambda desk: run(desk, "SELECT randomblob(20000)", 10_000))
    assert failed[0] is TooLargeError
    workspace.end()
    workspace.close()
    node.engine.close()


def test_closing_a_workspace_keeps_sqlites_locks(node: TestNode) -> None:
    """A closed descriptor on the file would drop the locks of the node's own connection."""
    workspace = Workspace(node.engine.connector())
    begin(node, workspace)
    in_thread(lambda: workspace.execute(request("DELETE FROM word")))
    workspace.end()
    workspace.close()
    other = apsw.Connection(str(node.path))
    with pytest.raises(apsw.BusyError):
        other.execute("BEGIN IMMEDIATE")
    other.close()


def test_functions_of_a_plugin_are_everywhere_or_the_node_stops(tmp_path: Path) -> None:
    """The functions work in loop, worker and replay. A node without the plugin stops and names them, until it has the
    plugin.
    """
    first = TestNode(tmp_path / "a.db", prepare=register)
    second = TestNode(tmp_path / "b.db", "B")
    first.run("CREATE TABLE word(w TEXT COLLATE backwards UNIQUE)")
    first.run("CREATE INDEX loud ON word(shout(w))")
    first.run("INSERT INTO word VALUES ('a'), ('b')")
    assert first.rows("SELECT w FROM word ORDER BY w") == [("b",), ("a",)]
    workspace = Workspace(first.engine.connector())
    begin(first, workspace)
    asked = request("UPDATE word SET w = 'c' WHERE shout(w) = 'A!'", "SELECT w FROM word ORDER BY w")
    assert decode_results(in_thread(lambda: workspace.execute(asked)).result)[1].rows == [("c",), ("b",)]
    workspace.end()
    workspace.close()
    with pytest.raises(DamagedError, match="no such collation sequence: backwards; it is a function or a collation of"):
        second.apply(first.entries[0])
    second.engine.close()
    second = TestNode(tmp_path / "b.db", "B", prepare=register)
    for entry in first.entries:
        second.apply(entry)
    second.save()
    second.engine.close()
    second = TestNode(tmp_path / "b.db", "B")
    update = first.entry(first.prepare("UPDATE word SET w = 'z' WHERE w = 'a'"))
    first.apply(update)
    with pytest.raises(DamagedError, match="of a plugin that this node does not have"):
        second.apply(update)
    second.engine.close()
    first.save()
    with pytest.raises(ReplayMismatchError, match="no such collation"):
        replay([first.path], tmp_path / "c.db")
    assert replay([first.path], tmp_path / "c.db", prepare=register).digest == first.digest()
    first.engine.close()
