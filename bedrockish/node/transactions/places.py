"""The base of the places where the statements of open transactions run.

A transaction begins on the writing connection, which all transactions of the node share (``shared_writer``). Its next
statement can move it: to a workspace of its own if it has changed many rows (``own_workspace``), to the workspace of
its session if that has TEMP objects (``temporary``), and to a private copy of the database if the statement changes the
schema (``private_copy``). It stays there until its end.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import trio

from bedrockish.api.requests import STALE, STRICT, Answer, Request, Result, Statement
from bedrockish.core.node import Node
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.ddl_workspace import Draft
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.merging import may_share
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.errors import UnavailableError, schema_changed, transaction_ended
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.node.scheduling.workers import WorkerPool
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.open import OpenTransaction, checked
from bedrockish.node.transactions.visibility import Visibility, checked_read
from bedrockish.sqltext.transaction_control import Control, savepoint_of

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class StatementList:
    """The statements of a request, the results so far, and the bytes that further results may take."""

    statements: Sequence[Statement]
    room: int
    results: list[Result] = field(default_factory=list)
    alone: int = 0  # statements before this index must run one by one

    @property
    def position(self) -> int:
        """The index of the next statement."""
        return len(self.results)

    @property
    def next(self) -> Statement:
        """The next statement."""
        return self.statements[len(self.results)]

    @property
    def rest(self) -> Sequence[Statement]:
        """The statements that have no result yet."""
        return self.statements[len(self.results) :]

    def add(self, result: Result, size: int = 0) -> None:
        """Add the result of the next statement; ``size`` is about how many bytes it takes."""
        self.results.append(result)
        self.room -= size

    @property
    def control(self) -> Control | None:
        """The next statement, if it is a SAVEPOINT, RELEASE or ROLLBACK TO; else None."""
        return savepoint_of(self.next.sql, self.next.params)

    def add_control(self, work: TransactionWork) -> None:
        """Add the result of a SAVEPOINT, RELEASE or ROLLBACK TO."""
        self.add(Result((), [], -1, work.lastrowid or None))


@dataclass(slots=True)
class Services:
    """The parts of the node that every place uses."""

    engine: Engine
    core: Node
    interactive: Interactive  # the code shared by all open transactions
    visibility: Visibility
    submit: steps.Submit
    boundary: Boundary
    workers: WorkerPool
    check_open: Callable[[OpenTransaction], None]  # raises the error of the transaction if it has ended
    close: Callable[[OpenTransaction], object]  # ends the transaction here, because its COMMIT has begun

    async def take_clock(self, tx: OpenTransaction) -> None:
        """Give a transaction its clock: later than all commits that were acknowledged anywhere before this call."""
        asks = (Statement("SELECT transaction_clock()"),)
        await self.submit(replace(tx.request, command=f"{tx.name}+clock"[-200:], statements=asks, read=STALE))
        self.check_open(tx)
        # This value is above the clock that a majority has reached, and above all commits that the statement will see.
        tx.work.clock = self.engine.scope.take()


class Place(ABC):
    """A place where the statements of open transactions run."""

    def __init__(self, services: Services) -> None:
        self._services, self._engine, self._interactive = services, services.engine, services.interactive

    @abstractmethod
    def run(self, tx: OpenTransaction, texts: StatementList) -> steps.Steps[None]:
        """Run the next text, or several, and add their results.

        Raises:
            BedrockishError: a statement failed; the results of those before it were added.
        """

    @abstractmethod
    def commit(self, tx: OpenTransaction, last: Request) -> steps.Steps[Answer]:
        """Commit a transaction.

        Args:
            last: the transaction as a request without statements, which the core decides.

        Raises:
            BedrockishError: the error of the COMMIT.
        """

    @abstractmethod
    def columns(self, tx: OpenTransaction, statement: Statement) -> steps.Steps[list[dict[str, Any]]]:
        """Return the columns of a statement's result, with declared types, as the transaction sees the tables.

        Raises:
            BedrockishError: the statement cannot be compiled.
        """

    def _commit_rows(self, tx: OpenTransaction, prepared: Prepared, last: Request) -> steps.Steps[Answer]:
        """Commit a transaction that has changed only rows, or none."""
        prepared = checked_read(tx, prepared)
        token = self._services.visibility.token(tx)
        self._services.close(tx)
        if prepared.readonly and tx.request.read != STRICT and not prepared.clock:
            return Answer(prepared.result, token)
        prepare = checked(self._engine.access, last.user, lambda: prepared)
        return (yield from steps.wait(self._services.submit(last, prepare, once=True, shares=may_share(prepared))))


class WorkspacePlace(Place):
    """A place where each transaction has a workspace (a private snapshot), whose methods run in threads."""

    async def begin(self, work: TransactionWork, workspace: Draft | OverlayTransaction, *, moves: bool) -> None:
        """Give a transaction a workspace, which begins on a durable snapshot of all that is applied.

        Args:
            moves: whether the rows of the transaction move to the workspace. It then releases all that it has on the
                engine's connection.

        Raises:
            ConflictError: a commit after the base of a transaction that moves has changed data or a schema on which it
                rests.
            UnavailableError: the node has no room for the workspace, or the transaction has ended.
        """
        engine, interactive = self._engine, self._interactive

        def take_snapshot() -> None:
            if work.ended:
                raise transaction_ended()
            if moves:
                interactive.check_schema(work)
                error = interactive.overtaken(work, moves=True)
                if error is not None:
                    raise error
            try:
                workspace.take_snapshot(engine.flushed, engine.file_state())
            except UnavailableError:
                raise
            except Exception as failure:
                logger.exception("a workspace could not be opened")
                raise UnavailableError(f"the node has no room for a workspace ({failure}); try again") from failure
            if moves:
                interactive.release_connections(work)

        work.workspace, work.in_thread = workspace, True
        try:  # ``result_of`` waits for the disk, because the client will see rows of the snapshot
            await self._services.boundary.result_of(take_snapshot)
        finally:
            self._take_back(work)
        if work.ended:
            raise transaction_ended()

    async def run_in_thread(self, work: TransactionWork, action: Callable[[], T]) -> T:
        """Run an action on a transaction's workspace in a thread, and return its result.

        Raises:
            UnavailableError: the transaction has ended.
            BedrockishError: the error of the action.
        """
        if work.ended:
            raise transaction_ended()
        work.in_thread = True
        try:
            return await trio.to_thread.run_sync(action)
        finally:
            work.has_failed = work.has_failed or (work.workspace is not None and work.workspace.has_failed)
            self._take_back(work)

    def _take_back(self, work: TransactionWork) -> None:
        """Note that no thread works for a transaction any more; roll it back if it was ended in the meantime."""
        work.in_thread = False
        if work.ended:
            self._interactive.end(work)

    def workspace(self, work: TransactionWork) -> Draft | OverlayTransaction:
        """Return a transaction's workspace.

        Raises:
            UnavailableError: the transaction has ended.
            ConflictError: the workspace has another schema than the one in force.
        """
        workspace = work.workspace
        if workspace is None:
            raise transaction_ended()
        assert isinstance(workspace, Draft | OverlayTransaction)
        version = workspace.flushed.schema
        is_alike = not isinstance(workspace, Draft) and self._interactive.fits(version)
        if version != self._engine.schema_version and not is_alike:
            raise schema_changed()
        return workspace

    def run(self, tx: OpenTransaction, texts: StatementList) -> steps.Steps[None]:
        """Run the next text in the transaction's workspace."""
        work, statement, control, room = tx.work, texts.next, texts.control, texts.room
        workspace = self.workspace(work)
        if control is not None:
            yield partial(self.run_in_thread, work, partial(workspace.control, control))
            texts.add_control(work)
            return
        last, size = yield from steps.wait(partial(self.run_in_thread, work, partial(workspace.run, statement, room)))
        self._services.check_open(tx)
        texts.add(last, size)

    def columns(self, tx: OpenTransaction, statement: Statement) -> steps.Steps[list[dict[str, Any]]]:
        """Return the columns of a statement's result, by the tables that the workspace has."""
        columns = partial(self.workspace(tx.work).columns, statement)
        return (yield from steps.wait(partial(self.run_in_thread, tx.work, columns)))

    def _finish(self, tx: OpenTransaction) -> steps.Steps[Prepared]:
        """Return the prepared transaction for its commit; the transaction stays open after a usage error."""
        work = tx.work
        overlay = work.workspace if isinstance(work.workspace, OverlayTransaction) else None
        finish = (overlay or self.workspace(work)).finish  # ``workspace`` checks that a draft has the schema in force
        prepared = yield from steps.wait(partial(self.run_in_thread, work, finish))
        self._services.check_open(tx)
        return prepared
