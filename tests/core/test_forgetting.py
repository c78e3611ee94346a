"""Decisions below safe time are forgotten, even if the transaction appears again."""

from bedrockish.core.protocol.messages import Commit, Gossip
from bedrockish_journal.model.entry import GENESIS, Entry
from tests.core.test_member_changes import CLOCK, WALL, One, commit, membership, transaction

MEMBERS = membership(0, "ABC")


def gossip(applied: dict[str, int], clock: int) -> Gossip:
    return Gossip(applied, clock, clock, clock, "store", 1, WALL)


def test_second_label_of_a_transaction_below_safe_time_is_forgotten_at_once() -> None:
    """A transaction was adopted, and is safe; then its first label arrives. No later commit is needed to forget it."""
    one = One(MEMBERS)
    made = transaction("C", 1)
    adopted = Entry("A", 1, {"A": 1}, made, "C", GENESIS)
    one.hear("A", Commit(adopted.label, made.body, adopted.hash, CLOCK))
    state = one.node.state
    assert state.timelines.applied == {"A": 1}
    for peer in "AC":
        one.hear(peer, gossip({"A": 1}, CLOCK + 10))
    state.clock.closed = CLOCK + 10
    one.node.safe_time.advance()
    for peer in "AC":
        one.hear(peer, gossip({"A": 1}, CLOCK + 10))
    one.node.safe_time.advance()
    assert state.clock.safe == CLOCK + 10
    assert not state.votes.outcomes
    assert not state.votes.done
    one.hear("C", commit(made))
    assert state.timelines.applied == {"A": 1, "C": 1}
    one.node.safe_time.advance()
    assert not state.votes.outcomes
    assert not state.votes.done


def test_transaction_ended_by_safe_time_leaves_no_state() -> None:
    """A transaction is pending here, and below safe time: it ends, and all state of it is dropped."""
    one = One(MEMBERS)
    made = transaction("C", 1)
    state = one.node.state
    state.votes.hold(made)
    state.clock.closed = CLOCK + 10
    for peer in "AC":
        one.hear(peer, gossip({}, CLOCK + 10))
    one.node.safe_time.advance()
    assert state.clock.safe == CLOCK + 10
    one.node._pass_on_progress()
    assert not state.votes.pending.transactions
    assert not state.votes.by_txid
    one.node.safe_time.advance()
    assert not state.votes.outcomes
