"""The state of each timeline at this node: up to which tick it is taken, applied and removed, and whether retired."""

from collections.abc import Iterable, Mapping

from bedrockish.core.protocol.records import Recovered
from bedrockish.core.state.roster import Roster
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.vector import Vector, covers, merge


class Timelines:
    """The last tick of each timeline.

    Invariants:
        ``applied <= taken`` in every component; a timeline is taken and applied tick by tick.
    """

    def __init__(self, recovered: Recovered, roster: Roster) -> None:
        self.roster = roster
        self.applied: dict[str, int] = dict(recovered.applied)  # the last tick that is applied to the tables
        # A restart loses the entries that were taken and not applied; they are fetched again.
        self.taken: dict[str, int] = dict(recovered.applied)  # the last tick that is here, applied or not
        self.heads: dict[str, bytes] = dict(recovered.heads)  # the hash of the last taken entry
        self.removed: dict[str, int] = dict(recovered.removed)  # the last tick that was removed from the journal
        # A vector that covers this one contains all entries of the retired timelines.
        self.retirement: Vector = self._without_retired(self.applied)

    def add_entry(self, entry: Entry) -> None:
        """Count the next entry of its timeline as taken."""
        # A gap would hide a commit that conflict tests have to find; a repeat would fork the chain of hashes.
        assert entry.tick == self.taken.get(entry.leader, 0) + 1
        self.taken[entry.leader] = entry.tick
        self.heads[entry.leader] = entry.hash

    def apply(self, leader: str, tick: int) -> None:
        """Count the next entry of its timeline as applied."""
        assert self.applied.get(leader, 0) + 1 == tick <= self.taken[leader]
        self.applied[leader] = tick

    def remove(self, upto: Vector) -> None:
        """Record the last ticks that were removed from the journal."""
        self.removed = merge(self.removed, upto)

    # -- timelines that are retired --------------------------------------------------------------------------------

    def retire(self, places: Iterable[tuple[str, int]]) -> None:
        """Record the places of a membership change: a vector that covers them contains the timelines it retires."""
        self.retirement = dict(places)

    def _without_retired(self, vector: Vector) -> dict[str, int]:
        retired = self.roster.membership.retired
        return {leader: tick for leader, tick in vector.items() if leader not in retired}

    def in_short(self, vector: Vector) -> dict[str, int]:
        """Return a vector without the retired timelines, if the vector covers their retirement and so their entries.

        A vector from before the retirement must keep its ticks of these timelines: the receiver cannot know them.
        """
        if self.roster.membership.retired and covers(vector, self.retirement):
            return self._without_retired(vector)
        return dict(vector)

    def in_full(self, vector: Vector, config: int) -> Vector:
        """Return the full form of a vector from a member, which left out the timelines that were retired up to version
        ``config`` of the membership.
        """
        retired: Mapping[str, int] = self.roster.membership.retired
        if not retired:
            return vector
        # The retired timelines are applied here to their ends, so our ticks of them are their last ticks.
        old = (leader for leader, since in retired.items() if since <= config)
        unsaid = {leader: self.applied[leader] for leader in old if leader in self.applied}
        return {**unsaid, **vector}

    def whole(self) -> set[str]:
        """Return the timelines of former nodes that every member has reported up to the same tick.

        Each member has reported that it has applied our membership, so it has no link to the former node any more, and
        has reported all that it has of the timeline. So none of these timelines can grow again.
        """
        roster, membership = self.roster, self.roster.membership
        members = [roster.peers.get(node) for node in membership.nodes if node != roster.me]
        if roster.me not in membership.members:
            return set()
        # A member with an older membership may still receive more of a timeline, and send it on.
        if any(peer is None or peer.config != membership.version for peer in members):
            return set()
        return {
            leader
            for leader, tick in self.applied.items()
            if leader not in membership.members
            # No vector counts an entry that is taken and not applied: a timeline with such an entry is not retired yet.
            and self.taken[leader] == tick
            and all(peer is not None and peer.applied.get(leader, 0) == tick for peer in members)
        }
