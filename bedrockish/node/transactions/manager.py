"""The open transactions of this node: their steps, their owners, their time limits and their ends.

The name of a transaction is the command id of its COMMIT. It belongs to one client's link and ends with the link. Its
changes are in memory until COMMIT passes them to the core, which cannot execute the transaction again.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from bedrockish.api.large_results import encode_in_steps
from bedrockish.api.requests import (
    NOTHING,
    OPEN,
    SERIALIZABLE,
    SESSION,
    SETTLED,
    Answer,
    Request,
    Statement,
    Token,
    as_part_of_trace,
)
from bedrockish.api.shown import is_refused
from bedrockish.api.wire import BEGIN, BEGUN, COMMIT, ROLLBACK, SETTLE, STATEMENTS, STREAM, STREAM_STEPS
from bedrockish.config.config import Bounds
from bedrockish.core.coordinator.request import out_of_service, write_refused
from bedrockish.core.coordinator.revalidation import invalidated
from bedrockish.core.node import Node
from bedrockish.core.protocol.records import NO_KEYS, Prepared, only_read
from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.ddl_workspace import Draft
from bedrockish.engine.execution.interactive import Interactive, is_of_schema
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.temporary import TemporaryTransaction
from bedrockish.errors import (
    BedrockishError,
    CommandIdError,
    DamagedError,
    DeadlineError,
    ForbiddenError,
    ForgottenError,
    UnavailableError,
    UsageError,
)
from bedrockish.node.scheduling.builds import Builds
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.snapshots import Boundary, Snapshots
from bedrockish.node.scheduling.statement_statistics import AnsweredRequest
from bedrockish.node.scheduling.workers import WorkerPool, cancelled, leaving
from bedrockish.node.transactions import steps
from bedrockish.node.transactions.callers import RULE, caller_of, has_room
from bedrockish.node.transactions.command_ids import check_digest, check_owner
from bedrockish.node.transactions.contested_rows import ContestedRows
from bedrockish.node.transactions.cursors import Streams
from bedrockish.node.transactions.ended import EndedErrors
from bedrockish.node.transactions.open import OpenTransaction, over_share
from bedrockish.node.transactions.own_workspace import LargeTransaction, OwnWorkspace
from bedrockish.node.transactions.places import Place, Services, StatementList
from bedrockish.node.transactions.private_copy import PrivateCopy
from bedrockish.node.transactions.programs import Programs
from bedrockish.node.transactions.shared_writer import SharedWriter
from bedrockish.node.transactions.temporary import SessionWorkspaces
from bedrockish.node.transactions.visibility import Visibility
from bedrockish.sqltext.session_values import failed_at
from bedrockish_journal.model.changes import encode_changes
from bedrockish_journal.model.transaction import ROWS

logger = logging.getLogger(__name__)

SHOWN_MAX, LISTED_MAX = 200, 50  # the most characters of a statement, and the most transactions, in a report
SHORTER = "divide it, and commit each part, or raise conflict_window_ms at all nodes"
USED_S = 1.0  # a transaction counts as used for this time after its last step
TURN_S, TURN_S_MAX = 0.02, 0.2  # how long a list of statements may run before the loop runs other tasks
REDO_S = 5e-6  # seconds to write one changed row again; a turn is at least as long as this takes for all rows


class Transactions:
    """Begins, runs and ends the open transactions of one node's clients.

    Why so large: It wires the parts of open transactions, which are most of the attributes.
    """

    def __init__(
        self,
        engine: Engine,
        core: Node,
        submit: steps.Submit,
        bounds: Bounds,
        workers: WorkerPool,
        faults: Faults,
        boundary: Boundary,
    ) -> None:
        self._engine, self._core, self._submit = engine, core, submit
        self._bounds, self._faults = bounds, faults
        engine.locks.others = ContestedRows(core.state)
        state = core.state
        self._interactive = Interactive(engine, lambda sets, base: invalidated(state, sets, base), state.schema.fits)
        self.boundary = boundary
        self.snapshots = Snapshots(engine, self._interactive.readers, boundary)
        self.builds = Builds(engine, core.state, boundary)
        self.streams = Streams(self._interactive, core, submit, self.snapshots, boundary, bounds, workers)
        self._visibility = Visibility(engine, core.state, self._interactive, submit, boundary, self._check_open)
        lease = lambda *asked: engine.connector().ids.lease(self._interactive.parts.db, *asked)  # noqa: E731
        self.programs = Programs(engine, core, submit, boundary, lease)
        services = Services(
            engine, core, self._interactive, self._visibility, submit, boundary, workers, self._check_open, self._close
        )
        self._shared_writer = SharedWriter(services, bounds.loop_ms_max / 1000)
        self._own_workspace, self._private_copy = OwnWorkspace(services), PrivateCopy(services)
        self._session_workspaces = SessionWorkspaces(services, bounds)
        self._open: dict[str, OpenTransaction] = {}
        self._ended = EndedErrors()
        self._is_closed = False
        self.is_leaving = False  # whether new transactions and streams are refused
        self.on_ran: Callable[[Sequence[str], AnsweredRequest], None] = lambda _texts, _ran: None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def size(self) -> int:
        """Approximately how many bytes the node keeps for all open transactions."""
        return sum(one.work.kept for one in self._open.values())

    # -- the interface for the event loop ----------------------------------------------------------------------------

    async def watch(self) -> None:
        """End transactions that are idle or open for too long, until cancelled."""
        idle_s = self._times()[0]
        while True:
            await trio.sleep(min(1.0, idle_s / 4, self._bounds.idle_stream_ms / 4000))
            self.streams.end_late()
            self._session_workspaces.end_late()
            self._end_late()

    def _end_late(self) -> None:
        """End the transactions that are idle or open for too long.

        Not inlined in ``watch``, whose loop variable would keep the rows of the last transaction in memory.
        """
        (idle_s, life_s), now = self._times(), time.monotonic()
        for tx in list(self._open.values()):
            if not tx.busy and now - tx.touched > idle_s:
                why = f"the transaction was idle for {idle_s:g} s; it did not happen: commit before a pause"
                self._end(tx, DeadlineError(why))
            elif not tx.busy and now - tx.since > life_s:
                why = f"the transaction was open for {life_s:g} s; it did not happen: {SHORTER}"
                self._end(tx, DeadlineError(why))

    def _times(self) -> tuple[float, float]:
        window_ms = self._core.state.settings.conflict_window_ms
        return min(self._bounds.idle_transaction_ms, window_ms) / 1000, window_ms / 1000

    def is_used(self, now_s: float) -> bool:
        """Return whether a transaction or a stream had a step less than a second ago."""
        is_open = any(one.busy or now_s - one.touched < USED_S for one in self._open.values())
        return is_open or self.streams.is_used(now_s - USED_S)

    def interrupt_owner(self, owner: object) -> None:
        """End the transactions of a client whose link has ended, including those that run a statement.

        A transaction whose COMMIT the client has sent goes on.
        """
        for tx in [one for one in self._open.values() if one.owner is owner and not (one.commits and one.busy)]:
            self._end(tx, UnavailableError("the client has gone; the transaction did not happen"))

    def cancel(self, owner: object, name: object, *, waits: bool = False) -> None:
        """End the transaction of this name if it runs a statement, for whose answer its client no longer waits.

        ``waits``: whether the statement waits in the client's session.
        """
        tx = self._open.get(name) if isinstance(name, str) else None
        if tx is not None and tx.owner is owner and (tx.busy or waits) and not tx.commits:
            self._end(tx, cancelled(f"transaction {name}"))

    def end_owner(self, owner: object) -> None:
        """End the transactions and streams of a client whose link has ended."""
        self.streams.end_owner(owner)
        self.interrupt_owner(owner)
        self._session_workspaces.end_owner(owner)

    def close(self) -> None:
        """End all transactions and streams, because the node stops."""
        self._is_closed = self.programs.is_closed = True
        self.streams.close()
        for tx in list(self._open.values()):
            self._end(
                tx, UnavailableError("the node is stopping; the transaction did not happen: run it at another node")
            )
        self._session_workspaces.close()
        self._interactive.close()

    # -- the interface for operators ---------------------------------------------------------------------------------

    async def list_by_order(self, _asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the open transactions, the oldest first, as plain values."""
        now = time.monotonic()
        found = sorted(self._open.values(), key=lambda one: one.since)[:LISTED_MAX]
        return {"open": [one.described(now) for one in found]}

    async def end_by_order(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """End an open transaction; its client gets an error that it did not happen.

        Raises:
            UsageError: no transaction with this id is open, or its COMMIT is under way.
        """
        tx = next((one for one in self._open.values() if one.id == asked.get("command")), None)
        if tx is None:
            raise UsageError(
                f"this node has no open transaction {asked.get('command')!r:.80}; it has ended, or is being committed"
            )
        logger.warning("an operator has ended transaction %r", tx.name)
        self._end(tx, UnavailableError("an operator has ended the transaction; it did not happen"))
        return {"ended": tx.id}

    # -- the interface for clients -----------------------------------------------------------------------------------

    async def handle(self, owner: object, op: str, request: Request) -> Answer:
        """Do one operation of a client on a transaction or a streamed result.

        Args:
            op: ``begin``, ``statements``, ``commit``, ``rollback`` or ``settle``; or one of ``Streams.handle``.
            request: names the transaction by its command, and brings the statements.

        Raises:
            BedrockishError: the operation failed; after a usage error the transaction is still open, unless the
                error's details say ``ended``.
        """
        return await steps.run(self._handle(owner, op, request))

    def begin(self, owner: object, op: str, request: Request) -> Answer | steps.RemainingSteps[Answer]:
        """Do one operation, as ``handle`` does, up to the first wait.

        Return the answer; or the rest of the operation, if it has to wait.
        """
        return steps.begin(self._handle(owner, op, request))

    def _handle(self, owner: object, op: str, request: Request) -> steps.Steps[Answer]:
        request = as_part_of_trace(request)
        state = self._core.state
        if self._is_closed:
            raise leaving()
        if self.is_leaving and op in (BEGIN, STREAM):
            raise UnavailableError("the node is stopping; the transaction did not happen: begin at another node")
        if not state.health.reads:
            raise out_of_service(state)
        if op in (STATEMENTS, BEGIN, STREAM):
            self._engine.memory.check()
        if op == BEGIN:
            begun = yield from self._begin(owner, request)
            if not request.statements:
                return begun
        elif op not in (STATEMENTS, COMMIT):
            return (yield from self._do_without_turn(owner, op, request))
        tx = self._find(owner, request.command)
        tx.busy += 1
        tx.commits = tx.commits or op == COMMIT
        try:
            if tx.turn.value and not self._engine.batch.is_in_thread:
                tx.turn.acquire_nowait()
            else:
                yield from self._take_turn(tx)
            try:
                return (yield from (self._commit if op == COMMIT else self._statements)(tx, request))
            finally:
                tx.turn.release()
        except DamagedError as error:
            self.boundary.fail(error)
            yield self.boundary.durable  # never returns: the node's loop ends
            raise
        except BedrockishError as error:
            why = None if self._open.get(tx.name) is tx else self._ended.find(tx.name, ended=True)
            if why is not None and not isinstance(why, UsageError):  # a UsageError: the client's own ROLLBACK
                raise why from error
            if tx.work.has_failed:
                ended = type(error)(f"{error.message}; the transaction was rolled back", **error.details, ended=True)
                self._end(tx, ended)
                raise ended from error
            if not isinstance(error, UsageError):
                self._end(tx, error)
            elif op == BEGIN:
                error.details = {**error.details, BEGUN: True}
            raise
        except Exception as error:  # a statement was executed in part, so the transaction must not be committed
            fault = self._faults.caught(f"a step of transaction {request.command}", error)
            self._end(tx, fault)
            raise fault from error
        finally:
            tx.busy -= 1
            tx.touched = time.monotonic()

    def _do_without_turn(self, owner: object, op: str, request: Request) -> steps.Steps[Answer]:
        """Do an operation that need not wait for earlier steps: ROLLBACK, SETTLE, or a step of a streamed result."""
        if op in STREAM_STEPS:
            return (yield from steps.wait(partial(self.streams.handle, owner, op, request)))
        if op == SETTLE:
            return (yield from steps.wait(partial(self._settle, request)))
        assert op == ROLLBACK
        tx = self._open.get(request.command)
        if tx is not None and tx.owner is owner:
            self._end(tx, UsageError("the transaction was rolled back"))
        return Answer(NOTHING, Token())

    async def columns(self, owner: object, command: str, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, with declared types, as an open transaction sees the tables.

        Raises:
            BedrockishError: the statement cannot be compiled, or no such transaction is open.
        """
        return await steps.run(self._columns(owner, command, statement))

    def _columns(self, owner: object, command: str, statement: Statement) -> steps.Steps[list[dict[str, Any]]]:
        tx = self._find(owner, command)
        tx.busy += 1
        try:
            yield from self._take_turn(tx)
            try:
                return (yield from self._place(tx.work).columns(tx, statement))
            finally:
                tx.turn.release()
        finally:
            tx.busy -= 1
            tx.touched = time.monotonic()

    def _take_turn(self, tx: OpenTransaction) -> steps.Steps[None]:
        """Wait for the transaction's earlier steps, and until no other thread uses the writer."""
        try:
            tx.turn.acquire_nowait()
        except trio.WouldBlock:
            yield tx.turn.acquire
        try:
            if self._engine.batch.is_in_thread:  # the step would block the loop until the thread has finished
                yield self.boundary.wait_for_writer
            self._find(tx.owner, tx.name)
        except BaseException:
            tx.turn.release()
            raise

    def _begin(self, owner: object, request: Request) -> steps.Steps[Answer]:
        caller, most = caller_of(owner, request.user), self._bounds.open_transactions_max
        if not has_room(most, (one.caller for one in self._open.values()), caller):
            raise UnavailableError(
                f"node {self._core.state.me} has {len(self._open)} open transactions; its limit is {most} "
                f"(open_transactions_max), of which {RULE}: end some, or try again"
            )
        # A client sends a BEGIN again if its answer was lost. The transaction of the first BEGIN is then not used.
        earlier = self._open.get(request.command)
        if earlier is not None and earlier.owner is owner:
            raise UsageError(f"the transaction {request.command} is open already; give each its own id")
        if earlier is not None:
            self._close(earlier)
        self._ended.forget(request.command)
        now = time.monotonic()
        work = TransactionWork(request.isolation == SERIALIZABLE, request.command, request.user)
        access = self._engine.access
        begun = replace(request, statements=())
        tx = OpenTransaction(begun, owner, caller, work, now, now, access.of(request.user), access.config)
        self._open[request.command] = tx
        if self._can_begin_at_once(request):
            return Answer(NOTHING, request.token)
        tx.busy += 1
        tx.turn.acquire_nowait()  # the statements that came with BEGIN wait for the end of BEGIN
        try:
            empty = replace(request, read=SESSION, statements=(), digest=OPEN)
            nothing = lambda: only_read(self._engine.applied, self._engine.schema_version)  # noqa: E731
            answer = yield from steps.wait(self._submit(empty, nothing, once=True))
        except CommandIdError as taken:
            self._end(tx, taken)
            raise
        except BaseException:
            self._close(tx)
            raise
        finally:
            tx.busy -= 1
            tx.touched = time.monotonic()
            tx.turn.release()
        self._find(owner, request.command)
        if answer.place is not None:
            error = UsageError(f"command {request.command} has happened before; give each transaction its own id")
            self._end(tx, error)
            raise error
        return answer

    def _can_begin_at_once(self, request: Request) -> bool:
        """Return whether a transaction can begin without the core: this node has all commits that the session has seen,
        and the journal shows that the command has not happened.
        """
        state, engine = self._core.state, self._engine
        if state.trouble or engine.batch.is_in_thread or not state.has_seen(request.token):
            return False
        try:
            return engine.journal.command_txid(request.command) is None
        except ForgottenError:
            return False

    def _find(self, owner: object, name: str) -> OpenTransaction:
        tx = self._open.get(name)
        if tx is not None and tx.owner is owner:
            if tx.config != self._engine.access.config:
                self._check_kept(tx)
            return tx
        error = self._ended.find(name, ended=True)
        if error is not None:
            raise error
        raise UnavailableError(
            f"node {self._core.state.me} has no open transaction {name}; it did not happen: run it again"
        )

    def _check_open(self, tx: OpenTransaction) -> None:
        """Raise the error of a transaction if it has ended while its step waited."""
        self._find(tx.owner, tx.name)

    def _check_kept(self, tx: OpenTransaction) -> None:
        """End a transaction if rights of its user were revoked since its last step."""
        try:
            tx.check_kept(self._engine.access)
        except ForbiddenError as error:
            self._end(tx, error)
            raise

    def _end(self, tx: OpenTransaction, why: BedrockishError) -> None:
        """End a transaction without a commit, and keep the error for its client's next step."""
        if self._close(tx):
            self._ended.keep(tx.name, why)

    def _close(self, tx: OpenTransaction) -> bool:
        if self._open.get(tx.name) is not tx:
            return False
        del self._open[tx.name]
        self._interactive.end(tx.work)
        return True

    # -- statements ------------------------------------------------------------------------------------------------

    def _statements(self, tx: OpenTransaction, request: Request) -> steps.Steps[Answer]:
        texts = StatementList(request.statements, self._bounds.result_bytes_max)
        began = time.monotonic()
        failed: BedrockishError | None = None
        until = began + _turn_s(tx.work) if len(texts.statements) > 1 else 0.0
        try:
            if request.temporary and self._place(tx.work) in (self._shared_writer, self._own_workspace):
                yield from self._session_workspaces.move(tx, request.temporary)
            while texts.position < len(texts.statements):
                yield from self._run_next(tx, texts)
                if texts.position < len(texts.statements) and time.monotonic() > until:
                    yield trio.lowlevel.checkpoint
                    self._check_open(tx)
                    until = time.monotonic() + _turn_s(tx.work)
        except BedrockishError as error:
            failed = error
        if failed is not None and self._open.get(tx.name) is tx:
            self._check_share(tx)  # the log of the transaction keeps a failed statement, too
        yield from self._visibility.wait_for_disk(tx)
        size = self._bounds.result_bytes_max - texts.room
        if request.statements:
            refused = failed is not None and is_refused(failed)
            took_s = time.monotonic() - began
            ran = AnsweredRequest(took_s, failed is not None, refused, 1, size, request.user, request.trace)
            self.on_ran(request.texts, ran)
        if failed is not None:
            raise failed
        return Answer(encode_in_steps(texts.results, size, by_column=request.by_column), self._visibility.token(tx))

    def _run_next(self, tx: OpenTransaction, texts: StatementList) -> steps.Steps[None]:
        """Run the next text, or several, at the transaction's place; a schema change runs in a private copy."""
        statement = texts.next
        tx.last = statement.sql[:SHOWN_MAX]
        if self._own_workspace.is_due(tx.work):
            yield from self._own_workspace.move(tx)
        place = self._place(tx.work)
        if place in (self._shared_writer, self._own_workspace) and is_of_schema(statement.sql):
            # ``changes_nothing`` uses the writer's schema, which may be newer than that of a workspace.
            stays = place is self._shared_writer and self._interactive.changes_nothing(statement.sql)
            place = place if stays else self._private_copy
        try:
            yield from place.run(tx, texts)
            self._check_writes(tx.work)
        except UsageError as error:
            error.details = {**error.details, **failed_at(texts.results)}
            raise
        self._check_share(tx)

    def _place(self, work: TransactionWork) -> Place:
        match work.workspace:
            case None:
                return self._shared_writer
            case LargeTransaction():
                return self._own_workspace
            case TemporaryTransaction():
                return self._session_workspaces
        assert isinstance(work.workspace, Draft)
        return self._private_copy

    def _check_share(self, tx: OpenTransaction) -> None:
        """Raise the error of a transaction that has grown beyond its caller's share of the memory."""
        error = over_share(tx, self._open.values(), self._engine.memory, self._bounds.open_transactions_max)
        if error is not None:
            self._end(tx, error)  # unlike other errors about sizes, which leave the transaction and its memory
            raise error

    def _check_writes(self, work: TransactionWork) -> None:
        """Raise the error of a transaction that writes at a node that may not lead."""
        state, has_schema = self._core.state, isinstance(work.workspace, Draft)
        if (work.wrote or has_schema) and not state.roster.is_voter(state.me):
            raise write_refused(state)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _commit(self, tx: OpenTransaction, request: Request) -> steps.Steps[Answer]:
        last = replace(tx.request, statements=(), digest=OPEN, timeout_s=request.timeout_s, longest_s=request.longest_s)
        return (yield from self._place(tx.work).commit(tx, last))

    async def _settle(self, request: Request) -> Answer:
        """Settle a command: if it has not happened, commit an empty transaction under its id, so that it never will."""
        tx = self._open.get(request.command)
        if tx is not None:
            check_owner(self._engine.access, tx.request.user or None, request.command, request.user, "open")
            self._end(tx, UnavailableError("its client has given the transaction up; it did not happen"))
        settled = await self.programs.settle(request)
        if settled is not None:
            return settled

        def empty() -> Prepared:
            changes = encode_changes([])
            engine = self._engine
            return Prepared(dict(engine.applied), engine.schema_version, False, ROWS, NO_KEYS, changes, NOTHING)

        answer = await self._submit(replace(request, statements=(), read=SESSION, digest=SETTLED), empty, once=True)
        if request.digest and answer.results != NOTHING:  # a settled command has no results
            entry = self._engine.journal.find_command(request.command)
            if entry is not None:
                check_digest(entry.transaction.digest_of(request.command), request.command, request.digest)
        return answer


def _turn_s(work: TransactionWork) -> float:
    return max(TURN_S, min(TURN_S_MAX, REDO_S * len(work.changes)))
