"""When the short writes that wait at a node are executed: at once, or a moment later with those about to come."""

import time
from collections.abc import Callable

GATHER_S = 0.01  # the longest that a write waits for others
GATHER_PART = 0.5  # and no longer than this part of a commit's time: then it is a small part of the answer's time


class GroupTimer:
    """Waits, after answers to several writers, for as many of them as are likely to ask again.

    Clients that were answered together ask again nearly together. Were the first of them executed as soon as it is
    there, it would have a round of votes to itself, and those that come a moment later would share the next one: the
    cluster would have twice the work for the same commits. So the node waits for as many as it has just answered and
    has waiting. It learns how many come: one more than the last time, as long as all that were waited for come; only
    as many as came, if some did not.

    Args:
        commit_s: how long a commit takes, lately, in seconds.
        size_max: how many commands a group may have.
        now: seconds.

    Attributes:
        together: how many were answered at once, lately.
    """

    def __init__(
        self, commit_s: Callable[[], float], size_max: Callable[[], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._commit_s, self._size_max, self._now = commit_s, size_max, now
        self.together = 0
        self._likely = 1  # to come together
        self._wanted = 1  # what is waited for now
        self._until = 0.0

    def answered(self, count: int, waiting: int) -> None:
        """So many requests are answered in this moment, while so many writes wait."""
        if not count:
            return
        self.together = count
        if self._until and waiting:
            return  # whoever waits already does not wait for longer because others were answered
        self._wanted = min(count + waiting, self._likely, self._size_max())
        self._until = self._now() + min(GATHER_S, GATHER_PART * self._commit_s()) if self._wanted > 1 else 0.0

    def is_due(self, waiting: int) -> bool:
        """Whether to execute the writes that wait, of which there are so many."""
        return not self._until or waiting >= self._wanted or self._now() >= self._until

    def due_at(self) -> float | None:
        """Return when those that wait are executed at the latest; None: at once."""
        return self._until or None

    def executed(self, count: int) -> None:
        """So many writes are executed as a group."""
        self._likely = count + 1 if count >= self._wanted else count
        self._wanted, self._until = 1, 0.0
