"""Commands that come at the same moment share a transaction, like a group commit, as long as that does nobody any harm.

A round of votes costs every node the same whether it decides one command or ten. So what clients have sent while the
node was busy is executed one on top of the other, and led as one transaction: the busier a node is, the larger its
groups are, and at a quiet one each command has its own. They have nothing to do with each other, so none is to wait, or
to be turned down, for another one's sake: when something is in the way of a group, each goes on alone. The size of
groups adapts as TCP's window does: it halves when one is turned down, and grows by one with each commit that met
nobody.
"""

from collections import deque
from collections.abc import Callable, Mapping

from bedrockish.core.coordinator.request import Stage, Ticket

SIZE_MAX = 64  # commands in one group


class Together:
    """The groups of commands that came together.

    Args:
        tickets: all that are under way.
        execute: executes a ticket, and those behind it with it.

    Attributes:
        size: of the next group, at most.
    """

    def __init__(self, tickets: Mapping[int, Ticket], execute: Callable[[Ticket], None]) -> None:
        self._tickets, self._execute = tickets, execute
        self._leading: dict[int, Ticket] = {}  # those that others came together with and are behind
        self.size = SIZE_MAX

    def start(self, tickets: list[Ticket]) -> None:
        """Execute tickets that came together, in groups."""
        while tickets:
            group, tickets = tickets[: self.size], tickets[self.size :]
            first, *others = group
            first.writes = bool(others)
            for other in others:
                other.writes, other.is_free = True, True
                other.move(Stage.WAITING)
            first.behind.extend(other.number for other in others)
            self._execute(first)

    def goes_first(self, ticket: Ticket) -> None:
        """A ticket is executed with those behind it; whoever came with it is not to wait longer than that takes."""
        if any(other.is_free for other in self._behind(ticket)):
            self._leading[ticket.number] = ticket

    def part(self, ticket: Ticket, *, again: bool = False) -> bool:
        """Let each that came together with a ticket go on alone; False if nobody did.

        ``again``: execute the ticket, too, and before them.
        """
        if self._leading.pop(ticket.number, None) is None:
            return False
        free = [other for other in self._behind(ticket) if other.is_free]
        ticket.behind = deque(other.number for other in self._behind(ticket) if not other.is_free)
        for one in (ticket, *free) if again and free else free:
            one.is_free = False
            self._execute(one)
        return bool(free)

    def settle(self) -> None:
        """Part those whose first has something to wait for."""
        for number, ticket in list(self._leading.items()):
            if ticket.stage is not Stage.EXECUTING or number not in self._tickets:
                self.part(ticket)

    def grow(self) -> None:
        """A group was committed, or a command alone that met nobody: else groups of one would stay so for ever."""
        self.size = min(SIZE_MAX, self.size + 1)

    def shrink(self) -> None:
        """A group was turned down, here or by others."""
        self.size = max(1, self.size // 2)

    def _behind(self, ticket: Ticket) -> list[Ticket]:
        found = (self._tickets.get(number) for number in ticket.behind)
        return [other for other in found if other is not None and other.stage is Stage.WAITING]
