"""Strict reads of the journal: the transactions that a node waits for, and the end of the wait."""

from typing import TypeGuard

import pytest

from bedrockish.api.requests import STRICT, Request, Statement
from bedrockish.core.coordinator.read_checks import EVERY_KEY_ENCODED
from bedrockish.core.coordinator.request import NAMED_BEFORE, NAMED_MAX
from bedrockish.core.protocol.effects import Execute, Reply, Send
from bedrockish.core.protocol.events import Dropped, Executed, Now, Received, Submitted, Woken
from bedrockish.core.protocol.messages import Approve, Ask, Begin, Check, Checked, Commit, Entries, Outcome, Rollback
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.settings import Settings
from bedrockish.errors import DeadlineError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import ROWS, Txid
from bedrockish_journal.model.vector import Vector
from tests.core.net import Net, add
from tests.core.test_member_changes import CLOCK, WALL, One, commit, membership, transaction
from tools.editing import in_force
from tools.faulty import FAULTS

TELLS_COMMITS = (Commit, Entries)
ASKS_FEW = Settings()  # a BEGIN goes first to the voters that a quorum needs


def journal(command: str, *keys: str, timeout_s: float = 10.0) -> Request:
    rows = (Statement("read", list(keys)),) if keys else ()
    return Request(command, (*rows, Statement("journal", ())), STRICT, timeout_s=timeout_s, read_only=True)


def has(net: Net, name: str, command: str) -> bool:
    """Return whether a node's journal has a command."""
    return command in net.places[name].disk.seen.commands


def checks(net: Net, sender: str) -> list[Check]:
    return [message for name, _, message in net.said if isinstance(message, Check) and name == sender]


def acknowledged_without_a(settings: Settings = ASKS_FEW) -> Net:
    """Let C approve a commit of B whose client has the answer; A was not asked, and neither A nor C has the COMMIT."""
    net = Net("ABC", settings=settings)
    net.cut("A", "B")
    net.kept = set(TELLS_COMMITS)
    net.ask("B", add("given", "y"))
    net.deliver()
    assert net.told("B") == {"given": "B1"}
    assert not has(net, "C", "given")
    return net


def test_read_waits_for_a_commit_that_is_pending_at_the_voter() -> None:
    net = acknowledged_without_a()
    net.ask("A", journal("j"))
    net.run(0.5)
    assert checks(net, "A")
    assert not net.told("A"), "C does not know the commit yet, so A cannot have it"
    net.kept = set()
    net.mend("A", "B")
    while not net.told("A"):
        assert net.seconds < 20
        net.run(0.01)
    assert has(net, "A", "given")


def test_read_that_ignores_pending_transactions_misses_a_commit() -> None:
    """The vector of C has no tick of B. Only C's pending transactions include the commit."""
    net = acknowledged_without_a()
    with in_force(FAULTS["pending transactions delay no read of the journal"]):
        net.ask("A", journal("j"))
        net.run(0.5)
    assert net.told("A") == {"j": "read"}
    assert not has(net, "A", "given")


def test_commit_that_a_voter_has_applied_is_fetched() -> None:
    net = Net("ABC", settings=ASKS_FEW)
    net.cut("A", "B")
    net.ask("B", add("given", "y"))
    net.deliver()
    assert has(net, "C", "given")
    net.ask("A", journal("j"))
    net.run(2.0)
    assert net.told("A") == {"j": "read"}
    assert has(net, "A", "given")


def test_read_of_a_quiet_cluster_takes_one_question() -> None:
    net = Net("ABC", settings=ASKS_FEW)
    net.ask("A", journal("j", "x"))
    net.deliver()
    assert net.told("A") == {"j": "read"}
    assert len(checks(net, "A")) == 1


def test_sole_voter_asks_no_other_node() -> None:
    net = Net("A")
    net.ask("A", journal("j"))
    assert net.told("A") == {"j": "read"}


def test_learner_asks_a_majority_of_the_voters() -> None:
    net = Net("BCD", learners="A", settings=ASKS_FEW)
    net.cut("A", "B")
    net.kept = set(TELLS_COMMITS)
    net.ask("B", add("given", "y"))
    net.deliver()
    assert net.told("B") == {"given": "B1"}
    net.ask("A", journal("j"))
    net.run(0.5)
    assert not net.told("A")
    assert {peer for _, peer, message in net.said if isinstance(message, Check)} == {"C", "D"}
    net.kept = set()
    net.run(5.0)
    assert net.told("A") == {"j": "read"}
    assert has(net, "A", "given")


def test_read_waits_for_a_transaction_that_is_pending_at_this_node_alone() -> None:
    """B's commit has the approval of A. C, the other voter of A's majority, has not heard of it."""
    net = Net("ABC", settings=ASKS_FEW)
    net.cut("B", "C")
    net.kept = set(TELLS_COMMITS)
    net.ask("B", add("given", "y"))
    net.deliver()
    assert net.told("B") == {"given": "B1"}
    net.cut("A", "B")
    net.ask("A", journal("j"))
    net.deliver()
    assert [peer for name, peer, message in net.said if isinstance(message, Checked)] == ["A"]
    assert not net.told("A")
    net.kept = set()
    net.mend("A", "B")
    net.run(5.0)
    assert net.told("A") == {"j": "read"}
    assert has(net, "A", "given")


def test_read_does_not_wait_for_transactions_that_begin_after_the_question() -> None:
    """Transactions are pending at C all the time, and each of them outlives the one before."""
    net = Net("ABC", settings=ASKS_FEW)
    net.kept = {Approve}
    for number in range(3):
        net.ask("C", add(f"before {number}", f"y{number}"))
    net.deliver()
    net.ask("A", journal("j"))
    net.deliver()
    for number in range(3):
        net.ask("C", add(f"after {number}", f"z{number}"))
    approvals = [flight for flight in net.flights if isinstance(flight[2], Approve)]
    net.deliver()
    net.kept = set()
    for sender, receiver, message in approvals:
        net.flights.remove((sender, receiver, message))
        net.play(receiver, "receive", sender, message)
    net.kept = {Approve}
    net.deliver()
    assert len(net.places["C"].core.state.votes.pending) == 3
    assert net.told("A") == {"j": "read"}
    assert all(has(net, "A", f"before {number}") for number in range(3))


def test_read_of_the_journal_and_a_row_is_certified_after_the_wait() -> None:
    """The row is written after the question about the journal: the row's own question finds that."""
    net = acknowledged_without_a()
    net.ask("A", journal("j", "x"))
    net.deliver()
    net.kept = {Checked}
    net.mend("A", "B")
    net.run(1.0)
    assert has(net, "A", "given")
    assert {message.read for message in checks(net, "A")} == {1, 2}
    assert not net.told("A"), "the row is certified like any other strict read"
    net.kept = set()
    net.run(1.0)
    assert net.told("A") == {"j": "read"}


def test_read_asks_for_the_end_of_a_rolled_back_transaction() -> None:
    """A does not know the commit, because A was not asked for its approval."""
    net = Net("ABCDE", settings=ASKS_FEW)
    net.kept = {Approve}
    net.ask("B", add("given", "y", timeout_s=0.2))
    net.deliver()
    (begun,) = {peer for _, peer, message in net.said if isinstance(message, Begin) and peer == "C"} or {""}
    assert begun == "C"
    net.ask("A", journal("j"))
    net.deliver()
    assert not net.told("A")
    net.kept = {Approve, Outcome}
    net.run(0.4)
    asked = [peer for name, peer, message in net.said if name == "A" and isinstance(message, Ask)]
    assert set(asked) == {"B"}
    assert any(isinstance(message, Rollback) for _, _, message in net.said)
    net.kept = {Approve}
    net.deliver()
    assert net.told("A") == {"j": "read"}


def asked(one: One, base: Vector | None = None) -> int:
    """Execute a strict read of the journal at B; return the number of B's question."""
    read = Prepared(base or {}, 0, True, ROWS, AccessSet(), b"", b"", reads_system=True)
    effects = one.step(Executed(1, read))
    (check, *_) = (effect.message for effect in effects if isinstance(effect, Send) and is_check(effect.message))
    assert check.access_set == EVERY_KEY_ENCODED
    return check.read


def is_check(message: object) -> TypeGuard[Check]:
    return isinstance(message, Check)


def is_executed(one: One, seconds: float) -> bool:
    return any(isinstance(effect, Execute) for effect in one.node.step(Woken(), Now(seconds, WALL)))


@pytest.mark.parametrize("count", [NAMED_BEFORE - 1, NAMED_BEFORE, NAMED_MAX - 1, NAMED_MAX])
def test_answer_without_room_has_the_wait_last_until_safe_time(count: int) -> None:
    """A voter names as many transactions as an answer has room for; its clock stands for the others."""
    one = One(membership(0, "ABC"))
    one.step(Submitted(1, Request("j", (), STRICT)))
    named = tuple(Txid(CLOCK + number, "A") for number in range(count))
    one.step(Received("C", Checked(asked(one), named, CLOCK + 5_000)))
    effects = [one.step(Received("A", Outcome(txid, False, "", 0, CLOCK))) for txid in named][-1]
    is_full = count in (NAMED_BEFORE, NAMED_MAX)
    assert any(isinstance(effect, Execute) for effect in effects) != is_full
    one.node.state.clock.safe = CLOCK + 4_999
    assert not is_executed(one, 0.2)
    one.node.state.clock.safe = CLOCK + 5_000
    assert is_executed(one, 0.4) == is_full


def test_deadline_error_of_a_read_names_the_transaction_that_has_not_ended() -> None:
    one = One(membership(0, "ABC"))
    one.step(Submitted(1, Request("j", (), STRICT, timeout_s=0.5)))
    txid = Txid(CLOCK + 1, "A")
    one.step(Received("C", Checked(asked(one), (txid,), CLOCK)))
    replies = [effect for effect in one.node.step(Woken(), Now(1.0, WALL)) if isinstance(effect, Reply)]
    assert [type(reply.answer) for reply in replies] == [DeadlineError]
    assert f"the outcomes of {txid} and perhaps others" in str(replies[0].answer)


def test_read_asks_again_if_the_members_change_while_it_waits() -> None:
    """A majority of the old voters need not share a voter with the quorum of a commit under the new membership."""
    one = One(membership(0, "ABCDE"))
    one.step(Submitted(1, Request("j", (), STRICT)))
    number, changed = asked(one), transaction("D", 2, change=membership(1, "ABCE"))
    one.step(Received("C", Checked(number, (changed.txid,), CLOCK)))
    one.step(Received("A", Checked(number, (), CLOCK)))
    effects = one.step(Received("D", commit(changed)))
    assert any(isinstance(effect, Execute) for effect in effects)
    again = asked(one, {"D": 1})
    assert again != number
    one.step(Received("C", Checked(again, (), CLOCK)))
    assert any(isinstance(effect, Reply) for effect in one.step(Received("A", Checked(again, (), CLOCK))))


def test_question_counts_the_voters_of_one_membership_only() -> None:
    one = One(membership(0, "ABCDE"))
    one.step(Submitted(1, Request("j", (), STRICT)))
    number = asked(one)
    one.step(Received("C", Checked(number, (), CLOCK)))
    one.step(Received("D", commit(transaction("D", 2, change=membership(1, "ABCE")))))
    effects = one.step(Received("A", Checked(number, (), CLOCK)))
    assert not [effect for effect in effects if isinstance(effect, Reply)]
    assert is_executed(one, 0.2)


def test_strict_read_on_a_snapshot_older_than_the_awaited_commits_runs_again() -> None:
    """A worker may have taken its snapshot before: the read is executed again, without another question."""
    one = One(membership(0, "ABC"))
    one.step(Submitted(1, Request("j", (), STRICT)))
    made = transaction("A", 1)
    one.step(Received("C", Checked(asked(one), (made.txid,), CLOCK)))
    assert any(isinstance(effect, Execute) for effect in one.step(Received("A", commit(made))))
    old = Prepared({}, 0, True, ROWS, AccessSet(), b"", b"", reads_system=True)
    effects = one.step(Executed(1, old))
    assert not [effect for effect in effects if isinstance(effect, Send | Reply)]
    assert is_executed(one, 0.2)


def test_read_ends_at_its_deadline() -> None:
    net = acknowledged_without_a()
    net.ask("A", journal("j", timeout_s=0.5))
    net.run(1.0)
    assert net.told("A") == {"j": "did not happen"}
    net.kept = set()
    net.mend("A", "B")
    net.run(2.0)
    assert not net.places["A"].core.coordinator.catch_up.waiting


def test_read_without_a_client_is_waited_for_no_more() -> None:
    net = acknowledged_without_a()
    net.ask("A", journal("j"))
    net.run(0.2)
    place = net.places["A"]
    assert place.core.coordinator.catch_up.waiting
    place.step(Dropped(1))
    net.run(0.3)
    assert not place.core.coordinator.catch_up.waiting
