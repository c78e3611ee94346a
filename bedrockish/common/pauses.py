"""The pauses before a transaction is run again after a conflict, and the clock of all pauses in programs."""

import random
import time
from functools import partial

# Tests of programs freeze the time: freezegun replaces ``time.monotonic``, also under other names in other modules.
# With such a clock, a client would wait for ever for a pause to end. ``clock_gettime`` stays; Windows lacks it.
monotonic = (
    partial(time.clock_gettime, time.CLOCK_MONOTONIC) if hasattr(time, "clock_gettime") else partial(time.monotonic)
)
FIRST_S, LONGEST_S, LEAST_S = 0.005, 0.5, 0.05


class Pauses:
    """Growing pauses up to a time limit, each random, so that two transactions do not conflict at every attempt."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline, self._at_most_s = monotonic() + timeout_s, FIRST_S

    @property
    def left_s(self) -> float:
        """The time for an attempt, in seconds: the remaining time, but at least ``LEAST_S``."""
        return max(self._deadline - monotonic(), LEAST_S)

    def draw(self) -> float | None:
        """Return the next pause in seconds; None if no time is left for another attempt."""
        at_most_s = self._at_most_s
        if monotonic() + at_most_s > self._deadline:
            return None
        self._at_most_s = min(LONGEST_S, 2 * at_most_s)
        return at_most_s * random.random()

    def wait(self) -> bool:
        """Wait for the next pause; return whether there is time left for another attempt."""
        pause_s = self.draw()
        if pause_s is None:
            return False
        time.sleep(pause_s)
        return True
