"""The handling of unexpected exceptions: each fails only its request, its task or its caller.

A bug fails one request and not the node: the exception becomes an ``InternalError`` with an id, is logged under that id
with its traceback, and is counted. The node stops for damage, wherever it is found (a ``DamagedError``, or SQLite's
error for a page that cannot be read), and for a ``BaseException`` that is not an ``Exception``.

A failure of the disk outside of a commit is not a bug, and does not stop the node either: no decision is lost if a
thread cannot read or copy data. The exception is reported as a failure of the disk. A failure because of a limit of the
machine, such as its number of threads, is reported as such: another node may be able to execute the request.
"""

import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import trio

from bedrockish.engine.sqlite.errors import NO_MEMORY, damage_of, disk_failure, machine_limit
from bedrockish.errors import (
    BedrockishError,
    DamagedError,
    InternalError,
    MemoryFullError,
    OutcomeUnknownError,
    UnavailableError,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)

COUNT, DISK, LIMIT = "internal_errors", "disk_errors", "limit_errors"
PLACES_MAX = 200  # most places in the program that are remembered because their traceback was logged
RECENT_S = 600.0
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 60.0  # the pause before a failed background task is restarted


class Faults:
    """Logs and counts unexpected exceptions, and turns each into the error to answer with.

    Args:
        counts: counts the exceptions under ``internal_errors``, ``disk_errors`` and ``limit_errors``.
        stop: ends the node with an error, in its loop, after the turn under way.
    """

    def __init__(self, counts: Counter[str], stop: Callable[[DamagedError], None]) -> None:
        self._counts, self._stop = counts, stop
        self._logged: Counter[str] = Counter()
        self._when = {kind: deque[float](maxlen=100) for kind in (COUNT, DISK, LIMIT)}
        self.last = self.last_of_disk = self.last_of_limit = ""

    def describe(self) -> dict[str, Any]:
        """Return the number of errors in the last ten minutes, up to 100 of each kind, and the last error."""
        oldest = time.monotonic() - RECENT_S
        recent = {kind: sum(1 for when in found if when >= oldest) for kind, found in self._when.items()}
        return {
            "internal_errors_recent": recent[COUNT],
            "internal_error_last": self.last or None,
            "disk_errors_recent": recent[DISK],
            "disk_error_last": self.last_of_disk or None,
            "limit_errors_recent": recent[LIMIT],
            "limit_error_last": self.last_of_limit or None,
        }

    def caught(self, what: str, error: Exception, *, is_late: bool = False) -> BedrockishError:
        """Log and count an exception; return the error to answer with. If the exception reports damage, stop the node.

        Args:
            what: the work that failed, as a phrase for the operator.
            is_late: whether the work may have been committed before the exception, as when its answer is written.
        """
        damage = damage_of(error)
        if damage is not None:
            logger.error("damage was found at %s: %s", what, damage.message)
            self._stop(damage)
            return _not_done(f"this node stops, and begins again if it can: {damage.message}", is_late=is_late)
        disk = disk_failure(error)
        if disk:
            self._count(DISK)
            self.last_of_disk = f"{disk} at {what}"
            logger.error("the disk failed at %s: %s", what, disk)
            why = f"the disk of this node could not read or write ({disk})"
            return _not_done(f"{why}: use another node, and check the disk of this one", is_late=is_late)
        limit = machine_limit(error)
        if limit:
            if not self._is_recent(LIMIT):  # a busy node meets a limit hundreds of times a second
                logger.error("a limit of the machine was met at %s: %s", what, limit)
            self._count(LIMIT)
            self.last_of_limit = f"{limit} (at {what})"
            # Not an UnavailableError without memory: the client would send the large request to the next node.
            kind = MemoryFullError if limit == NO_MEMORY else UnavailableError
            return _not_done(f"this node has met a limit of its machine: {limit}", kind, is_late=is_late)
        number, where = secrets.token_hex(4), _place(error)
        self._count(COUNT)
        self.last = f"{type(error).__name__} in {where} at {what} (id {number})"
        if len(self._logged) >= PLACES_MAX:
            self._logged.clear()
        self._logged[where] += 1
        again = self._logged[where] > 1  # the same line of the program: its traceback is in the log already
        logger.error(
            "internal error %s at %s: %s in %s%s",
            number,
            what,
            type(error).__name__,
            where,
            f", for the {self._logged[where]}th time: {error}" if again else "",
            exc_info=None if again else error,
        )
        happened = "may have happened" if is_late else "did not happen"
        return (OutcomeUnknownError if is_late else InternalError)(
            f"the node's program failed in this request ({type(error).__name__} in {where}), which {happened}; the "
            f"node goes on, and its log has the traceback under the id {number}: please report it",
            id=number,
        )

    def _count(self, kind: str) -> None:
        self._counts[kind] += 1
        self._when[kind].append(time.monotonic())

    def _is_recent(self, kind: str) -> bool:
        """Return whether an exception of a kind was caught in the last second."""
        found = self._when[kind]
        return bool(found) and time.monotonic() - found[-1] < 1.0

    async def keep_running(self, what: str, task: Callable[[], Awaitable[None]]) -> None:
        """Run a background task that never returns, and restart it after a growing pause when it fails.

        After damage the task is not restarted, because the node stops.
        """
        pause_s = PAUSE_S_MIN
        while True:
            began = trio.current_time()
            try:
                await task()
                return
            except Exception as error:
                self.caught(what, error)
                if damage_of(error) is not None:
                    return
            if trio.current_time() - began > PAUSE_S_MAX:
                pause_s = PAUSE_S_MIN
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def stopping(self, what: str, asked: Awaitable[T]) -> T:
        """Await work, and raise its error to its caller; after damage, stop the node as well.

        Raises:
            UnavailableError: there was damage; another node can be asked.
        """
        try:
            return await asked
        except Exception as error:
            if damage_of(error) is None:
                raise
            raise self.caught(what, error) from error


def _not_done(why: str, kind: type[BedrockishError] = UnavailableError, *, is_late: bool) -> BedrockishError:
    """Return the error for a request that did not happen, unless it may have been committed."""
    if is_late:
        return OutcomeUnknownError(f"{why}; the request may have happened")
    return kind(f"{why}; the request did not happen")


def _place(error: BaseException) -> str:
    """Return the place in the program where an exception was raised, as file:line; '?' if it was not raised."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return "?" if last is None else f"{Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}"
