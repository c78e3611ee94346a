"""Our own transactions, from a client's request to its answer (section 3 of the protocol).

A *ticket* is one client's request; it may need several attempts. An *attempt* is one transaction in flight. A ticket
waits for what it conflicts with, and is then executed again on what has become true since. It is answered "did not
happen" only when every attempt that it made is known to have ended so.
"""

from collections.abc import Callable, Sequence
from functools import partial

from bedrockish.api.requests import STRICT, Request
from bedrockish.core.coordinator import request as ticketing
from bedrockish.core.coordinator.abort import Rollbacks
from bedrockish.core.coordinator.commit_clock import ClockQuorum
from bedrockish.core.coordinator.offers import Offers
from bedrockish.core.coordinator.reads import Checking, Reading
from bedrockish.core.coordinator.replies import Replies
from bedrockish.core.coordinator.request import Attempt, Stage, Ticket
from bedrockish.core.coordinator.revalidation import move
from bedrockish.core.coordinator.schema_barrier import activation_clock
from bedrockish.core.coordinator.wait_queue import Together
from bedrockish.core.protocol.effects import Execute
from bedrockish.core.protocol.messages import Approve, Commit, Reason, Reject, ToldClock
from bedrockish.core.protocol.records import FORGOTTEN, Prepared
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.replica.staging import Staging
from bedrockish.core.replica.voter import Voting
from bedrockish.core.state.certifier import Conflict, Known, claim, command_key
from bedrockish.core.state.contention import note_conflict
from bedrockish.core.state.state import State
from bedrockish.errors import BedrockishError, ReadOnlyError, UnavailableError, forgotten, told_too_early
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.footprint import is_clock
from bedrockish_journal.model.transaction import ROWS, Txid


class Coordinator:
    """Leads this node's transactions."""

    def __init__(
        self, state: State, apply_queue: ApplyQueue, voting: Voting, reading: Reading, staging: Staging
    ) -> None:
        self.state = state
        self.replies = Replies(state, self._execute)
        self.checking = Checking(state, reading, self.replies, self._execute)
        self.apply_queue = apply_queue
        self.voting = voting
        self.rollbacks = Rollbacks(state)
        self.clock_quorum = ClockQuorum(state)
        self.offers = Offers(state, staging)
        self.together = Together(self.replies.tickets, self._execute)
        self.attempts: dict[Txid, Attempt] = {}
        self._behind: dict[int, Ticket] = {}  # those whose session has seen more than this node

    # -- a ticket's way --------------------------------------------------------------------------------------------

    def submit(
        self, number: int, request: Request, *, once: bool = False, others: Sequence[tuple[int, Request]] = ()
    ) -> None:
        """Take a request; ``once`` if it cannot be executed again. ``others`` came with it, and may share with it."""
        state, ready = self.state, []
        for each, asked in ((number, request), *others):
            ticket = Ticket(each, asked, state.clock.now.seconds + asked.timeout_s, once=once)
            self.replies.tickets[each] = ticket
            if state.trouble:
                self.replies.finish(ticket, UnavailableError(state.trouble))
                continue
            state.timers.set(asked.timeout_s * 1000, "ticket_deadline", each)
            if state.has_seen(asked.token):
                ready.append(ticket)
            else:
                self._behind[each] = ticket
                self.apply_queue.want(asked.token.vector)
        self.together.start(ready)

    def settle(self) -> None:
        """Start the tickets whose session, and whose schema, this node has caught up with."""
        for ticket in self.replies.schema_barrier.released():
            self._execute(ticket)
        for ticket in list(self._behind.values()):
            if ticket.stage is not Stage.TOKEN or ticket.number not in self.replies.tickets:
                del self._behind[ticket.number]  # its time was over
            elif self.state.has_seen(ticket.request.token):
                del self._behind[ticket.number]
                self._execute(ticket)

    def _execute(self, ticket: Ticket) -> None:
        ticket.is_free = False
        if self.checking.waits_for_schema(ticket):
            return
        if ticket.wants_clock and not ticket.once:
            ticket.move(Stage.CLOCK)
            ticket.read = None
            if not self.clock_quorum.ask(ticket.number):
                return
        self._execute_at(ticket)

    def _execute_at(self, ticket: Ticket) -> None:
        ticket.move(Stage.EXECUTING)
        ticket.refused = None
        clock = self.state.clock.tick() if ticket.wants_clock else 0
        self.together.goes_first(ticket)
        self.state.outbox.emit(Execute(ticket.number, clock, self.replies.wait_queue.group(ticket)))

    def clock_wanted(self, number: int) -> None:
        """What is executed calls ``transaction_clock()``: get one first."""
        ticket = self.replies.tickets.get(number)
        if ticket is not None and ticket.stage is Stage.EXECUTING:
            ticket.wants_clock = True
            self._execute(ticket)

    def clock_told(self, peer: str, message: ToldClock) -> None:
        """A voter has told its clock: with those of a majority, execute; or answer what was only read with it."""
        ticket = self.replies.tickets.get(self.clock_quorum.on_told(peer, message) or 0)
        if ticket is None or ticket.stage is not Stage.CLOCK:
            return
        self._execute_at(ticket) if ticket.read is None else self.checking.read(ticket, ticket.read)

    def aside(self, number: int) -> None:
        """A ticket is executed aside: nobody waits that long for it only because they came together."""
        ticket = self.replies.tickets.get(number)
        if ticket is not None:
            self.together.part(ticket)

    def executed(self, number: int, prepared: Prepared) -> None:
        """Lead what was executed, or answer it if it only read."""
        ticket = self.replies.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.EXECUTING:
            return
        ticket.attempts += 1
        ticket.read = None
        state = self.state
        if ticket.once and not (prepared.readonly and ticket.request.read != STRICT):
            moved = move(state, ticket, prepared)
            if isinstance(moved, BedrockishError):
                self.replies.end(ticket, moved)
                return
            prepared = moved
        if prepared.schema != state.schema.version and (ticket.request.read == STRICT or not prepared.readonly):
            self._execute(ticket)  # a schema change has come into force meanwhile
            return
        if prepared.readonly:
            ticket.move(Stage.CLOCK)
            ticket.read = prepared
            if not prepared.clock or self.clock_quorum.ask(number, prepared.clock):
                self.checking.read(ticket, prepared)
            return
        if not state.roster.is_voter(state.me):
            self._refuse_write(ticket)
            return
        if self.offers.has_to_wait(number, prepared):
            ticket.move(Stage.AHEAD)
            ticket.ahead = prepared
            self.replies.wait_queue.leave(ticket)  # nobody is to wait for what may take seconds to arrive
            return
        self._lead(ticket, prepared)

    def arrived(self, number: int) -> None:
        """The pieces of a large transaction are at a quorum: begin it, unless what it has read has changed since."""
        ticket = self.replies.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.AHEAD:
            return
        prepared, ticket.ahead = ticket.ahead, None
        assert prepared is not None
        ticket.move(Stage.EXECUTING)
        if not self.state.roster.is_voter(self.state.me):
            self.replies.end(ticket, ticketing.write_elsewhere(self.state))
            return
        moved = move(self.state, ticket, prepared)
        if not isinstance(moved, BedrockishError):
            self._lead(ticket, moved)
        elif ticket.once:
            self.replies.end(ticket, moved)
        else:
            self._execute(ticket)

    def _lead(self, ticket: Ticket, prepared: Prepared) -> None:
        """Test a transaction on ourselves, and begin it."""
        state = self.state
        clock = prepared.clock or state.clock.tick()  # what its client was told, or a new one
        activates = activation_clock(state, ticket, prepared, clock)
        commands = (ticket.request.command, *(command for command, _ in prepared.joined))
        ticket.writes = True
        ticket.footprint = claim(prepared.footprint, commands, prepared.kind, clock, activates)
        happened = state.happened(commands)
        if happened is not None:
            if not self._goes_alone(ticket, prepared):
                self._happened(ticket, happened)
            return
        if self.replies.schema_barrier.holds_up(ticket, prepared, clock):
            self.replies.wait_queue.leave(ticket)
            return
        if state.clock.read() > moved(state.clock.safe, state.settings.conflict_window_ms):
            ticket.refusal = ticketing.no_safe_time(state)
            self.replies.pause(ticket, 20)  # (a node that just started): a BEGIN now would be TOO OLD
            return
        if state.clock.follows_wall and not state.knows_wall:
            ticket.refusal = ticketing.no_time(state)
            self.replies.pause(ticket, 20)  # a new cluster's first commits would have the clocks of 1970
            return
        ticket.refusal = ""
        hindrance = self._hindrance(ticket, prepared)
        if hindrance is None:
            self._begin(ticket, prepared, clock, activates)
        elif not self._goes_alone(ticket, prepared):
            hindrance()

    def _refuse_write(self, ticket: Ticket) -> None:
        """Refuse what writes: this node may lead nothing."""
        state = self.state
        if state.health.writes:
            self.replies.end(ticket, ticketing.write_elsewhere(state))
            return
        why = f"node {state.me} only reads for now: {state.health.reason}"
        self.replies.end(ticket, ReadOnlyError(why, alarm=state.health.name))

    def _happened(self, ticket: Ticket, found: Conflict) -> None:
        """One of a ticket's commands has happened: executed again, it is answered from the journal."""
        if found == (FORGOTTEN, command_key(ticket.request.command)):
            self.replies.end(ticket, forgotten(ticket.request.command, None))
        else:
            self.replies.pause(ticket, 1)  # it may have to be applied first

    def _goes_alone(self, ticket: Ticket, prepared: Prepared) -> bool:
        """Something is in the way of a transaction, and who came with its command need not wait for that: part them.

        Return whether the ticket is executed again, since others had a part in what it was to begin.
        """
        again = bool(prepared.joined)
        if not self.together.part(ticket, again=again) or not again:
            return False
        self.together.shrink()
        return True

    def _hindrance(self, ticket: Ticket, prepared: Prepared) -> Callable[[], None] | None:
        """Test the transaction on ourselves; return how it waits for what is in its way, or None if nothing is."""
        state, footprint = self.state, ticket.footprint
        assert footprint is not None
        found = next(state.commit_window.conflicts(footprint, prepared.base), None)
        if found is not None:
            # It is committed and not in the snapshot: execute it, with those behind it, on a newer one.
            after_ms = max(1, state.settings.schema_delay_ms * is_clock(found.key))
            return partial(self.replies.pause, ticket, after_ms)
        queue = self.replies.wait_queue
        for found in state.votes.pending.conflicts(footprint):
            if found.other not in self.rollbacks:  # else our own, given up: our BEGIN carries its rollback
                return partial(self._wait, ticket, found.other)
        head = queue.head(ticket, footprint)
        if head is not None:
            return partial(queue.line_up, ticket, head)
        left_ms = self.replies.turns.left_ms(footprint)
        return partial(self.replies.wait_for_turn, ticket, left_ms) if left_ms else None

    def _wait(self, ticket: Ticket, other: Txid) -> None:
        self.state.counts["waited"] += 1
        self.replies.wait_queue.wait(ticket, other)

    def _begin(self, ticket: Ticket, prepared: Prepared, clock: int, activates: int) -> None:
        state = self.state
        assert ticket.footprint is not None
        if prepared.clock and not self.clock_quorum.fits(prepared.clock, ticket.begun):
            ticket.unfit += 1
            if ticket.once or ticket.unfit > ticketing.UNFIT_MAX:
                self.replies.end(ticket, told_too_early(ticket.request.command))
            else:
                self.replies.pause(ticket, 1)
            return
        # What it conflicts with has to be rolled back first where it is approved; the others are none of its business.
        met = state.votes.pending.conflicts(ticket.footprint) if self.rollbacks.rolling else ()
        rolling = tuple(sorted(found.other for found in met if found.other in self.rollbacks))
        transaction = ticketing.make_transaction(state, ticket, prepared, clock, activates, rolling)
        if self.voting.held_back(transaction):
            self.replies.pause(ticket, 10 + 20 * state.draw())
            return
        joined = self.replies.wait_queue.joined(ticket, [command for command, _ in prepared.joined])
        if joined is None:
            self._execute(ticket)  # one of them is over: its time, or it was answered
            return
        txid = transaction.txid
        state.votes.hold(transaction)
        approvals = {state.me: state.timelines.applied.get(state.me, 0)}
        now = state.clock.now.seconds
        trace = next((one.request.trace for one in (ticket, *joined) if one.request.trace), "")
        numbers = (ticket.number, *(one.number for one in joined))
        attempt = Attempt(transaction, numbers, now, approvals, said=now, trace=trace)
        attempt.is_group = any(one.is_free for one in joined)
        self.attempts[txid] = attempt
        for one in (ticket, *joined):
            one.move(Stage.IN_FLIGHT)
            one.begun = txid.clock
            one.open.add(txid)
        for one in joined:
            one.attempts += 1
        state.counts["grouped"] += sum(one.is_free for one in joined)
        state.counts["joined"] += sum(not one.is_free for one in joined)
        state.outbox.send_voters(attempt.begin)
        self.replies.wait_queue.begun(ticket, transaction)
        self._count(attempt)

    # -- answers from voters ---------------------------------------------------------------------------------------

    def on_approve(self, peer: str, message: Approve) -> None:
        """Count an approval."""
        attempt = self.attempts.get(message.txid)
        if attempt is not None and attempt.counting and self.state.roster.is_voter(peer):  # L1: each voter once
            attempt.approvals[peer] = message.tick
            attempt.rejects.pop(peer, None)
            self._count(attempt)

    def _count(self, attempt: Attempt) -> None:
        # L2: our own durable one among them
        if attempt.counting and len(attempt.approvals) >= self.state.roster.quorum:
            self._commit(attempt)

    def _commit(self, attempt: Attempt) -> None:
        state, transaction = self.state, attempt.transaction
        attempt.counting = False
        self.replies.turns.took(state.clock.now.seconds - attempt.since)
        peers = list(state.roster.peers)  # also one that this may remove
        entry = self.apply_queue.lead(transaction, attempt.approvals)
        clock = state.clock.read()
        for node in peers:
            body = None if node in attempt.approvals else transaction.body
            state.outbox.send(node, Commit(entry.label, body, entry.hash, clock))

    def on_reject(self, peer: str, message: Reject) -> None:
        """Count a reject; when too many have rejected, give up."""
        attempt = self.attempts.get(message.txid)
        if attempt is None or not attempt.counting or not self.state.roster.is_voter(peer):
            return
        if message.reason == Reason.PROMISED:
            return  # a recovery runs; its outcome will come
        attempt.rejects[peer] = message
        for ticket in self._tickets_of(attempt):
            if message.reason == Reason.FORGOTTEN and message.key == command_key(ticket.request.command):
                ticket.error = forgotten(ticket.request.command, None)
            if message.reason == Reason.AHEAD:
                ticket.refusal = ticketing.clock_refused(self.state.me, peer)
            if message.reason == Reason.TOO_LATE:
                ticket.late = peer
        self.state.counts[f"rejected_{Reason(message.reason).name.lower()}"] += 1
        self.state.doubts += message.reason == Reason.DIFFERS
        if message.other is not None:
            self.replies.turns.met(message.other.leader)
            self.apply_queue.ask_about(message.other, peer)
        self._count_rejects(attempt, patient=True)

    def _count_rejects(self, attempt: Attempt, *, patient: bool) -> None:
        """Give up when approvals enough cannot come any more."""
        if ticketing.is_lost(attempt, self.state, patient=patient):
            self._give_up(attempt)

    def check(self) -> None:
        """Look for attempts that cannot succeed any more, and for reads that nobody answers."""
        patience = self.state.settings.suspicion_ms / 1000
        for attempt in [attempt for attempt in self.attempts.values() if attempt.counting]:
            self._count_rejects(attempt, patient=self.state.clock.now.seconds - attempt.since < patience)
        self._repeat(patience)
        self.rollbacks.repeat(patience)
        self.offers.check(set(self.replies.tickets))
        for number in self.checking.reading.overdue():
            self.checking.read_checked(number, valid=False)

    def _repeat(self, after_s: float) -> None:
        """Say a BEGIN again to whom has not answered it for long.

        A link loses nothing, but a node takes only so many messages in pieces at a time, and drops the others.
        """
        state = self.state
        for attempt in self.attempts.values():
            if attempt.counting and state.clock.now.seconds - attempt.said >= after_s:
                attempt.said = state.clock.now.seconds
                for peer in state.roster.voters_up():
                    if peer not in attempt.approvals and peer not in attempt.rejects:
                        state.outbox.send(peer, attempt.begin)

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.transaction.txid in self.state.votes.outcomes:
            return  # safe time ended it in this very step
        attempt.counting = False  # L3: for good, before ballot 1 begins
        self.state.counts["given_up"] += 1
        lost = attempt.lost_for()
        if lost is not None:
            note_conflict(self.state.counts, attempt.transaction.footprint, lost.key)
            self.state.note_rival(lost.key, lost.other)
        self.rollbacks.give_up(attempt.transaction.txid)
        tickets = [ticket for ticket in self._tickets_of(attempt) if ticket.stage is Stage.IN_FLIGHT]
        for ticket in tickets:
            ticket.last, ticket.contested = lost or ticket.last, True
            ticket.rejections += 1
        alone = [ticket for ticket in tickets[1:] if ticket.is_free]
        if attempt.is_group:
            self.together.shrink()
        for ticket in (*tickets[:1], *alone):  # which of them was in another's way, nobody has said
            ticket.is_free = False
            self.replies.pause(ticket, ticketing.retry_pause_ms(ticket, self.state.settings, self.state.draw()))
        if tickets:
            others = [ticket for ticket in tickets[1:] if ticket not in alone]
            self.replies.wait_queue.stay(tickets[0], others, attempt.transaction.txid)

    def _is_shared(self, attempt: Attempt) -> bool:
        """Whether somebody still waits for its approvals."""
        return any(ticket.stage is Stage.IN_FLIGHT for ticket in self._tickets_of(attempt))

    def _tickets_of(self, attempt: Attempt) -> list[Ticket]:
        found = [self.replies.tickets.get(number) for number in attempt.tickets]
        return [ticket for ticket in found if ticket is not None]

    def again(self, number: int) -> None:
        """A pause is over."""
        ticket = self.replies.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.PAUSED:
            return
        self.replies.wait_queue.go_on(number)
        if ticket.turn is not None:
            self.replies.turns.passed(ticket.turn)
        if ticket.error is not None:
            self.replies.end(ticket, ticket.error)
        else:
            self._execute(ticket)

    def doom(self, committed: Known) -> None:
        """Give up what conflicts with a commit that arrived and is not in its base."""
        for found in list(self.state.votes.pending.conflicts(committed.footprint, committed.txid)):
            attempt = self.attempts.get(found.other)
            # L4: what has lost is given up at once; those who hold it keep others waiting for nothing.
            if attempt is not None and attempt.counting and not committed.is_in(attempt.transaction.base):
                self._give_up(attempt)

    def decides(self, txid: Txid) -> bool:
        """Whether a transaction of ours is still ours to commit or to roll back, and not in a recovery's hands."""
        attempt = self.attempts.get(txid)
        return txid in self.rollbacks or (attempt is not None and attempt.counting)

    def stop_counting(self, txid: Txid) -> None:
        """A recovery has our promise: its outcome counts, not our approvals."""
        attempt = self.attempts.get(txid)
        if attempt is not None:
            attempt.counting = False
        self.rollbacks.forget(txid)

    def resend(self, peer: str) -> None:
        """Say again to a peer what it may have missed."""
        if not self.state.roster.is_voter(peer):
            return
        self.offers.resend(peer)
        for attempt in self.attempts.values():
            if attempt.counting and peer not in attempt.approvals and peer not in attempt.rejects:
                self.state.outbox.send(peer, attempt.begin)
        self.rollbacks.resend(peer)

    # -- ends ------------------------------------------------------------------------------------------------------

    def ended(self, txid: Txid) -> None:
        """An outcome became known: answer its client, and go on with those that waited for it."""
        attempt = self.attempts.pop(txid, None)
        self.rollbacks.forget(txid)
        known, queue = self.state.commit_window.known.get(txid), self.replies.wait_queue
        contested = attempt is not None and any(ticket.contested for ticket in self._tickets_of(attempt))
        if known is not None and known.kind == ROWS and (contested or txid in queue.waits):
            self.replies.turns.reserve(txid, known.footprint)
        for ticket in self._tickets_of(attempt) if attempt is not None else ():
            assert attempt is not None
            self.replies.ended(ticket, attempt.transaction, commit=self.state.votes.outcomes[txid])
        if attempt is not None and known is not None and not contested:
            self.together.grow()
        queue.released(txid, known.kind if known is not None else ROWS)

    def released(self, txid: Txid) -> None:
        """A transaction is in nobody's way here any more: go on with those that waited for it."""
        self.replies.wait_queue.released(txid)

    def past_deadline(self, number: int) -> None:
        """The client's time is over: say what is known, or wait a little for the end of the last attempt."""
        ticket = self.replies.tickets.get(number)
        if ticket is None or ticket.extend(self.state):
            return
        if ticket.stage in (Stage.ENDING, Stage.ACTIVATING):
            self.replies.finish(ticket, ticketing.unknown(ticket))
            return
        in_flight = ticket.stage is Stage.IN_FLIGHT
        ticket.move(Stage.ENDING)
        self.replies.wait_queue.leave(ticket)
        if in_flight:
            for txid in sorted(ticket.open):
                attempt = self.attempts.get(txid)
                if attempt is not None and attempt.counting and not self._is_shared(attempt):
                    self._give_up(attempt)
        if number in self.replies.tickets:
            if ticket.open:
                self.state.timers.set(ticketing.ENDING_MS, "ticket_deadline", number)
            else:
                self.replies.finish(ticket, ticketing.did_not_happen(ticket, self.state))
