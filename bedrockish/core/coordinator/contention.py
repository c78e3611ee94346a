"""The order of requests that want the same keys, behind two functions: what a request waits for, and the waiting.

Reservations, the queue, the requests of this node that pause, and the turns of the leaders are policies behind them.
Each is timing: the votes on a transaction depend on none of them.
"""

from dataclasses import dataclass
from typing import assert_never

from bedrockish.core.coordinator.abort import Rollbacks
from bedrockish.core.coordinator.replies import Replies
from bedrockish.core.coordinator.request import InFlight
from bedrockish.core.state.state import State
from bedrockish_journal.model.transaction import ROWS, Txid


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
    """The request waits for the end of a reservation."""

    reservation: Txid


@dataclass(frozen=True, slots=True)
class LineUp:
    """The request stays behind another one of this node that pauses, and was here before."""

    head: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The keys are other leaders' for some milliseconds."""

    left_ms: float


Obstacle = Pause | WaitFor | HoldBack | LineUp | Turn


class Contention:
    """The obstacles of requests, and their waiting."""

    def __init__(self, state: State, replies: Replies, rollbacks: Rollbacks) -> None:
        self.state, self.replies, self.rollbacks = state, replies, rollbacks

    def before(self, inflight: InFlight, kind: str = ROWS) -> Obstacle | None:
        """Return what goes before a request's transaction, which conflicts with no commit; None if it may begin."""
        state, access_set, replies = self.state, inflight.access_set, self.replies
        assert access_set is not None
        held = replies.reservations.blocks(inflight, access_set, kind)
        if held is not None:
            state.counts["held_back"] += 1
            return HoldBack(held)
        # Our own vote would reject it (V9), so a BEGIN could only disturb the others: it waits for their end here.
        for found in state.votes.pending.conflicts(access_set):
            if found.other not in self.rollbacks:  # else our own, given up: our BEGIN carries its rollback
                inflight.lost = found
                replies.reservations.in_vain(inflight, access_set, kind)
                state.counts["waited"] += 1
                return WaitFor(found.other)
        # The others that want its keys are held back for its sake: were it to wait for one of them, both would wait.
        if inflight.goes_first:
            return None
        # Another request of this node that pauses for the same keys was here before: it goes first, or the newest would
        # always be the quickest.
        head = replies.wait_queue.head(inflight, access_set) if replies.wait_queue.heads else None
        if head is not None:
            return LineUp(head)
        left_ms = replies.turns.left_ms(access_set) if replies.turns.until else 0.0
        return Turn(left_ms) if left_ms else None

    def wait(self, inflight: InFlight, obstacle: Obstacle) -> None:
        """Let a request wait until an obstacle is gone; then it is ready again."""
        replies = self.replies
        match obstacle:
            case Pause(after_ms):
                replies.pause(inflight, after_ms)
            case WaitFor(txid):
                replies.wait_queue.wait(inflight, txid)
            case HoldBack(reservation):
                replies.wait_queue.hold_back(inflight, reservation)
            case LineUp(head):
                replies.wait_queue.line_up(inflight, head)
            case Turn(left_ms):
                replies.wait_for_turn(inflight, left_ms)
            case _:
                assert_never(obstacle)
