"""The order of requests that want the same keys, behind two functions: what a request waits for, and the waiting.

Reservations, the queue, the requests of this node that pause, and the turns of the leaders are policies behind them.
Each is timing: the votes on a transaction depend on none of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from bedrockish.core.coordinator.abort import Rollbacks
from bedrockish.core.coordinator.ready import Ready
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.coordinator.reservations import Reservations
from bedrockish.core.coordinator.wait_queue import Turns, WaitQueue
from bedrockish.core.state.outbox import Timer
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
    """The obstacles of requests, and their waiting.

    Args:
        state: of this node.
        in_flight: all requests that are under way.
        ready: takes those that can go on.
        rollbacks: our transactions that nothing waits for.

    Attributes:
        turns: the order of the leaders that want the same keys.
        wait_queue: the requests that wait for others.
        reservations: the requests for whose sake others hold back.
    """

    def __init__(self, state: State, in_flight: Mapping[int, InFlight], ready: Ready, rollbacks: Rollbacks) -> None:
        self.state, self.rollbacks = state, rollbacks
        self.turns = Turns(state)
        self.wait_queue = WaitQueue(in_flight, ready, self._wait_for_turn, self.turns)
        self.reservations = Reservations(state, in_flight, self.wait_queue, self.pause)

    def before(self, inflight: InFlight, kind: str = ROWS) -> Obstacle | None:
        """Return what goes before a request's transaction, which conflicts with no commit; None if it may begin."""
        state, access_set = self.state, inflight.access_set
        assert access_set is not None
        held = self.reservations.blocks(inflight, access_set, kind)
        if held is not None:
            state.counts["held_back"] += 1
            return HoldBack(held)
        # Our own vote would reject it (V9), so a BEGIN could only disturb the others: it waits for their end here.
        for found in state.votes.pending.conflicts(access_set):
            if found.other not in self.rollbacks:  # else our own, given up: our BEGIN carries its rollback
                inflight.lost = found
                self.reservations.in_vain(inflight, access_set, kind)
                state.counts["waited"] += 1
                return WaitFor(found.other)
        # The others that want its keys are held back for its sake: were it to wait for one of them, both would wait.
        if inflight.goes_first:
            return None
        # Another request of this node that pauses for the same keys was here before: it goes first, or the newest would
        # always be the quickest.
        head = self.wait_queue.head(inflight, access_set) if self.wait_queue.heads else None
        if head is not None:
            return LineUp(head)
        left_ms = self.turns.left_ms(access_set) if self.turns.until else 0.0
        return Turn(left_ms) if left_ms else None

    def last_before(self) -> WaitFor | None:
        """Return a transaction still in flight that its leader had begun before it held back for our request.

        Executed before the end of that one, the request would be executed for nothing.
        """
        held = self.reservations.held
        assert held is not None, "a request goes first as long as its reservation is honoured here"
        for found in self.state.votes.pending.conflicts(held.access_set):
            if found.other not in self.rollbacks:  # its own earlier attempt
                self.state.counts["waited"] += 1
                return WaitFor(found.other)
        return None

    def wait(self, inflight: InFlight, obstacle: Obstacle) -> None:
        """Let a request wait until an obstacle is gone; then it is ready again."""
        match obstacle:
            case Pause(after_ms):
                self.pause(inflight, after_ms)
            case WaitFor(txid):
                self.wait_queue.wait(inflight, txid)
            case HoldBack(reservation):
                self.wait_queue.hold_back(inflight, reservation)
            case LineUp(head):
                self.wait_queue.line_up(inflight, head)
            case Turn(left_ms):
                self._wait_for_turn(inflight, left_ms)
            case _:
                assert_never(obstacle)

    def pause(self, inflight: InFlight, after_ms: float) -> None:
        """Execute a request again after a while; those behind it stay there."""
        inflight.move(Stage.PAUSED)
        inflight.turn = None
        if inflight.goes_first:
            # A shorter pause would only cost one more failed execution, and a longer one would keep all others waiting.
            after_ms = self.reservations.settling_ms()
        else:
            # Others that want its keys line up behind it: the newest is not to overtake who was here first.
            self.wait_queue.pause(inflight)
        self.state.timers.set(after_ms, Timer.REQUEST_AGAIN, inflight.number)

    def _wait_for_turn(self, inflight: InFlight, after_ms: float) -> None:
        """Execute a request when it is its turn; others have theirs before."""
        self.pause(inflight, after_ms)
        inflight.turn = self.state.clock.now.seconds
        # A request that wants everything would let all others go first, and never have its turn.
        if inflight.access_set is not None:
            self.reservations.in_vain(inflight, inflight.access_set)

    def leave(self, inflight: InFlight) -> None:
        """Let others go on that are behind a request, or hold back for its sake."""
        self.reservations.ended(inflight)
        self.wait_queue.leave(inflight)
