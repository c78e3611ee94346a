"""The memory that a node holds for one request over HTTP: its body, its answers, and their text.

These bytes count against ``memory_max`` of the node until the answer is written. Where each statement of a request is
a transaction of its own, the limit is checked before each statement.
"""

from collections import Counter

from bedrockish.engine.sqlite.limits import Memory
from bedrockish.errors import MemoryFullError, TooLargeError
from bedrockish.node.transactions.callers import RULE, fits

WRITTEN = 2  # the factor by which an answer counts, because its text is longer than its encoding
LOOK_BYTES = 1 << 20
UNFINISHED_PARTS = 4  # all bodies that are not whole may take memory_max divided by this number


class UnfinishedBodies:
    """The bytes of bodies that are not whole yet, with a bound for each caller."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._held = memory, Counter[str]()

    def hold(self, caller: str, size: int) -> None:
        """Count bytes of a caller's bodies.

        Raises:
            MemoryFullError: the unfinished bodies of this caller are larger than its share.
        """
        most, own = self._memory.max_bytes // UNFINISHED_PARTS, self._held[caller]
        if not fits(most, self._held.total(), own, size):
            raise MemoryFullError(
                f"{own >> 10} KiB of request bodies that you have begun are incomplete; all callers may have "
                f"{most >> 10} KiB, a quarter of memory_max, of which {RULE}; nothing happened: send bodies one after "
                "the other, or try again later",
                memory_max=self._memory.max_bytes,
            )
        self._held[caller] = own + size

    def give_back(self, caller: str, size: int) -> None:
        """Stop counting a body that is whole or given up."""
        self._held[caller] -= size
        if not self._held[caller]:
            del self._held[caller]


class RequestMemory:
    """The memory that the node holds for one request.

    Args:
        room: the most bytes that all its answers may have together.
        unfinished: counts the bodies that are not whole yet.
    """

    def __init__(self, memory: Memory, room: int, unfinished: UnfinishedBodies) -> None:
        self._memory, self._room, self._unfinished = memory, room, unfinished
        self._held = self._looked = self._begun = 0
        self.answered = 0  # bytes of the answers so far

    def add_body(self, size: int, caller: str) -> None:
        """Count bytes of the body, which a caller sends.

        Raises:
            MemoryFullError: the node has no memory for a long body, or the caller has begun too many.
        """
        self._unfinished.hold(caller, size)
        self._begun += size
        self._hold(size)
        if self._held - self._looked > LOOK_BYTES:
            self._looked = self._held
            self._memory.check_large()

    def end_body(self, caller: str) -> None:
        """Release the body's share of unfinished bodies: it is whole, or given up."""
        self._unfinished.give_back(caller, self._begun)
        self._begun = 0

    def add_answer(self, size: int) -> None:
        """Count the answer of a statement."""
        self.answered += size
        self._hold(WRITTEN * size)

    def check(self) -> None:
        """Check that there is room for the answer of another statement.

        Raises:
            TooLargeError: the answers are too long together.
            MemoryFullError: the node has no memory.
        """
        if self.answered > self._room:
            raise TooLargeError(
                f"the answers to one call take more than {self._room} bytes; this and the following statements were "
                "not run: send them in another call",
                limit=self._room,
            )
        if self.answered:
            self._memory.check_large()

    def close(self) -> None:
        """Release all bytes: the answer is written, or its caller has gone."""
        self._hold(-self._held)
        self._looked = self.answered = 0

    def _hold(self, size: int) -> None:
        self._held += size
        self._memory.hold(id(self), size)
