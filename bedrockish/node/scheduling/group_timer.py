"""The time at which a node executes its waiting short writes: at once, or a moment later together with further ones."""

import time
from collections.abc import Callable

GATHER_S = 0.01  # the longest time that a write waits for others
GATHER_PART = 0.5  # the longest wait for others, as a part of a commit's time, so that the answer is hardly later


class GroupTimer:
    """A timer that waits, after several writes were answered together, for as many writes as are likely to follow.

    Clients that were answered together write again nearly together. If the first write were executed as soon as it
    arrives, it would have a round of votes to itself, and the writes of a moment later would share the next round: the
    cluster would have twice the work for the same commits. So the node waits for as many writes as it has just
    answered, plus those that wait already, but for no more than it expects: one more than the last time if all expected
    writes arrived; otherwise the number that arrived.

    Args:
        commit_s: returns the recent time of a commit, in seconds.
        size_max: returns the greatest number of commands in a group.
        now: returns the time in seconds.
    """

    def __init__(
        self, commit_s: Callable[[], float], size_max: Callable[[], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._commit_s, self._size_max, self._now = commit_s, size_max, now
        self.answered_together = 0  # how many requests were answered together the last time
        self._expected = 1  # the writes that are likely to arrive together
        self._wanted = 1  # the number of waiting writes at which they are executed
        self._until = 0.0

    def answered(self, count: int, waiting: int) -> None:
        """Decide how long to wait for more writes: ``count`` requests are answered now, ``waiting`` writes wait."""
        if not count:
            return
        self.answered_together = count
        if self._until and waiting:
            return  # writes that wait already do not wait longer because other requests were answered
        self._wanted = min(count + waiting, self._expected, self._size_max())
        self._until = self._now() + min(GATHER_S, GATHER_PART * self._commit_s()) if self._wanted > 1 else 0.0

    def is_due(self, waiting: int) -> bool:
        """Return whether to execute the ``waiting`` writes now."""
        return not self._until or waiting >= self._wanted or self._now() >= self._until

    def due_at(self) -> float | None:
        """Return the latest time at which the waiting writes are executed; None: at once."""
        return self._until or None

    def executed(self, count: int) -> None:
        """Learn from a group of ``count`` writes, which is executed now, how many writes to expect."""
        self._expected = count + 1 if count >= self._wanted else count
        self._wanted, self._until = 1, 0.0
