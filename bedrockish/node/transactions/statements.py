"""Runs statements of open transactions: short ones in the loop, long ones in workers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from bedrockish.api.requests import Request, Result, Statement
from bedrockish.core.coordinator.revalidation import invalidated, overtaken
from bedrockish.core.node import Node
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import Session
from bedrockish.engine.execution.overlay_transaction import resume
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements.classify import READ, Piece
from bedrockish.errors import ConflictError
from bedrockish.node.scheduling.workers import WorkerPool
from bedrockish.node.transactions.steps import Steps, wait


class StatementRunner:
    """Runs statements; one that takes longer than ``budget_s`` seconds in the loop runs again in a worker."""

    def __init__(
        self, engine: Engine, core: Node, interactive: Interactive, workers: WorkerPool, budget_s: float
    ) -> None:
        self._engine, self._core, self._interactive, self._workers = engine, core, interactive, workers
        self._budget_s = budget_s

    def run(
        self, session: Session, request: Request, piece: Piece, params: tuple[object, ...], room: int
    ) -> Steps[tuple[Result, int]]:
        """Run one statement, as ``Interactive.run`` does. The transaction may end while it runs.

        Raises:
            ConflictError: data on which the transaction rests has changed.
            BedrockishError: as ``Interactive.run``.
        """
        session.looks(piece)
        if not self._workers.expects(piece.sql):
            try:
                found = self._interactive.run(session, piece, params, room, self._budget_s)
                if self._workers.long_texts:
                    self._workers.was_short(piece.sql)
                return found
            except TakesLongError:
                self._workers.took_long(piece.sql)
        self._interactive.start(session)
        if piece.kind == READ and session.snapshot is not None and not session.owns(piece):
            return (yield from wait(partial(self._on_snapshot, session, piece, params, room)))
        return (yield from wait(partial(self._on_overlay, session, request, (piece, params))))

    def run_alike(self, session: Session, statements: Sequence[Statement], first: int) -> tuple[list[Result], int]:
        """Run consecutive statements together in the loop, as ``Interactive.run_alike`` does, unless they take long."""
        if session.workspace is not None or self._workers.expects(statements[first].sql):
            return [], first
        return self._interactive.run_alike(session, statements, first, self._budget_s)

    def is_long(self, statement: Statement) -> bool:
        """Return whether a text is to be compiled in a worker.

        Raises:
            TooLargeError: the text is too large to be compiled at all.
        """
        return self._interactive.parts.executor.is_long(statement)

    def run_long(self, session: Session, request: Request, statement: Statement) -> Steps[tuple[Result, int]]:
        """Compile and run a text in a worker; return the result of its last statement. Raises as ``run``."""
        self._interactive.check_schema(session)
        self._interactive.start(session)
        return (yield from wait(partial(self._on_overlay, session, request, statement)))

    async def _on_snapshot(
        self, session: Session, piece: Piece, params: tuple[object, ...], room: int
    ) -> tuple[Result, int]:
        """Read on the transaction's own snapshot."""
        assert session.snapshot is not None
        session.lent = True
        scope = self._workers.scope(session.command, session.clock)
        lengths = self._interactive.parts.executor.lengths(piece)
        try:
            rows, size = await trio.to_thread.run_sync(session.snapshot.run, piece, params, room, lengths, scope)
        finally:
            session.lent = False
            if session.ended:
                self._interactive.end(session)
        if session.snapshot is not None:  # otherwise the transaction has ended, and its reads are not needed
            session.saw(piece, params, rows, session.snapshot.query)
            assert session.sets is not None
            session.sets.lock(scope.take_locked())
        return Result(piece.columns, rows, -1, session.lastrowid or None), size

    async def _on_overlay(
        self, session: Session, request: Request, statement: Statement | tuple[Piece, tuple[Any, ...]]
    ) -> tuple[Result, int]:
        """Run a statement in a worker, on the transaction's changes over a newer snapshot, if no commit conflicts."""
        self._interactive.step_out(session)
        count, done = len(session.changes), Session(session.serializable, session.command, request.user)
        done.changes, done.lastrowid, done.clock = list(session.changes), session.lastrowid, session.clock
        done.wrote, done.defers = count > 0, session.defers
        try:
            result, error = await self._workers.run(request, lambda workspace: resume(workspace, done, statement))
        finally:
            if session.ended:  # it ended while it was resumed, so only this code can release the rows it then locked
                self._engine.locks.release(session.command)
        sets = session.sets
        assert sets is not None
        assert done.sets is not None
        if isinstance(error, ConflictError):
            raise error
        sets.merge(done.sets)
        self._move(session, done)
        session.changes += done.changes[count:]
        session.blurred += done.blurred
        session.size = max(session.size, done.size)
        session.lastrowid, session.over = done.lastrowid, done.over
        session.unsure, session.defers = session.unsure or done.unsure, done.defers
        session.wrote = session.wrote or done.wrote
        session.looked_behind = session.looked_behind or done.looked_behind
        session.reads_system = session.reads_system or done.reads_system
        if error is not None:
            raise error
        assert result is not None
        return result, sum(len(row) for row in result.rows)

    def _move(self, session: Session, done: Session) -> None:
        """Move the transaction's base to the present commits, if none of them conflicts with it."""
        assert session.sets is not None
        assert done.sets is not None
        assert session.base is not None
        state = self._core.state
        self._interactive.check_schema(session)
        error = invalidated(state, session.sets, session.base)
        config = state.roster.membership.version
        error = error or overtaken(state, done.sets.looked_at(), session.base, config=config)
        if error is not None:
            raise error
        if session.serializable:
            session.base, session.base_clock = dict(self._engine.applied), self._engine.applied_clock
            if session.snapshot is not None:
                self._interactive.readers.give_back(session.snapshot)
                session.snapshot = None
