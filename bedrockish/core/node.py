"""The node: a pure state machine that takes events and returns effects. This module only wires the parts together.

Rule 1: the core does not wait, read a clock, draw a random number or open a file. Rule 2: the driver sends a message
only when all earlier writes of the node are durable, or the facts that the message itself names (``effects.Early``).
"""

from collections.abc import Callable
from typing import assert_never

from bedrockish.core.coordinator.coordinator import Coordinator
from bedrockish.core.coordinator.read_checks import ReadChecks
from bedrockish.core.coordinator.request import Stage
from bedrockish.core.invariants import check as check_invariants
from bedrockish.core.protocol import events as on
from bedrockish.core.protocol import messages as say
from bedrockish.core.protocol.effects import Activate, Apply, Effect, Execute, Malformed
from bedrockish.core.protocol.health import Mode
from bedrockish.core.protocol.records import Recovered
from bedrockish.core.recovery.recovery import PATIENCE_MAX, Recovery
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.replica.safe_time import SafeTime
from bedrockish.core.replica.staging import Staging
from bedrockish.core.replica.voter import ASKED_MAX, Voter
from bedrockish.core.state.file_lookups import EMPTY_FILE, FileLookups
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.settings import Settings
from bedrockish.core.state.state import State
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.levels import OLDEST
from bedrockish_journal.model.transaction import Txid

# The messages that a node with damaged tables still handles: gossip, questions that its journal answers, and answers
# about its own transactions, which it gave up when it started. It ignores all other messages, as if it were down.
HEARD_WHEN_DAMAGED = (say.Gossip, say.Fetch, say.Want, say.Ask, say.Accepted, say.Refused, say.Outcome)
NEEDS_TABLES = (Apply, Activate, Execute)

IDLE_BEATS = 5  # the heartbeats of an idle node are up to this many times rarer, because each one wakes all peers


def idle_ms(settings: Settings) -> int:
    """Return the interval of the heartbeats of an idle node.

    The interval leaves half of ``suspicion_ms`` for the delay of a message: otherwise the node would seem silent.
    """
    return max(settings.heartbeat_ms, min(IDLE_BEATS * settings.heartbeat_ms, settings.suspicion_ms // 2))


class Node:
    """The state machine of one node."""

    is_slow = False  # whether the node is idle, and its next heartbeat comes later than after ``heartbeat_ms``

    def __init__(
        self,
        recovered: Recovered,  # the contents of the node's file
        settings: Settings,  # timings and bounds
        draw: Callable[[], float],  # returns a random number in [0, 1); the only source of randomness
        now: on.Now,  # the driver's clocks at the start
        *,
        # False: the clock only counts, and ignores the wall clock (``bedrockish clock URL off``).
        follows_wall: bool = True,
        lookups: FileLookups = EMPTY_FILE,  # the driver's functions that look things up in the file
    ) -> None:
        self.state = State(recovered, settings, draw, now, follows_wall=follows_wall, lookups=lookups)
        self.apply_queue = ApplyQueue(self.state)
        self.voter = Voter(self.state, self.apply_queue)
        self.read_checks = ReadChecks(self.state)
        self.staging = Staging(self.state)
        self.coordinator = Coordinator(self.state, self.apply_queue, self.voter, self.read_checks, self.staging)
        self.recovery = Recovery(self.state, self.apply_queue, self.voter, self.coordinator)
        self.safe_time = SafeTime(self.state, self.apply_queue)
        self._beats = 0  # the number of the next heartbeat; a timer with another number is out of date

    def start(self, now: on.Now) -> list[Effect]:
        """Give up the transactions that were open before the restart, start the heartbeat, and return the effects."""
        self.state.set_now(now)
        # Approvals that were counted before the restart are lost, so this node cannot commit these transactions.
        self.coordinator.rollbacks.restart()
        self._heartbeat()
        return self._finish_step()

    def step(self, event: on.Event, now: on.Now) -> list[Effect]:
        """Handle one event and return its effects, in the order in which the driver must execute them."""
        self.state.set_now(now)
        match event:
            case on.Received(peer, message):
                self._receive(peer, message)
            case on.Submitted(request_id, request, once, others):
                self.coordinator.submit(request_id, request, once=once, others=others)
            case on.Executed() | on.Overtaken() | on.ClockWanted() | on.Failed():
                self.coordinator.stage_ended(Stage.EXECUTING, event.request_id, event)
            case on.MovedToWorker(request_id):
                self.coordinator.moved_to_worker(request_id)
            case on.NewerAsked(number, base):
                self.read_checks.ask_newer(number, base)
            case on.ClockSet(follows_wall):
                self.state.clock.follow_wall(follows=follows_wall)
                self.safe_time.gossip()
            case on.Shortened(upto):
                self.state.timelines.remove(upto)
            case on.Held(name, clock):
                self.safe_time.held(name, clock)
                self.safe_time.gossip()
            case on.Dropped(request_id):
                self.coordinator.replies.drop(request_id)
            case on.Decided(request_id, txid, answer):
                self.coordinator.replies.decided(request_id, txid, answer)
            case on.Activated(txid, failure):
                self.coordinator.replies.activated(txid, failure)
            case on.Compared(txid):
                self.voter.on_compared(txid)
            case on.Assembled(peer, parts, data, known):
                if known is not None:
                    self.state.pieces.keep_decoded(known)
                whole = self.staging.on_assembled(peer, parts, data, known)
                if whole is not None:
                    self._receive(peer, whole)
            case on.PeerUp(peer):
                self._peer_up(peer)
            case on.PeerDown(peer):
                if peer in self.state.roster.peers:
                    self.state.roster.peers[peer].up = False
                    self.coordinator.contention.reservations.check()
                    # The peer approves nothing for now, so attempts that need its approval are given up.
                    self.coordinator.check()
            case on.Accused(peer, reason, for_good):
                self.state.roster.note_refusal(peer, reason)
                if for_good:
                    self.state.note_lost_promise(reason)
            case on.Woken():
                pass
            case _:
                assert_never(event)
        for timer, subject in self.state.timers.due():
            self._on_timer(timer, subject)
        return self._finish_step()

    def tick(self, now: on.Now) -> int:
        """Return a new clock for the driver; the next step makes a ceiling above it durable."""
        self.state.set_now(now)
        return self.state.clock.tick()

    def deadline(self) -> float | None:
        """Return the time, in seconds, at which to step ``Woken`` if no event comes before; None for never."""
        return self.state.timers.deadline()

    def check(self) -> None:
        """Assert the invariants, which hold after each step; for the simulator, the model check and tests.

        Raises:
            AssertionError: an invariant is broken.
        """
        check_invariants(self.state, self.apply_queue, self.coordinator)

    def _finish_step(self) -> list[Effect]:
        # The queue is usually empty: the test saves a call in most of the steps of a commit.
        if self.coordinator.ready.queue:
            self.coordinator.advance()
        if self.coordinator.command_groups.leading:
            self.coordinator.command_groups.dissolve_waiting()
        self._pass_on_progress()
        # Gossip a new or ended reservation now, not at the next heartbeat: the other leaders hold back because of it.
        if self.coordinator.contention.reservations.is_changed:
            self.coordinator.contention.reservations.is_changed = False
            self.safe_time.gossip()
        # Transactions wait for the scheduled schema change, so close time at each step, not only at a heartbeat.
        if self.state.schema.scheduled is not None and self.safe_time.advance_for_change():
            self._pass_on_progress()
        if self.is_slow and not self._is_idle():
            self._beat_in(self.state.settings.heartbeat_ms)
        # The ceiling is set last, so that it covers every clock that this step has used. Its effect is the first, so
        # that it is durable before a message with such a clock leaves.
        self.state.keep_ceiling()
        effects = self.state.outbox.drain()
        assert self.state.health.applies or not any(isinstance(effect, NEEDS_TABLES) for effect in effects)
        return effects

    def _pass_on_progress(self) -> None:
        """Pass the outcomes and applied entries of this step to the parts that wait for them, until none are left.

        This method runs at every step, so it skips parts without work.
        """
        state, voter, recovery = self.state, self.voter, self.recovery
        # Apply the entries of this step before the requests that wait for them go on.
        self.apply_queue.apply_ready()
        while voter.rivals:
            self.coordinator.contention.turns.note_rival(voter.rivals.pop())
        ready = self.coordinator.ready
        if ready.queue:
            self.coordinator.advance()
        while state.votes.ended or state.votes.released or state.progress or voter.approved:
            approved, voter.approved = voter.approved, []
            contention = self.coordinator.contention
            for transaction in approved if contention.wait_queue.heads or contention.turns.until else ():
                # Skip a transaction that has already ended in this step.
                if transaction.txid in state.votes.pending:
                    contention.wait_queue.became_pending(transaction.txid, transaction.access_set)
            if state.take_progress():
                if voter.deferred:
                    voter.judge_deferred()
                if recovery.deferred or recovery.adoptable:
                    recovery.answer_deferred()
                self.coordinator.resume_waiting()
            if self.coordinator.catch_up.waiting:
                self.coordinator.resume_strict_reads()
            # First the outcomes, then the waiting requests: a request that shares an ended transaction must get the
            # outcome, and must not just be executed again.
            for txid in state.votes.take_ended():
                # None for a commit that is too old for the conflict window: V15 refuses each base that lacks it.
                known = state.commit_window.known.get(txid)
                if state.votes.outcomes[txid] and known is not None:
                    self.coordinator.attempts.abort_conflicting(known)
                self.coordinator.attempts.ended(txid)
                if recovery.rounds or recovery.deferred:
                    recovery.ended(txid)
            for txid in state.votes.take_released() if state.votes.released else ():
                contention.wait_queue.released(txid)
                if recovery.rounds:
                    recovery.released(txid)
            self.apply_queue.apply_ready()
            if ready.queue:
                self.coordinator.advance()

    def _receive(self, peer: str, message: say.Message) -> None:
        state = self.state
        known = state.roster.peers.get(peer)
        # Messages of a node that is not a member are ignored. A node with damaged tables ignores all but a few, as if
        # it were down, which is always safe.
        if known is None or not (state.health.applies or isinstance(message, HEARD_WHEN_DAMAGED)):
            return
        # Any message shows that the peer is alive, even if its tables are damaged.
        known.heard = state.clock.now.seconds
        state.roster.hear(peer, say.SINCE.get(message.__class__, OLDEST))
        # The peer was slow, not dead: next time this node waits twice as long before it recovers the peer's
        # transactions.
        if known.suspected:
            known.suspected, known.patience = False, min(2 * known.patience, PATIENCE_MAX)
        match message:
            case (
                say.Begin() | say.Fetch() | say.AskClock() | say.ToldClock() | say.Want() | say.Piece() | say.InPieces()
            ):
                pass  # the message has no clock, or its handler tests the clock before our clock moves up
            case say.Recover() | say.Promise() | say.Accept() | say.Accepted() | say.Refused() | say.Outcome():
                # Recovery has to go on, so our clock follows the clock of these messages even if it is days ahead.
                if state.clock.is_absurd(message.clock):
                    state.outbox.emit(
                        Malformed(peer, f"{type(message).__name__.upper()}: a clock more than a year ahead")
                    )
                    return
                known.clock = max(known.clock, message.clock)
                state.clock.adjust(message.clock)
            case _:  # including COMMIT; our clock moves up to the transaction's own clock when the entry is taken
                known.clock = max(known.clock, message.clock)
                state.hear_clock(peer, message.clock)
        try:
            self._dispatch(peer, message)
        except EntryMalformedError as error:  # handlers decode everything before they change the state
            state.outbox.emit(Malformed(peer, f"{type(message).__name__.upper()}: {error}"))

    def _dispatch(self, peer: str, message: say.Message) -> None:
        match message:
            case say.Begin():
                self.voter.on_begin(peer, message)
            case say.Approve():
                self.coordinator.attempts.on_approve(peer, message)
            case say.Reject():
                self.coordinator.attempts.on_reject(peer, message)
            case say.Commit():
                self.apply_queue.on_commit(message)
            case say.Rollback():
                self.voter.on_rollback(peer, message)
            case say.Recover():
                self.recovery.on_recover(peer, message)
            case say.Promise():
                self.recovery.on_promise(peer, message)
            case say.Accept():
                self.recovery.on_accept(peer, message)
            case say.Accepted():
                # Ballot 1 is the rollback of a leader, a higher one a recovery: each handler ignores the other's
                # ballots.
                self.coordinator.rollbacks.on_accepted(peer, message)
                self.recovery.on_accepted(peer, message)
            case say.Refused():
                self.coordinator.rollbacks.on_refused(message)
                self.recovery.on_refused(message)
            case say.Outcome():
                self._on_outcome(peer, message)
            case say.Ask():
                self.coordinator.rollbacks.give_up_forgotten((message.txid, *message.more[:ASKED_MAX]))
                self.voter.on_ask(peer, message)
            case say.Gossip():
                # First the reported times: they count even if the reservation is malformed.
                self.safe_time.on_gossip(peer, message)
                self.coordinator.contention.reservations.heard(peer, message.reserved)
            case say.Fetch():
                self.apply_queue.on_fetch(peer, message)
            case say.Entries():
                self.apply_queue.on_entries(peer, message)
            case say.Check():
                self.read_checks.on_check(peer, message)
            case say.AskClock():
                self.coordinator.clock_quorum.on_ask(peer, message)
            case say.ToldClock():
                request = self.coordinator.clock_quorum.on_told(peer, message)
                if request is not None:
                    self.coordinator.stage_ended(Stage.CLOCK, request)
            case say.Removed():
                self.apply_queue.on_removed(peer, message)
            case say.InPieces():
                self.staging.on_message(peer, message)
            case say.Piece():
                self.staging.on_piece(peer, message)
            case say.Want():
                self.coordinator.offers.on_want(peer, message)
            case say.Offer():
                self.staging.on_offer(peer, message)
            case say.Stored():
                request = self.coordinator.offers.on_stored(peer, message)
                if request is not None:
                    self.coordinator.stage_ended(Stage.OFFERED, request)
            case say.Checked():
                for number, valid in self.read_checks.on_checked(peer, message):
                    self.coordinator.stage_ended(Stage.CHECKING, number, valid)
            case _:
                assert_never(message)

    def _on_outcome(self, peer: str, message: say.Outcome) -> None:
        if message.commit:
            # The transaction counts as committed here only when the entry has arrived, so that it can be applied.
            self.apply_queue.on_outcome(peer, message)
            self.apply_queue.fetch_missing(at_once=True)
        # Up to safe time the journal has every outcome: a message about such a transaction is late or wrong.
        elif self.state.outcome(message.txid) is None and message.txid.clock > self.state.clock.safe:
            self.state.votes.end(message.txid, commit=False)

    def _peer_up(self, peer: str) -> None:
        if peer not in self.state.roster.peers:
            return
        self.state.roster.peers[peer].up = True
        self.state.roster.drop_refusal(peer)
        # The old link lost its undelivered messages, so all messages without an answer are sent to this peer again.
        self.safe_time.gossip_to(peer)
        self.staging.resume(peer)
        self.coordinator.resend(peer)
        self.recovery.resend(peer)

    def _heartbeat(self) -> None:
        # Safe time first, so that the gossip after it has the newest values.
        self.safe_time.advance()
        self.safe_time.gossip()
        self.apply_queue.fetch_missing()
        # The leader of a deferred BEGIN gets the outcome if safe time has passed the BEGIN's clock.
        self.voter.judge_deferred()
        self.staging.check()
        self.recovery.check()
        self.coordinator.check()
        self.coordinator.contention.reservations.check()
        self.coordinator.clock_quorum.repeat(self.coordinator.replies.in_flight)
        # The new safe time may end a session's wait for a vector, or a strict read's wait for the ends of transactions.
        self.coordinator.resume_waiting()
        self.coordinator.resume_strict_reads()
        settings = self.state.settings
        self._beat_in(idle_ms(settings) if self._is_idle() else settings.heartbeat_ms)

    def _beat_in(self, milliseconds: int) -> None:
        """Set the time of the next heartbeat; a heartbeat that was set before becomes out of date."""
        self._beats += 1
        self.is_slow = milliseconds > self.state.settings.heartbeat_ms
        self.state.timers.set(milliseconds, Timer.HEARTBEAT, self._beats)

    def _is_idle(self) -> bool:
        """Return whether no work here depends on a heartbeat of this node or a peer, and no peer lacks entries."""
        state, votes, queue = self.state, self.state.votes, self.apply_queue
        # Every transaction that this node knows has ended, and is below safe time.
        all_ended = not (votes.by_txid or votes.outcomes or votes.done or votes.comparing or state.schema.scheduled)
        is_asking = self.coordinator.replies.in_flight or self.read_checks.questions or self.recovery.rounds
        is_fetching = queue.gaps or any(queue.waiting.values()) or self.staging.incomplete or state.pieces.assembling
        # While safe time is a conflict window behind, as at the start of a cluster, no leader begins a transaction.
        is_safe = state.clock.read() < moved(state.clock.safe, state.settings.conflict_window_ms // 2)
        return (
            all_ended
            and is_safe
            and not (is_asking or is_fetching or state.reserved or state.roster.joining)
            and state.health.mode is Mode.SERVING
            and all(peer.applied == state.timelines.applied for peer in state.roster.peers.values() if peer.up)
        )

    def _on_timer(self, timer: Timer, subject: object) -> None:
        match timer, subject:
            case Timer.HEARTBEAT, number:
                if number == self._beats:
                    self._heartbeat()
            case Timer.VOTES, _:
                self.voter.judge_deferred()
            case Timer.FETCH, _:
                self.apply_queue.fetch_missing(at_once=True)
            case Timer.REQUEST_AGAIN, int(number):
                self.coordinator.stage_ended(Stage.PAUSED, number)
            case Timer.REQUEST_DEADLINE, int(number):
                self.coordinator.past_deadline(number)
            case Timer.BEGIN_REST, Txid() as txid:
                self.coordinator.attempts.send_to_unasked(txid, is_late=True)
            case Timer.ASK_REST, int(number):
                self.read_checks.send_to_unasked(number)
            case Timer.ASK_ENDS, int(number):
                self.coordinator.catch_up.ask_ends(number)
            case Timer.RESERVATION, _:
                self.coordinator.contention.reservations.check()
            case Timer.SCHEMA_DUE, Txid() as txid:
                self.safe_time.schema_due(txid)
            case Timer.RECOVER_AGAIN, Txid() as txid:
                self.recovery.again(txid)
            case _:
                raise AssertionError(f"{timer} has no subject {subject!r}")
