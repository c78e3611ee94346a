"""This node's promises about transactions of any leader, and the outcomes of these transactions."""

from collections.abc import Collection

from bedrockish.core.protocol.effects import Forget, Persist
from bedrockish.core.protocol.records import ENDED, Vote
from bedrockish.core.state.access_index import AccessIndex
from bedrockish.core.state.certifier import EVERYTHING
from bedrockish.core.state.clock import Clock
from bedrockish.core.state.outbox import Outbox
from bedrockish.core.state.pending import OwnEnds, Pending
from bedrockish.core.state.pieces import Pieces
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import Transaction, Txid


class Votes:
    """Votes, pending transactions, and outcomes.

    Invariants:
        A txid in ``outcomes`` is not pending, and its outcome never changes.
        Each pending transaction has a vote that holds it.
    """

    def __init__(self, me: str, clock: Clock, pieces: Pieces, outbox: Outbox) -> None:
        self.me, self.clock, self.pieces, self.outbox = me, clock, pieces, outbox
        self.by_txid: dict[Txid, Vote] = {}  # every vote on record
        # The transactions that this node approved or holds, and whose outcome it does not know.
        self.pending = Pending()
        # For each ended transaction, whether it was committed. Left out are transactions up to safe time, and
        # transactions that are applied and settled: their outcomes are looked up in the journal.
        self.outcomes: dict[Txid, bool] = {}
        self.done: set[Txid] = set()  # the transactions that are applied at one of their places, and not settled
        self.own_ends = OwnEnds()  # our own transactions that were rolled back
        # The transactions whose rollback was accepted, or decided, here.
        self.aborting: AccessIndex[Txid] = AccessIndex()
        # The transactions that came in time and whose rows are being compared, each with the time, in seconds, until
        # which closed time waits for it.
        self.comparing: dict[Txid, float] = {}
        self.late = False  # whether the next ``forget`` has outcomes to drop even if no time has advanced
        self.ended: list[Txid] = []  # the transactions whose outcome became known in this step
        # The transactions that ceased to be pending in this step, because their rollback was accepted.
        self.released: list[Txid] = []

    def take_ended(self) -> list[Txid]:
        """Return the transactions whose outcome became known since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def take_released(self) -> list[Txid]:
        """Return the transactions that ceased to be pending since the last call, by an accepted rollback."""
        released, self.released = self.released, []
        return released

    # -- votes -----------------------------------------------------------------------------------------------------

    def of(self, txid: Txid, transaction: Transaction | None = None) -> Vote:
        """Return the vote on a transaction; create it if it is missing."""
        vote = self.by_txid.get(txid)
        if vote is None:
            vote = self.by_txid[txid] = Vote(txid, transaction)
        # The rollback arrived before the BEGIN: only now are the transaction's keys known for conflict tests.
        elif vote.transaction is None:
            vote.transaction = transaction
        return vote

    def restore(self, vote: Vote, *, is_applied: bool = False) -> None:
        """Restore a vote from the file."""
        # The transaction is in the journal, or can never be committed: the vote is not needed any more.
        if is_applied or self.outcomes.get(vote.txid) or vote.txid.clock <= self.clock.safe:
            self.outbox.emit(Forget(vote.txid))
            return
        self.by_txid[vote.txid] = vote
        self._note_abort(vote)
        # The rollback is durable, so this node reports the same outcome as before the restart.
        if vote.accepted is not None and vote.accepted == (ENDED, False):
            self.outcomes[vote.txid] = False
        # An approved transaction is pending before any message arrives, because its leader may have counted the
        # approval.
        elif vote.held and vote.transaction is not None:
            self.pending.add(vote.transaction, self.clock.now.seconds)

    def persist(self, vote: Vote) -> None:
        """Make a vote durable; called after every change of it."""
        transaction, parts = vote.transaction, None
        if transaction is not None and len(transaction.body) > self.pieces.settings.inline_bytes:
            parts = self.pieces.refer(transaction)
        self.outbox.emit(Persist(vote, parts))
        self._note_abort(vote)

    def _note_abort(self, vote: Vote) -> None:
        # Renew the record in ``aborting``: the keys may be known only now, or a higher ballot has another decision.
        if vote.txid in self.aborting.sets:
            self.aborting.remove(vote.txid)
        if vote.accepted is not None and not vote.accepted[1]:
            # If only the rollback of a transaction was received, the transaction may conflict with any other.
            everything = AccessSet(write_ranges=(EVERYTHING,))
            self.aborting.add(vote.txid, vote.transaction.access_set if vote.transaction is not None else everything)

    def drop(self, txid: Txid) -> None:
        """Forget a vote, if there is one."""
        if self.by_txid.pop(txid, None) is not None:
            if txid in self.aborting.sets:
                self.aborting.remove(txid)
            self.outbox.emit(Forget(txid))

    def hold(self, transaction: Transaction) -> Vote:
        """Make a transaction pending here, durably."""
        assert transaction.txid not in self.outcomes, f"{transaction.txid} is over"
        assert transaction.txid.clock > self.clock.cut, "others count on nothing being approved up to the cut"
        vote = self.of(transaction.txid, transaction)
        # The transaction is held by the vote and pending from the same step on: the next conflict test finds it
        # (``invariants``).
        vote.held = True
        if transaction.txid not in self.pending:
            self.pending.add(transaction, self.clock.now.seconds)
        self.persist(vote)
        return vote

    def accept_rollback(self, txid: Txid) -> bool:
        """Accept a leader's rollback (ballot 1); return False if a higher ballot is promised."""
        if txid in self.outcomes or txid.leader == self.me:
            return True  # the transaction has ended; or it is ours, and pending until a majority has accepted
        vote = self.of(txid)
        # A recovery may be about to commit the transaction because we hold it; our promise to it forbids the rollback.
        if vote.promised > 1:
            return False
        # Store this vote even if the transaction is unknown here: its BEGIN may still arrive, and is rejected because
        # of the promise (V3).
        vote.promised, vote.accepted, vote.held = 1, (1, False), False
        if txid in self.pending:
            self.pending.remove(txid)
            # The transaction ends only when a majority has accepted. But here it no longer blocks other transactions.
            self.released.append(txid)
        self.persist(vote)
        return True

    def forget_comparisons(self) -> None:
        """Drop the comparisons that have expired."""
        seconds = self.clock.now.seconds
        self.comparing = {txid: until for txid, until in self.comparing.items() if seconds < until}

    # -- outcomes --------------------------------------------------------------------------------------------------

    def end(self, txid: Txid, *, commit: bool) -> None:
        """Record the outcome of a transaction."""
        known = self.outcomes.get(txid)
        assert known is None or known == commit, f"{txid} has two outcomes"
        if known is not None:
            return
        self.outcomes[txid] = commit
        self.late = self.late or txid.clock <= self.clock.settled
        self.pending.remove(txid)
        self.ended.append(txid)
        vote = self.by_txid.get(txid)
        if vote is None:
            return
        if not commit:
            if txid.leader == self.me and vote.transaction is not None:
                # Record the present clock and not the transaction's: V10 concerns transactions that began before this
                # node knew the end.
                self.own_ends.add(vote.transaction, self.clock.read())
            # The vote is kept until safe time passes ``txid``: a node that recovers a conflicting transaction must
            # learn that this one has ended (J6).
            vote.promised, vote.accepted, vote.held = ENDED, (ENDED, False), False
            self.persist(vote)

    def apply(self, txid: Txid) -> None:
        """Record that a transaction is applied at one of its places."""
        assert txid not in self.pending, f"{txid} is applied and pending"
        self.done.add(txid)
        self.late = self.late or txid.clock <= self.clock.settled

    def forget(self, waiting: Collection[Txid]) -> None:
        """Drop the votes and outcomes that the journal makes needless.

        These are all votes and outcomes up to safe time, and the outcomes of applied and settled transactions.

        Args:
            waiting: the transactions that are taken and not applied.
        """
        safe, settled = self.clock.safe, self.clock.settled
        self.late = self.outbox.is_applying and settled > safe
        if self.late:
            settled = safe  # this step applies entries, which the journal does not have yet
        for txid in [txid for txid in self.by_txid if txid.clock <= safe]:
            if txid in self.pending:
                # A transaction that is still pending below safe time is not in the journal: it can never commit.
                self.end(txid, commit=False)
            self.drop(txid)
        # A taken commit that waits for its base is not in the journal yet: only ``outcomes`` has its outcome.
        over = [txid for txid in self.outcomes if txid.clock <= safe and txid not in waiting]
        over += [txid for txid in self.outcomes if safe < txid.clock <= settled and txid in self.done]
        for txid in over:
            # Keep an outcome of this step: the requests that wait for the transaction get it at the step's end.
            if txid not in self.ended:
                del self.outcomes[txid]
        self.done = {txid for txid in self.done if txid.clock > settled}
        self.own_ends.forget(self.clock.closed)
