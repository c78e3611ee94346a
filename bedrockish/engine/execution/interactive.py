"""Executes the statements of open transactions, which share the connection that writes.

SQLite lets one connection write, and the node applies all commits on it. So an open transaction is a list of row
changes and an access set in memory. For a statement the transaction is *swapped in*: its row changes are written in a
savepoint of the writer's transaction, the statement runs, and its changes join the list. The rows stay there until
another transaction or a commit needs the writer; then the savepoint is rolled back. As long as the transaction has only
read, it reads on a snapshot of its own instead.

The row changes fit on top of later commits, because no row that the transaction has read or written has changed. This
is checked before each swap; if such a row has changed, the transaction fails at once.

*Serializable*: reads count like writes, so the transaction is equal to one that runs now.
*Snapshot*: its first snapshot stays. Tables that it has not written are read there. A statement on the writer fails if
a commit after the snapshot has changed rows that the statement reads, since its results would show two moments; rows
that earlier statements have read may change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import apsw

from bedrockish.access_sets import partial_failure as kept
from bedrockish.access_sets.change_capture import Touched
from bedrockish.access_sets.growing import Growing
from bedrockish.access_sets.readset import ResolvedReads
from bedrockish.api.requests import Result, Statement, encode_results
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.interfaces import Lends
from bedrockish.engine.execution.open_transaction import Session
from bedrockish.engine.execution.recipes import Recipe, find_alike, read_brief
from bedrockish.engine.execution.snapshot import Readers
from bedrockish.engine.sqlite.deferred_keys import children, violations
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements import pragmas
from bedrockish.engine.statements.classify import READ, SCHEMA, TEMPORARY, WRITE, Piece
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    UnavailableError,
    UnsupportedError,
    told_too_early,
)
from bedrockish.sqltext.known_texts import remembered
from bedrockish.sqltext.session_settings import without_settings
from bedrockish.sqltext.statement_ends import first_word
from bedrockish.sqltext.statement_kinds import SCHEMA as DEFINITION
from bedrockish.sqltext.statement_kinds import kind_of
from bedrockish.sqltext.temporary import filling_select
from bedrockish.sqltext.transaction_control import RELEASE, ROLLBACK_TO, SAVEPOINT, Control
from bedrockish_journal.model.changes import Change, encode_changes
from bedrockish_journal.model.transaction import ROWS

Overtaken = Callable[[Growing, Mapping[str, int]], BedrockishError | None]
"""Returns the error for a client if a commit outside the base has changed what the access set has read or written."""


class Interactive:
    """The executor of the statements of all open transactions of a node."""

    # The error for a change of the schema within a longer text.
    no_schema = "a schema statement in a transaction must be a text of its own"

    def __init__(self, engine: Lends, overtaken: Overtaken) -> None:
        self.engine, self._overtaken = engine, overtaken
        self.inside: Session | None = None  # the transaction whose rows are in the engine's open batch, or None
        # A connection to the transaction's snapshot without its changes, if the writer belongs to one transaction; else
        # None.
        self.committed: apsw.Connection | None = None
        parts = self.parts = engine.lend(self)
        self._db, self._executor, self._capture = parts.db, parts.executor, parts.capture
        self._control, self._change = parts.control, parts.db.cursor().execute
        self.readers = Readers(parts.reader, parts.limits)

    # -- sessions ---------------------------------------------------------------------------------------

    def pieces(self, session: Session, statement: Statement) -> Iterator[tuple[Piece, tuple[Any, ...]]]:
        """Yield the statements of a text with their parameters; the caller runs each before it requests the next.

        Raises:
            ConflictError: the schema has changed since the transaction began.
            SqlError: SQLite does not understand it.
            UnsupportedError: it cannot be replicated, or not in a transaction.
        """
        self.check_schema(session)
        found = self._executor.pieces(statement, session.user)
        while True:
            self.engine.come_back()
            self.parts.applier.loud()  # a statement is compiled with its triggers
            piece, params = next(found, (None, ()))
            if piece is None:
                return
            if piece.setting and pragmas.is_keys_off(piece.sql):
                raise UnsupportedError(pragmas.KEYS_OFF, sql=piece.sql)
            if piece.kind == SCHEMA:
                raise UnsupportedError(self.no_schema, sql=piece.sql, of_schema=True)
            yield piece, params

    def single(self, session: Session, statement: Statement) -> tuple[Piece, tuple[Any, ...]] | None:
        """Return the statement of a text with its parameters, if the text is known to hold one; else None.

        Raises:
            ConflictError: the schema has changed since the transaction began.
            ForbiddenError: it is not this user's to run.
            SqlError: the parameters do not fit.
        """
        self.check_schema(session)
        self.engine.come_back()
        found = self._executor.single(statement, session.user)
        if found is None or found[0].setting or found[0].kind == SCHEMA:
            return None
        self.parts.applier.loud()
        return found

    @staticmethod
    def is_schema(statement: Statement) -> bool:
        """Return whether a text changes the schema."""
        return _changes_schema(statement.sql)

    def needs_snapshot(self, session: Session, piece: Piece) -> bool:
        """Return whether the caller must call ``take_snapshot`` before this statement."""
        return session.base is None and not piece.setting and (piece.kind == READ or not session.serializable)

    def take_snapshot(self, session: Session) -> None:
        """Start a transaction on a snapshot of the file, which has everything that was applied up to the last flush.

        Move a transaction that has only read to that snapshot: the caller knows that its reads would be the same. No
        other thread may have the writer, and the schema must be that of the last flush.

        Raises:
            UnavailableError: the machine has no room for another connection.
        """
        flushed = self.engine.flushed
        assert flushed.schema == self.engine.schema_version
        if session.base is None:
            session.snapshot = self.readers.take()
            self._start(session, flushed.applied, flushed.clock)
        elif session.snapshot is not None:
            self.readers.give_back(session.snapshot)
            session.snapshot = None
            session.snapshot = self.readers.take()
            session.base, session.base_clock = dict(flushed.applied), flushed.clock

    def run(
        self, session: Session, piece: Piece, params: tuple[Any, ...], room: int, budget_s: float = float("inf")
    ) -> tuple[Result, int]:
        """Run one statement; return its result and about how many bytes it takes. The transaction can go on after a
        usage error (a constraint, a syntax error, a limit), unless it is ``over``; not after any other.

        Raises:
            TakesLongError: it has run for ``budget_s`` and is not done; nothing of it has happened.
            ConflictError: data that the transaction depends on has changed.
            BedrockishError: as for a request.
        """
        self.engine.come_back()
        self.check_schema(session)
        if piece.setting or (session.defers and pragmas.asks(piece.sql)):
            return self._set(session, piece), 0
        self.start(session)
        assert session.sets is not None
        self.engine.scope.begin(session.command, session.clock, session.base)
        if piece.kind == READ and session.snapshot is not None and not session.owns(piece):
            lengths = self._executor.lengths(piece)
            rows, size = session.snapshot.run(piece, params, room, lengths, self.engine.scope, budget_s)
            session.saw(piece, params, rows, session.snapshot.query)
            if self.engine.scope.locked:
                session.sets.lock(self.engine.scope.take_locked())
            return Result(piece.columns, rows, -1, session.lastrowid or None), size
        self.enter(session)
        if not session.serializable:
            error = self._overtaken(session.sets.alone(piece, params), session.base or {})
            if error is not None:
                raise error
        self._executor.allow(budget_s)
        try:
            if piece.kind == READ:
                rows, size = self._read(session, piece, params, room)
                return Result(piece.columns, rows, -1, session.lastrowid or None), size
            return self._write(session, piece, params, room)
        except TakesLongError:
            if not self._restore() and piece.kind != READ:
                self._capture.deafen()
                self._db.execute("ROLLBACK TO statement")
                self._db.execute("RELEASE statement")
            raise
        finally:
            self._executor.allow(float("inf"))

    def _set(self, session: Session, piece: Piece) -> Result:
        """Defer foreign keys to COMMIT or no longer, or answer whether they are deferred; they are always on."""
        if pragmas.given(piece.sql)[0] == pragmas.DEFER:
            # SQLite forgets the broken keys when it defers no longer, so the tables are searched at COMMIT.
            session.unsure = session.unsure or (self.inside is session and self._broken_keys())
            session.defers = pragmas.turns_on(piece.sql)
            if self.inside is session:
                pragmas.defer(self._db, on=session.defers)
        rows: list[tuple[Any, ...]] = [] if piece.setting else [(1,)]
        return Result(piece.columns, rows, -1, session.lastrowid or None)

    def repeatable(self, session: Session, sql: str) -> Recipe | None:
        """Return how to run a text many times together in a transaction; None if each must run by itself.

        Raises:
            ForbiddenError: it is not this user's to run.
        """
        recipe = self._executor.repeatable(sql, session.user)
        if recipe is None or self.needs_snapshot(session, recipe.piece):
            return None
        return recipe if session.serializable or recipe.plan.reads_nothing else None

    def run_alike(
        self, session: Session, statements: Sequence[Statement], first: int, budget_s: float
    ) -> tuple[list[Result], int]:
        """Run consecutive statements with the same text together, from the one at ``first`` on.

        Return their results, which are those of ``run`` for each, and the place up to which statements are to be run
        one by one. If one fails or takes long, none of them has run.

        Raises:
            ConflictError: data that the transaction depends on has changed.
            ForbiddenError: the text is not this user's to run.
        """
        recipe, count = find_alike(statements, first, lambda sql: self.repeatable(session, sql))
        if recipe is None:
            return [], first + count
        found = self._run_alike(session, recipe, statements[first : first + count], budget_s)
        return found, first if found else first + count

    def _run_alike(
        self, session: Session, recipe: Recipe, statements: Sequence[Statement], budget_s: float
    ) -> list[Result]:
        self.engine.come_back()
        self.check_schema(session)
        self.start(session)
        assert session.sets is not None
        self.engine.scope.begin(session.command, session.clock, session.base)
        self.enter(session)
        self.parts.applier.loud()
        self._executor.reader = None  # the other connection does not see what this one writes
        db, capture = self._db, self._capture
        self._control("SAVEPOINT statement")
        capture.start(session.size)
        self._executor.allow(budget_s)
        try:  # half of the time is left for keys and changes
            found = self._executor.repeat(recipe, statements, self.parts.limits.seconds() + budget_s / 2)
        finally:
            self._executor.allow(float("inf"))
        if found is None and self._restore():
            return []
        changes, touched = capture.stop()
        if found is None or touched:  # a net change must be that of one statement
            db.execute("ROLLBACK TO statement")
            db.execute("RELEASE statement")
            db.set_last_insert_rowid(session.lastrowid)
            return []
        session.lastrowid = db.last_insert_rowid()
        if not recipe.plan.reads_nothing:
            for _, params in found:
                session.sets.read(recipe.piece, params)
        self._keep(session, changes, touched)
        session.wrote = True
        session.looks(recipe.piece)
        return [result for result, _ in found]

    def run_again(self, session: Session, sql: str, values: tuple[Any, ...], room: int) -> Result | None:
        """Run a text that has run before by its recipe from ``Executor.again``, quicker than ``run``.

        Return None if ``run`` must run it: it has no recipe, needs an id from the node or has failed without an effect,
        or the transaction is not inside.

        Args:
            values: the parameters, as SQLite stores them.
            room: the bytes that the rows may take.

        Raises:
            BedrockishError: see ``run``.
        """
        executor = self._executor
        if self.inside is not session or executor.stopped is not None:
            return None
        recipe = executor.again(sql)
        if recipe is None or len(values) != len(recipe.piece.names):
            return None
        assert session.sets is not None
        if session.wrote:
            executor.reader = None  # the other connection does not see what this one has written
        piece, plan, lastrowid = recipe.piece, recipe.plan, session.lastrowid
        if piece.kind == READ:
            if not plan.lengths.is_brief:
                return Result(piece.columns, self._read(session, piece, values, room)[0], -1, lastrowid or None)
            rows = read_brief(executor.reader or self._db, recipe, values, self.parts.limits, room)
            if rows is None:
                return None
            session.sets.note(*plan.bind(values))
            return Result(piece.columns, rows, -1, lastrowid or None)
        if piece.auto is not None and piece.text(values) is not piece.sql:
            return None
        db, capture = self._db, self._capture
        self._control("SAVEPOINT statement")
        capture.start(session.size)
        try:
            self._change(piece.sql, values)
            has_failed = capture.failure is not None
        except apsw.Error:
            self._change = db.cursor().execute  # the old cursor would keep a value that did not fit
            has_failed = True
        if has_failed:
            if not self._restore():
                capture.deafen()
                db.execute("ROLLBACK TO statement")
                db.execute("RELEASE statement")
                db.set_last_insert_rowid(lastrowid)
            return None
        rowcount, session.lastrowid = db.changes(), db.last_insert_rowid()
        changes, touched = capture.stop()
        if not plan.reads_nothing:
            session.sets.note(*plan.bind(values))
        self._keep(session, changes, touched)
        session.wrote = True
        return Result((), [], rowcount, session.lastrowid or None)

    def control(self, session: Session, control: Control) -> None:
        """Run SAVEPOINT, RELEASE or ROLLBACK TO.

        Raises:
            SqlError: there is no such savepoint.
            UnsupportedError: it is another statement.
        """
        match control.kind:
            case _ if control.kind == SAVEPOINT:
                session.mark(control.name)
            case _ if control.kind == RELEASE:
                session.release(control.name)
            case _ if control.kind == ROLLBACK_TO:
                self.rollback_to(session, control.name)
            case _:
                raise UnsupportedError(f"{control.kind} is not a statement here; use the operation of that name")

    def rollback_to(self, session: Session, name: str) -> None:
        """Run ROLLBACK TO name; the access set keeps the reads made since then.

        Raises:
            SqlError: the transaction has no such savepoint.
        """
        place = session.find(name)
        if len(session.changes) > session.marks[place].changes and self.inside is session:
            self.leave()
        session.roll_back(place)

    def finish(self, session: Session) -> Prepared:
        """Return the prepared transaction for its commit. If this raises, the transaction stays open.

        Raises:
            ConstraintError: a deferred foreign key is broken.
            ConflictError: data that the transaction depends on has changed, or its clock is before a commit that it has
                seen.
        """
        assert session.workspace is None or self.committed is not None, "it goes on elsewhere"
        self.engine.come_back()
        if session.clock and session.base_clock >= session.clock:
            raise told_too_early(session.command)
        self.start(session)
        assert session.base is not None
        assert session.sets is not None
        if session.wrote:
            self._check_foreign_keys(session)
            self._move(session)
        access_set = session.sets.access_set(reads=True if not session.wrote else None)
        changes = encode_changes(session.changes) if session.wrote else b""
        result = encode_results([Result((), [], -1, session.lastrowid or None)])
        base, reads, clock = dict(session.base), not session.wrote, session.clock
        prepared = Prepared(base, session.schema, reads, ROWS, access_set, changes, result, clock)
        return replace(prepared, reads_system=True) if session.reads_system else prepared

    def end(self, session: Session) -> None:
        """Release everything that the transaction uses. A second call does nothing."""
        if self.inside is session:
            self.leave()
        session.ended = True
        locks = self.engine.scope.locks
        if locks is not None:
            locks.release(session.command)
        draft = session.workspace
        if draft is not None and session.lent:
            draft.stop(UnavailableError("the transaction was ended; it did not happen"))
            return
        if draft is not None:
            draft.close()
            session.workspace = None
        if session.snapshot is not None and session.lent:
            session.snapshot.interrupt()
        elif session.snapshot is not None:
            self.readers.give_back(session.snapshot)
            session.snapshot = None

    def forget(self, session: Session) -> None:
        """Release the writer and the snapshot of a transaction that continues in a workspace."""
        if self.inside is session:
            self.leave()
        if session.snapshot is not None:
            self.readers.give_back(session.snapshot)
            session.snapshot = None

    def leave(self) -> None:
        """Roll back the rows of the transaction that is swapped in, because another user needs the writer."""
        session, self.inside = self.inside, None
        if session is None:
            return
        if self._broken_keys():
            session.unsure = True
        self._control("ROLLBACK TO interactive")
        self._control("RELEASE interactive")
        if session.defers:
            pragmas.settle(self._db)

    def lose(self) -> None:
        """Note that SQLite has rolled back the open batch with the rows of the transaction that is swapped in."""
        self.inside = None

    def step_out(self, session: Session) -> None:
        """Swap out a transaction whose next statement runs in a worker, because the writer will lack its changes."""
        if self.inside is session:
            self.leave()

    def close(self) -> None:
        """Close the readers. Every session must have ended."""
        self.leave()
        self.readers.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def start(self, session: Session) -> None:
        """Start a transaction on the present state of the writer, if it has not started."""
        if session.base is None:
            self._start(session, self.engine.applied, self.engine.applied_clock)

    def _start(self, session: Session, base: Mapping[str, int], clock: int) -> None:
        session.base, session.base_clock, session.schema = dict(base), clock, self.engine.schema_version
        session.begin_sets(self._executor.analysis)

    def check_schema(self, session: Session) -> None:
        """Raise a ConflictError if the schema has changed since the transaction began."""
        if session.base is not None and session.schema != self.engine.schema_version:
            raise ConflictError(
                "the schema has changed since the transaction began; it did not happen: run it again", table="schema"
            )

    def overtaken(self, session: Session, *, moves: bool = False) -> BedrockishError | None:
        """Return the error of a transaction if a commit after its base has changed rows that it depends on; else None.

        A transaction that ``moves`` to a later snapshot depends on its reads under snapshot isolation, too.
        """
        sets = session.sets
        if sets is None or session.base is None:
            return None
        if moves and not session.serializable:
            sets = sets.serializable()
        return self._overtaken(sets, session.base)

    def enter(self, session: Session) -> None:
        """Swap the transaction in on top of the present commits.

        Raises:
            ConflictError: a row that it depends on has changed.
        """
        if self.inside is session:
            return
        assert session.sets is not None
        assert session.base is not None
        self._move(session)
        if session.serializable and session.snapshot is not None:
            self.readers.give_back(session.snapshot)
            session.snapshot = None
        self.leave()
        self._control("SAVEPOINT interactive")
        self.inside = session
        if session.defers:
            pragmas.defer(self._db, on=True)
        self.redo(session.changes)
        self._db.set_last_insert_rowid(session.lastrowid)

    def redo(self, changes: list[Change]) -> None:
        """Write changes of the transaction that is inside again.

        Raises:
            ConflictError: the rows do not fit.
        """
        failure = self.parts.applier.redo(changes)
        if failure:
            self.leave()
            raise ConflictError(f"the transaction's rows do not fit any more: {failure}; run it again")
        self.parts.applier.loud()

    def _move(self, session: Session) -> None:
        """Move a transaction's base to the present commits, if none of them conflicts with it."""
        assert session.sets is not None
        assert session.base is not None
        engine = self.engine
        if session.base == engine.applied:
            return
        error = self._overtaken(session.sets, session.base)
        if error is not None:
            raise error
        if session.serializable:
            session.base, session.base_clock = dict(engine.applied), engine.applied_clock

    def _read(
        self, session: Session, piece: Piece, params: tuple[Any, ...], room: int
    ) -> tuple[list[tuple[Any, ...]], int]:
        assert session.sets is not None
        try:
            rows, size = self._executor.run_piece(piece, params, room)
        except BedrockishError:
            self._restore()
            session.sets.read(piece, params, failed=True)
            raise
        session.saw(piece, params, rows, self._executor.query)
        if self.engine.scope.locked:
            session.sets.lock(self.engine.scope.take_locked())
        return rows, size

    def _write(self, session: Session, piece: Piece, params: tuple[Any, ...], room: int) -> tuple[Result, int]:
        assert piece.kind in (WRITE, TEMPORARY)
        assert session.sets is not None
        db, capture = self._db, self._capture
        self._control("SAVEPOINT statement")
        capture.start(session.size)
        try:
            resolved = self._resolve(session, piece, params)
            rows, size = self._executor.run_piece(piece, params, room)
            if capture.has_temporary and capture.blind:
                self._check_blind()
        except BedrockishError as error:
            self._failed(session, piece, params, error)
            raise
        is_definition = piece.kind == TEMPORARY and kind_of(piece.sql) == DEFINITION
        rowcount = -1 if is_definition else db.changes()
        session.lastrowid = db.last_insert_rowid()
        changes, touched = capture.stop()
        session.sets.complete(resolved, changes, touched)
        if self.engine.scope.locked:
            session.sets.lock(self.engine.scope.take_locked())
        self._keep(session, changes, touched)
        session.wrote = session.wrote or piece.kind == WRITE
        return Result(piece.columns, rows, rowcount, session.lastrowid or None), size

    def _resolve(self, session: Session, piece: Piece, params: tuple[Any, ...]) -> ResolvedReads | None:
        """Return the reads of the next statement; CREATE TEMP TABLE reads by its SELECT only."""
        assert session.sets is not None
        if piece.defines:
            select = filling_select(piece.sql)
            if select:
                filling, _ = self._executor.compiled(select, session.user)
                session.sets.saw(filling, params, self._executor.query)
            return None
        return session.sets.resolve(piece, params, self._executor.query)

    def _check_blind(self) -> None:
        """Refuse a statement whose rows are found by a rollback, if it may have changed TEMP tables as well."""
        triggers = "SELECT 1 FROM sqlite_temp_schema WHERE type = 'trigger' LIMIT 1"
        if self._capture.changed_temporary or self._broken_keys() or self._db.execute(triggers).fetchone():
            names = ", ".join(self._capture.blind)
            raise UnsupportedError(
                f"{names}: rows of a virtual table, or of one with VIRTUAL columns, cannot be changed together with "
                "TEMP tables, under a TEMP trigger or while a deferred foreign key is broken; copy them in a statement "
                "of their own"
            )

    def _keep(self, session: Session, changes: list[Change], touched: dict[str, Touched]) -> None:
        """Add the changes of the statement that has just run to those of the transaction."""
        assert session.sets is not None
        db, capture, size = self._db, self._capture, self._capture.size
        blurred: list[str] = []
        if touched:
            after = capture.read_rows(touched)
            session.unsure = session.unsure or self._broken_keys()
            db.execute("ROLLBACK TO statement")
            # SQLite counts the keys again that were broken before the statement; ``redo`` does not change the count.
            session.unsure = session.unsure or self._broken_keys()
            before = capture.read_rows(touched)
            blurred = capture.blurred(touched, before, after)
            changes += capture.net_changes(before, after)
            failure = self.parts.applier.redo(changes)
            assert not failure, failure
            self.parts.applier.loud()
            db.set_last_insert_rowid(session.lastrowid)
            size = capture.size
        self._control("RELEASE statement")
        session.size = size
        session.changes += changes
        session.blurred += blurred
        session.sets.changed(changes, blurred)

    def _failed(self, session: Session, piece: Piece, params: tuple[Any, ...], error: BedrockishError) -> None:
        """Roll back a failed statement, except for the rows that SQLite keeps (conflict clause FAIL)."""
        db, capture = self._db, self._capture
        assert session.sets is not None
        if self._restore():
            session.over = isinstance(error, ConstraintError)  # ROLLBACK as conflict clause ends the transaction
            return
        session.sets.read(piece, params, failed=True)
        lastrowid = db.last_insert_rowid()
        changes, touched = capture.stop()
        if isinstance(error, ConstraintError):
            # With the conflict clause FAIL, the rows before the one that failed stay.
            there = kept.are_there(db, self._executor._tables.by_name, changes)
            if there or (there is None and touched):  # ``_keep`` finds the net change of such tables
                before = len(session.changes)
                self._keep(session, changes, touched)
                if len(session.changes) > before:
                    session.lastrowid, session.wrote = lastrowid, True
                db.set_last_insert_rowid(session.lastrowid)
                return
        db.execute("ROLLBACK TO statement")
        db.execute("RELEASE statement")
        # SQLite keeps the id of a row that was inserted and taken back, but not where the transaction runs again.
        db.set_last_insert_rowid(session.lastrowid)

    def _restore(self) -> bool:
        """Write the open batch again if SQLite has rolled it back because of a statement; return whether it has."""
        if self._db.in_transaction:
            return False
        self._capture.deafen()
        self.inside = None
        self._executor.allow(float("inf"))  # the statement has no budget for writing the batch again
        self.parts.redo()
        return True

    # -- deferred foreign keys -------------------------------------------------------------------------------------

    def _broken_keys(self) -> bool:
        """Return whether SQLite counts a deferred foreign key as broken now."""
        return self._executor.breaks_foreign_keys

    def _check_foreign_keys(self, session: Session) -> None:
        """Check deferred foreign keys. After a swap SQLite's own count is lost, and the tables are searched."""
        if not session.unsure:
            broken = self.inside is session and self._broken_keys()
        else:
            tables = children(self._executor.analysis.schema, session.changes)
            if self.committed is None:
                self.leave()
                before = violations(self._db, tables)
            else:
                before = violations(self.committed, tables)
            self.enter(session)
            broken = bool(violations(self._db, tables) - before)
        if broken:
            raise ConstraintError("FOREIGN KEY constraint failed: a deferred one is still broken at COMMIT")


@remembered
def _changes_schema(sql: str) -> bool:
    sql = without_settings(sql)
    is_schema = first_word(sql) in ("ALTER", "ANALYZE", "CREATE", "DROP")
    return is_schema or pragmas.is_replicated(sql) or pragmas.is_keys_off(sql)
