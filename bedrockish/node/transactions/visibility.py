"""The commits that an open transaction sees, and those that its answers reveal.

A strict read of the cluster's own tables cannot be executed again in an open transaction or a stream. So before the
read, the node waits until it has applied every commit that was acknowledged so far (``core.coordinator.catch_up``).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bedrockish.api.requests import OPEN, STRICT, Request, Token
from bedrockish.core.coordinator.revalidation import AccessSets
from bedrockish.core.protocol.records import Prepared, only_read
from bedrockish.core.state.state import State
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.interfaces import WriterLender
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.errors import ConflictError, UsageError
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.open import OpenTransaction
from bedrockish_journal.model.vector import Vector, covers

SUFFIX, ID_MAX = "+level", 200  # the end of the command id of such a wait, and the most characters of the id


async def catch_up(submit: steps.Submit, engine: WriterLender, request: Request) -> None:
    """Wait until this node has applied every commit that was acknowledged before the call.

    Raises:
        UnavailableError: within the timeout of the request no majority has answered, or a transaction has not ended.
    """

    empty = lambda: only_read(engine.applied, engine.schema_version, reads_system=True)  # noqa: E731
    command = f"{request.command}{SUFFIX}"[-ID_MAX:]
    await submit(replace(request, command=command, statements=(), read=STRICT, digest=OPEN), empty)


def checked_read(tx: OpenTransaction, prepared: Prepared) -> Prepared:
    """Return a transaction for its commit; its reads of the cluster's own tables were checked when they began.

    Raises:
        UsageError: the transaction writes, and was begun as read-only.
    """
    if tx.request.read_only and not prepared.readonly:
        raise UsageError("the transaction was begun as read-only, and has written; roll it back")
    assert not prepared.reads_system or tx.required_vector is not None or tx.request.read != STRICT, (
        "``catch_up`` is called before such a read"
    )
    return replace(prepared, reads_system=False)


class Visibility:
    """Decides which commits open transactions see, and waits for those that their answers reveal."""

    def __init__(
        self,
        engine: Engine,
        state: State,
        interactive: Interactive,  # moves the snapshots of transactions
        submit: steps.Submit,  # has the core answer a request
        boundary: Boundary,
        check_open: Callable[[OpenTransaction], None],  # raises the error of the transaction if it has ended
    ) -> None:
        self._engine, self._state, self._interactive = engine, state, interactive
        self._submit, self._boundary, self._check_open = submit, boundary, check_open

    def is_current(self, work: TransactionWork) -> bool:
        """Return whether the reads of a serializable transaction on its snapshot are still current."""
        if work.snapshot is None or work.is_stale or work.clock or not work.serializable:
            return False
        applied, sets = self._engine.applied, work.sets
        assert work.base is not None
        assert sets is not None
        if work.base != applied:
            newer = self._state.commit_window.newer_than(work.base)
            work.is_stale = newer is None or any(
                tx.is_in(applied) and sets.conflicts_with(tx.access_set) is not None for tx in newer
            )
        return not work.is_stale

    def move_up(self, work: TransactionWork, before: Vector) -> bool:
        """Move a transaction that has only read to a snapshot of the last batch; return whether that is possible.

        ``before``: the vector that was applied when all reads but the last were still current; the caller repeats the
        last one. The move is impossible if a commit applied after ``before`` conflicts with a read.
        """
        engine, flushed = self._engine, self._engine.flushed
        if engine.batch.is_in_thread or engine.batch.is_dirty or flushed.schema != work.schema or work.snapshot is None:
            return False
        assert work.sets is not None
        if self._is_touched(work.sets, before):
            return False
        self._interactive.take_snapshot(work)
        work.is_stale = False
        return True

    def _is_touched(self, sets: AccessSets, before: Vector) -> bool:
        """Return whether a commit that a vector lacks conflicts with the reads of a transaction."""
        window = self._state.commit_window
        newer = window.newer_than(before)
        if newer is not None:
            return any(sets.conflicts_with(tx.access_set) is not None for tx in newer)
        # If the vector lacks hundreds of commits, the oldest of these are packed: they can be found only by their keys.
        return window.has_dropped(before) or next(window.conflicts(sets.access_set(), before), None) is not None

    def wait_for_disk(self, tx: OpenTransaction) -> steps.Steps[None]:
        """Wait until all commits on which the client's answer depends are durable."""
        work, state, durable = tx.work, self._state, self._engine.durable
        base = work.base
        if base is None:
            return
        if isinstance(work.workspace, OverlayTransaction) and state.clock.value <= state.clock.ceiling:
            return  # ``revealed`` is the transaction's snapshot, which was durable when it was taken
        on_snapshot = work.snapshot is not None and not work.wrote
        seen = base if on_snapshot else self._engine.applied
        if state.clock.value > state.clock.ceiling:  # the answer may contain a value of the clock
            yield self._boundary.durable
        elif covers(durable, seen):
            tx.revealed = base
        elif self._is_the_same(work, seen, durable):
            tx.revealed = durable
        else:
            tx.revealed = base
            yield self._boundary.durable

    def _is_the_same(self, work: TransactionWork, seen: Vector, durable: Vector) -> bool:
        """Return whether a transaction's results would be the same without the commits that are not durable."""
        newer = self._state.commit_window.newer_than(durable)
        if newer is None or work.sets is None or work.workspace is not None or work.read_without_keys:
            return False
        return all(work.sets.conflicts_with(tx.access_set, reads=True) is None for tx in newer if tx.is_in(seen))

    def token(self, tx: OpenTransaction) -> Token:
        """Return the token of the commits that a transaction's answers depend on."""
        return Token() if tx.revealed is None else Token(tx.revealed, self._state.read_clock())

    def catch_up(self, tx: OpenTransaction) -> steps.Steps[None]:
        """Have a strict transaction see every commit that was acknowledged before this call, at its first call.

        A ``Place`` calls this before the transaction's first read of the cluster's own tables. It also calls this
        before it makes a workspace, because it does not learn the tables that statements in a workspace read.

        Raises:
            ConflictError: the snapshot cannot move up, because rows that the transaction has read were changed.
            UnavailableError: as the function ``catch_up``.
        """
        work = tx.work
        if tx.request.read != STRICT or tx.required_vector is not None:
            return
        yield partial(catch_up, self._submit, self._engine, tx.request)
        self._check_open(tx)
        tx.required_vector = dict(self._engine.applied)
        if work.snapshot is None or covers(work.base or {}, tx.required_vector):
            return  # its next statement runs on a newer snapshot, or on the newest commits
        yield partial(self._boundary.result_of, partial(self._move_up_strictly, work))
        self._check_open(tx)
        if not covers(work.base or {}, tx.required_vector):
            raise ConflictError(
                "the transaction read rows before it read a table of the cluster itself, and its snapshot lacks "
                "commits that the level strict needs; the transaction did not happen: run it again, or read that "
                "table first"
            )

    def _move_up_strictly(self, work: TransactionWork) -> None:
        """Move a transaction that has only read to a snapshot of the last batch, if its reads would be the same."""
        # The snapshot must stay below a clock that transaction_clock() has returned, and under snapshot isolation the
        # first snapshot stays.
        if not (work.ended or work.clock) and work.serializable and work.base is not None:
            self.move_up(work, dict(work.base))
