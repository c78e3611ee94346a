"""A hot key: commands that wait for it at one node share a transaction."""

from dataclasses import replace

from bedrockish.api.requests import SNAPSHOT, Request, Statement
from bedrockish.core.coordinator.reservations import shortened
from bedrockish.core.coordinator.wait_queue import GROUP_MAX
from bedrockish.core.protocol.messages import Approve, Begin, Rollback
from bedrockish.core.state.certifier import EVERYTHING
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import Transaction, decode_transaction
from tests.core.net import Net, add


def value(net: Net, name: str, key: str) -> object:
    return net.places[name].disk.durable.rows[key][1]


def journal(net: Net, name: str = "A") -> list[Transaction]:
    return [entry.transaction for entry, repeat in net.places[name].disk.durable.order if not repeat]


def queue_at_a(net: Net, *requests: Request) -> None:
    """Let these commands wait behind a command that is in flight at A."""
    net.ask("A", add("first", "x"))
    for request in requests:
        net.ask("A", request)


def let_first_through(net: Net) -> None:
    """Drop the BEGIN of the waiting command."""
    net.kept = {Approve}
    net.deliver()
    net.kept = {Begin}


def test_commands_that_wait_for_one_key_share_a_transaction() -> None:
    """Each client gets the place of the common transaction; each command is executed once, in order of arrival."""
    net = Net("ABC")
    queue_at_a(net, *(add(f"c{number}", "x") for number in range(5)))
    net.run(1.0)
    assert [one.commands for one in journal(net)] == [("first",), ("c0", "c1", "c2", "c3", "c4")]
    assert net.told("A") == {"first": "A1", **{f"c{number}": "A2" for number in range(5)}}
    assert {value(net, name, "x") for name in "ABC"} == {6}


def test_failing_command_does_not_share_a_transaction() -> None:
    """The commands before the failing one are committed together, and so are the later ones; the failing one gets its
    error.
    """
    net = Net("ABC")
    net.ask("A", Request("rich", (Statement("add", ["x", 3]),)))
    net.run(1.0)
    moves = [Request(f"move {amount}", (Statement("move", ["x", "y", amount]),)) for amount in (2, 3)]
    queue_at_a(net, *moves, add("one", "x"), add("two", "x"))
    net.run(1.0)
    assert net.told("A")["move 3"] == "did not happen"
    assert [one.commands for one in journal(net)] == [("rich",), ("first",), ("move 2",), ("one", "two")]
    assert (value(net, "B", "x"), value(net, "B", "y")) == (4, 2)


def test_one_command_sent_twice_happens_once() -> None:
    """Both requests wait; one is led, and the other gets its answer from the journal."""
    net = Net("ABC")
    queue_at_a(net, add("twice", "x"), add("twice", "x"), add("other", "x"))
    net.run(1.0)
    assert value(net, "C", "x") == 3
    assert [one.commands for one in journal(net)] == [("first",), ("twice", "other")]


def test_commands_of_different_isolation_do_not_share_a_transaction() -> None:
    """Isolation belongs to a transaction."""
    net = Net("ABC")
    queue_at_a(net, add("one", "x"), replace(add("two", "x"), isolation=SNAPSHOT), add("three", "x"))
    net.run(1.0)
    assert {one.commands for one in journal(net)} >= {("first",), ("one", "three"), ("two",)}
    assert value(net, "A", "x") == 4


def test_transaction_has_at_most_group_max_commands() -> None:
    """The next transaction takes the further commands."""
    net = Net("ABC")
    queue_at_a(net, *(add(f"c{number}", "x") for number in range(GROUP_MAX + 20)))
    net.run(2.0)
    assert [len(one.commands) for one in journal(net)] == [1, GROUP_MAX, 20]


def test_deadline_of_one_command_does_not_end_a_shared_transaction() -> None:
    """No approval arrives. The time of one command ends, and the transaction goes on for the other."""
    net = Net("ABC")
    queue_at_a(net, add("patient", "x", timeout_s=30.0), add("hasty", "x", timeout_s=0.15))
    let_first_through(net)
    net.run(0.02)
    assert len(journal(net)) == 1
    net.run(0.2)
    net.kept = set()
    net.run(3.0)
    assert [one.commands for one in journal(net)] == [("first",), ("patient", "hasty")]
    assert net.told("A") == {"first": "A1", "patient": "A2", "hasty": "A2"}
    assert not [message for _, _, message in net.said if isinstance(message, Rollback)]


def test_deadline_of_the_last_command_ends_a_shared_transaction() -> None:
    """No command waits for the transaction any more, so it is given up, and both clients learn that."""
    net = Net("ABC")
    queue_at_a(net, add("one", "x", timeout_s=0.5), add("two", "x", timeout_s=0.6))
    let_first_through(net)
    net.run(2.0)
    assert net.told("A") == {"first": "A1", "one": "did not happen", "two": "did not happen"}
    assert len(journal(net)) == 1


def test_commands_of_a_rejected_hot_row_group_stay_together() -> None:
    """A and B begin at the same time, each with two more commands behind. One group gives way, and stays a group."""
    net = Net("ABC")
    net.ask("C", add("first", "x"))
    net.deliver()
    for name in "AB":
        for number in range(3):
            net.ask(name, add(f"{name.lower()}{number}", "x"))
    net.run(2.0)
    assert value(net, "C", "x") == 7
    assert max(len(one.commands) for one in journal(net)) >= 2
    told = {**net.told("A"), **net.told("B")}
    assert all(place[0] in "AB" for place in told.values())


def test_a_begin_carries_its_commands() -> None:
    """The voters would finish the transaction for a dead leader, so their copy names every command and its answer."""
    net = Net("ABC")
    queue_at_a(net, add("one", "x"), add("two", "x"))
    net.run(1.0)
    begun = [decode_transaction(message.body) for _, _, message in net.said if isinstance(message, Begin)]
    assert begun[-1].commands == ("one", "two")
    assert begun[-1].result_of("two") != begun[-1].result_of("one")


def test_group_held_back_for_a_change_of_members_loses_no_command() -> None:
    """The first command that waits is executed alone, the others together."""
    net = Net("ABC")
    queue_at_a(net, *(add(f"c{number}", "x") for number in range(5)))
    _, said = shortened(AccessSet(write_ranges=(EVERYTHING,)))
    net.places["A"].core.coordinator.contention.reservations.heard("C", (1, 300, said))
    net.run(1.0)
    assert [one.commands for one in journal(net)] == [("first",), ("c0",), ("c1", "c2", "c3", "c4")]
    assert set(net.told("A")) == {"first", "c0", "c1", "c2", "c3", "c4"}


def test_transaction_ended_by_safe_time_is_not_given_up_in_the_same_step() -> None:
    """Safe time has already removed the vote, so giving the transaction up would stop the node (seed 20221)."""
    net = Net("ABC")
    net.kept = {Begin}
    net.ask("A", add("slow", "x"))
    core = net.places["A"].core
    (txid,) = core.coordinator.attempts.open
    core.state.votes.end(txid, commit=False)
    del core.state.votes.by_txid[txid]
    core.coordinator.past_deadline(next(iter(core.coordinator.replies.in_flight)))
    net.run(1.0)
    assert net.told("A") == {"slow": "did not happen"}
