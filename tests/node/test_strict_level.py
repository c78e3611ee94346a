"""Open transactions whose level is ``strict``: before they read the journal, their snapshot moves up."""

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.api.requests import SERIALIZABLE, SNAPSHOT, STRICT, Answer, Request, Statement, decode_results
from bedrockish.api.wire import BEGIN, STATEMENTS
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.snapshot import Readers, Snapshot
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.errors import ConflictError, UnavailableError
from bedrockish.node.runtime import Runtime
from tests.node.test_durability import request
from tests.node.test_open_transactions import OWNER, finished, running

COUNT = "SELECT count(*) FROM bedrockish_journal"


async def run(runtime: Runtime, op: str, *texts: str, isolation: str = SERIALIZABLE, read: str = STRICT) -> list[Any]:
    """Do a step of the transaction ``tx``; return the first value of each result."""
    asked = Request("tx", tuple(map(Statement, texts)), read, isolation, timeout_s=5)
    answer = runtime.transactions.begin(OWNER, op, asked)
    found = answer if isinstance(answer, Answer) else await answer()
    return [result.rows[0][0] for result in decode_results(found.results) if result.rows]


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands of all requests that the core answers."""
    found: list[str] = []
    plain = Runtime.begin

    def begin(runtime: Runtime, asked: Request, *arguments: object, **options: object) -> None:
        found.append(asked.command)
        plain(runtime, asked, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Runtime, "begin", begin)
    return found


async def test_snapshot_moves_up_before_the_journal_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: list[str]
) -> None:
    async with running(tmp_path, monkeypatch) as (runtime, _):
        _, before = await run(runtime, BEGIN, "SELECT x FROM t WHERE id = 1", COUNT)
        await finished(runtime, "tx")
        await run(runtime, BEGIN, "SELECT x FROM t WHERE id = 1")
        await runtime.submit(request("UPDATE t SET x = 21 WHERE id = 2", "other"))
        assert await run(runtime, STATEMENTS, COUNT) == [before + 1]
        assert await run(runtime, STATEMENTS, "SELECT x FROM t WHERE id = 2", COUNT) == [21, before + 1]
        assert questions.count("tx+level") == 2, "one question for each transaction"
        await finished(runtime, "tx")


async def test_transaction_whose_rows_were_changed_is_lost_when_it_reads_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await run(runtime, BEGIN, "SELECT x FROM t WHERE id = 1")
        await runtime.submit(request("UPDATE t SET x = 11 WHERE id = 1", "other"))
        with pytest.raises(ConflictError, match="read that table first"):
            await run(runtime, STATEMENTS, COUNT)


async def test_transaction_alone_fails_if_the_machine_has_no_room_for_its_later_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is taken in the node's loop, which an error there would end."""

    def no_room(_readers: Readers) -> Snapshot:
        raise UnavailableError("no room for another connection")

    async with running(tmp_path, monkeypatch) as (runtime, _):
        await run(runtime, BEGIN, "SELECT x FROM t WHERE id = 1")
        await runtime.submit(request("UPDATE t SET x = 21 WHERE id = 2", "other"))
        monkeypatch.setattr(Readers, "take_snapshot", no_room)
        with pytest.raises(UnavailableError, match="no room for another connection"):
            await run(runtime, STATEMENTS, COUNT)
        await runtime.submit(request("UPDATE t SET x = 22 WHERE id = 2", "after"))
        assert not runtime.transactions


async def test_snapshot_isolation_reads_the_journal_strictly_on_its_first_snapshot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as (runtime, _):
        (before,) = await run(runtime, BEGIN, COUNT, isolation=SNAPSHOT)
        await runtime.submit(request("UPDATE t SET x = 11 WHERE id = 1", "other"))
        assert await run(runtime, STATEMENTS, COUNT) == [before], "the snapshot stays"
        await finished(runtime, "tx")
        await run(runtime, BEGIN, "SELECT x FROM t WHERE id = 1", isolation=SNAPSHOT)
        await runtime.submit(request("UPDATE t SET x = 12 WHERE id = 1", "another"))
        with pytest.raises(ConflictError, match="read that table first"):
            await run(runtime, STATEMENTS, COUNT)


@pytest.mark.parametrize("texts", [("SELECT x FROM t",), ("UPDATE t SET x = 1", "SELECT name FROM sqlite_schema")])
async def test_transaction_that_reads_no_table_of_the_cluster_asks_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: list[str], texts: tuple[str, ...]
) -> None:
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await run(runtime, BEGIN, *texts)
        await finished(runtime, "tx")
        assert "tx+level" not in questions


async def test_transaction_below_strict_asks_no_voter_about_its_journal_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: list[str]
) -> None:
    async with running(tmp_path, monkeypatch) as (runtime, _):
        await run(runtime, BEGIN, COUNT, read="session")
        await finished(runtime, "tx")
        assert "tx+level" not in questions


async def test_read_in_a_worker_runs_again_if_an_entry_was_applied_since_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry may be a commit of another node that was acknowledged before the read began."""
    ran, applied = list[int](), threading.Event()
    plain = Workspace.execute

    def execute(workspace: Workspace, asked: Request) -> Prepared:
        found = plain(workspace, asked)
        ran.append(len(ran))
        assert applied.wait(60)
        return found

    monkeypatch.setattr(Workspace, "execute", execute)
    async with running(tmp_path, monkeypatch) as (runtime, _):
        answer = await runtime.submit(Request("before", (Statement(COUNT),), STRICT, timeout_s=20))
        ((before,),) = decode_results(answer.results)[0].rows
        for _ in range(2):
            runtime.workers.took_long(COUNT)
        found: list[Answer] = []

        async def read() -> None:
            found.append(await runtime.submit(Request("read", (Statement(COUNT),), STRICT, timeout_s=20)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            with trio.fail_after(60):
                while not ran:  # noqa: ASYNC110  it runs in a thread
                    await trio.sleep(0.001)
            await runtime.submit(request("UPDATE t SET x = 11 WHERE id = 1", "other"))
            applied.set()
        assert decode_results(found[0].results)[0].rows == [(before + 1,)]
