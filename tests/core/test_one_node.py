"""Single rules of a node that receives a message; each test fails without its rule."""

from dataclasses import replace
from typing import Any

import pytest

from bedrockish.api.requests import ADD, PROMOTE, Answer, MemberChange, Request, Statement
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.coordinator.revalidation import lost, move
from bedrockish.core.coordinator.schema_barrier import activation_clock
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Apply, Halt, Malformed, Reply, Send
from bedrockish.core.protocol.events import Executed, Now, PeerUp, Received, Submitted
from bedrockish.core.protocol.messages import (
    Accept,
    Accepted,
    Approve,
    Begin,
    Check,
    Commit,
    Entries,
    Fetch,
    Gossip,
    Outcome,
    Promise,
    Reason,
    Recover,
    Refused,
    Rollback,
    Standing,
)
from bedrockish.core.protocol.records import Joining, Prepared, Recovered, Vote
from bedrockish.core.state.certifier import claim
from bedrockish.core.state.file_lookups import FileLookups
from bedrockish.core.state.membership import BEHIND_MAX, MembershipFacts, change_members
from bedrockish.core.state.settings import Settings
from bedrockish.errors import ConflictError, MembershipError
from bedrockish_journal.model.access_set import LAST_CLOCK, AccessSet, clock_key
from bedrockish_journal.model.changes import encode_statements
from bedrockish_journal.model.clock import milliseconds, moved, pack
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import ROWS, SCHEMA, Transaction, Txid
from tests.core.net import Net, add
from tests.core.test_ballots import begin, hear, state
from tests.core.test_health import NOTHING_READ
from tests.core.test_member_changes import CLOCK, WALL, One, commit, membership, rejections, transaction

ABC = membership(0, "ABC")


def but(made: Transaction, **changes: Any) -> Transaction:
    """Return another transaction with some of a transaction's fields changed, in its bytes as well."""
    return replace(made, body=b"", **changes)


# -- votes ---------------------------------------------------------------------------------------------------------


def test_begin_carries_no_rollback_of_another_leader() -> None:
    """Only the leader of a transaction can give it up."""
    for message in (Begin, lambda body: Recover(body, 2, CLOCK)):
        one = One(ABC)
        theirs = transaction("C", 1)
        one.hear("C", Begin(theirs.body))
        assert theirs.txid in one.node.state.votes.pending
        one.hear("A", message(but(transaction("A", 2), rollbacks=(theirs.txid,)).body))
        assert theirs.txid in one.node.state.votes.pending


def test_voter_accepts_the_rollbacks_in_a_recover() -> None:
    """Otherwise the earlier attempt would block the recovered one, and no leader would end the earlier attempt."""
    one = One(ABC)
    first = transaction("A", 1)
    one.hear("A", Begin(first.body))
    one.hear("C", Recover(but(transaction("A", 2), rollbacks=(first.txid,)).body, 2, CLOCK))
    assert first.txid not in one.node.state.votes.pending


def test_begin_of_an_older_membership_is_ended() -> None:
    """The transaction is not in the base of the change, so it can never commit, and its leader gets this outcome."""
    one = One(membership(1, "ABC"))
    said = one.hear("A", Begin(transaction("A", 1, config=0).body))
    assert [type(message) for message in said] == [Outcome]


def test_approval_of_a_learner_does_not_count() -> None:
    """A learner's messages do not count as votes."""
    net = Net("ABC", "L")
    txid = begin(net, approvers="")
    net.play("A", "receive", "L", Approve(txid, 0, 0))
    assert txid not in state(net, "A").votes.outcomes
    net.play("A", "receive", "C", Approve(txid, 0, 0))
    assert state(net, "A").votes.outcomes[txid]


def test_leader_does_not_begin_against_its_own_pending_conflict() -> None:
    """Otherwise both transactions would have this node's approval."""
    net = Net("ABC")
    first = begin(net, approvers="")
    net.ask("A", add("Q", "x"))
    assert list(net.places["A"].core.coordinator.attempts.open) == [first]


def test_begin_with_a_clock_far_ahead_is_rejected() -> None:
    """The node does not follow it either, because the clock of the cluster never goes back."""
    one = One(ABC)
    made = transaction("A", 1)
    ahead = but(made, txid=Txid(pack(WALL + 3_600_000), "A"))
    assert rejections(one.hear("A", Begin(ahead.body))) == [Reason.AHEAD]
    assert one.node.state.clock.value < ahead.txid.clock


# -- recoveries ----------------------------------------------------------------------------------------------------


def test_acceptance_implies_a_promise() -> None:
    """Accepting at a ballot is a promise to accept nothing lower."""
    one = One(ABC)
    made = transaction("A", 1)
    assert [type(message) for message in one.hear("C", Accept(made.body, 5, True, CLOCK))] == [Accepted]
    assert [type(message) for message in one.hear("A", Recover(made.body, 3, CLOCK))] == [Refused]


def test_approval_is_kept_when_its_rows_are_damaged_later() -> None:
    """The approval has been counted, so later damage to the rows does not withdraw it."""
    made = transaction("A", 1)
    recovered = Recovered("B", "b", ABC, votes=(Vote(made.txid, made, held=True),))
    node = Node(
        recovered,
        Settings(),
        lambda: 0.5,
        Now(0.0, WALL),
        lookups=FileLookups(compare_rows=lambda _: "another row is here"),
    )
    node.start(Now(0.0, WALL))
    effects = node.step(Received("C", Recover(made.body, 3, CLOCK)), Now(0.1, WALL))
    (promise,) = [one.message for one in effects if hasattr(one, "message") and isinstance(one.message, Promise)]
    assert promise.standing == Standing.HELD


def test_restarted_leader_does_not_give_up_a_promised_transaction() -> None:
    """The recovery has the leader's promise: a later rollback could count as a vote."""
    net = Net("ABC")
    txid = begin(net)
    net.play("B", "suspect", txid)
    hear(net, "B", "A", Recover)
    net.said.clear()
    net.play("A", "reboot", 0)
    assert not [message for name, _, message in net.said if name == "A" and isinstance(message, Rollback)]


def test_voter_rejects_snapshots_older_than_the_conflict_window() -> None:
    """The voter no longer has the commits that the snapshot lacks, and cannot compare them."""
    one = One(ABC)
    window_ms = one.node.state.settings.conflict_window_ms
    made = transaction("A", 1)
    old = but(made, safe=moved(made.txid.clock - 1, -window_ms))
    assert rejections(one.hear("A", Begin(old.body))) == [Reason.TOO_OLD]
    young = but(transaction("A", 2), safe=moved(CLOCK + 2, -window_ms))
    assert rejections(one.hear("A", Begin(young.body))) == []


def test_leader_does_not_begin_on_snapshots_older_than_the_conflict_window() -> None:
    """A node that just started waits for its safe time, or every voter would refuse it."""
    one = One(ABC)
    written = Prepared({}, 0, False, ROWS, AccessSet(write_points=frozenset({b"t:x\0001"})), b"", b"")
    assert one.node.state.clock.safe == 0
    one.step(Submitted(1, Request("c", (Statement("INSERT"),))))
    begun = one.step(Executed(1, written))
    assert not [effect for effect in begun if isinstance(effect, Send) and isinstance(effect.message, Begin)]
    one.node.state.clock.safe = CLOCK
    one.wait(1.0)
    begun = one.step(Executed(1, written))
    assert [effect for effect in begun if isinstance(effect, Send) and isinstance(effect.message, Begin)]


# -- the order of things -------------------------------------------------------------------------------------------


def test_commit_with_another_hash_is_refused() -> None:
    """The sender's timeline differs from the one here, so the node ends the link."""
    one = One(ABC)
    good = commit(transaction("A", 1))
    effects = one.step(Received("A", Commit(good.label, good.body, bytes(32), good.clock)))
    assert [type(effect) for effect in effects if isinstance(effect, Malformed)] == [Malformed]
    assert one.node.state.timelines.taken.get("A", 0) == 0
    one.hear("A", good)
    assert one.node.state.timelines.taken["A"] == 1


def test_fetched_entry_that_does_not_continue_the_timeline_is_refused() -> None:
    """The peer that sent the entry has another version of the timeline."""
    one = One(ABC)
    good = commit(transaction("A", 1))
    assert good.body is not None
    effects = one.step(Received("C", Entries(((b"x" * 32, good.label, good.body),), CLOCK)))
    assert [type(effect) for effect in effects if isinstance(effect, Malformed)] == [Malformed]
    assert one.node.state.timelines.taken.get("A", 0) == 0


def test_missing_entries_are_requested_before_received_ones_are_applied() -> None:
    """The sender reads the next entries ahead, so a node that is far behind does not wait for each piece."""
    one = One(ABC)
    one.step(PeerUp("C"))
    good = commit(transaction("A", 1))
    assert good.body is not None
    one.hear("C", Gossip({"A": 300}, 0, 0, 1, "store of C", 1, WALL))
    one.wait(2.0)
    effects = one.step(Received("C", Entries(((GENESIS, good.label, good.body),), CLOCK)))
    of_both = [effect.message if isinstance(effect, Send) else type(effect) for effect in effects]
    asked, applied = of_both.index(Fetch({"A": 2}, one.node.state.settings.fetch_bytes)), of_both.index(Apply)
    assert asked < applied


def test_commit_of_a_rolled_back_transaction_stops_the_node() -> None:
    """One of the two messages is false, and the node applies nothing after it."""
    one = One(ABC)
    made = transaction("A", 1)
    one.hear("A", Begin(made.body))
    one.hear("C", Outcome(made.txid, False, "", 0, CLOCK))
    effects = one.step(Received("A", commit(made)))
    (halt,) = [effect for effect in effects if isinstance(effect, Halt)]
    assert "rolled back" in halt.reason


def test_taking_a_commit_moves_the_clock() -> None:
    """A transaction that begins here afterwards has a later clock, even if the message itself brought none."""
    one = One(ABC)
    made = transaction("A", 1)
    ahead = but(made, txid=Txid(CLOCK + pack(4_000), "A"))
    entry = Entry("A", 1, {"A": 1}, ahead, None, GENESIS)
    one.hear("A", Commit(entry.label, ahead.body, entry.hash, 0))
    assert one.node.state.clock.value >= ahead.txid.clock


def test_commit_ahead_of_a_gap_is_kept() -> None:
    """The node applies it right after the one before it, and does not request it again."""
    one = One(ABC)
    first, second = transaction("A", 1), transaction("A", 2)
    before = Entry("A", 1, {"A": 1}, first, None, GENESIS)
    after = Entry("A", 2, {"A": 2}, second, None, before.hash)
    one.hear("A", Commit(after.label, second.body, after.hash, CLOCK))
    assert one.node.state.timelines.taken.get("A", 0) == 0
    one.hear("A", Commit(before.label, first.body, before.hash, CLOCK))
    assert one.node.state.timelines.applied["A"] == 2


def test_outcome_of_a_waiting_commit_is_not_forgotten() -> None:
    """Safe time may pass the commit before its cause arrives; until then only the memory has its outcome."""
    one = One(ABC)
    made = transaction("A", 2, base={"C": 1})
    one.hear("A", commit(made))
    one.node.state.clock.safe = made.txid.clock
    one.node.safe_time._forget()
    assert one.node.state.votes.outcomes[made.txid]


def test_joining_node_becomes_a_member_when_it_has_caught_up() -> None:
    """The joining node answers no request before that, because it has less than its sponsors."""
    one = One(ABC, joining=Joining(ABC, {"A": 1}))
    assert one.node.state.roster.joining is not None
    one.hear("A", commit(transaction("A", 1)))
    assert one.node.state.roster.joining is None


def test_restarted_node_sets_the_floor_for_entries_outside_its_window() -> None:
    """The node's file has entries outside the window, which the node cannot compare for conflicts."""
    one = Node(Recovered("B", "b", ABC, applied={"A": 3}), Settings(), lambda: 0.5, Now(0.0, WALL))
    assert one.state.commit_window.floor == {"A": 3}


def test_retired_timeline_is_in_every_base_after_a_restart() -> None:
    """No vector names that timeline any more. A strict read that includes all of it must not be refused for ever."""
    made = transaction("E", 1)
    entry = Entry("E", 1, {"E": 1}, made, None, GENESIS)
    members = replace(membership(3, "ABC"), retired={"E": 3})
    recovered = Recovered("B", "b", members, applied={"E": 1}, heads={"E": entry.hash}, window=(entry,))
    node = Node(recovered, Settings(), lambda: 0.5, Now(0.0, WALL))
    assert not list(node.state.commit_window.conflicts(made.access_set, {}))


# -- clients -------------------------------------------------------------------------------------------------------


def test_client_learns_that_a_command_did_not_happen_after_its_last_attempt() -> None:
    """Another attempt may still commit, and then the client gets the answer of that attempt."""
    net = Net("ABC")
    core = net.places["A"].core
    one, other = transaction("A", 1), transaction("A", 2)
    request_id = InFlight(9, add("P", "x"), 10.0, stage=Stage.ENDING, open={one.txid, other.txid})
    replies = core.coordinator.replies
    replies.in_flight[9] = request_id
    for made, told in ((one, 0), (other, 1)):
        replies.ended(request_id, made, commit=False)
        assert sum(isinstance(effect, Reply) for effect in core.state.outbox.effects) == told


def executed(schema: int = 0) -> Prepared:
    return Prepared({}, schema, False, ROWS, AccessSet(write_points=frozenset({b"t:x\0k"})), b"", b"")


def test_an_open_transaction_ends_with_its_schema() -> None:
    """The transaction has read the old table, and its client knows the result."""
    here = One(ABC).node.state
    assert lost(here, "c", executed()) is None
    assert isinstance(lost(here, "c", executed(schema=1)), ConflictError)


@pytest.mark.parametrize(("sql", "is_gathering"), [("ANALYZE", True), ("CREATE TABLE u(x)", False)])
def test_open_transaction_moves_past_statistics_and_ends_at_definitions(sql: str, is_gathering: bool) -> None:
    """Before the change is in force, the transaction waits for it."""
    one = One(ABC)
    here, made = one.node.state, transaction("A", 1)
    keys = claim(AccessSet(), ("change",), SCHEMA, made.txid.clock, made.txid.clock + 1)
    change = Transaction(
        *(made.txid, {}, CLOCK - 1, 0, 0, "change", "serializable", SCHEMA, keys, encode_statements([sql]), b""),
        activates=made.txid.clock + 1,
    )
    one.hear("A", commit(change))
    assert here.schema.scheduled is not None
    assert here.clock.read() > change.activates
    assert (lost(here, "c", executed()) is None) == is_gathering
    here.activate()
    assert (lost(here, "c", executed()) is None) == is_gathering
    reads_schema = replace(executed(), access_set=AccessSet(frozenset({clock_key(LAST_CLOCK)})), base={"A": 1})
    others = replace(executed(), kind=SCHEMA), replace(executed(), clock=CLOCK), executed(schema=2), reads_schema
    for other in others:
        assert isinstance(lost(here, "c", other), ConflictError)
    inflight = InFlight(1, Request("c", ()), 10.0)
    assert isinstance(move(here, inflight, executed()), ConflictError), "its keys do not show reads of the schema"
    inflight.once = True
    moved_up = move(here, inflight, executed())
    if is_gathering:
        assert isinstance(moved_up, Prepared)
        assert (moved_up.schema, moved_up.base) == (1, {"A": 1})
    else:
        assert isinstance(moved_up, ConflictError)


def test_schema_statement_that_changed_nothing_is_checked_like_a_strict_read() -> None:
    """Another node may have dropped the object for which it found nothing to do."""
    one = One(ABC)
    inflight = InFlight(1, Request("c", (Statement("alter"),)), 10.0)
    found = replace(executed(), readonly=True)
    assert one.node.coordinator._read(inflight, replace(found, kind=SCHEMA)) is Stage.CHECKING
    assert isinstance(one.node.coordinator._read(inflight, found), Answer)


def test_an_open_transaction_does_not_get_older_than_the_window() -> None:
    """The node no longer knows the changes since its snapshot."""
    here = One(ABC).node.state
    here.commit_window.floor["A"] = 1
    assert isinstance(lost(here, "c", executed()), ConflictError)


def test_a_strict_read_on_too_old_a_snapshot_is_not_certified() -> None:
    """A voter that has dropped later commits cannot say that none conflicts."""
    one = One(ABC)
    assert one.hear("A", Check(1, {}, NOTHING_READ, CLOCK))
    one.node.state.commit_window.floor["C"] = 1
    assert not one.hear("A", Check(2, {}, NOTHING_READ, CLOCK))


def test_a_schema_change_is_in_force_after_its_own_clock() -> None:
    """The change itself runs on the schema before it, like all transactions with an earlier clock."""
    here = One(ABC).node.state
    here.settings = replace(here.settings, schema_delay_ms=0)
    change = replace(executed(), kind=SCHEMA)
    assert activation_clock(here, InFlight(1, Request("c", (Statement("alter", ()),)), 1.0), change, CLOCK) > CLOCK


@pytest.mark.parametrize("members", [ABC, membership(0, "A")])
def test_schema_change_with_a_delay_is_in_force_after_the_delay(members: Membership) -> None:
    """The delay is in addition to that of other changes: during it the index is built next to its table."""
    here = One(members).node.state
    change = replace(executed(), kind=SCHEMA, delay_ms=90_000)
    request_id = InFlight(1, Request("c", (Statement("alter", ()),)), 1.0)
    assert milliseconds(activation_clock(here, request_id, change, CLOCK)) - milliseconds(CLOCK) == 90_000


def test_wall_clock_is_followed_only_near_the_others() -> None:
    """Otherwise one wall clock that is hours ahead would move the cluster's clock ahead for ever."""
    one = One(ABC)
    one.node.state.set_now(Now(0.02, WALL + 3_600_000))
    assert one.node.state.clock.followed_ms <= WALL + 20 + one.node.state.settings.clock_offset_ms


def test_learner_follows_its_wall_clock_only_up_to_that_of_the_only_voter() -> None:
    """Otherwise the learner's clients would wait for a clock that the voter reaches only later."""
    one = One(membership(0, "A", "B"))
    one.node.state.set_now(Now(0.02, WALL + 3_600_000))
    assert one.node.state.clock.followed_ms <= WALL + 20 + one.node.state.settings.clock_offset_ms
    alone = One(membership(0, "B", "A"))
    alone.node.state.set_now(Now(0.02, WALL + 3_600_000))
    assert alone.node.state.clock.followed_ms == WALL + 3_600_000, "there is nobody to ask"


# -- members -------------------------------------------------------------------------------------------------------


def refused(change: MemberChange, facts: MembershipFacts) -> str:
    try:
        change_members(membership(0, "ABC", "L"), change, facts)
    except MembershipError as error:
        return str(error.details["reason"])
    return "made"


def test_a_learner_that_is_far_behind_is_not_promoted() -> None:
    """As a voter it would count, and approve nothing before it has caught up."""
    facts = MembershipFacts(alive={*"ABCL"}, behind={"L": BEHIND_MAX + 1})
    assert refused(MemberChange(PROMOTE, "L"), facts) == "behind"


def test_name_of_a_former_leader_is_refused_for_another_file() -> None:
    """A node on another file would give the places of its timeline a second time."""
    facts = MembershipFacts(timelines={"D"})
    change = MemberChange(ADD, "D", "D:1", store="another", level=LEVEL)
    assert refused(change, facts) == "used"
