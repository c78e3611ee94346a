"""The ends of our clients' requests: what each is told, and when."""

from bedrockish.core import tickets as ticketing
from bedrockish.core.activation import Activation
from bedrockish.core.effects import Reply
from bedrockish.core.queues import Queues
from bedrockish.core.records import Prepared
from bedrockish.core.state import State
from bedrockish.core.tickets import Stage, Ticket
from bedrockish.core.turns import Turns
from bedrockish.errors import BedrockishError
from bedrockish.requests import Answer, Token
from journal.transaction import Transaction, Txid
from journal.vector import merge


class Answering:
    """The tickets under way, and their answers."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.tickets: dict[int, Ticket] = {}
        self.activation = Activation(state)
        self.turns = Turns(state)
        self.queues = Queues(self.tickets, self._execute, self._wait_for_turn, self.turns)

    def _execute(self, ticket: Ticket) -> None:
        raise NotImplementedError

    def _pause(self, ticket: Ticket, after_ms: float) -> None:
        """Execute a ticket again after a while; those behind it stay there."""
        ticket.stage, ticket.turn = Stage.PAUSED, None
        self.queues.pause(ticket)
        self.state.timer(after_ms, "ticket_again", ticket.number)

    def _wait_for_turn(self, ticket: Ticket, after_ms: float) -> None:
        """Execute a ticket when it is its turn; others have theirs before."""
        self._pause(ticket, after_ms)
        ticket.turn = self.state.now.seconds

    def _answer_read(self, ticket: Ticket, prepared: Prepared) -> None:
        # The clock of a token is above that of everything in its vector: safe time may stand in for the vector.
        seen, clock = ticket.request.token, self.state.clock.read(self.state.now.wall_ms)
        token = Token(merge(prepared.base, seen.vector), max(seen.clock, clock))
        self._finish(ticket, Answer(prepared.result, token, None, ticket.attempts))

    def decided(self, number: int, txid: Txid, answer: Answer) -> None:
        """A ticket is a schema change that was committed before, and is not in force here yet."""
        ticket = self.tickets.get(number)
        if ticket is not None:
            self.activation.decide(ticket, txid, answer)
            self.queues.leave(ticket)

    def activated(self, txid: Txid, failure: str) -> None:
        """A schema change is in force, or the data forbade it: answer those that asked for it."""
        for ticket in self.activation.activated(txid):
            assert ticket.answer is not None
            self._finish(ticket, ticketing.schema_failed(failure) if failure else ticket.answer)

    def failed(self, number: int, error: BedrockishError) -> None:
        """A ticket cannot be executed. An earlier attempt of it, here or elsewhere, may have happened nevertheless."""
        ticket = self.tickets.get(number)
        if ticket is not None and ticket.stage is Stage.EXECUTING:
            self._end(ticket, ticketing.unknown(ticket) if ticket.astray else error)

    def drop(self, number: int) -> None:
        """A ticket needs no more from us."""
        ticket = self.tickets.pop(number, None)
        if ticket is not None:
            self.queues.leave(ticket)

    def _finish(self, ticket: Ticket, answer: Answer | BedrockishError) -> None:
        self.tickets.pop(ticket.number, None)
        self.state.emit(Reply(ticket.number, answer))
        self.queues.leave(ticket)

    def _ended_ticket(self, ticket: Ticket, transaction: Transaction, *, commit: bool) -> None:
        """A transaction that it had a part in has ended."""
        ticket.open.discard(transaction.txid)
        if commit:
            place = self.state.recent.known[transaction.txid].places[0]
            answer = ticketing.committed(ticket, transaction, place)
            if transaction.activates:
                self.activation.decide(ticket, transaction.txid, answer)
            else:
                self._finish(ticket, answer)
        elif ticket.stage is Stage.IN_FLIGHT:
            self._pause(ticket, self.state.settings.retry_ms_min * (1 + self.state.draw()))
        elif ticket.stage is Stage.ENDING and not ticket.open:
            self._finish(ticket, ticketing.did_not_happen(ticket, self.state))

    def _end(self, ticket: Ticket, error: BedrockishError) -> None:
        """Answer an error, as soon as none of the attempts can happen any more."""
        if not ticket.open:
            self._finish(ticket, error)
            return
        ticket.stage, ticket.error = Stage.ENDING, error
        self.state.timer(ticketing.ENDING_MS, "ticket_deadline", ticket.number)
        self.queues.leave(ticket)
