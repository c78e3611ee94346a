"""Limits the memory for incomplete messages of all clients together.

A message may have 64 MiB, so some dozen clients that send most of a message and then stop would take all memory.
If the incomplete messages exceed a limit, only the longest one and short ones are read further; the senders of the
others wait, as for any slow reader. If the longest message is not completed in time, its sender is disconnected.
"""

from collections.abc import Callable
from typing import Protocol

SHORT_BYTES = 256 << 10  # the sender of a shorter message never waits
HELD_BACK_SECONDS = 10.0  # the longest time that other senders wait for the longest message
SILENT_SECONDS = 1.0  # the longest time that other senders wait if the longest message does not grow


class Sender(Protocol):
    """The link of a client."""

    def read_on(self) -> None:
        """Resume reading for the connection."""

    @property
    def silent_seconds(self) -> float:
        """The time since the last bytes of an incomplete message arrived."""


class Inflow:
    """Counts the bytes of incomplete messages, and decides which links may read on.

    Args:
        most: the limit in bytes, above which other senders wait for the longest message.
        now: returns the time in seconds.
    """

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self.most, self._now = most, now
        self.total = 0  # the bytes of all incomplete messages
        self._sizes: dict[Sender, int] = {}
        self._waiting: set[Sender] = set()
        self._since = 0.0  # seconds at which senders began to wait, or a message was last completed or discarded

    def note(self, sender: Sender, size: int) -> None:
        """Record the size of a sender's incomplete message; 0 if it was completed or discarded."""
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
        """Return whether a sender's link must not read now; ``read_on`` is called when the sender may ask again."""
        if self.total <= self.most or self._sizes.get(sender, 0) < SHORT_BYTES or sender is self._longest():
            self._waiting.discard(sender)
            return False
        if not self._waiting:
            self._since = self._now()
        self._waiting.add(sender)
        return True

    def late(self) -> Sender | None:
        """Return the sender that has made others wait for too long; None if there is no such sender."""
        longest = self._longest() if self._waiting else None
        if longest is None:
            return None
        is_late = self._now() - self._since > HELD_BACK_SECONDS or longest.silent_seconds > SILENT_SECONDS
        return longest if is_late else None

    def size(self, sender: Sender) -> int:
        """Return the number of bytes of a sender's incomplete message."""
        return self._sizes.get(sender, 0)

    def _longest(self) -> Sender | None:
        return max(self._sizes, key=self._sizes.__getitem__, default=None)
