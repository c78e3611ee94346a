"""The values that the core and its driver hand to each other: what was executed, what must be kept, what was kept.

They are plain data. The engine makes a ``Prepared`` of a request; the core makes a ``Transaction`` of it; a ``Vote`` is
what a node has promised about somebody's transaction; ``Recovered`` is all that a node finds in its file at the start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import cbor2

from bedrockish.common.levels import LEVEL
from bedrockish.core.protocol.health import Alarm
from bedrockish_journal.model.access_set import AccessSet, Range
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import MemberSaid, MembershipSaid, UserSaid, pack_membership, read_membership
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector, canonical, check

ENDED = 1 << 62  # the ballot under which a decided rollback is kept: above any that a recovery can reach
FORGOTTEN = Txid(0, "")  # stands for what a command has become whose id is older than what a node remembers


@value
class Prepared:
    """What executing a request gave, before anybody has agreed to it.

    Attributes:
        base: the commits that it saw: the applied vector of its snapshot.
        schema: version of the schema that it ran on.
        readonly: it wrote nothing; ``result`` is the answer and ``changes`` is empty.
        kind: ``rows``, ``schema`` or ``members``.
        access_set: what it read and wrote.
        changes: encoded changes (see ``bedrockish_journal.model.changes``).
        result: encoded results (see ``bedrockish.api.requests``).
        clock: what ``transaction_clock()`` gave in it, which is later than all in ``base``; 0 if it was not called.
        joined: the commands that were executed after it, on top of what it did, each with its encoded results.
        shares: how many of the changes each of these commands made, itself first; empty if that cannot be told.
        users: whose each of these commands is, itself first; empty if there is one, or nobody has to say.
        digests: of the request of each of these commands, itself first; empty if there is one.
        delay_ms: how long after its decision a change of the schema is to come into force at the earliest: so long do
            nodes need to build an index beside its table.
        spans: of the ranges that it writes, those that stand for many entries of an index. Each entry is of a row whose
            key is written as well, so whoever has written other rows has written other entries. Who has read there
            conflicts.
    """

    base: Vector
    schema: int
    readonly: bool
    kind: str
    access_set: AccessSet
    changes: bytes
    result: bytes
    clock: int = 0
    joined: tuple[tuple[str, bytes], ...] = ()
    shares: tuple[int, ...] = ()
    users: tuple[str, ...] = ()
    digests: tuple[bytes, ...] = ()
    delay_ms: int = 0
    spans: tuple[Range, ...] = ()


@dataclass(slots=True)
class Vote:
    """What this node has promised about one transaction. Durable before any answer that rests on it leaves.

    Attributes:
        txid: the transaction's name.
        transaction: the transaction itself, so that any voter can finish it; None if only its rollback was seen.
        held: approved, or held for a recovery; while the outcome is unknown it is *pending*.
        promised: the highest ballot promised (0: none; 1: its leader's rollback; 2 and above: recoveries).
        accepted: the highest (ballot, commit?) accepted, or None.
    """

    txid: Txid
    transaction: Transaction | None
    held: bool = False
    promised: int = 0
    accepted: tuple[int, bool] | None = None


@value
class Member:
    """One member of the cluster.

    Attributes:
        node: its name.
        address: ``host:port`` at which it listens.
        voter: whether it approves transactions; a learner only applies them.
        store: random id of its file; empty until it is known.
    """

    node: str
    address: str
    voter: bool = True
    store: str = ""


@value
class Membership:
    """The members and users of the cluster, as of some commit.

    Attributes:
        version: how many changes there were before; 0 is what the cluster was founded with.
        members: by name.
        cluster_id: the random id that the cluster got at its founding; empty for one of release 0.1.0, which gets its
            id when its level is raised.
        level: the release level that every member reads, see ``levels``.
        retired: timelines of nodes that left, which no vector names any more, each with the version from which on.
        users: of the cluster, by name; None for one that was removed.
        former: names of nodes that voted before and do not now, sorted: no other file gets such a name.
        void: transactions that fit at no node, and that an operator had all members apply as nothing.
    """

    version: int
    members: Mapping[str, Member]
    cluster_id: str = ""
    level: int = LEVEL
    retired: Mapping[str, int] = field(default_factory=dict)
    users: Mapping[str, UserSaid | None] = field(default_factory=dict, repr=False)
    former: tuple[str, ...] = ()
    void: tuple[Txid, ...] = ()

    @property
    def voters(self) -> list[str]:
        """Names of the voters, sorted."""
        return sorted(node for node, member in self.members.items() if member.voter)

    @property
    def nodes(self) -> list[str]:
        """Names of all members, sorted."""
        return sorted(self.members)


def encode_membership(membership: Membership) -> bytes:
    """Return the canonical bytes of a membership (``bedrockish_journal.model.membership``)."""
    # The journal has its own types for what it says of members: readers of it need not have the core.
    members = tuple(MemberSaid(m.node, m.address, m.voter, m.store) for m in membership.members.values())
    cluster = membership.cluster_id, membership.level, membership.retired, membership.users, membership.former
    return pack_membership(MembershipSaid(membership.version, members, *cluster, membership.void))


def decode_membership(data: bytes) -> Membership:
    """Read what ``encode_membership`` wrote.

    Raises:
        EntryMalformedError: the bytes are not a membership.
    """
    said = read_membership(data)
    members = {one.node: Member(*one) for one in said.members}
    later = said.cluster_id, said.level, said.retired, said.users, said.former, said.void
    return Membership(said.version, members, *later)


@value
class Joining:
    """What a new node was told when the cluster took it in; until it has caught up, its own file does not say so.

    Attributes:
        membership: the members at that moment, the new node among them.
        vector: what the cluster had committed then: with all of it applied, the node has caught up.
    """

    membership: Membership
    vector: Vector


def encode_joining(joining: Joining) -> bytes:
    """Return the bytes in which a new node's file keeps what it was told."""
    return cbor2.dumps([encode_membership(joining.membership), canonical(joining.vector)])


def decode_joining(data: bytes) -> Joining:
    """Read what ``encode_joining`` wrote.

    Raises:
        EntryMalformedError: the bytes are something else.
    """
    try:
        membership, vector = cbor2.loads(data)
        return Joining(decode_membership(membership), check(vector))
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise EntryMalformedError(f"these {len(data)} bytes do not say what a node joined: {error}") from error


@value
class Recovered:
    """What a node finds in its own file when it starts.

    Attributes:
        node: its name.
        store: random id of the file.
        membership: the membership in force.
        applied: the last tick applied of each timeline.
        heads: hash of that last entry of each timeline.
        window: recent entries, newest last, whose access sets conflict tests need: all that may not be settled, and as
            many of those before as are read in a moment. It is read once.
        votes: every vote on record.
        ceiling: the clock never went above this before the restart.
        cut: the highest cut that was ever announced (section 6 of the protocol).
        batches: how many durable batches this file has seen.
        safe: a safe time known before the restart.
        settled: up to where nothing was decided any more, as far as was known before the restart.
        schema: version of the schema in force.
        scheduled: the schema change that is applied and not activated yet.
        alarms: what is wrong with the node, by name, as far as its file keeps it (``health``).
        blocked: decided transactions that fit nowhere, and are not applied before an operator has decided.
        pieces: the pieces of transactions that are saved: sha256 -> size.
        named: those that a vote is kept in, instead of its transaction's body.
        lost: what the file was found to lack of what was promised with it; empty if nothing.
        joining: what a new node was told when it was taken in; None once it has caught up.
        removed: the last tick of each timeline that was removed from the journal.
        holds: readers that still need the journal from a clock on.
    """

    node: str
    store: str
    membership: Membership
    applied: Vector = field(default_factory=dict)
    heads: Mapping[str, bytes] = field(default_factory=dict)
    window: Iterable[Entry] = ()
    votes: tuple[Vote, ...] = ()
    ceiling: int = 0
    cut: int = 0
    batches: int = 0
    safe: int = 0
    joining: Joining | None = None
    removed: Vector = field(default_factory=dict)
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    schema: int = 0
    scheduled: Transaction | None = None
    pieces: Mapping[bytes, int] = field(default_factory=dict)
    named: Mapping[Txid, tuple[bytes, ...]] = field(default_factory=dict)
    lost: str = ""
    alarms: Mapping[str, Alarm] = field(default_factory=dict)
    blocked: frozenset[Txid] = frozenset()
    settled: int = 0
