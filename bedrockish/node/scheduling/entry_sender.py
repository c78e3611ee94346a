"""Sends peers the entries that they lack: few and short ones from the loop, others read in a thread.

A peer that catches up is sent up to 16 MB at a time, and one entry may have 30 MB: reading that, and cutting it in
pieces, takes tenths of a second, in which the node would lead and approve nothing.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio

from bedrockish.core.protocol.effects import SendEntries
from bedrockish.core.protocol.messages import Entries, Message
from bedrockish.core.protocol.pieces import Cut
from bedrockish.core.state.state import State
from bedrockish.engine.engine import Engine
from bedrockish.errors import UnavailableError
from bedrockish.node.scheduling.outbox import packed_entries

SHORT_BYTES = 64 << 10  # below it, a thread costs more than it spares
SHORT_ENTRIES = 16  # of each timeline


class Read(NamedTuple):
    """What was read for a peer, and how it is cut if it is sent in pieces."""

    message: Entries
    cut: Cut | None


class EntrySender:
    """Does what the effect ``SendEntries`` asks.

    Args:
        engine: has the entries.
        state: of the core, which keeps the pieces that a peer is going to ask for.
        send: sends a message when all that was written so far is durable.
        start: runs a task until the node ends.
        durable: returns when all that was written so far is durable.
        stop: ends the node's loop with an error.
    """

    def __init__(
        self,
        engine: Engine,
        state: State,
        send: Callable[[str, Message], None],
        start: Callable[..., None],
        durable: Callable[[], Awaitable[None]],
        stop: Callable[[Exception], None],
    ) -> None:
        self._engine, self._state, self._send, self._start = engine, state, send, start
        self._durable, self._stop = durable, stop
        self._asked: dict[str, deque[SendEntries]] = {}  # by peer, what is being read for it first

    def send(self, asked: SendEntries) -> None:
        """Send a peer what it wants, now or some time later; what is on its way to it already is not sent twice."""
        engine, state = self._engine, self._state
        if engine.has_short_entries(asked.wants, SHORT_ENTRIES, SHORT_BYTES):
            found = packed_entries(engine.read_entries, asked.wants, asked.limit)
            self._send(asked.peer, state.outbox.to_send(asked.peer, Entries(found, state.clock.value)))
            return
        queue = self._asked.get(asked.peer)
        if queue is None:
            self._asked[asked.peer] = deque([asked])
            self._start(self._run, asked.peer)
        elif asked not in queue:
            queue.append(asked)

    async def _run(self, peer: str) -> None:
        queue = self._asked[peer]
        try:
            while queue:
                message, cut = await self._read(queue[0])
                self._send(peer, self._state.outbox.to_send(peer, message, cut))
                queue.popleft()
        except Exception as error:  # what was written cannot be read
            self._stop(error)
        finally:
            del self._asked[peer]

    async def _read(self, asked: SendEntries) -> Read:
        """Return what was asked for; it may leave when what is committed is durable, as ``send`` sees to."""
        clock = self._state.clock.value
        if self._engine.dirty:
            await self._durable()  # what is in the open batch is seen by the writer alone
        try:
            return await trio.to_thread.run_sync(self._in_thread, asked, clock)
        except (UnavailableError, RuntimeError):  # no room for another connection or thread: the writer does it
            found = packed_entries(self._engine.read_entries, asked.wants, asked.limit)
            return Read(Entries(found, clock), None)

    def _in_thread(self, asked: SendEntries, clock: int) -> Read:
        with self._engine.reading_apart() as read:
            message = Entries(packed_entries(read, asked.wants, asked.limit), clock)
        return Read(message, self._state.outbox.cut_ahead(message))
