"""Open transactions that have changed many rows; each runs in a workspace of its own, in threads.

Open transactions share the engine's connection: each writes its rows again when another user has had the connection. A
transaction of many rows would write them again after every commit of others. So it moves to a workspace, once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from weakref import WeakSet

from bedrockish.api.requests import Result, Statement
from bedrockish.core.coordinator.revalidation import invalidated
from bedrockish.core.node import Node
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.errors import BedrockishError, UnavailableError
from bedrockish.node.scheduling.workers import WorkerPool
from bedrockish.node.transactions.callers import has_room
from bedrockish.node.transactions.lending import Lending

GROWN_MAX = 8  # most workspaces at a time; each keeps two connections and up to 48 MiB of pages


class GrownTransaction(OverlayTransaction):
    """A transaction that has moved to a workspace of its own.

    Args:
        caller: the user or the address to whose share the transaction counts.
    """

    def __init__(self, place: Workspace, work: TransactionWork, tick: Callable[[], int], caller: str) -> None:
        super().__init__(place, work, tick)
        self.caller = caller
        self.checked: Mapping[str, int] = {}  # the commits with which the transaction's keys were last compared


class GrownTransactions:
    """Moves open transactions of many rows to workspaces, and runs them there."""

    def __init__(self, lending: Lending, core: Node, workers: WorkerPool) -> None:
        self._lending, self._core, self._workers = lending, core, workers
        self._open: WeakSet[GrownTransaction] = WeakSet()

    def is_due(self, work: TransactionWork) -> bool:
        """Return whether a transaction should move now, because its next statement would write many rows again."""
        is_large = work.weight >= work.moves_at and work.workspace is None
        return is_large and self._lending.interactive.inside is not work

    async def move(self, work: TransactionWork, caller: str) -> Mapping[str, int] | None:
        """Move a transaction to a workspace, if there is room for one.

        Return the commits that the transaction sees; None if it was not moved.

        Raises:
            ConflictError: data or a schema on which the transaction rests has changed.
        """
        engine = self._lending.engine
        try:
            if not has_room(GROWN_MAX, (one.caller for one in self._open if not one.is_closed), caller):
                raise UnavailableError("no workspace is free for a transaction of many rows")
            engine.memory.check_large()
            place = Workspace(engine.connector())
        except UnavailableError:
            self._put_off(work)
            return None
        tick = self._workers.scope(work.command, work.clock).tick
        assert tick is not None
        workspace = GrownTransaction(place, work, tick, caller)
        self._open.add(workspace)
        await self._lending.begin(work, workspace, partial(self._take_snapshot, work, workspace))
        if work.workspace is not workspace:
            return None
        await self._lending.run(work, workspace.open)
        return work.base

    def _take_snapshot(self, work: TransactionWork, moved: GrownTransaction) -> None:
        """Take the snapshot of a workspace; if the transaction cannot go on there, close the workspace."""
        if work.ended:  # the step was cancelled, too; the lender closes the workspace
            return
        lending = self._lending
        error = lending.interactive.overtaken(work, moves=True) or lending.take_snapshot(work, moved)
        if error is None:
            moved.checked = dict(lending.engine.applied)
            return
        work.workspace = None
        moved.close()
        self._put_off(work)

    def _put_off(self, work: TransactionWork) -> None:
        """Leave a transaction on the engine's connection until it has twice as many rows or twice as much text."""
        work.moves_at = 2 * work.weight

    async def run(
        self, work: TransactionWork, statements: Sequence[Statement], results: list[Result], room: int
    ) -> int:
        """Run texts in order, as ``OverlayTransaction.run_list`` does.

        Raises:
            ConflictError: data or a schema on which the transaction rests has changed.
            BedrockishError: as ``OverlayTransaction.run_list``.
        """
        moved = work.workspace
        assert isinstance(moved, GrownTransaction)
        assert work.sets is not None
        self._lending.interactive.check_schema(work)
        # Only newer commits are compared here, so that a lost transaction ends early; COMMIT compares all commits since
        # its base.
        error: BedrockishError | None = invalidated(self._core.state, work.sets, moved.checked)
        if error is not None:
            raise error
        moved.checked = dict(self._lending.engine.applied)
        return await self._lending.run(work, lambda: moved.run_list(statements, results, room))
