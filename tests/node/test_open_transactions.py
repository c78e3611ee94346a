"""A step of an open transaction waits for the disk only if its answer shows a change that is not durable."""

import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.api.requests import (
    SERIALIZABLE,
    SESSION,
    SNAPSHOT,
    STRICT,
    Answer,
    Request,
    Statement,
    Token,
    decode_results,
)
from bedrockish.api.wire import BEGIN, COMMIT, STATEMENTS
from bedrockish.core.protocol.health import DISK_FULL, Mode
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import resume
from bedrockish.engine.execution.snapshot import Snapshot
from bedrockish.engine.sqlite.limits import LONG_TEXT
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    DeadlineError,
    ReadOnlyError,
    SqlError,
    UnavailableError,
    UsageError,
    pack_error,
)
from bedrockish.node.runtime import Runtime
from bedrockish.node.scheduling.workers import BULKY_BYTES
from bedrockish.node.transactions import shared_writer, steps
from bedrockish.node.transactions.ended import CHARACTERS_MAX, ENDED_MAX, EndedErrors
from tests.node.test_durability import Disk, open_runtime, request, settled

OWNER = object()
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 4 UNION ALL SELECT i + 1 FROM n LIMIT 2000) INSERT INTO t SELECT i, 0 FROM n"


@asynccontextmanager
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Runtime, Disk]]:
    """Yield a node with two rows, and its disk.

    The garbage collector is off: with the objects of all tests it takes longer than a statement may.
    """
    gc.disable()
    try:
        runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
            await runtime.submit(request("INSERT INTO t VALUES (1, 10), (2, 20)", "fill"))
            await settled()
            yield runtime, disk
            disk.gate.set()
            nursery.cancel_scope.cancel()
        engine.close()
    finally:
        gc.enable()


def step(runtime: Runtime, name: str, op: str, *texts: str) -> Answer | steps.RemainingSteps[Answer]:
    return runtime.transactions.begin(OWNER, op, Request(name, tuple(map(Statement, texts)), timeout_s=5))


def told(answer: object) -> list[list[tuple[object, ...]]]:
    assert isinstance(answer, Answer), "it waits for something"
    return [result.rows for result in decode_results(answer.results)]


async def run_in(
    runtime: Runtime, name: str, op: str, *texts: str, isolation: str = SERIALIZABLE, read: str = SESSION
) -> Answer:
    """Do a step of a transaction to its end."""
    asked = Request(name, tuple(map(Statement, texts)), timeout_s=5, isolation=isolation, read=read)
    found = runtime.transactions.begin(OWNER, op, asked)
    return found if isinstance(found, Answer) else await found()


async def finished(runtime: Runtime, name: str) -> Answer:
    """Commit a transaction."""
    answer = step(runtime, name, COMMIT)
    return answer if isinstance(answer, Answer) else await answer()


@pytest.mark.parametrize("isolation", [SERIALIZABLE, SNAPSHOT])
@pytest.mark.parametrize("before", ["SELECT x FROM t WHERE id = 1", "UPDATE t SET x = x + 1 WHERE id = 1", NUMBERS])
async def test_transaction_goes_on_after_an_analyze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, isolation: str
) -> None:
    """The transaction has read, written or moved to a workspace; statistics change no result."""
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await run_in(runtime, "tx", BEGIN, isolation=isolation)
        await run_in(runtime, "tx", STATEMENTS, before)
        await runtime.submit(request("INSERT INTO t VALUES (9000, 0)", "other"))  # it needs the writing connection
        await run_in(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 2")
        await runtime.submit(request("ANALYZE", "analyze"))
        await run_in(runtime, "tx", STATEMENTS, "INSERT INTO t VALUES (3, 30)")
        answer = await run_in(runtime, "tx", COMMIT)
        assert answer.place is not None
        assert runtime.engine.schema_version == 2


async def test_transaction_is_cancelled_before_the_task_of_its_statement_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction has a workspace of its own, which the cancellation closes."""
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await run_in(runtime, "tx", BEGIN)
        await run_in(runtime, "tx", STATEMENTS, NUMBERS)
        await runtime.submit(request("INSERT INTO t VALUES (9000, 0)", "other"))  # it needs the writing connection
        await run_in(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 2")
        rest = step(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 2")
        assert not isinstance(rest, Answer)
        runtime.transactions.cancel(OWNER, "tx")
        with pytest.raises(DeadlineError, match="was cancelled by its caller"):
            await rest()


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ("SELECT count(*) FROM sqlite_schema", "ANALYZE"),
        ("CREATE TABLE u(x)", "ANALYZE"),
        ("SELECT x FROM t", "CREATE INDEX by_x ON t(x)"),
    ],
)
async def test_transaction_ends_at_an_analyze_that_it_may_have_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, change: str
) -> None:
    """ANALYZE makes a table of statistics; a change of definitions ends every transaction."""
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await run_in(runtime, "tx", BEGIN)
        await run_in(runtime, "tx", STATEMENTS, before)
        await runtime.submit(request(change, "change"))
        with pytest.raises(ConflictError, match="schema"):
            await run_in(runtime, "tx", STATEMENTS, "INSERT INTO t VALUES (3, 30)")


@pytest.mark.parametrize("sql", ["SELECT count(*) FROM sqlite_schema", "SELECT * FROM sqlite_stat1"])
async def test_strict_transaction_that_has_read_the_schema_ends_at_an_analyze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """It has only read, and the node finds the change at its COMMIT."""
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await runtime.submit(request("ANALYZE", "first"))
        await run_in(runtime, "tx", BEGIN, read=STRICT)
        await run_in(runtime, "tx", STATEMENTS, sql, read=STRICT)
        await runtime.submit(request("INSERT INTO t VALUES (4, 0)", "other"))
        await runtime.submit(request("ANALYZE", "second"))
        with pytest.raises(ConflictError, match="schema"):
            await run_in(runtime, "tx", COMMIT, read=STRICT)


async def test_open_connections_have_the_plans_of_the_last_analyze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing connection computes the read set of a statement that runs on the connection of a snapshot."""
    fill = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) INSERT INTO s SELECT i, {}, {} FROM n"
    find = "SELECT id FROM s WHERE a = 5 AND b = 5 LIMIT 1"
    made = "CREATE TABLE s(id INTEGER PRIMARY KEY, a, b)", "CREATE INDEX by_a ON s(a)", "CREATE INDEX by_b ON s(b)"
    async with running(tmp_path, monkeypatch) as (runtime, _):
        for number, sql in enumerate((*made, fill.format("i", 5), "ANALYZE")):
            await runtime.submit(request(sql, f"before{number}"))
        await run_in(runtime, "one", BEGIN)
        await run_in(runtime, "one", STATEMENTS, find)
        snapshot = runtime.transactions._open["one"].work.snapshot
        await run_in(runtime, "one", COMMIT)
        for number, sql in enumerate(("DELETE FROM s", fill.format(5, "i"), "ANALYZE")):
            await runtime.submit(request(sql, f"after{number}"))
        await run_in(runtime, "two", BEGIN)
        await run_in(runtime, "two", STATEMENTS, find)
        assert runtime.transactions._open["two"].work.snapshot is snapshot
        assert snapshot is not None
        explained = f"EXPLAIN QUERY PLAN {find}"
        plan = runtime.transactions._interactive._db.execute(explained).fetchall()
        assert "by_b" in str(plan)
        assert list(snapshot.cursor().execute(explained)) == plan


def held(original: Callable[..., Any], begun: threading.Event, gate: threading.Event) -> Callable[..., Any]:
    """Return a function that holds the result of the original back until the gate opens."""

    def run(*args: Any, **options: Any) -> Any:
        found = original(*args, **options)
        begun.set()
        assert gate.wait(60)
        return found

    return run


@pytest.mark.parametrize("before", ["SELECT x FROM t WHERE id = 1", "UPDATE t SET x = x + 1 WHERE id = 1"])
async def test_statement_of_a_worker_has_the_read_set_of_its_own_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """An ANALYZE comes into force while the statement runs: on a snapshot, or after a write on an overlay."""
    count, begun, gate = "SELECT count(*) FROM t", threading.Event(), threading.Event()
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await run_in(runtime, "tx", BEGIN)
        await run_in(runtime, "tx", STATEMENTS, before)
        monkeypatch.setattr(Snapshot, "run", held(Snapshot.run, begun, gate))
        monkeypatch.setattr(shared_writer, "resume", held(resume, begun, gate))
        monkeypatch.setattr(runtime.workers, "expects", lambda *texts: count in texts)
        rest = step(runtime, "tx", STATEMENTS, count)
        assert not isinstance(rest, Answer)
        work, found = runtime.transactions._open["tx"].work, list[object]()

        async def finish() -> None:
            try:
                found.append(await rest())
            except ConflictError as error:
                found.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            assert await trio.to_thread.run_sync(begun.wait, 60)
            await runtime.submit(request("ANALYZE", "analyze"))
            gate.set()
        if before.startswith("SELECT"):
            assert isinstance(found[0], ConflictError)
        else:
            assert work.sets is not None
            assert work.sets._analysis is runtime.transactions._interactive._executor.analysis


async def test_transaction_ends_at_an_analyze_during_a_long_text_that_reads_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the worker that compiles the text knows that it reads the schema."""
    begun, gate = threading.Event(), threading.Event()
    monkeypatch.setattr(shared_writer, "resume", held(resume, begun, gate))
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await run_in(runtime, "tx", BEGIN)
        await run_in(runtime, "tx", STATEMENTS, "UPDATE t SET x = x + 1 WHERE id = 1")
        rest = step(runtime, "tx", STATEMENTS, f"SELECT count(*) FROM sqlite_schema -- {LONG_TEXT * 'x'}")
        assert not isinstance(rest, Answer)

        async def finish() -> None:
            with pytest.raises(ConflictError, match="schema"):
                await rest()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            assert await trio.to_thread.run_sync(begun.wait, 60)
            await runtime.submit(request("ANALYZE", "analyze"))
            gate.set()


async def test_no_step_but_commit_waits_when_all_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as (runtime, _):
        told(step(runtime, "tx", BEGIN))
        assert told(step(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 1")) == [[(10,)]]
        told(step(runtime, "tx", STATEMENTS, "UPDATE t SET x = x + 1 WHERE id = 1"))
        assert told(step(runtime, "tx", STATEMENTS, "SELECT x FROM t")) == [[(11,), (20,)]]
        rest = step(runtime, "tx", COMMIT)
        assert not isinstance(rest, Answer)
        assert (await rest()).place is not None
        with trio.fail_after(60):  # a busy disk is late with the gossip that follows
            while runtime.engine.batch.is_dirty or runtime.gate.durable_batches < runtime.engine.batch.number:  # noqa: ASYNC110
                await trio.sleep(0.001)
        told(step(runtime, "reads", BEGIN))
        assert told(step(runtime, "reads", STATEMENTS, "SELECT x FROM t WHERE id = 1")) == [[(11,)]]
        told(step(runtime, "reads", COMMIT))


async def test_write_at_a_voter_that_only_reads_names_its_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the alarm. An error for learners would send the client to another voter."""
    async with running(tmp_path, monkeypatch) as (runtime, _):
        runtime.core.state.health.set_alarm(DISK_FULL, Mode.READ_ONLY, "the disk is full")
        told(step(runtime, "tx", BEGIN))
        assert told(step(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 1")) == [[(10,)]]
        with pytest.raises(ReadOnlyError, match="only reads for now: the disk is full") as refused:
            step(runtime, "tx", STATEMENTS, "UPDATE t SET x = x + 1 WHERE id = 1")
        assert refused.value.details["alarm"] == DISK_FULL


async def test_answer_of_a_commit_needs_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as (runtime, _):
        told(step(runtime, "tx", BEGIN))
        told(step(runtime, "tx", STATEMENTS, "UPDATE t SET x = x + 1 WHERE id = 1"))
        rest = step(runtime, "tx", COMMIT)
        assert isinstance(rest, steps.RemainingSteps)
        found = list[Answer | Exception]()
        rest.run_without_task(found.append, lambda _rest: pytest.fail("a task was started"))
        await runtime.durable()
        await settled()
        assert isinstance(found[0], Answer)
        assert found[0].place is not None


async def test_step_waits_for_the_disk_only_if_it_reveals_volatile_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that just changed is returned when the change is durable; other rows are returned at once."""
    answers: list[Answer | BedrockishError] = []
    async with running(tmp_path, monkeypatch) as (runtime, disk):
        for name in ("one", "two", "ours"):
            told(step(runtime, name, BEGIN))
        told(step(runtime, "ours", STATEMENTS, "UPDATE t SET x = x WHERE id = 2"))
        before = dict(runtime.engine.applied)
        disk.gate.clear()
        runtime.begin(request("UPDATE t SET x = 99 WHERE id = 1", "write"), answers.append)
        await settled()
        assert runtime.engine.applied != before
        assert told(step(runtime, "one", STATEMENTS, "SELECT x FROM t WHERE id = 2")) == [[(20,)]]
        assert told(step(runtime, "ours", STATEMENTS, "SELECT x FROM t WHERE id = 2")) == [[(20,)]]
        reads = step(runtime, "two", STATEMENTS, "SELECT x FROM t WHERE id = 1")
        writes = step(runtime, "ours", STATEMENTS, "UPDATE t SET x = x + 1 WHERE id = 1")
        assert not isinstance(writes, Answer)
        found: list[Answer] = []
        if isinstance(reads, Answer):  # a batch was in its sync, so the snapshot is the one before
            found.append(reads)
            assert told(reads) == [[(10,)]]

        async def wait(rest: steps.RemainingSteps[Answer]) -> None:
            found.append(await rest())

        async with trio.open_nursery() as nursery:
            if not isinstance(reads, Answer):
                nursery.start_soon(wait, reads)
            nursery.start_soon(wait, writes)
            await settled()
            assert len(found) == isinstance(reads, Answer)
            assert not answers
            disk.gate.set()
        assert len(found) == 2
        assert told(step(runtime, "ours", STATEMENTS, "SELECT x FROM t WHERE id = 1")) == [[(100,)]]


async def test_token_names_only_durable_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node may wait for a token's ticks, so a token names only durable ones."""
    answers: list[Answer | BedrockishError] = []
    async with running(tmp_path, monkeypatch) as (runtime, disk):
        told(step(runtime, "tx", BEGIN))
        durable = dict(runtime.engine.applied)
        disk.gate.clear()
        runtime.begin(request("UPDATE t SET x = 99 WHERE id = 1", "write"), answers.append)
        await settled()
        answer = step(runtime, "tx", STATEMENTS, "UPDATE t SET x = 21 WHERE id = 2")
        assert isinstance(answer, Answer)
        assert answer.token.vector == durable
        assert runtime.engine.applied != durable


async def test_answers_from_system_tables_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Access sets have no keys of system tables, so each read of one waits."""
    answers: list[Answer | BedrockishError] = []
    async with running(tmp_path, monkeypatch) as (runtime, disk):
        told(step(runtime, "tx", BEGIN))
        disk.gate.clear()
        runtime.begin(request("UPDATE t SET x = 99 WHERE id = 1", "write"), answers.append)
        await settled()
        rest = step(runtime, "tx", STATEMENTS, "SELECT count(*) FROM bedrockish_journal")
        assert not isinstance(rest, Answer)
        disk.gate.set()
        await rest()


async def test_a_command_that_has_happened_opens_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as (runtime, _):
        rest = step(runtime, "fill", BEGIN)
        assert not isinstance(rest, Answer)
        with pytest.raises(UsageError, match="has happened before"):
            await rest()


async def test_statements_sent_with_a_waiting_begin_run_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as (runtime, _):
        begun, read = step(runtime, "fill", BEGIN), step(runtime, "fill", STATEMENTS, "SELECT 1")
        assert not isinstance(begun, Answer)
        assert not isinstance(read, Answer)
        with pytest.raises(UsageError, match="has happened before"):
            await begun()
        with pytest.raises(UsageError, match="has happened before"):
            await read()


async def test_transaction_with_a_read_one_batch_old_conflicts_when_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit between the batch and the read conflicts if the transaction writes later."""
    answers: list[Answer | BedrockishError] = []
    async with running(tmp_path, monkeypatch) as (runtime, disk):
        told(step(runtime, "tx", BEGIN))
        disk.gate.clear()
        runtime.begin(request("UPDATE t SET x = 98 WHERE id = 1", "write"), answers.append)
        await settled()
        runtime.begin(request("UPDATE t SET x = 99 WHERE id = 1", "again"), answers.append)
        await settled()
        rest = step(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 1")
        disk.gate.set()
        answer = rest if isinstance(rest, Answer) else await rest()
        await settled()
        assert len(answers) == 2
        if told(answer) != [[(99,)]]:
            with pytest.raises(ConflictError):
                told(step(runtime, "tx", STATEMENTS, "UPDATE t SET x = x + 1 WHERE id = 1"))


async def test_read_of_a_fresh_write_moves_the_snapshot_if_earlier_reads_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the transaction would lose at its first write, however young it is."""
    monkeypatch.setattr(shared_writer, "AGAIN_S", 60.0)  # on a busy machine, a read may take longer
    async with running(tmp_path, monkeypatch) as (runtime, _):
        told(step(runtime, "tx", BEGIN))
        assert told(step(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 2")) == [[(20,)]]
        await runtime.submit(request("UPDATE t SET x = 99 WHERE id = 1", "write"))
        answer = step(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 1")
        assert told(answer if isinstance(answer, Answer) else await answer()) == [[(99,)]]
        told(step(runtime, "tx", STATEMENTS, "UPDATE t SET x = x + 1"))
        rest = step(runtime, "tx", COMMIT)
        assert not isinstance(rest, Answer)
        await rest()
        assert decode_results((await runtime.submit(request("SELECT x FROM t", "look"))).results)[0].rows == [
            (100,),
            (21,),
        ]


async def test_snapshot_stays_after_a_write_to_its_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer snapshot would contradict earlier answers; the transaction loses only if it goes on to write."""
    async with running(tmp_path, monkeypatch) as (runtime, _):
        told(step(runtime, "tx", BEGIN))
        assert told(step(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 2")) == [[(20,)]]
        await runtime.submit(request("UPDATE t SET x = x + 100", "write"))
        answer = step(runtime, "tx", STATEMENTS, "SELECT x FROM t ORDER BY id")
        assert told(answer if isinstance(answer, Answer) else await answer()) == [[(10,), (20,)]]
        with pytest.raises(ConflictError):
            step(runtime, "tx", STATEMENTS, "UPDATE t SET x = 0 WHERE id = 3")


@pytest.mark.parametrize("is_child_first", [False, True])
async def test_a_parent_is_not_deleted_under_a_child_that_has_come_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_child_first: bool
) -> None:
    """The delete found no child, and its access set has no read of that: each new child reads its parent."""
    child, parent = "INSERT INTO child VALUES (1, 1)", "DELETE FROM t WHERE id = 1"
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await runtime.submit(request("CREATE TABLE child(id INTEGER PRIMARY KEY, t REFERENCES t(id))", "child"))
        told(step(runtime, "tx", BEGIN))
        mine, others = (parent, child) if is_child_first else (child, parent)
        told(step(runtime, "tx", STATEMENTS, mine))
        assert (await runtime.submit(request(others, "others"))).place is not None
        with pytest.raises(ConflictError):
            await finished(runtime, "tx")
        assert not decode_results((await runtime.submit(request("PRAGMA foreign_key_check", "look"))).results)[0].rows


async def test_transaction_keeps_its_snapshot_if_its_reads_are_overwritten_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later commit may overwrite earlier reads in that time, and then a newer snapshot would contradict them."""
    monkeypatch.setattr(
        shared_writer, "AGAIN_S", 30.0
    )  # a read that takes long is not repeated, and waits for no snapshot
    async with running(tmp_path, monkeypatch) as (runtime, disk):
        told(step(runtime, "tx", BEGIN))
        assert told(step(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 2")) == [[(20,)]]
        disk.gate.clear()
        answers: list[Answer | BedrockishError] = []
        runtime.begin(request("UPDATE t SET x = 99 WHERE id = 1", "first"), answers.append)
        with trio.fail_after(60):
            while not runtime.gate.is_syncing:  # noqa: ASYNC110
                await trio.sleep(0.001)
        runtime.begin(request("INSERT INTO t VALUES (3, 30)", "second"), answers.append)
        with trio.fail_after(60):
            while not runtime.engine.batch.is_dirty:  # noqa: ASYNC110
                await trio.sleep(0.001)  # a newer snapshot has to be waited for then
        rest = step(runtime, "tx", STATEMENTS, "SELECT x FROM t WHERE id = 1")
        assert not isinstance(rest, Answer)
        found: list[Answer] = []

        async def wait() -> None:
            found.append(await rest())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await settled()
            runtime.begin(request("UPDATE t SET x = 21 WHERE id = 2", "third"), answers.append)
            await settled()
            disk.gate.set()
        assert told(found[0]) == [[(10,)]]  # as on the snapshot on which the other row was read
        with trio.fail_after(60):
            while len(answers) < 3:  # noqa: ASYNC110
                await trio.sleep(0.001)
        with pytest.raises(ConflictError):
            told(step(runtime, "tx", STATEMENTS, "UPDATE t SET x = x + 1 WHERE id = 1"))


@pytest.mark.parametrize("how", ["gone", "ended by an operator"])
@pytest.mark.parametrize("text", ["SELECT x FROM t", "CREATE TABLE u(a)"])
async def test_client_gone_before_its_snapshot_leaves_no_open_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, how: str
) -> None:
    """An abandoned read connection would keep the write-ahead log from restarting, for good."""
    told_him: list[BedrockishError] = []
    async with running(tmp_path, monkeypatch) as (runtime, disk):
        disk.gate.clear()
        runtime.begin(request("UPDATE t SET x = 99 WHERE id = 1", "first"), lambda _: None)
        await settled()
        runtime.begin(request("UPDATE t SET x = 98 WHERE id = 1", "write"), lambda _: None)
        await settled()
        assert runtime.engine.batch.is_dirty, "else there is nothing to wait for"
        seen = Token(dict(runtime.engine.applied))
        begun = runtime.transactions.begin(OWNER, BEGIN, Request("tx", (), token=seen, timeout_s=5))
        assert isinstance(begun, Answer)
        rest = step(runtime, "tx", STATEMENTS, text)
        assert not isinstance(rest, Answer)
        (one,) = runtime.transactions._open.values()

        async def wait() -> None:
            try:
                await rest()
            except BedrockishError as error:
                told_him.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await settled()
            if how == "gone":
                nursery.cancel_scope.cancel()
            else:
                await runtime.transactions.end_by_order({"command": one.id})
                disk.gate.set()
        runtime.transactions.end_owner(OWNER)
        disk.gate.set()
        assert [type(error) for error in told_him] == ([] if how == "gone" else [UnavailableError])
        await runtime.submit(request("UPDATE t SET x = 97 WHERE id = 1", "later"))
        await settled()
        assert not runtime.transactions
        assert not runtime.transactions.boundary.actions
        assert one.work.snapshot is None
        assert one.work.workspace is None
        for number in range(3):
            await runtime.submit(request("UPDATE t SET x = 0 WHERE id = 1", f"w{number}"))
        frames, copied = runtime.engine.wal.checkpoint()
        assert copied == frames, "a reader stands in the way"


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect garbage now, and none in the block, so that only counts of references free objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def rows_in_memory() -> int:
    """Count the rows of transactions named ``freed…``, including those that wait for the garbage collector."""
    # Not ``isinstance``, which asks lazy objects of other tests for their class, such as the settings of Django.
    works = (one for one in gc.get_objects() if type(one) is TransactionWork)
    return sum(len(work.changes) for work in works if work.command.startswith("freed"))


async def finished_step(runtime: Runtime, name: str, sql: str, *params: Any) -> Answer:
    request = Request(name, (Statement(sql, params),), timeout_s=5)
    rest = runtime.transactions.begin(OWNER, STATEMENTS, request)
    return rest if isinstance(rest, Answer) else await rest()


async def test_rows_of_a_failed_transaction_do_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is kept for the client's next step; its traceback would keep the rows and the statements, too."""
    async with running(tmp_path, monkeypatch) as (runtime, _):
        with without_collector():
            assert not rows_in_memory()
            told(step(runtime, "freed", BEGIN))
            told(step(runtime, "freed", STATEMENTS, "SELECT sum(x) FROM t"))
            told(step(runtime, "freed", STATEMENTS, "INSERT INTO t VALUES (3, 30)"))
            assert rows_in_memory()
            await trio.sleep(1.1)  # ``watch`` looks at the open transactions each second
            await runtime.submit(request("UPDATE t SET x = x + 1", "write"))
            with pytest.raises(ConflictError) as lost:
                await finished(runtime, "freed")
            pack_error(lost.value)  # sends it to the client
            del lost
            with pytest.raises(ConflictError) as again:
                step(runtime, "freed", STATEMENTS, "SELECT 1")
            assert again.value.details["ended"]
            assert not rows_in_memory()


async def test_rows_of_long_statements_do_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker runs a statement with a long value; what it uses is freed with the transaction, without a collection."""
    async with running(tmp_path, monkeypatch) as (runtime, _):
        with without_collector():
            assert not rows_in_memory()
            for number in range(3):
                name, value = f"freed-{number}", bytes(BULKY_BYTES + 1)
                told(step(runtime, name, BEGIN))
                await finished_step(runtime, name, "INSERT INTO t VALUES (?, ?)", 3 + number, value)
                assert rows_in_memory()
                await finished(runtime, name)
                with trio.fail_after(60):  # the journal's batch and a thread still have them for a moment
                    while rows_in_memory():  # noqa: ASYNC110
                        await trio.sleep(0.01)


def test_long_statement_of_an_ended_transaction_is_not_kept() -> None:
    ended = EndedErrors()
    for number in range(ENDED_MAX + 1):
        ended.keep(f"tx-{number}", SqlError("no " * 10_000, sql="SELECT " * 10_000, offset=7))
    assert ended.find("tx-0") is None
    found = ended.find("tx-1", ended=True)
    assert isinstance(found, SqlError)
    assert found.details == {"offset": 7, "ended": True}
    assert len(found.message) == CHARACTERS_MAX


@pytest.mark.parametrize("first", ["SELECT x FROM t", "UPDATE t SET x = 0"])
async def test_statement_of_a_transaction_that_ended_before_its_task_ran_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """No later call would stop it; the error names the reason of the end."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n, t"
    async with running(tmp_path, monkeypatch) as (runtime, _):
        step(runtime, "tx", BEGIN)
        step(runtime, "tx", STATEMENTS, first)
        rest = step(runtime, "tx", STATEMENTS, endless)
        assert isinstance(rest, steps.RemainingSteps)
        runtime.cancel(OWNER, "tx")
        with trio.fail_after(5), pytest.raises(DeadlineError, match="was cancelled by its caller"):
            await rest()
        assert runtime.workers.describe()["running"] == 0
