"""Answers short reads in the reading task, without the core, its queue, and a wait for the disk.

A read at the level ``stale`` needs neither votes nor the open batch: the last durable batch answers it, if that batch
covers the session's token. One connection holds a snapshot of the batch; the snapshot moves on after each sync.

A read at the level ``session`` shows all commits that the node has applied and a client may know to have happened:

- *Commits of other nodes* may be shown before they are durable here: they were durable at their leader before their
  COMMIT was sent. After a crash of this node, the node fetches them again.
- *Commits of this node* may not be shown before they are durable, and need not be: their answers have not been sent.

So the snapshot answers the read if all newer commits are this node's own, and the open batch answers it if all newer
commits are of other nodes. If there are newer commits of both kinds, the core answers, after the sync.

Every other request goes to the core, and so does a read that fails or takes long: the core returns the answer or the
error.
"""

import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from bedrockish.api.requests import STALE, STRICT, Answer, Request, Token
from bedrockish.config.config import Config
from bedrockish.core.node import Node
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.committed_reads import CommittedReads, PinnedBatch
from bedrockish.errors import DamagedError, UnavailableError
from bedrockish.node.scheduling.durability_gate import DurabilityGate
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.workers import WorkerPool, is_bulky
from bedrockish.sqltext.session_settings import without_settings
from bedrockish_journal.model.vector import Vector, covers

TURN_S = 0.02  # how long successive reads may take before other work gets the loop
PAUSE_S = 0.001  # a longer pause between two reads means that other work has had the loop
TEXTS_MAX, TEXT_MAX = 2_000, 4_000  # most remembered texts, and most characters of each: together below 32 MB
LOOKS_LIKE_A_READ = re.compile(r"\s*(?:SELECT|VALUES|WITH)\b", re.IGNORECASE)
# Words of statements that write, and functions whose values belong to the connection, which all sessions share. The
# core answers every text with such a word.
LEFT_TO_THE_CORE = re.compile(
    r"\b(?:INSERT|UPDATE|DELETE|REPLACE|last_insert_rowid|changes|total_changes)\b", re.IGNORECASE
)


class ServingReads(Protocol):
    """The parts of a node that direct reads use."""

    engine: Engine
    core: Node
    config: Config
    workers: WorkerPool
    counts: Counter[str]
    faults: Faults
    gate: DurabilityGate

    @property
    def stop(self) -> Callable[[BaseException], None]:
        """End the node with an error."""


class DirectReads:
    """Answers short reads of one node's clients in the reading task, without the core.

    Args:
        start: runs a task until the node ends.
    """

    def __init__(self, node: ServingReads, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self._node, self._engine, self._start = node, node.engine, start
        self._me = node.core.state.me
        self._budget_s = node.config.limits.loop_ms_max / 1000
        self._reads = CommittedReads(node.engine.connector())
        self.base: Vector = {}  # the state from which the last read was answered
        self.schema = 0  # the version of the schema in that state
        self._until = self._ended = 0.0  # when the present turn of the reads ends, and when the last read ended
        self._token = Token()  # the token of answers from the pinned snapshot
        # For answers from the open batch: the snapshot and the vector for which the last token was made, and the token.
        self._open_token: tuple[PinnedBatch | None, dict[str, int], Token] = (None, {}, Token())
        self._is_in_use = False  # whether a read has used the snapshot
        self._is_learning = False  # whether a thread reads the schema by the connection
        self._texts: dict[str, bool] = {}

    def begin_turn(self) -> None:
        """Start a new time slice for reads, because other work has had the loop."""
        self._until = time.monotonic() + TURN_S

    def may_answer(self, request: Request) -> bool:
        """Return whether a request looks like a short read, judged by its texts and the size of its values."""
        if request.change is not None:
            return False
        if request.statements and self._texts.get(request.statements[0].sql) is False:
            return False  # known to write; tested before ``is_bulky``, which examines all values
        workers = self._node.workers
        # Long texts are excluded first, because ``_may_be_read`` may cache the text.
        return not (workers.expects(*request.texts) or is_bulky(request)) and self._may_be_read(request)

    def read(self, request: Request) -> Answer | None:
        """Return the answer of a read at the level ``stale`` or ``session``; None if the core has to answer."""
        if request.read == STRICT or not self.may_answer(request):
            return None
        return self.execute(request)

    def execute(self, request: Request) -> Answer | None:
        """Return the answer of a short read; None if the core has to answer.

        The answer is valid at the level ``stale`` for a read at that level, and at ``session`` for any other read.
        """
        node, engine = self._node, self._engine
        if node.core.state.trouble or engine.batch.failed or engine.has_new_members:
            return None
        clock = node.core.state.clock
        if request.token.clock > clock.value and clock.is_absurd(request.token.clock):
            return None  # the core refuses a forged token
        now = time.monotonic()
        if now - self._ended > PAUSE_S:
            self._until = now + TURN_S
        if now > self._until:
            return None
        try:
            pin = self._pinned()
            # If rights were changed after the snapshot, the core answers when the change is durable.
            if pin is None or pin.flushed.members != engine.flushed.members:
                return None
            token, self.schema = self._token, pin.flushed.schema
            # At the level ``stale`` the snapshot always answers, so that such a read never waits for the disk.
            if request.read == STALE or engine.applied == pin.flushed.applied or self._is_own(pin):
                self.base = pin.flushed.applied
                results = self._reads.read_pinned(request, self._budget_s)
            elif self._may_show_open_batch(pin) and covers(engine.applied, request.token.vector):
                token = self._token_now(pin)
                self.base = engine.applied
                results = engine.read(request, self._budget_s)
            else:
                return None
        except DamagedError as error:
            node.stop(error)
            return None
        except Exception as error:
            node.faults.caught(f"reading command {request.command} directly", error)
            return None
        finally:
            self._ended = time.monotonic()
        if results is None:
            return None
        self._is_in_use = True
        node.counts["direct_reads"] += 1
        if request.token.clock > token.clock:
            token = Token(token.vector, request.token.clock)
        return Answer(results, token)

    def _is_own(self, pin: PinnedBatch) -> bool:
        """Return whether all commits applied after the snapshot are this node's own; their answers are not sent yet."""
        me, before, now = self._me, pin.flushed.applied, self._engine.applied
        return len(before) == len(now) and all(before.get(node) == now[node] for node in now if node != me)

    def _may_show_open_batch(self, pin: PinnedBatch) -> bool:
        """Return whether all commits after the snapshot are of other nodes, in the schema of the snapshot."""
        engine = self._engine
        return (
            engine.applied.get(self._me) == pin.flushed.applied.get(self._me)
            and engine.schema_version == pin.flushed.schema
            and self._node.core.state.schema.scheduled is None
            and not engine.batch.is_in_thread
        )

    def _token_now(self, pin: PinnedBatch) -> Token:
        """Return the token for everything applied; its clock is at or after each commit and the schema's activation."""
        engine = self._engine
        last, applied, token = self._open_token
        if last is not pin or applied != engine.applied:
            applied = dict(engine.applied)
            clock = max(engine.applied_clock, pin.clock)
            token = Token(self._node.core.state.timelines.in_short(applied), clock)
            self._open_token = pin, applied, token
        return token

    def _may_be_read(self, request: Request) -> bool:
        """Return whether each statement looks like a read that any connection can answer."""
        for statement in request.statements:
            may_be = self._texts.get(statement.sql)
            if may_be is None:
                sql = without_settings(statement.sql)
                may_be = bool(LOOKS_LIKE_A_READ.match(sql)) and not LEFT_TO_THE_CORE.search(sql)
                if len(sql) <= TEXT_MAX:
                    if len(self._texts) >= TEXTS_MAX:
                        self._texts.clear()
                    self._texts[statement.sql] = may_be
            if not may_be:
                return False
        return True

    def _pinned(self) -> PinnedBatch | None:
        """Return the snapshot, moved to the last batch if that is durable; None if no snapshot can be taken now."""
        if self._is_learning:
            return None
        pin, flushed = self._reads.pinned, self._engine.flushed
        if pin is not None and pin.flushed.batches == flushed.batches:
            return pin
        # Until the last batch is durable, the snapshot stays. It also stays while a thread has the writer: the thread
        # may be about to restart the write-ahead log, which a new snapshot would prevent.
        if flushed.batches > self._node.gate.durable_batches or self._engine.batch.is_in_thread:
            return pin
        return self._pin()

    def _pin(self) -> PinnedBatch | None:
        """Move the snapshot to the last batch, which is durable."""
        reads, flushed = self._reads, self._engine.flushed
        self._is_in_use = False
        if not reads.knows(flushed.schema):
            reads.unpin()
            if self._engine.tables.definitions.are_many:
                self._is_learning = True
                self._start(self._learn)
                return None
            try:
                reads.learn()
            except UnavailableError:
                return None
        if not reads.pin(flushed):
            return None
        pin = reads.pinned
        assert pin is not None
        self._token = Token(self._node.core.state.timelines.in_short(dict(flushed.applied)), pin.clock)
        return pin

    async def _learn(self) -> None:
        try:
            await trio.to_thread.run_sync(self._reads.learn)
        except UnavailableError:
            pass  # the next read tries again
        finally:
            self._is_learning = False

    def before_flush(self) -> None:
        """Move the snapshot to the last batch, before the open batch is committed: reads use it until that is durable.

        The snapshot is released instead if no read has used it, or if the write-ahead log is about to restart, which a
        reader would prevent.
        """
        if self._reads.pinned is None or self._is_learning:
            return
        if not self._is_in_use or self._engine.batch.may_finish_log:
            self._reads.unpin()
        elif self._engine.flushed.batches <= self._node.gate.durable_batches:
            try:
                self._pinned()
            except DamagedError as error:
                self._node.stop(error)

    def close(self) -> None:
        """Close the connection, after all tasks have ended."""
        self._reads.close()
