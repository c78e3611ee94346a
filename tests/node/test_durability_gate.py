"""The stages of the gate through which a node's output leaves."""

from pathlib import Path

import pytest
import trio

from bedrockish.api.requests import Answer
from bedrockish.core.protocol.events import Woken
from bedrockish.errors import BedrockishError
from bedrockish.node.scheduling import durability_gate
from bedrockish.node.scheduling.durability_gate import BatchStage, DurabilityGate
from tests.node.test_durability import open_runtime, request, settled


def stage(gate: DurabilityGate) -> BatchStage:
    """Return the stage now; a type checker would take an earlier comparison for the present one."""
    return gate.stage


async def reached(gate: DurabilityGate, wanted: BatchStage) -> None:
    """Wait until the batches are at a stage, at which the test holds them."""
    with trio.fail_after(60):
        while stage(gate) is not wanted:  # noqa: ASYNC110  the gate has no event for it
            await trio.sleep(0.001)


async def test_batch_without_answers_stays_open_until_an_answer_needs_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    monkeypatch.setattr(durability_gate, "LINGER_S", 30.0)
    gate, answers = runtime.gate, list[Answer | BedrockishError]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
        await runtime.durable()
        assert stage(gate) is BatchStage.GATHERING
        assert gate.durable_batches == engine.batch.number
        engine.set_meta("test", 1)  # as if others' commit had been applied
        runtime.post(Woken())
        await reached(gate, BatchStage.LINGERING)
        assert gate.deadline is not None
        assert not gate.has_work
        disk.gate.clear()
        runtime.begin(request("INSERT INTO t VALUES (1)", "insert"), answers.append)
        await reached(gate, BatchStage.SYNCING)
        assert gate.deadline is None
        assert gate.has_output
        assert runtime.is_busy(0.0)
        assert gate.durable_batches == engine.batch.number - 1
        assert not answers
        disk.gate.set()
        with trio.fail_after(60):
            while not answers:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.001)
        await reached(gate, BatchStage.GATHERING)
        assert gate.durable_batches == engine.batch.number
        assert not gate.has_output
        nursery.cancel_scope.cancel()
    engine.close()


async def test_answer_of_a_sync_that_runs_is_given_when_the_node_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers = list[Answer | BedrockishError]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
        await runtime.durable()
        monkeypatch.setattr(runtime.gate.fsync, "start", lambda _done: None)  # ends after the node's loop
        runtime.begin(request("INSERT INTO t VALUES (1)", "insert"), answers.append)
        await settled()
        assert stage(runtime.gate) is BatchStage.SYNCING
        assert not answers
        nursery.cancel_scope.cancel()
    syncs = disk.count
    runtime.leave()
    assert disk.count > syncs
    assert isinstance(answers[0], Answer)
    engine.close()
