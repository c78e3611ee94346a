"""Execution of a client's request on the writing connection, which returns its effects and rolls them back.

The request runs in a savepoint inside the batch's open transaction, so it sees every applied entry; the savepoint is
always rolled back. Some failures make SQLite roll back the whole transaction instead (ROLLBACK conflict clauses, an
interrupted write, a full disk); the engine then writes the batch again (see ``Engine``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import apsw

from bedrockish.access_sets.access_set_builder import AccessSetBuilder
from bedrockish.access_sets.analysis import Analysis, access_set
from bedrockish.access_sets.call_costs import Lengths, is_too_long, restore, shorten, too_long
from bedrockish.access_sets.catalog import Prepare, Schema
from bedrockish.access_sets.change_capture import Capture
from bedrockish.access_sets.key_values import Params
from bedrockish.access_sets.query_names import Query, connection_query
from bedrockish.access_sets.readset import EVERYTHING
from bedrockish.access_sets.settings_in_force import in_force
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.column_blocks import Blocks, Row
from bedrockish.api.large_results import encode_in_steps
from bedrockish.api.requests import SERIALIZABLE, Request, Result, Statement, encode_results
from bedrockish.core.protocol.records import Prepared, only_read
from bedrockish.engine.execution.compiled_texts import CompiledTexts
from bedrockish.engine.execution.governor import FOREVER, STEPS, Governor
from bedrockish.engine.execution.recipes import Recipe, find_alike
from bedrockish.engine.execution.snapshot import fetch
from bedrockish.engine.sqlite.bind import bind_one
from bedrockish.engine.sqlite.errors import is_in_the_text, not_utf8, translate
from bedrockish.engine.sqlite.limits import Limits, TakesLongError
from bedrockish.engine.statements import pragmas
from bedrockish.engine.statements.clock_functions import Scope
from bedrockish.engine.statements.compiled import ALONE, READ, SCHEMA, WRITE, Compiled
from bedrockish.engine.statements.expansion import Expansion
from bedrockish.engine.statements.guard import Guard
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.statements.rowid_allocator import AutoIds
from bedrockish.errors import BedrockishError, ConstraintError, SqlError, UnsupportedError, UsageError
from bedrockish.sqltext.statement_ends import first_word
from bedrockish_journal.model.access_set import AccessSet, Range
from bedrockish_journal.model.changes import Change, encode_changes, encode_statements
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.model.transaction import SCHEMA as SCHEMA_KIND
from bedrockish_journal.storage.packing import set_aside
from bedrockish_journal.storage.schema_steps import deferred_broken
from bedrockish_journal.storage.vector_drops import prepare_drop, renamed_too_early

ANALYSIS_S = 0.05  # seconds for the analysis of a statement in the loop's thread, where it delays other clients


class MixesError(Exception):
    """Raised when a request both changes the schema and reads or writes rows."""


class OneByOneError(Exception):
    """Raised when a statement of a batch has failed: the caller has to run the statements one by one."""


class KnownSchema(NamedTuple):
    """The schema as one connection has read it, for reuse by another connection."""

    tables: Tables
    schema: Schema
    expansion: Expansion


class Executor:
    """Executes requests on one connection, one request at a time.

    Why so large: One connection serves all kinds of statements, and the parts that each execution uses live as long as
    the connection.
    """

    def __init__(
        self,
        db: apsw.Connection,
        guard: Guard,
        capture: Capture,
        limits: Limits,
        ids: AutoIds,
        prepare: Prepare,
        known: KnownSchema | None = None,  # the schema as another connection has read it
        access: Access | None = None,
    ) -> None:
        self._db, self._limits, self._ids, self._prepare = db, limits, ids, prepare
        self.capture = capture
        self.governor = governor = Governor(limits, lambda: capture.failure)
        self.texts = CompiledTexts(db, guard, governor, access or Access())
        self.analysis_s = ANALYSIS_S  # the seconds that the exact analysis of a statement may take
        tables, schema, expansion = known or (None, None, None)
        self._use(Tables(db, tables), schema, expansion)
        capture.documents = lambda: self.analysis.documents
        self._most_bytes = limits.length_bytes
        self.encode_changes: Callable[[list[Change]], bytes] = encode_changes  # encodes the changes of a transaction
        self._change = (
            db.cursor().execute
        )  # one cursor for statements without rows: a new one costs half as much as they
        # A faster connection for reads, which shows the same rows until the request has changed some; or None.
        self.reader: apsw.Connection | None = None
        self.needs_full_rollback = (
            False  # whether the request has an effect that only a rollback of the whole transaction undoes
        )
        self.scope = Scope()  # the values of the functions that statements call
        db.set_progress_handler(governor.progress, STEPS)

    @property
    def known(self) -> KnownSchema:
        """The schema in force as this connection has read it, for another connection."""
        return KnownSchema(self._tables, self.analysis.schema, self.texts.expansion)

    def use(self, tables: Tables) -> None:
        """Use the tables of a new schema; drop the statements compiled for the old one."""
        self._use(tables, self.analysis.schema, self.texts.expansion)

    def _use(self, tables: Tables, schema: Schema | None, expansion: Expansion | None) -> None:
        self._tables = tables
        self.analysis = Analysis(self._db, self._prepare, schema, tables.definitions)
        self.analysis.patience = lambda sql: self.governor.patience(sql, self.analysis_s)
        self.texts.use(tables, self.analysis, expansion)

    def allow_temporary(self) -> None:
        """Allow TEMP objects, because the connection belongs to one session."""
        self.capture.has_temporary = True
        self.texts.allow_temporary()

    def execute(
        self,
        request: Request,
        base: dict[str, int],
        schema_version: int,
        budget_s: float = FOREVER,
        *,
        at_once: bool = False,
    ) -> Prepared:
        """Execute a request inside the open transaction; the caller always rolls it back.

        With ``at_once``, successive statements of the same text may run at once, as a batch.

        Raises:
            OneByOneError: a statement of such a batch has failed; the caller runs the request without ``at_once``.
            MixesError: the request changes the schema and has other statements; see ``execute_mixed``.
            TakesLongError: the request has used ``budget_s`` and has not ended.
            SqlError: SQLite does not accept a statement or a value.
            ConstraintError: the data forbids it.
            UnsupportedError: the request cannot be replicated.
            TooLargeError: the request exceeds a limit.
        """
        if not request.statements:
            raise SqlError("the request has no statements; send at least one")
        gatherer = AccessSetBuilder(self.analysis, serializable=request.isolation == SERIALIZABLE)
        run = self.start_run(gatherer)
        self.governor.allow(budget_s)
        try:
            return self._execute(run, request, base, schema_version, at_once=at_once)
        except UsageError as error:
            if not is_in_the_text(error):
                error.rests_on = only_read(base, schema_version, run.looked_at(), reads_system=run.reads_system)
            raise
        finally:
            self.governor.allow(FOREVER)
            if run.settings:
                pragmas.settle(self._db)

    def _execute(
        self, run: "RequestRun", request: Request, base: dict[str, int], schema_version: int, *, at_once: bool
    ) -> Prepared:
        self.capture.start()
        cookie = statistics = None
        begun = 0  # the statements before this index have run in a batch
        for place, statement in enumerate(request.statements):
            if at_once and place >= begun and not run.schema:
                begun = place + run.run_alike(request, place)
            if place < begun:
                continue
            for piece, params in self.texts.pieces(statement, request.user):
                if piece.setting:
                    if pragmas.of_schema_only(piece.sql):
                        raise MixesError
                    run.set(piece)
                    continue
                if piece.is_create_as_select:
                    raise MixesError
                if piece.kind == SCHEMA:
                    # A rollback of DDL makes SQLite read all definitions again, and a DROP reads all pages.
                    if self.governor.budget.is_brief and (self._tables.definitions.are_many or piece.drops_pages):
                        raise TakesLongError(piece.sql)
                    if cookie is None:
                        cookie = pragmas.numbers(self._db)
                        self.capture.discard_changes()  # a module writes shadow rows when it creates a table
                    run.schema.append(piece.sql)
                    self.needs_full_rollback = self.needs_full_rollback or piece.needs_full_rollback
                    if first_word(piece.sql) == "ANALYZE":
                        statistics = pragmas.statistics(self._db) if statistics is None else statistics
                    else:
                        run.configures = run.configures or piece.configures
                elif piece.kind == WRITE:
                    if piece.is_upkeep and not run.writes:  # skip it: the index matches the committed rows
                        run.results.append(Result((), [], 1, None))
                        continue
                    run.writes = True
                if run.schema and (run.writes or piece.kind == READ):
                    if self.needs_full_rollback:
                        raise UnsupportedError(ALONE)
                    raise MixesError
                # Pack rows by column only for a single read: the results of a write are in the journal as rows.
                packs = request.by_column and len(request.statements) == 1 and piece.only_reads(statement.sql)
                run.run(piece, params, Blocks() if packs else None)
        if run.schema:
            assert cookie is not None
            with self.governor.judging(run.schema[-1]):
                changed = run.configures or cookie != pragmas.numbers(self._db)
                changed = changed or (statistics is not None and statistics != pragmas.statistics(self._db))
                return self._schema_prepared(run, base, schema_version, changed=changed)
        if run.writes and self.breaks_foreign_keys:
            why = "FOREIGN KEY constraint failed: a deferred one is still broken at the end of the request"
            raise ConstraintError(why, sqlite=apsw.SQLITE_CONSTRAINT_FOREIGNKEY)
        result = run.encode(by_column=request.by_column and not run.writes)
        prepared = self.prepare_rows(run.gatherer, result, base, schema_version, writes=run.writes)
        return replace(prepared, reads_system=True) if run.reads_system else prepared

    def read(self, request: Request, budget_s: float) -> bytes | None:
        """Execute a request without computing its read set; return its encoded results, or None if it may write.

        The connection shows one snapshot and does not write. The caller calls ``Governor.release`` afterwards.

        Args:
            request: a request at any level; the caller checks, before or afterwards, that its level permits the
                snapshot.
            budget_s: the seconds that the request may take.

        Raises:
            TakesLongError: the request has run for ``budget_s`` and has not ended.
            BedrockishError: as ``execute``.
        """
        statements = request.statements
        if len(statements) == 1 and (found := self._look_up(statements[0], request.user, budget_s)) is not None:
            return found
        results: list[Result] = []
        room = most = self._limits.result_bytes
        self.governor.allow(budget_s)
        try:
            for statement in statements:
                for piece, params in self.texts.pieces(statement, request.user):
                    if piece.kind != READ or piece.setting:
                        return None
                    blocks = Blocks() if request.by_column else None
                    rows, size = self.run_piece(piece, params, room, None, blocks)
                    room -= size
                    results.append(Result(piece.columns, rows, -1, None, blocks))
        finally:
            self.governor.allow(FOREVER)
        return encode_in_steps(results, most - room, by_column=request.by_column)

    def _look_up(self, statement: Statement, user: str, budget_s: float) -> bytes | None:
        """Return the encoded result of a lookup; None for any other statement."""
        found = self.texts.lookup(statement, user)
        if found is None or budget_s > self._limits.budget_s:  # a longer budget allows longer values
            return None
        lookup, known = found
        db = self._db if self.reader is None or self.capture.has_changes else self.reader
        return lookup.run(db, known, self._limits)

    def repeat(
        self, recipe: "Recipe", statements: Sequence[Statement], until: float = FOREVER
    ) -> list[tuple[Result, tuple[Any, ...]]] | None:
        """Run statements of the recipe's text until the time is over; return the result and values of each.

        Return None if one failed: the caller rolls all of them back and runs them one by one to find the error.

        Args:
            recipe: from ``CompiledTexts.repeatable``.
            statements: the statements, at least one.
            until: the time, by the clock of the limits, after which no statement begins.
        """
        piece, db, seconds, lengths = recipe.piece, self._db, self._limits.seconds, recipe.plan.lengths
        names, change, text = piece.names, self._change, ""
        found: list[tuple[Result, tuple[Any, ...]]] = []
        if not lengths.is_brief:
            self.governor.watch(db)
        shorten(db, lengths, in_loop=self.governor.budget.is_brief, most=self._most_bytes)
        try:
            for statement in statements:
                params = bind_one(names, statement.params)
                wanted = piece.text(params)
                if wanted is not text:
                    text = wanted
                    self._ids.begin_statement()
                change(text, params)
                found.append((Result((), [], db.changes(), db.last_insert_rowid() or None), params))
                if until < FOREVER and seconds() > until:
                    break
        except (apsw.Error, BedrockishError):
            self._change = db.cursor().execute  # the old cursor keeps refused values in memory
            return None
        finally:
            restore(db, lengths, most=self._most_bytes)
            self.governor.release()
        return found if self.capture.failure is None else None

    def query_for(self, piece: Compiled) -> Query:
        """Return a ``Query`` for the reads of a statement, on the connection that runs the statement.

        It has to be the same connection: another one could choose another plan, for example because SQLite keeps the
        statistics of an ANALYZE that was rolled back.
        """
        return partial(self._query, self._connection_for(piece))

    def _connection_for(self, piece: Compiled) -> apsw.Connection:
        may_use = piece.kind == READ and not (self.capture.has_changes or piece.settings)
        return self.reader if self.reader is not None and may_use else self._db

    def _query(self, db: apsw.Connection, sql: str, many: Sequence[Params]) -> Iterator[tuple[Any, ...]]:
        """Run a query for each tuple of parameters, for reads that depend on rows; yield the rows of all runs.

        All runs together have the time limit of one statement: the query for the row at which a loop has stopped may
        read all rows of the loop's range.

        Raises:
            TakesLongError: the query has used the budget and has not ended.
            apsw.Error: the query exceeds the time limit of a statement, or SQLite failed otherwise.
        """
        governor = self.governor
        if governor.budget.is_over:
            raise TakesLongError(sql)
        governor.watch(db)
        try:
            yield from connection_query(db)(sql, many)
        except apsw.Error as error:
            if not governor.caused(error):
                raise
            failure = governor.ending()
            if failure is not None:
                raise failure from None
            if governor.budget.is_over:
                raise TakesLongError(sql) from None
            raise
        finally:
            governor.release()

    def text_with_ids(self, piece: Compiled, params: Row) -> str:
        """Return the text to run with these parameters, and prepare the ids that it assigns to new rows."""
        text = piece.text(params)
        if text is not piece.sql:
            self._ids.begin_statement()
        return text

    def run_piece(
        self, piece: Compiled, params: Row, room: int, lengths: Lengths | None = None, blocks: Blocks | None = None
    ) -> tuple[list[Row], int]:
        """Run one statement; return its rows and an estimate of their bytes.

        Args:
            room: the bytes that its rows may take.
            lengths: the bounds of the lengths of its values; by default those of its plan.
            blocks: takes the rows of a large result, block by block; the rows after the last block are returned.

        Raises:
            TakesLongError: the statement exceeds the loop's budget, or could with values of these lengths.
            TooLargeError: the rows take more than ``room`` bytes, the changes are too large, or it runs too long.
        """
        budget = self.governor.budget
        if budget.is_over or (piece.is_uninterruptible and budget.is_brief):
            raise TakesLongError(piece.shown)
        if lengths is None:
            lengths = self.texts.lengths(piece)
        if not piece.settings:
            return self._run_piece(piece, params, room, lengths, blocks)
        with in_force(self._db, piece.settings):
            return self._run_piece(piece, params, room, lengths, blocks)

    def _define(self, piece: Compiled, text: str, params: Row) -> None:
        early = renamed_too_early(self._db, text, piece.tables)
        if early:
            way = "write a row first, or drop the table and make another one"
            raise UnsupportedError(f"virtual table {early}: vec1 cannot be renamed before it had a row; {way}")
        prepare_drop(self._db, text)
        with set_aside(self._db, text):
            self._db.execute(text, params, can_cache=not piece.settings)

    def _run_piece(
        self, piece: Compiled, params: Row, room: int, lengths: Lengths, blocks: Blocks | None
    ) -> tuple[list[Row], int]:
        governor = self.governor
        db, in_loop, most = self._connection_for(piece), governor.budget.is_brief, self._most_bytes
        text = self.text_with_ids(piece, params)
        if not lengths.is_brief:
            self.governor.watch(db)
        shorten(db, lengths, in_loop=in_loop, most=most, params=params)
        try:
            if piece.columns:
                cursor = db.execute(text, params, can_cache=piece.can_cache)
                try:
                    rows, size = fetch(cursor, self._limits, governor.number, room, blocks)
                finally:
                    cursor.close(True)
            else:
                rows, size = [], 0
                if piece.kind == WRITE and not piece.settings:
                    self._change(text, params)
                elif piece.kind == SCHEMA:
                    self._define(piece, text, params)
                else:
                    db.execute(text, params, can_cache=not piece.settings)
        except apsw.FullError as error:
            raise self._ids.used_up(self._db) or translate(error, piece.shown) from error
        except apsw.Error as error:
            if governor.caused(error):
                raise governor.error_of_interrupt(piece.shown) from error
            self._change = self._db.cursor().execute  # the old cursor keeps refused values in memory
            if in_loop and is_too_long(error):
                raise TakesLongError(piece.shown) from None
            number = self._db.system_errno
            # No variable for the error: this frame would form a cycle with it, which would keep the parameters.
            raise too_long(error, lengths, piece.shown, params) or translate(error, piece.shown, number) from error
        except UnicodeDecodeError:
            raise not_utf8(piece.sql) from None
        finally:
            restore(db, lengths, most=most)
            if not lengths.is_brief:
                governor.release()
        if self.capture.failure is not None:
            raise self.capture.failure
        return rows, size

    def _schema_prepared(self, run: "RequestRun", base: dict[str, int], version: int, *, changed: bool) -> Prepared:
        self.capture.discard_changes()
        Tables(self._db, self._tables).check_change(self._db, self._tables)
        access_set = AccessSet()  # empty: the statements take effect only at the activation
        changes = encode_statements(run.schema if changed else [])
        return Prepared(base, version, not changed, SCHEMA_KIND, access_set, changes, encode_results(run.results))

    @property
    def breaks_foreign_keys(self) -> bool:
        """True while a deferred foreign key is broken."""
        return self._tables.foreign_keys and deferred_broken(self._db)

    def start_run(self, gatherer: AccessSetBuilder) -> "RequestRun":
        """Return the run of another request, on top of the requests executed before."""
        self._db.set_last_insert_rowid(0)
        return RequestRun(self, gatherer, self._limits.result_bytes)

    def prepare_rows(
        self, gatherer: AccessSetBuilder, result: bytes, base: dict[str, int], version: int, *, writes: bool
    ) -> Prepared:
        """Return the effects of the statements since the capture began, and roll them back."""
        capture, db = self.capture, self._db
        changes, touched = capture.stop()
        net_only: list[str] = []
        if touched:
            after = capture.read_rows(touched)
            db.execute("ROLLBACK TO request")
            before = capture.read_rows(touched)
            net_only = capture.net_only_tables(touched, before, after)
            changes += capture.net_changes(before, after)
        # A write that changed no row is led like any other, to claim its command's id. Otherwise a client that sends a
        # command again after a lost answer could get the answer that no row was changed, while the first attempt
        # commits.
        packed = self.encode_changes(changes) if writes else b""
        access_set = gatherer.finish(changes, net_only)
        spans = self.analysis.keys.spans(access_set.write_ranges, changes) if access_set.write_ranges else ()
        return Prepared(base, version, not writes, ROWS, access_set, packed, result, spans=spans)


class RequestRun:
    """The execution of one request, statement by statement."""

    def __init__(self, executor: Executor, gatherer: AccessSetBuilder, room: int) -> None:
        self._executor, self._room, self._most = executor, room, room
        self.gatherer = gatherer
        self.results: list[Result] = []
        self.schema: list[str] = []
        self.configures = self.writes = self.settings = self.reads_system = False
        self._begun: list[tuple[Compiled, tuple[Any, ...]]] = []

    def set(self, piece: Compiled) -> None:
        """Apply a setting for the rest of the request."""
        self.settings = True
        pragmas.apply(self._executor._db, piece.sql)
        self.results.append(Result((), [], -1, None))

    def run(self, piece: Compiled, params: tuple[Any, ...], blocks: Blocks | None = None) -> None:
        """Run a statement; record its reads and its result. ``blocks`` takes the rows of a large result."""
        executor = self._executor
        resolved = lengths = None
        if piece.kind != SCHEMA:
            plan = executor.analysis.plan(piece)
            resolved, lengths = self.gatherer.add_reads_before(plan, params, executor.query_for(piece)), plan.lengths
        self._begun.append((piece, params))
        self.reads_system = self.reads_system or piece.reads_system
        before = 0 if resolved is None else executor.capture.count
        rows, size = executor.run_piece(piece, params, self._room, lengths, blocks)
        if resolved is not None:
            self.gatherer.complete(resolved, executor.capture.changes_after(before), executor.capture.hidden_tables)
        if executor.scope.locked:
            self.gatherer.add_locked(executor.scope.take_locked())
        self._room -= size
        db = executor._db
        rowcount = db.changes() if piece.kind == WRITE else -1
        self.results.append(Result(piece.columns, rows, rowcount, db.last_insert_rowid() or None, blocks))

    def run_alike(self, request: Request, first: int) -> int:
        """Run the statements from index ``first`` on that have the same text, as a batch; return their number, or 0.

        Raises:
            OneByOneError: a statement failed.
            TakesLongError: the request exceeds its budget.
        """
        executor, statements = self._executor, request.statements
        recipe, count = find_alike(statements, first, lambda sql: executor.texts.repeatable(sql, request.user))
        if recipe is None:
            return 0
        if executor.governor.budget.is_over:
            raise TakesLongError(recipe.piece.sql)
        found = executor.repeat(recipe, statements[first : first + count])
        if found is None:
            raise OneByOneError
        if not recipe.plan.reads_nothing:
            for _, params in found:
                self.gatherer.add_keys(*recipe.plan.bind(params))
        self._begun += [(recipe.piece, params) for _, params in found]
        self.results += [result for result, _ in found]
        self.writes = True
        return count

    def encode(self, *, by_column: bool = False) -> bytes:
        """Return the encoded results."""
        return encode_in_steps(self.results, self._most - self._room, by_column=by_column)

    def looked_at(self) -> AccessSet:
        """Return the reads of the statements and constraint checks so far: an error of the request rests on them."""
        if self.schema:
            return AccessSet(read_ranges=EVERYTHING)  # the reads of a schema statement are not known
        points, ranges = set[bytes](), set[Range]()
        for piece, params in self._begun:
            more_points, more_ranges = self._executor.analysis.plan(piece).bind_failed(params)
            points.update(more_points)
            ranges.update(more_ranges)
        return access_set(points, ranges, set(), set())
