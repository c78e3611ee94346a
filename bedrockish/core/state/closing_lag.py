"""How far behind its clock a node closes time: as little as it can without turning late transactions away.

A BEGIN is late by its way to us: the leader's disk, the network, our queue. A node that closed time right behind its
clock would turn every one away; one that closes far behind makes readers of safe time wait. So a node watches how late
BEGINs are, and keeps twice that distance, within bounds. It forgets slowly, so a burst does not surprise it, and a
quiet cluster gets quick.
"""

from collections import deque

from bedrockish.core.state.settings import Settings

FORGET_S = 5.0  # in so many seconds, half of what was seen is forgotten


class ClosingLag:
    """Readings of the node's own clock, and how late BEGINs were.

    Not the clock less so many milliseconds is closed, but what it said so many milliseconds ago: a clock that only
    counts (it is logical, or the wall went backwards) would else never close what it counted last.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = settings.closing_lag_ms / 1000
        self._least = min(self._most, settings.closing_lag_ms_min / 1000)
        self._late = self._most / 2  # seconds; nothing is known at first
        self._readings: deque[tuple[float, int]] = deque()  # (seconds, clock) of late, oldest first
        self._decayed = 0.0

    @property
    def seconds(self) -> float:
        """How far behind its clock the node closes time now."""
        return min(self._most, max(self._least, 2 * self._late))

    def read(self, seconds: float, clock: int) -> None:
        """Take a reading of the node's clock."""
        if seconds > self._decayed:
            self._late *= 0.5 ** ((seconds - self._decayed) / FORGET_S) if self._decayed else 1.0
            self._decayed = seconds
        self._readings.append((seconds, clock))
        while len(self._readings) > 1 and self._readings[1][0] <= seconds - self._most:
            self._readings.popleft()

    def closable(self, seconds: float) -> int:
        """Return the latest reading that is as old as the lag; 0 if there is none."""
        found = 0
        for when, clock in self._readings:
            if when > seconds - self.seconds:
                break
            found = clock
        return found

    def late(self, seconds: float, clock: int) -> None:
        """A BEGIN with this clock has come: note how long ago our own clock passed that."""
        for when, reading in self._readings:
            if reading >= clock:
                self._late = max(self._late, seconds - when)
                return

    def expect(self) -> None:
        """A BEGIN with a clock of about now may come some time from now: keep all the distance that there is."""
        self._late = max(self._late, self._most / 2)
