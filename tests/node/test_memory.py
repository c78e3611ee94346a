"""A node gives memory back after a load, and keeps what it needs while there is work."""

from pathlib import Path
from typing import Any, cast

import apsw
import trio
import trio.testing

from bedrockish.common.histogram import Histogram
from bedrockish.engine.engine import Engine
from bedrockish.node.memory_watch import IDLE_S, SHRINKS_MAX, shrink_when_idle
from tests.engine.nodes import TestNode


def cached(engine: Engine) -> int:
    """Return the number of bytes of pages that the writer caches."""
    return int(engine._db.status(apsw.SQLITE_DBSTATUS_CACHE_USED)[0])


def test_cache_pages_are_freed_when_the_node_is_idle(tmp_path: Path) -> None:
    made = TestNode(tmp_path / "a.db")
    made.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB)")
    for number in range(20):
        made.run(f"INSERT INTO t VALUES ({number}, zeroblob(100000))")
    made.save()
    engine = made.engine
    kept = cached(engine)
    assert kept > 2_000_000
    latency = Histogram()
    shrunk = 0
    shrink = engine.pages.shrink

    def counted() -> None:
        nonlocal shrunk
        shrunk += 1
        shrink()

    cast("Any", engine.pages).shrink = counted

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shrink_when_idle, engine, latency)
            for _ in range(20):  # asked all the time, and so it keeps them
                latency.observe(0.001)
                await trio.sleep(IDLE_S / 2)
            assert shrunk == 0
            assert cached(engine) == kept
            await trio.sleep(2.5 * IDLE_S)
            assert 1 <= shrunk <= 2
            assert cached(engine) < kept / 4
            await trio.sleep(100 * IDLE_S)
            assert shrunk == SHRINKS_MAX
            made.run("INSERT INTO t VALUES (100, 'more')")
            await trio.sleep(2.5 * IDLE_S)
            assert SHRINKS_MAX < shrunk <= SHRINKS_MAX + 2
            then = shrunk
            engine.batch.hand_over(lambda: None)  # a thread has the writer: no caller waits for it only to save memory
            made.engine.journal.applied_clock += 1
            await trio.sleep(5 * IDLE_S)
            assert shrunk == then
            engine.batch.take_back()
            nursery.cancel_scope.cancel()

    trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0))
    engine.close()
