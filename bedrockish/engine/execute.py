"""Runs a client's request on the writer connection and takes it back: what it would do, and nothing of it done.

The request runs in a savepoint inside the batch's open transaction, so it sees everything that is decided, and is
always rolled back. Some failures make SQLite roll back the whole transaction instead (ROLLBACK conflict clauses, a
write that was interrupted, a full disk); the engine notices that and puts the batch back (see ``Engine``).
"""

from collections.abc import Iterator
from typing import Any

import apsw

from bedrockish.core.records import Prepared
from bedrockish.engine import pragmas
from bedrockish.engine.autoid import AutoIds
from bedrockish.engine.capture import Capture, row_bytes
from bedrockish.engine.failures import translate
from bedrockish.engine.footprints import Analysis, Gatherer
from bedrockish.engine.guard import EMPTY, READ, SCHEMA, WRITE, Guard, Piece
from bedrockish.engine.inserts import Rewritten, rewrite
from bedrockish.engine.limits import Limits, TakesLongError, out_of_time
from bedrockish.engine.readers import WAY_OUT
from bedrockish.engine.tables import Tables
from bedrockish.engine.values import Binder
from bedrockish.errors import BedrockishError, ConstraintError, SqlError, TooLargeError, UnsupportedError
from bedrockish.requests import SERIALIZABLE, Request, Result, Statement, encode_results
from journal.changes import encode_changes, encode_statements
from journal.footprint import Footprint
from journal.transaction import ROWS
from journal.transaction import SCHEMA as SCHEMA_KIND

PROGRESS_STEPS = 20_000  # SQLite's own steps between two looks at the clock: well under a millisecond
TEXTS_MAX = 2_000  # compiled texts that are remembered
_FOREVER = float("inf")


class MixesError(Exception):
    """Raised when a request turns out to change the schema and to read or write rows."""


class Executor:
    """Executes requests, one at a time.

    Attributes:
        reader: another connection that shows the same rows, as long as the request has changed none; it is faster.
        stopped: why everything that runs is to end at once.
    """

    def __init__(self, db: apsw.Connection, guard: Guard, capture: Capture, limits: Limits, ids: AutoIds) -> None:
        self._db, self._guard, self._limits, self._ids = db, guard, limits, ids
        self.capture = capture
        self._texts: dict[str, tuple[Piece, ...]] = {}
        self._tables = Tables(db)
        self.analysis = Analysis(db)
        self._until = self._budget = _FOREVER
        self.reader: apsw.Connection | None = None
        self.stopped: BedrockishError | None = None
        db.set_progress_handler(self.progress, PROGRESS_STEPS)

    def use(self, tables: Tables) -> None:
        """Learn the tables of a new schema; forget the statements compiled for the old one."""
        self._tables = tables
        self.analysis = Analysis(self._db)
        self._texts.clear()

    def progress(self) -> bool:
        """Whether the statement that runs is to be interrupted; SQLite asks now and then."""
        return self.capture.failure is not None or self._limits.seconds() > self._until or self.stopped is not None

    def allow(self, budget_s: float) -> None:
        """Let what runs from now on take so many seconds."""
        self._budget = _FOREVER if budget_s == _FOREVER else self._limits.seconds() + budget_s

    def execute(
        self, request: Request, base: dict[str, int], schema_version: int, budget_s: float = _FOREVER
    ) -> Prepared:
        """Run a request inside the open transaction; the caller takes it back, whatever comes out.

        Raises:
            MixesError: it changes the schema and has other statements, too: ``mixed.execute`` is for that.
            TakesLongError: it has run for ``budget_s`` and is not done.
            SqlError: SQLite does not accept a statement or a value.
            ConstraintError: the data forbids it.
            UnsupportedError: it cannot be replicated.
            TooLargeError: it is over a limit.
        """
        if not request.statements:
            raise SqlError("the request has no statements; send at least one")
        gatherer = Gatherer(self.analysis, serializable=request.isolation == SERIALIZABLE)
        run = self.begin(gatherer)
        self.allow(budget_s)
        try:
            return self._execute(run, request, base, schema_version)
        finally:
            self.allow(_FOREVER)
            if run.settings:
                pragmas.settle(self._db)

    def _execute(self, run: "Run", request: Request, base: dict[str, int], schema_version: int) -> Prepared:
        self.capture.start()
        cookie = None
        for statement in request.statements:
            for piece, params in self.pieces(statement):
                if piece.setting:
                    if pragmas.is_keys_off(piece.sql):
                        raise MixesError
                    run.set(piece)
                    continue
                if piece.kind == SCHEMA:
                    if cookie is None:
                        cookie = pragmas.numbers(self._db)
                    run.schema.append(piece.sql)
                elif piece.kind == WRITE:
                    run.writes = True
                if run.schema and (run.writes or piece.kind == READ):
                    raise MixesError
                run.one(piece, params)
        if run.schema:
            assert cookie is not None
            return self._schema_prepared(run, base, schema_version, changed=cookie != pragmas.numbers(self._db))
        if run.writes and self.breaks_foreign_keys:
            raise ConstraintError(
                "FOREIGN KEY constraint failed: a deferred one is still broken at the end of the request"
            )
        return self.prepare_rows(run.gatherer, encode_results(run.results), base, schema_version, writes=run.writes)

    def compiled(self, sql: str) -> Piece:
        """Return the first statement of a text, compiled and not run. Raises what ``Guard.compile`` says."""
        return self._guard.compile(sql)

    def pieces(self, statement: Statement) -> Iterator[tuple[Piece, tuple[Any, ...]]]:
        """Yield the compiled statements of a text with their parameters; each is to be run before the next is asked."""
        binder = Binder(statement.params)
        known = self._texts.get(statement.sql)
        if known is not None:
            for piece in known:
                yield piece, binder.take(piece.names)
            binder.finish()
            return
        found: list[Piece] = []
        rest, until_schema = statement.sql, True
        while rest:
            piece = self._guard.compile(rest)
            rest = piece.rest
            if piece.kind == EMPTY:
                continue
            if piece.kind == WRITE:
                piece.auto = self._rewritten(piece)
            found.append(piece)
            until_schema = until_schema and piece.kind != SCHEMA
            yield piece, binder.take(piece.names)
        if not found:
            raise SqlError("the text holds no statement, only blanks or comments")
        binder.finish()
        if until_schema:  # what follows a schema statement was compiled for a schema that is taken back
            if len(self._texts) >= TEXTS_MAX:
                self._texts.clear()
                self.analysis.forget()
            self._texts[statement.sql] = tuple(found)

    def _rewritten(self, piece: Piece) -> Rewritten | None:
        """Return what to run instead so that ids are given, if SQLite agrees that it does the same otherwise."""
        auto = rewrite(piece.sql, self._tables.by_name)
        if auto is None:
            return None
        try:
            other = self._guard.compile(auto.sql, ours=True)
        except BedrockishError:
            return None  # too many columns, for example
        same = (other.kind, other.names, other.columns, other.tables, other.rest) == (
            (piece.kind, piece.names, piece.columns, piece.tables, "")
        )
        # A trigger that gives ids in the same table itself would meet ids that were given before it ran.
        own = {(auto.table, ""), (auto.table, "ROWID"), (auto.table, self._tables.by_name[auto.table].id_column)}
        return auto if same and not own & other.inner else None

    def run_piece(self, piece: Piece, params: tuple[Any, ...], room: int) -> tuple[list[tuple[Any, ...]], int]:
        """Run one statement; return its rows and about how many bytes they take.

        Raises:
            TooLargeError: the rows take more than ``room`` bytes, or it changes too much, or it runs too long.
        """
        now = self._limits.seconds()
        budget = self._budget
        if now > budget:
            raise TakesLongError(piece.sql)
        self._until = min(now + self._limits.statement_s, budget)
        self._ids.begin()
        text = piece.text(params)
        db = self._db
        if self.reader is not None and piece.kind == READ and not self.capture.wrote:
            db = self.reader
        try:
            if not piece.columns:
                db.execute(text, params)
                rows: list[tuple[Any, ...]] = []
                size = 0
            else:
                rows, size = self._fetch(db, text, params, room, can_cache=piece.can_cache)
        except apsw.InterruptError as error:
            if self._until == budget and self.capture.failure is None and self.stopped is None:
                raise TakesLongError(piece.sql) from None
            raise self.stopped or self.capture.failure or out_of_time(self._limits, piece.sql) from error
        except apsw.FullError as error:
            raise self._ids.used_up(self._db) or translate(error, piece.sql) from error
        except apsw.Error as error:
            raise translate(error, piece.sql) from error
        except UnicodeDecodeError:
            raise SqlError("the result has a text that is not UTF-8; select CAST(... AS BLOB)", sql=piece.sql) from None
        finally:
            self._until = _FOREVER
        if self.capture.failure is not None:
            raise self.capture.failure
        return rows, size

    def _fetch(
        self, db: apsw.Connection, text: str, params: tuple[Any, ...], room: int, *, can_cache: bool
    ) -> tuple[list[tuple[Any, ...]], int]:
        rows: list[tuple[Any, ...]] = []
        size = 0
        cursor = db.execute(text, params, can_cache=can_cache)
        try:
            for row in cursor:
                rows.append(row)
                size += row_bytes(row)
                if size > room:
                    raise TooLargeError(
                        f"the results take more than {self._limits.result_bytes} bytes; {WAY_OUT}",
                        limit=self._limits.result_bytes,
                    )
        finally:
            cursor.close(True)
        return rows, size

    def _schema_prepared(self, run: "Run", base: dict[str, int], version: int, *, changed: bool) -> Prepared:
        self.capture.deafen()
        tables = Tables(self._db)
        tables.check_supported()
        if tables.system != self._tables.system:
            raise UnsupportedError(
                "names that begin with bedrockish_ belong to the database itself; choose another name"
            )
        footprint = Footprint()  # it reads nothing now: its statements run for good at its activation
        changes = encode_statements(run.schema) if changed else encode_changes([])
        kind = SCHEMA_KIND if changed else ROWS
        return Prepared(base, version, False, kind, footprint, changes, encode_results(run.results))

    @property
    def breaks_foreign_keys(self) -> bool:
        """Whether a deferred constraint is broken now."""
        return self._tables.foreign_keys and self._db.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0] != 0

    def begin(self, gatherer: Gatherer) -> "Run":
        """Begin another request, on top of what was executed before."""
        self._db.set_last_insert_rowid(0)
        return Run(self, gatherer, self._limits.result_bytes)

    def prepare_rows(
        self, gatherer: Gatherer, result: bytes, base: dict[str, int], version: int, *, writes: bool
    ) -> Prepared:
        """Return what was executed since the capture began, and take it back."""
        capture, db = self.capture, self._db
        changes, touched = capture.stop()
        blurred = [table for table, rows in touched.items() if rows.changes > len(rows.rowids)]
        if touched:
            after = capture.read_rows(touched)
            db.execute("ROLLBACK TO request")
            before = capture.read_rows(touched)
            changes += capture.net_changes(before, after)
        # A write that met no row is led like any other: it claims its command's id, or, sent again after a lost answer,
        # it could say "nothing" here while its first attempt commits elsewhere.
        packed = encode_changes(changes) if writes else b""
        footprint = gatherer.rows(changes, blurred)
        return Prepared(base, version, not writes, ROWS, footprint, packed, result)


class Run:
    """One request on its way."""

    def __init__(self, executor: Executor, gatherer: Gatherer, room: int) -> None:
        self._executor, self._room = executor, room
        self.gatherer = gatherer
        self.results: list[Result] = []
        self.schema: list[str] = []
        self.writes = False
        self.settings = False

    def set(self, piece: Piece) -> None:
        """Set something for the rest of the request."""
        self.settings = True
        pragmas.apply(self._executor._db, piece.sql)
        self.results.append(Result((), [], -1, None))

    def one(self, piece: Piece, params: tuple[Any, ...]) -> None:
        """Run a statement and keep its result and what it read."""
        executor = self._executor
        if piece.kind != SCHEMA:
            self.gatherer.read(piece, params)
        rows, size = executor.run_piece(piece, params, self._room)
        self._room -= size
        db = executor._db
        rowcount = db.changes() if piece.kind == WRITE else -1
        self.results.append(Result(piece.columns, rows, rowcount, db.last_insert_rowid() or None))
