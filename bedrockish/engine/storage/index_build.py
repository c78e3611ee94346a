"""Online index build: the index is built a slice at a time, and then becomes an index of the table at one moment.

A change of the schema is decided long before it comes into force. Until then each node does the long part by itself,
between its other work; no part of the build is replicated. A failure here ends only the build: the change's statement
then runs, as usual, when the change comes into force. A restart of the process abandons a build.

1. The build takes a snapshot and reads its rows in the order of the index; SQLite sorts them in another thread.
2. The rows are added to the index through the *stand-in* (``index_plan``), some thousand at a time. In the order of the
   index each page is written once; in the order of the rows each row would write another page.
3. Rows that change during the build are recorded. When the whole snapshot is added, their old entries are removed, and
   then their new entries are added, a slice at a time. In another order, two rows that swapped their values would seem
   duplicates under a unique index.
4. From then on each applied transaction changes the index, too, so that it always matches the table.
5. When the change comes into force, the index's row in ``sqlite_schema`` is rewritten, as an index of the user's table.

The stand-in is empty between two edits; otherwise every row would be stored twice. SQLite adds or removes a row and its
index entry together, but an edit must change only the entry. So to add entries, rows are inserted through the stand-in,
which has the index, and deleted again through a second table name with the same root page and no index: the *bare*
name. To remove entries, rows are inserted through the bare name and deleted through the stand-in. The bare name is
never in a committed file: it is written into ``sqlite_schema``, which the connection then reads, and removed again in
the same transaction.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from threading import Lock
from typing import Any

import apsw

from bedrockish.access_sets.system_names import BARE, STAND_IN, STAND_IN_INDEX
from bedrockish.engine.storage.index_plan import BuildPlan, IndexPlan
from bedrockish.engine.storage.stand_in import DESCRIBE, REFUSALS, Writable, describe, root_of, stand_ins
from bedrockish_journal.model.changes import Row, decode_changes_in_pieces
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.wide_rows import all_of, select

SLICE_ROWS, SLICE_BYTES = 2_000, 256 << 10
SLICES = 4  # slices that are read at a time, because each read waits for a thread
EDIT_ROWS = 64  # rows that the stand-in has at a time: about a page
LOADED = 2 / 3  # once this part of the rows is loaded, loading the others takes less time than CREATE INDEX
LEFT_MAX = 250  # slices that may be left to load when the change is due: they stay in memory until the commit
NOTED_MAX = 1_000_000  # rows that may change during a build; with more, the build is abandoned
SAMPLES = 64  # rows whose entries are looked up before the index becomes the table's
ASK_STEPS = 10_000  # steps of SQLite's sort between two checks that the build is still wanted
CACHE_KIB = 16 << 10  # page cache of the connection that sorts

_VALUE_BYTES = 8
_CLOSED = "the change came into force, or the node stopped, before all rows of the table were read"


class Phase(Enum):
    """The phases of a build."""

    LOADING = "loading"  # rows of the snapshot are added
    REMOVING = "removing"  # old entries of rows that have changed since the snapshot are removed
    ADDING = "adding"  # new entries of the changed rows are added
    READY = "ready"  # the result matches the table
    FAILED = "failed"


class Build:
    """The build of the index that a schema change makes, from the rows of one table.

    Why so large: Loading, sorting and catching up work on the same rows, and a build may be ended in any of these
    phases.

    Args:
        txid: the schema change that makes the result.
        version: version of the schema before the change.
    """

    slice_bytes = SLICE_BYTES  # about how many bytes of rows are added at a time

    def __init__(self, db: apsw.Connection, plan: BuildPlan, txid: Txid, version: int) -> None:
        self._db, self.plan, self.txid, self.version = db, plan, txid, version
        self.phase = Phase.LOADING  # the phase of the build
        self.failure = ""  # why the build failed
        self.rows = 0  # how many rows of the snapshot were added
        self.is_late = False  # whether the change comes into force now
        self._reader: apsw.Connection | None = None
        self._sorted: Iterator[Row] | None = None
        self._fetched: deque[list[Row]] = deque()
        self._is_all_fetched = False
        self._total = 0  # rows of the table at the snapshot, once counted
        self._slices = 0  # slices that were added
        self._lock = Lock()  # guards the reading connection, and the rows it has read
        self._stale: set[int] = set()  # changed rows whose entries are still those of the snapshot
        self._missing: set[int] = set()  # rows whose entries are still to be added

    @property
    def is_at_work(self) -> bool:
        """Whether the build is in progress, so that changed rows must be recorded."""
        return self.phase is not Phase.FAILED

    def hurry(self) -> None:
        """Abandon the build, because its change is due; but if little is left, have ``next_edit`` fetch these rows."""
        self.is_late = True
        if self.phase is Phase.LOADING and not self.is_nearly_done:
            self.interrupt()

    def fail(self, why: str) -> None:
        """Abandon the build; the first reason is kept."""
        if self.phase is not Phase.FAILED:
            self.phase, self.failure = Phase.FAILED, why

    # -- the snapshot ----------------------------------------------------------------------------------------------

    def begin(self, connect: Callable[[], apsw.Connection]) -> None:
        """Take the snapshot; the file must have all applied entries. ``connect`` opens a connection that only reads.

        Raises:
            apsw.Error: the connection or the snapshot fails.
        """
        self._reader = reader = connect()
        # SQLite ignores an interrupt just before a sort, and closing the connection would then wait for the sort.
        reader.set_progress_handler(lambda: self.phase is Phase.FAILED, ASK_STEPS)
        reader.pragma("cache_size", -CACHE_KIB)
        reader.execute("BEGIN")
        reader.execute("PRAGMA main.user_version").fetchall()

    def fetch(self) -> None:
        """Read the next slices of the snapshot, in another thread; the first call lasts until all rows are sorted."""
        with self._lock:
            for _ in range(SLICES):
                if self._reader is None or self._is_all_fetched or self.phase is Phase.FAILED:
                    return
                try:
                    if self._sorted is None:
                        count: Any = self._reader.execute(f"SELECT count(*) FROM {quote(self.plan.table)}").fetchall()
                        self._total = count[0][0]
                        self._sorted = iter(self._reader.execute(self.plan.load))
                    found = next_slice(self._sorted, self.slice_bytes)
                except (apsw.Error, UnicodeDecodeError) as error:
                    self.fail(f"its rows cannot be read: {error}")
                    return
                self._is_all_fetched = not found
                self._fetched.append(found)

    def interrupt(self) -> None:
        """Abandon the build, and interrupt a thread that reads the snapshot."""
        self.fail(_CLOSED)
        reader = self._reader
        if reader is not None:
            reader.interrupt()

    def close(self, *, wait: bool = True) -> None:
        """Release the snapshot; without ``wait`` only if no thread reads it."""
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if self._reader is not None:
                self._reader.close(True)
                self._reader = self._sorted = None
            self._fetched.clear()
        finally:
            self._lock.release()

    # -- the next edit ---------------------------------------------------------------------------------------------

    def next_edit(self) -> tuple[list[Row], list[Row]] | None:
        """Return the rows whose entries to remove next, and the rows whose entries to add; None if none are ready.

        On the writing connection, the tables must have all applied entries and no other change.
        """
        if self.phase is Phase.LOADING:
            if self.is_late and self.is_waiting:
                self.fetch()
            with self._lock:
                loaded = self._fetched.popleft() if self._fetched else None
            if loaded:
                self.rows += len(loaded)
                self._slices += 1
                return [], loaded
            if loaded is not None:
                self.phase = Phase.REMOVING
        if self.phase is Phase.REMOVING:
            rowids = _pop_slice(self._stale)
            self._missing.update(rowids)
            removed = self._rows_of(self._reader, rowids)
            if not self._stale:
                self.phase = Phase.ADDING
                self.close()
            return removed, []
        if self.phase is Phase.ADDING:
            rowids = _pop_slice(self._missing)
            if not self._missing:
                self.phase = Phase.READY
            return [], self._rows_of(self._db, rowids)
        return None

    @property
    def is_waiting(self) -> bool:
        """Whether the next edit has to wait until more rows are fetched."""
        return self.phase is Phase.LOADING and not self._fetched

    @property
    def is_nearly_done(self) -> bool:
        """Whether to finish loading, because that takes less time than the change's statement, and bounded memory."""
        left = self._total - self.rows
        return self.rows > LOADED * self._total and left * self._slices <= LEFT_MAX * self.rows

    def touched(self, transaction: Transaction, schema: int) -> Collection[int]:
        """Return the rowids that a transaction changes in the build's table; none on another version of the schema."""
        if not self.is_at_work or self.version != schema:
            return ()
        if transaction.kind != ROWS or self.plan.table.encode() not in transaction.changes:
            return ()
        touched: set[int] = set()
        try:
            for change in chain.from_iterable(decode_changes_in_pieces(transaction.changes)):
                if change.table == self.plan.table:
                    touched |= {rowid for rowid in (change.rowid, change.rowid_after) if rowid is not None}
        except EntryMalformedError:
            return ()  # applying the entry reports the error
        return touched

    def before(self, rowids: Iterable[int]) -> list[Row]:
        """Record rows of the table that are about to change; return the rows whose entries to remove now."""
        touched = set(rowids)
        if self.phase is Phase.LOADING:
            self._stale |= touched
        elif self.phase is not Phase.FAILED:
            return self._rows_of(self._db, self._settled(touched))
        if len(self._stale) > NOTED_MAX:
            self.fail(f"more than {NOTED_MAX} rows of its table have changed during the build")
        return []

    def after(self, rowids: Iterable[int]) -> list[Row]:
        """Record rows of the table that have just changed; return the rows whose entries to add now."""
        touched = set(rowids)
        if self.phase is Phase.REMOVING:  # add them later: under a unique index, a row's old entry may still conflict
            self._missing |= self._settled(touched)
            return []
        if self.phase in (Phase.ADDING, Phase.READY):
            return self._rows_of(self._db, self._settled(touched))
        return []

    def _settled(self, rowids: set[int]) -> set[int]:
        """Return the rowids whose entries match the table."""
        return rowids - self._stale - self._missing

    def _rows_of(self, db: apsw.Connection | None, rowids: Iterable[int]) -> list[Row]:
        found: list[Row] = []
        if db is None:
            return found
        try:
            for rowid in sorted(rowids):
                found += db.execute(self.plan.one, (rowid,)).fetchall()
        except (*REFUSALS, UnicodeDecodeError) as error:
            self.fail(f"a row of its table cannot be read: {error}")
        return found

    # -- on the writing connection; a batch may repeat each of these actions ---------------------------------------

    def create(self) -> None:
        """Create the stand-in."""
        self.guarded(self._create)

    def edit(self, removed: Sequence[Any], added: Sequence[Any]) -> None:
        """Remove the entries of some rows, and then add the entries of others."""
        if self.phase is not Phase.FAILED:
            self.guarded(lambda: self._edit(removed, added))

    def move(self) -> bool:
        """Put the result in place under its own name, and return whether that succeeded.

        It fails if the build is not ready, if the table's definition has changed, or if the result fails its checks.
        """
        db = self._db
        if self.phase is not Phase.READY or not stand_ins(db):
            return False
        db.execute("SAVEPOINT beside")
        moved = False
        try:
            moved = self._is_free() and self._move()
        except (*REFUSALS, UnicodeDecodeError) as error:
            if not db.in_transaction:
                raise
            self.failure = str(error)
        if not moved:
            db.execute("ROLLBACK TO beside")
        db.execute("RELEASE beside")
        return moved

    def guarded(self, action: Callable[[], None]) -> None:
        """Run an action under a savepoint; if SQLite refuses the action, roll it back and abandon the build."""
        db = self._db
        db.execute("SAVEPOINT beside")
        try:
            action()
        except REFUSALS as error:
            if not db.in_transaction:
                raise
            db.execute("ROLLBACK TO beside")
            self.fail(str(error))
        db.execute("RELEASE beside")

    def _is_free(self) -> bool:
        """Return whether the table's definition is unchanged, and the name of the index is free."""
        taken = self._db.execute("SELECT 1 FROM sqlite_schema WHERE name = ? COLLATE NOCASE", (self.plan.name,))
        if taken.fetchall():
            return False
        query = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?"
        return self._db.execute(query, (self.plan.table,)).fetchall() == [(self.plan.table_sql,)]

    def _create(self) -> None:
        raise NotImplementedError

    def _edit(self, removed: Sequence[Row], added: Sequence[Row]) -> None:
        raise NotImplementedError

    def _move(self) -> bool:
        raise NotImplementedError


class IndexBuild(Build):
    """The build of one index."""

    plan: IndexPlan

    def __init__(self, db: apsw.Connection, plan: IndexPlan, txid: Txid, version: int) -> None:
        super().__init__(db, plan, txid, version)
        columns = ", ".join(plan.columns)
        marks = ", ".join("?" * len(plan.columns))
        self._add = f"INSERT INTO {STAND_IN}({columns}) VALUES ({marks})"
        self._add_bare = f"INSERT INTO {BARE}({columns}) VALUES ({marks})"
        # With a WHERE: without it, SQLite would clear the whole index, and not remove single entries.
        self._remove = f"DELETE FROM {STAND_IN} WHERE {plan.rowid} = ?"
        self._remove_bare = f"DELETE FROM {BARE} WHERE {plan.rowid} = ?"

    def _create(self) -> None:
        self._db.execute(self.plan.stand_in_sql)
        self._db.execute(self.plan.index_sql)

    def _edit(self, removed: Sequence[Row], added: Sequence[Row]) -> None:
        db = self._db
        if not db.table_exists("main", BARE):  # let this connection know the stand-in only as a table without an index
            describe(db, BARE, root_of(db, STAND_IN), self.plan.bare_sql)
        for some in _edits_of(removed):
            db.executemany(self._add_bare, some)
            db.executemany(self._remove, [row[:1] for row in some])
        for some in _edits_of(added):
            db.executemany(self._add, some)
            db.executemany(self._remove_bare, [row[:1] for row in some])

    def _move(self) -> bool:
        db, plan = self._db, self.plan
        root = root_of(db, STAND_IN_INDEX)
        with Writable(db):
            # Add a row at the end of ``sqlite_schema``, as CREATE INDEX does, so that the order of a table's indexes is
            # the same on every node.
            db.execute(DESCRIBE, ("index", plan.name, plan.table, root, plan.sql))
            db.execute("DELETE FROM sqlite_schema WHERE name = ?", (STAND_IN_INDEX,))
            # A new schema version makes each connection read the schema again: the writing connection at its next
            # statement, and once more if this change is rolled back.
            version: int = db.pragma("schema_version")
            db.execute(f"PRAGMA main.schema_version = {version + 1}")
        db.execute(f"DROP TABLE {STAND_IN}")
        return self._passes_sample()

    def _passes_sample(self) -> bool:
        """Return whether a sample of rows is found in the index by their values; True if the index is not plain."""
        plan, db = self.plan, self._db
        if not plan.is_plain:
            return True
        rowid, table = plan.rowid, quote(plan.table)
        # In a single SELECT of min and max, SQLite would read the whole table.
        ends = f"SELECT (SELECT min({rowid}) FROM {table}), (SELECT max({rowid}) FROM {table})"
        bounds: Any = db.execute(ends).fetchall()[0]
        least, most = bounds
        if least is None:
            return True
        columns = list(map(quote, plan.terms))
        pick = f"FROM {table} NOT INDEXED WHERE {rowid} >= ? ORDER BY {rowid} LIMIT 1"
        tests = all_of([f"{column} IS ?" for column in columns])
        find = f"SELECT count(*) FROM {table} INDEXED BY {quote(plan.name)} WHERE {tests} AND {rowid} = ?"
        for place in range(SAMPLES):
            (row,) = select(db, [rowid, *columns], pick, (least + (most - least) * place // (SAMPLES - 1),))
            if db.execute(find, (*row[1:], row[0])).fetchall() != [(1,)]:
                self.failure = f"row {row[0]} has no entry"
                return False
        return True


def _pop_slice(rowids: set[int]) -> list[int]:
    return [rowids.pop() for _ in range(min(len(rowids), SLICE_ROWS))]


def next_slice(rows: Iterator[Row], most: int) -> list[Row]:
    """Return the next slice of some rows; empty at their end."""
    found: list[Row] = []
    size = 0
    for row in rows:
        found.append(row)
        size += sum(_size(value) for value in row)
        if len(found) == SLICE_ROWS or size > most:
            break
    return found


def _edits_of(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[first : first + EDIT_ROWS] for first in range(0, len(rows), EDIT_ROWS))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else _VALUE_BYTES
