"""What a transaction changed, row by row, from SQLite's preupdate hook.

The hook is installed for the connection's life, but for moments in which nothing is compiled that stays: a
``DELETE FROM t`` compiled before there was a hook would truncate the table and tell nobody. It sees every row that
changes by whatever means (triggers, foreign-key actions, REPLACE), in the order in which it happens, which is the order
in which the changes apply again.

Of tables with VIRTUAL generated columns it can name the rows and not show them. Their net change is read instead:
the rows as they are at the end of the request, and again as they were, once it has been rolled back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import apsw

from bedrockish.access_sets.table_layout import Table, Tables, quote
from bedrockish.errors import BedrockishError, SqlError, TooLargeError, UnsupportedError
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change, Row, same_row

FREED_AT_ONCE = 5_000
_ROW_COST = 24  # bytes that a row takes beside its values, roughly


@dataclass(slots=True)
class Touched:
    """Rows touched in a table whose rows the hook cannot show.

    Attributes:
        rowids: which, in the order first touched.
        changes: how many changes there were; more than rows means that some came and went.
    """

    rowids: dict[int, None] = field(default_factory=dict)
    changes: int = 0


class Capture:
    """Collects changes while a request runs; deaf otherwise."""

    def __init__(self, db: apsw.Connection, limit_bytes: int) -> None:
        self._db, self._limit = db, limit_bytes
        self._tables: dict[str, Table] = {}
        self._log: list[Change] | None = None
        self._touched: dict[str, Touched] = {}
        self._size = 0
        self.failure: BedrockishError | None = None
        db.preupdate_hook(self._hook)

    @contextmanager
    def put_away(self) -> Iterator[None]:
        """Have no hook while statements of the node's own run; none deletes all rows, and none is kept compiled.

        For each row SQLite would call it, and it would have to wait for the interpreter.
        """
        assert self._log is None, "nobody listens"
        self._db.preupdate_hook(None)
        try:
            yield
        finally:
            self._db.preupdate_hook(self._hook)

    def use(self, tables: Tables) -> None:
        """Learn the tables of a new schema."""
        self._tables = tables.by_name

    def start(self, size: int = 0) -> None:
        """Begin to listen for a new request; ``size`` is what counts towards its limit already."""
        self._log, self._touched, self._size, self.failure = [], {}, size, None

    def stop(self) -> tuple[list[Change], dict[str, Touched]]:
        """Stop listening; return the changes, and the rowids touched in tables whose rows the hook cannot show."""
        log, self._log, self.failure = self._log, None, None
        assert log is not None
        touched, self._touched = self._touched, {}
        return log, touched

    def deafen(self) -> None:
        """Stop listening and forget what was heard, if it was not taken: the request failed."""
        log, self._log, self._touched, self.failure = self._log, None, {}, None
        while log:  # piece by piece: to free a million rows at once would hold up all other threads
            del log[-FREED_AT_ONCE:]

    @property
    def size(self) -> int:
        """How many bytes the changes have so far, about."""
        return self._size

    @property
    def count(self) -> int:
        """How many changes there are so far."""
        return len(self._log or ())

    def since(self, count: int) -> list[Change]:
        """Return the changes that came after so many others."""
        return (self._log or [])[count:]

    @property
    def blind(self) -> list[str]:
        """The tables touched whose rows the hook cannot show."""
        return list(self._touched)

    @property
    def wrote(self) -> bool:
        """Whether the request has changed any row so far."""
        return bool(self._log or self._touched)

    def _hook(self, update: apsw.PreUpdate) -> None:
        log = self._log
        if log is None or self.failure is not None:
            return
        table = self._tables.get(update.table_name)
        if table is None:
            # sqlite_sequence and the catalogue follow from the rows and the schema statements.
            if not update.table_name.startswith("sqlite_"):
                self.failure = UnsupportedError(
                    f"rows of {update.table_name} cannot be replicated; use an ordinary table"
                )
            return
        op = update.op
        if table.virtual:
            touched = self._touched.setdefault(table.name, Touched())
            touched.changes += 1
            if op != INSERT:
                touched.rowids[update.rowid] = None
            if op != DELETE:
                touched.rowids[update.rowid_new] = None
            return
        try:
            before: Row | None = None if op == INSERT else update.old
            after: Row | None = None if op == DELETE else update.new
        except UnicodeDecodeError:
            self.failure = SqlError(
                f"a text written to {table.name} is not UTF-8; store it as a blob", table=table.name
            )
            return
        if table.reals:
            before, after = _as_reals(table, before), _as_reals(table, after)
        self._size += (0 if before is None else row_bytes(before)) + (0 if after is None else row_bytes(after))
        if self._size > self._limit:
            self.failure = self._too_large()
            return
        rowid: int | None = None
        rowid_after: int | None = None
        if table.rowid is not None:
            rowid = update.rowid_new if op == INSERT else update.rowid
            rowid_after = update.rowid_new if op == UPDATE else rowid
        log.append(Change(table.name, table.columns, op, rowid, rowid_after, before, after))

    def read_rows(self, touched: dict[str, Touched]) -> dict[str, dict[int, Row]]:
        """Return the touched rows of tables with VIRTUAL columns as they are now.

        Raises:
            TooLargeError: together they are over the limit.
        """
        found: dict[str, dict[int, Row]] = {}
        for name, rows_touched in touched.items():
            table = self._tables[name]
            columns = ", ".join(quote(column) for column in table.columns)
            query = f"SELECT {columns} FROM {quote(name)} WHERE {table.rowid} = ?"
            rows = found[name] = {}
            for rowid in rows_touched.rowids:
                row = self._db.execute(query, (rowid,)).fetchone()
                if row is not None:
                    rows[rowid] = row
                    self._size += row_bytes(row)
                    if self._size > self._limit:
                        raise self._too_large()
        return found

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"the transaction changes more than {self._limit} bytes of rows; split it into several: 'bedrockish batch' "
            "runs a statement over a large table, a range of keys at a time",
            limit=self._limit,
        )

    def net_changes(self, before: dict[str, dict[int, Row]], after: dict[str, dict[int, Row]]) -> Iterator[Change]:
        """Yield what turns ``before`` into ``after``: an order in which no UNIQUE value is ever there twice."""
        for name, old_rows in before.items():
            table, new_rows = self._tables[name], after[name]
            both = [rowid for rowid in old_rows if rowid in new_rows]
            changed = [rowid for rowid in both if not same_row(old_rows[rowid], new_rows[rowid])]
            apart = table.unique and len(changed) + len(old_rows.keys() ^ new_rows.keys()) > 1
            for rowid, row in old_rows.items():
                if rowid not in new_rows or (apart and rowid in changed):
                    yield Change(name, table.columns, DELETE, rowid, rowid, row, None)
            for rowid, row in new_rows.items():
                if rowid not in old_rows or (apart and rowid in changed):
                    yield Change(name, table.columns, INSERT, rowid, rowid, None, row)
            if not apart:
                for rowid in both:
                    yield Change(name, table.columns, UPDATE, rowid, rowid, old_rows[rowid], new_rows[rowid])


def _as_reals(table: Table, row: Row | None) -> Row | None:
    if row is None or not any(type(row[place]) is int for place in table.reals):
        return row
    values: list[Any] = list(row)
    for place in table.reals:
        if type(values[place]) is int:
            values[place] = float(values[place])
    return tuple(values)


def row_bytes(row: Row) -> int:
    """Return about how many bytes a row takes when it travels."""
    size = _ROW_COST + 9 * len(row)
    for value in row:
        if type(value) is str or type(value) is bytes:
            size += len(value)
    return size
