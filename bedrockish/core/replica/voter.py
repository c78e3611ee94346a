"""The votes on other leaders' transactions: a voter approves or rejects a BEGIN, and accepts rollbacks.

The clauses V1 to V16 are those of docs/protocol.md, "The clauses". A reject stores nothing. An approval is sent only
when it is durable, because the driver delays all output of a step until then.
"""

from bedrockish.core.protocol.effects import SendOutcome
from bedrockish.core.protocol.messages import Accepted, Approve, Ask, Begin, Outcome, Reason, Refused, Reject, Rollback
from bedrockish.core.protocol.records import FORGOTTEN
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.certifier import prepare_commit
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.state import State
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import covers

NO_KEY = b""  # the key of a reject that names no other transaction
DEFERRED_MAX = 10_000  # most BEGINs that wait for their base; leaders repeat a dropped one after ``suspicion_ms``
ASKED_MAX = 1_000  # most transactions of one ASK that are answered: each may cost a lookup in the journal
COMPARING_S = 5.0  # how long closed time waits for the comparison of a transaction's rows with ours


class Voter:
    """A voter's answers to BEGIN and ROLLBACK."""

    def __init__(self, state: State, apply_queue: ApplyQueue) -> None:
        self.state = state
        self.apply_queue = apply_queue
        self.deferred: dict[Txid, Transaction] = {}  # BEGINs whose base is not covered yet
        self.compared: dict[Txid, Transaction] = {}  # BEGINs whose rows are being compared
        self.approved: list[Transaction] = []  # the transactions approved since the node last read this
        self.rivals: list[str] = []  # the leaders whose BEGINs conflicted with ours since the node last read this

    def on_begin(self, peer: str, message: Begin) -> None:
        """Answer a BEGIN, now or when its base is covered.

        Raises:
            EntryMalformedError: the BEGIN's body cannot be decoded, so its leader gets no approval.
        """
        transaction = self.state.read_body(message.body)
        # Drop a BEGIN in another leader's name: that leader would not count the vote, and the rollbacks in the BEGIN
        # (V5) could be forged.
        if transaction.txid.leader == peer:
            self._judge(transaction)

    def judge_deferred(self) -> None:
        """Judge the deferred BEGINs whose base is applied now."""
        for txid, transaction in list(self.deferred.items()):
            # A transaction that has ended need not wait for its base, which may never arrive: its leader gets the
            # outcome (V1).
            ended = txid.clock <= self.state.clock.safe or self.state.outcome(txid) is not None
            if ended or covers(self.state.timelines.applied, transaction.base):
                del self.deferred[txid]
                self._judge(transaction)

    def on_compared(self, txid: Txid) -> None:
        """Judge a BEGIN whose rows were compared."""
        transaction = self.compared.pop(txid, None)
        if transaction is not None:
            self._judge(transaction)

    def _judge(self, transaction: Transaction) -> None:
        state, txid = self.state, transaction.txid
        # Closed time no longer waits for this transaction, unless ``_check_rows`` lets it wait again.
        until = state.votes.comparing.pop(txid, None)
        if self.tell_outcome(txid.leader, txid):  # V1: the transaction has ended, or is below safe time
            return
        # V2: its leader and this node must be voters. A transaction that began under a newer membership waits (V7).
        is_known = transaction.config <= state.roster.membership.version
        if is_known and not (state.roster.is_voter(state.me) and state.roster.is_voter(txid.leader)):
            self._reject(txid, Reason.MEMBERS)
            return
        vote = state.votes.by_txid.get(txid)
        if vote is not None and vote.promised > 0:  # V3: a recovery, or its leader's rollback, has our promise
            self._reject(txid, Reason.PROMISED)
            return
        if vote is not None and vote.held:
            self._approve(txid)  # V4: the transaction is approved already, and the APPROVE was lost
            return
        reason = self._untimely(transaction)
        # Measure the lateness of a refused BEGIN, too: if only punctual BEGINs counted, the lag would never grow.
        state.clock.lag.late(state.clock.now.seconds, txid.clock)
        if reason is not None:
            self._reject(txid, reason)
            return
        # Move our clock up only after V14 has accepted the BEGIN's clock: it cannot go back.
        state.clock.adjust(txid.clock)
        for given_up in transaction.rollbacks:  # V5: its leader gave these up before this BEGIN
            if given_up.leader == txid.leader:
                state.votes.accept_rollback(given_up)
        if transaction.config < state.roster.membership.version:
            # V6: a transaction of an older membership, outside the base of the membership change, can never commit.
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
            # Possible although the transaction's safe time is within the conflict window (V15): a commit with an old
            # clock that arrives late is dropped here soon, and the transaction may have run before its arrival.
            self._reject(txid, Reason.TOO_OLD)
            return
        found = state.happened(transaction.commands, txid)  # V8: none of its commands has happened, in its base or not
        if found is not None and found.other == FORGOTTEN:
            state.outbox.send(txid.leader, Reject(txid, Reason.FORGOTTEN, None, found.key, state.clock.read()))
            return
        # V9: it conflicts with no commit outside its base, and with nothing pending.
        found = found or prepare_commit(
            transaction.access_set, transaction.base, state.commit_window, state.votes.pending, txid
        )
        # V10: it conflicts with none of our own transactions whose rollback this node learned at or after the BEGIN's
        # clock: other voters may still hold those.
        found = found or state.votes.own_ends.vetoes(transaction)
        if found is not None:
            state.contests.note_key(found.key, state.clock.now.seconds)
            self._reject(txid, Reason.FOR, found)
            return
        if not self._check_rows(transaction, until):  # V11: its before-images are the rows here
            return
        state.votes.hold(transaction)  # V12: durable before the approval leaves
        # Our own requests that wait for their turn on these keys then wait for this transaction
        # (``Node._pass_on_progress``).
        self.approved.append(transaction)
        self._approve(txid)

    def _check_rows(self, transaction: Transaction, until: float | None) -> bool:
        """Compare the before-images of a transaction with the rows here; reject it if they differ.

        Return True if they are equal; False if the transaction is rejected, or waits for the end of the comparison.
        Different rows mean that the tables of the leader or of this node are damaged. With our approval such a
        transaction could be committed, although it does not fit the tables of the undamaged nodes.

        While the rows are being compared, closed time waits, up to ``until`` in seconds: the BEGIN came in time.
        """
        txid, why = transaction.txid, self.state.why_rows_differ(transaction)
        if why is None:
            # Not compared yet. Rows that this step applies are in the tables only after the step: a timer then asks
            # again. A comparison in another thread ends with the event ``Compared``.
            waiting = self.deferred if self.state.outbox.is_applying else self.compared
            waiting[txid] = transaction
            self.state.votes.comparing[txid] = until or self.state.clock.now.seconds + COMPARING_S
        elif why:
            # This node's own tables may be the damaged ones: both nodes then compare theirs with other nodes' tables.
            self._reject(txid, Reason.DIFFERS)
        return why == ""

    def _untimely(self, transaction: Transaction) -> Reason | None:
        state, clock = self.state, transaction.txid.clock
        # V13: this node has announced, or may have announced before a restart, that it approves nothing at such a
        # clock.
        if clock <= state.clock.closed or clock <= state.clock.floor:
            return Reason.TOO_LATE
        ahead, leader = state.clock.ahead_ms(clock), state.roster.peers.get(transaction.txid.leader)
        if leader is not None:
            leader.ahead_ms = ahead  # for ``status``, which names the machine whose clock is wrong
        if ahead:  # V14: following this clock would move the clocks of all nodes ahead, for good
            return Reason.AHEAD
        # V15: commits that its snapshot may lack must still be in the conflict window, which V9 searches.
        if clock > moved(transaction.safe, state.settings.conflict_window_ms):
            return Reason.TOO_OLD
        if state.clock.has_only_counted and not covers(transaction.base, state.commit_window.floor):
            return Reason.TOO_OLD  # V15 cannot measure an age by a clock that only counts, so it tests the floor
        return None

    def _approve(self, txid: Txid) -> None:
        state = self.state
        # Our tick, for the quorum vector, which audits read; no decision depends on it.
        own = state.timelines.applied.get(state.me, 0)
        state.outbox.send(txid.leader, Approve(txid, own, state.clock.read()))

    def _reject(self, txid: Txid, reason: Reason, found: Conflict | None = None) -> None:
        state = self.state
        other, key = found if found is not None else (None, NO_KEY)
        if other is not None and other.leader == state.me:
            self.rivals.append(txid.leader)
        state.outbox.send(txid.leader, Reject(txid, reason, other, key, state.clock.read()))

    # -- rollbacks and questions -----------------------------------------------------------------------------------

    def on_rollback(self, peer: str, message: Rollback) -> None:
        """Accept a leader's rollback, unless this node has promised a higher ballot or is not a voter."""
        state, txid = self.state, message.txid
        if txid.leader != peer or self.tell_outcome(peer, txid) or not state.roster.is_voter(state.me):
            return  # V16: ballot 1 belongs to the transaction's leader alone, and only a voter's acceptance counts
        clock = state.clock.read()
        if state.votes.accept_rollback(txid):
            state.outbox.send(peer, Accepted(txid, 1, clock))
        else:
            state.outbox.send(peer, Refused(txid, state.votes.by_txid[txid].promised, clock))

    def on_ask(self, peer: str, message: Ask) -> None:
        """Tell a peer the outcomes of the transactions that it asks about, as far as this node knows them."""
        for txid in (message.txid, *message.more[:ASKED_MAX]):
            # Do not answer about our own commit: its COMMIT is under way on this link, and each GOSSIP has our tick.
            if txid.leader != self.state.me or self.state.outcome(txid) is not True:
                self.tell_outcome(peer, txid)

    def tell_outcome(self, peer: str, txid: Txid) -> bool:
        """Tell a peer the outcome of a transaction; return whether this node knows it."""
        state = self.state
        outcome = state.outcome(txid)
        if outcome is None:
            # Votes and outcomes up to safe time are dropped, so the journal decides: a transaction that is not in it
            # was rolled back.
            if txid.clock <= state.clock.safe:
                state.outbox.emit(SendOutcome(peer, txid))
                return True
            return False
        clock = state.clock.read()
        if not outcome:
            state.outbox.send(peer, Outcome(txid, False, "", 0, clock))
            return True
        # The driver would report a commit that the journal lacks as rolled back. A taken commit that waits for its base
        # is not in the journal yet; a commit that the conflict window has packed or dropped is.
        known = state.commit_window.known.get(txid)
        place = self.apply_queue.place_of(txid) if known is None else known.places[0]
        if place is None:
            state.outbox.emit(SendOutcome(peer, txid))
        else:
            state.outbox.send(peer, Outcome(txid, True, *place, clock))
        return True
