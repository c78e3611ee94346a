"""Captures the changes of a transaction, row by row, from SQLite's preupdate hook.

The hook stays installed for the life of the connection: a ``DELETE FROM t`` that is compiled without a hook truncates
the table without reporting rows. Only ``without_hook`` removes it, while statements run that do not stay compiled. The
hook sees every row that changes, also by triggers, foreign-key actions and REPLACE, in the order in which the changes
must be applied again.

For tables with VIRTUAL generated columns, the hook reports rowids but not the values of rows. So the net changes of
their rows are read from the tables: the new rows at the end of the request, and the old rows after the request was
rolled back. The same applies to a virtual table that owns its rows: for each row, one of its shadow tables has a row
with the same rowid, which the hook reports.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import apsw

from bedrockish.access_sets.derived_documents import DerivedDocuments
from bedrockish.access_sets.table_layout import CapturedTable, Tables
from bedrockish.errors import BedrockishError, SqlError, TooLargeError, UnsupportedError
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change, Row, same_row
from bedrockish_journal.storage.table_layout import quote

FREED_AT_ONCE = 5_000
FTS_BYTES_MAX = 8 << 20  # limit of text for FTS5 in one transaction: about a second of work at each node
ROW_BYTES, VALUE_BYTES = 24, 9  # approximate bytes of a row, and of each value, besides those of texts and blobs

Rows = dict[str, dict[int, Row]]
"""Table -> rowid -> row."""
UNREADABLE = "unreadable"
"""A key in the details of an error: a module cannot read one of its rows. On vec0, a failed statement may leave a row
that is written only in part."""


@dataclass(slots=True)
class Touched:
    """Changed rows of a table whose rows the hook cannot show."""

    rowids: dict[int, None] = field(default_factory=dict)  # rowids of the rows, in the order of the first change
    changes: int = 0  # number of changes; if it is larger than the number of rows, some rows changed several times
    # Shadow table and rowid of each written chunk -> its bytes before the request; None for a new chunk.
    chunks: dict[tuple[str, int], bytes | None] = field(default_factory=dict)


class Capture:
    """Collects row changes from ``start`` to ``stop``, and ignores all others."""

    def __init__(self, db: apsw.Connection, limit_bytes: int) -> None:
        self._db, self._limit = db, limit_bytes
        self._tables: dict[str, CapturedTable] = {}
        self._shadows: Mapping[str, str] = {}
        self._chunks: Mapping[str, str] = {}
        self._changed_names: set[str] | None = None
        self._log: list[Change] | None = None
        self._touched: dict[str, Touched] = {}
        self._fts_columns: dict[str, list[list[int]]] = {}
        self._size = self._fts_bytes = 0
        self.failure: BedrockishError | None = None  # the error that ends the running statement
        self.has_temporary = False  # whether the connection may have TEMP tables, whose rows are not replicated
        self.changed_temporary = False  # whether rows of a TEMP table have changed since ``start``
        # Returns the check of rows with STORED generated columns; None if rows are not checked on this connection.
        self.documents: Callable[[], DerivedDocuments] | None = None
        db.preupdate_hook(self._hook)

    @contextmanager
    def without_hook(self) -> Iterator[None]:
        """Remove the hook while the node's own statements run, because SQLite would call it for each row.

        Each call would wait for the interpreter's lock. The statements must not delete all rows of a table, and must
        not be kept compiled.
        """
        assert self._log is None, "changes are being captured"
        self._db.preupdate_hook(None)
        try:
            yield
        finally:
            self._db.preupdate_hook(self._hook)

    def use(self, tables: Tables) -> None:
        """Use the tables of a new schema from now on."""
        self._tables, self._shadows, self._chunks = tables.by_name, tables.virtual.shadows, tables.virtual.chunks
        self._fts_columns = {
            name: [[table.columns.index(column) for column in one.columns if column in table.columns] for one in found]
            for name, found in tables.virtual.indexes.items()
            if (table := tables.by_name.get(name)) is not None
        }

    @contextmanager
    def changed_tables(self) -> Iterator[set[str]]:
        """Collect the names of the tables whose rows change in the ``with`` block."""
        self._changed_names = found = set[str]()
        try:
            yield found
        finally:
            self._changed_names = None

    def start(self, size: int = 0, searched: int = 0) -> None:
        """Start to collect changes, after earlier ones of ``size`` bytes with ``searched`` bytes of text for FTS5."""
        self._log, self._touched, self.failure = [], {}, None
        self._size, self._fts_bytes = size, searched
        self.changed_temporary = False

    def stop(self) -> tuple[list[Change], dict[str, Touched]]:
        """Stop collecting; return the changes, and which rows changed in tables whose rows the hook cannot show."""
        log, self._log, self.failure = self._log, None, None
        assert log is not None
        touched, self._touched = self._touched, {}
        return log, touched

    def discard_changes(self) -> None:
        """Stop collecting and discard the changes, because the request failed."""
        log, self._log, self._touched, self.failure = self._log, None, {}, None
        while log:  # free the rows in pieces: freeing a million at once would block all other threads
            del log[-FREED_AT_ONCE:]

    @property
    def size(self) -> int:
        """Approximate number of bytes of the changes so far."""
        return self._size

    @property
    def fts_bytes(self) -> int:
        """Number of bytes of text that FTS5 has to index for the changes so far."""
        return self._fts_bytes

    @property
    def count(self) -> int:
        """Number of changes so far."""
        return len(self._log or ())

    def changes_after(self, count: int) -> list[Change]:
        """Return the changes after the first ``count``."""
        return (self._log or [])[count:]

    @property
    def hidden_tables(self) -> list[str]:
        """The changed tables whose rows the hook cannot show."""
        return list(self._touched)

    @property
    def has_changes(self) -> bool:
        """Return whether the request has changed any row so far."""
        return bool(self._log or self._touched)

    def _hook(self, update: apsw.PreUpdate) -> None:
        log = self._log
        if self.has_temporary and update.database_name == "temp":
            self.changed_temporary = True
            return
        if log is None or self.failure is not None:
            if self._changed_names is not None:
                self._changed_names.add(update.table_name)
            return
        table = self._tables.get(update.table_name)
        if table is None:
            owner = self._shadows.get(update.table_name)
            if owner is not None:
                if owner:
                    self._record_touched(owner, update)
                elif update.table_name in self._chunks:
                    self._touch_chunk(self._chunks[update.table_name], update)
                return
            # Changes of SQLite's own tables, such as sqlite_sequence, follow from the rows and the schema statements.
            if not update.table_name.startswith("sqlite_"):
                self.failure = UnsupportedError(
                    f"rows of {update.table_name} cannot be replicated; use an ordinary table"
                )
            return
        op = update.op
        if table.virtual:
            self._record_touched(table.name, update)
            return
        try:
            before: Row | None = None if op == INSERT else update.old
            after: Row | None = None if op == DELETE else update.new
        except UnicodeDecodeError:
            self.failure = not_text(table.name)
            return
        if table.reals:
            before, after = _as_reals(table, before), _as_reals(table, after)
        if self.documents is not None and after is not None and len(table.writable) < len(table.columns):
            self.failure = self.documents().check(table.name, after, update.rowid_new)
            if self.failure is not None:
                return
        self._size += (0 if before is None else row_bytes(before)) + (0 if after is None else row_bytes(after))
        if self._size > self._limit:
            self.failure = self._too_large()
            return
        if update.table_name in self._fts_columns:
            self._fts_bytes += _searched(self._fts_columns[update.table_name], before, after)
            if self._fts_bytes > FTS_BYTES_MAX:
                self.failure = _too_much_for_fts(table.name)
                return
        rowid: int | None = None
        rowid_after: int | None = None
        if table.rowid is not None:
            rowid = update.rowid_new if op == INSERT else update.rowid
            rowid_after = update.rowid_new if op == UPDATE else rowid
        log.append(Change(table.name, table.columns, op, rowid, rowid_after, before, after))

    def _record_touched(self, table: str, update: apsw.PreUpdate) -> None:
        """Record a change of a row that the hook cannot show."""
        touched = self._touched.setdefault(table, Touched())
        touched.changes += 1
        if update.op != INSERT:
            touched.rowids[update.rowid] = None
        if update.op != DELETE:
            touched.rowids[update.rowid_new] = None

    def _touch_chunk(self, table: str, update: apsw.PreUpdate) -> None:
        """Record a change of a chunk of vec0, which has the values of many rows."""
        chunks = self._touched.setdefault(table, Touched()).chunks
        place = update.table_name, update.rowid_new if update.op == INSERT else update.rowid
        if place not in chunks:
            old: Any = (None,) if update.op == INSERT else update.old
            chunks[place] = old[-1]

    def _find_in_chunks(self, table: str, touched: Touched) -> None:
        """Record each row whose values in a chunk have changed; inserted and deleted rows are recorded already."""
        layout = f"SELECT size, rowids FROM {quote(table + '_chunks')} WHERE chunk_id = ?"
        for (name, chunk), old in touched.chunks.items():
            new: Any = self._db.execute(f"SELECT * FROM {quote(name)} WHERE rowid = ?", (chunk,)).fetchone()
            found: Any = self._db.execute(layout, (chunk,)).fetchone()
            if old is None or new is None or found is None or new[-1] == old:
                continue
            size, rowids = found[0], memoryview(found[1]).cast("q")
            width = max(1, len(old) // size)  # bytes of a row in the chunk; 1 if a row has only a bit
            for at in range(0, len(old), width):
                if new[-1][at : at + width] != old[at : at + width]:
                    first = at * size // len(old)
                    touched.rowids.update(dict.fromkeys(rowids[first : first + max(1, size // len(old))]))
        touched.chunks.clear()

    def net_only_tables(self, touched: dict[str, Touched], before: Rows, after: Rows) -> list[str]:
        """Return the tables in which a row may have been inserted and deleted again; these count as written whole.

        In a virtual table, this is so only if a rowid has a row neither before nor after the request: such a table has
        no key besides the rowid, and its module may write a shadow row several times for one change.
        """
        found: list[str] = []
        for name, rows in touched.items():
            if not self._tables[name].is_module:
                comes_and_goes = rows.changes > len(rows.rowids)
            else:
                comes_and_goes = any(rowid not in before[name] and rowid not in after[name] for rowid in rows.rowids)
            if comes_and_goes:
                found.append(name)
        return found

    def read_rows(self, touched: dict[str, Touched]) -> Rows:
        """Read and return the present values of the changed rows that the hook cannot show.

        Raises:
            TooLargeError: the changes are over the limit.
            SqlError: a row has a text that is not UTF-8, or its module cannot read it (``UNREADABLE``).
        """
        found: Rows = {}
        for name, rows_touched in touched.items():
            table = self._tables[name]
            if rows_touched.chunks:
                self._find_in_chunks(name, rows_touched)
            columns = ", ".join(quote(column) for column in table.columns)
            if table.rowid is None:
                key = f"{quote(table.columns[0])} = (SELECT id FROM {quote(table.own.row_table)} WHERE rowid = ?)"
            else:
                key = f"{table.rowid} = ?"
            query = f"SELECT {columns} FROM {quote(name)} WHERE {key}"
            rows = found[name] = {}
            for rowid in rows_touched.rowids:
                try:
                    row = self._db.execute(query, (rowid,)).fetchone()
                except UnicodeDecodeError:
                    raise not_text(name) from None
                except apsw.SQLError as error:
                    raise SqlError(
                        f"a row of {name} cannot be read: {error}", table=name, **{UNREADABLE: True}
                    ) from error
                if row is not None:
                    rows[rowid] = row
                    self._size += row_bytes(row)
                    if self._size > self._limit:
                        raise self._too_large()
                    self._fts_bytes += sum(len(one) for one in row if type(one) is str) if table.is_module else 0
                    if self._fts_bytes > FTS_BYTES_MAX:
                        raise _too_much_for_fts(name)
        return found

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"the transaction changes more than {self._limit} bytes of rows; split it into several, each over a range "
            "of keys",
            limit=self._limit,
        )

    def net_changes(self, before: Rows, after: Rows) -> Iterator[Change]:
        """Yield the changes from ``before`` to ``after``, in an order in which no UNIQUE value ever exists twice.

        Raises:
            SqlError: vec0 would refuse to insert a row, see ``mistyped``.
        """
        for name, old_rows in before.items():
            table, new_rows = self._tables[name], after[name]
            both = [rowid for rowid in old_rows if rowid in new_rows]
            changed = [rowid for rowid in both if not same_row(old_rows[rowid], new_rows[rowid])]
            apart = table.unique and len(changed) + len(old_rows.keys() ^ new_rows.keys()) > 1
            apart = apart or table.own.is_replaced
            for rowid, row in old_rows.items():
                if rowid not in new_rows or (apart and rowid in changed):
                    at = None if table.rowid is None else rowid
                    yield Change(name, table.columns, DELETE, at, at, row, None)
            for rowid, row in new_rows.items():
                if rowid not in old_rows or (apart and rowid in changed):
                    _check_auxiliary(table, row)
                    at = None if table.rowid is None else rowid
                    yield Change(name, table.columns, INSERT, at, at, None, row)
            if not apart:
                for rowid in changed if table.is_module else both:
                    yield Change(name, table.columns, UPDATE, rowid, rowid, old_rows[rowid], new_rows[rowid])


def _searched(indexes: list[list[int]], before: Row | None, after: Row | None) -> int:
    """Return the number of bytes of a changed row that FTS5 has to divide into words, for all indexes it changes."""
    found = 0
    for places in indexes:
        if before is None or after is None or any(before[place] != after[place] for place in places):
            found += sum(_length(row[place]) for row in (before, after) if row is not None for place in places)
    return found


def _length(value: object) -> int:
    return len(value) if type(value) is str or type(value) is bytes else 0


def not_text(table: str) -> SqlError:
    """Return the error of a statement that writes a text that is not UTF-8."""
    return SqlError(f"a text written to {table} is not UTF-8; store it as a blob", table=table)


def mistyped(table: str, column: str, kind: str) -> SqlError:
    """Return the error of a statement that writes a value of another type into an auxiliary column of vec0.

    vec0 checks the type in an INSERT, and not in an UPDATE; the nodes insert the row.
    """
    way = f"CAST the value AS {kind.upper()}, or write NULL"
    return SqlError(
        f"the auxiliary column {column} of {table} takes values of the type {kind} alone; {way}", table=table
    )


_TYPES = {"text": str, "integer": int, "real": float, "blob": bytes}


def _check_auxiliary(table: CapturedTable, row: Row) -> None:
    for place, kind in table.own.auxiliary.items():
        if row[place] is not None and type(row[place]) is not _TYPES.get(kind):
            raise mistyped(table.name, table.columns[place], kind)


def _too_much_for_fts(table: str) -> TooLargeError:
    return TooLargeError(
        f"the rows of {table} that the transaction changes have more than {FTS_BYTES_MAX} bytes to be indexed by "
        "FTS5, which would block every node; split it into several, or keep long texts out of the index",
        table=table,
        limit=FTS_BYTES_MAX,
    )


def _as_reals(table: CapturedTable, row: Row | None) -> Row | None:
    if row is None:
        return None
    for place in table.reals:
        if type(row[place]) is int:
            break
    else:
        return row
    values: list[Any] = list(row)
    for place in table.reals:
        if type(values[place]) is int:
            values[place] = float(values[place])
    return tuple(values)


def row_bytes(row: Row) -> int:
    """Return the approximate number of bytes of an encoded row."""
    size = ROW_BYTES + VALUE_BYTES * len(row)
    for value in row:
        if type(value) is str or type(value) is bytes:
            size += len(value)
    return size
