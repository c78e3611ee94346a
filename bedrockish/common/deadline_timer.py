"""One timer task for a deadline that moves, so that the waiting tasks need no time limits of their own.

A cancel scope for each wait would be a large part of the cost of waiting. The one scope of the timer's task is told
another deadline while the task sleeps.
"""

import math
from collections.abc import Callable

import trio


class Alarm:
    """Calls ``ring`` when it is ``when()``; it has to be told to ``look`` after each ring.

    Args:
        when: tells the time; None or infinity for never.
        now: the clock that ``when`` goes by, in seconds.
        ring: must not block.
    """

    def __init__(self, when: Callable[[], float | None], now: Callable[[], float], ring: Callable[[], None]) -> None:
        self._tell, self._now, self._ring = when, now, ring
        self._at = math.inf
        self._wait: trio.CancelScope | None = None  # of the task, until then

    def look(self) -> None:
        """Note that the time may be earlier than it was. (A later one is found out when the old one has come.)"""
        at = self._tell()
        if at is not None and at < self._at:
            self._at = at
            if self._wait is not None:  # the task need not be woken for it
                self._wait.deadline = self._deadline()

    def _when(self) -> float:
        at = self._tell()
        return math.inf if at is None else at

    def _deadline(self) -> float:
        """Return when to ring, by the clock of trio."""
        return trio.current_time() + max(0.0, self._at - self._now())

    async def run(self) -> None:
        """Ring until cancelled."""
        self._at = self._when()
        while True:
            with trio.CancelScope(deadline=self._deadline()) as self._wait:
                await trio.sleep_forever()
            self._wait = None
            self._at = self._when()
            if self._at <= self._now():
                self._at = math.inf  # whoever is rung for may only get to it later, and looks again then
                self._ring()
