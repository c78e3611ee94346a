"""Classifies clients' statements, and refuses those that a replicated database cannot run.

SQLite itself reports the effects of a statement: it calls its authorizer for each table, column, PRAGMA and function
that the compiled statement touches. So this module parses no SQL, except for a few words where SQLite reports nothing.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw

from bedrockish.access_sets.system_names import OUR_NAMES, hidden_name, is_ours, may_be_asked
from bedrockish.access_sets.virtual_layout import VirtualLayout
from bedrockish.engine.derived.commands import command_of
from bedrockish.engine.sqlite.errors import translate
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.engine.statements import pragmas
from bedrockish.engine.statements.catalogue import with_users_tables
from bedrockish.engine.statements.defined_name import check_defined_name
from bedrockish.engine.statements.expansion import LOOP_TOKENS, Expansion
from bedrockish.engine.statements.insert_rewriter import FUNCTION, ROWS, Rewritten
from bedrockish.engine.statements.rights import JOURNAL, OPEN_JOURNAL, OPEN_META, SECRETS, opened
from bedrockish.errors import SqlError, UnsupportedError
from bedrockish.sqltext.session_settings import NONE, Settings
from bedrockish.sqltext.statement_ends import first_word, split, statement_end, statement_start
from bedrockish_journal.model.membership import ADMIN, OWNER, READER, WRITER
from bedrockish_journal.storage.packing import UNPACKED
from bedrockish_journal.storage.table_layout import is_hidden
from bedrockish_journal.storage.vector_modules import PACKAGES, VEC1, VECTORS, installed
from bedrockish_journal.storage.virtual_tables import FTS5, REPLICATED

READ, WRITE, SCHEMA, EMPTY, TEMPORARY = "read", "write", "schema", "empty", "temporary"

_DDL = {
    apsw.SQLITE_CREATE_TABLE,
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_CREATE_VIEW,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_TABLE,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_DROP_VIEW,
    apsw.SQLITE_DROP_TEMP_VIEW,  # on a node's connections the journal is a view of TEMP
    apsw.SQLITE_DROP_TEMP_TABLE,
    apsw.SQLITE_DROP_TRIGGER,
    apsw.SQLITE_ALTER_TABLE,
    apsw.SQLITE_CREATE_VTABLE,
    apsw.SQLITE_DROP_VTABLE,
}
_FILLS = {apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_SELECT}
_PARAMETERS = "a definition cannot have parameters; write the values into the text"
_OF_NODE = "CREATE TABLE ... AS SELECT would copy the catalogue, which is each node's own; insert the values instead"
_OF_MODULES = {apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_DROP_VTABLE}
_TEMP = {
    apsw.SQLITE_CREATE_TEMP_TABLE,
    apsw.SQLITE_CREATE_TEMP_INDEX,
    apsw.SQLITE_CREATE_TEMP_VIEW,
    apsw.SQLITE_CREATE_TEMP_TRIGGER,
}
_TEMP_DDL = _TEMP | {apsw.SQLITE_DROP_TEMP_TABLE, apsw.SQLITE_DROP_TEMP_INDEX}
_TEMP_DDL |= {apsw.SQLITE_DROP_TEMP_VIEW, apsw.SQLITE_DROP_TEMP_TRIGGER}
_TEMPORARY = (
    "temporary objects live in a session: on a connection of the client, of the DB-API, of SQLAlchemy or of libSQL, "
    "outside of a transaction that changes the schema; here, use WITH ... AS (...) or an ordinary table"
)
_TEMPORARY_MODULE = "a virtual table cannot be temporary; use an ordinary TEMP table, or leave TEMP out"
_OF_SCHEMA = frozenset(  # PRAGMAs that show definitions only
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
)
_NEEDS = {READ: READER, TEMPORARY: READER, WRITE: WRITER, SCHEMA: OWNER, EMPTY: 0}
_CATALOGUE = {"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema", "sqlite_sequence"}
_SEQUENCE = (
    "sqlite_sequence: each node keeps its own; leave it out; a dump that writes it is loaded by 'sqlite3 new.db < "
    "dump.sql' and 'bedrockish import new.db'"
)
_ONLY_READ = "{} belongs to the database itself and can only be read"
# SQLite's errors for a statement that would change the journal, which is a view on a node's connections.
_AT_VIEW = re.compile("(cannot modify)|may not be (?:indexed|altered)|add a column to|drop column from|trigger on view")
_DROPS = re.compile(r"DROP\b(?!\s+(?:TRIGGER|VIEW)\b)", re.IGNORECASE)
_PAST_PACKS = (
    "{} would read {} as stored, which is empty for entries that are packed; name bedrockish_journal in the statement "
    "itself, not in a view or a trigger and not as main.bedrockish_journal"
)
_NOT_HERE = "the module {} is not installed at this node; install {} at every node"
ALONE = "a table of vec1 is made in a request of its own; make others, and fill it, before or after"
_OF_CONNECTION = "{} sets something for one connection to the node's file; leave it out"
_TAKES_LONG = frozenset({"vec1_train"})  # functions that take long and cannot be interrupted
_MODULE = "virtual tables of the module {} are not replicated, only of {}; use one of these, or an ordinary table"
_COMMAND = "this command configures {} on every node; write its values into the text, without parameters"
_MODEL = (
    "{} gets its model as a value, VALUES ('rebuild', ?): a query would make another model at each node; run "
    "vec1_train() first, and send its result"
)
_BEGIN = (
    "a request's statements already run as one transaction; leave out BEGIN, COMMIT, ROLLBACK and SAVEPOINT and send "
    "the statements together as one request"
)
_REFUSED = {
    apsw.SQLITE_TRANSACTION: _BEGIN,
    apsw.SQLITE_SAVEPOINT: _BEGIN,
    apsw.SQLITE_ATTACH: (
        "ATTACH: other files are not replicated; read them on a connection by the path of a node's file, outside of "
        "a transaction, or copy the rows in with INSERTs"
    ),
    apsw.SQLITE_DETACH: "other files are not replicated; leave out DETACH",
    **dict.fromkeys(_TEMP, _TEMPORARY),
}
_AROUND = " \t\r\n;"  # the characters that may surround a statement
# Values for a statement whose number of parameters is not known yet; apsw.ext.query_info uses the same.
_NO_VALUES: Any = apsw._null_bindings  # type: ignore[attr-defined]


@dataclass(slots=True)
class Compiled:
    """One compiled statement of a client's text.

    Why so large: It is a record, with a field for each fact that compiling a statement shows.
    """

    sql: str  # the text of the statement alone
    # ``read``, ``write``, ``schema``, ``temporary`` (it changes only TEMP tables) or ``empty`` (only blanks and
    # comments).
    kind: str
    names: tuple[str | None, ...]  # name of each parameter; None for a parameter without a name
    columns: tuple[str, ...]  # names of the result's columns
    tables: frozenset[str]  # the tables that it touches, by their names in the schema
    whole_schema: bool  # whether it reads definitions of tables that it does not name
    rest: str  # the text after the statement
    setting: str = ""  # the name of the PRAGMA that it sets until the end of the request, or empty
    # Pairs of a table and a column that its triggers update; the column is empty for an INSERT of a trigger.
    inner: frozenset[tuple[str, str]] = frozenset()
    # The text to run instead, in which the node assigns the ids that the statement leaves out.
    auto: Rewritten | None = None
    # Name and declared type of each column of the result; the type is None if it is not a table's column.
    declared: tuple[tuple[str, str | None], ...] = ()
    needs: int = 0  # the role that a user needs to run it
    reads: frozenset[str] = frozenset()  # all tables and views that it reads, also by views, triggers and foreign keys
    writes: frozenset[str] = frozenset()  # all tables that it changes, also by views, triggers and foreign keys
    named: frozenset[str] = frozenset()  # the argument ``named`` of ``virtual_reads`` for this statement
    configures: bool = False  # whether it makes a change that SQLite's counter of schema changes does not count
    fills: bool = False  # whether it makes a table and its rows, as CREATE TABLE ... AS SELECT
    defines: bool = False  # whether it makes, changes or drops a TEMP object
    is_command: bool = False  # whether it is a command of a virtual table, with values to be written into the text
    is_upkeep: bool = False  # whether it is a command of FTS5 that changes no result of an index that matches its rows
    is_dear: bool = False  # whether it calls a function or module that takes long and cannot be interrupted
    # Whether it makes a table of vec1. Only a rollback of the whole transaction undoes that: after a rollback to a
    # savepoint, later statements of the connection fail.
    stays: bool = False
    compares: bool = False  # whether it calls ``like``, also by views and triggers
    settings: Settings = NONE  # the settings of its session that change its effect, and with which it therefore runs
    _without_keys: bool | None = field(default=None, repr=False, compare=False)
    _system: bool | None = field(default=None, repr=False, compare=False)

    @property
    def can_cache(self) -> bool:
        """Whether the statement may stay compiled: SQLite compiles all but EXPLAIN again after a schema change."""
        return not (self.whole_schema or self.settings)

    @property
    def drops_pages(self) -> bool:
        """Whether the statement drops a table or index, whose pages SQLite reads in one step without interrupts."""
        return self.kind == SCHEMA and bool(self.tables) and _DROPS.match(self.sql) is not None

    @property
    def reads_without_keys(self) -> bool:
        """Whether the statement reads data without keys for a read set: the schema, or system tables."""
        if self._without_keys is None:  # computed once, because each run needs it
            self._without_keys = (
                self.whole_schema or bool(self.setting) or any(map(is_hidden, self.reads | self.tables))
            )
        return self._without_keys

    @property
    def reads_system(self) -> bool:
        """Whether the statement reads system tables such as the journal, to which every commit adds rows."""
        if self._system is None:  # computed once, because each run needs it
            self._system = any(map(is_ours, self.reads | self.tables))
        return self._system

    @property
    def checks_keys(self) -> bool:
        """Whether the statement is PRAGMA foreign_key_check."""
        return self.whole_schema and first_word(self.sql) == "PRAGMA" and "foreign_key_check" in self.sql.lower()

    def only_reads(self, sql: str) -> bool:
        """Return whether this statement reads and is the only one in ``sql``, the text of a client."""
        return self.kind == READ and self.sql.strip(_AROUND) == sql.strip(_AROUND)

    def text(self, params: Sequence[Any]) -> str:
        """Return the text to run with these parameters."""
        auto = self.auto
        if auto is None:
            return self.sql
        for place in auto.nulls:
            if params[place] is None:
                return auto.sql
        return self.sql if auto.nulls else auto.sql


@dataclass(slots=True)
class _Seen:
    """The calls of the authorizer during one compilation.

    Why so large: It is a record, with a field for each fact that the calls of the authorizer show.
    """

    actions: set[int] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    inner: set[tuple[str, str]] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    ours: bool = False
    temporary: bool = False
    defines: bool = False
    is_dear: bool = False
    stays: bool = False
    compares: bool = False
    catalogue: bool = False
    analyzes: bool = False
    reads_catalogue: bool = False
    secret: bool = False
    by_views: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    refusal: str = ""


class Guard:
    """Compiles statements without running them and refuses those that cannot be replicated.

    The authorizer stays installed for the connection's life, because installing one makes SQLite compile every cached
    statement again. Outside of ``compile`` it allows everything.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._seen: _Seen | None = None
        self.virtual = VirtualLayout()  # the virtual tables of the schema
        # Whether the connection belongs to one session, which may make TEMP objects on it.
        self.allows_temporary = False
        # The sizes of the texts (such as views) that SQLite writes out for the names in a statement.
        self.expansion = Expansion()
        # Returns whether the compilation runs in the node's loop and so blocks it.
        self.is_in_loop: Callable[[], bool] = lambda: False
        db.authorizer = self._authorize

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
            TooLargeError: the statement is too large once SQLite has written out its views and common tables.
            TakesLongError: compiling the statement would hold up the loop.
        """
        sql = self._admitted(sql, ours=ours, is_limited=is_limited, optimizes=optimizes)
        seen = self._seen = _Seen(ours=ours, analyzes=first_word(sql) == "ANALYZE", temporary=self.allows_temporary)
        piece: Compiled | None = None

        def inspect(cursor: apsw.Cursor, text: str, _bindings: object) -> bool:
            nonlocal piece
            declared = tuple((name, kind) for name, kind in cursor.get_description()) if cursor.has_vdbe else ()
            columns = tuple(name for name, _ in declared)
            kind = self._kind(cursor, text, seen)
            names = tuple(cursor.bindings_names)
            setting = next(iter(seen.given & pragmas.SETTINGS), "")
            whole = seen.catalogue or bool(cursor.is_explain) or (apsw.SQLITE_PRAGMA in seen.actions and not setting)
            rest, tables, inner = sql[len(text) :], frozenset(seen.tables), frozenset(seen.inner)
            piece = Compiled(text, kind, names, columns, tables, whole, rest, setting, inner, declared=declared)
            self._complete(piece, seen)
            piece.needs = ADMIN if seen.secret else _NEEDS[piece.kind]
            piece.reads, piece.writes, piece.named = map(frozenset, (seen.reads, seen.writes, seen.named))
            return False

        cursor = self._db.cursor()
        cursor.exec_trace = inspect
        try:
            # Not from the statement cache: a text that equals a cached one of the node would not be compiled again, and
            # the authorizer would not check it.
            cursor.execute(sql, _NO_VALUES, can_cache=False)
        except apsw.ExecTraceAbort:
            pass
        except apsw.InterruptError:
            raise  # an interrupt, possibly while SQLite read a large schema: the caller knows which limit caused it
        except apsw.Error as error:
            if seen.refusal or isinstance(error, apsw.AuthError):
                raise UnsupportedError(seen.refusal or str(error), sql=sql) from None
            if JOURNAL in sql.lower() and (found := _AT_VIEW.search(str(error))):
                why = OUR_NAMES if found[1] is None else _ONLY_READ.format(JOURNAL)
                raise UnsupportedError(why, sql=sql) from None
            raise translate(error, sql) from error
        except UnicodeEncodeError as error:
            raise SqlError(
                f"the statement has a lone surrogate at {error.start}; send the value as a parameter"
            ) from None
        finally:
            self._seen = None
            cursor.close(True)
        if seen.refusal:
            raise UnsupportedError(seen.refusal, sql=sql)
        if piece is None:
            return Compiled(sql, EMPTY, (), (), frozenset(), False, "")
        return piece

    def _complete(self, piece: Compiled, seen: _Seen) -> None:
        """Record whether a statement fills a table or gathers statistics, and which virtual tables it uses."""
        piece.configures, piece.defines, piece.is_dear = seen.analyzes, seen.defines, seen.is_dear
        piece.stays, piece.compares = seen.stays, seen.compares
        piece.fills = piece.kind == SCHEMA and seen.actions >= _FILLS and apsw.SQLITE_ALTER_TABLE not in seen.actions
        if piece.fills and seen.reads_catalogue:
            seen.refusal = seen.refusal or _OF_NODE
        if piece.kind == SCHEMA and piece.names and not piece.fills:
            # SQLite itself misses a parameter that it leaves out, as in CHECK (0 AND ?). The nodes get no values.
            seen.refusal = seen.refusal or _PARAMETERS
        if not self.virtual.tables:
            return
        layout, text = self.virtual, piece.sql.lower()
        # If SQLite connects a virtual table here, it also asks the authorizer about the module's own statements.
        own = {name for name in layout.shadows if name.lower() not in text} - seen.by_views
        for name in seen.writes & layout.shadows.keys() - own:  # SQLite does not protect all shadow tables
            seen.refusal = seen.refusal or f"{name} is storage of a virtual table; write to that"
        piece.tables -= own
        for found in (seen.reads, seen.named):
            found -= own
        for name in list(seen.reads):  # a search of an FTS5 index shows the rows of its content table
            seen.reads.update(table.removeprefix("t:") for table in layout.objects_of(name))
        command = command_of(piece.sql, layout.tables) if piece.kind == WRITE else None
        piece.is_dear = piece.is_dear or any(
            layout.tables[name].module in VECTORS for name in seen.named & layout.tables.keys()
        )
        piece.is_upkeep = command is not None and command.is_upkeep
        if command is not None and not command.is_upkeep:
            piece.kind, piece.configures = SCHEMA, True
            piece.is_command = layout.tables[command.table].module in VECTORS
            if not command.is_literal:
                seen.refusal = seen.refusal or (_MODEL if piece.is_command else _COMMAND).format(command.table)

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

    @staticmethod
    def _kind(cursor: apsw.Cursor, text: str, seen: _Seen) -> str:
        actions = seen.actions
        if not cursor.has_vdbe:
            return EMPTY
        if cursor.is_explain:
            return READ
        if seen.given:
            return SCHEMA if seen.given & {*pragmas.REPLICATED} else READ
        if actions & {apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_VIEW}:  # SQLite also drops its TEMP triggers
            return SCHEMA
        if seen.temporary and (seen.defines or (not actions & _DDL and first_word(text) in ("CREATE", "DROP"))):
            return TEMPORARY
        # DROP ... IF EXISTS of a missing object and CREATE INDEX IF NOT EXISTS of an existing one report no action.
        if actions & _DDL or seen.analyzes or first_word(text) in ("CREATE", "DROP"):
            return SCHEMA
        if cursor.is_readonly:
            return READ
        if not actions & {apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE} and not seen.refusal:
            seen.refusal = (
                f"{first_word(text) or 'this statement'} works on a whole file and cannot run inside a transaction; "
                "leave it out, or run it on a backup"
            )
        return WRITE if seen.writes or not seen.temporary else TEMPORARY

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, inside: str | None
    ) -> int:
        seen = self._seen
        if seen is None:
            return apsw.SQLITE_OK
        seen.actions.add(action)
        if inside is not None and action in (apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE):
            seen.inner.add((first or "", second or ""))
        refusal = _REFUSED.get(action)
        where = first if action == apsw.SQLITE_ALTER_TABLE else database
        is_temporary = seen.temporary and (action in _TEMP_DDL or (where == "temp" and not is_ours(first or "")))
        if is_temporary and action not in (apsw.SQLITE_PRAGMA, apsw.SQLITE_FUNCTION):
            refusal = _of_temporary(seen, action, first or "", second or "")
        elif refusal is None:
            refusal = self._refusal(seen, action, first or "", second, database, inside)
        if refusal:
            seen.refusal = seen.refusal or refusal
            return apsw.SQLITE_DENY
        if pragmas.LATER & seen.given:
            return apsw.SQLITE_IGNORE
        return apsw.SQLITE_OK

    @staticmethod
    def _refusal(
        seen: _Seen, action: int, first: str, second: str | None, database: str | None, inside: str | None
    ) -> str | None:
        """Return why this action is refused, or None; record the touched objects."""
        name = first.lower()
        if action == apsw.SQLITE_PRAGMA:
            if name not in _OF_SCHEMA and name not in pragmas.SETTINGS:
                seen.reads.add(f"PRAGMA {name}")
            if second is not None:
                seen.given.add(name)
            return pragmas.refusal(first, second, database)
        if action == apsw.SQLITE_READ:
            if not (name.startswith("pragma_") and name.removeprefix("pragma_") in _OF_SCHEMA) and first != ROWS:
                seen.reads.add(first)
                seen.named.add(first)
                if inside is not None:
                    seen.by_views.add(first)
            if (name, (second or "").lower()) in SECRETS and inside not in (OPEN_JOURNAL, OPEN_META):
                seen.secret = True
            if not seen.ours and not may_be_asked(name) and name != ROWS:
                return f"{first} belongs to the database itself; no client may read it"
            if name == JOURNAL and second in UNPACKED and database == "main" and inside not in (JOURNAL, OPEN_JOURNAL):
                return _PAST_PACKS.format(inside or f"main.{first}", second)
            if name in _CATALOGUE or name.startswith("pragma_"):
                seen.catalogue = True
                seen.reads_catalogue = seen.reads_catalogue or second != "ROWID" or inside is not None
            elif first != ROWS:
                seen.tables.add(first)
            return None
        if action in (apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE):
            # SQLite writes its own catalogue for DDL, and refuses DML on the catalogue by itself.
            if name in _CATALOGUE and name != "sqlite_sequence":
                return None
            if database not in (None, "main", "temp"):
                return f"{database} was attached to be read; write to it in a program of its own"
            seen.writes.add(first)
            seen.named.add(first if action != apsw.SQLITE_INSERT else f"-{first}")
            if is_ours(name) or (name.startswith("sqlite_") and not seen.analyzes and not seen.actions & _DDL):
                return _SEQUENCE if name == "sqlite_sequence" else _ONLY_READ.format(first)
            seen.tables.add(first)
            return None
        if action == apsw.SQLITE_FUNCTION:
            called = (second or "").lower()
            seen.is_dear = seen.is_dear or called in _TAKES_LONG
            seen.compares = seen.compares or called == "like"
            if called == FUNCTION and not seen.ours:
                return f"{FUNCTION} belongs to the database itself; leave the id out and it is given"
            if called == "vec1_config":
                return _OF_CONNECTION.format(called)
        if action == apsw.SQLITE_ALTER_TABLE:
            name = (second or "").lower()
            seen.tables.add(second or "")
        elif action in _OF_MODULES:
            module = (second or "").lower() if action == apsw.SQLITE_CREATE_VTABLE else FTS5
            seen.stays = seen.stays or module == VEC1
            if module not in REPLICATED:
                return _MODULE.format(second, ", ".join(sorted(REPLICATED)))
            if module in VECTORS and module not in installed():
                return _NOT_HERE.format(module, PACKAGES[module])
            seen.tables.add(first)
        elif action in _DDL and second:
            seen.tables.add(second)
        if action in _DDL and (is_ours(name) or is_ours(second or "")):
            return OUR_NAMES
        if action in _DDL and database == "temp":
            return _TEMPORARY
        return None


def _of_temporary(seen: _Seen, action: int, first: str, second: str) -> str | None:
    """Return why an action on a TEMP object is refused, or None."""
    name = (second if action == apsw.SQLITE_ALTER_TABLE else first).lower()
    if action in _TEMP_DDL or action in _DDL:
        seen.defines = True
        if action in _OF_MODULES:
            return _TEMPORARY_MODULE
        return OUR_NAMES if is_ours(name) or is_ours(second) else None
    if action == apsw.SQLITE_READ and name in _CATALOGUE:
        seen.catalogue = True
    return None
