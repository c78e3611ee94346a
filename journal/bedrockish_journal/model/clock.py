"""The layout of a cluster's clock in one integer: Unix milliseconds, and a counter below them.

Until July 2037 the layout is that of Citus: the milliseconds times 2**22. Such a clock would reach 2**63, the limit of
integers in SQLite, Spark and Java, in September 2039. So from ``BEND_MS`` on, a millisecond counts 2**12 instead of
2**22, and the same 64 bits last beyond the year 4100 and keep their order. A millisecond then has 4,096 clocks, more
than any cluster uses; a counter that overflows carries into the milliseconds. Clocks before ``BEND_MS`` are unchanged,
so old journals and programs are not affected.
"""

COUNTER_BITS = 22
BEND_MS = (1 << 41) - (1 << 36)
"""The moment, in July 2037, from which on the counter below a millisecond has ``LATER_BITS`` bits."""
LATER_BITS = 12
BEND = BEND_MS << COUNTER_BITS

CLOCK_LIMIT = 1 << 63  # SQLite's integers are signed
CLOCK_READ_LIMIT = CLOCK_LIMIT - (1 << 52)
"""The bound of the clocks that are accepted from messages and files. No correct clock reaches it: a clock stops
following the wall before, and 2**52 counts are left. A node that accepted a clock above it would move every clock of
the cluster to values that cannot be stored.
"""


def pack(milliseconds: int, counter: int = 0) -> int:
    """Return the clock value of a moment in Unix milliseconds and a counter."""
    if milliseconds < BEND_MS:
        return (milliseconds << COUNTER_BITS) + counter
    return BEND + (milliseconds - BEND_MS << LATER_BITS) + counter


WALL_MS_MAX = BEND_MS + (CLOCK_LIMIT - (1 << 53) - BEND >> LATER_BITS)
"""The last moment, about the year 4197, at which a clock follows the wall; from then on it only counts."""


def milliseconds(clock: int) -> int:
    """Return the Unix milliseconds of a clock value."""
    return clock >> COUNTER_BITS if clock < BEND else BEND_MS + (clock - BEND >> LATER_BITS)


def counter(clock: int) -> int:
    """Return the counter of a clock value."""
    return clock - pack(milliseconds(clock))


def moved(clock: int, by_ms: int) -> int:
    """Return the clock ``by_ms`` milliseconds later, or earlier if ``by_ms`` is negative.

    From a clock near 0, as of nodes that only count, the result may be negative, and is not a clock.
    """
    plain = clock + (by_ms << COUNTER_BITS)
    if clock < BEND and plain < BEND:
        return plain
    there = milliseconds(clock) + by_ms
    return min(pack(there, counter(clock)), pack(there + 1) - 1)
