"""Our own transactions, from a client's request to its answer (section 3 of the protocol).

A client's request (``InFlight``) may need several attempts. An *attempt* is one transaction in flight. A request
waits for the transactions that it conflicts with, and is then executed again on a newer snapshot. It is answered
"did not happen" only when every attempt that it made is known to have been rolled back.

On the way to its transaction, or to its answer if it only reads, a request is moved by ``Coordinator.advance`` alone.
Timers, completions and the parts that unblock the request queue it when its stage has ended. The handler of the stage
then returns a ``Step``, and ``advance`` carries it out. A request in flight depends on a transaction: ``Attempts``
answers the request, or lets it pause, together with all requests that share the transaction.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from bedrockish.api.requests import STRICT, Answer, Request
from bedrockish.core.coordinator import request as requests
from bedrockish.core.coordinator.abort import Rollbacks
from bedrockish.core.coordinator.attempts import Attempt, Attempts
from bedrockish.core.coordinator.catch_up import CatchUp
from bedrockish.core.coordinator.commit_clock import ClockQuorum
from bedrockish.core.coordinator.contention import Contention, Obstacle, Pause, WaitFor
from bedrockish.core.coordinator.offers import Offers
from bedrockish.core.coordinator.reads import Reading
from bedrockish.core.coordinator.replies import Replies
from bedrockish.core.coordinator.request import Awaited, End, InFlight, Ready, Stage
from bedrockish.core.coordinator.revalidation import first_conflict, move
from bedrockish.core.coordinator.schema_barrier import activation_clock
from bedrockish.core.coordinator.wait_queue import CommandGroups
from bedrockish.core.protocol.effects import Execute
from bedrockish.core.protocol.events import ClockWanted, Failed, Overtaken
from bedrockish.core.protocol.records import FORGOTTEN, Prepared
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.replica.staging import Staging
from bedrockish.core.replica.voter import Voter
from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.certifier import claim, command_key
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.state import State
from bedrockish.errors import BedrockishError, UsageError, forgotten, told_too_early
from bedrockish_journal.model.access_set import AccessSet, is_clock
from bedrockish_journal.model.clock import CLOCK_LIMIT, moved
from bedrockish_journal.model.transaction import SCHEMA, Txid
from bedrockish_journal.model.vector import covers

# The next step of a request: a stage to enter, an attempt to begin (IN_FLIGHT), an obstacle to wait for (WAITING,
# PAUSED), an answer, or an error, which is answered when no attempt of the request can still commit (ENDING).
Step = (
    Literal[Stage.EXECUTING, Stage.CLOCK, Stage.CHECKING, Stage.BEHIND, Stage.AHEAD, Stage.SCHEMA]
    | Attempt
    | Obstacle
    | Answer
    | BedrockishError
)


class Coordinator:
    """The leader of this node's transactions."""

    def __init__(self, state: State, apply_queue: ApplyQueue, voter: Voter, reading: Reading, staging: Staging) -> None:
        self.state = state
        in_flight: dict[int, InFlight] = {}
        self.ready = Ready()
        self.rollbacks = Rollbacks(state)
        self.contention = Contention(state, in_flight, self.ready, self.rollbacks)
        self.replies = Replies(state, in_flight, self.contention)
        self.reading = reading
        self.apply_queue = apply_queue
        self.voter = voter
        self.clock_quorum = ClockQuorum(state)
        self.catch_up = CatchUp(state, in_flight)
        self.offers = Offers(state, staging)
        self.together = CommandGroups(in_flight, self.ready)
        self.attempts = Attempts(state, apply_queue, self.replies, self.contention, self.together)
        self._behind: dict[int, InFlight] = {}  # the requests whose session has seen commits that this node lacks
        # The handler of each stage's end. IN_FLIGHT and ACTIVATING end with a transaction, and ENDING with the answer.
        self._handlers: dict[Stage, Callable[[InFlight, End], Step]] = {
            Stage.TOKEN: self._take_up,
            Stage.WAITING: self._take_up,
            Stage.SCHEMA: self._take_up,
            Stage.PAUSED: self._pause_over,
            Stage.CLOCK: self._clock_told,
            Stage.EXECUTING: self._executed,
            Stage.AHEAD: self._arrived,
            Stage.CHECKING: self._checked,
            Stage.BEHIND: self._take_up,
        }

    # -- the path of a request ---------------------------------------------------------------------------------------

    def submit(
        self, number: int, request: Request, *, once: bool = False, others: Sequence[tuple[int, Request]] = ()
    ) -> None:
        """Start a request; with ``once`` it cannot be executed a second time.

        ``others`` are requests that arrived in the same batch and may share its transaction.
        """
        state, ready = self.state, []
        for each, asked in ((number, request), *others):
            now = state.clock.now.seconds
            inflight = InFlight(each, asked, now + asked.timeout_s, once=once, came=now)
            self.replies.in_flight[each] = inflight
            # No message was sent for the request yet, so it did not happen, and its client can turn to another node.
            if state.trouble:
                self.replies.finish(inflight, requests.out_of_service(state))
                continue
            state.timers.set(asked.timeout_s * 1000, Timer.REQUEST_DEADLINE, each)
            if state.has_seen(asked.token):
                ready.append(inflight)
            elif state.clock.is_absurd(asked.token.clock):
                self.replies.finish(inflight, UsageError(requests.FORGED))
            else:
                self._behind[each] = inflight
                # Fetch the commits that the session has seen: this node may never receive their COMMIT.
                self.apply_queue.want(asked.token.vector)
        if len(ready) > 1:
            self.together.start(ready)
        elif ready:
            self.ready.add(ready[0])

    def resume_waiting(self) -> None:
        """Start the requests whose session's commits this node has applied, or whose schema change is in force."""
        if self.replies.schema_barrier.waiting and self.state.schema.scheduled is None:
            self._release_from_barrier()
        for inflight in list(self._behind.values()):
            if inflight.stage is not Stage.TOKEN or inflight.number not in self.replies.in_flight:
                del self._behind[inflight.number]  # its deadline has passed
            elif self.state.has_seen(inflight.request.token):
                del self._behind[inflight.number]
                self.ready.add(inflight)

    def _release_from_barrier(self) -> None:
        """Start the requests that have waited for a schema change that is in force now.

        Of the schema changes among them only the first one starts: if all were executed, the others would wait again.
        """
        barrier = self.replies.schema_barrier
        waited = barrier.released()
        for inflight in waited:
            if not inflight.alters:
                self.ready.add(inflight)
        changes = [inflight for inflight in waited if inflight.alters]
        self.contention.wait_queue.change_in_force(changes, barrier.leader)

    def resume_strict_reads(self) -> None:
        """Execute again each strict read that has waited for the ends of transactions, and whose wait is over."""
        for inflight in self.catch_up.pop_ended():
            self.ready.add(inflight)

    def stage_ended(self, stage: Stage, number: int, end: End = None) -> None:
        """Queue a request for ``advance`` because its stage is over; ignore one that has left that stage already."""
        # The request may be gone: its client has disconnected, or its deadline has passed. The executor has already
        # rolled the execution back.
        inflight = self.replies.in_flight.get(number)
        if inflight is not None and inflight.stage is stage:
            self.ready.queue[number] = inflight, stage, end

    def advance(self) -> None:
        """Carry out the next step of each ready request until no request is ready.

        A request leaves the loop for a stage in which it waits; the end of that stage makes it ready again.
        """
        replies, contention, ready = self.replies, self.contention, self.ready
        queue = ready.queue
        while queue:
            inflight, stage, end = queue.pop(next(iter(queue)))
            # The request's time may have ended in this step.
            if inflight.stage is not stage:
                continue
            match self._handlers[stage](inflight, end):
                case Attempt() as attempt:
                    self.attempts.begin(inflight, attempt)
                case Answer() as answer:
                    replies.finish(inflight, answer)
                case BedrockishError() as error:
                    replies.end(inflight, error)
                case Stage.EXECUTING:
                    self._execute(inflight)
                case Stage.CHECKING:
                    assert inflight.read is not None, "its execution only read"
                    inflight.move(Stage.CHECKING)
                    is_valid = self.reading.begin(inflight, inflight.read)
                    if is_valid is not None:
                        ready.add(inflight, is_valid)
                case Stage.BEHIND:
                    inflight.move(Stage.BEHIND)
                    self.catch_up.wait(inflight)
                    contention.wait_queue.unblock_behind(inflight)
                    self.resume_strict_reads()
                case Stage.CLOCK:
                    inflight.move(Stage.CLOCK)
                    told = 0 if inflight.read is None else inflight.read.clock
                    if self.clock_quorum.ask(inflight.number, told):
                        ready.add(inflight)
                case Stage.AHEAD:
                    inflight.move(Stage.AHEAD)
                    contention.wait_queue.unblock_behind(inflight)  # the pieces may take seconds to reach the voters
                case Stage.SCHEMA:
                    replies.schema_barrier.wait(inflight)
                    contention.wait_queue.unblock_behind(inflight)
                case obstacle:
                    contention.wait(inflight, obstacle)

    # -- the handlers of the stages --------------------------------------------------------------------------------

    def _take_up(self, inflight: InFlight, _end: End = None) -> Step:
        """Execute a request, or begin its kept execution again, unless a known obstacle would make it fail."""
        inflight.is_free = False
        found: Step | None = None
        # Execute a request once before it waits for anything: it may be a read, which need not wait.
        if inflight.access_set is not None or inflight.read is not None:
            found = self._schema_ahead(inflight)
        if found is None and inflight.goes_first:
            found = self.contention.last_before()
        if found is None and inflight.kept is not None:
            found = self._begin_again(inflight, inflight.kept)
        if found is not None:
            return found
        if inflight.wants_clock and not inflight.once:
            inflight.read = None
            return Stage.CLOCK
        return Stage.EXECUTING

    def _schema_ahead(self, inflight: InFlight) -> Step | None:
        """Return the wait for a schema change if an execution before the end of that change would have to be repeated.

        A request that changes the schema waits for every other change; any other request waits for a change that
        activates at or below the request's clock.
        """
        state = self.state
        clock = CLOCK_LIMIT if inflight.alters else state.clock.read()
        for change in state.votes.pending.schema_changes():
            # The next attempt of a request carries the rollbacks of its earlier ones.
            if change.activates <= clock and not (inflight.alters and change.txid in self.rollbacks):
                return WaitFor(change.txid)
        return Stage.SCHEMA if state.schema.is_behind(clock) else None

    def _begin_again(self, inflight: InFlight, prepared: Prepared) -> Step | None:
        """Propose the last execution again, based on the present commits; return None if the request must be executed
        again.

        A large transaction takes long to execute, so that each new execution could end in a conflict again.
        """
        moved = move(self.state, inflight, prepared)
        if isinstance(moved, BedrockishError) or not self.state.roster.is_voter(self.state.me):
            inflight.kept = None
            return None
        inflight.move(Stage.EXECUTING)
        inflight.attempts += 1
        return self._lead(inflight, moved)

    def _execute(self, inflight: InFlight) -> None:
        inflight.move(Stage.EXECUTING)
        inflight.kept = None
        inflight.executed_at = self.state.clock.now.seconds
        # Drop the error of an earlier execution: it depends on the snapshot of that execution.
        inflight.refused = None
        # Our clock has just moved up to a majority's, so its next value is later than every acknowledged commit.
        clock = self.state.clock.tick() if inflight.wants_clock else 0
        group: tuple[int, ...] = ()
        if inflight.behind:
            self.together.note_executed(inflight)
            group = self.contention.wait_queue.group(inflight)
        self.state.outbox.emit(Execute(inflight.number, clock, group))

    def _pause_over(self, inflight: InFlight, _end: End) -> Step:
        self.contention.wait_queue.remove_head(inflight.number)
        # The rivals for whose turn this request paused have begun no transaction: drop these rivals.
        if inflight.turn is not None:
            self.contention.turns.passed(*inflight.turn)
        return inflight.error or self._take_up(inflight)

    def _clock_told(self, inflight: InFlight, _end: End) -> Step:
        """Execute a request after a majority has moved its clocks up, or answer it if it only read."""
        return Stage.EXECUTING if inflight.read is None else self._read(inflight, inflight.read)

    def moved_to_worker(self, number: int) -> None:
        """Unblock the requests behind a request that is now executed in a worker, which takes long.

        Schema changes stay behind a schema change: if they were executed at the same time, all but one would run again.
        """
        inflight = self.replies.in_flight.get(number)
        if inflight is not None:
            self.together.part(inflight)
            if not inflight.alters:
                self.contention.wait_queue.unblock_behind(inflight)

    def _executed(self, inflight: InFlight, end: End) -> Step:
        """Lead the transaction of a request that was executed, or answer the request if it only read."""
        if end is None:
            return self._take_up(inflight)
        assert not isinstance(end, bool | Awaited)
        if isinstance(end, ClockWanted):
            inflight.wants_clock = True
            return self._take_up(inflight)
        state = self.state
        # A failed execution counts as an attempt: ``did_not_happen`` gives another reason if none was made.
        inflight.attempts += 1
        if isinstance(end, Failed):
            return self._failed(inflight, end.error)
        prepared = end.prepared
        inflight.took_s = state.clock.now.seconds - inflight.executed_at
        if prepared.kind == SCHEMA:
            self.contention.turns.note_change(inflight.took_s)
        if isinstance(end, Overtaken):
            return self._overtaken(inflight, prepared)
        inflight.read = None
        # An interactive transaction: its client has acted on reads of an older snapshot. If it writes, or its level is
        # ``strict``, these reads must have the same results on the commits that are applied now.
        if inflight.once and not (prepared.readonly and inflight.request.read != STRICT):
            moved = move(state, inflight, prepared)
            if isinstance(moved, BedrockishError):
                if prepared.joined:  # the newer commit may concern only one of the requests that share the transaction
                    self._divide(inflight, prepared)
                    return self._take_up(inflight)
                return self._end_or_check(inflight, prepared, moved)
            prepared = moved
        if prepared.schema != state.schema.version and (inflight.request.read == STRICT or not prepared.readonly):
            self.contention.wait_queue.unblock_behind(inflight)  # the schema changes behind this request now go first
            return self._take_up(inflight)  # a schema change has come into force since the execution
        if prepared.readonly:
            inflight.read = prepared
            # The client gets a clock, and each later request for a clock, at any node, must get a later one. So before
            # the answer leaves, a second round moves the clocks of a majority up to the clock of this answer.
            return Stage.CLOCK if prepared.clock else self._read(inflight, prepared)
        # Only voters lead (V2): no voter would approve the transaction of another node.
        if not state.roster.is_voter(state.me):
            return requests.write_refused(state)
        if requests.is_large(prepared, state.settings.inline_bytes):
            if self.offers.offer(inflight.number, prepared):
                inflight.ahead = prepared
                return Stage.AHEAD
            inflight.keep(prepared)
        return self._lead(inflight, prepared)

    def _read(self, inflight: InFlight, prepared: Prepared) -> Step:
        """Answer a request that only read; for a strict one, ask a majority first whether it read the newest data.

        A schema statement that changed nothing counts as strict: its object may have been dropped elsewhere.
        """
        is_strict = inflight.request.read == STRICT or prepared.kind == SCHEMA
        return Stage.CHECKING if is_strict else self.replies.answer_read(inflight, prepared)

    def _failed(self, inflight: InFlight, error: BedrockishError) -> Step:
        """Answer a request that cannot be executed; an earlier attempt of it may still commit.

        A refusal is an answer: its reads are certified like those of other answers, at the level of the request.
        """
        rests_on: Prepared | None = error.rests_on
        read = move(self.state, inflight, rests_on) if inflight.once and rests_on is not None else rests_on
        # Two kinds of errors are answered at once: an error that does not depend on data, such as a syntax error, and
        # an error that says that the data has changed.
        if read is None or isinstance(read, BedrockishError):
            return read or error
        # Below the level ``strict``, a refusal may rest on old data, as an answer may; if this node knows of commits
        # that it lacks, the refusal says so.
        if inflight.request.read != STRICT:
            return requests.lagging(error) if self.reading.may_lag(read) else error
        if read.schema != self.state.schema.version:
            return self._take_up(inflight)  # a schema change has come into force since the execution
        inflight.read, inflight.refused = read, error
        return Stage.CHECKING

    def _checked(self, inflight: InFlight, is_valid: End) -> Step:
        """Answer a strict read that a majority has checked, or execute it again on a newer snapshot."""
        prepared = inflight.read
        assert prepared is not None
        if isinstance(is_valid, Awaited):
            inflight.awaited = is_valid
            return Stage.BEHIND
        if is_valid and self.replies.schema_barrier.blocks(prepared, self.state.clock.value):
            return Stage.SCHEMA
        # A read on an older schema never shows the newest data, even if no voter knows a conflict.
        if is_valid and prepared.schema == self.state.schema.version:
            return inflight.refused or self.replies.answer_read(inflight, prepared)
        reads = prepared.access_set
        self.contention.reservations.reserve_if_needed(inflight, AccessSet(reads.read_points, reads.read_ranges))
        changes = self.state.votes.pending.schema_changes()
        if changes:
            return WaitFor(changes[0].txid)
        # The conflicting writer is about to end. The pause is random, so that its readers do not all run again at once.
        return Pause(requests.READ_AGAIN_MS * (1 + self.state.draw()))

    def _overtaken(self, inflight: InFlight, prepared: Prepared) -> Step:
        """Execute a request again, because commits since its execution in a worker have changed the result."""
        access_set = prepared.access_set
        if prepared.readonly:  # compare its reads alone: a reader conflicts only with writers
            access_set = AccessSet(access_set.read_points, access_set.read_ranges)
        found = first_conflict(self.state.commit_window, access_set, prepared.base, prepared.spans)
        inflight.lost = found or inflight.lost
        inflight.access_set = access_set
        self.contention.reservations.reserve_if_needed(inflight, access_set, prepared.kind)
        return Pause(1) if inflight.goes_first else self._take_up(inflight)

    def _arrived(self, inflight: InFlight, _end: End) -> Step:
        """Lead a large transaction whose pieces are at a quorum, unless a commit has overwritten its reads."""
        prepared, inflight.ahead = inflight.ahead, None
        assert prepared is not None
        # From here on the request is treated as if it had just been executed.
        inflight.move(Stage.EXECUTING)
        inflight.took_s = self.state.clock.now.seconds - inflight.executed_at
        # The members may have changed while the pieces were under way.
        if not self.state.roster.is_voter(self.state.me):
            return requests.write_refused(self.state)
        # Transactions were committed while the pieces were sent: move the base up, or execute the request again.
        moved = move(self.state, inflight, prepared)
        if not isinstance(moved, BedrockishError):
            inflight.keep(moved)
            return self._lead(inflight, moved)
        if inflight.once:
            return self._end_or_check(inflight, prepared, moved)
        self.contention.reservations.reserve_if_needed(inflight, prepared.access_set, prepared.kind)
        return self._take_up(inflight)

    def _end_or_check(self, inflight: InFlight, prepared: Prepared, error: BedrockishError) -> Step:
        """End a request that has lost; if the members have changed, execute it again with a new check of its rights."""
        return self._take_up(inflight) if 0 < prepared.config < self.state.roster.membership.version else error

    def _lead(self, inflight: InFlight, prepared: Prepared) -> Step:
        """Certify a transaction at this node, and begin it if it has no obstacle."""
        state = self.state
        clock = prepared.clock or state.clock.tick()  # the clock that its client has got, or a new one
        activates = activation_clock(state, inflight, prepared, clock) if prepared.kind == SCHEMA else 0
        commands: tuple[str, ...] = (inflight.request.command,)
        # The ids of all commands that share the transaction, so that none of them can also happen elsewhere.
        if prepared.joined:
            commands += tuple(command for command, _ in prepared.joined)
        inflight.writes, inflight.alters = True, prepared.kind == SCHEMA
        inflight.access_set = claim(prepared.access_set, commands, prepared.kind, clock, activates)
        # This test comes before those for obstacles: a command that has happened is answered from the journal anyway.
        happened = state.happened(commands)
        if happened is not None:
            # The commands that were only batched with this one have not happened, and go on without it.
            if self._divide(inflight, prepared):
                return self._take_up(inflight)
            return self._happened(inflight, happened)
        # A transaction whose clock is below the scheduled change's activation continues on the old schema.
        is_scheduled = state.schema.scheduled is not None
        if is_scheduled and self.replies.schema_barrier.blocks(prepared, clock):
            return Stage.SCHEMA
        # Safe time is a whole conflict window behind. Every voter would reject the transaction (V15), because commits
        # that its snapshot lacks may have left the window.
        if state.clock.read() > moved(state.clock.safe, state.settings.conflict_window_ms):
            inflight.refusal = requests.no_safe_time(state)
            return Pause(20)  # until safe time has caught up, for example after the start of this node
        if state.clock.follows_wall and not state.knows_wall:
            inflight.refusal = requests.no_time(state)
            return Pause(20)  # without a wall clock, a new cluster's first commits would have clocks of 1970
        inflight.refusal = ""
        obstacle = self._certify(inflight, prepared)
        if obstacle is None:
            return self._attempt(inflight, prepared, clock, activates)
        return self._take_up(inflight) if self._divide(inflight, prepared) else obstacle

    def _happened(self, inflight: InFlight, found: Conflict) -> Step:
        """Execute again a request whose command has already happened: that execution answers it from the journal."""
        if found == (FORGOTTEN, command_key(inflight.request.command)):
            return forgotten(inflight.request.command, None)
        inflight.kept = None
        return Pause(1)  # the command's commit may not be applied yet

    def _divide(self, inflight: InFlight, prepared: Prepared) -> bool:
        """Divide the group whose transaction is blocked; return whether its first request has to be executed again."""
        if not prepared.joined:
            self.together.part(inflight)
            return False
        if not self.together.divide_ready(inflight):
            return False
        self.together.shrink()
        return True

    def _certify(self, inflight: InFlight, prepared: Prepared) -> Obstacle | None:
        """Certify a transaction at this node; return its obstacle, or None if it may begin."""
        state, access_set, reservations = self.state, inflight.access_set, self.contention.reservations
        assert access_set is not None
        if not covers(prepared.base, state.commit_window.floor):
            reservations.reserve_if_needed(inflight, access_set, prepared.kind)
            # A commit that the snapshot lacks has left the conflict window, so it cannot be compared and counts as a
            # conflict.
            return Pause(1)
        # Commits are tested first, as by the voters (V9): a conflict with a commit is final, unlike one with a pending
        # transaction.
        found = next(state.commit_window.conflicts(access_set, prepared.base), None)
        if found is not None:
            inflight.lost = found
            reservations.reserve_if_needed(inflight, access_set, prepared.kind)
            # The commit is not in the snapshot: execute the request, with those behind it, on a newer snapshot.
            after_ms = max(1, state.settings.schema_delay_ms * is_clock(found.key))
            return Pause(after_ms)
        obstacle = self.contention.before(inflight, prepared.kind)
        if isinstance(obstacle, WaitFor) and obstacle.txid.leader != state.me and inflight.lost is not None:
            state.contests.meet(inflight.lost.key, state.clock.now.seconds)
        return obstacle

    def _attempt(self, inflight: InFlight, prepared: Prepared, clock: int, activates: int) -> Step:
        """Return the attempt to begin for a request without an obstacle, or the reason why it cannot begin now."""
        state = self.state
        assert inflight.access_set is not None
        # The clock that the client got earlier may be below closed time by now, or used by an earlier attempt.
        if prepared.clock and not self.clock_quorum.fits(prepared.clock, inflight.begun):
            inflight.unfit += 1
            too_often = inflight.once or inflight.unfit > requests.UNFIT_MAX
            return told_too_early(inflight.request.command) if too_often else Pause(1)
        # Before a voter can approve this transaction, the voter must roll back those of our earlier transactions that
        # conflict with it. Other rollbacks do not concern this transaction.
        rolling: tuple[Txid, ...] = ()
        if self.rollbacks.rolling:
            met = state.votes.pending.conflicts(inflight.access_set)
            rolling = tuple(sorted(found.other for found in met if found.other in self.rollbacks))
        transaction = requests.make_transaction(state, inflight, prepared, clock, activates, rolling)
        now = state.clock.now.seconds
        repeat, trace = Repeat(now, state.answer_pause_s), inflight.request.trace
        attempt = Attempt(transaction, [inflight.number], now, repeat=repeat, trace=trace)
        if prepared.joined:
            joined = self.contention.wait_queue.joined(inflight, [command for command, _ in prepared.joined])
            if joined is None:
                return self._take_up(inflight)  # a request with a part in this execution has ended
            for one in joined:
                attempt.share(one)
                state.counts["grouped" if one.is_free else "joined"] += 1
        return attempt

    def check(self) -> None:
        """Give up attempts that cannot succeed any more, and end reads that too few voters have answered."""
        self.attempts.check()
        self.offers.check(set(self.replies.in_flight))
        # Too few voters have answered. A read has nothing to roll back, so it is executed again on a newer snapshot.
        for number in self.reading.overdue():
            self.stage_ended(Stage.CHECKING, number, end=False)

    def resend(self, peer: str) -> None:
        """Send a peer again the messages that it may have missed."""
        if self.state.roster.is_voter(peer):
            self.offers.resend(peer)
            self.attempts.resend(peer)

    def past_deadline(self, number: int) -> None:
        """Answer a request past its deadline, or wait a little for the end of its last attempt."""
        inflight = self.replies.in_flight.get(number)
        if inflight is None or inflight.extend(self.state):
            return
        # At the request's second deadline its last attempt has not ended, or its schema change is committed and not in
        # force yet: its outcome is unknown.
        if inflight.stage in (Stage.ENDING, Stage.ACTIVATING):
            self.replies.finish(inflight, requests.unknown(inflight))
            return
        in_flight = inflight.stage is Stage.IN_FLIGHT
        inflight.move(Stage.ENDING)
        self.contention.unblock_behind(inflight)
        if in_flight:
            # The answer "did not happen" needs a rollback by a majority: approvals under way could still commit the
            # transaction. A transaction that other requests share goes on for them.
            for txid in sorted(inflight.open):
                attempt = self.attempts.open.get(txid)
                if attempt is not None and attempt.counting and not self.attempts.is_awaited(attempt):
                    self.attempts.give_up(attempt)
        # Giving up may have ended the transaction and answered the request in this step.
        if number in self.replies.in_flight:
            if inflight.open:
                self.state.timers.set(requests.ENDING_MS, Timer.REQUEST_DEADLINE, number)
            else:
                self.replies.finish(inflight, requests.did_not_happen(inflight, self.state))
