"""A lake: the change feed as tables of Delta Lake, each change there once, whatever is killed when.

Beside the lake there is a mirror, a SQLite file that is what the cluster was after the last batch. It has two uses. It
says what a change of the schema did to rows, which the feed has only as statements. And it keeps the place: the end of
a batch is written down before any table of the lake gets it, so after a kill the same batch is made again, of the same
transactions; each table knows the last batch that it has, and does not take it twice.
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

BATCH_CHANGES = 20_000  # after so many a batch ends; they are in memory together
COPY_ROWS = 100_000  # rows of a copy in a batch
MIRROR = "mirror.db"
_PLACE = """CREATE TABLE IF NOT EXISTS bedrockish_lake(
  batch INTEGER NOT NULL,   -- the last batch that is in the lake
  cursor TEXT,              -- where it ended
  next TEXT,                -- where the batch ends that is being written; NULL: none is
  copied TEXT               -- where the feed goes on after the copy whose rows are being written; NULL: none are
)"""


class Sink(Protocol):
    """Tables of a lake."""

    def name_of(self, table: str) -> str:
        """Return what the lake calls a table of the cluster; letters in either case are the same to it."""

    def batch(self, table: str) -> int:
        """Return the last batch that a table has; 0 for one that is not there."""

    def types(self, table: str) -> Mapping[str, str]:
        """Return the types of the columns that a table has."""

    def append(self, table: str, rows: Rows, batch: int) -> None:
        """Add rows to a table, which is made or gets columns as needed; all of it or nothing, with its number."""


class Lake:
    """One lake, and its mirror, for one process.

    Args:
        directory: where the mirror is.
        sink: the tables.
        prepare: gives a connection what plugins of the nodes add.
    """

    def __init__(self, directory: Path, sink: Sink, prepare: Prepare = lambda _db: None) -> None:
        self._directory, self._sink, self._prepare = directory, sink, prepare
        self._shapes: dict[str, Shape] = {}

    def __enter__(self) -> "Lake":
        """Open it, or begin a new one.

        Raises:
            UsageError: another process has it, it cannot be written, or the tables are of another mirror.
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
        """The last batch that is in the lake."""
        return int(self._db.execute("SELECT batch FROM bedrockish_lake").get)

    @property
    def cursor(self) -> str | None:
        """Where it ended; None at the beginning."""
        return self._db.execute("SELECT cursor FROM bedrockish_lake").get  # type: ignore[no-any-return]

    @property
    def ending(self) -> str | None:
        """Where the batch ends that was being written when this was last left; None if none was."""
        return self._db.execute("SELECT next FROM bedrockish_lake").get  # type: ignore[no-any-return]

    @property
    def copied(self) -> str | None:
        """Where the feed goes on after the copy whose rows are being written; None if none are."""
        return self._db.execute("SELECT copied FROM bedrockish_lake").get  # type: ignore[no-any-return]

    def write(self, transactions: Sequence[Committed]) -> int:
        """Write a batch: what comes in the feed after ``cursor``, up to ``ending`` if that is something.

        Returns:
            how many changes of rows it has.

        Raises:
            UsageError: the mirror is not what the cluster was, or a table cannot be written.
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
        """Write the rows of the copy that a lake begins with, as far as they are not there; yield after each batch.

        A batch is so many of its rows, in an order that stays the same, so one that was left is made again as it was.

        Yields:
            how many rows the batch has.
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
        """Write a batch; tables that have it already are left alone."""
        batch = self.batch + 1
        by_table: dict[str, list[Event]] = {}
        for event in events:
            by_table.setdefault(folded(event.shape.name), []).append(event)
        for of_table in by_table.values():
            table = self._sink.name_of(of_table[-1].shape.name)
            self._append(table, event_rows(of_table, self._sink.types(table)), batch)
        self._append(COMMITS, commits, batch)  # last: who finds a commit there has its rows
        self._db.execute("UPDATE bedrockish_lake SET batch = ?", (batch,)).fetchall()

    def _append(self, table: str, rows: Rows, batch: int) -> None:
        if self._sink.batch(table) < batch:
            self._sink.append(table, rows, batch)

    def _apply(self, commit: Committed) -> list[Event]:
        """Do to the mirror what a transaction did, and return it row by row."""
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
        """A change of the schema comes as statements: what they did to rows is seen by comparing the tables.

        It is alone in its batch, so that another connection still sees what was before.
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
    """Whether statements may have put other rows into a table without a change of its shape or a written row.

    One statement cannot. Of several, one may drop the table and another one make or rename a table to the same name,
    or exchange columns.

    Args:
        statements: of one change of the schema.
        table: its folded name.
    """
    written = {table, *(table.replace(mark, mark * 2) for mark in "\"'`")}  # as it stands there, quoted or not
    return len(statements) > 1 and any(name in folded(sql) for sql in statements for name in written)


def _compared(
    old: apsw.Connection, was: Shape | None, new: apsw.Connection, now: Shape | None
) -> Iterator[tuple[Image, Image]]:
    """Yield each row that is otherwise in one of two states of a table: before, and after."""
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
    """Cuts a feed into batches.

    Args:
        ending: where the first one has to end; None: where it is convenient.
    """

    def __init__(self, ending: str | None) -> None:
        self._ending = ending
        self._batch: list[Committed] = []
        self._changes = 0

    @property
    def may_end(self) -> bool:
        """Whether there is a batch, and it may end here: one that was begun before has to end where it did."""
        return bool(self._batch) and self._ending is None

    def add(self, one: Committed) -> list[list[Committed]]:
        """Take the next transaction; return the batches that are over now."""
        # A change of the schema has a batch of its own. If it has been begun, it stands there as it is.
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
        """End the batch, as far as it may end here."""
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
    """Let a new lake begin with the rows of a copy, as ``bedrockish export`` makes it, which becomes its mirror.

    Args:
        copy: the file, in the lake's directory.
        cursor: where the feed goes on after it.
        directory: of the lake.
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
        switch(db, on=False)  # what triggers, foreign keys and CHECKs did is in the feed
        db.execute(_PLACE).fetchall()
        if db.execute("SELECT count(*) FROM bedrockish_lake").get == 0:
            db.execute("INSERT INTO bedrockish_lake VALUES (0, NULL, NULL, NULL)").fetchall()
    except apsw.Error as error:
        raise UsageError(f"the mirror {path} cannot be opened: {error}; bring another copy, or begin anew") from error
    return db
