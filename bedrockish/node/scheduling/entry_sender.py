"""Sends peers the entries that they request: a few short entries are read in the loop, others in a thread.

A peer that catches up is sent up to 16 MB at a time, and one entry may have 30 MB. Reading so much and cutting it into
pieces takes tenths of a second, in which the node would neither lead nor approve a transaction.

A peer that requests an entry that is damaged here gets the answer for a removed entry, and so asks another node.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from bedrockish.core.protocol.effects import SendEntries
from bedrockish.core.protocol.messages import Entries, Message, Outcome, Removed
from bedrockish.core.protocol.pieces import Cut
from bedrockish.core.state.state import State
from bedrockish.engine.engine import Engine
from bedrockish.node.scheduling.snapshots import Boundary
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import Txid

SHORT_BYTES = 64 << 10  # for fewer bytes, a thread costs more than it saves
SHORT_ENTRIES = 16  # the most entries of each timeline that are read in the loop

Packed = tuple[tuple[bytes, bytes, bytes], ...]
ReadEntries = Callable[[str, int, int], list[Entry]]


class EntriesRead(NamedTuple):
    """The entries read for a peer, their pieces if they are sent in pieces, and the damage found, by timeline."""

    message: Entries
    cut: Cut | None
    damaged: Mapping[str, str]


class EntrySender:
    """Sends peers entries and outcomes, for the effects ``SendEntries`` and ``SendOutcome``."""

    def __init__(
        self,
        engine: Engine,
        state: State,  # the state of the core, which keeps the pieces that a peer is going to ask for
        send: Callable[[str, Message], None],  # sends a message when everything written so far is durable
        start: Callable[..., None],  # runs a task until the node ends
        boundary: Boundary,
        stop: Callable[[Exception], None],  # ends the node's loop with an error
    ) -> None:
        self._engine, self._state, self._send, self._start = engine, state, send, start
        self._boundary, self._stop = boundary, stop
        self._asked: dict[str, deque[SendEntries]] = {}  # peer -> its requests; the first one is being answered

    def send_outcome(self, peer: str, txid: Txid) -> None:
        """Send a peer the outcome of a transaction by the journal; nothing if its entry may have been removed."""
        places = self._engine.journal.places(txid)
        leader, tick = places[0] if places else ("", 0)
        if places or txid > self._engine.journal.horizon:  # entries up to the horizon may have been removed
            self._send(peer, Outcome(txid, bool(places), leader, tick, self._state.clock.value))

    def send(self, asked: SendEntries) -> None:
        """Send a peer the requested entries, now or later; ignore a repeated request that is not answered yet."""
        if self._engine.has_short_entries(asked.wants, SHORT_ENTRIES, SHORT_BYTES):
            self._reply(asked, self._read_here(asked, self._state.clock.value))
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
                asked, clock = queue[0], self._state.clock.value
                here, in_thread = partial(self._read_here, asked, clock), partial(self._in_thread, asked, clock)
                self._reply(asked, await self._boundary.read_in_thread(in_thread, here))
                queue.popleft()
        except Exception as error:  # the file cannot be read
            self._stop(error)
        finally:
            del self._asked[peer]

    def _read_here(self, asked: SendEntries, clock: int) -> EntriesRead:
        found, damaged = packed_entries(self._engine.read_entries, asked.wants, asked.limit)
        return EntriesRead(Entries(found, clock), None, damaged)

    def _in_thread(self, asked: SendEntries, clock: int) -> EntriesRead:
        with self._engine.background.entries() as read:
            found, damaged = packed_entries(read, asked.wants, asked.limit)
        message = Entries(found, clock)
        return EntriesRead(message, self._state.outbox.cut_ahead(message), damaged)

    def _reply(self, asked: SendEntries, read: EntriesRead) -> None:
        peer, state = asked.peer, self._state
        if read.message.entries or not read.damaged:
            self._send(peer, state.outbox.to_send(peer, read.message, read.cut))
        for leader, why in read.damaged.items():
            self._engine.damaged.note(f"{leader}{asked.wants[leader]}", why)
        if read.damaged:
            gone = {leader: asked.wants[leader] for leader in read.damaged}
            self._send(peer, Removed(gone, state.clock.value))


def packed_entries(read: ReadEntries, wants: Mapping[str, int], limit: int) -> tuple[Packed, dict[str, str]]:
    """Return entries of several timelines, each from a tick on, in the form in which they are sent.

    Return also the timelines whose first wanted entry is damaged, with the kind of damage.

    Args:
        read: returns entries of a timeline from a tick on, up to a size.
        wants: timeline -> first tick.
        limit: about how many bytes all returned entries may have together.
    """
    share = max(1, limit // max(1, len(wants)))
    found: list[tuple[bytes, bytes, bytes]] = []
    damaged: dict[str, str] = {}
    for leader, tick in wants.items():
        try:
            found += [(entry.prev, entry.label, entry.transaction.body) for entry in read(leader, tick, share)]
        except EntryMalformedError as error:
            damaged[leader] = str(error)
    return tuple(found), damaged
