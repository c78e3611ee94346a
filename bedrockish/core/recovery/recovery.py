"""Recovery of the transactions of a silent leader by another voter (section 4 of the protocol).

Each transaction is one Paxos instance. Ballots 0 and 1 belong to its leader: ballot 0 can only commit, ballot 1 can
only roll back. Ballots from 2 on belong to recovering nodes. A recovered commit is *adopted*: it gets a place in the
timeline of the recovering node, because no node ever writes into another node's timeline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bedrockish.core.coordinator.coordinator import Coordinator
from bedrockish.core.protocol import messages as say
from bedrockish.core.protocol.health import Mode
from bedrockish.core.protocol.records import ENDED, FORGOTTEN, Vote
from bedrockish.core.recovery.judge import COMMIT, EndFirst, VoterAnswer, judge
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.replica.voter import ASKED_MAX, Voter
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.state import State
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import Transaction, Txid, decode_transaction
from bedrockish_journal.model.vector import covers

FIRST_BALLOT = 2  # the first ballot of a recovery; 0 and 1 belong to the transaction's leader
PATIENCE_DECAY_MS = 30_000  # increased patience with a peer falls to a third in this time
BODY_FETCH_MAX_S = 60.0  # a round waits at most this long for voters that are fetching its body
PATIENCE_MAX = 32  # the greatest patience; it has to be so great that slow nodes can still finish transactions


@dataclass(slots=True)
class RecoveryRound:
    """One attempt of this node to decide a transaction in place of its leader."""

    transaction: Transaction  # the transaction to decide
    ballot: int  # a ballot that belongs to this node alone
    since: float  # seconds at which the round began
    answers: dict[str, VoterAnswer] = field(default_factory=dict)  # the answers of the voters that have promised
    decision: bool | None = None  # the proposal, commit or abort; None while promises are collected
    accepted: set[str] = field(default_factory=set)  # the voters that have accepted the proposal
    blockers: dict[Txid, Transaction] = field(default_factory=dict)  # the transactions that must end first
    tries: int = 1  # the number of the attempt; each attempt waits twice as long as the one before


class Recovery:
    """The rounds of this node for transactions whose leader is silent, and its answers to other nodes' rounds."""

    def __init__(self, state: State, apply_queue: ApplyQueue, voter: Voter, coordinator: Coordinator) -> None:
        self.state = state
        self.apply_queue = apply_queue
        self.voter = voter
        self.coordinator = coordinator
        self.rounds: dict[Txid, RecoveryRound] = {}
        self.deferred: dict[Txid, str] = {}  # RECOVERs whose base is not covered yet, each with the peer to answer
        self.adoptable: dict[Txid, RecoveryRound] = {}  # decided commits that cannot be applied here yet
        self.counts = {"started": 0, "adopted": 0, "aborted": 0}
        self._checked_at = state.clock.now.seconds  # seconds at which ``check`` last ran

    # -- suspicion -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Recover transactions that have been pending for too long, and restart stuck rounds."""
        state, now = self.state, self.state.clock.now.seconds
        for peer in state.roster.peers.values():
            # Increased patience decays, so that the death of this peer is noticed early again.
            peer.patience = max(1.0, peer.patience * (1 - 1000 * (now - self._checked_at) / PATIENCE_DECAY_MS))
        self._checked_at = now
        # Safe time may have decided a transaction without a message; also at a node that is not a voter any more.
        for txid in [txid for txid in self.rounds if txid.clock <= state.clock.safe or state.outcome(txid) is not None]:
            del self.rounds[txid]
        # No voter promises anything to a node without a vote (P1).
        if not state.roster.is_voter(state.me):
            return
        # The questions below concern only transactions older than half of ``suspicion_ms``.
        asks: dict[str, list[Txid]] = {}
        for transaction in state.votes.pending.since_before(now - state.settings.suspicion_ms / 2000):
            txid = transaction.txid
            age = now - state.votes.pending.since[txid]
            leader = state.roster.peers.get(txid.leader)
            suspicion = state.settings.suspicion_ms / 1000 * (leader.patience if leader is not None else 1)
            if age < suspicion / 2 or txid in self.rounds:
                continue
            if txid.leader == state.me:
                # If this node has promised its own transaction to a recovery that has not ended it, any voter may
                # recover it now, this node included.
                attempts = self.coordinator.attempts
                is_free = not attempts.decides(txid)
                # Another voter may have promised the transaction to a recovery that has not asked this node. If the
                # recovering node has died, perhaps no other node holds the transaction. So this node recovers it, but
                # waits longer than the other voters (five times the suspicion, below).
                if (is_free and age > 2 * suspicion) or (age > 6 * suspicion and attempts.is_promised(txid)):
                    self.start(transaction)
            # Recover it also if its leader is alive and does not end it for long: with the leader's promise, the
            # recovery can decide (J5).
            elif leader is None or self._is_silent(txid.leader) or age > 5 * suspicion:
                # The voters start one after the other: the ballots of simultaneous recoveries refuse each other.
                if age > suspicion * (1 + 0.3 * self._rank()):
                    self.start(transaction)
            # The leader is alive: the message about the outcome may be lost.
            elif age >= 2 * leader.pending_s:
                asks.setdefault(txid.leader, []).append(txid)
        self._ask_leaders(asks)
        for txid, round_ in list(self.rounds.items()):
            # Each wait is longer, and random: otherwise two recovering nodes could refuse each other's ballots for
            # ever.
            patience = state.settings.suspicion_ms / 1000 * min(2 ** (round_.tries - 1), PATIENCE_MAX)
            if now - round_.since > patience * (1 + state.draw()) and not self._is_fetching_body(round_):
                self._again(txid, round_)

    def _is_fetching_body(self, round_: RecoveryRound) -> bool:
        """Return whether a voter that has not answered seems to be fetching the pieces of a round's large body.

        Such a round is not replaced by one with another ballot: that voter would have to fetch all pieces again.
        """
        state, now = self.state, self.state.clock.now.seconds
        if len(round_.transaction.body) <= state.settings.inline_bytes or now - round_.since > BODY_FETCH_MAX_S:
            return False
        answered = round_.answers if round_.decision is None else round_.accepted
        waiting = (node for node in state.roster.voters if node not in answered)
        return any(now - state.pieces.taken.get(node, 0.0) < state.settings.suspicion_ms / 1000 for node in waiting)

    def _ask_leaders(self, asks: Mapping[str, Sequence[Txid]]) -> None:
        """Ask each leader once about all of its transactions, and then again after pauses that double."""
        state, now = self.state, self.state.clock.now.seconds
        for node, peer in state.roster.peers.items():
            txids = asks.get(node, ())
            if not txids:
                peer.ask = None
                continue
            pause = state.settings.suspicion_ms / 2000
            peer.ask = peer.ask or Repeat(now - pause, pause)
            if peer.ask.is_due(now):
                self._send_ask(node, txids)

    def _send_ask(self, node: str, txids: Sequence[Txid]) -> None:
        state, clock = self.state, self.state.clock.read()
        state.outbox.send(node, say.Ask(txids[0], clock, tuple(txids[1:ASKED_MAX])))

    def _is_silent(self, node: str) -> bool:
        peer = self.state.roster.peers[node]
        if peer.mode >= Mode.DAMAGED:
            return True  # a node with damaged tables sends messages, but decides no transactions
        # Measured by our own monotonic clock: setting a wall clock makes no node look silent.
        return self.state.clock.now.seconds - peer.heard > self.state.settings.suspicion_ms / 1000 * peer.patience

    def _rank(self) -> int:
        """Return our place among the voters that seem alive: they start in this order, and usually only one does."""
        alive = [node for node in self.state.roster.voters if node == self.state.me or not self._is_silent(node)]
        return alive.index(self.state.me)

    def start(self, transaction: Transaction, tries: int = 1) -> None:
        """Start a round for a transaction, at a ballot of our own above every ballot that we have promised."""
        state, txid = self.state, transaction.txid
        # Up to safe time every transaction is decided: it is in the journal, or was rolled back.
        if txid.clock <= state.clock.safe or state.outcome(txid) is not None:
            return
        if not state.roster.is_voter(state.me):
            return  # this node was demoted during an earlier round: voters promise nothing to a learner
        self.counts["started"] += 1
        leader = state.roster.peers.get(txid.leader)
        if leader is not None:
            # If the leader turns out to be alive, this node gets more patience with it (``Node._receive``).
            leader.suspected = True
        # This node's promise binds its own rounds as well: it would refuse a lower ballot of its own (P4).
        promised = state.votes.by_txid[txid].promised if txid in state.votes.by_txid else 0
        voters = state.roster.voters
        ballot = FIRST_BALLOT + voters.index(state.me)
        # Voter i of n has the ballots FIRST_BALLOT + i, FIRST_BALLOT + i + n, …, so no two voters share a ballot.
        ballot += max(0, (promised - ballot) // len(voters) + 1) * len(voters)
        assert ballot > promised
        assert (ballot - FIRST_BALLOT) % len(voters) == voters.index(state.me), "a ballot of another voter"
        if ballot >= ENDED:
            return  # only a faulty node can have used such a ballot; safe time will end the transaction
        self.rounds[txid] = RecoveryRound(transaction, ballot, state.clock.now.seconds, tries=tries)
        self._send_recover(txid)

    def _send_recover(self, txid: Txid) -> None:
        round_, state = self.rounds[txid], self.state
        message = say.Recover(round_.transaction.body, round_.ballot, state.clock.read())
        # RECOVER contains the body: a voter without the BEGIN can then hold the transaction, and recover it later.
        state.outbox.send_voters(message)
        # This node promises like every other voter.
        self.on_recover(state.me, message)

    def _again(self, txid: Txid, round_: RecoveryRound) -> None:
        """End a round and, if the outcome is still unknown, start another with a new ballot and new promises."""
        del self.rounds[txid]
        for blocker, transaction in round_.blockers.items():
            outcome = self.state.outcome(blocker)
            # A blocker has to end first (J7). If its leader is silent as well, recover it.
            if outcome is None and blocker not in self.rounds and self._has_silent_leader(blocker):
                self.start(transaction)
        self.start(round_.transaction, round_.tries + 1)

    def _has_silent_leader(self, txid: Txid) -> bool:
        return txid.leader != self.state.me and (
            txid.leader not in self.state.roster.peers or self._is_silent(txid.leader)
        )

    # -- answering a recoverer -------------------------------------------------------------------------------------

    def on_recover(self, peer: str, message: say.Recover) -> None:
        """Promise a ballot, and try to hold the transaction.

        Raises:
            EntryMalformedError: the body is malformed.
        """
        vote = self._promise(peer, message)
        if vote is None or vote.transaction is None:
            return
        # The promise is durable before the answer: a voter that forgot it at a restart could accept a lower ballot
        # (P4).
        self.state.votes.persist(vote)
        if covers(self.state.timelines.applied, vote.transaction.base):
            self._answer(peer, vote, vote.transaction)
        else:
            # The answer follows when the base is applied: conflict tests need it.
            self.deferred[vote.txid] = peer
            self.apply_queue.want(vote.transaction.base)

    def _promise(self, peer: str, message: say.Recover | say.Accept) -> Vote | None:
        """Promise to accept no lower ballot, and return the vote; None if no promise is allowed or needed."""
        state = self.state
        transaction = state.read_body(message.body)
        txid = transaction.txid
        # Following such a clock would move all clocks up to it, for good. The tighter bound that V14 has for a BEGIN
        # must not stop a recovery.
        if peer != state.me and state.clock.is_absurd(txid.clock):
            raise EntryMalformedError(f"{txid} began more than a year ahead of most voters' clocks")
        state.clock.adjust(txid.clock)
        # P1: only voters promise, to voters. P2: a voter that knows the outcome sends it instead.
        if not state.roster.is_voter(state.me) or not state.roster.is_voter(peer) or self._knows_outcome(peer, txid):
            return None
        if transaction.config < state.roster.membership.version:
            state.votes.end(txid, commit=False)  # P3: it began under an older membership and can never commit
            self._knows_outcome(peer, txid)
            return None
        vote = state.votes.of(txid, transaction)
        if message.ballot < vote.promised:  # P4: a promise is kept
            self._reply(peer, say.Refused(txid, vote.promised, state.clock.read()))
            return None
        vote.promised = message.ballot
        if txid.leader == state.me:
            self.coordinator.attempts.stop_counting(txid)  # P5: the leader's promise ends ballots 0 and 1
        return vote

    def answer_deferred(self) -> None:
        """Answer the deferred RECOVERs whose base is applied now; adopt the decided commits that can be applied now."""
        state = self.state
        for txid, peer in list(self.deferred.items()):
            vote = state.votes.by_txid.get(txid)
            # The transaction may have ended while its base was fetched: the peer gets the outcome when it asks again
            # (P2).
            if vote is None or vote.transaction is None or state.outcome(txid) is not None:
                del self.deferred[txid]
            elif covers(state.timelines.applied, vote.transaction.base):
                del self.deferred[txid]
                self._answer(peer, vote, vote.transaction)
        # A decided commit may have to wait for entries of its base.
        for txid, round_ in list(self.adoptable.items()):
            self._adopt(txid, round_)

    def _answer(self, peer: str, vote: Vote, transaction: Transaction) -> None:
        state, txid = self.state, transaction.txid
        for given_up in transaction.rollbacks:  # P6: otherwise transactions that its leader gave up would block it (V5)
            if given_up.leader == txid.leader:
                state.votes.accept_rollback(given_up)
        standing, blockers = self._try_to_hold(vote, transaction)
        self._reply(
            peer,
            say.Promise(
                txid,
                vote.promised,
                standing,
                vote.accepted,
                tuple(blocker.body for blocker in blockers),
                tuple(self._ended_against(transaction)),
                state.clock.read(),
                state.clock.safe,
            ),
        )

    def _try_to_hold(self, vote: Vote, transaction: Transaction) -> tuple[say.Standing, list[Transaction]]:
        """Try to hold a transaction: the tests are those of an approval, with the cut instead of closed time."""
        state, txid = self.state, transaction.txid
        if vote.held:  # P7: the transaction is pending here
            return say.Standing.HELD, []
        # P8: if one of its commands has happened as another transaction, no quorum approved this one.
        found = state.happened(transaction.commands, txid)
        never: bool | None = found is not None and found.other != FORGOTTEN
        if not never:
            # P9: if a commit outside the transaction's base conflicts with the transaction, a majority held that commit
            # first, so no quorum approved this transaction.
            never = state.conflicts_outside(transaction)
        # P10: a majority has closed time up to the cut. A voter of it that had approved the transaction would have kept
        # time open.
        if never or state.clock.cut >= txid.clock:
            return say.Standing.NEVER, []
        if never is None:
            return say.Standing.BLOCKED, []  # P14: it cannot be compared with entries outside its base: the journal
            # lacks them
        pending = state.votes.pending
        blockers = [pending.transactions[found.other] for found in pending.conflicts(transaction.access_set, txid)]
        if blockers:  # P11: no node holds two transactions that conflict
            return say.Standing.BLOCKED, blockers
        if state.why_rows_differ(transaction) != "":
            return say.Standing.BLOCKED, []  # P12: its before-images differ from our rows, or are not compared yet
        state.votes.hold(transaction)  # P13: from now on the transaction is pending here, durably
        return say.Standing.HELD, []

    def _ended_against(self, transaction: Transaction) -> list[Txid]:
        """Return the conflicting transactions whose end this node knows, or whose abort it has accepted."""
        state = self.state
        # Votes up to safe time are dropped; for these, the promise contains safe time (J6).
        ended = list(state.commit_window.any_conflicts(transaction.access_set, above=state.clock.safe))
        return ended + [txid for txid, _ in state.votes.aborting.conflicts(transaction.access_set, transaction.txid)]

    def on_accept(self, peer: str, message: say.Accept) -> None:
        """Accept a decision, unless a higher ballot is promised. The transaction stays pending until it is decided.

        Raises:
            EntryMalformedError: the body is malformed.
        """
        vote = self._promise(peer, message)
        if vote is not None:
            assert vote.promised == message.ballot, "a voter accepts only a ballot that it has promised"
            # The transaction stays pending here: perhaps a majority accepts another decision.
            vote.accepted = (message.ballot, message.commit)
            self.state.votes.persist(vote)
            self._reply(peer, say.Accepted(vote.txid, message.ballot, self.state.clock.read()))

    def _knows_outcome(self, peer: str, txid: Txid) -> bool:
        # In its own rounds this node is one of the voters, and needs no message with the outcome.
        if peer == self.state.me:
            return txid.clock <= self.state.clock.safe or self.state.outcome(txid) is not None
        return self.voter.tell_outcome(peer, txid)

    def _reply(self, peer: str, message: say.Promise | say.Refused | say.Accepted) -> None:
        if peer != self.state.me:
            self.state.outbox.send(peer, message)
        elif isinstance(message, say.Promise):
            self.on_promise(peer, message)
        elif isinstance(message, say.Accepted):
            self.on_accepted(peer, message)
        else:
            self.on_refused(message)

    # -- judging ---------------------------------------------------------------------------------------------------

    def on_promise(self, peer: str, message: say.Promise) -> None:
        """Count a promise; at a majority, propose a decision or end the blockers.

        Raises:
            EntryMalformedError: a blocker is malformed; the promise does not count.
        """
        round_ = self.rounds.get(message.txid)
        # A promise for another ballot does not count: its voter may have accepted a decision since.
        if round_ is None or round_.ballot != message.ballot or not self.state.roster.is_voter(peer):
            return
        # All blockers are decoded before the answer counts.
        blockers = {one.txid: one for one in map(decode_transaction, message.blockers)}
        round_.blockers.update(blockers)
        # If a voter answers the ballot twice, its newer answer counts.
        round_.answers[peer] = VoterAnswer(
            message.standing, message.accepted, frozenset(blockers), frozenset(message.ended), message.safe
        )
        # Only one proposal is made at a ballot, because voters would accept two different ones.
        if round_.decision is None and len(round_.answers) >= self.state.roster.majority:
            self._judge(round_)

    def _judge(self, round_: RecoveryRound) -> None:
        verdict = judge(
            round_.transaction.txid.leader, round_.answers, self.state.roster.voters, self.state.roster.quorum
        )
        # The blockers have to end first; each further promise is judged together with the earlier ones.
        if isinstance(verdict, EndFirst):
            self._unblock(round_)
        else:
            self._propose(round_, commit=verdict == COMMIT)

    def _unblock(self, round_: RecoveryRound) -> None:
        """End the blockers: ask their leaders for outcomes, or recover those with silent leaders."""
        state = self.state
        for txid, transaction in list(round_.blockers.items()):
            # This node knows the blocker's outcome, but the voter that named it does not. With the outcome, that voter
            # can hold the transaction.
            if txid.clock <= state.clock.safe or state.outcome(txid) is not None:
                self._tell_blocked(round_, txid)
            elif self._has_silent_leader(txid):
                if txid not in self.rounds:
                    self.start(transaction)
            # A leader that is alive decides its own transaction; if that leader is this node, no message is needed.
            elif txid.leader != state.me:
                state.outbox.send(txid.leader, say.Ask(txid, state.clock.read()))

    def _tell_blocked(self, round_: RecoveryRound, blocker: Txid) -> None:
        """Send the outcome of an ended blocker to the voters at which it still blocks a round."""
        for node, answer in round_.answers.items():
            if node != self.state.me and blocker in answer.blockers:
                self.voter.tell_outcome(node, blocker)

    def _propose(self, round_: RecoveryRound, *, commit: bool) -> None:
        state = self.state
        assert round_.decision is None, "one ballot has one decision"
        round_.decision = commit
        message = say.Accept(round_.transaction.body, round_.ballot, commit, state.clock.read())
        # Only voters accept; learners get the outcome.
        state.outbox.send_voters(message)
        self.on_accept(state.me, message)

    def on_accepted(self, peer: str, message: say.Accepted) -> None:
        """Count a voter that has accepted our proposal; a majority makes it the decision."""
        round_ = self.rounds.get(message.txid)
        if round_ is None or round_.ballot != message.ballot or not self.state.roster.is_voter(peer):
            return
        round_.accepted.add(peer)  # J8: a decision that a majority has accepted at one ballot stands
        if round_.decision is not None and len(round_.accepted) >= self.state.roster.majority:
            self._decided(message.txid, round_)

    def _decided(self, txid: Txid, round_: RecoveryRound) -> None:
        state = self.state
        assert round_.decision is not None
        del self.rounds[txid]
        if state.outcome(txid) is not None:
            return
        if round_.decision:
            self.adoptable[txid] = round_
            self._adopt(txid, round_)
        else:
            self.counts["aborted"] += 1
            state.votes.end(txid, commit=False)
            # Learners get the outcome, too: they cannot learn of an abort from journals.
            state.outbox.send_all(say.Outcome(txid, False, "", 0, state.clock.read()))

    def _adopt(self, txid: Txid, round_: RecoveryRound) -> None:
        """Commit a decided transaction in our own timeline as soon as it can be applied."""
        state, transaction = self.state, round_.transaction
        if state.outcome(txid) is not None:
            del self.adoptable[txid]
        elif covers(state.timelines.applied, transaction.base) and txid not in state.blocked:
            del self.adoptable[txid]
            self.counts["adopted"] += 1  # J9: the commit gets a place in our timeline: no node writes into another's
            # The voters that accepted the decision are the quorum in its label.
            holders = {node: state.timelines.applied.get(node, 0) for node in sorted(round_.accepted)}
            entry = self.apply_queue.commit(transaction, holders, adopted_from=txid.leader)
            # With the body, even for members that have it in a vote: recoveries are too rare to save these bytes.
            state.outbox.send_all(say.Commit(entry.label, transaction.body, entry.hash, state.clock.read()))

    def on_refused(self, message: say.Refused) -> None:
        """Promise the higher ballot that a voter has promised: this node's next ballot will be above it."""
        round_ = self.rounds.get(message.txid)
        if round_ is not None and message.promised > round_.ballot:
            vote = self.state.votes.of(message.txid, round_.transaction)
            vote.promised = max(vote.promised, message.promised)
            self.state.votes.persist(vote)

    def ended(self, txid: Txid) -> None:
        """End the round of a transaction whose outcome is known now, and retry the rounds that it blocked."""
        self.rounds.pop(txid, None)  # J1: a known outcome ends the round, with any answers
        self.deferred.pop(txid, None)
        self.released(txid)

    def released(self, txid: Txid) -> None:
        """Retry the rounds that a transaction has blocked, because it is not pending here any more."""
        for other, round_ in list(self.rounds.items()):
            # Other voters may not know the blocker's outcome.
            if txid in round_.blockers and round_.decision is None:
                self._tell_blocked(round_, txid)
                # Random, because all recovering nodes have waited for this end, and would refuse each other's ballots.
                self.state.timers.set(
                    self.state.settings.heartbeat_ms * (0.5 + self.state.draw()), Timer.RECOVER_AGAIN, other
                )

    def again(self, txid: Txid) -> None:
        """Retry a blocked round."""
        round_ = self.rounds.get(txid)
        if round_ is not None and round_.decision is None:
            self._again(txid, round_)

    def resend(self, peer: str) -> None:
        """Send a peer again the messages of our rounds that it may have missed; ask it for outcomes that we missed."""
        state = self.state
        clock = state.clock.read()
        # The peer may have restarted and forgotten transactions that it had begun: asked, it gives them up.
        held = [txid for txid in state.votes.pending.transactions if txid.leader == peer]
        if held and state.roster.is_voter(state.me):
            self._send_ask(peer, held)
        for round_ in self.rounds.values():
            if round_.decision is None and peer not in round_.answers:
                state.outbox.send(peer, say.Recover(round_.transaction.body, round_.ballot, clock))
            elif round_.decision is not None and peer not in round_.accepted:
                state.outbox.send(peer, say.Accept(round_.transaction.body, round_.ballot, round_.decision, clock))
