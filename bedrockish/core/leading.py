"""Our own transactions, from a client's request to its answer (section 3 of the protocol).

A *ticket* is one client's request; it may need several attempts. An *attempt* is one transaction in flight. A ticket
waits for what it conflicts with, and is then executed again on what has become true since. It is answered "did not
happen" only when every attempt that it made is known to have ended so.
"""

from bedrockish.clock import pack
from bedrockish.core import tickets as ticketing
from bedrockish.core.activation import activation_clock
from bedrockish.core.checking import Checking
from bedrockish.core.clocking import Clocking
from bedrockish.core.conflicts import Known, claim
from bedrockish.core.effects import Execute
from bedrockish.core.forwarding import Forwarding
from bedrockish.core.messages import Approve, Begin, Commit, Forwarded, Reason, Reject, ToldClock
from bedrockish.core.once import move
from bedrockish.core.ordering import Ordering
from bedrockish.core.reading import Reading
from bedrockish.core.records import Prepared
from bedrockish.core.rollback import Rollbacks
from bedrockish.core.state import State
from bedrockish.core.tickets import Attempt, Stage, Ticket
from bedrockish.core.voting import Voting
from bedrockish.errors import BedrockishError, UnavailableError, told_too_early
from bedrockish.requests import STRICT, Request
from journal.footprint import is_clock
from journal.transaction import ROWS, Txid


class Leading(Checking):
    """Leads this node's transactions."""

    def __init__(self, state: State, ordering: Ordering, voting: Voting, reading: Reading) -> None:
        super().__init__(state, reading)
        self.ordering = ordering
        self.voting = voting
        self.rollbacks = Rollbacks(state)
        self.clocking = Clocking(state)
        self.forwarding = Forwarding(state, self.tickets)
        self.attempts: dict[Txid, Attempt] = {}

    # -- a ticket's way --------------------------------------------------------------------------------------------

    def submit(self, number: int, request: Request, *, once: bool = False) -> None:
        """Take a request; ``once`` if it cannot be executed again."""
        state = self.state
        ticket = Ticket(number, request, state.now.seconds + request.timeout_s, once=once)
        self.tickets[number] = ticket
        if state.trouble:
            self._finish(ticket, UnavailableError(state.trouble))
            return
        state.timer(request.timeout_s * 1000, "ticket_deadline", number)
        self._start(ticket)

    def _start(self, ticket: Ticket) -> None:
        if self.state.has_seen(ticket.request.token):
            self._execute(ticket)
        else:
            self.ordering.want(ticket.request.token.vector)

    def settle(self) -> None:
        """Start the tickets whose session, and whose schema, this node has caught up with."""
        for ticket in self.activation.released():
            self._execute(ticket)
        for ticket in [ticket for ticket in self.tickets.values() if ticket.stage is Stage.TOKEN]:
            if self.state.has_seen(ticket.request.token):
                self._execute(ticket)

    def _execute(self, ticket: Ticket) -> None:
        if self._waits_for_schema(ticket):
            return
        if ticket.wants_clock and not ticket.once:
            ticket.stage, ticket.read = Stage.CLOCK, None
            if not self.clocking.ask(ticket.number):
                return
        self._execute_at(ticket)

    def _execute_at(self, ticket: Ticket) -> None:
        ticket.stage = Stage.EXECUTING
        clock = self.state.tick() if ticket.wants_clock else 0
        self.state.emit(Execute(ticket.number, clock, self.queues.group(ticket)))

    def clock_wanted(self, number: int) -> None:
        """What is executed calls ``transaction_clock()``: get one first."""
        ticket = self.tickets.get(number)
        if ticket is not None and ticket.stage is Stage.EXECUTING:
            ticket.wants_clock = True
            self._execute(ticket)

    def clock_told(self, peer: str, message: ToldClock) -> None:
        """A voter has told its clock: with those of a majority, execute; or answer what was only read with it."""
        ticket = self.tickets.get(self.clocking.on_told(peer, message) or 0)
        if ticket is None or ticket.stage is not Stage.CLOCK:
            return
        self._execute_at(ticket) if ticket.read is None else self._read(ticket, ticket.read)

    def executed(self, number: int, prepared: Prepared) -> None:
        """Lead what was executed, or answer it if it only read."""
        ticket = self.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.EXECUTING:
            return
        ticket.attempts += 1
        state = self.state
        if ticket.once and not (prepared.readonly and ticket.request.read != STRICT):
            moved = move(state, ticket, prepared)
            if isinstance(moved, BedrockishError):
                self._end(ticket, moved)
                return
            prepared = moved
        if prepared.schema != state.schema and (ticket.request.read == STRICT or not prepared.readonly):
            self._execute(ticket)  # a schema change has come into force meanwhile
            return
        if prepared.readonly:
            ticket.stage, ticket.read = Stage.CLOCK, prepared
            if not prepared.clock or self.clocking.ask(number, prepared.clock):
                self._read(ticket, prepared)
            return
        if not state.is_voter(state.me):
            refusal = self.forwarding.write_elsewhere(ticket)
            if refusal is not None:
                self._finish(ticket, refusal)
            return
        clock = prepared.clock or state.tick()  # what its client was told, or a new one
        activates = activation_clock(state, ticket, prepared, clock)
        commands = (ticket.request.command, *(command for command, _ in prepared.joined))
        ticket.footprint = claim(prepared.footprint, commands, prepared.kind, clock, activates)
        if self.activation.holds_up(ticket, prepared, clock):
            self.queues.leave(ticket)
            return
        if state.clock.read(state.now.wall_ms) - state.safe > pack(state.settings.conflict_window_ms):
            ticket.refusal = ticketing.no_safe_time(state)
            self._pause(ticket, 20)  # (a node that just started): a BEGIN now would be TOO OLD
            return
        ticket.refusal = ""
        if not self._step_back(ticket, prepared):
            self._begin(ticket, prepared, clock, activates)

    def _step_back(self, ticket: Ticket, prepared: Prepared) -> bool:
        """Test the transaction on ourselves; whether it has to wait."""
        state, footprint = self.state, ticket.footprint
        assert footprint is not None
        found = next(state.recent.conflicts(footprint, prepared.base), None)
        if found is not None:
            # It is committed and not in the snapshot: execute it, with those behind it, on a newer one.
            self._pause(ticket, max(1, state.settings.schema_delay_ms * is_clock(found.key)))
            return True
        for found in state.pending.conflicts(footprint):
            if found.other in self.rollbacks:
                continue  # our own, given up: our BEGIN carries its rollback
            if found.other.leader != state.me and self.forwarding.forward(ticket, found.other.leader):
                self.queues.leave(ticket)
                return True
            self.state.counts["waited"] += 1
            self.queues.wait(ticket, found.other)
            return True
        if self.queues.line_up(ticket, footprint):
            return True
        left_ms = self.turns.left_ms(footprint)
        if left_ms:
            self._wait_for_turn(ticket, left_ms)
        return left_ms > 0

    def _begin(self, ticket: Ticket, prepared: Prepared, clock: int, activates: int) -> None:
        state = self.state
        if prepared.clock and not self.clocking.fits(prepared.clock, ticket.begun):
            ticket.unfit += 1
            if ticket.once or ticket.unfit > ticketing.UNFIT_MAX:
                self._end(ticket, told_too_early(ticket.request.command))
            else:
                self._pause(ticket, 1)
            return
        rolling = tuple(sorted(self.rollbacks.rolling))
        transaction = ticketing.make_transaction(state, ticket, prepared, clock, activates, rolling)
        if self.voting.held_back(transaction):
            self._pause(ticket, 10 + 20 * state.draw())
            return
        joined = self.queues.joined(ticket, [command for command, _ in prepared.joined])
        if joined is None:
            self._execute(ticket)  # one of them is over: its time, or it was answered
            return
        txid = transaction.txid
        state.hold(transaction)
        approvals = {state.me: state.applied.get(state.me, 0)}
        attempt = Attempt(transaction, (ticket.number, *(one.number for one in joined)), state.now.seconds, approvals)
        self.attempts[txid] = attempt
        for one in (ticket, *joined):
            one.stage, one.begun = Stage.IN_FLIGHT, txid.clock
            one.open.add(txid)
        state.counts["joined"] += len(joined)
        state.send_voters(Begin(transaction.body))
        self.queues.begun(ticket, transaction)
        self._count(attempt)

    # -- answers from voters ---------------------------------------------------------------------------------------

    def on_approve(self, peer: str, message: Approve) -> None:
        """Count an approval."""
        attempt = self.attempts.get(message.txid)
        if attempt is not None and attempt.counting and self.state.is_voter(peer):
            attempt.approvals[peer] = message.tick
            attempt.rejects.pop(peer, None)
            self._count(attempt)

    def _count(self, attempt: Attempt) -> None:
        if attempt.counting and len(attempt.approvals) >= self.state.quorum:
            self._commit(attempt)

    def _commit(self, attempt: Attempt) -> None:
        state, transaction = self.state, attempt.transaction
        attempt.counting = False
        self.turns.took(state.now.seconds - attempt.since)
        peers = list(state.peers)  # also one that this may remove
        entry = self.ordering.lead(transaction, attempt.approvals)
        clock = state.clock.read(state.now.wall_ms)
        for node in peers:
            body = None if node in attempt.approvals else transaction.body
            state.send(node, Commit(entry.label, body, entry.hash, clock))

    def on_reject(self, peer: str, message: Reject) -> None:
        """Count a reject; when too many have rejected, give up."""
        attempt = self.attempts.get(message.txid)
        if attempt is None or not attempt.counting or not self.state.is_voter(peer):
            return
        if message.reason == Reason.PROMISED:
            return  # a recovery runs; its outcome will come
        attempt.rejects[peer] = message
        if message.other is not None:
            self.turns.met(message.other.leader)
        for ticket in self._tickets_of(attempt):
            if message.reason == Reason.AHEAD:
                ticket.refusal = ticketing.clock_refused(self.state.me, peer)
            if message.reason == Reason.TOO_LATE:
                ticket.late = peer
        self.state.counts[f"rejected_{Reason(message.reason).name.lower()}"] += 1
        if message.other is not None:
            self.ordering.ask_about(message.other, peer)
        self._count_rejects(attempt, patient=True)

    def _count_rejects(self, attempt: Attempt, *, patient: bool) -> None:
        """Give up when approvals enough cannot come any more."""
        if ticketing.is_lost(attempt, self.state, patient=patient):
            self._give_up(attempt)

    def check(self, gone: str | None = None) -> None:
        """Look for attempts that cannot succeed any more, and for reads and commands that nobody answers.

        Args:
            gone: a peer that cannot be reached any more.
        """
        for ticket in self.forwarding.overdue(gone):
            self._execute(ticket)
        patience = self.state.settings.suspicion_ms / 1000
        for attempt in [attempt for attempt in self.attempts.values() if attempt.counting]:
            self._count_rejects(attempt, patient=self.state.now.seconds - attempt.since < patience)
        for number in self.reading.overdue():
            self.read_checked(number, valid=False)

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.transaction.txid in self.state.outcomes:
            return  # safe time ended it in this very step
        attempt.counting = False
        self.state.counts["given_up"] += 1
        self.rollbacks.give_up(attempt.transaction.txid)
        tickets = [ticket for ticket in self._tickets_of(attempt) if ticket.stage is Stage.IN_FLIGHT]
        for ticket in tickets:
            ticket.last, ticket.contested = attempt.lost_for() or ticket.last, True
            ticket.rejections += 1
        for ticket in tickets[:1]:
            self._pause(ticket, ticketing.retry_pause_ms(ticket, self.state.settings, self.state.draw()))
            self.queues.stay(ticket, tickets[1:], attempt.transaction.txid)

    def _is_shared(self, attempt: Attempt) -> bool:
        """Whether somebody still waits for its approvals."""
        return any(ticket.stage is Stage.IN_FLIGHT for ticket in self._tickets_of(attempt))

    def _tickets_of(self, attempt: Attempt) -> list[Ticket]:
        found = [self.tickets.get(number) for number in attempt.tickets]
        return [ticket for ticket in found if ticket is not None]

    def again(self, number: int) -> None:
        """A pause is over."""
        ticket = self.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.PAUSED:
            return
        self.queues.heads.pop(number, None)
        if ticket.turn is not None:
            self.turns.passed(ticket.turn)
        elder = ticket.lost_to()  # of two that meet, the elder stays; the younger goes to where the elder is led
        if elder is None or elder.leader == self.state.me or not self.forwarding.forward(ticket, elder.leader):
            self._execute(ticket)

    def on_forwarded(self, peer: str, message: Forwarded) -> None:
        """Another leader has answered a command of ours."""
        ticket, answer = self.forwarding.on_forwarded(peer, message)
        if ticket is None:
            return
        if answer is not None:
            self._finish(ticket, answer)
        elif ticket.stage is Stage.FORWARDED:
            self._execute(ticket)
        elif not ticket.open:
            self._finish(ticket, ticketing.did_not_happen(ticket, self.state))

    def doom(self, committed: Known) -> None:
        """Give up what conflicts with a commit that arrived and is not in its base."""
        txid = committed.transaction.txid
        for found in list(self.state.pending.conflicts(committed.transaction.footprint, txid)):
            attempt = self.attempts.get(found.other)
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
        if not self.state.is_voter(peer):
            return
        for attempt in self.attempts.values():
            if attempt.counting and peer not in attempt.approvals and peer not in attempt.rejects:
                self.state.send(peer, Begin(attempt.transaction.body))
        self.rollbacks.resend(peer)

    # -- ends ------------------------------------------------------------------------------------------------------

    def ended(self, txid: Txid) -> None:
        """An outcome became known: answer its client, and go on with those that waited for it."""
        attempt = self.attempts.pop(txid, None)
        self.rollbacks.forget(txid)
        known = self.state.recent.known.get(txid)
        contested = attempt is not None and any(ticket.contested for ticket in self._tickets_of(attempt))
        if known is not None:
            self.queues.met(known.transaction)
            if contested or txid in self.queues.waits:
                self.turns.reserve(known.transaction)
        if attempt is not None:
            self._ended_attempt(attempt, commit=self.state.outcomes[txid])
        self.queues.released(txid, known.transaction.kind if known is not None else ROWS)

    def released(self, txid: Txid) -> None:
        """A transaction is in nobody's way here any more: go on with those that waited for it."""
        self.queues.released(txid)

    def _ended_attempt(self, attempt: Attempt, *, commit: bool) -> None:
        for ticket in self._tickets_of(attempt):
            self._ended_ticket(ticket, attempt.transaction, commit=commit)

    def past_deadline(self, number: int) -> None:
        """The client's time is over: say what is known, or wait a little for the end of the last attempt."""
        ticket = self.tickets.get(number)
        if ticket is None or ticket.extend(self.state):
            return
        if ticket.stage in (Stage.ENDING, Stage.ACTIVATING):
            self._finish(ticket, ticketing.unknown(ticket))
            return
        in_flight, away = ticket.stage is Stage.IN_FLIGHT, ticket.stage is Stage.FORWARDED
        ticket.stage = Stage.ENDING
        self.queues.leave(ticket)
        if in_flight:
            for txid in sorted(ticket.open):
                attempt = self.attempts.get(txid)
                if attempt is not None and attempt.counting and not self._is_shared(attempt):
                    self._give_up(attempt)
        if number in self.tickets:
            if ticket.open or away:
                self.state.timer(ticketing.ENDING_MS, "ticket_deadline", number)
            else:
                self._finish(ticket, ticketing.did_not_happen(ticket, self.state))
