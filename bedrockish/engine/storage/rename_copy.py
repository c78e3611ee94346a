"""Turns a copy of another node's file into the first file of a new node.

The new node keeps the data, the journal, and the clocks up to which the journal is complete. The old node's promises
(its votes) must be removed, and its name and the file's id must be replaced.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from bedrockish.common.durable_files import sync
from bedrockish.core.protocol.health import UNPROVEN, Alarm, encode_alarm
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.wal import changing
from bedrockish.errors import ConfigError
from bedrockish_journal.feed.change_feed import cursor_of_copy
from bedrockish_journal.model.errors import JournalFileError
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.storage.store import applied
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.vector_modules import ModuleConnection
from bedrockish_journal.verify.new_file import NewFileLock, why_not_new


def relabel(copy: Path, node: str, store: str, joining: bytes, alarm: Alarm | None = None) -> None:
    """Turn a copy of another node's file into the file of a new node, durably. No other program may have the copy open.

    Args:
        store: random id of the new file.
        joining: the message that admitted the new node (``encode_joining``).
        alarm: the alarm that lasts until the copy is compared with its journal; None if that is impossible.

    Raises:
        ConfigError: the copy is not a node's file, or cannot be written.
    """
    unproven = None if alarm is None else encode_alarm(alarm)
    with changing(copy, f"be made the file of {node}", "join again") as db:
        db.pragma("journal_mode", "delete")  # leaves a single file, without a log
        if not system.exists(db) or system.get_meta(db, "format") != system.FORMAT:
            raise ConfigError(f"{copy} is not a node's file of format {system.FORMAT}; use the same program version")
        with db:
            db.execute("DELETE FROM bedrockish_vote")
            db.execute("DELETE FROM bedrockish_piece")
            db.execute("DELETE FROM bedrockish_meta WHERE key IN (?, 'starts', 'lost')", (f"seen:{node}",))
            for key, value in (("node", node), ("store", store), ("batches", 0), ("joining", joining)):
                system.set_meta(db, key, value)
            system.set_meta(db, system.ALARM + UNPROVEN, unproven)


def make_plain(copy: Path) -> None:
    """Turn a copy of a node's file into an ordinary database that is a single file.

    Raises:
        ConfigError: the copy is not a database, or cannot be written.
    """
    with changing(copy) as db:
        db.pragma("journal_mode", "delete")


def strip(copy: Path) -> tuple[Vector, int, str]:
    """Turn a copy of a node's file into a database with the users' own objects and rows only.

    Returns: the last applied tick of each timeline, the highest clock of an applied transaction, and the cursor after
        which the change feed continues from the copy.

    Raises:
        ConfigError: the copy is not a node's file, or cannot be written.
    """
    compact = copy.with_name(copy.name + ".compact")
    try:
        with closing(ModuleConnection(str(copy), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            if not system.exists(db):
                raise ConfigError(f"{copy} is not a copy of a node's file")
            vector = applied(db)
            found = db.execute("SELECT max(clock) FROM bedrockish_journal").fetchone()
            clock = int(found[0] or 0) if found is not None else 0
            safe = int(system.get_meta(db, "safe") or 0)
            said = system.get_meta(db, "membership")
            cluster = read_membership(said).cluster_id if isinstance(said, bytes) else ""
            query = (  # in the feed, a schema change has the clock at which it comes into force
                "SELECT clock, origin FROM bedrockish_journal WHERE repeat = 0 AND kind <> 'schema' AND clock > ?1 "
                "UNION ALL SELECT activates, leader FROM bedrockish_schema "
                "WHERE state <> 'scheduled' AND activates > ?1"
            )
            above: list[Any] = db.execute(query, (safe,)).fetchall()
            db.pragma("foreign_keys", 0)
            db.pragma("journal_mode", "delete")
            with db:
                named = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'bedrockish_*'"
                for (name,) in list(db.execute(named)):
                    db.execute(f"DROP TABLE {quote(name)}")
            # A VACUUM in place may renumber the rowids by which the change feed names the rows of a table without keys.
            compact.unlink(missing_ok=True)
            db.execute("VACUUM INTO ?", (str(compact),))
        os.replace(compact, copy)
    except (apsw.Error, OSError) as error:
        with suppress(OSError):
            compact.unlink()
        raise ConfigError(f"{copy} cannot be finished: {error}; check the disk and try again") from error
    make_plain(copy)
    return vector, clock, str(cursor_of_copy(safe, above, cluster))


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Keep other processes from making a new file of this path during the block.

    Raises:
        ConfigError: the path exists, another process writes it, or its folder cannot be written.
    """
    try:
        claim = NewFileLock(path)
    except JournalFileError as error:
        raise ConfigError(str(error)) from error
    try:
        yield
    finally:
        claim.release()


def put_in_new_place(copy: Path, path: Path) -> None:
    """Give a finished copy the name of a new file, durably.

    Raises:
        ConfigError: another program took the name in the meantime, or the copy cannot be renamed.
    """
    if why := why_not_new(path):
        raise ConfigError(why)
    put_in_place(copy, path)


def put_in_place(copy: Path, path: Path) -> None:
    """Give a finished copy its name, durably.

    Raises:
        ConfigError: the copy cannot be renamed.
    """
    try:
        os.rename(copy, path)
        sync(path.parent)
    except OSError as error:
        raise ConfigError(f"{copy} cannot be renamed to {path}: {error.strerror}; check the directory") from error


def replace_file(copy: Path, path: Path) -> None:
    """Give a finished copy the name and the mode of a node's file, durably; remove that file's log, which is empty.

    The removal of the log is durable before the copy gets the name: SQLite empties a log without a sync, so after a
    power cut the old frames could be back, next to a file to which they do not belong.

    Raises:
        ConfigError: the copy cannot be renamed.
        OSError: the file cannot be made durable.
    """
    copy.chmod(path.stat().st_mode & 0o777)  # the new file is readable only by the readers of the old one
    sync(copy)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    sync(path.parent)
    put_in_place(copy, path)
