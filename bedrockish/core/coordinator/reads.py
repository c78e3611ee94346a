"""Reads of our clients: answered at once, or when a majority has been asked; and what waits for a schema change.

A strict read is executed first; then a majority is asked whether anything that it did not see writes what it read.
Asked in this order the answer is valid as of the snapshot, so the read is strictly serializable (linearizable) in one
round trip, and nothing of it is left anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import cbor2

from bedrockish.api.requests import STRICT
from bedrockish.core.coordinator import request as ticketing
from bedrockish.core.coordinator.replies import Replies
from bedrockish.core.coordinator.request import Stage, Ticket, lagging
from bedrockish.core.coordinator.revalidation import move
from bedrockish.core.protocol.messages import Check, Checked
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.state import State
from bedrockish.errors import BedrockishError
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


class Checking:
    """Answers reads.

    Args:
        state: of this node.
        reading: asks a majority whether a read is valid.
        replies: answers the tickets.
        execute: executes a ticket again.
    """

    def __init__(self, state: State, reading: Reading, replies: Replies, execute: Callable[[Ticket], None]) -> None:
        self.state = state
        self.reading = reading
        self.replies = replies
        self._execute = execute

    def waits_for_schema(self, ticket: Ticket) -> bool:
        """Whether a ticket that is executed again has to wait for a schema change first: it would be for nothing."""
        if ticket.footprint is None and ticket.read is None:
            return False  # it may be a read that need not wait
        state = self.state
        change = state.votes.pending.schema_change()
        if change is not None and change.activates <= state.clock.read():
            self.replies.wait_queue.wait(ticket, change.txid)
            return True
        if self.replies.schema_barrier.will_hold_up(ticket):
            self.replies.wait_queue.leave(ticket)
            return True
        return False

    def read(self, ticket: Ticket, prepared: Prepared) -> None:
        """Answer what only read: at once, or when a majority has said that it is still so."""
        if ticket.request.read == STRICT:
            self._check_read(ticket, prepared)
        else:
            self.replies.answer_read(ticket, prepared)

    def _check_read(self, ticket: Ticket, prepared: Prepared) -> None:
        ticket.move(Stage.CHECKING)
        ticket.read = prepared
        valid = self.reading.begin(ticket, prepared)
        if valid is not None:
            self.read_checked(ticket.number, valid=valid)

    def failed(self, number: int, error: BedrockishError) -> None:
        """A ticket cannot be executed. An earlier attempt of it may have happened nevertheless.

        A refusal is an answer: what it rests on is certified like a read, at the level that the client asked for.
        """
        ticket = self.replies.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.EXECUTING:
            return
        ticket.attempts += 1
        rests_on: Prepared | None = error.rests_on
        read = move(self.state, ticket, rests_on) if ticket.once and rests_on is not None else rests_on
        if read is None or isinstance(read, BedrockishError):
            self.replies.end(ticket, read or error)
        elif ticket.request.read != STRICT:
            self.replies.end(ticket, lagging(error) if self.reading.may_lag(read) else error)
        elif read.schema != self.state.schema.version:
            self._execute(ticket)  # a schema change has come into force meanwhile
        else:
            ticket.refused = error
            self._check_read(ticket, read)

    def read_checked(self, number: int, *, valid: bool) -> None:
        """A majority has answered for a strict read: answer it, or execute it again on a newer snapshot."""
        ticket = self.replies.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.CHECKING or ticket.read is None:
            return
        if valid and self.replies.schema_barrier.holds_up(ticket, ticket.read, self.state.clock.value):
            self.replies.wait_queue.leave(ticket)
        elif valid and ticket.read.schema == self.state.schema.version:
            if ticket.refused is None:
                self.replies.answer_read(ticket, ticket.read)
            else:
                self.replies.end(ticket, ticket.refused)
        else:
            self._read_again(ticket)

    def _read_again(self, ticket: Ticket) -> None:
        change = self.state.votes.pending.schema_change()
        if change is None:
            self.replies.pause(ticket, ticketing.READ_AGAIN_MS * (1 + self.state.draw()))
        else:
            self.replies.wait_queue.wait(ticket, change.txid)
