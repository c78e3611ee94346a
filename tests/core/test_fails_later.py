"""If a request cannot be executed again, its client gets the error, unless an earlier attempt commits."""

from typing import Any

import pytest

from bedrockish.core.protocol.messages import Approve, Reject, Rollback
from bedrockish.errors import ConstraintError
from tests.core.net import Net, add
from tools.modelcheck import place


def given_up(monkeypatch: pytest.MonkeyPatch, *, cut_off: bool) -> Net:
    """Let A begin a transaction at all nodes, lose its approvals and give it up; its next execution fails."""
    net = Net("ABC")
    net.kept = {Approve, Reject, Rollback}
    net.ask("A", add("one", "x", timeout_s=30.0))
    net.deliver()
    coordinator = net.places["A"].core.coordinator
    (attempt,) = coordinator.attempts.open.values()
    net.flights.clear()
    if cut_off:
        net.cuts |= {frozenset("AB"), frozenset("AC")}
    coordinator.attempts.give_up(attempt)
    net.kept = set()

    def fails(*_: Any) -> None:
        raise ConstraintError("what was drawn at random was taken")

    monkeypatch.setattr(place, "execute", fails)
    net.play("A", "wake")
    return net


def test_commit_that_others_can_still_make_is_not_reported_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node receives the rollback; B and C know that both have approved the transaction, and commit it."""
    net = given_up(monkeypatch, cut_off=True)
    net.run(10.0)
    assert net.places["B"].disk.durable.rows["x"][1] == 1
    assert net.told("A") == {"one": "cannot tell"}


def test_error_is_answered_as_soon_as_the_rollback_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    net = given_up(monkeypatch, cut_off=False)
    net.run(0.5)
    assert net.told("A") == {"one": "did not happen"}
    assert "x" not in net.places["B"].disk.durable.rows
