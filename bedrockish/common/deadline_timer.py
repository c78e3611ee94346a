"""One timer task for a deadline that moves, so that the waiting tasks need no time limits of their own.

A cancel scope for each wait would be a large part of the cost of waiting.
"""

import math
from collections.abc import Callable

import trio


class Alarm:
    """Calls ``ring`` when it is ``when()``, and now and then too early; it has to be told to ``look`` after each ring.

    Args:
        when: tells the time; None or infinity for never.
        now: the clock that ``when`` goes by, in seconds.
        ring: must not block.
    """

    def __init__(self, when: Callable[[], float | None], now: Callable[[], float], ring: Callable[[], None]) -> None:
        self._tell, self._now, self._ring = when, now, ring
        self._at = math.inf
        self._earlier = trio.Event()

    def look(self) -> None:
        """Note that the time may be earlier than it was. (A later one is found out when the old one has come.)"""
        if self._when() < self._at:
            self._earlier.set()

    def _when(self) -> float:
        at = self._tell()
        return math.inf if at is None else at

    async def run(self) -> None:
        """Ring until cancelled."""
        while True:
            self._earlier = trio.Event()
            self._at = self._when()
            with trio.move_on_after(max(0.0, self._at - self._now())):
                await self._earlier.wait()
                continue
            self._at = math.inf  # whoever is rung for may only get to it later, and looks again then
            self._ring()
            await self._earlier.wait()
