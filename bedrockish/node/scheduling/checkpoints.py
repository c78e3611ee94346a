"""Copies the write-ahead log into the database file in the background, one checkpoint at a time."""

import logging

import trio

from bedrockish.engine.engine import Engine
from bedrockish.errors import UnavailableError
from bedrockish.node.scheduling.faults import Faults

logger = logging.getLogger(__name__)

HELD_S = 5.0  # seconds between two checkpoints of a long log that a reader keeps from restarting
AGAIN_S = 1.0  # seconds from a failed checkpoint to the next: else each batch would begin one, and log its failure


class Checkpoints:
    """Runs checkpoints in a thread, one at a time."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        self._engine, self._faults = engine, faults
        self._is_running = False
        self._failed_at = -AGAIN_S  # when the last failed checkpoint ended, by trio's clock
        self._began_at = 0.0  # when the last checkpoint began

    def begin_if_due(self, nursery: trio.Nursery) -> None:
        """Begin a checkpoint if many frames are new, or if a reader that kept the log from restarting may have ended.

        An idle node writes too few frames to notice such an end otherwise.
        """
        if self._engine.checkpoint_due or (self._engine.is_log_held and trio.current_time() - self._began_at >= HELD_S):
            self.begin(nursery)

    def begin(self, nursery: trio.Nursery) -> None:
        """Begin a checkpoint, which is due, unless one is running or has failed just now."""
        if not self._is_running and trio.current_time() - self._failed_at >= AGAIN_S:
            self._is_running, self._began_at = True, trio.current_time()
            nursery.start_soon(self._run)

    def shorten_log(self, nursery: trio.Nursery) -> None:
        """Cut off a log that is long for its disk; if most of it is not copied yet, begin a checkpoint instead."""
        if not self._engine.batch.shorten_log():
            self.begin(nursery)

    async def _run(self) -> None:
        try:
            await trio.to_thread.run_sync(self._engine.wal.checkpoint)
        except UnavailableError as error:
            self._failed_at = trio.current_time()
            logger.warning("%s", error)
        except Exception as error:
            self._failed_at = trio.current_time()
            self._faults.caught("a checkpoint", error)  # a later batch begins another checkpoint
        finally:
            self._is_running = False
