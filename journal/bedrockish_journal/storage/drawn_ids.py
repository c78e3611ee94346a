"""Detects rowids that SQLite may have drawn at random: it draws one if a row of the table has the highest rowid.

A statement that every node executes by itself must not cause SQLite to draw a rowid, because each node would draw
another one. The row does not show whether its rowid was drawn. So each insert into a table with such a row
is reported, even an insert that gives the rowid.
"""

import apsw

from bedrockish_journal.storage.table_layout import quote, user_tables

HIGHEST = 2**63 - 1
WHY = (
    "inserts into the table {}, which holds the highest id there is: SQLite may draw ids at random there, and each "
    "node would draw others"
)


class DrawnIds:
    """A context manager that detects inserts with drawn rowids on a connection."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.full: set[str] = set()  # the tables in which a row has the highest rowid
        self._met = False  # whether a table has had a row with the highest rowid since this object was made
        # A table into which a row with a drawn rowid may have been inserted; empty if there was no such insert.
        self.table = ""
        self._read_tables()

    def schema_changed(self) -> None:
        """Read the tables again, because a statement for the schema or a savepoint changed their names or content."""
        if self._met:
            self._read_tables()

    def _read_tables(self) -> None:
        self.full.clear()
        for table in user_tables(self._db):
            if table.rowid is not None:
                query = f"SELECT 1 FROM {quote(table.name)} WHERE {table.key_columns[0]} = {HIGHEST}"
                if self._db.execute(query, can_cache=False).fetchone() is not None:
                    self.full.add(table.name)
        self._met = self._met or bool(self.full)

    def _changed(self, kind: int, _database: str, table: str, rowid: int) -> None:
        if rowid == HIGHEST:
            self.full.add(table)
            self._met = True
        elif table in self.full and kind == apsw.SQLITE_INSERT:
            self.table = table

    def __enter__(self) -> None:
        self.table = ""
        self._db.set_update_hook(self._changed)

    def __exit__(self, *_: object) -> None:
        self._db.set_update_hook(None)
        if self.table and self._is_autoincrement(self.table):
            self.table = ""  # with AUTOINCREMENT, SQLite raises an error instead of drawing a rowid

    def _is_autoincrement(self, table: str) -> bool:
        known = "SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'"
        if self._db.execute(known).fetchone() is None:
            return False
        found = "SELECT 1 FROM main.sqlite_sequence WHERE name = ?"
        return self._db.execute(found, (table,)).fetchone() is not None
