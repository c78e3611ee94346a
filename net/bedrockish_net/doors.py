"""The strangers at a node's door, counted by address, so that no address can fill the door for others. Pure, but for
its callers.

A stranger has connected and said nothing. When there are too many, the oldest one of the address that has most of them
makes room. A caller that has said HELLO is no longer a stranger, however long its admission takes.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable

from bedrockish_net.errors import Code, RefusedError

STRANGERS_MAX = 64
SPEAKERS_MAX = 256  # who have said HELLO and are being looked at
CLIENTS_MAX = 2_000
CLIENTS_PER_ADDRESS_MAX = 1_000


class Doors:
    """The callers of one node.

    Args:
        strangers_max: how many may be connected and silent.
        clients_max: how many clients may be in.
        clients_per_address_max: how many of them from one address.
        files_max: how many files may be open here, sockets among them, when a client comes in; members still may.
    """

    def __init__(
        self,
        strangers_max: int = STRANGERS_MAX,
        clients_max: int = CLIENTS_MAX,
        clients_per_address_max: int = CLIENTS_PER_ADDRESS_MAX,
        files_max: float = math.inf,
    ) -> None:
        self._files_max = files_max
        self._strangers_max, self._clients_max = strangers_max, clients_max
        self._per_address_max = clients_per_address_max
        self._strangers: OrderedDict[int, tuple[str, Callable[[], None]]] = OrderedDict()  # oldest first
        self._silent: Counter[str] = Counter()  # of each address
        self._speakers = 0
        self._clients: Counter[str] = Counter()
        self._count = 0

    def come(self, address: str, leave: Callable[[], None]) -> tuple[int, str]:
        """Admit a stranger to the door. Return its number, and a note on the stranger that made room for it, or an
        empty text.

        Args:
            address: where it comes from.
            leave: sends it away; called at most once, and not after ``speak`` or ``go``.
        """
        self._count += 1
        self._strangers[self._count] = address, leave
        self._silent[address] += 1
        if len(self._strangers) <= self._strangers_max:
            return self._count, ""
        crowd = max(self._silent, key=self._silent.__getitem__)
        oldest = next(number for number, (host, _) in self._strangers.items() if host == crowd)
        send_away = self._strangers[oldest][1]
        self.go(oldest)
        send_away()
        return self._count, f"more than {self._strangers_max} connections without HELLO; closed the oldest of {crowd}"

    def speak(self, number: int) -> None:
        """A stranger has said HELLO.

        Raises:
            RefusedError: too many are being looked at.
        """
        self.go(number)
        if self._speakers >= SPEAKERS_MAX:
            raise RefusedError(Code.REFUSED, f"{SPEAKERS_MAX} callers are being looked at already; try again")
        self._speakers += 1

    def answered(self) -> None:
        """One of those who have said HELLO was let in, or not."""
        self._speakers -= 1

    def go(self, number: int) -> None:
        """A stranger is one no more, or has gone; doing it twice is fine."""
        found = self._strangers.pop(number, None)
        if found is not None:
            address = found[0]
            self._silent[address] -= 1
            if not self._silent[address]:
                del self._silent[address]

    def is_crowded(self, number: int) -> bool:
        """Whether a stranger with a descriptor of this number is turned away: even members could find no place.

        A system gives the lowest number that is free, so that it tells how many files are open.
        """
        return number >= self._files_max + self._strangers_max

    def enter(self, address: str, number: int = 0) -> None:
        """A client comes in, with a descriptor of this number.

        Raises:
            RefusedError: there are too many, of this address or of all, or too many open files.
        """
        if number >= self._files_max:
            raise RefusedError(
                Code.REFUSED,
                f"this node has {number} open files, and keeps the rest for those who are in; go to another one, and "
                "raise its limit of open files (ulimit -n)",
            )
        if self._clients[address] >= self._per_address_max:
            raise RefusedError(
                Code.REFUSED,
                f"there are {self._clients[address]} connections from {address}, which is the limit "
                "(connections_per_address_max); use a pool, or fewer of them",
            )
        if self._clients.total() >= self._clients_max:
            raise RefusedError(
                Code.REFUSED,
                f"there are {self._clients_max} connections, which is the limit (connections_max); try again",
            )
        self._clients[address] += 1

    def leave(self, address: str) -> None:
        """A client has gone."""
        self._clients[address] -= 1
        if not self._clients[address]:
            del self._clients[address]
