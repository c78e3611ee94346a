"""The memory that a node holds for one request over HTTP: its body, its answers, and their text.

It draws on the memory of the node (``memory_max``) until the answer is written. A request whose statements
are transactions of their own is bounded before each of them.
"""

from bedrockish.engine.sqlite.limits import Memory
from bedrockish.errors import TooLargeError

WRITTEN = 2  # an answer is kept as it was given, or as text, which is longer
LOOK_BYTES = 1 << 20


class Purse:
    """The account of one request.

    Args:
        memory: the node's.
        room: bytes that all its answers may take together.
    """

    def __init__(self, memory: Memory, room: int) -> None:
        self._memory, self._room = memory, room
        self._held = self._looked = 0
        self.answered = 0

    def add_body(self, size: int) -> None:
        """Count bytes of the body.

        Raises:
            MemoryFullError: the node has no memory for a long body.
        """
        self._hold(size)
        if self._held - self._looked > LOOK_BYTES:
            self._looked = self._held
            self._memory.check_large()

    def add_answer(self, size: int) -> None:
        """Count the answer of a statement."""
        self.answered += size
        self._hold(WRITTEN * size)

    def check(self) -> None:
        """Make sure that there is room for the answer of another statement.

        Raises:
            TooLargeError: the answers are too long together.
            MemoryFullError: the node has no memory.
        """
        if self.answered > self._room:
            raise TooLargeError(
                f"the answers to one call take more than {self._room} bytes; this statement and what follows was not "
                "run: send them in another call",
                limit=self._room,
            )
        if self.answered:
            self._memory.check_large()

    def close(self) -> None:
        """Give all back: the answer is written, or its caller has gone."""
        self._hold(-self._held)
        self._looked = self.answered = 0

    def _hold(self, size: int) -> None:
        self._held += size
        self._memory.hold(id(self), size)
