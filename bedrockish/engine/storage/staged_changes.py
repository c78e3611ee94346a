"""The rows of a large transaction, unpacked before its turn, so that a few statements apply them to the tables.

Decoding a hundred thousand rows and passing them to SQLite one by one takes half a second, in which the writer is not
available. But their bytes arrive long before the commit, because a node compares the rows with its own before it votes.
So another thread puts the rows into tables of an in-memory database. When the transaction is applied, the writer
attaches that database, and SQLite changes all rows of a *run* (successive changes of one kind in one table) by one
statement: in a tenth of the time, and without Python.

A run is applied only if the old rows of all its changes equal this node's rows. Its statement compares whole rows, as
in ``row_applier``; each row occurs once in the run, and as many rows must change as the run has changes. All other
changes, and changes that do not suit one statement, are applied one by one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, groupby
from operator import itemgetter
from typing import Any

import apsw

from bedrockish.access_sets.system_names import PREFIX
from bedrockish.access_sets.table_layout import CapturedTable, Tables
from bedrockish.engine.sqlite.bind import INT_MAX, INT_MIN
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Row, count_changes, decode_change_rows, same_value
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.wide_rows import all_of

STAGED_MIN = 1_000  # fewer changes are not worth unpacking in advance
RUNS_MAX = 16
KEPT_MAX = 3  # transactions that stay unpacked
COLUMNS_MAX = 1_000  # limit for twice the columns of a table: a run has old and new values, and SQLite allows 2,000
_NAME = f"{PREFIX}staged"
_URI = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
_numbers = count(1)


class _NotForAllError(Exception):
    """Raised internally when changes do not suit one statement for each run."""


@dataclass(slots=True)
class ChangeRun:
    """Changes of one kind in one table that follow each other."""

    table: CapturedTable  # the table whose rows change
    op: str  # INSERT, UPDATE or DELETE
    name: str  # name of the in-memory table that has the changes
    fill: str  # the statement that puts one change into the in-memory table
    changes: int = 0  # number of changes
    written: set[int] = field(default_factory=set)  # positions of the columns that any change of an UPDATE run sets
    first: int = INT_MAX  # the smallest rowid of the changes
    last: int = INT_MIN  # the greatest rowid of the changes


class StagedChanges:
    """The unpacked changes of one transaction."""

    def __init__(self, changes: bytes, tables: Tables, version: int) -> None:
        # ``changes``: the encoded changes.
        # ``version``: version of the schema for which the changes are unpacked.
        self.changes, self.version = changes, version
        self.runs: list[ChangeRun] = []  # the changes, in order
        self.fits = True  # False once the changes did not fit the tables; they are then applied one by one
        number = next(_numbers)
        self._attached = f"{_NAME}_{number}"
        self._uri = f"file:/{self._attached}?vfs=memdb"
        self._db = apsw.Connection(self._uri, flags=_URI)
        try:
            with self._db:
                self._fill(tables.by_name)
        except BaseException:
            self._db.close()
            raise

    @property
    def size(self) -> int:
        """About how many bytes the unpacked changes take."""
        return len(self.changes)

    def attach(self, db: apsw.Connection) -> None:
        """Let a connection see the runs until ``detach``; allowed inside a transaction."""
        db.execute(f"ATTACH ? AS {self._attached}", (self._uri,))

    def detach(self, db: apsw.Connection) -> None:
        """End ``attach`` for a connection; allowed only outside of a transaction."""
        db.execute(f"DETACH {self._attached}")

    def close(self) -> None:
        """Free the memory as soon as no connection is attached any more."""
        self._db.close()

    # -- statements ------------------------------------------------------------------------------------------------

    def statement(self, run: ChangeRun) -> str:
        """Return the statement that makes the changes of a run."""
        table, source = run.table, self.source(run)
        name = quote(table.name)
        if run.op == INSERT:
            columns = [quote(table.columns[place]) for place in table.writable]
            values = [f"a{place}" for place in table.writable]
            if table.alias is None:
                assert table.rowid is not None
                columns.append(table.rowid)
                values.append("k")
            into = f"INSERT OR ROLLBACK INTO {name}({', '.join(columns)})"
            return f"{into} SELECT {', '.join(values)} FROM {source} ORDER BY k"
        if run.op == DELETE:
            same = f"SELECT 1 FROM {source} AS {_NAME} WHERE {_NAME}.k = {name}.{table.rowid} AND {_equals_old(table)}"
            return f"DELETE FROM {name} WHERE {table.rowid} IN (SELECT k FROM {source}) AND EXISTS ({same})"
        places = (
            sorted(run.written) or table.writable[:1]
        )  # no column has changed, but the statement must check that the rows exist
        sets = ", ".join(f"{quote(table.columns[place])} = {_NAME}.a{place}" for place in places)
        # The unary plus makes SQLite scan the run and look its rows up in the table, and not the other way round.
        found = f"{name}.{table.rowid} = +{_NAME}.k AND {_equals_old(table)}"
        return f"UPDATE OR ROLLBACK {name} SET {sets} FROM {source} AS {_NAME} WHERE {found}"

    def source(self, run: ChangeRun) -> str:
        """Return the table that has the rowids of a run, in the column k."""
        return f"{self._attached}.{run.name}"

    def range_delete(self, run: ChangeRun) -> str:
        """Return the statement that deletes the rows from a run's first to its last; all of them must be in the run."""
        return f"DELETE FROM {quote(run.table.name)} WHERE {_between(run)}"

    def count_between(self, run: ChangeRun) -> str:
        """Return the query that counts a table's rows from a run's first to its last, and stops at one too many."""
        some = f"SELECT 1 FROM {quote(run.table.name)} WHERE {_between(run)} LIMIT {run.changes + 1}"
        return f"SELECT count(*) FROM ({some})"

    def count(self, run: ChangeRun) -> str:
        """Return the query that counts how many of a run's old rows are in its table."""
        table, source = run.table, self.source(run)
        name = quote(table.name)
        where = f"{name}.{table.rowid} = +{_NAME}.k AND {_equals_old(table)}"
        return f"SELECT count(*) FROM {source} AS {_NAME} CROSS JOIN {name} WHERE {where}"

    # -- unpacking -------------------------------------------------------------------------------------------------

    def _fill(self, tables: dict[str, CapturedTable]) -> None:
        heads, pieces = decode_change_rows(self.changes)
        for piece in pieces:
            if {*map(len, piece)} != {6}:
                raise _NotForAllError
            for (place, op), some in groupby(piece, itemgetter(0, 1)):
                name, columns = heads[place]
                table = tables.get(name)
                if table is None or table.columns != tuple(columns) or table.rowid is None or table.is_module:
                    raise _NotForAllError
                self._add(self._run(table, op), [*some])

    def _run(self, table: CapturedTable, op: str) -> ChangeRun:
        if self.runs and self.runs[-1].table is table and self.runs[-1].op == op:
            return self.runs[-1]
        if len(self.runs) == RUNS_MAX or 2 * len(table.columns) > COLUMNS_MAX or op not in (INSERT, UPDATE, DELETE):
            raise _NotForAllError
        names = ["k INTEGER PRIMARY KEY"]
        names += [] if op == INSERT else [f"b{place}" for place in range(len(table.columns))]
        names += [] if op == DELETE else [f"a{place}" for place in table.writable]
        name = f"{PREFIX}run_{len(self.runs)}"
        self._db.execute(f"CREATE TABLE {name}({', '.join(names)})")
        run = ChangeRun(table, op, name, f"INSERT INTO {name} VALUES (?{', ?' * (len(names) - 1)})")
        self.runs.append(run)
        return run

    def _add(self, run: ChangeRun, rows: Sequence[Sequence[Any]]) -> None:
        """Add changes to a run. Each is a list: table's number, op, rowid, rowid after, row before, row after."""
        columns, writable = len(run.table.columns), run.table.writable
        rowids, before, after = ([row[place] for row in rows] for place in (2, 4, 5))
        if {*map(type, rowids)} != {int}:
            raise _NotForAllError
        parts: list[Iterable[Row]] = [zip(rowids, strict=True)]
        if run.op != INSERT:
            parts.append(_rows(before, columns))
        if run.op != DELETE:
            new = _rows(after, columns)
            parts.append(
                new if len(writable) == columns else [tuple([row[place] for place in writable]) for row in new]
            )
        if run.op == UPDATE:
            if rowids != [row[3] for row in rows]:
                raise _NotForAllError  # the row gets another rowid, and the order of such changes may matter
            run.written |= _differing(before, after, writable)
        run.first, run.last = min(run.first, min(rowids)), max(run.last, max(rowids))
        self._db.executemany(run.fill, map(tuple, map(chain.from_iterable, zip(*parts, strict=True))))
        run.changes += len(rows)


def stage(changes: bytes, tables: Tables, version: int) -> StagedChanges | None:
    """Unpack changes, in any thread; return None if they are few, or do not suit one statement for each run."""
    if count_changes(changes) < STAGED_MIN:
        return None
    try:
        return StagedChanges(changes, tables, version)
    except (_NotForAllError, EntryMalformedError, apsw.Error, LookupError, TypeError, ValueError, OverflowError):
        return None  # a row is changed twice, or a change is malformed, which its application will report


class StagedStore:
    """The unpacked transactions that may be applied soon. Those that the open batch has attached stay until its commit.

    The loop and the thread that has the writer may call the methods concurrently.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._kept: dict[bytes, StagedChanges] = {}  # encoded changes -> the unpacked ones
        self.attached: list[StagedChanges] = []  # the transactions that the open batch has attached

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, staged: object) -> bool:
        return isinstance(staged, StagedChanges) and self._kept.get(staged.changes) is staged

    def keep(self, staged: StagedChanges) -> None:
        """Store a transaction until it is applied or dropped; above ``KEPT_MAX``, drop the oldest."""
        self.drop(staged.changes)
        if staged.changes in self._kept:
            staged.close()  # the open batch has attached these changes already
            return
        self._kept[staged.changes] = staged
        for changes in list(self._kept)[:-KEPT_MAX]:
            self.drop(changes)

    def drop(self, changes: bytes) -> None:
        """Drop a transaction, if it is here and the open batch has not attached it."""
        staged = self._kept.get(changes)
        if staged is not None and staged not in self.attached:
            self._kept.pop(changes, None)
            staged.close()

    def attach(self, changes: bytes, tables: Tables, version: int, *, unpack: bool) -> StagedChanges | None:
        """Attach an unpacked transaction to the writer and return it; None if it is missing or for another schema.

        If another thread drops the transaction at the same moment, the first statement that uses its runs fails.

        Args:
            unpack: whether to unpack the changes now if that was not done in advance. This blocks the writer, but takes
                two thirds of the time of applying the rows one by one, and half if the table has indexes.
        """
        staged = self._kept.get(changes) if self._kept else None
        if staged is None and unpack and len(self.attached) < KEPT_MAX:
            staged = stage(changes, tables, version)
            if staged is not None:
                self.keep(staged)
        if staged is None or staged.version != version or not staged.fits:
            return None
        if staged not in self.attached:
            if len(self.attached) == KEPT_MAX:
                return None
            staged.attach(self._db)
            self.attached.append(staged)
        return staged

    def detach(self) -> None:
        """Detach and drop the applied transactions, after the commit of their batch."""
        attached, self.attached = self.attached, []
        for staged in attached:
            try:
                staged.detach(self._db)
            except apsw.SQLError:  # a statement still reads the database: retry after the next batch
                self.attached.append(staged)
            else:
                self.drop(staged.changes)

    def close(self) -> None:
        """Drop all transactions, when the file is closed."""
        self.attached.clear()
        for changes in list(self._kept):
            self.drop(changes)


def _equals_old(table: CapturedTable) -> str:
    """Return the condition that each column equals its old value byte by byte, under any collation."""
    name = quote(table.name)
    terms = [f"{name}.{quote(column)} COLLATE BINARY IS {_NAME}.b{place}" for place, column in enumerate(table.columns)]
    return all_of(terms)


def _between(run: ChangeRun) -> str:
    """Return the condition for rows from the first of a run to the last."""
    return f"{run.table.rowid} BETWEEN {run.first} AND {run.last}"


def _rows(rows: Sequence[Row], columns: int) -> Sequence[Row]:
    if {*map(len, rows)} != {columns}:
        raise _NotForAllError
    return rows


def _differing(before: Sequence[Row], after: Sequence[Row], places: Sequence[int]) -> set[int]:
    """Return the positions of the columns whose values differ byte by byte in some row."""
    old, new = [*zip(*before, strict=True)], [*zip(*after, strict=True)]
    return {place for place in places if not _are_same(old[place], new[place])}


def _are_same(old: Row, new: Row) -> bool:
    """Return whether values are equal byte by byte; nearly always without a loop in Python."""
    if old != new:
        return False
    kinds = [*map(type, old)]
    return kinds == [*map(type, new)] and (float not in kinds or all(map(same_value, old, new)))
