"""The batch: the transaction that is always open on the writing connection.

Every write of the node goes into the open batch. ``flush`` commits it and opens the next one. SQLite sometimes rolls
back the whole transaction because one statement failed; ``redo`` then writes the batch again from the list of its
actions, so no request can undo a decided write.

The connection has one user at a time: the engine, an open transaction of a client (the *guest*, whose rows are rolled
back when the engine needs the connection), or another thread (between ``hand_over`` and ``take_back``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import apsw

from bedrockish.engine.execution.interfaces import Guest
from bedrockish.engine.sqlite.errors import FOREIGN_WRITER, broken
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.storage.wal import HELD, Wal
from bedrockish.errors import DamagedError, EntryMismatchError, NoRoomError

LONG_BYTES = 1 << 20  # a longer batch is flushed in another thread, so that clients need not wait for it
FRAMES = 500  # an upper bound of the WAL frames of a batch that is not long


class WriterState(Enum):
    """The state of the writing connection."""

    STARTING = "the file is read, and no batch is open yet"
    OPEN = "the batch is open"
    REDOING = "the batch is being written again"
    COMMITTING = "a batch is committed, and the next one is not open yet"
    CLOSED = "the connection is closed"


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks of the batch to its engine."""

    discard_changes: Callable[[], None]  # ends the capture of row changes
    reload: Callable[[], None]  # reads the schema again, after SQLite has rolled back the batch
    # Writes the rows that every batch has, right before the commit; takes the batch's number.
    seal: Callable[[int], None]
    committed: Callable[[], None]  # called right after the commit, before the next batch is open


class Batch:
    """The open batch of one node; ``number`` batches were committed in the life of the file."""

    def __init__(self, db: apsw.Connection, wal: Wal, limits: Limits, hooks: Hooks, number: int) -> None:
        self._db, self._wal, self._limits, self._hooks, self.number = db, wal, limits, hooks, number
        self.control = db.cursor().execute  # one cursor for all savepoints: a cursor costs more than a savepoint
        self.state = WriterState.STARTING
        self.failed = False  # whether the file or the machine failed, so that the batch is never committed
        self.size = 0  # about how many bytes the open batch has
        self.guest: Guest | None = None  # the executor of clients' open transactions, which borrow the connection
        self._actions: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._wait: Callable[[], None] | None = None  # waits for the thread that has the connection; None without one

    def open(self) -> None:
        """Open the first batch, or the next one."""
        self.control("BEGIN IMMEDIATE")
        if self.state is WriterState.STARTING:
            self._wal.begun()
        self.state = WriterState.OPEN

    @property
    def is_dirty(self) -> bool:
        """Whether the batch has a write, or another thread uses it; otherwise a new reader sees every applied entry."""
        return bool(self._actions) or self._wait is not None

    @property
    def is_long(self) -> bool:
        """Whether to call ``flush`` in another thread: the batch is large, or ``flush`` may restart the log."""
        return bool(self._actions) and (self.size > LONG_BYTES or self.may_finish_log)

    @property
    def may_finish_log(self) -> bool:
        """Whether the next ``flush`` may restart the write-ahead log, so that held snapshots should be released."""
        return self._wal.is_to_finish(self._limits.wal_frames, self._limits.wal_frames_max, FRAMES)

    # -- users of the connection -----------------------------------------------------------------------------------

    def hand_over(self, wait: Callable[[], None]) -> None:
        """Give the connection to a thread until ``take_back``; ``wait`` blocks every other thread until then.

        Until then, another user waits for that thread, or tests ``is_in_thread`` and tries again later.
        """
        assert self._wait is None, "only one thread at a time may have the writer"
        self.evict_guest()
        self._wait = wait

    def take_back(self) -> None:
        """Take the connection back from another thread, whose work has ended."""
        self._wait = None

    @property
    def is_in_thread(self) -> bool:
        """True while another thread has the connection."""
        return self._wait is not None

    def wait_for_writer(self) -> None:
        """Wait until no other thread has the connection, and write the batch again if SQLite has rolled it back."""
        wait = self._wait
        if wait is not None:
            wait()
        elif self.state is WriterState.OPEN and not self._db.in_transaction and not self.failed:
            self._write_again()

    def _write_again(self) -> None:
        """Write the batch again, because SQLite has rolled it back during a read, for lack of disk space or memory.

        Otherwise the next flush would commit later writes without the earlier ones.
        """
        if self.guest is not None:
            self.guest.note_lost_rows()
        self._hooks.discard_changes()
        try:
            self.redo()
        except apsw.Error as error:
            raise self.broken(error) from error

    def evict_guest(self) -> None:
        """Wait until no other thread has the connection, and roll back an open transaction's rows in the batch."""
        self.wait_for_writer()
        if self.guest is not None and self.guest.swapped_in is not None:
            try:
                self.guest.swap_out()
            except apsw.Error as error:  # rows of an open transaction may be left in the batch
                raise self.broken(error) from error

    # -- writes ----------------------------------------------------------------------------------------------------

    def write(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run an action in the batch, and record it for ``redo``.

        Raises:
            EntryMismatchError: the entry does not fit the tables; the batch is unchanged.
            DamagedError: the file failed; the node must stop.
        """
        self.evict_guest()
        try:
            action(*arguments)
        except EntryMismatchError:
            raise
        except DamagedError:
            self.failed = True
            raise
        except apsw.Error as error:
            raise self.broken(error) from error
        self._actions.append((action, arguments))

    def redo(self) -> None:
        """Write the batch again after it was rolled back because of a request, or of an entry that does not fit."""
        self._db.execute("BEGIN IMMEDIATE")
        self._wal.rolled_back()
        self._hooks.reload()
        before, self.state = self.state, WriterState.REDOING
        for action, arguments in self._actions:
            try:
                action(*arguments)
            except DamagedError:
                self.failed = True
                raise
            except apsw.Error as error:
                raise self.broken(error) from error
        self.state = before

    def give_up(self) -> None:
        """Roll the batch back and mark it as failed: it may have only a part of a write, and must not be committed."""
        self.failed = True
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def broken(self, error: apsw.Error) -> DamagedError:
        """Mark the batch as failed, so that it is never committed; return the error with which the node stops."""
        self.failed = True
        return broken(error, self._db.system_errno)

    def flush(self) -> bool:
        """Commit the batch, which the next sync makes durable, and open the next one; return False if it was empty.

        Raises:
            DamagedError: the file failed; the node must stop.
        """
        if self.failed:
            raise DamagedError("the node's file failed, and nothing more is written to it; start the node again")
        if not self._actions:
            return False
        self.evict_guest()
        if not self._wal.has_room():
            self.failed = True
            raise NoRoomError(HELD)
        try:
            self._hooks.seal(self.number + 1)
            self.state = WriterState.COMMITTING
            self.control("COMMIT")
            self.number += 1
            self._actions.clear()
            self.size = 0
            self._hooks.committed()
            if self._wal.is_to_finish(self._limits.wal_frames, self._limits.wal_frames_max):
                self._wal.finish(self._db, self._limits.wal_frames_max)
            self.open()
            if self._wal.is_overtaken():
                # Another process has committed between two batches of this node.
                self.failed = True
                raise DamagedError(FOREIGN_WRITER)
            self._wal.reserve(self._limits.wal_frames_max)
        except apsw.Error as error:
            raise self.broken(error) from error
        return True

    def shorten_log(self) -> bool:
        """Restart a log that is long for its disk, if the node is idle; a busy node does that at the end of a batch.

        Return False if a checkpoint in another thread must copy most of the log first.

        Raises:
            DamagedError: the file failed; the node must stop.
        """
        is_idle = self.state is WriterState.OPEN and not (self._actions or self.is_in_thread or self.failed)
        if not (is_idle and self._wal.is_long):
            return True
        if not self._wal.is_nearly_copied(self._limits.wal_frames):
            return False
        self.evict_guest()
        try:
            self.control("COMMIT")
            self._wal.finish(self._db, self._limits.wal_frames_max)
            self.open()
        except apsw.Error as error:
            raise self.broken(error) from error
        return True

    def close(self) -> None:
        """Mark the batch as closed, and wait until no other thread has the connection."""
        self.state = WriterState.CLOSED
        self.wait_for_writer()

    def discard(self) -> None:
        """Roll back the open batch, after ``close``."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
