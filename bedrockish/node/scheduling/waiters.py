"""The requests that wait for their answers: their memory, and the delivery of the answers."""

import time
from collections.abc import Callable

from bedrockish.api.requests import Answer, Request
from bedrockish.common.histogram import Histogram
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.sqlite.limits import Memory
from bedrockish.errors import BedrockishError
from bedrockish.node.scheduling.durability import Done, Waiter
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.statement_statistics import StatementStatistics

HELD_BYTES_MIN = 64 << 10  # smaller changes and answers are not counted, because they are soon freed


class Waiters:
    """Keeps the requests of one node that wait for answers, and delivers the answers."""

    def __init__(
        self,
        memory: Memory,  # counts the bytes that are kept for requests
        latency: Histogram,  # the times from requests to their answers
        statements: StatementStatistics,  # counts statements
        faults: Faults,  # takes the errors of the functions that get the answers
        unpack: Callable[[Prepared], None],  # unpacks large changes before they are counted
    ) -> None:
        self._memory, self._latency, self._statements, self._faults = memory, latency, statements, faults
        self._unpack = unpack
        self.open: dict[int, Waiter] = {}  # the waiters by the number of their request

    def count_prepared(self, request_id: int, prepared: Prepared) -> None:
        """Count a request's changes and its answer as used memory until it is answered."""
        waiter, size = self.open.get(request_id), len(prepared.changes) + len(prepared.result)
        if waiter is not None and (size >= HELD_BYTES_MIN or waiter.held_bytes):
            self._unpack(prepared)
            self.hold(waiter, size)

    def hold(self, waiter: Waiter, size: int) -> None:
        """Count the memory kept for a request, if it is much."""
        size = size if size >= HELD_BYTES_MIN else 0
        if size != waiter.held_bytes:
            self._memory.hold(id(waiter), size - waiter.held_bytes)
            waiter.held_bytes = size

    def answered(self, waiter: Waiter) -> None:
        """Deliver the answer of a request; the batches that it depends on are durable."""
        assert waiter.answer is not None
        self.note(waiter.request, waiter.answer, waiter.began, asked=waiter.prepare is None)
        self.tell(waiter.request, waiter.done, waiter.answer)
        if waiter.held_bytes:
            self.hold(waiter, 0)

    def end(self, waiter: Waiter, answer: BedrockishError) -> None:
        """Answer a request with an error, because it gets no other answer."""
        self.tell(waiter.request, waiter.done, answer)
        if waiter.held_bytes:
            self.hold(waiter, 0)

    def note(self, request: Request, answer: Answer | BedrockishError, began: float, *, asked: bool) -> None:
        """Record an answer, and the time since its request arrived."""
        took_s = time.monotonic() - began
        self._latency.observe(took_s)
        self._statements.note_answer(request, answer, took_s, asked=asked)

    def tell(self, request: Request, done: Done, answer: Answer | BedrockishError) -> None:
        """Call the function of a request with its answer; an error in it concerns no other request."""
        try:
            done(answer)
        except Exception as error:  # this client gets no answer, and sends the request again
            self._faults.caught(f"answering command {request.command}", error)
