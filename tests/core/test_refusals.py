"""A refusal is an answer: at the strict level a majority must confirm its reasons."""

from types import SimpleNamespace
from typing import Any

from bedrockish.api.requests import SESSION, STRICT, Request, Statement
from bedrockish.core.coordinator.request import _advice, _conflict_error
from bedrockish.core.protocol.messages import Check
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.certifier import command_key
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import ROWS, Txid
from tests.core.net import Net, add


def take(command: str, level: str) -> Request:
    """Something that is refused unless there is one in x."""
    return Request(command, (Statement("move", ["x", "y", 1]),), level, timeout_s=10.0)


def one_that_a_has_not_heard_of() -> Net:
    """Let B commit a row into x with C; A hears of the commit only from C, and not yet."""
    net = Net("ABC")
    net.cut("A", "B")
    net.ask("B", add("give", "x"))
    net.deliver()
    assert net.told("B") == {"give": "B1"}
    return net


def test_strict_refusal_is_never_based_on_old_data() -> None:
    """C knows B's commit, so A executes the request again, and finds a row."""
    net = one_that_a_has_not_heard_of()
    net.ask("A", take("take", STRICT))
    net.run(2.0)
    assert net.told("A") == {"take": "A1"}


def test_refusal_at_level_session_asks_no_voter() -> None:
    """The session level allows a refusal by older data."""
    net = one_that_a_has_not_heard_of()
    net.ask("A", take("take", SESSION))
    assert net.told("A") == {"take": "did not happen"}
    assert not any(isinstance(message, Check) for _, _, message in net.said)


def test_strict_refusal_takes_one_question_to_the_voters() -> None:
    """The table x is empty, and no node knows of a row."""
    net = Net("ABC")
    net.ask("A", take("take", STRICT))
    assert not net.told("A")
    net.deliver()
    assert net.told("A") == {"take": "did not happen"}
    assert sum(isinstance(message, Check) for _, _, message in net.said) == 2


def test_strict_refusal_without_majority_becomes_an_unknown_answer() -> None:
    """At the end of its time the client gets an unknown outcome."""
    net = Net("ABC")
    net.cut("A", "B")
    net.cut("A", "C")
    net.ask("A", take("take", STRICT))
    net.run(9.0)
    assert not net.told("A")
    net.run(2.0)
    assert net.told("A") == {"take": "did not happen"}


def test_refusal_is_marked_while_its_node_may_lag() -> None:
    """A node may lag if it lacks commits of others, if a change of the key is pending, or if it hears too few peers."""
    net = Net("ABC")
    core = net.places["A"].core

    def may_lag(key: str = "x") -> bool:
        access_set = AccessSet(frozenset({b"t:rows\0" + key.encode()}))
        return core.read_checks.may_lag(
            Prepared(dict(core.state.timelines.applied), 0, True, ROWS, access_set, b"", b"")
        )

    assert not may_lag()
    net.kept = {type(None)}
    net.ask("B", add("give", "x"))
    sender, receiver, begin = next(flight for flight in net.flights if flight[1] == "A")
    net.flights.clear()
    net.play(receiver, "receive", sender, begin)
    assert may_lag("x")
    assert not may_lag("z")
    net.cut("A", "B")
    assert not may_lag("z")
    net.cut("A", "C")
    assert may_lag("z")


def test_conflict_with_a_command_gets_no_advice_and_its_right_name() -> None:
    """A change of members conflicts with the keys of all commands without an outcome.

    The error must not call them the change's own earlier run, or advise to run the change over a range of keys at a
    time.
    """
    read = SimpleNamespace(touched=frozenset(), has_ranges=True, write_points=(), write_ranges=())
    inflight: Any = SimpleNamespace(request=SimpleNamespace(command="c1"), access_set=read, attempts=17)
    state: Any = SimpleNamespace(commit_window=SimpleNamespace(member_changes={}))
    met = {"c1": "its own earlier run", "c2": "another command, which has no outcome yet or came first"}
    for command, name in met.items():
        assert _advice(inflight, command_key(command)) == ""
        error = _conflict_error(inflight, Txid(7, "C"), command_key(command), state)
        assert error.details["table"] == name
        assert f"of C on {name} in 17 attempts; it did not happen, and it is safe to run it again" in error.message
    assert "all the time" in _advice(inflight, b"t:rows\0x")
