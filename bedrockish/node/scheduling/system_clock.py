"""The machine's clocks, read for the core."""

import time

from bedrockish.core.protocol.events import Now

LATELY_S = 0.002


class Clocks:
    """Readings of the clocks; events that are close together in time share a reading.

    Args:
        wall_offset_ms: added to the wall clock, to try out wrong clocks.
    """

    def __init__(self, wall_offset_ms: int = 0) -> None:
        self._wall_offset_ms = wall_offset_ms
        self._last = self.now()

    def now(self) -> Now:
        """Read the clocks."""
        self._last = Now(time.monotonic(), time.time_ns() // 1_000_000 + self._wall_offset_ms)
        return self._last

    def lately(self) -> Now:
        """Return a reading that is fresh enough for events within one turn of the loop."""
        return self._last if time.monotonic() - self._last.seconds < LATELY_S else self.now()
