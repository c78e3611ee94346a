"""A task that waits for the earliest of many deadlines, so that the other tasks need no time limits.

A cancel scope for each wait would be a large part of the cost of waiting. The timer's task has a single scope, whose
deadline is changed while the task sleeps.
"""

import math
from collections.abc import Callable

import trio


class DeadlineTimer:
    """Calls ``act`` at the time ``when()``; after each call, ``reschedule`` must be called to set the next time.

    Args:
        when: returns the time of the next call; None or infinity for never.
        now: the clock of ``when``, in seconds.
        act: the function to call; it must not block.
    """

    def __init__(self, when: Callable[[], float | None], now: Callable[[], float], act: Callable[[], None]) -> None:
        self._when, self._now, self._act = when, now, act
        self._at = math.inf
        self._wait: trio.CancelScope | None = None  # the scope in which the task sleeps until the next call

    def reschedule(self) -> None:
        """Act earlier if ``when()`` has become earlier. If it has become later, the task wakes once and sleeps on."""
        at = self._next()
        if at < self._at:
            self._at = at
            if self._wait is not None:  # a change of the scope's deadline does not wake the task
                self._wait.deadline = self._deadline()

    def _next(self) -> float:
        at = self._when()
        return math.inf if at is None else at

    def _deadline(self) -> float:
        return trio.current_time() + max(0.0, self._at - self._now())

    async def run(self) -> None:
        """Call ``act`` at each deadline, until cancelled."""
        self._at = self._next()
        while True:
            with trio.CancelScope(deadline=self._deadline()) as self._wait:
                await trio.sleep_forever()
            self._wait = None
            self._at = self._next()
            if self._at <= self._now():
                self._at = math.inf  # no deadline until ``reschedule``, which ``act`` or work that it starts calls
                self._act()
