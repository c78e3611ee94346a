"""A power cut at one node: what its process has written to the write-ahead log and not synced is gone, or is garbage.

The node's page tells the last batch that is durable, and how far into the log it reaches: the node publishes that after
its sync, and before any message that rests on it.
"""

import os
import random
from pathlib import Path

from bedrockish.errors import UnavailableError
from bedrockish.local.page import Published

HEADER_BYTES, FRAME_HEAD_BYTES = 32, 24  # of the log, and of each page in it
PAGE_SIZE_AT, SALTS_AT, SALTS_IN_FRAME, SALTS_BYTES = 8, 16, 8, 8


def lose_unsynced(database: Path, process: int, luck: random.Random) -> int:
    """Take from the log of a file, which no process has open, what is not known to be durable; return how many bytes.

    Nothing is taken if the page is not that of the node's last process: it has synced what it began with.

    A disk may have got some of it to its platters: at times a part of it stays, and at times a byte of that is wrong.
    The rest reads as the zeros that were there before, or is not in the file at all.
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
            place = durable + luck.randrange(kept)
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 0xFF]))
        os.fsync(file.fileno())
    return unsynced - kept


def _written_bytes(log: Path) -> int:
    """Return where the frames of the log end; zeros that were written before them, or older frames, may follow."""
    with log.open("rb") as file:
        head = file.read(HEADER_BYTES)
        salts = head[SALTS_AT : SALTS_AT + SALTS_BYTES]
        size = FRAME_HEAD_BYTES + int.from_bytes(head[PAGE_SIZE_AT : PAGE_SIZE_AT + 4], "big")
        end = len(head)
        while len(frame := file.read(size)) == size and frame[SALTS_IN_FRAME : SALTS_IN_FRAME + SALTS_BYTES] == salts:
            end += size
    return end


def _durable_bytes(database: Path, log: Path, process: int) -> int | None:
    """Return how many bytes of the log are durable; None if the page does not tell."""
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
        return min(len(head), HEADER_BYTES)  # the log has started over since then; before that, all of it was copied
    page = int.from_bytes(head[PAGE_SIZE_AT : PAGE_SIZE_AT + 4], "big")
    return HEADER_BYTES + batch.frames * (FRAME_HEAD_BYTES + page)
