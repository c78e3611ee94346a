"""Closed, cut and safe: up to which clock nothing can appear any more (section 6 of the protocol).

What they are is computed by ``times``; here is when, from what, and what follows. Nothing at or below safe time can
still appear anywhere; the second round, of cuts, is what makes this hold against recoveries.
"""

from collections import deque
from collections.abc import Mapping

from bedrockish.common.hlc import moved
from bedrockish.common.levels import LEVEL
from bedrockish.core.protocol.effects import Keep, KeepHold
from bedrockish.core.protocol.health import Mode
from bedrockish.core.protocol.messages import Gossip
from bedrockish.core.replica import times
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.replica.times import Times
from bedrockish.core.state.state import State
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import Vector, canonical, covers

IDLE_CUT_S = 1.0  # seconds between two moves of the cut when there is nothing that waits for it
HURRY_S = 0.02  # seconds between two moves while a few things wait; while many do, the heartbeat is quick enough
NEVER = Txid(1 << 64, "")
RELEASED = (1 << 63) - 1  # the clock of a hold that holds nothing
HURRY_MAX = 64  # things that wait


class SafeTime:
    """Keeps the three times, and lets go of what they make superfluous."""

    def __init__(self, state: State, apply_queue: ApplyQueue) -> None:
        self.state = state
        self.apply_queue = apply_queue
        self._cut_at = -IDLE_CUT_S
        self._moved_at = -HURRY_S
        self._told: tuple[int, int] = (0, 0)
        self._aged: deque[tuple[float, int]] = deque()  # (seconds, safe time then), oldest first
        self._due: Txid | None = None  # the schema change whose time has come

    def on_gossip(self, peer: str, message: Gossip) -> None:
        """Take in what a peer has applied, closed and cut."""
        known = self.state.peers.get(peer)
        if known is None:
            return
        known.applied = self.state.in_full(message.applied, message.config)
        known.level, known.config = message.level, message.config
        known.mode = Mode(min(message.mode, Mode.REPAIRING))
        had, have = message.applied.get(self.state.me, 0), self.state.taken.get(self.state.me, 0)
        if had > have:  # we alone write our timeline, and we do so before anybody hears of it
            self.state.lose(
                f"node {self.state.me} has lost commits of its own, and so has forgotten what it promised: {peer} has "
                f"{had} that it led, its file has {have}; stop it, run 'bedrockish member replace URL {self.state.me} "
                "NEW', and then 'bedrockish join URL --voter' for the node NEW on an empty file"
            )
        self.state.hear_wall(known, message.wall_ms)
        known.report = (known.applied, message.closed, message.cut)
        self._hear_holds(message.holds)
        self.apply_queue.want(message.applied)
        self._cover()
        self._hurry()

    def _hear_holds(self, holds: Mapping[str, tuple[int, int]]) -> None:
        for name, hold in holds.items():
            if hold > self.state.holds.get(name, (0, 0)):
                self.hold(name, hold)

    def hold(self, name: str, hold: tuple[int, int]) -> None:
        """Note, durably, from which clock on a reader needs the journal."""
        self.state.holds[name] = hold
        self.state.emit(KeepHold(name, *hold))

    def held(self, name: str, clock: int | None) -> None:
        """Take what a reader of ours needs; a clock below an earlier one of the same reader is a new beginning."""
        times, before = self.state.holds.get(name, (0, RELEASED))
        if clock is None:
            self.hold(name, (times, RELEASED))
        elif before == RELEASED or clock < before:
            self.hold(name, (times + 1, clock))
        elif clock > before:
            self.hold(name, (times, clock))

    def _hurry(self) -> None:
        """Move on between two heartbeats while a few things wait to become safe and have had the time to."""
        state = self.state
        if not 0 < len(state.done) + len(state.votes) <= HURRY_MAX or state.now.seconds - self._moved_at < HURRY_S:
            return
        lowest = min(min(state.done, default=NEVER).clock, min(state.votes, default=NEVER).clock)
        if state.closing_lag.closable(state.now.seconds) < lowest:
            return
        self.advance()
        if (state.closed, state.cut) != self._told:
            self.gossip()

    def _cover(self) -> None:
        # T6: a peer's word counts when all that it had applied then is applied here: not a moment before.
        for known in self.state.peers.values():
            if known.report is not None and covers(self.state.applied, known.report[0]):
                _, closed, cut = known.report
                # T7: who has nothing closed has taken its word back, which it gave before it knew that it forgot.
                known.closed = max(known.closed, closed) if closed else 0
                known.cut = max(known.cut, cut) if closed else 0
                known.report = None

    def advance(self) -> None:
        """Move the three times on, as far as they go."""
        state = self.state
        if not state.health.applies:
            return  # nothing is applied here any more, a schema change that would come into force included
        self._moved_at = state.now.seconds
        self._cover()
        pending, unapplied = state.pending.smallest_clock(), self.apply_queue.smallest_unapplied()
        state.comparing = {txid: until for txid, until in state.comparing.items() if state.now.seconds < until}
        compared = min((txid.clock for txid in state.comparing if txid.clock > state.closed), default=None)
        read = [one.closable + 1 for one in state.pieces.assembling if state.now.seconds < one.until]
        lowest = min((clock for clock in (pending, unapplied, compared, *read) if clock is not None), default=None)
        state.closing_lag.read(state.now.seconds, state.clock.read(state.now.wall_ms))
        closable = state.closing_lag.closable(state.now.seconds)
        if self._in_a_hurry():
            assert state.scheduled is not None
            closable = max(closable, state.scheduled.activates)
        own, before = Times(state.closed, state.cut, state.safe), state.safe
        found = times.times(
            own,
            [(state.peers[node].closed, state.peers[node].cut) for node in state.voters if node != state.me],
            state.majority,
            closable,
            lowest,
            # T5: one that has forgotten its promises counts as one that has closed nothing; a learner not at all.
            counts=state.claims_time and state.is_voter(state.me),
            moves_cut=self._worth_a_sync(),
        )
        state.closed, safe = found.closed, found.safe
        if found.cut > state.cut:
            state.cut = found.cut
            self._cut_at = state.now.seconds
            state.emit(Keep("cut", found.cut))  # T3: durable before it is told, for P10 and others rest on it
        if safe > before:
            state.safe = safe
            state.emit(Keep("safe", safe))
        if safe > before or state.late:
            self._forget()
        if state.awaits_schema(state.safe):
            state.activate()

    def schema_due(self, txid: Txid) -> None:
        """The time of a schema change has come: close up to there at once, for others wait for it to be in force.

        A clock that only counts, or stands behind, is moved on: else nobody would ever reach that time.
        """
        scheduled = self.state.scheduled
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
        if (state.closed, state.cut) != self._told:
            self.gossip()
        return True

    def _in_a_hurry(self) -> bool:
        return self._due is not None and self.state.scheduled is not None and self.state.scheduled.txid == self._due

    def _worth_a_sync(self) -> bool:
        """Whether the cut should move now: it has to be durable, and an idle node need not sync at every heartbeat."""
        state = self.state
        if state.done or state.votes or state.outcomes or state.scheduled is not None:
            return True  # something waits to become safe
        return state.now.seconds - self._cut_at >= IDLE_CUT_S

    def gossip(self) -> None:
        """Tell everybody where we stand."""
        state = self.state
        self._told = (state.closed, state.cut)
        whole = self._report(state.applied)
        short = self._report(state.in_short(state.applied)) if state.membership.retired else whole
        for node in state.peers:
            state.send(node, short if self._knows_retired(node) else whole)

    def gossip_to(self, peer: str) -> None:
        """Tell one peer where we stand."""
        state = self.state
        self.state.send(
            peer, self._report(state.in_short(state.applied) if self._knows_retired(peer) else state.applied)
        )

    def _knows_retired(self, peer: str) -> bool:
        """Whether a peer has all of what is retired; else it has to hear from whom it gets what it lacks of that."""
        return self.state.peers[peer].config >= max(self.state.membership.retired.values(), default=0)

    def _report(self, applied: Vector) -> Gossip:
        state = self.state
        clock = state.clock.read(state.now.wall_ms)
        # One that has forgotten its promises cannot say what it has closed: safe time may not rest on it. (T7)
        closed, cut = (state.closed, state.cut) if state.claims_time else (0, 0)
        report = (canonical(applied), closed, cut, clock, state.store, state.batches, state.wall_ms)
        members = state.membership
        return Gossip(*report, dict(state.holds), LEVEL, members.cluster_id, state.health.mode, members.version)

    def _forget(self) -> None:
        """Drop what safe time decides: up to it, the journal is the whole truth."""
        state, safe = self.state, self.state.safe
        state.late = False
        for txid in [txid for txid in state.votes if txid.clock <= safe]:
            if txid in state.pending:
                # Pending here, and yet below safe: not in the journal, so it can never be committed.
                state.end(txid, commit=False)
            state.drop_vote(txid)
        waiting = {entry.txid for queue in self.apply_queue.waiting.values() for entry in queue}
        for txid in [txid for txid in state.outcomes if txid.clock <= safe and txid not in waiting]:
            if txid not in state.ended:
                del state.outcomes[txid]
        state.done = {txid for txid in state.done if txid.clock > safe}
        state.own_ends.forget(state.closed)
        state.commit_window.pack(safe, state.outcomes)
        state.commit_window.forget(moved(safe, -state.settings.conflict_window_ms))
        if not state.clock.follows_wall:
            state.commit_window.forget(self._safe_long_ago())

    def _safe_long_ago(self) -> int:
        """Return what was safe a conflict window ago: a clock that only counts does not tell how old anything is."""
        state, aged = self.state, self._aged
        window_s = state.settings.conflict_window_ms / 1000
        if not aged or state.now.seconds - aged[-1][0] >= window_s / 16:
            aged.append((state.now.seconds, state.safe))
        found = 0
        while aged and aged[0][0] <= state.now.seconds - window_s:
            found = aged.popleft()[1]
        return found
