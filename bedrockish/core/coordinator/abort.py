"""Rollbacks of our own transactions. In terms of Paxos, ROLLBACK is accept(abort) at ballot 1, the leader's own.

A rollback is complete when a majority has accepted it. Until then the transaction stays pending here and blocks the
transactions of other leaders; our own later transactions name it in their ``rollbacks``.
"""

from collections.abc import Iterable
from contextlib import suppress

from bedrockish.core.protocol.health import DAMAGED_TABLES
from bedrockish.core.protocol.messages import Accepted, Refused, Rollback
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.state import State
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import Txid, parse_txid


class Rollbacks:
    """Our transactions that were given up, each with the voters that have accepted its rollback."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.rolling: dict[Txid, set[str]] = {}
        self._repeats: dict[Txid, Repeat] = {}  # by transaction: when to send its ROLLBACK again

    def __contains__(self, txid: object) -> bool:
        return txid in self.rolling

    def restart(self) -> None:
        """Give up the transactions that were in flight when this node stopped and are not in its journal."""
        for txid, vote in list(self.state.votes.by_txid.items()):
            # If a recovery has our promise, the recovery decides the transaction, and this node may no longer end it.
            if txid.leader == self.state.me and txid not in self.state.votes.outcomes and vote.promised < 2:
                self.give_up(txid)

    def give_up_forgotten(self, txids: Iterable[Txid]) -> None:
        """Give up those of these transactions that this node began before its last start and has forgotten.

        A BEGIN may leave before its leader's vote is durable. If the leader then crashes, voters hold a transaction of
        which the restarted leader has no record. It has not committed that transaction, and has lost the approvals. So
        it gives the transaction up, which would otherwise block its keys until a recovery.
        """
        state = self.state
        for txid in txids:
            clock = state.clock
            if txid.leader != state.me or txid in state.votes.by_txid or not clock.safe < txid.clock <= clock.floor:
                continue
            # If this node's file were an older copy, the lost newer file might have the commit. ``claims_time``
            # excludes that: a majority has admitted this node and knows no newer file. A node with damaged tables may
            # give up transactions as well: its journal still shows its commits.
            if not state.roster.claims_time or state.me not in state.roster.voters or state.outcome(txid) is not None:
                continue
            vote = state.votes.of(txid)
            vote.promised, vote.accepted = 1, (1, False)
            # Other nodes may count this acceptance, so it must be durable. The vote has no transaction, because the
            # keys are unknown here.
            state.votes.persist(vote)
            self.give_up(txid)

    def give_up_unfit(self) -> None:
        """Give up the transaction of ours whose changes did not fit the tables here, which stopped this node.

        This node's vote was lost with the batch of the commit. A recovery could commit the transaction by the votes of
        the other nodes, although perhaps no node can apply it.
        """
        alarm = self.state.health.alarms.get(DAMAGED_TABLES)
        if alarm is not None and "txid" in alarm.details:
            with suppress(EntryMalformedError):  # the alarm comes from the file, and may be damaged, too
                self.give_up_forgotten((parse_txid(str(alarm.details["txid"])),))

    def give_up(self, txid: Txid) -> None:
        """Give a transaction up and ask the voters to accept its rollback; the caller stops counting its approvals."""
        state = self.state
        vote = state.votes.by_txid[txid]
        assert txid.leader == state.me, "only the transaction's leader may use ballot 1"
        assert vote.promised < 2, "a transaction that is promised to a recovery is not given up"
        # The vote still holds the transaction, which stays pending, until a majority has accepted. The rollback is not
        # written to the file: after a restart the transaction is given up again.
        vote.promised, vote.accepted = 1, (1, False)
        # Our own acceptance is one of the majority, as our approval was one of the quorum.
        self.rolling[txid] = {state.me} if state.roster.is_voter(state.me) else set()
        self._repeats[txid] = Repeat(state.clock.now.seconds, state.answer_pause_s)
        state.outbox.send_voters(Rollback(txid, state.clock.read()))
        self._count(txid)

    def on_accepted(self, peer: str, message: Accepted) -> None:
        """Count a voter that has accepted a rollback."""
        accepted = self.rolling.get(message.txid)
        if accepted is not None and message.ballot == 1 and self.state.roster.is_voter(peer):
            # A recovery never contradicts a rollback that a majority has accepted at ballot 1 (J2).
            accepted.add(peer)
            self._count(message.txid)

    def _count(self, txid: Txid) -> None:
        if len(self.rolling[txid]) >= self.state.roster.majority:
            self.state.votes.end(txid, commit=False)

    def on_refused(self, message: Refused) -> None:
        """Leave a transaction to the recovery to which a voter has promised it."""
        pending = self.state.votes.pending
        if message.promised > 1 and message.txid in self.rolling:
            self.forget(message.txid)
            if message.txid in pending:
                # The recovering node gets as much time as a leader does before this node starts a recovery of its own.
                pending.renew(message.txid, self.state.clock.now.seconds)

    def forget(self, txid: Txid) -> None:
        """Stop rolling back a transaction that a recovery decides."""
        self.rolling.pop(txid, None)
        self._repeats.pop(txid, None)

    def repeat(self) -> None:
        """Send ROLLBACK again to the voters that have not accepted it."""
        state = self.state
        for txid, accepted in self.rolling.items():
            if self._repeats[txid].is_due(state.clock.now.seconds):
                message = Rollback(txid, state.clock.read())
                for peer in state.roster.voters_up():
                    if peer not in accepted:
                        state.outbox.send(peer, message)

    def resend(self, peer: str) -> None:
        """Send a peer again the rollbacks that it may have missed."""
        clock = self.state.clock.read()
        for txid, accepted in self.rolling.items():
            if peer not in accepted:
                self.state.outbox.send(peer, Rollback(txid, clock))
