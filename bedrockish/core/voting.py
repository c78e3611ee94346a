"""Other leaders' transactions: approve or reject, and accept their rollbacks.

The numbered tests are those of section 3 of the protocol. A reject leaves no trace; an approval is durable before it
leaves, because the driver lets nothing leave before.
"""

from dataclasses import dataclass

from bedrockish.clock import pack
from bedrockish.core.conflicts import Conflict, prepare_commit
from bedrockish.core.effects import SendOutcome
from bedrockish.core.messages import Accepted, Approve, Ask, Begin, Outcome, Reason, Refused, Reject, Rollback
from bedrockish.core.ordering import Ordering
from bedrockish.core.state import State
from journal.errors import EntryMalformedError
from journal.footprint import conflict
from journal.transaction import MEMBERS, Transaction, Txid, decode_transaction
from journal.vector import covers

NO_KEY = b""
PARKED_MAX = 10_000


@dataclass(slots=True)
class Barrier:
    """A membership change that was rejected: others step back until it is through, for a bounded time."""

    transaction: Transaction
    until: float


class Voting:
    """A voter's answers to BEGIN and ROLLBACK."""

    def __init__(self, state: State, ordering: Ordering) -> None:
        self.state = state
        self.ordering = ordering
        self.parked: dict[Txid, Transaction] = {}  # BEGINs whose base is not covered yet
        self.barrier: Barrier | None = None
        self.approved: list[Transaction] = []  # in this step

    def on_begin(self, peer: str, message: Begin) -> None:
        """Answer a BEGIN, now or when its base is covered."""
        try:
            transaction = decode_transaction(message.body)
        except EntryMalformedError:
            return  # the link's log has it; a leader that cannot encode gets no approval
        if transaction.txid.leader == peer:
            self._consider(transaction)

    def settle(self) -> None:
        """Take up the BEGINs whose base has become covered."""
        for txid, transaction in list(self.parked.items()):
            ended = txid in self.state.outcomes or txid.clock <= self.state.safe
            if ended or covers(self.state.applied, transaction.base):
                del self.parked[txid]
                self._consider(transaction)

    def _consider(self, transaction: Transaction) -> None:
        state, txid = self.state, transaction.txid
        if self.tell_outcome(txid.leader, txid):
            return
        begun_here = transaction.config <= state.membership.version  # else it waits until we have that membership, too
        if begun_here and not (state.is_voter(state.me) and state.is_voter(txid.leader)):
            self._reject(txid, Reason.MEMBERS)
            return
        vote = state.votes.get(txid)
        if vote is not None and vote.promised > 0:  # test 1
            self._reject(txid, Reason.PROMISED)
            return
        if vote is not None and vote.held:
            self._approve(txid)  # the answer was lost
            return
        reason = self._untimely(transaction)
        state.lag.late(state.now.seconds, txid.clock)
        if reason is not None:
            self._reject(txid, reason)
            return
        state.clock.adjust(txid.clock)
        for given_up in transaction.rollbacks:  # test 2
            if given_up.leader == txid.leader:
                state.accept_rollback(given_up)
        if transaction.config < state.membership.version:
            state.end(txid, commit=False)  # no older transaction outside the change's base can commit any more
            self.tell_outcome(txid.leader, txid)
            return
        if not covers(state.applied, transaction.base):
            if len(self.parked) < PARKED_MAX:
                self.parked[txid] = transaction
                self.ordering.want(transaction.base)
                state.timer(state.settings.fetch_after_ms, "fetch")
            return
        found = prepare_commit(transaction.footprint, transaction.base, state.recent, state.pending, txid)  # tests 3, 4
        found = found or self._vetoed(transaction)  # test 5
        if found is not None:
            self._hold_others_back(transaction, found)
            self._reject(txid, Reason.FOR, found)
            return
        if self._held_back(transaction):
            self._reject(txid, Reason.BARRIER)
            return
        state.hold(transaction)  # 6
        self.approved.append(transaction)
        self._approve(txid)

    def _untimely(self, transaction: Transaction) -> Reason | None:
        state, clock = self.state, transaction.txid.clock
        if clock <= state.closed or clock <= state.floor:
            return Reason.TOO_LATE
        ahead, leader = state.ahead_ms(clock), state.peers.get(transaction.txid.leader)
        if leader is not None:
            leader.ahead_ms = ahead
        if ahead:
            return Reason.AHEAD
        if clock - transaction.safe > pack(state.settings.conflict_window_ms):
            return Reason.TOO_OLD
        if state.counted and not covers(transaction.base, state.recent.floor):
            return Reason.TOO_OLD  # a clock that only counts says nothing of age, so what was dropped is compared
        return None

    def _vetoed(self, transaction: Transaction) -> Conflict | None:
        for txid, (ended_at, own) in self.state.own_ends.items():
            if ended_at >= transaction.txid.clock:
                key = conflict(own.footprint, transaction.footprint)
                if key is not None:
                    return Conflict(txid, key)
        return None

    def _approve(self, txid: Txid) -> None:
        state = self.state
        own = state.applied.get(state.me, 0)
        state.send(txid.leader, Approve(txid, own, state.clock.read(state.now.wall_ms)))

    def _reject(self, txid: Txid, reason: Reason, found: Conflict | None = None) -> None:
        state = self.state
        other, key = found if found is not None else (None, NO_KEY)
        state.send(txid.leader, Reject(txid, reason, other, key, state.clock.read(state.now.wall_ms)))

    # -- barriers --------------------------------------------------------------------------------------------------

    def _hold_others_back(self, transaction: Transaction, found: Conflict) -> None:
        """Let a rejected membership change get through, or a busy cluster would starve it.

        A rejected schema change needs no such thing: its next attempt leaves more time until it comes into force.
        """
        if transaction.kind != MEMBERS or found.other not in self.state.pending:
            return
        now = self.state.now.seconds
        if self.barrier is None or self.barrier.until < now:
            self.barrier = Barrier(transaction, now + self.state.settings.barrier_ms / 1000)

    def _held_back(self, transaction: Transaction) -> bool:
        barrier = self.barrier
        if barrier is None or transaction.command == barrier.transaction.command:
            return False
        if self.state.now.seconds > barrier.until:
            self.barrier = None
            return False
        return conflict(barrier.transaction.footprint, transaction.footprint) is not None

    def held_back(self, transaction: Transaction) -> bool:
        """Whether one of our own transactions should step back for a membership change."""
        if transaction.kind == MEMBERS:
            return False
        return self._held_back(transaction)

    def lift_barrier(self, transaction: Transaction) -> None:
        """The change is through."""
        if self.barrier is not None and self.barrier.transaction.command == transaction.command:
            self.barrier = None

    # -- rollbacks and questions -----------------------------------------------------------------------------------

    def on_rollback(self, peer: str, message: Rollback) -> None:
        """Accept a leader's rollback, unless a recovery is ahead of it."""
        state, txid = self.state, message.txid
        self.parked.pop(txid, None)
        if txid.leader != peer or self.tell_outcome(peer, txid):
            return
        clock = state.clock.read(state.now.wall_ms)
        if state.accept_rollback(txid):
            state.send(peer, Accepted(txid, 1, clock))
        else:
            state.send(peer, Refused(txid, state.votes[txid].promised, clock))

    def on_ask(self, peer: str, message: Ask) -> None:
        """Say what became of a transaction, if it is known here."""
        self.tell_outcome(peer, message.txid)

    def tell_outcome(self, peer: str, txid: Txid) -> bool:
        """Tell a peer the outcome, if it is known; whether it was."""
        state = self.state
        outcome = state.outcomes.get(txid)
        if outcome is None:
            if txid.clock <= state.safe:
                state.emit(SendOutcome(peer, txid))
                return True
            return False
        clock = state.clock.read(state.now.wall_ms)
        if not outcome:
            state.send(peer, Outcome(txid, False, "", 0, clock))
            return True
        known = state.recent.known.get(txid)
        if known is None:
            state.emit(SendOutcome(peer, txid))
        else:
            leader, tick = known.places[0]
            state.send(peer, Outcome(txid, True, leader, tick, clock))
        return True
