"""One task that reads all plain sockets of a node, or of a program's clients.

With a task for each link, Trio would wake the task and register its socket for every read, which costs more than the
read. Here one ``epoll`` has all sockets, and Trio waits only for the ``epoll``. The node's driver is called after all
available bytes of all sockets have been read, so it can act in the same task on all messages that arrived together.

A node gives way before it looks for more messages: processes that wait for this processor run first, and the node
handles their messages together, without a pass of Trio and a change of processes for each message.
"""

import logging
import os
import select
from collections.abc import Callable
from time import perf_counter

import trio

logger = logging.getLogger(__name__)

Reader = Callable[[float], None]
Ready = list[tuple[int, int]]  # readable sockets, each with its events
READY_MAX = 256  # most sockets that are read before the node acts on their messages
READ_S = 0.001  # after this time of reading and acting, other tasks of the node run


class Courtesy:
    """Gives way to other processes, as long as that brings messages.

    Programs and nodes on one machine send more while this process waits. A process that only computes sends nothing,
    and keeps the processor for milliseconds. So the time of the last calls is compared with the number of sockets that
    were readable after them, and after useless calls there is a pause.
    """

    WORTH_S = 250e-6  # the most seconds that a readable socket is worth: the time of ten session reads
    SHARE = 1 / 8  # the weight of the last call in the averages, which begin at 0
    REST = 50 / SHARE  # a pause lasts as long as this many average calls, so that at most 2 % of the time is lost
    REST_MIN_S = 0.002

    def __init__(
        self, clock: Callable[[], float] = perf_counter, sched_yield: Callable[[], None] = os.sched_yield
    ) -> None:
        self._clock, self._yield = clock, sched_yield
        self._gave_s, self._found = 0.0, 0.0  # averages: the seconds of a call, the readable sockets after it
        self._resumes = 0.0

    def give_way(self, find: Callable[[], Ready]) -> Ready:
        """Let processes run that wait for this processor, and return the result of ``find``; in a pause, return []."""
        began = self._clock()
        if began < self._resumes:
            return []
        self._yield()
        now, found = self._clock(), find()
        self._gave_s += (now - began - self._gave_s) * self.SHARE
        self._found += (len(found) - self._found) * self.SHARE
        if self._gave_s > self.WORTH_S * self._found:
            self._resumes = now + max(self.REST * self._gave_s, self.REST_MIN_S)
            self._gave_s = self._found = 0.0
        return found


def _nothing() -> None:
    pass


def _is_done() -> bool:
    return True


class ReadLoop:
    """Calls the reader of each socket that is readable."""

    works = hasattr(select, "epoll")  # whether this system has ``epoll``; if not, each link reads in its own task

    def __init__(
        self,
        # Called with the operation and an unexpected exception of a reader, whose socket is then removed.
        on_fault: Callable[[str, Exception], object],
        # Called when sockets are readable, before they are read; must not block or raise.
        before: Callable[[], None] = _nothing,
        # Called after the sockets were read; must not block or raise. Returns whether no work is left for other tasks.
        after: Callable[[], bool] = _is_done,
        courtesy: Courtesy | None = None,  # gives way to other processes before more sockets are read
    ) -> None:
        self._on_fault = on_fault
        self.before, self.after = before, after
        self._courtesy = courtesy
        self._readers: dict[int, Reader] = {}
        self._epoll = select.epoll()

    def add(self, file: int, reader: Reader) -> None:
        """Call ``reader`` whenever a socket is readable or broken, until ``remove``.

        Args:
            file: the socket's descriptor, which must stay open until ``remove``.
            reader: called with the time of Trio's clock; reads from the socket, and must not block.
        """
        assert file not in self._readers
        if self._epoll.closed:
            return  # the node is shutting down
        self._epoll.register(file, select.EPOLLIN)
        self._readers[file] = reader

    def remove(self, file: int) -> None:
        """Stop reading a socket. Call this before closing it, because its descriptor may then be reused."""
        if self._readers.pop(file, None) is not None:
            self._epoll.unregister(file)

    async def run(self) -> None:
        """Read until cancelled."""
        number = self._epoll.fileno()
        try:
            while True:
                await trio.lowlevel.wait_readable(number)
                until = perf_counter() + READ_S
                ready = self._readable()
                while ready:
                    self.before()
                    try:
                        self._read(ready)
                    finally:
                        is_done = self.after()
                    if self._courtesy is None or not is_done or perf_counter() >= until:
                        break
                    ready = self._courtesy.give_way(self._readable)
        finally:
            self._readers.clear()
            self._epoll.close()

    def read_now(self) -> None:
        """Read all readable sockets now; the caller acts on the messages."""
        self._read(self._readable())

    def _readable(self) -> Ready:
        return [] if self._epoll.closed else self._epoll.poll(0, READY_MAX)  # closed: the node is shutting down

    def _read(self, ready: Ready) -> None:
        now, readers = trio.current_time(), self._readers
        for file, _ in ready:
            reader = readers.get(file)  # None: an earlier reader has removed it
            if reader is None:
                continue
            try:
                reader(now)
            except Exception as error:
                self.remove(file)
                self._on_fault("reading a link", error)


_of_clients: trio.lowlevel.RunVar[ReadLoop] = trio.lowlevel.RunVar("the loop that reads the links of clients")


def loop_of_clients() -> ReadLoop | None:
    """Return the loop that reads all clients' links in this run of Trio; None on a system without ``epoll``."""
    if not ReadLoop.works:
        return None
    try:
        return _of_clients.get()
    except LookupError:
        loop = ReadLoop(_log_fault)
        _of_clients.set(loop)
        trio.lowlevel.spawn_system_task(loop.run, name="reading the links of clients")
        return loop


def _log_fault(doing: str, error: Exception) -> None:
    """Log an exception; its link has ended, and the link's owner raises the exception."""
    logger.error("an error while %s", doing, exc_info=error)
