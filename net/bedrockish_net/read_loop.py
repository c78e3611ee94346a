"""One task that reads all plain sockets of a node, or of a program's clients.

All available bytes of all sockets of a node are read before anybody acts on them.

A task for each link is woken, armed and put to sleep by trio for every read, which costs more than the read. Here one
``epoll`` knows all sockets and trio waits for that alone. The node's driver is called once all available bytes have
been read, so it can act in the same task on all messages that arrived together.
"""

import logging
import select
from collections.abc import Callable

import trio

logger = logging.getLogger(__name__)

Reader = Callable[[float], None]
READY_MAX = 256  # sockets that are read before others of the node's tasks get their turn


def _nothing() -> None:
    pass


class ReadLoop:
    """Calls whoever reads a socket when there is something on it.

    Args:
        on_fault: takes what was being done and an exception that no reader was expected to raise; the socket is not
            read any more.
        before: called when something has come, before it is read.
        after: called when all of it has been read. Neither must block or raise.

    Attributes:
        works: whether this system has what it needs; if not, each link reads in a task of its own.
    """

    works = hasattr(select, "epoll")

    def __init__(
        self,
        on_fault: Callable[[str, Exception], object],
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> None:
        self._on_fault = on_fault
        self.before, self.after = before, after
        self._readers: dict[int, Reader] = {}
        self._epoll = select.epoll()

    def add(self, file: int, reader: Reader) -> None:
        """Call ``reader`` whenever there is something to read on a socket, or it is broken, until it is removed.

        Args:
            file: the number of the socket, which must stay open until it is removed.
            reader: reads some of it; is given the time of trio's clock; must not block.
        """
        assert file not in self._readers
        if self._epoll.closed:
            return  # the node is leaving
        self._epoll.register(file, select.EPOLLIN)
        self._readers[file] = reader

    def remove(self, file: int) -> None:
        """Read a socket no more; before it is closed, since its number may be another one's then."""
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
        """Read what has come, if anything has; whoever calls this acts on it."""
        if self._epoll.closed:
            return  # the node is leaving
        now, readers = trio.current_time(), self._readers
        for file, _ in self._epoll.poll(0, READY_MAX):
            reader = readers.get(file)  # None: it was removed by a reader before it
            if reader is None:
                continue
            try:
                reader(now)
            except Exception as error:
                self.remove(file)
                self._on_fault("reading a link", error)


_of_clients: trio.lowlevel.RunVar[ReadLoop] = trio.lowlevel.RunVar("the loop that reads the links of clients")


def loop_of_clients() -> ReadLoop | None:
    """Return the loop that reads all links of the clients in this run of trio; None where no loop can."""
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
    """Log an exception; the link on which it came has ended, and its owner raises the exception."""
    logger.error("while %s", doing, exc_info=error)
