"""The gate of a node's output: a message or answer is sent when the batches that it depends on are durable."""

import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Protocol

from bedrockish.engine.engine import Engine
from bedrockish.node.scheduling.durability import FsyncThread, HeldOutput, Waiter
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.node.scheduling.turn_loop import Turn

LINGER_S = 0.02  # how long a batch without waiters stays open, so that later writes can share its sync


class BatchStage(Enum):
    """The stages of a gate, from a batch's first write to the end of its sync."""

    GATHERING = "the open batch takes writes, and no sync runs"
    LINGERING = "the open batch has only writes for which no client or peer waits; it stays open to share its sync"
    FLUSHING = "the batch is committed to the file, in the loop or in a thread"
    SYNCING = "a sync runs; the open batch gathers what shares the next one"


class GateOutput(Protocol):
    """The parts of a node that the gate needs."""

    @property
    def stop(self) -> Callable[[BaseException], None]:
        """End the node with an error."""

    def wake(self) -> None:
        """Begin the next turn as soon as possible."""

    def is_quiet(self) -> bool:
        """Return whether no other request or event waits for the loop."""

    def before_flush(self) -> None:
        """Prepare for the commit of the batch."""

    def flushed(self) -> None:
        """Record that a batch was committed, and that its sync has begun or ended."""

    def release(self, kept: HeldOutput) -> None:
        """Send output: the batches that it depends on are durable."""

    def synced(self, batches: int) -> None:
        """Record that all batches up to this one are durable."""


class DurabilityGate:
    """Keeps one node's output until the batches that it depends on are durable.

    Args:
        node: writes into the open batch, and has output.
    """

    def __init__(self, node: GateOutput, engine: Engine, boundary: Boundary) -> None:
        self._node, self._engine, self._boundary = node, engine, boundary
        self.stage = BatchStage.GATHERING  # the stage of the batches
        self.kept = HeldOutput()  # the output that waits for the open batch
        self.durable_batches = 0  # the last batch that is known to be durable
        self.fsync = FsyncThread(engine.sync)  # syncs in a thread, or in the loop where the disk is quick
        self._closed = HeldOutput()  # the output that waits for the batch that is being flushed or synced
        self._linger_until = 0.0

    def count_all_durable(self) -> None:
        """Count all batches of the file as durable, because the node has synced the file at its start."""
        self.durable_batches = self._engine.batch.number

    @property
    def has_work(self) -> bool:
        """Whether to call ``pass_on`` now; for a lingering batch, only if a client or peer waits."""
        if self.stage is BatchStage.SYNCING:
            return False
        return self.kept.is_awaited or (
            self.stage is not BatchStage.LINGERING and bool(self.kept or self._engine.batch.is_dirty)
        )

    @property
    def is_syncing(self) -> bool:
        """Whether a sync runs: output that is made now waits for the next sync."""
        return self.stage is BatchStage.SYNCING

    @property
    def has_output(self) -> bool:
        """Return whether any output waits here."""
        return bool(self.kept or self._closed)

    @property
    def deadline(self) -> float | None:
        """When (by ``time.monotonic``) a lingering batch is closed even without waiters; None if no batch lingers."""
        return self._linger_until if self.stage is BatchStage.LINGERING else None

    def pass_on(self) -> Turn:
        """Commit the open batch and sync it, or send the kept output if all batches are durable."""
        if self.stage is BatchStage.SYNCING or self._may_linger():
            return  # a sync runs, or the batch lingers: output made since then shares the next sync
        engine = self._engine
        if not (
            engine.batch.is_dirty or engine.batch.failed or self._boundary.actions
        ):  # every batch is durable, so the output may be sent
            kept, self.kept = self.kept, HeldOutput()
            self._open()
            if kept:
                self._node.release(kept)
            return
        self.stage = BatchStage.FLUSHING
        self._node.before_flush()
        # Output that is made while a thread writes the batch waits for the next batch.
        kept, self.kept = self.kept, HeldOutput()
        self._closed = kept
        wrote = (yield engine.flush) if engine.batch.is_long else engine.flush()
        if self._boundary.actions and not engine.batch.is_dirty:  # a dirty batch has entries that the file lacks
            self._boundary.reach()
        if wrote:
            self._sync(kept)
            self._node.flushed()
        else:
            self._open()
            if kept:
                self._node.release(kept)

    def _may_linger(self) -> bool:
        """Return whether no client or peer waits for the open batch, so that it may share the sync of a later vote.

        Such batches come from the commits of other nodes. If such a batch is lost in a crash, the commits are fetched
        again. Gossip about times can wait for the next vote, too: alone, it would cost a sync here and two wake-ups of
        each peer, as much as applying a commit of another node.
        """
        if self.kept.is_awaited or not self._engine.batch.is_dirty or self._boundary.actions:
            return False
        now = time.monotonic()
        if self.stage is not BatchStage.LINGERING:
            self.stage, self._linger_until = BatchStage.LINGERING, now + LINGER_S
        return now < self._linger_until

    def _sync(self, kept: HeldOutput) -> None:
        self.stage = BatchStage.SYNCING
        batches = self._engine.batch.number
        if self.fsync.is_quick and self._node.is_quiet():
            self._synced(kept, batches, self.fsync.sync_now())
        else:
            self.fsync.start(partial(self._synced_in_thread, kept, batches))

    def _synced_in_thread(self, kept: HeldOutput, batches: int, error: BaseException | None) -> None:
        try:
            self._synced(kept, batches, error)
        except Exception as fault:  # the loop's task ends the node, because all other tasks wait for it
            self._node.stop(fault)
        self._node.wake()  # the next batch begins in the next turn: clients that were just answered may join it

    def _synced(self, kept: HeldOutput, batches: int, error: BaseException | None) -> None:
        self._open()
        if error is not None:
            self._node.stop(error)
            return
        self.durable_batches = batches
        self._node.release(kept)
        self._node.synced(batches)

    def _open(self) -> None:
        """Return to gathering: the closed batch has ended, and its output is sent or dropped now."""
        self.stage, self._closed = BatchStage.GATHERING, HeldOutput()

    def last_replies(self) -> list[Waiter]:
        """Return the waiters whose answers were not sent, in order, when the node stops; everything is durable then."""
        return [*self._closed.replies, *self.kept.replies]
