"""When a leader falls silent: a survivor finishes its transaction (section 4 of the protocol).

One Paxos instance for each transaction. Ballot 0 is its leader's and can only commit; ballot 1 is its leader's and can
only roll back; from 2 on ballots belong to whoever recovers. A recovered commit is *adopted*: it gets a place in the
recoverer's own timeline; nobody ever writes into another's.
"""

from dataclasses import dataclass, field

from bedrockish.core.conflicts import test_conflict
from bedrockish.core.leading import Leading
from bedrockish.core.messages import Accept, Accepted, Ask, Commit, Outcome, Promise, Recover, Refused, Standing
from bedrockish.core.ordering import Ordering
from bedrockish.core.records import Vote
from bedrockish.core.state import State
from bedrockish.core.voting import Voting
from journal.errors import EntryMalformedError
from journal.transaction import Transaction, Txid, decode_transaction
from journal.vector import covers

FIRST_BALLOT = 2
PATIENCE_LASTS_MS = 30_000
PATIENCE_MAX = 32  # a node that is slower than ``suspicion_ms`` would never get anything done: so patience grows


@dataclass(slots=True)
class Round:
    """One attempt of ours to finish somebody's transaction.

    Attributes:
        answers: who has promised, and what they said; this is R of the protocol.
        decision: commit or abort, once proposed; None while asking.
        accepted: who has accepted the decision.
        blockers: transactions that must end first.
    """

    transaction: Transaction
    ballot: int
    since: float
    answers: dict[str, Promise] = field(default_factory=dict)
    decision: bool | None = None
    accepted: set[str] = field(default_factory=set)
    blockers: dict[Txid, Transaction] = field(default_factory=dict)
    tries: int = 1


class Recovery:
    """Finishes transactions whose leader does not, and answers others that do so."""

    def __init__(self, state: State, ordering: Ordering, voting: Voting, leading: Leading) -> None:
        self.state = state
        self.ordering = ordering
        self.voting = voting
        self.leading = leading
        self.rounds: dict[Txid, Round] = {}
        self.parked: dict[Txid, tuple[str, int]] = {}  # RECOVERs whose base is not covered yet: whom to answer
        self.adoptable: dict[Txid, Round] = {}  # decided commits that we cannot apply yet
        self.counts = {"started": 0, "adopted": 0, "aborted": 0}

    # -- suspicion -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Look for transactions that have been pending for too long, and for rounds that got stuck."""
        state, now = self.state, self.state.now.seconds
        for peer in state.peers.values():
            peer.patience = max(1.0, peer.patience * (1 - state.settings.heartbeat_ms / PATIENCE_LASTS_MS))
        if not state.is_voter(state.me):
            return
        for txid, transaction in list(state.pending.transactions.items()):
            age = now - state.pending.since[txid]
            leader = state.peers.get(txid.leader)
            suspicion = state.settings.suspicion_ms / 1000 * (leader.patience if leader is not None else 1)
            if age < suspicion / 2 or txid in self.rounds:
                continue
            if txid.leader == state.me:
                if age > 2 * suspicion and not self.leading.decides(txid):
                    self.start(transaction)
            elif leader is None or self._is_silent(txid.leader) or age > 5 * suspicion:
                if age > suspicion * (1 + 0.3 * self._rank()):
                    self.start(transaction)
            else:
                state.send(txid.leader, Ask(txid, state.clock.read(state.now.wall_ms)))
        for txid, round_ in list(self.rounds.items()):
            patience = state.settings.suspicion_ms / 1000 * min(2 ** (round_.tries - 1), PATIENCE_MAX)
            if now - round_.since > patience * (1 + state.draw()):
                self._again(txid, round_)

    def _is_silent(self, node: str) -> bool:
        peer = self.state.peers[node]
        return self.state.now.seconds - peer.heard > self.state.settings.suspicion_ms / 1000 * peer.patience

    def _rank(self) -> int:
        """Our place among the voters that seem alive: they start one after the other, so that one does the work."""
        alive = [node for node in self.state.voters if node == self.state.me or not self._is_silent(node)]
        return alive.index(self.state.me)

    def start(self, transaction: Transaction, tries: int = 1) -> None:
        """Begin a round for a transaction: at a ballot of our own above all that we have promised."""
        state, txid = self.state, transaction.txid
        if txid in state.outcomes or txid.clock <= state.safe:
            return
        self.counts["started"] += 1
        leader = state.peers.get(txid.leader)
        if leader is not None:
            leader.suspected = True
        promised = state.votes[txid].promised if txid in state.votes else 0
        voters = state.voters
        ballot = FIRST_BALLOT + voters.index(state.me)
        while ballot <= promised:
            ballot += len(voters)
        self.rounds[txid] = Round(transaction, ballot, state.now.seconds, tries=tries)
        self._ask(txid)

    def _ask(self, txid: Txid) -> None:
        round_, state = self.rounds[txid], self.state
        message = Recover(round_.transaction.body, round_.ballot, state.clock.read(state.now.wall_ms))
        state.send_voters(message)
        self.on_recover(state.me, message)

    def _again(self, txid: Txid, round_: Round) -> None:
        """Give a round up and, if the outcome is still unknown, begin another."""
        del self.rounds[txid]
        for blocker, transaction in round_.blockers.items():
            outcome = self.state.outcomes.get(blocker)
            if outcome is None and blocker not in self.rounds and self._leaderless(blocker):
                self.start(transaction)
        self.start(round_.transaction, round_.tries + 1)

    def _leaderless(self, txid: Txid) -> bool:
        return txid.leader != self.state.me and (txid.leader not in self.state.peers or self._is_silent(txid.leader))

    # -- answering a recoverer -------------------------------------------------------------------------------------

    def on_recover(self, peer: str, message: Recover) -> None:
        """Promise a ballot for a transaction, and try to hold it."""
        state = self.state
        try:
            transaction = decode_transaction(message.body)
        except EntryMalformedError:
            return
        txid = transaction.txid
        state.clock.adjust(txid.clock)
        if not state.is_voter(state.me) or not state.is_voter(peer) or self._tell(peer, txid):
            return
        if transaction.config < state.membership.version:
            state.end(txid, commit=False)
            self._tell(peer, txid)
            return
        vote = state.vote(txid, transaction)
        if message.ballot < vote.promised:
            clock = state.clock.read(state.now.wall_ms)
            self._say(peer, Refused(txid, vote.promised, clock))
            return
        vote.promised = message.ballot
        state.persist(vote)
        self.voting.parked.pop(txid, None)
        if txid.leader == state.me:
            self.leading.stop_counting(txid)
        if covers(state.applied, transaction.base):
            self._answer(peer, vote, transaction)
        else:
            self.parked[txid] = (peer, message.ballot)
            self.ordering.want(transaction.base)

    def settle(self) -> None:
        """Answer the RECOVERs whose base has become covered, and adopt what can be applied now."""
        state = self.state
        for txid, (peer, ballot) in list(self.parked.items()):
            vote = state.votes.get(txid)
            if vote is None or vote.transaction is None or vote.promised != ballot or txid in state.outcomes:
                del self.parked[txid]
            elif covers(state.applied, vote.transaction.base):
                del self.parked[txid]
                self._answer(peer, vote, vote.transaction)
        for txid, round_ in list(self.adoptable.items()):
            self._adopt(txid, round_)

    def _answer(self, peer: str, vote: Vote, transaction: Transaction) -> None:
        state, txid = self.state, transaction.txid
        for given_up in transaction.rollbacks:
            if given_up.leader == txid.leader:
                state.accept_rollback(given_up)
        standing, blockers = self._stand(vote, transaction)
        self._say(
            peer,
            Promise(
                txid,
                vote.promised,
                standing,
                vote.accepted,
                tuple(blocker.body for blocker in blockers),
                tuple(self._ended_against(transaction)),
                state.clock.read(state.now.wall_ms),
            ),
        )

    def _stand(self, vote: Vote, transaction: Transaction) -> tuple[Standing, list[Transaction]]:
        """Try to hold a transaction: tests 3 and 4, and cut."""
        state, txid = self.state, transaction.txid
        if vote.held:
            return Standing.HELD, []
        never = next(state.recent.conflicts(transaction.footprint, transaction.base, txid), None)
        if never is not None or state.cut >= txid.clock:
            return Standing.NEVER, []
        blockers = [
            state.pending.transactions[found.other] for found in state.pending.conflicts(transaction.footprint, txid)
        ]
        if blockers:
            return Standing.BLOCKED, blockers
        if vote.accepted is not None and not vote.accepted[1]:
            return Standing.BLOCKED, []  # its rollback was accepted here; that travels as ``accepted``
        state.hold(transaction)
        return Standing.HELD, []

    def _ended_against(self, transaction: Transaction) -> list[Txid]:
        """Return the conflicting transactions whose end is known, or whose abort was accepted, here."""
        state = self.state
        ended = [
            known.transaction.txid
            for known in state.recent.known.values()
            if known.transaction.txid.clock > state.safe and test_conflict(known.transaction, transaction) is not None
        ]
        for txid, vote in state.votes.items():
            aborted = state.outcomes.get(txid) is False or (vote.accepted is not None and not vote.accepted[1])
            if not aborted or txid == transaction.txid:
                continue
            if vote.transaction is None or test_conflict(vote.transaction, transaction) is not None:
                ended.append(txid)
        return ended

    def on_accept(self, peer: str, message: Accept) -> None:
        """Accept a decision, unless a higher ballot is promised. This does not end pending; only a decision does."""
        state = self.state
        try:
            transaction = decode_transaction(message.body)
        except EntryMalformedError:
            return
        txid = transaction.txid
        if not state.is_voter(state.me) or not state.is_voter(peer) or self._tell(peer, txid):
            return
        vote = state.vote(txid, transaction)
        clock = state.clock.read(state.now.wall_ms)
        if message.ballot < vote.promised:
            self._say(peer, Refused(txid, vote.promised, clock))
            return
        if txid.leader == state.me:
            self.leading.stop_counting(txid)
        vote.promised, vote.accepted = message.ballot, (message.ballot, message.commit)
        state.persist(vote)
        self._say(peer, Accepted(txid, message.ballot, clock))

    def _tell(self, peer: str, txid: Txid) -> bool:
        if peer == self.state.me:
            return txid in self.state.outcomes or txid.clock <= self.state.safe
        return self.voting.tell_outcome(peer, txid)

    def _say(self, peer: str, message: Promise | Refused | Accepted) -> None:
        if peer != self.state.me:
            self.state.send(peer, message)
        elif isinstance(message, Promise):
            self.on_promise(peer, message)
        elif isinstance(message, Accepted):
            self.on_accepted(peer, message)
        else:
            self.on_refused(message)

    # -- judging ---------------------------------------------------------------------------------------------------

    def on_promise(self, peer: str, message: Promise) -> None:
        """Count a promise, and judge anew."""
        round_ = self.rounds.get(message.txid)
        if round_ is None or round_.ballot != message.ballot or not self.state.is_voter(peer):
            return
        round_.answers[peer] = message
        for blocker in message.blockers:
            try:
                transaction = decode_transaction(blocker)
            except EntryMalformedError:
                continue
            round_.blockers[transaction.txid] = transaction
        if round_.decision is None and len(round_.answers) >= self.state.majority:
            self._judge(round_)

    def _judge(self, round_: Round) -> None:
        state, answers, txid = self.state, round_.answers, round_.transaction.txid
        accepted = max((answer.accepted for answer in answers.values() if answer.accepted is not None), default=None)
        held = [node for node, answer in answers.items() if answer.standing == Standing.HELD]
        if accepted is not None:
            self._propose(round_, commit=accepted[1])
        elif len(held) == len(answers):
            self._propose(round_, commit=True)
        elif (
            any(answer.standing == Standing.NEVER for answer in answers.values())
            or txid.leader in answers
            or len(held) + self._possible_elsewhere(round_) < state.quorum
        ):
            self._propose(round_, commit=False)
        else:
            self._unblock(round_)

    def _possible_elsewhere(self, round_: Round) -> int:
        """Return how many voters outside R may have approved: not those that lead a conflicting one in flight."""
        answers, leader = round_.answers, round_.transaction.txid.leader
        ended = {txid for answer in answers.values() for txid in answer.ended}
        excluded = {txid.leader for txid in round_.blockers if txid.leader != leader and txid not in ended}
        return sum(1 for node in self.state.voters if node not in answers and node not in excluded)

    def _unblock(self, round_: Round) -> None:
        """Y first: ask its leader, or recover it where its leader is silent; then there will be a new round."""
        state = self.state
        for txid, transaction in list(round_.blockers.items()):
            if txid in state.outcomes or txid.clock <= state.safe:
                for node, answer in round_.answers.items():
                    if node != state.me and transaction.body in answer.blockers:
                        self.voting.tell_outcome(node, txid)
            elif self._leaderless(txid):
                if txid not in self.rounds:
                    self.start(transaction)
            elif txid.leader != state.me:
                state.send(txid.leader, Ask(txid, state.clock.read(state.now.wall_ms)))

    def _propose(self, round_: Round, *, commit: bool) -> None:
        state = self.state
        round_.decision = commit
        message = Accept(round_.transaction.body, round_.ballot, commit, state.clock.read(state.now.wall_ms))
        state.send_voters(message)
        self.on_accept(state.me, message)

    def on_accepted(self, peer: str, message: Accepted) -> None:
        """Count who has accepted our decision; at a majority it is decided."""
        round_ = self.rounds.get(message.txid)
        if round_ is None or round_.ballot != message.ballot or not self.state.is_voter(peer):
            return
        round_.accepted.add(peer)
        if round_.decision is not None and len(round_.accepted) >= self.state.majority:
            self._decided(message.txid, round_)

    def _decided(self, txid: Txid, round_: Round) -> None:
        state = self.state
        del self.rounds[txid]
        if txid in state.outcomes:
            return
        if round_.decision:
            self.adoptable[txid] = round_
            self._adopt(txid, round_)
        else:
            self.counts["aborted"] += 1
            state.end(txid, commit=False)
            state.send_all(Outcome(txid, False, "", 0, state.clock.read(state.now.wall_ms)))

    def _adopt(self, txid: Txid, round_: Round) -> None:
        """Commit a decided transaction in our own timeline as soon as we can apply it."""
        state, transaction = self.state, round_.transaction
        if txid in state.outcomes:
            del self.adoptable[txid]
        elif covers(state.applied, transaction.base):
            del self.adoptable[txid]
            self.counts["adopted"] += 1
            holders = {node: state.applied.get(node, 0) for node in sorted(round_.accepted)}
            entry = self.ordering.lead(transaction, holders, adopted_from=txid.leader)
            state.send_all(Commit(entry.label, transaction.body, entry.hash, state.clock.read(state.now.wall_ms)))

    def on_refused(self, message: Refused) -> None:
        """A higher ballot is promised somewhere: leave it to that one for a while, then try above it."""
        round_ = self.rounds.get(message.txid)
        if round_ is not None and message.promised > round_.ballot:
            vote = self.state.vote(message.txid, round_.transaction)
            vote.promised = max(vote.promised, message.promised)
            self.state.persist(vote)

    def ended(self, txid: Txid) -> None:
        """An outcome became known: its round is over, and rounds that it blocked can be tried again."""
        self.rounds.pop(txid, None)
        self.parked.pop(txid, None)
        self.released(txid)

    def released(self, txid: Txid) -> None:
        """A transaction is in nobody's way here any more: rounds that it blocked can be tried again."""
        for other, round_ in list(self.rounds.items()):
            if txid in round_.blockers and round_.decision is None:
                for node, answer in round_.answers.items():
                    if node != self.state.me and any(round_.blockers[txid].body == body for body in answer.blockers):
                        self.voting.tell_outcome(node, txid)
                self.state.timer(self.state.settings.heartbeat_ms * (0.5 + self.state.draw()), "recover_again", other)

    def again(self, txid: Txid) -> None:
        """A blocked round may go through now."""
        round_ = self.rounds.get(txid)
        if round_ is not None and round_.decision is None:
            self._again(txid, round_)

    def resend(self, peer: str) -> None:
        """Say again to a peer what it may have missed."""
        state = self.state
        clock = state.clock.read(state.now.wall_ms)
        for round_ in self.rounds.values():
            if round_.decision is None and peer not in round_.answers:
                state.send(peer, Recover(round_.transaction.body, round_.ballot, clock))
            elif round_.decision is not None and peer not in round_.accepted:
                state.send(peer, Accept(round_.transaction.body, round_.ballot, round_.decision, clock))
