"""Search for broken deferred foreign keys in the tables, where SQLite's own count is not available."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import apsw

from bedrockish.access_sets.catalog import Schema
from bedrockish.engine.sqlite.errors import translate
from bedrockish_journal.model.changes import Change


def children(schema: Schema, changes: Iterable[Change]) -> list[str]:
    """Return the tables with foreign keys that changes can have broken."""
    changed = {change.table for change in changes}
    return [
        name
        for name, table in schema.tables.items()
        if any(name in changed or foreign.parent in changed for foreign in table.foreign_keys)
    ]


def violations(db: apsw.Connection, tables: Iterable[str]) -> "Counter[Any]":
    """Return the rows without a parent row in some tables, and how often each is found.

    Raises:
        SqlError: a table has a foreign key to columns that are not unique.
    """
    found: Counter[Any] = Counter()
    for table in tables:
        query = 'SELECT "table", rowid, parent, fkid FROM pragma_foreign_key_check(?)'
        try:
            found.update(db.execute(query, (table,)).fetchall())
        except apsw.SQLError as error:
            raise translate(error, "PRAGMA foreign_key_check") from error
    return found
