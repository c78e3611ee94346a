"""Refills a node's file whose tables are damaged, from another node's copy or by a replay of the node's own journal.

A copy has tables and a journal; a replay makes only tables. In both cases the node keeps its name, votes and other
promises.

A copy replaces the file only if it has every commit of the file; otherwise the node would assign ticks of its timeline
a second time. The node's promises are read from the old file after all writes to it have ended.
"""

import os
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw

from bedrockish.access_sets.system_names import STAND_IN
from bedrockish.core.protocol.health import DAMAGED_TABLES, UNAPPLICABLE, UNPROVEN
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.rename_copy import replace_file
from bedrockish.engine.storage.scratch_files import MOMENT, PROOF, REFILL, check_room, remove, scratch_path, size_of
from bedrockish.engine.storage.wal import copy_file
from bedrockish.errors import ConfigError, DamagedError, UnavailableError
from bedrockish_journal.model.errors import JournalError, TargetUnwritableError
from bedrockish_journal.model.transaction import parse_txid
from bedrockish_journal.model.vector import Vector, covers
from bedrockish_journal.storage.pruning import FORGOTTEN_KEY, MEMBERS_KEY
from bedrockish_journal.storage.store import applied, find_txid, open_database, open_readonly, reading
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.vector_modules import ModuleConnection
from bedrockish_journal.verify.replay import Prepare, digest, replay
from bedrockish_journal.verify.tables import why_not_whole

Row = tuple[Any, ...]
GoOn = Callable[[], None]  # a function that the work calls again and again; its exception ends the work
GO_ON_STEPS = 50_000  # steps of SQLite between two calls of ``go_on``: some milliseconds
OF_THE_DATA = (
    *("format", "membership", "schema_version", "bootstrap", "began_with", "safe", "hold:"),
    *(MEMBERS_KEY, FORGOTTEN_KEY),  # they describe the pruned part of the journal, and the copy has its own journal
)
"""Metadata that describes the data, in any node's file; all other metadata is the node's own."""
UNAPPLICABLE_KEY = system.ALARM + UNAPPLICABLE
GREATEST = ("clock_ceiling", "cut")  # promises for which the new file gets the greater of the two values


class NotWholeError(JournalError):
    """Raised when a journal lacks a part of its tables' history, so that a replay cannot make their right content."""


def why_unprovable(database: str | os.PathLike[str]) -> str:
    """Return why a replay of a file's journal cannot make the right content of its tables; empty if it can.

    Raises:
        JournalError: the file has no journal.
    """
    with reading(database) as db:
        return why_not_whole(db)


def _check_whole(database: str | os.PathLike[str]) -> None:
    why_not = why_unprovable(database)
    if why_not:
        raise NotWholeError(why_not)


def refill_path(database: str | os.PathLike[str]) -> Path:
    """Return the path of the new file that is to replace a node's file."""
    return scratch_path(database, REFILL)


def replay_own(database: str | os.PathLike[str], target: Path, prepare: Prepare, go_on: GoOn = lambda: None) -> None:
    """Make a file with users' tables by a replay of the node's own journal, and with copies of its system tables.

    Raises:
        JournalError: the journal is incomplete, or contradicts itself.
        DamagedError: SQLite cannot read the node's file.
        ConfigError: the new file cannot be written.
    """
    _check_whole(database)
    begin = watched(prepare, go_on)
    remove(target)
    try:
        replay([database], target, prepare=begin)
    except apsw.CorruptError as error:
        raise DamagedError(f"{database} is damaged: {error}") from error
    db = ModuleConnection(str(target))
    try:
        begin(db)
        db.execute("ATTACH ? AS old", (str(Path(database).resolve()),))
        with db:
            kept = (
                "FROM old.sqlite_schema WHERE tbl_name GLOB 'bedrockish_*' AND tbl_name NOT GLOB ? AND sql IS NOT NULL"
            )
            query = f"SELECT type, name, sql {kept} ORDER BY type = 'index'"
            made: list[Any] = db.execute(query, (f"{STAND_IN}*",)).fetchall()
            for _, _, sql in made:
                db.execute(sql)
            for name in [quote(name) for kind, name, _ in made if kind == "table"]:
                db.execute(f"INSERT INTO main.{name} SELECT * FROM old.{name}")
        db.execute("DETACH old")
    except apsw.Error as error:
        raise ConfigError(f"{target} cannot be written: {error}; check the disk") from error
    finally:
        db.close()


def watched(prepare: Prepare, go_on: GoOn) -> Prepare:
    """Return a function that prepares a connection so that ``go_on`` is called while it works."""

    def ask() -> bool:
        go_on()
        return False

    def begin(db: apsw.Connection) -> None:
        prepare(db)
        db.set_progress_handler(ask, GO_ON_STEPS)

    return begin


def fits_journal(database: str | os.PathLike[str], prepare: Prepare, go_on: GoOn = lambda: None) -> bool:
    """Return whether the tables of a file equal those that a replay of its journal makes.

    Raises:
        NotWholeError: the journal is incomplete, so that a replay cannot make the right content.
        JournalError: the journal contradicts itself.
        DamagedError: SQLite cannot read the file.
        ConfigError: the disk lacks room for the comparison.
    """
    _check_whole(database)
    # Compare in a copy: the node may commit during the comparison, and tables and journal must be of one moment.
    copy, target = (scratch_path(database, suffix) for suffix in (MOMENT, PROOF))

    def watch() -> None:
        go_on()
        check_room(copy)  # the final size is unknown in advance, and a full disk ends the node

    try:
        remove(copy, target)
        with reading(database) as source:
            check_room(copy, size_of(source))
            copy_file(source, copy, watch)
        made = replay([copy], target, prepare=watched(prepare, watch)).digest
        with closing(open_database(copy)) as source:
            watched(lambda _: None, watch)(source)
            return made == digest(source)
    except apsw.CorruptError as error:
        raise DamagedError(f"{database} is damaged: {error}") from error
    except (TargetUnwritableError, UnavailableError, OSError) as error:
        raise ConfigError(f"{database} cannot be compared with its journal: {error}; free disk space") from error
    finally:
        with suppress(OSError):
            remove(copy, target)


def find_fault(database: str | os.PathLike[str], prepare: Prepare, go_on: GoOn = lambda: None) -> str:
    """Return the first fault that SQLite finds in the pages of a file, including indexes; empty if it finds none."""
    db = open_readonly(database)
    try:
        watched(prepare, go_on)(db)
        (found,) = db.execute("PRAGMA integrity_check(1)").fetchone() or ("ok",)
    except apsw.CorruptError as error:
        return str(error)
    finally:
        db.close()
    return "" if found == "ok" else str(found)


def check_copy(copy: Path, vector: Vector, go_on: GoOn = lambda: None) -> dict[str, int]:
    """Check a copy of another node's file; return its applied vector.

    Raises:
        DamagedError: SQLite finds a fault in the copy.
        ConfigError: the copy lacks commits of ``vector``.
    """
    db = ModuleConnection(str(copy))
    try:
        watched(lambda _: None, go_on)(db)
        faults = [str(text) for (text,) in db.execute("PRAGMA integrity_check(5)")]
        if faults != ["ok"]:
            raise DamagedError(f"the copy is damaged itself: {'; '.join(faults)}")
        has = dict(applied(db))
    except apsw.Error as error:
        raise DamagedError(f"the copy is damaged itself: {error}") from error
    finally:
        db.close()
    if not covers(has, vector):
        raise ConfigError("the copy lacks commits that this node has; the node fetches another copy")
    return has


def prove_copy(copy: Path, prepare: Prepare, go_on: GoOn = lambda: None) -> None:
    """Make sure that the tables of a copy equal those that a replay of its journal makes.

    Raises:
        DamagedError: the tables differ.
        JournalError: the journal cannot be replayed: its beginning was removed, or it contradicts itself.
    """
    if not fits_journal(copy, prepare, go_on):
        raise DamagedError("the tables of the copy differ from a replay of its journal")


def install(database: str | os.PathLike[str], copy: Path) -> None:
    """Replace the node's own file, which no program may have open, by a finished file with the node's promises.

    Raises:
        ConfigError: a file cannot be read or written, or the copy lacks a commit.
    """
    path = Path(database).resolve()
    try:
        meta, votes, pieces, has = _read_own(path)
        with closing(ModuleConnection(str(copy), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            db.pragma("journal_mode", "delete")  # leaves a single file, without a log
            if not covers(applied(db), has):
                raise ConfigError(f"{copy} lacks commits that {path} has")
            with db:
                _relabel(db, meta, votes, pieces)
        replace_file(copy, path)
    except (apsw.Error, OSError) as error:
        why = f"{path} cannot be filled again: {error}; check the disk, and whether other programs read the file"
        raise ConfigError(why) from error


def _read_own(path: Path) -> tuple[dict[str, Any], list[Row], list[Row], dict[str, int]]:
    """Return a file's own metadata, its votes, their pieces and the applied ticks, and empty its write-ahead log.

    A log left next to the new file would be taken for that file's log.
    """
    with closing(ModuleConnection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
        db.set_busy_timeout(5_000)
        db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
        meta = {key: value for key, value in system.meta_under(db, "").items() if not key.startswith(OF_THE_DATA)}
        votes, pieces = (list(db.execute(f"SELECT * FROM {name}")) for name in ("bedrockish_vote", "bedrockish_piece"))
        return meta, votes, pieces, dict(applied(db))


def _is_applied(db: apsw.Connection, key: str) -> bool:
    """Return whether the transaction that a ``BLOCKED`` key names is in the journal of the copy."""
    return bool(find_txid(db, parse_txid(key.removeprefix(system.BLOCKED))))


def _relabel(db: apsw.Connection, meta: dict[str, Any], votes: list[Row], pieces: list[Row]) -> None:
    found = system.meta_under(db, "")
    for key in found:
        if not key.startswith((*OF_THE_DATA, system.VOID)):
            db.execute("DELETE FROM bedrockish_meta WHERE key = ?", (key,))
    blocked = {key for key in meta if key.startswith(system.BLOCKED) and not _is_applied(db, key)}
    for key, value in meta.items():
        if key in (system.ALARM + DAMAGED_TABLES, system.ALARM + UNPROVEN):
            continue  # the alarm was about the old tables
        if (key.startswith(system.BLOCKED) and key not in blocked) or (key == UNAPPLICABLE_KEY and not blocked):
            continue  # the copy has applied the transaction
        greater = max(int(value or 0), int(found.get(key) or 0)) if key in GREATEST else value
        system.set_meta(db, key, greater)
    for name, rows in (("bedrockish_vote", votes), ("bedrockish_piece", pieces)):
        db.execute(f"DELETE FROM {name}")
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            db.executemany(f"INSERT INTO {name} VALUES ({marks})", rows).fetchall()
