"""The schema for the analysis: tables, indexes and foreign keys, read once for each schema version of a database.

The owner of a ``Schema`` builds a new one when the schema's version changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import apsw

from bedrockish.access_sets.definitions import CATALOGUE, Definition, Definitions, folded, listed
from bedrockish.access_sets.key_encoding import AFFINITY_BLOB, KNOWN_COLLATIONS, Spec, declared_affinity
from bedrockish.access_sets.virtual_layout import VirtualLayout, as_shadows
from bedrockish_journal.storage.table_layout import quote

Prepare = Callable[[apsw.Connection], None]
"""Registers on a connection the functions and collations that SQLite itself does not have."""

ROWID = -1
"""Stands for the rowid where a column's number is expected, as in SQLite's own pragmas."""

_EXPRESSION = -2
_HIDDEN, _VIRTUAL, _STORED = 1, 2, 3  # values of ``hidden`` in PRAGMA table_xinfo; the last two: generated columns


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its affinity, and its position in captured rows."""

    name: str
    affinity: str
    generated: bool
    place: int | None  # position of the value in a captured row; None for a generated column that is not stored


@dataclass(frozen=True, slots=True)
class Index:
    """One index, or the primary key of a WITHOUT ROWID table."""

    name: str
    table: str
    unique: bool
    partial: bool
    primary: bool
    # Numbers of the indexed columns (``ROWID`` for the rowid), and then of the key columns that SQLite appends to make
    # each entry unique.
    columns: tuple[int, ...]
    specs: tuple[Spec, ...]  # for each of ``columns``, how its values are compared
    declared: int  # how many of ``columns`` the user named; SQLite appended the others
    # Whether an entry cannot be computed from the stored values of its row alone: because of an expression, a VIRTUAL
    # column, or a collation that is not SQLite's own.
    opaque: bool
    object: str  # name of the index's key space
    sql: str = ""  # the statement that creates the index; empty for the index of a constraint
    # Numbers of all columns of an entry, in order; for a WITHOUT ROWID table, of the whole row.
    stored: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key of a child table."""

    child: str
    parent: str | None  # the parent's name as the schema spells it, or None when there is no such table
    columns: tuple[int, ...]  # numbers of the child's columns
    # Numbers of the parent's columns, in the same order; empty when they cannot be resolved.
    parent_columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its columns, indexes and foreign keys."""

    name: str
    columns: tuple[Column, ...]  # all columns, in order of their numbers
    rowid_column: int | None  # number of the INTEGER PRIMARY KEY column, or None
    key: Index | None  # the primary key of a WITHOUT ROWID table, or None for a rowid table
    indexes: tuple[Index, ...] = ()  # all indexes but ``key``
    foreign_keys: tuple[ForeignKey, ...] = ()
    sql: str = ""  # the statement that creates the table

    @property
    def object(self) -> str:
        """Name of the table's key space."""
        return "t:" + self.name

    @property
    def columns_object(self) -> str:
        """Name of the key space of the columns of its rows."""
        return columns_object(self.object)

    @property
    def has_column_keys(self) -> bool:
        """Whether changes of its rows have column keys: the table has rowids, and all its columns are captured."""
        return self.key is None and all(column.place is not None for column in self.columns)

    @property
    def stored_affinities(self) -> str:
        """Affinity letters of the columns of a captured row."""
        return "".join(column.affinity for column in self.columns if column.place is not None)


@dataclass
class Schema:
    """The tables, indexes and foreign keys of a database, as ``read_schema`` found them."""

    version: int
    encoding: str = "UTF-8"  # the encoding of texts in the file
    tables: dict[str, Table] = field(default_factory=dict)
    # Root page -> its rowid table or index; for a WITHOUT ROWID table, the primary key.
    roots: dict[int, Table | Index] = field(default_factory=dict)
    # The virtual tables; those that own their rows are also in ``tables``.
    virtual: VirtualLayout = field(default_factory=VirtualLayout)
    # Table -> folded names of the tables to which its foreign keys point, including missing tables.
    parents: dict[str, frozenset[str]] = field(default_factory=dict)
    # The definitions from which the schema was read.
    definitions: Definitions | None = field(default=None, compare=False, repr=False)

    def find(self, name: str) -> Table | None:
        """Return the table with this name in any spelling of upper and lower case; None if none exists."""
        rows = self.definitions.by_table.get(folded(name), ()) if self.definitions is not None else ()
        return next((self.tables[row.name] for row in rows if row.kind == "table" and row.name in self.tables), None)

    @cached_property
    def children(self) -> dict[str, tuple[ForeignKey, ...]]:
        """Parent -> the foreign keys that point to it."""
        found: dict[str, list[ForeignKey]] = {}
        for table in self.tables.values():
            for foreign in table.foreign_keys:
                if foreign.parent is not None:
                    found.setdefault(foreign.parent, []).append(foreign)
        return {name: tuple(foreign) for name, foreign in found.items()}


def columns_object(table: str) -> str:
    """Return the name of the key space of the columns of a table's rows: ``u:NAME`` for ``t:NAME``."""
    return "u" + table[1:]


def stored_column(on: Table | Index, place: int) -> int | None:
    """Return the number, in its table, of the column at a position of an index entry; None if it is an expression."""
    if place == ROWID:
        return ROWID
    if isinstance(on, Index):
        found = on.stored[place] if place < len(on.stored) else _EXPRESSION
        return None if found == _EXPRESSION else found
    return next((number for number, one in enumerate(on.columns) if one.place == place), None)


def schema_version(db: apsw.Connection) -> int:
    """Return SQLite's counter of schema changes."""
    version: int = _rows(db, "PRAGMA main.schema_version")[0][0]
    return version


def read_schema(db: apsw.Connection, known: Schema | None = None, definitions: Definitions | None = None) -> Schema:
    """Read the schema that a connection sees now.

    Args:
        known: the previous schema, or another connection's schema; a table is described again only if its definition,
            or that of a parent, has changed since.
    """
    before = known.definitions if known is not None else None
    definitions = definitions or Definitions(db, before)
    changed = definitions.changed_since(before)
    schema = Schema(schema_version(db), _rows(db, "PRAGMA main.encoding")[0][0], definitions=definitions)
    if known is not None and before is not None:
        _copy(schema, known, [row for name in changed for row in before.by_table.get(name, ())])
    fresh: list[str] = []
    wanted = changed if known is not None else changed | {CATALOGUE}
    found = as_shadows(listed(db, definitions.listed_with(wanted)), definitions)
    if definitions.virtual:
        schema.virtual = VirtualLayout.read(db, definitions, [(name, kind) for name, kind, *_ in found])
    for owner in schema.virtual.owners:
        schema.tables[owner.name] = table = _read_table(db, owner.name, False, False, {})
        if owner.rowid is None:
            schema.tables[owner.name] = replace(table, rowid_column=None, key=_text_key(table))
    for name, kind, without_rowid, strict in (one for one in found if folded(one[0]) in wanted):
        rows = [row for row in definitions.by_table.get(folded(name), ()) if row.kind in ("table", "index")]
        pages = {row.name: row.page for row in rows if row.page}
        if kind in ("table", "shadow") and (name in pages or name == CATALOGUE):
            table = _read_table(db, name, without_rowid, strict, {row.name: row.sql or "" for row in rows})
            schema.tables[name] = table
            schema.roots[pages.get(name, 1)] = table.key or table
            for index in table.indexes:
                schema.roots[pages[index.name]] = index
            fresh.append(name)
    for name in fresh:
        _read_foreign_keys(db, schema, name)
    for name in [name for name, parents in schema.parents.items() if parents & changed]:
        _read_foreign_keys(db, schema, name)
    return schema


def _copy(schema: Schema, known: Schema, gone: Iterable[Definition]) -> None:
    """Copy the known schema, without the tables and indexes of the definitions in ``gone``."""
    schema.tables, schema.roots, schema.parents = dict(known.tables), dict(known.roots), dict(known.parents)
    for row in gone:
        if row.kind == "table":
            schema.tables.pop(row.name, None)
            schema.parents.pop(row.name, None)
        schema.roots.pop(row.page or 0, None)


def _rows(db: apsw.Connection, sql: str) -> list[tuple[Any, ...]]:
    cursor = db.cursor()
    cursor.row_trace = None
    cursor.exec_trace = None
    return list(cursor.execute(sql))


def _read_table(db: apsw.Connection, name: str, without_rowid: bool, strict: bool, texts: dict[str, str]) -> Table:
    columns: list[Column] = []
    keys: list[tuple[int, str]] = []
    place = 0
    for number, column, declared, _, _, primary, hidden in _rows(db, f"PRAGMA main.table_xinfo({quote(name)})"):
        stored = hidden not in (_HIDDEN, _VIRTUAL)
        untyped = strict and (declared or "").upper() == "ANY"
        affinity = AFFINITY_BLOB if untyped else declared_affinity(declared or "")
        columns.append(Column(column, affinity, hidden in (_VIRTUAL, _STORED), place if stored else None))
        place += stored
        if primary:
            keys.append((number, declared or ""))
    entries = _rows(db, f"PRAGMA main.index_list({quote(name)})")
    indexes = [_read_index(db, name, columns, entry, without_rowid, texts) for entry in entries]
    key = next((index for index in indexes if index.primary), None) if without_rowid else None
    rowid_column = None
    # INTEGER PRIMARY KEY DESC is the only spelling that creates an index instead of an alias of the rowid.
    if not without_rowid and len(keys) == 1 and not any(index.primary for index in indexes):
        rowid_column = keys[0][0]
    rest = tuple(index for index in indexes if index is not key)
    return Table(name, tuple(columns), rowid_column, key, rest, sql=texts.get(name, ""))


def _read_index(
    db: apsw.Connection,
    table: str,
    columns: list[Column],
    listed: tuple[Any, ...],
    without_rowid: bool,
    texts: dict[str, str],
) -> Index:
    _, name, unique, origin, partial = listed
    primary = origin == "pk"
    is_table = primary and without_rowid  # the index is the table itself
    numbers: list[int] = []
    stored: list[int] = []
    specs: list[Spec] = []
    declared = 0
    opaque = False
    for _, number, _, descending, collation, key in _rows(db, f"PRAGMA main.index_xinfo({quote(name)})"):
        stored.append(number)
        if is_table and not key:
            continue  # a column outside of the primary key
        spec = Spec((collation or "BINARY").upper(), bool(descending))
        numbers.append(number)
        specs.append(spec)
        declared += bool(key)
        opaque = opaque or number == _EXPRESSION or (number >= 0 and columns[number].place is None)
        opaque = opaque or spec.collation not in KNOWN_COLLATIONS
    return Index(
        name, table, bool(unique), bool(partial), primary, tuple(numbers), tuple(specs), declared, opaque,
        "t:" + table if is_table else "i:" + name, texts.get(name, ""), tuple(stored),
    )  # fmt: skip


def _text_key(table: Table) -> Index:
    """Return the key of a virtual table whose module finds rows by the text in its first column."""
    stored = tuple(range(len(table.columns)))
    plain = (Spec("BINARY", False),)
    return Index("", table.name, True, False, True, (0,), plain, 1, False, "t:" + table.name, "", stored)


def _read_foreign_keys(db: apsw.Connection, schema: Schema, name: str) -> None:
    """Add a table's foreign keys to it; all parent tables must have been described before."""
    table = schema.tables[name]
    grouped: dict[int, list[tuple[Any, ...]]] = {}
    for row in _rows(db, f"PRAGMA main.foreign_key_list({quote(name)})"):
        grouped.setdefault(row[0], []).append(row)
    if not grouped:
        return
    foreign_keys = []
    for rows in grouped.values():
        rows.sort(key=lambda row: int(row[1]))
        parent = schema.find(rows[0][2])
        columns = _numbers(table, [row[3] for row in rows])
        named = [row[4] for row in rows]
        if parent is None:
            parent_columns: tuple[int, ...] = ()
        elif named[0] is None:
            parent_columns = _primary_key(db, parent)
        else:
            parent_columns = _numbers(parent, named)
        if len(parent_columns) != len(columns):
            parent_columns = ()
        spelled = parent.name if parent else None
        foreign_keys.append(ForeignKey(name, spelled, columns, parent_columns))
    schema.parents[name] = frozenset(folded(rows[0][2]) for rows in grouped.values())
    schema.tables[name] = replace(table, foreign_keys=tuple(foreign_keys))


def _numbers(table: Table, names: list[str]) -> tuple[int, ...]:
    folded = {column.name.lower(): number for number, column in enumerate(table.columns)}
    found = [folded.get(name.lower()) for name in names]
    return tuple(number for number in found if number is not None)


def _primary_key(db: apsw.Connection, table: Table) -> tuple[int, ...]:
    rows = _rows(db, f"PRAGMA main.table_xinfo({quote(table.name)})")
    return tuple(row[0] for row in sorted(rows, key=lambda row: int(row[5])) if row[5])
