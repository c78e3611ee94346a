"""Questions to a majority about strict reads.

A strict read is executed first; then a majority is asked whether anything that it did not see writes what it read.
Asked in this order the answer is valid as of the snapshot, so the read is strictly serializable (linearizable) in one
round trip, and nothing of it is left anywhere.

While a question is under way, further reads wait for its end and share the next one, so that many clients cost the
voters one message. A read never joins a question that was asked before the read arrived: what was acknowledged in
between is unknown to its answers.

Short reads of a quiet cluster are cheaper still. The driver executes all that have arrived, without their read sets,
and asks one question about every key: is anything known outside this state (``Reading.ask_newer``)?

A question goes to as many voters as a majority needs, the quickest, and to the others when these are late.
"""

from collections import deque
from dataclasses import dataclass

import cbor2

from bedrockish.core.coordinator.quickest import QuickestVoters
from bedrockish.core.coordinator.request import InFlight
from bedrockish.core.protocol.effects import NewerTold
from bedrockish.core.protocol.messages import Check, Checked
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.certifier import EVERYTHING
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.state import State
from bedrockish_journal.model.access_set import LAST_CLOCK, AccessSet, clock_key
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import Vector, covers

READS_MAX = 64  # that share a question
KEYS_MAX = 1_000  # that they have read together
# A read of every key and of every clock: each commit and each pending transaction is in its way.
EVERY_KEY = AccessSet(frozenset({clock_key(LAST_CLOCK)}), (EVERYTHING,))
EVERY_KEY_PACKED = cbor2.dumps(EVERY_KEY.pack())


@dataclass(slots=True)
class Read:
    """One strict read on its way.

    Attributes:
        number: of the request.
        base: the snapshot.
        access_set: the keys that it has read.
        patience_s: how long it waits for answers, in seconds.
        deadline: seconds at which the request ends.
        clear: this node, if its own word counts.
        config: the version of the membership when this node gave its own word.
    """

    number: int
    base: Vector
    access_set: AccessSet
    patience_s: float
    deadline: float
    clear: set[str]
    config: int


@dataclass(slots=True)
class Question:
    """One question to the voters: about the keys of some reads, or about every key.

    Attributes:
        reads: the reads; none if it is about every key.
        number: the driver's, if it is about every key.
        check: the message.
        asked: seconds at which it was asked.
        overdue: seconds at which it has been without enough answers for too long.
        clear: the voters with which nothing is in its way.
        rest: the voters that are asked when the others have not answered for a while; none once they are asked.
        config: the version of the membership under which all of ``clear`` is counted.
    """

    reads: list[Read]
    number: int
    check: Check
    asked: float
    overdue: float
    clear: set[str]
    rest: list[str]
    config: int


Verdicts = list[tuple[int, bool]]  # requests, and whether the read of each is valid


class Reading:
    """Asks for our own strict reads, and answers those of others."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.questions: dict[int, Question] = {}  # by the number of the message
        self.quickest = QuickestVoters(state)
        self.waiting: deque[Read] = deque()  # for the end of the shared question, to share the next one
        self._count = self._shared = 0

    def begin(self, inflight: InFlight, prepared: Prepared) -> bool | None:
        """Ask whether a read is valid: None. True or False if we can tell ourselves that it is, or is not.

        The more often it was tried, the longer it waits for answers: voters may be slower than we expect.
        """
        state, base = self.state, prepared.base
        # It counts as later than everything, so it must have seen every schema change that is on its way.
        points = prepared.access_set.read_points | {clock_key(LAST_CLOCK)}
        access_set = AccessSet(points, prepared.access_set.read_ranges)
        # A conflict that is known here is enough to run it again, without a question to the voters.
        if self._has_conflict(base, access_set):
            return False
        patience_s = state.settings.suspicion_ms / 1000 * 2 ** min(inflight.attempts - 1, 6)
        # Our own word counts like a voter's: the read was just compared with all that is committed and pending here.
        # Like any other, not about dropped commits (``on_check``); a sole voter has seen all of them.
        can_tell = covers(base, state.commit_window.floor) or state.roster.voters == [state.me]
        clear = {state.me} if state.roster.certifies_reads and can_tell else set()
        config = state.roster.membership.version
        read = Read(inflight.number, base, access_set, patience_s, inflight.deadline, clear, config)
        if len(read.clear) >= state.roster.majority:
            return True
        if self._shared in self.questions:
            # That question was asked before this read arrived: a voter may have answered it, and then have approved a
            # commit that was acknowledged before this read began. So it shares the next one.
            self.waiting.append(read)
        else:
            self._shared = self._ask([read])
        return None

    def ask_newer(self, number: int, base: Vector) -> None:
        """Ask whether anything is committed or pending outside a state; ``NewerTold`` answers the question ``number``.

        Each pending transaction is in the way of it, so this node sends no question while it holds one.
        """
        state = self.state
        if self._others_outside(base):
            state.outbox.emit(NewerTold(number, may_be=True))
            return
        can_tell = covers(base, state.commit_window.floor) or state.roster.voters == [state.me]
        clear = {state.me} if state.roster.certifies_reads and can_tell else set()
        missing = state.roster.majority - len(clear)
        if missing <= 0 or len(state.roster.voters_up()) < missing:
            state.outbox.emit(NewerTold(number, may_be=missing > 0))
            return
        self._put([], number, base, EVERY_KEY_PACKED, None, clear)

    def _put(
        self, reads: list[Read], number: int, base: Vector, access_set: bytes, overdue: float | None, clear: set[str]
    ) -> int:
        """Put a question to the voters: first to as many as are needed; return its number."""
        state = self.state
        self._count += 1
        vector = state.timelines.in_short({node: tick for node, tick in base.items() if tick})
        check = Check(self._count, vector, access_set, state.clock.read())
        asked, rest = self.quickest.first(state.roster.majority - len(clear))
        now = state.clock.now.seconds
        if overdue is None:  # the reads have another way: the core asks about their keys
            overdue = now + self.quickest.patience_s(asked)
        config = min([read.config for read in reads], default=state.roster.membership.version)
        self.questions[self._count] = Question(reads, number, check, now, overdue, clear, rest, config)
        for voter in asked:
            state.outbox.send(voter, check)
        if rest:
            state.timers.set(self.quickest.late_ms(asked), Timer.ASK_REST, self._count)
        return self._count

    def ask_rest(self, count: int) -> None:
        """Put a question to the other voters, if the first have not answered it yet."""
        question = self.questions.get(count)
        if question is None:
            return
        state = self.state
        late_s = state.clock.now.seconds - question.asked
        for voter in state.roster.voters_up():
            if voter in question.rest:
                state.outbox.send(voter, question.check)
            elif voter not in question.clear:
                self.quickest.note_late(voter, late_s)
        question.rest = []

    def _end(self, count: int) -> Question:
        """Take a question out: it is answered, or no answer is waited for."""
        question = self.questions.pop(count)
        if question.rest:
            self.state.timers.drop(Timer.ASK_REST, count)
        return question

    def _others_outside(self, base: Vector) -> list[Txid]:
        """Return the transactions that are pending or committed here outside a state."""
        newer = self.state.commit_window.newer_than(base)
        # Mostly the window and the pending transactions are both empty for this base.
        if newer is not None and not newer and not self.state.votes.pending.transactions:
            return []
        return self._in_the_way(base, EVERY_KEY)

    def _ask(self, reads: list[Read]) -> int:
        """Ask the voters about all of these reads; return the number of the question.

        It is about the keys of all, and about all that is outside the snapshot of any.
        """
        state, first = self.state, reads[0]
        base, access_set = first.base, first.access_set
        if len(reads) > 1:
            base = {node: min(read.base.get(node, 0) for read in reads) for node in base}
            ranges = {one: None for read in reads for one in read.access_set.read_ranges}
            access_set = AccessSet(frozenset().union(*(read.access_set.read_points for read in reads)), tuple(ranges))
        now = state.clock.now.seconds
        overdue = max(min(now + read.patience_s, read.deadline) for read in reads)
        # Our own word is about the moment at which each read arrived, which is early enough for that read.
        clear = {state.me} if all(read.clear for read in reads) else set()
        return self._put(reads, 0, base, cbor2.dumps(access_set.pack()), overdue, clear)

    def _ask_waiting(self) -> Verdicts:
        """Ask about the reads that wait, if no shared question is under way; return the reads that are overtaken."""
        overtaken: Verdicts = []
        while self.waiting and self._shared not in self.questions:
            reads: list[Read] = []
            keys = 0
            while self.waiting and len(reads) < READS_MAX and keys < KEYS_MAX:
                read = self.waiting.popleft()
                if self._has_conflict(read.base, read.access_set):
                    overtaken.append((read.number, False))
                    continue
                reads.append(read)
                keys += len(read.access_set.read_points) + len(read.access_set.read_ranges)
            if reads:
                self._shared = self._ask(reads)
        return overtaken

    def _divide(self, reads: list[Read]) -> Verdicts:
        """Find out which of some reads are not valid, since one of them is not: ask about fewer at a time."""
        if len(reads) == 1:
            return [(reads[0].number, False)]
        found: Verdicts = []
        rest: list[Read] = []
        for read in reads:  # the writer that a voter has named is mostly known here by now
            if self._has_conflict(read.base, read.access_set):
                found.append((read.number, False))
            else:
                rest.append(read)
        middle = len(rest) if found else len(rest) // 2
        for part in (rest[:middle], rest[middle:]):
            if part:
                self._ask(part)
        return found

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

    def _has_conflict(self, base: Vector, access_set: AccessSet) -> bool:
        return bool(self._in_the_way(base, access_set))

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
            is_of_newer = message.access_set == EVERY_KEY_PACKED  # most often: it need not be decoded again
            access_set = EVERY_KEY if is_of_newer else AccessSet.unpack(cbor2.loads(message.access_set))
        except (cbor2.CBORError, ValueError, TypeError) as error:
            raise EntryMalformedError(f"these {len(message.access_set)} bytes are no access set: {error}") from error
        state = self.state
        # Silence, and not "nothing in its way": what it has forgotten to have approved it cannot know.
        if not state.roster.certifies_reads:
            return
        if not covers(message.vector, state.commit_window.floor):
            return  # too old to tell: silence makes it run again on a newer snapshot
        base = message.vector
        others = self._others_outside(base) if is_of_newer else self._in_the_way(base, access_set)
        # One is enough to make it run again; the others are for people who read along.
        state.outbox.send(peer, Checked(message.read, tuple(others[:16]), state.clock.read()))

    def on_checked(self, peer: str, message: Checked) -> Verdicts:
        """Count an answer; return the verdicts that follow from it."""
        question = self.questions.get(message.read)
        if question is None or not self.state.roster.is_voter(peer):
            return []
        self.quickest.answered(peer, self.state.clock.now.seconds - question.asked)
        if question.config != self.state.roster.membership.version:
            # Of five voters, three may have approved a commit that the other two lack; if two of the three leave while
            # the question is under way, the other two are a majority of the new voters.
            return [(number, False) for number in self._run_again(message.read)] + self._ask_waiting()
        # A majority shares a voter with the quorum of every commit that was acknowledged before the reads began.
        if not message.others:
            question.clear.add(peer)
            if len(question.clear) < self.state.roster.majority:
                return []
        self._end(message.read)
        if question.number:
            self.state.outbox.emit(NewerTold(question.number, may_be=bool(message.others)))
            return []
        # One such answer is enough: what is committed there may have been acknowledged before this read began.
        if message.others:
            return self._divide(question.reads) + self._ask_waiting()
        return [(read.number, True) for read in question.reads] + self._ask_waiting()

    def _run_again(self, count: int) -> list[int]:
        """End a question without a verdict; return the requests of its reads, which are executed again."""
        question = self._end(count)
        if question.number:
            self.state.outbox.emit(NewerTold(question.number, may_be=True))
        return [read.number for read in question.reads]

    def overdue(self) -> list[int]:
        """Take the reads that got no answer for a while."""
        now = self.state.clock.now.seconds
        found: list[int] = []
        for count in [count for count, question in self.questions.items() if now > question.overdue]:
            found += self._run_again(count)
        return [*found, *(number for number, _ in self._ask_waiting())]
