"""The requests of our clients that are under way, and their ends: what each is told, and when."""

from collections.abc import Callable

from bedrockish.api.requests import Answer, Token
from bedrockish.core.coordinator import request as ticketing
from bedrockish.core.coordinator.request import Stage, Ticket
from bedrockish.core.coordinator.schema_barrier import SchemaBarrier
from bedrockish.core.coordinator.wait_queue import Turns, WaitQueue
from bedrockish.core.protocol.effects import Reply
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.state import State
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import merge


class Replies:
    """The tickets under way, what they wait for, and their answers.

    Args:
        state: of this node.
        execute: executes a ticket again.
    """

    def __init__(self, state: State, execute: Callable[[Ticket], None]) -> None:
        self.state = state
        self.tickets: dict[int, Ticket] = {}
        self.schema_barrier = SchemaBarrier(state)
        self.turns = Turns(state)
        self.wait_queue = WaitQueue(self.tickets, execute, self.wait_for_turn, self.turns)

    def pause(self, ticket: Ticket, after_ms: float) -> None:
        """Execute a ticket again after a while; those behind it stay there."""
        ticket.move(Stage.PAUSED)
        ticket.turn = None
        self.wait_queue.pause(ticket)
        self.state.timers.set(after_ms, "ticket_again", ticket.number)

    def wait_for_turn(self, ticket: Ticket, after_ms: float) -> None:
        """Execute a ticket when it is its turn; others have theirs before."""
        self.pause(ticket, after_ms)
        ticket.turn = self.state.clock.now.seconds

    def answer_read(self, ticket: Ticket, prepared: Prepared) -> None:
        """Answer what a ticket has read, with a token of what that rests on."""
        # The clock of a token is above that of everything in its vector: safe time may stand in for the vector.
        seen, clock = ticket.request.token, self.state.clock.read()
        vector = self.state.timelines.in_short(merge(prepared.base, seen.vector))
        self.finish(ticket, Answer(prepared.result, Token(vector, max(seen.clock, clock)), None, ticket.attempts))

    def decided(self, number: int, txid: Txid, answer: Answer) -> None:
        """A ticket is a schema change that was committed before, and is not in force here yet."""
        ticket = self.tickets.get(number)
        if ticket is not None:
            self.schema_barrier.decide(ticket, txid, answer)
            self.wait_queue.leave(ticket)

    def activated(self, txid: Txid, failure: str) -> None:
        """A schema change is in force, or the data forbade it: answer those that asked for it."""
        for ticket in self.schema_barrier.activated(txid):
            assert ticket.answer is not None
            self.finish(ticket, ticketing.schema_failed(failure) if failure else ticket.answer)

    def drop(self, number: int) -> None:
        """A ticket needs no more from us."""
        ticket = self.tickets.pop(number, None)
        if ticket is not None:
            self.wait_queue.leave(ticket)

    def finish(self, ticket: Ticket, answer: Answer | BedrockishError) -> None:
        """Answer a ticket, for good, and let those behind it go on."""
        self.tickets.pop(ticket.number, None)
        self.state.outbox.emit(Reply(ticket.number, answer))
        self.wait_queue.leave(ticket)

    def ended(self, ticket: Ticket, transaction: Transaction, *, commit: bool) -> None:
        """A transaction that it had a part in has ended."""
        ticket.open.discard(transaction.txid)
        if commit:
            place = self.state.commit_window.known[transaction.txid].places[0]
            answer = ticketing.committed(self.state, ticket, transaction, place)
            if transaction.activates:
                self.schema_barrier.decide(ticket, transaction.txid, answer)
            else:
                self.finish(ticket, answer)
        elif ticket.stage is Stage.IN_FLIGHT:
            self.pause(ticket, self.state.settings.retry_ms_min * (1 + self.state.draw()))
        elif ticket.stage is Stage.ENDING and not ticket.open:
            self.finish(ticket, ticketing.did_not_happen(ticket, self.state))

    def end(self, ticket: Ticket, error: BedrockishError) -> None:
        """Answer an error, as soon as none of the attempts can happen any more."""
        if not ticket.open:
            self.finish(ticket, error)
            return
        ticket.move(Stage.ENDING)
        ticket.error = error
        self.state.timers.set(ticketing.ENDING_MS, "ticket_deadline", ticket.number)
        self.wait_queue.leave(ticket)
