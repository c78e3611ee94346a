"""BEGINs go to as many voters as a quorum needs, and to the others when these are late or reject it."""

import pytest

from bedrockish.api.requests import Request, Statement
from bedrockish.core.protocol.messages import Approve, Begin, Commit
from bedrockish.core.state.conflict_records import KEYS_MAX, MEMORY_S, Contests
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.access_set import AccessSet
from tests.core.net import Net, add


def a_net(voters: str = "ABC") -> Net:
    return Net(voters, settings=Settings())


def begins(net: Net, leader: str = "A") -> list[str]:
    """Return the voters to which a leader has sent BEGIN, in order."""
    return [peer for source, peer, message in net.said if source == leader and isinstance(message, Begin)]


@pytest.mark.parametrize(("voters", "asked"), [("ABC", 1), ("ABCDE", 2), ("ABCDEFG", 4)])
def test_begin_goes_to_as_many_voters_as_a_quorum_needs(voters: str, asked: int) -> None:
    net = a_net(voters)
    net.ask("A", add("one", "x"))
    net.deliver()
    assert net.told("A") == {"one": "A1"}
    assert len(begins(net)) == asked
    net.run(2.0)
    assert len(begins(net)) == asked
    assert all("one" in place.disk.seen.commands for place in net.places.values())


def test_voter_that_was_not_asked_gets_the_transaction_with_its_commit() -> None:
    net = a_net()
    net.ask("A", add("one", "x"))
    net.deliver()
    bodies = {peer: message.body for _, peer, message in net.said if isinstance(message, Commit)}
    (asked,) = begins(net)
    assert bodies.keys() == {"B", "C"}
    assert [peer for peer, body in bodies.items() if body is None] == [asked]


def test_other_voter_gets_begin_when_the_first_is_late() -> None:
    net = a_net()
    net.ask("A", add("one", "x"))
    (first,) = begins(net)
    net.flights.clear()  # the voter has stopped
    net.run(0.005)
    assert begins(net) == [first]
    net.run(0.1)
    assert sorted(begins(net)) == ["B", "C"]
    assert net.told("A") == {"one": "A1"}
    net.ask("A", add("two", "y"))
    assert begins(net)[2] != first


def test_other_voter_gets_begin_at_once_when_the_first_rejects_it() -> None:
    """B leads a transaction on the same key, and C alone knows it. C rejects A's transaction, and B would, too."""
    net = a_net()
    net.kept = {Approve}
    net.cut("A", "B")
    net.ask("B", add("theirs", "x"))
    net.deliver()
    net.mend("A", "B")
    net.said.clear()
    net.places["A"].core.coordinator.attempts.quickest.note_late("B", 1.0)
    net.ask("A", add("ours", "x"))
    assert begins(net) == ["C"]
    net.deliver()
    assert begins(net)[:2] == ["C", "B"]


def test_every_voter_gets_begin_at_once_where_leaders_have_met() -> None:
    net = a_net()
    net.kept = {Begin}
    net.ask("A", add("ours", "x"))
    net.ask("B", add("theirs", "x"))
    net.kept = set()
    net.run(0.2)
    assert net.told("A") | net.told("B") == {"ours": "A1", "theirs": "B1"}
    for leader in "AB":
        net.said.clear()
        net.ask(leader, add(f"again {leader}", "x"))
        assert len(begins(net, leader)) == 2, "both know of the key"
        net.run(0.2)
    net.said.clear()
    net.ask("A", add("elsewhere", "y"))
    assert len(begins(net)) == 1
    net.run(MEMORY_S)
    net.said.clear()
    net.ask("A", add("later", "x"))
    assert len(begins(net)) == 1


def test_number_of_contended_keys_is_bounded() -> None:
    contests = Contests()
    for number in range(2 * KEYS_MAX):
        contests.note_key(b"%d" % number, 1.0)
    assert not contests.is_contended(AccessSet(write_points=frozenset({b"0"})), 1.0)
    assert contests.is_contended(AccessSet(write_points=frozenset({b"%d" % (2 * KEYS_MAX - 1)})), 1.0)
    assert contests.is_contended(AccessSet(read_ranges=((b"x", b"y"),)), 1.0), "with ranges, any key counts"


def test_change_of_the_schema_goes_to_every_voter() -> None:
    net = a_net()
    net.ask("A", Request("alter", (Statement("alter", ()),), timeout_s=10.0))
    assert len(begins(net)) == 2


def test_other_voters_get_begin_within_half_of_the_least_closing_lag() -> None:
    """Later BEGINs would be rejected as TOO LATE."""
    net = Net("ABC", settings=Settings(closing_lag_ms_min=8))
    net.places["A"].core.coordinator.attempts.quickest.note_late("B", 1.0)
    net.places["A"].core.coordinator.attempts.quickest.note_late("C", 1.0)
    net.ask("A", add("one", "x"))
    net.flights.clear()
    net.run(0.0045)
    assert len(begins(net)) == 2
