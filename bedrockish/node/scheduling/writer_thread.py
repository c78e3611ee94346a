"""The thread for long work with the writing connection, so that links, HTTP and readers go on in the loop.

The core waits for the work, as for every effect. Each user of the writing connection in the loop waits as well, so no
reader sees a part of the work, and no other write interleaves.
"""

from collections.abc import Callable
from threading import Event, get_ident
from typing import Any, Generic, TypeVar

import trio

from bedrockish.engine.engine import Engine

T = TypeVar("T")


class WriterThread:
    """Runs one action at a time with an engine's writing connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self, action: Callable[[], T]) -> T:
        """Run an action in a thread and return its result; a cancellation does not interrupt the action.

        The core counts on the action, so it has to be completed.
        """
        job = _Job(self._engine, action)
        self._engine.batch.hand_over(job.wait)
        try:
            # The thread starts at once: the next task in the loop may already wait for it.
            trio.lowlevel.start_thread_soon(job.run, job.deliver)
        except RuntimeError:
            return job.run()  # without room for another thread, the loop runs the action
        with trio.CancelScope(shield=True):
            await job.delivered.wait()
        return job.result()


class _Job(Generic[T]):
    def __init__(self, engine: Engine, action: Callable[[], T]) -> None:
        self._engine, self._action = engine, action
        self._over, self._thread = Event(), 0
        self._token = trio.lowlevel.current_trio_token()
        self.delivered = trio.Event()
        self._found: Any = None  # the ``Outcome`` that trio makes of the action's result or error

    def wait(self) -> None:
        """Wait until the action is done; in the action's own thread, return at once."""
        if self._thread != get_ident():
            self._over.wait()

    def run(self) -> T:
        """Run the action, in the thread of the job."""
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
