"""A task that waits for the earliest of many deadlines, so that the other tasks need no time limits.

A cancel scope for each wait would be a large part of the cost of waiting. The timer's task has a single scope, whose
deadline is changed while the task sleeps.
"""

import math
from collections.abc import Callable

import trio


class Alarm:
    """Calls ``ring`` at the time ``when()``; after each ring, ``look`` must be called for the next one.

    Args:
        when: returns the time of the next ring; None or infinity for never.
        now: the clock of ``when``, in seconds.
        ring: the function to call; it must not block.
    """

    def __init__(self, when: Callable[[], float | None], now: Callable[[], float], ring: Callable[[], None]) -> None:
        self._tell, self._now, self._ring = when, now, ring
        self._at = math.inf
        self._wait: trio.CancelScope | None = None  # the scope in which the task sleeps until the next ring

    def look(self) -> None:
        """Ring earlier if ``when`` is earlier now. (If it is later now, this is noticed at the old time.)"""
        at = self._tell()
        if at is not None and at < self._at:
            self._at = at
            if self._wait is not None:  # a change of its deadline does not wake the task
                self._wait.deadline = self._deadline()

    def _when(self) -> float:
        at = self._tell()
        return math.inf if at is None else at

    def _deadline(self) -> float:
        """Return the time of the next ring, by the clock of trio."""
        return trio.current_time() + max(0.0, self._at - self._now())

    async def run(self) -> None:
        """Call ``ring`` at each deadline, until cancelled."""
        self._at = self._when()
        while True:
            with trio.CancelScope(deadline=self._deadline()) as self._wait:
                await trio.sleep_forever()
            self._wait = None
            self._at = self._when()
            if self._at <= self._now():
                self._at = math.inf  # the work that follows the ring may start later, and then calls ``look``
                self._ring()
