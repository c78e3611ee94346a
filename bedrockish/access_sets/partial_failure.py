"""Detects whether SQLite has kept the changes that a statement made before it failed, as it does with OR FAIL.

Only the content of the tables shows it: SQLite's count of changed rows leaves out changes by triggers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from bedrockish.access_sets.table_layout import CapturedTable
from bedrockish_journal.model.changes import Change, Row, same_row
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.wide_rows import all_of

_Key = tuple[str, tuple[Any, ...]]


def were_kept(db: apsw.Connection, tables: Mapping[str, CapturedTable], changes: Sequence[Change]) -> bool | None:
    """Return whether the changes of a failed statement are in the tables now; None if their net effect is nothing."""
    first: dict[_Key, Row | None] = {}
    last: dict[_Key, Row | None] = {}
    for change in changes:
        table = tables[change.table]
        for row, address, rows in (
            (change.before, change.rowid, (change.before, None)),
            (change.after, change.rowid_after, (None, change.after)),
        ):
            if row is not None:
                key = (change.table, (address,) if table.rowid else tuple(row[place] for place in table.key))
                first.setdefault(key, rows[0])
                last[key] = rows[1]
    for key, after in last.items():
        before = first[key]
        if _alike(before, after):
            continue
        now = _read(db, tables[key[0]], key[1])
        # The row found may be another row whose key is equal under a collation; then this key decides nothing.
        if _alike(now, after):
            return True
        if _alike(now, before):
            return False
    return None


def _read(db: apsw.Connection, table: CapturedTable, address: tuple[Any, ...]) -> Row | None:
    columns = ", ".join(map(quote, table.columns))
    names = [table.rowid] if table.rowid else [quote(table.columns[place]) for place in table.key]
    where = all_of([f"{name} = ?" for name in names])
    found: Row | None = db.execute(f"SELECT {columns} FROM {quote(table.name)} WHERE {where}", address).fetchone()
    return found


def _alike(left: Row | None, right: Row | None) -> bool:
    if left is None or right is None:
        return left is right
    return same_row(left, right)
