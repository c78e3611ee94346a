"""The donor copies its file in a thread, which stops when the copy is no longer needed, and removes the copy in one."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.engine.storage import wal
from bedrockish.engine.storage.scratch_files import LENT, remove, scratch_path
from bedrockish.node.cluster.donor import Donor
from tests.node.test_durability import open_runtime, request


async def test_node_stops_while_a_copy_of_its_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    donor = Donor(runtime.core, engine, runtime.config.database, runtime.durable)
    lent = scratch_path(runtime.config.database, LENT)
    begun, steps, copy_file = threading.Event(), [0], wal.copy_file
    monkeypatch.setattr(wal, "COPY_PAGES", 1)

    def slowly(source: Any, place: Path, go_on: Callable[[], None]) -> None:
        def step() -> None:
            steps[0] += 1
            begun.set()
            cancelled.wait(60)
            go_on()

        copy_file(source, place, step)

    cancelled = threading.Event()
    monkeypatch.setattr("bedrockish.engine.background_reads.copy_file", slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
        await runtime.submit(request("INSERT INTO t(x) VALUES (zeroblob(100000))", "insert"))
        async with trio.open_nursery() as copying:
            copying.start_soon(donor.copy)
            await trio.to_thread.run_sync(begun.wait)
            assert lent.exists()
            copying.cancel_scope.cancel()
            cancelled.set()
        assert steps == [1]
        assert not lent.exists()
        monkeypatch.setattr("bedrockish.engine.background_reads.copy_file", copy_file)
        copy = await donor.copy()  # the next one gets one
        assert copy.size == lent.stat().st_size
        await copy.remove()
        nursery.cancel_scope.cancel()
    runtime.leave()
    engine.close()


async def test_node_commits_while_a_copy_of_its_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    donor = Donor(runtime.core, engine, runtime.config.database, runtime.durable)
    begun, committed = threading.Event(), threading.Event()

    def slowly(path: Path) -> None:
        begun.set()
        assert committed.wait(10), "the loop waited for the removal"
        remove(path)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        copy = await donor.copy()
        monkeypatch.setattr("bedrockish.node.cluster.donor.remove", slowly)
        async with trio.open_nursery() as removing:
            removing.start_soon(copy.remove)
            await trio.to_thread.run_sync(begun.wait)
            await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
            committed.set()
        assert not copy.path.exists()
        nursery.cancel_scope.cancel()
    runtime.leave()
    engine.close()


async def test_copy_is_removed_when_the_machine_gives_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be as large as the database, and the next copy may be weeks away."""
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    donor = Donor(runtime.core, engine, runtime.config.database, runtime.durable)

    async def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        copy = await donor.copy()
        with monkeypatch.context() as patch:
            patch.setattr("bedrockish.node.cluster.donor.trio.to_thread.run_sync", refused)
            await copy.remove()
        assert not copy.path.exists()
        nursery.cancel_scope.cancel()
    runtime.leave()
    engine.close()
