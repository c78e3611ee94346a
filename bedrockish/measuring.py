"""A histogram of durations that costs next to nothing to fill: what metrics are made of."""

from bisect import bisect_left

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
