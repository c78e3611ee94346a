"""Schema changes that also change rows: their statements are run now for their results, and recorded for later.

At the activation, every node has the same tables and runs the recorded statements
(``bedrockish_journal.storage.schema_steps``). So a statement whose result could differ between nodes is refused: a
statement that draws a random number, reads the time of day or a node's own data, or could roll back more than itself.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import apsw

from bedrockish.access_sets.call_costs import Lengths, lengths
from bedrockish.access_sets.change_capture import not_text
from bedrockish.access_sets.opcodes import Op, rows_of
from bedrockish.access_sets.readset import EVERYTHING
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.requests import Request, Result, Statement, encode_results
from bedrockish.core.protocol.records import Prepared, only_read
from bedrockish.engine.execution.executor import Executor
from bedrockish.engine.execution.merged_inserts import ROWS_MAX, MergedInsert, count_alike, made_table, merged
from bedrockish.engine.execution.written_texts import WrittenTexts
from bedrockish.engine.sqlite.bind import Binder
from bedrockish.engine.sqlite.errors import translate
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements import pragmas
from bedrockish.engine.statements.compiled import ALONE, EMPTY, READ, SCHEMA, WRITE, Compiled
from bedrockish.engine.statements.constant_calls import COMPUTED, DATES, with_values, written_in
from bedrockish.engine.statements.insert_rewriter import FUNCTION
from bedrockish.engine.statements.insert_rewriter import ROWS as COLLECTED
from bedrockish.engine.statements.rowid_allocator import error_of_used_up
from bedrockish.errors import ConstraintError, SqlError, TooLargeError, UnavailableError, UnsupportedError, UsageError
from bedrockish.sqltext.statement_ends import first_word, statement_start
from bedrockish.sqltext.temporary import filling_select
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, parameter_numbers, tokens
from bedrockish.sqltext.transaction_control import ROLLBACK_TO, SAVEPOINT, Control
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import DO, FAIL, SEE, SchemaStep, encode_changes, encode_steps
from bedrockish_journal.model.plain_names import folded
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.model.transaction import SCHEMA as SCHEMA_KIND
from bedrockish_journal.storage.drawn_ids import WHY, DrawnIds
from bedrockish_journal.storage.schema_steps import (
    AFTER_FAILURE,
    BEFORE_FAILURE,
    DEFER_OFF,
    DEFER_ON,
    KEYS_OFF,
    KEYS_ON,
    LEGACY_OFF,
    LEGACY_ON,
    MARK,
    RESET,
    answer_digest,
    deferred_broken,
    failure_digest,
    set_option,
    violations,
)
from bedrockish_journal.storage.table_layout import quote

_DETERMINISTIC = 0x800  # SQLITE_DETERMINISTIC, as PRAGMA function_list shows it
_ROLLBACK, _FAIL = 1, 3  # conflict clauses, by their numbers in bytecode
_DATA = (  # names that SQLite reports as reads of the catalogue, although they show data; each with the way out
    ("sqlite_sequence", "sqlite_sequence is each node's own: use max() of the ids"),
    ("pragma_foreign_key_check", "use PRAGMA foreign_key_check"),
)
_SAME_EVERYWHERE = frozenset({"json_each", "json_tree"})
STEP_BYTES = 32  # bytes of a recorded statement besides its text: above all the digest of its answer


def execute_mixed(
    executor: Executor, request: Request, base: dict[str, int], version: int, budget_s: float = float("inf")
) -> Prepared:
    """Execute a request that mixes changes of rows and of the schema (``MixesError``).

    The function first rolls back to the savepoint ``request`` of the open transaction. The errors are those of
    ``Executor.execute``.
    """
    executor.capture.discard_changes()
    executor._db.execute("ROLLBACK TO request")
    mixed, room = Mixed(executor, request.user), executor._limits.result_bytes
    results: list[Result] = []
    executor.governor.allow(budget_s)
    try:
        at = alone = 0  # ``alone``: the index before which statements run one by one
        while at < len(request.statements):
            rest = request.statements[at : at + ROWS_MAX]
            found, size = mixed.run_alike(rest, room) if at >= alone else ([], 0)
            if found:
                at += len(found)
            else:
                alone = alone if at < alone else at + count_alike(rest)
                found, size = mixed.run(rest[0], room)
                at += 1
            results += found
            room -= size
        if not mixed.changes_schema:
            raise UnsupportedError(mixed.needs_schema)
        return mixed.prepared(base, version, results)
    except UsageError as error:
        error.rests_on = only_read(base, version, AccessSet(read_ranges=EVERYTHING))
        raise
    finally:
        executor.governor.allow(float("inf"))
        mixed.close()


class Mixed:
    """The execution of one change of rows and schema in a savepoint of a connection; the caller rolls it back.

    Why so large: Each statement may set an option for the statements after it; all options last until the end.
    """

    def __init__(self, executor: Executor, user: str) -> None:
        self._user = user
        self._executor, self._db, self._limits = executor, executor._db, executor._limits
        executor.reader = None  # another connection would not show the changes made here
        self.steps: list[SchemaStep] = []  # the recorded statements
        self.lastrowid = 0  # the rowid of the last inserted row
        self.changes_schema = False  # whether a statement has changed the schema
        self._writes = self._configures = False
        self._size = 0
        self._marks: list[str] = []
        self._options = False
        self._is_legacy = False  # whether ALTER leaves the definitions of views and triggers as they are
        self._drawn: DrawnIds | None = None
        self._existed = {folded(name) for (name,) in self._db.execute("SELECT name FROM main.sqlite_schema")}
        self._made = set[str]()  # the tables of this transaction, in lower case; none of them has triggers
        self._before: Counter[Any] | None = None  # the broken foreign keys when enforcement was switched off
        self._numbers = pragmas.numbers(self._db)
        self._unstable = _unstable_functions(self._db)
        modules = self._db.execute("SELECT lower(name) FROM pragma_module_list")
        self._modules = frozenset(str(name) for (name,) in modules) - _SAME_EVERYWHERE

    # -- statements ------------------------------------------------------------------------------------------------

    def run(
        self, statement: Statement, room: int, *, told: Result | None = None, again: bool = False
    ) -> tuple[list[Result], int]:
        """Run the statements of a text; return their results and an estimate of their bytes.

        Args:
            room: how many bytes the results may take.
            again: whether the text ran before as an ordinary statement of the transaction, with the result ``told``.

        Raises:
            BedrockishError: as for a request. The change can go on after an error of the statement itself.
        """
        binder = Binder(statement.params)
        results: list[Result] = []
        at, taken = 0, 0
        while at < len(statement.sql):
            piece, at = self._executor.texts.compiled(
                statement.sql, self._user, at, has_changed=self.changes_schema, optimizes=not again
            )
            if piece.needs_full_rollback:
                raise UnsupportedError(ALONE)
            if piece.kind == EMPTY:
                continue
            params = binder.bind_next(piece.names)
            if statement_start(statement.sql, at) == len(statement.sql):
                binder.finish()
            if piece.setting:
                results.append(self._set(piece))
                continue
            if self._is_legacy and pragmas.asks(piece.sql, pragmas.LEGACY):
                results.append(Result(piece.columns, [(1,)], -1, None))
                continue
            if why := self._why_own(piece):
                raise _not_alike(piece.sql, why)
            text = self._bound(piece, params, told) if again and piece.kind == WRITE else literal(piece.sql, params)
            with self._altering(text):
                result, size = self._run_statement(piece, text, room - taken, again=again)
            results.append(result)
            taken += size
        if not results:
            raise SqlError("the text holds no statement, only blanks or comments")
        return results, taken

    def run_alike(self, statements: Sequence[Statement], room: int) -> tuple[list[Result], int]:
        """Run INSERTs of one row each into a table of this transaction as one statement, as far as they are alike.

        Return the result of each, and an estimate of their bytes; no results if ``run`` must run the first one.
        """
        alike = statements[: count_alike(statements)]
        if len(alike) < 2 or not self._made:
            return [], 0
        sql = alike[0].sql
        piece, at = self._executor.texts.compiled(sql, self._user, has_changed=self.changes_schema)
        is_made = piece.kind == WRITE and set(map(folded, piece.writes)) - {"sqlite_sequence"} <= self._made
        # A row may depend on the rows before it, by a query or by a foreign key to its own table.
        reads_own = not set(map(folded, piece.reads)).isdisjoint(map(folded, piece.writes))
        if (
            not is_made
            or reads_own
            or self._why_own(piece)
            or piece.needs_full_rollback
            or statement_start(sql, at) != len(sql)
        ):
            return [], 0
        insert = merged(self._db, alike, piece.names)
        if insert is None:
            return [], 0
        try:
            rowids, taken = self._run_merged(piece, insert, room)
        except (ConstraintError, SqlError, TooLargeError, UnsupportedError):
            if not self._db.in_transaction:
                raise
            return [], 0  # the caller runs them one by one, to find the one that fails
        results = []
        for rowid in rowids:
            self.lastrowid = rowid or self.lastrowid
            results.append(Result(piece.columns, [], 1, self.lastrowid or None))
        return results, taken

    def _run_merged(self, piece: Compiled, insert: MergedInsert, room: int) -> tuple[Sequence[int], int]:
        """Run INSERTs of one row as one statement; return the ids of the rows, and an estimate of the result's bytes.

        After an error, nothing of it is left or recorded.
        """
        before, size, last, wrote = len(self.steps), self._size, self.lastrowid, self._writes
        self._db.execute(f"SAVEPOINT {MARK}")
        is_kept = False
        try:
            result, taken = self._run_statement(piece, insert.sql, room, again=False)
            assert result.rowcount == insert.count
            rowids: Sequence[int] = insert.rowids
            if insert.highest:  # recorded, so that the change fails if the rows get other ids when it comes into force
                asked, _ = self._executor.texts.compiled(insert.highest, has_changed=self.changes_schema)
                found, _ = self._run_statement(asked, insert.highest, room, again=False)
                [(highest,)] = found.rows
                rowids = range(highest - insert.count + 1, highest + 1)
            is_kept = True
        finally:
            if not is_kept:
                del self.steps[before:]
                self._size, self._writes = size, wrote
            self.lastrowid = last
            if self._db.in_transaction:
                if not is_kept:
                    self._db.execute(f"ROLLBACK TO {MARK}")
                    self._schema_changed()
                self._db.execute(f"RELEASE {MARK}")
        return rowids, taken

    def control(self, control: Control) -> None:
        """Execute SAVEPOINT, RELEASE or ROLLBACK TO.

        Raises:
            SqlError: no savepoint has that name.
            UnsupportedError: the name is reserved.
        """
        name, place = control.name.lower(), 0
        text = f"{control.kind} {quote(control.name)}"
        self._check_room(text)
        if control.kind == SAVEPOINT:
            if name == MARK:
                raise UnsupportedError(f"the savepoint {MARK} belongs to the database itself; choose another name")
            self._marks.append(name)
        else:
            if name not in self._marks:
                raise SqlError(f"no such savepoint: {control.name}")
            place = len(self._marks) - 1 - self._marks[::-1].index(name)
            self._made.clear()  # a rollback may have removed some of these tables
            del self._marks[place + (control.kind == ROLLBACK_TO) :]
        try:
            self._db.execute(text)
        except apsw.Error as error:
            raise translate(error, text) from error
        self._schema_changed()
        self._record(SchemaStep(text))

    def prepared(self, base: dict[str, int], version: int, results: list[Result]) -> Prepared:
        """Return the recorded change as a prepared transaction.

        Raises:
            ConstraintError: a foreign key is broken.
            UnsupportedError: the change makes a table that cannot be replicated, or does not change the schema.
        """
        # A change whose schema statements have all failed is still valid, and may change rows, unless it has switched
        # foreign keys off.
        if self._writes and self._before is not None and not self.changes_schema:
            raise UnsupportedError(pragmas.KEYS_OFF)
        if deferred_broken(self._db) or (self._before is not None and self._violations() - self._before):
            why = "FOREIGN KEY constraint failed: one is broken at the end of the transaction"
            raise ConstraintError(why, sqlite=apsw.SQLITE_CONSTRAINT_FOREIGNKEY)
        with self._executor.governor.judging(self.steps[-1].sql if self.steps else ""):
            Tables(self._db, self._executor._tables).check_change(self._db, self._executor._tables)
        does = self._writes or self._configures or self._numbers != pragmas.numbers(self._db)
        kind = SCHEMA_KIND if does else ROWS
        changes = encode_steps(self.steps) if does else encode_changes([])
        return Prepared(base, version, False, kind, AccessSet(), changes, encode_results(results))

    def close(self) -> None:
        """Reset the options that were set on the connection; its savepoint must have been rolled back."""
        if self._options:
            for option in RESET:
                set_option(self._db, option)

    @property
    def needs_schema(self) -> str:
        """The error for a transaction with a PRAGMA that is for schema changes, and without a schema change."""
        return pragmas.LEGACY_ON if self._before is None else pragmas.KEYS_OFF

    # -- one statement ---------------------------------------------------------------------------------------------

    def _run_statement(self, piece: Compiled, text: str, room: int, *, again: bool) -> tuple[Result, int]:
        db = self._db
        self._check_room(text)
        allowed = None
        if (piece.kind != SCHEMA or piece.is_create_as_select) and first_word(text) != "EXPLAIN":
            text, allowed = self._made_stable(text, again=again)
            self._check_room(text)
            if piece.is_create_as_select:
                text = self._with_names(piece.sql, text)
        db.set_last_insert_rowid(0)
        try:
            rows, size, changed, rowid = self._watched(replace(piece, sql=text, with_ids=None), room, allowed)
        except TakesLongError:
            raise TakesLongError(piece.sql) from None  # texts that take long are remembered as the client wrote them
        except (ConstraintError, SqlError) as error:
            is_open = isinstance(error.__cause__, apsw.Error) and db.in_transaction
            if is_open and not _rests_on_definitions(piece, error):
                self._record_failure(piece, SchemaStep(text, FAIL, failure_digest(str(error.__cause__))))
            raise
        self.lastrowid = rowid or self.lastrowid
        if piece.kind == SCHEMA:
            self._schema_changed()
            self.changes_schema = True
            self._note_made(text)
            self._configures = self._configures or piece.configures
            self._record(SchemaStep(text))
        elif piece.kind == WRITE:
            self._writes = True
            self._record(SchemaStep(text, DO, answer_digest(text, rows, changed, rowid)))
        elif not piece.whole_schema or piece.checks_keys:  # a read of the schema needs no record
            self._record(SchemaStep(text, SEE, answer_digest(text, rows)))
        rowcount = changed if piece.kind == WRITE else -1
        return Result(piece.columns, rows, rowcount, self.lastrowid or None), size

    def _note_made(self, text: str) -> None:
        """Record a table that the statement has made; forget all if it could rename one or give it a trigger."""
        name = folded(made_table(text))
        if name and name not in self._existed:
            self._made.add(name)
        elif first_word(text) != "CREATE" or "TRIGGER" in text.upper():
            self._made.clear()

    def _record_failure(self, piece: Compiled, step: SchemaStep) -> None:
        """Record a failed statement; the nodes undo what a write has left, as ``_watched`` does here."""
        may_leave = _may_write(piece)
        steps = (*map(SchemaStep, BEFORE_FAILURE), step, *map(SchemaStep, AFTER_FAILURE)) if may_leave else (step,)
        for one in steps:
            self._record(one)

    @contextmanager
    def _altering(self, text: str) -> Iterator[None]:
        """Switch legacy_alter_table on while an ALTER runs, if the transaction has asked for it.

        Every ALTER is recorded with both PRAGMAs around it, so that no other statement runs while the setting is on.
        """
        if not self._is_legacy or first_word(text) != "ALTER":
            yield
            return
        self._check_room(LEGACY_ON)
        self._options = True
        self._switch(LEGACY_ON)
        try:
            yield
        finally:
            self._switch(LEGACY_OFF)

    def _switch(self, option: str) -> None:
        set_option(self._db, option)
        self._record(SchemaStep(option))

    def _schema_changed(self) -> None:
        if self._drawn is not None:
            self._drawn.schema_changed()

    def _watched(
        self, piece: Compiled, room: int, allowed: Lengths | None
    ) -> tuple[list[tuple[Any, ...]], int, int, int]:
        """Run a statement; undo it if it fails, may have drawn random ids, or wrote a text that is not UTF-8.

        Return its rows, an estimate of their bytes, and for a write how many rows it changed and the last rowid.
        """
        if not _may_write(piece):
            return *self._executor.run_piece(piece, (), room, allowed), 0, 0
        db, texts = self._db, WrittenTexts(self._db)
        self._drawn = self._drawn or DrawnIds(db)
        db.execute(f"SAVEPOINT {MARK}")
        is_kept = False
        try:
            with self._drawn, texts:
                found = self._executor.run_piece(piece, (), room, allowed)
            # FTS5 writes its pages at the end of a savepoint, and SQLite counts these writes as changes.
            counts = (db.changes(), db.last_insert_rowid()) if piece.kind == WRITE else (0, 0)
            with self._executor.governor.judging(piece.sql):
                texts.read_rows()
                texts.check_auxiliary()
            if self._drawn.table:
                why = f"this one {WHY.format(self._drawn.table)}; use two transactions, or remove that row first"
                raise _not_alike(piece.sql, why)
            if texts.table:
                raise not_text(texts.table)
            is_kept = True
            return *found, *counts
        except (ConstraintError, UnavailableError) as error:
            full = self._drawn.full & piece.writes if isinstance(error.__cause__, apsw.FullError) else ()
            if full:  # a row has the highest rowid, after which SQLite assigns no further id with AUTOINCREMENT
                raise error_of_used_up(min(full)) from error.__cause__
            raise
        finally:
            if db.in_transaction:
                if not is_kept:  # for example an INSERT whose RETURNING is refused: drop its rows
                    db.execute(f"ROLLBACK TO {MARK}")
                    self._schema_changed()  # the nodes call this after the steps of ``_record_failure``
                db.execute(f"RELEASE {MARK}")

    def _check_room(self, sql: str) -> None:
        """Refuse a statement whose record would exceed the limit, before the statement has an effect."""
        if self._size + len(sql) + STEP_BYTES > self._limits.changes_bytes:
            raise TooLargeError(
                f"a transaction that changes the schema and rows may have {self._limits.changes_bytes} bytes of "
                "statements with their values, and this one has more; write the rows in transactions of their own",
                limit=self._limits.changes_bytes,
            )

    def _record(self, step: SchemaStep) -> None:
        self._size += len(step.sql) + STEP_BYTES
        self.steps.append(step)

    def _set(self, piece: Compiled) -> Result:
        name, on = piece.setting, pragmas.turns_on(piece.sql)
        if name == pragmas.LEGACY:
            self._is_legacy = on
            return Result((), [], -1, None)
        if name == pragmas.DEFER:
            option = DEFER_ON if on else DEFER_OFF
        else:
            option = KEYS_ON if on else KEYS_OFF
        self._check_room(option)
        if option == KEYS_OFF and self._before is None:
            self._before = self._violations()
        self._options = True
        self._switch(option)
        return Result((), [], -1, None)

    def _why_own(self, piece: Compiled) -> str:
        """Return why a statement reads data that differ between nodes, and the way out; empty if it does not."""
        # A statement that shows the schema runs only here, and not again at the activation.
        shows_schema = piece.kind == READ and piece.whole_schema and not piece.checks_keys
        if piece.settings and not shows_schema:
            return f"PRAGMA {min(piece.settings)} is the session's own: switch it off, or use two transactions"
        tables = [table.lower() for table in piece.tables]
        if any(table.startswith("bedrockish_") for table in tables):
            return "the tables bedrockish_… are each node's own: read them in another transaction"
        # Until the end of this change, the statistics that it has gathered include the node's own tables.
        reads_statistics = any(table.startswith("sqlite_stat") for table in piece.tables)
        is_definition = piece.kind == SCHEMA and not piece.is_create_as_select
        if reads_statistics and not is_definition and any(first_word(step.sql) == "ANALYZE" for step in self.steps):
            return "the statistics of ANALYZE include each node's own tables: read them in another transaction"
        if not self._modules.isdisjoint(tables):
            return "a virtual table may show data of one node only: read it in another transaction"
        explains = piece.kind == READ and first_word(piece.sql) == "EXPLAIN"
        if piece.kind != SCHEMA and piece.whole_schema and (piece.kind == WRITE or piece.tables) and not explains:
            return "the catalogue is each node's own: read it in a statement of its own"
        if piece.kind == READ and piece.whole_schema:
            return next((way for name, way in _DATA if _names(piece.sql, name)), "")
        return ""

    def _made_stable(self, text: str, *, again: bool) -> tuple[str, Lengths]:
        """Return a statement in which calls of time and random functions are replaced by values, and its ``Lengths``.

        SQLite's bytecode shows these calls, also those in triggers, defaults and views, and the lengths of values. A
        statement that runs ``again`` keeps its calls: the client has the values of its first run.

        Raises:
            UnsupportedError: calls are left that could have other results elsewhere, or there is a conflict clause
                ROLLBACK or FAIL.
        """
        program = self._explained(text)
        if self._unstable_in(program) and not again:
            made = with_values(text, self._computed, self._defaults)
            with suppress(SqlError):  # SQLite refuses a value where a name must stand
                program, text = self._explained(made), made
        for name in self._unstable_in(program):
            where = f"{name}(), in the statement, a trigger or a default, returns another value at each"
            way = "change the schema first" if again else "use two transactions"
            raise _not_alike(text, f"{where}: send the value as a parameter, or {way}")
        if any(row[1] in ("Halt", "HaltIfNull") and row[2] and row[3] in (_ROLLBACK, _FAIL) for row in program):
            raise _not_alike(text, "the conflict clauses ROLLBACK and FAIL leave parts of it: use ABORT")
        return text, replace(lengths([[Op(*row[:7]) for row in program]]), is_brief=False)

    def _unstable_in(self, program: list[Any]) -> list[str]:
        """Return the names of the nondeterministic functions that some instructions call."""
        calls = (row for row in program if row[1] == "Function" or str(row[1]).startswith("Agg"))
        names = (str(row[5]).rpartition("(")[0].lower() for row in calls)
        return [name for name in names if name in self._unstable]

    def _computed(self, expressions: Sequence[str]) -> Sequence[Any]:
        """Return the values of expressions without columns, all at one moment.

        Raises:
            UnsupportedError: an expression calls another function whose results could differ elsewhere.
        """
        # SQLite takes the time once for the rows of a materialized table, and for each row of a result. A default may
        # end with a comment.
        asked = ", ".join(f"({one}\n)" for one in expressions)
        text = f"WITH bedrockish_values(value) AS MATERIALIZED (VALUES {asked}) SELECT value FROM bedrockish_values"
        for name in self._unstable_in(self._explained(text)):
            if name not in COMPUTED:
                raise _not_alike(text, f"{name}(), in a default, returns another value at each; give the value")
        piece, _ = self._executor.texts.compiled(text, self._user)
        rows, _ = self._executor.run_piece(piece, (), self._limits.changes_bytes)
        return [value for (value,) in rows]

    def _with_names(self, sql: str, text: str) -> str:
        """Return a CREATE TABLE ... AS SELECT with the column names that the client's text ``sql`` gives."""
        texts, select = self._executor.texts, filling_select(text).rstrip("; \t\r\n")
        names, others = (texts.compiled(one, self._user)[0].columns for one in (filling_select(sql), select))
        if names == others:
            return text
        # SQLite names other columns of a table as those of a view: "a", and not "a COLLATE NOCASE" as in a result.
        try:
            self._db.execute(f"CREATE TEMP VIEW {COLLECTED} AS {select}")
            found = self._db.execute("SELECT name FROM pragma_table_info(?, 'temp')", (COLLECTED,)).fetchall()
            self._db.execute(f"DROP VIEW temp.{COLLECTED}")
        except apsw.Error as error:
            raise translate(error, sql) from error
        each = zip(names, others, found, strict=True)
        listed = ", ".join(quote(str(made) if name == other else name) for name, other, (made,) in each)
        head = text[: text.rindex(select)]
        return f"{head} WITH {COLLECTED}({listed}) AS MATERIALIZED ({select}\n) SELECT * FROM {COLLECTED}"

    def _defaults(self, table: str) -> dict[str, str]:
        """Return the defaults of a table's columns, as SQL, by the column's name."""
        asked = "SELECT name, dflt_value FROM pragma_table_xinfo(?, 'main') WHERE dflt_value IS NOT NULL AND NOT hidden"
        return dict(self._db.execute(asked, (table,)))

    def _violations(self) -> Counter[Any]:
        try:
            return violations(self._db)
        except apsw.Error as error:  # a foreign key whose parent's columns are not unique, for example
            raise translate(error, "PRAGMA foreign_key_check") from error

    def _explained(self, text: str) -> list[Any]:
        """Return a statement's instructions, except those whose P4 SQLite prints as text that is not UTF-8."""
        try:
            cursor = self._db.execute("EXPLAIN " + text.lstrip("; \t\r\n"), can_cache=False)
            return [row for row in rows_of(cursor) if row is not None]
        except apsw.Error as error:
            raise translate(error, text) from error

    def _bound(self, piece: Compiled, params: tuple[Any, ...], told: Result | None) -> str:
        """Return the text of a statement to record; if the node assigned an id to its row, the text contains the id."""
        piece.with_ids = self._executor.texts.with_ids(piece)
        text = piece.text(params)
        if text == piece.sql or told is None or told.rowcount == 0:  # None: the statement failed
            return literal(piece.sql, params)
        if told.rowcount == 1 and told.lastrowid is not None:
            bound = _with_id(literal(text, params), told.lastrowid)
            if bound:
                return bound
        raise UnsupportedError(
            "before it changes the schema, the transaction has inserted several rows with one statement, and the node "
            "gave them ids; change the schema first, or give the ids in the INSERT",
            sql=piece.sql,
        )


def _not_alike(sql: str, why: str) -> UnsupportedError:
    """Return the error for a statement that could have another result at another node."""
    rule = "in a transaction that changes the schema and rows, every node runs each statement"
    return UnsupportedError(f"{rule}; {why}", sql=sql)


def literal(sql: str, params: tuple[Any, ...]) -> str:
    """Return a statement with the values of its parameters written into it.

    Raises:
        UnsupportedError: its parameters cannot be found in its text.
    """
    if not params:
        return sql
    found = _tokens(sql)
    numbers, write = parameter_numbers(found), written_in(found)
    if set(numbers.values()) - set(range(1, len(params) + 1)):
        raise UnsupportedError("the statement's parameters cannot be derived from its text", sql=sql)
    parts: list[str] = []
    at = 0
    for place, number in numbers.items():
        token = found[place]
        parts += (sql[at : token.start], write(params[number - 1]))
        at = token.end
    return "".join([*parts, sql[at:]])


def _with_id(sql: str, rowid: int) -> str:
    """Return a statement with its single call for an id replaced by the id; empty without exactly one such call."""
    found = _tokens(sql)
    calls = [place for place, token in enumerate(found) if token.is_word(FUNCTION.upper())]
    if len(calls) != 1:
        return ""
    depth, end = 0, calls[0] + 1
    while end < len(found):
        depth += (found[end].text == "(") - (found[end].text == ")")
        if not depth:
            break
        end += 1
    return f"{sql[: found[calls[0]].start]}({rowid}){sql[found[end].end :]}"


def _tokens(sql: str) -> list[SqlToken]:
    try:
        return tokens(sql)
    except NotTokensError as error:
        raise UnsupportedError(f"the statement's parameters cannot be derived from it: {error}", sql=sql) from None


def _may_write(piece: Compiled) -> bool:
    return piece.kind == WRITE or piece.is_create_as_select


def _rests_on_definitions(piece: Compiled, error: ConstraintError | SqlError) -> bool:
    """Return whether ALTER failed when SQLite parsed all definitions again (``error in view v after rename: ...``).

    With legacy_alter_table, SQLite gives such an error no text of its own.

    Such an error need not be recorded: it does not depend on rows, and the definitions are the same at the activation.
    The nodes could not get the same error text: while they compare answers, SQLite first meets the view of
    ``packing.set_aside``.
    """
    return piece.kind == SCHEMA and str(error.__cause__).startswith(("error in ", "SQL logic error"))


def _names(sql: str, name: str) -> bool:
    return any(token.kind in ("word", "quoted") and (token.name or "").lower() == name for token in _tokens(sql))


def _unstable_functions(db: apsw.Connection) -> frozenset[str]:
    listed = db.execute("SELECT lower(name), type = 's' OR NOT builtin, flags FROM pragma_function_list")
    return DATES | {str(name) for name, counts, flags in listed if counts and not int(flags) & _DETERMINISTIC}
