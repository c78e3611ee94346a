"""Other leaders' transactions: approve or reject, and accept their rollbacks.

The clauses V1 to V17 are those of docs/protocol.md, "The clauses". A reject leaves no trace; an approval is durable
before it leaves, because the driver lets nothing leave before.
"""

from dataclasses import dataclass

from bedrockish.core.protocol.effects import SendOutcome
from bedrockish.core.protocol.messages import Accepted, Approve, Ask, Begin, Outcome, Reason, Refused, Reject, Rollback
from bedrockish.core.protocol.records import FORGOTTEN
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.certifier import prepare_commit
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.state import State
from bedrockish_journal.model.access_set import conflict
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.transaction import MEMBERS, Transaction, Txid
from bedrockish_journal.model.vector import covers

NO_KEY = b""  # of a reject that is for no other transaction
DEFERRED_MAX = 10_000  # BEGINs; one that is not kept is said again by its leader after ``suspicion_ms``
ASKED_MAX = 1_000  # transactions of one ASK that are answered: each may cost a look into the journal
COMPARING_S = 5.0  # how long closed time waits for the comparison of a transaction's rows with ours


@dataclass(slots=True)
class Barrier:
    """A membership change that was rejected: others step back until it is through, or for ``until`` in seconds."""

    transaction: Transaction
    until: float


class Voting:
    """A voter's answers to BEGIN and ROLLBACK."""

    def __init__(self, state: State, apply_queue: ApplyQueue) -> None:
        self.state = state
        self.apply_queue = apply_queue
        self.deferred: dict[Txid, Transaction] = {}  # BEGINs whose base is not covered yet
        self.compared: dict[Txid, Transaction] = {}  # BEGINs whose rows are being compared
        self.barrier: Barrier | None = None
        self.approved: list[Transaction] = []  # since the node last looked

    def on_begin(self, peer: str, message: Begin) -> None:
        """Answer a BEGIN, now or when its base is covered.

        Raises:
            EntryMalformedError: its body cannot be decoded; a leader that cannot encode gets no approval.
        """
        transaction = self.state.read_body(message.body)
        # In another leader's name it would be held though no leader counts the vote, and its rollbacks (V5) be forged.
        if transaction.txid.leader == peer:
            self._consider(transaction)

    def settle(self) -> None:
        """Take up the BEGINs whose base has become covered."""
        for txid, transaction in list(self.deferred.items()):
            # Also one that is over: its leader is told (V1), for its base may never come here.
            ended = txid.clock <= self.state.clock.safe or self.state.outcome(txid) is not None
            if ended or covers(self.state.timelines.applied, transaction.base):
                del self.deferred[txid]
                self._consider(transaction)

    def on_compared(self, txid: Txid) -> None:
        """Take up a BEGIN whose rows were compared."""
        transaction = self.compared.pop(txid, None)
        if transaction is not None:
            self._consider(transaction)

    def _consider(self, transaction: Transaction) -> None:
        state, txid = self.state, transaction.txid
        # Closed time need not wait for it any more, whatever becomes of it below.
        until = state.votes.comparing.pop(txid, None)
        if self.tell_outcome(txid.leader, txid):  # V1: it is over, or below safe time
            return
        # V2: both are voters of the membership that it was begun under. If that is newer than ours, it waits (V7).
        begun_here = transaction.config <= state.roster.membership.version
        if begun_here and not (state.roster.is_voter(state.me) and state.roster.is_voter(txid.leader)):
            self._reject(txid, Reason.MEMBERS)
            return
        vote = state.votes.by_txid.get(txid)
        if vote is not None and vote.promised > 0:  # V3: a recovery, or its leader's rollback, has our promise
            self._reject(txid, Reason.PROMISED)
            return
        if vote is not None and vote.held:
            self._approve(txid)  # V4: it is approved already, and the answer was lost
            return
        reason = self._untimely(transaction)
        # Also of one that is refused: had only those counted that were in time, the lag would never grow.
        state.clock.lag.late(state.clock.now.seconds, txid.clock)
        if reason is not None:
            self._reject(txid, reason)
            return
        # Not before V15 has looked at it. From here on our own transactions have later clocks than this one.
        state.clock.adjust(txid.clock)
        for given_up in transaction.rollbacks:  # V5: its leader gave these up before it began this
            if given_up.leader == txid.leader:
                state.votes.accept_rollback(given_up)
        if transaction.config < state.roster.membership.version:
            # V6: no older transaction outside the change's base can commit any more.
            state.votes.end(txid, commit=False)
            self.tell_outcome(txid.leader, txid)
            return
        if not covers(state.timelines.applied, transaction.base):  # V7: the commits of its base are needed to test it
            if len(self.deferred) < DEFERRED_MAX:
                self.deferred[txid] = transaction
                self.apply_queue.want(transaction.base)
                state.timers.set(state.settings.fetch_after_ms, Timer.FETCH)
            return
        if not covers(transaction.base, state.commit_window.floor):
            # The leader's safe time was young enough (V16); but a commit that came late, with a clock of long ago, is
            # dropped soon after it has come, and transactions executed before that have not seen it.
            self._reject(txid, Reason.TOO_OLD)
            return
        found = state.happened(transaction.commands, txid)  # V8: none of its commands has happened, base or not
        if found is not None and found.other == FORGOTTEN:
            state.outbox.send(txid.leader, Reject(txid, Reason.FORGOTTEN, None, found.key, state.clock.read()))
            return
        # V9: it conflicts with no commit outside its base, and with nothing pending.
        found = found or prepare_commit(
            transaction.access_set, transaction.base, state.commit_window, state.votes.pending, txid
        )
        # V10: nor with one that this node rolled back itself later than its clock, which others may still hold.
        found = found or state.votes.own_ends.vetoes(transaction)
        if found is not None:
            state.contests.meet(found.key, state.clock.now.seconds)
            self._raise_barrier(transaction, found)
            self._reject(txid, Reason.FOR, found)
            return
        if self.barrier is not None and self._is_behind_barrier(transaction):  # V11: a rejected one goes first
            self._reject(txid, Reason.BARRIER)
            return
        if not self._is_made_of_our_rows(transaction, until):  # V12: nor made of other rows
            return
        state.votes.hold(transaction)  # V13: durable before the approval leaves
        # Requests of our own that wait for their turn on its keys wait for its end from now on (``Node._settle``).
        self.approved.append(transaction)
        self._approve(txid)

    def _is_made_of_our_rows(self, transaction: Transaction, until: float | None) -> bool:
        """Return whether the leader made it of the rows that we have; else reject it: one of us has damaged tables.

        Return False, too, while the rows are compared: it came in time, so closed time waits, ``until`` some seconds.

        With our approval it could be committed, and would not fit at the nodes that have the right rows.
        """
        txid, why = transaction.txid, self.state.why_rows_differ(transaction)
        if why is None:
            # Rows that this step applies are in the tables after it, and a timer asks again; else ``Compared`` comes.
            waiting = self.deferred if self.state.outbox.is_applying else self.compared
            waiting[txid] = transaction
            self.state.votes.comparing[txid] = until or self.state.clock.now.seconds + COMPARING_S
        elif why:
            # It may be our tables that are damaged. The leader notes it too, and both compare themselves with the
            # others.
            self._reject(txid, Reason.DIFFERS)
        return why == ""

    def _untimely(self, transaction: Transaction) -> Reason | None:
        state, clock = self.state, transaction.txid.clock
        # V14: a clock that is closed here, or may have been before a restart, was reported as past.
        if clock <= state.clock.closed or clock <= state.clock.floor:
            return Reason.TOO_LATE
        ahead, leader = state.clock.ahead_ms(clock), state.roster.peers.get(transaction.txid.leader)
        if leader is not None:
            # For people: ``status`` names the machine whose clock is wrong.
            leader.ahead_ms = ahead
        if ahead:  # V15: following it would move all clocks there, for good
            return Reason.AHEAD
        # V16: commits that its snapshot may have missed must still be in the window that V9 compares.
        if clock > moved(transaction.safe, state.settings.conflict_window_ms):
            return Reason.TOO_OLD
        if state.clock.counted and not covers(transaction.base, state.commit_window.floor):
            return Reason.TOO_OLD  # a clock that only counts tells no age: look at the floor instead
        return None

    def _approve(self, txid: Txid) -> None:
        state = self.state
        # Our tick, as the gist's quorum vector has it: evidence for audits. Nothing is decided by it.
        own = state.timelines.applied.get(state.me, 0)
        state.outbox.send(txid.leader, Approve(txid, own, state.clock.read()))

    def _reject(self, txid: Txid, reason: Reason, found: Conflict | None = None) -> None:
        state = self.state
        other, key = found if found is not None else (None, NO_KEY)
        state.outbox.send(txid.leader, Reject(txid, reason, other, key, state.clock.read()))

    # -- barriers --------------------------------------------------------------------------------------------------

    def _raise_barrier(self, transaction: Transaction, found: Conflict) -> None:
        """Let a rejected membership change get through, or a busy cluster would starve it.

        A rejected schema change needs no such thing: its next attempt leaves more time until it comes into force.
        """
        # A committed rival does not block its next attempt, whose base will have it.
        if transaction.kind != MEMBERS or found.other not in self.state.votes.pending:
            return
        now = self.state.clock.now.seconds
        # Not renewed while it lasts: a change that can never succeed must not stop all writes for good.
        if self.barrier is None or self.barrier.until < now:
            self.barrier = Barrier(transaction, now + self.state.settings.barrier_ms / 1000)

    def _is_behind_barrier(self, transaction: Transaction) -> bool:
        barrier = self.barrier
        # By command: the change comes again as another transaction.
        if barrier is None or transaction.command == barrier.transaction.command:
            return False
        if self.state.clock.now.seconds > barrier.until:
            self.barrier = None
            return False
        return conflict(barrier.transaction.access_set, transaction.access_set) is not None

    def steps_back(self, transaction: Transaction) -> bool:
        """Return whether one of our own transactions should step back for a membership change."""
        if transaction.kind == MEMBERS:
            return False
        return self._is_behind_barrier(transaction)

    def lift_barrier(self, command: str) -> None:
        """Lift the barrier of a membership change that is committed."""
        if self.barrier is not None and self.barrier.transaction.command == command:
            self.barrier = None

    # -- rollbacks and questions -----------------------------------------------------------------------------------

    def on_rollback(self, peer: str, message: Rollback) -> None:
        """Accept a leader's rollback, unless a recovery is ahead of it, or this node's word does not count."""
        state, txid = self.state, message.txid
        if txid.leader != peer or self.tell_outcome(peer, txid) or not state.roster.is_voter(state.me):
            return  # V17: ballot 1 is its leader's alone, and only a voter's acceptance counts
        clock = state.clock.read()
        if state.votes.accept_rollback(txid):
            state.outbox.send(peer, Accepted(txid, 1, clock))
        else:
            state.outbox.send(peer, Refused(txid, state.votes.by_txid[txid].promised, clock))

    def on_ask(self, peer: str, message: Ask) -> None:
        """Tell the outcomes that are known here of the transactions that a peer asks about."""
        for txid in (message.txid, *message.more[:ASKED_MAX]):
            # The COMMIT of one of ours is on its way on this link, and each GOSSIP tells our tick.
            if txid.leader != self.state.me or self.state.outcome(txid) is not True:
                self.tell_outcome(peer, txid)

    def tell_outcome(self, peer: str, txid: Txid) -> bool:
        """Tell a peer the outcome, if it is known; return whether it was."""
        state = self.state
        outcome = state.outcome(txid)
        if outcome is None:
            # Votes and outcomes are dropped up to there, and the journal alone tells: in it, or rolled back.
            if txid.clock <= state.clock.safe:
                state.outbox.emit(SendOutcome(peer, txid))
                return True
            return False
        clock = state.clock.read()
        if not outcome:
            state.outbox.send(peer, Outcome(txid, False, "", 0, clock))
            return True
        # The window has packed or dropped it. A commit that waits is not in the journal, which would say rolled back.
        known = state.commit_window.known.get(txid)
        place = self.apply_queue.place_of(txid) if known is None else known.places[0]
        if place is None:
            state.outbox.emit(SendOutcome(peer, txid))
        else:
            state.outbox.send(peer, Outcome(txid, True, *place, clock))
        return True
