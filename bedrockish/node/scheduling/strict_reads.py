"""Answers short strict reads of a quiet cluster, where one question about every key serves all that have arrived.

The reads are executed first, on the state of ``DirectReads``, and kept; then the core asks a majority whether anything
is committed or pending outside that state. If nothing is, all of them were valid when the question was asked, which is
after each had arrived, and their answers leave. Read sets are not derived, and the core keeps nothing of a read.

Reads that arrive while a question is under way wait for the next one: a commit may have been acknowledged since it was
asked. The order matters, too. A state read after the question could have the later of two commits and not the earlier.

Where anything is pending the question would be answered with it, so those reads go to the core, which asks about their
keys alone (``core.coordinator.reads``). So do all reads for a moment after an answer that there may be newer commits.
"""

import time
from typing import NamedTuple, Protocol

from bedrockish.api.requests import Answer, Request
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import NewerAsked
from bedrockish.node.scheduling.direct_reads import DirectReads
from bedrockish.node.scheduling.durability import Done
from bedrockish.node.scheduling.waiters import Waiters
from bedrockish_journal.model.vector import Vector

READS_MAX = 256  # that share a question
PAUSE_S = 0.02  # after an answer that there may be newer commits, reads go to the core for so many seconds


class StrictRead(NamedTuple):
    """A strict read that has come here; ``began``: when, by ``time.monotonic``."""

    request: Request
    done: Done
    owner: object
    began: float


class Serving(Protocol):
    """The parts of a node that strict reads use."""

    core: Node
    waiters: Waiters

    def enqueue_read(self, read: StrictRead) -> None:
        """Have the core answer a read."""


class StrictReads:
    """The short strict reads of one node.

    Args:
        node: the node whose clients read.
        direct: executes the reads.
    """

    def __init__(self, node: Serving, direct: DirectReads) -> None:
        self._node, self._direct = node, direct
        self._waiting: list[StrictRead] = []  # for the next question
        self._asked: list[tuple[StrictRead, Answer]] = []  # those that the question under way is about
        self._number = 0  # of that question
        self._not_before = 0.0  # when the next read is kept here, by ``time.monotonic``

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked)

    def take(self, request: Request, done: Done, owner: object) -> bool:
        """Keep a strict read for the next question; return False if the core has to answer it."""
        now = time.monotonic()
        if now < self._not_before or len(self._node.core.state.votes.pending):
            return False
        if not self._direct.may_answer(request):
            return False
        self._waiting.append(StrictRead(request, done, owner, now))
        return True

    @property
    def is_due(self) -> bool:
        """Whether reads wait, and no question is under way."""
        return bool(self._waiting) and not self._asked

    def question(self) -> NewerAsked | None:
        """Execute the reads that wait and return the question about them; None if the core has to answer them all."""
        assert not self._asked
        reads, self._waiting = self._waiting[:READS_MAX], self._waiting[READS_MAX:]
        direct, states = self._direct, list[Vector]()
        direct.begin_turn()
        # A scheduled change of the schema may be in force at other nodes already.
        may_be_behind = self._node.core.state.schema.scheduled is not None
        for read in reads:
            answer = None if may_be_behind else direct.execute(read.request)
            if answer is None:
                self._node.enqueue_read(read)
                continue
            self._asked.append((read, answer))
            if not states or direct.base is not states[-1]:
                states.append(direct.base)
        if not states:
            return None
        self._number += 1
        # Outside the state of one read is outside the smallest of all.
        return NewerAsked(self._number, {node: min(one.get(node, 0) for one in states) for node in states[0]})

    def told(self, number: int, *, may_be: bool) -> None:
        """Answer the reads of a question, or have the core answer them if there may be commits that they miss."""
        if number != self._number:
            return  # its reads were given up
        asked, self._asked = self._asked, []
        if may_be:
            self._not_before = time.monotonic() + PAUSE_S
        for read, answer in asked:
            if may_be:
                self._node.enqueue_read(read)
            else:
                waiters = self._node.waiters
                waiters.note(read.request, answer, read.began, asked=True)
                waiters.tell(read.request, read.done, answer)

    def give_up(self) -> list[StrictRead]:
        """Take out all reads that are not answered."""
        given_up = [*self._waiting, *(read for read, _ in self._asked)]
        self._waiting, self._asked = [], []
        return given_up
