"""Checks that each row that a transaction changed is in its write set.

Voters certify keys, not rows. So no voter has approved a change outside the write set, even if a quorum approved the
transaction.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import Change, Row, decode_changes
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.key_text import read_columns, rowid_bytes
from bedrockish_journal.model.transaction import ROWS, Transaction


def changed_unwritten(transaction: Transaction) -> str | None:
    """Return the fault of a transaction's changes: a row outside its write set, or malformed bytes; else None."""
    if transaction.kind != ROWS:
        return None
    try:
        changes = decode_changes(transaction.changes)
    except (EntryMalformedError, RecursionError, TypeError) as error:
        return f"has changes that cannot be read: {error}"
    return next(_unwritten(transaction.access_set, changes), None)


def _unwritten(access_set: AccessSet, changes: Iterable[Change]) -> Iterator[str]:
    tables: dict[str, _Written] = {}
    for change in changes:
        table = tables.get(change.table)
        if table is None:
            table = tables[change.table] = _Written(access_set, change.table)
        if change.rowid is None and change.rowid_after is None:
            for row in (change.before, change.after):
                if row is not None and not table.has_values(row):
                    yield f"changes a row of {change.table} that is not in its write set: {row!r:.100}"
            continue
        for rowid in {change.rowid, change.rowid_after}:
            if rowid is not None and not table.has_rowid(rowid):
                yield f"changes the row {rowid} of {change.table}, which is not in its write set"


class _Written:
    """The write set of a transaction for one table."""

    def __init__(self, access_set: AccessSet, table: str) -> None:
        self._prefix = b"t:%b\0" % table.encode(errors="surrogatepass")
        self._points = access_set.write_points
        self._ranges = access_set.write_ranges
        self._whole = any(low <= self._prefix and self._prefix + b"\xff" <= high for low, high in self._ranges)
        self._keys: set[tuple[Any, ...]] | None = None

    def has_rowid(self, rowid: int) -> bool:
        """Return whether the write set has a row of a table with rowids."""
        if self._whole:
            return True
        key = self._prefix + rowid_bytes(rowid)
        return key in self._points or any(low <= key < high for low, high in self._ranges)

    def has_values(self, row: Row) -> bool:
        """Return whether a row WITHOUT ROWID may be in the write set: in a range, or with all values of a key."""
        if self._whole or any(low < self._prefix + b"\xff" and self._prefix < high for low, high in self._ranges):
            return True
        if self._keys is None:
            size = len(self._prefix)
            points = [point for point in self._points if point.startswith(self._prefix)]
            self._keys = {tuple(map(_folded, read_columns(point[size:]) or ())) for point in points}
        held = set(map(_folded, row))
        return any(key and held.issuperset(key) for key in self._keys)


def _folded(value: Any) -> Any:
    """Return a value as in a key of any collation: a text without case and trailing blanks, and NaN as None."""
    if isinstance(value, str):
        return value.rstrip(" ").lower().encode(errors="surrogatepass").partition(b"\0")[0], str
    if isinstance(value, float) and value != value:
        return None
    return value
