"""Compiles clients' statements without running them, and classifies them.

SQLite itself reports the effects of a statement to ``Authorizer``. So this module parses no SQL, except for a few words
where SQLite reports nothing.
"""

import re
from collections.abc import Callable
from typing import Any

import apsw

from bedrockish.access_sets.system_names import OUR_NAMES, hidden_name
from bedrockish.access_sets.virtual_layout import VirtualLayout
from bedrockish.engine.derived.commands import command_of
from bedrockish.engine.sqlite.errors import translate
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements import pragmas
from bedrockish.engine.statements.authorizer import CHANGES, DEFINITIONS, ONLY_READ, Authorizer
from bedrockish.engine.statements.catalogue import with_users_tables
from bedrockish.engine.statements.compiled import EMPTY, READ, SCHEMA, TEMPORARY, WRITE, Compiled
from bedrockish.engine.statements.defined_name import check_defined_name
from bedrockish.engine.statements.expansion import LOOP_TOKENS, Expansion
from bedrockish.engine.statements.rights import JOURNAL, opened
from bedrockish.errors import BedrockishError, SqlError, UnsupportedError
from bedrockish.sqltext.statement_ends import first_word, split, statement_end, statement_start
from bedrockish_journal.model.membership import ADMIN, OWNER, READER, WRITER
from bedrockish_journal.storage.vector_modules import VECTORS, ModuleConnection

ROLES = {READ: READER, TEMPORARY: READER, WRITE: WRITER, SCHEMA: OWNER, EMPTY: 0}
"""Kind of a statement -> the role that a user needs to run it."""
_FILLS = {apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_SELECT}  # the actions of CREATE TABLE ... AS SELECT
_DROPS_TEMPORARY = {apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_VIEW}  # SQLite also drops the TEMP triggers of the object
_PARAMETERS = "a definition cannot have parameters; write the values into the text"
_OF_NODE = "CREATE TABLE ... AS SELECT would copy the catalogue, which is each node's own; insert the values instead"
# SQLite's errors for a statement that would change the journal, which is a view on a node's connections.
_AT_VIEW = re.compile("(cannot modify)|may not be (?:indexed|altered)|add a column to|drop column from|trigger on view")
_COMMAND = "a command with a value may configure {} on every node; write INSERT ... VALUES, not a query"
_MODEL = (
    "{} gets its model as a value, VALUES ('rebuild', ?): a query would make another model at each node; run "
    "vec1_train() first, and send its result"
)
# Values for a statement whose number of parameters is not known yet; apsw.ext.query_info uses the same.
NO_VALUES: Any = apsw._null_bindings  # type: ignore[attr-defined]


class Guard:
    """Compiles statements without running them and refuses those that cannot be replicated.

    The authorizer stays installed for the connection's life, because installing one makes SQLite compile every cached
    statement again. Outside of ``compile`` it allows everything.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._calls: Authorizer | None = None  # the calls of the statement that is being compiled
        self.virtual = VirtualLayout()  # the virtual tables of the schema
        # Whether the connection belongs to one session, which may make TEMP objects on it.
        self.allows_temporary = False
        # The sizes of the texts (such as views) that SQLite writes out for the names in a statement.
        self.expansion = Expansion()
        # Returns whether the compilation runs in the node's loop and so blocks it.
        self.is_in_loop: Callable[[], bool] = lambda: False
        self._vectors = db if isinstance(db, ModuleConnection) else None
        db.authorizer = self._asked = self._authorize

    def compile_next(
        self, sql: str, at: int = 0, *, is_limited: bool = False, optimizes: bool = True
    ) -> tuple[Compiled, int]:
        """Compile the first statement of a text at or after the offset ``at``.

        SQLite gets only the text of this statement, because it would copy the rest of a long script each time.

        Return the statement, which is empty at the end of the text, and the offset after it. The errors are those of
        ``compile``.
        """
        begin = statement_start(sql, at)
        end = statement_end(sql, begin) or len(sql)
        try:
            piece = self.compile(sql[begin:end], is_limited=is_limited, optimizes=optimizes)
        except SqlError:
            if end == len(sql) or statement_start(sql, end) == len(sql):
                raise
            # Pass the remaining text: SQLite may find another end of the statement than ``statement_end``.
            piece, end = self.compile(sql[begin:], is_limited=is_limited, optimizes=optimizes), len(sql)
        return piece, end - len(piece.rest)

    def compile(self, sql: str, *, ours: bool = False, is_limited: bool = False, optimizes: bool = True) -> Compiled:
        """Compile the first statement of a text, without running it.

        Args:
            ours: whether the node has rewritten the statement, which may then call the node's own function for ids.
            is_limited: whether the user may not read secrets, and gets the tables of ``rights.opened`` instead.
            optimizes: whether PRAGMA optimize may gather statistics; otherwise it does nothing.

        Raises:
            SqlError: SQLite does not accept the statement.
            UnsupportedError: the statement cannot be replicated.
            TooLargeError: the statement is too large once SQLite has expanded its views and common tables.
            TakesLongError: compiling the statement would block the loop.
        """
        sql = self._admitted(sql, ours=ours, is_limited=is_limited, optimizes=optimizes)
        calls = Authorizer(sql, is_of_node=ours, has_temporary=self.allows_temporary)
        piece: Compiled | None = None

        def inspect(cursor: apsw.Cursor, text: str, _bindings: object) -> bool:
            nonlocal piece
            piece = self._describe(cursor, text, sql[len(text) :], calls)
            return False

        if self._db.authorizer is not self._asked:  # a signal's handler has interrupted ``prepare_vec0``
            self._db.authorizer = self._asked
            if self._vectors is not None:
                self._vectors.is_shielded = False
        cursor = self._db.cursor()
        cursor.exec_trace = inspect
        try:
            if self._vectors is not None:
                self._vectors.prepare_vec0()
            self._calls = calls
            # Do not use the statement cache: a text that the node has cached would not be compiled again, so the
            # authorizer would not check it.
            cursor.execute(sql, NO_VALUES, can_cache=False)
        except apsw.ExecTraceAbort:
            pass
        except apsw.InterruptError:
            raise  # an interrupt, possibly while SQLite read a large schema: the caller knows which limit caused it
        except apsw.Error as error:
            raise _refused(error, sql, calls.refusal) from error
        except UnicodeEncodeError as error:
            raise SqlError(
                f"the statement has a lone surrogate at {error.start}; send the value as a parameter"
            ) from None
        finally:
            self._calls = None
            cursor.close(True)
        if calls.refusal:
            raise UnsupportedError(calls.refusal, sql=sql)
        if piece is None:
            return Compiled(sql, EMPTY, (), (), frozenset(), False, "")
        if self._vectors is not None and piece.kind == SCHEMA:
            self._vectors.forget_vec0()
        return piece

    def _describe(self, cursor: apsw.Cursor, text: str, rest: str, calls: Authorizer) -> Compiled:
        """Return the facts about a statement that SQLite has compiled; note in ``calls`` a reason to refuse it."""
        kind = _kind(cursor, text, calls)
        fills = kind == SCHEMA and calls.actions >= _FILLS and apsw.SQLITE_ALTER_TABLE not in calls.actions
        names = tuple(cursor.bindings_names)
        if fills and calls.reads_catalogue:
            calls.refuse(_OF_NODE)
        if kind == SCHEMA and names and not fills:
            # SQLite itself refuses a parameter in a definition, unless it optimizes the parameter away, as in
            # CHECK (0 AND ?). Refuse that, too: the other nodes get the definition without values.
            calls.refuse(_PARAMETERS)
        setting = next(iter(calls.pragmas & pragmas.SETTINGS), "")
        is_pragma = apsw.SQLITE_PRAGMA in calls.actions and not setting
        declared = tuple((name, kind) for name, kind in cursor.get_description()) if cursor.has_vdbe else ()
        piece = Compiled(
            text,
            kind,
            names,
            columns=tuple(name for name, _ in declared),
            tables=frozenset(calls.tables),
            whole_schema=calls.reads_schema or bool(cursor.is_explain) or is_pragma,
            rest=rest,
            setting=setting,
            trigger_updates=frozenset(calls.inner),
            declared=declared,
            configures=calls.analyzes,
            is_create_as_select=fills,
            defines_temporary=calls.defines_temporary,
            is_uninterruptible=calls.takes_long,
            needs_full_rollback=calls.makes_vec1,
            compares=calls.calls_like,
        )
        if self.virtual.tables:
            self._find_virtual(piece, calls)
        piece.required_role = ADMIN if calls.reads_secrets else ROLES[piece.kind]
        piece.reads, piece.writes, piece.accessed_tables = map(frozenset, (calls.reads, calls.writes, calls.named))
        return piece

    def _find_virtual(self, piece: Compiled, calls: Authorizer) -> None:
        """Add the effects of a statement on virtual tables; remove the storage that these read and write themselves."""
        layout, text = self.virtual, piece.sql.lower()
        # If SQLite connects a virtual table here, it also asks the authorizer about the module's own statements.
        own = {name for name in layout.shadows if name.lower() not in text} - calls.by_views
        for name in calls.writes & layout.shadows.keys() - own:  # SQLite does not protect all shadow tables
            calls.refuse(f"{name} is storage of a virtual table; write to the virtual table instead")
        piece.tables -= own
        calls.reads -= own
        calls.named -= own
        for name in list(calls.reads):  # a search of an FTS5 index shows the rows of its content table
            calls.reads.update(table.removeprefix("t:") for table in layout.objects_of(name))
        modules = {layout.tables[name].module for name in calls.named & layout.tables.keys()}
        piece.is_uninterruptible = piece.is_uninterruptible or not modules.isdisjoint(VECTORS)
        command = command_of(piece.sql, layout.tables) if piece.kind == WRITE else None
        if command is None:
            return
        piece.is_upkeep = command.is_upkeep
        if not command.is_upkeep:
            piece.kind, piece.configures, piece.is_command = SCHEMA, True, True
            if not command.is_literal:
                is_vector = layout.tables[command.table].module in VECTORS
                calls.refuse((_MODEL if is_vector else _COMMAND).format(command.table))

    def _admitted(self, sql: str, *, ours: bool, is_limited: bool, optimizes: bool) -> str:
        """Return the text that SQLite is to compile for a statement; raise as ``compile``."""
        nul = sql.find("\0")
        if nul >= 0:  # SQLite reads no further than a NUL, and apsw refuses the text with an untyped error
            raise SqlError(
                f"the statement has a NUL character at {nul}; send the value as a parameter", sql=sql, offset=nul
            )
        hidden = "" if ours else hidden_name(sql)
        if hidden:
            raise UnsupportedError(f"{hidden} belongs to the database itself; no statement may name it", sql=sql)
        sql = sql[statement_start(sql) :]  # "EXPLAIN ; SELECT" would explain nothing
        check_defined_name(sql)
        sql = sql if ours else with_users_tables(opened(sql) if is_limited else sql)
        answered = pragmas.answered(sql, lambda: optimizes and pragmas.lacks_statistics(self._db))
        if answered is not sql and first_word(sql) in ("REINDEX", "VACUUM"):  # not VACUUM INTO: the guard has to see it
            self._find_named(sql)
        sql = answered
        if self.expansion.added(sql) > LOOP_TOKENS and self.is_in_loop():
            raise TakesLongError(sql)
        return sql

    def _find_named(self, sql: str) -> None:
        """Raise SQLite's error for a REINDEX or VACUUM of an unknown name: a node answers both without running them."""
        try:
            self._db.execute("EXPLAIN " + next(split(sql)), can_cache=False).close()
        except apsw.SQLError as error:
            raise translate(error, sql) from error

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, inside: str | None
    ) -> int:
        calls = self._calls
        return apsw.SQLITE_OK if calls is None else calls.authorize(action, first, second, database, inside)


def _kind(cursor: apsw.Cursor, text: str, calls: Authorizer) -> str:
    """Return the kind of a statement; refuse one that changes the file but no rows."""
    if not cursor.has_vdbe:
        return EMPTY
    if cursor.is_explain:
        return READ
    if calls.pragmas:
        return READ if calls.pragmas.isdisjoint(pragmas.REPLICATED) else SCHEMA
    actions = calls.actions
    if not actions.isdisjoint(_DROPS_TEMPORARY):
        return SCHEMA
    # DROP ... IF EXISTS of a missing object and CREATE INDEX IF NOT EXISTS of an existing one report no action.
    is_definition = first_word(text) in ("CREATE", "DROP")
    is_replicated = not actions.isdisjoint(DEFINITIONS)
    if calls.defines_temporary or (calls.has_temporary and is_definition and not is_replicated):
        return TEMPORARY
    if is_replicated or is_definition or calls.analyzes:
        return SCHEMA
    if cursor.is_readonly:
        return READ
    if actions.isdisjoint(CHANGES):
        calls.refuse(
            f"{first_word(text) or 'this statement'} works on a whole file and cannot run inside a transaction; "
            "leave it out, or run it on a backup"
        )
    return WRITE if calls.writes or not calls.has_temporary else TEMPORARY


def _refused(error: apsw.Error, sql: str, refusal: str) -> BedrockishError:
    """Return the error for a statement that SQLite, or the authorizer, has not accepted."""
    if refusal or isinstance(error, apsw.AuthError):
        return UnsupportedError(refusal or str(error), sql=sql)
    if JOURNAL in sql.lower() and (found := _AT_VIEW.search(str(error))):
        return UnsupportedError(OUR_NAMES if found[1] is None else ONLY_READ.format(JOURNAL), sql=sql)
    return translate(error, sql)
