"""A node's file in place of a URL: distinguishes paths from URLs, finds the node's socket, and opens the file.

The engine is imported only if a file is opened, so that other programs start faster.
"""

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bedrockish.api.url import SCHEME, Address, Target, check_path
from bedrockish.common.machine import check_linux
from bedrockish.errors import ConfigError, UnavailableError, UnsupportedError
from bedrockish.local.page import socket_path

if TYPE_CHECKING:
    from bedrockish.client.calls import Calls
    from bedrockish.client.local_steps import LocalSteps
    from bedrockish.local.reads import LocalReads
    from bedrockish.local.snapshots import FileConnections
    from bedrockish.local.transactions import LocalTransactions
    from bedrockish.local.workspace_pool import WorkspacePool

SUFFIXES = (".sqlite", ".sqlite3", ".db")


def is_path(text: str) -> bool:
    """Return whether a text that names a database is a path; False for a URL, even a mistyped one."""
    if "://" in text or text.lower().startswith(f"{SCHEME}:"):
        return False
    return os.sep in text or text.endswith(SUFFIXES) or os.path.isfile(text)


def with_file_socket(target: Target) -> Target:
    """Return a target with the socket of its file's node as the first address; a target without a file unchanged."""
    if target.local is None:
        return target
    try:
        path = os.path.realpath(check_path(target.local, "the node's file"))
    except OSError as error:
        raise ConfigError(
            f"the node's file: {target.local} is relative to a folder that was removed; give an absolute path"
        ) from error
    return replace(target, local=path, addresses=(Address(socket_path(path), 0), *target.addresses))


@dataclass(slots=True)
class LocalFile:
    """A node's file that is open in this process.

    ``pool`` has the workspaces of a closed session, until ``steps`` takes it. ``cluster_id`` is set if that session has
    reached the file's node, so that the next session need not do so before its first call.
    """

    reads: "LocalReads"
    pool: "WorkspacePool | None" = None
    cluster_id: str = ""

    def steps(self, session: "Calls") -> "LocalSteps":
        """Return the object that runs a session's open transactions in this process."""
        from bedrockish.client.local_steps import LocalSteps
        from bedrockish.local import temporary
        from bedrockish.local.transactions import LocalTransactions

        pool, self.pool = self.pool, None
        return LocalSteps(session, LocalTransactions(self.reads, temporary.begin, pool), self.reads.database)

    def close(self) -> None:
        """Close the file."""
        self.reads.close()
        if self.pool is not None:
            self.pool.close_all()


@dataclass(slots=True, eq=False)
class KeptSession:
    """The connections and workspaces of a closed session, for the next session on the file."""

    released: "FileConnections"
    pool: "WorkspacePool"

    def is_served(self) -> bool:
        """Return whether the node serves the file of the connections now."""
        return self.released.is_served()

    def close(self) -> None:
        """Close the connections."""
        self.pool.close_all()
        self.released.close()


def open_local(target: Target) -> LocalFile | None:
    """Open a target's file in this process; return None if the target names no file.

    Raises:
        UnavailableError: no node serves the file, and the target names no other nodes.
        UsageError: another SQLite library of this process has the file open, or this system is not Linux.
    """
    if target.local is None:
        return None
    try:
        check_linux(f"{target.local}: a node's file")
    except UnsupportedError:
        if len(target.addresses) == 1:
            raise
        return None
    from bedrockish.local.connections import KEPT
    from bedrockish.local.reads import LocalReads

    file = LocalFile(LocalReads(target.local, target.user or ""))
    left: KeptSession | None = KEPT.take((file.reads.database, file.reads.user))
    if left is not None:
        if file.reads.take_over(left.released):
            file.pool = left.pool
            if len(target.addresses) == 1 and not (target.user or target.cluster):
                file.cluster_id = file.reads.cluster_id
            return file
        left.close()
    try:
        file.reads.open()
    except UnavailableError:
        if len(target.addresses) == 1:
            raise
    return file


def close_local(reads: "LocalReads", transactions: "LocalTransactions", *, has_reached_node: bool) -> None:
    """Close a file, and the transactions that are open on it; keep its connections if another session can use them.

    If the session has not reached the file's node, close them: the next session must not take that for granted.
    """
    from bedrockish.local.connections import KEPT

    pool, released = transactions.leave(), reads.leave()
    if pool is not None and released is not None and has_reached_node:
        KEPT.keep((reads.database, reads.user), KeptSession(released, pool))
        return
    if pool is not None:
        pool.close_all()
    if released is not None:
        released.close()
