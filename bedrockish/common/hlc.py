"""The hybrid logical clock: it follows the wall clock while that goes forward, and counts when it does not.

It is never behind anything that this node has heard of. The wall is an argument: nothing here reads it. How a value is
laid out is ``bedrockish_journal.model.clock``.
"""

from bedrockish_journal.model.clock import CLOCK_LIMIT, WALL_MS_MAX, counter, milliseconds, moved, pack

__all__ = ["CLOCK_LIMIT", "WALL_MS_MAX", "HybridClock", "counter", "milliseconds", "moved", "pack"]


class HybridClock:
    """One node's clock.

    Args:
        floor: the clock never went above this before; it starts there.
        follows_wall: False is the safety valve: the clock then only counts and ignores the wall.
    """

    def __init__(self, floor: int = 0, *, follows_wall: bool = True) -> None:
        self.value = floor
        self.follows_wall = follows_wall

    def tick(self, wall_ms: int) -> int:
        """Return a value above all that this clock ever gave or heard of."""
        self.value = max(self.value + 1, self._wall(wall_ms))
        assert self.value < CLOCK_LIMIT
        return self.value

    def read(self, wall_ms: int) -> int:
        """Move up to the wall, if that is ahead, and return the value."""
        self.value = max(self.value, self._wall(wall_ms))
        return self.value

    def adjust(self, heard: int) -> None:
        """Move up to a value that came with a message."""
        self.value = max(self.value, heard)

    def _wall(self, wall_ms: int) -> int:
        return pack(min(wall_ms, WALL_MS_MAX)) if self.follows_wall else 0
