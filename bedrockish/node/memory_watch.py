"""Bounds a node's memory for clients: ends the links of clients that do not read, and frees memory of an idle node."""

import ctypes
import gc
import logging
from typing import Protocol

import trio

from bedrockish.common.histogram import Histogram
from bedrockish.config.config import Bounds
from bedrockish.engine.engine import Engine
from bedrockish.node.peer_output import PeerOutput
from bedrockish.node.transactions.manager import Transactions

logger = logging.getLogger(__name__)

MEMORY_S = 0.25  # seconds between two checks of the bytes that transactions and links hold
WAITING_BYTES_MIN = 1 << 20  # only a client for which this many bytes wait can count as one that does not read
STUCK_S = 5.0  # a client that has read nothing for this long loses its link when half of the memory is used
STUCK_S_MIN = 1.0  # in place of ``STUCK_S`` if all memory is used: for HTTP clients, and the client with most memory
IDLE_S = 15.0  # a node that has been idle for this long frees memory
# How often an idle node frees memory: some of it, such as the conflict window, can be freed only a minute or two later.
SHRINKS_MAX = 10


class Caller(Protocol):
    """A connection of an HTTP client."""

    @property
    def stuck_seconds(self) -> float:
        """The seconds since the client last read, while bytes wait for it."""

    def cut(self) -> None:
        """End the connection at once."""


async def watch_memory(
    engine: Engine, limits: Bounds, transactions: Transactions, output: PeerOutput, callers: set[Caller]
) -> None:
    """Keep the memory used for clients within bounds, until cancelled.

    Add up the bytes that transactions and links hold, and end the links of clients that do not read their answers or do
    not finish a message. The more memory is used, the sooner a link is ended. When all memory is used, clients that
    have read nothing for a second lose their links first, and then the one for which most bytes wait.
    """
    memory, patience_s = engine.memory, limits.idle_stream_ms / 1000
    while True:
        mesh = output.mesh
        kept = mesh.waiting_bytes() + mesh.inflow.total if mesh is not None else 0
        memory.elsewhere = transactions.size + kept
        if mesh is not None:
            stuck_s = STUCK_S if memory.taken > memory.max_bytes // 2 else patience_s
            while mesh.drop_slowest(memory.held, WAITING_BYTES_MIN, stuck_s):
                pass
            mesh.drop_half_sent(WAITING_BYTES_MIN, stuck_s)
            callers_s = STUCK_S_MIN if memory.is_full else stuck_s
            stuck = [one for one in callers if one.stuck_seconds >= callers_s]
            for one in stuck:
                logger.warning("a caller of HTTP did not read for %.0f s, and was cut off", one.stuck_seconds)
                one.cut()
            if memory.is_full and not (stuck or mesh.drop_slowest(memory.held, WAITING_BYTES_MIN, STUCK_S_MIN)):
                mesh.drop_slowest(memory.held, WAITING_BYTES_MIN)
        await trio.sleep(MEMORY_S)


async def shrink_when_idle(engine: Engine, latency: Histogram) -> None:
    """Free memory after a load: pages cached for reading, garbage, and the C library's free memory.

    Args:
        latency: the times of the node's answers.
    """
    before, shrinks = (0, 0.0), 0
    while True:
        await trio.sleep(IDLE_S)
        now = engine.applied_clock, latency.total
        shrinks = shrinks + 1 if now == before else 0
        before = now
        if 0 < shrinks <= SHRINKS_MAX and not engine.batch.is_in_thread:
            engine.pages.shrink()
            gc.collect()
            _trim()


def _trim() -> None:
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return
