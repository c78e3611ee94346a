"""Answers short strict reads of a quiet cluster: one question to a majority, about every key, covers many reads.

The reads are executed first, on the state of ``DirectReads``, and their answers are kept. Then the core asks a majority
whether any transaction outside that state is committed or pending. If none is, each answer was valid when the question
was asked, which was after its read had arrived, and the answers are sent. No read sets are computed, and the core keeps
no record of the reads.

Reads that arrive while a question is under way wait for the next question: a commit may have been acknowledged since
the first question. The reads must be executed before the question: a state read afterwards could have the later of two
commits and lack the earlier.

Strict reads that programs have executed on the node's file join these questions with the states that they have read.

While a transaction is pending here, the answer to the question would always be that there may be newer commits. So the
reads then go to the core, which asks about their keys alone (``core.coordinator.read_checks``). All reads also go to
the core for a moment after an answer that there may be newer commits.
"""

import time
from typing import NamedTuple, Protocol

from bedrockish.api.requests import Answer, Request, Token
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import NewerAsked
from bedrockish.errors import BedrockishError
from bedrockish.node.scheduling.direct_reads import DirectReads
from bedrockish.node.scheduling.durability import Done, MakePrepared
from bedrockish.node.scheduling.waiters import Waiters
from bedrockish_journal.model.vector import Vector

READS_MAX = 256  # the most reads that share a question
NOWHERE: Vector = {}
PAUSE_S = 0.02  # how long reads go to the core after the answer "there may be newer commits"


class StrictRead(NamedTuple):
    """A short strict read, which waits for a question to a majority."""

    request: Request
    done: Done
    owner: object
    began: float  # the time of the read's arrival, by ``time.monotonic``
    prepare: MakePrepared | None = None  # returns the result of a read that a program has executed; else None
    base: Vector = NOWHERE  # the state on which the program has executed the read


class ServingStrictReads(Protocol):
    """The parts of a node that strict reads use."""

    core: Node
    waiters: Waiters

    def enqueue_read(self, read: StrictRead) -> None:
        """Pass a read to the core."""


class StrictReads:
    """Answers short strict reads of one node's clients, many by one question to a majority."""

    def __init__(self, node: ServingStrictReads, direct: DirectReads) -> None:
        self._node, self._direct = node, direct
        self._waiting: list[StrictRead] = []  # reads for the next question
        self._asked: list[tuple[StrictRead, Answer]] = []  # the reads of the question under way
        self._number = 0  # the number of the last question
        self._not_before = 0.0  # until this time, by ``time.monotonic``, reads go to the core

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

    def take_executed(self, request: Request, done: Done, prepare: MakePrepared, base: Vector) -> bool:
        """Keep a read that a program has executed on a durable state; return False if the core has to certify it."""
        now = time.monotonic()
        if now < self._not_before or not self._is_newest(base):
            return False
        self._waiting.append(StrictRead(request, done, None, now, prepare, base))
        return True

    def _is_newest(self, base: Vector) -> bool:
        """Return whether a state has every commit known here, and no transaction or schema change is pending."""
        state = self._node.core.state
        is_quiet = not len(state.votes.pending) and state.schema.scheduled is None and not state.trouble
        return is_quiet and base == state.timelines.applied

    @property
    def is_due(self) -> bool:
        """Return whether reads wait and no question is under way."""
        return bool(self._waiting) and not self._asked

    def question(self) -> NewerAsked | None:
        """Execute the waiting reads and return the question about them; None if the core has to answer all of them."""
        assert not self._asked
        reads, self._waiting = self._waiting[:READS_MAX], self._waiting[READS_MAX:]
        direct, states = self._direct, list[Vector]()
        direct.begin_turn()
        # A scheduled change of the schema may be in force at other nodes already.
        may_be_behind = self._node.core.state.schema.scheduled is not None
        for read in reads:
            base, answer = read.base, None
            if read.prepare is not None:
                answer = self._result(read, read.prepare)
            elif not may_be_behind:
                answer = direct.execute(read.request)
                base = direct.base
                if direct.schema != self._node.core.state.schema.version:
                    answer = None  # a schema change came into force after this durable state
            if answer is None:
                self._node.enqueue_read(read)
                continue
            self._asked.append((read, answer))
            if not states or base is not states[-1]:
                states.append(base)
        if not states:
            return None
        self._number += 1
        # A commit outside the state of any of these reads is outside the smallest of the states.
        return NewerAsked(self._number, {node: min(one.get(node, 0) for one in states) for node in states[0]})

    def _result(self, read: StrictRead, prepare: MakePrepared) -> Answer | None:
        """Return the answer of a read that a program has executed; None if a newer commit is applied by now."""
        state = self._node.core.state
        # The read's state lacks the newer commit, so the question would fail for the other reads, too.
        if not self._is_newest(read.base):
            return None
        try:
            prepared = prepare()
        except BedrockishError:
            return None  # the core returns the error
        if prepared.schema != state.schema.version:
            return None
        return Answer(prepared.result, Token(state.timelines.in_short(read.base), state.read_clock()))

    def answered(self, number: int, *, may_exist: bool) -> None:
        """Answer the reads of a question; if a newer commit may exist, pass them to the core instead."""
        if number != self._number:
            return  # the reads of this question were given up
        asked, self._asked = self._asked, []
        if may_exist:
            self._not_before = time.monotonic() + PAUSE_S
        for read, answer in asked:
            if may_exist:
                self._node.enqueue_read(read)
            else:
                waiters = self._node.waiters
                waiters.note(read.request, answer, read.began, asked=read.prepare is None)
                waiters.tell(read.request, read.done, answer)

    def give_up(self) -> list[StrictRead]:
        """Remove and return all reads that are not answered."""
        given_up = [*self._waiting, *(read for read, _ in self._asked)]
        self._waiting, self._asked = [], []
        return given_up
