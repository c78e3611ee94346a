"""What a node did in the last hour, what was slow, and what is open at it: for those who look, in bounded memory.

The hour is kept in slices of ten seconds. Nothing is added up for it while requests run: a slice is what the counts and
the histogram have grown by, and a statement is looked at only if it took long.
"""

import os
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from bedrockish.common.histogram import Histogram, quantile

SLICE_S, HOUR_S = 10.0, 3600.0
SLICES_MAX = int(HOUR_S / SLICE_S)
SLOW_S = 0.1
SLOW_MAX, SQL_MAX = 100, 500  # texts that are kept, and characters of each
TOLD_MAX = 50  # rows of each list that is told
PERCENTILES = (0.5, 0.95, 0.99)
PACKED = ("at_ms", "seconds", "commits", "conflicts", "answers", "p50_ms", "p95_ms", "p99_ms")


@dataclass(frozen=True, slots=True)
class Slice:
    """Some seconds of a node's life.

    Attributes:
        at_ms: Unix time of its end.
        seconds: how long it was.
        commits: that this node led.
        conflicts: rejects that it heard for the sake of another transaction.
        times: how many answers took how long, by the bounds of ``Histogram``.
    """

    at_ms: int
    seconds: float
    commits: int
    conflicts: int
    times: Sequence[int]

    def packed(self) -> list[float | int | None]:
        """Return the values of ``PACKED``."""
        taken = [quantile(self.times, share) for share in PERCENTILES]
        shown = [None if one is None else round(1000 * one, 2) for one in taken]
        return [self.at_ms, round(self.seconds, 2), self.commits, self.conflicts, sum(self.times), *shown]


@dataclass(slots=True)
class Slow:
    """A text that took long, each time it did."""

    times: int = 0
    longest_s: float = 0.0
    total_s: float = 0.0
    last: float = 0.0


class Activity:
    """The last hour of one node.

    Args:
        counts: returns how many transactions it has led to a commit, and how many conflicts it has heard of.
        latency: how long its answers took.
        clock: returns seconds that only grow.
    """

    def __init__(
        self, counts: Callable[[], tuple[int, int]], latency: Histogram, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counts, self._latency, self._clock = counts, latency, clock
        self._slices: deque[Slice] = deque(maxlen=SLICES_MAX)
        self._slow: OrderedDict[str, Slow] = OrderedDict()
        self._before = (clock(), *counts(), array("Q", latency.counts))

    async def watch(self) -> None:
        """Keep a slice every ten seconds, until cancelled."""
        while True:
            await trio.sleep(SLICE_S)
            self.cut()

    def cut(self) -> None:
        """End the slice that is under way."""
        began, commits, conflicts, times = self._before
        now, commits_now, conflicts_now = self._clock(), *self._counts()
        self._before = (now, commits_now, conflicts_now, array("Q", self._latency.counts))
        grown = array("L", (new - old for new, old in zip(self._before[3], times, strict=True)))
        made = (commits_now - commits, conflicts_now - conflicts, grown)
        self._slices.append(Slice(time.time_ns() // 1_000_000, now - began, *made))

    def note(self, texts: Sequence[str], took_s: float) -> None:
        """Remember a request if it took long."""
        if took_s < SLOW_S:
            return
        name = " ".join("; ".join(text[:SQL_MAX] for text in texts[:5]).split())[:SQL_MAX] or "COMMIT"
        slow = self._slow.pop(name, None) or Slow()
        slow.times, slow.total_s, slow.last = slow.times + 1, slow.total_s + took_s, self._clock()
        slow.longest_s = max(slow.longest_s, took_s)
        self._slow[name] = slow  # the one that was slow last is the last
        while len(self._slow) > SLOW_MAX:
            self._slow.popitem(last=False)

    def describe(self) -> dict[str, Any]:
        """Return all that is kept, as plain values: the slices oldest first, the slow texts by the time they took."""
        now = self._clock()
        for name in [name for name, slow in self._slow.items() if now - slow.last > HOUR_S]:
            del self._slow[name]
        ranked = sorted(self._slow.items(), key=lambda item: -item[1].total_s)[:TOLD_MAX]
        slow = [
            {
                "sql": name,
                "times": one.times,
                "longest_ms": round(1000 * one.longest_s),
                "total_ms": round(1000 * one.total_s),
                "ago_ms": round(1000 * (now - one.last)),
            }
            for name, one in ranked
        ]
        return {"columns": list(PACKED), "slices": [one.packed() for one in self._slices], "slow": slow}


def sizes(database: str, journal_bytes: int) -> dict[str, int]:
    """Return how many bytes a node's file, its write-ahead log and its journal take; the journal is in the file."""
    return {"database": _size(database), "wal": _size(f"{database}-wal"), "journal": journal_bytes}


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # there is no such file yet
        return 0
