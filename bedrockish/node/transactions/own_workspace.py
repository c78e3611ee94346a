"""Open transactions that have changed many rows: each runs in a workspace of its own, in threads.

Open transactions share the engine's connection, and each writes its rows again after other work on the connection. A
transaction of many rows would write them again after every commit of others. So it moves to a workspace of its own.
"""

from collections.abc import Callable, Mapping
from functools import partial
from weakref import WeakSet

from bedrockish.api.requests import Answer, Request
from bedrockish.core.coordinator.revalidation import invalidated
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.errors import BedrockishError, UnavailableError, transaction_ended
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.callers import has_room
from bedrockish.node.transactions.open import OpenTransaction
from bedrockish.node.transactions.places import Services, StatementList, WorkspacePlace

WORKSPACES_MAX = 8  # most workspaces at a time; each keeps two connections and up to 48 MiB of pages


class LargeTransaction(OverlayTransaction):
    """A transaction that has moved to a workspace of its own.

    Args:
        caller: the user or the address to whose share the transaction counts.
    """

    def __init__(self, place: Workspace, work: TransactionWork, tick: Callable[[], int], caller: str) -> None:
        super().__init__(place, work, tick)
        self.caller = caller
        self.checked: Mapping[str, int] = {}  # the vector of the commits with which its keys were last compared


class OwnWorkspace(WorkspacePlace):
    """The workspace of a transaction that has changed many rows."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._open: WeakSet[LargeTransaction] = WeakSet()

    def is_due(self, work: TransactionWork) -> bool:
        """Return whether a transaction should move now: its next statement would first write its many rows again."""
        is_large = work.weight >= work.moves_at and work.workspace is None
        return is_large and self._interactive.swapped_in is not work

    def move(self, tx: OpenTransaction) -> steps.Steps[None]:
        """Move a transaction here, if there is room for another workspace.

        Raises:
            ConflictError: data or a schema on which the transaction rests has changed.
        """
        yield from self._services.visibility.catch_up(tx)
        yield partial(self._move, tx)
        self._services.check_open(tx)

    async def _move(self, tx: OpenTransaction) -> None:
        work, engine = tx.work, self._engine
        try:
            if not has_room(WORKSPACES_MAX, (one.caller for one in self._open if not one.is_closed), tx.caller):
                raise UnavailableError("no workspace is free for a transaction of many rows")
            engine.memory.check_large()
            place = Workspace(engine.connector())
        except UnavailableError:
            self._put_off(work)
            return
        tick = self._services.workers.scope(work.command, work.clock).tick
        assert tick is not None
        workspace = LargeTransaction(place, work, tick, tx.caller)
        self._open.add(workspace)
        try:
            await self.begin(work, workspace, moves=True)
        except BedrockishError:  # a conflict is raised again by the next statement on the engine's connection
            work.workspace = None
            workspace.close()
            self._put_off(work)
            return
        assert work.base is not None
        workspace.checked = tx.revealed = work.base
        await self.run_in_thread(work, workspace.open)

    def _put_off(self, work: TransactionWork) -> None:
        """Leave a transaction on the engine's connection until it has twice as many rows or twice as much text."""
        work.moves_at = 2 * work.weight

    def run(self, tx: OpenTransaction, texts: StatementList) -> steps.Steps[None]:
        """Run the rest of the texts, up to one that changes the schema."""
        while True:
            try:
                size = yield from steps.wait(partial(self._run, tx.work, texts))
            except ClockNeededError:
                yield partial(self._services.take_clock, tx)
                continue
            self._services.check_open(tx)
            texts.room -= size
            return

    def commit(self, tx: OpenTransaction, last: Request) -> steps.Steps[Answer]:
        """Commit the rows of the transaction."""
        return (yield from self._commit_rows(tx, (yield from self._finish(tx)), last))

    async def _run(self, work: TransactionWork, texts: StatementList) -> int:
        if work.ended:  # before this task began
            raise transaction_ended()
        moved = work.workspace
        assert isinstance(moved, LargeTransaction)
        assert work.sets is not None
        self._interactive.check_schema(work)
        # Compare with the newer commits, so that a transaction with a conflict ends early; COMMIT compares with all
        # commits since its base.
        error: BedrockishError | None = invalidated(self._services.core.state, work.sets, moved.checked)
        if error is not None:
            raise error
        moved.checked = dict(self._engine.applied)
        return await self.run_in_thread(work, lambda: moved.run_list(texts.rest, texts.results, texts.room))
