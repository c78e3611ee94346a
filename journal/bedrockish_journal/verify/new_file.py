"""A database file that gets its name only when it is complete and durable."""

import os
from contextlib import suppress

import apsw

from bedrockish_journal.model.errors import TargetExistsError, TargetUnwritableError


def why_not_new(path: str | os.PathLike[str]) -> str:
    """Return why no new database may get a path, for people; empty if it may.

    SQLite writes a log that it finds next to a file into the file, even if the log is of an older database: the new
    file would have its pages.
    """
    name = os.fspath(path)
    if os.path.lexists(name):
        return f"{name} exists already; name another file, or remove it first"
    for log in (f"{name}-wal", f"{name}-journal"):
        if os.path.exists(log) and os.path.getsize(log):
            return f"{log} is the log of an older database, and SQLite would write it into {name}; remove it first"
    return ""


class NewFile:
    """A file that is written under another name in the target's directory, and renamed when it is complete.

    Args:
        target: the path of the complete file.

    Raises:
        TargetExistsError: the path exists already, or has the log of an older database.
        TargetUnwritableError: its directory does not exist.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.name = os.fspath(target)
        self._refuse_existing()
        self._folder = os.path.dirname(os.path.abspath(self.name))
        if not os.path.isdir(self._folder):
            raise TargetUnwritableError(self.name, f"{self._folder} is not a directory; create it first")
        # The names contain the process id, so that two processes with the same target do not write the same file.
        self.path, self._compact = (f"{self.name}.{os.getpid()}.{end}" for end in ("part", "compact"))
        self.drop()

    def _refuse_existing(self) -> None:
        if why := why_not_new(self.name):
            raise TargetExistsError(self.name, why)

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
        _sync(self.path, os.O_RDWR)
        self._refuse_existing()
        os.rename(self.path, self.name)
        _sync(self._folder, os.O_RDONLY | os.O_DIRECTORY)

    def why_not(self, error: Exception) -> str:
        """Return the reason why the file cannot be written, in words."""
        if isinstance(error, apsw.FullError):
            return "there is no room"
        if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError) and not os.access(
            self._folder, os.W_OK | os.X_OK
        ):
            return f"nobody gave us the right to write in {self._folder}"
        return str(error)

    def drop(self) -> None:
        """Remove the unfinished files."""
        for path in (self.path, self._compact):
            for name in (path, f"{path}-journal"):
                with suppress(FileNotFoundError):
                    os.unlink(name)


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
