"""Our transactions in flight: their BEGINs, the voters' answers, and their ends."""

from dataclasses import dataclass, field

from bedrockish.core.coordinator import request as requests
from bedrockish.core.coordinator.contention import Contention
from bedrockish.core.coordinator.quickest import QuickestVoters
from bedrockish.core.coordinator.replies import Replies
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.coordinator.wait_queue import SIZE_MAX, Together
from bedrockish.core.protocol.messages import Approve, Begin, Commit, Reason, Reject
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.state.certifier import command_key
from bedrockish.core.state.contention import note_conflict
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.packed_commits import Known
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.state import State
from bedrockish.errors import forgotten
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid


@dataclass(slots=True)
class Attempt:
    """One transaction of ours in flight.

    ``counting`` ends when we give it up, or promise it to a recovery. ``rest``: the voters that get its BEGIN when the
    first ones are late; none any more once they have got it. ``is_group``: of commands that came together.
    ``repeat``: of its BEGIN. ``trace``: of the first of its requests that is recorded.
    """

    transaction: Transaction
    numbers: list[int]  # whose: of the command, and of those that joined it
    since: float
    approvals: dict[str, int] = field(default_factory=dict)
    rejects: dict[str, Reject] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)
    counting: bool = True
    is_group: bool = False
    repeat: Repeat = field(default_factory=lambda: Repeat(0.0, 0.0))
    trace: str = ""

    @property
    def begin(self) -> Begin:
        """The question to its voters."""
        return Begin(self.transaction.body, self.trace)

    def share(self, inflight: InFlight) -> None:
        """Take in a request that shares the transaction with the one that it is begun for."""
        self.numbers.append(inflight.number)
        # A group that is rejected is cut in half; those that waited for each other are not (``Together``).
        self.is_group = self.is_group or inflight.is_free
        self.trace = self.trace or inflight.request.trace
        inflight.attempts += 1

    def lost_for(self) -> Reject | None:
        """Return a reject that names another transaction, if there is one."""
        return next((reject for reject in self.rejects.values() if reject.reason == Reason.FOR), None)

    def is_lost(self, state: State, *, patient: bool) -> bool:
        """Return whether a quorum of approvals cannot be reached any more.

        Once a voter has rejected, each one that is out of reach, or that let our patience run out, counts as if it had:
        else one reject and one dead voter would keep the transaction, and its keys, for ever.
        """
        # Without a reject, silent voters may only be slow, and a rollback costs every voter that has approved.
        if not self.rejects:
            return False
        lost = len(self.rejects)
        for node in state.roster.voters:
            if node != state.me and node not in self.approvals and node not in self.rejects:
                lost += not patient or not state.roster.peers[node].up
        # So many that the others cannot form a quorum.
        return lost > len(state.roster.voters) - state.roster.quorum


class Attempts:
    """The transactions of this node that are in flight, each with the requests that share it.

    Args:
        state: of this node.
        apply_queue: takes what is committed.
        replies: answers the requests.
        contention: orders them when a transaction is given up or ends.
        together: learns how large the next groups may be.

    Attributes:
        open: the transactions that have not ended, by name.
        rollbacks: those that were given up, until a majority knows.
        quickest: the voters that answer first.
    """

    def __init__(
        self, state: State, apply_queue: ApplyQueue, replies: Replies, contention: Contention, together: Together
    ) -> None:
        self.state, self.apply_queue, self.replies = state, apply_queue, replies
        self.contention, self.together, self.rollbacks = contention, together, contention.rollbacks
        self.open: dict[Txid, Attempt] = {}
        self.quickest = QuickestVoters(state)

    def begin(self, inflight: InFlight, attempt: Attempt) -> None:
        """Begin a transaction: nothing can stop it. All of this is one step, durable before BEGIN leaves."""
        state, transaction = self.state, attempt.transaction
        txid = transaction.txid
        # Our vote is one of the quorum, and like each of them it is durable before anybody hears of it.
        state.votes.hold(transaction)
        attempt.approvals[state.me] = state.timelines.applied.get(state.me, 0)
        assert txid not in self.open, "a name is given once"
        self.open[txid] = attempt
        for number in attempt.numbers:
            one = self.replies.in_flight[number]
            one.move(Stage.IN_FLIGHT)
            one.begun = txid.clock
            one.open.add(txid)
        self._send_begin(attempt)
        if inflight.behind:
            self.contention.wait_queue.begun(inflight, transaction)
        # Where we are the only voter, our own vote is all that there is to count.
        self._count(attempt)

    def _send_begin(self, attempt: Attempt) -> None:
        """Send a BEGIN to the voters: to no more than a quorum needs, the quickest, unless leaders contend.

        The others learn of the transaction by its COMMIT, or by its BEGIN when the first voters are late or reject it.
        Leaders that contend for keys are told at once, by each of their voters.
        """
        state, begin = self.state, attempt.begin
        is_contended = state.contests.is_contended(attempt.transaction.access_set, state.clock.now.seconds)
        if is_contended or attempt.transaction.kind != ROWS:
            state.outbox.send_voters(begin)
            return
        asked, attempt.rest = self.quickest.first(state.roster.quorum - 1)
        for node in asked:
            state.outbox.send(node, begin)
        if attempt.rest:
            state.timers.set(self.quickest.late_ms(asked), Timer.BEGIN_REST, attempt.transaction.txid)

    def begin_rest(self, txid: Txid, *, is_late: bool) -> None:
        """Send a BEGIN to the other voters: the first ones are late, or one of them has rejected it."""
        attempt, state = self.open.get(txid), self.state
        if attempt is None or not attempt.counting or not attempt.rest:
            return
        rest, attempt.rest = attempt.rest, []
        for node in state.roster.voters_up():
            if node in attempt.approvals or node in attempt.rejects:
                continue
            if node in rest:
                state.outbox.send(node, attempt.begin)
            elif is_late:
                self.quickest.note_late(node, state.clock.now.seconds - attempt.since)
        if not is_late:
            state.timers.drop(Timer.BEGIN_REST, txid)

    # -- answers from voters ---------------------------------------------------------------------------------------

    def on_approve(self, peer: str, message: Approve) -> None:
        """Count an approval."""
        attempt = self.open.get(message.txid)
        if attempt is not None and attempt.counting and self.state.roster.is_voter(peer):  # L1: each voter once
            attempt.approvals[peer] = message.tick
            took_s = self.state.clock.now.seconds - attempt.since
            self.state.note_answer(took_s)
            self.quickest.answered(peer, took_s)
            # It may have rejected this BEGIN and approved it when it was said again: a reject promises nothing.
            attempt.rejects.pop(peer, None)
            self._count(attempt)

    def _count(self, attempt: Attempt) -> None:
        # L2: our own durable one among them
        if attempt.counting and len(attempt.approvals) >= self.state.roster.quorum:
            self._commit(attempt)

    def _commit(self, attempt: Attempt) -> None:
        state, transaction = self.state, attempt.transaction
        assert state.me in attempt.approvals, "its leader's own vote is one of the quorum"
        attempt.counting = False
        if attempt.rest:
            state.timers.drop(Timer.BEGIN_REST, transaction.txid)
        # From here on an approval or a reject that still comes changes nothing: it is decided once.
        state.note_commit(state.clock.now.seconds - attempt.since)
        peers = list(state.roster.peers)  # also one that this may remove
        # The label names the voters that have approved so far; a later approval proves nothing.
        entry = self.apply_queue.lead(transaction, attempt.approvals)
        clock = state.clock.read()
        for node in peers:
            # A voter that has approved holds the body durably, in its vote.
            body = None if node in attempt.approvals else transaction.body
            state.outbox.send(node, Commit(entry.label, body, entry.hash, clock))

    def on_reject(self, peer: str, message: Reject) -> None:
        """Count a reject; when too many have rejected, give up."""
        attempt = self.open.get(message.txid)
        # Of a learner, or of a voter that has left, neither yes nor no counts (L1).
        if attempt is None or not attempt.counting or not self.state.roster.is_voter(peer):
            return
        if message.reason == Reason.PROMISED:
            return  # a recovery runs; its outcome will come
        attempt.rejects[peer] = message
        for inflight in self._requests_of(attempt):
            # Only the one command whose id is that old: the others of the transaction are run again.
            if message.reason == Reason.FORGOTTEN and message.key == command_key(inflight.request.command):
                inflight.error = forgotten(inflight.request.command, None)
            if message.reason == Reason.AHEAD:
                inflight.refusal = requests.clock_refused(self.state.me, peer)
            if message.reason == Reason.TOO_LATE:
                inflight.late = peer
            if message.reason == Reason.DIFFERS:
                inflight.kept = None  # it may be made of rows of ours that are damaged, and about to be repaired
                inflight.differs = peer
        # By reason: ``status`` and the metrics say why commands are run again.
        self.state.counts[f"rejected_{Reason(message.reason).name.lower()}"] += 1
        # Either of us may be the one with damaged tables: the repair finds out by asking the others.
        self.state.doubts += message.reason == Reason.DIFFERS
        if message.other is not None:
            # Its leader wants the same keys: from now on the two take turns.
            self.contention.turns.note_rival(message.other.leader)
            self.apply_queue.ask_about(message.other, peer)
            self.state.contests.meet(message.key, self.state.clock.now.seconds)
        self.begin_rest(message.txid, is_late=False)
        self._count_rejects(attempt, patient=True)

    def _count_rejects(self, attempt: Attempt, *, patient: bool) -> None:
        """Give up when approvals enough cannot come any more."""
        if attempt.is_lost(self.state, patient=patient):
            self.give_up(attempt)

    def check(self) -> None:
        """Give up attempts that cannot succeed any more, and ask again the voters that have not answered for long."""
        # As long as a leader may be silent: a voter that has not answered in this time counts as if it never would.
        patience = self.state.settings.suspicion_ms / 1000
        for attempt in [attempt for attempt in self.open.values() if attempt.counting]:
            self._count_rejects(attempt, patient=self.state.clock.now.seconds - attempt.since < patience)
        self._repeat()
        self.rollbacks.repeat()

    def _repeat(self) -> None:
        """Send a BEGIN again to the voters that have not answered it for long.

        A link loses nothing, but a node takes only so many messages in pieces at a time, and drops the others.
        """
        state = self.state
        now, pause = state.clock.now.seconds, state.answer_pause_s
        for attempt in self.open.values():
            # Later answers may have shown that the voters are slow.
            if attempt.counting and now - attempt.since >= pause and attempt.repeat.is_due(now):
                for peer in state.roster.voters_up():
                    if peer not in attempt.approvals and peer not in attempt.rejects:
                        state.outbox.send(peer, attempt.begin)

    def give_up(self, attempt: Attempt) -> None:
        """Give up a transaction; each request that shares it pauses, or stays behind the first of them."""
        if self.state.outcome(attempt.transaction.txid) is not None:
            return  # safe time ended it in this very step
        attempt.counting = False  # L3: for good, before ballot 1 begins
        self.state.counts["given_up"] += 1
        lost = attempt.lost_for()
        if lost is not None:
            # For people: which table or index the conflicts are about.
            note_conflict(self.state.counts, attempt.transaction.access_set, lost.key)
            self.state.note_rival(lost.key, lost.other)
        # It stays pending here until a majority has accepted the rollback: until then a recovery may still commit it.
        self.rollbacks.give_up(attempt.transaction.txid)
        in_flight = [inflight for inflight in self._requests_of(attempt) if inflight.stage is Stage.IN_FLIGHT]
        for inflight in in_flight:
            # The client is told of the reject that names another transaction, if there was one.
            inflight.last, inflight.contested = lost or inflight.last, True
            inflight.rejections += 1
        alone = [inflight for inflight in in_flight[1:] if inflight.is_free]
        # One of its commands was rejected, and all had to be: the next group is smaller.
        if attempt.is_group:
            self.together.shrink()
        for inflight in (*in_flight[:1], *alone):  # no reject tells which of them conflicted
            inflight.is_free = False
            self.contention.pause(inflight, requests.retry_pause_ms(inflight, self.state.settings, self.state.draw()))
        if in_flight:
            # Those that share it by waiting want one key: apart they would only conflict with each other.
            others = [inflight for inflight in in_flight[1:] if inflight not in alone]
            self.contention.wait_queue.stay(in_flight[0], others, attempt.transaction.txid)
            if lost is not None:
                transaction = attempt.transaction
                self.contention.reservations.in_vain(in_flight[0], transaction.access_set, transaction.kind)

    def is_shared(self, attempt: Attempt) -> bool:
        """Return whether a request still waits for the approvals of an attempt."""
        return any(inflight.stage is Stage.IN_FLIGHT for inflight in self._requests_of(attempt))

    def _requests_of(self, attempt: Attempt) -> list[InFlight]:
        return [*filter(None, map(self.replies.in_flight.get, attempt.numbers))]

    def abort_conflicting(self, committed: Known) -> None:
        """Give up what conflicts with a commit that arrived and is not in its base."""
        for found in list(self.state.votes.pending.conflicts(committed.access_set, committed.txid)):
            attempt = self.open.get(found.other)
            # L4: what has lost is given up at once; those who hold it keep others waiting for nothing.
            if attempt is not None and attempt.counting and not committed.is_in(attempt.transaction.base):
                self.give_up(attempt)

    def decides(self, txid: Txid) -> bool:
        """Return whether a transaction is still ours to commit or to roll back, and not in a recovery's hands."""
        attempt = self.open.get(txid)
        return txid in self.rollbacks or (attempt is not None and attempt.counting)

    def stop_counting(self, txid: Txid) -> None:
        """Stop counting approvals: a recovery has our promise, and its outcome counts."""
        attempt = self.open.get(txid)
        if attempt is not None:
            attempt.counting = False
        # Ballots 0 and 1 are over for us: a rollback that a majority accepts now could be against what is decided.
        self.rollbacks.forget(txid)

    def resend(self, peer: str) -> None:
        """Say again to a voter what it may have missed."""
        for attempt in self.open.values():
            # A new link has lost what was on its way on the old one; an answer that has come is not asked for again.
            if attempt.counting and peer not in attempt.approvals and peer not in attempt.rejects:
                self.state.outbox.send(peer, attempt.begin)
        self.rollbacks.resend(peer)

    # -- ends ------------------------------------------------------------------------------------------------------

    def ended(self, txid: Txid) -> None:
        """Answer the clients of a transaction with a new outcome, and unblock the requests that waited for it."""
        # Our quorum, our rollback, a recovery or safe time may have ended it.
        attempt = self.open.pop(txid, None)
        if txid in self.rollbacks.rolling:
            self.rollbacks.forget(txid)
        known, queue = self.state.commit_window.known.get(txid), self.contention.wait_queue
        in_flight = self._requests_of(attempt) if attempt is not None else []
        contested = False
        for inflight in in_flight:
            contested = contested or inflight.contested
        if known is not None and known.kind == ROWS and (contested or txid in queue.waits):
            # Leaders take turns only where requests wait; elsewhere a reservation would slow down others for nothing.
            self.contention.turns.reserve(txid, known.access_set)
        for inflight in in_flight:
            assert attempt is not None
            self.replies.ended(inflight, attempt.transaction, commit=self.state.votes.outcomes[txid])
        # It met no conflict, so the next group may be larger.
        if attempt is not None and known is not None and not contested and self.together.size < SIZE_MAX:
            self.together.grow()
        if txid in queue.waits:
            queue.released(txid, known.kind if known is not None else ROWS)
