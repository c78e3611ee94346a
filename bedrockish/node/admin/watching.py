"""A node's checks of its disk and open files, and the log lines about its troubles."""

import errno
import logging
import os
import resource
from collections.abc import Callable, Mapping
from typing import Any

import trio

from bedrockish.core.protocol.health import DISK_FULL, Health, Mode
from bedrockish.engine.storage.scratch_files import (
    PROBE_BYTES,
    PROBE_BYTES_MAX,
    length,
    reserve,
    room_on_disk,
    why_not_writable,
)

logger = logging.getLogger(__name__)

LOOK_S = 2.0
PAUSE_S_MAX = 60  # the longest pause before a node that failed repeatedly checks for room
LONG_LOG_BYTES = 8 << 20  # a waiting node with so long a log starts again after a while: its start frees the log's room
FILES_MAX, RESERVE_FILES = 1 << 20, 200  # the most open files; files reserved for members, SQLite, and the watcher


def files_max() -> int:
    """Return the number of open files at which new clients are refused; the rest is for connected clients."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, FILES_MAX)
    return limit - min(RESERVE_FILES, limit // 3)


def open_files() -> dict[str, int]:
    """Return the number of open files and sockets, and the number at which new clients are refused."""
    most = files_max()
    try:
        found = os.open(os.devnull, os.O_RDONLY)  # gets the lowest free number, which is the number of open files
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return {"open": most + RESERVE_FILES, "max": most}
    os.close(found)
    return {"open": found, "max": most}


async def watch_disk(
    path: str,
    health: Health,
    shorten_log: Callable[[], None],
    look: Callable[[str], dict[str, int] | None] = room_on_disk,
) -> None:
    """Make a node read-only while its disk is nearly full: the rest is reserved for transactions that others decide.

    Args:
        shorten_log: gives back the room that the write-ahead log takes, if nothing is written any more.
        look: returns the free bytes and all bytes of the disk of a path.
    """
    while True:
        room = look(path)
        if room is not None:
            free, least = room["free_bytes"], reserve(room)
            if free < least and DISK_FULL not in health.alarms:
                reason = (
                    f"the disk of {path} has only {free >> 20} MiB left, and {least >> 20} MiB are kept for what other "
                    "nodes decide; make room, and it writes again by itself"
                )
                health.set_alarm(DISK_FULL, Mode.READ_ONLY, reason, free_bytes=free)
                logger.error("%s", reason)
            elif free > least + least // 2 and DISK_FULL in health.alarms:
                health.clear_alarm(DISK_FULL)
                logger.warning("the disk of %s has %d MiB left again: this node writes", path, free >> 20)
        if DISK_FULL in health.alarms:
            shorten_log()
        await trio.sleep(LOOK_S)


def why_no_room(path: str, size: int = PROBE_BYTES) -> str:
    """Return why a file cannot be opened and get ``size`` bytes more now, in words; empty if it can.

    The reserve has to be free, too: otherwise the node would stop again at once.
    """
    files = open_files()
    if files["open"] >= files["max"]:
        return f"{files['open']} files and connections are open, of {files['max']} that may be"
    why, room = why_not_writable(path, size), room_on_disk(path)
    if why or room is None:
        return why or "its folder cannot be read"
    if room["free_bytes"] <= reserve(room):
        return f"its disk has only {room['free_bytes'] >> 20} MiB left, and needs {reserve(room) >> 20} MiB"
    return ""


class WriteCheck:
    """A waiting node's check whether its file can be written again.

    A node that found room and soon failed again needs more than the probe has written, such as for a batch of many
    entries. After each such failure it waits longer, and probes for more.

    Args:
        failures: how many times in a row the node has failed soon after it had found room.
        limit: the limit of the machine because of which the file could not be written; empty for another reason.
    """

    def __init__(self, path: str, failures: int = 0, limit: str = "") -> None:
        self._path = path
        self._size = min(PROBE_BYTES << failures, PROBE_BYTES_MAX)
        self._pause_s = min(1 << failures, PAUSE_S_MAX) if failures else 0
        again = f", and is tried again in {self._pause_s} s" if failures else ""
        because = f" ({limit})" if limit else ""
        # Why the file cannot be written, as a text.
        self.why = self._why_not_now() or f"{path} could not be written a moment ago{because}{again}"

    def _why_not_now(self) -> str:
        why = why_no_room(self._path, self._size)
        return f"{self._path} cannot be written: {why}" if why else ""

    async def wait(self) -> None:
        """Wait until the file can be written."""
        again_at = trio.current_time() + PAUSE_S_MAX
        await trio.sleep(self._pause_s)
        while why := await trio.to_thread.run_sync(self._why_not_now):
            if trio.current_time() >= again_at and length(self._path, "-wal") >= LONG_LOG_BYTES:
                return  # the node's start copies its log, and removes it
            if why != self.why:
                logger.warning("%s", why)
            self.why = why
            await trio.sleep(LOOK_S)


async def tell_troubles(status: Callable[[], Mapping[str, Any]]) -> None:
    """Check for troubles every few seconds, so that their duration is known, and log when they begin and end."""
    known: dict[str, str] = {}
    while True:
        found = {one["code"]: one for one in status()["troubles"]}
        for code, one in found.items():
            if code not in known:
                logger.warning("trouble %s: %s; %s", code, one["text"], one["do"])
        for code in known.keys() - found.keys():
            logger.info("trouble %s is over: %s", code, known[code])
        known = {code: one["text"] for code, one in found.items()}
        await trio.sleep(LOOK_S)
