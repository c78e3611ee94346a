"""A lake: the change feed as tables of Delta Lake, each change exactly once, even if a process is killed.

Next to the lake is a mirror, a SQLite file with the state of the cluster after the last batch. The mirror has two uses.
It shows the changes of rows by a schema change, which the feed has only as statements. And it has the end of each
batch, which is written to the mirror before any table of the lake gets the batch. So after a kill the same batch is
made again from the same transactions. Each table has the number of its last batch, so no batch is added twice.
"""

import contextlib
import fcntl
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

import apsw
import trio

from bedrockish.errors import UsageError
from bedrockish.transfer.lake_rows import (
    COMMITS,
    COPY,
    Event,
    Image,
    Rows,
    Shape,
    Values,
    commit_rows,
    event_rows,
    shape_of,
)
from bedrockish_journal.feed.change_feed import Committed, parse_cursor
from bedrockish_journal.model.changes import same_value
from bedrockish_journal.model.plain_names import folded
from bedrockish_journal.storage.schema_steps import put_in_force, switch
from bedrockish_journal.storage.table_layout import Applier, RowMismatchError, user_tables
from bedrockish_journal.storage.vector_modules import Connection
from bedrockish_journal.verify.replay import Prepare

BATCH_CHANGES = 20_000  # a batch ends after so many changes, which are in memory together
COPY_ROWS = 100_000  # rows of a copy in a batch
MIRROR = "mirror.db"
_PLACE = """CREATE TABLE IF NOT EXISTS bedrockish_lake(
  batch INTEGER NOT NULL,   -- the last batch that is in the lake
  cursor TEXT,              -- where it ended
  next TEXT,                -- where the batch ends that is being written; NULL: none is
  copied TEXT               -- where the feed goes on after the copy whose rows are being written; NULL: none are
)"""


class Sink(Protocol):
    """The tables of a lake."""

    def name_of(self, table: str) -> str:
        """Return the lake's name of a table of the cluster; names in another case of letters are the same name."""

    def batch(self, table: str) -> int:
        """Return the number of a table's last batch; 0 if the table does not exist."""

    def types(self, table: str) -> Mapping[str, str]:
        """Return the types of the columns that a table has."""

    def append(self, table: str, rows: Rows, batch: int) -> None:
        """Append rows and the number of their batch to a table, atomically; make the table or columns as needed."""


class Lake:
    """One lake, and its mirror, for one process.

    Args:
        directory: the directory of the mirror.
        sink: the tables.
        prepare: registers the plugins' additions with a connection.
    """

    def __init__(self, directory: Path, sink: Sink, prepare: Prepare = lambda _db: None) -> None:
        self._directory, self._sink, self._prepare = directory, sink, prepare
        self._shapes: dict[str, Shape] = {}

    def __enter__(self) -> "Lake":
        """Open the lake, or begin a new one.

        Raises:
            UsageError: another process has the lake, it cannot be written, or its tables are of another mirror.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(_locked(self._directory))
            path = self._directory / MIRROR
            self._db = _open(path, self._prepare)
            stack.callback(self._db.close)
            self._reader = _open(path, self._prepare)
            stack.callback(self._reader.close)
            self._applier = Applier(self._db)
            found = self._sink.batch(COMMITS)
            if not self.batch <= found <= self.batch + (self.ending is not None or self.copied is not None):
                raise UsageError(
                    f"the lake has batch {found}, and its mirror {path} has {self.batch}: one of the two is an older "
                    "copy, or of another lake. Bring the right one, or begin a lake in a new directory"
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def batch(self) -> int:
        """The number of the last batch in the lake."""
        return int(self._db.execute("SELECT batch FROM bedrockish_lake").get)

    @property
    def cursor(self) -> str | None:
        """The cursor at which the last batch ended; None at the beginning."""
        return self._db.execute("SELECT cursor FROM bedrockish_lake").get  # type: ignore[no-any-return]

    @property
    def ending(self) -> str | None:
        """The end of the batch that was being written when the last run ended; None if the last batch is whole."""
        return self._db.execute("SELECT next FROM bedrockish_lake").get  # type: ignore[no-any-return]

    @property
    def copied(self) -> str | None:
        """The cursor at which the feed continues after the copy whose rows are being written; None without a copy."""
        return self._db.execute("SELECT copied FROM bedrockish_lake").get  # type: ignore[no-any-return]

    def write(self, transactions: Sequence[Committed]) -> int:
        """Write a batch: the transactions after ``cursor``, up to ``ending`` if that is not None.

        Returns:
            the number of changes of rows.

        Raises:
            UsageError: the mirror differs from the cluster's state, or a table cannot be written.
        """
        end = str(transactions[-1].cursor)
        assert self.copied is None, "the rows of the copy come first"
        assert self.ending in (None, end), "a batch that was begun is made again as it was"
        self._db.execute("UPDATE bedrockish_lake SET next = ?", (end,)).fetchall()  # durable before any table has it
        try:
            with self._db:
                events = [event for commit in transactions for event in self._apply(commit)]
                self._put(events, commit_rows(transactions))
                self._db.execute("UPDATE bedrockish_lake SET cursor = ?, next = NULL", (end,)).fetchall()
        finally:
            self._shapes.clear()
            self._applier.forget()
        return len(events)

    def write_copy(self) -> Iterator[int]:
        """Write those rows of the lake's initial copy that it lacks; yield after each batch.

        Batches have a fixed number of rows in a fixed order, so an interrupted batch is made again with the same rows.

        Yields:
            the number of rows of the batch.
        """
        if self.copied is None:
            return
        begin = parse_cursor(self.copied)
        commit = Committed(begin, begin.clock, begin.leader, ("", 0), "", (), COPY, (), (), {})
        shapes = [shape_of(self._reader, table.name) for table in user_tables(self._reader)]
        with self._reader:
            every = ((shape, image) for shape in shapes for image in shape.rows(self._reader))
            numbered = islice(enumerate(every), self.batch * COPY_ROWS, None)
            while self.copied is not None:
                events = [
                    Event(commit, number, shape, None, (image[0], None), image)
                    for number, (shape, image) in islice(numbered, COPY_ROWS)
                ]
                with self._db:
                    self._put(events, commit_rows([commit], len(events)))
                    if len(events) < COPY_ROWS:
                        self._db.execute("UPDATE bedrockish_lake SET cursor = copied, copied = NULL").fetchall()
                yield len(events)

    def _put(self, events: Sequence[Event], commits: Rows) -> None:
        """Write a batch; tables that have the batch already are skipped."""
        batch = self.batch + 1
        by_table: dict[str, list[Event]] = {}
        for event in events:
            by_table.setdefault(folded(event.shape.name), []).append(event)
        for of_table in by_table.values():
            table = self._sink.name_of(of_table[-1].shape.name)
            self._append(table, event_rows(of_table, self._sink.types(table)), batch)
        self._append(COMMITS, commits, batch)  # last: a reader that finds a commit finds its rows, too
        self._db.execute("UPDATE bedrockish_lake SET batch = ?", (batch,)).fetchall()

    def _append(self, table: str, rows: Rows, batch: int) -> None:
        if self._sink.batch(table) < batch:
            self._sink.append(table, rows, batch)

    def _apply(self, commit: Committed) -> list[Event]:
        """Apply a transaction to the mirror, and return its changes of rows."""
        try:
            return self._apply_schema(commit) if commit.statements else list(self._apply_rows(commit))
        except (RowMismatchError, apsw.Error) as error:
            raise UsageError(
                f"the mirror of the lake {self._directory} is not what the cluster was before {commit.place[0]}"
                f"{commit.place[1]}: {error}. Somebody has written into it, or a function of a plugin is missing "
                "(--plugin); begin a lake in a new directory if it cannot be brought back"
            ) from error

    def _apply_rows(self, commit: Committed) -> Iterator[Event]:
        makers = commit.makers or (commit.command,) * len(commit.changes)
        for number, (change, maker) in enumerate(zip(commit.changes, makers, strict=True)):
            self._applier.apply(change)
            shape = self._shapes.get(change.table)
            if shape is None:
                shape = self._shapes[change.table] = shape_of(self._db, change.table)
            before = None if change.before is None else dict(zip(change.columns, change.before, strict=True))
            after = None if change.after is None else dict(zip(change.columns, change.after, strict=True))
            yield Event(commit, number, shape, maker, (change.rowid, before), (change.rowid_after, after))

    def _apply_schema(self, commit: Committed) -> list[Event]:
        """Apply a schema change to the mirror, and return its changes of rows, found by comparing the tables.

        A schema change is alone in its batch, so that another connection still sees the tables before it.
        """
        with self._reader:
            old = {folded(table.name): shape_of(self._reader, table.name) for table in user_tables(self._reader)}
            written = self._db.total_changes()
            put_in_force(self._db, commit.statements)
            new = {folded(table.name): shape_of(self._db, table.name) for table in user_tables(self._db)}
            has_written = self._db.total_changes() > written
            found: list[Event] = []
            for name in sorted({*old, *new}):
                was, now = old.get(name), new.get(name)
                if was != now or has_written or _may_replace(commit.statements, name):
                    for before, after in _compared(self._reader, was, self._db, now):
                        shape = now or was
                        assert shape is not None, "it is one of the two"
                        found.append(Event(commit, len(found), shape, commit.command, before, after))
        return found


def _may_replace(statements: Sequence[str], table: str) -> bool:
    """Return whether statements may have put other rows into a table without changing its shape or writing a row.

    A single statement cannot. Of several statements, one may drop the table and another make a table of the same name,
    rename one to it, or exchange columns.

    Args:
        statements: the statements of one schema change.
        table: its folded name.
    """
    # The name as it may be written in the statements, quoted or not.
    written = {table, *(table.replace(mark, mark * 2) for mark in "\"'`")}
    return len(statements) > 1 and any(name in folded(sql) for sql in statements for name in written)


def _compared(
    old: apsw.Connection, was: Shape | None, new: apsw.Connection, now: Shape | None
) -> Iterator[tuple[Image, Image]]:
    """Yield each row that differs between two states of a table, as it is before and after."""
    same_key = was is not None and now is not None and was.key == now.key
    if was is not None:
        for rowid, row in was.rows(old):
            after = now.row(new, rowid, row) if same_key and now is not None else None
            if after is None:
                yield (rowid, row), (rowid, None)
            elif not _same(row, after):
                yield (rowid, row), (rowid, after)
    if now is not None:
        for rowid, row in now.rows(new):
            if not same_key or was is None or was.row(old, rowid, row) is None:
                yield (rowid, None), (rowid, row)


def _same(left: Values, right: Values) -> bool:
    old, new = ({folded(name): value for name, value in row.items()} for row in (left, right))
    return old.keys() == new.keys() and all(same_value(value, new[name]) for name, value in old.items())


class Batcher:
    """The division of a feed into batches.

    Args:
        ending: the cursor at which the first batch must end; None if it may end anywhere.
    """

    def __init__(self, ending: str | None) -> None:
        self._ending = ending
        self._batch: list[Committed] = []
        self._changes = 0

    @property
    def may_end(self) -> bool:
        """Whether a batch has begun, and may end here: a batch that an earlier run began must end at ``ending``."""
        return bool(self._batch) and self._ending is None

    def add(self, one: Committed) -> list[list[Committed]]:
        """Add the next transaction; return the batches that are complete now."""
        # A schema change has a batch of its own. A batch that an earlier run began ends at ``ending`` only.
        over = self.rest() if one.statements else []
        self._batch.append(one)
        self._changes += len(one.changes)
        if self._ending == str(one.cursor):
            self._ending = None
            return self.rest()
        if one.statements or self._changes >= BATCH_CHANGES:
            over += self.rest()
        return over

    def rest(self) -> list[list[Committed]]:
        """Return the batch, in a list, if it may end here; else an empty list."""
        if not self.may_end:
            return []
        batch, self._batch, self._changes = self._batch, [], 0
        return [batch]


async def fill(
    feed: AsyncIterator[Committed],
    batcher: Batcher,
    every_s: float,
    write: Callable[[list[Committed]], Awaitable[None]],
) -> None:
    """Write a feed batch by batch, each at most ``every_s`` seconds after its first transaction came.

    The feed is interrupted only when there is something to write: otherwise a slow node would be asked again for ever.
    """
    until = math.inf
    is_over = False
    while not is_over:
        over: list[list[Committed]] = []
        with trio.move_on_at(until) as scope:
            try:
                over = batcher.add(await anext(feed))
            except StopAsyncIteration:
                is_over = True
        if is_over or scope.cancelled_caught:
            over = batcher.rest()
        for batch in over:
            await write(batch)
        if not batcher.may_end:
            until = math.inf
        elif over or until == math.inf:
            until = trio.current_time() + every_s


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other processes from writing the same lake."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / f"{MIRROR}-lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UsageError(f"the lake cannot be written: {error.filename}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UsageError(f"another program writes the lake {directory}; end it first") from None
    finally:
        os.close(lock)


def begin_with(copy: Path, cursor: str, directory: Path) -> None:
    """Begin a new lake with the rows of a copy that ``bedrockish export`` has made; the copy becomes the mirror.

    Args:
        copy: the file, in the lake's directory.
        cursor: the cursor at which the feed continues after the copy.
        directory: the directory of the lake.
    """
    db = Connection(str(copy))
    try:
        with db:
            db.execute(_PLACE).fetchall()
            db.execute("INSERT INTO bedrockish_lake VALUES (0, NULL, NULL, ?)", (cursor,)).fetchall()
    finally:
        db.close()
    os.replace(copy, directory / MIRROR)  # until then the lake is not begun


def _open(path: Path, prepare: Prepare) -> apsw.Connection:
    try:
        db = Connection(str(path))
        prepare(db)
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA synchronous = FULL").fetchall()
        switch(db, on=False)  # the feed has the effects of triggers, foreign keys and CHECKs
        db.execute(_PLACE).fetchall()
        if db.execute("SELECT count(*) FROM bedrockish_lake").get == 0:
            db.execute("INSERT INTO bedrockish_lake VALUES (0, NULL, NULL, NULL)").fetchall()
    except apsw.Error as error:
        raise UsageError(f"the mirror {path} cannot be opened: {error}; bring another copy, or begin anew") from error
    return db
