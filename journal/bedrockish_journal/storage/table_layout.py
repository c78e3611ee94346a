"""The layout of a user's tables for replays and comparisons: columns, keys, and access to a row by its key."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import apsw

from bedrockish_journal.model.changes import DELETE, INSERT, Change, Row, Value, same_value
from bedrockish_journal.model.plain_names import quote as quote
from bedrockish_journal.storage.vector_modules import VEC0
from bedrockish_journal.storage.virtual_tables import ROWID_NAMES as ROWID_NAMES
from bedrockish_journal.storage.virtual_tables import shadow_tables, virtual_tables
from bedrockish_journal.storage.wide_rows import RESULT_MAX, all_of

SKIP_LOCKED = "skip_locked"
CLOCK_FUNCTIONS = ("cluster_clock", "transaction_clock", "transaction_id", "safe_clock", "clock_time", "is_after")


class RowMismatchError(Exception):
    """Raised when a change does not find the row that it expects; a replay turns it into a ``ReplayMismatchError``."""


_KEY_COLLATIONS = """SELECT one.name, one.coll
  FROM pragma_index_list(?) AS listed, pragma_index_xinfo(listed.name) AS one
  WHERE listed.origin = 'pk' AND one.key ORDER BY one.seqno"""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The layout of a user's table."""

    name: str
    columns: tuple[str, ...]  # names of the columns of ``SELECT *``
    generated: frozenset[str]  # names of the generated columns among them
    primary: tuple[str, ...]  # names of the primary key's columns, in the key's order
    rowid: str | None  # a name of the rowid in SQL; None for a table WITHOUT ROWID
    alias: str | None  # the INTEGER PRIMARY KEY column, which is the rowid itself; None if the table has no such column
    # Column -> the SQL expression around the parameter for its value, such as ``vec_int8(?)``; only where needed.
    marks: Mapping[str, str] = field(default_factory=dict)
    # A column of the primary key -> its collation in the key, if that differs from the column's own: such a key may
    # distinguish values that the column takes for equal. Empty if the table has a name of a rowid.
    collations: Mapping[str, str] = field(default_factory=dict)

    @property
    def key_columns(self) -> list[str]:
        """The columns that identify a row, in SQL: the rowid, or those of the primary key with their collations."""
        if self.rowid is None:
            return [
                f"{quote(name)} COLLATE {quote(self.collations[name])}" if name in self.collations else quote(name)
                for name in self.primary
            ]
        return [self.rowid if self.rowid in ROWID_NAMES else quote(self.rowid)]


def value_as_sql(value: Value) -> str:
    """Return a value as an SQL literal that evaluates to exactly the same value, including the sign of a zero."""
    if isinstance(value, str) and "\0" in value:  # SQLite's parser ends at a NUL character
        return f"CAST(X'{value.encode().hex()}' AS TEXT)"
    return "-0.0" if value == 0 and str(value) == "-0.0" else str(apsw.format_sql_value(value))


def is_hidden(name: str) -> bool:
    """Return whether SQLite or bedrockish reserves the name of a table, an index or another object."""
    return name.lower().startswith(("bedrockish_", "sqlite_"))


def user_tables(db: apsw.Connection, only: str | None = None) -> Iterator[TableLayout]:
    """Yield the user's tables that own rows, ordered by name; with ``only``, just the table of that name.

    A virtual table is yielded if it owns its rows; its shadow tables are not.
    """
    source, asked = ("pragma_table_list", ()) if only is None else ("pragma_table_list(?)", (only,))
    listed: list[Any] = db.execute(
        f"SELECT name, type, wr FROM {source} WHERE schema = 'main' ORDER BY name", asked
    ).fetchall()
    virtual = {one.name: one for one in virtual_tables(db)}
    shadows = shadow_tables(db) if virtual else ()
    for name, kind, without_rowid in listed:
        if is_hidden(name) or name in shadows:
            continue
        if kind == "table" or (kind == "virtual" and name in virtual and virtual[name].owns_rows):
            yield describe(db, name, bool(without_rowid))


def find_table(db: apsw.Connection, name: str) -> TableLayout | None:
    """Return the layout of the table with a name, in upper or lower case; None if there is no such table."""
    query = "SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(?)"
    row = db.execute(query, (name,)).fetchone()
    return None if row is None or row[1] == "view" else describe(db, row[0], bool(row[2]))


def describe(db: apsw.Connection, name: str, without_rowid: bool) -> TableLayout:
    """Return the layout of a table, read from the schema."""
    query = "SELECT name, upper(type), pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid"
    info: list[Any] = db.execute(query, (name,)).fetchall()
    columns = tuple(column for column, _, _, hidden in info if hidden != 1)
    primary = tuple(column for column, _, place, _ in sorted(info, key=lambda row: row[2]) if place)
    types = {column: kind for column, kind, _, _ in info}
    alias = None
    if not without_rowid and len(primary) == 1 and types[primary[0]] == "INTEGER" and not _has_key_index(db, name):
        alias = primary[0]
    taken = {column.lower() for column in columns}
    free = [] if without_rowid else [word for word in ROWID_NAMES if word not in taken]
    rowid = None if without_rowid else (free[0] if free else alias)
    generated = frozenset(column for column, _, _, hidden in info if hidden in (2, 3))
    table = TableLayout(name, columns, generated, primary, rowid, alias)
    if rowid is None and primary:
        table = replace(table, collations=_other_collations(db, name))
    virtual = next((one for one in virtual_tables(db, name) if one.module == VEC0), None)
    if virtual is None:
        return table
    return replace(table, rowid=None if without_rowid else columns[0], alias=columns[0], marks=virtual.marks)


def _other_collations(db: apsw.Connection, name: str) -> dict[str, str]:
    """Return column -> its collation in the table's primary key, for columns with another collation of their own.

    SQLite uses the key for a comparison of several columns only if these stand without a collation.
    """
    found: dict[str, str] = {}
    for column, collation in db.execute(_KEY_COLLATIONS, (name,)).fetchall():
        if db.column_metadata("main", name, str(column))[1].lower() != str(collation).lower():
            found[str(column)] = str(collation)
    return found


def _has_key_index(db: apsw.Connection, name: str) -> bool:
    """Return whether the primary key has its own index: ``INTEGER PRIMARY KEY DESC`` is not an alias of the rowid."""
    return db.execute("SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk'", (name,)).fetchone() is not None


class Applier:
    """Applies row changes to a database, and checks that each changes exactly the row that it names."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._tables: dict[str, TableLayout] = {}

    def forget(self) -> None:
        """Drop the cached layouts of tables, because the schema has changed."""
        self._tables.clear()

    def apply(self, change: Change) -> None:
        """Apply one change.

        Raises:
            RowMismatchError: the row differs from ``change.before``, or SQLite refuses the new row.
        """
        table = self._tables.get(change.table)
        if table is None:
            table = find_table(self._db, change.table)
            if table is None:
                raise RowMismatchError("there is no such table")
            self._tables[change.table] = table
        try:
            if change.op != INSERT:
                self._expect(table, change)
            self._write(table, change)
        except (apsw.ConstraintError, apsw.SQLError, apsw.MismatchError) as error:
            raise RowMismatchError(f"SQLite refuses the change: {error}") from error

    def _expect(self, table: TableLayout, change: Change) -> None:
        where, key = _where(table, change.columns, change.rowid, change.before)
        # Without the table's name, SQLite would take the quoted name of a missing column for a string.
        columns = ", ".join(f"{quote(table.name)}.{quote(column)}" for column in change.columns)
        found = self._db.execute(f"SELECT {columns} FROM {quote(table.name)} WHERE {where}", key).fetchone()
        if found is None:
            raise RowMismatchError("there is no such row")
        for column, expected, value in zip(change.columns, change.before or (), found, strict=True):
            if not same(expected, value):
                raise RowMismatchError(f"column {column} should be {expected!r} and is {value!r}")

    def _write(self, table: TableLayout, change: Change) -> None:
        name = quote(table.name)
        if change.op == DELETE:
            where, key = _where(table, change.columns, change.rowid, change.before)
            self._db.execute(f"DELETE FROM {name} WHERE {where}", key)
        else:
            assert change.after is not None, "an insert or update has a new row"
            before = change.before or (None,) * len(change.after)
            named = zip(change.columns, before, change.after, strict=True)
            row = {
                quote(column): new
                for column, old, new in named
                if column not in table.generated and (change.op == INSERT or not same_value(old, new))
            }
            if table.rowid is not None:
                if table.alias is not None:  # a column may have an empty name
                    row.pop(quote(table.alias), None)
                # SET takes 2,000 columns, so an UPDATE that changes columns names the rowid only if the rowid changes.
                if change.op == INSERT or change.rowid_after != change.rowid or not row:
                    row[table.key_columns[0]] = change.rowid_after
            elif not row:  # no column changed; an UPDATE still checks that the row exists
                row[quote(table.primary[0])] = dict(zip(change.columns, change.after, strict=True))[table.primary[0]]
            if change.op == INSERT:
                marks = ", ".join(table.marks.get(unquoted, "?") for unquoted in (one.strip('"') for one in row))
                self._db.execute(f"INSERT OR ABORT INTO {name}({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
            else:
                where, key = _where(table, change.columns, change.rowid, change.before)
                pairs = list(row.items())  # the rowid is the last of them
                for some in (pairs[:RESULT_MAX], pairs[RESULT_MAX:]):
                    if some:
                        sets, values = ", ".join(f"{column} = ?" for column, _ in some), [value for _, value in some]
                        self._db.execute(f"UPDATE OR ABORT {name} SET {sets} WHERE {where}", (*values, *key))
        if self._db.changes() != 1:
            raise RowMismatchError(f"the change affected {self._db.changes()} rows instead of one")
        if change.after is not None:
            self._read_back(table, change)

    def _read_back(self, table: TableLayout, change: Change) -> None:
        """Check that SQLite stores a new row as the change has it; an INTEGER column would store 95.0 as 95."""
        where, key = _where(table, change.columns, change.rowid_after, change.after)
        columns = ", ".join(f"{quote(table.name)}.{quote(column)}" for column in change.columns)
        found = self._db.execute(f"SELECT {columns} FROM {quote(table.name)} WHERE {where}", key).fetchone()
        for column, expected, value in zip(change.columns, change.after or (), found or (), strict=True):
            if not same(expected, value):
                raise RowMismatchError(f"column {column} should be {expected!r}, and SQLite stores {value!r}")


def _where(
    table: TableLayout, columns: tuple[str, ...], rowid: int | None, row: Row | None
) -> tuple[str, tuple[Value, ...]]:
    """Return the condition that finds a row by its key, and the parameters of the condition."""
    where = all_of([f"{column} = ?" for column in table.key_columns])
    if table.rowid is not None:
        return where, (rowid,)
    assert row is not None, "a row without a rowid is found by its values"
    values = dict(zip(columns, row, strict=True))
    return where, tuple(values[column] for column in table.primary)


def same(expected: Value, found: Value) -> bool:
    """Return whether a found value equals the expected one, in its type, too.

    An expected integer also equals a found real: SQLite stores a whole number of a REAL column as an integer, and may
    have reported the integer. An expected 1.0 and a found 1 differ.
    """
    return expected == found and (type(expected) is type(found) or (type(expected) is int and type(found) is float))


def print_key(change: Change, primary: tuple[str, ...] = ()) -> str:
    """Return the key of a changed row as text: ``7`` for a rowid, ``('p', 3)`` for a primary key."""
    if change.rowid is not None:
        return str(change.rowid)
    row: Row = change.before or change.after or ()
    values = dict(zip(change.columns, row, strict=False))
    return repr(tuple(values[column] for column in primary or change.columns if column in values))
