"""Strict reads that share a question: the number of messages, and the order of reads and questions."""

import pytest

from bedrockish.api.requests import STRICT, Request, Statement
from bedrockish.core.coordinator import read_checks
from bedrockish.core.protocol.messages import Check, Checked
from tests.core.net import Net, add


def read(command: str, *keys: str) -> Request:
    return Request(command, (Statement("read", list(keys)),), STRICT, timeout_s=10.0, read_only=True)


def take(command: str, key: str) -> Request:
    """Something that is refused unless there is one in ``key``; the refusal is checked like a strict read."""
    return Request(command, (Statement("move", [key, "z", 1]),), STRICT, timeout_s=10.0)


def checks(net: Net) -> list[Check]:
    return [message for _, peer, message in net.said if isinstance(message, Check) and peer == "C"]


def test_reads_that_come_while_a_question_is_under_way_share_the_next_one() -> None:
    net = Net("ABC")
    for number in range(20):
        net.ask("A", read(f"r{number}", f"k{number}"))
    assert len(checks(net)) == 1
    assert not net.told("A")
    net.deliver()
    assert net.told("A") == {f"r{number}": "read" for number in range(20)}
    assert len(checks(net)) == 2


def test_read_that_arrives_after_a_question_is_not_answered_by_it() -> None:
    """C answers the question about x, then approves B's commit to y, and B answers its client. A read that arrives at A
    after that must see the commit, although A has not heard of it and C's answer is still in transit.
    """
    net = Net("ABC")
    net.kept = {Checked}
    net.ask("A", read("of x", "x"))
    net.deliver()
    net.cut("A", "B")
    net.ask("B", add("given", "y"))
    net.deliver()
    assert net.told("B") == {"given": "B1"}
    net.ask("A", take("of y", "y"))
    assert not net.told("A")
    net.kept = set()
    net.run(2.0)
    assert net.told("A") == {"of x": "read", "of y": "A1"}


def test_shared_question_repeats_only_the_read_that_conflicts() -> None:
    """A has not heard of B's commit to y, so further questions divide the voter's answer."""
    net = Net("ABC")
    net.cut("A", "B")
    net.kept = {Checked}
    net.ask("A", read("first", "x"))
    for number in range(8):
        net.ask("A", read(f"r{number}", f"k{number}"))
    net.ask("A", take("of y", "y"))
    net.deliver()
    net.ask("B", add("given", "y"))
    net.deliver()
    net.kept = set()
    net.deliver()
    assert {f"r{number}" for number in range(8)} <= net.told("A").keys()
    assert len(checks(net)) <= 10  # the first, the shared one, and halves of it, four times
    net.run(2.0)
    assert net.told("A")["of y"] == "A1"


def test_shared_question_has_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_checks, "READS_MAX", 8)
    monkeypatch.setattr(read_checks, "KEYS_MAX", 12)
    net = Net("ABC")
    for number in range(16):
        net.ask("A", read(f"r{number}", f"k{number}"))
    net.ask("A", read("long", *(f"l{number}" for number in range(30))))
    for number in range(3):
        net.ask("A", read(f"s{number}", f"k{number}"))
    net.run(1.0)
    assert len(net.told("A")) == 20
    assert 4 <= len(checks(net)) <= 7


def test_waiting_reads_are_asked_about_when_no_voter_answers_the_question_before() -> None:
    net = Net("ABC")
    net.kept = {Checked}
    net.ask("A", read("first", "x"))
    net.ask("A", read("second", "y"))
    net.deliver()
    net.flights.clear()  # the answers are lost
    net.kept = set()
    net.run(5.0)
    assert net.told("A") == {"first": "read", "second": "read"}
    assert not net.places["A"].core.read_checks.questions
    assert not net.places["A"].core.read_checks.waiting
