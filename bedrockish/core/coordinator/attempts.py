"""Our transactions between BEGIN and outcome: the BEGINs, the voters' answers, and the ends."""

from dataclasses import dataclass, field

from bedrockish.core.coordinator import request as requests
from bedrockish.core.coordinator.contention import Contention
from bedrockish.core.coordinator.quickest import QuickestVoters
from bedrockish.core.coordinator.replies import Replies
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.coordinator.wait_queue import SIZE_MAX, CommandGroups
from bedrockish.core.protocol.effects import Early
from bedrockish.core.protocol.messages import Approve, Begin, Commit, Reason, Reject
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.state.certifier import command_key
from bedrockish.core.state.conflict_records import note_conflict
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.packed_commits import RecentCommit
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.settings import may_count_out
from bedrockish.core.state.state import State
from bedrockish.errors import forgotten
from bedrockish_journal.model.access_set import clock_key, is_clock
from bedrockish_journal.model.transaction import ROWS, SCHEMA, Transaction, Txid

TURNS_MAX = 8  # up to this many rejections a request runs again at its turn; after more, it runs after a random pause


@dataclass(slots=True)
class Attempt:
    """One of this node's transactions, from its BEGIN to its outcome.

    ``promised``: a voter has promised the transaction to a recovery. ``counting``: approvals are still counted; False
    once we have given the transaction up, or promised it to a recovery. ``unasked``: the voters that get its BEGIN only
    when one of the first voters is late or rejects. ``is_group``: some of its commands share it only because they
    arrived in the same batch. ``repeat``: when to send its BEGIN again. ``trace``: the trace of the first recorded
    request among its requests.
    """

    transaction: Transaction
    numbers: list[int]  # the requests that share the transaction, first the one that was executed
    since: float
    approvals: dict[str, int] = field(default_factory=dict)
    rejects: dict[str, Reject] = field(default_factory=dict)
    unasked: list[str] = field(default_factory=list)
    counting: bool = True
    promised: bool = False
    is_group: bool = False
    repeat: Repeat = field(default_factory=lambda: Repeat(0.0, 0.0))
    trace: str = ""

    @property
    def begin(self) -> Begin:
        """The message BEGIN of the transaction."""
        return Begin(self.transaction.body, self.trace)

    def share(self, inflight: InFlight) -> None:
        """Add a request that shares the transaction."""
        self.numbers.append(inflight.number)
        # Requests that only arrived in the same batch form a group, which ``CommandGroups`` divides after a reject.
        self.is_group = self.is_group or inflight.only_batched
        self.trace = self.trace or inflight.request.trace
        inflight.attempts += 1

    def conflict_reject(self) -> Reject | None:
        """Return a reject because of another transaction, or None."""
        return next((reject for reject in self.rejects.values() if reject.reason == Reason.FOR), None)

    @property
    def winner(self) -> str:
        """The leader of the one transaction that all rejects name; empty if they name several, or none."""
        others = {reject.other for reject in self.rejects.values()}
        other = others.pop() if len(others) == 1 else None
        return other.leader if other is not None else ""

    def activates_too_early(self, winner: RecentCommit | None) -> bool:
        """Return whether this is a schema change that conflicts with a row transaction at or above its activation
        clock.

        ``winner`` is the commit for which the change is given up, if there is one.
        """
        if self.transaction.kind != SCHEMA:
            return False
        if winner is not None:
            return winner.kind == ROWS
        return any(one.other is not None and one.key == clock_key(one.other.clock) for one in self.rejects.values())

    def is_lost(self, state: State, *, patient: bool) -> bool:
        """Return whether a quorum of approvals cannot be reached any more.

        After the first reject, each voter without a link counts as a reject; unless ``patient``, each voter without an
        answer does, too. Otherwise one reject and one dead voter would block the transaction and its keys for ever.
        """
        # Before the first reject, silent voters may only be slow, and a rollback is work for each voter that approved.
        if not self.rejects:
            return False
        refusing = len(self.rejects)
        for node in state.roster.voters:
            if node != state.me and node not in self.approvals and node not in self.rejects:
                refusing += not patient or not state.roster.peers[node].up
        return refusing > len(state.roster.voters) - state.roster.quorum


class Attempts:
    """The transactions of this node that have begun and not ended, each with the requests that share it.

    Args:
        contention: orders the requests when a transaction is given up or ends.
        together: adapts how many commands may share a transaction to the conflicts and commits.
    """

    def __init__(
        self, state: State, apply_queue: ApplyQueue, replies: Replies, contention: Contention, together: CommandGroups
    ) -> None:
        self.state, self.apply_queue, self.replies = state, apply_queue, replies
        # ``rollbacks``: the transactions that were given up, until a majority has accepted their rollback.
        self.contention, self.command_groups, self.rollbacks = contention, together, contention.rollbacks
        self.open: dict[Txid, Attempt] = {}  # the transactions that have not ended
        self.quickest = QuickestVoters(state)  # the voters that answer first

    def begin(self, inflight: InFlight, attempt: Attempt) -> None:
        """Begin a transaction that has no obstacle."""
        state, transaction = self.state, attempt.transaction
        txid = transaction.txid
        # Our own vote counts towards the quorum at once. It is durable before a commit that counts it: the commit is
        # written later, and the batches become durable in their order.
        state.votes.hold(transaction)
        attempt.approvals[state.me] = state.timelines.applied.get(state.me, 0)
        assert txid not in self.open, "a txid is used once"
        self.open[txid] = attempt
        for number in attempt.numbers:
            one = self.replies.in_flight[number]
            one.move(Stage.VOTING)
            one.last_clock = txid.clock
            one.open.add(txid)
        self._send_begin(attempt)
        if inflight.behind:
            self.contention.wait_queue.begun(inflight, transaction)
        # If we are the only voter, our own vote is a quorum.
        self._count(attempt)

    def _send_begin(self, attempt: Attempt) -> None:
        """Send a BEGIN to the quickest voters that make a quorum; to all voters if leaders contend for its keys.

        The other voters learn of the transaction by its COMMIT, or by its BEGIN when a first voter is late or rejects.
        Where leaders contend, each voter must know the transaction, so that none of them begins a rival.
        """
        state, begin, early = self.state, attempt.begin, self._early(attempt.transaction)
        is_contended = state.contests.is_contended(attempt.transaction.access_set, state.clock.now.seconds)
        if is_contended or attempt.transaction.kind != ROWS:
            state.outbox.send_voters(begin, early)
            return
        asked, attempt.unasked = self.quickest.first(state.roster.quorum - 1)
        for node in asked:
            state.outbox.send(node, begin, early)
        if attempt.unasked:
            state.timers.set(self.quickest.late_ms(asked), Timer.BEGIN_REST, attempt.transaction.txid)

    def _early(self, transaction: Transaction) -> Early | None:
        """Return the facts that must be durable before BEGIN is first sent; None if every write and our vote must be.

        A leader that loses its vote in a crash has also lost the approvals. So it can never commit the transaction, and
        may approve a conflicting one. Only a recovery could be misled: it may conclude that a silent leader, which
        holds its own pending transaction, has approved no transaction that conflicts with it (J6). With up to four
        voters no recovery concludes that; with more, BEGIN waits for the vote. Two facts must be durable: the clock,
        because the txid contains it, and the leader's own commits in the base. All else in a BEGIN stays true after a
        crash.
        """
        state = self.state
        # Changes of the schema and of the members are rare enough to wait. The rollbacks that a BEGIN carries are only
        # in its leader's memory, and would be lost with the vote.
        if transaction.kind != ROWS or transaction.rollbacks or may_count_out(len(state.roster.voters)):
            return None
        return Early(transaction.txid.clock, transaction.base.get(state.me, 0))

    def send_to_unasked(self, txid: Txid, *, is_late: bool) -> None:
        """Send a BEGIN to the remaining voters, because a first voter is late (``is_late``) or has rejected it."""
        attempt, state = self.open.get(txid), self.state
        if attempt is None or not attempt.counting or not attempt.unasked:
            return
        rest, attempt.unasked = attempt.unasked, []
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
            # A reject promises nothing, so a voter may reject a BEGIN and later approve its repetition.
            attempt.rejects.pop(peer, None)
            self._count(attempt)

    def _count(self, attempt: Attempt) -> None:
        # L2: a quorum of approvals with our own, which is durable before the answer and the COMMIT leave
        if attempt.counting and len(attempt.approvals) >= self.state.roster.quorum:
            self._commit(attempt)

    def _commit(self, attempt: Attempt) -> None:
        state, transaction = self.state, attempt.transaction
        assert state.me in attempt.approvals, "its leader's own vote is one of the quorum"
        attempt.counting = False
        if attempt.unasked:
            state.timers.drop(Timer.BEGIN_REST, transaction.txid)
        state.note_commit(state.clock.now.seconds - attempt.since)
        peers = list(state.roster.peers)  # read now, because this commit may remove a peer
        # The label names the voters that have approved so far; no later approval is needed as evidence.
        entry = self.apply_queue.commit(transaction, attempt.approvals)
        clock = state.clock.read()
        for node in peers:
            # A voter that has approved holds the body durably, in its vote.
            body = None if node in attempt.approvals else transaction.body
            state.outbox.send(node, Commit(entry.label, body, entry.hash, clock))

    def on_reject(self, peer: str, message: Reject) -> None:
        """Count a reject, and give the transaction up when too many voters have rejected it."""
        attempt = self.open.get(message.txid)
        if message.other is not None:
            # The leader of the other transaction wants the same keys: from now on the two leaders take turns, even if
            # this transaction has reached its quorum before this reject.
            self.contention.turns.note_rival(message.other.leader)
            self.rollbacks.give_up_forgotten((message.other,))
        # The answer of a learner, or of a voter that has left, does not count (L1).
        if attempt is None or not attempt.counting or not self.state.roster.is_voter(peer):
            return
        if message.reason == Reason.PROMISED:
            attempt.promised = True
            return  # a recovery decides the transaction, and will send the outcome
        attempt.rejects[peer] = message
        for inflight in self._requests_of(attempt):
            # Only the command whose id the voter calls too old gets this error; the other commands are executed again.
            if message.reason == Reason.FORGOTTEN and message.key == command_key(inflight.request.command):
                inflight.error = forgotten(inflight.request.command, None)
            if message.reason == Reason.AHEAD:
                inflight.refusal = requests.clock_refused(self.state.me, peer)
            if message.reason == Reason.TOO_LATE:
                inflight.late_voter = peer
            if message.reason == Reason.DIFFERS:
                inflight.kept = None  # this node's rows may be damaged; the next execution reads the repaired rows
                inflight.differing_voter = peer
        self.state.counts[f"rejected_{Reason(message.reason).name.lower()}"] += 1
        # The voter or this node has damaged tables; the repair compares both with other nodes.
        self.state.doubts += message.reason == Reason.DIFFERS
        if message.other is not None:
            self.apply_queue.ask_about(message.other, peer)
            self.state.contests.note_key(message.key, self.state.clock.now.seconds)
        self.send_to_unasked(message.txid, is_late=False)
        self._give_up_if_lost(attempt, patient=True)

    def _give_up_if_lost(self, attempt: Attempt, *, patient: bool) -> None:
        if attempt.is_lost(self.state, patient=patient):
            self.give_up(attempt)

    def check(self) -> None:
        """Give up attempts that cannot succeed any more, and repeat BEGIN to voters that have not answered for long."""
        # A voter that is silent for longer than ``suspicion_ms`` counts as if it would never answer.
        patience = self.state.settings.suspicion_ms / 1000
        for attempt in [attempt for attempt in self.open.values() if attempt.counting]:
            self._give_up_if_lost(attempt, patient=self.state.clock.now.seconds - attempt.since < patience)
        self._repeat()
        self.rollbacks.give_up_unfit()
        self.rollbacks.repeat()

    def _repeat(self) -> None:
        """Send a BEGIN again to the voters that have not answered it for long.

        A link loses no message. But a voter assembles a bounded number of BEGINs in pieces, and drops further ones.
        """
        state = self.state
        now, pause = state.clock.now.seconds, state.answer_pause_s
        for attempt in self.open.values():
            # Since the BEGIN, the pause may have grown, because later answers have shown that the voters are slow.
            if attempt.counting and now - attempt.since >= pause and attempt.repeat.is_due(now):
                for peer in state.roster.voters_up():
                    if peer not in attempt.approvals and peer not in attempt.rejects:
                        state.outbox.send(peer, attempt.begin)

    def give_up(self, attempt: Attempt, *, winner: RecentCommit | None = None) -> None:
        """Give up a transaction. Each request that shares it pauses, or stays behind the first of them.

        Args:
            winner: the commit because of which it is given up; None if there is no such commit here.
        """
        if self.state.outcome(attempt.transaction.txid) is not None:
            return  # the transaction has ended in this step, for example by safe time
        attempt.counting = False  # L3: never counted again, so that ballot 0 is over before ballot 1 begins
        self.state.counts["given_up"] += 1
        lost = attempt.conflict_reject()
        if lost is not None:
            note_conflict(self.state.counts, attempt.transaction.access_set, lost.key)
            self.state.note_rival(lost.key, lost.other)
        # The transaction stays pending here until a majority has accepted its rollback: a recovery may still commit it.
        self.rollbacks.give_up(attempt.transaction.txid)
        in_flight = [inflight for inflight in self._requests_of(attempt) if inflight.stage is Stage.VOTING]
        is_hasty = attempt.activates_too_early(winner)
        for inflight in in_flight:
            inflight.last_reject, inflight.contested = lost or inflight.last_reject, True
            # At most a few commands of a group have conflicted, so a reject of the group lengthens no command's pauses.
            inflight.rejections += not attempt.is_group
            inflight.early_activations += is_hasty
        alone = [inflight for inflight in in_flight[1:] if inflight.only_batched]
        if attempt.is_group:
            self.command_groups.shrink()
        # The reject does not say which command of the group conflicted, so the group is divided.
        heads = self.command_groups.divide([*in_flight[:1], *alone]) if alone else in_flight[:1]
        for inflight in heads:
            inflight.only_batched = False
            if not is_hasty and self._takes_turns(attempt, inflight, is_beaten=winner is not None):
                leader = attempt.winner if winner is None else winner.txid.leader
                self.contention.pause_rejected(inflight, attempt.transaction.base, leader, is_here=winner is not None)
                continue
            self.contention.pause(inflight, requests.retry_pause_ms(inflight, self.state.settings, self.state.draw()))
        if in_flight:
            # Requests that share the transaction because they waited for the same key would conflict if run separately.
            others = [inflight for inflight in in_flight[1:] if inflight not in alone]
            self.contention.wait_queue.stay(in_flight[0], others, attempt.transaction.txid)
            if lost is not None:
                transaction = attempt.transaction
                self.contention.reservations.reserve_if_needed(in_flight[0], transaction.access_set, transaction.kind)

    def _takes_turns(self, attempt: Attempt, inflight: InFlight, *, is_beaten: bool) -> bool:
        """Return whether a request whose transaction was given up is executed again at its turn among the leaders.

        Otherwise it pauses for a random time, which grows with each rejection: leaders may differ about the turns.
        """
        kind = attempt.transaction.kind
        lost = inflight.last_reject is not None and (kind == SCHEMA or not is_clock(inflight.last_reject.key))
        # The commands of a group are unrelated, and most of them conflict with no other leader.
        is_plain = kind in (ROWS, SCHEMA) and not attempt.is_group and not inflight.goes_first
        return is_plain and (lost or is_beaten) and inflight.rejections <= TURNS_MAX

    def is_awaited(self, attempt: Attempt) -> bool:
        """Return whether a request still waits for the approvals of an attempt."""
        return any(inflight.stage is Stage.VOTING for inflight in self._requests_of(attempt))

    def _requests_of(self, attempt: Attempt) -> list[InFlight]:
        return [*filter(None, map(self.replies.in_flight.get, attempt.numbers))]

    def abort_conflicting(self, committed: RecentCommit) -> None:
        """Give up our transactions that conflict with a commit that arrived and is not in their base."""
        for found in list(self.state.votes.pending.conflicts(committed.access_set, committed.txid)):
            attempt = self.open.get(found.other)
            # L4: such a transaction can never commit; it is given up at once, because it blocks others at its voters.
            if attempt is not None and attempt.counting and not committed.is_in(attempt.transaction.base):
                self.give_up(attempt, winner=committed)

    def decides(self, txid: Txid) -> bool:
        """Return whether we may still commit a transaction or roll it back, because no recovery has our promise."""
        attempt = self.open.get(txid)
        return txid in self.rollbacks or (attempt is not None and attempt.counting)

    def is_promised(self, txid: Txid) -> bool:
        """Return whether a voter has promised our transaction to a recovery that has not asked this node."""
        attempt = self.open.get(txid)
        return attempt is not None and attempt.promised

    def stop_counting(self, txid: Txid) -> None:
        """Stop counting approvals and rolling back: a recovery has our promise, and decides the transaction."""
        attempt = self.open.get(txid)
        if attempt is not None:
            attempt.counting = False
        # Ballots 0 and 1 have ended: counting further acceptances of a rollback could contradict the decision.
        self.rollbacks.forget(txid)

    def resend(self, peer: str) -> None:
        """Send a voter again the messages that it may have missed."""
        for attempt in self.open.values():
            # The old link lost its undelivered messages. A voter that has answered gets no second BEGIN.
            if attempt.counting and peer not in attempt.approvals and peer not in attempt.rejects:
                self.state.outbox.send(peer, attempt.begin)
        self.rollbacks.resend(peer)

    # -- ends ------------------------------------------------------------------------------------------------------

    def ended(self, txid: Txid) -> None:
        """Answer the clients of a transaction that has ended, and unblock the requests that waited for it."""
        # Our quorum, our rollback, a recovery or safe time may have ended the transaction.
        attempt = self.open.pop(txid, None)
        if txid in self.rollbacks.rolling:
            self.rollbacks.forget(txid)
        known, queue = self.state.commit_window.known.get(txid), self.contention.wait_queue
        in_flight = self._requests_of(attempt) if attempt is not None else []
        contested = attempt is not None and bool(attempt.rejects)
        for inflight in in_flight:
            contested = contested or inflight.contested
        if known is not None and known.kind == ROWS and (contested or txid in queue.waits):
            # Only where requests wait or conflicted: elsewhere the turns would delay requests for nothing.
            self.contention.turns.start_turns(txid, known.access_set)
        for inflight in in_flight:
            assert attempt is not None
            self.replies.ended(inflight, attempt.transaction, commit=self.state.votes.outcomes[txid])
        # The transaction met no conflict, so the next group may be larger.
        if attempt is not None and known is not None and not contested and self.command_groups.size < SIZE_MAX:
            self.command_groups.grow()
        if txid in queue.waits:
            queue.released(txid, known.kind if known is not None else ROWS)
