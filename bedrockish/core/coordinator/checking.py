"""Reads of our clients: answered at once, or when a majority has been asked; and what waits for a schema change."""

from collections.abc import Callable

from bedrockish.api.requests import STRICT
from bedrockish.core.coordinator import request as ticketing
from bedrockish.core.coordinator.reads import Reading
from bedrockish.core.coordinator.replies import Replies
from bedrockish.core.coordinator.request import Stage, Ticket, lagging
from bedrockish.core.coordinator.revalidation import move
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.state import State
from bedrockish.errors import BedrockishError


class Checking:
    """Answers reads.

    Args:
        state: of this node.
        reading: asks a majority whether a read is valid.
        replies: answers the tickets.
        execute: executes a ticket again.
    """

    def __init__(self, state: State, reading: Reading, replies: Replies, execute: Callable[[Ticket], None]) -> None:
        self.state = state
        self.reading = reading
        self.replies = replies
        self._execute = execute

    def waits_for_schema(self, ticket: Ticket) -> bool:
        """Whether a ticket that is executed again has to wait for a schema change first: it would be for nothing."""
        if ticket.footprint is None and ticket.read is None:
            return False  # it may be a read that need not wait
        state = self.state
        change = state.votes.pending.schema_change()
        if change is not None and change.activates <= state.clock.read():
            self.replies.wait_queue.wait(ticket, change.txid)
            return True
        if self.replies.schema_barrier.will_hold_up(ticket):
            self.replies.wait_queue.leave(ticket)
            return True
        return False

    def read(self, ticket: Ticket, prepared: Prepared) -> None:
        """Answer what only read: at once, or when a majority has said that it is still so."""
        if ticket.request.read == STRICT:
            self._check_read(ticket, prepared)
        else:
            self.replies.answer_read(ticket, prepared)

    def _check_read(self, ticket: Ticket, prepared: Prepared) -> None:
        ticket.move(Stage.CHECKING)
        ticket.read = prepared
        valid = self.reading.begin(ticket, prepared)
        if valid is not None:
            self.read_checked(ticket.number, valid=valid)

    def failed(self, number: int, error: BedrockishError) -> None:
        """A ticket cannot be executed. An earlier attempt of it may have happened nevertheless.

        A refusal is an answer: what it rests on is certified like a read, at the level that the client asked for.
        """
        ticket = self.replies.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.EXECUTING:
            return
        ticket.attempts += 1
        rests_on: Prepared | None = error.rests_on
        read = move(self.state, ticket, rests_on) if ticket.once and rests_on is not None else rests_on
        if read is None or isinstance(read, BedrockishError):
            self.replies.end(ticket, read or error)
        elif ticket.request.read != STRICT:
            self.replies.end(ticket, lagging(error) if self.reading.may_lag(read) else error)
        elif read.schema != self.state.schema.version:
            self._execute(ticket)  # a schema change has come into force meanwhile
        else:
            ticket.refused = error
            self._check_read(ticket, read)

    def read_checked(self, number: int, *, valid: bool) -> None:
        """A majority has answered for a strict read: answer it, or execute it again on a newer snapshot."""
        ticket = self.replies.tickets.get(number)
        if ticket is None or ticket.stage is not Stage.CHECKING or ticket.read is None:
            return
        if valid and self.replies.schema_barrier.holds_up(ticket, ticket.read, self.state.clock.value):
            self.replies.wait_queue.leave(ticket)
        elif valid and ticket.read.schema == self.state.schema.version:
            if ticket.refused is None:
                self.replies.answer_read(ticket, ticket.read)
            else:
                self.replies.end(ticket, ticket.refused)
        else:
            self._read_again(ticket)

    def _read_again(self, ticket: Ticket) -> None:
        change = self.state.votes.pending.schema_change()
        if change is None:
            self.replies.pause(ticket, ticketing.READ_AGAIN_MS * (1 + self.state.draw()))
        else:
            self.replies.wait_queue.wait(ticket, change.txid)
