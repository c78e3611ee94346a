"""A node's time: its clock, how far the clock follows the wall clock, and the clocks up to which time is closed here.

The clocks of all nodes are one hybrid logical clock (``bedrockish_journal.model.clock`` has the layout of a value). It
follows the wall clock while the wall goes forward, counts while it does not, and is never behind a value that the node
has heard of.
"""

from collections import deque
from collections.abc import Iterable

from bedrockish.core.protocol.events import Now
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.clock import CLOCK_LIMIT, WALL_MS_MAX, milliseconds, moved, pack

ABSURD_MS = 366 * 86_400_000  # more than a year: no node follows a wall clock or another node's clock that far
FORGET_S = 5.0  # half-life, in seconds, of the observed lateness of transactions


class Clock:
    """One node's clock.

    Why so large: The invariants below relate its times, and one reading of the wall moves several of them.

    Args:
        now: the driver's clocks at the start.
        ceiling: the clock never went above this before the start; it begins there.
        cut, safe, settled: their values before the start.
        follows_wall: False is the safety valve: the clock then only counts and ignores the wall.

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
        self.now = now  # the driver's clocks
        self.wall_ms = now.wall_ms  # Unix milliseconds, as our own machine has them
        self.majority_wall_ms = 0  # the wall by most voters' clocks; 0 before that is known
        # How far most voters' walls have leapt ahead, if that is too far for the cluster's clock to follow; else 0.
        self.leap_ms = 0
        self._wall_offset: int | None = None  # the last believed median of the walls, less our monotonic clock
        self._walls_counted = 0  # the greatest number of other walls that ``_wall_offset`` was computed from
        # The last ``_wall_offset`` at which this clock did not stand still; None before the first time.
        self._followed_offset: int | None = None
        # ``value``: the greatest value that this node has given out or heard of. ``ceiling``: a durable bound; no value
        # above it has left this node, so a clock that begins at the ceiling is later than every value that has left.
        # ``floor``: the ceiling at the start; this node may have forgotten promises about clocks below it.
        self.value = self.ceiling = self.floor = ceiling
        # At the start the value is at the ceiling, so the first step raises the ceiling, before a transaction needs it.
        self._raise_above = moved(ceiling, -(settings.clock_block_ms // 4))
        self.follows_wall = follows_wall
        self.has_only_counted = not follows_wall  # whether the clock has only counted at any time since the start
        # The file keeps the cut and not the closed time; V13 uses the floor for closed times before the restart.
        self.closed = self.cut = cut  # see ``bedrockish.core.replica.times``
        # ``settled``: the safe time that will hold as soon as all entries that others have reported are applied here.
        # No transaction up to it can still be decided; but some entries may not be here yet.
        self.safe, self.settled = safe, max(safe, settled)
        self.lag = ClosingLag(settings)  # how far behind its clock this node closes time
        self.reading: Now | None = None
        self.walls: list[int] = []  # the other voters' wall clocks, less our monotonic clock, sorted
        self.followed_ms = now.wall_ms  # our wall clock, limited by most voters' walls; 0 before these are known
        self._wall = 0  # the followed wall as a value of the clock

    # -- the wall --------------------------------------------------------------------------------------------------

    def set_now(self, reading: Now, needed: int) -> None:
        """Read the driver's clocks, and compute how far this node follows its wall clock.

        The cluster's clock never goes back: one wall clock that is hours ahead for a moment would put the cluster's
        clock hours ahead for good. So a node follows its wall at most to ``clock_offset_ms`` ahead of the median of the
        walls that it knows, and not at all before it has heard from a majority.

        Args:
            needed: how many other voters' walls this node must know before it follows any; 0: its own wall suffices.
        """
        self.reading = self.now = reading
        wall_ms = self.wall_ms = self.majority_wall_ms = reading.wall_ms
        walls, known = self.walls, len(self.walls)
        # A wall of 0 is behind every clock: until a majority has reported its walls, this clock only counts.
        if needed > known:
            wall_ms = self.majority_wall_ms = 0
        elif needed:
            seconds_ms = int(reading.seconds * 1000)
            # Take the lower median: of two walls, the earlier one. A clock that is behind only waits; a clock that is
            # ahead moves all other clocks up, for good.
            place = known // 2
            middle = min(wall_ms - seconds_ms, walls[place])
            if place and middle < walls[place - 1]:
                middle = walls[place - 1]
            self.leap_ms = 0
            if middle != self._wall_offset or known > self._walls_counted:
                middle = self._without_leap(middle, seconds_ms)
            self.majority_wall_ms = max(0, middle + seconds_ms)
            most = self.majority_wall_ms + self.settings.clock_offset_ms
            if middle != self._followed_offset and not self.leap_ms and milliseconds(self.value) <= most:
                self._followed_offset = middle
            # Never below 0, the least clock: the machine's clock may be set to 1969.
            wall_ms = max(0, min(wall_ms, most))
        # The wall exceeds the 42 bits that a clock has for it: from now on the clock only counts.
        if wall_ms > WALL_MS_MAX:
            self.follow_wall(follows=False)
        self.followed_ms = wall_ms
        self._wall = pack(wall_ms) if self.follows_wall else 0

    def _without_leap(self, middle: int, seconds_ms: int) -> int:
        """Return ``middle``, or the last value returned if the median wall clock has leapt too far ahead.

        If the cluster's clock followed a majority whose walls are an hour ahead for a moment, it would then stand still
        for an hour. While the clock stands still because the walls were set back, a return of the median to the
        last value that the clock followed does not count as a leap. The walls heard at the start may be up to a year
        ahead of the clock in the file.

        Args:
            middle: the median of all known walls, less our monotonic clock, in milliseconds.
            seconds_ms: our monotonic clock, in milliseconds.
        """
        # The first walls that a node hears after its start may all be behind. Each further wall moves the median,
        # although no wall has leapt.
        is_start = len(self.walls) > self._walls_counted
        pace, followed, most = self._wall_offset, self._followed_offset, self.settings.clock_leap_ms
        if is_start or followed is None:
            followed, most = milliseconds(self.value) - seconds_ms, max(most, ABSURD_MS)
        # A clock of 1970 has never followed a wall: its file is new. A clock that only counts may be years behind.
        if middle - followed > most and self.follows_wall and milliseconds(self.value) > ABSURD_MS:
            self.leap_ms = middle - followed
            self._wall_offset = followed if pace is None else pace  # no median before: go on from the file's clock
            return self._wall_offset
        self._wall_offset = middle
        if is_start:
            self._walls_counted = len(self.walls)
        return middle

    def hear_walls(self, ahead: Iterable[int | None]) -> None:
        """Record how far the other voters' walls are ahead of our monotonic clock; None if not reported."""
        self.walls = sorted(one for one in ahead if one is not None)

    def follow_wall(self, *, follows: bool) -> None:
        """Follow the wall from now on, or only count."""
        self.follows_wall = follows
        # This stays True: after the clock has only counted, its values do not show the age of a commit (V15).
        self.has_only_counted = self.has_only_counted or not follows
        self._wall = pack(min(self.followed_ms, WALL_MS_MAX)) if follows else 0

    def ahead_ms(self, clock: int) -> int:
        """Return the distance of a clock ahead of our clock and of most voters' walls; 0 if it is within the bound."""
        # A clock that only counts has no wall, so no other clock can be ahead of it.
        if not self.follows_wall:
            return 0
        # If walls were set back, our own clock may be ahead of every wall; a clock up to ours is within the bound.
        ahead = milliseconds(clock) - max(self.majority_wall_ms, milliseconds(self.value))
        return ahead if ahead > self.settings.clock_offset_ms else 0

    def age_ms(self, clock: int, now: Now) -> int | None:
        """Return the age of a clock in milliseconds, for the status and the log; None for the clock 0.

        The age is measured by most voters' walls, because this machine's wall may be wrong.
        """
        since_ms = round(1000 * (now.seconds - self.now.seconds))
        wall_ms = self.majority_wall_ms + since_ms if self.majority_wall_ms else now.wall_ms
        return max(0, wall_ms - milliseconds(clock)) if clock else None

    def is_absurd(self, clock: int) -> bool:
        """Return whether a clock is more than a year ahead of our clock and of most voters' walls: it must be an error.

        No message makes a node follow such a clock, not even a promise or an outcome. If one node followed it, all
        nodes would, and the cluster's clock would stay ahead of all walls for more than a year.
        """
        # A clock that only counts may be at any value, and is not compared with a wall.
        if not self.follows_wall or not self.majority_wall_ms:
            return False
        return milliseconds(clock) - max(self.majority_wall_ms, milliseconds(self.value)) > ABSURD_MS

    # -- values ----------------------------------------------------------------------------------------------------

    def tick(self) -> int:
        """Return a new value, above all that this node has seen, closed or promised."""
        # This node's own vote rejects a clock at or below closed (V13).
        self.adjust(self.closed)
        # Above every earlier value even if the wall stands still or goes back: a Txid (a clock and a leader) must be
        # given only once.
        self.value = max(self.value + 1, self._wall)
        assert self.value < CLOCK_LIMIT
        return self.value

    def read(self) -> int:
        """Move up to the wall, if the wall is ahead, and return the value."""
        if self._wall > self.value:
            self.value = self._wall
        return self.value

    def adjust(self, heard: int) -> None:
        """Move up to the value in a message."""
        if heard > self.value:
            self.value = heard

    @property
    def needs_ceiling(self) -> bool:
        """Whether the value is near the ceiling or above it: an early BEGIN must not have to wait for a new ceiling."""
        return self.value > self._raise_above

    def raise_ceiling(self) -> int:
        """Return a new ceiling above all values; it must be durable before a value above the old ceiling leaves."""
        # Raised by a block at a time: one sync then serves all clocks of the next second. A restart skips the rest of
        # the block.
        block_ms = self.settings.clock_block_ms
        self.ceiling = moved(self.value, block_ms)
        self._raise_above = moved(self.value, block_ms - block_ms // 4)
        assert self.ceiling >= self._raise_above >= self.value
        return self.ceiling

    # -- closed, cut and safe --------------------------------------------------------------------------------------

    def reopen(self, lowest: int) -> None:
        """Lower the cut and the closed time below the lowest pending clock of the file, at the start.

        A file that was filled from another node's copy has this node's votes, and the greater of the two nodes' cuts.
        A cut claims that no pending transaction below it can commit, but a recovery may still commit the transactions
        of these votes.
        """
        if lowest <= self.cut:
            self.cut = self.closed = lowest - 1

    def close(self, closed: int, cut: int, safe: int) -> None:
        """Advance closed time, the cut and safe time; none of them may go back."""
        assert cut <= closed, f"cut {cut} is above closed {closed}"
        assert closed >= self.closed
        assert cut >= self.cut
        assert safe >= self.safe
        self.closed, self.cut, self.safe, self.settled = closed, cut, safe, max(safe, self.settled)

    def raise_settled(self, clock: int) -> None:
        """Raise the clock up to which no transaction can still be decided, even if some entries are missing here."""
        self.settled = max(self.settled, clock)


class ClosingLag:
    """The lag between a node's clock and its closed time: as short as possible without refusing late transactions.

    A BEGIN is delayed by the leader's disk, the network and our queue. A node that closed time right behind its clock
    would refuse every BEGIN; a node that closes time far behind makes readers of safe time wait. So a node observes the
    lateness of BEGINs, and keeps a lag of twice that, within bounds. The observed lateness decays slowly, so that the
    lag still suits the next burst, and is short in a quiet cluster.

    To close time, the node takes the reading of its clock that is as old as the lag; it does not subtract the lag from
    the present clock. A clock that only counts (it is logical, or the wall went backwards) stands still while nothing
    happens, so subtracting would never close its last values.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = settings.closing_lag_ms / 1000
        self._least = min(self._most, settings.closing_lag_ms_min / 1000)
        self._late = self._most / 2  # the observed lateness, in seconds; at first a guess
        self._readings: deque[tuple[float, int]] = deque()  # (seconds, clock) of recent readings, oldest first
        self._decayed = 0.0

    @property
    def seconds(self) -> float:
        """The present lag in seconds."""
        return min(self._most, max(self._least, 2 * self._late))

    def read(self, seconds: float, clock: int) -> None:
        """Record a reading of the node's clock."""
        if seconds > self._decayed:
            # Let the lateness decay by the seconds that have passed: the intervals between readings are irregular.
            self._late *= 0.5 ** ((seconds - self._decayed) / FORGET_S) if self._decayed else 1.0
            self._decayed = seconds
        assert not self._readings or self._readings[-1][1] <= clock, "the clock went back"
        self._readings.append((seconds, clock))
        # Keep one reading that is older than the longest lag, so that there is always one up to which to close time.
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
        """Observe the lateness of a BEGIN: the seconds since our own clock passed the BEGIN's clock."""
        for when, reading in self._readings:
            if reading >= clock:
                self._late = max(self._late, seconds - when)
                return

    def expect(self) -> None:
        """Use the greatest lag, because a BEGIN with about the present clock may arrive late."""
        self._late = max(self._late, self._most / 2)
