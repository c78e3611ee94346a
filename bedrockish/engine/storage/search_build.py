"""Online build of an FTS5 index on the rows of a table, in stand-ins of its shadow tables.

In the file the stand-ins are ordinary tables. Only the writing connection knows the FTS5 table to which they belong, so
no other program sees an unfinished index, and no copy of the file has one. When the change comes into force, its
statement creates the shadow tables, which then exchange their root pages with the stand-ins.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import apsw

from bedrockish.access_sets.catalog import Prepare
from bedrockish.access_sets.system_names import SHADOWS, STAND_IN
from bedrockish.engine.storage import index_build
from bedrockish.engine.storage.index_build import SAMPLES, SLICE_BYTES, Build, Phase, next_slice
from bedrockish.engine.storage.index_plan import SearchPlan
from bedrockish.engine.storage.stand_in import REFUSALS, Writable, describe, root_of, stand_ins
from bedrockish_journal.model.changes import Row
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.vector_modules import ModuleConnection

TRIED = 256  # rows that are indexed in a trial, to estimate how long the whole build would take
FIRST, LAST = -(1 << 63), (1 << 63) - 1
_ENDS = "SELECT (SELECT min({0}) FROM {1}), (SELECT max({0}) FROM {1})"
_SET_ROOT = "UPDATE sqlite_schema SET rootpage = ? WHERE name = ?"


def estimate_seconds(db: apsw.Connection, plan: SearchPlan, prepare: Prepare, busy: Callable[[], float]) -> float:
    """Estimate how many seconds SQLite would take to build an index, by a trial in memory with some of the rows.

    Args:
        busy: returns the processor time of this thread, in seconds.

    Raises:
        apsw.Error: the rows cannot be read, or the trial is interrupted.
    """
    table = quote(plan.table)
    found: Any = db.execute(f"SELECT count(*), min({plan.rowid}), max({plan.rowid}) FROM {table}").fetchall()
    ((count, least, most),) = found
    rows: list[Any] = []
    for place in range(TRIED if count else 0):
        rows += db.execute(f"{plan.near} LIMIT 1", (least + (most - least) * place // TRIED,)).fetchall()
    with closing(ModuleConnection(":memory:")) as trial:
        prepare(trial)
        trial.execute(plan.stand_in_sql)
        began = busy()
        with trial:
            trial.executemany(_add(plan), [(number, *row[1:]) for number, row in enumerate(rows)])
        return (busy() - began) / TRIED * float(count)


def _add(plan: SearchPlan) -> str:
    return f"INSERT INTO {STAND_IN}({', '.join(plan.columns)}) VALUES ({', '.join('?' * len(plan.columns))})"


class SearchBuild(Build):
    """The build of one FTS5 index.

    Rows are added in the order of their rowids, with their present values. So the build holds no snapshot, which would
    delay checkpoints. A transaction that changes a row that is already added changes the index, too.
    """

    plan: SearchPlan
    slice_bytes = 128 << 10  # bytes of text that take about as long as a slice of an ordinary index

    def __init__(self, db: apsw.Connection, plan: SearchPlan, txid: Txid, version: int) -> None:
        super().__init__(db, plan, txid, version)
        self._next = FIRST  # rowid of the first row that may not be in the index

    def begin(self, connect: Callable[[], apsw.Connection]) -> None:
        """Do nothing: the rows are read on the writing connection."""

    @property
    def is_waiting(self) -> bool:
        """False: the next rows are read from the table, and never waited for."""
        return False

    @property
    def is_nearly_done(self) -> bool:
        """Whether the remaining rows fit into memory: adding them takes no longer than SQLite's own rebuild."""
        ends: Any = self._db.execute(_ENDS.format(self.plan.rowid, quote(self.plan.table))).fetchall()[0]
        least, most = ends
        if least is None:
            return True
        done, left = max(0, self._next - least), max(0, most + 1 - self._next)
        most_slices = index_build.LEFT_MAX * SLICE_BYTES // self.slice_bytes
        return self._slices > 0 and left * self._slices <= most_slices * done

    def next_edit(self) -> tuple[list[Row], list[Row]] | None:
        """Return no rows to remove, and the next rows to add as the table has them; None if all are in the index."""
        if self.phase is not Phase.LOADING:
            return None
        found: list[Row] = []
        if self._next <= LAST:
            with closing(self._db.cursor()) as cursor:
                try:
                    rows = cursor.execute(f"{self.plan.near} LIMIT {index_build.SLICE_ROWS}", (self._next,))
                    found = next_slice(iter(rows), self.slice_bytes)
                except (*REFUSALS, UnicodeDecodeError) as error:
                    self.fail(f"a row of its table cannot be read: {error}")
                    return [], []
        if not found:
            self.phase = Phase.READY
            return [], []
        last: Any = found[-1][0]
        self._next = last + 1
        self.rows += len(found)
        self._slices += 1
        return [], found

    def before(self, rowids: Iterable[int]) -> list[Row]:
        """Return those of the rows about to change that the index has, with their old values."""
        return self._rows_of(self._db, self._indexed(rowids))

    def after(self, rowids: Iterable[int]) -> list[Row]:
        """Return those of the rows just changed that the index must have, with their new values."""
        return self._rows_of(self._db, self._indexed(rowids))

    def _indexed(self, rowids: Iterable[int]) -> list[int]:
        """Return the rowids that the build has passed: their rows are in the index, if they are in the table."""
        return [rowid for rowid in rowids if self.phase is Phase.READY or rowid < self._next]

    def _create(self) -> None:
        self._db.execute(self.plan.stand_in_sql)
        with Writable(self._db):
            self._db.execute("DELETE FROM sqlite_schema WHERE name = ?", (STAND_IN,))

    def _edit(self, removed: Sequence[Row], added: Sequence[Row]) -> None:
        db, plan = self._db, self.plan
        if not db.table_exists("main", STAND_IN):
            describe(db, STAND_IN, 0, plan.stand_in_sql)
        taken, marks = ", ".join(plan.columns), ", ?" * len(plan.columns)
        db.executemany(f"INSERT INTO {STAND_IN}({STAND_IN}, {taken}) VALUES ('delete'{marks})", removed)
        db.executemany(_add(plan), added)

    def _move(self) -> bool:
        db, plan = self._db, self.plan
        db.execute(plan.sql)
        pairs = [(f"{STAND_IN}_{part}", f"{plan.name}_{part}") for part in SHADOWS]
        roots = [(root_of(db, name), root_of(db, made)) for name, made in pairs]
        if any(bool(one) != bool(other) for one, other in roots):
            self.failure = "it lacks a table"
            return False
        with Writable(db):
            for (name, made), (one, other) in zip(pairs, roots, strict=True):
                db.execute(_SET_ROOT, (one, made))
                db.execute(_SET_ROOT, (other, name))
            version: int = db.pragma("schema_version")  # a new one makes each connection read the schema
            db.execute(f"PRAGMA main.schema_version = {version + 1}")
            db.execute("PRAGMA writable_schema = RESET")
        for name in stand_ins(db):
            db.execute(f"DROP TABLE {name}")
        return self._passes_sample()

    def _passes_sample(self) -> bool:
        """Return whether the index has a sample of the table's rows, and the same first and last row."""
        db, plan = self._db, self.plan
        table, sizes = quote(plan.table), quote(f"{plan.name}_docsize")
        if not db.table_exists("main", f"{plan.name}_docsize"):
            return True
        found: Any = db.execute(_ENDS.format(plan.rowid, table)).fetchall()[0]
        if db.execute(_ENDS.format("id", sizes)).fetchall() != [found]:
            self.failure = "its first or last row differs from the table's"
            return False
        least, most = found
        pick = f"SELECT {plan.rowid} FROM {table} NOT INDEXED WHERE {plan.rowid} >= ? ORDER BY {plan.rowid} LIMIT 1"
        for place in range(SAMPLES if least is not None else 0):
            row: Any = db.execute(pick, (least + (most - least) * place // (SAMPLES - 1),)).fetchall()
            if not db.execute(f"SELECT 1 FROM {sizes} WHERE id = ?", row[0]).fetchall():
                self.failure = f"row {row[0][0]} is not in it"
                return False
        return True
