"""Links between nodes: like TCP, a link delivers messages in order until it breaks; messages in transit may be lost.

Each pair of nodes has one link. When it opens or breaks, its two ends learn of that at different times. A blocked
direction delays its messages until it is unblocked or the link breaks. Options may make a link worse than TCP: messages
are duplicated, reordered, or silently lost.
"""

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from bedrockish.core.protocol.events import Event, PeerDown, PeerUp, Received
from bedrockish.core.protocol.messages import Message, decode
from tools.sim.options import Options

if TYPE_CHECKING:
    from tools.sim.machine import Machine
    from tools.sim.world import World


DECODED_MAX = 500
DELAY_MAX_S = 10.0  # a slower link would break; and a limit is needed so that the world comes to rest after all faults
FAREWELL_S = 0.5  # how long the link to a removed node is kept, so that the node learns of its removal


@dataclass
class Direction:
    sent: int = 0
    arrived: int = 0
    last: float = 0.0  # the time at which the last message arrives
    cut: int | None = None  # messages from this number on are lost
    stalled: list[tuple[int, bytes]] = field(default_factory=list)
    open: bool = False  # whether the sending end knows that the link is up


class Link:
    """The present link of a pair of nodes."""

    def __init__(self) -> None:
        self.directions: dict[str, Direction] = {}  # by sender
        self.broken = False


class Network:
    """The links of all nodes."""

    def __init__(self, world: "World", options: Options, luck: Random) -> None:
        self.world = world
        self.options = options
        self.luck = luck
        self.machines: dict[str, Machine] = {}
        self.links: dict[frozenset[str], Link] = {}
        self.quiet_until: dict[tuple[str, str], float] = {}  # (node, peer) -> the earliest time of the next PeerUp
        self.blocked: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}  # (sender, receiver) -> factor on the delays
        self.faulty = True
        self.pace = 1.0  # factor on all delays, and on syncs
        self._decoded: dict[bytes, Message] = {}

    def add(self, machine: "Machine") -> None:
        self.machines[machine.name] = machine

    def delay(self, source: str, target: str) -> float:
        mean = self.options.delay_ms / 1000 * self.pace
        drawn = 0.2 * mean + self.luck.expovariate(1.0) * 0.8 * mean
        if self.luck.random() < 0.01:
            drawn *= 10
        return min(DELAY_MAX_S, drawn * self.slow.get((source, target), 1.0))

    # -- links -----------------------------------------------------------------------------------------------------

    def can_connect(self, one: str, two: str) -> bool:
        """Return whether a link between two nodes can open: both run, and each knows the other as a member."""
        if (one, two) in self.blocked or (two, one) in self.blocked:
            return False
        nodes = self.machines[one].node, self.machines[two].node
        if nodes[0] is None or nodes[1] is None:
            return False
        return two in nodes[0].state.roster.peers and one in nodes[1].state.roster.peers

    def _let_in(self, one: str, two: str) -> bool:
        """Return whether each end accepts the file of the other end; tell an end that is refused."""
        welcome = True
        for me, other in ((one, two), (two, one)):
            refusal = self.machines[me].turns_away(self.machines[other])
            if refusal is not None:
                welcome = False
                self.world.counts["turned away"] += 1
                self.machines[other].accused(me, refusal)
        return welcome

    def members_changed(self, name: str) -> None:
        """Open links to new members of a node's membership, and break those to removed members after a moment."""
        self.connect_all(name)
        self.world.after(FAREWELL_S, lambda: self._part(name))

    def _part(self, name: str) -> None:
        node = self.machines[name].node
        if node is None:
            return
        for other in sorted(self.machines):
            if other not in node.state.roster.peers and frozenset((name, other)) in self.links:
                self.break_link(name, other, again=False)

    def connect_all(self, name: str | None = None) -> None:
        """Try to open every link (of a node) that is down."""
        for one in sorted(self.machines):
            for two in sorted(self.machines):
                if one < two and name in (None, one, two) and frozenset((one, two)) not in self.links:
                    self.retry(one, two)

    def retry(self, one: str, two: str) -> None:
        """Try to open a link soon, and again until it opens or a node stops."""
        self.world.after(self.luck.uniform(0.001, 0.3), lambda: self._connect(one, two))

    def _connect(self, one: str, two: str) -> None:
        pair = frozenset((one, two))
        if pair in self.links or not self.can_connect(one, two) or not self._let_in(one, two):
            return  # a restart, the end of a partition or a new membership tries again
        link = self.links[pair] = Link()
        for me, other in ((one, two), (two, one)):
            self.machines[me].let_in.add(other)
            told = max(self.world.now + self.delay(other, me), self.quiet_until.get((me, other), 0.0))
            link.directions[other] = Direction(last=told)
            self.world.after(told - self.world.now, lambda me=me, other=other: self._up(link, me, other))  # type: ignore[misc]

    def _up(self, link: Link, me: str, other: str) -> None:
        if link.broken:
            return
        link.directions[me].open = True
        self.machines[me].post(PeerUp(other))

    def break_link(self, one: str, two: str, *, again: bool = True) -> None:
        """Break a link. In each direction, a random last part of the messages in transit is lost."""
        link = self.links.pop(frozenset((one, two)), None)
        if link is None:
            return
        link.broken = True
        for me, other in ((one, two), (two, one)):
            inbound = link.directions[other]
            inbound.cut = self.luck.randint(inbound.arrived, inbound.sent)
            if inbound.stalled:
                inbound.cut = min(inbound.cut, inbound.stalled[0][0])
            # The end of the stream comes after the messages that still arrive.
            told = max(self.world.now + self.luck.uniform(0.0, 0.05), inbound.last + 1e-6)
            told = min(told, self.world.now + 1.0) if not inbound.cut > inbound.arrived else told
            self.quiet_until[(me, other)] = told + 1e-6
            if link.directions[me].open:
                self._later(me, told, PeerDown(other))
        if again:
            self.retry(one, two)

    def _later(self, name: str, when: float, event: Event) -> None:
        machine = self.machines[name]
        machine.later(max(0.0, when - self.world.now), lambda: machine.post(event))

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, source: str, target: str, data: bytes) -> None:
        """Send a message, if the sender believes that the link is up."""
        link = self.links.get(frozenset((source, target)))
        if link is None or not link.directions[source].open:
            return
        direction = link.directions[source]
        if self.faulty and self.luck.random() < self.options.lose:
            self.world.counts["lost"] += 1
            return
        number, direction.sent = direction.sent, direction.sent + 1
        if (source, target) in self.blocked:
            direction.stalled.append((number, data))
            return
        self._carry(link, source, target, number, data)

    def _carry(self, link: Link, source: str, target: str, number: int, data: bytes) -> None:
        direction = link.directions[source]
        arrives = self.world.now + self.delay(source, target)
        if self.options.ordered or not self.faulty:
            arrives = max(arrives, direction.last)
            direction.last = arrives
        else:
            arrives = max(arrives, self.world.now + 1e-6)
        to = self.machines[target]
        to.later(arrives - self.world.now, lambda: self._arrive(link, source, target, number, data))
        if self.faulty and self.luck.random() < self.options.duplicate:
            self.world.counts["doubled"] += 1
            late = arrives - self.world.now + self.luck.uniform(0.0, 3.0)
            to.later(late, lambda: self._arrive(link, source, target, number, data))

    def _arrive(self, link: Link, source: str, target: str, number: int, data: bytes) -> None:
        direction = link.directions[source]
        if direction.cut is not None and number >= direction.cut:
            return
        direction.arrived = max(direction.arrived, number + 1)
        self.machines[target].post(Received(source, self._read(data)))

    def _read(self, data: bytes) -> Message:
        """Return a decoded message. Messages to several nodes are decoded once, because they are immutable."""
        message = self._decoded.get(data)
        if message is None:
            if len(self._decoded) >= DECODED_MAX:
                self._decoded.clear()
            message = self._decoded[data] = decode(data)
        return message

    # -- partitions ------------------------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Delay all messages from ``source`` to ``target``; the link may break because of it."""
        self.blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """Deliver the delayed messages, and stop delaying."""
        self.blocked.discard((source, target))
        link = self.links.get(frozenset((source, target)))
        if link is None:
            self.retry(*sorted((source, target)))
            return
        direction = link.directions[source]
        stalled, direction.stalled = direction.stalled, []
        for number, data in stalled:
            self._carry(link, source, target, number, data)
