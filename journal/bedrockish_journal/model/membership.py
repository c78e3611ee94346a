"""Encodes and decodes the membership of the cluster as of some commit.

A timeline whose leader has left never grows again. A membership names such timelines as *retired*. Each transaction
under this membership or a later one has the whole retired timeline in its past, because a membership change conflicts
with every transaction. So a vector no longer names a retired timeline, but includes all entries of the timeline.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import NamedTuple

import cbor2

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.transaction import Txid, check_txid
from bedrockish_journal.model.value import value


@value
class Member:
    """A member of the cluster."""

    node: str  # the name of the member
    address: str  # ``host:port`` at which the member listens
    voter: bool = True  # whether the member approves transactions; a learner only applies them
    store: str = ""  # the random id of the member's file; empty until known


READER, WRITER, OWNER, ADMIN = 1, 2, 3, 4
ROLES = ("reader", "writer", "owner", "admin")  # each role includes the rights of the roles before it


class UserSaid(NamedTuple):
    """A user of the cluster in a membership."""

    secret: str  # the hash of the password, as ``bedrockish.common.password_hash`` writes it; empty if left out
    role: int  # 0 for no role, or one of ``READER`` to ``ADMIN``
    number: int  # version of the membership that set the password
    tables: Mapping[str, int] = {}  # roles for single tables, ``READER`` or ``WRITER``, by the tables' names


@value
class Membership:
    """The members and users of the cluster, as of a commit."""

    version: int  # the number of changes since the founding
    members: Mapping[str, Member]  # the members, by name
    cluster_id: str = ""  # the random id that the cluster got at its founding
    level: int = LEVEL  # the release level that every member understands, see ``levels``
    # Timelines of former members that vectors omit, each with the first membership version whose vectors omit it.
    retired: Mapping[str, int] = field(default_factory=dict)
    # The users of the cluster, by name; None for a removed user.
    users: Mapping[str, UserSaid | None] = field(default_factory=dict, repr=False)
    former: tuple[str, ...] = ()  # the sorted names of former voters: no node with another file gets such a name
    # Transactions that no node could apply, and whose changes all members skip by an operator's order.
    void: tuple[Txid, ...] = ()

    @property
    def voters(self) -> list[str]:
        """Names of the voters, sorted."""
        return sorted(node for node, member in self.members.items() if member.voter)

    @property
    def nodes(self) -> list[str]:
        """Names of all members, sorted."""
        return sorted(self.members)


def pack_membership(said: Membership) -> bytes:
    """Return the canonical bytes of a membership.

    They are [version, {node: [address, voter, store]}, cluster id, level, {timeline: version}, {user: [secret, role,
    number, {table: role}] or null}, [former voter], [[clock, leader], ...]]. Empty fields at the end are left out.
    """
    members = {node: [one.address, one.voter, one.store] for node, one in sorted(said.members.items())}
    later = (
        dict(sorted(said.retired.items())),
        {name: _pack_user(one) for name, one in sorted(said.users.items())},
        list(said.former),
        [list(txid) for txid in said.void],
    )
    last = max((place + 1 for place, one in enumerate(later) if one), default=0)
    return cbor2.dumps([said.version, members, said.cluster_id, said.level, *later[:last]])


def read_membership(data: bytes) -> Membership:
    """Return the membership that ``pack_membership`` encoded, without the fields that a later release appends.

    Raises:
        EntryMalformedError: the bytes are not a membership.
    """
    try:
        version, packed, cluster_id, level, *later = cbor2.loads(data)
        members = {node: Member(node, *fields[:3]) for node, fields in packed.items()}
        retired = later[0] if later else {}
        retirements = list(retired.items())
        packed_users = later[1] if len(later) > 1 else {}
        former = tuple(later[2]) if len(later) > 2 else ()
        users = {name: None if one is None else UserSaid(*one[:4]) for name, one in packed_users.items()}
        void = tuple(map(check_txid, later[3])) if len(later) > 3 else ()
    except (cbor2.CBORError, ValueError, TypeError, AttributeError) as error:
        raise EntryMalformedError(
            f"these {len(data)} bytes are not a membership that this release reads: {error}; if a newer release has "
            "written them, install that release here, or else the file is damaged"
        ) from error
    texts = [cluster_id, *(text for one in members.values() for text in (one.node, one.address, one.store))]
    texts += [*(leader for leader, _ in retirements), *former]
    known = [one for one in users.values() if one is not None]
    tables = [pair for one in known for pair in _tables_of(one)]
    texts += [*users, *(one.secret for one in known), *(table for table, _ in tables)]
    numbers = [version, level - 1 if type(level) is int else None, *(since for _, since in retirements)]
    numbers += [number for one in known for number in (one.role, one.number)] + [role for _, role in tables]
    if (
        not all(isinstance(text, str) for text in texts)
        or not all(type(number) is int and number >= 0 for number in numbers)
        or not all(type(one.voter) is bool for one in members.values())
    ):
        raise EntryMalformedError("a membership should be a version and members with names, addresses and stores")
    return Membership(version, members, cluster_id, level, retired, users, former, void)


def _pack_user(one: UserSaid | None) -> list[object] | None:
    return None if one is None else [*one[:3], *([dict(sorted(one.tables.items()))] if one.tables else ())]


def _tables_of(one: UserSaid) -> list[tuple[str, int]]:
    if not isinstance(one.tables, Mapping):
        raise EntryMalformedError("the tables of a user should be a map of names and roles")
    return list(one.tables.items())


def without_secrets(data: bytes) -> bytes:
    """Return an encoded membership without the hashes of passwords.

    Raises:
        EntryMalformedError: the bytes are not a membership.
    """
    said = read_membership(data)
    users = {name: one and one._replace(secret="") for name, one in said.users.items()}
    return pack_membership(replace(said, users=users))
