"""A thread that does nothing but sync: it waits for the disk so that the loop need not.

One thread for the life of the node, handed one job at a time: a general thread pool costs several times as much per
call, and this call is in the way of every transaction.
"""

import math
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import TracebackType

import trio

from bedrockish.common.histogram import Histogram

Done = Callable[[BaseException | None], None]
WEIGHT = 0.1  # of the last one in the mean of all
QUICK_S = 0.001  # a disk that syncs within this can be waited for in the loop
STALL_S, DISTRUST_S = 0.05, 60.0  # who has waited so long for one sync waits in the thread for so long after it


class FsyncThread:
    """Runs ``sync`` in its thread; used as a context manager inside trio.

    Attributes:
        took: how long each took.
        mean_s: how long one takes lately, in seconds; infinite before the first.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._jobs: SimpleQueue[Done | None] = SimpleQueue()
        self.took = Histogram()
        self.mean_s = math.inf
        self._stalled_at = -math.inf
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = Thread(target=self._run, name="sync", daemon=True)

    def __enter__(self) -> "FsyncThread":
        self._token = trio.lowlevel.current_trio_token()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jobs.put(None)
        self._thread.join()

    def start(self, done: Done) -> None:
        """Sync, then call ``done`` in the trio thread with the error that there was, or None."""
        self._jobs.put(done)

    def _run(self) -> None:
        assert self._token is not None
        while (done := self._jobs.get()) is not None:
            try:
                self._token.run_sync_soon(done, self.sync_now())
            except trio.RunFinishedError:
                return

    @property
    def is_quick(self) -> bool:
        """Whether the next sync is worth waiting for in the loop: it costs less than two changes of threads.

        Nobody can tell when a disk that was quick will hang. One that has stalled is not trusted again at once: so a
        disk that stalls now and then holds reads, status and votes once in a minute at most.
        """
        return self.mean_s <= QUICK_S and time.monotonic() - self._stalled_at > DISTRUST_S

    def sync_now(self) -> BaseException | None:
        """Sync, and return the error that there was; while no job is under way, also in the loop."""
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
