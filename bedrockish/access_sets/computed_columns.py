"""Computes the values of an index that are not stored columns: expressions and VIRTUAL generated columns.

Only SQLite can evaluate them. So the row is inserted into an empty copy of its table in a private in-memory database,
and the expressions are selected from that copy. The result is right because SQLite allows in an index only expressions
that depend on the row alone.
"""

from collections.abc import Sequence

import apsw

from bedrockish.access_sets.catalog import ROWID, Index, Prepare, Table
from bedrockish.access_sets.key_encoding import KNOWN_COLLATIONS
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, tokens
from bedrockish_journal.model.changes import Row, Value
from bedrockish_journal.storage.schema_steps import enforce_checks
from bedrockish_journal.storage.table_layout import ROWID_NAMES, quote
from bedrockish_journal.storage.vector_modules import ModuleConnection


class Scratch:
    """A private in-memory database with empty copies of tables, created at the first use."""

    def __init__(self, encoding: str, prepare: Prepare) -> None:
        self._encoding, self._prepare = encoding, prepare
        self._db: apsw.Connection | None = None

    def columns(self, table: Table, sources: Sequence[str]) -> "ComputedColumns | None":
        """Return the evaluator of these expressions for a table's rows; None if SQLite cannot evaluate them here."""
        try:
            if self._db is None:
                self._db = ModuleConnection(":memory:")
                self._db.execute(f"PRAGMA encoding = '{self._encoding}'")  # CAST(text AS BLOB) depends on the encoding
                self._prepare(self._db)
                enforce_checks(self._db, on=False)
                self._db.execute("BEGIN")
            return ComputedColumns(self._db, table, sources)
        except apsw.Error:
            return None


class ComputedColumns:
    """Evaluates expressions for rows of one table."""

    def __init__(self, db: apsw.Connection, table: Table, sources: Sequence[str]) -> None:
        self._db = db
        name = quote(table.name)
        db.execute(table.sql)
        others = (column for number, column in enumerate(table.columns) if number != table.rowid_column)
        stored = [column for column in others if column.place is not None and not column.generated]
        self._places, names = [column.place for column in stored], [quote(column.name) for column in stored]
        self._has_rowid = table.key is None
        if self._has_rowid:
            taken = {column.name.lower() for column in table.columns}
            free = [word for word in ROWID_NAMES if word not in taken]
            names.append(free[0] if free else quote(table.columns[table.rowid_column or 0].name))
        self._insert = f"INSERT OR ABORT INTO {name}({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        self._select = f"SELECT {', '.join(f'({source})' for source in sources)} FROM {name}"
        self._delete = f"DELETE FROM {name}"
        db.execute(self._select)  # raises an error if a function is missing

    def values(self, row: Row, rowid: int | None) -> Row | None:
        """Return the values of the expressions for a captured row; None if SQLite fails to compute one.

        SQLite may fail for a row that a partial index does not contain.
        """
        values: list[Value] = [row[place] for place in self._places if place is not None]
        if self._has_rowid:
            values.append(rowid)
        try:
            self._db.execute(self._insert, values)
            found: Row | None = self._db.execute(self._select).fetchone()
        except (apsw.Error, UnicodeDecodeError):
            return None
        finally:
            self._db.execute(self._delete)
        assert found is not None
        return found


def sources(index: Index, table: Table) -> dict[int, str] | None:
    """Return the SQL of each computed column of an index, by position; None if its CREATE INDEX cannot be parsed."""
    found: dict[int, str] = {}
    pieces: list[str] | None = None
    for place, number in enumerate(index.columns):
        if number == ROWID:
            continue
        if number >= 0:
            if table.columns[number].place is None:
                found[place] = quote(table.columns[number].name)
            continue
        pieces = pieces or indexed_expressions(index.sql)
        if pieces is None or len(pieces) != index.declared:
            return None
        found[place] = pieces[place]
    return found


def comparable_columns(index: Index, table: Table) -> int:
    """Return the number of leading columns of an index whose values have comparable key bytes.

    They end before the first column with an application's collation or with an expression that cannot be parsed.
    """
    if not index.opaque:
        return len(index.columns)
    texts = sources(index, table) or {}
    for place, (number, spec) in enumerate(zip(index.columns, index.specs, strict=True)):
        is_stored = number == ROWID or (number >= 0 and table.columns[number].place is not None)
        if spec.collation not in KNOWN_COLLATIONS or not (is_stored or place in texts):
            return place
    return len(index.columns)


def indexed_expressions(sql: str) -> list[str] | None:
    """Return the terms of a CREATE INDEX, without ASC and DESC; None if the text cannot be parsed."""
    try:
        found = tokens(sql)
    except NotTokensError:
        return None
    pieces: list[list[SqlToken]] = [[]]
    depth = 0
    for token in found:
        if token.text == ")":
            depth -= 1
            if depth == 0:
                break
        if depth == 1 and token.text == ",":
            pieces.append([])
        elif depth:
            pieces[-1].append(token)
        if token.text == "(":
            depth += 1
    texts = []
    for piece in pieces:
        while piece and piece[-1].is_word("ASC", "DESC"):
            piece.pop()
        if not piece:
            return None
        texts.append(sql[piece[0].start : piece[-1].end])
    return texts
