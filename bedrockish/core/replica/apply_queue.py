"""The commits that wait to be applied, and the fetching of missing ones.

A node takes the commits of a timeline in order: it takes a commit only when it has taken all earlier ticks. A COMMIT
ahead of a gap counts as not arrived, and the node does not report its outcome to others: otherwise all nodes could know
a commit that none of them could ever apply. A taken commit is applied as soon as its ``after`` is covered. A node
learns of a commit in one of four ways, each of which ends in ``_add_entry``: it leads the commit, receives it in a
COMMIT, fetches it, or adopts it for a dead leader.
"""

from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from bedrockish.core.protocol.effects import Apply, Halt, SendEntries, SetMembers
from bedrockish.core.protocol.messages import Ask, Commit, Entries, Fetch, Outcome, Removed
from bedrockish.core.state.commit_window import NEVER
from bedrockish.core.state.packed_commits import Place
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.roster import Peer
from bedrockish.core.state.state import State
from bedrockish_journal.model.entry import GENESIS, Entry, Label, decode_entry, decode_label, label_entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Membership, read_membership
from bedrockish_journal.model.transaction import MEMBERS, SCHEMA, Transaction, Txid, decode_transaction
from bedrockish_journal.model.vector import Vector, covers, merge

FETCH_AGAIN_S = 1.0
WIDE_GAP = 100  # missing entries; a wider gap is not closed by COMMITs that are under way
AHEAD_OF_GAP_MAX = 10_000  # most COMMITs kept ahead of a gap; further ones are dropped, and fetched later


@dataclass(slots=True)
class Gap:
    """A timeline of which this node lacks ticks up to ``upto``."""

    upto: int  # the last tick that is known to exist
    since: float  # seconds at which the gap was found
    asked: Repeat | None = None  # when to ask a peer again; None if a peer can be asked at once
    peer: str = ""  # the peer that was asked last


class ApplyQueue:
    """The queue of taken commits, which applies them in causal order and fetches missing ones."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.waiting: dict[str, deque[Entry]] = {}  # by timeline, the entries that are taken and not applied
        self._unapplied = 0  # the number of entries in ``waiting``
        self.ahead_of_gap: dict[str, dict[int, Commit]] = {}  # by timeline and tick, the COMMITs ahead of a gap
        self.gaps: dict[str, Gap] = {}

    # -- learning commits ------------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction, quorum: Vector, adopted_from: str | None = None) -> Entry:
        """Commit a transaction at the next tick of our own timeline, and apply it at once."""
        state, me = self.state, self.state.me
        assert covers(state.timelines.applied, transaction.base), "a leader commits only what it can apply"
        tick = state.timelines.applied.get(me, 0) + 1
        # Only this node writes into its timeline, and applies each of its commits in the same step: none waits.
        assert tick == state.timelines.taken.get(me, 0) + 1
        # In a label, our own tick is the tick of the commit itself, as in the gist.
        approvals = dict(quorum) | ({me: tick} if me in quorum else {})
        prev = state.timelines.heads.get(me, GENESIS)
        entry = Entry(me, tick, approvals, transaction, adopted_from, prev)
        self._add_entry(entry)
        self.apply_ready()
        # The caller sends the COMMIT next. The effect Apply comes before it, so the commit is durable before any peer
        # hears of it.
        assert state.timelines.applied[me] == tick
        return entry

    def on_commit(self, message: Commit) -> None:
        """Take a COMMIT if it is the next of its timeline, and then the COMMITs that waited behind it.

        Raises:
            EntryMalformedError: the COMMIT cannot be read, or does not continue the timeline; it was not taken.
        """
        label = decode_label(message.label)
        leader, tick = label.leader, label.tick
        taken = self.state.timelines.taken.get(leader, 0)
        # The entry has been fetched or received already; or its leader has left, and its timeline is retired.
        if tick <= taken or leader in self.state.roster.membership.retired:
            return
        ahead = self.ahead_of_gap.setdefault(leader, {})
        if tick > taken + 1:
            if len(ahead) < AHEAD_OF_GAP_MAX:
                ahead[tick] = message
            self.want({leader: tick})
            return
        if self._take_commit(message, label) and self.ahead_of_gap.get(leader):
            self._take_ahead_of_gap(leader)

    def _take_ahead_of_gap(self, leader: str) -> None:
        """Take the COMMITs that waited behind a gap, as far as the gap is closed."""
        ahead = self.ahead_of_gap.get(leader, {})
        # Remove the COMMIT first: one that cannot be decoded must not be tried again at each later COMMIT.
        while (following := ahead.pop(self.state.timelines.taken.get(leader, 0) + 1, None)) is not None:
            if not self._take_commit(following, decode_label(following.label)):
                return

    def _take_commit(self, message: Commit, label: Label) -> bool:
        leader, tick = label.leader, label.tick
        vote = self.state.votes.by_txid.get(label.txid)
        voted = vote.transaction if vote is not None else None
        # A voter that approved has the body in its vote, so the COMMIT has none. A body in the COMMIT that differs from
        # the vote's is decoded; the hash below shows whether it was committed.
        if voted is not None and message.body in (None, voted.body):
            transaction = voted
        elif message.body is not None:
            transaction = decode_transaction(message.body)
        else:
            self.want({leader: tick})
            return False
        entry = label_entry(self.state.timelines.heads.get(leader, GENESIS), label, transaction)
        if entry.hash != message.hash:
            # Reject the entry only: a peer with another version of the timeline must not stop this node.
            raise EntryMalformedError(f"hash mismatch: {leader}{tick} does not extend the local timeline {leader}")
        self._add_entry(entry)
        return True

    def on_entries(self, peer: str, message: Entries) -> None:
        """Take fetched entries as far as they are the next of their timelines.

        Raises:
            EntryMalformedError: an entry cannot be read, or does not continue its timeline; those before it were taken.
        """
        for prev, label, body in message.entries:
            # Read the label first: if the entry has arrived in another message already, its body need not be decoded.
            leader, tick = decode_label(label)[:2]
            if tick != self.state.timelines.taken.get(leader, 0) + 1 or leader in self.state.roster.membership.retired:
                continue
            entry = decode_entry(prev, label, body)
            if prev != self.state.timelines.heads.get(leader, GENESIS):
                raise EntryMalformedError(f"{leader}{tick} does not extend the local timeline {leader}")
            self._add_entry(entry)
        for gap in self.gaps.values():
            # The peer has answered: any peer can be asked at once for the ticks that are still missing.
            if gap.peer == peer:
                gap.asked = None
        # The fetched entries may have closed the gap before which COMMITs wait.
        for leader in self.ahead_of_gap:
            self._take_ahead_of_gap(leader)
        # An answer has a bounded size. Ask for the rest now, before these entries are applied, so that the sender reads
        # the rest at the same time.
        self.fetch_missing()
        self.apply_ready()

    def on_outcome(self, peer: str, message: Outcome) -> None:
        """Fetch the entry at a place where a peer says that a transaction is committed.

        The outcome is not known here before that entry is taken.
        """
        if message.commit and message.tick > self.state.timelines.taken.get(message.leader, 0):
            known = self.state.roster.peers[peer]
            if known.applied.get(message.leader, 0) < message.tick:  # the peer's last report is older
                known.applied = {**known.applied, message.leader: message.tick}
            self.want({message.leader: message.tick})

    def _add_entry(self, entry: Entry) -> None:
        state, txid = self.state, entry.txid
        # The protocol excludes that a transaction is rolled back and committed, so a disk or a program has failed. This
        # node halts before it spreads a wrong outcome.
        if state.votes.outcomes.get(txid) is False:
            state.outbox.emit(Halt(f"{entry.leader}{entry.tick} commits {txid}, which was rolled back"))
            return
        state.add_entry(entry)
        self.waiting.setdefault(entry.leader, deque()).append(entry)
        self._unapplied += 1
        # If the entry was fetched, its COMMIT may also be in ``ahead_of_gap``, and would stay there.
        self.ahead_of_gap.get(entry.leader, {}).pop(entry.tick, None)

    def place_of(self, txid: Txid) -> tuple[str, int] | None:
        """Return the place of a commit that is taken and waits until its base is applied, or None."""
        waiting = (entry for queue in self.waiting.values() for entry in queue)
        return next((entry.place for entry in waiting if entry.txid == txid), None)

    # -- applying --------------------------------------------------------------------------------------------------

    def apply_ready(self) -> None:
        """Apply each taken entry whose ``after`` is applied."""
        # Every step calls this method; the count saves a look at each timeline.
        moved = self._unapplied > 0
        while moved:
            moved = False
            # An entry that is applied in this pass may be the base of one in another timeline: repeat until no entry
            # is applied.
            for queue in self.waiting.values():
                while (
                    queue
                    and covers(self.state.timelines.applied, queue[0].after)
                    # A blocked entry fits no node's tables. It, the rest of its timeline, and all entries with it in
                    # their base wait until an operator has decided.
                    and queue[0].txid not in self.state.blocked
                ):
                    assert self._unapplied > 0
                    self._unapplied -= 1
                    self._apply(queue.popleft())
                    moved = self._unapplied > 0
        # A new node serves clients from the moment at which it has caught up.
        if self.state.roster.joining is not None:
            self.state.check_joined()

    def _apply(self, entry: Entry) -> None:
        state, txid = self.state, entry.txid
        assert entry.tick == state.timelines.applied.get(entry.leader, 0) + 1
        # A repeat is the second label of a transaction that is both adopted and in its leader's timeline. The rows are
        # in the tables already, so only the label is stored.
        repeat = txid.clock <= state.clock.safe or state.is_applied(txid)
        # All commits up to safe time are applied (T4), so an entry below it that arrives now is a second label. After a
        # failed ``_reach_schema`` the node halts, and this entry does not count as applied.
        if not repeat and entry.transaction.schema != state.schema.version and not self._reach_schema(entry):
            return
        state.apply(entry)
        state.outbox.emit(Apply(entry, repeat))
        if entry.transaction.kind == SCHEMA and not repeat:
            if entry.transaction.activates:
                state.schedule(entry.transaction)
            else:
                state.schema.advance(entry.transaction)
        # The vote was kept for the outcome, which is in the journal from now on.
        state.votes.drop(txid)
        if entry.transaction.kind == MEMBERS and not repeat:
            self._change_members(entry.place, txid, read_membership(entry.transaction.changes))

    def _reach_schema(self, entry: Entry) -> bool:
        """Put the scheduled change in force if an entry's transaction ran on it; return whether the entry fits then.

        The change was in force at the leader before it ran the transaction. So the transaction's base has every commit
        with a smaller clock than the activation, and all of these are applied here.
        """
        state, needed = self.state, entry.transaction.schema
        # Our safe time may be behind, because it needs reports of a majority. But the entry proves that the change is
        # in force.
        if needed == state.schema.version + 1 and state.schema.scheduled is not None:
            state.activate()
        here = state.schema.version
        # Applying this entry would write rows into the columns of another schema.
        if needed != here:
            what = f"{entry.leader}{entry.tick} ran on schema version {needed}, and version {here} is in force here"
            state.outbox.emit(Halt(what))
        return needed == here

    def _change_members(self, place: Place, txid: Txid, membership: Membership) -> None:
        """Count votes by the new membership, and end the transactions that were begun under an older one.

        Such a transaction can never commit unless it is applied here already: the change conflicts with every
        transaction, so the base of the change contains each transaction that had a quorum before the change.
        """
        state = self.state
        # Test the level first: this program could misread entries of a later level.
        if membership.level > LEVEL:
            state.outbox.emit(
                Halt(
                    f"the cluster is at release level {membership.level}, and this program reads up to {LEVEL}; "
                    "install the release of the other members here"
                )
            )
            return
        # Only the new ones: timelines that were retired earlier are left out of vectors already.
        retired = membership.retired.keys() - state.roster.membership.retired.keys()
        old = state.roster.membership
        config = 0 if old.users == membership.users else membership.version
        if (old.level, old.cluster_id) != (membership.level, membership.cluster_id):
            config = NEVER
        state.commit_window.note_member_change(txid, config)
        state.set_membership(membership)
        if retired:
            self._retire(place, txid, retired)
        state.outbox.emit(SetMembers(state.roster.membership))
        for txid, transaction in list(state.votes.pending.transactions.items()):
            if transaction.config < membership.version:
                state.votes.end(txid, commit=False)

    def _retire(self, place: Place, txid: Txid, leaders: AbstractSet[str]) -> None:
        """Leave these timelines out of vectors from now on: all their entries that a base can contain are applied here.

        These are the entries in the base of the membership change, because a transaction of an older membership commits
        only if that base contains it. A member may have one more entry: the second label of a transaction, which
        changes no row.
        """
        state = self.state
        state.timelines.retire([place])
        state.commit_window.retire(leaders, txid)
        for leader in leaders:
            self.ahead_of_gap.pop(leader, None)
            self.gaps.pop(leader, None)

    def smallest_unapplied(self) -> int | None:
        """Return the smallest clock of the transactions that are decided and not applied."""
        # All waiting entries count, not only the first of each timeline: an adopted transaction has an older clock than
        # the entries before it.
        clocks = [entry.txid.clock for queue in self.waiting.values() for entry in queue]
        return min(clocks, default=None)

    # -- fetching --------------------------------------------------------------------------------------------------

    def want(self, vector: Vector) -> None:
        """Record that these ticks exist and are needed here."""
        for leader, tick in vector.items():
            if tick > self.state.timelines.taken.get(leader, 0) and leader not in self.state.roster.membership.retired:
                # The COMMIT usually arrives by itself; ``fetch_missing`` requests it if it does not.
                gap = self.gaps.setdefault(leader, Gap(tick, self.state.clock.now.seconds))
                gap.upto = max(gap.upto, tick)

    def ask_about(self, txid: Txid, peer: str) -> None:
        """Ask a peer for the outcome of ``txid``, which it named in a reject, if the leader of ``txid`` is cut off.

        Without the outcome, the peer would reject our next transactions for the same reason.
        """
        state = self.state
        leader = state.roster.peers.get(txid.leader)
        # Over a link to that leader, this node gets COMMIT or ROLLBACK, or asks for the outcome (``Recovery.check``).
        is_cut_off = txid.leader != state.me and (leader is None or not leader.up)
        is_unknown = txid not in state.votes.pending and txid.clock > state.clock.safe
        if is_cut_off and is_unknown and state.outcome(txid) is None:
            state.outbox.send(peer, Ask(txid, state.clock.read()))

    def fetch_missing(self, *, at_once: bool = False) -> None:
        """Request the ticks that have been missing for longer than a COMMIT usually takes to arrive.

        Different gaps are requested from different peers where possible, so that they share the work.
        """
        state, now = self.state, self.state.clock.now.seconds
        if not state.health.applies:
            return  # a fetched entry would not be applied; this node still serves its own entries
        # A large message that is still being assembled may be the missing COMMIT of its sender: do not fetch it.
        arriving = {one.peer for one in state.pieces.assembling}
        patience = 0.0 if at_once else state.settings.fetch_after_ms / 1000
        asks: dict[str, dict[str, int]] = {}
        for leader, gap in list(self.gaps.items()):
            taken = state.timelines.taken.get(leader, 0)
            if taken >= gap.upto:
                del self.gaps[leader]
                continue
            if leader in arriving:
                continue
            # So many COMMITs are never just under way: request the entries at once.
            is_wide = gap.upto - taken > WIDE_GAP
            if not is_wide and now - gap.since < patience:
                continue
            # A peer that was asked a moment ago may still answer. After the pause its answer counts as lost.
            if gap.asked is not None and not gap.asked.is_due(now):
                continue
            peer = self._peer_to_ask(leader, taken + 1, not_again=gap.peer if gap.asked else "", busy=asks)
            if peer:
                asks.setdefault(peer, {})[leader] = taken + 1
                gap.asked, gap.peer = gap.asked or Repeat(now, FETCH_AGAIN_S), peer
            elif had := self._holders(leader, taken + 1):
                self._give_up_if_removed(leader, taken + 1, had)
            else:  # only a former member has reported the entry; a peer that has it will report it
                del self.gaps[leader]
        for peer, wants in asks.items():
            state.outbox.send(peer, Fetch(wants, state.settings.fetch_bytes))

    def _peer_to_ask(self, leader: str, tick: int, not_again: str, busy: dict[str, dict[str, int]]) -> str | None:
        # The leader has the entry even if its last report is older. A peer may have removed it from its journal.
        able = [
            node
            for node, peer in self.state.roster.peers.items()
            if peer.up
            and (peer.applied.get(leader, 0) >= tick or node == leader)
            and peer.removed.get(leader, 0) < tick
        ]
        # Prefer another peer than the one that was asked last and has not answered: it may be slow or cut off.
        others = [node for node in able if node != not_again] or able
        # The peer with the fewest requests; of several, the timeline's leader, which certainly has the entry; else by
        # name, so that a replay asks the same peer.
        return min(others, key=lambda node: (len(busy.get(node, ())), node != leader, node), default=None)

    def on_fetch(self, peer: str, message: Fetch) -> None:
        """Send a peer the wanted entries that are here, and tell the peer which of them were removed."""
        state = self.state
        # Without an answer, a peer would request removed entries from this node for ever.
        removed = {leader: state.timelines.removed.get(leader, 0) for leader in message.wants}
        removed = {leader: tick for leader, tick in removed.items() if tick >= message.wants[leader]}
        if removed:
            state.outbox.send(peer, Removed(removed, state.clock.read()))
        wants = {leader: tick for leader, tick in message.wants.items() if leader not in removed}
        # The driver reads the entries to send from the journal. Entries that are taken and wait are in memory alone.
        have = {leader: tick for leader, tick in wants.items() if tick <= state.timelines.applied.get(leader, 0)}
        if have:
            # The peer's limit is itself limited: a peer must not decide how much memory an answer takes here.
            state.outbox.emit(SendEntries(peer, have, min(message.limit, 16_000_000)))

    def on_removed(self, peer: str, message: Removed) -> None:
        """Ask another peer for the entries that a peer has removed from its journal."""
        known = self.state.roster.peers.get(peer)
        if known is not None:
            known.removed = merge(known.removed, message.upto)
            # The peer has answered, without the entries: another peer may be asked at once.
            for leader in message.upto:
                if leader in self.gaps and self.gaps[leader].peer == peer:
                    self.gaps[leader].asked = None
            self.fetch_missing(at_once=True)

    def _holders(self, leader: str, tick: int) -> list[Peer]:
        """Return the members that have reported an entry as applied; they may have removed it since."""
        peers = self.state.roster.peers.items()
        return [peer for node, peer in peers if node == leader or peer.applied.get(leader, 0) >= tick]

    def _give_up_if_removed(self, leader: str, tick: int, had: list[Peer]) -> None:
        """Give up fetching if all members that had an entry have removed it: this node can never catch up."""
        state = self.state
        if all(peer.removed.get(leader, 0) >= tick for peer in had):
            state.give_up_fetching(
                f"node {state.me} lacks {leader}{tick}, which all others have removed from their journals, or find "
                "damaged in them; where it is damaged, run 'bedrockish member repair', and start this node again; else "
                f"stop it, run 'bedrockish member replace URL {state.me} NEW', and then 'bedrockish join URL --voter', "
                "without --replay, for the node NEW on an empty file"
            )
