"""How far each timeline is here: taken, applied, removed, and retired."""

from collections.abc import Iterable, Mapping

from bedrockish.core.protocol.records import Recovered
from bedrockish.core.state.roster import Roster
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.vector import Vector, covers, merge


class Timelines:
    """The last tick of each timeline.

    Attributes:
        taken: that is here, applied or not.
        applied: that is in the tables.
        heads: the hash of that last taken entry.
        removed: that was removed from the journal.
        retirement: who covers this has all that is retired.

    Invariants:
        ``applied <= taken`` in every component; a timeline is taken and applied tick by tick.
    """

    def __init__(self, recovered: Recovered, roster: Roster) -> None:
        self.roster = roster
        self.applied: dict[str, int] = dict(recovered.applied)
        # What was taken and not applied was in memory alone: it is fetched again.
        self.taken: dict[str, int] = dict(recovered.applied)
        self.heads: dict[str, bytes] = dict(recovered.heads)
        self.removed: dict[str, int] = dict(recovered.removed)
        self.retirement: Vector = self._without_retired(self.applied)

    def take(self, entry: Entry) -> None:
        """Take the next entry of its timeline."""
        # A gap would hide a commit that conflict tests have to find; a repeat would fork the chain of hashes.
        assert entry.tick == self.taken.get(entry.leader, 0) + 1
        self.taken[entry.leader] = entry.tick
        self.heads[entry.leader] = entry.hash

    def apply(self, leader: str, tick: int) -> None:
        """Count the next entry of its timeline as applied."""
        assert self.applied.get(leader, 0) + 1 == tick <= self.taken[leader]
        self.applied[leader] = tick

    def remove(self, upto: Vector) -> None:
        """Note up to where the journal was removed."""
        self.removed = merge(self.removed, upto)

    # -- timelines that are retired --------------------------------------------------------------------------------

    def retire(self, places: Iterable[tuple[str, int]]) -> None:
        """Take the places of a change for what has all that is retired by it in its past."""
        self.retirement = dict(places)

    def _without_retired(self, vector: Vector) -> dict[str, int]:
        retired = self.roster.membership.retired
        return {leader: tick for leader, tick in vector.items() if leader not in retired}

    def in_short(self, vector: Vector) -> dict[str, int]:
        """Return a vector as it is said: what has the retirement of a timeline in its past has all of that timeline."""
        # A base from before the change has to name what it has of them: whoever reads it could not tell otherwise.
        if self.roster.membership.retired and covers(vector, self.retirement):
            return self._without_retired(vector)
        return dict(vector)

    def in_full(self, vector: Vector, config: int) -> Vector:
        """Return what a member that counts by a version of the membership has said in short."""
        retired: Mapping[str, int] = self.roster.membership.retired
        if not retired:
            return vector
        # All of what is retired is applied here, so ours is where those timelines end.
        unsaid = {
            leader: self.applied[leader]
            for leader, since in retired.items()
            if since <= config and leader in self.applied
        }
        return {**unsaid, **vector}

    def whole(self) -> set[str]:
        """Return the timelines of nodes that left, which every member has told to have up to the same tick.

        Each has told that it counts by our membership, so its link to who left is gone, and all that the timeline has
        is applied: what could be had from another member, it would have told of. So none of them ever grows again.
        """
        roster, membership = self.roster, self.roster.membership
        members = [roster.peers.get(node) for node in membership.nodes if node != roster.me]
        if roster.me not in membership.members:
            return set()
        # Who counts by an older membership may still hear of more of it, or tell others.
        if any(peer is None or peer.config != membership.version for peer in members):
            return set()
        return {
            leader
            for leader, tick in self.applied.items()
            if leader not in membership.members
            # Taken and not applied is here, too: it would be lost from every vector.
            and self.taken[leader] == tick
            and all(peer is not None and peer.applied.get(leader, 0) == tick for peer in members)
        }
