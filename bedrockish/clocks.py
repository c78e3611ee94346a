"""The machine's clocks, as the core is told of them. With the runtime, the only one in a node to look at them."""

import time

from bedrockish.core.events import Now

LATELY_S = 0.002


class Clocks:
    """Readings of the clocks, of which those that are close together share one."""

    def __init__(self) -> None:
        self._last = self.now()

    def now(self) -> Now:
        """Read the clocks."""
        self._last = Now(time.monotonic(), time.time_ns() // 1_000_000)
        return self._last

    def lately(self) -> Now:
        """Return a reading that is fresh enough for what happens within one turn of the loop."""
        return self._last if time.monotonic() - self._last.seconds < LATELY_S else self.now()
