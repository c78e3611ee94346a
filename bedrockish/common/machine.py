"""The machine: whether its system can run a node, which of its limits are too low, and how it mounts a file."""

import errno
import importlib
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bedrockish.errors import UnavailableError, UnsupportedError

MOUNTS = Path("/proc/self/mountinfo")
GROUPS, GROUPS_FOLDER = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
SYSTEM: str = sys.platform  # a variable, so that the type checker does not take one system for granted
FILES_MIN = 64
MEMORY_MIN = 128 << 20
THREAD_BYTES = 16 << 20  # address space of a thread: a stack of usual size, and the memory for its first steps
SHOWN = 200  # most letters of a text that an error shows

_FILES = "raise the limit of open files (ulimit -n, LimitNOFILE)"
_MEMORY = "raise the limit of memory (ulimit -v, MemoryMax)"
_THREADS = "raise the limit of processes and threads (ulimit -u, TasksMax)"


def check_linux(what: str) -> None:
    """Refuse a node, or the use of its file, on other systems: both use eventfd, fdatasync and /proc.

    Raises:
        UnsupportedError: this system is not Linux.
    """
    if SYSTEM != "linux":
        raise UnsupportedError(
            f"{what} needs Linux, and this system is {SYSTEM}; run nodes on Linux or in containers, and connect by URL"
        )


def is_mounted_alone(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a mount of its own, as ``docker run -v FILE:FILE`` makes it.

    The files that SQLite makes next to it are then in another folder: in that of the container.
    """
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError:  # the system does not tell
        return False
    wanted = os.fsencode(os.path.realpath(path))
    for letter in b"\\ \t\n":  # the letters that the kernel writes as octal numbers
        wanted = wanted.replace(bytes([letter]), b"\\%03o" % letter)
    return any(line.split(b" ")[4:5] == [wanted] for line in lines)


def too_low() -> str:
    """Return which limit of this process is too low for a node, and the remedy; empty if none is."""
    files, memory = _soft_limit("RLIMIT_NOFILE"), _soft_limit("RLIMIT_AS")
    if files < FILES_MIN:
        return f"this process may open {files} files, and a node needs {FILES_MIN}; {_FILES}"
    if memory < MEMORY_MIN:
        return f"this process may have {memory >> 20} MiB of memory, and a node needs {MEMORY_MIN >> 20} MiB; {_MEMORY}"
    return ""


def _soft_limit(limit: str) -> int:
    resource = importlib.import_module("resource")  # not at the top of this module, because Windows lacks it
    found, _ = resource.getrlimit(getattr(resource, limit))
    return sys.maxsize if found == resource.RLIM_INFINITY else found


def memory_limit() -> int:
    """Return the number of bytes that this process may take, by its limit of address space and its control groups."""
    found = [_soft_limit("RLIMIT_AS")]
    with suppress(OSError):
        for line in GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                folder, name = GROUPS_FOLDER / "memory", "memory.limit_in_bytes"
            elif not controllers:
                folder, name = GROUPS_FOLDER, "memory.max"
            else:
                continue
            own = folder / path.lstrip("/")
            for group in (own, *own.parents):
                # A container may see its own group as the root, under another path than this process is told.
                if group.is_relative_to(folder) and (group / name).exists():
                    text = (group / name).read_text().strip()
                    found.append(int(text) if text.isdigit() else sys.maxsize)
    return min(found)


def why_refused(error: BaseException) -> str:
    """Return the lack or the limit of the machine that has caused an error, and the remedy; empty for other errors."""
    match error:
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return f"too many files are open; {_FILES}"
        case MemoryError():
            return f"the machine gives no more memory; {_MEMORY}"
        case ImportError() if "failed to map segment" in str(error):
            return f"the machine gives no memory for a library; {_MEMORY}"
        case RuntimeError() if "can't start new thread" in str(error):
            return f"the machine gives no further thread; {_THREADS}"
        case BaseException() if type(error).__module__ == "pyo3_runtime" and "null" in str(error):  # cbor2, in Rust
            return f"the machine gives no more memory; {_MEMORY}"
        case ModuleNotFoundError(name="fcntl" | "resource" as name):
            return f"this needs Linux or macOS: Python on {sys.platform} has no module {name}"
        case _:
            return ""


def start_thread(start: Callable[[], None]) -> None:
    """Call the method that starts a thread, after a check that there is memory for the thread.

    Python waits until a new thread has taken its first steps: for ever, if the thread lacks the memory for them.

    Raises:
        MemoryError: there is not enough address space.
        RuntimeError: the machine gives no further thread.
    """
    try:
        mmap.mmap(-1, THREAD_BYTES, access=mmap.ACCESS_COPY).close()
    except OSError as error:
        raise MemoryError(str(error)) from error
    start()


@contextmanager
def threads_or_unavailable() -> Iterator[None]:
    """Report a thread that the block cannot start as an error of the machine, with the remedy.

    Raises:
        UnavailableError: the machine gives no further thread.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if why := why_refused(error):
            raise UnavailableError(f"{why}; nothing happened") from error
        raise


def not_utf8(error: UnicodeEncodeError) -> str:
    """Return the reason why a path or a text cannot be passed on, and the remedy."""
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        return f"a name or a text has letters that the encoding of this locale, {encoding}, lacks; set PYTHONUTF8=1"
    return (
        f"{error.object[:SHOWN]!r} is not UTF-8, as SQLite's paths and texts are; rename the file, or convert the text"
    )
