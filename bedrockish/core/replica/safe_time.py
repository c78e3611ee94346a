"""Closed time, the cut and safe time: clocks up to which a node no longer approves, or commits, new transactions.

``times`` computes the three clocks. This module decides when to compute them and from which reports, and acts on the
result. Up to safe time, no further transaction can commit at any node (section 6 of the protocol). The closed time of a
majority does not guarantee this: a recovery could still commit an older transaction. The second round, of cuts,
excludes that.
"""

from collections import deque
from collections.abc import Mapping

from bedrockish.core.protocol.effects import Keep
from bedrockish.core.protocol.health import Mode
from bedrockish.core.protocol.messages import Gossip
from bedrockish.core.replica import times
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.replica.times import Times
from bedrockish.core.state.settings import majority
from bedrockish.core.state.state import State
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import Vector, canonical, covers

IDLE_CUT_S = 1.0  # seconds between two moves of the cut while no transaction or vote waits for safe time
ADVANCE_EVERY_S = (
    0.05  # seconds between two calls of ``advance`` while a few transactions or votes wait (WAITING_VOTES_MAX)
)
NEVER = Txid(1 << 64, "")  # a txid above every other
RELEASED = (1 << 63) - 1  # the clock of a hold that was released
WAITING_VOTES_MAX = 64  # with more waiting votes and transactions, the times advance at heartbeats only


class SafeTime:
    """The three times of a node: advances them, and drops votes, outcomes and commits that are then superfluous."""

    def __init__(self, state: State, apply_queue: ApplyQueue) -> None:
        self.state = state
        self.apply_queue = apply_queue
        self._cut_at = -IDLE_CUT_S  # seconds at which the cut last moved
        self._moved_at = -ADVANCE_EVERY_S  # seconds at which ``advance`` last computed the three times
        self._gossiped: tuple[int, int] = (0, 0)  # closed and cut in our last gossip to all
        self._safe_history: deque[tuple[float, int]] = deque()  # pairs of seconds and the safe time then, oldest first
        self._due_change: Txid | None = None  # time is closed up to the activation of this schema change without a lag

    def on_gossip(self, peer: str, message: Gossip) -> None:
        """Record the ticks that a peer has applied, and its closed time and cut."""
        known = self.state.roster.peers.get(peer)
        if known is None:
            return
        # A peer that knows that we have applied a retirement leaves the retired timelines out of its vector. Add them
        # again here: otherwise the peer would seem to lack the entries of these timelines.
        known.applied = self.state.timelines.in_full(message.applied, message.config)
        known.level, known.config = message.level, message.config
        # A later release may have a mode that is worse than all modes here: treat it as the worst one here.
        known.mode = Mode(min(message.mode, Mode.REPAIRING))
        had, have = message.applied.get(self.state.me, 0), self.state.timelines.taken.get(self.state.me, 0)
        if had > have:  # only we write our timeline, and each entry is in our file before any peer hears of it
            self.state.note_lost_promise(
                f"node {self.state.me} has lost commits of its own, and so has forgotten promises: node {peer} has "
                f"{had} of them, its own file has {have}; stop it, run 'bedrockish member replace URL {self.state.me} "
                "NEW', and then 'bedrockish join URL --voter' for the node NEW on an empty file"
            )
        self.state.hear_wall(known, message.wall_ms)
        # Keep only the newest report (T6), even if the one before it is not covered yet and would be covered sooner.
        known.report = (known.applied, message.closed, message.cut)
        self._hear_holds(message.holds)
        # A COMMIT may have been lost with the links of its leader: fetch the entries that the peer has and we lack.
        self.apply_queue.want(message.applied)
        self._cover()
        self._advance_between_heartbeats()

    def _hear_holds(self, holds: Mapping[str, tuple[int, int]]) -> None:
        for name, hold in holds.items():
            # The hold of the reader's later start counts; of the same start, the hold with the greater clock. So all
            # nodes agree, whatever the order of the reports.
            if hold > self.state.holds.get(name, (0, 0)):
                self.state.hold_journal(name, hold)

    def held(self, name: str, clock: int | None) -> None:
        """Record the clock from which on a reader of this node needs the journal; None releases the journal.

        A clock below the reader's earlier clock counts as a new start of the reader.
        """
        times, before = self.state.holds.get(name, (0, RELEASED))
        if clock is None:
            self.state.hold_journal(name, (times, RELEASED))
        elif before == RELEASED or clock < before:
            # Every node prefers a hold of a later start to any hold of an earlier one (``_hear_holds``).
            self.state.hold_journal(name, (times + 1, clock))
        elif clock > before:
            self.state.hold_journal(name, (times, clock))

    def _advance_between_heartbeats(self) -> None:
        """Advance the times between two heartbeats if a few transactions or votes wait and can become safe now."""
        state = self.state
        if (
            not 0 < len(state.votes.done) + len(state.votes.by_txid) <= WAITING_VOTES_MAX
            or state.clock.now.seconds - self._moved_at < ADVANCE_EVERY_S
        ):
            return
        lowest = min(min(state.votes.done, default=NEVER).clock, min(state.votes.by_txid, default=NEVER).clock)
        if state.clock.lag.closable(state.clock.now.seconds) < lowest:
            return  # it is too early to close time up to the lowest waiting clock
        self.advance()
        if (state.clock.closed, state.clock.cut) != self._gossiped:
            self.gossip()

    def _cover(self) -> None:
        # T6: a peer's report counts only when everything that the peer had applied then is applied here.
        for known in self.state.roster.peers.values():
            if known.report is not None and covers(self.state.timelines.applied, known.report[0]):
                _, closed, cut = known.report
                # T7: a peer that reports 0 as its closed time withdraws its earlier reports: it has noticed that it had
                # forgotten promises.
                known.closed = max(known.closed, closed) if closed else 0
                known.cut = max(known.cut, cut) if closed else 0
                known.report = None

    def advance(self) -> None:
        """Advance closed time, the cut and safe time as far as possible."""
        state, clock, roster = self.state, self.state.clock, self.state.roster
        if not state.health.applies:
            return  # this node applies no entries, so it must not put a schema change in force
        self._moved_at = clock.now.seconds
        self._cover()
        # All pending and unapplied transactions may still get into the journal, with their clocks.
        pending, unapplied = state.votes.pending.smallest_clock(), self.apply_queue.smallest_unapplied()
        # A BEGIN whose rows are being compared, or whose pieces are being assembled, arrived in time: our delay must
        # not make it TOO LATE.
        state.votes.forget_comparisons()
        # A BEGIN below closed time is lost anyway, and must not keep time from closing further.
        compared = min((txid.clock for txid in state.votes.comparing if txid.clock > clock.closed), default=None)
        read = [one.closable + 1 for one in state.pieces.assembling if clock.now.seconds < one.until]
        lowest = min((one for one in (pending, unapplied, compared, *read) if one is not None), default=None)
        # A BEGIN may be under way to us for as long as the lag. If time closed before, the BEGIN would be TOO LATE.
        clock.lag.read(clock.now.seconds, clock.read())
        closable = clock.lag.closable(clock.now.seconds)
        if self._is_change_due():
            assert state.schema.scheduled is not None
            # The whole cluster waits for the change to come into force, so close time up to its activation at once,
            # without the lag that is granted to late BEGINs.
            closable = max(closable, state.schema.scheduled.activates)
        own = Times(clock.closed, clock.cut, clock.safe)
        found = times.times(
            own,
            [(roster.peers[node].closed, roster.peers[node].cut) for node in roster.voters if node != state.me],
            roster.majority,
            closable,
            lowest,
            # T5: a voter that has forgotten its promises counts as if it had closed nothing; a learner does not count.
            counts=roster.claims_time and roster.is_voter(state.me),
            moves_cut=self._should_move_cut(),
        )
        was_settled = clock.settled
        clock.close(*found)
        if found.cut > own.cut:
            self._cut_at = clock.now.seconds
            state.outbox.emit(Keep("cut", found.cut))  # T3: durable before it is announced, because P10 depends on it
        if found.safe > own.safe:
            # After a restart with an older safe time, the node would count the transactions above that as open.
            state.outbox.emit(Keep("safe", found.safe))
        clock.raise_settled(self._settled())
        if clock.settled > was_settled and moved(clock.settled, -state.settings.conflict_window_ms) > found.safe:
            state.outbox.emit(Keep("settled", clock.settled))  # so a restart need not read all entries above safe time
        # ``late``: outcomes of transactions that settled time has passed already are dropped, too.
        if found.safe > own.safe or clock.settled > was_settled or state.votes.late:
            self._forget()
        # Every transaction with a smaller clock than the activation is applied, the same ones at every node: now the
        # schema may change.
        if state.schema.is_behind(clock.safe):
            state.activate()

    def _settled(self) -> int:
        """Return the safe time that would hold if all that the others have reported as applied were applied here.

        A new node, or one that was down for long, needs long until it has applied everything. But no transaction below
        the returned clock can be decided any more, so the node can drop commits without waiting for its own safe time:
        a transaction that may still commit has in its base all commits that are a conflict window older than this
        clock.
        """
        roster = self.state.roster
        # Count the majority among the voters that decide the next transactions, as far as this node knows them.
        told = roster.membership
        if roster.joining is not None and roster.joining.membership.version > told.version:
            told = roster.joining.membership  # the voters that this node's own file names may be gone
        voters = [node for node in told.voters if node != self.state.me]
        peers = [peer for node in voters if (peer := roster.peers.get(node)) is not None]
        # T8: a report counts here even if not everything that its peer had applied is applied here. But no report
        # counts if there may be voters that this node does not know.
        if any(peer.config > told.version for peer in peers):
            return 0
        cuts = [peer.cut if peer.report is None else peer.report[2] for peer in peers]
        counts = roster.claims_time and roster.is_voter(self.state.me)
        return times.reached(cuts, self.state.clock.cut, majority(len(told.voters)), counts=counts)

    def schema_due(self, txid: Txid) -> None:
        """Close time at once up to the activation of a schema change that is due: transactions at all nodes wait.

        Our clock moves up to the activation: a clock that only counts, or is behind, would not reach it by itself.
        """
        scheduled = self.state.schema.scheduled
        if scheduled is not None and scheduled.txid == txid:
            self.state.clock.adjust(scheduled.activates)
            self._due_change = txid

    def advance_for_change(self) -> bool:
        """Advance the times and gossip after each step while a schema change is due; return whether one is due."""
        state = self.state
        if not self._is_change_due():
            return False
        self.advance()
        if (state.clock.closed, state.clock.cut) != self._gossiped:
            self.gossip()
        return True

    def _is_change_due(self) -> bool:
        scheduled = self.state.schema.scheduled
        return self._due_change is not None and scheduled is not None and scheduled.txid == self._due_change

    def _should_move_cut(self) -> bool:
        """Return whether the cut should move now; each move costs a sync, so an idle node moves it seldom."""
        state = self.state
        if state.votes.done or state.votes.by_txid or state.votes.outcomes or state.schema.scheduled is not None:
            return True  # a transaction or a vote waits to become safe
        return state.clock.now.seconds - self._cut_at >= IDLE_CUT_S

    def gossip(self) -> None:
        """Tell all peers the ticks and clocks that we have reached."""
        state = self.state
        self._gossiped = (state.clock.closed, state.clock.cut)
        # Two forms of the report, with and without the retired timelines, serve all peers.
        whole = self._report(state.timelines.applied)
        timelines, has_retired = state.timelines, bool(state.roster.membership.retired)
        short = self._report(timelines.in_short(timelines.applied)) if has_retired else whole
        for node in state.roster.peers:
            state.outbox.send(node, short if self._knows_retired(node) else whole)

    def gossip_to(self, peer: str) -> None:
        """Tell one peer the ticks and clocks that we have reached."""
        timelines, knows = self.state.timelines, self._knows_retired(peer)
        self.state.outbox.send(
            peer, self._report(timelines.in_short(timelines.applied) if knows else timelines.applied)
        )

    def _knows_retired(self, peer: str) -> bool:
        """Return whether a peer has applied all retirements; if not, gossip to it includes the retired timelines."""
        return self.state.roster.peers[peer].config >= max(self.state.roster.membership.retired.values(), default=0)

    def _report(self, applied: Vector) -> Gossip:
        state = self.state
        clock = state.clock.read()
        # A node that has forgotten promises does not know its closed time, so safe time must not depend on it (T7).
        closed, cut = (state.clock.closed, state.clock.cut) if state.roster.claims_time else (0, 0)
        report = (canonical(applied), closed, cut, clock, state.store, state.batches, state.clock.wall_ms)
        members = state.roster.membership
        ours = (dict(state.holds), LEVEL, members.cluster_id, state.health.mode, members.version, state.reserved)
        return Gossip(*report, *ours)

    def _forget(self) -> None:
        """Drop the votes and outcomes that the journal replaces, and the commits that no base can lack any more."""
        state, settled = self.state, self.state.clock.settled
        # A taken commit that waits for its base keeps its outcome: it is not in the journal yet, and would otherwise
        # count as rolled back.
        state.votes.forget({entry.txid for queue in self.apply_queue.waiting.values() for entry in queue})
        # New commits are in an index by key. Settled commits are seldom looked up; packed, they take a tenth of the
        # memory.
        state.commit_window.pack(settled, state.votes.outcomes)
        # V15 accepts a base only if it has all commits that are a conflict window older than the transaction. For a
        # commit that is dropped sooner, the window keeps a floor, which V15 tests as well.
        state.commit_window.forget(moved(settled, -state.settings.conflict_window_ms))
        if not state.clock.follows_wall:
            state.commit_window.forget(self._safe_long_ago())

    def _safe_long_ago(self) -> int:
        """Return the newest safe time that has become a conflict window old since the last call, or 0.

        Needed for a clock that only counts, because such a clock does not tell the age of a commit.
        """
        state, aged = self.state, self._safe_history
        window_s = state.settings.conflict_window_ms / 1000
        # Sixteen samples per window suffice: the safe time has to be about a window old, and no younger.
        if not aged or state.clock.now.seconds - aged[-1][0] >= window_s / 16:
            aged.append((state.clock.now.seconds, state.clock.safe))
        found = 0
        while aged and aged[0][0] <= state.clock.now.seconds - window_s:
            found = aged.popleft()[1]
        return found
