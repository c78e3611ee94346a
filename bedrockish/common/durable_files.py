"""Writes small files under another name first, so that a kill or a power cut leaves the old or the new file whole."""

import errno
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

PART = ".part"  # appended to the name of a file until it is whole and durable


def sync(path: Path) -> None:
    """Make a file, or the names in a directory, durable; no connection of this process may have the file open.

    Raises:
        OSError: the file cannot be synced. Some file systems sync no directories, which counts as done.
    """
    if os.name == "nt":
        return  # Windows opens no directory, and runs no node
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(fd)


def part_of(path: Path) -> Path:
    """Return the name under which a file is written."""
    return path.with_name(path.name + PART)


def make_folder(path: Path) -> None:
    """Make a folder and its parents durably, unless it is there.

    Raises:
        OSError: it cannot be made.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def lock_folder(descriptor: int, folder: Path, tell: Callable[[str], None]) -> None:
    """Let one process at a time work in an open folder, if the system has locks for folders; others wait.

    A file with the process's number would not do: containers that share the folder number their processes separately.

    Args:
        tell: gets a text for the user before this process waits.
    """
    with suppress(ImportError, OSError):  # such as a network file system
        import fcntl  # Windows lacks it

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(OSError):  # standard error is closed
                tell(f"another process works in {folder}; this one begins when that one ends")
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def write_part(path: Path, data: bytes, mode: int) -> None:
    """Write the content of a file under its other name, durably; ``finish`` gives the file its own name.

    Until the file has its mode, only its owner can read it.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    part = part_of(path)
    try:
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def finish(*paths: Path) -> None:
    """Give files in one folder their own names, in this order, durably.

    Raises:
        OSError: a file cannot be renamed.
    """
    for path in paths:
        os.replace(part_of(path), path)
    sync(paths[0].parent)


def add_lines(path: Path, lines: Iterable[str]) -> None:
    """Add lines to a text file, all or none, durably; a last line without a line feed gets one.

    The file keeps its mode and, as far as this user may give files away, its owner.

    Raises:
        OSError: the file cannot be written; it is unchanged.
    """
    path = path.resolve()
    before = path.stat() if path.exists() else None
    old = path.read_bytes() if before else b""
    if old and not old.endswith(b"\n"):
        old += b"\n"
    write_part(path, old + "".join(f"{line}\n" for line in lines).encode(), before.st_mode & 0o777 if before else 0o644)
    if before is not None:
        with suppress(PermissionError):
            os.chown(part_of(path), before.st_uid, before.st_gid)
    finish(path)
