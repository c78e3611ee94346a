"""Who goes next on keys that several leaders want.

When a transaction ends that everybody waits for, all would begin at once, each would approve its own and reject the
others', and nobody would get through. So they go round: of those that have met each other lately, the one whose name
follows that of the last leader begins at once, and each other one a round later than the one before it, so that it
finds the BEGIN of that one and waits for it. It is a matter of timing and nothing else: whoever begins out of turn is
judged as ever.
"""

from collections import deque

from bedrockish.core.state import State
from journal.footprint import Footprint, conflict
from journal.transaction import ROWS, Transaction

ROUND_S = 0.005  # from BEGIN to the quorum, until it is known
ROUND_S_MAX = 0.1
ROUNDS = 200  # a rival that was not met for so many rounds does not count any more
WEIGHT = 0.2  # of the newest round in the average


class Turns:
    """The rivals of one node."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._met: dict[str, float] = {}  # leader -> seconds when one of ours met one of its last
        self._round_s = ROUND_S
        self._reserved: deque[tuple[float, Footprint]] = deque()  # until when it is the turn of others there

    @property
    def are_taken(self) -> bool:
        """Whether nodes take turns at all."""
        return self._state.settings.turn_rounds > 0

    def met(self, leader: str) -> None:
        """One of ours waits for, or was rejected for, a transaction of this leader."""
        if leader != self._state.me:
            self._met[leader] = self._state.now.seconds

    def passed(self, since: float) -> None:
        """Those whose turn it was have not come: do not count on whom was not met after ``since``."""
        self._met = {rival: met for rival, met in self._met.items() if met > since}

    def took(self, seconds: float) -> None:
        """One of ours had its quorum so long after its BEGIN."""
        self._round_s += WEIGHT * (min(seconds, ROUND_S_MAX) - self._round_s)

    def reserve(self, transaction: Transaction) -> None:
        """A transaction has ended for which others wait as well: what comes anew waits for its turn, too."""
        pause_ms = self.pause_ms(transaction.txid.leader)
        if pause_ms and transaction.kind == ROWS:
            self._reserved.append((self._state.now.seconds + pause_ms / 1000, transaction.footprint))

    def begins(self, footprint: Footprint) -> None:
        """Somebody has taken the turn on these keys."""
        if self._reserved:
            self._reserved = deque(kept for kept in self._reserved if conflict(kept[1], footprint) is None)

    def left_ms(self, footprint: Footprint) -> float:
        """Return for how long it is the turn of others on keys of a footprint, in milliseconds; 0 if it is not."""
        now, left = self._state.now.seconds, 0.0
        while self._reserved and self._reserved[0][0] <= now:
            self._reserved.popleft()
        for until, reserved in self._reserved:
            if until > now + left and conflict(footprint, reserved) is not None:
                left = until - now
        return 1000 * left

    def _is_there(self, rival: str) -> bool:
        peer = self._state.peers.get(rival)
        return peer is not None and peer.up

    def pause_ms(self, leader: str) -> float:
        """Return how long what waited for a transaction of this leader is to wait for its turn, in milliseconds."""
        state = self._state
        since = state.now.seconds - ROUNDS * self._round_s
        rivals = [rival for rival, met in self._met.items() if met >= since and self._is_there(rival)]
        ring = sorted({state.me, leader, *rivals})
        place = ring.index(leader) + 1
        before = (ring[place:] + ring[:place]).index(state.me)
        return 1000 * state.settings.turn_rounds * self._round_s * before
