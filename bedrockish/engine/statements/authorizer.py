"""Records the effects of a statement while SQLite compiles it, and refuses those that cannot be replicated.

SQLite calls its authorizer for each table, column, PRAGMA and function that a statement uses, and for each object that
it makes, changes or drops.
"""

import re
from collections.abc import Callable

import apsw

from bedrockish.access_sets.system_names import OUR_NAMES, is_ours, may_be_asked
from bedrockish.engine.statements import pragmas
from bedrockish.engine.statements.insert_rewriter import FUNCTION, ROWS
from bedrockish.engine.statements.rights import JOURNAL, OPEN_JOURNAL, OPEN_META, SECRETS
from bedrockish.sqltext.statement_ends import first_word
from bedrockish_journal.storage.packing import UNPACKED
from bedrockish_journal.storage.vector_modules import PACKAGES, VEC1, VECTORS, installed
from bedrockish_journal.storage.virtual_tables import REPLICATED

DEFINITIONS = {
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
"""The actions that change the schema of all nodes."""
CHANGES = {apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
"""The actions that change rows."""
_OF_MODULES = {apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_DROP_VTABLE}
_TEMP = {
    apsw.SQLITE_CREATE_TEMP_TABLE,
    apsw.SQLITE_CREATE_TEMP_INDEX,
    apsw.SQLITE_CREATE_TEMP_VIEW,
    apsw.SQLITE_CREATE_TEMP_TRIGGER,
}
_TEMP_DEFINITIONS = _TEMP | {
    apsw.SQLITE_DROP_TEMP_TABLE,
    apsw.SQLITE_DROP_TEMP_INDEX,
    apsw.SQLITE_DROP_TEMP_VIEW,
    apsw.SQLITE_DROP_TEMP_TRIGGER,
}
_OF_SCHEMA = frozenset(  # PRAGMAs that, as tables, show only definitions
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
)
_CATALOGUE = {"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema", "sqlite_sequence"}
_TAKES_LONG = frozenset({"vec1_train"})  # functions that take long and cannot be interrupted

_BEGIN = (
    "a request's statements already run as one transaction; leave out BEGIN, COMMIT, ROLLBACK and SAVEPOINT and send "
    "the statements together as one request"
)
_TEMPORARY = (
    "temporary objects live in a session: on a connection of the client, of the DB-API, of SQLAlchemy or of libSQL, "
    "outside of a transaction that changes the schema; here, use WITH ... AS (...) or an ordinary table"
)
REFUSED = {
    apsw.SQLITE_TRANSACTION: _BEGIN,
    apsw.SQLITE_SAVEPOINT: _BEGIN,
    apsw.SQLITE_ATTACH: (
        "ATTACH: other files are not replicated; read them on a connection by the path of a node's file, outside of "
        "a transaction, or copy the rows in with INSERTs"
    ),
    apsw.SQLITE_DETACH: "other files are not replicated; leave out DETACH",
    **dict.fromkeys(_TEMP, _TEMPORARY),
}
"""Action -> the error that refuses it; in a session, TEMP objects may be made."""
_EXPLAIN = re.compile(r"EXPLAIN\b\s*+(?:QUERY\s++PLAN\b)?", re.IGNORECASE)
_NEVER_RUN = {apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH}  # in an EXPLAIN
_TEMPORARY_MODULE = "a virtual table cannot be temporary; use an ordinary TEMP table, or leave TEMP out"
_SEQUENCE = (
    "sqlite_sequence: each node keeps its own; leave it out; a dump that writes it is loaded by 'sqlite3 new.db < "
    "dump.sql' and 'bedrockish import new.db'"
)
ONLY_READ = "{} belongs to the database itself and can only be read"
_STATISTICS = "{}: every node gathers the same statistics; run ANALYZE instead, and leave the rows of a dump out"
_PAST_PACKS = (
    "{} would read {} as stored, which is empty for entries that are packed; name bedrockish_journal in the statement "
    "itself, not in a view or a trigger and not as main.bedrockish_journal"
)
_NOT_HERE = "the module {} is not installed at this node; install {} at every node"
_OF_CONNECTION = "{} sets something for one connection to the node's file; leave it out"
_MODULE = "virtual tables of the module {} are not replicated, only of {}; use one of these, or an ordinary table"


class Authorizer:
    """SQLite's calls of the authorizer for one statement: its effects, and the first reason to refuse it.

    Why so large: It has an attribute for each fact that the calls show.
    """

    def __init__(self, sql: str, *, is_of_node: bool, has_temporary: bool) -> None:
        self._is_of_node = is_of_node  # whether the statement may call the node's own function for ids
        explains = _EXPLAIN.match(sql)
        self._explains = explains is not None  # whether the statement is an EXPLAIN
        # Whether the statement is ANALYZE, or explains it.
        self.analyzes = first_word(sql[explains.end() :] if explains is not None else sql) == "ANALYZE"
        self.has_temporary = has_temporary  # whether its connection may have TEMP objects
        self.refusal = ""  # why the statement is refused; empty if it is not
        self.actions = set[int]()
        self.pragmas = set[str]()  # the PRAGMAs to which it gives a value
        self.tables = set[str]()  # the tables that it touches, except the catalogue
        self.reads = set[str]()  # the tables and views that it reads, also by views, triggers and foreign keys
        self.writes = set[str]()  # the tables that it changes, also by triggers and foreign keys
        self.named = set[str]()  # tables that it reads, updates or deletes from; as ``-NAME``, those it inserts into
        self.by_views = set[str]()  # the tables that its views and triggers read
        # Pairs of a table and a column that its triggers update; the column is empty for an INSERT of a trigger.
        self.inner = set[tuple[str, str]]()
        self.reads_schema = False  # whether it reads the catalogue, or a PRAGMA as a table
        self.reads_catalogue = False  # the same, except for the ROWID that SQLite itself reads in a CREATE ... AS
        self.reads_secrets = False
        self.defines_temporary = False  # whether it makes, changes or drops a TEMP object
        self.makes_vec1 = False
        self.takes_long = False  # whether it calls a function that takes long and cannot be interrupted
        self.calls_like = False

    def refuse(self, why: str) -> None:
        """Note why the statement is refused, unless another reason is known."""
        self.refusal = self.refusal or why

    def authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, inside: str | None
    ) -> int:
        """Answer one call of SQLite: OK, DENY or IGNORE.

        Args:
            action: the code of the action, for example ``apsw.SQLITE_READ``.
            first: the first name that belongs to the action, mostly of a table.
            second: the second name, for example of a column.
            database: ``main``, ``temp``, or the name of an attached file.
            inside: the innermost view or trigger that causes the call.
        """
        self.actions.add(action)
        name = first or ""
        if inside is not None and action in (apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE):
            self.inner.add((name, second or ""))
        if self._explains and action in _NEVER_RUN:
            refusal = None
        elif self.has_temporary and self._is_temporary(action, name, database):
            refusal = self._record_temporary(action, name, second or "")
        else:
            record = _RECORDS.get(action)
            refusal = record(self, name, second, database, inside) if record is not None else REFUSED.get(action)
        if refusal:
            self.refuse(refusal)
            return apsw.SQLITE_DENY
        return apsw.SQLITE_IGNORE if pragmas.LATER & self.pragmas else apsw.SQLITE_OK

    def _is_temporary(self, action: int, first: str, database: str | None) -> bool:
        if action in (apsw.SQLITE_PRAGMA, apsw.SQLITE_FUNCTION):
            return False
        where = first if action == apsw.SQLITE_ALTER_TABLE else database
        return action in _TEMP_DEFINITIONS or (where == "temp" and not is_ours(first))

    def _record_temporary(self, action: int, first: str, second: str) -> str | None:
        name = (second if action == apsw.SQLITE_ALTER_TABLE else first).lower()
        if action in _TEMP_DEFINITIONS or action in DEFINITIONS:
            self.defines_temporary = True
            if action in _OF_MODULES:
                return _TEMPORARY_MODULE
            return OUR_NAMES if is_ours(name) or is_ours(second) else None
        if action == apsw.SQLITE_READ and name in _CATALOGUE:
            self.reads_schema = True
        return None

    # Each method below records one kind of action, and returns why it is refused, or None.

    def _record_pragma(self, pragma: str, value: str | None, database: str | None, _inside: str | None) -> str | None:
        name = pragma.lower()
        if name not in _OF_SCHEMA and name not in pragmas.SETTINGS:
            self.reads.add(f"PRAGMA {name}")
        if value is not None:
            self.pragmas.add(name)
        return pragmas.refusal(pragma, value, database)

    def _record_read(self, table: str, column: str | None, database: str | None, inside: str | None) -> str | None:
        if table == ROWS:  # the values of an INSERT, as the node has rewritten it
            return None
        name = table.lower()
        is_pragma = name.startswith("pragma_")
        if not (is_pragma and name.removeprefix("pragma_") in _OF_SCHEMA):
            self.reads.add(table)
            self.named.add(table)
            if inside is not None:
                self.by_views.add(table)
        if (name, (column or "").lower()) in SECRETS and inside not in (OPEN_JOURNAL, OPEN_META):
            self.reads_secrets = True
        if not self._is_of_node and not may_be_asked(name):
            return f"{table} belongs to the database itself; no client may read it"
        if name == JOURNAL and column in UNPACKED and database == "main" and inside not in (JOURNAL, OPEN_JOURNAL):
            return _PAST_PACKS.format(inside or f"main.{table}", column)
        if is_pragma or name in _CATALOGUE:
            self.reads_schema = True
            self.reads_catalogue = self.reads_catalogue or column != "ROWID" or inside is not None
        else:
            self.tables.add(table)
        return None

    def _record_insert(self, table: str, _column: str | None, database: str | None, _inside: str | None) -> str | None:
        return self._record_change(table, f"-{table}", database)

    def _record_update(self, table: str, _column: str | None, database: str | None, _inside: str | None) -> str | None:
        return self._record_change(table, table, database)

    def _record_change(self, table: str, named: str, database: str | None) -> str | None:
        name = table.lower()
        # SQLite writes its own catalogue for definitions, and refuses other changes of the catalogue by itself.
        if name in _CATALOGUE and name != "sqlite_sequence":
            return None
        if database not in (None, "main", "temp"):
            return f"{database} was attached for reading only; write to its file with another program"
        self.writes.add(table)
        self.named.add(named)
        is_by_sqlite = self.analyzes or not self.actions.isdisjoint(DEFINITIONS)
        if is_ours(name) or (name.startswith("sqlite_") and not is_by_sqlite):
            reason = _STATISTICS if name.startswith("sqlite_stat") else ONLY_READ
            return _SEQUENCE if name == "sqlite_sequence" else reason.format(table)
        self.tables.add(table)
        return None

    def _record_call(self, _first: str, function: str | None, _database: str | None, _inside: str | None) -> str | None:
        name = (function or "").lower()
        self.takes_long = self.takes_long or name in _TAKES_LONG
        self.calls_like = self.calls_like or name == "like"
        if name == FUNCTION and not self._is_of_node:
            return f"{FUNCTION} belongs to the database itself; leave the id out, and the node assigns it"
        return _OF_CONNECTION.format(name) if name == "vec1_config" else None

    def _record_module(self, table: str, module: str | None, database: str | None, _inside: str | None) -> str | None:
        name = (module or "").lower()
        self.makes_vec1 = self.makes_vec1 or name == VEC1
        if name not in REPLICATED:
            return _MODULE.format(module, ", ".join(sorted(REPLICATED)))
        if name in VECTORS and name not in installed():
            return _NOT_HERE.format(name, PACKAGES[name])
        return self._record_names(table, (table, module), database)

    def _record_dropped_module(
        self, table: str, module: str | None, database: str | None, _inside: str | None
    ) -> str | None:
        return self._record_names(table, (table, module), database)

    def _record_alter(self, _database: str, table: str | None, database: str | None, _inside: str | None) -> str | None:
        return self._record_names(table or "", (table,), database)

    def _record_definition(self, name: str, table: str | None, database: str | None, _inside: str | None) -> str | None:
        return self._record_names(table or "", (name, table), database)

    def _record_names(self, table: str, names: tuple[str | None, ...], database: str | None) -> str | None:
        if table:
            self.tables.add(table)
        if any(is_ours(name or "") for name in names):
            return OUR_NAMES
        return _TEMPORARY if database == "temp" else None


_Record = Callable[[Authorizer, str, str | None, str | None, str | None], str | None]
_RECORDS: dict[int, _Record] = {
    **dict.fromkeys(DEFINITIONS, Authorizer._record_definition),
    apsw.SQLITE_ALTER_TABLE: Authorizer._record_alter,
    apsw.SQLITE_CREATE_VTABLE: Authorizer._record_module,
    apsw.SQLITE_DROP_VTABLE: Authorizer._record_dropped_module,
    apsw.SQLITE_PRAGMA: Authorizer._record_pragma,
    apsw.SQLITE_READ: Authorizer._record_read,
    apsw.SQLITE_INSERT: Authorizer._record_insert,
    apsw.SQLITE_UPDATE: Authorizer._record_update,
    apsw.SQLITE_DELETE: Authorizer._record_update,
    apsw.SQLITE_FUNCTION: Authorizer._record_call,
}
