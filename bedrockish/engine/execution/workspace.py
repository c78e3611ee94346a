"""Workspaces: private snapshots on which threads execute long requests, so that these do not delay others.

A workspace has two connections to the same snapshot. One only reads; statements before the first write run on it, at
full speed. The other one writes on an *overlay*, whose changes no other connection sees; they are rolled back at the
end. The outcome is the same as in the loop: results, row changes and an access set, but on an older base.

The loop calls ``take_snapshot``, ``stop``, ``end`` and ``close``; one thread makes all calls between
``take_snapshot`` and ``end``.
"""

import io
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import apsw

from bedrockish.access_sets.change_capture import Capture
from bedrockish.access_sets.readset import ReadPlan
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.requests import Request, Statement
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.cursor import compile_read
from bedrockish.engine.execution.executor import Executor, MixesError, OneByOneError
from bedrockish.engine.execution.explain import explain
from bedrockish.engine.execution.governor import STEPS
from bedrockish.engine.execution.interfaces import Connector, Flushed
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.snapshot import read_schema_again
from bedrockish.engine.sqlite.errors import shortage
from bedrockish.engine.sqlite.limits import Limits, set_options
from bedrockish.engine.statements import pragmas
from bedrockish.engine.statements.changes_vtab import give_functions
from bedrockish.engine.statements.clock_functions import Holder, Scope
from bedrockish.engine.statements.compiled import READ, Compiled
from bedrockish.engine.storage.index_plan import SearchPlan, plan_build
from bedrockish.engine.storage.overlay_vfs import FileState, Overlay, OverlayFile
from bedrockish.engine.storage.row_applier import RowApplier
from bedrockish.engine.storage.search_build import estimate_seconds
from bedrockish.errors import BedrockishError, UnavailableError
from bedrockish_journal.model.changes import SchemaStep
from bedrockish_journal.storage.packing import unpack_on

T = TypeVar("T")
ANALYSIS_S = 0.5  # processor time for the analysis of a statement, which competes with the loop for the interpreter
READER_KIB = WRITER_KIB = 8 << 10  # page cache of each of the two connections


class Workspace:
    """A snapshot with an overlay for one request at a time; connections and caches serve the next request as well."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._stopped: BedrockishError | None = None
        self.stoppable = _Stoppable(self)  # a context manager for SQL of the engine in an open transaction
        self._writer: Writer | None = None
        self._work: TransactionWork | None = None  # the open transaction that has the writer
        self.flushed = Flushed({}, 0, 0)  # the commits and the schema in the snapshot
        self._moment = FileState(0, b"", 0)
        self.is_broken = False  # whether a connection has failed, so that the workspace must be closed
        self._has_read_schema = False  # whether a SELECT on the snapshot has made SQLite read a changed schema
        self.scope = Scope(locks=connector.locks)  # the values of the clock functions of the statement that runs
        self.temporary_bytes = 0  # limit for the TEMP tables of its session, in bytes; 0 if TEMP tables are refused
        self._wal = io.FileIO(os.dup(connector.wal))
        weakref.finalize(self, self._wal.close)  # if an exception of a signal's handler interrupts this method
        try:
            self._reader = connector.reader()
            give_functions(self._reader, Holder(self.scope))
            self._reader.pragma("cache_size", -READER_KIB)
        except apsw.Error as error:
            self._wal.close()
            raise UnavailableError(
                f"the node cannot open another connection to its file ({error}); try again, or raise its limit of "
                "open files"
            ) from error

    @property
    def reader(self) -> apsw.Connection:
        """The connection that only reads the snapshot."""
        return self._reader

    # -- in the loop -----------------------------------------------------------------------------------------------

    def take_snapshot(self, flushed: Flushed, moment: FileState) -> None:
        """Take a snapshot of the file after its last batch.

        Raises:
            UnavailableError: the snapshot cannot be taken.
        """
        self._has_read_schema = False
        self.move_to(flushed, moment)
        self._begin("PRAGMA main.user_version")  # no SELECT, which could read a large schema in the loop

    def begin_with(self, sql: str) -> Any:
        """Take a snapshot of the file by a SELECT of one value; return that value. Call ``move_to`` after it.

        Raises:
            UnavailableError: the snapshot cannot be taken.
        """
        self._has_read_schema = True
        row = self._begin(sql)
        return None if row is None else row[0]

    def _begin(self, sql: str) -> tuple[Any, ...] | None:
        self._stopped = None
        if self._writer is not None:
            self._writer.executor.governor.stopped = None
        try:
            self._reader.execute("BEGIN")
            return self._reader.execute(sql).fetchone()
        except apsw.Error as error:
            self.is_broken = True
            raise UnavailableError(
                f"the node cannot read its file on another connection ({error}); try again"
            ) from error

    def move_to(self, flushed: Flushed, moment: FileState) -> None:
        """Set the moment of the snapshot that was taken."""
        self.flushed, self._moment = flushed, moment

    def stop(self, error: BedrockishError) -> None:
        """Interrupt the statement in the thread; it raises this error."""
        self._stopped = error
        writer = self._writer
        if writer is not None:
            writer.executor.governor.stopped = error
        with suppress(apsw.ConnectionClosedError):  # the connection was just closed at the end of the transaction
            self._reader.interrupt()
            if writer is not None:
                writer.db.interrupt()

    def end(self) -> None:
        """End the snapshot. The thread must have returned."""
        if self._writer is not None:
            self._writer.executor.governor.release()
        try:
            if self._reader.in_transaction:
                self._reader.execute("ROLLBACK")
        except apsw.Error:
            self.is_broken = True

    def close(self) -> None:
        """End the snapshot, and close the connections. The thread must have returned."""
        self.end()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._reader.close(True)
        self._wal.close()

    # -- in the thread ---------------------------------------------------------------------------------------------

    def execute(self, request: Request) -> Prepared:
        """Run a request, as ``Executor.execute`` does.

        Raises:
            BedrockishError: an error of ``Executor.execute``, or the error given to ``stop``.
        """
        try:
            try:
                prepared = self.inside(lambda writer: self._execute(writer.executor, request, at_once=True))
            except OneByOneError:
                prepared = self.inside(lambda writer: self._execute(writer.executor, request, at_once=False))
        finally:
            self._unlock()
        return replace(prepared, clock=self.scope.clock) if self.scope.used else prepared

    def _execute(self, executor: Executor, request: Request, *, at_once: bool) -> Prepared:
        base, version = dict(self.flushed.applied), self.flushed.schema
        try:
            return executor.execute(request, base, version, at_once=at_once)
        except MixesError:
            # Imported here, because programs that open a node's file load this module, and never need that one.
            from bedrockish.engine.execution.ddl_execution import execute_mixed

            return execute_mixed(executor, request, base, version)

    def seconds_to_index(self, steps: Sequence[SchemaStep]) -> float:
        """Return an estimate of the seconds that SQLite needs for the FTS5 index that a schema change builds.

        Raises:
            BedrockishError: the error given to ``stop``, or the file cannot be read.
        """
        prepare, busy = self._connector.prepare, self._connector.limits.busy
        plan = plan_build(steps, self._open().executor.known.tables, prepare)
        try:
            return estimate_seconds(self._reader, plan, prepare, busy) if isinstance(plan, SearchPlan) else 0.0
        except apsw.Error as error:
            raise self._stopped or UnavailableError(f"the node cannot read its file ({error}); try again") from error

    def explain(self, statement: Statement, user: str, *, columns: bool = False) -> list[dict[str, Any]]:
        """Return the reads and writes of each statement of a text, as ``explain.explain`` does."""
        try:
            return self.inside(lambda writer: explain(writer.executor, statement, user, columns=columns))
        finally:
            self._unlock()

    def compile_read(self, statement: Statement, user: str) -> tuple[Compiled, tuple[Any, ...], ReadPlan]:
        """Compile the statement of a stream, as ``cursor.compile_read`` does."""
        return self.inside(lambda writer: compile_read(writer.executor, statement, user))

    def _unlock(self) -> None:
        self._connector.locks.release(self.scope.command)

    def inside(self, action: Callable[["Writer"], T]) -> T:
        """Run an action with the writing connection in a transaction, which is rolled back; return its result.

        Raises:
            BedrockishError: the error of ``stop``, or the file cannot be read.
        """
        writer = self._open()
        try:
            with self.stoppable:
                if self._stopped is not None:
                    raise self._stopped
                writer.begin()
                return action(writer)
        finally:
            self._reset(writer)

    def open_writer(self, work: TransactionWork) -> "Writer":
        """Return the writing connection in a transaction that stays open between its statements, until ``leave_work``.

        Raises:
            BedrockishError: the error of ``stop``, or the file cannot be read.
        """
        writer = self._begin_writer()
        self._work = work
        self.scope.begin(work.command, work.clock, self.flushed.applied)
        return writer

    def lend_for_reads(self) -> "Writer | None":
        """Return the writing connection, whose executor may run known reads on the snapshot before ``open_writer``.

        Return None if its compiled texts are not of the snapshot's schema.
        """
        writer = self._writer
        if writer is None or writer.version != self.flushed.schema:
            return None
        writer.executor.reader = self._reader
        return writer

    def knows_read(self, sql: str, *, only_brief: bool) -> bool:
        """Return whether a text that reads has a recipe, which is brief if ``only_brief``; any thread may call it.

        If the text has literals and no parameters, its form may have the recipe.
        """
        if self._writer is None:
            return False
        texts = self._writer.executor.texts
        form = texts.known_form(sql)
        recipe = texts.made_again(sql if form is None else form[0])
        return recipe is not None and recipe.piece.kind == READ and (recipe.is_brief or not only_brief)

    def leave_work(self) -> None:
        """Roll back the overlay at the end of the transaction."""
        work, self._work = self._work, None
        if self._writer is None:
            return
        self._reset(self._writer)
        if work is not None and work.defers:
            try:
                pragmas.settle(self._writer.db)
            except apsw.Error:  # interrupted, for example: no later transaction may use the compiled statements
                self.is_broken = True

    def keep_work(self) -> None:
        """Commit the TEMP tables, which stay, together with the overlay, which is dropped.

        Raises:
            apsw.Error: SQLite has not committed.
        """
        assert self._writer is not None
        self._writer.db.execute("COMMIT")
        self._writer.file.note_commit()

    def hold(self, limit_bytes: int) -> "Writer":
        """Return the writing connection in a transaction, until ``end``, with an overlay of at most ``limit_bytes``.

        Raises:
            BedrockishError: the error of ``stop``, or the file cannot be read.
        """
        writer = self._begin_writer()
        writer.file.limit_bytes = limit_bytes
        return writer

    def _begin_writer(self) -> "Writer":
        writer = self._open()
        if self._stopped is not None:
            raise self._stopped
        writer.begin()
        return writer

    def register(self, give: Callable[[apsw.Connection], None]) -> None:
        """Register functions on both connections by ``give``, and forget compiled texts. No transaction may be open."""
        give(self._reader)
        if self._writer is not None:
            give(self._writer.db)
            self._writer.executor.texts.forget()

    def _reset(self, writer: "Writer") -> None:
        writer.capture.discard_changes()
        writer.executor.reader = None
        writer.executor.governor.stopped = None  # otherwise it would interrupt the ROLLBACKs, and TEMP objects be lost
        try:
            if writer.db.in_transaction:
                writer.db.execute("ROLLBACK")
        except apsw.Error:
            self.is_broken = True

    def _open(self) -> "Writer":
        """Return the writing connection, moved to the snapshot."""
        try:
            if not self._has_read_schema:
                read_schema_again(self._reader)
            pages = self._reader.pragma("page_count")
            if self._writer is None:
                self._writer = Writer(self._connector, self._wal.fileno(), self._reader, self._moment, pages)
                give_functions(self._writer.db, Holder(self.scope))
                unpack_on(self._writer.db)
                self._writer.executor.scope = self.scope
                if self.temporary_bytes:
                    self._writer.allow_temporary(self.temporary_bytes)
            else:
                self._writer.file.move(self._moment, pages)
            self._writer.learn(self.flushed.schema)
        except apsw.Error as error:
            self.is_broken = True
            raise self._stopped or UnavailableError(f"the node cannot read its file ({error}); try again") from error
        if self._stopped is not None:
            self._writer.executor.governor.stopped = self._stopped
        self._writer.executor.reader = self._reader
        return self._writer


class _Stoppable:
    """Translates SQLite's errors about SQL of the engine itself.

    An interrupt becomes the error of ``stop``; a full disk or a lack of descriptors becomes an ``UnavailableError``.
    """

    __slots__ = ("_workspace",)

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        stopped = self._workspace._stopped
        if stopped is not None and isinstance(error, apsw.InterruptError | apsw.SQLError):
            raise stopped from None
        writer = self._workspace._writer
        lacking = shortage(error, 0 if writer is None else writer.db.system_errno)
        if lacking is not None:
            raise lacking from error


class Writer:
    """The connection that writes on an overlay, with a capture, an executor and an applier like the engine's."""

    def __init__(self, connector: Connector, wal: int, reader: apsw.Connection, moment: FileState, pages: int) -> None:
        limits: Limits = connector.limits
        overlay = Overlay(reader.filename, wal, reader.pragma("page_size"))
        self._connector = connector
        self.db = db = overlay.connect(lambda file: file.move(moment, pages))
        try:
            assert overlay.file is not None
            self.file: OverlayFile = overlay.file
            self._overlay = overlay  # the overlay must live as long as its connection
            db.pragma("cache_size", -WRITER_KIB)
            set_options(db, limits)
            connector.prepare(db)
            self.capture = Capture(db, limits.changes_bytes)
            self.ids = connector.ids.twin()
            self.ids.register(db)
            self.executor = connector.executor(db, self.capture, self.ids, limits)
            self.executor.analysis_s = ANALYSIS_S
            self.applier = RowApplier(db)
            self.limits = limits
            self.journal_in_memory = False
            self.version = -1  # the version of the schema that the executor knows
            reader.set_progress_handler(self.executor.governor.progress, STEPS)
        except BaseException:
            db.close()
            raise

    def begin(self) -> None:
        """Begin the transaction; again after SQLite has rolled it back because of a statement."""
        self.db.execute("BEGIN")
        self.db.execute("SAVEPOINT request")

    def use_journal(self, *, in_memory: bool) -> bool:
        """Keep the old content of written pages in memory, or in a file without a name; return whether SQLite does so.

        In memory, a small transaction makes half as many system calls. SQLite changes the mode only before the first
        write of a transaction.
        """
        if in_memory is not self.journal_in_memory:
            mode = "memory" if in_memory else "delete"
            self.journal_in_memory = self.db.pragma("journal_mode", mode) == "memory"
        return self.journal_in_memory is in_memory

    def allow_temporary(self, most_bytes: int) -> None:
        """Allow TEMP objects, whose rows may take ``most_bytes``."""
        self.executor.allow_temporary()
        page_bytes = self.db.execute("PRAGMA temp.page_size").fetchone()[0]  # type: ignore[index]
        self.db.execute(f"PRAGMA temp.max_page_count = {max(most_bytes // page_bytes, 16)}").fetchall()

    def learn(self, version: int) -> None:
        """Read the schema, if its version has changed."""
        if version == self.version:
            return
        tables = Tables(self.db, self._connector.known().tables)
        self.capture.use(tables)
        self.applier.use(tables)
        self.executor.use(tables)
        self.ids.use(tables)
        self.version = version

    def close(self) -> None:
        """Close the connection, and drop the compiled texts: only the garbage collector frees the executor."""
        if self.version >= 0:
            self.executor.texts.forget()
        self.db.close(True)
