"""A late commit with a very old clock is dropped at once, and bases that lack it are refused."""

from bedrockish.api.requests import STRICT, Request, Statement
from bedrockish.core.protocol.messages import Approve, Begin, Promise, Standing
from tests.core.net import Net, add


def test_voter_rejects_bases_that_lack_a_dropped_commit() -> None:
    """The voter cannot know whether the two conflict; the transaction is executed again, on a newer snapshot."""
    net = Net("ABC")
    net.run(1.0)
    for name in "BC":
        # clocks have the wall time, so the node knows how old they are
        net.places[name].core.state.clock.has_only_counted = False
        net.places[name].core.state.commit_window.floor["C"] = 1
    net.ask("A", add("one", "x"))
    net.run(1.0)
    assert "one" not in net.told("A")
    assert net.places["A"].core.state.counts["rejected_too_old"]
    for name in "BC":
        net.places[name].core.state.commit_window.floor.clear()
    net.run(2.0)
    assert "one" in net.told("A")


def test_leader_begins_nothing_whose_base_lacks_a_dropped_commit() -> None:
    """The leader executes the request again until the base has the commit."""
    net = Net("ABC")
    net.run(1.0)
    net.places["A"].core.state.commit_window.floor["C"] = 1
    net.ask("A", add("one", "x"))
    net.run(1.0)
    assert Begin.__name__ not in net.kinds("A")
    net.places["A"].core.state.commit_window.floor.clear()
    net.run(1.0)
    assert "one" in net.told("A")


def test_voter_does_not_hold_a_recovered_transaction_that_it_cannot_compare() -> None:
    """Commits outside the base may conflict with the transaction. The voter holds it as soon as it can compare them."""
    net = Net("ABC")
    net.run(1.0)
    net.kept.add(Approve)
    net.cut("A", "C")
    net.ask("A", add("one", "x"))
    net.run(0.1)
    net.cut("A", "B")
    floor = net.places["C"].core.state.commit_window.floor
    floor["B"] = 7  # the journal does not have these commits, so the voter cannot compare them
    net.run(5.0)
    told = {message.standing for name, _, message in net.said if name == "C" and isinstance(message, Promise)}
    assert told == {Standing.BLOCKED}
    assert not net.places["B"].core.state.timelines.applied.get("B")
    floor.clear()
    net.run(10.0)
    assert net.places["B"].core.state.timelines.applied["B"] == 1, "B has adopted it"


def test_strict_read_is_not_certified_against_dropped_commits() -> None:
    """A quorum may have acknowledged the dropped commit before the read began, and only this node of it is in reach."""
    net = Net("ABC")
    net.run(1.0)
    net.cut("A", "B")
    net.places["A"].core.state.commit_window.floor["C"] = 1
    net.ask("A", Request("read", (Statement("read", ["x"]),), read=STRICT, timeout_s=10.0))
    net.run(1.0)
    assert "read" not in net.told("A")
    net.mend("A", "B")  # B and C are a majority without it
    net.run(2.0)
    assert "read" in net.told("A")


def test_settled_commits_stay_in_memory_for_a_conflict_window() -> None:
    """If they were dropped sooner, a transaction executed a moment ago on an older snapshot would get TOO OLD."""
    net = Net("ABC")
    net.run(1.0)
    net.ask("A", add("one", "x"))
    net.run(3.0)
    assert "one" in net.told("A")
    for place in net.places.values():
        state = place.core.state
        known = state.commit_window.newer_than({}) or []
        assert len(known) == 1
        assert known[0].txid.clock <= state.clock.settled
        assert not state.commit_window.floor


def test_sole_voter_answers_a_strict_read_alone() -> None:
    """The node's tables have every acknowledged commit, even if the window has dropped it."""
    net = Net("A")
    net.run(1.0)
    net.places["A"].core.state.commit_window.floor["A"] = 1
    net.ask("A", Request("read", (Statement("read", ["x"]),), read=STRICT, timeout_s=10.0))
    net.run(0.2)
    assert "read" in net.told("A")
