"""Limits the memory for incomplete messages of all clients together.

Each may be as long as a frame, so some dozen clients that send most of one and no more would take all memory. When
more than a share of it is kept, only the longest of these messages comes in further, and short ones do; the senders of
others wait, as for any slow reader. If that one does not come to its end, its sender is the one to go.
"""

from collections.abc import Callable
from typing import Protocol

SHORT_BYTES = 256 << 10  # shorter messages are never held back
HELD_BACK_SECONDS = 10.0  # how long others wait for the longest message, at most
SILENT_SECONDS = 1.0  # and how long if nothing comes of it


class Sender(Protocol):
    """The link of a client."""

    def read_on(self) -> None:
        """Resume reading for the connection."""

    @property
    def silent_seconds(self) -> float:
        """For how long nothing has come of a message that has begun."""


class Inflow:
    """Counts it, and says who may send more.

    Args:
        most: bytes above which others wait for the longest.
        now: a clock, in seconds.

    Attributes:
        total: bytes that are kept now.
    """

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self.most, self._now = most, now
        self.total = 0
        self._sizes: dict[Sender, int] = {}
        self._waiting: set[Sender] = set()
        self._since = 0.0  # when the first reader began to wait, or the last message completed

    def note(self, sender: Sender, size: int) -> None:
        """So many bytes are kept of a message of this sender; nothing, when it is whole or given up."""
        before = self._sizes.pop(sender, 0)
        if size:
            self._sizes[sender] = size
        self.total += size - before
        if size < before and self._waiting:
            self._since = self._now()
            waiting, self._waiting = self._waiting, set()
            for one in waiting:
                one.read_on()

    def has_to_wait(self, sender: Sender) -> bool:
        """Whether a sender's link may not read now; it is told when it may ask again."""
        if self.total <= self.most or self._sizes.get(sender, 0) < SHORT_BYTES or sender is self._longest():
            self._waiting.discard(sender)
            return False
        if not self._waiting:
            self._since = self._now()
        self._waiting.add(sender)
        return True

    def late(self) -> Sender | None:
        """Return the connection that has made others wait for too long; None if no connection has."""
        longest = self._longest() if self._waiting else None
        if longest is None:
            return None
        is_late = self._now() - self._since > HELD_BACK_SECONDS or longest.silent_seconds > SILENT_SECONDS
        return longest if is_late else None

    def size(self, sender: Sender) -> int:
        """Return how many bytes are kept of a sender's message."""
        return self._sizes.get(sender, 0)

    def _longest(self) -> Sender | None:
        return max(self._sizes, key=self._sizes.__getitem__, default=None)
