"""Reads of our clients: answered at once, or when a majority has been asked; and what waits for a schema change."""

from bedrockish.core import tickets as ticketing
from bedrockish.core.answering import Answering
from bedrockish.core.reading import Reading
from bedrockish.core.records import Prepared
from bedrockish.core.state import State
from bedrockish.core.tickets import Stage, Ticket
from bedrockish.requests import STRICT


class Checking(Answering):
    """Answers reads."""

    def __init__(self, state: State, reading: Reading) -> None:
        super().__init__(state)
        self.reading = reading

    def _waits_for_schema(self, ticket: Ticket) -> bool:
        """Whether a ticket that is executed again has to wait for a schema change first: it would be for nothing."""
        if ticket.footprint is None and ticket.read is None:
            return False  # it may be a read that need not wait
        state = self.state
        change = state.pending.schema_change()
        if change is not None and change.activates <= state.clock.read(state.now.wall_ms):
            self.queues.wait(ticket, change.txid)
            return True
        if self.activation.will_hold_up(ticket):
            self.queues.leave(ticket)
            return True
        return False

    def _read(self, ticket: Ticket, prepared: Prepared) -> None:
        if ticket.request.read == STRICT:
            self._check_read(ticket, prepared)
        else:
            self._answer_read(ticket, prepared)

    def _check_read(self, ticket: Ticket, prepared: Prepared) -> None:
        ticket.stage, ticket.read = Stage.CHECKING, prepared
        valid = self.reading.begin(ticket, prepared)
        if valid is not None:
            self.read_checked(ticket.number, valid=valid)

    def read_checked(self, number: int, *, valid: bool) -> None:
        """A majority has answered for a strict read: answer it, or execute it again on a newer snapshot."""
        ticket = self.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.CHECKING or ticket.read is None:
            return
        if valid and self.activation.holds_up(ticket, ticket.read, self.state.clock.value):
            self.queues.leave(ticket)
        elif valid and ticket.read.schema == self.state.schema:
            self._answer_read(ticket, ticket.read)
        else:
            self._read_again(ticket)

    def _read_again(self, ticket: Ticket) -> None:
        change = self.state.pending.schema_change()
        if change is None:
            self._pause(ticket, ticketing.READ_AGAIN_MS * (1 + self.state.draw()))
        else:
            self.queues.wait(ticket, change.txid)
