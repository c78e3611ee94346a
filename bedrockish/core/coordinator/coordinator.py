"""Our own transactions, from a client's request to its answer (section 3 of the protocol).

A client's request (``InFlight``) may need several attempts. An *attempt* is one transaction that waits for the
approvals of a quorum. A request waits for the transactions that it conflicts with, and is then executed again on a
newer snapshot. It is answered "did not happen" only when all of its attempts are known to be rolled back.

Until a request begins a transaction, only ``Coordinator.advance`` moves it from one stage to the next: when a stage of
the request has ended, a timer, a completion or another part of the coordinator adds the request to the queue ``Ready``.
The stage's handler then returns a ``Step``, which ``advance`` carries out. While voters decide on the transaction
(``Stage.VOTING``), ``Attempts`` answers or pauses the request, together with all requests that share the transaction.
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
from bedrockish.core.coordinator.read_checks import ReadChecks
from bedrockish.core.coordinator.replies import Replies
from bedrockish.core.coordinator.request import Awaited, InFlight, Ready, Stage, StageResult
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

# The next step of a request: a stage to enter, an attempt to begin (VOTING), an obstacle to wait for (WAITING, PAUSED),
# an answer, or an error, which is sent when no attempt of the request can still commit (ENDING).
Step = (
    Literal[Stage.EXECUTING, Stage.CLOCK, Stage.CHECKING, Stage.CATCHING_UP, Stage.OFFERED, Stage.SCHEMA]
    | Attempt
    | Obstacle
    | Answer
    | BedrockishError
)


class Coordinator:
    """The leader of this node's transactions."""

    def __init__(
        self, state: State, apply_queue: ApplyQueue, voter: Voter, read_checks: ReadChecks, staging: Staging
    ) -> None:
        self.state = state
        in_flight: dict[int, InFlight] = {}
        self.ready = Ready()
        self.rollbacks = Rollbacks(state)
        self.contention = Contention(state, in_flight, self.ready, self.rollbacks)
        self.replies = Replies(state, in_flight, self.contention)
        self.read_checks = read_checks
        self.apply_queue = apply_queue
        self.voter = voter
        self.clock_quorum = ClockQuorum(state)
        self.catch_up = CatchUp(state, in_flight)
        self.offers = Offers(state, staging)
        self.command_groups = CommandGroups(in_flight, self.ready)
        self.attempts = Attempts(state, apply_queue, self.replies, self.contention, self.command_groups)
        self._waiting_for_token: dict[int, InFlight] = {}  # their sessions have seen commits that this node lacks
        # The handler that is called when a stage has ended. Without one: VOTING, ACTIVATING and ENDING, which end with
        # a transaction, a schema change and an answer.
        self._handlers: dict[Stage, Callable[[InFlight, StageResult], Step]] = {
            Stage.TOKEN: self._resume,
            Stage.WAITING: self._resume,
            Stage.SCHEMA: self._resume,
            Stage.PAUSED: self._pause_over,
            Stage.CLOCK: self._clock_received,
            Stage.EXECUTING: self._executed,
            Stage.OFFERED: self._pieces_at_quorum,
            Stage.CHECKING: self._checked,
            Stage.CATCHING_UP: self._resume,
        }

    # -- the path of a request ---------------------------------------------------------------------------------------

    def submit(
        self, number: int, request: Request, *, once: bool = False, others: Sequence[tuple[int, Request]] = ()
    ) -> None:
        """Start a request, and the ``others`` that arrived in the same batch and may share its transaction.

        ``once``: the request cannot be executed a second time (``Submitted``).
        """
        state, ready = self.state, []
        for each, asked in ((number, request), *others):
            now = state.clock.now.seconds
            inflight = InFlight(each, asked, now + asked.timeout_s, once=once, arrived_at=now)
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
                self._waiting_for_token[each] = inflight
                # Fetch the commits that the session has seen: this node may never receive their COMMIT.
                self.apply_queue.want(asked.token.vector)
        if len(ready) > 1:
            self.command_groups.start(ready)
        elif ready:
            self.ready.add(ready[0])

    def resume_waiting(self) -> None:
        """Start the requests that waited for commits of their session, or for a schema change, if both are here now."""
        if self.replies.schema_barrier.waiting and self.state.schema.scheduled is None:
            self._release_from_barrier()
        for inflight in list(self._waiting_for_token.values()):
            if inflight.stage is not Stage.TOKEN or inflight.number not in self.replies.in_flight:
                del self._waiting_for_token[inflight.number]  # its deadline has passed
            elif self.state.has_seen(inflight.request.token):
                del self._waiting_for_token[inflight.number]
                self.ready.add(inflight)

    def _release_from_barrier(self) -> None:
        """Start the requests that have waited for a schema change that is in force now.

        Only the first of the schema changes among them starts: the others would have to wait for it, and run again.
        """
        barrier = self.replies.schema_barrier
        waited = barrier.released()
        for inflight in waited:
            if not inflight.alters:
                self.ready.add(inflight)
        changes = [inflight for inflight in waited if inflight.alters]
        self.contention.wait_queue.change_in_force(changes, barrier.leader)

    def resume_strict_reads(self) -> None:
        """Execute again each strict read that waited for the ends of transactions, if all of these have ended."""
        for inflight in self.catch_up.pop_ended():
            self.ready.add(inflight)

    def stage_ended(self, stage: Stage, number: int, result: StageResult = None) -> None:
        """Queue a request for ``advance`` because a stage of it has ended; do nothing if it has left that stage."""
        # The request may be gone: its client has disconnected, or its deadline has passed. The executor has already
        # rolled the execution back.
        inflight = self.replies.in_flight.get(number)
        if inflight is not None and inflight.stage is stage:
            self.ready.queue[number] = inflight, stage, result

    def advance(self) -> None:
        """Carry out the next step of each ready request until no request is ready.

        A request leaves the loop for a stage in which it waits; the end of that stage makes it ready again.
        """
        replies, contention, ready = self.replies, self.contention, self.ready
        queue = ready.queue
        while queue:
            inflight, stage, result = queue.pop(next(iter(queue)))
            # The request's deadline may have passed in this step.
            if inflight.stage is not stage:
                continue
            match self._handlers[stage](inflight, result):
                case Attempt() as attempt:
                    self.attempts.begin(inflight, attempt)
                case Answer() as answer:
                    replies.finish(inflight, answer)
                case BedrockishError() as error:
                    replies.end(inflight, error)
                case Stage.EXECUTING:
                    self._execute(inflight)
                case Stage.CHECKING:
                    assert inflight.unchecked_read is not None, "only an execution that only read is checked"
                    inflight.move(Stage.CHECKING)
                    is_valid = self.read_checks.begin(inflight, inflight.unchecked_read)
                    if is_valid is not None:
                        ready.add(inflight, is_valid)
                case Stage.CATCHING_UP:
                    inflight.move(Stage.CATCHING_UP)
                    self.catch_up.wait(inflight)
                    contention.wait_queue.unblock_behind(inflight)
                    self.resume_strict_reads()
                case Stage.CLOCK:
                    inflight.move(Stage.CLOCK)
                    told = 0 if inflight.unchecked_read is None else inflight.unchecked_read.clock
                    if self.clock_quorum.ask(inflight.number, told):
                        ready.add(inflight)
                case Stage.OFFERED:
                    inflight.move(Stage.OFFERED)
                    contention.wait_queue.unblock_behind(inflight)  # the pieces may take seconds to reach the voters
                case Stage.SCHEMA:
                    replies.schema_barrier.wait(inflight)
                    contention.wait_queue.unblock_behind(inflight)
                case obstacle:
                    contention.wait(inflight, obstacle)

    # -- the handlers of the stages --------------------------------------------------------------------------------

    def _resume(self, inflight: InFlight, _result: StageResult = None) -> Step:
        """Execute a request, or propose its kept execution again; or return an obstacle that would make it fail."""
        inflight.only_batched = False
        found: Step | None = None
        # A request that was never executed has no obstacle: it may turn out to be a read, which need not wait.
        if inflight.access_set is not None or inflight.unchecked_read is not None:
            found = self._schema_ahead(inflight)
        if found is None and inflight.goes_first:
            found = self.contention.rival_on_reserved_keys()
        if found is None and inflight.kept is not None:
            found = self._begin_again(inflight, inflight.kept)
        if found is not None:
            return found
        if inflight.wants_clock and not inflight.once:
            inflight.unchecked_read = None
            return Stage.CLOCK
        return Stage.EXECUTING

    def _schema_ahead(self, inflight: InFlight) -> Step | None:
        """Return the wait for a schema change that would invalidate an execution made now, or None.

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
        """Propose a kept execution again, with its base moved up; return None if the request must be executed again.

        A large transaction takes so long to execute that each new execution could meet a conflict.
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
        inflight.unchecked_error = None
        # Our clock has just moved up to the clocks of a majority: its next value is later than each acknowledged
        # commit.
        clock = self.state.clock.tick() if inflight.wants_clock else 0
        group: tuple[int, ...] = ()
        if inflight.behind:
            self.command_groups.note_executed(inflight)
            group = self.contention.wait_queue.group(inflight)
        self.state.outbox.emit(Execute(inflight.number, clock, group))

    def _pause_over(self, inflight: InFlight, _result: StageResult) -> Step:
        self.contention.wait_queue.remove_head(inflight.number)
        # The leaders whose turn this request left to them have begun no transaction: they no longer count as rivals.
        if inflight.turn is not None:
            self.contention.turns.drop_idle_rivals(*inflight.turn)
        return inflight.error or self._resume(inflight)

    def _clock_received(self, inflight: InFlight, _result: StageResult) -> Step:
        """Continue a request after a majority has moved its clocks up: execute it, or answer it if it only read."""
        return Stage.EXECUTING if inflight.unchecked_read is None else self._read(inflight, inflight.unchecked_read)

    def moved_to_worker(self, number: int) -> None:
        """Unblock the requests behind a request that is now executed in a background worker, which takes long.

        Schema changes stay behind a schema change: if they were executed at the same time, all but one would run again.
        """
        inflight = self.replies.in_flight.get(number)
        if inflight is not None:
            self.command_groups.release_others(inflight)
            if not inflight.alters:
                self.contention.wait_queue.unblock_behind(inflight)

    def _executed(self, inflight: InFlight, result: StageResult) -> Step:
        """Lead the transaction of a request that was executed, or answer the request if it only read."""
        if result is None:
            return self._resume(inflight)
        assert not isinstance(result, bool | Awaited)
        if isinstance(result, ClockWanted):
            inflight.wants_clock = True
            return self._resume(inflight)
        state = self.state
        # A failed execution counts as an attempt: ``did_not_happen`` gives another reason if none was made.
        inflight.attempts += 1
        if isinstance(result, Failed):
            return self._failed(inflight, result.error)
        prepared = result.prepared
        inflight.execution_s = state.clock.now.seconds - inflight.executed_at
        if prepared.kind == SCHEMA:
            self.contention.turns.note_change(inflight.execution_s)
        if isinstance(result, Overtaken):
            return self._overtaken(inflight, prepared)
        inflight.unchecked_read = None
        # An interactive transaction: its client has acted on reads of an older snapshot. If it writes, or its level is
        # ``strict``, these reads must have the same results on the commits that are applied now.
        if inflight.once and not (prepared.readonly and inflight.request.read != STRICT):
            moved = move(state, inflight, prepared)
            if isinstance(moved, BedrockishError):
                if prepared.joined:  # perhaps only one of the requests that share the transaction conflicts
                    self._divide(inflight, prepared)
                    return self._resume(inflight)
                return self._end_or_check(inflight, prepared, moved)
            prepared = moved
        if prepared.schema != state.schema.version and (inflight.request.read == STRICT or not prepared.readonly):
            self.contention.wait_queue.unblock_behind(inflight)  # the schema changes behind this request now go first
            return self._resume(inflight)  # a schema change has come into force since the execution
        if prepared.readonly:
            inflight.unchecked_read = prepared
            # The client gets a clock, and each later request for a clock, at any node, must get a later one. So before
            # the answer leaves, a second round moves the clocks of a majority up to the clock of this answer.
            return Stage.CLOCK if prepared.clock else self._read(inflight, prepared)
        # Only voters lead (V2): no voter would approve the transaction of another node.
        if not state.roster.is_voter(state.me):
            return requests.write_refused(state)
        if requests.is_large(prepared, state.settings.inline_bytes):
            if self.offers.offer(inflight.number, prepared):
                inflight.offered = prepared
                return Stage.OFFERED
            inflight.keep(prepared)
        return self._lead(inflight, prepared)

    def _read(self, inflight: InFlight, prepared: Prepared) -> Step:
        """Answer a request that only read; for a strict read, first ask a majority whether it read the newest data.

        A schema statement that changed nothing, such as CREATE IF NOT EXISTS, counts as strict: another node may have
        dropped the object.
        """
        is_strict = inflight.request.read == STRICT or prepared.kind == SCHEMA
        return Stage.CHECKING if is_strict else self.replies.answer_read(inflight, prepared)

    def _failed(self, inflight: InFlight, error: BedrockishError) -> Step:
        """Answer a request whose execution failed; an earlier attempt of it may still commit.

        The error rests on reads, which are certified like the reads of a result, at the level of the request.
        """
        rests_on: Prepared | None = error.rests_on
        read = move(self.state, inflight, rests_on) if inflight.once and rests_on is not None else rests_on
        # Two kinds of errors are answered at once: an error that does not depend on data, such as a syntax error, and
        # an error that says that the data has changed.
        if read is None or isinstance(read, BedrockishError):
            return read or error
        # Below the level ``strict``, an error may rest on old data, like a result; the error says so if this node knows
        # of commits that it lacks.
        if inflight.request.read != STRICT:
            return requests.lagging(error) if self.read_checks.may_lag(read) else error
        if read.schema != self.state.schema.version:
            return self._resume(inflight)  # a schema change has come into force since the execution
        inflight.unchecked_read, inflight.unchecked_error = read, error
        return Stage.CHECKING

    def _checked(self, inflight: InFlight, is_valid: StageResult) -> Step:
        """Answer a strict read if a majority has found it valid; otherwise execute it again on a newer snapshot."""
        prepared = inflight.unchecked_read
        assert prepared is not None
        if isinstance(is_valid, Awaited):
            inflight.awaited = is_valid
            return Stage.CATCHING_UP
        if is_valid and self.replies.schema_barrier.blocks(prepared, self.state.clock.value):
            return Stage.SCHEMA
        # A read on an older schema never shows the newest data, even if no voter knows a conflict.
        if is_valid and prepared.schema == self.state.schema.version:
            return inflight.unchecked_error or self.replies.answer_read(inflight, prepared)
        reads = prepared.access_set
        self.contention.reservations.reserve_if_needed(inflight, AccessSet(reads.read_points, reads.read_ranges))
        changes = self.state.votes.pending.schema_changes()
        if changes:
            return WaitFor(changes[0].txid)
        # The conflicting writer is about to end. The pause is random, so that its readers do not all run again at once.
        return Pause(requests.READ_AGAIN_MS * (1 + self.state.draw()))

    def _overtaken(self, inflight: InFlight, prepared: Prepared) -> Step:
        """Execute a request again, because a commit during its execution in a worker would change the result."""
        access_set = prepared.access_set
        if prepared.readonly:  # compare its reads alone: a reader conflicts only with writers
            access_set = AccessSet(access_set.read_points, access_set.read_ranges)
        found = first_conflict(self.state.commit_window, access_set, prepared.base, prepared.spans)
        inflight.last_conflict = found or inflight.last_conflict
        inflight.access_set = access_set
        self.contention.reservations.reserve_if_needed(inflight, access_set, prepared.kind)
        return Pause(1) if inflight.goes_first else self._resume(inflight)

    def _pieces_at_quorum(self, inflight: InFlight, _result: StageResult) -> Step:
        """Lead a large transaction whose pieces are at a quorum, unless a commit has overwritten its reads."""
        prepared, inflight.offered = inflight.offered, None
        assert prepared is not None
        # Continue as after an execution, which lasted until now: it includes the transfer of the pieces.
        inflight.move(Stage.EXECUTING)
        inflight.execution_s = self.state.clock.now.seconds - inflight.executed_at
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
        return self._resume(inflight)

    def _end_or_check(self, inflight: InFlight, prepared: Prepared, error: BedrockishError) -> Step:
        """Return the conflict error; or execute the request again to check its rights, if the members have changed."""
        return self._resume(inflight) if 0 < prepared.config < self.state.roster.membership.version else error

    def _lead(self, inflight: InFlight, prepared: Prepared) -> Step:
        """Certify a transaction at this node, and begin it if it has no obstacle."""
        state = self.state
        clock = prepared.clock or state.clock.tick()  # the value that transaction_clock() returned, or a new one
        activates = activation_clock(state, inflight, prepared, clock) if prepared.kind == SCHEMA else 0
        commands: tuple[str, ...] = (inflight.request.command,)
        # The ids of all commands that share the transaction, so that none of them can also happen elsewhere.
        if prepared.joined:
            commands += tuple(command for command, _ in prepared.joined)
        inflight.writes, inflight.alters = True, prepared.kind == SCHEMA
        inflight.access_set = claim(prepared.access_set, commands, prepared.kind, clock, activates)
        # Tested before the obstacles: a command that has happened need not wait, and is answered from the journal.
        happened = state.happened(commands)
        if happened is not None:
            # The commands that were only batched with the one that happened go on without it.
            if self._divide(inflight, prepared):
                return self._resume(inflight)
            return self._happened(inflight, happened)
        # A transaction with a clock below the activation of the scheduled change runs on the old schema.
        is_scheduled = state.schema.scheduled is not None
        if is_scheduled and self.replies.schema_barrier.blocks(prepared, clock):
            return Stage.SCHEMA
        # If safe time is a whole conflict window behind, every voter would reject the transaction (V15): commits that
        # its snapshot lacks may have left the window.
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
        return self._resume(inflight) if self._divide(inflight, prepared) else obstacle

    def _happened(self, inflight: InFlight, found: Conflict) -> Step:
        """Execute a request again whose command has already happened: the execution will answer from the journal."""
        if found == (FORGOTTEN, command_key(inflight.request.command)):
            return forgotten(inflight.request.command, None)
        inflight.kept = None
        return Pause(1)  # the command's commit may not be applied yet

    def _divide(self, inflight: InFlight, prepared: Prepared) -> bool:
        """Divide the group whose transaction is blocked; return whether to execute its first request again, alone."""
        if not prepared.joined:
            self.command_groups.release_others(inflight)
            return False
        if not self.command_groups.divide_ready(inflight):
            return False
        self.command_groups.shrink()
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
        # Commits are tested first, as by the voters (V9): a pending transaction may still be rolled back, a commit not.
        found = next(state.commit_window.conflicts(access_set, prepared.base), None)
        if found is not None:
            inflight.last_conflict = found
            reservations.reserve_if_needed(inflight, access_set, prepared.kind)
            # The commit is not in the snapshot: execute the request, with those behind it, on a newer snapshot.
            after_ms = max(1, state.settings.schema_delay_ms * is_clock(found.key))
            return Pause(after_ms)
        obstacle = self.contention.obstacle(inflight, prepared.kind)
        if isinstance(obstacle, WaitFor) and obstacle.txid.leader != state.me and inflight.last_conflict is not None:
            state.contests.note_key(inflight.last_conflict.key, state.clock.now.seconds)
        return obstacle

    def _attempt(self, inflight: InFlight, prepared: Prepared, clock: int, activates: int) -> Step:
        """Return the attempt to begin for a request without an obstacle; or an error, a pause, or another execution."""
        state = self.state
        assert inflight.access_set is not None
        # The clock that transaction_clock() returned may be below closed time now, or used by an earlier attempt.
        if prepared.clock and not self.clock_quorum.fits(prepared.clock, inflight.last_clock):
            inflight.stale_clocks += 1
            too_often = inflight.once or inflight.stale_clocks > requests.STALE_CLOCKS_MAX
            return told_too_early(inflight.request.command) if too_often else Pause(1)
        # BEGIN carries the rollbacks of our earlier transactions that conflict with this one: a voter can approve this
        # one only after it has accepted those rollbacks.
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
                return self._resume(inflight)  # one of the requests that were executed together has ended
            for one in joined:
                attempt.share(one)
                state.counts["grouped" if one.only_batched else "joined"] += 1
        return attempt

    def check(self) -> None:
        """Give up attempts that cannot succeed any more, and end reads that too few voters have answered."""
        self.attempts.check()
        self.offers.check(set(self.replies.in_flight))
        # A read has nothing to roll back, so it is executed again on a newer snapshot.
        for number in self.read_checks.overdue():
            self.stage_ended(Stage.CHECKING, number, result=False)

    def resend(self, peer: str) -> None:
        """Send a peer again the messages that it may have missed."""
        if self.state.roster.is_voter(peer):
            self.offers.resend(peer)
            self.attempts.resend(peer)

    def past_deadline(self, number: int) -> None:
        """Answer a request whose deadline has passed, or first wait ``ENDING_MS`` for the end of its last attempt."""
        inflight = self.replies.in_flight.get(number)
        if inflight is None or inflight.extend(self.state):
            return
        # In these two stages the outcome is unknown: the last attempt is still open ``ENDING_MS`` after the deadline,
        # or the schema change is committed and not in force.
        if inflight.stage in (Stage.ENDING, Stage.ACTIVATING):
            self.replies.finish(inflight, requests.unknown(inflight))
            return
        was_voting = inflight.stage is Stage.VOTING
        inflight.move(Stage.ENDING)
        self.contention.unblock_behind(inflight)
        if was_voting:
            # "Did not happen" may be answered only after a majority has accepted the rollback: approvals under way
            # could still commit the transaction. A transaction that other requests share goes on for them.
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
