"""Answers clients' reads while a thread has the writer, from the last batch (``engine.execution.committed_reads``).

The core waits for that thread, and so do the clients that need the core: writers, and readers at the level ``strict``.
A read at the level ``stale`` or ``session`` needs neither, if the last batch has everything that its session has seen.
Its answer is sent when that batch is durable, like any other answer.
"""

import logging
import time
from collections import deque
from typing import Protocol

import trio

from bedrockish.api.requests import STRICT, Answer, Token
from bedrockish.core.protocol.events import Submitted
from bedrockish.engine.execution.committed_reads import CommittedReads
from bedrockish.engine.execution.interfaces import Flushed
from bedrockish.errors import DamagedError, UnavailableError
from bedrockish.node.scheduling.direct_reads import ServingReads
from bedrockish.node.scheduling.durability import Waiter
from bedrockish.node.scheduling.turn_loop import FairQueue
from bedrockish.node.scheduling.waiters import Waiters
from bedrockish_journal.model.vector import merge

logger = logging.getLogger(__name__)

TURN_S = 0.02  # how long successive reads may take before other work gets the loop

Asked = tuple[object, Submitted]  # the owner of a request, and the request


class ServingBeside(ServingReads, Protocol):
    """The parts of a node that ``ReadsBeside`` uses."""

    waiters: Waiters


class ReadsBeside:
    """Answers clients' reads while a thread has the writer.

    Args:
        asked: the queue of the requests; a request that has to wait for the writer goes back into it.
    """

    def __init__(self, node: ServingBeside, asked: FairQueue[Submitted]) -> None:
        self._node, self._engine, self._asked = node, node.engine, asked
        self._budget_s = node.config.limits.loop_ms_max / 1000
        self._reads = CommittedReads(node.engine.connector())
        self._wanted = trio.Event()
        self._waiting: set[int] = set()  # requests that wait until the writer is back
        # Answers that wait for a batch to be durable, each with the number of the batch.
        self.unsynced: deque[tuple[int, Waiter, Answer]] = deque()
        self._has_failed = False  # whether a read has failed since the present batch began

    def retry_waiting(self) -> None:
        """Start answering reads, because a thread gets the writer; try requests again that could not be answered
        before.

        A read whose answer would wait until the present batch is durable is executed again, on the batch before it.
        """
        self._waiting.clear()
        for waiter in self._node.gate.kept.take_replies(_has_read):
            waiter.answer = None
            self._node.waiters.open[waiter.request_id] = waiter
            self._asked.put(waiter.request_id, Submitted(waiter.request_id, waiter.request))
        self._has_failed = False
        self._wanted.set()

    def try_arrived(self) -> None:
        """Try to answer a request that has arrived while a thread has the writer."""
        if not self._has_failed:
            self._wanted.set()

    def synced(self, batches: int) -> None:
        """Send the answers that wait for batches up to this one, which are durable now."""
        while self.unsynced and self.unsynced[0][0] <= batches:
            _, waiter, answer = self.unsynced.popleft()
            self._answer(waiter, answer)

    def _answer(self, waiter: Waiter, answer: Answer) -> None:
        node = self._node
        node.counts["reads_beside"] += 1
        del node.waiters.open[waiter.request_id]
        waiter.answer = answer
        node.waiters.hold(waiter, len(answer.results))
        node.waiters.answered(waiter)

    def close(self) -> None:
        """Close the connection, after all tasks have ended."""
        self._reads.close()

    async def run(self) -> None:
        """Answer the requests that can be answered, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                await self._answer_all()
            except UnavailableError as error:
                self._has_failed = True
                logger.warning("reads wait for the writer: %s", error)
            except DamagedError as error:
                self._node.stop(error)

    async def _answer_all(self) -> None:
        engine, reads = self._engine, self._reads
        pending = deque[Asked]()
        until = time.monotonic() + TURN_S
        try:
            while engine.batch.is_in_thread and not self._node.core.state.trouble and not engine.batch.failed:
                pending += self._asked.sift(self._may_be_read)
                flushed = engine.flushed
                if not pending or engine.has_new_members:
                    return  # the rights of users may have changed with the members, and are not durable yet
                if not reads.knows(flushed.schema):
                    await trio.to_thread.run_sync(reads.learn)
                elif time.monotonic() > until:
                    await trio.lowlevel.checkpoint()
                    until = time.monotonic() + TURN_S
                else:
                    self._read(pending, flushed)
        finally:
            for owner, asked in pending:
                self._asked.put(owner, asked)

    def _may_be_read(self, asked: Submitted) -> bool:
        """Return whether a request may be a short read that need not see the newest commits."""
        request, waiter = asked.request, self._node.waiters.open.get(asked.request_id)
        if asked.request_id in self._waiting or asked.once or waiter is None or waiter.prepare is not None:
            return False
        if request.read == STRICT or request.change is not None:
            return False
        return not self._node.workers.expects(*request.texts)

    def _read(self, pending: deque[Asked], flushed: Flushed) -> None:
        owner, asked = pending[0]
        request = asked.request
        found = None
        try:
            found = self._reads.read(request, flushed, self._budget_s)
        except DamagedError:
            raise
        except Exception as error:
            self._node.faults.caught(f"reading command {request.command} beside the writer", error)
        pending.popleft()
        if found is None:
            self._waiting.add(asked.request_id)
            self._asked.put(owner, asked)
            return
        results, clock = found
        vector = self._node.core.state.timelines.in_short(merge(flushed.applied, request.token.vector))
        answer = Answer(results, Token(vector, max(clock, request.token.clock)))
        waiter = self._node.waiters.open[asked.request_id]
        if flushed.batches <= self._node.gate.durable_batches:
            self._answer(waiter, answer)
        else:
            self.unsynced.append((flushed.batches, waiter, answer))


def _has_read(waiter: Waiter) -> bool:
    """Return whether a request is answered, has only read, and need not have seen the newest commits."""
    request, answer = waiter.request, waiter.answer
    if not isinstance(answer, Answer) or answer.place is not None or waiter.prepare is not None:
        return False
    return request.read != STRICT and request.change is None
