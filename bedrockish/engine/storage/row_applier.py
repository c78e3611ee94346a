"""Applies decided row changes to the tables: each change addresses its row by rowid or primary key.

A node that cannot apply a decided change has to stop. So CHECKs, which the change has passed at its leader, are off.
Triggers and foreign keys are off, too: their effects are among the changes. Switching them makes SQLite compile every
cached statement again, so they are switched only for tables that have any. An UPDATE sets only the changed columns;
otherwise SQLite would write every index of the table.

A change is applied only to a row that equals the change's old row: each statement compares all columns. So a row that
differs, here or at the leading node, is detected and not overwritten.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter

import apsw

from bedrockish.access_sets.table_layout import CapturedTable, Tables
from bedrockish.engine.derived.index_keeper import IndexKeeper
from bedrockish.engine.sqlite.errors import WITHOUT_PLUGIN
from bedrockish.engine.storage.staged_changes import ChangeRun, StagedChanges
from bedrockish.errors import DamagedError, EntryMismatchError
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change, Row, Value, same_value
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.storage.schema_steps import enforce_checks, is_missing, switch
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.wide_rows import all_of, select

PIECE = 1_000  # the most changes that are made under one savepoint
PIECE_MIN = 10  # fewer changes are made one by one: a savepoint would cost more

DIFFERS = (
    "the tables of this node, or of the leader of the transaction, do not match the journals: compare them with "
    "'bedrockish journal verify', and fill the one that differs again from another node"
)

_OWN = apsw.SQLITE_PREPARE_PERSISTENT
"""A flag of our own statements, so that the statement cache gives none of them to a client with the same text."""
_REFUSALS = (apsw.ConstraintError, apsw.SQLError, apsw.MismatchError, apsw.TooBigError)
"""Errors with which SQLite rejects a change of a table; every other error is a fault of the file or the machine."""
_KIND = attrgetter("table", "op", "columns")
_SHOWN = 100  # characters of a value in an error


class _MisfitError(Exception):
    """Raised internally when a change does not fit the tables."""

    def __init__(self, change: Change, why: str) -> None:
        super().__init__(why)
        self.change, self.why = change, why


class RowApplier:
    """Applies changes on one connection, with a statement per table, operation and set of changed columns."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._change = db.cursor().execute  # one cursor for all rows: a new one costs half as much as changing a row
        self._tables: dict[str, CapturedTable] = {}
        self.indexes = IndexKeeper(db)  # updates the FTS5 indexes on the rows of tables
        self._texts: dict[tuple[str, str, int], tuple[str, tuple[int, ...]]] = {}
        self._compared: dict[str, str] = {}
        self._is_off = False  # whether triggers, foreign keys and CHECKs are off
        self._checks_off = False  # whether CHECKs are off

    def use(self, tables: Tables) -> None:
        """Use the tables of a new schema from now on."""
        self._tables = tables.by_name
        self.indexes.use(tables.virtual, tables.by_name)
        self._texts.clear()
        self._compared.clear()

    def switch_on(self) -> None:
        """Switch triggers, foreign keys and CHECKs on, before a client's statement or a schema statement runs."""
        if self._is_off:
            switch(self._db, on=True)
        elif self._checks_off:
            enforce_checks(self._db, on=True)
        self._is_off = self._checks_off = False

    def switch_off(self) -> None:
        """Switch triggers, foreign keys and CHECKs off for the node's own statements."""
        if not self._is_off:
            switch(self._db, on=False)
            self._is_off = self._checks_off = True

    def apply(self, entry: Entry, pieces: Iterable[list[Change]]) -> None:
        """Apply the changes of an entry, in order, inside the open transaction.

        Raises:
            EntryMismatchError: a row differs from the entry's old row; the caller must roll back the changes made.
            EntryMalformedError: the changes cannot be decoded; the caller must roll back the changes made.
            DamagedError: a function or collation is missing.
            apsw.Error: the file or the machine failed.
        """
        try:
            for changes in pieces:
                self._make(changes)
        except _MisfitError as error:
            raise self._mismatch(entry, error.change, error.why) from error.__cause__

    def knows(self, staged: StagedChanges) -> bool:
        """Return whether staged changes were unpacked for the tables as they are defined now."""
        return all(self._tables.get(run.table.name) == run.table for run in staged.runs)

    def apply_staged(self, staged: StagedChanges) -> bool:
        """Make staged changes that this applier ``knows``; return whether all of them fitted.

        After False or an error, some changes may have been made, and SQLite may have ended the open transaction: the
        caller must roll back the whole transaction.

        Raises:
            apsw.Error: the file or the machine failed.
        """
        for run in staged.runs:
            self._switch_off_for(run.table)
        try:
            return all(self._apply_run(staged, run) for run in staged.runs)
        except Exception as error:
            if not _is_refusal(error):
                raise
            return False

    def _all_or_none(self, make: Callable[[], bool]) -> bool:
        """Make changes under a savepoint, and roll them back if one does not fit; return whether all fitted."""
        db = self._db
        db.execute("SAVEPOINT piece")
        try:
            fit = make()
        except Exception as error:
            # An error that ended the whole transaction (ON CONFLICT ROLLBACK) leaves no savepoint to roll back to.
            if not _is_refusal(error) or not db.in_transaction:
                raise
            fit = False
        if not fit:
            db.execute("ROLLBACK TO piece")
        db.execute("RELEASE piece")
        return fit

    def _apply_run(self, staged: StagedChanges, run: ChangeRun) -> bool:
        """Make the changes of a run; return whether each of its changes has changed one row."""
        db = self._db
        text = staged.statement(run)
        if run.op == DELETE and db.execute(staged.count_between(run)).get == run.changes:
            # The table has no other row in the run's range of rowids, so delete the range without looking up each row.
            if db.execute(staged.count(run)).get != run.changes:
                return False
            text = staged.range_delete(run)
        of_run = run.table, run.op, run.written, staged.source(run)
        self.indexes.before_run(*of_run)
        before = db.total_changes()
        db.execute(text, prepare_flags=_OWN, can_cache=False)
        if db.total_changes() - before != run.changes:
            return False
        self.indexes.after_run(*of_run)
        return True

    def compare_staged(self, staged: StagedChanges) -> bool:
        """Return whether the old rows of staged changes equal this node's rows; if not, ``compare`` says why."""
        if not self.knows(staged):
            return False
        some = (run for run in staged.runs if run.op != INSERT)
        return all(self._db.execute(staged.count(run)).get == run.changes for run in some)

    def compare(self, pieces: Iterable[list[Change]]) -> str:
        """Return in words how the old rows of changes differ from this node's rows; empty if they do not.

        Only the first change of each row is compared: the old row of a later change is the row that the first one made.

        Raises:
            EntryMalformedError: the changes cannot be decoded.
        """
        written: dict[str, set[object]] = {}
        for piece in pieces:
            for name, changes in _by_table(piece).items():
                table = self._tables.get(name)
                if table is None or any(change.columns != table.columns for change in changes):
                    return f"{name} has other columns here or does not exist"
                wanted = _not_written(table, changes, written.setdefault(name, set()))
                if wanted and not self._are_as_before(table, wanted):
                    other = next((one for one in wanted if not self._are_as_before(table, [one])), wanted[0])
                    return f"row {tuple(_address(table, other))!r} of {name} differs here or is missing"
        return ""

    def _are_as_before(self, table: CapturedTable, changes: list[Change]) -> bool:
        """Return whether the old rows of changes to one table equal this node's rows."""
        text = self._compared.get(table.name)
        if text is None:
            text = f"SELECT 1 FROM {quote(table.name)} WHERE {_at_address(table)} AND {_equals_old(table)}"
            self._compared[table.name] = text
        if table.rowid is not None:
            addresses: list[Sequence[Value]] = [(change.rowid, *(change.before or ())) for change in changes]
        else:
            addresses = [[*_address(table, change), *(change.before or ())] for change in changes]
        return len(self._db.executemany(text, addresses).fetchall()) == len(changes)

    def redo(self, changes: list[Change]) -> str:
        """Make changes again that were made before and rolled back; return why that fails, or an empty text."""
        try:
            self._make(changes)
        except _MisfitError as error:
            return f"{error.change.op} of {error.change.table}: {error.why}"
        return ""

    def _make(self, changes: list[Change]) -> None:
        """Make changes in order: ``PIECE`` at a time or, if that fails, one by one."""
        if len(changes) < PIECE_MIN:
            for change in changes:
                self._make_one(change)
            return
        for first in range(0, len(changes), PIECE):
            piece = changes[first : first + PIECE]
            if len(piece) < PIECE_MIN or self._has_modules(piece) or not self._make_all(piece):
                for change in piece:
                    self._make_one(change)

    def _has_modules(self, changes: Iterable[Change]) -> bool:
        """Return whether any change is to a virtual table, whose module changes further rows that SQLite counts."""
        tables = (self._tables.get(name) for name in {change.table for change in changes})
        return any(table is not None and table.is_module for table in tables)

    def _make_all(self, changes: list[Change]) -> bool:
        """Make all changes, or none if one does not fit; return whether they were made.

        A change that fits changes one row; any other changes no row or raises. So the number of changed rows shows
        whether all changes fitted.
        """
        bound = [*self._statements(changes)]
        edits = self.indexes.before(changes)

        def make() -> bool:
            if not self._execute(bound, len(changes)):
                return False
            self.indexes.after(edits)
            return True

        return self._all_or_none(make)

    def _execute(self, bound: list[tuple[str, list[Sequence[Value]]]], count: int) -> bool:
        """Execute the statements of ``count`` changes; return whether each change has changed its row."""
        db = self._db
        before = db.total_changes()
        for text, rows in bound:
            if len(rows) == 1:
                self._change(text, rows[0], prepare_flags=_OWN)
            else:
                db.executemany(text, rows, prepare_flags=_OWN)
        return db.total_changes() - before == count

    def make_or_break(self, changes: list[Change]) -> bool | None:
        """Make changes without a savepoint, for which SQLite would copy each written page; return whether all fitted.

        After False or an error, some changes may have been made, and SQLite may have ended the open transaction: the
        caller must roll back the whole transaction. Return None, without a change, if these changes need a savepoint.

        Raises:
            apsw.Error: the file or the machine failed.
        """
        if len(changes) > PIECE or any(map(self.indexes.has, {change.table for change in changes})):
            return None
        if self._has_modules(changes):
            return None
        try:
            return self._execute([*self._statements(changes)], len(changes))
        except _MisfitError:  # a table is not here, or has other columns
            return False
        except Exception as error:
            if not _is_refusal(error):
                raise
            return False

    def _statements(self, changes: list[Change]) -> Iterator[tuple[str, list[Sequence[Value]]]]:
        """Yield the statements that make changes, in order, each with the parameters of all rows for which it is run.

        The changes are grouped by table: with triggers and foreign keys off, the order of changes in different tables
        does not matter. INSERTs into one table get their parameters all at once, because most of them need no work for
        the single row, and bulk loads consist of them.
        """
        for (_, op, _), alike in groupby(chain.from_iterable(_by_table(changes).values()), _KIND):
            some = [*alike]
            table = self._table_of(some[0])
            if op != INSERT:
                bound = [self._values(table, change) for change in some]
                for text, run in groupby(bound, itemgetter(0)):
                    yield text, [values for _, values in run]
                continue
            text, values = self._values(table, some[0])
            rows: list[Sequence[Value]] = [one.after or () for one in some]
            if table.writable != tuple(range(len(table.columns))):
                rows = [tuple([row[place] for place in table.writable]) for row in rows]
            if len(values) > len(table.writable):
                rows = [(*row, one.rowid) for row, one in zip(rows, some, strict=True)]
            yield text, rows

    def _switch_off_for(self, table: CapturedTable) -> None:
        """Switch off the table's triggers, foreign keys and CHECKs."""
        if table.active:
            self.switch_off()
        if table.checks and not self._checks_off:
            enforce_checks(self._db, on=False)
            self._checks_off = True

    def _make_one(self, change: Change) -> None:
        text, values = self._values(self._table_of(change), change)
        edits = self.indexes.before((change,)) if self.indexes.has(change.table) else ()
        try:
            self._change(text, values, prepare_flags=_OWN)
        except Exception as error:
            if not _is_refusal(error):
                raise
            raise _MisfitError(change, str(error)) from error
        changed = self._db.changes()
        if changed != 1:
            raise _MisfitError(change, f"the change affects {changed} rows instead of one")
        if edits:
            self.indexes.after(edits)

    def _table_of(self, change: Change) -> CapturedTable:
        """Return the table of a change, whose triggers, foreign keys and CHECKs are off from now on."""
        table = self._tables.get(change.table)
        if table is None or table.columns != change.columns:
            raise _MisfitError(change, "this node's table has other columns or does not exist")
        self._switch_off_for(table)
        return table

    def _values(self, table: CapturedTable, change: Change) -> tuple[str, list[Value]]:
        """Return the statement that makes a change of a table, and its parameters."""
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
                mask |= 1 << len(row)  # set the rowid only if it has changed: setting it rewrites every index
        known = self._texts.get((table.name, change.op, mask))
        if known is None:
            known = self._texts[table.name, change.op, mask] = _text(table, change.op, mask)
        text, places = known
        values = [row[place] for place in places]
        if change.op == INSERT:
            if table.rowid is not None and table.alias is None:
                values.append(change.rowid)
            return text, values
        if mask >> len(table.columns):
            values.append(change.rowid_after)
        assert change.before is not None
        values += (change.rowid,) if table.rowid is not None else _address(table, change)
        values += change.before
        return text, values

    def _mismatch(self, entry: Entry, change: Change, why: str) -> DamagedError:
        place = f"{entry.leader}{entry.tick}"
        if is_missing(why):
            return DamagedError(f"{place} cannot be applied: {change.op} of {change.table}: {why}; {WITHOUT_PLUGIN}")
        table = self._tables.get(change.table)
        key = change.rowid if change.rowid is not None else _key(table, change)
        expected = found = None
        if table is not None and table.columns == change.columns:
            expected, found = _differences(table, change.before, self._found(table, change))
            if change.op != INSERT and expected:  # the rows differ, which says more than SQLite's error
                why = (
                    "there is no such row" if found is None else f"expected {_listed(expected)}, found {_listed(found)}"
                )
        return EntryMismatchError(
            f"{place} does not fit the tables of this node: {change.op} of {change.table} {key!r}: {why}; {DIFFERS}",
            entry=place,
            op=change.op,
            table=change.table,
            key=repr(key),
            why=why,
            expected=expected,
            found=found,
        )

    def _found(self, table: CapturedTable, change: Change) -> Row | None:
        """Return this node's row under the key of a change, or None; a text that is not UTF-8 is returned as bytes."""
        rest = f"FROM {quote(table.name)} WHERE {_at_address(table)}"
        found = next(select(self._db, [*map(quote, table.columns)], rest, _address(table, change)), None)
        return None if found is None else tuple(one[1] if isinstance(one, list) else one for one in found)


def unreadable(entry: Entry, error: EntryMalformedError) -> EntryMismatchError:
    """Return the error for an entry whose changes cannot be decoded, in the form of a mismatch."""
    place = f"{entry.leader}{entry.tick}"
    return EntryMismatchError(
        f"{place} cannot be applied: its changes cannot be read: {error}",
        entry=place,
        op="",
        table="",
        key="",
        why=str(error),
        expected=None,
        found=None,
    )


def _by_table(changes: Iterable[Change]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(change.table, []).append(change)
    return found


def _not_written(table: CapturedTable, changes: list[Change], written: set[object]) -> list[Change]:
    """Return the changes whose old rows no earlier change has written; add the rows that they write to ``written``."""
    if table.rowid is None:
        wanted = []
        for change in changes:
            key = tuple(_address(table, change))
            if change.op != INSERT and key not in written:
                wanted.append(change)
            written.add(key)
            if change.op == UPDATE and change.after is not None:
                written.add(tuple([change.after[place] for place in table.key]))
        return wanted
    wanted = []
    for change in changes:
        if change.op != INSERT:  # an INSERT has no old row to compare
            if change.rowid not in written:
                wanted.append(change)
            written.add(change.rowid)
        written.add(change.rowid_after)
    return wanted


def _is_refusal(error: Exception) -> bool:
    """Return whether an error means that a change does not fit: from SQLite, or a plugin's function in an index."""
    return isinstance(error, _REFUSALS) or not isinstance(error, apsw.Error)


def changed_mask(before: Row, after: Row) -> int:
    """Return a bit mask of the columns whose values differ byte by byte."""
    mask = 0
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new or type(old) is not type(new) or not (new or same_value(old, new)):
            mask |= 1 << place
    return mask


def _text(table: CapturedTable, op: str, mask: int) -> tuple[str, tuple[int, ...]]:
    """Return a statement, and the positions in the row of its first parameters.

    The last parameters of an UPDATE or DELETE are the address of the old row (``_address``) and all its values.
    """
    name = quote(table.name)
    if op == INSERT:
        columns = [quote(table.columns[place]) for place in table.writable]
        marks = [table.own.marks.get(table.columns[place], "?") for place in table.writable]
        if table.rowid is not None and table.alias is None:
            columns.append(table.rowid)
            marks.append("?")
        return f"INSERT OR ABORT INTO {name}({', '.join(columns)}) VALUES ({', '.join(marks)})", table.writable
    where = f"{_at_address(table)} AND {_equals_old(table)}"
    if op == DELETE:
        return f"DELETE FROM {name} WHERE {where}", ()
    places = tuple(place for place in table.writable if mask >> place & 1)
    sets = [f"{quote(table.columns[place])} = ?" for place in places]
    if mask >> len(table.columns):
        sets.append(f"{table.rowid} = ?")
    if not sets:
        places = table.writable[:1]  # no column has changed, but the statement must check that the row exists
        sets = [f"{quote(table.columns[places[0]])} = ?"]
    return f"UPDATE OR ABORT {name} SET {', '.join(sets)} WHERE {where}", places


def _at_address(table: CapturedTable) -> str:
    """Return the condition for the row at an address, which SQLite finds by its key."""
    if table.rowid is None:
        return all_of([f"{quote(table.columns[place])} = ?" for place in table.key])
    return f"{table.rowid} = ?"


def _address(table: CapturedTable, change: Change) -> list[Value]:
    """Return the rowid or primary key of a change's old row; for an INSERT, of the new row."""
    if table.rowid is not None:
        return [change.rowid]
    row = change.before or change.after
    assert row is not None
    return [row[place] for place in table.key]


def _equals_old(table: CapturedTable) -> str:
    """Return the condition that each column equals its old value byte by byte, under any collation."""
    # The unary plus prevents SQLite's search for an index, which takes seconds for 2,000 key columns.
    return f"({all_of([f'+{quote(column)} COLLATE BINARY IS ?' for column in table.columns])})"


def _key(table: CapturedTable | None, change: Change) -> Sequence[Value] | None:
    return tuple(_address(table, change)) if table is not None else change.before or change.after


def _differences(
    table: CapturedTable, before: Row | None, found: Row | None
) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    """Return the values of the columns that differ, as texts, on each side; None for a side without a row."""
    places = range(len(table.columns))
    if before is not None and found is not None:
        mask = changed_mask(before, found)
        places = [place for place in places if mask >> place & 1]  # type: ignore[assignment]
    sides = [
        None if row is None else {table.columns[place]: _short(row[place]) for place in places}
        for row in (before, found)
    ]
    return sides[0], sides[1]


def _short(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _listed(values: dict[str, str] | None) -> str:
    return ", ".join(f"{column} {value}" for column, value in (values or {}).items())
