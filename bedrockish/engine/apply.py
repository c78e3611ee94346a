"""Puts decided row changes into the tables, as they were captured, by address.

Triggers and foreign-key actions are off meanwhile: what they did is among the changes already. Switching them makes
SQLite compile every cached statement again, so it is done only for tables that have any. An UPDATE names only the
columns that changed, or every index of the table would be written.
"""

from itertools import groupby
from operator import itemgetter

import apsw

from bedrockish.engine.failures import WITHOUT_PLUGIN
from bedrockish.engine.tables import Table, Tables, quote
from bedrockish.errors import DamagedError
from journal.changes import DELETE, INSERT, Change, Row, Value
from journal.entry import Entry
from journal.steps import is_missing

_SWITCHES = (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, apsw.SQLITE_DBCONFIG_ENABLE_FKEY)

PIECE = 1_000  # changes that are made at once, if so many come together
PIECE_MIN = 10  # fewer are not worth the savepoint

DIFFERS = "this node's tables differ from its journal: stop it and fill it again from another node"


class _MisfitError(Exception):
    """Raised inside when a change does not fit the tables."""

    def __init__(self, change: Change, why: str) -> None:
        super().__init__(why)
        self.change, self.why = change, why


class RowApplier:
    """Applies changes on one connection, with a statement per table, operation and set of changed columns."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._tables: dict[str, Table] = {}
        self._texts: dict[tuple[str, str, int], tuple[str, tuple[int, ...]]] = {}
        self._quiet = False

    def use(self, tables: Tables) -> None:
        """Learn the tables of a new schema."""
        self._tables = tables.by_name
        self._texts.clear()

    def loud(self) -> None:
        """Switch triggers and foreign keys on: a client's statement or a schema statement is to run."""
        if self._quiet:
            for switch in _SWITCHES:
                self._db.config(switch, 1)
            self._quiet = False

    def apply(self, entry: Entry, changes: list[Change]) -> None:
        """Apply the changes of an entry, in order, inside the open transaction.

        Raises:
            DamagedError: the tables are not what they must be; the node must stop.
        """
        try:
            self._make(changes)
        except _MisfitError as error:
            raise self._damaged(entry, error.change, error.why) from error.__cause__

    def redo(self, changes: list[Change]) -> str:
        """Make changes again that were made before and taken back; return why that fails, or an empty text."""
        try:
            self._make(changes)
        except _MisfitError as error:
            return f"{error.change.op} of {error.change.table}: {error.why}"
        return ""

    def _make(self, changes: list[Change]) -> None:
        """Make changes, in order: many of them a thousand at a time, and if that fails, these one by one.

        Raises:
            _MisfitError: one does not fit.
        """
        for first in range(0, len(changes), PIECE):
            piece = changes[first : first + PIECE]
            if len(piece) < PIECE_MIN or not self._at_once(piece):
                for change in piece:
                    self._one(change)

    def _at_once(self, changes: list[Change]) -> bool:
        """Make changes, or none of them if one does not fit; whether they are made.

        Each changes one row or, if it does not fit, none, or raises; so their sum tells whether all did.
        """
        db = self._db
        bound = [self._bound(change) for change in changes]
        db.execute("SAVEPOINT piece")
        try:
            before = db.total_changes()
            for text, run in groupby(bound, itemgetter(0)):
                db.executemany(text, [values for _, values in run])
            fit = db.total_changes() - before == len(bound)
        except apsw.Error as error:
            if not db.in_transaction:  # SQLite gave all of it up: the disk is full, or failed
                raise _MisfitError(changes[0], str(error)) from error
            fit = False
        if not fit:
            db.execute("ROLLBACK TO piece")
        db.execute("RELEASE piece")
        return fit

    def _hush(self, table: Table) -> None:
        """Switch triggers and foreign keys off, if the table has any."""
        if table.active and not self._quiet:
            for switch in _SWITCHES:
                self._db.config(switch, 0)
            self._quiet = True

    def _one(self, change: Change) -> None:
        text, values = self._bound(change)
        try:
            self._db.execute(text, values)
        except apsw.Error as error:
            raise _MisfitError(change, str(error)) from error
        changed = self._db.changes()
        if changed != 1:
            raise _MisfitError(change, f"it changes {changed} rows and not one")

    def _bound(self, change: Change) -> tuple[str, list[Value]]:
        """Return the statement that makes a change, and its parameters; triggers are off if the table has any."""
        table = self._tables.get(change.table)
        if table is None or table.columns != change.columns:
            raise _MisfitError(change, "this node's table has other columns, or is not there")
        self._hush(table)
        if change.op == INSERT:
            assert change.after is not None
            mask, row = 0, change.after
        elif change.op == DELETE:
            mask, row = 0, ()
        else:
            assert change.before is not None
            assert change.after is not None
            mask, row = changed_mask(change.before, change.after), change.after
            if change.rowid != change.rowid_after and table.alias is None:
                mask |= 1 << len(row)  # the rowid itself changed, which rewrites every index, so it is named only then
        known = self._texts.get((table.name, change.op, mask))
        if known is None:
            known = self._texts[table.name, change.op, mask] = _text(table, change.op, mask)
        text, places = known
        values = [row[place] for place in places]
        if table.rowid is None:
            if change.op != INSERT:
                assert change.before is not None
                values += [change.before[place] for place in table.key]
        elif change.op == INSERT:
            if table.alias is None:
                values.append(change.rowid)
        else:
            if mask >> len(table.columns):
                values.append(change.rowid_after)
            values.append(change.rowid)
        return text, values

    @staticmethod
    def _damaged(entry: Entry, change: Change, why: str) -> DamagedError:
        way = WITHOUT_PLUGIN if is_missing(why) else DIFFERS
        key = change.rowid if change.rowid is not None else (change.before or change.after)
        return DamagedError(
            f"{entry.leader}{entry.tick} cannot be applied: {change.op} of {change.table} {key!r}: {why}; {way}",
            entry=f"{entry.leader}{entry.tick}",
            table=change.table,
            key=repr(key),
        )


def changed_mask(before: Row, after: Row) -> int:
    """Return the set of columns that differ, as bits; 1 and 1.0 differ."""
    mask = 0
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new or type(old) is not type(new):
            mask |= 1 << place
    return mask


def _text(table: Table, op: str, mask: int) -> tuple[str, tuple[int, ...]]:
    """Return a statement and the places of the row's values that it takes first."""
    name = quote(table.name)
    if table.rowid is None:
        where = " AND ".join(f"{quote(table.columns[place])} = ?" for place in table.key)
    else:
        where = f"{table.rowid} = ?"
    if op == DELETE:
        return f"DELETE FROM {name} WHERE {where}", ()
    if op == INSERT:
        columns = [quote(table.columns[place]) for place in table.writable]
        if table.rowid is not None and table.alias is None:
            columns.append(table.rowid)
        marks = ", ".join("?" * len(columns))
        return f"INSERT INTO {name}({', '.join(columns)}) VALUES ({marks})", table.writable
    places = tuple(place for place in table.writable if mask >> place & 1)
    sets = [f"{quote(table.columns[place])} = ?" for place in places]
    if mask >> len(table.columns):
        sets.append(f"{table.rowid} = ?")
    if not sets:
        places = table.writable[:1]  # nothing changed; the row must be there all the same
        sets = [f"{quote(table.columns[places[0]])} = ?"]
    return f"UPDATE {name} SET {', '.join(sets)} WHERE {where}", places
