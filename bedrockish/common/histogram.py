"""A histogram of durations that costs next to nothing to fill: what metrics are made of."""

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Histogram:
    """Counts durations by size.

    Attributes:
        counts: how many were at most ``BOUNDS_S[i]`` and above the bound before; the last is for all that are longer.
        total: the sum of all, in seconds.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total += seconds


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the duration in seconds below which so much of all are, evenly spread between two bounds; None for none.

    Args:
        counts: of a histogram; what is above the last bound is taken for it.
        share: from 0 to 1.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    passed, low = 0, 0.0
    for count, high in zip(counts, BOUNDS_S, strict=False):
        if passed + count >= wanted:
            return low + (high - low) * (wanted - passed) / count
        passed, low = passed + count, high
    return BOUNDS_S[-1]
