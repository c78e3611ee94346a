"""Makes commits durable, and keeps the WAL small.

With ``synchronous=NORMAL`` SQLite writes commits to the WAL and syncs it only at checkpoints. Our own ``fdatasync``
after a batch makes the batch durable, in a helper thread, while the connection continues. SQLite itself makes the other
syncs: a checkpoint syncs the WAL before it copies pages, and the database file after the last page; and when the WAL
restarts, SQLite syncs its new header before it writes a frame.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from bedrockish.common.durable_files import sync
from bedrockish.engine.sqlite.errors import FULL, NO_ROOM, lacks_room
from bedrockish.errors import ConfigError, DamagedError, NoRoomError, UnavailableError
from bedrockish_journal.storage.vector_modules import ModuleConnection

PRIVATE = 0o600  # the mode of the files of a database: only the owner may read and write
FRAME_BYTES = 24 + 4096
WAL_HEADER_BYTES, SALTS_AT, SALTS_BYTES = 32, 16, 8
COPY_PAGES = 2_048  # pages that are copied at a time, in some milliseconds
RESERVE_BYTES = 1 << 20  # bytes by which the WAL is lengthened before its frames fill it
_ZEROS = bytes(RESERVE_BYTES)  # kept, because allocating it each time would take half as long as the write
RESERVE_LEAST = 64  # the WAL is lengthened when it has room for fewer frames; a longer batch lengthens it itself
ROOM_PARTS = 8  # on a small disk, the WAL restarts at 1/8 of the room that the database leaves
FEWEST_FRAMES = 1_000  # on a disk without room, the WAL restarts only from this many frames on
LATE_MS = 100  # how long ``finish`` waits for readers when the log has twice the frames at which it should restart
LATE_PARTS = 4  # if readers remain, ``finish`` waits again when the log has grown by 1/4 of the length it should get
READERS_MS = 2_000  # how long the end of a node waits for readers of a file that was moved
HELD = f"a program that reads the database keeps its log from a restart, and the log has filled the disk; {FULL}"
_REPLACE = "run 'bedrockish member replace URL NODE NEW' at another node, and 'bedrockish join URL' for the node NEW"
OF_MOVED = ".of-moved"  # appended to the name of a log whose file was moved, and another file put in its place


class Wal:
    """The -wal file of an open database: a descriptor of the node's own for syncs, and SQLite's checkpoints.

    Of the files that SQLite has open, only the -wal may be opened here: closing a descriptor on the database file would
    drop SQLite's locks.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db, self._version = db, 0
        self._path = Path(db.filename_wal)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._checkpointer: apsw.Connection | None = None
        self._file = db.filename
        self._places = _Places(self._file)
        # Count the frames that a killed process left in the WAL: workspaces read the WAL by themselves.
        self.frames = max(0, db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_NOOP)[0])
        try:
            if self.frames:
                self._write_again()
            self._most_by_room = self._frames_by_room()  # frames at which the WAL restarts because of a small disk
            self._copied = self._copy_first()  # how many frames the last checkpoint has copied
            self._is_held = self._copied < self.frames  # whether a reader kept the last checkpoint from copying all
            self._late_at = 0  # frames from which on ``finish`` waits for readers again
            if not self.has_room():
                raise NoRoomError(HELD)
        except BaseException:
            self.close()  # no descriptor may leak: a node without room opens its file again and again
            raise
        self._copied_at = self.frames  # frames when the last background checkpoint began
        self._length = 0  # a lower bound of the file's bytes
        self._reserved_at = self.frames  # frames when ``reserve`` was called last
        db.wal_autocheckpoint(0)  # an automatic checkpoint would delay some commit
        db.set_wal_hook(self._committed)
        sync(self._path.parent)

    def _copy_first(self) -> int:
        """Copy the frames of a killed process into the database file; return how many are copied.

        A log that is long for its disk is then emptied, because it may have taken the room that the node needs.

        Raises:
            NoRoomError: the disk is full. The frames stay in the log, and the node waits for room.
        """
        try:
            frames, copied = self._db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
            if frames == copied >= 2 * self._most_by_room:
                with suppress(apsw.BusyError):
                    self._db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
                    self.frames = copied = 0
            return max(0, copied)
        except (apsw.FullError, apsw.IOError) as error:
            if not lacks_room(error, self._db.system_errno):
                raise
            raise NoRoomError(f"{self._path} cannot be copied into the database file: {error}; {FULL}") from error

    def _write_again(self) -> None:
        """Write all frames again, with the bytes that they have, before the node's first sync.

        The last sync of an earlier process of the node may have failed: the kernel then counts the pages as written,
        and the next sync would succeed without them. After a power failure only the beginning of the log would be left:
        SQLite would lose the later commits, and read old pages of the log in place of newer ones in the database file.
        """
        end = WAL_HEADER_BYTES + self.frames * FRAME_BYTES
        try:
            for begin in range(0, end, RESERVE_BYTES):
                data = os.pread(self._fd, min(RESERVE_BYTES, end - begin), begin)
                while data:
                    written = os.pwrite(self._fd, data, begin)
                    data, begin = data[written:], begin + written
        except OSError as error:
            raise self._failed("written", error) from error

    def _failed(self, what: str, error: OSError) -> DamagedError:
        """Return the error with which the node stops because the log cannot be ``what``: written or synced."""
        if error.errno in NO_ROOM:
            return NoRoomError(f"{self._path} cannot be {what}: {error.strerror}; {FULL}")
        culprit = "permissions of its folder" if error.errno in (errno.EACCES, errno.EPERM) else "disk"
        why = f"{self._path} cannot be {what}: {error.strerror}"
        return DamagedError(f"{why}; check the {culprit} and start the node again")

    @property
    def held_frames(self) -> int:
        """How many frames the WAL keeps because a reader needs old frames; 0 if no reader does."""
        return self.frames if self._is_held and self.frames >= self._copied_at else 0

    def is_held(self, most: int) -> bool:
        """Return whether a reader kept the last checkpoint from copying a WAL that restarts at ``most`` frames."""
        return self.held_frames >= self._bounded(most)

    @property
    def descriptor(self) -> int:
        """The file descriptor; a caller that keeps it must duplicate it."""
        return self._fd

    def begun(self) -> None:
        """Record that the writer's first transaction is open: from now on, other programs' commits are detected."""
        self._version = self._data_version()

    def is_overtaken(self) -> bool:
        """Return whether another program has committed since ``begun``; call this in a transaction of the writer."""
        return self._data_version() != self._version

    def rolled_back(self) -> None:
        """Take SQLite's new data_version as our own, unless another program has committed; after a rollback by SQLite.

        After a failed write SQLite drops its cached pages, and changes data_version as if another program had
        committed. Only the frames in the WAL show which of the two has happened.
        """
        if not self._has_foreign_commit():
            self._version = self._data_version()

    def _data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").get)

    def _has_foreign_commit(self) -> bool:
        """Return whether the WAL has a commit after this node's last one; rolled-back frames are not a commit."""
        salts = os.pread(self._fd, SALTS_BYTES, SALTS_AT)
        frame = self.frames
        while True:
            # A frame's header in SQLite's format: page, database size (0 unless it ends a commit), salts, checksums.
            header = os.pread(self._fd, 8 + SALTS_BYTES, WAL_HEADER_BYTES + frame * FRAME_BYTES)
            if len(header) < 8 + SALTS_BYTES or header[8:] != salts:
                return False
            if any(header[4:8]):
                return True
            frame += 1

    def _committed(self, _db: apsw.Connection, _name: str, frames: int) -> int:
        self.frames = frames
        return apsw.SQLITE_OK

    def sync(self) -> None:
        """Make every commit before this call durable. May be called in another thread.

        Raises:
            DamagedError: the file or its log is gone, or the disk failed: acknowledge no commit since the last sync.
        """
        try:
            if self._is_removed and self._path.exists():
                raise DamagedError(f"{self._path} was replaced by another file while the node ran; {_REPLACE}")
            if self._is_removed:
                raise DamagedError(
                    f"{self._path} was removed while the node ran; its content is copied into the database file unless "
                    "a program reads the file: end the programs that have it open, and start the node again; if other "
                    f"nodes refuse it, or it does not start, {_REPLACE}"
                )
            self._places.check()
            os.fdatasync(self._fd)
        except OSError as error:
            # After a failed sync the kernel may have dropped the pages: a second sync could succeed without the data.
            raise self._failed("synced", error) from error

    @property
    def _is_removed(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def _save_log(self) -> None:
        """Copy the log, whose name was removed, into the database file, unless another log has this name now.

        The programs that read the database have the removed log open. A later node must not share the index of the log
        with them: they would look in the removed log for frames of the later node's log.
        """
        if self._path.exists():
            return
        with suppress(apsw.Error, OSError):
            self._db.set_busy_timeout(READERS_MS)
            frames, copied = self._db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
            if frames == copied:
                os.unlink(f"{self._file}-shm")

    def _take_log_along(self) -> None:
        """Copy the log into the displaced database file, and remove the log, which fits no other file.

        A reader or a full disk may keep frames from being copied. The database file is malformed without them, so the
        log stays for a file that is put back; if another file stands at the path, the log gets another name.
        """
        is_copied = False
        with suppress(apsw.Error):
            self._db.set_busy_timeout(READERS_MS)
            frames, copied = self._db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
            is_copied = frames == copied
        with suppress(OSError):
            if not os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
                return
            if is_copied:
                self._path.unlink()
            elif os.path.exists(self._file):
                self._path.rename(f"{self._path}{OF_MOVED}")

    def _frames_by_room(self) -> int:
        """Return at how many frames the WAL restarts so that it leaves room on its disk.

        A checkpoint lengthens the database file. A WAL that has taken the last room of the disk could not be copied,
        and so would keep that room for ever.
        """
        try:
            room, length = os.fstatvfs(self._fd), os.fstat(self._fd).st_size
        except OSError:
            return FEWEST_FRAMES
        free = room.f_bavail * room.f_frsize
        return max((free + length) // ROOM_PARTS // FRAME_BYTES, FEWEST_FRAMES)

    @property
    def is_long(self) -> bool:
        """Whether the log has twice the frames at which it should restart on a disk with this much room."""
        return self.frames >= 2 * self._most_by_room

    def has_room(self) -> bool:
        """Return whether the disk has room for the pages by which copying the log will lengthen the database file.

        A log that a reader keeps from restarting would take this room, too, and then could never be copied. Without
        such a reader, the log restarts after the next batch.
        """
        is_held = self._is_held or self._late_at > 0
        if not (is_held and self.is_long) or self._copied >= self.frames:
            return True
        from bedrockish.engine.storage.scratch_files import reserve  # not at the top: programs load this module, too

        try:
            room, length = os.fstatvfs(self._fd), os.stat(self._file).st_size
        except OSError:
            return True
        whole = self._db.pragma("page_count") * self._db.pragma("page_size")
        kept = reserve({"total_bytes": room.f_blocks * room.f_frsize}) // 2
        return bool(room.f_bavail * room.f_frsize > whole - length + kept)

    def _bounded(self, most: int) -> int:
        """Return the frames at which the WAL restarts: ``most``, or fewer on a small disk."""
        return min(most, self._most_by_room)

    def reserve(self, most: int) -> None:
        """After a short batch, lengthen the file by zeros if few frames fit in; the WAL restarts at ``most`` frames.

        The writer must have begun its next transaction, and not written in it, so that nothing else writes to the file.
        A sync of a file that has grown also writes the file's length; a sync of frames that replace zeros takes less
        than half the time. SQLite takes the zeros as the end of the log, like old frames from before a restart.
        """
        short, self._reserved_at = self.frames - self._reserved_at <= RESERVE_LEAST, self.frames
        most = self._bounded(most)
        end = WAL_HEADER_BYTES + min(self.frames + RESERVE_LEAST, most) * FRAME_BYTES
        if not short or end <= self._length:
            return
        with suppress(OSError):  # without room for zeros the file grows by its frames
            self._length = os.fstat(self._fd).st_size
            if end > self._length:
                room = min(RESERVE_BYTES, WAL_HEADER_BYTES + most * FRAME_BYTES - self._length)
                self._length += os.pwrite(self._fd, _ZEROS[:room], self._length)

    def grown(self) -> int:
        """Return the number of frames written since the last background checkpoint began."""
        if self.frames < self._copied_at:
            self._copied_at = self._copied = self._late_at = 0  # the WAL restarted
            self._is_held = False
        return self.frames - self._copied_at

    def is_to_copy(self, few: int, most: int) -> bool:
        """Return whether to call ``checkpoint``: ``few`` frames are new, or the WAL is about to be finished.

        In the second case the checkpoint copies and syncs nearly all frames in the background, so that ``finish``,
        which blocks the node, has few left.
        """
        return self.grown() >= (few if self.frames < self._bounded(most) else _left_max(few))

    def is_to_finish(self, few: int, most: int, more: int = 0) -> bool:
        """Return whether to call ``finish`` at a batch's end: the WAL has ``most`` frames, and nearly all are copied.

        With ``more``, return whether the next ``more`` frames may bring the WAL to that point.

        At twice ``most`` frames, the background checkpoint is too slow: return True even if many frames are left. But
        while a reader holds the checkpoint back, wait until the reader is gone and few frames are left.
        """
        frames, most = self.frames + more, self._bounded(most)
        if frames < most:
            return False  # the usual case comes first, because each batch calls this several times
        return self.is_nearly_copied(few) or (frames >= 2 * most and not self._is_held)

    def is_nearly_copied(self, few: int) -> bool:
        """Return whether so few frames are left to copy that the whole node may wait for it."""
        self.grown()
        return self.frames - self._copied < _left_max(few)

    def checkpoint(self) -> tuple[int, int]:
        """Copy frames of the WAL into the database file as far as readers allow, without blocking them or the writer.

        May run in another thread. Return how many frames the WAL has, and how many of them are copied now.

        Raises:
            DamagedError: a sync failed, so that the next one could succeed without the data, or the file was moved or
                replaced; the node must stop.
            UnavailableError: the frames cannot be copied now; nothing is lost, and the WAL grows further.
        """
        try:
            if self._checkpointer is None:
                with suppress(OSError):
                    self._places.check()  # otherwise the log would be copied into the other file
                self._checkpointer = apsw.Connection(self._file)
                self._checkpointer.wal_autocheckpoint(0)
                self._checkpointer.execute("PRAGMA synchronous = NORMAL")
            self._copied_at, self._most_by_room = self.frames, self._frames_by_room()
            # A connection that has read nothing yet does not know the WAL, and its checkpoint would do nothing.
            self._checkpointer.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
            frames, self._copied = self._checkpointer.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._is_held = self._copied < frames
            return frames, self._copied
        except apsw.BusyError:
            return self.frames, 0  # another checkpoint is running: it does the same work
        except (apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError) as error:
            raise UnavailableError(f"the write-ahead log cannot be copied into the database file: {error}") from error
        except apsw.IOError as error:
            if getattr(error, "extendedresult", 0) != apsw.SQLITE_IOERR_FSYNC:
                raise
            raise DamagedError(
                f"{self._file} or its -wal cannot be synced: {error}; check the disk and start the node again"
            ) from error

    def finish(self, db: apsw.Connection, most: int) -> None:
        """Copy the remaining frames between two batches, so that the next commit restarts the WAL unless a reader needs
        old frames.

        The file keeps its length unless it is more than twice ``most`` frames: cutting 130 MB off takes a tenth of a
        second, and a sync is faster if frames overwrite the file than if they lengthen it.

        If short readers overlap, one of them may need old frames at any time. So at twice ``most`` frames, this waits a
        moment until all present readers have ended: new ones see the newest frames, and do not delay a restart.
        """
        assert not db.in_transaction
        try:
            frames, copied = db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._copied, most = copied, self._bounded(most)
            is_late = frames >= max(2 * most, self._late_at)
            if frames != copied and not is_late:
                return
            if is_late:
                self._late_at = frames + most // LATE_PARTS
                db.set_busy_timeout(LATE_MS)
            is_large = os.fstat(self._fd).st_size > 2 * most * FRAME_BYTES
            try:
                how = apsw.SQLITE_CHECKPOINT_TRUNCATE if is_large else apsw.SQLITE_CHECKPOINT_RESTART
                db.wal_checkpoint("main", how)
                self.frames = self._length = self._late_at = 0
            finally:
                db.set_busy_timeout(0)
        except (apsw.BusyError, apsw.FullError):
            pass  # the background checkpoint runs, a reader needs old frames, or the disk is full: retry later

    def close(self) -> None:
        """Close the descriptor and the checkpoints' connection; the owner closes the database connection after this."""
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None
        if self._fd >= 0:
            with suppress(DamagedError, OSError):
                self._places.check()  # the file may have been replaced since the last sync
            if self._places.is_displaced:
                self._take_log_along()
            elif self._is_removed:
                self._save_log()
            os.close(self._fd)
            self._fd = -1


def create_private(path: Path) -> None:
    """Create an empty file that only its owner may read and write, unless it exists.

    SQLite gives its -wal and -shm the same mode. Call this before SQLite opens the file: closing any descriptor on a
    database file drops SQLite's locks on the file.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))


def copy_file(source: apsw.Connection, path: Path, go_on: Callable[[], None] = lambda: None) -> None:
    """Copy a database page by page into a new file, durably, as it is now; the connection has no transaction.

    ``go_on`` is called after every ``COPY_PAGES`` pages; an error that it raises ends the copy.

    Raises:
        ConfigError: the file exists already, or cannot be written.
    """
    if path.exists():
        raise ConfigError(f"{path} is there already; give another path")
    try:
        create_private(path)
        target = apsw.Connection(str(path))
        source.execute("BEGIN")  # otherwise a commit between two steps would make SQLite start over
        try:
            source.execute("PRAGMA main.user_version").fetchall()
            with target.backup("main", source, "main") as backup:
                while not backup.done:
                    backup.step(COPY_PAGES)
                    go_on()
        finally:
            source.execute("ROLLBACK")
            target.close()
        sync(path)
        sync(path.resolve().parent)
    except (apsw.Error, OSError) as error:
        why = "the disk is full" if isinstance(error, apsw.FullError) else error  # SQLite calls that "not an error"
        raise ConfigError(f"{path} cannot be written: {why}; give a path with enough free space") from error


@contextmanager
def changing(copy: Path, task: str = "be finished", again: str = "try again") -> Iterator[apsw.Connection]:
    """Open a copy of a database, which no other program has open, and make it durable afterwards.

    Raises:
        ConfigError: the copy is not a database, or cannot be written.
    """
    try:
        with closing(ModuleConnection(str(copy), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            yield db
        sync(copy)
    except (apsw.Error, OSError) as error:
        raise ConfigError(f"{copy} cannot {task}: {error}; check the disk and {again}") from error


def _left_max(few: int) -> int:
    """Return the most frames that ``finish`` may copy and sync, while the whole node waits."""
    return max(1, few // 4)


class _Places:
    """The database file and SQLite's index of its log, and whether they are still at their paths."""

    def __init__(self, database: str) -> None:
        self._database, self._index = database, f"{database}-shm"
        self._database_stat, self._index_stat = os.stat(self._database), os.stat(self._index)
        self.is_displaced = False  # whether another file, or none, stood at the database's path at the last check

    def check(self) -> None:
        """Check that the database file and the index of its log are still at their paths.

        With another file at the database's path, SQLite would apply the log to that file after a kill of the node. A
        program that finds no index makes another one, and would then miss commits and locks.

        Raises:
            DamagedError: a file was moved, removed or replaced.
        """
        self.is_displaced = not _is_at(self._database, self._database_stat)
        if self.is_displaced:
            raise DamagedError(
                f"{self._database} was moved, removed or replaced while the node ran; put it back if it was moved, or "
                f"else {_REPLACE}"
            )
        if not _is_at(self._index, self._index_stat):
            raise DamagedError(
                f"{self._index} was moved, removed or replaced while the node ran; end the programs that have the "
                "database open, and start the node again"
            )


def _is_at(path: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except (FileNotFoundError, NotADirectoryError):
        return False
