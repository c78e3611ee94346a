"""The invariants of one node, which hold after each step, whatever messages it has received.

The laws of a cluster compare nodes (see docs/testing.md); the invariants here compare the parts of one node. The
simulator and the model check assert them after every step of every node; a serving node does not, to save the time.
Each invariant is a function: its name states the invariant, its docstring the reason.
"""

from collections import Counter
from collections.abc import Callable

from bedrockish.core.coordinator.coordinator import Coordinator
from bedrockish.core.coordinator.request import Stage
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.state.state import State


def the_cut_is_closed(state: State) -> None:
    """The cut promises that no transaction up to it is approved here any more; only closed time guarantees that."""
    assert state.clock.cut <= state.clock.closed, f"cut {state.clock.cut} is above closed {state.clock.closed}"


def nothing_pending_is_below_the_cut(state: State) -> None:
    """Other nodes count every transaction up to a majority's cut as ended: our vote must not help to commit one."""
    lowest = state.votes.pending.smallest_clock()
    assert lowest is None or lowest > state.clock.cut or not state.health.applies, (
        f"{lowest} is pending below {state.clock.cut}"
    )


def pending_transactions_are_held_and_open(state: State) -> None:
    """A pending transaction without a vote that holds it, or with an outcome, would block others for no reason."""
    for txid in state.votes.pending.transactions:
        vote = state.votes.by_txid.get(txid)
        assert vote is not None, f"{txid} is pending without a vote"
        assert vote.held, f"{txid} is pending and not held"
        assert txid not in state.votes.outcomes, f"{txid} is pending and over"


def held_transactions_are_pending(state: State) -> None:
    """Conflict tests search ``pending``: a transaction that conflicts with a held one must be found there."""
    for txid, vote in state.votes.by_txid.items():
        assert not vote.held or txid in state.votes.pending or state.votes.outcomes.get(txid), (
            f"{txid} is held and not pending"
        )


def a_clock_stays_below_its_ceiling(state: State) -> None:
    """A restarted node approves nothing below its durable ceiling, because it may have forgotten promises there."""
    assert state.clock.value <= state.clock.ceiling, (
        f"the clock {state.clock.value} is above its ceiling {state.clock.ceiling}"
    )


def peers_are_the_other_members(state: State) -> None:
    """Gossip goes to every member, and no majority may count the messages of another node."""
    links = set(state.roster.links().nodes) - {state.me}
    assert state.roster.peers.keys() == links, f"peers are {sorted(state.roster.peers)}, links {sorted(links)}"


def a_scheduled_change_is_not_in_force(state: State) -> None:
    """When safe time is past a change's activation, all earlier transactions are applied, and it is in force."""
    change = state.schema.scheduled
    if change is not None and state.health.applies:
        assert change.activates > state.clock.safe, f"{change.txid} is scheduled, and safe time is past its activation"


def the_step_has_passed_on_all_ends(state: State) -> None:
    """A request that waits for an outcome gets it in the step that learns it: no later step would pass it on."""
    left = [*state.votes.ended, *state.votes.released, *state.outbox.effects]
    assert not left, f"the step has not passed on {left}"
    assert not state.progress, "the step has applied an entry, and has not passed that on"


def waiting_entries_are_taken_and_not_applied(state: State, queue: ApplyQueue) -> None:
    """A node takes and applies each timeline tick by tick: between the two, its entries wait in that order."""
    for leader, taken in state.timelines.taken.items():
        applied = state.timelines.applied.get(leader, 0)
        ticks = [entry.tick for entry in queue.waiting.get(leader, ())]
        assert ticks == list(range(applied + 1, taken + 1)), f"{leader}: {applied} applied, {taken} taken, {ticks} wait"


def counted_attempts_have_no_promise(state: State, coordinator: Coordinator) -> None:
    """Approvals may be counted only until the leader rolls the transaction back or promises it to a recovery."""
    for txid, attempt in coordinator.attempts.open.items():
        if attempt.counting:
            vote = state.votes.by_txid.get(txid)
            assert vote is not None, f"{txid} is counted without a vote of our own"
            assert vote.promised == 0, f"{txid} is counted at ballot {vote.promised}"
            assert txid not in coordinator.rollbacks, f"{txid} is counted and given up"


def waiting_requests_stand_in_one_queue(coordinator: Coordinator) -> None:
    """A waiting request is in exactly one queue, of a transaction or of a request: in none, it would wait for ever."""
    replies = coordinator.replies
    behind = (inflight.behind for inflight in replies.in_flight.values())
    queues = [*coordinator.contention.wait_queue.waits.values(), *behind]
    places = Counter(number for queue in queues for number in queue)
    for number, inflight in replies.in_flight.items():
        if inflight.stage is Stage.WAITING:
            assert places[number] == 1, f"request {number} waits in {places[number]} queues"


def voting_requests_have_an_attempt(coordinator: Coordinator) -> None:
    """A request that waits for approvals has an open transaction; otherwise it would never be answered."""
    carried = {number for attempt in coordinator.attempts.open.values() for number in attempt.numbers}
    for number, inflight in coordinator.replies.in_flight.items():
        assert inflight.stage is not Stage.VOTING or number in carried, f"request {number} is in no attempt"


OF_STATE: tuple[Callable[[State], None], ...] = (
    the_cut_is_closed,
    nothing_pending_is_below_the_cut,
    pending_transactions_are_held_and_open,
    held_transactions_are_pending,
    a_clock_stays_below_its_ceiling,
    peers_are_the_other_members,
    a_scheduled_change_is_not_in_force,
    the_step_has_passed_on_all_ends,
)


def check(state: State, queue: ApplyQueue, coordinator: Coordinator) -> None:
    """Assert all invariants.

    Raises:
        AssertionError: an invariant is broken; the error names it.
    """
    for invariant in OF_STATE:
        invariant(state)
    waiting_entries_are_taken_and_not_applied(state, queue)
    counted_attempts_have_no_promise(state, coordinator)
    waiting_requests_stand_in_one_queue(coordinator)
    voting_requests_have_an_attempt(coordinator)
