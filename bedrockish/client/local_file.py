"""A node's file instead of a URL: tells paths from URLs, finds the node's socket, and opens the file.

The engine is imported only by programs that open a file.
"""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from bedrockish.api.url import Address, Target
from bedrockish.errors import UnavailableError
from bedrockish.local.page import socket_path

if TYPE_CHECKING:
    from bedrockish.client.local_steps import Calls, LocalSteps
    from bedrockish.local.reads import LocalReads

SUFFIXES = (".sqlite", ".sqlite3", ".db")


def is_path(text: str) -> bool:
    """Whether a text that stands for a database is a path, and not a URL or a mistyped one."""
    return "://" not in text and (os.sep in text or text.endswith(SUFFIXES) or os.path.isfile(text))


def located(target: Target) -> Target:
    """Return a target with the socket of its file's node as the first address; as it is without a file."""
    if target.local is None:
        return target
    path = os.path.realpath(target.local)
    return replace(target, local=path, addresses=(Address(socket_path(path), 0), *target.addresses))


def local_steps(session: "Calls", reads: "LocalReads | None") -> "LocalSteps | None":
    """Return what runs a session's open transactions in this process; None without a file."""
    if reads is None:
        return None
    from bedrockish.client.local_steps import LocalSteps
    from bedrockish.local import temporary
    from bedrockish.local.transactions import LocalTransactions

    return LocalSteps(session, LocalTransactions(reads, temporary.begin), reads.database)


def open_local(target: Target) -> "LocalReads | None":
    """Return what reads the file of a target in this process; None without one.

    Raises:
        UnavailableError: no node serves the file, and the target names no other nodes.
        UsageError: another SQLite library of this process has the file open.
    """
    if target.local is None:
        return None
    from bedrockish.local.reads import LocalReads

    reads = LocalReads(target.local, target.user or "")
    try:
        reads.open()
    except UnavailableError:
        if len(target.addresses) == 1:
            raise
    return reads
