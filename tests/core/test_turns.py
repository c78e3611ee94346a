"""A hot key at several nodes: the leaders take turns."""

from collections import deque
from itertools import pairwise
from random import Random

import pytest

from bedrockish.core.coordinator import wait_queue as turns
from bedrockish.core.coordinator.request import Stage
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.messages import Accepted, Approve, Begin, Reject
from bedrockish.core.state.outbox import Timer
from tests.core.net import Net, add
from tests.core.test_shared_transactions import journal


def contend(net: Net, rounds: int, *, with_pauses: bool = False) -> list[str]:
    """Run three clients at each of three nodes that ask again as soon as they are answered; return the leaders in order
    of their commits.

    Messages take a millisecond, as between machines, so that not everything happens at the same instant. With
    ``with_pauses``, those of one node after the other take 30 ms for a moment, as if its disk was slow.
    """
    count = 0
    for name, place in net.places.items():
        place.core.state.draw = Random(name).random
    flights: deque[tuple[float, tuple[str, str, object]]] = deque()
    for _ in range(rounds):
        for name in "ABC":
            waiting = len(net.places[name].requests)
            for _ in range(3 - waiting):
                count += 1
                net.ask(name, add(f"{name}-{count}", "x"))
        net.seconds += 0.001
        flights += [(net.seconds, flight) for flight in net.flights]
        net.flights.clear()
        slow = "ABC"[int(net.seconds * 10) % 3] if with_pauses and net.seconds * 10 % 1 < 0.3 else ""
        arriving = [one for one in flights if one[0] <= net.seconds - 0.001 and one[1][0] != slow]
        flights = deque(one for one in flights if one not in arriving)
        for _, (sender, receiver, message) in arriving:
            net.play(receiver, "receive", sender, message)
        for name, place in net.places.items():
            if (place.core.deadline() or net.seconds + 1) <= net.seconds:
                net.play(name, "wake")
    net.flights = deque(flight for _, flight in flights)  # type: ignore[misc]  # what was not delivered yet
    return [one.txid.leader for one in journal(net)]


def test_leaders_that_want_one_key_take_turns() -> None:
    """After a while each leader follows the one before it in the alphabet, and there are hardly any rejects."""
    net = Net("ABC")
    order = contend(net, 600)
    rejected = sum(isinstance(message, Reject) for _, _, message in net.said)
    late = order[len(order) // 2 :]
    in_turn = sum("ABC"["ABC".index(one) - 2] == other for one, other in pairwise(late))
    assert len(late) > 20
    assert in_turn > 0.8 * (len(late) - 1)
    assert rejected < len(order) // 2


def test_turns_reduce_rejections_and_raise_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the load of the test above without turns."""
    done, rejected = [], []
    for commits in (0, turns.TURN_COMMITS):
        monkeypatch.setattr(turns, "TURN_COMMITS", commits)
        net = Net("ABC")
        contend(net, 600)
        done.append(sum(len(one.commands) for one in journal(net)))
        rejected.append(sum(isinstance(message, Reject) for _, _, message in net.said))
    assert done[0] < done[1]
    assert rejected[0] > 2 * rejected[1]


def test_leader_that_skips_its_turn_is_not_waited_for_again() -> None:
    """A's clients stop. B and C lose one turn to A, and then go on without it."""
    net = Net("ABC")
    contend(net, 200)
    net.run(5.0)
    net.ask("B", add("b", "x"))
    net.run(0.5)
    began = net.seconds
    for number in range(5):
        net.ask("B", add(f"b{number}", "x"))
        while f"b{number}" not in net.told("B"):
            net.run(0.001)
    assert net.seconds - began < 0.5


def test_pausing_leader_causes_few_rejects() -> None:
    """Random pauses after rejects would be too short for one leader to commit, and grow for the others."""
    net = Net("ABC")
    order = contend(net, 2_000, with_pauses=True)
    rejected = sum(isinstance(message, Reject) for _, _, message in net.said)
    assert rejected < len(order) // 2


def test_pause_that_was_cut_short_does_not_end_the_next_pause() -> None:
    net = Net("A")
    timers = net.places["A"].core.state.timers
    began = timers.clock.now.seconds
    timers.move(20, Timer.REQUEST_AGAIN, 7)
    timers.move(40, Timer.REQUEST_AGAIN, 7)
    timers.move(10, Timer.REQUEST_AGAIN, 8)
    found = []
    for after_ms in (15, 25, 45):
        net.places["A"].core.state.set_now(Now(began + after_ms / 1000, 0))
        found.append([subject for timer, subject in timers.due() if timer is Timer.REQUEST_AGAIN])
    assert found == [[8], [], [7]]


def test_end_of_a_given_up_transaction_does_not_pause_a_request_that_is_in_flight_again() -> None:
    """The request of A is rejected for that of B by both voters, and begun again before its rollback is accepted."""
    net = Net("ABC")
    net.kept = {Begin}
    net.ask("A", add("ours", "x"))
    net.ask("B", add("theirs", "x"))
    net.kept = {Approve, Accepted}
    net.flights.reverse()
    net.deliver()
    replies = net.places["A"].core.coordinator.replies
    (inflight,) = replies.in_flight.values()
    assert inflight.stage is Stage.PAUSED
    net.kept |= {Reject}
    net.run(0.1)
    assert (inflight.stage, inflight.attempts) == (Stage.VOTING, 2)
    net.kept = {Approve, Reject}
    net.deliver()
    assert (inflight.stage, len(inflight.open)) == (Stage.VOTING, 1)
    net.kept = set()
    net.run(1.0)
    assert net.told("A").keys() == {"ours"}


def test_leader_is_a_rival_even_if_its_reject_comes_after_the_quorum() -> None:
    net = Net("ABC")
    net.kept = {Begin, Approve}
    net.ask("B", add("theirs", "x"))
    net.ask("A", add("ours", "x"))
    net.kept = {Reject}
    net.flights = deque(flight for flight in net.flights if flight[0] == "A")
    net.deliver()
    turns_of_a = net.places["A"].core.coordinator.contention.turns
    assert net.told("A") == {"ours": "A1"}
    assert turns_of_a.before("A") == []
    net.kept = set()
    net.deliver()
    assert turns_of_a.before("A") == ["B"]


def test_only_rivals_that_had_a_turn_are_dropped_for_not_using_it() -> None:
    net = Net("ABC")
    turns_of_b = net.places["B"].core.coordinator.contention.turns
    for rival in "AC":
        turns_of_b.note_rival(rival)
    assert turns_of_b.before("C") == ["A"]
    turns_of_b.drop_idle_rivals(net.seconds, turns_of_b.before("C"))
    assert turns_of_b.before("B") == ["C"]
