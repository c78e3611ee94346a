"""How much memory a node's requests take together, and who has to do without when it is too much: the newest.

SQLite tells what it has taken; whoever keeps rows, answers and messages for others adds to that. Nothing is refused
that was decided: only statements of clients, and what they begin.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable

import apsw

from bedrockish.errors import MemoryFullError

RECENT_S = 60.0
SMALL_TIMES = 2  # requests that are small as a rule are refused only when so many times as much is taken as may be


class Memory:
    """The budget of one node. Used from its loop and from the threads in which statements run.

    Args:
        max_bytes: how much may be taken.
        used: how much SQLite has taken, in bytes.
        now: a clock that only goes forward, in seconds.

    Attributes:
        elsewhere: what others said to have taken when they were last asked, in bytes.
    """

    def __init__(
        self,
        max_bytes: int = 1 << 62,
        used: Callable[[], int] = apsw.memory_used,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.max_bytes, self._used, self._now = max_bytes, used, now
        self.elsewhere = 0
        self._held: Counter[object] = Counter()
        self._held_bytes = 0
        self._numbers = itertools.count(1)
        self._running: dict[int, int] = {}  # statements, and how much their rows take; the newest is the last
        self._refused: deque[float] = deque(maxlen=1_000)

    @property
    def taken(self) -> int:
        """How many bytes are taken now."""
        rows = sum(list(self._running.values()))  # a list at once: threads come and go
        return self._used() + self._held_bytes + self.elsewhere + rows

    @property
    def is_full(self) -> bool:
        """Whether more is taken than may be."""
        return self.taken > self.max_bytes

    def hold(self, owner: object, count: int) -> None:
        """Note bytes that are kept for somebody; a negative number gives them back. In the loop only."""
        self._held[owner] += count
        self._held_bytes += count
        if self._held[owner] <= 0:
            del self._held[owner]

    def move(self, owner: object, count: int) -> None:
        """Note that bytes kept for somebody are now elsewhere, where they are counted with all others."""
        self.hold(owner, -count)
        self.elsewhere += count

    def held(self, owner: object) -> int:
        """Return how many bytes are kept for somebody."""
        return self._held.get(owner, 0)

    def begin(self) -> int:
        """A statement begins; return its number, by which it asks and ends."""
        number = next(self._numbers)
        self._running[number] = 0
        return number

    def note(self, number: int, count: int) -> None:
        """Note how many bytes the rows take that a statement has given so far, in its own thread.

        Raises:
            MemoryFullError: that is too much, and it is the newest.
        """
        self._running[number] = count
        if self.is_too_much(number):
            raise self.refusal("the statement was ended")

    def end(self, number: int) -> None:
        """A statement is over."""
        self._running.pop(number, None)

    def is_too_much(self, number: int) -> bool:
        """Whether a statement has to end: too much is taken, and it is the newest of those that run."""
        if not self.is_full:
            return False
        try:
            return number == next(reversed(self._running), 0)
        except RuntimeError:  # another one has begun or ended in this very moment: it is asked again soon
            return False

    def check(self) -> None:
        """Make sure that something new may begin that is small as a rule: it may still when large ones have taken all.

        Raises:
            MemoryFullError: there is no memory for it.
        """
        if self.taken > SMALL_TIMES * self.max_bytes:
            raise self.refusal("more memory is taken at this node than it may")

    def check_large(self) -> None:
        """Make sure that something new may begin that takes much, or may.

        Raises:
            MemoryFullError: there is no memory for it.
        """
        if self.is_full:
            raise self.refusal("more memory is taken at this node than it may")

    def refusal(self, what: str) -> MemoryFullError:
        """Return the error for who has to do without."""
        self._refused.append(self._now())
        return MemoryFullError(
            f"{what}: {self.taken >> 20} of {self.max_bytes >> 20} MiB (memory_max) are taken; nothing happened: read "
            "large results as streams and with LIMIT, and try again later",
            memory_max=self.max_bytes,
        )

    def describe(self) -> dict[str, int]:
        """Return what is taken, as plain data."""
        oldest = self._now() - RECENT_S
        recently = sum(1 for when in self._refused if when > oldest)
        return {"taken_bytes": self.taken, "max_bytes": self.max_bytes, "recently_refused": recently}
