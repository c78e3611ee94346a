"""The members as this node knows them, the facts about each member, and the reasons why this node may not vote."""

from dataclasses import dataclass, field, replace

from bedrockish.core.protocol.health import Health, Mode
from bedrockish.core.protocol.records import Recovered
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.settings import approvals_needed, majority
from bedrockish_journal.model.levels import LEVEL, UNKNOWN
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.vector import Vector, covers


@dataclass(slots=True)
class Peer:
    """One member's reports and measurements, as this node has them.

    Why so large: It is a record, with a field for each fact that a peer reports or that this node measures.
    """

    up: bool = False  # whether messages to the peer can arrive
    heard: float = 0.0  # seconds at which the peer was last heard of
    applied: Vector = field(default_factory=dict)  # the vector that the peer last reported as applied
    # Its latest report (applied, closed, cut), if our applied vector does not cover it yet; else None.
    report: tuple[Vector, int, int] | None = None
    # ``closed`` and ``cut``: these clocks in the latest of the peer's reports that our applied vector covers.
    closed: int = 0
    cut: int = 0
    clock: int = 0
    # Its wall clock less our monotonic clock, at its last report; None before the first.
    wall_ahead_ms: int | None = None
    suspected: bool = False  # whether this node has begun to finish the peer's transactions without it
    # When to ask the peer again for the outcomes of its transactions that are pending here; None if none has been
    # pending for long.
    ask: Repeat | None = None
    pending_s: float = 0.0  # seconds for which the peer's recent commits were pending here
    # How many times ``suspicion_ms`` the peer may be silent; doubled when it was suspected and is alive.
    patience: float = 1.0
    # How far its clock is ahead of most voters' clocks, if that is further than this node follows; else 0.
    ahead_ms: int = 0
    level: int = UNKNOWN  # the release level of its program; ``UNKNOWN`` before it has reported one
    # The last tick of each timeline that the peer reported as removed from its journal.
    removed: Vector = field(default_factory=dict)
    mode: Mode = Mode.SERVING  # the mode that the peer reported (``health.Mode``)
    config: int = 0  # the version of the membership that the peer reported as applied; 0 before its first report


class Roster:
    """The members, the links to them, and the reasons why this node may not vote.

    Invariants:
        ``me`` is not in ``peers``; every other member is.
        ``voters``, ``quorum`` and ``majority`` are those of ``membership``, whose version never goes back.
    """

    def __init__(self, recovered: Recovered, health: Health, seconds: float) -> None:
        self.me = recovered.node
        self.health = health
        self.joining = recovered.joining  # the facts that a new node got when it was added; None once it has caught up
        self.heard_level = 0  # the highest release level of the messages received since the start
        # The nodes that accept our file: this node, and the peers that have sent messages to this process. After a
        # restart no peer counts yet: it may refuse the present file.
        self.admitted_by = {self.me}
        self.refusals: dict[str, str] = {}  # the peers that refuse our file as another or an older one: their reasons
        self.lost_promise = recovered.lost  # why our file certainly lacks a promise, also stored in the file; or empty
        self.peers: dict[str, Peer] = {}  # every other member, by name; and no other node
        self.membership: Membership = recovered.membership  # the membership that is applied here
        self.voters: list[str] = []  # the names of its voters, in order
        # The number of approvals for a commit; the number of voters for a promise, an acceptance or a closed time.
        self.quorum = self.majority = 0
        self.set_membership(recovered.membership, seconds)

    # -- members ---------------------------------------------------------------------------------------------------

    def set_membership(self, membership: Membership, seconds: float) -> None:
        """Count votes by a membership from now on; keep a record of each of its other members, and of no other node."""
        assert membership.version >= self.membership.version, "a membership is followed by a later one"
        before, self.membership = self.membership, membership
        others = [node for node in self.links().nodes if node != self.me]
        # A learner may return under its name with another file; reports about the old file do not hold for it.
        known = {node: peer for node, peer in self.peers.items() if not _is_other_file(before, membership, node)}
        # A new member counts as heard now, so that it is not suspected before its first message.
        self.peers = {node: known.get(node, Peer(heard=seconds)) for node in others}
        # A removed member can neither refuse nor admit this node.
        self.refusals = {node: reason for node, reason in self.refusals.items() if node in self.peers}
        self.admitted_by &= self.peers.keys() | {self.me}
        self.voters = membership.voters
        self.quorum, self.majority = approvals_needed(len(self.voters)), majority(len(self.voters))

    def links(self) -> Membership:
        """Return the nodes to link to: the members, and for a new node also the members that added it."""
        if self.joining is None:
            return self.membership
        told = self.joining.membership
        return replace(told, members={**self.membership.members, **told.members})

    def join_if_caught_up(self, applied: Vector, seconds: float) -> bool:
        """Become an ordinary member once all commits are applied that the cluster had when it added this node.

        Returns whether this call made the node an ordinary member.
        """
        told = self.joining
        # Until the change that added this node is applied, the membership here is an older one.
        if told is None or self.membership.version < told.membership.version:
            return False
        if covers(applied, told.vector):
            self.joining = None
            self.set_membership(self.membership, seconds)
            return True
        return False

    def hear(self, peer: str, level: int) -> None:
        """Record that a peer has sent a message of a kind that release level ``level`` introduced."""
        self.admitted_by.add(peer)
        # The sender has applied the change that raises the cluster to this level. This node may still lack the change,
        # but answers at the raised level.
        if level > self.heard_level:
            self.heard_level = level

    def note_refusal(self, peer: str, reason: str) -> None:
        """Record that a peer refuses our file as another or an older one, and its reason."""
        if peer in self.peers:
            self.refusals[peer] = reason

    def drop_refusal(self, peer: str) -> None:
        """Drop the accusation of a peer that accepts our file now."""
        self.refusals.pop(peer, None)

    def note_lost_promise(self, reason: str) -> bool:
        """Record the reason why the file lacks a promise of this node; return whether it is the first reason."""
        if self.lost_promise:
            return False
        self.lost_promise = reason
        return True

    # -- the level, and the nodes that count -----------------------------------------------------------------------

    @property
    def level(self) -> int:
        """The release level of the cluster: messages and behaviour of later levels are not used yet.

        It is at least the level of each message that was received. The sender of such a message has applied the change
        that raises the level, so every member reads that level; this node may still lack the change.
        """
        return max(self.membership.level, self.heard_level)

    @property
    def level_of_all(self) -> int:
        """The release level that every member has reported; ``UNKNOWN`` while one member has reported none."""
        return min([LEVEL, *(peer.level for peer in self.peers.values())])

    @property
    def barred(self) -> str:
        """Why this node may neither vote nor lead, because it has forgotten promises; empty if it may."""
        # The reason in the file is final; an accusation ends when the peer accepts a link again.
        return self.lost_promise or next(iter(self.refusals.values()), "")

    @property
    def claims_time(self) -> bool:
        """Whether this node's closed time and cut count: only after a majority of the voters has admitted it.

        A voter does not notice that its file was restored from a copy. A peer that remembers more of the file refuses
        the voter's links, and sends it no messages.
        """
        return not self.barred and len(self.admitted_by.intersection(self.voters)) >= self.majority

    def is_voter(self, node: str) -> bool:
        """Return whether a node is a voter now; this node also has to be allowed to vote."""
        member = self.membership.members.get(node)
        # This node must not vote if it may have forgotten promises. (Each peer also decides for itself whether to count
        # our votes.)
        if node == self.me and (self.lost_promise or (self.refusals and self.barred) or not self.health.writes):
            return False
        return member is not None and member.voter

    @property
    def certifies_reads(self) -> bool:
        """Whether our answer counts for a strict read: this node has to be a voter; it may be read-only.

        This node knows every transaction that it has approved, and while it is read-only it approves no more. So this
        node is in no quorum of a commit that it does not know.
        """
        member = self.membership.members.get(self.me)
        return member is not None and member.voter and not self.barred and self.health.reads

    @property
    def walls_needed(self) -> int:
        """The number of other voters' walls that this node must know before it follows its own; 0: none."""
        if not self.voters or self.voters == [self.me]:  # with one voter, a learner needs that voter's wall
            return 0
        # If we are a voter, our own wall is one of the majority.
        return self.majority - self.is_voter(self.me)

    def voters_up(self) -> list[str]:
        """Return the other voters that can be reached."""
        return [node for node in self.voters if node in self.peers and self.peers[node].up]


def _is_other_file(before: Membership, after: Membership, node: str) -> bool:
    """Return whether a name stands for one file in a membership and for another file in the next membership."""
    old, new = before.members.get(node), after.members.get(node)
    return old is not None and new is not None and bool(old.store and new.store) and old.store != new.store
