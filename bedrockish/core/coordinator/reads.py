"""Reads of our clients: answered at once, or when a majority has been asked; and waiting for schema changes.

A strict read is executed first; then a majority is asked whether anything that it did not see writes what it read.
Asked in this order the answer is valid as of the snapshot, so the read is strictly serializable (linearizable) in one
round trip, and nothing of it is left anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import cbor2

from bedrockish.api.requests import STRICT
from bedrockish.core.coordinator import request as requests
from bedrockish.core.coordinator.replies import Replies
from bedrockish.core.coordinator.request import InFlight, Stage, lagging
from bedrockish.core.coordinator.revalidation import move
from bedrockish.core.protocol.messages import Check, Checked
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.state import State
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.access_set import LAST_CLOCK, AccessSet, clock_key
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import Vector, covers


@dataclass(slots=True)
class Read:
    """One strict read on its way, of the request ``number``. ``clear``: the voters with which nothing is in its way."""

    number: int
    overdue: float  # seconds at which it has been without enough answers for too long
    clear: set[str] = field(default_factory=set)


class Reading:
    """Asks for our own strict reads, and answers those of others."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.reads: dict[int, Read] = {}
        self._count = 0

    def begin(self, inflight: InFlight, prepared: Prepared) -> bool | None:
        """Ask whether a read is valid: None. True or False if we can tell ourselves that it is, or is not.

        The more often it was tried, the longer it waits for answers: voters may be slower than we expect.
        """
        state, base = self.state, prepared.base
        # It counts as later than everything, so it must have seen every schema change that is on its way.
        points = prepared.access_set.read_points | {clock_key(LAST_CLOCK)}
        access_set = AccessSet(points, prepared.access_set.read_ranges)
        # A conflict that is known here is enough to run it again, without a question to the voters.
        if next(iter(self._in_the_way(base, access_set)), None) is not None:
            return False
        self._count += 1
        patience = state.settings.suspicion_ms / 1000 * 2 ** min(inflight.attempts - 1, 6)
        overdue = min(state.clock.now.seconds + patience, inflight.deadline)
        # Our own word counts like a voter's: the read was just compared with all that is committed and pending here.
        # Like any other, not about dropped commits (``on_check``); a sole voter has seen all of them.
        can_tell = covers(base, state.commit_window.floor) or state.roster.voters == [state.me]
        clear = {state.me} if state.roster.certifies_reads and can_tell else set()
        read = self.reads[self._count] = Read(inflight.number, overdue, clear)
        if len(read.clear) >= state.roster.majority:
            del self.reads[self._count]
            return True
        clock = state.clock.read()
        state.outbox.send_voters(
            Check(self._count, state.timelines.in_short(base), cbor2.dumps(access_set.pack()), clock)
        )
        return None

    def may_lag(self, prepared: Prepared) -> bool:
        """Return whether this node may miss commits, as far as it knows without asking, so that a read may be stale."""
        state, base = self.state, prepared.base
        heard = {state.me} if state.roster.certifies_reads else set()
        suspicion_s = state.settings.suspicion_ms / 1000
        for node, peer in state.roster.peers.items():
            # It has told of commits that the read has not seen.
            if not covers(base, peer.applied):
                return True
            if state.roster.is_voter(node) and peer.up and state.clock.now.seconds - peer.heard <= suspicion_s:
                heard.add(node)
        return (
            len(heard) < state.roster.majority
            or not covers(base, state.timelines.taken)
            or bool(self._in_the_way(base, prepared.access_set))
        )

    def _in_the_way(self, base: Vector, access_set: AccessSet) -> list[Txid]:
        state = self.state
        # A read has no writes, so it does not conflict with others' reads.
        reads_only = AccessSet(access_set.read_points, access_set.read_ranges)
        found = (*state.commit_window.conflicts(reads_only, base), *state.votes.pending.conflicts(reads_only))
        return [each.other for each in found]

    def on_check(self, peer: str, message: Check) -> None:
        """Answer a peer's strict read, if this node's word counts: one that has forgotten its promises is silent.

        Raises:
            EntryMalformedError: the access set of the read cannot be decoded.
        """
        try:
            access_set = AccessSet.unpack(cbor2.loads(message.access_set))
        except (cbor2.CBORError, ValueError, TypeError) as error:
            raise EntryMalformedError(f"these {len(message.access_set)} bytes are no access set: {error}") from error
        state = self.state
        # Silence, and not "nothing in its way": what it has forgotten to have approved it cannot know.
        if not state.roster.certifies_reads:
            return
        if not covers(message.vector, state.commit_window.floor):
            return  # too old to tell: silence makes it run again on a newer snapshot
        others = self._in_the_way(message.vector, access_set)
        # One is enough to make it run again; the others are for people who read along.
        state.outbox.send(peer, Checked(message.read, tuple(others[:16]), state.clock.read()))

    def on_checked(self, peer: str, message: Checked) -> tuple[int, bool] | None:
        """Count an answer; (request, whether its read is valid) when that is settled."""
        read = self.reads.get(message.read)
        if read is None or not self.state.roster.is_voter(peer):
            return None
        # One such answer is enough: what is committed there may have been acknowledged before this read began.
        if message.others:
            del self.reads[message.read]
            return read.number, False
        # A majority shares a voter with the quorum of every commit that was acknowledged before the read began.
        read.clear.add(peer)
        if len(read.clear) >= self.state.roster.majority:
            del self.reads[message.read]
            return read.number, True
        return None

    def overdue(self) -> list[int]:
        """Take the reads that got no answer for a while."""
        late = [number for number, read in self.reads.items() if self.state.clock.now.seconds > read.overdue]
        return [self.reads.pop(number).number for number in late]


class Checking:
    """Answers reads.

    Args:
        state: of this node.
        reading: asks a majority whether a read is valid.
        replies: answers the requests.
        execute: executes a request again.
    """

    def __init__(self, state: State, reading: Reading, replies: Replies, execute: Callable[[InFlight], None]) -> None:
        self.state = state
        self.reading = reading
        self.replies = replies
        self._execute = execute

    def waits_for_schema(self, inflight: InFlight) -> bool:
        """Let a request wait for a schema change before it is executed again, if need be; return whether it waits."""
        state = self.state
        change = state.votes.pending.schema_change()
        if change is not None and change.activates <= state.clock.read():
            self.replies.wait_queue.wait(inflight, change.txid)
            return True
        if self.replies.schema_barrier.will_block(inflight):
            self.replies.wait_queue.leave(inflight)
            return True
        return False

    def read(self, inflight: InFlight, prepared: Prepared) -> None:
        """Answer what only read: at once, or when a majority has said that it is still so."""
        if inflight.request.read == STRICT:
            self._check_read(inflight, prepared)
        else:
            self.replies.answer_read(inflight, prepared)

    def _check_read(self, inflight: InFlight, prepared: Prepared) -> None:
        inflight.move(Stage.CHECKING)
        inflight.read = prepared
        valid = self.reading.begin(inflight, prepared)
        if valid is not None:
            self.read_checked(inflight.number, valid=valid)

    def failed(self, number: int, error: BedrockishError) -> None:
        """Answer a request that cannot be executed. An earlier attempt of it may have happened nevertheless.

        A refusal is an answer: what it rests on is certified like a read, at the level that the client asked for.
        """
        inflight = self.replies.in_flight.get(number)
        if inflight is None or inflight.stage is not Stage.EXECUTING:
            return
        # A refusal is an execution like any other, and counted like one.
        inflight.attempts += 1
        rests_on: Prepared | None = error.rests_on
        read = move(self.state, inflight, rests_on) if inflight.once and rests_on is not None else rests_on
        # It rests on no data at all (a syntax error, say), or that data has changed: then that is the answer.
        if read is None or isinstance(read, BedrockishError):
            self.replies.end(inflight, read or error)
        # At other levels the past is a right answer, and so is a refusal of the past; if this node knows of more, it
        # says so.
        elif inflight.request.read != STRICT:
            self.replies.end(inflight, lagging(error) if self.reading.may_lag(read) else error)
        elif read.schema != self.state.schema.version:
            self._execute(inflight)  # a schema change has come into force since
        else:
            inflight.refused = error
            self._check_read(inflight, read)

    def read_checked(self, number: int, *, valid: bool) -> None:
        """Answer a strict read that a majority has checked, or execute it again on a newer snapshot."""
        inflight = self.replies.in_flight.get(number)
        if inflight is None or inflight.stage is not Stage.CHECKING or inflight.read is None:
            return
        if valid and self.replies.schema_barrier.blocks(inflight, inflight.read, self.state.clock.value):
            self.replies.wait_queue.leave(inflight)
        # Columns and rows of an older schema are not what the database is at this moment, whatever the voters hold.
        elif valid and inflight.read.schema == self.state.schema.version:
            if inflight.refused is None:
                self.replies.answer_read(inflight, inflight.read)
            else:
                self.replies.end(inflight, inflight.refused)
        else:
            self._read_again(inflight)

    def _read_again(self, inflight: InFlight) -> None:
        if inflight.read is not None:
            reads = inflight.read.access_set
            self.replies.reservations.in_vain(inflight, AccessSet(reads.read_points, reads.read_ranges))
        change = self.state.votes.pending.schema_change()
        # A pause, and drawn: the writer that was met is about to end, and readers need not come back all at once.
        if change is None:
            self.replies.pause(inflight, requests.READ_AGAIN_MS * (1 + self.state.draw()))
        else:
            self.replies.wait_queue.wait(inflight, change.txid)
