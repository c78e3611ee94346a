"""A node's file in place of a URL: distinguishes paths from URLs, finds the node's socket, and opens the file.

The engine is imported only if a file is opened, so that other programs start faster.
"""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from bedrockish.api.url import SCHEME, Address, Target, check_path
from bedrockish.common.machine import check_linux
from bedrockish.errors import ConfigError, UnavailableError, UnsupportedError
from bedrockish.local.page import socket_path

if TYPE_CHECKING:
    from bedrockish.client.calls import Calls
    from bedrockish.client.local_steps import LocalSteps
    from bedrockish.local.reads import LocalReads

SUFFIXES = (".sqlite", ".sqlite3", ".db")


def is_path(text: str) -> bool:
    """Return whether a text that names a database is a path; False for a URL, even a mistyped one."""
    if "://" in text or text.lower().startswith(f"{SCHEME}:"):
        return False
    return os.sep in text or text.endswith(SUFFIXES) or os.path.isfile(text)


def located(target: Target) -> Target:
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


def local_steps(session: "Calls", reads: "LocalReads | None") -> "LocalSteps | None":
    """Return the object that runs a session's open transactions in this process; None if no file is open."""
    if reads is None:
        return None
    from bedrockish.client.local_steps import LocalSteps
    from bedrockish.local import temporary
    from bedrockish.local.transactions import LocalTransactions

    return LocalSteps(session, LocalTransactions(reads, temporary.begin), reads.database)


def open_local(target: Target) -> "LocalReads | None":
    """Return the open reader of a target's file in this process; None if the target names no file.

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
    from bedrockish.local.reads import LocalReads

    reads = LocalReads(target.local, target.user or "")
    try:
        reads.open()
    except UnavailableError:
        if len(target.addresses) == 1:
            raise
    return reads
