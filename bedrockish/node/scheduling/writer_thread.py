"""The writer's place for long work: another thread, so that links, HTTP and readers go on.

The core waits for it, as for every effect that it asks for. So does each user of the writer in the loop: no reader sees
a part of a write, and nothing comes between.
"""

from collections.abc import Callable
from threading import Event, get_ident
from typing import Any, Generic, TypeVar

import trio

from bedrockish.engine.engine import Engine

T = TypeVar("T")


class WriterThread:
    """Does one thing at a time with an engine's writer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self, action: Callable[[], T]) -> T:
        """Run an action in a thread and return its result; not even a cancellation ends it half way.

        The core has said things that rest on it.
        """
        job = _Job(self._engine, action)
        self._engine.batch.hand_over(job.wait)
        try:
            # At once: the loop may wait for the thread as soon as anybody else runs in it.
            trio.lowlevel.start_thread_soon(job.run, job.deliver)
        except RuntimeError:
            return job.run()  # the machine has no room for another thread
        with trio.CancelScope(shield=True):
            await job.delivered.wait()
        return job.result()


class _Job(Generic[T]):
    def __init__(self, engine: Engine, action: Callable[[], T]) -> None:
        self._engine, self._action = engine, action
        self._over, self._thread = Event(), 0
        self._token = trio.lowlevel.current_trio_token()
        self.delivered = trio.Event()
        self._found: Any = None  # an Outcome, of trio's

    def wait(self) -> None:
        """Return when it is done; at once in its own thread."""
        if self._thread != get_ident():
            self._over.wait()

    def run(self) -> T:
        """Do it, in its thread."""
        self._thread = get_ident()
        try:
            return self._action()
        finally:
            self._engine.batch.take_back()
            self._over.set()

    def result(self) -> T:
        """Return the action's result, or raise its error."""
        result: T = self._found.unwrap()
        return result

    def deliver(self, found: Any) -> None:
        """Wake up the loop, from the thread."""
        self._found = found
        self._token.run_sync_soon(self.delivered.set)
