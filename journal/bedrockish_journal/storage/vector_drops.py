"""Drops and renames of vec1 tables in the transaction that made them.

As long as no vector has set the table's dimension, vec1 reads its configuration at each savepoint. A DROP TABLE drops
the configuration first, so the next savepoint fails, and SQLite rolls back the whole transaction, which may have the
entries of many commits. A row that is inserted before the DROP sets the dimension, and is dropped with the table.
Before a rename no row can be inserted, because the dimension would remain, and only on the nodes that ran the rename.
"""

from collections.abc import Collection
from typing import Any

import apsw

from bedrockish_journal.model.plain_names import folded, quote
from bedrockish_journal.storage.vector_modules import VEC1
from bedrockish_journal.storage.virtual_tables import parse_virtual

_MADE = "SELECT name, sql FROM main.sqlite_schema WHERE type = 'table' AND rootpage = 0 AND sql LIKE '%vec1%'"
_COLUMN = "SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0 ORDER BY cid LIMIT 1"
_DIMENSION = 2  # the row of the configuration with the number of dimensions
_OPCODE, _P4 = 1, 5  # columns of EXPLAIN


def prepare_drop(db: apsw.Connection, sql: str) -> None:
    """Insert a row into a vec1 table without a dimension that a statement will drop, so that SQLite can drop the table.

    Raises:
        apsw.Error: SQLite refuses the statement.
    """
    if "drop" not in sql.lower():
        return
    for name in _without_dimension(db):
        if any(step[_OPCODE] == "VDestroy" and step[_P4] == name for step in _steps(db, sql)):
            column = str(db.execute(_COLUMN, (name,)).get)
            db.execute(f"INSERT INTO main.{quote(name)} (rowid, {quote(column)}) VALUES (1, zeroblob(8))")


def renamed_too_early(db: apsw.Connection, sql: str, tables: Collection[str]) -> str:
    """Return the vec1 table without a dimension that a statement renames; an empty text if it renames no such table.

    Args:
        tables: the names of the tables of the statement.

    Raises:
        apsw.Error: SQLite refuses the statement.
    """
    if "rename" not in sql.lower():
        return ""
    named = set(map(folded, tables))
    found = next((name for name in _without_dimension(db) if folded(name) in named), "")
    return found if found and any(step[_OPCODE] == "VRename" for step in _steps(db, sql)) else ""


def _without_dimension(db: apsw.Connection) -> list[str]:
    """Return the names of the vec1 tables that never had a vector."""
    rows: list[Any] = db.execute(_MADE).fetchall()
    made = [str(name) for name, sql in rows if parse_virtual(name, sql).module == VEC1]
    config = f"SELECT 1 FROM main.{{}} WHERE id = {_DIMENSION}"
    return [name for name in made if not db.execute(config.format(quote(f"{name}_config"))).fetchall()]


def _steps(db: apsw.Connection, sql: str) -> list[tuple[object, ...]]:
    return list(db.execute(f"EXPLAIN {sql}", can_cache=False).fetchall())
