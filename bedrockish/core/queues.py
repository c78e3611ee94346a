"""Tickets that wait for the end of a transaction that they conflict with.

Only the first of a queue is executed when that transaction ends; the others stay behind it, for they would only meet
it. When it is in flight, those that conflict with it wait for it in turn, and the rest are executed.
"""

from collections import deque
from collections.abc import Callable, Mapping

from bedrockish.core.tickets import Stage, Ticket
from journal.footprint import conflict
from journal.transaction import Transaction, Txid


class Queues:
    """Who waits for what.

    Args:
        tickets: all that are under way.
        execute: executes a ticket again.
    """

    def __init__(self, tickets: Mapping[int, Ticket], execute: Callable[[Ticket], None]) -> None:
        self._tickets = tickets
        self._execute = execute
        self.waits: dict[Txid, deque[int]] = {}

    def wait(self, ticket: Ticket, other: Txid) -> None:
        """Let a ticket, and those behind it, wait for the end of a transaction."""
        ticket.stage = Stage.WAITING
        queue = self.waits.setdefault(other, deque())
        queue.append(ticket.number)
        queue.extend(ticket.behind)
        ticket.behind.clear()

    def begun(self, ticket: Ticket, transaction: Transaction) -> None:
        """A ticket is in flight: those behind it wait for its transaction if they conflict with it; others run."""
        waiting, ticket.behind = ticket.behind, deque()
        queue: deque[int] = deque()
        for number in waiting:
            other = self._tickets.get(number)
            if other is None:
                continue
            if other.footprint is not None and conflict(other.footprint, transaction.footprint) is not None:
                queue.append(number)
            else:
                self._execute(other)
        if queue:
            self.waits.setdefault(transaction.txid, deque()).extend(queue)

    def released(self, txid: Txid) -> None:
        """A transaction is in nobody's way here any more: go on with those that waited for it."""
        queue = self.waits.pop(txid, None)
        if queue:
            self._go_on(queue)

    def leave(self, ticket: Ticket) -> None:
        """A ticket does not go first any more: let those behind it go on."""
        if ticket.behind:
            queue, ticket.behind = ticket.behind, deque()
            self._go_on(queue)

    def _go_on(self, queue: deque[int]) -> None:
        while queue:
            first = self._tickets.get(queue.popleft())
            if first is not None and first.stage is Stage.WAITING:
                first.behind = queue
                self._execute(first)
                return
