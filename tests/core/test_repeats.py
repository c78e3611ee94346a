"""A message without an answer is sent again, but seldom enough not to overload a slow cluster."""

from collections import Counter
from itertools import pairwise

import pytest

from bedrockish.core.protocol.effects import Send
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.messages import Approve, Ask, Begin, Fetch
from bedrockish.core.state.outbox import Timer, Timers
from bedrockish.core.state.repeat import PAUSE_MAX_S, Repeat
from tests.core.net import Net, add
from tests.core.test_ballots import state


def test_pauses_double_up_to_a_bound() -> None:
    repeat, sent, seconds = Repeat(0.0, 1.0), [], 0.0
    while seconds < 200.0:
        if repeat.is_due(seconds):
            sent.append(seconds)
        seconds += 0.25
    assert sent[:6] == [1.0, 3.0, 7.0, 15.0, 31.0, 61.0]
    assert {later - one for one, later in pairwise(sent[5:])} == {PAUSE_MAX_S}


def count(net: Net, kind: type) -> Counter[tuple[str, str]]:
    return Counter((sender, peer) for sender, peer, message in net.said if isinstance(message, kind))


@pytest.mark.parametrize("level", [4, 5])
def test_a_voter_asks_a_leader_about_all_its_transactions_at_once(level: int) -> None:
    """A message for each transaction at every heartbeat would slow down a slow cluster further."""
    net = Net("ABC")
    for place in net.places.values():
        roster = place.core.state.roster
        roster.membership = roster.membership.__class__(0, roster.membership.members, level=level)
        roster.heard_level = level
    net.kept = {Approve}  # A gets no quorum for a while
    for number in range(20):
        net.ask("A", add(f"c{number}", f"k{number}", timeout_s=100.0))
    net.run(4.0)
    asks = [message for sender, _, message in net.said if isinstance(message, Ask) and sender == "B"]
    assert sum(1 + len(message.more) for message in asks) <= 20 * 4
    assert len(asks) <= (4 if level >= 5 else 80)
    assert {txid for message in asks for txid in (message.txid, *message.more)} == state(
        net, "B"
    ).votes.pending.transactions.keys()


def test_leader_repeats_begin_only_after_the_usual_time_of_an_answer() -> None:
    net = Net("ABC")
    net.kept = {Approve}
    net.ask("A", add("one", "x", timeout_s=100.0))
    net.run(4.5)
    assert count(net, Begin)["A", "B"] == 1 + 1
    net = Net("ABC")
    net.kept = {Approve}
    net.ask("A", add("one", "x", timeout_s=100.0))
    state(net, "A").note_answer(20.0)  # to another one of its transactions
    net.run(4.5)
    assert count(net, Begin)["A", "B"] == 1


def test_unanswered_fetch_is_repeated_with_pauses_that_double() -> None:
    net = Net("ABC")
    net.kept = {Fetch}
    net.places["A"].core.apply_queue.want({"B": 7})
    state(net, "A").roster.peers["B"].applied = {"B": 7}
    net.run(20.0)
    assert 4 <= sum(count(net, Fetch).values()) <= 6


def test_unanswered_clock_question_is_repeated_with_pauses_that_double() -> None:
    net = Net("ABC")
    core = net.places["A"].core
    core.coordinator.clock_quorum.ask(99)
    core.state.outbox.drain()
    sent = 0
    for heartbeat in range(200):
        core.state.set_now(Now(net.seconds + heartbeat / 10, 0))
        core.coordinator.clock_quorum.repeat({99})
        sent += sum(effect.peer == "B" for effect in core.state.outbox.drain() if isinstance(effect, Send))
    assert 6 <= sent <= 8


def test_next_deadline_is_not_that_of_a_timer_that_was_dropped_or_moved() -> None:
    """Otherwise each dropped timer would cost the node a turn: one for each strict read and each INSERT."""
    timers = Timers(state(Net("ABC"), "A").clock)
    assert timers.deadline() is None
    timers.set(10, Timer.ASK_REST, 1)
    timers.set(20, Timer.BEGIN_REST, 2)
    timers.move(30, Timer.ASK_ENDS, 3)
    timers.move(50, Timer.ASK_ENDS, 3)
    now = timers.clock.now.seconds
    assert timers.deadline() == pytest.approx(now + 0.01)
    timers.drop(Timer.BEGIN_REST, 2)
    assert timers.deadline() == pytest.approx(now + 0.01)
    timers.drop(Timer.ASK_REST, 1)
    assert timers.deadline() == pytest.approx(now + 0.05)
    assert not timers._dropped
    timers.clock.now = timers.clock.now._replace(seconds=now + 0.06)
    assert timers.due() == [(Timer.ASK_ENDS, 3)]
    assert timers.deadline() is None


def test_deadline_of_an_answered_request_is_dropped_from_the_timers() -> None:
    """A client may allow each command an hour, and its timer would stay that long."""
    net = Net("ABC")
    timers = state(net, "A").timers
    for number in range(200):
        net.ask("A", add(f"c{number}", f"k{number}", timeout_s=3_600.0))
        net.run(0.05)
    assert len(net.told("A")) == 200
    assert len(timers._timers) < 20
    net.ask("A", add("late", "x", timeout_s=1.0))
    net.kept = {Begin}
    net.run(5.0)
    assert "late" in net.told("A")  # a request without an answer keeps its deadline


def test_dropped_timer_does_not_fire_and_others_do() -> None:
    core = Net("A").places["A"].core
    timers = core.state.timers
    timers._timers.clear()
    for number in range(9):
        timers.set(number, Timer.REQUEST_DEADLINE, number)
    for number in (1, 2, 7):
        timers.drop(Timer.REQUEST_DEADLINE, number)
    core.state.set_now(Now(core.state.clock.now.seconds + 5.0, 0))
    assert [subject for _, subject in timers.due()] == [0, 3, 4, 5, 6, 8]
    assert timers.deadline() is None
