"""The activity of a node in the last hour, for the dashboard, in bounded memory.

The hour is kept in slices of ten seconds. A slice is the growth of the node's counts and of its histogram, so requests
have no further cost.
"""

import os
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from bedrockish.common.histogram import Histogram, quantile

SLICE_S, HOUR_S = 10.0, 3600.0
SLICES_MAX = int(HOUR_S / SLICE_S)
PERCENTILES = (0.5, 0.95, 0.99)
PACKED = ("at_ms", "seconds", "commits", "conflicts", "answers", "p50_ms", "p95_ms", "p99_ms")


@dataclass(frozen=True, slots=True)
class Slice:
    """Some seconds of a node's life."""

    at_ms: int  # Unix time of its end
    seconds: float  # how long it was
    commits: int  # transactions that this node led to a commit
    conflicts: int  # rejects that it received because of another transaction
    times: Sequence[int]  # the number of answers in each bucket of ``Histogram``

    def packed(self) -> list[float | int | None]:
        """Return the values of ``PACKED``."""
        taken = [quantile(self.times, share) for share in PERCENTILES]
        shown = [None if one is None else round(1000 * one, 2) for one in taken]
        return [self.at_ms, round(self.seconds, 2), self.commits, self.conflicts, sum(self.times), *shown]


class Activity:
    """The last hour of one node.

    Args:
        counts: returns the numbers of transactions that it has led to a commit, and of conflicts that voters reported.
        latency: the histogram of the times of its answers.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(
        self, counts: Callable[[], tuple[int, int]], latency: Histogram, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counts, self._latency, self._clock = counts, latency, clock
        self._slices: deque[Slice] = deque(maxlen=SLICES_MAX)
        self._before = (clock(), *counts(), array("Q", latency.counts))

    async def watch(self) -> None:
        """End a slice every ten seconds, until cancelled."""
        while True:
            await trio.sleep(SLICE_S)
            self.cut()

    def cut(self) -> None:
        """End the current slice."""
        began, commits, conflicts, times = self._before
        now, commits_now, conflicts_now = self._clock(), *self._counts()
        self._before = (now, commits_now, conflicts_now, array("Q", self._latency.counts))
        grown = array("L", (new - old for new, old in zip(self._before[3], times, strict=True)))
        made = (commits_now - commits, conflicts_now - conflicts, grown)
        self._slices.append(Slice(time.time_ns() // 1_000_000, now - began, *made))

    def describe(self) -> dict[str, Any]:
        """Return all slices as plain values, oldest first."""
        return {"columns": list(PACKED), "slices": [one.packed() for one in self._slices]}


def sizes(database: str, journal_bytes: int) -> dict[str, int]:
    """Return how many bytes a node's file, its write-ahead log and its journal take; the journal is in the file."""
    return {"database": _size(database), "wal": _size(f"{database}-wal"), "journal": journal_bytes}


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # there is no such file yet
        return 0
