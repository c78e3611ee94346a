"""The pace of the scrubs."""

import trio
from trio.testing import MockClock

from bedrockish.node.repair.scrubber import REST, Pace


async def test_scrub_rests_for_its_rows_and_for_its_time(autojump_clock: MockClock) -> None:
    """2,000 empty tables kept each node busy with half a processor: only rows were counted."""
    pace = Pace(500)
    began = trio.current_time()
    await pace.rest(250)
    assert trio.current_time() - began == 0.5
    await trio.sleep(0.3)  # a range without rows, at a busy node
    began = trio.current_time()
    await pace.rest(0)
    assert trio.current_time() - began == 0.3 * REST
