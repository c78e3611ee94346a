"""The places where the statements of open transactions run: what they share.

A transaction begins on the writing connection, which all transactions of the node share (``shared_writer``). Its next
statement can move it: to a workspace of its own if it has changed many rows (``own_workspace``), to the workspace of
its session if that has TEMP objects (``temporary``), and to a private copy of the database if the statement changes the
schema (``private_copy``). It stays there until its end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bedrockish.api.requests import STALE, STRICT, Answer, Request, Result, Statement
from bedrockish.core.node import Node
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.merging import may_share
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.node.scheduling.durability import Durable, Submit
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish.node.scheduling.workers import WorkerPool
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.lending import Lending
from bedrockish.node.transactions.open import OpenTransaction, checked
from bedrockish.node.transactions.visibility import Visibility, checked_read
from bedrockish.sqltext.transaction_control import Control, control_of


@dataclass(slots=True)
class StatementList:
    """The statements of a request, the results so far, and the bytes that further results may take."""

    statements: Sequence[Statement]
    room: int
    results: list[Result] = field(default_factory=list)
    alone: int = 0  # the index before which statements run one by one

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
        return control_of(self.next.sql, self.next.params)

    def add_control(self, work: TransactionWork) -> None:
        """Add the result of a SAVEPOINT, RELEASE or ROLLBACK TO."""
        self.add(Result((), [], -1, work.lastrowid or None))


@dataclass(slots=True)
class Services:
    """The parts of the node that every place uses."""

    engine: Engine
    core: Node
    lending: Lending
    visibility: Visibility
    submit: Submit
    submission: steps.Submissions
    durable: Durable
    boundary: Boundary  # runs actions between two batches
    workers: WorkerPool
    check_open: Callable[[OpenTransaction], None]  # raises the error of the transaction if it has ended
    close: Callable[[OpenTransaction], object]  # ends the transaction here, because its COMMIT has begun

    def reach_level(self, tx: OpenTransaction) -> steps.Steps[None]:
        """Have a strict transaction see every commit that was acknowledged before, unless it does so already."""
        if tx.request.read == STRICT and tx.level is None:
            yield from self.visibility.reach_level(tx, partial(self.check_open, tx))

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
        self._services, self._engine, self._lending = services, services.engine, services.lending

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

    def columns(self, tx: OpenTransaction, statement: Statement) -> steps.Steps[list[dict[str, Any]]]:
        """Return the columns of a statement's result, with declared types, as the transaction sees the tables.

        Raises:
            BedrockishError: the statement cannot be compiled.
        """
        return (yield from steps.wait(partial(self._lending.columns, tx.work, statement)))

    def _run_in_workspace(self, tx: OpenTransaction, texts: StatementList) -> steps.Steps[None]:
        """Run the next text in the workspace that the transaction has."""
        work, statement, control, room = tx.work, texts.next, texts.control, texts.room
        if control is not None:
            yield partial(self._lending.control, work, control)
            texts.add_control(work)
            return
        workspace = self._lending.workspace(work)
        last, size = yield from steps.wait(partial(self._lending.run, work, lambda: workspace.run(statement, room)))
        self._services.check_open(tx)
        texts.add(last, size)

    def _finish(self, tx: OpenTransaction) -> steps.Steps[Prepared]:
        prepared = yield from steps.wait(partial(self._lending.finish, tx.work))
        self._services.check_open(tx)
        return prepared

    def _commit_rows(self, tx: OpenTransaction, prepared: Prepared, last: Request) -> steps.Steps[Answer]:
        """Commit a transaction that has changed only rows, or none."""
        prepared = checked_read(tx, prepared)
        token = self._services.visibility.token(tx)
        self._services.close(tx)
        if prepared.readonly and tx.request.read != STRICT and not prepared.clock:
            return Answer(prepared.result, token)
        prepare = checked(self._engine.access, last.user, lambda: prepared)
        return (yield from steps.wait(self._services.submission(last, prepare, shares=may_share(prepared))))
