"""The temporary files that a node makes in the folder of its database, and the room on the disk for them.

Such a file may be as large as the database. A full disk ends the node, so the last part of the disk is reserved and
never used for temporary files. A killed node or ``compact`` leaves such files behind; they are removed when the
database is opened again.
"""

import errno
import os
import re
import resource
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import apsw

from bedrockish.errors import UnavailableError

LENT, REFILL, MOMENT, PROOF, PROBE = ".lent", ".refill", ".moment", ".proof", ".probe"
PROBE_BYTES = 256 << 10  # a node that waits for room resumes when it can write these bytes: more than most batches
PROBE_BYTES_MAX = 64 << 20  # the limit of these bytes, which double each time a resumed node soon fails again
REASONS = {
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "its quota is used up",
    errno.EFBIG: "it has reached the limit of a file's size (ulimit -f)",
    errno.EROFS: "its file system may only be read",
    errno.EMFILE: "the node has too many files open",
    errno.ENFILE: "the machine has too many files open",
}
"""Explanations of the system's error numbers for a file that cannot be written."""
RESERVE_PARTS, RESERVE_BYTES = 50, 256 << 20  # 1/50 of the disk, at most 256 MiB, is kept for decided entries
_LEFT = re.compile(
    r"(\.(probe|lent|refill|compact)|(\.refill)?\.(moment|proof))"
    r"(\.(\d+\.)?(part|compact|part\.compact))?(-wal|-shm|-journal|-lock)?"
)


def scratch_path(database: str | os.PathLike[str], suffix: str) -> Path:
    """Return the path of a temporary file next to the node's database; ``suffix`` names the file's purpose."""
    file = Path(database).resolve()
    return file.with_name(file.name + suffix)


def remove_scratch(database: str | os.PathLike[str]) -> None:
    """Remove the temporary files of a killed process; the caller has the lock, so no process makes any now."""
    file = Path(database).resolve()
    with suppress(OSError):
        for path in list(file.parent.iterdir()):
            if path.name.startswith(file.name) and _LEFT.fullmatch(path.name[len(file.name) :]):
                with suppress(OSError):
                    path.unlink()


def remove(*paths: Path) -> None:
    """Remove databases, where they exist, and SQLite's files next to them.

    Raises:
        OSError: a file cannot be removed.
    """
    for path in paths:
        for suffix in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def room_on_disk(path: str | os.PathLike[str]) -> dict[str, int] | None:
    """Return the free and the total bytes of the disk of a file; None if the system does not tell them."""
    try:
        found = os.statvfs(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return None
    return {"free_bytes": found.f_bavail * found.f_frsize, "total_bytes": found.f_blocks * found.f_frsize}


def reserve(room: Mapping[str, int]) -> int:
    """Return the number of bytes of a disk that must be free for its node to lead and to vote."""
    return min(room["total_bytes"] // RESERVE_PARTS, RESERVE_BYTES)


def why_not_writable(path: str | os.PathLike[str], size: int = PROBE_BYTES) -> str:
    """Return, in words, why ``size`` more bytes cannot be written to the disk of a database; empty if they can.

    The result is also empty if a write fails for a cause that is not in ``REASONS``. The probe writes, because only a
    write shows a quota, or a file system that the kernel has made read-only.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most != resource.RLIM_INFINITY and length(path, "", "-wal") + size > most:
        return REASONS[errno.EFBIG]
    probe = scratch_path(path, PROBE)
    try:
        try:
            file = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                written = 0
                while written < size:  # a write that fits only in part raises no error; the next one does
                    written += os.pwrite(file, bytes(min(size - written, PROBE_BYTES)), written)
                os.fsync(file)
            finally:
                os.close(file)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return REASONS.get(error.errno or 0, "")
    return ""


def length(path: str | os.PathLike[str], *suffixes: str) -> int:
    """Return the total bytes of a database's files with these suffixes; ``""`` stands for the database file itself.

    A checkpoint makes the database file at most as long as it and its ``-wal`` are together.
    """
    found, file = 0, Path(path).resolve()
    for suffix in suffixes:
        with suppress(OSError):
            found += file.with_name(file.name + suffix).stat().st_size
    return found


def check_room(path: str | os.PathLike[str], size: int = 0) -> None:
    """Make sure that a disk has room for ``size`` more bytes besides the reserve for entries of other nodes.

    Raises:
        UnavailableError: the disk has less.
    """
    room = room_on_disk(path)
    if room is not None and room["free_bytes"] < size + reserve(room):
        needed = f", and {size >> 20} MiB are needed" if size else ""
        raise UnavailableError(
            f"the disk of {path} has {room['free_bytes'] >> 20} MiB left{needed}; the last {reserve(room) >> 20} MiB "
            "are kept for what other nodes decide"
        )


def size_of(db: apsw.Connection) -> int:
    """Return the size of a database in bytes, as a connection reads it."""
    return int(db.pragma("page_count")) * int(db.pragma("page_size"))
