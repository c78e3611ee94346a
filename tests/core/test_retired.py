"""A membership change retires the timelines of removed nodes: no vector names them after it."""

from dataclasses import replace

import cbor2
import pytest

from bedrockish.api.requests import ADDRESS, MemberChange
from bedrockish.core.protocol.effects import Send
from bedrockish.core.protocol.messages import Approve, Begin, Check, Checked, Gossip
from bedrockish.core.protocol.records import Recovered
from bedrockish.core.state.commit_window import CommitWindow
from bedrockish.core.state.membership import MembershipFacts, change_members
from bedrockish.core.state.packed_commits import SEGMENT
from bedrockish.core.state.state import State
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import pack_membership, read_membership
from bedrockish_journal.model.transaction import MEMBERS, ROWS, Transaction, Txid
from bedrockish_journal.model.vector import Vector, covers
from tests.core.test_member_changes import CLOCK, WALL, One, commit, membership, transaction

LATER = replace(membership(2, "ABC"), retired={"D": 2})


def report(applied: Vector, config: int, peer: str = "C") -> Gossip:
    return Gossip(applied, 0, 0, CLOCK, f"store of {peer}", 1, WALL, config=config)


def gone() -> One:
    """B, in whose cluster D was a voter, has led D1 and has left; all of that is applied."""
    one = One(membership(0, "ABCD"))
    one.hear("D", commit(transaction("D", 1)))
    one.hear("C", commit(transaction("C", 2, change=membership(1, "ABC"), base={"D": 1})))
    assert one.node.state.timelines.applied == {"C": 1, "D": 1}
    return one


def retired() -> One:
    one = gone()
    change = transaction("A", 3, config=1, change=LATER, base={"C": 1, "D": 1})
    one.hear("A", commit(change))
    assert one.node.state.roster.membership == LATER
    return one


def test_timeline_that_every_member_has_whole_can_be_retired() -> None:
    """Every member must have reported that it counts without the leader.

    Before that, the leader may still send it commits. All members must have the same ticks.
    """
    one = gone()
    state = one.node.state
    assert state.timelines.whole() == set()
    for peer in "AC":
        one.hear(peer, report({"C": 1, "D": 1}, 1, peer))
    assert state.timelines.whole() == {"D"}
    for behind in (report({"C": 1, "D": 1}, 0), report({"C": 1}, 1), report({"C": 1, "D": 2}, 1)):
        one.hear("C", behind)
        assert state.timelines.whole() == set()


def test_membership_change_retires_whole_timelines_without_leader() -> None:
    facts = MembershipFacts(alive=frozenset("ABC"), whole=frozenset("CD"))
    change = MemberChange(ADDRESS, "A", "a:7", force=True)
    new = change_members(membership(1, "ABC"), change, facts)
    assert new.retired == {"D": 2}
    assert change_members(new, change, replace(facts, whole=frozenset("DE"))).retired == {"D": 2, "E": 3}


def test_encoded_membership_has_retired_timelines_only_if_there_are_any() -> None:
    assert read_membership(pack_membership(LATER)) == LATER
    assert len(cbor2.loads(pack_membership(LATER))) == 5
    assert len(cbor2.loads(pack_membership(replace(LATER, retired={})))) == 4
    fields = cbor2.loads(pack_membership(LATER))
    assert read_membership(cbor2.dumps([*fields, {}, [], [], "of a later release"])).retired == {"D": 2}
    nonsense: object
    void = replace(LATER, void=(Txid(7, "A"),))
    assert read_membership(pack_membership(void)) == void
    assert cbor2.loads(pack_membership(void))[5:] == [{}, [], [[7, "A"]]]
    for nonsense in ("void", [7], [["A", 7]], 5):
        with pytest.raises(EntryMalformedError):
            read_membership(cbor2.dumps([*fields, {}, [], nonsense]))
    for nonsense in ([], {"D": "2"}, {"D": -1}, {7: 2}):
        with pytest.raises(EntryMalformedError):
            read_membership(cbor2.dumps([*fields[:4], nonsense]))


def test_later_transactions_omit_retired_timelines() -> None:
    state = retired().node.state
    assert state.timelines.applied == {"A": 1, "C": 1, "D": 1}, "what is applied is still known"
    assert state.timelines.in_short(state.timelines.applied) == {"A": 1, "C": 1}
    assert state.timelines.in_short({"C": 1, "D": 1}) == {"C": 1, "D": 1}, "this has not seen the retirement"


def test_members_that_know_the_retirement_get_short_vectors() -> None:
    """A member that does not know the retirement needs the long vector, to find a node with its missing entries."""
    one = retired()
    one.hear("A", report({"A": 1, "C": 1}, 2, "A"))
    one.hear("C", report({"C": 1}, 1))
    one.node.safe_time.gossip()
    told = {each.peer: each.message.applied for each in one.node.state.outbox.effects if isinstance(each, Send)}  # type: ignore[union-attr]
    assert told == {"A": {"A": 1, "C": 1}, "C": {"A": 1, "C": 1, "D": 1}}
    assert one.node.state.roster.peers["A"].applied == {"A": 1, "C": 1, "D": 1}
    assert one.node.state.roster.peers["C"].applied == {"C": 1}


def test_retired_timeline_takes_no_further_entries() -> None:
    one = retired()
    one.hear("C", report({"A": 1, "C": 1, "D": 2}, 2))
    assert not one.node.apply_queue.gaps
    late = transaction("D", 9)
    entry = Entry("D", 2, {"D": 2}, late, None, one.node.state.timelines.heads["D"])
    one.hear("C", replace(commit(late), label=entry.label, hash=entry.hash))
    assert one.node.state.timelines.taken["D"] == 1
    assert "D" not in one.node.apply_queue.ahead_of_gap


def test_commits_of_a_retired_timeline_are_in_every_base() -> None:
    """A BEGIN on the row that D1 wrote conflicts with nothing, although its base does not name D; nor does a read."""
    one = retired()
    written = transaction("D", 1).access_set
    made = replace(transaction("A", 5, config=2, base={"A": 1, "C": 1}), access_set=written, body=b"")
    assert any(isinstance(said, Approve) for said in one.hear("A", Begin(made.body)))
    reads = cbor2.dumps(AccessSet(read_points=written.write_points).pack())
    one = retired()
    (said,) = one.hear("A", Check(1, {"A": 1, "C": 1}, reads, CLOCK + 5))
    assert isinstance(said, Checked)
    assert said.others == ()
    (said,) = one.hear("A", Check(2, {"C": 1, "D": 1}, reads, CLOCK + 5))
    assert isinstance(said, Checked)
    assert said.others, "what does not have the change of the members meets it"


def window_of(number: int) -> CommitWindow:
    """Return a window in which D has led so many commits, the first of which writes d; A then retired its timeline, and
    C that of A.
    """
    window = CommitWindow()

    def commit(leader: str, tick: int, key: bytes, clock: int, kind: str = ROWS) -> Txid:
        txid = Txid(clock, leader)
        keys = AccessSet(write_points=frozenset({key}))
        window.add((leader, tick), Transaction(txid, {}, 0, 0, 0, str(clock), "serializable", kind, keys, b"", b""))
        return txid

    for tick in range(1, number + 1):
        commit("D", tick, b"t:d\0%d" % tick, tick)
    window.pack(number, ())
    window.retire({"D"}, commit("A", 1, b"members", number + 1, MEMBERS))
    window.retire({"A"}, commit("C", 1, b"members", number + 2, MEMBERS))
    return window


def test_commit_of_a_retired_timeline_conflicts_with_a_base_from_before_it() -> None:
    touched = AccessSet(read_points=frozenset({b"t:d\0" + b"1"}))
    assert next(window_of(1).conflicts(touched, {"A": 0}), None) is not None


@pytest.mark.parametrize("packed_later", [False, True])
@pytest.mark.parametrize("number", [1, SEGMENT + 1])
def test_open_transaction_from_before_a_retirement_is_compared_with_the_retired_commits(
    number: int, packed_later: bool
) -> None:
    window = window_of(number)
    if packed_later:
        window.pack(number + 1, ())
    first = AccessSet(read_points=frozenset({b"t:d\0" + b"1"}))
    last = AccessSet(read_points=frozenset({b"t:d\0%d" % number}))
    assert next(window.conflicts(first, {"A": 0}), None) is not None
    assert next(window.conflicts(last, {"D": number - 1}), None) is not None
    assert window.newer_than({"D": number - 1}) is None, "the line of D is gone"
    for base in ({"D": number}, {"A": 1}, {"C": 1}, {"A": 1, "C": 1, "D": number}):
        assert next(window.conflicts(last, base), None) is None, base
    assert window.oldest_outside({"A": 1, "C": 1}) is None


def test_window_reports_dropped_commits_of_a_retired_timeline_outside_a_base() -> None:
    window = window_of(2)
    window.forget(2)
    assert window.has_dropped({"D": 1})
    assert not window.has_dropped({"D": 2})
    assert "D" not in window.floor, "a voter's base does not name it"


@pytest.mark.parametrize("number", [1, SEGMENT + 1])
def test_window_forgets_the_commits_of_a_retired_timeline(number: int) -> None:
    """The window forgets loose, packed and dropped commits, with and without another label."""
    window = CommitWindow()
    access_set = AccessSet(write_points=frozenset({b"t:x\0"}))
    for tick in range(1, number + 1):
        one = Transaction(Txid(tick, "D"), {}, 0, 0, 0, str(tick), "serializable", ROWS, access_set, b"", b"")
        if tick % 2:
            window.add(("A", tick // 2 + 1), one)
        window.add(("D", tick), one)
    window.pack(number, ())
    assert next(window.conflicts(access_set, {}), None) is not None
    window.retire({"D"})
    assert list(window.conflicts(access_set, {})) == []
    window.forget(number)
    assert "D" not in window.floor
    window.set_floor({"A": 1, "D": 7}, [])
    assert window.floor == {"A": 1}


def test_restarted_node_knows_retired_timelines() -> None:
    """The window of its file has commits of timelines that are retired, and names none of them."""
    state = retired().node.state
    assert state.timelines.retirement == {"A": 1}
    recovered = Recovered("B", "store of B", state.roster.membership, applied=dict(state.timelines.applied))
    again = State(recovered, state.settings, state.draw, state.clock.now)
    assert again.timelines.retirement == {"A": 1, "C": 1}
    assert covers(again.timelines.applied, again.timelines.retirement)
    assert "D" not in again.commit_window.floor


def test_new_node_that_replays_takes_the_retired_timeline_first() -> None:
    """The base of the membership change includes all of the retired timeline, and so keeps the order."""
    one = One(membership(0, "ABCD"))
    change = transaction("A", 3, config=1, change=LATER, base={"C": 1, "D": 1})
    one.hear("A", commit(change))
    after = transaction("C", 4, config=2, base={"A": 1, "C": 1})
    one.hear("C", commit(transaction("C", 2, change=membership(1, "ABC"), base={"D": 1})))
    entry = Entry("C", 2, {"C": 2}, after, None, one.node.state.timelines.heads["C"])
    one.hear("C", replace(commit(after), label=entry.label, hash=entry.hash))
    assert one.node.state.timelines.applied == {}
    one.hear("D", commit(transaction("D", 1)))
    assert one.node.state.timelines.applied == {"A": 1, "C": 2, "D": 1}
