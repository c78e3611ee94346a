"""The pace of the scrubs."""

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bedrockish.client.credentials import Entry
from bedrockish.node.repair.scrubber import FIRST_S, REST, Pace, Scrubber
from tests.node.test_durability import open_runtime


async def test_scrub_pauses_in_proportion_to_rows_and_to_time(autojump_clock: MockClock) -> None:
    """2,000 empty tables kept each node busy with half a processor: only rows were counted."""
    pace = Pace(500)
    began = trio.current_time()
    await pace.rest(250)
    assert trio.current_time() - began == 0.5
    await trio.sleep(0.3)  # a range without rows, at a busy node
    began = trio.current_time()
    await pace.rest(0)
    assert trio.current_time() - began == 0.3 * REST


@pytest.mark.parametrize(("nodes", "lines"), [("A", 0), ("AB", 3)])
async def test_node_without_others_logs_no_failed_comparison(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
    nodes: str,
    lines: int,
) -> None:
    """A single node logged one every ten seconds."""
    caplog.set_level(logging.INFO)
    runtime, _, engine = open_runtime(tmp_path, nodes, monkeypatch)
    scrubber = Scrubber(runtime.core, engine, runtime.config, Entry, lambda _db: None, runtime.stop)
    with trio.move_on_after(3.5 * FIRST_S):
        await scrubber.watch()
    assert caplog.text.count("could not be compared") == lines
    engine.close()
