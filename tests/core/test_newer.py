"""Questions about every key: the voters that are asked, and the transactions that block an answer."""

from bedrockish.core.protocol.messages import Approve, Begin, Check, Checked
from bedrockish.core.state.settings import Settings
from tests.core.net import Net, add


def asked(net: Net) -> list[str]:
    """Return the nodes that were asked, in order."""
    return [peer for _, peer, message in net.said if isinstance(message, Check)]


def ask(net: Net, number: int) -> bool | None:
    """Let A ask, and return the immediate answers."""
    net.play("A", "newer", number)
    return net.places["A"].newer.get(number)


def told(net: Net) -> dict[int, bool]:
    return net.places["A"].newer


def test_question_about_every_key_goes_to_one_voter_of_three() -> None:
    net = Net("ABC", settings=Settings())
    assert ask(net, 1) is None
    net.deliver()
    assert told(net) == {1: False}
    assert len(asked(net)) == 1
    net.run(5.0)
    assert len(asked(net)) == 1
    assert not net.places["A"].core.read_checks.questions


def test_sole_voter_confirms_a_question_about_every_key_alone() -> None:
    assert ask(Net("A"), 1) is False


def test_learner_needs_the_answers_of_a_majority() -> None:
    net = Net("BCD", learners="A", settings=Settings())
    assert ask(net, 1) is None
    net.deliver()
    assert told(net) == {1: False}
    assert len(asked(net)) == 2


def test_transaction_that_is_pending_at_the_voter_may_be_newer() -> None:
    """B leads the transaction and has sent BEGIN to C alone.

    C has approved it, so B's client may get its answer at any time.
    """
    net = Net("ABC", settings=Settings())
    net.cut("A", "B")
    net.kept = {Approve}
    net.ask("B", add("given", "y"))
    net.deliver()
    assert ask(net, 1) is None
    net.deliver()
    assert told(net) == {1: True}


def test_question_about_every_key_finds_a_commit_that_has_not_arrived() -> None:
    net = Net("ABC", settings=Settings())
    net.cut("A", "B")
    net.ask("B", add("given", "y"))
    net.deliver()
    assert net.told("B") == {"given": "B1"}
    net.flights.clear()
    assert "given" not in net.places["A"].disk.seen.commands
    ask(net, 1)
    net.deliver()
    assert told(net) == {1: True}


def test_own_pending_transaction_answers_the_question_about_every_key_with_maybe() -> None:
    net = Net("ABC", settings=Settings())
    net.kept = {Begin}
    net.ask("A", add("given", "y"))
    assert ask(net, 1) is True
    assert asked(net) == []


def test_strict_read_asks_another_voter_when_the_first_is_late() -> None:
    net = Net("ABC", settings=Settings())
    ask(net, 1)
    (first,) = asked(net)
    net.flights.clear()  # the question is lost with the voter
    net.run(0.1)
    assert told(net) == {1: False}
    assert sorted(asked(net)) == ["B", "C"]
    ask(net, 2)
    assert asked(net)[2] != first, "the voter that was late is asked last"


def test_answer_of_a_late_voter_counts() -> None:
    net = Net("ABC", settings=Settings())
    net.kept = {Checked}
    ask(net, 1)
    net.run(0.1)
    assert len(asked(net)) == 2
    net.kept = set()
    net.deliver()
    assert told(net) == {1: False}


def test_question_about_every_key_answers_maybe_without_a_majority() -> None:
    net = Net("ABC", settings=Settings())
    net.cut("A", "B")
    net.cut("A", "C")
    assert ask(net, 1) is True


def test_question_ends_soon_when_no_voter_answers() -> None:
    """The reads then go to the core, which has their time limits."""
    net = Net("ABC", settings=Settings())
    net.kept = {Checked}
    ask(net, 1)
    net.run(0.2)
    assert told(net) == {}
    net.run(0.3)
    assert told(net) == {1: True}
    assert not net.places["A"].core.read_checks.questions
