"""Commands that are led elsewhere: on a hot key, from a learner; and what a client is told when no word comes back."""

from dataclasses import replace

from bedrockish.core.messages import Approve, Ask, Commit, Forward, Forwarded, Outcome
from bedrockish.core.settings import Settings
from tests.core.net import Net, add

SETTINGS = Settings(forwarding=True)


def meet(net: Net) -> None:
    """B has a transaction in flight on x, A knows of it; A's client asks for the same row, and A passes that on."""
    net.ask("B", add("first", "x"))
    net.kept = {Approve}
    net.deliver()
    net.kept = set()
    net.ask("A", add("second", "x", timeout_s=8.0))
    assert net.kinds("A")[-1] == "Forward"


def test_the_loser_goes_to_the_winner_and_is_told_there() -> None:
    """The command is led by B, and A tells its client."""
    net = Net("ABC", settings=SETTINGS)
    meet(net)
    net.run(1.0)
    assert net.told("A") == {"second": "B2"}
    assert net.told("B") == {"first": "B1"}


def test_who_is_cut_off_after_passing_a_command_on_does_not_say_that_it_did_not_happen() -> None:
    """It did: B has led it, and no word of that came back before A's client had to be answered."""
    net = Net("ABC", settings=SETTINGS)
    meet(net)
    net.kept = {Forwarded, Commit}
    net.deliver()
    net.cut("A", "B")
    net.cut("A", "C")
    net.kept = set()
    net.run(10.0)
    assert "second" in net.places["B"].disk.durable.commands
    assert net.told("A") == {"second": "cannot tell"}


def test_who_gets_no_answer_from_elsewhere_runs_the_command_itself_once() -> None:
    """The command never arrives at B. A takes it back and leads it."""
    net = Net("ABC", settings=SETTINGS)
    meet(net)
    net.kept = {Forward}
    net.run(2 * SETTINGS.suspicion_ms / 1000 + 1)
    assert net.told("A") == {"second": "A1"}
    net.kept = set()
    net.run(4.0)  # now it arrives, too
    for place in net.places.values():
        assert place.disk.durable.rows["x"][1] == 2


def test_a_learner_passes_what_writes_on_to_a_voter() -> None:
    """Its client need not know that it is one; what it reads, it reads here."""
    net = Net("ABC", "D", SETTINGS)
    net.ask("D", add("through D", "x"))
    net.run(1.0)
    assert net.told("D") == {"through D": "A1"}
    assert net.kinds("D").count("Forward") == 1
    assert net.places["D"].disk.durable.rows["x"][1] == 1


def test_a_learner_tries_another_voter_and_the_command_happens_once() -> None:
    """A takes it and is cut off before it has answered; D goes to the next one with the same id."""
    net = Net("ABC", "D", SETTINGS)
    net.kept = {Forwarded}
    net.ask("D", add("through D", "x"))
    net.deliver()
    net.cut("A", "D")
    net.kept = set()
    net.run(3.0)
    assert net.told("D") == {"through D": "A1"}
    assert net.places["C"].disk.durable.rows["x"][1] == 1


def test_a_learner_does_not_believe_one_voter_that_it_did_not_happen_when_another_may_have_done_it() -> None:
    """A has led it and is cut off with its COMMIT; B is asked next, waits for A in vain, and says that it did not."""
    net = Net("ABC", "D", replace(SETTINGS, suspicion_ms=60_000))
    net.kept = {Forwarded, Commit}
    net.ask("D", add("through D", "x", timeout_s=9.0))
    net.deliver()
    assert "through D" in net.places["A"].disk.durable.commands
    for name in "BCD":
        net.cut("A", name)
    net.kept = set()
    net.run(15.0)
    assert net.told("D") == {"through D": "cannot tell"}


def test_a_learner_that_is_cut_off_says_what_it_knows() -> None:
    """Before anything left it: that it did not happen. After: that it cannot tell."""
    net = Net("ABC", "D", SETTINGS)
    net.kept = {Forward}
    net.ask("D", add("under way", "x", timeout_s=3.0))
    for name in "ABC":
        net.cut(name, "D")
    net.ask("D", add("later", "y", timeout_s=3.0))
    net.run(6.0)
    assert net.told("D") == {"under way": "cannot tell", "later": "did not happen"}


def test_a_learner_without_forwarding_setting_still_passes_on() -> None:
    """The setting is about hot keys; a learner has no other way."""
    net = Net("ABC", "D", replace(SETTINGS, forwarding=False))
    net.ask("D", add("through D", "x"))
    net.run(1.0)
    assert net.told("D") == {"through D": "A1"}


def test_who_is_rejected_for_a_commit_it_cannot_hear_of_asks_at_once() -> None:
    """A and C cannot talk. C's commit is known to B, which turns A's transaction down for it: A need not wait for
    B's next report to fetch it."""
    net = Net("ABC", settings=replace(SETTINGS, heartbeat_ms=60_000, suspicion_ms=600_000))
    net.cut("A", "C")
    net.ask("C", add("first", "x"))
    net.deliver()
    assert net.told("C") == {"first": "C1"}
    net.ask("A", add("second", "x"))
    net.run(0.5)
    assert net.told("A") == {"second": "A1"}
    asked = [message for name, _, message in net.said if name == "A" and isinstance(message, Ask)]
    answers = [message for name, _, message in net.said if name == "B" and isinstance(message, Outcome)]
    assert asked
    assert answers


def test_a_command_is_lent_for_a_while_and_given_up_there_before_it_is_taken_back() -> None:
    """B gets nothing through. If it went on with A's command, that would be led by both, and be in its own way."""
    net = Net("ABC", settings=SETTINGS)
    meet(net)
    net.kept = {Approve}
    net.run(1.9 * SETTINGS.suspicion_ms / 1000)
    assert "Forwarded" in net.kinds("B")
    assert -1 not in net.places["B"].core.leading.tickets
    net.kept = set()
    net.run(6.0)
    assert list(net.told("A")) == ["second"]
    for place in net.places.values():
        assert place.disk.durable.rows["x"][1] == 2


def test_a_command_that_comes_twice_is_taken_once() -> None:
    """B has said that it did not happen, and A may have told its client; only then does the second copy arrive."""
    net = Net("ABC", settings=SETTINGS)
    meet(net)
    (copy,) = [message for _, _, message in net.flights if isinstance(message, Forward)]
    net.kept = {Approve}
    net.deliver()
    net.kept = {Approve, Forward}
    net.run(1.9 * SETTINGS.suspicion_ms / 1000)
    before = set(net.places["B"].core.leading.tickets)
    net.play("B", "receive", "A", copy)
    assert set(net.places["B"].core.leading.tickets) == before
