"""Questions to a majority about strict reads.

A strict read is executed first. Then its node asks a majority whether a transaction outside the read's snapshot writes
a key that the read has read. Because the question follows the execution, the read is strictly serializable
(linearizable) after one round trip, and the voters store nothing.

While a question is under way, further reads wait for its end and share the next question, so that many clients cost the
voters one message. A read never joins a question that was asked before the read arrived: the answers may lack a commit
that was acknowledged in between.

Short reads of a quiet cluster are cheaper. The driver executes all short reads that have arrived, without computing
their read sets, and asks one question: does a voter know any transaction outside this state (``ReadChecks.ask_newer``)?

For a read of the cluster's own tables, such as the journal, the order is reversed: the node first asks a majority which
transactions outside its state they know, waits for the ends of these, and then executes the read (``catch_up``).

A question goes first to the quickest voters, as many as a majority needs, and to the others when these are late.
"""

from collections import deque
from dataclasses import dataclass

import cbor2

from bedrockish.core.coordinator.quickest import QuickestVoters
from bedrockish.core.coordinator.request import NAMED_BEFORE, NAMED_MAX, Awaited, InFlight
from bedrockish.core.protocol.effects import NewerAnswered
from bedrockish.core.protocol.messages import Check, Checked, read_access_set
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.certifier import EVERYTHING
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.state import State
from bedrockish_journal.model.access_set import LAST_CLOCK, AccessSet, clock_key
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import Vector, covers

READS_MAX = 64  # most reads that share a question
KEYS_MAX = 1_000  # keys in a shared question; the read that reaches this bound is the last one in it
# A read of every key and of every clock, with which each commit and each pending transaction conflicts.
EVERY_KEY = AccessSet(frozenset({clock_key(LAST_CLOCK)}), (EVERYTHING,))
EVERY_KEY_ENCODED = cbor2.dumps(EVERY_KEY.pack())


@dataclass(slots=True)
class AskedRead:
    """One strict read whose question is waiting or under way."""

    number: int  # the number of the request
    base: Vector  # the vector of its snapshot
    access_set: AccessSet  # the keys that it has read
    patience_s: float  # how long it waits for answers
    deadline: float  # seconds at which the request ends
    counted: set[str]  # this node, if its own comparison counts as a voter's answer; else empty
    config: int  # the version of the membership when this node compared the read


@dataclass(slots=True)
class Question:
    """One question to the voters: about the keys of some reads, or about every key."""

    reads: list[AskedRead]  # the reads; empty for a question about every key
    number: int  # the driver's number of a question about every key, else 0
    check: Check  # the message to the voters
    asked: float  # seconds at which the question was sent
    overdue: float  # seconds at which the question ends without enough answers
    # The voters whose answers count towards the majority: those that know no conflicting transaction; in a question
    # for a read of the cluster's own tables, all that have answered.
    counted: set[str]
    unasked: list[str]  # the voters to ask when the first ones are late; empty once they are asked
    config: int  # the version of the membership under which the voters in ``counted`` count
    # For a read of the cluster's own tables, the transactions that voters have named so far, for whose ends the read
    # will wait; else None.
    awaited: Awaited | None = None


Verdict = bool | Awaited  # whether a read is valid, or the transactions that have to end before it is executed again
Verdicts = list[tuple[int, Verdict]]  # pairs of the number of a read's request and its verdict


class ReadChecks:
    """The questions about strict reads: asks the voters about this node's reads, and answers the questions of peers."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.questions: dict[int, Question] = {}  # by the number of the message
        self.quickest = QuickestVoters(state)
        self.waiting: deque[AskedRead] = deque()  # reads that share the next question, after the present one ends
        self._count = self._shared = 0

    def begin(self, inflight: InFlight, prepared: Prepared) -> Verdict | None:
        """Return the verdict on a read if this node can tell alone; otherwise ask the voters, and return None.

        Each further attempt waits longer for answers, because the voters may be slow.
        """
        state, base = self.state, prepared.base
        patience_s = state.settings.suspicion_ms / 1000 * 2 ** min(inflight.attempts - 1, 6)
        if prepared.reads_system and not (
            inflight.required_vector is not None and covers(base, inflight.required_vector)
        ):
            # If a worker's snapshot lacks commits that the read has to see, the read is executed again.
            return self._ask_known(inflight, base, patience_s) if inflight.required_vector is None else False
        # A strict read counts as later than every transaction, so each schema change outside its snapshot conflicts
        # with it: add the clock that every schema change writes.
        points = prepared.access_set.read_points | {clock_key(LAST_CLOCK)}
        access_set = AccessSet(points, prepared.access_set.read_ranges)
        # If this node knows a conflict, the read is executed again without a question to the voters.
        if self._has_conflict(base, access_set):
            return False
        # This node counts as a voter without a conflict, because the read was just compared with its commits and
        # pending transactions.
        clear = {state.me} if self._counts_as_answer(base) else set()
        config = state.roster.membership.version
        read = AskedRead(inflight.number, base, access_set, patience_s, inflight.deadline, clear, config)
        if len(read.counted) >= state.roster.majority:
            return True
        if self._shared in self.questions:
            # The present question was asked before this read arrived. A voter may have answered it and, after that,
            # approved a commit that was acknowledged before this read began. So the read shares the next question.
            self.waiting.append(read)
        else:
            self._shared = self._ask([read])
        return None

    def _ask_known(self, inflight: InFlight, base: Vector, patience_s: float) -> Verdict | None:
        """Ask a majority which transactions outside this node's state they know, for a read of the cluster's tables.

        Return the verdict if this node is a majority alone.
        """
        assert not inflight.once, "the read has to be executed again after the wait"
        state = self.state
        config, applied = state.roster.membership.version, dict(state.timelines.applied)
        awaited, clear = Awaited(config), set[str]()
        if self._counts_as_answer(applied):
            clear.add(state.me)
            awaited.txids.update(self._others_outside(applied))
        read = AskedRead(inflight.number, base, EVERY_KEY, patience_s, inflight.deadline, clear, config)
        if len(clear) >= state.roster.majority:
            return self._verdict(read, awaited, applied)
        overdue = min(state.clock.now.seconds + patience_s, inflight.deadline)
        self._send([read], 0, applied, EVERY_KEY_ENCODED, overdue, clear, awaited)
        return None

    @staticmethod
    def _verdict(read: AskedRead, awaited: Awaited, asked: Vector) -> Verdict:
        """Return True if a read has seen all that a majority knew, else the transactions that it has to wait for."""
        return True if not (awaited.txids or awaited.safe) and covers(read.base, asked) else awaited

    def _counts_as_answer(self, base: Vector) -> bool:
        """Return whether this node's own comparison with a state counts as a voter's answer.

        It counts if the conflict window still has all commits that the state lacks; a sole voter's always counts.
        """
        state = self.state
        can_tell = covers(base, state.commit_window.floor) or state.roster.voters == [state.me]
        return state.roster.certifies_reads and can_tell

    def ask_newer(self, number: int, base: Vector) -> None:
        """Ask the voters whether they know a transaction outside a state; the answer is the effect ``NewerAnswered``.

        A pending transaction is outside every state, so while one is pending here, this node answers without a question
        that there may be one.
        """
        state = self.state
        if self._others_outside(base):
            state.outbox.emit(NewerAnswered(number, may_exist=True))
            return
        clear = {state.me} if self._counts_as_answer(base) else set()
        missing = state.roster.majority - len(clear)
        if missing <= 0 or len(state.roster.voters_up()) < missing:
            state.outbox.emit(NewerAnswered(number, may_exist=missing > 0))
            return
        self._send([], number, base, EVERY_KEY_ENCODED, None, clear)

    def _send(
        self,
        reads: list[AskedRead],
        number: int,
        base: Vector,
        access_set: bytes,
        overdue: float | None,
        clear: set[str],
        awaited: Awaited | None = None,
    ) -> int:
        """Send a question to as many voters as are needed; return its number."""
        state = self.state
        self._count += 1
        vector = state.timelines.in_short({node: tick for node, tick in base.items() if tick})
        check = Check(self._count, vector, access_set, state.clock.read())
        asked, rest = self.quickest.first(state.roster.majority - len(clear))
        now = state.clock.now.seconds
        if overdue is None:  # the driver's question; if answers are late, the driver submits its reads
            overdue = now + self.quickest.patience_s(asked)
        config = min([read.config for read in reads], default=state.roster.membership.version)
        self.questions[self._count] = Question(reads, number, check, now, overdue, clear, rest, config, awaited)
        for voter in asked:
            state.outbox.send(voter, check)
        if rest:
            state.timers.set(self.quickest.late_ms(asked), Timer.ASK_REST, self._count)
        return self._count

    def send_to_unasked(self, count: int) -> None:
        """Send a question to the voters that were not asked yet, if it is still open."""
        question = self.questions.get(count)
        if question is None:
            return
        state = self.state
        late_s = state.clock.now.seconds - question.asked
        for voter in state.roster.voters_up():
            if voter in question.unasked:
                state.outbox.send(voter, question.check)
            elif voter not in question.counted:
                self.quickest.note_late(voter, late_s)
        question.unasked = []

    def _end(self, count: int) -> Question:
        """Remove and return a question that is answered or overdue."""
        question = self.questions.pop(count)
        if question.unasked:
            self.state.timers.drop(Timer.ASK_REST, count)
        return question

    def _others_outside(self, base: Vector) -> list[Txid]:
        """Return the transactions outside a state: those pending here, and the commits that the state lacks."""
        newer = self.state.commit_window.newer_than(base)
        # Usually the base has all commits and no transaction is pending.
        if newer is not None and not newer and not self.state.votes.pending.transactions:
            return []
        return self._conflicting(base, EVERY_KEY)

    def _ask(self, reads: list[AskedRead]) -> int:
        """Ask the voters about all of these reads; return the number of the question.

        The question has the keys of all reads, and as its base the commits that all their snapshots have.
        """
        state, first = self.state, reads[0]
        base, access_set = first.base, first.access_set
        if len(reads) > 1:
            base = {node: min(read.base.get(node, 0) for read in reads) for node in base}
            ranges = {one: None for read in reads for one in read.access_set.read_ranges}
            access_set = AccessSet(frozenset().union(*(read.access_set.read_points for read in reads)), tuple(ranges))
        now = state.clock.now.seconds
        overdue = max(min(now + read.patience_s, read.deadline) for read in reads)
        # This node compared each read after the read's arrival, so the comparison need not be repeated now.
        clear = {state.me} if all(read.counted for read in reads) else set()
        return self._send(reads, 0, base, cbor2.dumps(access_set.pack()), overdue, clear)

    def _ask_waiting(self) -> Verdicts:
        """Ask about the waiting reads if no shared question is under way; return those that conflict at this node."""
        overtaken: Verdicts = []
        while self.waiting and self._shared not in self.questions:
            reads: list[AskedRead] = []
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

    def _divide(self, reads: list[AskedRead]) -> Verdicts:
        """Split the reads of a question that has found a conflict: return those that this node knows to be invalid, and
        ask again about the others.
        """
        if len(reads) == 1:
            return [(reads[0].number, False)]
        found: Verdicts = []
        rest: list[AskedRead] = []
        for read in reads:  # usually this node has received the conflicting transaction by now
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
        """Return whether this node knows, without asking, that it may lack commits that a read should see."""
        state, base = self.state, prepared.base
        heard = {state.me} if state.roster.certifies_reads else set()
        suspicion_s = state.settings.suspicion_ms / 1000
        for node, peer in state.roster.peers.items():
            # The peer has applied commits that the read has not seen.
            if not covers(base, peer.applied):
                return True
            if state.roster.is_voter(node) and peer.up and state.clock.now.seconds - peer.heard <= suspicion_s:
                heard.add(node)
        is_short = len(heard) < state.roster.majority or not covers(base, state.timelines.taken)
        return is_short or bool(self._conflicting(base, prepared.access_set))

    def _has_conflict(self, base: Vector, access_set: AccessSet) -> bool:
        return bool(self._conflicting(base, access_set))

    def _conflicting(self, base: Vector, access_set: AccessSet) -> list[Txid]:
        state = self.state
        # Without its writes, the access set does not conflict with reads of other transactions.
        reads_only = AccessSet(access_set.read_points, access_set.read_ranges)
        found = (*state.commit_window.conflicts(reads_only, base), *state.votes.pending.conflicts(reads_only))
        return [each.other for each in found]

    def on_check(self, peer: str, message: Check) -> None:
        """Answer a peer's question about strict reads, unless this node may not vouch for the answer.

        Raises:
            EntryMalformedError: the access set of the read cannot be decoded.
        """
        asks_every_key = message.access_set == EVERY_KEY_ENCODED  # most questions, recognized undecoded
        access_set = EVERY_KEY if asks_every_key else read_access_set(message.access_set)
        state = self.state
        # A node that has forgotten approvals must not answer "no conflict".
        if not state.roster.certifies_reads:
            return
        if not covers(message.vector, state.commit_window.floor):
            return  # commits that the base lacks have left the window; without a majority the read is executed again
        base = message.vector
        others = self._others_outside(base) if asks_every_key else self._conflicting(base, access_set)
        # A read of the cluster's own tables waits for all named transactions. For another read one conflict is enough;
        # a few more are named for the log.
        named = tuple(others[: NAMED_MAX if asks_every_key else NAMED_BEFORE])
        state.outbox.send(peer, Checked(message.read, named, state.clock.read()))

    def on_checked(self, peer: str, message: Checked) -> Verdicts:
        """Count a voter's answer; return the verdicts on the reads that it decides."""
        question = self.questions.get(message.read)
        if question is None or not self.state.roster.is_voter(peer):
            return []
        self.quickest.answered(peer, self.state.clock.now.seconds - question.asked)
        if question.config != self.state.roster.membership.version:
            # The members have changed since the question. Of five voters, three may have approved a commit that the
            # other two lack. If two of the three leave, those other two are a majority of the three voters left.
            return [(number, False) for number in self._run_again(message.read)] + self._ask_waiting()
        awaited = question.awaited
        if awaited is not None:
            awaited.add(message.others, message.clock)
        # A majority shares a voter with the quorum of every commit that was acknowledged before the reads began.
        if awaited is not None or not message.others:
            question.counted.add(peer)
            if len(question.counted) < self.state.roster.majority:
                return []
        self._end(message.read)
        if question.number:
            self.state.outbox.emit(NewerAnswered(question.number, may_exist=bool(message.others)))
            return []
        if awaited is not None:
            verdict = self._verdict(question.reads[0], awaited, question.check.vector)
            return [(question.reads[0].number, verdict)]
        # One conflict is enough: the conflicting transaction may have been acknowledged before this read began.
        if message.others:
            return self._divide(question.reads) + self._ask_waiting()
        return [(read.number, True) for read in question.reads] + self._ask_waiting()

    def _run_again(self, count: int) -> list[int]:
        """End a question without a verdict; return the requests of its reads, which are executed again."""
        question = self._end(count)
        if question.number:
            self.state.outbox.emit(NewerAnswered(question.number, may_exist=True))
        return [read.number for read in question.reads]

    def overdue(self) -> list[int]:
        """Remove the questions without enough answers in time; return the numbers of their reads."""
        now = self.state.clock.now.seconds
        found: list[int] = []
        for count in [count for count, question in self.questions.items() if now > question.overdue]:
            found += self._run_again(count)
        return [*found, *(number for number, _ in self._ask_waiting())]
