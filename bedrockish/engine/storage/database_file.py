"""The opening of a node's file: the lock, the checks, SQLite's settings, and the system tables of a new file."""

import errno
import fcntl
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import apsw

from bedrockish.access_sets.catalog import Prepare
from bedrockish.access_sets.table_layout import Tables
from bedrockish.common.machine import is_mounted_alone
from bedrockish.engine.sqlite.errors import FULL, NO_ROOM, lost_file
from bedrockish.engine.sqlite.limits import Limits, set_options
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.scratch_files import remove_scratch, why_not_writable
from bedrockish.engine.storage.stand_in import remove_leftovers
from bedrockish.engine.storage.wal import PRIVATE, create_private
from bedrockish.errors import ConfigError, DamagedError, NoRoomError, UnsupportedError
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Membership, pack_membership, read_membership
from bedrockish_journal.storage import schema_history as schema
from bedrockish_journal.storage import store
from bedrockish_journal.storage.own_objects import strange_objects
from bedrockish_journal.storage.vector_modules import PACKAGES, VECTORS, ModuleConnection, installed
from bedrockish_journal.storage.virtual_tables import rebuild_indexes, virtual_tables

SQLITE_VERSION_MIN = (3, 54, 0)  # an older version reports 10.0 in a REAL column as 10 when the row is inserted
READABLE_BY_OTHERS = 0o077
INCREMENTAL = 2  # value of auto_vacuum with which free pages can be returned to the disk, some at a time
CACHE_KIB = 64 << 10
WIDE_KIB = 256 << 10  # the page cache while the batch has a large write
MODE_AT, ROLLBACK_MODE = 18, b"\1\1"  # offset of the two format versions in a file's header; their bytes without WAL
LOCKS = Path("/proc/locks")  # lists no locks of other containers' processes
LOCKED_BYTES = 0x4000_0000, 512  # offset and number of the bytes on which SQLite has its locks
_LOCK = Struct("hhqqi4x")  # the C library's ``struct flock``
RECOVERY_MS = 5_000  # how long another program may take to recover the WAL of a node that was killed


@dataclass(frozen=True, slots=True)
class Founding:
    """The facts that a new file gets, and with which an existing file must agree."""

    node: str  # name of the node whose file this is
    membership: Membership  # the first members of the cluster
    store: str  # random id of a new file; an old one keeps its own
    # For a node that joins later and replays the cluster's journal: the message that admitted the node
    # (``encode_joining``); ``membership`` is then the cluster's founding membership, which lacks the node.
    joining: bytes = b""


def _foreign(path: Path) -> str:
    """Return the error's text for the first of a node's files that this user may not write; empty without one.

    A node that was once started by root leaves such files, and SQLite's own error does not name the user.
    """
    for suffix in (".lock", "", "-wal", "-shm"):
        one = path.with_name(path.name + suffix)
        if one.is_file() and not os.access(one, os.R_OK | os.W_OK):
            if one.stat().st_uid == os.getuid():
                return f"{one} may not be written, not even by its owner; change its mode (chmod 600)"
            return (
                f"{one} belongs to the user with the id {one.stat().st_uid}, and this node's user, {os.getuid()}, may "
                "not write it; start the node as that user, or give it all files of the node (chown)"
            )
    return ""


class FileLock:
    """A lock, on a separate file next to the database file, that prevents a second process from using the database.

    The lock is never on the database file itself: when a process closes any descriptor on a file, POSIX drops all of
    its locks on the file, including SQLite's.
    """

    def __init__(self, path: Path) -> None:
        self._name = name = path.with_name(path.name + ".lock")
        try:
            self._fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise NoRoomError(f"{name} cannot be created: {error.strerror}; {FULL}") from error
            is_count = error.errno in (errno.EMFILE, errno.ENFILE)
            way_out = "raise the limit (ulimit -n)" if is_count else "give the node a directory that it may write"
            why = _foreign(path) or f"{name} cannot be created: {error.strerror}; {way_out}"
            raise ConfigError(why) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise ConfigError(
                f"{path} is in use by another node on this machine; stop it, or give another file"
            ) from error
        if why := _why_unsafe(path):
            os.close(self._fd)
            raise ConfigError(f"{path} {why}")

    def restore(self) -> bool:
        """Make the lock's file again if it was removed or replaced, as by a cleanup; return whether it was.

        Raises:
            DamagedError: another process has locked the new file, and may have written to the database.
            OSError: the file cannot be created now.
        """
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._name), os.fstat(self._fd)):
                return False
        new = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(new)
            raise DamagedError(
                f"{self._name} was removed while the node ran, and another process has it now; stop that process"
            ) from error
        os.close(self._fd)
        self._fd = new
        return True

    def close(self) -> None:
        """Release the lock. The lock file stays: if it were removed, two processes could lock two different files."""
        os.close(self._fd)


def _why_unsafe(path: Path) -> str:
    """Return why another process may use another write-ahead log for the file; empty if none can.

    The content of that log would be lost. A connection in WAL mode always has a lock on the file, which Linux lists
    with the numbers of the process and the file. Processes that use the file by this name do no harm: these are
    programs whose connections outlive a restart of the node.
    """
    if is_mounted_alone(path):
        return "is a mount of its own, and its log would be in another folder; mount the folder of the database"
    try:
        found = path.stat()
    except OSError:  # a new file
        return ""
    if found.st_nlink < 2:
        return ""
    holders, own = _holders(found), str(os.getpid())
    # If this process has the file open, do not open it here: closing the descriptor would drop SQLite's locks.
    holder = "" if own in holders or _opened_names(own, found) else _holder(path)
    names = {one: _opened_names(one, found) for one in (holders | {holder}) - {""}}
    if any(opened - {str(path.resolve())} for opened in names.values()):
        return (
            "is in use by another process, under another name of the same file (a hard link); stop it, or give a copy "
            "of the file"
        )
    if holder and not names[holder]:
        return (
            "has another name (a hard link), and a process of another container or user, which may use that name, has "
            "it open; stop it, or give a copy of the file"
        )
    return ""


def _holders(file: os.stat_result) -> set[str]:
    """Return the processes of this container that have a lock on a file.

    On file systems such as btrfs, /proc/locks has another number of the device than ``stat``, and none is found.
    """
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:  # a machine that shows no locks
        return set()
    number = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    locks = [line.split() for line in lines]
    return {lock[lock.index(number) - 1] for lock in locks if number in lock}


def _holder(path: Path) -> str:
    """Return a process with a lock on a file; 0 for a process of another container, empty without a lock."""
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, *LOCKED_BYTES, 0)
    try:
        with path.open("rb") as file:
            kind, *_, process = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:  # the file may not be read, or its file system has no locks
        return ""
    return "" if kind == fcntl.F_UNLCK else str(process)


def _opened_names(process: str, file: os.stat_result) -> set[str]:
    """Return the names by which a process has opened a file; empty if this user may not list them."""
    names = set[str]()
    with suppress(OSError):
        for link in Path("/proc", process, "fd").iterdir():
            with suppress(OSError):  # the file may be closed by now
                if os.path.samestat(link.stat(), file):
                    names.add(str(link.readlink()))
    return names


def whole_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of the file to which a path leads.

    Raises:
        ConfigError: the path leads to no file: its links form a circle, a name is too long, or it is a directory, or
            a device, a pipe or a socket, whose opening may wait for ever.
    """
    try:
        place = Path(path).resolve()
        if place.is_symlink():  # a circle of links; before Python 3.13 ``resolve`` raises a RuntimeError instead
            raise RuntimeError(place)
        what = "is a directory" if place.is_dir() else "is a device, a pipe or a socket"
        is_file = place.is_file() or not place.exists()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its symbolic links form a circle"
        raise ConfigError(f"{path} cannot be a file: {reason}; give the path of a file") from error
    if not is_file:
        raise ConfigError(f"{place} {what}; give the path of a file")
    return place


def database_path(path: str | os.PathLike[str], *, may_be_new: bool) -> Path:
    """Return the absolute path of a database file.

    Raises:
        ConfigError: no file can have this path, or the file must exist and does not.
    """
    place = whole_path(path)
    if not place.parent.is_dir():
        raise ConfigError(f"{place} is in a directory that does not exist; give the path of a file")
    if not may_be_new and not place.exists():
        raise ConfigError(f"{place}: no such file; start the node with its name and members to create it")
    return place


def others_may_read(path: Path) -> bool:
    """Return whether another user of the machine may read or write the file."""
    return bool(path.stat().st_mode & READABLE_BY_OTHERS)


def everyone_may_read(path: Path) -> bool:
    """Return whether every user of the machine may read or write the file, if it exists.

    Rights of the file's group do not count: a service may have to read the file as a member of the group.
    """
    try:
        return bool(path.stat().st_mode & stat.S_IRWXO)
    except OSError:
        return False


def check_version(version: str) -> None:
    """Check that SQLite has at least the version ``SQLITE_VERSION_MIN``.

    Raises:
        ConfigError: SQLite is too old.
    """
    if tuple(int(part) for part in version.split(".")[:3]) < SQLITE_VERSION_MIN:
        wanted = ".".join(map(str, SQLITE_VERSION_MIN))
        raise ConfigError(f"SQLite {version} is too old, {wanted} is needed; run: pip install --upgrade apsw")


class PageCache:
    """The page cache of the writer, which is larger while the open batch has a large write.

    A changed page that is evicted from the cache is written to the WAL before the commit, and may be read back.

    Args:
        memory_bytes: the memory that all requests may take; the larger cache has at most a quarter of it.
    """

    def __init__(self, db: apsw.Connection, memory_bytes: int) -> None:
        # ``is_wide``: whether the cache is enlarged.
        self._db, self.is_wide = db, False
        self._wide_kib = min(WIDE_KIB, memory_bytes >> 12)

    def widen(self) -> None:
        """Enlarge the page cache before a large write."""
        if self._wide_kib > CACHE_KIB and not self.is_wide:
            self._db.pragma("cache_size", -self._wide_kib)
            self.is_wide = True

    def narrow(self) -> None:
        """Reduce the page cache after the commit of a large write."""
        self._db.pragma("cache_size", -CACHE_KIB)
        self.is_wide = False

    def shrink(self) -> None:
        """Evict all unchanged pages; they are read again when they are needed."""
        self._db.execute("PRAGMA shrink_memory").fetchall()


def connect(path: Path, founding: Founding | None, limits: Limits, prepare: Prepare) -> apsw.Connection:
    """Open the file, set SQLite's options, and create or check the system tables; the caller has the lock.

    ``prepare`` adds functions and collations before any table is read.

    Raises:
        ConfigError: the file cannot be used; the text says why and what to do.
        DamagedError: the file is a node's, and cannot be read.
    """
    check_version(apsw.sqlite_lib_version())
    remove_scratch(path)  # before any write: such files may have filled the disk
    with _as_config_errors(path):
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI  # ``staged_changes`` attaches a database by a URI
        flags |= apsw.SQLITE_OPEN_CREATE if founding is not None else 0
        if founding is not None:
            create_private(path)
        db = ModuleConnection(str(path), flags=flags, statementcachesize=512)
        try:
            _set_up(db, path, limits)
            prepare(db)
            db.execute("BEGIN IMMEDIATE")
            _found(db, path, founding)
            db.set_busy_timeout(0)  # no other program may write now, and a wait for a lock would stop the node
        except BaseException:
            db.close()
            raise
    return db


def check_log(path: Path) -> None:
    """Check that the write-ahead log next to a database is its own. Call it before the process opens the database.

    A restored file is in SQLite's rollback mode, in which a database has no write-ahead log. So a log next to it
    belongs to the file that had this path before, and SQLite would write that file's pages into the restored one.

    Raises:
        ConfigError: the log is of another database.
    """
    log = path.with_name(path.name + "-wal")
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(ROLLBACK_MODE) + MODE_AT)[MODE_AT:] == ROLLBACK_MODE and log.stat().st_size:
            raise ConfigError(
                f"{log} is the log of another database, and SQLite would write it into {path}, which has none; if "
                f"{path} is the file that you want, as after a restore, move {log} away"
            )


def is_node_file(path: Path) -> bool:
    """Return whether a file is a node's already; nothing is written to it.

    An unreadable file counts as a node's: opening it for the node reports the fault.
    """
    if not path.is_file():
        return False
    try:
        with _looking_into(path) as db:
            return system.exists(db)
    except apsw.Error:
        return True


@contextmanager
def _looking_into(path: Path) -> Iterator[apsw.Connection]:
    """Yield a connection to a file that its node has not opened yet; nothing is written to the file."""
    with closing(ModuleConnection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
        db.set_busy_timeout(RECOVERY_MS)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        yield db


def check_alone(path: Path, node: str, founders: Collection[str]) -> None:
    """Make sure that a new node does not found a cluster with tables that the other founders do not have.

    No commit made these tables, so they would never reach the other founders. The other founders would be the majority,
    so the cluster would fill this node's file again from theirs, and lose the tables.

    Raises:
        ConfigError: the file has tables, and there are other founders.
    """
    others = sorted(name for name in founders if name != node)
    if not others or not path.is_file():
        return
    with suppress(apsw.Error), _looking_into(path) as db:
        if db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None and not system.exists(db):
            raise ConfigError(
                f"{path} has tables already, and {' and '.join(others)} would begin without them; take the others out "
                f"of [peers], start {node} alone, and have them join: 'bedrockish join URL --config B.toml "
                "--voter'"
            )


def founded_alone(path: Path) -> str:
    """Return the name of the only member of the cluster that a file belongs to; empty for any other file."""
    with suppress(apsw.Error, EntryMalformedError), _looking_into(path) as db:
        members = read_membership(system.get_meta(db, "membership")).nodes
        return members[0] if len(members) == 1 else ""
    return ""


def _check_level(path: Path, level: int) -> None:
    if level > LEVEL:
        raise ConfigError(
            f"{path} is of a cluster at release level {level}, and this program reads up to {LEVEL}; install the "
            "release that the other members run"
        )


def _check_own(db: apsw.Connection, path: Path) -> None:
    """Refuse a file in which another program has put objects among a node's own: SQLite would run such a trigger."""
    found = ", ".join(strange_objects(db))
    if found:
        raise ConfigError(
            f"{path} has objects that no node makes: {found}; another program has made them. Drop them with SQLite's "
            "shell, compare the tables with 'bedrockish journal verify --tables', and fill this node again if they "
            "differ"
        )


@contextmanager
def _as_config_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except apsw.FullError as error:
        raise NoRoomError(f"{path}: {FULL}") from error
    except apsw.CorruptError as error:
        raise lost_file(path, error) from error
    except apsw.NotADBError as error:
        raise ConfigError(
            f"{path} is not a SQLite database ({error}); give another file, or, if it was this node's, run 'bedrockish "
            "member replace URL NODE NEW' at another node, and 'bedrockish join URL' for the node NEW"
        ) from error
    except (apsw.CantOpenError, apsw.PermissionsError, apsw.ReadOnlyError, apsw.IOError) as error:
        if no_room := why_not_writable(path):
            raise NoRoomError(f"{path} cannot be opened for writing: {no_room}") from error
        if foreign := _foreign(path):
            raise ConfigError(foreign) from error
        why = "there is no such file, or" if not path.exists() else ""
        how = "the disk and start the node again" if isinstance(error, apsw.IOError) else "the path and its permissions"
        raise ConfigError(
            f"{path} cannot be opened for writing: {why} {error}; check {how}".replace("  ", " ")
        ) from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise NoRoomError(f"{path} cannot be created: {error.strerror}; {FULL}") from error
        raise ConfigError(
            f"{path} cannot be created: {error.strerror}; give a directory that may be written"
        ) from error
    except (apsw.BusyError, apsw.LockedError) as error:
        raise ConfigError(f"{path} is being written by another program; close it there and start again") from error


def _set_up(db: apsw.Connection, path: Path, limits: Limits) -> None:
    if db.readonly("main") or not os.access(path.parent, os.W_OK):
        if no_room := why_not_writable(path):
            raise NoRoomError(f"{path} may only be read: {no_room}")
        raise ConfigError(f"{path} may not be written by this user; change its permissions, or the user of the node")
    # After a crash, the first program that opens the file, even a reader, recovers the WAL and locks others out.
    db.set_busy_timeout(RECOVERY_MS)
    db.pragma("auto_vacuum", INCREMENTAL)  # SQLite ignores this unless the file is still empty
    mode = db.pragma("journal_mode", "wal")  # allows readers while the writer writes; one file to sync
    if mode != "wal":
        raise ConfigError(f"{path} cannot use a write-ahead log (journal_mode is {mode}); use a local disk")
    db.pragma("synchronous", "NORMAL")  # we sync the WAL ourselves, once per batch
    db.pragma("cache_size", -CACHE_KIB)
    set_options(db, limits)


def _found(db: apsw.Connection, path: Path, founding: Founding | None) -> None:
    """Create the system tables of a new file, or check and complete the tables of an old file; commit."""
    for one in virtual_tables(db):
        if one.module in VECTORS and one.module not in installed():
            package = PACKAGES[one.module]
            raise ConfigError(f"{path}: table {one.name} needs the module {one.module}; install {package}")
    tables = Tables(db)
    try:
        tables.check_supported(db, tables if system.exists(db) else None)
    except UnsupportedError as error:
        raise ConfigError(f"{path} cannot be a node's file: {error}") from error
    if not system.exists(db):
        if founding is None:
            raise ConfigError(f"{path} is not a node's file yet; start the node with its name and members")
        if not founding.joining and founding.node not in founding.membership.members:
            raise ConfigError(f"node {founding.node} is not among the members {', '.join(founding.membership.nodes)}")
        try:
            tables.check_references()
        except UnsupportedError as error:
            raise ConfigError(f"{path} cannot be a node's file: {error}") from error
        rebuild_indexes(db)  # another program may have changed a table without its index
        began_with = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        system.create(db)
        store.create(db)
        schema.create(db)
        system.set_meta(db, "format", system.FORMAT)
        system.set_meta(db, "node", founding.node)
        system.set_meta(db, "store", founding.store)
        system.set_meta(db, "schema_version", 0)
        system.set_meta(db, "batches", 0)
        system.set_meta(db, "began_with", began_with[0] if began_with else 0)  # if not 0, the journal is incomplete
        membership = pack_membership(founding.membership)
        system.set_meta(db, "bootstrap", membership)  # the first membership: auditors count quorums by it
        system.set_meta(db, "membership", membership)  # the current membership
        if founding.joining:
            system.set_meta(db, "joining", founding.joining)
    else:
        found = system.get_meta(db, "format")
        if found != system.FORMAT:
            raise ConfigError(f"{path} has the format {found}, this program reads {system.FORMAT}; use its own version")
        _check_own(db, path)
        _check_level(path, read_membership(system.get_meta(db, "membership")).level)
        node = system.get_meta(db, "node")
        if founding is not None and founding.node != node:
            raise ConfigError(f"{path} is the file of node {node}, not of {founding.node}; give each node its own file")
        store.complete(db)
        remove_leftovers(db)  # a killed process may have left parts of index builds
    db.execute("COMMIT")


def set_up_reader(reader: apsw.Connection) -> None:
    """Set the options of a connection that only reads."""
    reader.set_busy_timeout(5_000)
    reader.pragma("foreign_keys", 1)  # so that a client that queries this PRAGMA gets the writer's value
