"""Strict reads: execute first, then ask a majority whether anything that it did not see writes what it read.

Asked in this order the answer is valid as of the snapshot, so the read is strictly serializable in one round trip, and
nothing of it is left anywhere.
"""

from dataclasses import dataclass, field

import cbor2

from bedrockish.core.coordinator.request import Ticket
from bedrockish.core.protocol.messages import Check, Checked
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.state import State
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.footprint import LAST_CLOCK, Footprint, clock_key
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import Vector, covers


@dataclass(slots=True)
class Read:
    """One strict read on its way. ``clear`` are the voters with which nothing is in its way."""

    ticket: int
    overdue: float  # seconds at which it has been without enough answers for too long
    clear: set[str] = field(default_factory=set)


class Reading:
    """Asks for our own strict reads, and answers those of others."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.reads: dict[int, Read] = {}
        self._count = 0

    def begin(self, ticket: Ticket, prepared: Prepared) -> bool | None:
        """Ask whether a read is valid: None. True or False if we can tell ourselves that it is, or is not.

        The more often it was tried, the longer it waits for answers: voters may be slower than we expect.
        """
        state, base = self.state, prepared.base
        # It counts as later than everything, so it must have seen every schema change that is on its way.
        points = prepared.footprint.read_points | {clock_key(LAST_CLOCK)}
        footprint = Footprint(points, prepared.footprint.read_ranges)
        if next(iter(self._in_the_way(base, footprint)), None) is not None:
            return False
        self._count += 1
        patience = state.settings.suspicion_ms / 1000 * 2 ** min(ticket.attempts - 1, 6)
        overdue = min(state.clock.now.seconds + patience, ticket.deadline)
        clear = {state.me} if state.roster.certifies_reads else set()
        read = self.reads[self._count] = Read(ticket.number, overdue, clear)
        if len(read.clear) >= state.roster.majority:
            del self.reads[self._count]
            return True
        clock = state.clock.read()
        state.outbox.send_voters(
            Check(self._count, state.timelines.in_short(base), cbor2.dumps(footprint.pack()), clock)
        )
        return None

    def may_lag(self, prepared: Prepared) -> bool:
        """Whether a node that asks nobody should doubt what was read: it misses something, as far as it knows."""
        state, base = self.state, prepared.base
        heard = {state.me} if state.roster.certifies_reads else set()
        suspicion_s = state.settings.suspicion_ms / 1000
        for node, peer in state.roster.peers.items():
            if not covers(base, peer.applied):
                return True
            if state.roster.is_voter(node) and peer.up and state.clock.now.seconds - peer.heard <= suspicion_s:
                heard.add(node)
        return (
            len(heard) < state.roster.majority
            or not covers(base, state.timelines.taken)
            or bool(self._in_the_way(base, prepared.footprint))
        )

    def _in_the_way(self, base: Vector, footprint: Footprint) -> list[Txid]:
        state = self.state
        reads_only = Footprint(footprint.read_points, footprint.read_ranges)
        found = (*state.commit_window.conflicts(reads_only, base), *state.votes.pending.conflicts(reads_only))
        return [each.other for each in found]

    def on_check(self, peer: str, message: Check) -> None:
        """Answer somebody's strict read, if this node's word counts: one that has forgotten its promises is silent.

        Raises:
            EntryMalformedError: what it read cannot be read.
        """
        try:
            footprint = Footprint.unpack(cbor2.loads(message.footprint))
        except (cbor2.CBORError, ValueError, TypeError) as error:
            raise EntryMalformedError(f"these {len(message.footprint)} bytes are no access set: {error}") from error
        state = self.state
        if not state.roster.certifies_reads:
            return
        if not self._reaches_back(message.vector):
            return  # too old to tell: silence makes it run again on a newer snapshot
        others = self._in_the_way(message.vector, footprint)
        state.outbox.send(peer, Checked(message.read, tuple(others[:16]), state.clock.read()))

    def _reaches_back(self, base: Vector) -> bool:
        return all(base.get(leader, 0) >= tick for leader, tick in self.state.commit_window.floor.items())

    def on_checked(self, peer: str, message: Checked) -> tuple[int, bool] | None:
        """Count an answer; (ticket, whether its read is valid) when that is settled."""
        read = self.reads.get(message.read)
        if read is None or not self.state.roster.is_voter(peer):
            return None
        if message.others:
            del self.reads[message.read]
            return read.ticket, False
        read.clear.add(peer)
        if len(read.clear) >= self.state.roster.majority:
            del self.reads[message.read]
            return read.ticket, True
        return None

    def overdue(self) -> list[int]:
        """Take the reads that got no answer for a while."""
        late = [number for number, read in self.reads.items() if self.state.clock.now.seconds > read.overdue]
        return [self.reads.pop(number).ticket for number in late]
