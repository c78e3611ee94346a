"""One node and membership changes: the transactions that they end, the peers that vote, and the times at which it does
not vote.
"""

from collections.abc import Iterable
from dataclasses import replace

import cbor2
import pytest

from bedrockish.api.requests import STRICT, Request, Token
from bedrockish.core.coordinator.revalidation import KEEPS_BASE, overtaken
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import (
    Effect,
    Execute,
    Keep,
    Malformed,
    NewerAnswered,
    Persist,
    Reply,
    Send,
    SetMembers,
)
from bedrockish.core.protocol.events import (
    Accused,
    Event,
    Executed,
    NewerAsked,
    Now,
    PeerUp,
    Received,
    Submitted,
    Woken,
)
from bedrockish.core.protocol.messages import (
    Accept,
    Approve,
    AskClock,
    Begin,
    Check,
    Checked,
    Commit,
    Fetch,
    Gossip,
    Message,
    Outcome,
    Reason,
    Recover,
    Reject,
    Rollback,
    ToldClock,
)
from bedrockish.core.protocol.records import Joining, Prepared, Recovered
from bedrockish.core.recovery.recovery import RecoveryRound
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.commit_window import NEVER
from bedrockish.core.state.settings import Settings
from bedrockish.errors import LearnerError, UnavailableError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import pack
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Member, Membership, UserSaid, pack_membership
from bedrockish_journal.model.transaction import MEMBERS, ROWS, Transaction, Txid, decode_transaction
from bedrockish_journal.model.vector import Vector

WALL = 1_700_000_000_000
CLOCK = pack(WALL)


def membership(version: int, voters: Iterable[str], learners: Iterable[str] = ()) -> Membership:
    roles = {**dict.fromkeys(voters, True), **dict.fromkeys(learners, False)}
    return Membership(version, {node: Member(node, f"{node}:1", voter) for node, voter in roles.items()})


def transaction(
    leader: str, number: int, config: int = 0, change: Membership | None = None, base: Vector | None = None
) -> Transaction:
    kind = ROWS if change is None else MEMBERS
    written = AccessSet(write_points=frozenset({b"t:x\0" + str(number).encode()}))
    command = f"{leader}-{number}"
    access_set = claim(written if change is None else AccessSet(), (command,), kind, CLOCK + number)
    changes = b"" if change is None else pack_membership(change)
    txid = Txid(CLOCK + number, leader)
    return Transaction(txid, base or {}, CLOCK - 1, 0, config, command, "serializable", kind, access_set, changes, b"")


def commit(made: Transaction) -> Commit:
    entry = Entry(made.txid.leader, 1, {made.txid.leader: 1}, made, None, GENESIS)
    return Commit(entry.label, made.body, entry.hash, made.txid.clock)


class One:
    """The node B alone; the test plays all other nodes."""

    def __init__(self, members: Membership, joining: Joining | None = None, lost: str = "") -> None:
        recovered = Recovered("B", "store of B", members, joining=joining, lost=lost)
        self.node = Node(recovered, Settings(ask_rest_ms=0), lambda: 0.5, Now(0.0, WALL))
        self.node.start(Now(0.0, WALL))
        for peer in self.node.state.roster.peers:  # it follows its wall clock only when it knows some of the others'
            self.hear(peer, Gossip({}, 0, 0, 1, f"store of {peer}", 1, WALL))

    def step(self, event: Event) -> list[Effect]:
        return self.node.step(event, Now(0.01, WALL + 10))

    def hear(self, peer: str, message: Message) -> list[Message]:
        """Return the answers to that peer."""
        effects = self.step(Received(peer, message))
        return [effect.message for effect in effects if isinstance(effect, Send) and effect.peer == peer]

    def wait(self, until_s: float, peer: str = "") -> list[Message]:
        """Let time pass; return the messages to that peer."""
        effects = self.node.step(Woken(), Now(until_s, WALL + int(1000 * until_s)))
        return [effect.message for effect in effects if isinstance(effect, Send) and effect.peer == peer]

    def ask(self) -> UnavailableError | None:
        effects = self.step(Submitted(1, Request("c", ())))
        replies = [effect.answer for effect in effects if isinstance(effect, Reply)]
        assert all(isinstance(reply, UnavailableError) for reply in replies)
        return replies[0] if replies else None  # type: ignore[return-value]


def rejections(said: list[Message]) -> list[int]:
    return [message.reason for message in said if isinstance(message, Reject)]


def test_pending_transaction_of_the_old_membership_ends_with_the_change() -> None:
    """The transaction can never commit any more, and every question about it gets that answer, even if it arrives
    later.
    """
    one = One(membership(0, "ABC"))
    old, late = transaction("A", 1), transaction("A", 2)
    assert any(isinstance(message, Approve) for message in one.hear("A", Begin(old.body)))
    one.hear("C", commit(transaction("C", 3, change=membership(1, "ABC", "D"))))
    assert old.txid not in one.node.state.votes.pending
    for begun in (old, late):
        said = one.hear("A", Begin(begun.body))
        assert [(message.txid, message.commit) for message in said if isinstance(message, Outcome)] == [
            (begun.txid, False)
        ]
    new = transaction("A", 4, config=1, base={"C": 1})
    assert any(isinstance(message, Approve) for message in one.hear("A", Begin(new.body)))


def test_membership_change_sets_links_and_quorums() -> None:
    """The driver gets the change at once, and quorums are those of the new voters."""
    one = One(membership(0, "ABC"))
    effects = one.step(Received("A", commit(transaction("A", 1, change=membership(1, "ABCD")))))
    assert [effect.membership.nodes for effect in effects if isinstance(effect, SetMembers)] == [["A", "B", "C", "D"]]
    assert one.node.state.roster.quorum == 3
    assert set(one.node.state.roster.peers) == {"A", "C", "D"}


def test_learner_does_not_vote_and_removed_node_reports_its_removal() -> None:
    """A demoted node rejects transactions; a removed one sends its clients to other nodes."""
    one = One(membership(0, "ABC"))
    one.hear("A", commit(transaction("A", 1, change=membership(1, "AC", "B"))))
    assert rejections(one.hear("C", Begin(transaction("C", 2, config=1).body))) == [Reason.MEMBERS]
    assert one.ask() is None  # the read is executed: a learner answers reads
    one.hear("C", commit(transaction("C", 3, config=1, change=membership(2, "AC"))))
    refused = one.ask()
    assert refused is not None
    assert "no longer a member" in refused.message


def asked_before_two_voters_left(one: One, event: Event) -> list[Effect]:
    """Let B ask about a read. A, D and E have approved a commit that B and C lack, and C reports that. Then D and E
    leave.

    C's answer arrives last; return its effects. B and C are a majority of the remaining voters.
    """
    effects = one.step(event)
    (number,) = {effect.message.read for effect in effects if isinstance(effect, Send) and effect.peer == "C"}  # type: ignore[union-attr]
    one.hear("A", commit(transaction("A", 1)))
    one.hear("D", commit(transaction("D", 2, change=membership(1, "ABCE"), base={"A": 1})))
    one.hear("E", commit(transaction("E", 3, config=1, change=membership(2, "ABC"), base={"A": 1, "D": 1})))
    return one.step(Received("C", Checked(number, (), CLOCK)))


def test_strict_read_is_executed_again_if_voters_leave_while_it_is_checked() -> None:
    one = One(membership(0, "ABCDE"))
    read = Prepared({}, 0, True, ROWS, AccessSet(read_points=frozenset({b"t:x\0001"})), b"", b"")
    one.step(Submitted(1, Request("r", (), STRICT)))
    effects = asked_before_two_voters_left(one, Executed(1, read))
    assert not [effect for effect in effects if isinstance(effect, Reply)]
    effects = one.node.step(Woken(), Now(0.5, WALL + 500))
    assert [effect.request_id for effect in effects if isinstance(effect, Execute)] == [1]


def test_question_about_every_key_has_no_answer_if_voters_leave_while_it_is_asked() -> None:
    one = One(membership(0, "ABCDE"))
    for peer in "ACDE":
        one.step(PeerUp(peer))
    effects = asked_before_two_voters_left(one, NewerAsked(1, {}))
    assert [effect for effect in effects if isinstance(effect, NewerAnswered)] == [NewerAnswered(1, may_exist=True)]


def test_amnesiac_voter_sends_no_message_that_counts() -> None:
    """The voter's votes, read answers and clocks do not count; but its clock advances, and it reports known ends."""
    one = One(membership(0, "ABC"), lost="its file is an older one")
    before = transaction("A", 1)
    body = cbor2.dumps(AccessSet(read_points=frozenset({b"t:x\0001"})).pack())
    said = [
        *one.hear("A", Begin(before.body)),
        *one.hear("A", Rollback(before.txid, CLOCK + 1)),
        *one.hear("A", Recover(transaction("C", 2).body, 4, CLOCK)),
        *one.hear("A", Accept(transaction("C", 2).body, 4, True, CLOCK)),
        *one.hear("A", Check(1, {}, body, CLOCK)),
        *one.hear("A", AskClock(1, CLOCK + 50)),
    ]
    assert {type(message) for message in said} <= {Reject}
    assert one.node.state.clock.value >= CLOCK + 50
    voter = One(membership(0, "ABC"))
    assert [type(each) for each in voter.hear("A", Check(1, {}, body, CLOCK))] == [Checked]
    assert [type(each) for each in voter.hear("A", AskClock(1, CLOCK + 50))] == [ToldClock]


def test_a_learner_answers_a_write_with_the_voters() -> None:
    """The learner answers so at once and each time, also for an id in flight at a voter: it keeps no state of the
    command.
    """
    one = One(membership(0, "AC", "B"))
    one.step(PeerUp("C"))
    written = Prepared({}, 0, False, ROWS, AccessSet(write_points=frozenset({b"t:x\0001"})), b"", b"")
    for request_id in (1, 2):
        one.step(Submitted(request_id, Request("the same id", ())))
        effects = one.step(Executed(request_id, written))
        assert not [effect for effect in effects if isinstance(effect, Send | Persist)]
        (refused,) = [effect.answer for effect in effects if isinstance(effect, Reply)]
        assert isinstance(refused, LearnerError)
        assert list(refused.details["voters"]) == ["C", "A"]  # C can be reached


def test_gap_of_a_removed_node_is_dropped_until_a_peer_reports_the_entry() -> None:
    """A session may have seen the commit at the removed node alone; a node that reports it is still asked for it."""
    one = One(membership(0, "ABC"))
    one.step(Submitted(1, Request("c", (), token=Token({"A": 1}, CLOCK + 1))))
    one.wait(1.0)
    assert set(one.node.apply_queue.gaps) == {"A"}  # A may return, and has the commit then
    one.hear("C", commit(transaction("C", 2, change=membership(1, "BC"))))
    one.wait(2.0)
    assert not one.node.apply_queue.gaps
    one.step(PeerUp("C"))
    one.hear("C", Gossip({"A": 1, "C": 1}, 0, 0, CLOCK + 3, "store of C", 1, WALL))
    assert Fetch({"A": 1}, one.node.state.settings.fetch_bytes) in one.wait(3.0, "C")


def test_transaction_of_a_newer_membership_waits_for_that_membership() -> None:
    """A new voter that does not know its promotion yet must not refuse a transaction."""
    one = One(membership(0, "AC", "B"))
    promotion = transaction("A", 1, change=membership(1, "ABC"))
    first = transaction("A", 2, config=1, base={"A": 1})
    assert one.hear("A", Begin(first.body)) == []
    assert any(isinstance(message, Approve) for message in one.hear("A", commit(promotion)))


def test_node_accused_of_amnesia_neither_votes_nor_leads_until_cleared() -> None:
    """The accusation stands until the accusing peer accepts a link again."""
    one = One(membership(0, "ABC"))
    one.step(Accused("A", "another file"))
    assert rejections(one.hear("C", Begin(transaction("C", 1).body))) == [Reason.MEMBERS]
    refused = one.ask()
    assert refused is not None
    assert refused.message == "another file"
    one.step(PeerUp("A"))
    assert any(isinstance(message, Approve) for message in one.hear("C", Begin(transaction("C", 1).body)))


def test_demoted_voter_drops_its_recovery_when_safe_time_decides() -> None:
    """The transaction is not pending at the demoted node, so the change ends nothing there, and no outcome arrives."""
    one = One(membership(0, "ABC"))
    orphan = transaction("A", 1)
    one.hear("C", commit(transaction("C", 2, change=membership(1, "AC", "B"))))
    one.node.recovery.start(orphan)
    assert not one.node.recovery.rounds
    one.node.recovery.rounds[orphan.txid] = RecoveryRound(orphan, 4, 0.0)
    for peer in "AC":
        told = Gossip({"C": 1}, CLOCK + 9, CLOCK + 9, CLOCK + 9, f"store of {peer}", 1, WALL, config=1)
        one.hear(peer, told)
    one.wait(0.5)
    assert one.node.state.clock.safe >= orphan.txid.clock
    assert not one.node.recovery.rounds


def test_an_accusation_ends_when_the_accuser_is_removed() -> None:
    """The accuser may have missed a membership change, and can no longer withdraw the accusation."""
    one = One(membership(0, "ABCD"))
    one.step(Accused("D", "another file"))
    assert rejections(one.hear("C", Begin(transaction("C", 2).body))) == [Reason.MEMBERS]
    one.hear("A", commit(transaction("A", 1, change=membership(1, "ABC"))))
    begin = Begin(transaction("C", 3, config=1, base={"A": 1}).body)
    assert any(isinstance(message, Approve) for message in one.hear("C", begin))
    one.step(Accused("D", "another file"))  # sent before D knew of its removal
    assert not one.node.state.roster.barred


def test_removed_voter_is_not_admitted_any_more() -> None:
    """A file that has seen nothing of this node may come under the removed voter's name."""
    one = One(membership(0, "ABCD"))
    assert one.node.state.roster.admitted_by == set("ABCD")
    one.hear("A", commit(transaction("A", 1, change=membership(1, "ABC"))))
    assert one.node.state.roster.admitted_by == set("ABC")


def test_times_of_a_gossip_count_though_its_reservation_cannot_be_read() -> None:
    one = One(membership(0, "ABC"))
    gossip = Gossip({}, CLOCK - 5, CLOCK - 5, CLOCK, "store of A", 1, WALL, reserved=(CLOCK, 100, b"no access set"))
    effects = one.step(Received("A", gossip))
    assert [effect.peer for effect in effects if isinstance(effect, Malformed)] == ["A"]
    assert one.node.state.roster.peers["A"].closed == CLOCK - 5


def test_reports_of_a_learners_former_file_do_not_count() -> None:
    """With the vector of its old file, it would seem to have caught up."""
    before = Membership(0, {**membership(0, "AB").members, "L": Member("L", "L:1", False, "one")})
    one = One(before)
    one.hear("L", Gossip({"A": 0}, 5, 5, CLOCK, "one", 1, WALL, config=0))
    assert one.node.state.roster.peers["L"].report is not None or one.node.state.roster.peers["L"].closed == 5
    after = Membership(1, {**before.members, "L": Member("L", "L:2", False, "two")})
    one.hear("A", commit(transaction("A", 1, change=after)))
    peer = one.node.state.roster.peers["L"]
    assert (peer.closed, peer.report, peer.up) == (0, None, False)


def test_node_with_an_older_file_never_votes_again() -> None:
    """The file records the accusation, so neither a new link from the accusing peer nor a restart removes it."""
    one = One(membership(0, "ABC"))
    effects = one.step(Accused("A", "an older file", for_good=True))
    assert [effect for effect in effects if isinstance(effect, Keep)] == [Keep("lost", "an older file")]
    assert not any(isinstance(effect, Keep) for effect in one.step(Accused("C", "older", for_good=True)))
    for peer in "AC":
        one.step(PeerUp(peer))
    for again in (one, One(membership(0, "ABC"), lost="an older file")):
        assert rejections(again.hear("C", Begin(transaction("C", 1).body))) == [Reason.MEMBERS]
        assert again.hear("A", Recover(transaction("C", 2).body, 4, CLOCK)) == []
        refused = again.ask()
        assert refused is not None
        assert refused.message == "an older file"


def test_node_that_lacks_commits_of_its_own_never_votes_again() -> None:
    """Only this node writes its timeline, and a commit is in its file before another node gets it."""
    one = One(membership(0, "ABC"))
    effects = one.step(Received("C", Gossip({"B": 3}, 0, 0, CLOCK, "store of C", 1, WALL)))
    assert [effect.name for effect in effects if isinstance(effect, Keep) and effect.name == "lost"] == ["lost"]
    one.hear("A", Gossip({"B": 3}, 0, 0, CLOCK, "store of A", 1, WALL))
    assert rejections(one.hear("C", Begin(transaction("C", 1).body))) == [Reason.MEMBERS]
    one.step(PeerUp("A"))
    refused = one.ask()
    assert refused is not None
    assert "member replace" in refused.message


def test_new_node_uses_its_sponsors_membership_until_it_caught_up() -> None:
    """The new node's own file has the first membership. After it has caught up, it is a member like any other."""
    told = Joining(membership(1, "AC", "B"), {"A": 1})
    one = One(membership(0, "A"), told)
    assert set(one.node.state.roster.peers) == {"A", "C"}
    refused = one.ask()
    assert refused is not None
    assert "catching up" in refused.message
    one.hear("C", commit(transaction("A", 1, change=told.membership)))
    assert one.node.state.roster.joining is None
    assert one.ask() is None


def test_safe_time_ignores_closed_of_an_amnesiac_voter() -> None:
    """A voter that does not know its promises cannot say that none of them is left."""
    one = One(membership(0, "ABC"))
    one.node.state.clock.closed = one.node.state.clock.cut = CLOCK

    def told() -> list[Gossip]:
        effects = one.step(PeerUp("A"))
        return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Gossip)]

    assert [(gossip.closed, gossip.cut) for gossip in told()] == [(CLOCK, CLOCK)]
    one.hear("A", Gossip({}, CLOCK, CLOCK, CLOCK, "store of A", 1, WALL))
    one.step(Accused("C", "another file"))
    assert [(gossip.closed, gossip.cut) for gossip in told()] == [(0, 0)]
    one.node.safe_time.advance()
    assert one.node.state.clock.safe == 0  # only A has cut that far, and A is not a majority


def restarted(name: str, voters: str = "ABCDE") -> Node:
    recovered = Recovered(name, f"store of {name}", membership(0, voters), cut=CLOCK)
    return Node(recovered, Settings(), lambda: 0.5, Now(0.0, WALL))


def test_restarted_node_closes_nothing_until_a_majority_accepts_it() -> None:
    """The node's file may come from a backup, and the peers that know it have not connected yet. A refusing peer does
    not count.
    """
    node = restarted("B")
    node.start(Now(0.0, WALL))

    def told() -> set[tuple[int, int]]:
        effects = node.step(PeerUp("A"), Now(0.01, WALL + 10))
        said = [effect.message for effect in effects if isinstance(effect, Send)]
        return {(gossip.closed, gossip.cut) for gossip in said if isinstance(gossip, Gossip)}

    for peer in "AA":
        node.step(Received(peer, Gossip({}, CLOCK, CLOCK, 1, f"store of {peer}", 1, WALL)), Now(0.01, WALL + 10))
        assert told() == {(0, 0)}
    node.step(Received("C", Gossip({}, CLOCK, CLOCK, 1, "store of C", 1, WALL)), Now(0.01, WALL + 10))
    assert told() == {(CLOCK, CLOCK)}
    node.safe_time.advance()
    assert node.state.clock.safe == CLOCK, "its own word counts, too"
    assert restarted("B", "B").state.roster.claims_time


def test_a_cluster_that_starts_again_as_a_whole_closes_time() -> None:
    """Some nodes may stay down: a connected majority is enough."""
    nodes = {name: restarted(name) for name in "ABC"}
    for beat in range(1, 40):
        now = Now(0.1 * beat, WALL + 100 * beat)
        said = [(name, node.start(now) if beat == 1 else node.step(Woken(), now)) for name, node in nodes.items()]
        while said:
            name, effects = said.pop(0)
            for effect in effects:
                if isinstance(effect, Send) and effect.peer in nodes:
                    said.append((effect.peer, nodes[effect.peer].step(Received(name, effect.message), now)))
    assert all(node.state.clock.safe > pack(WALL + 1_000) for node in nodes.values())


def test_amnesiac_node_withdraws_its_closed_time() -> None:
    """The node had reported it before it was accused. Results that depend on it stay, but no further ones follow."""
    one = One(membership(0, "ABC"))
    one.hear("A", Gossip({}, CLOCK, CLOCK, CLOCK, "store of A", 1, WALL))
    assert one.node.state.roster.peers["A"].closed == CLOCK
    one.hear("A", Gossip({}, 0, 0, CLOCK, "store of A", 1, WALL))
    assert (one.node.state.roster.peers["A"].closed, one.node.state.roster.peers["A"].cut) == (0, 0)


@pytest.mark.parametrize(
    ("needed", "checked", "goes_on"),
    [(0, 0, True), (0, KEEPS_BASE, False), (3, 2, False), (3, 3, True), (NEVER, 7, False)],
)
def test_transaction_moves_past_a_user_change_only_if_its_rights_were_checked_after_it(
    needed: int, checked: int, goes_on: bool
) -> None:
    one = One(membership(0, "ABC"))
    state, change = one.node.state, Txid(7, "B")
    state.commit_window.add(
        ("B", 1),
        Transaction(
            change, {}, 0, 0, 0, "m", "serializable", MEMBERS, claim(AccessSet(), ("m",), MEMBERS, 7), b"", b""
        ),
    )
    wants = AccessSet(read_points=frozenset({b"t:x"}))
    state.commit_window.note_member_change(change, needed)
    error = overtaken(state, wants, {}, config=checked)
    assert (error is None) is goes_on
    if error is not None:
        assert "has changed the members or users of the cluster since" in error.message


def test_open_transaction_goes_back_to_the_node_if_users_change_after_its_check() -> None:
    """An execution is not proposed if its rights were checked by an older membership than the applied one."""
    one = One(membership(1, "ABC"))
    one.node.state.clock.safe = CLOCK - 1
    changed = replace(membership(2, "ABC"), users={"ann": UserSaid("", 1, 1)})
    one.step(Submitted(1, Request("open", ()), once=True))
    one.hear("A", commit(transaction("A", 3, config=1, change=changed)))
    written = AccessSet(write_points=frozenset({b"t:z\0"}))
    by_old, by_new = (Prepared({}, 0, False, ROWS, written, b"", b"", config=config) for config in (1, 2))
    assert [type(effect) for effect in one.step(Executed(1, by_old))] == [Execute]
    (begun,) = {effect.message for effect in one.step(Executed(1, by_new)) if isinstance(effect, Send)}
    assert isinstance(begun, Begin)
    assert decode_transaction(begun.body).base == {"A": 1}


def test_change_of_users_needs_a_check_of_rights() -> None:
    one = One(replace(membership(0, "ABC"), users={"ann": UserSaid("", 1, 1)}))
    change = transaction("A", 3, change=membership(1, "ABC"))
    one.hear("A", commit(change))
    assert one.node.state.commit_window.member_changes == {change.txid: 1}


@pytest.mark.parametrize(
    ("old", "needed"),
    [(membership(0, "ABC"), 0), (membership(0, "ABCD"), 0), (replace(membership(0, "ABC"), level=LEVEL - 1), NEVER)],
)
def test_new_release_level_needs_another_execution_and_new_members_do_not(old: Membership, needed: int) -> None:
    one = One(old)
    change = transaction("A", 3, change=membership(1, "ABC"))
    one.hear("A", commit(change))
    assert one.node.state.commit_window.member_changes == {change.txid: needed}
