"""Tickets that wait for the end of a transaction that they conflict with.

Only the first of a queue is executed when that transaction ends; the others stay behind it, for they would only meet
it. As many of them as can be are executed on top of it and share its transaction: else a key that everybody wants would
go on by one command in each round trip. When it is in flight, those that conflict with it wait for it in turn, and the
rest are executed.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from bedrockish.core.coordinator.request import Stage, Ticket
from bedrockish.core.coordinator.turns import Turns
from bedrockish.core.state.access_index import AccessIndex
from bedrockish_journal.model.footprint import Footprint, conflict
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid

GROUP_MAX = 100  # commands that share one transaction


class WaitQueue:
    """Who waits for what.

    Args:
        tickets: all that are under way.
        execute: executes a ticket again.
        pause: executes it again after so many milliseconds, when it is its turn.
        turns: who goes next.
    """

    def __init__(
        self,
        tickets: Mapping[int, Ticket],
        execute: Callable[[Ticket], None],
        pause: Callable[[Ticket, float], None],
        turns: Turns,
    ) -> None:
        self._tickets, self._execute, self._pause, self._turns = tickets, execute, pause, turns
        self.waits: dict[Txid, deque[int]] = {}
        self.heads: dict[int, Ticket] = {}  # those that pause, as their footprints tell; others line up behind them
        self._head_keys: AccessIndex[int] = AccessIndex()

    def wait(self, ticket: Ticket, other: Txid) -> None:
        """Let a ticket, and those behind it, wait for the end of a transaction."""
        self.go_on(ticket.number)
        ticket.contested = True
        self._turns.met(other.leader)
        _queue(ticket, self.waits.setdefault(other, deque()))

    def pause(self, ticket: Ticket) -> None:
        """Let others that want the same keys line up behind a ticket that pauses."""
        if ticket.footprint is not None:
            self.go_on(ticket.number)
            self.heads[ticket.number] = ticket
            self._head_keys.add(ticket.number, ticket.footprint)

    def go_on(self, number: int) -> None:
        """A ticket does not pause any more."""
        if self.heads.pop(number, None) is not None:
            self._head_keys.remove(number)

    def head(self, ticket: Ticket, footprint: Footprint) -> int | None:
        """Return the number of another ticket that pauses and wants the same keys."""
        found = next(self._head_keys.conflicts(footprint, ticket.number), None)
        return None if found is None else found[0]

    def line_up(self, ticket: Ticket, head: int) -> None:
        """Let a ticket, and those behind it, stay behind one that pauses."""
        _queue(ticket, self.heads[head].behind)

    def met(self, txid: Txid, footprint: Footprint) -> None:
        """A transaction has become pending here: who waits for its turn on these keys now waits for its end."""
        self._turns.begins(footprint)
        if self.heads:
            for number, _ in list(self._head_keys.conflicts(footprint)):
                if self.heads[number].turn is not None:
                    self.wait(self.heads[number], txid)

    def begun(self, ticket: Ticket, transaction: Transaction) -> None:
        """A ticket is in flight: those behind it wait for its transaction if they conflict with it; others run."""
        waiting, ticket.behind = ticket.behind, deque()
        queue: deque[int] = deque()
        for number in waiting:
            other = self._tickets.get(number)
            if other is None or other.stage is not Stage.WAITING:
                continue
            if other.footprint is not None and conflict(other.footprint, transaction.footprint) is not None:
                queue.append(number)
            else:
                self._execute(other)
        if queue:
            self.waits.setdefault(transaction.txid, deque()).extend(queue)

    def group(self, ticket: Ticket) -> tuple[int, ...]:
        """Return the tickets behind one that may share its transaction, in order."""
        if not ticket.behind or not ticket.is_plain:
            return ()
        group: list[int] = []
        commands = {ticket.request.command}
        for number in ticket.behind:
            other = self._tickets.get(number)
            if (
                other is not None
                and other.stage is Stage.WAITING
                and other.is_plain
                and other.request.isolation == ticket.request.isolation
                and other.request.command not in commands
            ):
                commands.add(other.request.command)
                group.append(number)
                if len(group) == GROUP_MAX - 1:
                    break
        return tuple(group)

    def joined(self, ticket: Ticket, commands: Collection[str]) -> list[Ticket] | None:
        """Take the tickets behind one that share its transaction; None if one of them is not there any more."""
        found: dict[str, Ticket] = {}
        for number in self.group(ticket):
            other = self._tickets[number]
            if other.request.command in commands:
                found[other.request.command] = other
        if len(found) < len(commands):
            return None
        taken = {other.number for other in found.values()}
        ticket.behind = deque(number for number in ticket.behind if number not in taken)
        return list(found.values())

    def stay(self, ticket: Ticket, others: Sequence[Ticket], txid: Txid) -> None:
        """Let those that shared a transaction, which was given up, and those that wait for it stay behind a ticket."""
        for other in others:
            other.move(Stage.WAITING)
        ticket.behind.extend(other.number for other in others)
        ticket.behind.extend(self.waits.pop(txid, ()))

    def released(self, txid: Txid, kind: str = ROWS) -> None:
        """A transaction is in nobody's way here any more: go on with those that waited for it, when it is their turn.

        Those that waited for a change of the schema or of the members have nothing else in common: all go on.
        """
        queue = self.waits.pop(txid, deque())
        if kind == ROWS:
            self._go_on(queue, self._turns.pause_ms(txid.leader) if queue else 0.0)
            return
        for number in queue:
            ticket = self._tickets.get(number)
            if ticket is not None and ticket.stage is Stage.WAITING:
                self._execute(ticket)

    def leave(self, ticket: Ticket) -> None:
        """A ticket does not go first any more: let those behind it go on."""
        self.go_on(ticket.number)
        if ticket.behind:
            queue, ticket.behind = ticket.behind, deque()
            self._go_on(queue)

    def _go_on(self, queue: deque[int], pause_ms: float = 0.0) -> None:
        while queue:
            first = self._tickets.get(queue.popleft())
            if first is None or first.stage is not Stage.WAITING:
                continue
            if first.read is not None:  # a strict read, which nobody has to wait for
                self._execute(first)
                continue
            first.behind = queue
            if pause_ms:
                self._pause(first, pause_ms)
            else:
                self._execute(first)
            return


def _queue(ticket: Ticket, queue: deque[int]) -> None:
    """Let a ticket, and those behind it, wait at the end of a queue."""
    ticket.move(Stage.WAITING)
    queue.append(ticket.number)
    queue.extend(ticket.behind)
    ticket.behind.clear()
