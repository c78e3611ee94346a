"""Chooses the node that a client asks next, from its URL and from the members learnt from the cluster. Pure.

A client stays with a node as long as the node answers. When it must leave, it asks the next node of the list. Nodes
that this client or other nodes have just found unreachable come last.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from bedrockish.api.url import Address, Target, parse_address
from bedrockish.client.sansio.retry import Backoff
from bedrockish.errors import (
    AuthenticationError,
    BedrockishError,
    ConfigError,
    LearnerError,
    ProtocolMismatchError,
    UnavailableError,
)

AVOID_S = 5.0  # seconds for which a node that could not be reached comes last
LEARNT_AVOID_S = 40.0  # seconds for which a node that other nodes cannot reach comes last; longer than ``LEARN_S``
LEARNT_MAX = 32


def voters_of(error: BedrockishError) -> list[Address]:
    """Return the addresses of the voters in a learner's error, best first; empty for any other error."""
    named = error.details.get("voters") if isinstance(error, LearnerError) else None
    found = []
    for node, text in named.items() if isinstance(named, Mapping) else ():
        try:
            found.append(parse_address(str(text), where=f"the address of {node}"))
        except ConfigError:
            continue  # no address to dial, such as port 0 of a node whose port the system has chosen
    return found


class Route:
    """The list of nodes, and the current position in it."""

    def __init__(self, target: Target, backoff: Backoff, draw: Callable[[], float]) -> None:
        self._target, self._backoff, self._draw = target, backoff, draw
        self.addresses = tuple(target.addresses)  # all nodes that may be asked
        self._position = 0
        self._failures = 0  # dials that failed since a link was last opened
        self._avoid_until: dict[Address, float] = {}
        self._auth_error: AuthenticationError | None = None
        self.redial_at = -math.inf  # when the next link may be dialled
        # Since when the client has tried to open a link; None while a link is open, and before the first attempt.
        self.unreachable_since: float | None = None
        self.error: BedrockishError | None = None  # why the last link could not be opened, or was lost

    def next(self, now: float) -> Address:
        """Return the node to dial now: the next of the list that was not found unreachable shortly before."""
        if self.unreachable_since is None:
            self.unreachable_since = now
        count = len(self.addresses)
        turns = [(self._position + step) % count for step in range(count)]
        alive = [turn for turn in turns if self._avoid_until.get(self.addresses[turn], -math.inf) <= now]
        self._position = (alive or turns)[0]
        return self.addresses[self._position]

    def note_open(self, address: Address) -> None:
        """Record that a link to the current node is open."""
        self._failures = 0
        self._auth_error = None
        self._avoid_until.pop(address, None)
        self.unreachable_since = None

    def leave(self, towards: Sequence[Address] = (), now: float = -math.inf) -> None:
        """Choose another node for the next link: one of ``towards``, if any are given.

        Args:
            towards: nodes that the last node has named, best first; they are added to the list.
            now: the present time, in seconds: nodes that were found unreachable shortly before come last.
        """
        self._position += 1
        if towards:
            new = [address for address in towards if address not in self.addresses]
            self.addresses += tuple(new[: max(0, LEARNT_MAX - len(self.addresses))])
            here = [address for address in towards if address in self.addresses]
            here.sort(key=lambda address: self._avoid_until.get(address, -math.inf) > now)
            self._position = self.addresses.index(here[0]) if here else self._position

    def note_end(self, error: BedrockishError) -> None:
        """Record that an open link has ended."""
        self.error = error

    def note_failure(self, address: Address, error: BedrockishError, now: float) -> None:
        """Record that a link could not be opened, and avoid its node for ``AVOID_S``."""
        self.error = error
        if isinstance(error, AuthenticationError):
            self._auth_error = error
        self._failures += 1
        self._avoid_until[address] = now + AVOID_S
        rounds, rest = divmod(self._failures, len(self.addresses))
        self.redial_at = now if rest else now + self._backoff.pause_s(rounds, self._draw)

    def note_refusal(self, address: Address, error: BedrockishError, now: float) -> None:
        """Record that a node has closed a link because of its limit of clients; pause if all nodes are avoided now."""
        self.note_failure(address, error, now)
        if all(self._avoid_until.get(one, -math.inf) > now for one in self.addresses):
            self.redial_at = now + self._backoff.pause_s(1, self._draw)

    def learn(self, found: Mapping[Address, bool], now: float) -> bool:
        """Add the members of the cluster, each with whether other nodes reach it; return whether any was new.

        The addresses of the URL stay: perhaps the clients can only reach the nodes under these.
        """
        known = {*self._target.addresses, *found}
        here = self.addresses[self._position % len(self.addresses)]
        kept = [address for address in self.addresses if address in known or address == here]
        new = [address for address in found if address not in kept][: max(0, LEARNT_MAX - len(kept))]
        self.addresses = (*kept, *new)
        self._position = self.addresses.index(here)
        for address, is_up in found.items():
            if is_up:
                self._avoid_until.pop(address, None)
            else:
                self._avoid_until[address] = now + LEARNT_AVOID_S
        return bool(new)

    @property
    def has_auth_refusal(self) -> bool:
        """Whether every node was asked, and one of them refused the credentials."""
        return self._auth_error is not None and self._failures >= len(self.addresses)

    @property
    def has_lasting_refusal(self) -> bool:
        """Whether every node was asked, and each refused the client's credentials or belongs to another cluster."""
        is_other = isinstance(self.error, ProtocolMismatchError) and self._failures >= len(self.addresses)
        return is_other or self.has_auth_refusal

    def give_up_at(self, started: float) -> float:
        """Return when a call begun at ``started`` is given up because no node can be reached; infinity for never."""
        if self.unreachable_since is None:
            return math.inf
        if self.has_auth_refusal:
            return -math.inf
        return max(self.unreachable_since, started) + self._target.connect_timeout_s

    def unreachable(self) -> BedrockishError:
        """Return the error for a call for which no node could be reached."""
        if self._auth_error is not None:
            return self._auth_error
        if isinstance(self.error, ProtocolMismatchError):
            return self.error
        where = ", ".join(str(address) for address in self.addresses)
        reason = f": {self.error.message}" if self.error is not None else ""
        reason = reason.replace(f": cannot connect to {where}: ", ": ", 1)  # do not name a single address twice
        return UnavailableError(f"no node can be reached at {where}{reason}")
