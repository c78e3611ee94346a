"""The first argument of ``connect``: a URL, the path of a node's file, or a URI of SQLite that names such a file."""

import os
from pathlib import Path
from urllib.parse import parse_qs, unquote

from bedrockish.client.request_builder import Where
from bedrockish.errors import SqlError, UnsupportedError

SCHEME, MEMORY = "file:", ":memory:"
WRITABLE = {"ro": False, "rw": True, "rwc": True}
LOCK_S = 5.0
"""sqlite3's default ``timeout``, its wait for a lock. A smaller value is meant for locks, and shortens no call."""


def place_of(database: Where | bytes | None) -> tuple[Where | None, bool]:
    """Return the URL or path in an argument of ``connect``, and whether the connection may write.

    Raises:
        SqlError: a URI names another machine or an unknown mode.
        UnsupportedError: the argument names a database in memory.
    """
    if isinstance(database, bytes):
        database = os.fsdecode(database)
    if not isinstance(database, str):
        return database, True
    path, mode = database, "rwc"
    if database.startswith(SCHEME):
        path, mode = _parts_of(database.removeprefix(SCHEME).partition("#")[0])
    if path == MEMORY or mode == "memory" or (not path and database):
        raise UnsupportedError(
            f"{database} is a database of one process: open it with sqlite3 itself; for a temporary node, such as in "
            "tests, use bedrockish.node()"
        )
    if mode not in WRITABLE:
        raise SqlError(f"no such access mode: {mode}: {database}; write ro, rw or rwc")
    return Path(path) if database.startswith(SCHEME) else database, WRITABLE[mode]


def _parts_of(rest: str) -> tuple[str, str]:
    """Return path and mode of a URI of SQLite, after its scheme."""
    path, _, query = rest.partition("?")
    if path.startswith("//"):
        host, _, path = path.removeprefix("//").partition("/")
        if host not in ("", "localhost"):
            raise SqlError(f"invalid uri authority: {host}; a file of this machine has none")
        path = f"/{path}"
    options = parse_qs(query)
    is_fixed = options.get("immutable", ["0"])[-1].lower() in ("1", "true", "yes", "on")
    return unquote(path), "ro" if is_fixed else options.get("mode", ["rwc"])[-1]
