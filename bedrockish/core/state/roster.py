"""The members as this node knows them, the facts about each, and the reasons why its own word may not count."""

from dataclasses import dataclass, field, replace

from bedrockish.common.levels import LEVEL, UNKNOWN
from bedrockish.core.protocol.health import Health, Mode
from bedrockish.core.protocol.records import Membership, Recovered
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.settings import approvals_needed, majority
from bedrockish_journal.model.vector import Vector, covers


@dataclass(slots=True)
class Peer:
    """The facts that this node knows of a peer.

    Why so large: It is a record, with a field for each fact that a peer tells or that is measured of it.

    Attributes:
        up: whether messages to it can arrive.
        heard: seconds at which it was last heard of.
        applied: the vector that it said to have applied.
        report: its latest (applied, closed, cut) that our applied vector does not cover yet; or None.
        closed, cut: its latest report that we have covered.
        wall_ahead_ms: its wall clock less our monotonic one, when it last told; None if it never did.
        suspected: we have begun to finish its transactions without it.
        ask: when to ask it again for the outcomes of its transactions pending here; None if none is pending for long.
        pending_s: how long transactions that it led and committed were pending here, lately, in seconds.
        patience: how many times ``suspicion_ms`` it may be silent; doubled when it was suspected and is alive.
        ahead_ms: how far its clock is ahead of most voters' clocks, if that is further than we follow; else 0.
        level: the release level of its program; ``UNKNOWN`` if it has told none yet.
        removed: the last tick of each timeline that it said to have removed from its journal.
        mode: how much it said that it still does.
        config: the version of the membership that it said to have applied; 0 before it has told.
    """

    up: bool = False
    heard: float = 0.0
    applied: Vector = field(default_factory=dict)
    report: tuple[Vector, int, int] | None = None
    closed: int = 0
    cut: int = 0
    clock: int = 0
    wall_ahead_ms: int | None = None
    suspected: bool = False
    ask: Repeat | None = None
    pending_s: float = 0.0
    patience: float = 1.0
    ahead_ms: int = 0
    level: int = UNKNOWN
    removed: Vector = field(default_factory=dict)
    mode: Mode = Mode.SERVING
    config: int = 0


class Roster:
    """The members, the links to them, and the reasons why this node's word may not count.

    Attributes:
        me: the name of this node.
        membership: the one that is applied here.
        voters: the names of its voters, in order.
        quorum: how many approvals a commit needs.
        majority: how many voters a promise, an acceptance or a closed time needs.
        peers: every other member, by name; and no other node.
        joining: the facts told to a new node when it was taken in; None once it has caught up.
        heard_level: the highest release level of the messages heard since the start.
        let_in: the peers that have spoken to this process, and so have taken its file for ours; and this node.
        accused: peers that take our file for another one, and their reasons.
        lost: the reason why our file certainly lacks a promise; the file keeps it from then on. Empty if it lacks none.

    Invariants:
        ``me`` is not in ``peers``; every other member is.
        ``voters``, ``quorum`` and ``majority`` are those of ``membership``, whose version never goes back.
    """

    def __init__(self, recovered: Recovered, health: Health, seconds: float) -> None:
        self.me = recovered.node
        self.health = health
        self.joining = recovered.joining
        self.heard_level = 0
        # Only this node yet: a word to an earlier process says nothing about the file that this one found.
        self.let_in = {self.me}
        self.accused: dict[str, str] = {}
        self.lost = recovered.lost
        self.peers: dict[str, Peer] = {}
        self.membership: Membership = recovered.membership
        self.voters: list[str] = []
        self.quorum = self.majority = 0
        self.set_membership(recovered.membership, seconds)

    # -- members ---------------------------------------------------------------------------------------------------

    def set_membership(self, membership: Membership, seconds: float) -> None:
        """Count by a membership; keep a record of each other member, and of no other node."""
        assert membership.version >= self.membership.version, "a membership is followed by a later one"
        before, self.membership = self.membership, membership
        others = [node for node in self.links().nodes if node != self.me]
        # A learner may come again under its name on another file: the reports of the old file do not hold for that one.
        known = {node: peer for node, peer in self.peers.items() if not _is_other_file(before, membership, node)}
        # Heard just now: a new member is not to be suspected before it could say a word.
        self.peers = {node: known.get(node, Peer(heard=seconds)) for node in others}
        # A removed member neither bars this node nor lets it in.
        self.accused = {node: reason for node, reason in self.accused.items() if node in self.peers}
        self.let_in &= self.peers.keys() | {self.me}
        self.voters = membership.voters
        self.quorum, self.majority = approvals_needed(len(self.voters)), majority(len(self.voters))

    def links(self) -> Membership:
        """Return the nodes to keep links to: the members, and until a new node has caught up, those that took it in."""
        if self.joining is None:
            return self.membership
        told = self.joining.membership
        return replace(told, members={**self.membership.members, **told.members})

    def has_joined(self, applied: Vector, seconds: float) -> bool:
        """Become an ordinary member as soon as everything is applied that the cluster had when it took us in.

        Returns whether that is now.
        """
        told = self.joining
        # The change that took it in has to be applied here: until then the members are those of before.
        if told is None or self.membership.version < told.membership.version:
            return False
        if covers(applied, told.vector):
            self.joining = None
            self.set_membership(self.membership, seconds)
            return True
        return False

    def hear(self, peer: str, level: int) -> None:
        """Note a message of a peer, and the release level that reading it takes."""
        self.let_in.add(peer)
        # Its sender has applied the raise; this node may not have, and answers at that level all the same.
        if level > self.heard_level:
            self.heard_level = level

    def accuse(self, peer: str, reason: str) -> None:
        """Note a peer that takes our file for another one, and its reason."""
        if peer in self.peers:
            self.accused[peer] = reason

    def acquit(self, peer: str) -> None:
        """Note that a peer takes our file for ours after all."""
        self.accused.pop(peer, None)

    def lose(self, reason: str) -> bool:
        """Note the reason why the file lacks a promise of this node; return whether that is news."""
        if self.lost:
            return False
        self.lost = reason
        return True

    # -- whose word counts -----------------------------------------------------------------------------------------

    @property
    def level(self) -> int:
        """The release level of the cluster: messages and behaviour of later levels are not used yet.

        A peer that sends a message of a higher level has applied the change that raises it, so every member reads that
        level; the change may not be here yet, and the answer has to be of that level too.
        """
        return max(self.membership.level, self.heard_level)

    @property
    def level_of_all(self) -> int:
        """The level that every member has told; ``UNKNOWN`` while one has told none."""
        return min([LEVEL, *(peer.level for peer in self.peers.values())])

    @property
    def barred(self) -> str:
        """Why this node neither votes nor leads: it has forgotten promises; empty if it may."""
        # The note in the file outlasts an accusation, which ends when the peer takes a link again.
        return self.lost or next(iter(self.accused.values()), "")

    @property
    def claims_time(self) -> bool:
        """Whether this node's closed time and cut count: not before a majority of the voters has let it in.

        A voter whose file was put back does not know it before a peer tells. A peer that remembers more of the file
        turns the voter away, and sends it no messages.
        """
        return not self.barred and len(self.let_in.intersection(self.voters)) >= self.majority

    def is_voter(self, node: str) -> bool:
        """Return whether a node is a voter now, and may vote if it is this one."""
        member = self.membership.members.get(node)
        # Each peer judges our word itself; we give none that rests on promises which we may have forgotten.
        if node == self.me and (self.lost or (self.accused and self.barred) or not self.health.writes):
            return False
        return member is not None and member.voter

    @property
    def certifies_reads(self) -> bool:
        """Whether our word counts for a strict read: as a voter's does, also while we are read-only.

        We know all that we have approved, and while we approve nothing, no commit rests on us.
        """
        member = self.membership.members.get(self.me)
        return member is not None and member.voter and not self.barred and self.health.reads

    @property
    def walls_needed(self) -> int:
        """How many other voters' wall clocks this node has to know before it believes its own; 0: its own suffices."""
        if not self.voters or self.voters == [self.me]:  # a learner asks the only voter, too
            return 0
        # Our own wall is one of that majority.
        return self.majority - self.is_voter(self.me)

    def voters_up(self) -> list[str]:
        """Return the other voters that can be reached."""
        return [node for node in self.voters if node in self.peers and self.peers[node].up]


def _is_other_file(before: Membership, after: Membership, node: str) -> bool:
    """Return whether a name stands for one file in a membership and for another one in the next."""
    old, new = before.members.get(node), after.members.get(node)
    return old is not None and new is not None and bool(old.store and new.store) and old.store != new.store
