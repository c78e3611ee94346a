"""A database file that one process makes, and that gets its name only when it is complete and durable."""

import errno
import os
from contextlib import suppress
from pathlib import Path

import apsw

from bedrockish_journal.model.errors import TargetExistsError, TargetUnwritableError
from bedrockish_journal.storage.segment import sync_folder

_LOCKS = "its file system has no file locks (flock), which keep a second process away; name a folder on another one"
_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room and try again") | dict.fromkeys(
    (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP), _LOCKS
)


def why_not_new(path: str | os.PathLike[str]) -> str:
    """Return why no new database can be made at a path, as text; empty if it can.

    SQLite copies the pages of a log that lies next to a file into the file, even if the log is of an older database
    of the same name.
    """
    name = os.fspath(path)
    if os.path.lexists(name):
        return f"{name} exists already; name another file, or remove it first"
    for log in (f"{name}-wal", f"{name}-journal"):
        if os.path.exists(log) and os.path.getsize(log):
            return f"{log} is the log of an older database, and SQLite would write it into {name}; remove it first"
    return ""


class NewFileLock:
    """The exclusive right of a process to make a new file, until its release or the end of the process.

    So the unfinished file can have the same name in each run, and the next run after a kill removes it.

    Args:
        target: the path of the complete file.

    Raises:
        TargetExistsError: the path exists already, has the log of an older database, or another process writes it now.
        TargetUnwritableError: its directory cannot be written.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.name = os.fspath(target)
        # The lock has its own file, because on NFS a lock by flock would exclude SQLite's locks on the same file.
        self._lock = f"{self.name}.part-lock"
        self.refuse_existing()
        try:
            self._descriptor = self._locked()
        except BlockingIOError as error:
            why = f"another process writes {self.name} now; wait until it has ended, or name another file"
            raise TargetExistsError(self.name, why) from error
        except OSError as error:
            how = _REMEDIES.get(error.errno or 0, "name a folder that may be written")
            raise TargetUnwritableError(self.name, f"{self.name} cannot be written: {error.strerror}; {how}") from error
        try:
            self.refuse_existing()  # the last holder may have finished the file
        except TargetExistsError:
            self.release()
            raise

    def _locked(self) -> int:
        """Return a descriptor that holds the lock on the present lock file, not on one that was removed."""
        import fcntl  # Windows lacks fcntl, and can run the commands that make no file

        while True:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(FileNotFoundError):  # the last holder has removed the file
                    if os.path.samestat(os.fstat(descriptor), os.stat(self._lock)):
                        return descriptor
            except OSError as error:
                if not isinstance(error, BlockingIOError):  # else another process uses the file
                    os.unlink(self._lock)
                os.close(descriptor)
                raise
            os.close(descriptor)

    def refuse_existing(self) -> None:
        """Check that no file has the path.

        Raises:
            TargetExistsError: the path exists, or has the log of an older database.
        """
        if why := why_not_new(self.name):
            raise TargetExistsError(self.name, why)

    def release(self) -> None:
        """Release the claim, so that other processes can make the file."""
        with suppress(OSError):
            os.unlink(self._lock)
        os.close(self._descriptor)


class NewFile:
    """A file that is written under another name in the target's directory, and renamed when it is complete.

    Args:
        target: the path of the complete file.

    Raises:
        TargetExistsError: the path exists already, has the log of an older database, or another process writes it now.
        TargetUnwritableError: its directory does not exist, or cannot be written.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.name = os.fspath(target)
        self._folder = os.path.dirname(os.path.abspath(self.name))
        if not os.path.isdir(self._folder):
            raise TargetUnwritableError(self.name, f"{self._folder} is not a directory; create it first")
        self.path, self._compact = f"{self.name}.part", f"{self.name}.part.compact"
        self._claim = NewFileLock(self.name)
        self._remove()  # left by a process that was killed

    def compact(self, db: apsw.Connection) -> None:
        """Replace the database by a copy without free pages; a plain VACUUM may renumber rowids.

        The caller has to close the connection, which still has the old file open.
        """
        db.execute("VACUUM INTO ?", (self._compact,))
        os.replace(self._compact, self.path)

    def put_in_place(self) -> None:
        """Give the finished file its name, durably. No program may have it open.

        Raises:
            TargetExistsError: another program took the name in the meantime.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._claim.refuse_existing()
        os.rename(self.path, self.name)
        sync_folder(Path(self._folder))

    def why_not(self, error: Exception) -> str:
        """Return the reason why the file cannot be written, in words."""
        if isinstance(error, apsw.FullError):
            return "there is no room"
        if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError) and not os.access(
            self._folder, os.W_OK | os.X_OK
        ):
            return f"this user has no right to write in {self._folder}"
        return str(error)

    def drop(self) -> None:
        """Remove the unfinished files, and let other processes make the file."""
        self._remove()
        self._claim.release()

    def _remove(self) -> None:
        for path in (self.path, self._compact):
            for name in (path, f"{path}-journal"):
                with suppress(FileNotFoundError):
                    os.unlink(name)
