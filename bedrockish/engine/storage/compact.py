"""Rewrites the file of a stopped node with its live content only, so that no bytes of deleted data remain.

SQLite marks deleted data as free and leaves the bytes where they are, in free pages and in the free parts of other
pages. A rewritten file has neither.
"""

import os
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from bedrockish.common.durable_files import sync
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.database_file import INCREMENTAL, RECOVERY_MS, FileLock
from bedrockish.engine.storage.rename_copy import put_in_place
from bedrockish.errors import ConfigError
from bedrockish_journal.storage.store import heads
from bedrockish_journal.storage.vector_modules import ModuleConnection
from bedrockish_journal.verify.replay import Prepare, digest

Heads = dict[str, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The size of the file before and after, in bytes."""

    before: int
    after: int


def compact(path: Path, prepare: Prepare) -> CompactResult:
    """Rewrite a node's file in its place; return both sizes. The old file stays until the new one is durable.

    Args:
        path: the file; no node may run on it.

    Raises:
        ConfigError: the file is in use, is not a node's, or cannot be written; the file is unchanged.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file; give the path of the database file itself")
    if not path.exists():
        raise ConfigError(f"{path}: no such file; give the path of a node's database file")
    path = path.resolve()  # lock and replace the target of a link, which a node locks, too
    lock = FileLock(path)
    fresh = path.with_name(path.name + ".compact")
    try:
        before = path.stat()
        fresh.unlink(missing_ok=True)  # a process that was killed may have left this file
        if _write(path, fresh, prepare) != _read(fresh, prepare):
            raise ConfigError(
                f"{path} would have other rows after the rewrite, so it stays as it is; run 'bedrockish journal verify "
                "--tables' on it"
            )
        _keep_owner(fresh, before)
        put_in_place(fresh, path)
        return CompactResult(before.st_size, path.stat().st_size)
    except (apsw.Error, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{path} cannot be rewritten: {why}; free disk space for a second copy, and close the file in all other "
            "programs"
        ) from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        lock.close()


def _read(path: Path, prepare: Prepare) -> tuple[str, Heads]:
    with closing(ModuleConnection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        prepare(db)
        return _content(db)


def _content(db: apsw.Connection) -> tuple[str, Heads]:
    """Return the digest of a file's rows and rowids, and the heads of its journal; the new file must have the same."""
    return digest(db), heads(db)


def _write(path: Path, fresh: Path, prepare: Prepare) -> tuple[str, Heads]:
    with closing(ModuleConnection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
        db.set_busy_timeout(RECOVERY_MS)
        prepare(db)
        if not system.exists(db):
            raise ConfigError(f"{path} is not a node's file; use SQLite's VACUUM for another database")
        # DELETE mode removes the WAL, whose frames contain old rows; the node creates a new one. An open reader
        # prevents the removal.
        if db.pragma("journal_mode", "delete") != "delete":
            raise ConfigError(f"{path} is open elsewhere; close it there and try again")
        db.pragma("auto_vacuum", INCREMENTAL)  # VACUUM INTO gives this setting to the new file
        db.execute("VACUUM INTO ?", (str(fresh),))
        content = _content(db)
    sync(fresh)
    return content


def _keep_owner(fresh: Path, before: os.stat_result) -> None:
    """Give the new file the old one's owner: this program may run as another user than the node's."""
    now = fresh.stat()
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.chown(fresh, before.st_uid, before.st_gid)
    os.chmod(fresh, before.st_mode & 0o777)
