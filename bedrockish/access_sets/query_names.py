"""The names of columns, keys and conditions of tables and indexes in auxiliary queries, and how such queries run."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apsw

from bedrockish.access_sets.catalog import ROWID, Index, Table
from bedrockish.access_sets.computed_columns import comparable_columns, sources
from bedrockish.access_sets.key_values import Params
from bedrockish.sqltext.tokenizer import NotTokensError, tokens
from bedrockish_journal.storage.table_layout import ROWID_NAMES, quote

Query = Callable[[str, Sequence[Params]], Iterable[tuple[Any, ...]]]
"""A function that runs a query once for each tuple of parameters, on the statement's snapshot, and yields all rows."""


def connection_query(db: apsw.Connection) -> Query:
    """Return a ``Query`` that runs on a connection."""

    def query(sql: str, many: Sequence[Params]) -> Iterable[tuple[Any, ...]]:
        if len(many) == 1:
            return db.execute(sql, many[0], can_cache=not sql.startswith("EXPLAIN"))
        return db.cursor().executemany(sql, many)

    return query


def rowid_name(table: Table) -> str | None:
    """Return a name for the rowid of a table; None if the table has none, or columns hide all its names."""
    if table.key is not None:
        return None
    if table.rowid_column is not None:
        return quote(table.columns[table.rowid_column].name)
    names = {column.name.lower() for column in table.columns}
    return next((name for name in ROWID_NAMES if name not in names), None)


def condition_of(sql: str) -> str | None:
    """Return the condition in the WHERE of a CREATE INDEX; None if none is found."""
    try:
        found = tokens(sql)
    except NotTokensError:
        return None
    depth = 0
    for token in found:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.is_word("WHERE"):
            return sql[token.end : found[-1].end].strip() or None
    return None


def column_name(table: Table, number: int) -> str:
    """Return the name of a table's column, or of its rowid, for a query."""
    if number == ROWID:
        name = rowid_name(table)
        assert name is not None
        return name
    return quote(table.columns[number].name)


def key_names(table: Table, index: Index) -> list[str]:
    """Return expressions for the leading columns of an index, as far as these columns have comparable key bytes."""
    computed = (sources(index, table) if index.opaque else None) or {}
    told = enumerate(index.columns[: comparable_columns(index, table)])
    return [f"({computed[place]})" if place in computed else column_name(table, column) for place, column in told]
