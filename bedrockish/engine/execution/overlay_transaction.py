"""An open transaction that has a workspace of its own, where it stays until its end.

The transaction begins on a snapshot, with the changes that it has made elsewhere, and runs its statements on an overlay
(``workspace``). So it need not write its changes again after the node applies another commit. Its reads and writes are
certified at its COMMIT, as of the snapshot.

``take_snapshot``, ``stop`` and ``close`` belong to the loop; all other calls to one thread at a time.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import apsw

from bedrockish.api.requests import Result, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.executor import Executor
from bedrockish.engine.execution.explain import explain
from bedrockish.engine.execution.interactive import Interactive, is_of_schema
from bedrockish.engine.execution.interfaces import EngineParts, Flushed, Guest
from bedrockish.engine.execution.open_transaction import Logged, TransactionWork
from bedrockish.engine.execution.recipes import Recipe, read_brief
from bedrockish.engine.execution.workspace import Workspace, Writer
from bedrockish.engine.sqlite.bind import in_order
from bedrockish.engine.statements.compiled import READ, Compiled
from bedrockish.engine.storage.overlay_vfs import FileState
from bedrockish.errors import (
    BedrockishError,
    ConstraintError,
    SqlError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    transaction_ended,
)
from bedrockish.sqltext.text_forms import Form
from bedrockish.sqltext.transaction_control import RELEASE, SAVEPOINT, Control, savepoint_of
from bedrockish_journal.model.access_set import READS, WRITES

ALIKE_S = 1.0  # seconds for a batch of statements with the same text; a slower batch is run one by one
SMALL_CHANGES = 1_000  # rows up to which a transaction may keep the old pages in memory
EARLY_MAX = 100
"""The most early reads of a transaction, whose parameters are kept until it starts; a further read starts it."""

Bound = tuple[Compiled, tuple[Any, ...]]


class _Read(NamedTuple):
    recipe: Recipe
    values: tuple[Any, ...]
    has_failed: bool


class EarlyReads:
    """The reads of a transaction before its first other statement, which run on its snapshot alone.

    Many transactions only read: some programs begin one for each SELECT. A read with a recipe needs neither the overlay
    nor an access set, until another statement starts the transaction. The keys of such a read follow from its
    parameters.

    Args:
        workspace: holds the transaction's snapshot.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._reads: list[_Read] = []

    def recipe(self, sql: str) -> Recipe | None:
        """Return the recipe of a text that may run as an early read; None if the text starts the transaction."""
        writer = self._workspace.lend_for_reads()
        if writer is None or writer.executor.governor.stopped is not None or len(self._reads) >= EARLY_MAX:
            return None
        recipe = writer.executor.texts.made_again(sql)
        return recipe if recipe is not None and recipe.piece.kind == READ else None

    def has_run(self, sql: str) -> bool:
        """Return whether a text has run in an earlier transaction, so that it may have a recipe after the start.

        If so, the start opens no connection and reads no schema.
        """
        writer = self._workspace.lend_for_reads()
        return writer is not None and writer.executor.texts.has_run(sql)

    def run(self, recipe: Recipe, given: tuple[Any, ...] | dict[str, Any], room: int) -> Result | None:
        """Run a read, and return its result; None if it must run after the start.

        Args:
            given: the parameters, as SQLite stores them.
            room: the bytes that the rows may take.

        Raises:
            BedrockishError: the read fails, or has been stopped.
        """
        writer, piece = self._workspace.lend_for_reads(), recipe.piece
        values = in_order(piece.names, given)
        if writer is None or values is None:
            return None
        rows: list[tuple[Any, ...]] | None
        if recipe.is_brief:
            rows = read_brief(self._workspace.reader, recipe, values, writer.limits, room)
        else:
            try:
                rows, _ = writer.executor.run_piece(piece, values, room, recipe.plan.lengths)
            except UnicodeEncodeError:  # a value has a lone surrogate
                return None
            except BedrockishError:
                self._reads.append(_Read(recipe, values, has_failed=True))
                raise
        if rows is None:
            return None
        self._reads.append(_Read(recipe, values, has_failed=False))
        return Result(piece.columns, rows, -1, None)

    def add_to(self, work: TransactionWork, executor: Executor) -> None:
        """Add the keys of all reads to the access set of the transaction, which has started on the same snapshot.

        Raises:
            BedrockishError: the keys of a read cannot be found.
        """
        sets = work.sets
        assert sets is not None
        for recipe, values, has_failed in self._reads:
            if has_failed:
                sets.add_reads(recipe.piece, values, failed=True)
            elif recipe.is_brief:
                sets.add_keys(*recipe.plan.bind(values))
            else:
                sets.add_reads_unchanged(recipe.piece, values, executor.query_for(recipe.piece))


class OverlayTransaction:
    """One open transaction in a workspace of its own, which lends its writing connection to the statements.

    Args:
        workspace: a workspace without another transaction.
        work: the transaction, which may have run statements elsewhere.
        tick: returns values of the node's clock; None if ``workspace.scope`` has a clock already.
        early: runs the first reads if the first other statement shall start the transaction; else None.

    Attributes:
        early: as above; None once the transaction has started.
    """

    def __init__(
        self,
        workspace: Workspace,
        work: TransactionWork,
        tick: Callable[[], int] | None = None,
        early: EarlyReads | None = None,
    ) -> None:
        self.workspace, self.work, self.scope, self.early = workspace, work, workspace.scope, early
        if tick is not None:
            self.scope.begin_in_worker(work.command, work.clock, tick)
        self.may_read_system = True  # whether it may read tables of the cluster itself
        self.is_closed = False  # whether the transaction was rolled back or kept
        self.applied: dict[str, int] = {}  # the commits in its snapshot
        self.schema_version = self.applied_clock = 0  # the version of its schema, and a clock after all these commits
        self._writer: Writer | None = None
        self._interactive: Interactive | None = None
        self._end: BedrockishError | None = None  # the error after which no statement can follow

    @property
    def has_failed(self) -> bool:
        """Whether only a rollback can follow, for example after SQLite itself has ended the transaction."""
        return self.work.has_failed

    # -- in the loop -----------------------------------------------------------------------------------------------

    @property
    def flushed(self) -> Flushed:
        """The commits and the schema on which the transaction runs."""
        return self.workspace.flushed

    def take_snapshot(self, flushed: Flushed, moment: FileState) -> None:
        """Take a snapshot of the file after its last batch.

        Raises:
            UnavailableError: the snapshot cannot be taken.
        """
        self.workspace.take_snapshot(flushed, moment)
        self.work.base, self.work.schema, self.work.base_clock = dict(flushed.applied), flushed.schema, flushed.clock

    def stop(self, error: BedrockishError) -> None:
        """Interrupt the running statement; it raises this error."""
        self.workspace.stop(error)

    def close(self) -> None:
        """Roll the transaction back, and close its workspace; do nothing if it is closed."""
        if not self.is_closed:
            self.is_closed = True
            self.workspace.leave_work()
            self.workspace.close()
            self.break_cycle()

    def break_cycle(self) -> None:
        """Drop the parts that refer to this object, so that its rows are freed without the garbage collector."""
        self._writer = self._interactive = None

    # -- what its statements use -----------------------------------------------------------------------------------

    @property
    def writer(self) -> Writer:
        """The writing connection and its parts, from ``start`` on."""
        if self._writer is None:
            raise self._end or transaction_ended()
        return self._writer

    @property
    def interactive(self) -> Interactive:
        """The code that runs its statements, from ``start`` on."""
        if self._interactive is None:
            raise transaction_ended()
        return self._interactive

    @property
    def db(self) -> apsw.Connection:
        """The connection that writes."""
        return self.writer.db

    @property
    def executor(self) -> Executor:
        """The executor of the statements."""
        return self.writer.executor

    def wait_for_writer(self) -> None:
        """Return at once, because the writer is not shared."""

    def lend(self, _guest: Guest) -> EngineParts:
        """Return the connection, the executor and the other parts that run statements."""
        writer, control = self.writer, self.db.cursor().execute
        return EngineParts(
            writer.db, writer.executor, writer.capture, writer.applier, writer.limits, _no_reader, control, writer.begin
        )

    # -- in a thread -----------------------------------------------------------------------------------------------

    def start(self, *, is_small: bool = False) -> None:
        """Acquire the writing connection, for a transaction that has made no changes yet.

        Args:
            is_small: keep the old pages in memory as long as each write has a recipe, and up to ``SMALL_CHANGES`` rows.

        Raises:
            BedrockishError: the file cannot be read, or the error that ``stop`` was given.
        """
        with self.workspace.stoppable:
            writer = self.workspace.open_writer(self.work)
            writer.use_journal(in_memory=is_small)
            self.use(writer)

    def start_now(self) -> None:
        """Start the transaction after its early reads, and add these to its access set; do nothing if it has started.

        Raises:
            BedrockishError: see ``start``; the transaction is over.
        """
        early = self.early
        if early is None:
            return
        if self._end is not None:
            raise self._end
        try:
            with self.workspace.stoppable:
                self.start(is_small=True)
                self.enter()
                early.add_to(self.work, self.executor)
        except BaseException as error:
            self.work.has_failed = True  # its access set lacks reads
            if isinstance(error, BedrockishError):
                self._end = error
                raise
            self.workspace.is_broken = True
            why = f"the private copy of the database failed ({error!r}); the transaction did not happen: run it again"
            self._end = UnavailableError(why)
            if isinstance(error, apsw.Error):
                raise self._end from error
            raise
        self.early = None

    def use(self, writer: Writer) -> None:
        """Run the statements on a writing connection that shows the snapshot of the workspace."""
        self._writer, flushed = writer, self.flushed
        self.applied = dict(flushed.applied)
        self.schema_version, self.applied_clock = flushed.schema, flushed.clock
        self._interactive = Interactive(self, lambda _access_set, _base: None)
        self._interactive.committed = self.workspace.reader

    def open(self) -> None:
        """Begin on the overlay with the changes that the transaction made before.

        Raises:
            ConflictError: its rows no longer fit.
            BedrockishError: the file cannot be read, or the error that ``stop`` was given.
        """
        with self.workspace.stoppable:
            self.start()
            self.executor.reader = None  # this connection would show the rows without the transaction's changes
            self.work.begin_sets(self.executor.analysis)
            self._check()
            self.enter()

    def _check(self) -> None:
        """Check the workspace before rows are written in it; a subclass may refuse it."""

    def run_list(self, statements: Sequence[Statement], results: list[Result], room: int) -> int:
        """Run texts in order, up to the first that changes the schema; add the result of each to ``results``.

        Return about how many bytes the results take.

        Raises:
            BedrockishError: as ``run``. The results of the statements before are in ``results``.
        """
        first, work, alone, taken = len(results), self.work, 0, 0
        while len(results) - first < len(statements):
            place = len(results) - first
            statement = statements[place]
            if is_of_schema(statement.sql):
                break
            control = savepoint_of(statement.sql, statement.params)
            if control is not None:
                self.control(control)
                work.log_statement(Logged(control))
                results.append(Result((), [], -1, work.lastrowid or None))
                continue
            if place >= alone:
                with self.workspace.stoppable:
                    done, alone = self.run_alike(statements, place)
                for one, result in zip(statements[place:], done, strict=False):
                    work.log_statement(Logged(one, result))
                results += done
                if done:
                    continue
            try:
                last, size = self.run(statement, room - taken)
            except (ConstraintError, SqlError) as error:
                work.log_statement(Logged(statement, failure=error.message))
                raise
            work.log_statement(Logged(statement, last), size)
            results.append(last)
            taken += size
        return taken

    def run(self, statement: Statement, room: int, *, read_only: bool = False) -> tuple[Result, int]:
        """Run a text; return the result of its last statement, and about how many bytes the results take.

        Raises:
            ClockNeededError: the statement calls ``transaction_clock()``, and the transaction has no clock yet.
            BedrockishError: as for a request; the transaction can go on after a usage error, unless it ``has_failed``.
        """
        self._check_goes_on()
        interactive, taken = self.interactive, 0
        last: Result | None = None
        with self.workspace.stoppable:
            known = interactive.single(self.work, statement)
            for piece, params in interactive.pieces(self.work, statement) if known is None else (known,):
                if read_only and piece.kind != READ:
                    raise UnsupportedError("this statement may only read, and it writes", sql=piece.shown)
                last, size = self._run_piece(piece, params, room - taken)
                taken += size
        assert last is not None
        return last, taken

    def _run_piece(self, piece: Compiled, params: tuple[Any, ...], room: int) -> tuple[Result, int]:
        work, interactive, writer = self.work, self._interactive, self._writer
        assert interactive is not None
        assert writer is not None
        if piece.reads_system and not self.may_read_system:
            raise UnsupportedError("a strict read of the cluster's own tables runs at the node", sql=piece.shown)
        work.inspect(piece)
        if work.wrote:
            writer.executor.reader = None  # the other connection does not see what this one has written
        if writer.journal_in_memory and piece.kind != READ and writer.executor.texts.again(piece.sql) is None:
            self._use_journal_file()
        if interactive.swapped_in is not work:
            self.enter()
        try:
            return interactive.run(work, piece, params, room)
        except BedrockishError as failure:
            if work.has_failed or not isinstance(failure, UsageError):
                self._end = failure
            raise

    def run_again(
        self, sql: str, values: tuple[Any, ...] | dict[str, Any], room: int, *, only_brief: bool = False
    ) -> Result | None:
        """Run a text that has run before, or one with a known form, as ``Interactive.run_again`` does."""
        form = None if values else self._known_form(sql)
        if form is None:
            return self._run_again(sql, values, room, only_brief=only_brief)
        try:
            return self._run_again(*form, room, only_brief=only_brief)
        except BedrockishError as error:
            if "sql" in error.details:
                error.details = {**error.details, "sql": sql}
            raise

    def _known_form(self, sql: str) -> Form | None:
        """Return the form and the values with which a text of literals runs; None if it runs as it is."""
        writer = self.workspace.lend_for_reads() if self._writer is None else self._writer
        return None if writer is None else writer.executor.texts.known_form(sql)

    def _run_again(
        self, sql: str, values: tuple[Any, ...] | dict[str, Any], room: int, *, only_brief: bool
    ) -> Result | None:
        if self.early is not None:
            recipe = self.early.recipe(sql) if self._end is None else None
            if recipe is not None:
                return None if only_brief and not recipe.is_brief else self.early.run(recipe, values, room)
            if not self.early.has_run(sql):  # a COMMIT or ROLLBACK, for example, which needs no start
                return None
            self.start_now()
        writer, interactive, work = self._writer, self._interactive, self.work
        assert writer is not None
        assert interactive is not None
        if writer.journal_in_memory and len(work.changes) >= SMALL_CHANGES:
            self._use_journal_file()
        return interactive.run_again(work, sql, values, room, only_brief=only_brief)

    def _use_journal_file(self) -> None:
        """Keep the old pages in a file from now on, because the next statements may change many."""
        assert self._writer is not None
        if self._writer.use_journal(in_memory=False):
            return
        # SQLite refuses another journal mode after the first write, so roll back and write the changes again.
        self.interactive.swap_out()
        self.db.execute("ROLLBACK")
        self._writer.use_journal(in_memory=False)
        self._writer.begin()
        self.enter()

    def run_alike(self, statements: Sequence[Statement], first: int) -> tuple[list[Result], int]:
        """Run consecutive statements with the same text together, as ``Interactive.run_alike`` does.

        Raises:
            BedrockishError: also the error that has ended the transaction.
        """
        self._check_goes_on()
        if self.writer.journal_in_memory:
            self._use_journal_file()
        self.enter()
        return self.interactive.run_alike(self.work, statements, first, ALIKE_S)

    def _check_goes_on(self) -> None:
        self.start_now()
        error = self.writer.executor.governor.stopped or self._end
        if error is not None:
            raise error

    def columns(self, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, with their declared types; nothing is run.

        Raises:
            SqlError: SQLite does not accept the statement.
        """
        self.start_now()
        with self.workspace.stoppable:
            return explain(self.executor, statement, self.work.user, columns=True)

    def enter(self) -> None:
        """Write the transaction's changes and set its savepoints, at first and after SQLite has rolled them back.

        Raises:
            ConflictError: the rows do not fit the snapshot.
        """
        work, interactive = self.work, self.interactive
        interactive.start(work)
        if interactive.swapped_in is work:
            return
        changes, ends = work.changes, [*(mark.changes for mark in work.marks), len(work.changes)]
        work.changes = changes[: ends[0]]
        try:
            interactive.swap_in(work)
        finally:
            work.changes = changes
        for place, (first, end) in enumerate(pairwise(ends)):
            self.db.execute(f"SAVEPOINT mark_{place}")
            interactive.redo(changes[first:end])
        self.db.set_last_insert_rowid(work.lastrowid)

    def record(self) -> TransactionWork:
        """Return the transaction's state, for an object that continues it on another connection."""
        self.start_now()
        if self._interactive is not None:
            self._interactive.note_broken_keys(self.work)
        return self.work

    def control(self, control: Control) -> None:
        """Run SAVEPOINT, RELEASE or ROLLBACK TO, as a savepoint of SQLite: no change has to be written again.

        Raises:
            SqlError: there is no such savepoint.
        """
        work = self.work
        self._check_goes_on()
        place = len(work.marks) if control.kind == SAVEPOINT else work.find(control.name)
        with self.workspace.stoppable:
            self.enter()
            if control.kind == SAVEPOINT:
                self.db.execute(f"SAVEPOINT mark_{place}")
                self.interactive.mark(work, control.name)
            elif control.kind == RELEASE:
                self.db.execute(f"RELEASE mark_{place}")
                work.release(control.name)
            else:
                self.db.execute(f"ROLLBACK TO mark_{place}")
                work.roll_back(place)

    def finish(self) -> Prepared:
        """Return the prepared transaction for its commit. If this raises, the transaction stays open.

        Raises:
            ConstraintError: a deferred foreign key is broken; further statements can repair it.
            BedrockishError: the error that has ended the transaction.
        """
        if self._end is not None:
            raise self._end
        self.start_now()
        with self.workspace.stoppable:
            prepared = self.interactive.finish(self.work)
        for which in (READS, WRITES):
            prepared.access_set.ordered(which)  # sorted in this thread, so that many keys block the loop for less time
        return prepared


def resume(
    workspace: Workspace, work: TransactionWork, statement: Statement | Bound, room: int
) -> tuple[Result | None, int, BedrockishError | None]:
    """Run a statement of a transaction that is open in the loop, and keeps its row locks, on a workspace's snapshot.

    Return the result or None, about how many bytes the results take, and the error or None.

    Args:
        work: a record of the transaction with its changes, which takes the effects of the statement.
        statement: a compiled statement with its parameters, or a text that is compiled here.
        room: how many bytes the results may take.

    Raises:
        BedrockishError: the error of ``Workspace.stop``, or the file cannot be read.
    """

    def run(writer: Writer) -> tuple[Result | None, int, BedrockishError | None]:
        one = OverlayTransaction(workspace, work)
        one.use(writer)
        writer.executor.reader, interactive, taken = None, one.interactive, 0
        work.base, work.schema = dict(one.applied), one.schema_version
        work.begin_sets(writer.executor.analysis)
        result: Result | None = None
        error: BedrockishError | None = None
        try:
            pieces = interactive.pieces(work, statement) if isinstance(statement, Statement) else [statement]
            for piece, params in pieces:
                work.inspect(piece)
                result, size = interactive.run(work, piece, params, room - taken)
                taken += size
        except BedrockishError as caught:
            error = caught
        interactive.swap_out()
        one.break_cycle()
        return result, taken, error

    return workspace.inside(run)


def _no_reader() -> Any:
    raise AssertionError("there are no further snapshots here")
