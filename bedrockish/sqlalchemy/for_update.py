"""``SELECT … FOR UPDATE``, which SQLite does not have, as a read that conflicts.

A database with locks lets one transaction at a time hold a row. Here no row is locked: the rows that such a statement
selects are written, with their present values, just before they are read. So if two transactions select the same row
for update, the transaction that commits later loses and can run again, in snapshot isolation as well.
"""

from typing import Any

from sqlalchemy import Alias, Select, Subquery, Table, tuple_, update
from sqlalchemy.exc import CompileError

UNSUPPORTED = "FOR UPDATE: {}; select rows of one table with a primary key, or let both transactions write one row"


def claim_of(statement: Any, params: dict[str, Any]) -> Any:
    """Return the UPDATE that writes the rows which a SELECT … FOR UPDATE selects; None for any other statement.

    Args:
        statement: a statement of SQLAlchemy's core or ORM.

    Raises:
        CompileError: the table has no primary key by which its rows could be written, or the statement has no table.
    """
    wanted = getattr(statement, "_for_update_arg", None)
    if wanted is None or wanted.read or not isinstance(statement, Select) or not statement.get_final_froms():
        return None  # a statement without a table selects no row to write
    return _claim(statement, wanted.of, params)


def _claim(statement: Any, of: Any, params: dict[str, Any]) -> Any:
    source = _source(statement, of)
    if isinstance(source, Subquery):  # the ORM makes one of a query with LIMIT and joined eager loading
        return _claim(source.element, None, params)
    table: Any = source.element if isinstance(source, Alias) else source
    keys = list(source.primary_key)
    if not keys:
        raise CompileError(UNSUPPORTED.format(f"the table {table.name} has no primary key"))
    selected = _without_lock(statement).with_only_columns(*keys, maintain_column_froms=True).params(params)
    found = list(table.primary_key)
    key = found[0] if len(found) == 1 else tuple_(*found)
    # A column with ``onupdate`` is named, so that it keeps its value.
    kept = {column: column for column in table.columns if column is found[0] or column.onupdate is not None}
    return update(table).where(key.in_(selected)).values(kept).execution_options(synchronize_session=False)


def _without_lock(statement: Select[Any]) -> Select[Any]:
    plain = statement._generate()
    plain._for_update_arg = None
    return plain


def _source(statement: Select[Any], of: Any) -> Any:
    """Return the table, alias or subquery whose rows are selected: that of FOR UPDATE OF, else the first one."""
    named = [getattr(one, "table", one) for one in of or ()]
    for found in [*named, *statement.get_final_froms()]:
        while getattr(found, "left", None) is not None:
            found = found.left
        inner = found.element if isinstance(found, Alias | Subquery) else found
        if isinstance(inner, Select if isinstance(found, Subquery) else Table):
            return found
    raise CompileError(UNSUPPORTED.format("the statement selects from no table"))
