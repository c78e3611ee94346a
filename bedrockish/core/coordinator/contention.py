"""The order of requests that want the same keys: ``obstacle`` names a request's obstacle, ``wait`` waits for its end.

Reservations, the wait queue, the pausing requests of this node, and the turns of the leaders decide the order. These
four only affect timing: no vote on a transaction depends on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from bedrockish.core.coordinator.abort import Rollbacks
from bedrockish.core.coordinator.request import InFlight, Ready, Stage
from bedrockish.core.coordinator.reservations import Reservations
from bedrockish.core.coordinator.wait_queue import Turns, WaitQueue
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.state import State
from bedrockish_journal.model.transaction import ROWS, Txid
from bedrockish_journal.model.vector import Vector


@dataclass(frozen=True, slots=True)
class Pause:
    """The request is executed again after some milliseconds."""

    after_ms: float


@dataclass(frozen=True, slots=True)
class WaitFor:
    """The request waits for the end of a pending transaction."""

    txid: Txid


@dataclass(frozen=True, slots=True)
class HoldBack:
    """The request waits for the end of another request's reservation."""

    reservation: Txid


@dataclass(frozen=True, slots=True)
class LineUp:
    """The request waits behind an earlier request of this node that pauses."""

    head: int


@dataclass(frozen=True, slots=True)
class OthersTurn:
    """The request waits for the turns of other leaders, which follow a transaction of ``leader`` on the same keys."""

    left_ms: float
    leader: str


Obstacle = Pause | WaitFor | HoldBack | LineUp | OthersTurn


class Contention:
    """The obstacles of requests, and the requests that wait for them.

    Args:
        rollbacks: our transactions that were given up; no request waits for their ends.
    """

    def __init__(self, state: State, in_flight: Mapping[int, InFlight], ready: Ready, rollbacks: Rollbacks) -> None:
        self.state, self.rollbacks = state, rollbacks
        self.turns = Turns(state)  # the order of the leaders that want the same keys
        # The requests that wait for a transaction, a reservation or another request.
        self.wait_queue = WaitQueue(in_flight, ready, self._wait_for_turn, self.turns)
        # The access sets with which no leader's transaction may conflict for a moment, so that a large request commits.
        self.reservations = Reservations(state, in_flight, self.wait_queue, self.pause)

    def obstacle(self, inflight: InFlight, kind: str = ROWS) -> Obstacle | None:
        """Return the obstacle of a request whose transaction conflicts with no commit; None if it may begin."""
        state, access_set = self.state, inflight.access_set
        assert access_set is not None
        held = self.reservations.blocks(inflight, access_set, kind)
        if held is not None:
            state.counts["held_back"] += 1
            return HoldBack(held)
        # Our own vote would reject the transaction (V9), and its BEGIN would only disturb the pending ones. So the
        # request waits here for their end.
        for found in state.votes.pending.conflicts(access_set):
            if found.other not in self.rollbacks:  # otherwise our BEGIN carries the rollback
                inflight.last_conflict = found
                self.reservations.reserve_if_needed(inflight, access_set, kind)
                state.counts["waited"] += 1
                return WaitFor(found.other)
        # The other requests for these keys wait for this request's reservation, so this request must not wait for them.
        if inflight.goes_first:
            return None
        # An earlier request of this node that pauses for the same keys goes first: otherwise the newest would always
        # win.
        head = self.wait_queue.head(inflight, access_set) if self.wait_queue.heads else None
        if head is not None:
            return LineUp(head)
        left_ms, leader = self.turns.left_ms(access_set) if self.turns.until else (0.0, "")
        return OthersTurn(left_ms, leader) if left_ms else None

    def rival_on_reserved_keys(self) -> WaitFor | None:
        """Return the wait for a pending transaction on the keys of the honoured reservation, or None.

        Its leader began it before the reservation arrived there. Until it ends, the request with the reservation would
        fail again.
        """
        held = self.reservations.honoured
        assert held is not None, "a request goes first as long as its reservation is honoured here"
        for found in self.state.votes.pending.conflicts(held.access_set):
            if found.other not in self.rollbacks:  # earlier attempts of this node do not count
                self.state.counts["waited"] += 1
                return WaitFor(found.other)
        return None

    def wait(self, inflight: InFlight, obstacle: Obstacle) -> None:
        """Let a request wait until an obstacle is gone, and then queue it for its next stage."""
        match obstacle:
            case Pause(after_ms):
                self.pause(inflight, after_ms)
            case WaitFor(txid):
                self.wait_queue.wait(inflight, txid)
            case HoldBack(reservation):
                self.wait_queue.hold_back(inflight, reservation)
            case LineUp(head):
                self.wait_queue.line_up(inflight, head)
            case OthersTurn(left_ms, leader):
                self._wait_for_turn(inflight, left_ms, leader)
            case _:
                assert_never(obstacle)

    def pause(self, inflight: InFlight, after_ms: float) -> None:
        """Execute a request again after a pause; the requests behind it stay in its queue."""
        inflight.move(Stage.PAUSED)
        inflight.turn = None
        if inflight.goes_first:
            # The request has a reservation. A shorter pause would only cost one more failed execution; a longer one
            # would keep all others waiting.
            after_ms = self.reservations.settling_ms()
        else:
            # Later requests for its keys line up behind it: otherwise the newest request would overtake it.
            self.wait_queue.pause(inflight)
        self.state.timers.move(after_ms, Timer.REQUEST_AGAIN, inflight.number)

    def pause_rejected(self, inflight: InFlight, base: Vector, winner: str, *, is_here: bool) -> None:
        """Execute a request again at its turn, after its transaction was given up because of another leader's.

        Requests of several leaders are then executed again at about the same time. With random pauses, one of them
        would commit only if the pauses were much longer than a commit, so the leaders take turns.

        Args:
            base: the base of its transaction.
            winner: the leader whose transaction is or will be committed; empty if perhaps none of them will be.
            is_here: whether this node has the winner's commit.
        """
        has_winner = winner not in ("", self.state.me)  # our own name: voters hold an earlier transaction of ours
        commits = 0 if is_here else 1
        before = self.turns.before(winner) if has_winner else []
        places = len(before)
        if not has_winner:
            # Perhaps a tie: each leader rejects the transactions of the others until its own is rolled back.
            commits, places = 2, self.turns.place_after_tie(base)
        turns_ms = places * self.turns.turn_ms(alters=inflight.alters)
        self.pause(inflight, max(1.0, 1000 * self.state.commit_s * commits + turns_ms))
        inflight.turn = self.state.clock.now.seconds, before

    def _wait_for_turn(self, inflight: InFlight, after_ms: float, leader: str) -> None:
        """Execute a request after the turns of other leaders, which follow a transaction of ``leader``."""
        self.pause(inflight, after_ms)
        inflight.turn = self.state.clock.now.seconds, self.turns.before(leader)
        inflight.contested = True
        # A request for very many keys conflicts with every turn, and would wait for ever without a reservation.
        if inflight.access_set is not None:
            self.reservations.reserve_if_needed(inflight, inflight.access_set)

    def unblock_behind(self, inflight: InFlight) -> None:
        """Unblock the requests behind a request, and end its reservation."""
        self.reservations.ended(inflight)
        self.wait_queue.unblock_behind(inflight)
