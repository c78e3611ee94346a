"""Refuses rows whose STORED generated columns the stored row does not repeat.

SQLite marks a value that a JSON function has made as a document, until the value is stored. ``json_array(a)`` of a
document made in the same statement is ``[[1]]``, and of the stored text ``["[1]"]``. An entry of the journal has the
row, and each node computes its generated columns again: it would compute another value than the leader, and meet other
UNIQUE keys.
"""

from collections.abc import Mapping

import apsw

from bedrockish.access_sets.definitions import folded
from bedrockish.access_sets.table_layout import Table, Tables, quote
from bedrockish.errors import UnsupportedError
from bedrockish_journal.model.changes import Row, Value, same_value
from bedrockish_journal.storage.schema_steps import enforce_checks


def derived_documents(tables: Tables, known: "Mapping[str, DerivedDocuments]") -> "dict[str, DerivedDocuments]":
    """Return a check for each table with STORED generated columns whose definition calls JSON functions.

    A check in ``known`` is taken over if the table's definition is the same.
    """
    found: dict[str, DerivedDocuments] = {}
    for name, table in tables.by_name.items():
        if len(table.writable) == len(table.columns) or table.is_module:
            continue
        sql = next((one.sql for one in tables.definitions.by_table.get(folded(name), ()) if one.kind == "table"), None)
        if sql is None or "json" not in sql.lower():
            continue
        before = known.get(name)
        found[name] = before if before is not None and before.sql == sql else DerivedDocuments(table, sql)
    return found


class DerivedDocuments:
    """The check for one table, by an empty copy of the table in memory."""

    def __init__(self, table: Table, sql: str) -> None:
        self._table, self.sql = table, sql
        self._derived = [place for place in range(len(table.columns)) if place not in table.writable]
        names = [quote(table.columns[place]) for place in table.writable]
        if table.rowid is not None and table.alias is None and table.rowid:
            names.append(table.rowid)
        self._insert = f"INSERT INTO {quote(table.name)}({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        derived = ", ".join(quote(table.columns[place]) for place in self._derived)
        self._select = f"SELECT {derived} FROM {quote(table.name)}"
        self._db: apsw.Connection | None = apsw.Connection(":memory:")
        try:
            self._db.execute(sql)
            enforce_checks(self._db, on=False)
        except apsw.Error:  # it needs a function or a collation that only the node's own connections have
            self._db = None

    def check(self, row: Row, rowid: int | None) -> UnsupportedError | None:
        """Return the error for a captured row whose generated columns the row does not repeat; None for any other."""
        db, table = self._db, self._table
        if db is None:
            return None
        values: list[Value] = [rowid if place == table.alias else row[place] for place in table.writable]
        if len(values) < self._insert.count("?"):
            values.append(rowid)
        try:
            db.execute("SAVEPOINT row")
            db.execute(self._insert, values)
            found = db.execute(self._select).fetchone()
        except (apsw.Error, UnicodeDecodeError):
            return None
        finally:
            db.execute("ROLLBACK TO row")
            db.execute("RELEASE row")
        assert found is not None
        for place, value in zip(self._derived, found, strict=True):
            if not same_value(row[place], value):
                name = table.columns[place]
                return UnsupportedError(
                    f"{table.name}.{name} is computed from a JSON document that this statement makes, and would be "
                    "another value when it is computed from the stored row; store the document as a text: write "
                    "json(...) || '' in place of json(...)",
                    table=table.name,
                    column=name,
                )
        return None
