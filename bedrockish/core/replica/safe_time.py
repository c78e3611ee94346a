"""Closed, cut and safe: the clocks up to which nothing can appear any more (section 6 of the protocol).

``times`` computes them; this module decides when and from which reports, and acts on the result. Nothing at or below
safe time can still appear at any node; the second round, of cuts, makes this hold against recoveries.
"""

from collections import deque
from collections.abc import Mapping

from bedrockish.common.levels import LEVEL
from bedrockish.core.protocol.effects import Keep
from bedrockish.core.protocol.health import Mode
from bedrockish.core.protocol.messages import Gossip
from bedrockish.core.replica import times
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.replica.times import Times
from bedrockish.core.state.settings import majority
from bedrockish.core.state.state import State
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import Vector, canonical, covers

IDLE_CUT_S = 1.0  # seconds between two moves of the cut when nothing waits for it
HURRY_S = 0.05  # seconds between two moves while a few things wait; while many do, the heartbeat is quick enough
NEVER = Txid(1 << 64, "")  # later than any clock
RELEASED = (1 << 63) - 1  # the clock of a hold that holds nothing
HURRY_MAX = 64  # things that wait


class SafeTime:
    """The keeper of the three times, which drops the state that they make superfluous."""

    def __init__(self, state: State, apply_queue: ApplyQueue) -> None:
        self.state = state
        self.apply_queue = apply_queue
        self._cut_at = -IDLE_CUT_S  # seconds when the cut last moved
        self._moved_at = -HURRY_S  # seconds when any of the three last had the chance to
        self._told: tuple[int, int] = (0, 0)  # closed and cut in our last gossip to all
        self._aged: deque[tuple[float, int]] = deque()  # (seconds, safe time then), oldest first
        self._due: Txid | None = None  # the schema change whose time has come

    def on_gossip(self, peer: str, message: Gossip) -> None:
        """Note the clocks and ticks that a peer has applied, closed and cut."""
        known = self.state.roster.peers.get(peer)
        if known is None:
            return
        # Where it knows that we have a retirement it leaves those timelines out; missing, they would look like a lack.
        known.applied = self.state.timelines.in_full(message.applied, message.config)
        known.level, known.config = message.level, message.config
        # A later release may know modes that are worse than the worst one here.
        known.mode = Mode(min(message.mode, Mode.REPAIRING))
        had, have = message.applied.get(self.state.me, 0), self.state.timelines.taken.get(self.state.me, 0)
        if had > have:  # we alone write our timeline, and do so before any peer hears of it
            self.state.lose(
                f"node {self.state.me} has lost commits of its own, and so has forgotten what it promised: {peer} has "
                f"{had} that it led, its file has {have}; stop it, run 'bedrockish member replace URL {self.state.me} "
                "NEW', and then 'bedrockish join URL --voter' for the node NEW on an empty file"
            )
        self.state.hear_wall(known, message.wall_ms)
        # A newer report replaces one that is not covered yet (T6): it says more, and needs more.
        known.report = (known.applied, message.closed, message.cut)
        self._hear_holds(message.holds)
        # A COMMIT may have died with its leader's links. A peer that has it says so here, and it is fetched.
        self.apply_queue.want(message.applied)
        self._cover()
        self._hurry()

    def _hear_holds(self, holds: Mapping[str, tuple[int, int]]) -> None:
        for name, hold in holds.items():
            # The later beginning of a reader counts, then the further place: all nodes agree in any order of arrival.
            if hold > self.state.holds.get(name, (0, 0)):
                self.state.hold_journal(name, hold)

    def held(self, name: str, clock: int | None) -> None:
        """Note up to where a reader of ours needs the journal; a clock below its earlier one is a new beginning."""
        times, before = self.state.holds.get(name, (0, RELEASED))
        if clock is None:
            self.state.hold_journal(name, (times, RELEASED))
        elif before == RELEASED or clock < before:
            # A new beginning outranks every place of the one before, at all nodes (``_hear_holds``).
            self.state.hold_journal(name, (times + 1, clock))
        elif clock > before:
            self.state.hold_journal(name, (times, clock))

    def _hurry(self) -> None:
        """Move on between two heartbeats while a few things wait to become safe and have had the time to."""
        state = self.state
        if (
            not 0 < len(state.votes.done) + len(state.votes.by_txid) <= HURRY_MAX
            or state.clock.now.seconds - self._moved_at < HURRY_S
        ):
            return
        lowest = min(min(state.votes.done, default=NEVER).clock, min(state.votes.by_txid, default=NEVER).clock)
        # Nothing would become safe by it.
        if state.clock.lag.closable(state.clock.now.seconds) < lowest:
            return
        self.advance()
        if (state.clock.closed, state.clock.cut) != self._told:
            self.gossip()

    def _cover(self) -> None:
        # T6: a peer's word counts when all that it had applied then is applied here: not a moment before.
        for known in self.state.roster.peers.values():
            if known.report is not None and covers(self.state.timelines.applied, known.report[0]):
                _, closed, cut = known.report
                # T7: a peer with 0 as closed has taken its word back, given before it knew that it had forgotten.
                known.closed = max(known.closed, closed) if closed else 0
                known.cut = max(known.cut, cut) if closed else 0
                known.report = None

    def advance(self) -> None:
        """Move the three times on, as far as they go."""
        state, clock, roster = self.state, self.state.clock, self.state.roster
        if not state.health.applies:
            return  # nothing is applied here any more, a schema change that would come into force included
        self._moved_at = clock.now.seconds
        self._cover()
        # All of these may still appear in the journal with their clocks.
        pending, unapplied = state.votes.pending.smallest_clock(), self.apply_queue.smallest_unapplied()
        # A BEGIN that is being compared or read came in time: our delay is not to make it TOO LATE.
        state.votes.forget_comparisons()
        # One that was overtaken by closed time is lost anyway, and would only keep time from closing further.
        compared = min((txid.clock for txid in state.votes.comparing if txid.clock > clock.closed), default=None)
        read = [one.closable + 1 for one in state.pieces.assembling if clock.now.seconds < one.until]
        lowest = min((one for one in (pending, unapplied, compared, *read) if one is not None), default=None)
        # A BEGIN may be on its way to us as long as the lag says; closing its clock before would make it TOO LATE.
        clock.lag.read(clock.now.seconds, clock.read())
        closable = clock.lag.closable(clock.now.seconds)
        if self._in_a_hurry():
            assert state.schema.scheduled is not None
            # The whole cluster waits for this clock: the distance for late BEGINs is given up, once.
            closable = max(closable, state.schema.scheduled.activates)
        own = Times(clock.closed, clock.cut, clock.safe)
        found = times.times(
            own,
            [(roster.peers[node].closed, roster.peers[node].cut) for node in roster.voters if node != state.me],
            roster.majority,
            closable,
            lowest,
            # T5: one that has forgotten its promises counts as one that has closed nothing; a learner not at all.
            counts=roster.claims_time and roster.is_voter(state.me),
            moves_cut=self._worth_a_sync(),
        )
        was_settled = clock.settled
        clock.close(*found)
        if found.cut > own.cut:
            self._cut_at = clock.now.seconds
            state.outbox.emit(Keep("cut", found.cut))  # T3: durable before it is told, for P10 and others rest on it
        if found.safe > own.safe:
            # Votes forgotten below it would look open to a restarted node that began at an older one.
            state.outbox.emit(Keep("safe", found.safe))
        clock.settle(self._settled())
        if clock.settled > was_settled and moved(clock.settled, -state.settings.conflict_window_ms) > found.safe:
            state.outbox.emit(Keep("settled", clock.settled))  # far behind: a restart must not read all since safe time
        # Also for votes that ended when safe time was past them: they would be kept for ever.
        if found.safe > own.safe or clock.settled > was_settled or state.votes.late:
            self._forget()
        # All with a smaller clock than the activation is applied, at every node the same: now the schema may change.
        if state.schema.is_behind(clock.safe):
            state.activate()

    def _settled(self) -> int:
        """Return the safe time that would hold if all that others have reported as applied were applied here.

        A node that was away, or is new, has much to take before it is. But nothing is decided below that clock any
        more already, so applied commits below it need not be remembered, and the transactions that are compared with
        commits have a base with all of them up to a conflict window before.
        """
        roster = self.state.roster
        # The majority is one of the voters that decide the next transactions, as far as this node knows.
        told = roster.membership
        if roster.joining is not None and roster.joining.membership.version > told.version:
            told = roster.joining.membership  # the voters of the time when this file was written may be gone
        voters = [node for node in told.voters if node != self.state.me]
        peers = [peer for node in voters if (peer := roster.peers.get(node)) is not None]
        # T8: others' words count before what they had is applied here, but not if there are voters that we do not know.
        if any(peer.config > told.version for peer in peers):
            return 0
        words = [(peer.closed, peer.cut) if peer.report is None else peer.report[1:] for peer in peers]
        counts = roster.claims_time and roster.is_voter(self.state.me)
        return times.settled(words, self.state.clock.cut, majority(len(told.voters)), counts=counts)

    def schema_due(self, txid: Txid) -> None:
        """Close time up to a schema change that is due, at once: others wait for it to be in force.

        A clock that only counts, or is behind, is moved on: else it would never reach that time.
        """
        scheduled = self.state.schema.scheduled
        if scheduled is not None and scheduled.txid == txid:
            self.state.clock.adjust(scheduled.activates)
            self._due = txid

    def hurry(self) -> bool:
        """Move on after every step while a schema change is due, and tell, instead of at the next heartbeat.

        Returns whether it is.
        """
        state = self.state
        if not self._in_a_hurry():
            return False
        self.advance()
        if (state.clock.closed, state.clock.cut) != self._told:
            self.gossip()
        return True

    def _in_a_hurry(self) -> bool:
        return (
            self._due is not None
            and self.state.schema.scheduled is not None
            and self.state.schema.scheduled.txid == self._due
        )

    def _worth_a_sync(self) -> bool:
        """Return whether the cut should move now: each move costs a sync, which an idle node need not make so often."""
        state = self.state
        if state.votes.done or state.votes.by_txid or state.votes.outcomes or state.schema.scheduled is not None:
            return True  # something waits to become safe
        return state.clock.now.seconds - self._cut_at >= IDLE_CUT_S

    def gossip(self) -> None:
        """Tell all peers the ticks and clocks that we have reached."""
        state = self.state
        self._told = (state.clock.closed, state.clock.cut)
        # Two reports for all of them: a vector is made canonical once, and not for each peer.
        whole = self._report(state.timelines.applied)
        short = (
            self._report(state.timelines.in_short(state.timelines.applied))
            if state.roster.membership.retired
            else whole
        )
        for node in state.roster.peers:
            state.outbox.send(node, short if self._knows_retired(node) else whole)

    def gossip_to(self, peer: str) -> None:
        """Tell one peer the ticks and clocks that we have reached."""
        state = self.state
        self.state.outbox.send(
            peer,
            self._report(
                state.timelines.in_short(state.timelines.applied)
                if self._knows_retired(peer)
                else state.timelines.applied
            ),
        )

    def _knows_retired(self, peer: str) -> bool:
        """Return whether a peer has all retired timelines; else it has to hear which peers have the rest of them."""
        return self.state.roster.peers[peer].config >= max(self.state.roster.membership.retired.values(), default=0)

    def _report(self, applied: Vector) -> Gossip:
        state = self.state
        clock = state.clock.read()
        # One that has forgotten its promises cannot say what it has closed: safe time may not rest on it. (T7)
        closed, cut = (state.clock.closed, state.clock.cut) if state.roster.claims_time else (0, 0)
        report = (canonical(applied), closed, cut, clock, state.store, state.batches, state.clock.wall_ms)
        members = state.roster.membership
        ours = (dict(state.holds), LEVEL, members.cluster_id, state.health.mode, members.version, state.reserved)
        return Gossip(*report, *ours)

    def _forget(self) -> None:
        """Drop votes and outcomes up to safe time, up to which the journal is the whole truth; and settled commits."""
        state, settled = self.state, self.state.clock.settled
        # A commit that is taken and waits keeps its outcome: not in the journal yet, it would be told as rolled back.
        state.votes.forget({entry.txid for queue in self.apply_queue.waiting.values() for entry in queue})
        # The index by key is for new commits; settled ones are looked up seldom, and take a tenth of the room packed.
        state.commit_window.pack(settled, state.votes.outcomes)
        # A base that V16 lets pass has all up to a window before its clock. A commit dropped sooner leaves a floor.
        state.commit_window.forget(moved(settled, -state.settings.conflict_window_ms))
        if not state.clock.follows_wall:
            state.commit_window.forget(self._safe_long_ago())

    def _safe_long_ago(self) -> int:
        """Return the safe time of a conflict window ago: a clock that only counts does not tell the age of commits."""
        state, aged = self.state, self._aged
        window_s = state.settings.conflict_window_ms / 1000
        # Sixteen notes in a window are exact enough: it only has to be old, not exactly so old.
        if not aged or state.clock.now.seconds - aged[-1][0] >= window_s / 16:
            aged.append((state.clock.now.seconds, state.clock.safe))
        found = 0
        while aged and aged[0][0] <= state.clock.now.seconds - window_s:
            found = aged.popleft()[1]
        return found
