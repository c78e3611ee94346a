"""The values that the core and its driver exchange: executed requests, records to keep, and records recovered.

They are plain data. The engine makes a ``Prepared`` of a request; the core makes a ``Transaction`` of it; a ``Vote`` is
a node's promise about a transaction of any leader; ``Recovered`` is all that a node finds in its file at the start.
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
FORGOTTEN = Txid(0, "")  # the transaction of a command whose id is older than a node's memory of commands


@value
class Prepared:
    """The result of executing a request, before any voter has approved it.

    Attributes:
        base: the commits that it saw: the applied vector of its snapshot.
        schema: version of the schema that it ran on.
        readonly: it wrote nothing; ``result`` is the answer and ``changes`` is empty.
        kind: ``rows``, ``schema`` or ``members``.
        access_set: the keys and ranges that it read and wrote.
        changes: encoded changes (see ``bedrockish_journal.model.changes``).
        result: encoded results (see ``bedrockish.api.requests``).
        clock: the value of ``transaction_clock()`` in it, which is later than all in ``base``; 0 if it was not called.
        joined: the commands that were executed after it, on top of its changes, each with its encoded results.
        shares: how many of the changes each of these commands made, itself first; empty if that cannot be told.
        users: the user of each of these commands, itself first; empty if it is the only one, or none has a user.
        digests: of the request of each of these commands, itself first; empty if it is the only one.
        delay_ms: how long after its decision a change of the schema is to come into force at the earliest: the time
            that nodes need to build an index next to its table.
        spans: of the ranges that it writes, those that stand for many entries of an index. Each entry is of a row whose
            key is written as well, so a transaction that writes other rows writes other entries. A transaction that
            has read in such a range conflicts.
        config: the version of the membership by which the rights of its user were last checked; 0 if they were checked
            statement by statement alone.
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
    config: int = 0


@dataclass(slots=True)
class Vote:
    """This node's promises about one transaction. Durable before any answer that rests on it leaves.

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
        version: the number of changes before; the cluster was founded with 0.
        members: by name.
        cluster_id: the random id that the cluster got at its founding.
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
    # The journal has its own types for members: readers of it need not have the core.
    members = tuple(MemberSaid(m.node, m.address, m.voter, m.store) for m in membership.members.values())
    cluster = membership.cluster_id, membership.level, membership.retired, membership.users, membership.former
    return pack_membership(MembershipSaid(membership.version, members, *cluster, membership.void))


def decode_membership(data: bytes) -> Membership:
    """Return the membership that ``encode_membership`` wrote.

    Raises:
        EntryMalformedError: the bytes are not a membership.
    """
    said = read_membership(data)
    members = {one.node: Member(*one) for one in said.members}
    later = said.cluster_id, said.level, said.retired, said.users, said.former, said.void
    return Membership(said.version, members, *later)


@value
class Joining:
    """The facts told to a new node when the cluster took it in; its own file lacks them until it has caught up.

    Attributes:
        membership: the members at that moment, the new node among them.
        vector: the cluster's commits at that moment: with all of them applied, the node has caught up.
    """

    membership: Membership
    vector: Vector


def encode_joining(joining: Joining) -> bytes:
    """Return the bytes in which a new node's file keeps a ``Joining``."""
    return cbor2.dumps([encode_membership(joining.membership), canonical(joining.vector)])


def decode_joining(data: bytes) -> Joining:
    """Return the value that ``encode_joining`` wrote.

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
    """The facts that a node finds in its own file when it starts.

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
        settled: the clock up to which no transaction was to be decided any more, as known before the restart.
        schema: version of the schema in force.
        scheduled: the schema change that is applied and not activated yet.
        alarms: the alarms that its file keeps, by name (``health``).
        blocked: decided transactions that fit nowhere, and are not applied before an operator has decided.
        pieces: the pieces of transactions that are saved: sha256 -> size.
        named: the pieces that a vote is kept in, instead of its transaction's body.
        lost: the reason why the file lacks some promise that was made with it; empty if it lacks none.
        joining: the facts told to a new node when it was taken in; None once it has caught up.
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
