"""Translates SQLite's errors: each apsw exception becomes a typed error with a remedy."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from bedrockish.common.machine import why_refused
from bedrockish.errors import (
    BedrockishError,
    ConstraintError,
    DamagedError,
    NoRoomError,
    SqlError,
    TooLargeError,
    UnavailableError,
)

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""The system's error numbers for a file that cannot be written now: a full disk, a quota, the limit of a file's size,
and a read-only file system. SQLite has its own code only for a full disk."""
_TEXT = re.compile("syntax error|unrecognized token|incomplete input")
FULL = "the disk is full, or may only be read; make room: nothing that was answered is lost, and a running node resumes"

FOREIGN_WRITER = "another program has written to the node's file; stop it, and fill this node again"

NO_ROOM_HERE = (
    "this node has no room for the statement, on the disk of its file or that of its temporary files (TMPDIR); the "
    "statement did not happen: free some room there, or send it to another node"
)

NO_FILE = "the process of the statement cannot open another file; end connections, or raise its limit of open files"

NO_MEMORY = why_refused(MemoryError())

_CORRUPT_INDEX = (
    "a virtual table that the statement uses is corrupt, or a 'delete' command names other values than the index has: "
    "leave such commands out, because nodes maintain their indexes; otherwise drop and create the virtual table"
)
WITHOUT_PLUGIN = (
    "it is a function or a collation of a plugin that this node does not have: name the module in its key plugins, as "
    "at the other nodes, and start it again"
)


_LACKS = re.compile("(?:no such (?:function|collation sequence)|unknown function): ")
_LACKS_VECTORS = re.compile("no such (?:function: (?:libsql_)?vector|table: vector_top_k)")
LIBSQLS_VECTORS = "libSQL's own vectors are missing; use tables of vec1 or vec0, and their functions"
ELSEWHERE = (
    "a function or collation of a program exists in its process only: register it at the nodes, by a plugin, or on "
    "this connection if it was opened by the path of a node's file"
)


def translate(error: apsw.Error, sql: str, number: int = 0) -> BedrockishError:
    """Return the error to raise to the client for SQLite's error about a statement.

    ``number``: the system's error number of the connection's last failed input or output.
    """
    text = str(error)
    match error:
        case apsw.ConstraintError():
            return ConstraintError(text, sql=sql, **_code(error))
        case apsw.TooBigError():
            return TooLargeError(
                f"{text}: a value or the statement is over the limit; split it", sql=sql, **_code(error)
            )
        case apsw.NoMemError():
            return TooLargeError("SQLite ran out of memory; ask for less at a time", sql=sql)
        # A node without room for decided entries stops: ``Batch.redo`` then fails as well.
        case _ if lacks_room(error, number):
            return UnavailableError(NO_ROOM_HERE)
        case apsw.CantOpenError():
            return UnavailableError(f"{NO_FILE}; the statement did not happen")
        case apsw.CorruptError() if is_of_module(error):
            # A client's FTS5 command 'delete' with values that the index does not have also causes this error.
            return SqlError(f"{text}; {_CORRUPT_INDEX}", sql=sql, **_code(error))
        case apsw.CorruptError():
            return damaged_page(error, sql=sql)
        case apsw.IOError() | apsw.NotADBError() | apsw.ReadOnlyError():
            return DamagedError(f"the database file failed: {text}; check the disk, or fill the node again")
        case _:
            offset = getattr(error, "error_offset", -1)
            if _LACKS.match(text) or _LACKS_VECTORS.match(text):
                text += f"; {LIBSQLS_VECTORS if _LACKS_VECTORS.match(text) else ELSEWHERE}"
            return SqlError(text, sql=sql, **_code(error), **({"offset": offset} if offset >= 0 else {}))


def not_utf8(sql: str) -> SqlError:
    """Return the error for a result that cannot be decoded."""
    return SqlError("the result has a text that is not UTF-8; select CAST(... AS BLOB)", sql=sql)


def _code(error: apsw.Error) -> dict[str, int]:
    """Return SQLite's extended result code, as details of an error."""
    number = getattr(error, "extendedresult", None)
    return {"sqlite": number} if isinstance(number, int) else {}


def is_of_module(error: apsw.Error) -> bool:
    """Return whether a module found the data of its virtual table corrupt; otherwise SQLite found a corrupt page."""
    return getattr(error, "extendedresult", None) == apsw.SQLITE_CORRUPT_VTAB


def is_in_the_text(error: BedrockishError) -> bool:
    """Return whether an error is a syntax error of the statement, which does not depend on the tables."""
    return isinstance(error, SqlError) and _TEXT.search(error.message) is not None


def lacks_room(error: apsw.Error, number: int) -> bool:
    """Return whether a write failed because the disk or a limit gives it no room; ``number``: see ``translate``."""
    return isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and number in NO_ROOM)


def is_of_a_file(error: BaseException | None, number: int) -> bool:
    """Return whether a write to a file failed for lack of room; ``number``: see ``translate``.

    SQLite also raises ``FullError``, without a write, when a database has reached its greatest number of pages. The
    traceback tells the two apart: for a write through our VFS, apsw adds a frame to it.
    """
    trace, names = None if error is None else error.__traceback__, set()
    while trace is not None:
        names.add(trace.tb_frame.f_code.co_filename.rpartition("/")[2])
        trace = trace.tb_next
    if isinstance(error, apsw.FullError):
        return "vfs.c" in names
    return isinstance(error, apsw.IOError) and number in NO_ROOM


def shortage(error: BaseException | None, number: int = 0) -> UnavailableError | None:
    """Return the error for a statement of the engine that lacked room or an open file; None for any other failure.

    ``number``: see ``translate``.
    """
    if isinstance(error, apsw.CantOpenError):
        return UnavailableError(f"{NO_FILE}; the statement did not happen")
    return UnavailableError(NO_ROOM_HERE) if isinstance(error, apsw.Error) and lacks_room(error, number) else None


def damaged_page(error: apsw.CorruptError | apsw.NotADBError, **details: str) -> DamagedError:
    """Return the error that makes a node start again and check all pages of its file before it serves."""
    text = f"a page of the database file is damaged: {error}"
    return DamagedError(text, table="", page=str(error), **details)


def damage_of(error: Exception) -> DamagedError | None:
    """Return the DamagedError for the damage that an exception reports; None if the exception reports no damage."""
    match error:
        case DamagedError():
            return error
        case apsw.CorruptError() | apsw.NotADBError():
            return damaged_page(error)
        case ExceptionGroup():
            return next(filter(None, map(damage_of, error.exceptions)), None)
    return None


def disk_failure(error: BaseException) -> str:
    """Return the text of the disk's failure to read or write that an exception reports; empty if it reports none."""
    match error:
        case apsw.IOError():
            return str(error)
        case OSError() if error.errno == errno.EIO:
            return str(error.strerror)
        case BaseExceptionGroup():
            return next(filter(None, map(disk_failure, error.exceptions)), "")
    return ""


def machine_limit(error: BaseException) -> str:
    """Return the limit of the machine that an exception reports, and the remedy; empty if it reports none."""
    match error:
        case apsw.NoMemError():
            return NO_MEMORY
        case BaseExceptionGroup():
            return next(filter(None, map(machine_limit, error.exceptions)), "")
    return why_refused(error)


@contextmanager
def essential_reads(path: object) -> Iterator[None]:
    """Translate SQLite's error for a damaged file in a block that reads the data without which a node cannot start.

    Without these data, the node cannot even fetch a new copy of the file from another node.

    Raises:
        DamagedError: the data cannot be read; the node ends.
    """
    try:
        yield
    except apsw.CorruptError as error:
        raise lost_file(path, error) from error


def lost_file(path: object, error: apsw.Error) -> DamagedError:
    """Return the error that ends a node which can neither start from its file nor fill the file again.

    The error lacks the detail ``table``: with it, the node would start again, and fail. ``rebuild_indexes`` may help.
    """
    return DamagedError(
        f"{path} is damaged in pages that its node cannot begin without ({error}); run 'bedrockish member replace URL "
        "NODE NEW' at the other nodes, and then 'bedrockish join URL' for the node NEW on an empty file",
        page=str(error),
    )


def broken(error: apsw.Error, number: int = 0) -> DamagedError:
    """Return the error of a node that stops because it cannot write decided entries; ``number``: see ``translate``."""
    if lacks_room(error, number) or isinstance(error, apsw.ReadOnlyError):
        return NoRoomError(FULL)
    if isinstance(error, apsw.CantOpenError):
        return NoRoomError(f"{NO_FILE} ({error})")
    if isinstance(error, apsw.NoMemError) or number == errno.ENOMEM:  # for example, when SQLite maps the -shm file
        return NoRoomError(NO_MEMORY)
    if isinstance(error, apsw.CorruptError):
        return damaged_page(error)
    if isinstance(error, apsw.BusyError):  # between two batches, another program has taken the node's write lock
        return DamagedError(FOREIGN_WRITER)
    return DamagedError(f"the database file failed: {error}; check the disk, and start the node again")
