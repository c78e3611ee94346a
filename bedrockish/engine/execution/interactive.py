"""Executes the statements of open transactions, which share the connection that writes.

SQLite lets one connection write, and the node applies all commits on it. So an open transaction is a list of row
changes and an access set in memory. For a statement the transaction is *swapped in*: its row changes are written in a
savepoint of the writer's transaction, the statement runs, and its changes join the list. The rows stay there until
another transaction or a commit needs the writer; then the savepoint is rolled back. As long as the transaction has only
read, it reads on a snapshot of its own instead.

The row changes fit on top of later commits as long as no row that the transaction has read or written has changed. This
is checked before each swap-in; if such a row has changed, the transaction fails at once.

*Serializable*: the check includes all reads, so the result is the same as if the whole transaction ran now.
*Snapshot*: the check leaves out plain reads of earlier statements. The transaction reads the tables that it has not
written on its first snapshot. A statement on the writer fails if a commit after that snapshot has changed rows that the
statement reads, because it would combine rows of two moments.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import apsw

from bedrockish.access_sets.access_set_builder import AccessSetBuilder
from bedrockish.access_sets.change_capture import UNREADABLE, Touched
from bedrockish.access_sets.partial_failure import were_kept
from bedrockish.access_sets.readset import ResolvedReads
from bedrockish.api.requests import Result, Statement, encode_results
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.interfaces import WriterLender
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.recipes import Recipe, find_alike, read_brief
from bedrockish.engine.execution.snapshot import Readers, fetch
from bedrockish.engine.sqlite.bind import in_order
from bedrockish.engine.sqlite.deferred_keys import children, violations
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements import pragmas
from bedrockish.engine.statements.compiled import READ, SCHEMA, TEMPORARY, WRITE, Compiled
from bedrockish.engine.statements.defined_name import conditional_change
from bedrockish.engine.statements.rowid_allocator import IdsNeededError
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    UnsupportedError,
    schema_changed,
    told_too_early,
    transaction_ended,
)
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import without_settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.statement_kinds import SCHEMA as DEFINITION
from bedrockish.sqltext.statement_kinds import kind_of
from bedrockish.sqltext.temporary import filling_select
from bedrockish.sqltext.transaction_control import RELEASE, SAVEPOINT, Control
from bedrockish_journal.model.access_set import LAST_CLOCK, clock_key
from bedrockish_journal.model.changes import Change, encode_changes
from bedrockish_journal.model.transaction import ROWS

NO_COMMAND = "a command that configures an index cannot be part of a transaction; commit first, and run it alone"
NAMED = "SELECT type FROM main.sqlite_schema WHERE name = ? COLLATE NOCASE"
Overtaken = Callable[[AccessSetBuilder, Mapping[str, int]], BedrockishError | None]
"""Returns the error for a client if a commit outside the base has changed what the access set has read or written."""


class Interactive:
    """The executor of the statements of all open transactions of a node."""

    # The error for a schema statement in a text with further statements.
    no_schema = "a schema statement in a transaction must be a text of its own"

    def __init__(self, engine: WriterLender, overtaken: Overtaken, fits: Callable[[int], bool] | None = None) -> None:
        """Initialize; ``fits`` returns whether an earlier version of the schema has the tables of the present one."""
        self.engine, self._overtaken, self.fits = engine, overtaken, fits or (lambda _version: False)
        self.swapped_in: TransactionWork | None = (
            None  # the transaction whose rows are in the engine's open batch, or None
        )
        # If the writer belongs to one transaction: a connection to its snapshot without its changes; else None.
        self.committed: apsw.Connection | None = None
        parts = self.parts = engine.lend(self)
        self._db, self._executor, self._capture = parts.db, parts.executor, parts.capture
        self._control, self._change = parts.control, parts.db.cursor().execute
        # Whether a deferred foreign key was broken before the running statement; True if that is not known.
        self._keys_were_broken = True
        self._savepoint_each_write = (
            False  # whether ``run_again`` makes a savepoint for every write, because one has failed
        )
        self.readers = Readers(parts.reader, parts.limits)

    # -- statements -------------------------------------------------------------------------------------

    def pieces(self, work: TransactionWork, statement: Statement) -> Iterator[tuple[Compiled, tuple[Any, ...]]]:
        """Yield the statements of a text with their parameters; the caller runs each before it requests the next.

        Raises:
            ConflictError: the schema has changed since the transaction began.
            SqlError: SQLite does not accept a statement.
            UnsupportedError: a statement cannot be replicated, or not in a transaction.
        """
        self.check_schema(work)
        # Statistics would need a private copy of the database, and PRAGMA optimize is only a hint.
        found = self._executor.texts.pieces(statement, work.user, optimizes=False)
        while True:
            self.engine.wait_for_writer()
            self.parts.applier.switch_on()  # otherwise a statement would be compiled without its triggers
            piece, params = next(found, (None, ()))
            if piece is None:
                return
            refusal = pragmas.of_schema_only(piece.sql) if piece.setting else ""
            if refusal:
                raise UnsupportedError(refusal, sql=piece.sql, of_schema=True)
            if piece.kind == SCHEMA and self.changes_nothing(piece.sql):
                piece, params = self._nothing(), ()
            if piece.kind == SCHEMA:
                why = NO_COMMAND if piece.is_command else self.no_schema
                raise UnsupportedError(why, sql=piece.sql, of_schema=True)
            yield piece, params

    def single(self, work: TransactionWork, statement: Statement) -> tuple[Compiled, tuple[Any, ...]] | None:
        """Return the statement of a text with its parameters, if the text is known to hold one; else None.

        Raises:
            ConflictError: the schema has changed since the transaction began.
            ForbiddenError: the user may not run it.
            SqlError: the parameters do not fit.
        """
        self.check_schema(work)
        self.engine.wait_for_writer()
        found = self._executor.texts.single(statement, work.user)
        if found is None or found[0].setting or found[0].kind == SCHEMA:
            return None
        self.parts.applier.switch_on()
        return found

    def changes_nothing(self, sql: str) -> bool:
        """Return whether a statement makes an existing object (IF NOT EXISTS), or drops a missing one (IF EXISTS).

        Such a statement needs no private copy: a later change of definitions makes its transaction fail.
        """
        change = conditional_change(sql)
        if change is None:
            return False
        self.engine.wait_for_writer()
        return change.is_needless({kind for (kind,) in self._db.execute(NAMED, (change.name,))})

    def _nothing(self) -> Compiled:
        """Return a compiled statement that reads no table, and has neither rows nor columns."""
        piece, _ = next(self._executor.texts.pieces(Statement("SELECT 1 WHERE 0")))
        return replace(piece, columns=())

    def needs_snapshot(self, work: TransactionWork, piece: Compiled) -> bool:
        """Return whether the caller must call ``take_snapshot`` before this statement."""
        return work.base is None and not piece.setting and (piece.kind == READ or not work.serializable)

    def take_snapshot(self, work: TransactionWork) -> None:
        """Start a transaction on a snapshot of the file, which has everything that was applied up to the last flush.

        A transaction that has only read may move to a newer snapshot: the caller must know that no later commit has
        changed rows that it has read. No thread may have the writer; the schema must be that of the last flush.

        Raises:
            UnavailableError: the machine has no room for another connection.
        """
        flushed = self.engine.flushed
        assert flushed.schema == self.engine.schema_version
        if work.base is None:
            work.snapshot = self.readers.take_snapshot()
            self._start(work, flushed.applied, flushed.clock)
        elif work.snapshot is not None:
            self._leave_snapshot(work)
            work.snapshot = self.readers.take_snapshot()
            work.base, work.base_clock = dict(flushed.applied), flushed.clock

    def run(
        self, work: TransactionWork, piece: Compiled, params: tuple[Any, ...], room: int, budget_s: float = float("inf")
    ) -> tuple[Result, int]:
        """Run one statement; return its result and an estimate of its bytes.

        The transaction can go on after a usage error (a constraint, a syntax error, a limit), unless it ``has_failed``.

        Raises:
            TakesLongError: the statement has run for ``budget_s`` and has not ended; it has no effect.
            ConflictError: data that the transaction depends on has changed.
            BedrockishError: as for a request.
        """
        self.engine.wait_for_writer()
        self.check_schema(work)
        if piece.setting or (work.defers and pragmas.asks(piece.sql)):
            return self._set(work, piece), 0
        self.start(work)
        assert work.sets is not None
        self.engine.scope.begin(work.command, work.clock, work.base)
        if piece.kind == READ and work.snapshot is not None and not work.owns(piece):
            lengths = self._executor.texts.lengths(piece)
            rows, size = work.snapshot.run(piece, params, room, lengths, self.engine.scope, budget_s)
            work.read_unchanged(piece, params, rows, work.snapshot.query)
            if self.engine.scope.locked:
                work.sets.add_locked(self.engine.scope.take_locked())
            return Result(piece.columns, rows, -1, work.lastrowid or None), size
        self.swap_in(work)
        if not work.serializable:
            error = self._overtaken(work.sets.of_statement(piece, params), work.base or {})
            if error is not None:
                raise error
        self._executor.governor.allow(budget_s)
        self._keys_were_broken = self._broken_keys()
        try:
            if piece.kind == READ:
                rows, size = self._read(work, piece, params, room)
                return Result(piece.columns, rows, -1, work.lastrowid or None), size
            return self._write(work, piece, params, room)
        except TakesLongError:
            if not self._restore() and piece.kind != READ:
                self._capture.discard_changes()
                self._undo_statement(work)
            raise
        finally:
            self._keys_were_broken = True
            self._executor.governor.allow(float("inf"))

    def _set(self, work: TransactionWork, piece: Compiled) -> Result:
        """Switch the deferral of foreign keys on or off, or answer its query with 1; ignore other settings."""
        if pragmas.given(piece.sql)[0] == pragmas.DEFER:
            # SQLite forgets the broken keys when the deferral ends, so the tables are searched at COMMIT.
            self.note_broken_keys(work)
            defers = pragmas.turns_on(piece.sql)
            # Set before the PRAGMA, which may be interrupted, so that the transaction's end undoes it in any case.
            work.defers = work.defers or defers
            if self.swapped_in is work:
                pragmas.defer(self._db, on=defers)
            work.defers = defers
        rows: list[tuple[Any, ...]] = [] if piece.setting else [(1,)]
        return Result(piece.columns, rows, -1, work.lastrowid or None)

    def _repeatable(self, work: TransactionWork, sql: str) -> Recipe | None:
        """Return the recipe to run a text as a batch in a transaction; None if its statements must run one by one.

        Raises:
            ForbiddenError: the user may not run it.
        """
        recipe = self._executor.texts.repeatable(sql, work.user)
        if recipe is None or self.needs_snapshot(work, recipe.piece):
            return None
        return recipe if work.serializable or recipe.plan.reads_nothing else None

    def run_alike(
        self, work: TransactionWork, statements: Sequence[Statement], first: int, budget_s: float
    ) -> tuple[list[Result], int]:
        """Run consecutive statements with the same text together, from the one at ``first`` on.

        Return their results, equal to those of ``run``, and the index up to which the caller must run statements one by
        one. If a statement fails or takes long, none of the statements has run.

        Raises:
            ConflictError: data that the transaction depends on has changed.
            ForbiddenError: the user may not run the text.
        """
        recipe, count = find_alike(statements, first, lambda sql: self._repeatable(work, sql))
        if recipe is None:
            return [], first + count
        found = self._run_alike(work, recipe, statements[first : first + count], budget_s)
        return found, first if found else first + count

    def _run_alike(
        self, work: TransactionWork, recipe: Recipe, statements: Sequence[Statement], budget_s: float
    ) -> list[Result]:
        self.engine.wait_for_writer()
        self.check_schema(work)
        self.start(work)
        assert work.sets is not None
        self.engine.scope.begin(work.command, work.clock, work.base)
        self.swap_in(work)
        self.parts.applier.switch_on()
        self._executor.reader = None  # the reading connection does not see the transaction's rows
        capture = self._capture
        self._control("SAVEPOINT statement")
        capture.start(work.size, work.fts_bytes)
        self._executor.governor.allow(budget_s)
        try:  # in half of the budget: the other half is for the keys and changes
            found = self._executor.repeat(recipe, statements, self.parts.limits.seconds() + budget_s / 2)
        finally:
            self._executor.governor.allow(float("inf"))
        if found is None and self._restore():
            return []
        changes, touched = capture.stop()
        if found is None or touched:  # the rows that the hook cannot show must be found after each single statement
            self._undo_statement(work)
            return []
        results = [result for result, _ in found]
        for at, result in enumerate(results):
            if result.lastrowid:
                work.lastrowid = result.lastrowid
            elif work.lastrowid:  # a row with id 0 leaves the last id as it was
                results[at] = Result((), [], result.rowcount, work.lastrowid)
        if not recipe.plan.reads_nothing:
            for _, params in found:
                work.sets.add_reads(recipe.piece, params)
        self._keep(work, changes, touched)
        work.wrote = True
        work.inspect(recipe.piece)
        return results

    def run_again(
        self,
        work: TransactionWork,
        sql: str,
        given: tuple[Any, ...] | dict[str, Any],
        room: int,
        *,
        only_brief: bool = False,
    ) -> Result | None:
        """Run a text that has run before by its recipe (``CompiledTexts.again``), which is faster than ``run``.

        Return None if ``run`` must run it: the text has no recipe, it has failed without an effect, or the transaction
        is not swapped in.

        Args:
            given: the parameters, as SQLite stores them.
            room: the bytes that the rows may take.
            only_brief: whether to return None also for a recipe that is not brief.

        Raises:
            BedrockishError: see ``run``.
        """
        executor = self._executor
        if self.swapped_in is not work or executor.governor.stopped is not None:
            return None
        recipe = executor.texts.again(sql)
        values = None if recipe is None else in_order(recipe.piece.names, given)
        if recipe is None or values is None or (only_brief and not recipe.is_brief):
            return None
        assert work.sets is not None
        if work.wrote:
            executor.reader = None  # the reading connection does not see the transaction's rows
        piece, lastrowid = recipe.piece, work.lastrowid
        if piece.kind != READ:
            return self._write_again(work, recipe, values, room)
        if not recipe.is_brief:
            try:
                return Result(piece.columns, self._read(work, piece, values, room)[0], -1, lastrowid or None)
            except UnicodeEncodeError:  # a value has a lone surrogate
                return None
        rows = read_brief(executor.reader or self._db, recipe, values, self.parts.limits, room)
        if rows is None:
            return None
        work.sets.add_keys(*recipe.plan.bind(values))
        return Result(piece.columns, rows, -1, lastrowid or None)

    def _write_again(self, work: TransactionWork, recipe: Recipe, values: tuple[Any, ...], room: int) -> Result | None:
        assert work.sets is not None
        text = self._executor.text_with_ids(recipe.piece, values)
        db, capture = self._db, self._capture
        # A savepoint costs two more calls of SQLite, and each call may hand the interpreter lock to another thread.
        in_savepoint = self._savepoint_each_write or not recipe.is_shown
        if in_savepoint:
            self._control("SAVEPOINT statement")
        capture.start(work.size, work.fts_bytes)
        rows: list[tuple[Any, ...]] = []
        try:
            if recipe.piece.columns:
                rows = self._returned(text, values, room)
            else:
                self._change(text, values)
            has_failed = capture.failure is not None
        # A BedrockishError means that no id is left for the row, or no room for the rows of RETURNING; a UnicodeError,
        # that a given value has a lone surrogate, or that a returned text is not UTF-8.
        except (apsw.Error, BedrockishError, UnicodeError):
            self._change = db.cursor().execute  # the old cursor keeps a refused value in memory
            has_failed = True
        if has_failed:
            self._undo_write(work, in_savepoint=in_savepoint)
            return None
        rowcount = db.changes()
        changes, touched = capture.stop()
        if not recipe.plan.reads_nothing:
            work.sets.add_keys(*recipe.plan.bind(values))
        if in_savepoint:
            self._keep(work, changes, touched)
        else:
            assert not touched
            self._add(work, changes, [])
        work.lastrowid, work.wrote = db.last_insert_rowid() or work.lastrowid, True
        return Result(recipe.piece.columns, rows, rowcount, work.lastrowid or None)

    def _returned(self, text: str, values: tuple[Any, ...], room: int) -> list[tuple[Any, ...]]:
        cursor = self._db.execute(text, values)
        try:
            return fetch(cursor, self.parts.limits, 0, room)[0]
        finally:
            cursor.close(True)

    def _undo_write(self, work: TransactionWork, *, in_savepoint: bool) -> None:
        """Undo a write of ``run_again`` that has failed."""
        db, capture = self._db, self._capture
        if self._restore():
            return
        is_undone = not in_savepoint and not capture.has_changes and capture.failure is None
        capture.discard_changes()
        if in_savepoint:
            self._undo_statement(work)
        elif is_undone:
            db.set_last_insert_rowid(work.lastrowid)
        else:  # with OR FAIL, SQLite keeps the rows before the failed one
            self._savepoint_each_write = True
            self.swap_out()

    def _undo_statement(self, work: TransactionWork) -> None:
        """Roll back the statement that has just run to its savepoint."""
        self._control("ROLLBACK TO statement")
        self._control("RELEASE statement")
        self._db.set_last_insert_rowid(work.lastrowid)

    def control(self, work: TransactionWork, control: Control) -> None:
        """Run SAVEPOINT, RELEASE or ROLLBACK TO.

        Raises:
            SqlError: there is no such savepoint.
        """
        if control.kind == SAVEPOINT:
            self.mark(work, control.name)
        elif control.kind == RELEASE:
            work.release(control.name)
        else:
            self.rollback_to(work, control.name)

    def mark(self, work: TransactionWork, name: str) -> None:
        """Run SAVEPOINT name."""
        work.mark(name, is_broken=self.swapped_in is work and self._broken_keys())

    def rollback_to(self, work: TransactionWork, name: str) -> None:
        """Run ROLLBACK TO name; the access set keeps the reads since the savepoint.

        Raises:
            SqlError: the transaction has no such savepoint.
        """
        place = work.find(name)
        if len(work.changes) > work.marks[place].changes and self.swapped_in is work:
            self.swap_out()
        work.roll_back(place)

    def finish(self, work: TransactionWork) -> Prepared:
        """Return the prepared transaction for its commit. If this raises, the transaction stays open.

        Raises:
            ConstraintError: a deferred foreign key is broken.
            ConflictError: data that the transaction depends on has changed, or its clock is before a commit that it has
                seen.
        """
        assert work.workspace is None or self.committed is not None, "the transaction continues in a workspace"
        self.engine.wait_for_writer()
        if work.clock and work.base_clock >= work.clock:
            raise told_too_early(work.command)
        self.start(work)
        assert work.base is not None
        assert work.sets is not None
        if work.wrote:
            self.check_schema(work)
            self._check_foreign_keys(work)
            self.move(work)
        access_set = work.sets.access_set(reads=True if not work.wrote else None)
        if work.read_without_keys:  # it conflicts with each change of the schema that it has not seen
            access_set = access_set.extended((clock_key(LAST_CLOCK),))
        changes = encode_changes(work.changes) if work.wrote else b""
        result = encode_results([Result((), [], -1, work.lastrowid or None)])
        base, reads, clock = dict(work.base), not work.wrote, work.clock
        prepared = Prepared(base, work.schema, reads, ROWS, access_set, changes, result, clock)
        return replace(prepared, reads_system=True) if work.reads_system else prepared

    def end(self, work: TransactionWork) -> None:
        """Release everything that the transaction uses. A second call does nothing."""
        self.swap_out_if_in(work)
        work.ended = True
        if work.stop is not None:
            work.stop()
        locks = self.engine.scope.locks
        if locks is not None:
            locks.release(work.command)
        draft = work.workspace
        if draft is not None and work.in_thread:
            draft.stop(transaction_ended())
            return
        if draft is not None:
            draft.close()
            work.workspace = None
        if work.snapshot is not None and work.in_thread:
            work.snapshot.interrupt()
        else:
            self._leave_snapshot(work)

    def release_connections(self, work: TransactionWork) -> None:
        """Release the writer and the snapshot, because the transaction continues in a workspace."""
        self.swap_out_if_in(work)
        self._leave_snapshot(work)

    def _leave_snapshot(self, work: TransactionWork) -> None:
        if work.snapshot is not None:
            self.readers.give_back(work.snapshot)
            work.snapshot = None

    def swap_out(self) -> None:
        """Roll back the rows of the transaction that is swapped in, because other work needs the writer."""
        work = self.swapped_in
        if work is None:
            return
        self.note_broken_keys(work)
        self.swapped_in = None
        self._control("ROLLBACK TO interactive")
        self._control("RELEASE interactive")
        if work.defers:
            pragmas.settle(self._db)

    def note_broken_keys(self, work: TransactionWork) -> None:
        """Record whether a deferred key is broken, because SQLite's count will be lost or stay on this connection."""
        work.keys_were_broken = work.keys_were_broken or (self.swapped_in is work and self._broken_keys())

    def note_lost_rows(self) -> None:
        """Mark the transaction as swapped out, because SQLite has rolled back the open batch with its rows."""
        if self.swapped_in is not None and self._keys_were_broken:
            self.swapped_in.keys_were_broken = (
                True  # SQLite has lost its count of broken keys, and ``redo`` does not count them
            )
        if self.swapped_in is not None and self.swapped_in.defers:
            pragmas.settle(self._db)
        self.swapped_in = None

    def swap_out_if_in(self, work: TransactionWork) -> None:
        """Swap out a transaction if it is swapped in, because it ends or continues elsewhere."""
        if self.swapped_in is work:
            self.swap_out()

    def close(self) -> None:
        """Close the readers. Every transaction must have ended."""
        self.swap_out()
        self.readers.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def start(self, work: TransactionWork) -> None:
        """Start a transaction on the present state of the writer, if it has not started."""
        if work.base is None:
            self._start(work, self.engine.applied, self.engine.applied_clock)

    def _start(self, work: TransactionWork, base: Mapping[str, int], clock: int) -> None:
        work.base, work.base_clock, work.schema = dict(base), clock, self.engine.schema_version
        work.begin_sets(self._executor.analysis)

    def check_schema(self, work: TransactionWork) -> None:
        """Raise a ConflictError if the schema, except for its statistics, has changed since the transaction began."""
        version = self.engine.schema_version
        if work.base is None or work.schema == version:
            return
        if work.read_without_keys or work.clock or not self.fits(work.schema):
            raise schema_changed()
        if work.workspace is None:
            work.begin_sets(self._executor.analysis)
            if work.serializable:
                self.move(work)
                work.schema = version

    def overtaken(self, work: TransactionWork, *, moves: bool = False) -> BedrockishError | None:
        """Return the error of a transaction if a commit after its base has changed rows that it depends on; else None.

        If it ``moves`` to a newer snapshot, it depends on all of its reads, with snapshot isolation, too.
        """
        sets = work.sets
        if sets is None or work.base is None:
            return None
        if moves and not work.serializable:
            if work.schema != self.engine.schema_version:  # its reads were planned with other statistics
                return schema_changed()
            sets = sets.serializable()
        return self._overtaken(sets, work.base)

    def swap_in(self, work: TransactionWork) -> None:
        """Swap the transaction in on top of the present commits.

        Raises:
            ConflictError: a row that it depends on has changed.
        """
        if self.swapped_in is work:
            return
        self.move(work)
        self.swap_out()
        self._control("SAVEPOINT interactive")
        self.swapped_in = work
        if work.defers:
            pragmas.defer(self._db, on=True)
        self.redo(work.changes)
        self._db.set_last_insert_rowid(work.lastrowid)

    def redo(self, changes: list[Change]) -> None:
        """Repeat changes of the transaction that is swapped in, after their rollback.

        Raises:
            ConflictError: the rows do not fit.
        """
        failure = self.parts.applier.redo(changes)
        if failure:
            self.swap_out()
            raise ConflictError(f"the transaction's rows do not fit any more: {failure}; run it again")
        self.parts.applier.switch_on()

    def move(self, work: TransactionWork) -> None:
        """Move a transaction's base to the present commits, and leave its snapshot; with snapshot isolation, keep both.

        Raises:
            ConflictError: a commit after the base has changed a row that the transaction depends on.
        """
        assert work.sets is not None
        assert work.base is not None
        engine = self.engine
        if work.base != engine.applied:
            error = self._overtaken(work.sets, work.base)
            if error is not None:
                raise error
            if work.serializable:
                work.base, work.base_clock = dict(engine.applied), engine.applied_clock
        if work.serializable:
            self._leave_snapshot(work)

    def _read(
        self, work: TransactionWork, piece: Compiled, params: tuple[Any, ...], room: int
    ) -> tuple[list[tuple[Any, ...]], int]:
        assert work.sets is not None
        try:
            rows, size = self._executor.run_piece(piece, params, room)
        except BedrockishError:
            self._restore()
            work.sets.add_reads(piece, params, failed=True)
            raise
        work.read_unchanged(piece, params, rows, self._executor.query_for(piece))
        if self.engine.scope.locked:
            work.sets.add_locked(self.engine.scope.take_locked())
        return rows, size

    def _write(self, work: TransactionWork, piece: Compiled, params: tuple[Any, ...], room: int) -> tuple[Result, int]:
        assert piece.kind in (WRITE, TEMPORARY)
        assert work.sets is not None
        db, capture = self._db, self._capture
        self._control("SAVEPOINT statement")
        capture.start(work.size, work.fts_bytes)
        try:
            resolved = self._resolve(work, piece, params)
            rows, size = self._executor.run_piece(piece, params, room)
            if capture.has_temporary and capture.hidden_tables:
                self._check_blind()
        except BedrockishError as error:
            self._failed(work, piece, params, error)
            raise
        is_definition = piece.kind == TEMPORARY and kind_of(piece.sql) == DEFINITION
        rowcount = -1 if is_definition else db.changes()
        changes, touched = capture.stop()
        work.sets.complete(resolved, changes, touched)
        if self.engine.scope.locked:
            work.sets.add_locked(self.engine.scope.take_locked())
        self._keep(work, changes, touched)
        work.lastrowid = db.last_insert_rowid() or work.lastrowid
        work.wrote = work.wrote or piece.kind == WRITE
        return Result(piece.columns, rows, rowcount, work.lastrowid or None), size

    def _resolve(self, work: TransactionWork, piece: Compiled, params: tuple[Any, ...]) -> ResolvedReads | None:
        """Return the reads of the next statement; for CREATE TEMP TABLE, record those of its SELECT and return None."""
        assert work.sets is not None
        if piece.defines_temporary:
            select = filling_select(piece.sql)
            if select:
                filling, _ = self._executor.texts.compiled(select, work.user)
                work.sets.add_reads_unchanged(filling, params, self._executor.query_for(piece))
            return None
        return work.sets.add_reads_before(self._executor.analysis.plan(piece), params, self._executor.query_for(piece))

    def _check_blind(self) -> None:
        """Refuse a statement whose changed rows must be found by a rollback, if the rollback would have other effects.

        It would also undo changes of TEMP tables, and SQLite would lose its count of broken foreign keys.
        """
        triggers = "SELECT 1 FROM sqlite_temp_schema WHERE type = 'trigger' LIMIT 1"
        if self._capture.changed_temporary or self._broken_keys() or self._db.execute(triggers).fetchone():
            names = ", ".join(self._capture.hidden_tables)
            raise UnsupportedError(
                f"{names}: rows of virtual tables, and of tables with VIRTUAL columns, cannot be changed together with "
                "TEMP tables, under a TEMP trigger or while a deferred foreign key is broken; copy them in a statement "
                "of their own"
            )

    def _keep(self, work: TransactionWork, changes: list[Change], touched: dict[str, Touched]) -> None:
        """Add the changes of the statement that has just run to those of the transaction.

        Raises:
            TooLargeError, SqlError: a changed row that the preupdate hook has not shown cannot be kept; the statement
                was undone.
        """
        db, lastrowid = self._db, self._db.last_insert_rowid()
        net_only: list[str] = []
        if touched:
            try:
                net_only = self._find_net(work, changes, touched)
            except BedrockishError:
                self._undo_statement(work)
                raise
            failure = self.parts.applier.redo(changes)
            assert not failure, failure
            self.parts.applier.switch_on()
            db.set_last_insert_rowid(lastrowid)
        self._control("RELEASE statement")
        self._add(work, changes, net_only)

    def _find_net(self, work: TransactionWork, changes: list[Change], touched: dict[str, Touched]) -> list[str]:
        """Undo the statement that has just run, and add its net changes in tables whose rows the hook does not show.

        Return the tables that count as written whole.
        """
        capture = self._capture
        after = capture.read_rows(touched)
        work.keys_were_broken = work.keys_were_broken or self._broken_keys()
        self._db.execute("ROLLBACK TO statement")
        # The rollback has restored SQLite's earlier count of broken keys, and ``redo`` will not change the count.
        work.keys_were_broken = work.keys_were_broken or self._broken_keys()
        before = capture.read_rows(touched)
        changes += capture.net_changes(before, after)
        return capture.net_only_tables(touched, before, after)

    def _add(self, work: TransactionWork, changes: list[Change], net_only: list[str]) -> None:
        assert work.sets is not None
        work.size, work.fts_bytes = self._capture.size, self._capture.fts_bytes
        work.changes += changes
        work.net_only += net_only
        work.sets.add_changes(changes, net_only)

    def _failed(self, work: TransactionWork, piece: Compiled, params: tuple[Any, ...], error: BedrockishError) -> None:
        """Roll back a failed statement, except for the rows that SQLite keeps (conflict clause FAIL).

        Raises:
            UsageError: a row was refused before SQLite would have kept it; nothing of the statement is kept.
        """
        db, capture = self._db, self._capture
        assert work.sets is not None
        if self._restore():
            work.has_failed = isinstance(error, ConstraintError)  # ROLLBACK as conflict clause ends the transaction
            return
        if piece.defines_temporary:  # SQLite still has the definition of a failed ALTER
            db.execute("SELECT 1 FROM sqlite_temp_schema LIMIT 1").fetchall()
        if not isinstance(error, IdsNeededError):  # after that error, the statement runs again at once
            work.sets.add_reads(piece, params, failed=True)
        lastrowid, refusal, partly = db.last_insert_rowid(), capture.failure, False
        changes, touched = capture.stop()
        if isinstance(error, ConstraintError):
            # With the conflict clause FAIL, the rows before the one that failed stay.
            found = were_kept(db, self._executor._tables.by_name, changes)
            if refusal is not None:  # the changes after the refused row are not known
                partly = bool(found) or db.changes() > 0
            elif found or (found is None and touched):  # ``_keep`` finds the net change of ``touched`` rows
                before = len(work.changes)
                try:
                    self._keep(work, changes, touched)
                except BedrockishError as unread:
                    if not unread.details.get(UNREADABLE):
                        raise
                    return  # the statement was undone; the caller raises its own error
                if len(work.changes) > before:
                    work.lastrowid, work.wrote = lastrowid or work.lastrowid, True
                db.set_last_insert_rowid(work.lastrowid)
                return
        is_of_keys = error.details.get("sqlite") == apsw.SQLITE_CONSTRAINT_FOREIGNKEY
        # Unless a foreign key is broken, SQLite itself has undone the rows that it does not keep; a rollback would undo
        # the others, too.
        decides = isinstance(error, ConstraintError) and refusal is None and not is_of_keys
        if not (decides and capture.changed_temporary):
            db.execute("ROLLBACK TO statement")
        db.execute("RELEASE statement")
        # SQLite still has the rowid of an undone row, which the transaction must not report.
        db.set_last_insert_rowid(work.lastrowid)
        if refusal is not None and partly:
            raise refusal from error

    def _restore(self) -> bool:
        """Write the open batch again if SQLite has rolled it back because of a statement; return whether it has."""
        if self._db.in_transaction:
            return False
        self._capture.discard_changes()
        self.note_lost_rows()
        self._executor.governor.allow(float("inf"))  # the statement's budget must not interrupt ``redo``
        self.parts.redo()
        return True

    # -- deferred foreign keys -------------------------------------------------------------------------------------

    def _broken_keys(self) -> bool:
        """Return whether SQLite counts a deferred foreign key as broken now."""
        return self._executor.breaks_foreign_keys

    def _check_foreign_keys(self, work: TransactionWork) -> None:
        """Check deferred foreign keys: by SQLite's own count or, if that was lost, by a search through the tables."""
        if not work.keys_were_broken:
            broken = self.swapped_in is work and self._broken_keys()
        else:
            tables = children(self._executor.analysis.schema, work.changes)
            if self.committed is None:
                self.swap_out()
                before = violations(self._db, tables)
            else:
                before = violations(self.committed, tables)
            self.swap_in(work)
            broken = bool(violations(self._db, tables) - before)
        if broken:
            raise broken_at_commit()


def broken_at_commit() -> ConstraintError:
    """Return the error of a COMMIT for which a deferred foreign key is broken."""
    why = "FOREIGN KEY constraint failed: a deferred one is still broken at COMMIT"
    return ConstraintError(why, sqlite=apsw.SQLITE_CONSTRAINT_FOREIGNKEY)


@remembered
def is_of_schema(sql: str) -> bool:
    """Return whether a text changes the schema, unless ``Interactive.changes_nothing``."""
    sql = without_settings(sql)
    is_schema = first_word(sql) in ("ALTER", "ANALYZE", "CREATE", "DROP")
    return is_schema or pragmas.is_replicated(sql) or bool(pragmas.of_schema_only(sql))
