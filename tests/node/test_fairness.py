"""One client that asks for a thousand things at once delays another one by its share, not by all of them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.api.requests import Answer, Request
from bedrockish.errors import BedrockishError, DeadlineError
from bedrockish.node.scheduling.turn_loop import FairQueue
from tests.node.test_durability import open_runtime, request


def test_fair_queue_alternates_between_owners_and_keeps_the_order_of_each() -> None:
    queue: FairQueue[str] = FairQueue()
    for owner, item in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")):
        queue.put(owner, item)
    assert queue.count == 6
    found = [queue.take() for _ in range(3)]
    queue.put("c", "c2")
    assert [*found, *(queue.take() for _ in range(queue.count))] == ["a1", "b1", "c1", "a2", "b2", "c2", "a3"]
    assert not queue.count


READS = 1_000  # of each client; a quick machine answers hundreds while the disk syncs the other client's row


async def test_single_request_does_not_wait_for_a_busy_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    # On a busy machine a request could become long, run in a worker, and be answered after later ones.
    runtime.config = replace(runtime.config, limits=replace(runtime.config.limits, loop_ms_max=20_000))
    answered: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        for owner in ("greedy", "greedier"):
            for number in range(READS):
                name = f"{owner} {number}"
                asked = request(f"SELECT {number}", name)
                runtime.begin(asked, partial(lambda name, _: answered.append(name), name), owner=owner)
        runtime.begin(request("INSERT INTO t VALUES (1, 1)", "modest"), lambda _: answered.append("modest"), owner="it")
        with trio.fail_after(60):
            while len(answered) < 2 * READS + 1:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert answered.index("modest") < READS
    for owner in ("greedy", "greedier"):
        mine = [name for name in answered if name.startswith(f"{owner} ")]
        assert mine == [f"{owner} {number}" for number in range(READS)]
    engine.close()


async def test_read_whose_client_goes_before_its_turn_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued reads of a killed program must not go to the workers; a write goes on."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    answered: dict[str, Answer | BedrockishError] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        runtime.workers.took_long(endless)  # so that no turn begins with it
        start, started = runtime.workers.start, list[str]()

        def noted(request_id: int, asked: Request, action: Any, *, clock: bool) -> None:
            started.append(asked.command)
            start(request_id, asked, action, clock=clock)

        monkeypatch.setattr(runtime.workers, "start", noted)
        for name, sql, owner in (
            ("long", endless, "gone"),
            ("write", "INSERT INTO t VALUES (1, 1)", "gone"),
            ("other", "SELECT count(*) FROM sqlite_schema", "it"),
        ):
            runtime.begin(request(sql, name), partial(answered.__setitem__, name), owner=owner)
        runtime.end_reads("gone")
        with trio.fail_after(60):
            while len(answered) < 3:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert "long" not in started
    assert isinstance(answered["long"], DeadlineError)
    assert isinstance(answered["write"], Answer)
    assert isinstance(answered["other"], Answer)
    engine.close()
