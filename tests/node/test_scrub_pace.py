"""The pace of the scrubs."""

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bedrockish.client.credentials import ClientCredentials
from bedrockish.node.repair.index_scrubber import FIRST_ROWS, RANGE_S, next_limit
from bedrockish.node.repair.scrubber import FIRST_S, RANGE_ROWS, REST, Pace, Scrubber
from tests.node.test_durability import open_runtime


async def test_scrub_pauses_in_proportion_to_rows_and_to_time(autojump_clock: MockClock) -> None:
    """If only rows counted, 2,000 empty tables would keep half a processor of each node busy."""
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
    """Otherwise a single node would log one every ten seconds."""
    caplog.set_level(logging.INFO)
    runtime, _, engine = open_runtime(tmp_path, nodes, monkeypatch)
    scrubber = Scrubber(runtime.core, engine, runtime.config, ClientCredentials, lambda _db: None, runtime.stop)
    with trio.move_on_after(3.5 * FIRST_S):
        await scrubber.watch()
    assert caplog.text.count("could not be compared") == lines
    engine.close()


def test_range_of_an_index_check_grows_while_it_is_short_and_shrinks_when_it_is_long() -> None:
    assert [next_limit(FIRST_ROWS, 0.0), next_limit(400, 0.001), next_limit(RANGE_ROWS, 0.0)] == [100, 500, 500]
    assert next_limit(100, RANGE_S / 2) == 100
    assert [next_limit(100, 2 * RANGE_S), next_limit(1, 2 * RANGE_S)] == [50, 1]
