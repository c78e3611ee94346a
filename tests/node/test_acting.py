"""Messages are handled where links are read; the loop's own task does long work."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from bedrockish.api.requests import Answer, Request, Statement
from bedrockish.core.protocol.events import Held, Woken
from bedrockish.core.protocol.messages import Gossip, decode
from bedrockish.errors import BedrockishError, DamagedError
from bedrockish.node.scheduling import durability, durability_gate
from tests.node.test_durability import Wire, idle, open_runtime, request, settled


async def test_command_is_executed_in_the_task_that_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fast disk, the command is answered before another task has a turn."""
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    monkeypatch.setattr(durability, "QUICK_S", 10.0)
    monkeypatch.setattr(durability, "STALL_S", 60.0)
    answers: list[Answer | BedrockishError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
        await settled()
        syncs = disk.count
        runtime.gather()
        runtime.begin(request("INSERT INTO t VALUES (1)", "insert"), answers.append)
        assert runtime.act(), "work is left"
        assert [type(answer) for answer in answers] == [Answer]
        assert disk.count > syncs
        runtime.gather()
        runtime.begin(request("SELECT 1", "look"), answers.append)
        runtime.act()
        assert len(answers) == 2
        nursery.cancel_scope.cancel()
    engine.close()


async def test_a_slow_disk_is_waited_for_in_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers: list[Answer | BedrockishError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
        await settled()
        disk.gate.clear()
        runtime.gather()
        runtime.begin(request("INSERT INTO t VALUES (1)", "insert"), answers.append)
        runtime.act()
        runtime.gather()
        runtime.begin(request("SELECT 1", "look"), answers.append)  # the loop goes on
        runtime.act()
        await settled()
        assert not answers
        disk.gate.set()
        with trio.fail_after(60):
            while len(answers) < 2:  # noqa: ASYNC110
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    engine.close()


async def test_long_work_is_finished_by_the_task_before_later_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers: list[str] = []
    monkeypatch.setattr(engine.entries, "is_long", lambda _entry: True)  # each commit is applied in a thread
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
        await settled()
        for number in range(3):
            runtime.gather()
            insert = request(f"INSERT INTO t VALUES ({number})", f"c{number}")
            runtime.begin(insert, lambda _: answers.append("done"))
            assert not runtime.act(), "the long work is left to the task"
            runtime.act()  # other clients read
        assert not answers
        with trio.fail_after(60):
            while len(answers) < 3:  # noqa: ASYNC110
                await trio.sleep(0.001)
        found = await runtime.submit(request("SELECT count(*) FROM t", "count"))
        assert b"\x03" in found.results
        nursery.cancel_scope.cancel()
    engine.close()


async def test_damage_found_in_the_reading_task_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)

    def failing(*_arguments: Any, **_options: Any) -> None:
        raise DamagedError("the file failed")

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
            await settled()
            monkeypatch.setattr(engine, "apply", failing)
            runtime.gather()
            runtime.begin(request("INSERT INTO t VALUES (1)", "insert"), lambda _: None)
            runtime.act()

    with trio.fail_after(60), pytest.RaisesGroup(DamagedError, flatten_subgroups=True):
        await live()
    batches = engine.batch.number
    runtime.leave()
    assert engine.batch.number == batches  # the effects that the core believes done are not written
    engine.close()


async def test_unawaited_batch_is_synced_with_the_next_or_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, disk, engine = open_runtime(tmp_path, "A", monkeypatch)
    monkeypatch.setattr(durability_gate, "LINGER_S", 30.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
        await runtime.durable()
        engine.set_meta("test", 1)  # as if others' commit had been applied
        batches = engine.batch.number
        runtime.gather()
        runtime._inbox.append(Woken())
        runtime.act()
        await settled()
        assert engine.batch.is_dirty
        assert engine.batch.number == batches
        await runtime.durable()  # a caller waits
        assert engine.batch.number == batches + 1
        monkeypatch.setattr(durability_gate, "LINGER_S", 0.1)
        engine.set_meta("test", 2)
        runtime.gather()
        runtime._inbox.append(Woken())
        runtime.act()
        assert engine.batch.is_dirty
        syncs = disk.count
        with trio.fail_after(60):
            while engine.batch.is_dirty:  # noqa: ASYNC110
                await trio.sleep(0.01)
        await settled()
        assert disk.count > syncs
        nursery.cancel_scope.cancel()
    engine.close()


class Gossips(Wire):
    """A mesh that counts the GOSSIP messages that leave."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def send_many(self, node: str, payloads: Iterable[bytes], *, bulk: bool = False) -> bool:
        payloads = list(payloads)
        self.count += sum(isinstance(decode(one), Gossip) for one in payloads)
        return super().send_many(node, payloads, bulk=bulk)


async def test_gossip_leaves_with_the_next_batch_unless_peers_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync for gossip alone would delay the votes that arrive during it."""
    runtime, disk, engine = open_runtime(tmp_path, "ABC", monkeypatch)
    runtime.core.state.settings = replace(runtime.core.state.settings, heartbeat_ms=60_000)
    monkeypatch.setattr(durability_gate, "LINGER_S", 30.0)
    wire, state = Gossips(), runtime.core.state
    runtime.output.mesh = cast(Any, wire)

    def tell(clock: int) -> None:
        runtime.gather()
        runtime._inbox.append(Held("reader", clock))
        runtime.act()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await settled()
        await idle(runtime)
        await runtime.durable()
        wire.count, before, syncs = 0, 0, disk.count
        for clock in (1, 2):
            tell(clock)
            await settled()
        assert (wire.count, disk.count) == (0, syncs)
        await runtime.durable()
        assert (wire.count, disk.count) == (4, syncs + 1)
        for reserved in ((1, 1_000, b""), None):  # a reservation, and its end
            state.reserved = reserved
            before = wire.count
            tell(clock := clock + 1)
            await settled()
            assert wire.count == before + 2
        monkeypatch.setattr(durability_gate, "LINGER_S", 0.05)
        tell(clock + 1)
        assert wire.count == before + 2
        with trio.fail_after(60):
            while wire.count == before + 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    engine.close()


def insert(number: int) -> Request:
    return Request(f"c{number}", (Statement("INSERT INTO t VALUES (?)", (number,)),), timeout_s=5)


async def test_writers_that_come_together_share_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After several requests were answered at once, the next first one waits for others to arrive with it."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    answers: list[Answer | BedrockishError] = []
    later = [insert(3), insert(4)]

    def read() -> None:
        while later:
            runtime.begin(later.pop(), answers.append)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY)", "create"))
        await runtime.submit(insert(0))  # from now on it is known to be short
        await settled()
        executions, commits = runtime.counts["executions"], runtime.counts["commits_led"]
        runtime.gather()
        for number in (1, 2):
            runtime.begin(insert(number), answers.append)
        runtime.act()
        assert runtime.counts["executions"] == executions
        runtime.read_links(read)
        with trio.fail_after(60):
            while len(answers) < 4:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert runtime.counts["commits_led"] == commits + 1
        nursery.cancel_scope.cancel()
    engine.close()
