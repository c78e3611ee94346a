"""The hybrid logical clock, as Citus lays it out: 42 bits of Unix milliseconds and 22 bits of counter in one integer.

It follows the wall clock while that goes forward, counts when it does not, and is never behind anything that this node
has heard of. A counter that overflows carries into the milliseconds. The wall is an argument: nothing here reads it.
"""

COUNTER_BITS = 22
COUNTER_MAX = (1 << COUNTER_BITS) - 1
CLOCK_MAX = (1 << 64) - 1


def pack(milliseconds: int, counter: int = 0) -> int:
    """Return the clock value of a moment in Unix milliseconds and a counter."""
    return (milliseconds << COUNTER_BITS) | counter


def milliseconds(clock: int) -> int:
    """Return the Unix milliseconds of a clock value."""
    return clock >> COUNTER_BITS


def counter(clock: int) -> int:
    """Return the counter of a clock value."""
    return clock & COUNTER_MAX


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
        assert self.value <= CLOCK_MAX
        return self.value

    def read(self, wall_ms: int) -> int:
        """Move up to the wall, if that is ahead, and return the value."""
        self.value = max(self.value, self._wall(wall_ms))
        return self.value

    def adjust(self, heard: int) -> None:
        """Move up to a value that came with a message."""
        self.value = max(self.value, heard)

    def _wall(self, wall_ms: int) -> int:
        return pack(wall_ms) if self.follows_wall else 0
