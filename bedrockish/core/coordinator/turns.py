"""Who goes next on keys that several leaders want.

When a transaction ends that everybody waits for, all would begin at once, each would approve its own and reject the
others', and nobody would get through. So they go round: of those that have met each other lately, the one whose name
follows that of the last leader begins at once, and each other one some commits' time later than the one before it, so
that it finds the BEGIN of that one and waits for it. It is a matter of timing and nothing else: whoever begins out of
turn is judged as ever.
"""

from bedrockish.core.state.access_index import AccessIndex
from bedrockish.core.state.state import State
from bedrockish_journal.model.footprint import Footprint
from bedrockish_journal.model.transaction import Txid

COMMITS = 4  # as many times as long as a commit takes may a leader's BEGIN take when it is its turn
COMMIT_S = 0.005  # from BEGIN to the quorum, until it is known
COMMIT_S_MAX = 0.1
MEMORY = 200  # a rival that was not met for as long as so many commits take does not count any more
WEIGHT = 0.2  # of the newest commit in the average


class Turns:
    """The rivals of one node, and the keys on which it is their turn."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._met: dict[str, float] = {}  # leader -> seconds when one of ours met one of its last
        self._commit_s = COMMIT_S
        self._reserved: AccessIndex[Txid] = AccessIndex()  # what ended, and until when it is the turn of others there
        self._until: dict[Txid, float] = {}

    def met(self, leader: str) -> None:
        """One of ours waits for, or was rejected for, a transaction of this leader."""
        if leader != self._state.me:
            self._met[leader] = self._state.clock.now.seconds

    def passed(self, since: float) -> None:
        """Those whose turn it was have not come: do not count on whom was not met after ``since``, in seconds."""
        self._met = {rival: met for rival, met in self._met.items() if met > since}

    def took(self, seconds: float) -> None:
        """One of ours had its quorum so long after its BEGIN."""
        self._commit_s += WEIGHT * (min(seconds, COMMIT_S_MAX) - self._commit_s)

    def reserve(self, txid: Txid, footprint: Footprint) -> None:
        """A transaction has ended for which others wait as well: what comes anew waits for its turn, too."""
        pause_ms = self.pause_ms(txid.leader)
        if pause_ms and txid not in self._until:
            self._reserved.add(txid, footprint)
            self._until[txid] = self._state.clock.now.seconds + pause_ms / 1000

    def begins(self, footprint: Footprint) -> None:
        """Somebody has taken the turn on these keys."""
        if self._until:
            for found in list(self._reserved.conflicts(footprint)):
                self._forget(found[0])

    def left_ms(self, footprint: Footprint) -> float:
        """Return for how long it is the turn of others on keys of a footprint, in milliseconds; 0 if it is not."""
        if not self._until:
            return 0.0
        now, left_s = self._state.clock.now.seconds, 0.0
        for txid in [txid for txid, until in self._until.items() if until <= now]:
            self._forget(txid)
        for found in self._reserved.conflicts(footprint):
            left_s = max(left_s, self._until[found[0]] - now)
        return 1000 * left_s

    def pause_ms(self, leader: str) -> float:
        """Return how long what waited for a transaction of this leader is to wait for its turn, in milliseconds."""
        state = self._state
        since = state.clock.now.seconds - MEMORY * self._commit_s
        rivals = [rival for rival, met in self._met.items() if met >= since and self._is_there(rival)]
        if not rivals:
            return 0.0
        ring = sorted({state.me, leader, *rivals})
        place = ring.index(leader) + 1
        before = (ring[place:] + ring[:place]).index(state.me)
        return 1000 * COMMITS * self._commit_s * before

    def _forget(self, txid: Txid) -> None:
        self._reserved.remove(txid)
        del self._until[txid]

    def _is_there(self, rival: str) -> bool:
        peer = self._state.roster.peers.get(rival)
        return peer is not None and peer.up
