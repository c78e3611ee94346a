"""Snapshots of a node's applied entries, for long reads: in a helper thread, or between round trips.

A snapshot can be taken only at a *boundary*, when a batch has just been committed: before, the file lacks applied
entries.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.snapshot import Readers, Snapshot
from bedrockish.errors import UnavailableError
from bedrockish.node.scheduling.durability import Durable

T = TypeVar("T")


class Boundary:
    """The moments between two batches, and the actions that wait for them.

    Args:
        durable: returns when all that the node has written so far is durable.
    """

    def __init__(self, engine: Engine, durable: Durable) -> None:
        self._engine, self.durable = engine, durable
        # The actions. While there are any, the gate lets no open batch linger.
        self.actions: list[Callable[[], None]] = []

    def call(self, action: Callable[[], None]) -> None:
        """Run an action once, at the next boundary, in the node's loop. If the action raises, the node stops."""
        self.actions.append(action)

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run an action on committed rows: now, or at the next boundary if a batch is open."""
        if self._engine.batch.is_dirty:
            self.call(action)
        else:
            action()

    def fail(self, error: BaseException) -> None:
        """Stop the node with an error at the next boundary, in its loop.

        The error is not raised here, because the caller of this method has no part in the failure.
        """

        def stop() -> None:
            raise error

        self.call(stop)

    async def result_of(self, action: Callable[[], T], drop: Callable[[T], object] = lambda _: None) -> T:
        """Return the result of an action on committed rows, when these rows are durable.

        The action runs in the node's loop, as by ``call_soon``; its error is raised here. If the caller is cancelled,
        the action does not run any more, or its result is passed to ``drop``.
        """
        found: list[T | Exception] = []
        done, is_abandoned = trio.Event(), False

        def act() -> None:
            if is_abandoned:
                return
            try:
                found.append(action())
            except Exception as error:
                found.append(error)
            done.set()

        try:
            self.call_soon(act)
            await self.durable()
            await done.wait()
        except BaseException:
            is_abandoned = True
            for one in found:
                if not isinstance(one, Exception):
                    drop(one)
            raise
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    async def read_in_thread(self, read: Callable[[], T], read_here: Callable[[], T]) -> T:
        """Return the result of ``read`` in a thread; or of ``read_here`` if no thread or connection is left."""
        if self._engine.batch.is_dirty:
            await self.durable()  # only the writing connection sees the rows of the open batch
        try:
            return await trio.to_thread.run_sync(read)
        except (UnavailableError, RuntimeError):
            return read_here()

    async def wait_for_writer(self) -> None:
        """Wait until no other thread has the engine's connection; the caller may use it until its next checkpoint."""
        while self._engine.batch.is_in_thread:  # another thread may get the writer again before this task runs
            await self.durable()

    def reach(self) -> None:
        """Run the actions: everything that was applied has just been committed to the file."""
        actions, self.actions = self.actions, []
        for action in actions:
            action()


class Snapshots:
    """Takes durable snapshots of all that is applied.

    Args:
        readers: the connections that hold snapshots.
    """

    def __init__(self, engine: Engine, readers: Readers, boundary: Boundary) -> None:
        self._engine, self._readers, self._boundary = engine, readers, boundary

    async def take(self) -> tuple[Snapshot, dict[str, int]]:
        """Return a durable snapshot, and the last tick of each timeline in it.

        Raises:
            UnavailableError: the machine has no room for another connection.
        """
        return await self._boundary.result_of(
            lambda: (self._readers.take_snapshot(), dict(self._engine.applied)), lambda taken: self.give_back(taken[0])
        )

    def give_back(self, snapshot: Snapshot) -> None:
        """End a snapshot."""
        self._readers.give_back(snapshot)
