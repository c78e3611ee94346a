"""Open transactions that change the schema run on a private copy, which records all answers."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import apsw
import pytest
import trio

from bedrockish.api.requests import Result, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution import ddl_workspace as drafts
from bedrockish.engine.execution.ddl_workspace import Draft
from bedrockish.engine.execution.interactive import Interactive, is_of_schema
from bedrockish.engine.execution.open_transaction import LOG_MAX, Logged, TransactionWork
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.storage.wal import copy_file
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    SqlError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
)
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.node.transactions import private_copy
from bedrockish.node.transactions.places import Services
from bedrockish.node.transactions.private_copy import PrivateCopy
from bedrockish.sqltext.transaction_control import parse_control
from bedrockish_journal.model.changes import OVERTAKEN, SchemaStep, decode_steps
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import Transaction, decode_transaction
from bedrockish_journal.storage import schema_steps
from bedrockish_journal.storage.schema_steps import AFTER_FAILURE, BEFORE_FAILURE, switch
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.replay import replay as rebuild
from tests.engine.nodes import Sql, TestNode, request

ROOM = 1 << 20


class Desk:
    """A node, and its open transactions."""

    def __init__(self, path: Path, changes_bytes: int = 32 << 20) -> None:
        self.node = TestNode(path, limits=Limits(changes_bytes=changes_bytes))
        self.interactive = Interactive(self.node.engine, lambda _access_set, _base: None)
        self.boundary = Boundary(self.node.engine, self.durable)
        parts = {"engine": self.node.engine, "interactive": self.interactive, "boundary": self.boundary}
        self.private_copy = PrivateCopy(cast(Services, SimpleNamespace(**parts)))
        self.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v UNIQUE)")
        self.node.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")

    async def durable(self) -> None:
        self.node.save()
        self.boundary.reach()

    async def run(self, work: TransactionWork, sql: Sql) -> Result:
        """Run one text, in the way of ``Transactions``."""
        statement = request(sql).statements[0]
        control = parse_control(statement.sql)
        if control is not None:
            workspace = self.private_copy.workspace(work)
            await self.private_copy.run_in_thread(work, lambda: workspace.control(control))
            return Result((), [])
        if work.workspace is not None or is_of_schema(statement.sql):
            if not isinstance(work.workspace, Draft):
                await self.private_copy.start(work, ROOM)
            workspace = self.private_copy.workspace(work)
            return (await self.private_copy.run_in_thread(work, lambda: workspace.run(statement, ROOM)))[0]
        try:
            for piece, params in self.interactive.pieces(work, statement):
                result, size = self.interactive.run(work, piece, params, ROOM)
                work.log_statement(Logged(statement, result), size)
                return result
        except (ConstraintError, SqlError) as error:
            work.log_statement(Logged(statement, failure=error.message))
            raise
        raise AssertionError(sql)

    async def commit(self, work: TransactionWork) -> str:
        """Commit the transaction, put it in force, and return its failure."""
        prepared = await self.finish(work)
        self.interactive.end(work)
        entry = self.node.entry(prepared)
        changed = Entry(self.node.node, entry.tick, entry.quorum, _later(entry), None, entry.prev)
        self.node.head = changed.hash
        self.node.apply(changed)
        failure = self.node.engine.versions.activate(changed.txid)
        self.node.save()
        return failure

    async def finish(self, work: TransactionWork) -> Prepared:
        """Return the prepared transaction."""
        return await self.private_copy.run_in_thread(work, self.private_copy.workspace(work).finish)

    def close(self) -> None:
        self.interactive.close()
        self.node.engine.close()


def _later(entry: Entry) -> Transaction:
    return replace(entry.transaction, activates=entry.txid.clock + 10, body=b"")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "A.sqlite")
    yield made
    made.close()


async def test_schema_transaction_replays_earlier_statements(desk: Desk, tmp_path: Path) -> None:
    """Rows written before the first schema statement keep their ids, and failed statements are repeated."""
    work = TransactionWork(serializable=True)
    given = (await desk.run(work, ("INSERT INTO t(v) VALUES (?)", ["c"]))).lastrowid
    with pytest.raises(ConstraintError):
        await desk.run(work, "INSERT INTO t(id, v) VALUES (9, 'a')")
    with pytest.raises(ConstraintError):
        await desk.run(work, "INSERT INTO t(v) VALUES ('d'), ('a')")
    assert (await desk.run(work, "SELECT count(*) FROM t")).rows == [(3,)]
    await desk.run(work, "ALTER TABLE t ADD COLUMN w DEFAULT 7")
    assert (await desk.run(work, ("SELECT w FROM t WHERE id = ?", [given]))).rows == [(7,)]
    with pytest.raises(ConstraintError):
        await desk.run(work, "INSERT INTO t(v) VALUES ('a')")
    with pytest.raises(SqlError, match="no such table"):
        await desk.run(work, "SELECT * FROM nowhere")
    for sql in ("SAVEPOINT one", "DELETE FROM t", "ROLLBACK TO one", "RELEASE one"):
        await desk.run(work, sql)
    with pytest.raises(SqlError, match="no such savepoint"):
        await desk.run(work, "RELEASE one")
    with pytest.raises(UnsupportedError, match="savepoint"):
        await desk.run(work, "SAVEPOINT bedrockish_in_force")
    assert desk.node.rows("SELECT count(*) FROM t") == [(2,)]
    assert await desk.commit(work) == ""
    assert desk.node.rows("SELECT v, w FROM t ORDER BY id") == [("a", 7), ("b", 7), ("c", 7)]
    assert desk.node.rows("SELECT id FROM t WHERE v = 'c'") == [(given,)]
    assert rebuild([desk.node.path], tmp_path / "made.sqlite").digest == digest(desk.node.path)


async def test_statement_from_before_the_schema_change_keeps_its_calls_of_time(desk: Desk) -> None:
    """The client may have read the time of its first run, which the private copy cannot repeat."""
    work = TransactionWork(serializable=True)
    await desk.run(work, "INSERT INTO t(v) VALUES (datetime('now'))")
    with pytest.raises(UnsupportedError, match="or change the schema first"):
        await desk.run(work, "CREATE TABLE later(x)")
    work = TransactionWork(serializable=True)
    for sql in ("CREATE TABLE later(x, at DEFAULT CURRENT_TIMESTAMP)", "INSERT INTO later(x) SELECT v FROM t"):
        await desk.run(work, sql)
    assert (await desk.run(work, "SELECT count(at) FROM later")).rows == [(2,)]
    assert await desk.commit(work) == ""
    assert desk.node.rows("SELECT count(at), count(DISTINCT at) FROM later") == [(2, 1)]


async def test_schema_change_follows_a_statement_that_was_explained(desk: Desk) -> None:
    """The program names pages and the counter of schema changes, which the private copy has in other numbers."""
    for name in ("first", "second"):
        work = TransactionWork(serializable=True)
        for sql in ("DELETE FROM t WHERE id = 1", "EXPLAIN SELECT v FROM t", "EXPLAIN QUERY PLAN DELETE FROM t"):
            await desk.run(work, sql)
        await desk.run(work, f"CREATE TABLE {name}(x)")
        assert await desk.commit(work) == ""


async def test_schema_change_follows_a_failure_in_a_table_with_virtual_columns(desk: Desk) -> None:
    """The failed rows' rowids must not show in the next statement's answer, neither here nor in the private copy."""
    desk.node.run("CREATE TABLE shape(id INTEGER PRIMARY KEY, a, double AS (a * 2) VIRTUAL UNIQUE)")
    desk.node.run("CREATE TABLE plain(k PRIMARY KEY) WITHOUT ROWID")
    work = TransactionWork(serializable=True)
    first = (await desk.run(work, "INSERT INTO t(v) VALUES ('c')")).lastrowid
    with pytest.raises(ConstraintError):
        await desk.run(work, "INSERT INTO shape(id, a) VALUES (7, 1), (8, 1)")
    assert (await desk.run(work, "INSERT INTO plain VALUES (1)")).lastrowid == first
    await desk.run(work, "CREATE TABLE later(x)")
    assert await desk.commit(work) == ""
    assert desk.node.rows("SELECT count(*) FROM plain") == [(1,)]


async def test_failed_statement_leaves_at_every_release_the_rows_that_its_leader_has(
    desk: Desk, tmp_path: Path
) -> None:
    """If a cascade is too deep, SQLite keeps a part of it. A leader of release 0.2.1 does not record its undoing."""
    desk.node.run("CREATE TABLE tree(id INTEGER PRIMARY KEY, up REFERENCES tree ON DELETE CASCADE)")
    numbers = "WITH z(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM z LIMIT 1200)"
    desk.node.run(f"{numbers} INSERT INTO tree SELECT i, nullif(i - 1, 0) FROM z")
    desk.node.save()
    copy = tmp_path / "copy.sqlite"
    copy_file(desk.node.engine.background.open_reader(), copy)
    work = TransactionWork(serializable=True)
    await desk.run(work, "CREATE TABLE made(x)")
    with pytest.raises(SqlError):
        await desk.run(work, "DELETE FROM tree WHERE id = 2")
    assert await desk.commit(work) == ""
    assert desk.node.rows("SELECT count(*) FROM tree") == [(1200,)]
    assert rebuild([desk.node.path], tmp_path / "made.sqlite").digest == digest(desk.node.path)

    (body,) = desk.node.rows("SELECT body FROM bedrockish_journal ORDER BY tick DESC LIMIT 1")[0]
    steps = decode_steps(decode_transaction(body).changes)
    undone = [*map(SchemaStep, BEFORE_FAILURE), steps[2], *map(SchemaStep, AFTER_FAILURE)]
    assert steps == [SchemaStep("CREATE TABLE made(x)"), *undone]
    with closing(apsw.Connection(str(copy))) as db:
        db.execute("BEGIN")
        switch(db, on=True)
        assert schema_steps.run(db, [steps[0], steps[2]]) == ""
        assert db.execute("SELECT count(*) < 1200 FROM tree").get, "as the nodes of release 0.2.1 did"


async def test_statement_that_could_draw_random_ids_is_refused(desk: Desk, tmp_path: Path) -> None:
    """A statement that takes the highest id under another name, and rolls that back, gets the same id again."""
    work = TransactionWork(serializable=True)
    await desk.run(work, "ALTER TABLE t ADD COLUMN w")
    highest = f"INSERT INTO t(id, v) VALUES ({2**63 - 1}, 'last')"
    for sql in (highest, "SAVEPOINT s", "DELETE FROM t WHERE id > 2", "ALTER TABLE t RENAME TO u", "ROLLBACK TO s"):
        await desk.run(work, sql)
    with pytest.raises(UnsupportedError, match="draw ids at random"):
        await desk.run(work, "INSERT INTO t(v) VALUES ('x'), ('y')")
    assert (await desk.run(work, "SELECT v FROM t ORDER BY id")).rows == [("a",), ("b",), ("last",)]
    await desk.run(work, "DELETE FROM t WHERE v = 'last'")
    await desk.run(work, "ALTER TABLE t ADD COLUMN more")  # after this statement the tables are compared again
    await desk.run(work, "INSERT INTO t(v) VALUES ('x'), ('y')")
    assert await desk.commit(work) == ""
    assert desk.node.rows("SELECT id, v FROM t ORDER BY id") == [(1, "a"), (2, "b"), (3, "x"), (4, "y")]
    assert rebuild([desk.node.path], tmp_path / "made.sqlite").digest == digest(desk.node.path)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("INSERT INTO t(id, v) VALUES (9, 'z') RETURNING zeroblob(2000000)", "results take more"),
        ("INSERT INTO t(id, v) VALUES (9, 'z') RETURNING CAST(x'ff' AS TEXT)", "result has a text that is not UTF-8"),
        (("INSERT INTO t(id, v) VALUES (9, ?)", ["z" * 200_000]), "bytes of statements with their values"),
        (f"SAVEPOINT s{'x' * 200_000}", "bytes of statements with their values"),
    ],
)
async def test_refused_statement_of_a_schema_transaction_has_no_effect(tmp_path: Path, sql: Sql, error: str) -> None:
    """A statement that is not recorded for the other nodes must leave no rows that the transaction sees."""
    desk = Desk(tmp_path / "A.sqlite", changes_bytes=100_000)
    work = TransactionWork(serializable=True)
    await desk.run(work, "ALTER TABLE t ADD COLUMN w")
    await desk.run(work, "INSERT INTO t(id, v) VALUES (3, 'c')")
    with pytest.raises(BedrockishError, match=error):
        await desk.run(work, sql)
    assert (await desk.run(work, "SELECT id FROM t ORDER BY id")).rows == [(1,), (2,), (3,)]
    await desk.run(work, "INSERT INTO t(id, v) SELECT 4, count(*) FROM t")
    assert await desk.commit(work) == ""
    assert desk.node.rows("SELECT id, v FROM t ORDER BY id") == [(1, "a"), (2, "b"), (3, "c"), (4, 3)]
    assert rebuild([desk.node.path], tmp_path / "made.sqlite").digest == digest(desk.node.path)
    desk.close()


async def test_schema_change_follows_a_text_that_fts5_was_refused(desk: Desk) -> None:
    """The private copy gets the same error, with the name of the table and not that of FTS5's own."""
    desk.node.run("CREATE VIRTUAL TABLE f USING fts5(a)")
    work = TransactionWork(serializable=True)
    for _ in range(2):
        with pytest.raises(SqlError, match="a text written to f is not UTF-8"):
            await desk.run(work, "INSERT INTO f VALUES (CAST(x'ff' AS TEXT))")
        await desk.run(work, "CREATE TABLE IF NOT EXISTS later(x)")
    assert await desk.commit(work) == ""
    assert desk.node.rows("SELECT count(*) FROM f") == [(0,)]


async def test_schema_transaction_counts_all_rows_that_it_inserts_into_fts5(desk: Desk) -> None:
    """FTS5 writes its pages at the end of a savepoint, after which SQLite's own count is that of the pages."""
    work = TransactionWork(serializable=True)
    await desk.run(work, "CREATE VIRTUAL TABLE f USING fts5(a)")
    assert (await desk.run(work, "INSERT INTO f(rowid, a) VALUES (1, 'one'), (2, 'two'), (7, 'three')")).rowcount == 3
    assert (await desk.run(work, "UPDATE f SET a = 'all'")).rowcount == 3
    assert await desk.commit(work) == ""
    assert desk.node.rows("SELECT rowid FROM f('all')") == [(1,), (2,), (7,)]


@pytest.mark.parametrize(
    ("before", "between"),
    [
        ("SELECT v FROM t WHERE id = 1", "UPDATE t SET v = 'z' WHERE id = 1"),
        ("UPDATE t SET v = 'y' WHERE id = 2", "DELETE FROM t WHERE id = 2"),
        ("INSERT INTO t VALUES (5, 'e')", "INSERT INTO t VALUES (5, 'f')"),
    ],
)
async def test_schema_transaction_is_lost_if_an_earlier_answer_has_changed(
    desk: Desk, before: str, between: str
) -> None:
    """The check is made at the first schema statement, and again when the change comes into force."""
    late = TransactionWork(serializable=True)
    await desk.run(late, before)
    await desk.run(late, "CREATE TABLE u(x)")
    early = TransactionWork(serializable=True)
    await desk.run(early, before)
    desk.node.run(between)
    with pytest.raises(ConflictError):
        await desk.run(early, "CREATE TABLE u(x)")
    desk.interactive.end(early)
    assert (await desk.commit(late)).startswith(OVERTAKEN)
    assert desk.node.rows("SELECT count(*) FROM sqlite_schema WHERE name = 'u'") == [(0,)]


async def test_schema_change_after_one_insert_of_several_rows_with_assigned_ids_is_refused(desk: Desk) -> None:
    work = TransactionWork(serializable=True)
    await desk.run(work, "INSERT INTO t(v) VALUES ('c'), ('d')")
    with pytest.raises(UnsupportedError, match="change the schema first"):
        await desk.run(work, "CREATE TABLE u(x)")
    desk.interactive.end(work)


async def test_refusal_at_a_schema_change_names_the_earlier_statement_that_causes_it(desk: Desk) -> None:
    work = TransactionWork(serializable=True)
    desk.node.run("CREATE TABLE stamped(id INTEGER PRIMARY KEY, at DEFAULT CURRENT_TIMESTAMP)")
    await desk.run(work, "INSERT INTO stamped(id) VALUES (1)")
    with pytest.raises(UnsupportedError, match=r"current_timestamp\(\), in .*'INSERT INTO stamped\(id\) VALUES"):
        await desk.run(work, "CREATE TABLE u(x)")
    desk.interactive.end(work)


async def test_another_schema_change_ends_an_open_schema_transaction(desk: Desk) -> None:
    work = TransactionWork(serializable=True)
    await desk.run(work, "CREATE TABLE u(x)")
    desk.node.run("CREATE TABLE other(x)")
    for action in (desk.run(work, "SELECT 1"), desk.finish(work)):
        with pytest.raises(ConflictError, match="schema"):
            await action
    desk.interactive.end(work)


async def test_schema_transaction_is_refused_beyond_its_limits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many statements before it, too many transactions, too much memory: each is refused, and leaves nothing."""
    work = TransactionWork(serializable=True)
    for _ in range(LOG_MAX + 1):
        work.log_statement(Logged(Statement("SELECT 1"), Result(("1",), [(1,)])))
    with pytest.raises(TooLargeError, match="before it changes the schema"):
        await desk.run(work, "CREATE TABLE u(x)")
    monkeypatch.setattr(private_copy, "DRAFTS_MAX", 1)
    monkeypatch.setattr(private_copy, "WAIT_S", 0.1)
    monkeypatch.setattr(drafts, "MEMORY_BYTES", 1 << 20)
    first, second = TransactionWork(serializable=True), TransactionWork(serializable=True)
    await desk.run(first, "CREATE TABLE u(x)")
    with pytest.raises(UnavailableError, match="which is its limit"):
        await desk.run(second, "CREATE TABLE u(x)")
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000)"
    with pytest.raises(TooLargeError, match="MiB of pages"):
        await desk.run(first, f"INSERT INTO u {many} SELECT zeroblob(1000) FROM n")
    assert first.has_failed
    desk.interactive.end(first)
    await desk.run(second, "CREATE TABLE u(x)")
    desk.interactive.end(second)
    assert desk.node.rows("SELECT count(*) FROM t") == [(2,)]


async def test_schema_transaction_beyond_the_limit_waits_for_another_one_to_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten workers that start at once, each with CREATE TABLE IF NOT EXISTS, wait for each other as on SQLite."""
    monkeypatch.setattr(private_copy, "DRAFTS_MAX", 1)
    monkeypatch.setattr(private_copy, "WAIT_S", 60)
    first, second, third = (TransactionWork(serializable=True) for _ in range(3))
    await desk.run(first, "CREATE TABLE IF NOT EXISTS t(x)")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.run, second, "CREATE TABLE IF NOT EXISTS t(x)")
            await trio.sleep(0.1)
            assert second.workspace is None
            desk.interactive.end(first)
    with trio.move_on_after(0.1):
        await desk.run(third, "CREATE TABLE u(x)")
    assert third.workspace is None
    desk.interactive.end(second)


async def test_open_transaction_can_be_ended_while_its_statement_runs(desk: Desk) -> None:
    work = TransactionWork(serializable=True)
    await desk.run(work, "CREATE TABLE u(x)")
    ends: list[BedrockishError] = []

    async def run_long() -> None:
        many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        with pytest.raises(BedrockishError) as caught:
            await desk.run(work, f"{many} SELECT count(*) FROM n")
        ends.append(caught.value)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_long)
            while not work.in_thread:  # noqa: ASYNC110  it is in another thread
                await trio.sleep(0.01)
            desk.interactive.end(work)
    assert len(ends) == 1
    assert work.workspace is None
    desk.interactive.end(work)
