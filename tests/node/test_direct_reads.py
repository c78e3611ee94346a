"""Reads that are answered where they arrive: the batch that they show, and the requests that the core has to answer."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.api.requests import STALE, Answer, Statement, Token, decode_results
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.committed_reads import CommittedReads
from bedrockish.engine.storage.wal import FRAME_BYTES
from bedrockish.errors import BedrockishError, DamagedError, SqlError
from bedrockish.node.runtime import Runtime
from bedrockish.node.scheduling import direct_reads
from tests.node.test_durability import Disk, open_runtime, request, settled

COUNT = "SELECT count(*) FROM t"
INSERT = "INSERT INTO t(x) VALUES (1)"


@dataclass
class Node:
    """A running node with an empty table ``t``."""

    runtime: Runtime
    disk: Disk
    engine: Engine
    answers: dict[str, Answer | BedrockishError] = field(default_factory=dict)

    @property
    def direct(self) -> int:
        """How many reads were answered where they arrived."""
        return self.runtime.counts["direct_reads"]

    def ask(self, name: str, sql: str = COUNT, **others: Any) -> None:
        asked = replace(request(sql, name), **others)
        self.runtime.begin(asked, lambda answer: self.answers.__setitem__(name, answer))

    def answer_at_once(self, sql: str = COUNT, **others: Any) -> Answer:
        """Return the answer of a read that does not wait."""
        found: list[Answer | BedrockishError] = []
        self.runtime.begin(replace(request(sql, os.urandom(8).hex()), **others), found.append)
        (answer,) = found
        assert isinstance(answer, Answer)
        return answer

    async def submit(self, **others: Any) -> Answer:
        """Return the answer of a request."""
        return await self.runtime.submit(replace(request("", os.urandom(8).hex()), **others))

    async def value(self, sql: str = COUNT, name: str = "", **others: Any) -> Any:
        answer = await self.runtime.submit(replace(request(sql, name or os.urandom(8).hex()), **others))
        return decode_results(answer.results)[0].rows[0][0]

    async def hold_a_row(self) -> None:
        """Have a durable row in ``t``, and a second one that waits for its sync."""
        await self.runtime.submit(request(INSERT, "first"))
        assert await self.value() == 1
        self.disk.gate.clear()
        self.ask("second", INSERT)
        await settled()


@asynccontextmanager
async def a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(direct_reads, "TURN_S", 60.0)  # a stall of this process sends no read to the core
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        await settled()
        yield Node(runtime, disk, engine)
        nursery.cancel_scope.cancel()
    runtime.leave()
    engine.close()


async def test_read_after_acknowledged_write_sees_it_without_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        for rows in range(1, 20):
            written = await node.runtime.submit(request(INSERT, f"write {rows}"))
            executed = node.runtime.counts["executions"]
            assert await node.value(token=written.token) == rows
            assert await node.value(read=STALE) == rows
            assert node.runtime.counts["executions"] == executed
        assert node.direct == 38


async def test_stale_read_shows_only_durable_rows_and_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        await node.hold_a_row()
        assert node.engine.flushed.batches > node.runtime.gate.durable_batches
        direct = node.direct
        assert await node.value(read=STALE) == 1
        assert node.direct == direct + 1
        assert await node.value() == 1, "no client was told of the second row"
        assert node.direct == direct + 2
        node.disk.gate.set()
        with trio.fail_after(60):
            while not node.answers:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.001)
        assert await node.value() == 2


async def test_session_sees_commits_of_other_nodes_before_they_are_durable_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has the commits on its disk, and may have answered its clients."""
    async with a_node(tmp_path, monkeypatch) as node:
        await node.hold_a_row()
        direct = node.direct
        with monkeypatch.context() as other:
            other.setattr(node.runtime._direct, "_me", "B")  # so that the node's own commit is another's
            seen = node.answer_at_once()
            assert seen.token.vector == node.engine.applied
            assert seen.token.clock >= node.engine.applied_clock
            assert decode_results(seen.results)[0].rows == [(2,)]
            assert decode_results(node.answer_at_once(read=STALE).results)[0].rows == [(1,)]
            assert decode_results(node.answer_at_once(token=seen.token).results)[0].rows == [(2,)]
        assert node.direct == direct + 3
        node.disk.gate.set()


async def test_core_answers_while_own_and_other_commits_are_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        await node.hold_a_row()
        direct = node.direct
        with monkeypatch.context() as other:
            other.setitem(node.engine.applied, "B", 1)
            node.ask("session")
        await settled()
        assert not node.answers
        assert node.direct == direct
        node.disk.gate.set()
        with trio.fail_after(60):
            while len(node.answers) < 2:  # noqa: ASYNC110
                await trio.sleep(0.001)


@pytest.mark.parametrize("sql", ["SELECT transaction_clock()", "SELECT no_such()", "SELECT count(*) FROM absent"])
async def test_core_answers_clocks_and_errors_of_the_open_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        await node.hold_a_row()
        direct = node.direct
        with monkeypatch.context() as other:
            other.setattr(node.runtime._direct, "_me", "B")
            asked = request(sql, "read")
            assert node.runtime._direct.read(asked) is None
            assert decode_results(node.answer_at_once().results)[0].rows == [(2,)]
        assert node.direct == direct + 1
        node.disk.gate.set()


async def test_session_ahead_of_the_durable_batch_waits_for_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        written = await node.runtime.submit(request(INSERT, "first"))
        assert await node.value() == 1
        leader, tick = next(iter(written.token.vector.items()))
        direct = node.direct
        node.ask("ahead", token=Token({leader: tick + 1}, written.token.clock))
        await settled()
        assert not node.answers
        await node.runtime.submit(request(INSERT, "second"))
        with trio.fail_after(60):
            while not node.answers:  # noqa: ASYNC110
                await trio.sleep(0.001)
        answer = node.answers["ahead"]
        assert isinstance(answer, Answer)
        assert decode_results(answer.results)[0].rows == [(2,)]
        assert node.direct == direct


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT last_insert_rowid()",
        "SELECT total_changes(), changes()",
        "WITH n(i) AS (VALUES (1)) SELECT transaction_clock() FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 400000) SELECT count(*) FROM n",
    ],
)
async def test_core_answers_connection_state_clocks_and_long_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        assert await node.value() == 0
        direct = node.direct
        await node.value(sql)
        assert node.direct == direct


async def test_direct_read_leaves_errors_to_the_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        assert await node.value() == 0
        direct = node.direct
        with pytest.raises(SqlError, match="no such table"):
            await node.value("SELECT * FROM absent")
        assert node.direct == direct


async def test_write_in_a_common_table_expression_is_executed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        await node.runtime.submit(request("WITH n(i) AS (VALUES (7)) INSERT INTO t(x) SELECT i FROM n", "write"))
        assert await node.value("SELECT sum(x) FROM t") == 7


async def test_schema_change_is_visible_to_direct_reads_when_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        assert await node.value() == 0
        changed = await node.runtime.submit(request("ALTER TABLE t ADD COLUMN y DEFAULT 5", "alter"))
        await node.runtime.submit(request(INSERT, "write"))
        assert await node.value("SELECT y FROM t", token=changed.token) == 5
        direct = node.direct
        assert await node.value("SELECT y FROM t") == 5
        assert node.direct == direct + 1


async def test_write_ahead_log_starts_over_under_constant_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        engine, limits = node.engine, node.engine._limits
        for part in (engine, engine.batch):
            monkeypatch.setattr(part, "_limits", replace(limits, wal_frames=20, wal_frames_max=60))
        most = 0
        for number in range(300):
            await node.runtime.submit(request("INSERT INTO t(x) VALUES (randomblob(9000))", f"write {number}"))
            assert await node.value(read=STALE) == number + 1
            most = max(most, engine.wal.frames)
            with trio.fail_after(60):
                # A checkpoint is slow on a busy disk, and its thread begins late on a busy machine: the log grows.
                while node.runtime._checkpoints._is_running:  # noqa: ASYNC110
                    await trio.sleep(0.001)
        assert node.direct >= 299
        assert most < 300, f"{most} frames of {FRAME_BYTES} bytes"


async def test_damaged_file_met_by_a_direct_read_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_arguments: object) -> None:
        raise DamagedError("the file is damaged")

    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    monkeypatch.setattr(CommittedReads, "read_pinned", damaged)
    with pytest.RaisesGroup(DamagedError, allow_unwrapped=True, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
            await settled()
            runtime.begin(request(COUNT, "read"), lambda _answer: None)
            await trio.sleep(10)
    engine.close()


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT 0" + " " * 40_000, None),
        ("SELECT length(?)", ["x" * 2_000_000]),
        (f"SELECT {', '.join('?' * 1_000)}", [0] * 6_000),
    ],
    ids=["long text", "large value", "many parameters"],
)
async def test_core_executes_reads_that_would_delay_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, params: list[object] | None
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        assert await node.value() == 0
        direct = node.direct
        node.ask("read", statements=(Statement(sql, params),))
        with trio.fail_after(60):
            while not node.answers:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.001)
        assert node.direct == direct
        assert all(len(text) <= 4_000 for text in node.runtime._direct._texts), (
            "a client could fill the memory with them"
        )
