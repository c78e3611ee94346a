"""Output that waits for the sync of its batch, the requests that wait for that output, and the thread that syncs."""

import math
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from types import TracebackType

import trio

from bedrockish.api.requests import Answer, Request
from bedrockish.common.histogram import Histogram
from bedrockish.common.machine import start_thread
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import BedrockishError
from bedrockish.node.scheduling.turn_loop import is_cancellation
from bedrockish_net.read_loop import ReadLoop

Done = Callable[[Answer | BedrockishError], None]
MakePrepared = Callable[[], Prepared]
Synced = Callable[[BaseException | None], None]
Durable = Callable[[], Awaitable[None]]  # returns when all that the node has written so far is durable
WEIGHT = 0.1  # the weight of the last sync in the mean
QUICK_S = 0.001  # a disk whose syncs take no longer is quick: the loop may wait for it
STALL_S, DISTRUST_S = 0.05, 60.0  # after a sync of STALL_S, syncs run in the thread for DISTRUST_S


@dataclass(slots=True)
class Waiter:
    """A request that waits for its answer, or whose answer waits for the disk.

    ``done`` is called with the answer when it may be sent. ``prepare`` executes the request instead of the engine.
    ``shares``: whether the result of ``prepare`` may be merged with those of other requests. ``held_bytes``: the bytes
    of a large request's effects and answer. ``owner``: the link of a client's request. ``is_abandoned``: whether the
    request is a read of a client that has disconnected, or its caller has cancelled it.
    """

    request_id: int
    request: Request
    done: Done
    prepare: MakePrepared | None = None
    answer: Answer | BedrockishError | None = None
    began: float = field(default_factory=time.monotonic)
    held_bytes: int = 0
    shares: bool = False
    owner: object = None
    is_abandoned: bool = False


@dataclass(slots=True)
class HeldOutput:
    """The output that must not be sent before the open batch is durable."""

    messages: dict[str, list[bytes]] = field(default_factory=dict)  # messages by peer
    replies: list[Waiter] = field(default_factory=list)
    marks: list[trio.Event] = field(default_factory=list)
    is_urgent: bool = False  # whether a peer waits for one of the messages

    def __bool__(self) -> bool:
        return bool(self.messages or self.replies or self.marks)

    @property
    def is_awaited(self) -> bool:
        """Whether a peer, a client or a task waits for any of this output."""
        return bool(self.is_urgent or self.replies or self.marks)

    def take_replies(self, wanted: Callable[[Waiter], bool]) -> list[Waiter]:
        """Remove and return the waiters that have an answer and that ``wanted`` picks."""
        found = [waiter for waiter in self.replies if wanted(waiter)]
        if found:
            self.replies = [waiter for waiter in self.replies if waiter not in found]
        return found


class FsyncThread:
    """Runs ``sync`` in a thread that does nothing else, so that the loop need not wait for the disk.

    The thread runs as long as the node, and gets one job at a time: a general thread pool costs several times as much
    per call, and every transaction waits for this call. The object is a context manager inside trio; at its exit it
    raises the error of the last sync, unless the caller of that sync has received it.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._jobs: SimpleQueue[Synced | None] = SimpleQueue()
        self.took = Histogram()  # how long each sync took
        self.mean_s = math.inf  # the moving average of the seconds of a sync; infinite before the first
        self._stalled_at = -math.inf
        self._undelivered_error: BaseException | None = None  # the error of the last sync, until its caller gets it
        self._token: trio.lowlevel.TrioToken | None = None
        self._loop: ReadLoop | None = None
        self._eventfd = -1  # an eventfd with which the thread wakes the read loop; -1 without one
        self._finished: deque[Synced] = deque()  # the callbacks of finished syncs that were not called yet
        self._thread = Thread(target=self._run, name="sync", daemon=True)

    def report_to(self, loop: ReadLoop) -> None:
        """Have a read loop call each ``done``, together with reading its links; call this before the thread starts.

        Without the read loop, a trio token wakes a trio task first, and that task wakes the node's loop.
        """
        self._loop = loop

    def __enter__(self) -> "FsyncThread":
        self._token = trio.lowlevel.current_trio_token()
        if self._loop is not None:
            self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._loop.add(self._eventfd, self._deliver_finished)
        start_thread(self._thread.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jobs.put(None)
        self._thread.join()
        if self._loop is not None:
            self._loop.remove(self._eventfd)
            os.close(self._eventfd)
        if self._undelivered_error is not None and (error is None or is_cancellation(error)):
            raise self._undelivered_error

    def start(self, done: Synced) -> None:
        """Sync in the thread, then call ``done`` in the trio thread with the error of the sync, or None."""
        self._jobs.put(done)

    def _run(self) -> None:
        assert self._token is not None
        while (done := self._jobs.get()) is not None:
            self._undelivered_error = self.sync_now()
            if self._eventfd >= 0:
                self._finished.append(done)
                os.eventfd_write(self._eventfd, 1)
                continue
            try:
                self._token.run_sync_soon(self._finish, done, self._undelivered_error)
            except trio.RunFinishedError:
                return

    def _deliver_finished(self, _now: float) -> None:
        with suppress(BlockingIOError):  # an error would make the read loop drop the descriptor
            os.eventfd_read(self._eventfd)
        while self._finished:
            self._finish(self._finished.popleft(), self._undelivered_error)

    def _finish(self, done: Synced, error: BaseException | None) -> None:
        self._undelivered_error = None
        done(error)

    def describe(self) -> dict[str, int]:
        """Return the moving average of the milliseconds of a sync; 0 before the first."""
        return {"sync_ms": round(1000 * self.mean_s) if math.isfinite(self.mean_s) else 0}

    @property
    def is_quick(self) -> bool:
        """Whether the loop should wait for the next sync, because that costs less than two thread switches.

        A quick disk can hang without warning. For a minute after a stall, the loop does not wait for syncs: so a
        disk that stalls repeatedly blocks reads, status and votes at most once in a minute.
        """
        return self.mean_s <= QUICK_S and time.monotonic() - self._stalled_at > DISTRUST_S

    def sync_now(self) -> BaseException | None:
        """Sync, and return the error, or None; may be called in the loop while no job is under way."""
        error: BaseException | None = None
        began = time.monotonic()
        try:
            self._sync()
        except BaseException as caught:
            error = caught
        ended = time.monotonic()
        took_s = ended - began
        if took_s > STALL_S:
            self._stalled_at = ended
        self.took.observe(took_s)
        self.mean_s = took_s if self.mean_s == math.inf else (1 - WEIGHT) * self.mean_s + WEIGHT * took_s
        return error
