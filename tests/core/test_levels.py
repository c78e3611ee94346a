"""Two releases in one cluster: which fields each reads of the other's messages, and when the cluster's level rises."""

from dataclasses import MISSING, fields, replace

import cbor2
import pytest

from bedrockish.api.requests import ADD, RAISE, MemberChange
from bedrockish.core.protocol.effects import Halt
from bedrockish.core.protocol.messages import SINCE, WIRE, AskClock, Begin, Gossip, ToldClock, decode, encode
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.state.membership import MembershipFacts, change_members
from bedrockish.errors import MembershipError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import GENESIS, Entry, decode_label
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.levels import LEVEL, OLDEST, UNKNOWN
from bedrockish_journal.model.membership import Member, Membership, pack_membership, read_membership
from bedrockish_journal.model.transaction import VERSION, Transaction, Txid, decode_transaction
from tests.core.test_member_changes import CLOCK, WALL, One, membership

# The fields that each level reads of each kind, in this order. A row is never changed; a release that appends a field,
# or adds a kind, adds a row of its own level.
LEVELS: dict[int, dict[int, str]] = {
    5: {
        1: "body trace",
        2: "txid tick clock",
        3: "txid reason other key clock",
        4: "label body hash clock",
        5: "txid clock",
        6: "body ballot clock",
        7: "txid ballot standing accepted blockers ended clock safe",
        8: "body ballot commit clock",
        9: "txid ballot clock",
        10: "txid promised clock",
        11: "txid commit leader tick clock",
        12: "txid clock more",
        13: "applied closed cut clock store batches wall_ms holds level cluster_id mode config reserved",
        14: "wants limit",
        15: "entries clock",
        16: "read vector access_set clock",
        17: "read others clock",
        20: "number clock",
        21: "number clock",
        22: "upto clock",
        23: "number pieces clock",
        24: "number stored clock",
        25: "pieces",
        26: "digest data",
        27: "parts",
    }
}


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_message_fields_of_each_earlier_level_come_first(level: int) -> None:
    """The fields of the older level come first, in its order; further fields are optional here."""
    for number, text in LEVELS[level].items():
        cls, readers = WIRE[number]
        names = text.split()
        assert [one.name for one in fields(cls)][: len(names)] == names, cls
        assert len(readers) == len(fields(cls))
        for one in fields(cls)[len(names) :]:
            assert (one.default, one.default_factory) != (MISSING, MISSING), f"{cls.__name__}.{one.name}"


def test_message_kinds_unknown_to_the_oldest_level_are_listed_with_their_first_level() -> None:
    assert {cls for number, (cls, _) in WIRE.items() if number not in LEVELS[OLDEST]} == set(SINCE)
    assert max([LEVEL, *SINCE.values()]) == LEVEL == max(LEVELS)


def test_gossip_of_an_older_release_is_read_and_of_a_newer_one_too() -> None:
    said = Gossip({"A": 1}, 2, 3, 4, "store", 5, 6, {}, LEVEL, "id")
    packed = cbor2.loads(encode(said))
    assert decode(cbor2.dumps(packed[:9])) == replace(said, level=OLDEST, cluster_id="")
    assert decode(cbor2.dumps([*packed, "something newer"])) == said
    with pytest.raises(EntryMalformedError, match="a Gossip has 7 fields, this one 6"):
        decode(cbor2.dumps(packed[:7]))


def test_begin_of_an_older_release_or_with_a_malformed_trace_is_read() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for given, read in ((trace, trace), ("", ""), (trace + "x", ""), (trace[:-1], ""), (7, ""), (None, "")):
        assert decode(cbor2.dumps([1, b"body", given])) == Begin(b"body", read)
    assert decode(cbor2.dumps([1, b"body"])) == Begin(b"body")
    assert decode(encode(Begin(b"body", trace))) == Begin(b"body", trace)


def test_no_message_of_a_higher_level_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The assertion stops a part of the core that does not check the level, here and in every test."""
    state = One(membership(0, "ABC")).node.state
    monkeypatch.setitem(SINCE, AskClock, LEVEL + 1)
    state.roster.membership = replace(state.roster.membership, level=LEVEL + 1)
    state.outbox.send("B", AskClock(1, 1))
    state.roster.membership = replace(state.roster.membership, level=LEVEL)
    for send in (lambda said: state.outbox.send("B", said), state.outbox.send_voters, state.outbox.send_all):
        with pytest.raises(AssertionError, match="does not read AskClock"):
            send(AskClock(1, 1))


MEMBERS = Membership(3, {"A": Member("A", "h:1"), "B": Member("B", "h:2", store="s")}, "c0ffee", level=LEVEL)


def test_malformed_membership_is_refused() -> None:
    version, members, *_ = cbor2.loads(pack_membership(MEMBERS))
    assert (version, members) == (3, {"A": ["h:1", True, ""], "B": ["h:2", True, "s"]})
    assert read_membership(pack_membership(MEMBERS)) == MEMBERS
    assert read_membership(pack_membership(MEMBERS)).voters == ["A", "B"]
    for nonsense in ([], ["id"], [7, 2], ["id", "2"], ["id", 0]):
        with pytest.raises(EntryMalformedError):
            read_membership(cbor2.dumps([3, members, *nonsense]))


def facts(**levels: int) -> MembershipFacts:
    return MembershipFacts(frozenset("AB"), {"A": 0, "B": 0}, frozenset("AB"), {"A": "a"}, levels)


def test_level_is_raised_when_all_members_support_it() -> None:
    """The raise also binds the members to their files, like every membership change."""
    raised = change_members(MEMBERS, MemberChange(RAISE, "A"), facts(A=LEVEL + 1, B=LEVEL + 2))
    assert (raised.level, raised.cluster_id, raised.version) == (LEVEL + 1, "c0ffee", 4)
    assert {one.store for one in raised.members.values()} == {"a", "s"}
    again = change_members(raised, MemberChange(RAISE, "A"), facts(A=LEVEL + 4, B=LEVEL + 3))
    assert again.level == LEVEL + 3


@pytest.mark.parametrize(
    ("levels", "why"),
    [
        ({"A": LEVEL + 1}, "B has reported no release level yet"),
        ({"A": LEVEL + 1, "B": UNKNOWN}, "B has reported no release level yet"),
        ({"A": LEVEL + 1, "B": LEVEL}, f"the release level is {LEVEL}, and B supports no higher one"),
    ],
)
def test_level_is_not_raised_above_that_of_a_member(levels: dict[str, int], why: str) -> None:
    with pytest.raises(MembershipError, match=why):
        change_members(MEMBERS, MemberChange(RAISE, "A"), facts(**levels))


def test_node_of_an_older_release_is_not_added() -> None:
    told = facts(A=LEVEL, B=LEVEL)
    with pytest.raises(MembershipError, match="install the release of its members on C"):
        change_members(MEMBERS, MemberChange(ADD, "C", "h:3", level=LEVEL - 1), told)
    assert "C" in change_members(MEMBERS, MemberChange(ADD, "C", "h:3", level=LEVEL), told).members


def test_members_report_their_levels_in_gossip() -> None:
    """The cluster's level is the lowest that any member has reported; a silent member keeps the level unchanged."""
    one = One(membership(0, "ABC"))
    for known in one.node.state.roster.peers.values():
        known.level = UNKNOWN
    assert one.node.state.roster.level_of_all == UNKNOWN
    for peer in one.node.state.roster.peers:
        one.hear(peer, Gossip({}, 0, 0, CLOCK, f"store of {peer}", 1, WALL, level=LEVEL + 5))
    assert one.node.state.roster.level_of_all == LEVEL
    one.hear(peer, Gossip({}, 0, 0, CLOCK, f"store of {peer}", 1, WALL))
    assert one.node.state.roster.level_of_all == OLDEST


def test_node_stops_before_it_applies_a_level_above_that_of_its_program() -> None:
    state = One(membership(0, "ABC")).node.state
    before = state.roster.membership
    apply_queue = ApplyQueue(state)
    apply_queue._change_members(("B", 1), Txid(9, "B"), replace(before, version=9, level=LEVEL + 1))
    assert isinstance(state.outbox.effects[-1], Halt)
    assert "install the release of the other members" in state.outbox.effects[-1].reason
    assert state.roster.membership is before


def test_a_transaction_of_a_higher_version_is_refused() -> None:
    """An unknown field may change the meaning of a transaction, and a node must not apply a part of one."""
    one = Transaction(Txid(5, "A"), {}, 0, 0, 0, "one", "serializable", "rows", AccessSet(), b"\x80", b"\x80")
    packed = cbor2.loads(one.body)
    assert decode_transaction(cbor2.dumps(packed)) == one
    with pytest.raises(EntryMalformedError, match=f"has version {VERSION + 1}"):
        decode_transaction(cbor2.dumps([VERSION + 1, *packed[1:], 0, [], "newer"]))
    label = cbor2.loads(Entry("A", 1, {"A": 1}, one, None, GENESIS).label)
    assert decode_label(cbor2.dumps([*label, "appended"])).tick == 1
    with pytest.raises(EntryMalformedError, match="this entry has version 2"):
        decode_label(cbor2.dumps([2, *label[1:]]))


def test_node_answers_at_the_highest_level_it_has_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The raise may arrive after messages that need it: their sender has applied it, so all members can read the
    answer.
    """
    one = One(membership(0, "ABC"))
    state = one.node.state
    monkeypatch.setitem(SINCE, AskClock, LEVEL + 1)
    monkeypatch.setitem(SINCE, ToldClock, LEVEL + 1)
    one.hear("C", Gossip({}, 0, 0, CLOCK, "store of C", 1, WALL))
    assert state.roster.level == LEVEL
    assert any(isinstance(said, ToldClock) for said in one.hear("C", AskClock(1, CLOCK)))
    assert (state.roster.level, state.roster.membership.level) == (LEVEL + 1, LEVEL)
