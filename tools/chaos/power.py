"""A power cut at one node: the unsynced part of its write-ahead log is lost, or damaged.

The node's page has the last durable batch and its end in the log. The node publishes these after its sync, and before
any message that depends on it.
"""

import os
import random
from pathlib import Path

from bedrockish.errors import UnavailableError
from bedrockish.local.page import Published

HEADER_BYTES, FRAME_HEAD_BYTES = 32, 24  # bytes of the header of the log, and of each frame
PAGE_SIZE_AT, SALTS_AT, SALTS_IN_FRAME, SALTS_BYTES = 8, 16, 8, 8


def lose_unsynced(database: Path, process: int, luck: random.Random) -> int:
    """Remove the part of a closed file's log that is not known to be durable; return the number of lost bytes.

    Nothing is removed if the node's page is of an earlier process: the last one has synced the log at its start.

    A disk may have written some of that part: at times a prefix is kept, and at times a byte of the prefix is wrong.
    The remainder becomes zeros, or is cut off.
    """
    log = database.with_name(f"{database.name}-wal")
    durable = _durable_bytes(database, log, process) if log.exists() else None
    if durable is None:
        return 0
    unsynced = max(0, _written_bytes(log) - durable)
    kept = luck.choice([0, luck.randint(0, unsynced)])
    with log.open("r+b") as file:
        size = log.stat().st_size
        file.truncate(min(size, durable + kept))
        if luck.random() < 0.5:
            file.truncate(size)
        if kept and luck.random() < 0.3:
            offset = durable + luck.randrange(kept)
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 0xFF]))
        os.fsync(file.fileno())
    return unsynced - kept


def _written_bytes(log: Path) -> int:
    """Return the end of the frames of the log; older frames may follow, or zeros."""
    with log.open("rb") as file:
        head = file.read(HEADER_BYTES)
        salts = head[SALTS_AT : SALTS_AT + SALTS_BYTES]
        size = FRAME_HEAD_BYTES + int.from_bytes(head[PAGE_SIZE_AT : PAGE_SIZE_AT + 4], "big")
        end = len(head)
        while len(frame := file.read(size)) == size and frame[SALTS_IN_FRAME : SALTS_IN_FRAME + SALTS_BYTES] == salts:
            end += size
    return end


def _durable_bytes(database: Path, log: Path, process: int) -> int | None:
    """Return the number of durable bytes of the log; None if the node's page does not show it."""
    try:
        published = Published(str(database))
    except UnavailableError:
        return None
    try:
        facts = published.facts()
        batch = published.batch(facts.durable) if facts.process == process else None
    except UnavailableError:
        return None
    finally:
        published.close()
    if batch is None:
        return None
    with log.open("rb") as file:
        head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES or head[SALTS_AT : SALTS_AT + SALTS_BYTES] != batch.salts:
        return min(len(head), HEADER_BYTES)  # since then, SQLite has checkpointed the log and restarted it
    page = int.from_bytes(head[PAGE_SIZE_AT : PAGE_SIZE_AT + 4], "big")
    return HEADER_BYTES + batch.frames * (FRAME_HEAD_BYTES + page)
