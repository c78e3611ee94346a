"""The writing connection, which the open transactions of a node share.

Short statements run in the loop, long ones in workers. Reads run on snapshots, until the transaction writes.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from bedrockish.api.requests import Answer, Request, Result, Statement
from bedrockish.core.coordinator.revalidation import overtaken
from bedrockish.engine.execution.open_transaction import Logged, TransactionWork
from bedrockish.engine.execution.overlay_transaction import resume
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.engine.statements.compiled import READ, Compiled
from bedrockish.errors import ConflictError, ConstraintError, SqlError, schema_changed, transaction_ended
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.open import OpenTransaction
from bedrockish.node.transactions.places import Place, Services, StatementList
from bedrockish_journal.model.vector import covers

AGAIN_S = 0.005  # a faster read is repeated on a newer snapshot if later commits have written rows that it has read


class SharedWriter(Place):
    """The writing connection; a statement that takes more than ``budget_s`` seconds is run again by a worker."""

    def __init__(self, services: Services, budget_s: float) -> None:
        super().__init__(services)
        self._budget_s = budget_s

    def run(self, tx: OpenTransaction, texts: StatementList) -> steps.Steps[None]:
        """Run the next text, or several consecutive statements with the same text together."""
        work = tx.work
        if texts.alone <= texts.position < len(texts.statements) - 1 and self._run_alike(work, texts):
            return
        control = texts.control
        if control is not None:
            self._interactive.control(work, control)
            work.log_statement(Logged(control))
            texts.add_control(work)
            return
        statement = texts.next
        try:
            last, size = yield from self._run_text(tx, statement, texts.room)
        except (ConstraintError, SqlError) as error:
            work.log_statement(Logged(statement, failure=error.message))
            raise
        work.log_statement(Logged(statement, last), size)
        texts.add(last, size)

    def _run_alike(self, work: TransactionWork, texts: StatementList) -> bool:
        """Run consecutive statements with the same text together; return whether any was run."""
        if self._services.workers.expects(texts.next.sql):
            texts.alone = texts.position
            return False
        found, texts.alone = self._interactive.run_alike(work, texts.statements, texts.position, self._budget_s)
        for statement, result in zip(texts.rest, found, strict=False):
            if work.log is None:
                break
            work.log_statement(Logged(statement, result))
        texts.results += found
        return bool(found)

    def _run_text(self, tx: OpenTransaction, statement: Statement, room: int) -> steps.Steps[tuple[Result, int]]:
        """Run one text; return the result of its last statement, and about how many bytes the results take.

        Raises:
            TooLargeError: the text is too large to be compiled.
            BedrockishError: as ``Interactive.pieces`` and ``Interactive.run``.
        """
        services, work, interactive = self._services, tx.work, self._interactive
        if interactive.parts.executor.texts.is_long(statement):  # a worker compiles it
            yield from services.visibility.catch_up(tx)
            interactive.check_schema(work)
            interactive.start(work)
            on_overlay = partial(self._on_overlay, work, tx.request, statement, room)
            found = yield from self._with_clock(tx, lambda: steps.wait(on_overlay))
            services.check_open(tx)
            return found
        taken = 0
        last: Result | None = None
        for piece, params in interactive.pieces(work, statement):
            if piece.reads_system:
                yield from services.visibility.catch_up(tx)
            if interactive.needs_snapshot(work, piece):
                yield from self._take_snapshot(tx)
            last, size = yield from self._run_piece(tx, piece, params, room - taken)
            taken += size
        assert last is not None
        return last, taken

    def _run_piece(
        self, tx: OpenTransaction, piece: Compiled, params: tuple[Any, ...], room: int
    ) -> steps.Steps[tuple[Result, int]]:
        """Run one statement; repeat a short read on a newer snapshot if commits have written rows that it has read."""
        work, visibility, check_open = tx.work, self._services.visibility, self._services.check_open
        began, was_current = time.monotonic(), piece.kind == READ and visibility.is_current(work)
        before = dict(self._engine.applied) if was_current else {}
        run = partial(self._run_once, work, tx.request, piece, params, room)
        found = yield from self._with_clock(tx, run)
        check_open(tx)
        if was_current and time.monotonic() - began < AGAIN_S and not visibility.is_current(work):
            # Later commits have written rows that the transaction has read: it would fail as soon as it writes.
            if self._engine.batch.is_dirty:
                yield self._services.boundary.durable
                check_open(tx)
            if visibility.move_up(work, before):
                found = yield from run()
                check_open(tx)
        return found

    def _with_clock(
        self, tx: OpenTransaction, run: Callable[[], steps.Steps[tuple[Result, int]]]
    ) -> steps.Steps[tuple[Result, int]]:
        """Run a statement; if it needs the transaction's clock, take a clock and run the statement again."""
        try:
            return (yield from run())
        except ClockNeededError:
            yield partial(self._services.take_clock, tx)
            return (yield from run())

    def _run_once(
        self, work: TransactionWork, request: Request, piece: Compiled, params: tuple[object, ...], room: int
    ) -> steps.Steps[tuple[Result, int]]:
        """Run one statement in the loop, or in a worker if it takes long; the transaction may end in that time."""
        work.inspect(piece)
        workers = self._services.workers
        if not workers.expects(piece.sql):
            try:
                found = self._interactive.run(work, piece, params, room, self._budget_s)
                if workers.long_texts:
                    workers.was_short(piece.sql)
                return found
            except TakesLongError:
                workers.took_long(piece.sql)
        self._interactive.start(work)
        if piece.kind == READ and work.snapshot is not None and not work.owns(piece):
            return (yield from steps.wait(partial(self._on_snapshot, work, piece, params, room)))
        return (yield from steps.wait(partial(self._on_overlay, work, request, (piece, params), room)))

    async def _on_snapshot(
        self, work: TransactionWork, piece: Compiled, params: tuple[object, ...], room: int
    ) -> tuple[Result, int]:
        if work.ended:  # before this task began
            raise transaction_ended()
        assert work.snapshot is not None
        work.in_thread = True
        scope = self._services.workers.scope(work.command, work.clock)
        lengths = self._interactive.parts.executor.texts.lengths(piece)
        try:
            rows, size = await trio.to_thread.run_sync(work.snapshot.run, piece, params, room, lengths, scope)
        finally:
            work.in_thread = False
            if work.ended:
                self._interactive.end(work)
        if work.snapshot is not None:  # otherwise the transaction has ended
            if work.serializable and work.schema != self._engine.schema_version:
                raise schema_changed()  # the plan of its reads must use the statistics with which the statement has run
            work.read_unchanged(piece, params, rows, work.snapshot.query)
            assert work.sets is not None
            work.sets.add_locked(scope.take_locked())
        return Result(piece.columns, rows, -1, work.lastrowid or None), size

    async def _on_overlay(
        self,
        work: TransactionWork,
        request: Request,
        statement: Statement | tuple[Compiled, tuple[Any, ...]],
        room: int,
    ) -> tuple[Result, int]:
        """Run a statement in a worker, on the transaction's changes over a newer snapshot, if no commit conflicts."""
        if work.ended:  # before this task began: no call would stop the statement
            raise transaction_ended()
        self._interactive.swap_out_if_in(work)
        sets, done = work.sets, TransactionWork(work.serializable, work.command, work.user)
        assert sets is not None
        done.follow(work)
        done.sets = None  # ``resume`` makes them on the worker's connection
        run = partial(resume, work=done, statement=statement, room=room)
        with trio.CancelScope() as scope:
            work.stop = scope.cancel
            try:
                result, size, error = await self._services.workers.run(request, run)
            finally:
                work.stop = None
                if (
                    work.ended
                ):  # the transaction ended during the run, and the statement may have locked more rows since
                    self._engine.locks.release(work.command)
        if scope.cancelled_caught:
            raise transaction_ended()
        if isinstance(error, ConflictError):
            raise error
        assert done.sets is not None
        sets.merge(done.sets)
        self._move_base(work, done)
        done.sets = work.sets  # not ``sets``, if statistics were gathered during the run
        work.follow(done)
        if error is not None:
            raise error
        assert result is not None
        return result, size

    def _move_base(self, work: TransactionWork, done: TransactionWork) -> None:
        """Move the transaction to the present commits, if none of them conflicts with it or with ``done``."""
        state, base = self._services.core.state, work.base
        assert done.sets is not None
        assert base is not None
        work.read_without_keys = work.read_without_keys or done.read_without_keys  # a text that the worker compiled
        self._interactive.check_schema(work)
        self._interactive.move(work)
        error = overtaken(state, done.sets.looked_at(), base, config=state.roster.membership.version)
        if error is not None:
            raise error

    def _take_snapshot(self, tx: OpenTransaction) -> steps.Steps[None]:
        """Take a snapshot of the last batch, or of the next one if the last lacks entries that the session has seen."""
        engine, flushed, work = self._engine, self._engine.flushed, tx.work
        has_seen = covers(flushed.applied, tx.request.token.vector) and flushed.schema == engine.schema_version
        has_seen = has_seen and covers(flushed.applied, tx.required_vector or {})
        if not engine.batch.is_in_thread and (not engine.batch.is_dirty or (has_seen and work.base is None)):
            self._interactive.take_snapshot(work)
            return
        # A snapshot taken after the transaction's end would never be given back.
        take = lambda: None if work.ended else self._interactive.take_snapshot(work)  # noqa: E731
        yield partial(self._services.boundary.result_of, take)
        self._services.check_open(tx)

    def columns(self, tx: OpenTransaction, statement: Statement) -> steps.Steps[list[dict[str, Any]]]:
        """Return the columns of a statement's result by the node's tables."""
        yield from ()
        return self._engine.explain(statement, tx.work.user, columns=True)

    def commit(self, tx: OpenTransaction, last: Request) -> steps.Steps[Answer]:
        """Commit the rows of the transaction."""
        return (yield from self._commit_rows(tx, self._interactive.finish(tx.work), last))
