"""Two releases in one cluster: which fields each reads of the other's messages, and when the cluster's level rises."""

from dataclasses import MISSING, fields, replace

import cbor2
import pytest

from bedrockish.api.requests import ADD, RAISE, MemberChange, Request, Statement
from bedrockish.api.wire import Execute, Failed, decode_reply, encode_call
from bedrockish.common.levels import LEVEL, UNKNOWN
from bedrockish.core.protocol.effects import Halt
from bedrockish.core.protocol.messages import (
    SINCE,
    WIRE,
    AskClock,
    Begin,
    Forward,
    Forwarded,
    Gossip,
    ToldClock,
    decode,
    encode,
)
from bedrockish.core.protocol.records import Member, Membership, decode_membership, encode_membership
from bedrockish.core.replica.apply_queue import ApplyQueue
from bedrockish.core.state.membership import Facts, change_members
from bedrockish.errors import MembershipError, UnavailableError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import GENESIS, Entry, decode_label
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.transaction import VERSION, Transaction, Txid, decode_transaction
from tests.core.test_member_changes import CLOCK, WALL, One, membership

# The fields that each level reads of each kind, in this order. A row is never changed; a release that appends a field,
# or adds a kind, adds a row of its own level.
LEVELS: dict[int, dict[int, str]] = {
    1: {
        1: "body",
        2: "txid tick clock",
        3: "txid reason other key clock",
        4: "label body hash clock",
        5: "txid clock",
        6: "body ballot clock",
        7: "txid ballot standing accepted blockers ended clock",
        8: "body ballot commit clock",
        9: "txid ballot clock",
        10: "txid promised clock",
        11: "txid commit leader tick clock",
        12: "txid clock",
        13: "applied closed cut clock store batches wall_ms holds",
        14: "wants limit",
        15: "entries clock",
        16: "read vector access_set clock",
        17: "read others clock",
        18: "body clock",
        19: "command body clock",
        20: "number clock",
        21: "number clock",
        22: "upto clock",
    },
    2: {1: "body trace", 13: "applied closed cut clock store batches wall_ms holds level cluster_id mode config"},
    3: {7: "txid ballot standing accepted blockers ended clock safe"},  # and its journal may be packed in the file
    4: {},  # reads of a row by the columns that are needed, which are keys as others
    5: {},  # digests of requests, in a transaction
}


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_fields_of_an_earlier_level_are_still_written_first(level: int) -> None:
    """Its fields stand first and in its order; what it does not have is optional here."""
    for number, text in LEVELS[level].items():
        cls, readers = WIRE[number]
        names = text.split()
        assert [one.name for one in fields(cls)][: len(names)] == names, cls
        assert len(readers) == len(fields(cls))
        for one in fields(cls)[len(names) :]:
            assert (one.default, one.default_factory) != (MISSING, MISSING), f"{cls.__name__}.{one.name}"


def test_a_kind_that_level_1_does_not_know_has_its_level() -> None:
    assert {cls for number, (cls, _) in WIRE.items() if number not in LEVELS[1]} == set(SINCE)
    assert max([LEVEL, *SINCE.values()]) == LEVEL == max(LEVELS)


def test_gossip_of_an_older_release_is_read_and_of_a_newer_one_too() -> None:
    said = Gossip({"A": 1}, 2, 3, 4, "store", 5, 6, {}, LEVEL, "id")
    packed = cbor2.loads(encode(said))
    assert decode(cbor2.dumps(packed[:9])) == replace(said, level=1, cluster_id="")
    assert decode(cbor2.dumps([*packed, "something newer"])) == said
    with pytest.raises(EntryMalformedError, match="a Gossip has 7 fields, this one 6"):
        decode(cbor2.dumps(packed[:7]))


def test_a_begin_of_an_older_release_is_read_and_one_with_nonsense_for_a_trace_too() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for given, read in ((trace, trace), ("", ""), (trace + "x", ""), (trace[:-1], ""), (7, ""), (None, "")):
        assert decode(cbor2.dumps([1, b"body", given])) == Begin(b"body", read)
    assert decode(cbor2.dumps([1, b"body"])) == Begin(b"body")
    assert decode(encode(Begin(b"body", trace))) == Begin(b"body", trace)


def test_nothing_leaves_that_the_cluster_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the core that forgets to ask for the level is stopped by the assertion, here and in every test."""
    state = One(membership(0, "ABC")).node.state
    monkeypatch.setitem(SINCE, AskClock, LEVEL)
    state.outbox.send("B", AskClock(1, 1))
    state.roster.membership = replace(state.roster.membership, level=LEVEL - 1)
    for send in (lambda said: state.outbox.send("B", said), state.outbox.send_voters, state.outbox.send_all):
        with pytest.raises(AssertionError, match="does not read AskClock"):
            send(AskClock(1, 1))


MEMBERS = Membership(3, {"A": Member("A", "h:1"), "B": Member("B", "h:2", store="s")}, level=1)


def test_a_membership_of_level_1_has_the_bytes_of_release_0_1_0() -> None:
    """That release unpacks exactly two values; its own bytes are read with defaults for the rest."""
    version, members = cbor2.loads(encode_membership(MEMBERS))
    assert (version, members) == (3, {"A": ["h:1", True, ""], "B": ["h:2", True, "s"]})
    assert decode_membership(encode_membership(MEMBERS)) == MEMBERS
    later = replace(MEMBERS, level=LEVEL, cluster_id="c0ffee")
    assert decode_membership(encode_membership(later)) == later
    assert read_membership(encode_membership(later)).voters == {"A": True, "B": True}
    for nonsense in ([3, members, "id"], [3, members, 7, 2], [3, members, "id", "2"], [3, members, "id", 0]):
        with pytest.raises(EntryMalformedError):
            decode_membership(cbor2.dumps(nonsense))


def facts(**levels: int) -> Facts:
    return Facts(frozenset("AB"), {"A": 0, "B": 0}, frozenset("AB"), {"A": "a"}, levels, "c0ffee")


def test_the_level_is_raised_when_all_have_it() -> None:
    """With it a cluster of release 0.1.0 gets its id, and the ids of all files that are known; an id stays."""
    raised = change_members(MEMBERS, MemberChange(RAISE, "A"), facts(A=2, B=3))
    assert (raised.level, raised.cluster_id, raised.version) == (2, "c0ffee", 4)
    assert {one.store for one in raised.members.values()} == {"a", "s"}
    again = change_members(replace(raised, cluster_id="first"), MemberChange(RAISE, "A"), facts(A=4, B=3))
    assert (again.level, again.cluster_id) == (3, "first")


@pytest.mark.parametrize(
    ("levels", "why"),
    [
        ({"A": 2}, "B told no release level yet"),
        ({"A": 2, "B": UNKNOWN}, "B told no release level yet"),
        ({"A": 2, "B": 1}, "the release level is 1, and B cannot do more"),
    ],
)
def test_the_level_is_not_raised_over_anybodys_head(levels: dict[str, int], why: str) -> None:
    with pytest.raises(MembershipError, match=why):
        change_members(MEMBERS, MemberChange(RAISE, "A"), facts(**levels))


def test_a_node_of_an_older_release_is_not_taken_in() -> None:
    old = replace(MEMBERS, level=2)
    with pytest.raises(MembershipError, match="install the release of its members on C"):
        change_members(old, MemberChange(ADD, "C", "h:3", level=1), facts(A=2, B=2))
    assert "C" in change_members(old, MemberChange(ADD, "C", "h:3", level=2), facts(A=2, B=2)).members


def test_levels_are_told_in_gossip() -> None:
    """The cluster's level is the least that any member has told; a silent member keeps the level where it is."""
    one = One(membership(0, "ABC"))
    for known in one.node.state.roster.peers.values():
        known.level = UNKNOWN
    assert one.node.state.roster.level_of_all == UNKNOWN
    for peer in one.node.state.roster.peers:
        one.hear(peer, Gossip({}, 0, 0, CLOCK, f"store of {peer}", 1, WALL, level=LEVEL + 5))
    assert one.node.state.roster.level_of_all == LEVEL
    one.hear(peer, Gossip({}, 0, 0, CLOCK, f"store of {peer}", 1, WALL))
    assert one.node.state.roster.level_of_all == 1


def test_a_level_above_ours_stops_the_node_before_it_applies_anything() -> None:
    state = One(membership(0, "ABC")).node.state
    before = state.roster.membership
    apply_queue = ApplyQueue(state)
    apply_queue._change_members(("B", 1), Txid(9, "B"), replace(before, version=9, level=LEVEL + 1))
    assert isinstance(state.outbox.effects[-1], Halt)
    assert "install the release of the other members" in state.outbox.effects[-1].reason
    assert state.roster.membership is before


def test_a_transaction_of_a_higher_version_is_refused() -> None:
    """Its further fields may say what it does; half of it must not be applied."""
    one = Transaction(Txid(5, "A"), {}, 0, 0, 0, "one", "serializable", "rows", AccessSet(), b"\x80", b"\x80")
    packed = cbor2.loads(one.body)
    assert decode_transaction(cbor2.dumps(packed)) == one
    with pytest.raises(EntryMalformedError, match=f"has version {VERSION + 1}"):
        decode_transaction(cbor2.dumps([VERSION + 1, *packed[1:], 0, [], "newer"]))
    label = cbor2.loads(Entry("A", 1, {"A": 1}, one, None, GENESIS).label)
    assert decode_label(cbor2.dumps([*label, "appended"])).tick == 1
    with pytest.raises(EntryMalformedError, match="this entry has version 2"):
        decode_label(cbor2.dumps([2, *label[1:]]))


def test_forward_from_a_learner_of_release_0_1_0_is_answered() -> None:
    """Its client is told within a round trip that nothing happened, and may go on to the next node."""
    one = One(membership(0, "ABC"))
    call = Execute(1, Request("order-7", (Statement("INSERT INTO t VALUES (1)"),)))
    (said,) = one.hear("C", Forward(encode_call(call), CLOCK))
    assert isinstance(said, Forwarded)
    assert said.command == "order-7"
    reply = decode_reply(said.body)
    assert isinstance(reply, Failed)
    assert isinstance(reply.error, UnavailableError)
    assert reply.error.retry
    assert one.hear("C", Forward(b"junk", CLOCK)) == one.hear("C", said) == []


def test_node_that_hears_of_a_higher_level_answers_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The raise may come after what rests on it: its sender has applied it, so that all read the answer."""
    one = One(membership(0, "ABC"))
    state = one.node.state
    state.roster.membership = replace(state.roster.membership, level=LEVEL - 1)
    monkeypatch.setitem(SINCE, AskClock, LEVEL)
    monkeypatch.setitem(SINCE, ToldClock, LEVEL)
    one.hear("C", Gossip({}, 0, 0, CLOCK, "store of C", 1, WALL))
    assert state.roster.level == LEVEL - 1
    assert any(isinstance(said, ToldClock) for said in one.hear("C", AskClock(1, CLOCK)))
    assert (state.roster.level, state.roster.membership.level) == (LEVEL, LEVEL - 1)
