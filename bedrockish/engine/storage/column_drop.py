"""DROP COLUMN in the background: the table without the column is copied a slice at a time, then swapped in.

SQLite drops a column by rewriting each row of the table. So each node does that in advance (``build``):

1. The rows are copied into the stand-in in the order of their rowids, without the column, some at a time.
2. Each applied transaction also changes the copied part of the stand-in: the rows that the transaction changed are
   copied again. Rows to copy are named by rowid alone, and a copy is idempotent; so it can be repeated when an open
   batch has to be written again.
3. When the change comes into force, the table is empty for a moment: its row in ``sqlite_schema`` names the root of an
   empty tree. SQLite drops the column of the empty table, with all its checks and edits of the schema. Then the table's
   row gets the root of the stand-in, the stand-in gets the root of the old rows, and the stand-in is dropped.

The indexes are not touched: SQLite drops no column that is in one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from bedrockish.access_sets.catalog import Prepare
from bedrockish.access_sets.definitions import folded
from bedrockish.access_sets.system_names import BARE, STAND_IN
from bedrockish.access_sets.table_layout import Table, Tables, quote
from bedrockish.engine.storage.build import (
    Build,
    Edit,
    Phase,
    Writable,
    only_statement,
    remove_leftovers,
    table_with_rowids,
    tried,
)
from bedrockish.sqltext.tokenizer import Token
from bedrockish_journal.model.changes import Step
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.storage.packing import set_aside

Span = tuple[int, int]  # rowids, both included

ROWS, ROWS_MIN, ROWS_MAX = 500, 8, 4_000  # of a slice: at first, at least, and at most
SLICE_S = 0.005  # that a slice should have the processor
SAMPLES = 64  # rows that are compared before the stand-in is the table
COPIED = 2 / 3  # of the way from the first rowid to the last, from which on SQLite does not copy all rows sooner
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DropPlan:
    """The plan of a column drop, made before any row is copied.

    Attributes:
        table: name of the table, as the schema spells it.
        table_sql: the statement that made it.
        sql: the statement that drops the column.
        column: its name, as the schema spells it.
        rowid: a name of the table's rowid, quoted.
        stand_in_sql: makes the stand-in.
        copy: copies the rows between two rowids.
        kept: the names of the columns that stay, quoted.
        columns: the columns of the stand-in.
    """

    table: str
    table_sql: str
    sql: str
    column: str
    rowid: str
    stand_in_sql: str
    copy: str
    kept: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def title(self) -> str:
        """Name of the result, for people."""
        return f"table {self.table} without {self.column}"


def drops_column(steps: Sequence[Step]) -> bool:
    """Return whether a change of the schema is one statement that drops a column."""
    return _taken_apart(only_statement(steps)[1]) is not None


def plan_drop(steps: Sequence[Step], tables: Tables, prepare: Prepare) -> DropPlan | None:
    """Return the plan to drop a column in the background; None if the change drops none, or cannot run that way.

    Args:
        steps: the change.
        tables: the tables of the schema that it changes.
        prepare: gives a connection the functions and collations that SQLite does not have.
    """
    sql, found = only_statement(steps)
    words = _taken_apart(found)
    table = table_with_rowids(tables, words[0]) if words is not None else None
    if words is None or table is None:
        return None
    if table.virtual or len(table.writable) != len(table.columns):
        return None  # it computes columns
    left = [place for place, column in enumerate(table.columns) if folded(column) != folded(words[1])]
    if len(left) != len(table.columns) - 1 or not left:
        return None
    text = tables.definitions.text_of(table.name)
    return tried(prepare, lambda trial: _planned(trial, sql, table, left, text))


def _taken_apart(found: list[Token]) -> tuple[str, str] | None:
    """Return the names of the table and of the column in ALTER TABLE [schema .] table DROP [COLUMN] column."""
    if len(found) > 4 and found[3].text == ".":
        del found[2:4]
    if len(found) > 5 and found[4].is_word("COLUMN"):
        del found[4]
    if len(found) != 5 or not (found[0].is_word("ALTER") and found[1].is_word("TABLE") and found[3].is_word("DROP")):
        return None
    table, column = found[2].name, found[4].name
    return None if table is None or column is None else (table, column)


def _planned(trial: apsw.Connection, sql: str, table: Table, left: list[int], table_sql: str) -> DropPlan | None:
    trial.execute(table_sql)
    trial.execute(sql)
    found = trial.execute("SELECT name FROM pragma_table_xinfo(?) ORDER BY cid", (table.name,)).fetchall()
    if [name for (name,) in found] != [table.columns[place] for place in left]:
        return None
    # Columns with our own names do not hide the rowid. Stored values have their column's affinity already; only the
    # storage of a whole number in a REAL column depends on the declared type.
    kinds = [" INTEGER PRIMARY KEY" * (place == table.alias) or " REAL" * (place in table.reals) for place in left]
    columns = [f"c{number}" for number in range(len(left))]
    described = ", ".join(f"{column}{kind}" for column, kind in zip(columns, kinds, strict=True))
    kept = tuple(quote(table.columns[place]) for place in left)
    assert table.rowid
    is_named = table.alias is not None and table.alias in left
    into = ", ".join(columns if is_named else ["rowid", *columns])
    read = ", ".join(kept if is_named else [table.rowid, *kept])
    copy = (
        f"INSERT INTO {STAND_IN}({into}) SELECT {read} FROM {quote(table.name)} "
        f"WHERE {table.rowid} BETWEEN ? AND ? ORDER BY {table.rowid}"
    )
    stand_in_sql = f"CREATE TABLE {STAND_IN}({described})"
    trial.execute(stand_in_sql)
    trial.execute(copy, (0, 0))
    dropped = next(name for place, name in enumerate(table.columns) if place not in left)
    return DropPlan(table.name, table_sql, sql, dropped, table.rowid, stand_in_sql, copy, kept, tuple(columns))


class ColumnDrop(Build):
    """The build of one table without one of its columns."""

    def __init__(self, db: apsw.Connection, plan: DropPlan, txid: Txid, version: int) -> None:
        super().__init__(db, txid, version)
        self.plan: DropPlan = plan
        self._next = _LEAST  # rows from here on are not copied yet
        self._size = ROWS
        name = quote(plan.table)
        self._ends = f"SELECT (SELECT min({plan.rowid}) FROM {name}), (SELECT max({plan.rowid}) FROM {name})"
        self._find = f"SELECT {plan.rowid} FROM {name} WHERE {plan.rowid} >= ? ORDER BY {plan.rowid} LIMIT 1 OFFSET ?"

    def took(self, seconds: float) -> None:
        """Take more rows the next time, or less."""
        if seconds < SLICE_S / 2:
            self._size = min(2 * self._size, ROWS_MAX)
        elif seconds > SLICE_S:
            self._size = max(self._size // 2, ROWS_MIN)

    @property
    def is_nearly_done(self) -> bool:
        """Whether copying the rest takes less time than running the change's statement."""
        ends: Any = self._db.execute(self._ends).fetchall()[0]
        least, most = ends
        return least is not None and self._next - least > COPIED * (most - least)

    def next_edit(self) -> Edit | None:
        """Return the rows that are to be copied next."""
        if self.phase is not Phase.LOADING:
            return None
        first = self._next
        found: list[Any] = self._db.execute(self._find, (first, self._size)).fetchall()
        if found:
            self._next = int(found[0][0])
            self.rows += self._size
            return [], [(first, self._next - 1)]
        self.phase = Phase.READY
        return [], [(first, _MOST)]

    def before(self, _rowids: Iterable[int]) -> Sequence[Span]:
        """Return nothing to remove: a row that is copied again replaces the old copy."""
        return []

    def after(self, rowids: Iterable[int]) -> Sequence[Span]:
        """Return those of rows that have changed which are copied already."""
        if self.phase is Phase.READY:
            return list(_spans(sorted(set(rowids))))
        return list(_spans(sorted({rowid for rowid in rowids if rowid < self._next})))

    def _create(self) -> None:
        self._db.execute(self.plan.stand_in_sql)

    def _edit(self, _removed: Sequence[Any], added: Sequence[Span]) -> None:
        self._db.executemany(f"DELETE FROM {STAND_IN} WHERE rowid BETWEEN ? AND ?", added)
        self._db.executemany(self.plan.copy, added)

    def _move(self) -> bool:
        if not self._is_right():
            return False
        db, name = self._db, self.plan.table
        old, new = self._root(name), self._root(STAND_IN)
        db.execute(f"CREATE TABLE {BARE}(x)")
        empty = self._root(BARE)
        self._set_roots((empty, name))
        with set_aside(db, self.plan.sql):
            db.execute(self.plan.sql)
        if (self._root(name), self._root(BARE), self._root(STAND_IN)) != (empty, empty, new):
            self.failure = "SQLite has moved tables meanwhile"
            return False
        self._set_roots((new, name), (old, STAND_IN))
        db.execute(f"DROP TABLE {BARE}")
        remove_leftovers(db)
        return True

    def _root(self, name: str) -> int:
        query = "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ?"
        found: list[Any] = self._db.execute(query, (name,)).fetchall()
        return int(found[0][0])

    def _set_roots(self, *roots: tuple[int, str]) -> None:
        """Give tables other root pages; the connection reads the schema again, and others see that they have to."""
        with Writable(self._db):
            self._db.executemany("UPDATE sqlite_schema SET rootpage = ? WHERE type = 'table' AND name = ?", roots)
            self._db.execute("PRAGMA writable_schema = RESET")

    def _is_right(self) -> bool:
        """Return whether the copy has the table's first and last rowid, and equal values in sampled rows."""
        plan, db = self.plan, self._db
        table, rowid = quote(plan.table), plan.rowid
        ends: list[Any] = [
            db.execute(f"SELECT (SELECT min({one}) FROM {name}), (SELECT max({one}) FROM {name})").fetchall()[0]
            for one, name in ((rowid, table), ("rowid", STAND_IN))
        ]
        if ends[0] != ends[1]:
            self.failure = (
                f"its rows are those from {ends[0][0]} to {ends[0][1]}, and {ends[1][0]} to {ends[1][1]} here"
            )
            return False
        least, most = ends[0]
        if least is None:
            return True
        pick = f"SELECT {rowid}, {', '.join(plan.kept)} FROM {table} WHERE {rowid} >= ? ORDER BY 1 LIMIT 1"
        find = f"SELECT {', '.join(plan.columns)} FROM {STAND_IN} WHERE rowid = ?"
        for place in range(SAMPLES):
            row: Any = db.execute(pick, (least + (most - least) * place // (SAMPLES - 1),)).fetchall()[0]
            (copied,) = db.execute(find, row[:1]).fetchall() or [()]
            if [(type(value), value) for value in row[1:]] != [(type(value), value) for value in copied]:
                self.failure = f"row {row[0]} is not as it was copied"
                return False
        return True


def _spans(rowids: Sequence[int]) -> Iterator[Span]:
    """Yield runs of rowids that follow each other."""
    first = last = None
    for rowid in rowids:
        if last is None or rowid != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = rowid
        last = rowid
    if first is not None and last is not None:
        yield first, last
