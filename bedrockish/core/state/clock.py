"""A node's time: the clock that it gives, how far it follows its wall clock, and up to where time is closed here.

All nodes' clocks are one hybrid logical clock (``bedrockish_journal.model.clock`` says how a value is laid out): it
follows the wall while that goes forward, counts when it does not, and is never behind anything that was heard of.
"""

from collections import deque
from collections.abc import Iterable

from bedrockish.core.protocol.events import Now
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.clock import CLOCK_LIMIT, WALL_MS_MAX, milliseconds, moved, pack

ABSURD_MS = 366 * 86_400_000  # more than a year; no node follows a wall clock or hearsay that far
FORGET_S = 5.0  # half-life, in seconds, of the observed lateness of transactions


class Clock:
    """One node's clock.

    Why so large: The invariants below hold between its times, and one reading of the wall moves several of them.

    Args:
        settings: timings and bounds.
        now: the driver's clocks at the start.
        ceiling: the clock never went above this before the start; it begins there.
        cut, safe, settled: their values before the start.
        follows_wall: False is the safety valve: the clock then only counts and ignores the wall.

    Attributes:
        now: the driver's clocks.
        followed_ms: the wall, as far as most voters would believe it; 0 before that is known.
        wall_ms: Unix milliseconds, as our own machine has them.
        believed_ms: the wall by most voters' clocks; 0 before that is known.
        leap_ms: by how much they have leapt ahead, if that is more than the cluster's clock follows; else 0.
        value: the greatest value that was given or heard of.
        ceiling: the durable bound: no value above it has left this node.
        floor: the ceiling at the start: values below it may have been promised before.
        counted: whether the clock has only counted, ever since the start.
        closed, cut, safe: see ``bedrockish.core.replica.times``.
        settled: the safe time to come, as soon as all entries are applied here that others have told of. Up to it no
            transaction is decided any more; but some entries may not be here yet.
        lag: how far behind its clock this node closes time.

    Invariants:
        ``value <= ceiling`` whenever something leaves this node.
        ``cut <= closed`` and ``safe <= settled``; and none of these, nor ``value``, ever goes back.
    """

    def __init__(
        self,
        settings: Settings,
        now: Now,
        ceiling: int = 0,
        cut: int = 0,
        safe: int = 0,
        settled: int = 0,
        *,
        follows_wall: bool = True,
    ) -> None:
        self.settings = settings
        self.now = now
        self.wall_ms = now.wall_ms
        self.believed_ms = self.leap_ms = 0
        self._pace: int | None = None  # the wall that was believed last, less our monotonic clock
        self._pace_count = 0  # the most of the others' walls with which it was taken so far
        # No value above the ceiling ever left this node: who begins at it is later than all that did.
        self.value = self.ceiling = self.floor = ceiling
        self.follows_wall = follows_wall
        self.counted = not follows_wall
        # The file does not keep a closed time beyond the cut: the floor stands for it (V14).
        self.closed = self.cut = cut
        self.safe, self.settled = safe, max(safe, settled)
        self.lag = ClosingLag(settings)
        self.reading: Now | None = None
        self.walls: list[int] = []  # the other voters' wall clocks, less our monotonic one, in order
        self.followed_ms = now.wall_ms
        self._wall = 0  # the followed wall as a value of the clock

    # -- the wall --------------------------------------------------------------------------------------------------

    def set_now(self, reading: Now, needed: int) -> None:
        """Read the driver's clocks, and believe the wall as far as most voters would believe it.

        The cluster's clock never goes back, so one wall clock that is hours ahead, for a moment, would put it hours
        ahead for good. So a node follows its wall no further than ``clock_offset_ms`` ahead of the middle one of those
        that it knows, and not at all before it has heard from a majority.

        Args:
            reading: of the driver's clocks.
            needed: how many other voters' walls are needed to believe anything; 0: this node's own suffices.
        """
        self.reading = self.now = reading
        wall_ms = self.wall_ms = self.believed_ms = reading.wall_ms
        walls, known = self.walls, len(self.walls)
        # 0 is behind every clock: until a majority has told, this one only counts.
        if needed > known:
            wall_ms = self.believed_ms = 0
        elif needed:
            seconds_ms = int(reading.seconds * 1000)
            # The lower middle: of two walls the one behind. A clock that is late only waits; one that is ahead takes
            # all others with it, for good.
            place = known // 2
            middle = min(wall_ms - seconds_ms, walls[place])
            if place and middle < walls[place - 1]:
                middle = walls[place - 1]
            self.leap_ms = 0
            if middle != self._pace or known > self._pace_count:
                middle = self._without_leap(middle)
            self.believed_ms = max(0, middle + seconds_ms)
            most = self.believed_ms + self.settings.clock_offset_ms
            # Never below 0, where no clock is: a machine may believe that it is 1969.
            wall_ms = max(0, min(wall_ms, most))
        # More than the 42 bits of a clock hold: from here on it counts.
        if wall_ms > WALL_MS_MAX:
            self.follow_wall(follows=False)
        self.followed_ms = wall_ms
        self._wall = pack(wall_ms) if self.follows_wall else 0

    def _without_leap(self, middle: int) -> int:
        """Return the middle wall clock less our monotonic one, or its earlier value if it has leapt ahead too far.

        A clock that a majority has put an hour ahead, for a moment, would leave the cluster's clock there for an hour.
        Only a start takes such walls as they are.

        Args:
            middle: of all walls that are known, less our monotonic clock, in milliseconds.
        """
        pace = self._pace
        # The first walls that a node hears after its start may all be behind: with each further one the middle moves,
        # and no wall has leapt.
        is_start = len(self.walls) > self._pace_count
        if pace is not None and not is_start and middle - pace > self.settings.clock_leap_ms:
            self.leap_ms = middle - pace
            return pace
        self._pace = middle
        if is_start:
            self._pace_count = len(self.walls)
        return middle

    def hear_walls(self, ahead: Iterable[int | None]) -> None:
        """Note how far the other voters' walls are ahead of our monotonic clock, as far as they have told."""
        self.walls = sorted(one for one in ahead if one is not None)

    def follow_wall(self, *, follows: bool) -> None:
        """Follow the wall from now on, or only count."""
        self.follows_wall = follows
        # For good: of values that were once only counted, none tells how old it is (V16).
        self.counted = self.counted or not follows
        self._wall = pack(min(self.followed_ms, WALL_MS_MAX)) if follows else 0

    def ahead_ms(self, clock: int) -> int:
        """Return how far a clock is ahead of ours and of most voters' wall clocks, if further than allowed; else 0."""
        # A clock that only counts has no wall that another one could be ahead of.
        if not self.follows_wall:
            return 0
        # Our clock may be ahead of every wall, after these were set back: a clock no further than ours is harmless.
        ahead = milliseconds(clock) - max(self.believed_ms, milliseconds(self.value))
        return ahead if ahead > self.settings.clock_offset_ms else 0

    def age_ms(self, clock: int, now: Now) -> int | None:
        """Return the age of a clock, in ms, for people; None for the clock 0.

        Most voters' walls tell it: by this machine's alone, if it is wrong, everything would look old.
        """
        since_ms = round(1000 * (now.seconds - self.now.seconds))
        wall_ms = self.believed_ms + since_ms if self.believed_ms else now.wall_ms
        return max(0, wall_ms - milliseconds(clock)) if clock else None

    def is_absurd(self, clock: int) -> bool:
        """Return whether a clock is so far ahead that it is an error, even if a promise or an outcome rests on it.

        No node follows a wall clock, or hearsay, that far. Once believed, it would end the use of the wall for all.
        """
        # Nothing to compare with: a clock that only counts may be anywhere.
        if not self.follows_wall or not self.believed_ms:
            return False
        return milliseconds(clock) - max(self.believed_ms, milliseconds(self.value)) > ABSURD_MS

    # -- values ----------------------------------------------------------------------------------------------------

    def tick(self) -> int:
        """Return a new value, above all that this node has seen, closed or promised."""
        # Our own vote would reject a clock that is not above it (V14).
        self.adjust(self.closed)
        # Above all before even if the wall stands still or went back: names are given once (the clock is half of a
        # Txid).
        self.value = max(self.value + 1, self._wall)
        assert self.value < CLOCK_LIMIT
        return self.value

    def read(self) -> int:
        """Move up to the wall, if that is ahead, and return the value."""
        if self._wall > self.value:
            self.value = self._wall
        return self.value

    def adjust(self, heard: int) -> None:
        """Move up to a value that came with a message."""
        if heard > self.value:
            self.value = heard

    def raise_ceiling(self) -> int:
        """Return a ceiling above all values, which has to be durable before one above the old ceiling leaves."""
        # A block at a time: one sync for all clocks of the next second, and a restart skips the rest of the block.
        self.ceiling = moved(self.value, self.settings.clock_block_ms)
        assert self.ceiling >= self.value
        return self.ceiling

    # -- closed, cut and safe --------------------------------------------------------------------------------------

    def reopen(self, lowest: int) -> None:
        """Lower the cut and the closed time that the file has, at the start, below the lowest clock that it holds.

        A file that was filled from another node's copy has the greater cut of the two, and this node's own votes. The
        node would hold these transactions for a recovery, too: so it may not say that none of them can commit any more.
        """
        if lowest <= self.cut:
            self.cut = self.closed = lowest - 1

    def close(self, closed: int, cut: int, safe: int) -> None:
        """Move the three times on."""
        assert cut <= closed, f"cut {cut} is above closed {closed}"
        assert closed >= self.closed
        assert cut >= self.cut
        assert safe >= self.safe
        self.closed, self.cut, self.safe, self.settled = closed, cut, safe, max(safe, self.settled)

    def settle(self, clock: int) -> None:
        """Note up to which clock no transaction will be decided any more, whether all of them are here or not."""
        self.settled = max(self.settled, clock)


class ClosingLag:
    """How far behind its clock a node closes time: as little as it can without refusing late transactions.

    A BEGIN is late by its way to us: the leader's disk, the network, our queue. A node that closed time right behind
    its clock would refuse every one; one that closes far behind makes readers of safe time wait. So a node watches how
    late BEGINs are, and keeps twice that distance, within bounds. It forgets slowly, so a burst does not surprise it,
    and a quiet cluster gets quick.

    A node closes its reading of so many milliseconds ago, not its clock less so many milliseconds: else a clock that
    only counts (it is logical, or the wall went backwards) would never close the values that it counted last.
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
            # By the seconds that have passed and not by readings, which come at every heartbeat or at every step.
            self._late *= 0.5 ** ((seconds - self._decayed) / FORGET_S) if self._decayed else 1.0
            self._decayed = seconds
        assert not self._readings or self._readings[-1][1] <= clock, "the clock went back"
        self._readings.append((seconds, clock))
        # One reading that is older than the longest lag stays, so that there is always something to close.
        while len(self._readings) > 1 and self._readings[1][0] <= seconds - self._most:
            self._readings.popleft()

    def closable(self, seconds: float) -> int:
        """Return the latest reading that is as old as the lag, or 0."""
        found, latest = 0, seconds - self.seconds
        for when, clock in self._readings:
            if when > latest:
                break
            found = clock
        return found

    def late(self, seconds: float, clock: int) -> None:
        """Note how long ago our own clock passed the clock of a BEGIN that has come."""
        for when, reading in self._readings:
            if reading >= clock:
                self._late = max(self._late, seconds - when)
                return

    def expect(self) -> None:
        """Keep the greatest distance: a BEGIN with a clock of about now may come some time from now."""
        self._late = max(self._late, self._most / 2)
