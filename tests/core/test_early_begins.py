"""A BEGIN leaves before its leader's own vote is durable, where a crash of the leader cannot mislead other nodes."""

import pytest

from bedrockish.api.requests import Request, Statement
from bedrockish.core.protocol.effects import Early
from bedrockish.core.protocol.health import DAMAGED_TABLES, Mode
from bedrockish.core.protocol.messages import Approve, Ask, Begin, Commit, Message, Reject, Rollback
from bedrockish.core.state.settings import Settings, may_count_out
from bedrockish_journal.model.transaction import Txid
from tests.core.net import Net, add

ALL_AT_ONCE = Settings(ask_rest_ms=0)


def a_net(voters: str = "ABC", settings: Settings = ALL_AT_ONCE) -> Net:
    """Return a cluster in which the writes of A become durable only by the event ``sync``."""
    net = Net(voters, settings=settings)
    net.places["A"].eager = False
    return net


def said(net: Net, kind: type[Message], sender: str = "A") -> list[str]:
    """Return the receivers of a kind of message, in order."""
    return [peer for source, peer, message in net.said if source == sender and isinstance(message, kind)]


def restart(net: Net, name: str = "A") -> None:
    """Crash a node, which loses its volatile writes, and start it again with all its links."""
    net.flights = type(net.flights)(flight for flight in net.flights if flight[0] != name and flight[1] != name)
    net.play(name, "reboot", 0)
    for other in sorted(net.places.keys() - {name}):
        net.play(name, "meet", other)
        net.play(other, "meet", name)


@pytest.mark.parametrize(("voters", "early"), [("AB", True), ("ABC", True), ("ABCD", True), ("ABCDE", False)])
def test_begin_leaves_before_the_vote_up_to_four_voters(voters: str, *, early: bool) -> None:
    net = a_net(voters)
    net.ask("A", add("one", "x"))
    assert said(net, Begin) == (list(voters[1:]) if early else [])
    assert not net.places["A"].disk.durable.votes
    net.play("A", "sync")
    assert said(net, Begin) == list(voters[1:])
    assert may_count_out(len(voters)) is not early


def test_commit_and_answer_wait_for_vote_and_commit_together() -> None:
    net = a_net()
    net.ask("A", add("one", "x"))
    net.deliver()
    assert net.places["A"].disk.seen.commands
    assert not said(net, Commit)
    assert not net.told("A")
    net.play("A", "sync")
    assert said(net, Commit) == ["B", "C"]
    assert net.told("A") == {"one": "A1"}


def test_begin_waits_for_its_leaders_own_commits_in_its_base() -> None:
    net = a_net()
    net.ask("A", add("one", "x"))
    net.deliver()
    net.ask("A", add("two", "y"))
    assert said(net, Begin) == ["B", "C"]
    net.play("A", "sync")
    assert said(net, Begin) == ["B", "C", "B", "C"]


def test_begin_waits_for_a_ceiling_above_its_clock() -> None:
    net = a_net()
    place = net.places["A"]
    clock = place.core.state.clock
    clock.adjust(clock.ceiling + 1)
    net.ask("A", add("one", "x"))
    assert not said(net, Begin)
    net.play("A", "sync")
    assert said(net, Begin) == ["B", "C"]


def test_ceiling_is_raised_before_the_clock_reaches_it() -> None:
    """Otherwise one BEGIN of each second would wait until a new ceiling is durable."""
    net = a_net()
    clock = net.places["A"].core.state.clock
    clock.adjust(clock.ceiling)
    net.play("A", "wake")
    assert clock.ceiling > clock.value
    net.play("A", "sync")
    net.ask("A", add("one", "x"))
    assert said(net, Begin) == ["B", "C"]


def test_begin_that_carries_rollbacks_waits_for_the_vote() -> None:
    net = a_net()
    net.kept = {Begin, Rollback}
    net.ask("A", add("one", "x"))
    net.play("A", "sync")
    (first,) = net.places["A"].core.coordinator.attempts.open
    net.play("A", "give up", first)
    net.run(0.3)  # the command is executed again, after a pause
    (second,) = net.places["A"].core.coordinator.attempts.open.keys() - {first}
    assert net.places["A"].core.state.votes.pending.transactions[second].rollbacks == (first,)
    assert said(net, Begin) == ["B", "C"]
    net.play("A", "sync")
    assert said(net, Begin) == ["B", "C", "B", "C"]


def test_large_begin_waits_for_the_vote() -> None:
    net = a_net(settings=Settings(ask_rest_ms=0, inline_bytes=300, piece_bytes=400))
    net.ask("A", Request("one", (Statement("add", ["x" * 300, 1]),), timeout_s=10.0))
    while not said(net, Commit):
        net.deliver()
        assert not said(net, Begin)
        net.play("A", "sync")


@pytest.mark.parametrize(("ceiling", "tick", "durable"), [(9, 3, False), (10, 2, False), (10, 3, True), (11, 4, True)])
def test_early_facts_are_durable_at_or_above_their_ceiling_and_tick(ceiling: int, tick: int, *, durable: bool) -> None:
    assert Early(10, 3).is_durable(ceiling, tick) is durable


def forgotten(voters: str = "ABC") -> tuple[Net, Txid]:
    """Return a cluster in which B and the others hold a transaction that A has begun and forgotten."""
    net = a_net(voters)
    net.ask("A", add("one", "x"))
    (txid,) = net.places["A"].core.state.votes.pending.transactions
    net.deliver()
    net.places["A"].eager = True
    restart(net)
    assert txid not in net.places["A"].core.state.votes.by_txid
    assert txid in net.places["B"].core.state.votes.pending
    return net, txid


def test_restarted_leader_rolls_a_forgotten_transaction_back_when_it_is_asked() -> None:
    """The voters ask as soon as the link is open again."""
    net, txid = forgotten()
    assert said(net, Ask, "B") == ["A"]
    net.deliver()
    assert said(net, Rollback) == ["B", "C"]
    assert all(txid not in place.core.state.votes.pending for place in net.places.values())
    assert all(place.core.state.votes.outcomes.get(txid) is False for name, place in net.places.items() if name == "A")


def test_acceptance_of_a_forgotten_leader_is_durable_before_its_rollback_leaves() -> None:
    net, txid = forgotten()
    net.places["A"].eager = False
    net.deliver()
    assert not said(net, Rollback)
    net.play("A", "sync")
    assert said(net, Rollback) == ["B", "C"]
    restart(net)
    assert net.places["A"].core.state.votes.by_txid[txid].accepted == (1, False)
    assert txid in net.places["A"].core.coordinator.rollbacks


def test_repeated_command_of_a_forgotten_transaction_happens_once_within_milliseconds() -> None:
    net, _ = forgotten()
    net.places["A"].told.clear()
    net.ask("A", add("one", "x"))
    net.run(0.2)
    assert net.told("A") == {"one": "A1"}
    assert {place.disk.seen.rows["x"] for place in net.places.values()} == {net.places["A"].disk.seen.rows["x"]}


def test_leader_whose_tables_a_forgotten_transaction_did_not_fit_rolls_it_back_unasked() -> None:
    """Otherwise a recovery would commit it by the votes of the others, although perhaps no node can apply it."""
    net, txid = forgotten()
    net.flights.clear()  # the questions of the voters are lost
    net.said.clear()
    core = net.places["A"].core
    core.state.health.set_alarm(DAMAGED_TABLES, Mode.DAMAGED, "A2 does not fit", txid=str(txid))
    assert not core.state.roster.is_voter("A")
    net.run(0.5)
    assert set(said(net, Rollback)) == {"B", "C"}
    assert all(txid not in place.core.state.votes.pending for place in net.places.values())
    assert not any(place.disk.seen.commands for place in net.places.values())


def test_alarm_that_names_no_transaction_does_not_stop_the_node() -> None:
    net = a_net()
    net.places["A"].core.state.health.set_alarm(DAMAGED_TABLES, Mode.DAMAGED, "A2 does not fit", txid="A-\x00")
    net.run(0.5)
    assert not said(net, Rollback)


def test_reject_for_a_forgotten_transaction_ends_that_transaction() -> None:
    net, txid = forgotten()
    net.flights.clear()  # the questions of the voters are lost
    net.said.clear()
    net.play("A", "receive", "B", Reject(Txid(txid.clock + 1, "A"), 1, txid, b"", txid.clock + 1))
    assert said(net, Rollback) == ["B", "C"]


def test_late_approval_of_a_forgotten_transaction_counts_for_nothing() -> None:
    net, txid = forgotten()
    net.flights.clear()
    net.play("A", "receive", "B", Approve(txid, 0, txid.clock))
    assert not net.places["A"].disk.seen.commands


@pytest.mark.parametrize("which", ["of another leader", "begun after the restart", "up to safe time", "known"])
def test_only_a_forgotten_transaction_of_this_node_is_rolled_back_when_asked_about(which: str) -> None:
    net, txid = forgotten()
    net.flights.clear()
    net.said.clear()
    state = net.places["A"].core.state
    asked = txid
    if which == "of another leader":
        asked = Txid(txid.clock, "C")
    elif which == "begun after the restart":
        asked = Txid(state.clock.floor + 1, "A")
    elif which == "up to safe time":
        asked = Txid(state.clock.safe, "A")
    else:
        state.votes.end(txid, commit=False)
        state.votes.take_ended()
    net.play("A", "receive", "B", Ask(asked, txid.clock, ()))
    assert not said(net, Rollback)


def test_node_not_accepted_by_a_majority_rolls_no_transaction_back() -> None:
    """The node's file may be an older copy, and the newer file may have the commit."""
    net, txid = forgotten()
    net.flights.clear()
    net.said.clear()
    roster = net.places["A"].core.state.roster
    roster.admitted_by = {"A"}
    net.places["A"].core.coordinator.rollbacks.give_up_forgotten((txid,))
    assert not net.places["A"].core.coordinator.rollbacks.rolling
    roster.admitted_by = {"A", "B"}
    net.places["A"].core.coordinator.rollbacks.give_up_forgotten((txid,))
    assert txid in net.places["A"].core.coordinator.rollbacks
