"""A histogram of durations for metrics, in which adding a duration costs almost no time."""

from bisect import bisect_left

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Histogram:
    """Counts durations by size."""

    def __init__(self) -> None:
        # ``counts[i]`` is the number of durations of at most ``BOUNDS_S[i]`` that are above the previous bound; the
        # last item counts all longer ones.
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total = 0.0  # the sum of all durations, in seconds

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total += seconds
