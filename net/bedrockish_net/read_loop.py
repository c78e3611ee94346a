"""One task that reads all plain sockets of a node, or of a program's clients.

With a task for each link, Trio would wake the task and register its socket for every read, which costs more than the
read. Here one ``epoll`` has all sockets, and Trio waits only for the ``epoll``. The node's driver is called after all
available bytes of all sockets have been read, so it can act in the same task on all messages that arrived together.
"""

import logging
import select
from collections.abc import Callable

import trio

logger = logging.getLogger(__name__)

Reader = Callable[[float], None]
READY_MAX = 256  # sockets that are read before other tasks of the node run


def _nothing() -> None:
    pass


class ReadLoop:
    """Calls the reader of each socket that is readable."""

    works = hasattr(select, "epoll")  # whether this system has ``epoll``; if not, each link reads in its own task

    def __init__(
        self,
        # Called with the operation and an unexpected exception of a reader, whose socket is then removed.
        on_fault: Callable[[str, Exception], object],
        # Called when sockets are readable, before they are read; must not block or raise.
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,  # called after the sockets were read; must not block or raise
    ) -> None:
        self._on_fault = on_fault
        self.before, self.after = before, after
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
                self.before()
                try:
                    self.read_now()
                finally:
                    self.after()
        finally:
            self._readers.clear()
            self._epoll.close()

    def read_now(self) -> None:
        """Read all readable sockets now; the caller acts on the messages."""
        if self._epoll.closed:
            return  # the node is shutting down
        now, readers = trio.current_time(), self._readers
        for file, _ in self._epoll.poll(0, READY_MAX):
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
