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
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import resume
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements.compiled import READ, Compiled
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
        self, work: TransactionWork, request: Request, piece: Compiled, params: tuple[object, ...], room: int
    ) -> Steps[tuple[Result, int]]:
        """Run one statement, as ``Interactive.run`` does. The transaction may end while it runs.

        Raises:
            ConflictError: data on which the transaction rests has changed.
            BedrockishError: as ``Interactive.run``.
        """
        work.inspect(piece)
        if not self._workers.expects(piece.sql):
            try:
                found = self._interactive.run(work, piece, params, room, self._budget_s)
                if self._workers.long_texts:
                    self._workers.was_short(piece.sql)
                return found
            except TakesLongError:
                self._workers.took_long(piece.sql)
        self._interactive.start(work)
        if piece.kind == READ and work.snapshot is not None and not work.owns(piece):
            return (yield from wait(partial(self._on_snapshot, work, piece, params, room)))
        return (yield from wait(partial(self._on_overlay, work, request, (piece, params), room)))

    def run_alike(self, work: TransactionWork, statements: Sequence[Statement], first: int) -> tuple[list[Result], int]:
        """Run consecutive statements together in the loop, as ``Interactive.run_alike`` does, unless they take long."""
        if work.workspace is not None or self._workers.expects(statements[first].sql):
            return [], first
        return self._interactive.run_alike(work, statements, first, self._budget_s)

    def is_long(self, statement: Statement) -> bool:
        """Return whether a text is to be compiled in a worker.

        Raises:
            TooLargeError: the text is too large to be compiled at all.
        """
        return self._interactive.parts.executor.texts.is_long(statement)

    def run_long(
        self, work: TransactionWork, request: Request, statement: Statement, room: int
    ) -> Steps[tuple[Result, int]]:
        """Compile and run a text in a worker; return its last statement's result. The errors are those of ``run``."""
        self._interactive.check_schema(work)
        self._interactive.start(work)
        return (yield from wait(partial(self._on_overlay, work, request, statement, room)))

    async def _on_snapshot(
        self, work: TransactionWork, piece: Compiled, params: tuple[object, ...], room: int
    ) -> tuple[Result, int]:
        assert work.snapshot is not None
        work.lent = True
        scope = self._workers.scope(work.command, work.clock)
        lengths = self._interactive.parts.executor.texts.lengths(piece)
        try:
            rows, size = await trio.to_thread.run_sync(work.snapshot.run, piece, params, room, lengths, scope)
        finally:
            work.lent = False
            if work.ended:
                self._interactive.end(work)
        if work.snapshot is not None:  # otherwise the transaction has ended, and its reads are not needed
            work.read_unchanged(piece, params, rows, work.snapshot.query)
            assert work.sets is not None
            work.sets.lock(scope.take_locked())
        return Result(piece.columns, rows, -1, work.lastrowid or None), size

    async def _on_overlay(
        self,
        work: TransactionWork,
        request: Request,
        statement: Statement | tuple[Compiled, tuple[Any, ...]],
        room: int,
    ) -> tuple[Result, int]:
        """Run a statement in a worker, on the transaction's changes over a newer snapshot, if no commit conflicts."""
        self._interactive.step_out(work)
        count, done = len(work.changes), TransactionWork(work.serializable, work.command, request.user)
        done.changes, done.lastrowid, done.clock = list(work.changes), work.lastrowid, work.clock
        done.wrote, done.defers = count > 0, work.defers
        done.size, done.searched = work.size, work.searched
        try:
            run = partial(resume, work=done, statement=statement, room=room)
            result, size, error = await self._workers.run(request, run)
        finally:
            if work.ended:  # the transaction ended during the run: only this code can release its locks
                self._engine.locks.release(work.command)
        sets = work.sets
        assert sets is not None
        assert done.sets is not None
        if isinstance(error, ConflictError):
            raise error
        sets.merge(done.sets)
        self._move_base(work, done)
        work.changes += done.changes[count:]
        work.blurred += done.blurred
        work.size, work.searched = done.size, done.searched
        work.lastrowid, work.over = done.lastrowid, done.over
        work.unsure, work.defers = work.unsure or done.unsure, done.defers
        work.wrote = work.wrote or done.wrote
        work.read_without_keys = work.read_without_keys or done.read_without_keys
        work.reads_system = work.reads_system or done.reads_system
        if error is not None:
            raise error
        assert result is not None
        return result, size

    def _move_base(self, work: TransactionWork, done: TransactionWork) -> None:
        """Move the transaction's base to the present commits, if none of them conflicts with it."""
        assert work.sets is not None
        assert done.sets is not None
        assert work.base is not None
        state = self._core.state
        self._interactive.check_schema(work)
        error = invalidated(state, work.sets, work.base)
        config = state.roster.membership.version
        error = error or overtaken(state, done.sets.looked_at(), work.base, config=config)
        if error is not None:
            raise error
        if work.serializable:
            work.base, work.base_clock = dict(self._engine.applied), self._engine.applied_clock
            if work.snapshot is not None:
                self._interactive.readers.give_back(work.snapshot)
                work.snapshot = None
