"""Runs definitions again to learn the columns of tables, including virtual tables of every replicated module.

Python's ``sqlite3`` reads a journal's file, and cannot tell the columns of a virtual table whose module it lacks: vec0,
vec1, often geopoly. Such a definition is run in a private in-memory database of apsw, which has the modules. A second
library must not open the file itself, because its close would release the file locks of the first.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Any

import apsw

from bedrockish_journal.storage.vector_modules import VECTORS, ModuleConnection, SqliteError
from bedrockish_journal.storage.virtual_tables import REPLICATED, parse_virtual

STEPS_MOST = 1_000_000  # most steps of SQLite's virtual machine for one statement
PAGES_MOST = 10_000
LENGTH_MOST = 1_000_000
NO_MODULE = "no such module"
_DEFINITION = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND rootpage = 0 AND lower(name) = lower(?)"


class DefinitionRunner(ModuleConnection):
    """A database in memory that runs definitions under limits, because an altered file may have any statements."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.pragma("max_page_count", PAGES_MOST)
        self.limit(apsw.SQLITE_LIMIT_LENGTH, LENGTH_MOST)
        self.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        self.set_progress_handler(lambda: True, STEPS_MOST)

    def run(self, statement: str) -> None:
        """Run the first statement of a text, and ignore the others.

        Raises:
            SqliteError: SQLite refuses the statement.
        """
        cursor, begun = self.cursor(), list[str]()

        def is_first(_: Any, text: str, __: Any) -> bool:
            begun.append(text)
            return len(begun) == 1

        cursor.exec_trace = is_first
        with suppress(apsw.ExecTraceAbort):
            cursor.execute(statement)


def columns_asked(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> Iterable[Any]:
    """Return the rows of a query for a table's columns, even if only apsw has the table's module.

    Raises:
        sqlite3.OperationalError: the module of the table is not installed here; the text has the remedy.
    """
    try:
        return db.execute(query, values)
    except sqlite3.OperationalError as error:
        if not str(error).startswith(NO_MODULE):
            raise
        missing = error
    for name, sql in db.execute(_DEFINITION, tuple(values[:1])).fetchall():
        module = parse_virtual(name, sql).module
        if module in REPLICATED:
            try:
                with closing(DefinitionRunner()) as definitions:
                    definitions.run(sql)
                    return definitions.execute(query, tuple(values)).fetchall()
            except SqliteError as error:
                package = "install it with pip install sqlite-vec" if module in VECTORS else "install an apsw with it"
                raise sqlite3.OperationalError(f"table {name}: {error}; {package}") from error
    raise missing
