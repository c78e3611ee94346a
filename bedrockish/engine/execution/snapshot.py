"""Reading connections, each with a snapshot of the file.

SQLite's write-ahead log provides the snapshots. A snapshot is taken when the writer has just committed a batch, so that
it shows exactly the entries that were applied at that moment.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw

from bedrockish.access_sets.call_costs import Lengths, is_too_long, restore, shorten, too_long
from bedrockish.access_sets.change_capture import ROW_BYTES, VALUE_BYTES, row_bytes
from bedrockish.access_sets.key_values import Params
from bedrockish.access_sets.query_names import connection_query
from bedrockish.access_sets.settings_in_force import in_force, switch
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.column_blocks import BLOCK_BYTES, Blocks
from bedrockish.engine.execution.governor import FOREVER, STEPS, Governor
from bedrockish.engine.sqlite.errors import broken, not_utf8, translate
from bedrockish.engine.sqlite.limits import ROWS_NOTED, Limits, RowMeter, TakesLongError
from bedrockish.engine.statements.changes_vtab import give_functions
from bedrockish.engine.statements.clock_functions import Holder, Scope
from bedrockish.engine.statements.compiled import Compiled
from bedrockish.engine.storage.row_applier import RowApplier
from bedrockish.engine.storage.staged_changes import StagedChanges
from bedrockish.errors import UnavailableError
from bedrockish.sqltext.session_settings import Settings
from bedrockish_journal.model.changes import decode_changes_in_pieces
from bedrockish_journal.model.errors import EntryMalformedError

IDLE_MAX = 64  # idle connections that stay open
CACHE_KIB = 1 << 10
UNCOUNTED_BYTES = 4 << 10  # rows are counted in portions of this size: a call for each row takes as long as the row
WAY_OUT = "stream them, select less, or use LIMIT"


def read_schema_again(db: apsw.Connection) -> None:
    """Make SQLite read the schema again if it has changed: EXPLAIN and PRAGMA statements do not check that."""
    db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()


def fetch(
    cursor: apsw.Cursor, limits: Limits, number: int, room: int, blocks: Blocks | None = None
) -> tuple[list[tuple[Any, ...]], int]:
    """Return the rows of a started statement, and an estimate of their bytes.

    Args:
        cursor: the cursor on which the statement was started.
        number: the statement's number in the memory account; 0 for a brief one, which gets a number for large rows.
        room: the bytes that the rows may take.
        blocks: takes the rows of a large result, block by block; the rows after the last block are returned.

    Raises:
        TooLargeError: the rows take more than ``room`` bytes.
        MemoryFullError: the node has no memory for them.
    """
    if number:
        rows: list[tuple[Any, ...]] = []
        counted = RowMeter(limits, number, room, WAY_OUT)
        size = packed = 0
        for row in cursor:
            rows.append(row)
            size += ROW_BYTES + VALUE_BYTES * len(row)  # ``row_bytes`` inlined, because a call takes as long as the row
            for value in row:
                if type(value) is str or type(value) is bytes:
                    size += len(value)
            if size > UNCOUNTED_BYTES:
                counted.add(size)
                size = 0
                if blocks is not None and counted.size - packed > BLOCK_BYTES:
                    blocks.add(rows, counted.size - packed)
                    rows, packed = [], counted.size
        counted.add(size)
        return rows, counted.size
    rows = cursor.fetchall()
    size = sum(map(row_bytes, rows))
    if size > min(ROWS_NOTED, room):
        number = limits.memory.register()
        try:
            RowMeter(limits, number, room, WAY_OUT).add(size)
        finally:
            limits.memory.end(number)
    return rows, size


class Snapshot:
    """A reading connection with a snapshot, until ``Readers.give_back``. One thread at a time may use it."""

    def __init__(self, db: apsw.Connection, limits: Limits) -> None:
        self._db, self.limits = db, limits
        self.governor, self._most_bytes = Governor(limits), limits.length_bytes
        self._unlimited_query = connection_query(db)
        self._holder = Holder()
        self._attached: StagedChanges | None = None
        give_functions(db, self._holder)
        db.set_progress_handler(self.governor.progress, STEPS)

    @contextmanager
    def statement(self, lengths: Lengths, params: Params) -> Iterator[None]:
        """Apply the limits of time, memory and value lengths to the statement in the block, outside of the loop."""
        self._begin(lengths, params, in_loop=False)
        try:
            yield
        finally:
            self._end(lengths)

    def _begin(self, lengths: Lengths, params: Params, *, in_loop: bool) -> None:
        if not lengths.is_brief:
            self.governor.watch(self._db)
        shorten(self._db, lengths, in_loop=in_loop, most=self._most_bytes, params=params)

    def _end(self, lengths: Lengths) -> None:
        restore(self._db, lengths, most=self._most_bytes)
        if not lengths.is_brief:
            self.governor.release()

    def begin(self) -> None:
        """Clear the previous user's limits and start a read transaction."""
        self.governor.release()
        self.governor.allow(FOREVER)
        self._db.execute("BEGIN")
        read_schema_again(self._db)  # this first read begins the transaction

    def end(self) -> None:
        """End the read transaction, unless SQLite has rolled it back because memory or a temporary file was lacking."""
        self.governor.release()  # an ``interrupt`` that came after the statement's end would interrupt the ROLLBACK
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if self._attached is not None:
            self._attached.detach(self._db)
            self._attached = None

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def cursor(self) -> apsw.Cursor:
        """Return a cursor; close it before ``Readers.give_back``."""
        return self._db.cursor()

    def switch(self, settings: Settings, *, on: bool) -> None:
        """Switch settings of a session on, or off again, around the one statement for which they are in force."""
        switch(self._db, settings, on=on)

    def interrupt(self) -> None:
        """Interrupt the statement that runs in another thread."""
        self.governor.interrupt(self._db)

    def query(self, sql: str, many: Sequence[Params]) -> Iterator[tuple[Any, ...]]:
        """Run a query for each tuple of parameters, for reads that depend on rows; yield the rows of all.

        The query has the loop's budget, because it runs in the loop's thread even if the statement ran in another one.

        Raises:
            apsw.Error: the query exceeds that budget, or SQLite failed otherwise.
        """
        self.governor.allow(self.limits.budget_s)
        self.governor.watch(self._db)
        try:
            yield from self._unlimited_query(sql, many)
        finally:
            self.governor.release()
            self.governor.allow(FOREVER)

    def compare(self, changes: bytes, known: Tables | None = None, staged: StagedChanges | None = None) -> str:
        """Return, in words, how the old rows of encoded changes differ from the rows here; empty if they do not.

        Args:
            known: the tables as another connection has read them.
            staged: the unpacked changes, if there are any; their owner deletes them only after the snapshot has ended.

        Raises:
            DamagedError: the file cannot be read.
        """
        try:
            applier = RowApplier(self._db)
            applier.use(Tables(self._db, known))
            if staged is not None:
                staged.attach(self._db)
                self._attached = staged
                if applier.compare_staged(staged):
                    return ""
            return applier.compare(decode_changes_in_pieces(changes))
        except EntryMalformedError as error:
            return f"its changes cannot be read: {error}"
        except apsw.Error as error:
            raise broken(error) from error

    def run(
        self,
        piece: Compiled,
        params: tuple[Any, ...],
        room: int,  # the bytes that its rows may take
        lengths: Lengths,  # the bounds of the lengths of its values
        scope: Scope | None = None,  # the values of the clock's functions
        budget_s: float = float("inf"),  # the seconds that it may take
    ) -> tuple[list[tuple[Any, ...]], int]:
        """Run a statement that reads; return its rows and an estimate of their bytes.

        Raises:
            ClockNeededError: the statement calls ``transaction_clock()``, and the scope has no clock.
            TakesLongError: the statement has used ``budget_s`` and has not ended.
            SqlError: SQLite does not accept a value.
            TooLargeError: the rows take more than ``room`` bytes, or the statement runs too long.
        """
        governor = self.governor
        with in_force(self._db, piece.settings):
            cursor = self._db.cursor()
            governor.allow(budget_s)
            in_loop = governor.budget.is_brief
            self._holder.scope = scope
            self._begin(lengths, params, in_loop=in_loop)
            try:
                cursor.execute(piece.sql, params, can_cache=piece.can_cache)
                return fetch(cursor, self.limits, governor.number, room)
            except apsw.Error as error:
                if governor.caused(error):
                    raise governor.error_of_interrupt(piece.sql) from None
                if in_loop and is_too_long(error):
                    raise TakesLongError(piece.sql) from None
                raise too_long(error, lengths, piece.sql, params) or translate(error, piece.sql) from error
            except UnicodeDecodeError:
                raise not_utf8(piece.sql) from None
            finally:
                self._end(lengths)
                governor.allow(FOREVER)
                self._holder.scope = None
                cursor.close(True)


class Readers:
    """A pool of reading connections to one file."""

    def __init__(self, connect: Callable[[], apsw.Connection], limits: Limits) -> None:
        self._connect, self._limits = connect, limits
        self._idle: list[Snapshot] = []
        self._is_closed = False

    def take_snapshot(self) -> Snapshot:
        """Return a snapshot of the present file.

        Raises:
            UnavailableError: the machine has no room for another connection.
        """
        try:
            if self._idle:
                snapshot = self._idle.pop()
            else:
                db = self._connect()
                db.pragma("cache_size", -CACHE_KIB)
                snapshot = Snapshot(db, self._limits)
            snapshot.begin()
        except (apsw.CantOpenError, apsw.NoMemError) as error:
            raise UnavailableError(
                f"the node cannot open another connection to its file ({error}); end some transactions, or raise its "
                "limit of open files"
            ) from error
        return snapshot

    def give_back(self, snapshot: Snapshot) -> None:
        """End a snapshot, and return its connection to the pool."""
        try:
            snapshot.end()
        except apsw.Error:
            snapshot.close()  # ends the snapshot as well, which would keep the write-ahead log from a restart
            return
        if len(self._idle) < IDLE_MAX and not self._is_closed:
            self._idle.append(snapshot)
        else:
            snapshot.close()

    def close(self) -> None:
        """Close the idle connections; from now on, ``give_back`` closes the others.

        When the last connection is closed, SQLite copies the write-ahead log into the file and removes it.
        """
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
