"""A node's interface for programs of its machine: the shared page next to its file, and the local socket."""

import errno
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

import trio

from bedrockish.core.state.state import State
from bedrockish.engine.engine import Engine
from bedrockish.errors import ConfigError
from bedrockish.local.page import READING, REFUSING, SERVING, Page, socket_path
from bedrockish_net import local_socket

logger = logging.getLogger(__name__)

BEAT_S = 0.5  # seconds between two heartbeats
PAGE_MODE, SOCKET_MODE = 0o600, 0o600  # only the user of the node may open the page and the socket


class Publisher:
    """Writes one node's mode and heartbeat to its page, and makes its socket.

    Args:
        changes_bytes: ``changes_bytes_max`` of the configuration, which holds for programs' transactions, too.
    """

    def __init__(self, engine: Engine, state: State, changes_bytes: int) -> None:
        self._engine, self._state, self._changes_bytes = engine, state, changes_bytes
        self._page: Page | None = None

    def create_page(self) -> None:
        """Create the page, and write the node's mode to it. All batches of the engine must be durable."""
        engine = self._engine
        try:
            page = Page(engine.publication.path, engine.batch.number, self._changes_bytes, PAGE_MODE)
        except (ConfigError, OSError) as error:  # the node still serves by its addresses
            logger.warning("programs of this machine cannot open %s: %s", engine.publication.path, error)
            return
        self._page = page
        engine.publication.use_page(page, engine.batch.number, engine.schema_version)
        self._beat(page)

    @property
    def _mode(self) -> int:
        if self._state.trouble:
            return REFUSING
        return SERVING if self._state.health.writes else READING

    def refresh(self) -> None:
        """Update the page at once if the node's mode has changed."""
        if self._page is not None and self._page.mode != self._mode:
            self._beat(self._page)

    def _beat(self, page: Page) -> None:
        page.beat(self._mode, self._state.clock.safe)

    async def beat(self) -> None:
        """Write a heartbeat to the page twice a second, until cancelled."""
        while self._page is not None:
            self._beat(self._page)
            self._restore(self._page)
            self._keep_lock()
            await trio.sleep(BEAT_S)

    async def keep_socket(self, listen: Callable[[socket.socket], None]) -> None:
        """Give ``listen`` a new socket whenever the socket's file was removed, until cancelled."""
        while True:
            await trio.sleep(BEAT_S)
            self._keep_socket(listen)

    def _keep_socket(self, listen: Callable[[socket.socket], None]) -> None:
        path = socket_path(os.path.realpath(self._engine.publication.path))
        if self._page is None or not self._page.has_its_file or os.path.lexists(path):
            return
        with suppress(OSError):  # the next heartbeat tries again
            listen(local_socket.listen(path, SOCKET_MODE))
            logger.warning("the socket %s was removed, and is made again", path)

    def _keep_lock(self) -> None:
        """Make the lock's file again if it was removed: another process could otherwise begin with the same file."""
        with suppress(OSError):  # the next heartbeat tries again
            if self._engine.keep_lock():
                logger.warning("the lock of %s was removed, and is made again", self._engine.publication.path)

    def _restore(self, page: Page) -> None:
        """Write the page again if its file was removed or replaced, such as by a cleaning of the directory."""
        if page.is_in_place or not page.has_its_file:
            return
        try:
            page.put_back()
        except OSError as error:  # the next heartbeat tries again
            logger.debug("the page of %s cannot be written again: %s", self._engine.publication.path, error)
        else:
            logger.warning(
                "the page of %s was removed or replaced, and is written again", self._engine.publication.path
            )


def open_socket(database: str) -> socket.socket | None:
    """Return the socket on which programs of this machine reach the node; None if it cannot be opened."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    path = socket_path(os.path.realpath(database))
    try:
        return local_socket.listen(path, SOCKET_MODE)
    except OSError as error:  # such as a file system without sockets
        remedy = "; give the database a shorter name" if error.errno == errno.ENAMETOOLONG else ""
        logger.warning("programs of this machine cannot use %s: %s%s", path, error.strerror or error, remedy)
        return None


def close_socket(database: str) -> None:
    """Remove the file of the socket, after the socket was closed."""
    with suppress(OSError):
        os.unlink(socket_path(os.path.realpath(database)))
