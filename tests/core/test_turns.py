"""A hot key at several nodes: the leaders take turns."""

from collections import deque
from itertools import pairwise
from random import Random

import pytest

from bedrockish.core.coordinator import wait_queue as turns
from bedrockish.core.protocol.messages import Reject
from tests.core.net import Net, add
from tests.core.test_shared_transactions import journal


def contend(net: Net, rounds: int) -> list[str]:
    """Each of three nodes has three clients that ask again as soon as they are answered; return who led what, in order.

    Messages take a millisecond, as they do between machines: else everything happens at the same instant.
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
        while flights and flights[0][0] <= net.seconds - 0.001:
            _, (sender, receiver, message) = flights.popleft()
            net.play(receiver, "receive", sender, message)
        for name, place in net.places.items():
            if (place.core.deadline() or net.seconds + 1) <= net.seconds:
                net.play(name, "wake")
    net.flights = deque(flight for _, flight in flights)  # type: ignore[misc]  # what was not delivered yet
    return [one.txid.leader for one in journal(net)]


def test_leaders_that_want_one_key_take_turns() -> None:
    """After a while each leader follows the one before it in the alphabet, and hardly anybody is rejected."""
    net = Net("ABC")
    order = contend(net, 600)
    rejected = sum(isinstance(message, Reject) for _, _, message in net.said)
    late = order[len(order) // 2 :]
    in_turn = sum("ABC"["ABC".index(one) - 2] == other for one, other in pairwise(late))
    assert len(late) > 20
    assert in_turn > 0.8 * (len(late) - 1)
    assert rejected < len(order) // 2


def test_without_turns_more_is_rejected_and_less_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the load of the test above without turns."""
    done, rejected = [], []
    for commits in (0, turns.COMMITS):
        monkeypatch.setattr(turns, "COMMITS", commits)
        net = Net("ABC")
        contend(net, 600)
        done.append(sum(len(one.commands) for one in journal(net)))
        rejected.append(sum(isinstance(message, Reject) for _, _, message in net.said))
    assert done[0] < done[1]
    assert rejected[0] > 2 * rejected[1]


def test_leader_that_skips_its_turn_is_not_waited_for_again() -> None:
    """A's clients fall silent. B and C lose one turn to it, and then go on without."""
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
