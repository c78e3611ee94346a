"""Rebuilds a node's file from its own tables, with new indexes: the remedy for an unreadable or incomplete index.

SQLite's REINDEX does not help if a page of an index cannot be read, because it frees the old pages first, and so reads
them. Instead, the indexes are erased from the schema of a copy of the file. VACUUM INTO then writes the tables, with
their rowids, into a new file, in which the original statements create the indexes again. This fails if a page of a
table cannot be read.
"""

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw

from bedrockish.common.durable_files import sync
from bedrockish.engine.storage.database_file import RECOVERY_MS, FileLock
from bedrockish.engine.storage.refill import GoOn, refill_path, watched
from bedrockish.engine.storage.rename_copy import replace_file
from bedrockish.engine.storage.scratch_files import MOMENT, check_room, remove, size_of
from bedrockish.engine.storage.wal import copy_file
from bedrockish.errors import ConfigError, DamagedError
from bedrockish_journal.storage.vector_modules import ModuleConnection
from bedrockish_journal.verify.replay import Prepare

_INDEXES = "type = 'index' AND sql IS NOT NULL"


def rebuild(source: apsw.Connection, target: Path, prepare: Prepare, go_on: GoOn = lambda: None) -> None:
    """Make a file with all tables of another file, including the system tables, and with new indexes.

    Args:
        source: a connection to the file, outside a transaction.
        target: path of the new file, in the folder of the old one.
        go_on: is called again and again; an exception from it ends the work.

    Raises:
        DamagedError: a table cannot be read, or does not have the values that an index needs.
        ConfigError: the disk lacks room, or the file cannot be written.
    """
    begin = watched(prepare, go_on)
    bare = target.with_name(target.name + MOMENT)
    try:
        remove(bare, target)
        check_room(target, 2 * size_of(source))
        copy_file(source, bare, go_on)
        with closing(ModuleConnection(str(bare))) as db:
            db.pragma("journal_mode", "delete")
            with db:
                made: list[Any] = db.execute(f"SELECT sql FROM sqlite_schema WHERE {_INDEXES}").fetchall()
                db.pragma("writable_schema", 1)
                db.execute(f"DELETE FROM sqlite_schema WHERE {_INDEXES}")
        with closing(ModuleConnection(str(bare))) as db:
            begin(db)
            db.execute("VACUUM INTO ?", (str(target),))  # a plain VACUUM may renumber rowids
        with closing(ModuleConnection(str(target))) as db:
            begin(db)
            with db:
                for (sql,) in made:
                    db.execute(sql)
            ((found,),) = db.execute("PRAGMA integrity_check(1)").fetchall()
            if found != "ok":
                raise DamagedError(f"its own tables are damaged: {found}")
        sync(target)
    except (apsw.CorruptError, apsw.ConstraintError, apsw.SQLError) as error:
        raise DamagedError(f"its own tables are damaged: {error}") from error
    except (apsw.Error, OSError) as error:
        raise ConfigError(f"{target} cannot be written: {error}; check the disk") from error
    finally:
        with suppress(OSError):
            remove(bare)


def rebuild_in_place(database: str | os.PathLike[str], prepare: Prepare, go_on: GoOn) -> None:
    """Rebuild the indexes of a file that no node has open; the node's promises stay in the file.

    Raises:
        DamagedError: its tables cannot be read.
        ConfigError: another process has the file open, or the disk lacks room.
        UnavailableError: the disk lacks room.
    """
    path, target = Path(database).resolve(), refill_path(database)
    lock = FileLock(path)
    try:
        with closing(ModuleConnection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            db.set_busy_timeout(RECOVERY_MS)
            if db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)[0] > 0:
                raise ConfigError(f"{path} is read by another program; close it there")
            rebuild(db, target, prepare, go_on)
        replace_file(target, path)
    except apsw.Error as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    finally:
        with suppress(OSError):
            remove(target)
        lock.close()
