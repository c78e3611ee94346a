"""Builds indexes online, slice by slice between the node's other work (``engine.storage.index_build``).

Each slice takes some milliseconds of the processor, and then other work gets the loop for at least as long: only the
client of the schema change waits for the index.
"""

import logging
import time

import trio

from bedrockish.core.state.state import State
from bedrockish.engine.engine import Engine
from bedrockish.engine.storage.index_build import Build, Phase
from bedrockish.engine.storage.index_plan import BuildPlan
from bedrockish.errors import UnavailableError
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.transaction import Transaction

logger = logging.getLogger(__name__)

LEAST_MS = 500  # a build begins only if at least this time is left until the change comes into force
PAUSE_S = 0.002  # the least number of seconds between two slices
UNSYNCED_BYTES = 1 << 20  # bytes that are written between two waits for the disk, which may be slower than the slices


class Builds:
    """Builds the indexes of scheduled changes: one at a time, because at most one change is scheduled.

    Args:
        state: knows which change is scheduled.
    """

    def __init__(self, engine: Engine, state: State, boundary: Boundary) -> None:
        self._engine, self._state, self._boundary = engine, state, boundary
        self._due = trio.Event()
        self._seen: Transaction | None = None  # the scheduled change that was examined last

    def check_batch(self) -> None:
        """Check whether the batch that was just committed has scheduled a change, or put one in force."""
        if self._state.schema.scheduled is not self._seen:
            self._due.set()

    async def watch(self) -> None:
        """Build the results of scheduled schema changes, until cancelled."""
        while True:
            self._due = trio.Event()
            change = self._seen = self._state.schema.scheduled
            if change is not None and self._left_ms(change) >= LEAST_MS:
                await self._build_change(change)
            if self._state.schema.scheduled is self._seen:
                await self._due.wait()

    def _left_ms(self, change: Transaction) -> int:
        """Return about how many milliseconds are left until a change comes into force."""
        return milliseconds(change.activates) - milliseconds(self._state.clock.value)

    async def _build_change(self, change: Transaction) -> None:
        plan = self._engine.builds.plan(change)
        if plan is None:
            return
        began = time.monotonic()
        try:
            build = await self._started(plan, change)
        except UnavailableError as error:
            logger.warning("%s is built when it comes into force: %s", plan.title, error)
            return
        if build is None:
            return
        try:
            await self._build(build)
        except BaseException:
            build.interrupt()
            raise
        if build.phase is Phase.FAILED:
            build.close()  # its snapshot must not delay checkpoints any longer
            logger.warning("%s is built when it comes into force: %s", plan.title, build.failure)
        else:
            took_s = time.monotonic() - began
            logger.info("%s was built next to its table in %.1f s, of %d rows", plan.title, took_s, build.rows)

    async def _started(self, plan: BuildPlan, change: Transaction) -> Build | None:
        """Begin a build at the next boundary, and return it; None if the change has come into force by that time."""

        def begin() -> Build | None:
            return self._engine.builds.start(plan, change.txid) if self._state.schema.scheduled is change else None

        return await self._boundary.result_of(begin)

    async def _build(self, build: Build) -> None:
        """Advance a build until its result is ready or has failed, or until the engine has another build or none."""
        slices, most = 0, UNSYNCED_BYTES // build.slice_bytes
        while build.phase not in (Phase.READY, Phase.FAILED):
            if build.is_waiting:
                await trio.to_thread.run_sync(build.fetch, abandon_on_cancel=True)
            if self._engine.batch.is_in_thread:
                back = trio.Event()
                self._boundary.call(back.set)
                await back.wait()
                continue
            if self._engine.builds.current is not build:
                return
            # Measure processor time, because waits for a processor would only lengthen the sleep.
            began = time.thread_time()
            self._engine.builds.advance()
            took_s = time.thread_time() - began
            slices += 1
            if slices % most == 0:
                await self._boundary.durable()
            await trio.sleep(max(PAUSE_S, took_s))
        await self._boundary.durable()
