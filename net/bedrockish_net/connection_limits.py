"""Limits the connections to a node by address, so that one address cannot take all places. Pure, except that it calls
its callers' functions.

A stranger is a connection that has not sent HELLO. If there are too many strangers, the oldest stranger of the address
that has most of them is disconnected. A caller that has sent HELLO is no longer a stranger, however long its admission
takes.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable

from bedrockish_net.errors import Code, RefusedError

STRANGERS_MAX = 64
SPEAKERS_MAX = 256  # the most callers that have sent HELLO and are being admitted
CLIENTS_MAX = 2_000
CLIENTS_PER_ADDRESS_MAX = 1_000


class ConnectionLimits:
    """Counts the strangers and clients of one node, and refuses or disconnects those above the limits."""

    def __init__(
        self,
        strangers_max: int = STRANGERS_MAX,  # the greatest number of strangers
        clients_max: int = CLIENTS_MAX,  # the greatest number of admitted clients
        # The greatest number of admitted clients from one address.
        clients_per_address_max: int = CLIENTS_PER_ADDRESS_MAX,
        # The number of open files, sockets included, from which on clients are refused and only members are admitted.
        files_max: float = math.inf,
    ) -> None:
        self._files_max = files_max
        self._strangers_max, self._clients_max = strangers_max, clients_max
        self._per_address_max = clients_per_address_max
        self._strangers: OrderedDict[int, tuple[str, Callable[[], None]]] = OrderedDict()  # by number, oldest first
        self._silent: Counter[str] = Counter()  # the number of strangers of each address
        self._speakers = 0
        self._clients: Counter[str] = Counter()
        self._count = 0

    def add_stranger(self, address: str, disconnect: Callable[[], None]) -> tuple[int, str]:
        """Add a stranger. Return its number, and a log text if another stranger was disconnected for it; else "".

        Args:
            address: the stranger's address.
            disconnect: disconnects the stranger; called at most once, and not after ``remove_stranger``.
        """
        self._count += 1
        self._strangers[self._count] = address, disconnect
        self._silent[address] += 1
        if len(self._strangers) <= self._strangers_max:
            return self._count, ""
        crowd = max(self._silent, key=self._silent.__getitem__)
        oldest = next(number for number, (host, _) in self._strangers.items() if host == crowd)
        send_away = self._strangers[oldest][1]
        self.remove_stranger(oldest)
        send_away()
        return self._count, f"more than {self._strangers_max} connections without HELLO; closed the oldest of {crowd}"

    def begin_admission(self, number: int) -> None:
        """Record that a stranger has sent HELLO.

        Raises:
            RefusedError: too many callers are being admitted.
        """
        self.remove_stranger(number)
        if self._speakers >= SPEAKERS_MAX:
            raise RefusedError(Code.REFUSED, f"{SPEAKERS_MAX} connections are being admitted already; try again")
        self._speakers += 1

    def end_admission(self) -> None:
        """Record that the admission of a caller has ended, whether it was admitted or refused."""
        self._speakers -= 1

    def remove_stranger(self, number: int) -> None:
        """Remove a stranger, which has sent HELLO or has gone; a second call has no effect."""
        found = self._strangers.pop(number, None)
        if found is not None:
            address = found[0]
            self._silent[address] -= 1
            if not self._silent[address]:
                del self._silent[address]

    def is_crowded(self, number: int) -> bool:
        """Return whether the number of a stranger's descriptor shows that too few files are left even for members.

        The system uses the lowest free number, so the number shows how many files are open.
        """
        return number >= self._files_max + self._strangers_max

    def add_client(self, address: str, number: int = 0) -> None:
        """Add an admitted client with the descriptor ``number``.

        Raises:
            RefusedError: there are too many clients, of this address or in total, or too many open files.
        """
        if number >= self._files_max:
            raise RefusedError(
                Code.REFUSED,
                f"this node has {number} open files, and keeps the rest for open connections; use another node, and "
                "raise this node's limit of open files (ulimit -n)",
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

    def remove_client(self, address: str) -> None:
        """Remove a client that has gone."""
        self._clients[address] -= 1
        if not self._clients[address]:
            del self._clients[address]
