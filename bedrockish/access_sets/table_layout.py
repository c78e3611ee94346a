"""The layout of each table's rows, for capturing changes and applying them.

The layout is read from SQLite's own descriptions once per schema version, for the tables that have changed. For the
analysis of reads and keys, ``catalog`` has another description of the same tables.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import apsw

from bedrockish.access_sets.definitions import Definitions, folded, listed
from bedrockish.access_sets.key_encoding import AFFINITY_REAL, declared_affinity
from bedrockish.access_sets.opcodes import rows_of
from bedrockish.access_sets.system_names import OUR_NAMES, PASSING, check_references
from bedrockish.access_sets.virtual_layout import OwnRows, VirtualLayout, as_shadows
from bedrockish.errors import UnsupportedError
from bedrockish.sqltext.document_functions import reads_documents
from bedrockish.sqltext.tokenizer import NotTokensError, tokens
from bedrockish_journal.storage.table_layout import ROWID_NAMES, quote

_SWITCHES = (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, apsw.SQLITE_DBCONFIG_ENABLE_FKEY)
_NO_USERS = ("sqlite_", "bedrockish_")
_OF_NO_MODULE = OwnRows("", (), None, None)


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """The facts about a table with which its rows are captured and applied."""

    name: str
    columns: tuple[str, ...]  # the stored columns, in the order of the preupdate hook
    # Positions in ``columns`` of the columns that an INSERT may name: all but STORED generated columns.
    writable: tuple[int, ...]
    # A quoted name for its rowid that no column hides; empty if columns hide all names; None for a table WITHOUT ROWID.
    rowid: str | None
    alias: int | None  # position of the column that is the rowid (INTEGER PRIMARY KEY), or None
    key: tuple[int, ...]  # positions of the primary key's columns, for a table WITHOUT ROWID
    virtual: bool  # whether it has VIRTUAL generated columns, whose values the hook cannot show
    unique: bool = False  # whether it has a UNIQUE constraint other than its own key
    triggers: bool = False  # whether it has triggers of its own
    active: bool = False  # whether it has triggers, or is the child or parent of a foreign key
    checks: bool = False  # whether it may have CHECKs
    # Positions of the columns with REAL affinity, in which the hook may show a whole number as an int.
    reals: tuple[int, ...] = ()
    # Whether it is a virtual table that owns its rows; the hook reports their rowids by a shadow table.
    is_module: bool = False
    own: OwnRows = _OF_NO_MODULE  # further facts about a virtual table that owns its rows

    @property
    def id_column(self) -> str:
        """Name of the column that is the rowid; empty if there is no such column."""
        return "" if self.alias is None else self.columns[self.alias]


class Tables:
    """Every user table of the current schema, by name.

    Args:
        known: the previous tables, or another connection's; a table is described again only if its definition has
            changed, or if it has become the parent of a foreign key or ceased to be one.
    """

    definitions: Definitions  # the definitions from which the tables were described
    by_name: dict[str, CapturedTable]  # name, as the schema spells it -> table
    references: dict[str, frozenset[str]]  # table with foreign keys -> folded names of its parents
    checked: dict[str, str]  # table that may have CHECKs -> its CREATE statement
    sequences: set[str]  # the names of the AUTOINCREMENT tables, in which no id is ever used twice
    _names: dict[str, str]
    parents: frozenset[str]  # folded names of all parents of foreign keys

    def __init__(self, db: apsw.Connection, known: "Tables | None" = None) -> None:
        before = known.definitions if known is not None else None
        self.definitions = Definitions(db, before)
        changed = self.definitions.changed_since(before)
        self._names = dict(known._names) if known is not None else {}
        self.by_name = dict(known.by_name) if known is not None else {}
        self.references = dict(known.references) if known is not None else {}
        self.checked = dict(known.checked) if known is not None else {}
        self.sequences = set(known.sequences) if known is not None else set()
        for name in self.names(changed):
            for of_before in (self.by_name, self.references, self.checked):
                of_before.pop(name, None)
            self.sequences.discard(name)
            del self._names[folded(name)]
        found = as_shadows(listed(db, self.definitions.listed_with(changed)), self.definitions)
        tables = ((name, without_rowid) for name, kind, without_rowid, _ in found if kind == "table")
        fresh = ((name, without_rowid) for name, without_rowid in tables if folded(name) in changed)
        users = {name: without_rowid for name, without_rowid in fresh if not folded(name).startswith(_NO_USERS)}
        for name in users:
            self._read(db, name)
        self.parents = frozenset(chain.from_iterable(self.references.values()))
        for name, without_rowid in users.items():
            table = _describe(db, name, without_rowid=without_rowid)
            self.by_name[name] = self._active(replace(table, checks=name in self.checked))
        self.virtual = VirtualLayout()  # the virtual tables; those that own their rows are also in ``by_name``
        if self.definitions.virtual:
            self.virtual = VirtualLayout.read(db, self.definitions, [(name, kind) for name, kind, *_ in found])
            for one in self.virtual.owners:
                self._names[folded(one.name)] = one.name
                self.by_name[one.name] = _of_module(one)
        parents = known.parents if known is not None else frozenset()
        for name in self.names((parents ^ self.parents) - changed):
            if not self.by_name[name].is_module:
                self.by_name[name] = self._active(self.by_name[name])
        self.foreign_keys = bool(self.parents)  # whether there are any foreign keys
        self._reserved = frozenset(name for name in self.parents - parents if name.startswith(_NO_USERS))
        if known is not None:
            self._reserved |= known._reserved & self.parents
        # The names of the objects of bedrockish itself, except the temporary ones of online index builds.
        self.system = self.definitions.system - PASSING

    def _read(self, db: apsw.Connection, name: str) -> None:
        """Record the facts about a table that the descriptions of other tables need."""
        self._names[folded(name)] = name
        parents = _rows(db, 'SELECT "table" FROM pragma_foreign_key_list(?)', name)
        if parents:
            self.references[name] = frozenset(folded(parent) for (parent,) in parents)
        sql = self.definitions.text_of(name)
        if "check" in sql.lower():
            self.checked[name] = sql
        if _is_autoincrement(sql):
            self.sequences.add(name)

    def names(self, wanted: Iterable[str]) -> list[str]:
        """Return the names, as the schema spells them, of the existing tables with these folded names."""
        return [self._names[name] for name in wanted if name in self._names]

    def check_references(self) -> None:
        """Check that the schema does not refer to the tables of bedrockish itself.

        Raises:
            UnsupportedError: an object refers to one of them.
        """
        check_references(self.definitions, self.references if self._reserved else {})

    def check_change(self, db: apsw.Connection, known: "Tables") -> None:
        """Check that the schema can be replicated after a change from ``known``, which was supported.

        Raises:
            UnsupportedError: a table cannot be replicated, or the change touches objects of bedrockish itself.
        """
        self.check_supported(db, known)
        self.check_references()
        if self.system != known.system:
            raise UnsupportedError(OUR_NAMES)

    def _active(self, table: CapturedTable) -> CapturedTable:
        """Return a table with the facts that depend on other rows of the schema: triggers and foreign keys."""
        triggers = self.definitions.has_triggers(folded(table.name))
        active = triggers or folded(table.name) in self.parents or table.name in self.references
        return replace(table, triggers=triggers, active=active)

    def check_supported(self, db: apsw.Connection, known: "Tables | None" = None) -> None:
        """Check that every table's rows can be captured and applied.

        Args:
            known: the previous tables, which are supported; unchanged tables are not checked again.

        Raises:
            UnsupportedError: a table's rows cannot; the text says what to change in its definition.
        """
        self.virtual.check_supported(db)
        for table in self.by_name.values():
            if known is not None and known is not self and known.by_name.get(table.name) is table:
                continue
            if table.virtual and table.rowid is None and not table.is_module:
                raise UnsupportedError(
                    f"table {table.name} is WITHOUT ROWID and has VIRTUAL generated columns, whose changes cannot be "
                    "captured; declare the columns STORED, or leave out WITHOUT ROWID",
                    table=table.name,
                )
            if table.rowid == "":
                raise UnsupportedError(
                    f"table {table.name} has columns named rowid, _rowid_ and oid, so no name is left for its rowid; "
                    "rename one of them, or give the table an INTEGER PRIMARY KEY",
                    table=table.name,
                )
            if table.checks and (known is None or known.checked.get(table.name) != self.checked[table.name]):
                _refuse_unstable_checks(db, table)
            self._refuse_unique_documents(table)

    def _refuse_unique_documents(self, table: CapturedTable) -> None:
        """Refuse a UNIQUE key on an expression that may differ between a JSON document and its stored text."""
        rows = self.definitions.by_table.get(folded(table.name), ())
        # SQLite stores the statement of an index with these words at its beginning, however the user wrote it.
        texts = [one.sql for one in rows if one.kind == "index" and (one.sql or "").startswith("CREATE UNIQUE INDEX")]
        if table.virtual and (table.unique or texts):
            texts += [one.sql for one in rows if one.kind == "table"]
        if any(reads_documents(sql) for sql in texts if sql is not None):
            raise UnsupportedError(
                f"a UNIQUE key of table {table.name} uses a JSON function such as json_array() or json_object(), "
                "which may return one value for a document that a statement builds, and another for the stored text of "
                "that document; compute the value in a STORED column, and make that UNIQUE",
                table=table.name,
            )


def _refuse_unstable_checks(db: apsw.Connection, table: CapturedTable) -> None:
    """Refuse a CHECK that does not depend on the row alone, because another evaluation might reject the same row.

    SQLite itself refuses nondeterministic functions in indexes and generated columns, and nondeterministic uses of date
    and time functions when they run. In bytecode, the opcode of a deterministic function is ``PureFunc``.
    """
    name = _unstable_function(db, table)
    if name:
        raise UnsupportedError(
            f"a CHECK of table {table.name} calls {name}(), which does not depend on the row alone; compare columns "
            "and constants only, or test it where the row is made, in a BEFORE trigger with RAISE(ABORT, ...); a "
            "function of your own must be registered as deterministic",
            table=table.name,
            function=name,
        )


def _unstable_function(db: apsw.Connection, table: CapturedTable) -> str:
    """Return the name of a nondeterministic function in a table's CHECKs; empty without one."""
    columns = [table.columns[place] for place in table.writable]  # name all columns, so that no DEFAULT is evaluated
    marks = ", ".join("?" * len(columns))
    # ABORT prevails over NOT NULL ON CONFLICT REPLACE, which would evaluate a DEFAULT.
    sql = f"EXPLAIN INSERT OR ABORT INTO {quote(table.name)}({', '.join(map(quote, columns))}) VALUES ({marks})"
    cursor = db.cursor()
    # Triggers and foreign keys are off: functions in triggers and missing parents do not matter here.
    before = [(one, db.config(one, -1)) for one in _SWITCHES]
    try:
        for one, _ in before:
            db.config(one, 0)
        cursor.execute(sql, (None,) * len(columns), can_cache=False)
        found = (str(row[5]) for row in rows_of(cursor) if row is not None and row[1] == "Function")
        return next(found, "").rpartition("(")[0]
    except apsw.SQLError as error:
        raise UnsupportedError(
            f"table {table.name} cannot be written here: {error}; register the missing function in a plugin of every "
            "node, or remove it from the table's definition",
            table=table.name,
        ) from error
    finally:
        cursor.close(True)
        for one, was in before:
            db.config(one, int(was))


def _rows(db: apsw.Connection, sql: str, *params: str) -> list[Any]:
    return db.execute(sql, params).fetchall()


def _describe(db: apsw.Connection, name: str, *, without_rowid: bool) -> CapturedTable:
    """Return the layout of one table by its own definition; ``rowid`` is '' if columns hide every name of the rowid."""
    info = _rows(db, "SELECT name, type, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid", name)
    stored = [row for row in info if row[3] != 2]
    names = [row[0] for row in stored]
    key = tuple(place for _, place in sorted((row[2], place) for place, row in enumerate(stored) if row[2]))
    indexes = _rows(db, 'SELECT name, "unique", origin FROM pragma_index_list(?)', name)
    alias = rowid = None
    if not without_rowid:
        # A rowid table's primary key has an index of its own, unless it is the rowid itself.
        if len(key) == 1 and stored[key[0]][1].upper() == "INTEGER" and not any(row[2] == "pk" for row in indexes):
            alias = key[0]
        taken = {row[0].lower() for row in info}
        free = [known for known in ROWID_NAMES if known not in taken]
        rowid = quote(names[alias]) if alias is not None else quote(free[0]) if free else ""
    return CapturedTable(
        name=name,
        columns=tuple(names),
        writable=tuple(place for place, row in enumerate(stored) if row[3] != 3),
        rowid=rowid,
        alias=alias,
        key=key if without_rowid else (),
        virtual=len(stored) != len(info),
        unique=any(unique and not (without_rowid and origin == "pk") for _, unique, origin in indexes),
        reals=tuple(place for place, row in enumerate(stored) if declared_affinity(row[1]) == AFFINITY_REAL),
    )


def _of_module(rows: OwnRows) -> CapturedTable:
    """Return the layout of a virtual table that owns its rows."""
    return CapturedTable(
        name=rows.name,
        columns=rows.columns,
        writable=tuple(range(len(rows.columns))),
        rowid=rows.rowid,
        alias=rows.alias,
        key=(0,) if rows.rowid is None else (),
        virtual=True,
        is_module=True,
        own=rows,
    )


def _is_autoincrement(sql: str) -> bool:
    if "autoincrement" not in sql.lower():
        return False
    try:
        return any(token.is_word("AUTOINCREMENT") for token in tokens(sql))
    except NotTokensError:
        return False
