"""The scrub of indexes: in the background a node looks its rows up in the indexes of their tables.

The scrub of tables reads rows from tables, so it does not notice that an index lacks a row; but queries and UNIQUE
constraints use the index. The system tables are scrubbed as well, because the node looks commands up by indexes of its
journal.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from bedrockish.config.config import Config
from bedrockish.core.node import Node
from bedrockish.engine.engine import Engine
from bedrockish.engine.storage import refill
from bedrockish.engine.storage.index_check import Key, check_range, corrupt_indexes, tables_with_indexes
from bedrockish.errors import DamagedError, UnavailableError
from bedrockish.node.repair.scrubber import EVERY_S, FIRST_S, RANGE_ROWS, Pace
from bedrockish_journal.verify.replay import Prepare

logger = logging.getLogger(__name__)

FIRST_ROWS = 50  # rows of the first range of a table
# About how long a range may take, in seconds: its snapshot keeps the write-ahead log from being used again. A row with
# a value of a megabyte takes as long as thousands of short rows, if SQLite reads the value to find an indexed column.
RANGE_S = 0.05


def next_limit(limit: int, took_s: float) -> int:
    """Return the number of rows of the next range, from the last range's number of rows and its time."""
    if took_s > RANGE_S:
        return max(1, limit // 2)
    return min(RANGE_ROWS, 2 * limit) if took_s < RANGE_S / 4 else limit


class IndexScrubber:
    """Looks one node's rows up in the indexes of their tables, in the background.

    Args:
        core: knows whether the node reads.
        config: has the pace, which is the same as for the scrub of tables.
        damaged: called when an index lacks a row.
    """

    def __init__(
        self, core: Node, engine: Engine, config: Config, prepare: Prepare, damaged: Callable[[DamagedError], None]
    ) -> None:
        self._core, self._engine, self._config = core, engine, config
        self._prepare, self._damaged = prepare, damaged
        self._limiter = trio.CapacityLimiter(1)
        self._wake = trio.Event()
        self._last: dict[str, Any] = {"passes": 0, "rows": 0, "seconds": None}

    def start_now(self) -> None:
        """Start a pass now, without pauses."""
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """Return the part of the node's status about the scrub of indexes."""
        return {"index_scrub": dict(self._last)}

    async def watch(self) -> None:
        """Scrub again and again at the configured pace, until cancelled; after ``hurry``, once without pauses."""
        told = self._config.repair
        wait_s = FIRST_S if told.scrub_rows_per_second else float("inf")
        while self._core.state.health.reads:
            with trio.move_on_after(wait_s):
                await self._wake.wait()
            is_hurried, self._wake = self._wake.is_set(), trio.Event()
            began = trio.current_time()
            rows, lacks = await self._check_tables(None if is_hurried else Pace(told.scrub_rows_per_second))
            if lacks is not None and await self._is_damaged(lacks):
                return
            passes = self._last["passes"] + 1
            self._last = {"passes": passes, "rows": rows, "seconds": round(trio.current_time() - began, 1)}
            next_s = max(1.0, began + EVERY_S - trio.current_time())
            wait_s = next_s if told.scrub_rows_per_second else float("inf")

    async def _check_tables(self, pace: Pace | None) -> tuple[int, DamagedError | None]:
        """Check all tables; return the number of rows that were read, and the error if an index lacks a row."""
        rows = 0
        try:
            for name in await self._in_thread(tables_with_indexes):
                after: Key | None = None
                limit = FIRST_ROWS
                while True:
                    began = trio.current_time()
                    found = await self._in_thread(partial(check_range, name=name, after=after, limit=limit))
                    limit = next_limit(limit, trio.current_time() - began)
                    rows += found.count
                    if found.lacks:
                        return rows, DamagedError(found.lacks, table="", page=found.lacks)
                    if pace is not None and not self._wake.is_set():
                        await pace.rest(found.count)
                    if found.last is None:
                        break
                    after = found.last
            corrupt = await self._in_thread(corrupt_indexes)
            if (
                corrupt and not self._engine.batch.is_in_thread
            ):  # if the writer is away, the next pass rebuilds the indexes
                logger.error("the node rebuilds the corrupt index %s from its table", ", ".join(corrupt))
                self._engine.rebuild_indexes(corrupt)
        except DamagedError as error:
            return rows, error
        except UnavailableError as error:  # the next pass may succeed
            logger.info("the indexes could not be checked: %s", error.message)
        return rows, None

    async def _in_thread(self, action: Callable[..., Any]) -> Any:
        return await trio.to_thread.run_sync(self._engine.background.read_with, action, limiter=self._limiter)

    async def _is_damaged(self, lacks: DamagedError) -> bool:
        """Return whether SQLite's own check also finds a fault; if so, the node restarts and repairs itself."""
        fault = await trio.to_thread.run_sync(
            refill.find_fault, self._config.database, self._prepare, trio.from_thread.check_cancelled
        )
        if not fault:
            logger.error("%s, and SQLite finds no fault in the file: please report this", lacks.message)
            return False
        logger.error("the file is damaged: %s", lacks.message)
        self._damaged(lacks)
        return True
