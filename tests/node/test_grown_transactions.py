"""An open transaction of many rows moves to a workspace of its own, once, and goes on there as before."""

import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.api.requests import SERIALIZABLE, SNAPSHOT, Answer, Request, Statement, decode_results
from bedrockish.api.wire import BEGIN, COMMIT, ROLLBACK, STATEMENTS
from bedrockish.engine.execution.ddl_workspace import Draft
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.temporary import TemporaryTransaction
from bedrockish.errors import ConflictError, ConstraintError, UnavailableError, UnsupportedError, UsageError
from bedrockish.node.runtime import Runtime
from bedrockish.node.transactions import own_workspace
from bedrockish.node.transactions.callers import Owner
from bedrockish.node.transactions.places import WorkspacePlace
from tests.node.test_durability import open_runtime, request

OWNER = Owner("1.2.3.4")
ROWS = 1_200  # above the number from which on a transaction moves
NUMBERS = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
FILL = f"{NUMBERS} INSERT INTO big SELECT i, 'v' FROM n"


class Client:
    """A client of one node with an open transaction, and the other clients, which write at the same time."""

    def __init__(self, runtime: Runtime, name: str = "tx", isolation: str = SERIALIZABLE) -> None:
        self.runtime, self.name, self.isolation = runtime, name, isolation
        self.others = 0

    async def step(self, op: str, *statements: Statement, temporary: str = "") -> Answer:
        asked = Request(self.name, statements, isolation=self.isolation, timeout_s=20, temporary=temporary)
        return await self.runtime.transactions.handle(OWNER, op, asked)

    async def run(self, sql: str, *params: Any, **options: Any) -> list[tuple[Any, ...]]:
        answer = await self.step(STATEMENTS, Statement(sql, params or None), **options)
        return decode_results(answer.results)[-1].rows

    async def other(self, sql: str = "UPDATE t SET x = x + 1 WHERE id = 1") -> None:
        """Let another client commit, which takes the engine's connection from the transaction."""
        self.others += 1
        await self.runtime.submit(request(sql, f"{self.name} other {self.others}"))

    async def value(self, sql: str) -> Any:
        self.others += 1
        answer = await self.runtime.submit(request(sql, f"{self.name} other {self.others}"))
        return decode_results(answer.results)[0].rows[0][0]

    @property
    def workspace(self) -> object:
        return self.runtime.transactions._open[self.name].work.workspace

    async def grow(self) -> None:
        """Begin, write many rows, and let another client commit before the next statement."""
        await self.step(BEGIN)
        await self.run(FILL)
        await self.other()

    async def move(self) -> None:
        await self.grow()
        assert await self.run("SELECT count(*) FROM big") == [(ROWS,)]
        assert isinstance(self.workspace, OverlayTransaction)


@asynccontextmanager
async def a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Client]:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        for number, sql in enumerate(
            (
                "CREATE TABLE t(id INTEGER PRIMARY KEY, x)",
                "CREATE TABLE big(id INTEGER PRIMARY KEY, v)",
                "CREATE TABLE parent(id INTEGER PRIMARY KEY)",
                "CREATE TABLE child(id INTEGER PRIMARY KEY, p REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED)",
                "INSERT INTO t VALUES (1, 10), (2, 20)",
            )
        ):
            await runtime.submit(request(sql, f"set up {number}"))
        yield Client(runtime, **options)
        runtime.leave()
        nursery.cancel_scope.cancel()
    engine.close()


@pytest.fixture
def redone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of rows whenever a transaction writes its rows again."""
    counts: list[int] = []
    original = Interactive.redo

    def counted(self: Interactive, changes: list[Any]) -> None:
        counts.append(len(changes))
        original(self, changes)

    monkeypatch.setattr(Interactive, "redo", counted)
    return counts


@pytest.mark.parametrize("isolation", [SERIALIZABLE, SNAPSHOT])
@pytest.mark.parametrize(
    ("before", "change"),
    [
        ("SELECT count(*) FROM sqlite_schema", "ANALYZE"),
        ("SELECT x FROM t", "CREATE TRIGGER late AFTER INSERT ON big BEGIN UPDATE t SET x = 100; END"),
    ],
)
async def test_transaction_does_not_move_past_a_change_of_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, change: str, isolation: str
) -> None:
    """A workspace has the newest schema: the trigger has not run for the rows that were written before."""
    async with a_client(tmp_path, monkeypatch, isolation=isolation) as client:
        await client.step(BEGIN)
        await client.run(before)
        await client.run(FILL)
        await client.other(change)
        with pytest.raises(ConflictError, match="the schema has changed"):
            await client.run("SELECT count(*) FROM big")


async def test_transaction_moves_with_few_rows_of_much_text_to_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To write such rows again, FTS5 would index the text of all before each statement."""
    async with a_client(tmp_path, monkeypatch) as client:
        await client.runtime.submit(request("CREATE VIRTUAL TABLE docs USING fts5(body)", "search"))
        await client.step(BEGIN)
        insert, text = "INSERT INTO docs(body) VALUES (?)", " ".join(f"w{number}" for number in range(20_000))
        await client.run(insert, text)
        await client.other()
        assert client.workspace is None
        await client.run(insert, text)
        await client.other()
        await client.run(insert, "last")
        assert isinstance(client.workspace, OverlayTransaction)
        await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM docs WHERE docs MATCH 'w7 OR last'") == 3


async def test_commits_of_others_do_not_repeat_the_writes_of_a_moved_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redone: list[int]
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.grow()
        redone.clear()
        for number in range(10):
            await client.run("INSERT INTO big VALUES (?, 'w')", ROWS + 1 + number)
            await client.other()
        assert sum(redone) == ROWS
        await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM big") == ROWS + 10
        assert await client.value("SELECT x FROM t WHERE id = 1") == 21


async def test_many_texts_in_one_request_run_in_the_workspace_with_a_result_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.grow()
        texts = [
            *(Statement("INSERT INTO big VALUES (?, 'w')", (ROWS + number,)) for number in range(1, 41)),
            Statement("SAVEPOINT one"),
            *(Statement("UPDATE big SET v = 'x' WHERE id = ?", (number,)) for number in range(1, 21)),
            Statement("SELECT count(*) FROM big WHERE v = 'x'"),
            Statement("ROLLBACK TO one"),
            Statement("SELECT count(*) FROM big WHERE v = 'x'"),
        ]
        results = decode_results((await client.step(STATEMENTS, *texts)).results)
        assert isinstance(client.workspace, OverlayTransaction)
        assert [result.rowcount for result in results] == [1] * 40 + [-1] + [1] * 20 + [-1] * 3
        assert results[61].rows == [(20,)]
        assert results[63].rows == [(0,)]
        await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM big WHERE v = 'w'") == 40


async def test_savepoints_from_before_and_after_the_move_roll_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.step(BEGIN)
        await client.run("INSERT INTO t VALUES (3, 30)")
        await client.run("SAVEPOINT outer")
        await client.run(FILL)
        await client.run("SAVEPOINT inner")
        await client.run("INSERT INTO t VALUES (4, 40)")
        await client.other()
        await client.run("INSERT INTO t VALUES (5, 50)")
        assert isinstance(client.workspace, OverlayTransaction)
        await client.run("ROLLBACK TO inner")
        assert await client.run("SELECT id FROM t WHERE id > 2") == [(3,)]
        assert await client.run("SELECT count(*) FROM big") == [(ROWS,)]
        await client.run("SAVEPOINT later")
        await client.run("INSERT INTO t VALUES (6, 60)")
        await client.run("RELEASE later")
        await client.run("ROLLBACK TO outer")
        assert await client.run("SELECT id FROM t WHERE id > 2") == [(3,)]
        assert await client.run("SELECT count(*) FROM big") == [(0,)]
        await client.run("INSERT INTO t VALUES (7, 70)")
        await client.step(COMMIT)
        assert await client.value("SELECT group_concat(id) FROM t") == "1,2,3,7"


async def test_moved_transaction_fails_at_its_next_statement_if_a_read_row_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.move()
        await client.run("SELECT x FROM t WHERE id = 2")
        await client.other("UPDATE t SET x = 0 WHERE id = 2")
        with pytest.raises(ConflictError, match="has changed t"):
            await client.run("SELECT 1")
        assert await client.value("SELECT count(*) FROM big") == 0


async def test_moved_transaction_fails_at_commit_if_a_row_changed_before_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction's workspace shows the row as it was when the transaction moved."""
    async with a_client(tmp_path, monkeypatch) as client:
        await client.move()
        await client.other("UPDATE t SET x = 0 WHERE id = 2")
        await client.run("SELECT 1")
        assert await client.run("SELECT x FROM t WHERE id = 2") == [(20,)]
        with pytest.raises(ConflictError, match="has changed t"):
            await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM big") == 0


@pytest.mark.parametrize("sql", ["UPDATE t SET x = 0 WHERE id = 2", "UPDATE t SET x = 0 WHERE id = 1"])
async def test_snapshot_transaction_moves_only_if_it_would_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    async with a_client(tmp_path, monkeypatch, isolation=SNAPSHOT) as client:
        await client.step(BEGIN)
        assert await client.run("SELECT x FROM t WHERE id = 2") == [(20,)]
        await client.run(FILL)
        await client.other(sql)
        await client.run("INSERT INTO big VALUES (0, 'w')")
        assert (client.workspace is None) == ("id = 2" in sql)
        assert await client.run("SELECT x FROM t WHERE id = 2") == [(20,)]
        await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM big") == ROWS + 1


async def test_deferred_key_that_broke_before_the_move_is_checked_at_commit_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.step(BEGIN)
        await client.run("SAVEPOINT one")
        await client.run(FILL)
        await client.run("INSERT INTO child VALUES (1, 7)")
        await client.other()
        await client.run("INSERT INTO t VALUES (3, 30)")
        assert isinstance(client.workspace, OverlayTransaction)
        with pytest.raises(ConstraintError, match="FOREIGN KEY"):
            await client.step(COMMIT)
        await client.run("SAVEPOINT two")
        await client.run("DELETE FROM t")
        await client.run("ROLLBACK TO two")
        await client.run("INSERT INTO parent VALUES (7)")
        await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM child JOIN parent ON parent.id = p") == 1
        assert await client.value("SELECT count(*) FROM t") == 3


async def test_failed_statement_leaves_a_moved_transaction_open_and_has_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.move()
        good, bad = Statement("INSERT INTO t VALUES (3, 30)"), Statement("INSERT INTO big VALUES (1, 'again')")
        with pytest.raises(ConstraintError) as failed:
            await client.step(STATEMENTS, good, bad, good)
        assert failed.value.details["statement"] == 1
        assert await client.run("SELECT count(*) FROM t") == [(3,)]
        with pytest.raises(ConstraintError, match="rolled back"):
            await client.run("INSERT OR ROLLBACK INTO big VALUES (1, 'again')")
        with pytest.raises(UsageError):
            await client.run("SELECT 1")
        assert await client.value("SELECT count(*) FROM big") == 0


async def test_schema_change_goes_on_in_a_copy_of_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.move()
        await client.run("UPDATE big SET v = 'w' WHERE id = 5")
        await client.run("CREATE INDEX big_v ON big(v)")
        assert isinstance(client.workspace, Draft)
        assert await client.run("SELECT count(*) FROM big WHERE v = 'v'") == [(ROWS - 1,)]
        await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM big INDEXED BY big_v WHERE v = 'w'") == 1


async def test_equal_savepoints_of_one_request_follow_each_other_after_a_schema_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.step(BEGIN)
        await client.run("CREATE TABLE made(a)")
        texts = ["INSERT INTO made VALUES (1)", "SAVEPOINT s", "SAVEPOINT s", "RELEASE s", "ROLLBACK TO s", "RELEASE s"]
        await client.step(STATEMENTS, *map(Statement, texts))
        assert await client.run("SELECT a FROM made") == [(1,)]


@pytest.mark.parametrize("is_large", [False, True])
async def test_schema_change_that_finds_no_copy_leaves_the_transaction_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    """A copy runs the earlier statements again, and refuses those with another result at every node."""
    async with a_client(tmp_path, monkeypatch) as client:
        await client.step(BEGIN)
        await client.run("INSERT INTO t VALUES (3, random())")
        await client.run("SAVEPOINT one")
        if is_large:
            await client.run(FILL)
            await client.other()
        for number in range(2):
            await client.run(f"INSERT INTO parent VALUES ({number})")
            with pytest.raises(UnsupportedError, match="random"):
                await client.run("CREATE TABLE u(a)")
            assert isinstance(client.workspace, OverlayTransaction) == is_large
            assert await client.run("SELECT count(*) FROM t") == [(3,)]
        await client.run("INSERT INTO t VALUES (4, 40)")
        await client.run("SAVEPOINT two")
        await client.run("DELETE FROM t")
        await client.run("ROLLBACK TO two")
        await client.step(COMMIT)
        assert await client.value("SELECT group_concat(id) FROM t") == "1,2,3,4"
        assert await client.value("SELECT count(*) FROM parent") == 2
        assert await client.value("SELECT count(*) FROM big") == ROWS * is_large


async def test_key_that_broke_in_a_moved_transaction_stays_broken_with_a_temporary_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.move()
        await client.run("INSERT INTO child VALUES (1, 7)")
        await client.run("CREATE TEMP TABLE few(a)", temporary="+one")
        with pytest.raises(ConstraintError, match="FOREIGN KEY"):
            await client.step(COMMIT)
        await client.run("INSERT INTO parent VALUES (7)", temporary="one")
        await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM child JOIN parent ON parent.id = p") == 1


async def test_temporary_table_goes_on_in_the_workspace_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.move()
        await client.run("CREATE TEMP TABLE few AS SELECT id FROM big WHERE id < 4", temporary="+one")
        assert isinstance(client.workspace, TemporaryTransaction)
        assert await client.run("SELECT count(*) FROM few", temporary="one") == [(3,)]
        await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM big") == ROWS


async def test_transaction_clock_is_later_than_all_that_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.move()
        ((first,),) = await client.run("SELECT transaction_clock()")
        await client.run("INSERT INTO t VALUES (3, transaction_clock())")
        answer = await client.step(COMMIT)
        assert answer.place is not None
        assert await client.value("SELECT x FROM t WHERE id = 3") == first


async def test_ending_a_transaction_stops_its_running_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    ends: list[UnavailableError] = []
    async with a_client(tmp_path, monkeypatch) as client:
        await client.move()
        workspace = client.workspace
        assert isinstance(workspace, OverlayTransaction)

        async def run() -> None:
            with pytest.raises(UnavailableError) as error:
                await client.run(slow)
            ends.append(error.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.sleep(0.1)
            await client.step(ROLLBACK)
        assert ends
        assert workspace.is_closed
        await client.other()
        frames, copied = client.runtime.engine.wal.checkpoint()
        assert copied == frames, "a reader stands in the way"


async def test_transaction_without_a_free_workspace_stays_on_the_writers_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_workspace, "WORKSPACES_MAX", 0)
    async with a_client(tmp_path, monkeypatch) as client:
        await client.grow()
        await client.run("INSERT INTO big VALUES (0, 'w')")
        assert client.workspace is None
        await client.step(COMMIT)
        assert await client.value("SELECT count(*) FROM big") == ROWS + 1


async def test_workspace_of_an_ended_transaction_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_client(tmp_path, monkeypatch) as client:
        await client.move()
        workspace = client.workspace
        assert isinstance(workspace, OverlayTransaction)
        await client.step(COMMIT)
        assert workspace.is_closed
        kept = weakref.ref(workspace)
        del workspace
        assert kept() is None


async def test_snapshot_transaction_makes_no_temporary_table_on_a_later_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the later snapshot the transaction would see rows of two moments."""
    async with a_client(tmp_path, monkeypatch, isolation=SNAPSHOT) as client:
        await client.step(BEGIN)
        assert await client.run("SELECT x FROM t WHERE id = 1") == [(10,)]
        await client.other("UPDATE t SET x = 0")
        with pytest.raises(ConflictError, match="has changed t"):
            await client.run("CREATE TEMP TABLE few AS SELECT x FROM t WHERE id = 2", temporary="+one")


async def test_transaction_that_ends_while_it_moves_leaves_the_temp_tables_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would begin on the connection that the session's next transaction uses."""
    async with a_client(tmp_path, monkeypatch) as client:
        await client.step(BEGIN, Statement("CREATE TEMP TABLE few AS SELECT id FROM t"), temporary="+one")
        await client.step(COMMIT)
        real = WorkspacePlace.begin

        async def begin(self: WorkspacePlace, work: TransactionWork, *arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(WorkspacePlace, "begin", real)
            self._interactive.end(work)  # as if the link of its client had ended while it waited for the TEMP objects
            await real(self, work, *arguments, **options)

        for number in range(3):
            client.name = f"ended {number}"
            monkeypatch.setattr(WorkspacePlace, "begin", begin)
            with pytest.raises(UnavailableError, match="was ended"):
                await client.step(BEGIN, Statement("SELECT count(*) FROM few"), temporary="one")
            client.name = f"next {number}"
            answer = await client.step(BEGIN, Statement("SELECT count(*) FROM few"), temporary="one")
            assert decode_results(answer.results)[-1].rows == [(2,)]
            await client.step(COMMIT)
