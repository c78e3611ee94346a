"""The programs that read a node's file; one of them may prevent a restart of the write-ahead log."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from bedrockish.engine.storage.wal import FRAME_BYTES

HELD_FRAMES_MIN = 96_000  # fewer frames do not prove a slow reader: without one, a log has about 32,000, at most 64,000
READERS_MAX = 5
READ_LOCKS = range(123, 128)  # bytes of the -shm file; a reader locks one of them (see SQLite's wal.c)


def describe_held_wal(database: str, held_frames: int) -> dict[str, Any] | None:
    """Return the size of a log that a reader holds back, and the programs that read now; None for a small log.

    Args:
        held_frames: frames that the log has because a reader needs old ones.
    """
    if held_frames < HELD_FRAMES_MIN:
        return None
    return {"bytes": held_frames * FRAME_BYTES, "readers": readers_of(database)}


def readers_of(database: str) -> list[str]:
    """Return the other processes that read a database's file now, by number and name; at most ``READERS_MAX``."""
    processes = {process for process, _ in read_locks(database)} - {os.getpid()}
    return [_described(process) for process in sorted(processes)[:READERS_MAX]]


def read_locks(database: str) -> set[tuple[int, int]]:
    """Return the locks of all readers of a database's file: the number of the process, and the locked byte.

    The -shm file is not opened for that: closing it would drop SQLite's locks in this process.
    """
    try:
        found = os.stat(f"{database}-shm")
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:  # another system than Linux, or no such file
        return set()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    every = [line.split() for line in lines]
    ours = [words for words in every if words[-3] == place and words[-6] == "ADVISORY"]
    return {(int(words[-4]), int(words[-2])) for words in ours if int(words[-2]) in READ_LOCKS}


def _described(process: int) -> str:
    with suppress(OSError, IndexError):
        head, _, rest = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        name = head.partition("(")[2]
        return f"{process} ({name}{', stopped' if rest.split()[0] in 'Tt' else ''})"
    return str(process)
