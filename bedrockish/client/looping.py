"""A thread with a trio loop in it, for programs without one: it opens something there and runs its methods."""

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import trio

from bedrockish.client.aio import Client
from bedrockish.errors import BedrockishError, ClientClosedError

T = TypeVar("T")
Opened = TypeVar("Opened")


class Home(Protocol):
    """Where a blocking connection's client lives."""

    @property
    def client(self) -> Client:
        """The client."""

    def call(self, method: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run one of its methods and wait for it."""

    def stop(self) -> None:
        """Give the client up."""


class Loop(Generic[Opened]):
    """The thread and what was opened in it. It knows nothing of who uses it, so that they can be collected.

    Attributes:
        opened: what ``opens`` gave.
        error: what ended the loop.
    """

    opened: Opened

    def __init__(self, opens: Callable[[], AbstractAsyncContextManager[Opened]]) -> None:
        self._opens = opens
        self.error: BaseException | None = None
        self._entry: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bedrockish-client", daemon=True)
        self._thread.start()
        self._started.wait()
        if self.error is not None:
            self._thread.join()
            raise self.error

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # handed to the thread that asked, if it still waits
            self.error = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        async with self._opens() as opened:
            self.opened, self._stop = opened, trio.Event()
            self._entry = trio.lowlevel.current_trio_token()
            self._started.set()
            await self._stop.wait()

    def call(self, method: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run an async function in the thread and wait for it."""
        try:
            return trio.from_thread.run(partial(method, *args, **kwargs), trio_token=self._entry)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            if isinstance(self.error, BedrockishError):
                raise self.error from None
            raise ClientClosedError("this connection is closed; open another") from error

    def stop(self) -> None:
        """Close what was opened and end the thread; calls under way are told that it was closed."""
        if self._entry is None or self._stop is None:
            return
        try:
            self._entry.run_sync_soon(self._stop.set)
        except trio.RunFinishedError:
            return
        self._thread.join()


class OwnLoop(Loop[Client]):
    """A loop for one client alone."""

    @property
    def client(self) -> Client:
        """The client."""
        return self.opened
