"""One open transaction of a program, executed in its own process on a node's file. The node learns of it at COMMIT.

The engine's executor runs it in a ``Workspace``, a durable snapshot with a private overlay. COMMIT is one message with
the keys read, the keys written, and the rows; the node certifies this like its own open transactions. Before COMMIT the
node holds no state of the transaction, so a program that dies leaves nothing there.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import apsw

from bedrockish.api.requests import SERIALIZABLE, STRICT, Request, Result, Statement
from bedrockish.common.forks import FORKING, notice_fork, stand_still
from bedrockish.common.pauses import monotonic
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.interactive import is_of_schema
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import EarlyReads, OverlayTransaction
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.statements.clock_functions import ClockNeededError
from bedrockish.engine.storage.moment_row import FileMoment
from bedrockish.errors import BedrockishError, SqlError, UnavailableError, UnsupportedError, UsageError
from bedrockish.local import connections
from bedrockish.local.leased_ids import GivenIds, IdsNeededError
from bedrockish.local.program_functions import Registration
from bedrockish.local.reads import LocalReads, closed, interrupted
from bedrockish.local.snapshots import seen_by
from bedrockish.local.thread_turn import TURN
from bedrockish.local.workspace_pool import FileWorkspace, NodeNeededError, WorkspacePool
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import without_settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.transaction_control import parse_control, savepoint_of

T = TypeVar("T")
SMALL_BYTES = 20_000  # about how many bytes of keys and changes are encoded in less than a millisecond
LOG_MAX, LOG_BYTES = 5_000, 4 << 20  # statements, and bytes of results, up to which a transaction can be repeated
RESULT_BYTES = Limits().result_bytes


@dataclass(slots=True)
class ExecutedStatement:
    """An executed statement with its result, or with the text of its error."""

    statement: Statement
    result: Result | None
    failure: str = ""


class LocalTransaction:
    """One open transaction of this process. One thread at a time uses it.

    Why so large: A step may end by its own error, by another thread, or by the handler of a signal; ``_ended``,
    ``_is_consistent`` and ``_is_workspace_returned`` distinguish these ends.
    """

    keeps_rows = False  # whether rows of TEMP tables keep the transaction open until the outcome of COMMIT is known

    def __init__(
        self, pool: WorkspacePool, file_workspace: FileWorkspace, request: Request, moment: FileMoment
    ) -> None:
        # ``request``: the transaction's BEGIN.
        self._pool, self._file_workspace, self.request = pool, file_workspace, request
        self.seen = seen_by(moment, request.token)  # the session's token after reading its snapshot
        self.since = monotonic()
        self.ids: list[tuple[str, int]] = []  # the leased ids that the transaction has given to rows, with their tables
        self._ids_version = pool.ids.version
        # The statements so far; None if there are too many to repeat at the node.
        self.log: list[ExecutedStatement] | None = []
        self._logged = 0
        self._ended: BedrockishError | None = None
        self._is_workspace_returned = False  # whether the workspace was given back
        # False while a statement runs, and after an exception inside a statement, such as one of a signal handler.
        self._is_consistent = True
        self.lock = threading.RLock()  # held by the thread that runs a statement
        self._statement = _Statement(self, pool.reads, pool.ids.given)
        self._moment = moment
        self._work: TransactionWork
        self._running: OverlayTransaction
        work = TransactionWork(
            request.isolation == SERIALIZABLE, request.command, request.user, base_clock=moment.clock
        )
        self._open(work, moment)

    def _open(self, work: TransactionWork, moment: FileMoment) -> None:  # noqa: ARG002  a subclass needs the moment
        workspace = self._file_workspace.workspace
        # With functions of the program, start now: otherwise a progress handler could interrupt the start. Without a
        # writing connection, start now as well: if that fails, the transaction begins at the node.
        is_early = not self._pool.has_own and workspace.lend_for_reads() is not None
        early = EarlyReads(workspace) if is_early else None
        self._work, self._running = work, OverlayTransaction(workspace, work, early=early)
        self._running.may_read_system = self.request.read != STRICT  # strict reads of system tables run at the node
        if early is None:
            self._running.start(is_small=True)

    def work_at(self, moment: FileMoment) -> TransactionWork | None:
        """Return the transaction's work if its snapshot is the same as ``moment``; else None."""
        with self.lock:
            return self._running.record() if self._moment.batch == moment.batch else None

    @property
    def _why_not_movable(self) -> str:
        """Why the transaction cannot move to the node, as the end of an error's text; empty if it can."""
        if self._pool.attached.has_any:
            return "which has none of the attached files; detach them before the transaction begins"
        return ""

    def end_commit(self, error: BaseException | None) -> None:
        """Handle the outcome of COMMIT; a subclass keeps or rolls back TEMP tables. ``error``: None for success."""

    @property
    def lastrowid(self) -> int | None:
        """Rowid of the row that the transaction inserted last."""
        return self._work.lastrowid or None

    def run(self, statement: Statement) -> Result:
        """Run one statement, which may be SAVEPOINT, RELEASE or ROLLBACK TO; return its result.

        Raises:
            NodeNeededError: the transaction must move to the node.
            IdsNeededError: ids must be leased; afterwards the caller runs the statement again.
            BedrockishError: as the node raises it. After a usage error the transaction stays open, unless it
                ``has_failed``.
        """
        return self._run_step(partial(self._run_logged, statement))

    def _run_step(self, step: Callable[[], T]) -> T:
        """Run a step, and return its result; end the transaction if another exception leaves the step half done.

        The handler of a signal may raise its exception, such as ``KeyboardInterrupt``, between any two operations. Then
        the overlay, the list of changes and ``log`` may not have the same rows.
        """
        try:
            result = step()
        except BedrockishError:
            self._is_consistent = True
            raise
        except BaseException:
            self._end_inconsistent()
            raise
        self._is_consistent = True
        return result

    def _end_inconsistent(self) -> None:
        """End the transaction, because a step was left half done."""
        with self.lock:
            self._is_consistent = self._statement.is_running = False
            self._file_workspace.workspace.is_broken = True
            self.end(interrupted())

    def _run_logged(self, statement: Statement) -> Result:
        try:
            with self.lock, self._statement:
                self._check_open()
                self._is_consistent = False
                try:
                    result = self._run(statement)
                except IdsNeededError:
                    self._pool.ids.take_back_given()
                    raise
        except (NodeNeededError, ClockNeededError) as error:
            if self._why_not_movable:
                why = f"the statement needs the node ({error.message}), {self._why_not_movable}"
                raise UnsupportedError(why, sql=statement.sql) from error
            raise NodeNeededError(error.message) from error
        except IdsNeededError:
            raise
        except UnsupportedError as error:  # the node runs the statement, or raises the same error
            if self._why_not_movable:
                raise
            raise NodeNeededError(error.message) from error
        except SqlError as error:
            if error.lacks_function and not self.keeps_rows:
                raise NodeNeededError(error.message) from error
            self._log_statement(ExecutedStatement(statement, None, error.message))
            raise
        except UsageError as error:
            self._log_statement(ExecutedStatement(statement, None, error.message))
            raise
        self._log_statement(ExecutedStatement(statement, result))
        return result

    def run_again(
        self, sql: str, values: tuple[Any, ...] | dict[str, Any], *, only_brief: bool = False
    ) -> Result | None:
        """Run a text that has run here before, faster than its first time; return None if its caller must ``run`` it.

        Args:
            values: parameters that SQLite stores without conversion.
            only_brief: whether to return None also for a read that takes long if the tables have many rows.

        Raises:
            BedrockishError: see ``run``.
        """
        notice_fork()
        # Only ``run`` handles code of the program that a statement calls, and refuses the statements of that code. A
        # text with a recipe calls no function.
        pool = self._pool
        if self.keeps_rows or pool.may_call_program or pool.attached.has_any or not self._is_consistent:
            return None
        if self._statement.is_running:
            return None
        with TURN:
            result = self._run_step(partial(self._run_known, sql, values, only_brief=only_brief))
        if result is not None or only_brief or not self._has_one(sql):
            return result
        try:
            return self.run(Statement(sql, values or None))
        except (IdsNeededError, NodeNeededError):  # the statement has had no effect
            return None

    def _has_one(self, sql: str) -> bool:
        """Return whether a text is one known statement of the transaction, which is open in this process."""
        with self.lock:  # otherwise another thread could end the transaction
            running = self._running
            return self._ended is None and running.early is None and running.executor.texts.has_one(sql)

    def run_brief(self, statement: Statement) -> Result | None:
        """Run a statement as ``run_again`` does if it takes some microseconds with any rows; else return None.

        Return None also while a thread runs a statement of the transaction for another task.

        Raises:
            BedrockishError: see ``run``.
        """
        if not self.lock.acquire(blocking=False):
            return None
        try:
            params = statement.params
            values = params if type(params) is dict else tuple(params or ())
            return self.run_again(statement.sql, values, only_brief=True)
        finally:
            self.lock.release()

    def _run_known(self, sql: str, values: tuple[Any, ...] | dict[str, Any], *, only_brief: bool) -> Result | None:
        try:
            with self.lock:
                if FORKING:
                    stand_still()
                if self._ended is not None:
                    return None
                self._is_consistent = False
                ids = self._pool.ids
                ids.given.ids.clear()
                result = self._running.run_again(sql, values, RESULT_BYTES, only_brief=only_brief)
                if ids.given.ids:
                    if result is None:
                        ids.take_back_given()
                    else:
                        self.ids += ids.given.ids
        except UsageError as error:
            self._log_statement(ExecutedStatement(Statement(sql, values), None, error.message))
            raise
        if result is not None:
            self._log_statement(ExecutedStatement(Statement(sql, values), result))
        return result

    def run_alike(self, statements: Sequence[Statement], first: int) -> tuple[list[Result], int]:
        """Run consecutive statements with the same text together, from the one at ``first`` on.

        Return their results and an index. Without results, the caller runs the statements before the index one by one.

        Raises:
            BedrockishError: as ``run``.
        """
        if self.keeps_rows:  # if SQLite rolls back the transaction, rows of TEMP tables cannot be made again
            return [], len(statements)
        return self._run_step(partial(self._run_alike, statements, first))

    def _run_alike(self, statements: Sequence[Statement], first: int) -> tuple[list[Result], int]:
        given = self._pool.ids.given
        with self.lock, self._statement:
            self._check_open()
            self._is_consistent = False
            found, alone = self._running.run_alike(statements, first)
            if not found:
                self._pool.ids.take_back_given()
                alone = first + 1 if given.is_short else alone  # the first statement runs alone, and leases ids for all
        for statement, result in zip(statements[first:], found, strict=False):
            self._log_statement(ExecutedStatement(statement, result))
        return found, alone

    def _run(self, statement: Statement) -> Result:
        if not _is_ordinary(statement.sql):
            control = savepoint_of(statement.sql, statement.params)
            if control is not None:
                self._running.control(control)
                return Result((), [], -1, self.lastrowid)
            self._running.start_now()
            if not self.keeps_rows and not self._running.interactive.changes_nothing(statement.sql):
                raise NodeNeededError("a schema change runs at the node")
        return self._running.run(statement, RESULT_BYTES)[0]

    def read(self, statement: Statement) -> Result:
        """Run one statement that only reads; return its result.

        Raises:
            UnsupportedError: the statement does not only read, or no read set covers its reads.
            BedrockishError: see ``run``.
        """
        return self._run_step(partial(self._read, statement))

    def _read(self, statement: Statement) -> Result:
        with self.lock, self._statement:
            result = self._running.run(statement, RESULT_BYTES, read_only=True)[0]
            if self._work.read_without_keys or self._running.scope.used:
                raise UnsupportedError("read sets do not cover the database's own tables and clocks")
            return result

    def _log_statement(self, one: ExecutedStatement) -> None:
        if self.log is None:
            return
        self.log.append(one)
        if one.result is not None:
            self._logged += sum(len(row) for row in one.result.rows) * 16
        if len(self.log) > LOG_MAX or self._logged > LOG_BYTES:
            self.log = None

    @property
    def has_ended(self) -> bool:
        """Whether the transaction is not open in this process any more; it may have moved to the node."""
        return self._ended is not None

    @property
    def has_failed(self) -> bool:
        """Whether the transaction can only be rolled back, for example because SQLite has ended it."""
        return self._work.has_failed

    def columns(self, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, with their declared types, without running the statement.

        Raises:
            SqlError: SQLite does not accept the statement.
        """
        return self._run_step(partial(self._columns, statement))

    def _columns(self, statement: Statement) -> list[dict[str, Any]]:
        with self.lock, self._statement:
            self._check_open()
            self._is_consistent = False
            return self._running.columns(statement)

    def finish(self) -> Prepared:
        """Return the transaction for certification by the node. After an error the transaction is still open.

        Raises:
            ConstraintError: a deferred foreign key is broken.
            UnavailableError: the node has stopped, or has exchanged its file, since the transaction began.
        """
        with TURN:
            return self._run_step(self._finish)

    def finish_small(self) -> Prepared | None:
        """Return the transaction as ``finish`` does, if it has few keys and rows; otherwise return None.

        Return None also while a thread runs a statement of it for another task.
        """
        work = self._work
        if self.keeps_rows or work.keys_were_broken or work.kept > SMALL_BYTES:
            return None
        if not self.lock.acquire(blocking=False):
            return None
        try:
            return self.finish()
        finally:
            self.lock.release()

    def _finish(self) -> Prepared:
        with self.lock, self._statement:
            self._check_open()
            self._is_consistent = False
            self._pool.check_generation(self._file_workspace.facts)
            return self._running.finish()

    def needs_no_certificate(self) -> bool:
        """Return whether COMMIT can end without the node: only known reads have run, on one durable snapshot."""
        if self.request.read == STRICT or self._statement.is_running:
            return False
        with self.lock:
            is_usable = self._ended is None and self._is_consistent and not self.has_failed
            return is_usable and self._running.early is not None and self._pool.still_serves(self._file_workspace.facts)

    def give_ids_back(self) -> None:
        """Put the transaction's ids back into the leases, because it is rolled back."""
        if self._ids_version == self._pool.ids.version:
            self._pool.ids.give_back(self.ids)

    def end(self, error: BedrockishError | None = None) -> None:
        """Roll the transaction back and give its workspace to the pool; do nothing if it has ended already.

        Interrupt a running statement, which raises ``error``: a statement of another thread, or one of this thread that
        is calling the program, for example its progress handler.
        """
        error = error or UnavailableError("the transaction is over; begin another one")
        with connections.lock_interrupting(self.lock, lambda: self.stop(error)):
            if self._ended is None:
                self._ended = error
                if self._statement.is_running:
                    self.stop(error)
            if not self._statement.is_running:
                self.return_workspace_if_ended()
        TURN.leave()

    def return_workspace_if_ended(self) -> None:
        """Give the workspace to the pool, once, if the transaction was ended; called when no statement of it runs."""
        if self._ended is not None and not self._is_workspace_returned:
            self._is_workspace_returned = True
            self._return_workspace()

    def _return_workspace(self) -> None:
        self._running.break_cycle()
        self._pool.give_back(self._file_workspace)

    def abandon(self) -> None:
        """Refuse further statements in this process, because the transaction belongs to its parent."""
        self._ended, self._is_workspace_returned = closed(), True

    def _check_open(self) -> None:
        if not self._is_consistent:
            self._end_inconsistent()
        if self._ended is not None:
            raise self._ended

    def end_late(self, error: BedrockishError) -> None:
        """End the transaction; if a thread runs a statement, only interrupt it, and leave the end to a later call."""
        if not self.lock.acquire(blocking=False):
            self.stop(error)
            return
        try:
            self.end(error)
        finally:
            self.lock.release()

    def register(self, given: Registration) -> None:
        """Register a function or collation of the program on the connections of the transaction."""
        with self.lock:
            if self._ended is not None:
                return
            try:
                self._running.start_now()
            except BedrockishError as error:  # the next statement raises it
                self.end(error)
                return
            given(self._file_workspace.reader)
            given(self._running.db)

    def interrupt(self) -> None:
        """Interrupt the statement that another thread runs; the transaction cannot go on."""
        self.stop(interrupted())

    def stop(self, error: BedrockishError) -> None:
        """Interrupt the statement that another thread runs; it raises ``error``."""
        self._statement.stopped = error
        if not self._is_workspace_returned:  # otherwise another transaction, even of another session, may run there
            self._file_workspace.workspace.stop(error)


class _Statement:
    """A context manager around each statement of a transaction.

    Within it the program's progress handler is called, and the transaction records the row ids of the statement. An
    error of SQLite that the engine has not translated becomes an error of the client, and the workspace is not used any
    more.
    """

    __slots__ = ("_file_workspace", "_given", "_ids", "_of", "_reads", "is_running", "stopped")

    def __init__(self, one: LocalTransaction, reads: LocalReads, given: GivenIds) -> None:
        self._reads, self._given, self._ids, self._file_workspace = reads, given, one.ids, one._file_workspace
        self.stopped: BedrockishError | None = None  # the error of the transaction's last ``stop``
        self._of = weakref.ref(one)  # weak, so that the rows are freed without the garbage collector
        self.is_running = False  # whether a statement runs; its thread holds the lock of the transaction

    def __enter__(self) -> None:
        """Begin a statement in this thread.

        Raises:
            UsageError: a function of the program, which a statement of the transaction calls, has begun this one.
        """
        if self.is_running:
            raise UsageError(
                "a statement of this transaction is calling the program; run statements of the called function on "
                "another connection"
            )
        if FORKING:
            stand_still()
        self._given.ids.clear()
        self._given.is_short = False
        one = self._of()
        assert one is not None, "its caller refers to it"
        self._reads.ending = one.interrupt
        self.is_running = True

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._reads.ending = None
        self.is_running = False
        self._ids += self._given.ids
        if (one := self._of()) is not None:
            one.return_workspace_if_ended()
        if isinstance(error, apsw.Error):
            raise self._failed(error) from error

    def _failed(self, error: apsw.Error) -> BedrockishError:
        """Return the error to raise if the engine's own SQL fails, such as the EXPLAIN for a read set."""
        if self.stopped is not None and isinstance(error, apsw.InterruptError):
            return self.stopped
        self._file_workspace.workspace.is_broken = True
        return UnavailableError(
            f"the private copy of the database failed: {error}; the transaction did not happen: run it again"
        )


@remembered
def _is_ordinary(sql: str) -> bool:
    """Return False for transaction control, and for schema changes and EXPLAIN, which only the node runs."""
    is_explain = first_word(without_settings(sql)) == "EXPLAIN"
    return not (is_explain or is_of_schema(sql) or parse_control(sql) is not None)
