"""The write lock of SQLite, for programs that rely on it: one transaction at a time writes through a node's file.

A node needs no such lock, because it finds each conflict at COMMIT. Some programs do not run a transaction again, or
use ``BEGIN IMMEDIATE`` as a mutex. With the lock, their connections wait for each other as on a file of SQLite, also
in several processes of one machine. Transactions of other machines, and of connections without the lock, still
conflict at COMMIT.

The lock is ``flock`` on a file next to the node's file, which the system releases when a process ends. The file has the
session's token of the last holder, so that the next one sees its commits.
"""

import fcntl
import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

from bedrockish.client.blocking import Connection as Link
from bedrockish.common.forks import notice_fork, watch_forks
from bedrockish.common.pauses import monotonic
from bedrockish.errors import BedrockishError, ClientClosedError, ConfigError, ConflictError
from bedrockish.local.thread_turn import TURN

SUFFIX, TOKEN_MAX = "-write", 1 << 16
FIRST_S, LONGEST_S = 0.001, 0.02  # the first and the longest pause between two attempts


class WriteLock:
    """The lock of one connection, which its open transaction holds from its first write to its end.

    Args:
        database: the path of the node's file.
        timeout_s: how long to wait while another connection holds the lock.
    """

    def __init__(self, database: str, link: Link, timeout_s: float) -> None:
        self._path, self._link, self.timeout_s = database + SUFFIX, link, timeout_s
        # Held while the file is used: another thread, or the handler of a signal, may close the connection.
        self._guard = threading.RLock()
        self._file: int | None = None
        self.is_held = False
        watch_forks(self)

    def acquire(self) -> None:
        """Acquire the lock, if the connection does not hold it.

        Raises:
            ConflictError: another connection has held the lock until the time was over.
            ConfigError: the file of the lock cannot be opened or locked.
        """
        if self.is_held:
            return
        until, pause_s = monotonic() + self.timeout_s, FIRST_S
        while not self._try():
            if monotonic() > until:
                raise ConflictError(
                    f"another transaction has held {self._path} for {self.timeout_s:g} s; {self._advice()}"
                )
            TURN.leave()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_S)

    def _advice(self) -> str:
        """Return what to do about the holder: the system may know that its process has ended."""
        with suppress(OSError, ValueError, IndexError):
            number = os.stat(self._path).st_ino
            for line in Path("/proc/locks").read_text().splitlines():
                _, kind, _, _, holder, place, *_ = line.split()
                if kind == "FLOCK" and place.rpartition(":")[2] == str(number) and not Path(f"/proc/{holder}").exists():
                    return f"process {holder} has ended, and a process that it forked keeps its lock: end that process"
        return "try again"

    def _try(self) -> bool:
        """Acquire the lock if no other connection holds it, and see the commits of its last holder."""
        with self._guard:
            if self._link.closed:
                raise ClientClosedError("this connection is closed; open another")
            file = self._open() if self._file is None else self._file
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.is_held = self._is_in_place(file)
                token = os.pread(file, TOKEN_MAX, 0) if self.is_held else b""
            except BlockingIOError:
                return False
            except OSError as error:
                self.close()
                raise self._unusable(error) from error
            except BaseException:  # such as Ctrl-C: other connections must not wait for this one
                self.close()
                raise
            if not self.is_held:
                self.close()  # the next attempt makes the file again
                return False
        if token:
            with suppress(BedrockishError):  # the token may be of another cluster, whose file was at this path before
                self._link.token = token
        return True

    def _is_in_place(self, file: int) -> bool:
        """Return whether the file was not removed: a lock on a removed file excludes no other connection."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self._path), os.fstat(file))
        return False

    def release(self) -> None:
        """Release the lock, if the connection holds it."""
        with self._guard:
            file = self._file
            if not self.is_held or file is None:
                return
            try:
                token = self._link.token
                os.pwrite(file, token, 0)
                os.ftruncate(file, len(token))
            except OSError:  # the disk is full: the next holder may lack the last commits, and get a conflict at COMMIT
                with suppress(OSError):
                    os.ftruncate(file, 0)
            finally:
                self.is_held = False
                fcntl.flock(file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the lock, and close the file."""
        notice_fork()
        with self._guard:
            if self._file is not None:
                with suppress(OSError):  # a process that was forked by C code may still have the file open
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                self._leave()

    def _leave(self) -> None:
        if self._file is not None:
            self._finalizer()
            self._file, self.is_held = None, False

    def after_fork(self) -> None:
        """Leave the lock to the parent: closing the child's copy of the file does not release it."""
        self._guard = threading.RLock()
        self._leave()

    def _open(self) -> int:
        try:
            file = self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        self._finalizer = weakref.finalize(self, os.close, file)
        return file

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(f"the lock file {self._path} cannot be used: {error.strerror}; let the program write it")
