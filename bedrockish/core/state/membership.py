"""The members of the cluster: every change of the membership, as a function from the old one to the new one.

Pure: the caller passes the present facts about the members (which are alive, which lag behind). The rules refuse
changes after which the cluster could not decide any more; each refusal says what to do instead.
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from bedrockish.api.requests import ADD, ADDRESS, MEMBER_ACTIONS, RAISE, USER_ACTIONS, VOID, MemberChange
from bedrockish.core.state.settings import approvals_needed
from bedrockish.core.state.users import change_users
from bedrockish.errors import MembershipError
from bedrockish_journal.model.levels import UNKNOWN
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import parse_txid

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,15}")
ANYWHERE = ("0.0.0.0", "[::]", "::", "*")
BEHIND_MAX = 1_000  # most commits that a learner may still lack when it becomes a voter


@dataclass(frozen=True, slots=True)
class MembershipFacts:
    """The facts about the members that are known at the node that makes a change."""

    alive: AbstractSet[str] = frozenset()  # the members heard of recently, and the node itself
    behind: Mapping[str, int] = field(default_factory=dict)  # how many commits each member lacks, as far as is known
    timelines: AbstractSet[str] = frozenset()  # every node that ever led a commit, also former members
    stores: Mapping[str, str] = field(default_factory=dict)  # ids of the members' files, as far as they are known
    # The release levels that the members have told, and the level of the node itself.
    levels: Mapping[str, int] = field(default_factory=dict)
    # Timelines of former members that every member has up to the same tick (``Timelines.whole``).
    whole: AbstractSet[str] = frozenset()
    read_only: AbstractSet[str] = frozenset()  # the members that have reported that they are read-only
    void: AbstractSet[str] = frozenset()  # transactions whose changes this node skips by an operator's order


def change_members(old: Membership, change: MemberChange, facts: MembershipFacts) -> Membership:
    """Return the membership after a change.

    Raises:
        MembershipError: the change cannot be made; ``details["reason"]`` is a stable word for why.
    """
    if change.action not in MEMBER_ACTIONS:
        raise _refused("action", f"there is no change {change.action!r}; there is {', '.join(MEMBER_ACTIONS)}")
    members, new = dict(old.members), old
    if change.action == RAISE:
        new = _raise(old, facts)
    elif change.action in USER_ACTIONS:
        new = replace(old, users=change_users(old, change))
    elif change.action == VOID:
        new = _void(old, change.node, facts)
    elif change.action == ADD:
        _check_level(old, change)
        _add(old, members, change.node, change.address, change.store, facts)
    else:
        member = members.get(change.node)
        if member is None:
            raise _refused("unknown", f"{change.node!r} is not a member; there is {', '.join(old.nodes)}")
        match change.action:
            case "promote":
                _promote(members, member, facts)
            case "demote":
                _demote(members, member)
            case "remove":
                del members[member.node]
            case "address":
                _check_address(members, member.node, change.address)
                members[member.node] = replace(member, address=change.address)
            case _:
                _replace(old, members, member, change, facts)
    # Every change binds each member to its file, if the file's id is known by now: from then on, a node with another
    # file may not use the member's name.
    known = {node: replace(one, store=one.store or facts.stores.get(node, "")) for node, one in members.items()}
    retired = _retire(old, known, facts)
    # Sorted, so that the same change has the same bytes at every node.
    former = tuple(sorted({*old.former, *old.voters} - {name for name, one in known.items() if one.voter}))
    new = replace(new, version=old.version + 1, members=dict(sorted(known.items())), retired=retired, former=former)
    _check_votes(old, new, change, facts)
    if not change.force:
        _check_cost(old, new, change, facts)
    return new


def _retire(old: Membership, members: Mapping[str, Member], facts: MembershipFacts) -> Mapping[str, int]:
    """Return all retired timelines, each with the version of the membership that retired it.

    Each change retires the timelines of former nodes that every member has completely. The change conflicts with every
    transaction, so a base that has this change, or a later one, has all commits of these timelines.
    """
    gone = facts.whole - old.retired.keys() - old.members.keys() - members.keys()
    return {**old.retired, **dict.fromkeys(sorted(gone), old.version + 1)}


def _raise(old: Membership, facts: MembershipFacts) -> Membership:
    # A member that has not reported its level may be of any release: a message that it cannot read would end its links.
    silent = [node for node in old.nodes if facts.levels.get(node, UNKNOWN) == UNKNOWN]
    if silent:
        raise _refused(
            "level", f"{', '.join(silent)} has reported no release level yet; start it, and the level is raised then"
        )
    level = min(facts.levels[node] for node in old.nodes)
    if level <= old.level:
        oldest = ", ".join(node for node in old.nodes if facts.levels[node] == level)
        raise _refused(
            "level", f"the release level is {old.level}, and {oldest} supports no higher one; upgrade it first"
        )
    return replace(old, level=level)


def _void(old: Membership, txid: str, facts: MembershipFacts) -> Membership:
    """Record that every member skips the changes of a transaction, which this node skips already."""
    if txid in map(str, old.void):
        raise _refused("duplicate", f"the cluster has recorded already that {txid} is applied without its changes")
    if txid not in facts.void:
        raise _refused(
            "unknown", f"{txid} is not applied without its changes here; resolve it with 'bedrockish member resolve'"
        )
    return replace(old, void=(*old.void, parse_txid(txid)))


def _check_level(old: Membership, change: MemberChange) -> None:
    if change.level < old.level:
        raise _refused(
            "level",
            f"{change.node} is of release level {change.level}, and the cluster's members speak at level {old.level}; "
            f"install the release of its members on {change.node}",
        )


def _add(
    old: Membership, members: dict[str, Member], node: str, address: str, store: str, facts: MembershipFacts
) -> None:
    """Add a node as a learner; a learner may return with another file after its old process has ended."""
    # The name must be short and plain: each entry and vector contains it as text, and each transaction's name as well.
    if NAME.fullmatch(node) is None:
        raise _refused("name", f"{node!r} is not a name; write a letter and then up to 15 letters, digits or _")
    _check_address(members, node, address)
    known = members.get(node)
    # A voter with another file would have forgotten its promises, so its successor gets another name.
    if known is not None and known.voter:
        raise _refused("duplicate", f"{node} is a voter already; see them with 'bedrockish nodes'")
    # Two processes with one name would each receive messages for the other.
    if known is not None and node in facts.alive and known.store and known.store != store:
        raise _refused(
            "alive",
            f"{node} is a learner already, and runs at {known.address}; stop it there if another file shall take its "
            "place, or give the new node another name",
        )
    # A new node with a former leader's name could write a second entry at one of that leader's places: a fork. This
    # node's timelines do not show every former leader: perhaps only its lost file and a member out of reach have its
    # commits. So the names of all former voters are excluded.
    used = node in facts.timelines or node in old.former
    if used and (known is None or known.store != store or not store):
        raise _refused(
            "used",
            f"{node}: the name has voted or led commits before, and another file would lead other commits under the "
            "same places; give the new node a new name",
        )
    members[node] = Member(node, address, voter=False, store=store)


def _check_address(members: Mapping[str, Member], node: str, address: str) -> None:
    if not address:
        raise _refused("address", f"{node} needs an address; write host:port, as the other nodes see it")
    if address.rpartition(":")[0] in ANYWHERE or address.endswith(":0"):
        raise _refused(
            "address",
            f"{node} cannot be reached at {address}, which is where a node listens; write host:port, as the "
            "other nodes see it",
        )
    other = next((one.node for one in members.values() if one.address == address and one.node != node), None)
    if other is not None:
        raise _refused("address", f"{other} has the address {address} already; give {node} its own")


def _promote(members: dict[str, Member], member: Member, facts: MembershipFacts) -> None:
    if member.voter:
        raise _refused("duplicate", f"{member.node} is a voter already")
    # A voter that is down counts towards the size of every majority, and approves no transaction.
    if member.node not in facts.alive:
        raise _refused("silent", f"{member.node} has not sent a message lately; start it, and promote it then")
    # A voter has to cover a base before it votes (V7), so all leaders would wait for a voter that lags.
    behind = facts.behind.get(member.node)
    if behind is None or behind > BEHIND_MAX:
        lacks = "" if behind is None else f": it lacks {behind} commits"
        raise _refused("behind", f"{member.node} has not caught up yet{lacks}; wait, and promote it then")
    if member.node in facts.read_only:
        raise _refused(
            "mode",
            f"{member.node} only reads for now, as its own status says; wait, or remove the cause, and promote it then",
        )
    members[member.node] = replace(member, voter=True)


def _demote(members: dict[str, Member], member: Member) -> None:
    if not member.voter:
        raise _refused("duplicate", f"{member.node} is not a voter; to remove it, use 'bedrockish member remove'")
    members[member.node] = replace(member, voter=False)


def _replace(
    old: Membership, members: dict[str, Member], member: Member, change: MemberChange, facts: MembershipFacts
) -> None:
    if change.successor in members or change.successor == member.node:
        raise _refused(
            "duplicate",
            f"{change.successor} is a member already; give the new node a new name: {member.node}'s timeline ends "
            "with its file",
        )
    del members[member.node]
    _add(old, members, change.successor, change.address or member.address, change.store, facts)


def _check_votes(old: Membership, new: Membership, change: MemberChange, facts: MembershipFacts) -> None:
    """Check that the voters that are left can decide. An operator may force the change, but not without any voter."""
    # Changes of addresses, learners and users leave the voters as they are.
    if new.voters == old.voters:
        return
    if not new.voters:
        raise _refused(
            "last",
            f"{change.node} is the last voter; promote another node before: a cluster without voters cannot "
            "decide anything",
        )
    needed = approvals_needed(len(new.voters))
    # Test with the quorum of the new membership, which decides all later changes; the old one decides only this one.
    alive = [node for node in new.voters if node in facts.alive]
    if len(alive) < needed and not change.force:
        silent = ", ".join(node for node in new.voters if node not in facts.alive)
        raise _refused(
            "quorum",
            f"the voters would be {', '.join(new.voters)}, of which {needed} must agree, but {silent} cannot be "
            "reached: nothing could be written; start those nodes or remove them first, or use --force",
        )


def _check_cost(old: Membership, new: Membership, change: MemberChange, facts: MembershipFacts) -> None:
    """Refuse a change that costs a live member's file, link or vote; an operator may force it."""
    node = change.node
    lost = set(old.voters) & facts.alive - set(new.voters)
    if change.action == "replace" and node in facts.alive:
        raise _refused(
            "alive",
            f"{node} answers, so its file is not lost; to remove it, have a new node join and demote {node} then, "
            "or use --force",
        )
    if change.action == ADDRESS and node in facts.alive and new.members[node].address != old.members[node].address:
        raise _refused(
            "alive",
            f"{node} answers at {old.members[node].address}, and perhaps not at {change.address}, where the others "
            "would look for it; stop it before it moves, or use --force if it answers at both",
        )
    if change.action == "remove" and lost:
        raise _refused(
            "alive",
            f"{node} is a voter that answers; demote it first ('bedrockish member demote'), which can be undone, or "
            "use --force",
        )
    if not lost:
        return  # removing an unreachable voter loses no live vote
    if len(new.voters) == 1:
        raise _refused(
            "alone",
            f"{new.voters[0]} would be the only voter: while it is down nothing can be written, and without its file "
            "commits are lost; promote another node first, or use --force",
        )
    before, after = _spare(old, facts), _spare(new, facts)
    if after < before:
        raise _refused(
            "spare",
            f"without the vote of {node} only {after} of the voters that answer may fail before no write commits, "
            f"and {before} may now; promote another node first, or use --force",
        )


def _spare(membership: Membership, facts: MembershipFacts) -> int:
    """Return the number of answering voters that may fail before commits are impossible; negative: too many failed."""
    return len(set(membership.voters) & facts.alive) - approvals_needed(len(membership.voters))


def _refused(reason: str, text: str) -> MembershipError:
    return MembershipError(text, reason=reason)
