"""Begins workspaces (private snapshots) for open transactions, and lends them to threads, which run the steps."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import trio

from bedrockish.api.requests import Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.ddl_workspace import Draft
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork, TransactionWorkspace
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.storage.overlay_vfs import FileState
from bedrockish.errors import ConflictError, UnavailableError
from bedrockish.node.scheduling.durability import Durable
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.sqltext.transaction_control import Control

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StartingWorkspace(TransactionWorkspace, Protocol):
    """A workspace that begins on a snapshot."""

    def take_snapshot(
        self, base: Mapping[str, int], schema_version: int, moment: FileState, applied_clock: int
    ) -> None:
        """Take a snapshot of the file."""


class Lending:
    """Begins the workspaces of open transactions, and lends them to threads, which run the steps.

    Args:
        interactive: the code shared with other open transactions.
    """

    def __init__(self, engine: Engine, interactive: Interactive, durable: Durable, boundary: Boundary) -> None:
        self.engine, self.interactive, self._durable, self._boundary = engine, interactive, durable, boundary

    async def begin(self, work: TransactionWork, workspace: TransactionWorkspace, take: Callable[[], None]) -> None:
        """Give a transaction a workspace; ``take`` takes the snapshot, between two batches.

        The client is told contents of the snapshot, so this call waits until the snapshot is durable.
        """
        work.workspace, work.lent = workspace, True
        try:
            await self._boundary.begin(take, self._durable, is_open=self.engine.batch.is_dirty)
        finally:
            self._take_back(work)

    def take_snapshot(self, work: TransactionWork, workspace: StartingWorkspace) -> UnavailableError | None:
        """Begin a workspace on the file as it is now; return the error if the node lacks room for it.

        The transaction releases all that it has on the engine's connection.
        """
        error = self.begin_on(workspace)
        if error is None:
            self.interactive.forget(work)
        return error

    def begin_on(self, workspace: StartingWorkspace) -> UnavailableError | None:
        """Begin a workspace, as ``take_snapshot`` does, for a transaction whose rows stay where they are."""
        engine = self.engine
        try:
            workspace.take_snapshot(engine.applied, engine.schema_version, engine.moment(), engine.applied_clock)
        except UnavailableError as refused:
            return refused
        except Exception as failure:  # this runs in the node's loop, which must not get the error
            logger.exception("a workspace could not be opened")
            return UnavailableError(f"the node has no room for a workspace ({failure}); try again")
        return None

    async def run(self, work: TransactionWork, action: Callable[[], T]) -> T:
        """Run an action on a transaction's workspace in a thread, and return its result.

        Raises:
            BedrockishError: the error of the action.
        """
        work.lent = True
        try:
            return await trio.to_thread.run_sync(action)
        finally:
            work.over = work.over or (work.workspace is not None and work.workspace.is_over)
            self._take_back(work)

    def workspace(self, work: TransactionWork) -> Draft | OverlayTransaction:
        """Return a transaction's workspace.

        Raises:
            UnavailableError: the transaction has ended.
            ConflictError: the workspace has another schema than the one in force.
        """
        workspace = work.workspace
        if workspace is None:
            raise UnavailableError("the transaction was ended; it did not happen")
        if workspace.version != self.engine.schema_version:
            raise ConflictError(
                "the schema has changed since the transaction began; the transaction did not happen: run it again",
                table="schema",
            )
        assert isinstance(workspace, Draft | OverlayTransaction)
        return workspace

    async def columns(self, work: TransactionWork, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, by the tables that the workspace has.

        The errors are those of ``workspace``, and of its ``columns``.
        """
        workspace = self.workspace(work)
        return await self.run(work, lambda: workspace.columns(statement))

    async def control(self, work: TransactionWork, control: Control) -> None:
        """Run SAVEPOINT, RELEASE or ROLLBACK TO. The errors are those of ``workspace``, and of its ``control``."""
        workspace = self.workspace(work)
        await self.run(work, lambda: workspace.control(control))

    async def finish(self, work: TransactionWork) -> Prepared:
        """Return the prepared transaction for its commit. After a usage error the transaction stays open.

        The errors are those of the workspace's ``finish``, and for a draft also those of ``workspace``.
        """
        overlay = work.workspace if isinstance(work.workspace, OverlayTransaction) else None
        return await self.run(work, (overlay or self.workspace(work)).finish)

    def _take_back(self, work: TransactionWork) -> None:
        """Take a transaction back from its thread; if it was ended since it was lent, roll it back."""
        work.lent = False
        if work.ended:
            self.interactive.end(work)
