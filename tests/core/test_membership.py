"""The rules of changing the membership, tried on every membership of up to four nodes and every set of living ones."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from bedrockish.api.requests import MEMBER_ACTIONS, MemberChange
from bedrockish.core.protocol.records import Joining, decode_joining, encode_joining
from bedrockish.core.state.membership import BEHIND_MAX, MembershipFacts, change_members
from bedrockish.core.state.settings import approvals_needed
from bedrockish.errors import MembershipError
from bedrockish_journal.model.membership import Member, Membership, pack_membership, read_membership

NAMES = "ABCD"


def members(roles: dict[str, bool], version: int = 3) -> Membership:
    return Membership(version, {node: Member(node, f"host:{ord(node)}", voter) for node, voter in roles.items()})


def worlds() -> Iterator[tuple[Membership, frozenset[str]]]:
    """Draw voter, learner or absent for each of four names, with at least one voter, and the living ones."""
    for roles in product((None, False, True), repeat=len(NAMES)):
        chosen = {node: role for node, role in zip(NAMES, roles, strict=True) if role is not None}
        if True not in chosen.values():
            continue
        for bits in range(1 << len(chosen)):
            yield members(chosen), frozenset(node for place, node in enumerate(chosen) if bits >> place & 1)


def changes() -> Iterator[MemberChange]:
    for action, node, force in product(MEMBER_ACTIONS, (*NAMES, "E"), (False, True)):
        yield MemberChange(action, node, "new:1", successor="F", force=force)


def test_every_allowed_change_of_members_keeps_the_laws() -> None:
    """A change adds or removes one voter, leaves at least one and, without force, a quorum of living ones."""
    made = 0
    for (old, alive), change in product(worlds(), changes()):
        facts = MembershipFacts(alive, dict.fromkeys(old.nodes, 0), frozenset(), {})
        try:
            new = change_members(old, change, facts)
        except MembershipError:
            continue
        made += 1
        assert new.version == old.version + 1
        assert new.voters
        assert len(set(new.voters) ^ set(old.voters)) <= 1
        assert set(new.voters) - set(old.voters) <= {change.node}
        if new.voters != old.voters and not change.force:
            assert len(alive & set(new.voters)) >= approvals_needed(len(new.voters))
        assert len({member.address for member in new.members.values()}) == len(new.members)
        assert read_membership(pack_membership(new)) == new
    assert made > 1000


def refusal(roles: dict[str, bool], change: MemberChange, facts: MembershipFacts) -> str:
    with pytest.raises(MembershipError) as caught:
        change_members(members(roles), change, facts)
    return str(caught.value.details["reason"])


ABC = {"A": True, "B": True, "C": True}
LATE = MembershipFacts(frozenset("AD"), {"D": BEHIND_MAX + 1})
ALL = MembershipFacts(frozenset("ABCD"), dict.fromkeys("ABCD", 0), frozenset("ABC"), {})


@pytest.mark.parametrize(
    ("roles", "change", "facts", "reason"),
    [
        (ABC, MemberChange("remove", "X"), ALL, "unknown"),
        (ABC, MemberChange("enlarge", "A"), ALL, "action"),
        (ABC, MemberChange("add", "A", "h:1"), ALL, "duplicate"),
        (ABC, MemberChange("add", "1st", "h:1"), ALL, "name"),
        (ABC, MemberChange("add", "D"), ALL, "address"),
        (ABC, MemberChange("add", "D", "host:65"), ALL, "address"),
        (ABC, MemberChange("address", "A", "host:66"), ALL, "address"),
        (ABC, MemberChange("address", "A", "0.0.0.0:7373"), ALL, "address"),
        (ABC, MemberChange("add", "D", "[::]:7373"), ALL, "address"),
        (ABC, MemberChange("replace", "C", "h:0", "D", force=True), ALL, "address"),
        ({"B": True}, MemberChange("add", "A", "h:1"), ALL, "used"),
        (ABC, MemberChange("promote", "A"), ALL, "duplicate"),
        ({"A": True, "D": False}, MemberChange("demote", "D"), ALL, "duplicate"),
        ({"A": True, "D": False}, MemberChange("promote", "D"), MembershipFacts(frozenset("A"), {"D": 0}), "silent"),
        ({"A": True, "D": False}, MemberChange("promote", "D"), MembershipFacts(frozenset("AD")), "behind"),
        ({"A": True, "D": False}, MemberChange("promote", "D"), LATE, "behind"),
        ({"A": True, "D": False}, MemberChange("demote", "A", force=True), ALL, "last"),
        ({"A": True}, MemberChange("remove", "A", force=True), ALL, "last"),
        (ABC, MemberChange("remove", "A"), MembershipFacts(frozenset("AB")), "quorum"),
        (ABC, MemberChange("remove", "A"), ALL, "alive"),
        (ABC, MemberChange("replace", "C", "h:1", "D"), ALL, "alive"),
        (ABC, MemberChange("address", "C", "h:9"), ALL, "alive"),
        (ABC, MemberChange("demote", "A"), ALL, "spare"),
        ({"A": True, "B": True}, MemberChange("demote", "A"), ALL, "alone"),
        ({**ABC, "D": True, "E": True}, MemberChange("demote", "A"), MembershipFacts(frozenset("ABCDE")), "spare"),
        (ABC, MemberChange("replace", "C", "h:1", "B"), ALL, "duplicate"),
        (ABC, MemberChange("replace", "C", "h:1", "C"), ALL, "duplicate"),
    ],
)
def test_invalid_member_change_is_refused_with_its_reason(
    roles: dict[str, bool], change: MemberChange, facts: MembershipFacts, reason: str
) -> None:
    """Each refused change has its reason in the error."""
    assert refusal(roles, change, facts) == reason


@pytest.mark.parametrize(
    ("roles", "change", "alive"),
    [
        (ABC, MemberChange("remove", "C"), "AB"),
        (ABC, MemberChange("demote", "C"), "AB"),
        (ABC, MemberChange("replace", "C", "h:1", "D"), "AB"),
        ({**ABC, "D": False}, MemberChange("remove", "D"), "ABCD"),
        ({**ABC, "D": True}, MemberChange("demote", "D"), "ABCD"),
        (ABC, MemberChange("address", "C", "h:9"), "AB"),
        (ABC, MemberChange("address", "C", "h:9", force=True), "ABC"),
        (ABC, MemberChange("remove", "C", force=True), "ABC"),
        (ABC, MemberChange("demote", "C", force=True), "ABC"),
        (ABC, MemberChange("replace", "C", "h:1", "D", force=True), "ABC"),
        ({"A": True, "B": True}, MemberChange("demote", "B", force=True), "AB"),
    ],
)
def test_harmless_or_forced_member_change_succeeds(roles: dict[str, bool], change: MemberChange, alive: str) -> None:
    """A node that does not answer already counts as lost, and a fourth voter does not allow a further loss."""
    old = members(roles)
    assert change_members(old, change, MembershipFacts(frozenset(alive))).version == old.version + 1


def test_forced_member_change_needs_no_quorum() -> None:
    """An operator may know that missing nodes return, which the cluster cannot know."""
    new = change_members(members(ABC), MemberChange("remove", "A", force=True), MembershipFacts(frozenset("AB")))
    assert new.voters == ["B", "C"]


def test_a_learner_may_start_again_on_another_file() -> None:
    """A learner never promised anything. A former voter that led commits is refused."""
    old = members({"A": True, "D": False})
    again = MemberChange("add", "D", "host:68", store="second")
    assert change_members(old, again, MembershipFacts(frozenset("AD"))).members["D"].store == "second"
    assert refusal({"A": True, "D": False}, again, MembershipFacts(frozenset("AD"), {}, frozenset("AD"))) == "used"


@pytest.mark.parametrize("leaves", [("remove",), ("demote",), ("demote", "remove"), ("replace",)])
def test_name_of_a_former_voter_is_refused_for_another_file(leaves: tuple[str, ...]) -> None:
    """The former voter may have led a commit that only an unreachable member has: the timelines here lack it."""
    old, facts = members({**ABC, "D": True}), MembershipFacts(frozenset("ABC"), dict.fromkeys("ABC", 0))
    for action in leaves:
        successor = "E" if action == "replace" else ""
        old = change_members(old, MemberChange(action, "D", "h:9", successor, store="second"), facts)
    for store in ("", "first", "second"):
        with pytest.raises(MembershipError, match="D: the name has voted"):
            change_members(old, MemberChange("add", "D", "h:1", store=store), facts)
    if "D" not in old.members:
        with pytest.raises(MembershipError, match="D: the name has voted"):
            change_members(old, MemberChange("replace", "A", "h:1", "D"), facts)
    assert read_membership(pack_membership(old)).former == ("D",)


def test_former_voter_votes_again_with_its_own_file() -> None:
    old = members({**ABC, "D": True})
    old = replace(old, members={**old.members, "D": replace(old.members["D"], store="own")})
    facts = MembershipFacts(frozenset("ABCD"), dict.fromkeys("ABCD", 0), frozenset("D"))
    old = change_members(old, MemberChange("demote", "D"), facts)
    old = change_members(old, MemberChange("add", "D", "h:9", store="own"), facts)
    assert old.former == ("D",)
    assert change_members(old, MemberChange("promote", "D"), facts).former == ()


def test_membership_change_records_the_known_files() -> None:
    """From the first change on the membership has the file of each member, and does not overwrite it."""
    old = Membership(0, {"A": Member("A", "h:1", True, "old"), "B": Member("B", "h:2")})
    facts = MembershipFacts(frozenset("AB"), {}, frozenset(), {"A": "other", "B": "of B"})
    new = change_members(old, MemberChange("add", "C", "h:3"), facts)
    assert {node: one.store for node, one in new.members.items()} == {"A": "old", "B": "of B", "C": ""}


def test_sponsor_information_survives_encoding() -> None:
    """Encoding and decoding are inverse."""
    told = Joining(members(ABC), {"A": 3, "B": 1})
    assert decode_joining(encode_joining(told)) == told


def test_read_only_node_is_not_promoted() -> None:
    """As a voter it would approve nothing, and so count as lost. A node whose copy is not compared yet is read-only."""
    facts = MembershipFacts(frozenset("ABCD"), {"D": 0}, read_only=frozenset("D"))
    change = MemberChange("promote", "D")
    assert refusal({**ABC, "D": False}, change, facts) == "mode"
    facts = MembershipFacts(frozenset("ABCD"), {"D": 0}, read_only=frozenset("C"))
    assert "D" in change_members(members({**ABC, "D": False}), change, facts).voters
