"""The plain values that the core and its driver exchange: executed requests, votes, and the contents of a node's file.

The engine executes a request and returns a ``Prepared``; the core makes a ``Transaction`` of it. A ``Vote`` has a
node's promises about a transaction of any leader; ``Recovered`` has the facts in a node's file at the start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import cbor2

from bedrockish.api.requests import NOTHING
from bedrockish.core.protocol.health import Alarm
from bedrockish_journal.model.access_set import AccessSet, Range
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import Membership, pack_membership, read_membership
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector, canonical, check

ENDED = 1 << 62  # the ballot at which a decided rollback is stored: above every ballot of a recovery
FORGOTTEN = Txid(0, "")  # in place of the transaction of a command whose id is older than a node's memory of commands


@value
class Prepared:
    """The result of executing a request, before any voter has approved it."""

    base: Vector  # the applied vector of its snapshot
    schema: int  # version of the schema that it ran on
    readonly: bool  # whether it only read; then ``result`` is the answer and ``changes`` is empty
    kind: str  # ``rows``, ``schema`` or ``members``
    access_set: AccessSet  # the keys and ranges that it read and wrote
    changes: bytes  # encoded changes (see ``bedrockish_journal.model.changes``)
    result: bytes  # encoded results (see ``bedrockish.api.requests``)
    # The value that ``transaction_clock()`` returned in it, later than every commit in ``base``; 0 without such a call.
    clock: int = 0
    # The commands that were executed after this one, on top of its changes, each with its encoded results.
    joined: tuple[tuple[str, bytes], ...] = ()
    shares: tuple[int, ...] = ()  # the number of changes of each command, its own first; empty if unknown
    # The user of each command, its own first; empty if it is the only command, or none has a user.
    users: tuple[str, ...] = ()
    # The digest of each command's request, its own first; empty if it is the only command.
    digests: tuple[bytes, ...] = ()
    # The least delay from the commit of a schema change to its activation: the time that nodes need to build an index
    # online.
    delay_ms: int = 0
    # The written ranges that stand for many entries of an index. Only a transaction that reads in such a range counts
    # as a conflict: two writers of one row conflict by the row's key, and writers of different rows write different
    # entries.
    spans: tuple[Range, ...] = ()
    # The version of the membership by which the rights of its user were last checked; 0 if they were checked statement
    # by statement alone.
    config: int = 0
    # Whether it read tables of the cluster itself, such as the journal. Every commit adds rows to them, and no
    # transaction has keys of these rows, so no conflict test finds what such a read has missed.
    reads_system: bool = False


NO_KEYS = AccessSet()


def only_read(base: Vector, schema: int, access_set: AccessSet = NO_KEYS, *, reads_system: bool = False) -> Prepared:
    """Return an execution that has only read these keys, without results: for example, the reads behind an error."""
    return Prepared(dict(base), schema, True, ROWS, access_set, b"", NOTHING, reads_system=reads_system)


@dataclass(slots=True)
class Vote:
    """This node's promises about one transaction. Durable before any answer that depends on it leaves."""

    txid: Txid
    # The transaction itself, so that any voter can finish it; None if only its rollback was received.
    transaction: Transaction | None
    # Whether the transaction is approved, or held for a recovery; until its outcome is known, it is *pending*.
    held: bool = False
    promised: int = 0  # the highest ballot promised (0: none; 1: its leader's rollback; 2 and above: recoveries)
    accepted: tuple[int, bool] | None = None  # the highest (ballot, commit?) accepted, or None


@value
class Joining:
    """The facts that a new node gets when it is added; its own file lacks them until it has caught up."""

    membership: Membership  # the members at that moment, the new node among them
    vector: Vector  # the cluster's commits at that moment; when all of them are applied, the node has caught up


def encode_joining(joining: Joining) -> bytes:
    """Return the bytes of a ``Joining`` in a new node's file."""
    return cbor2.dumps([pack_membership(joining.membership), canonical(joining.vector)])


def decode_joining(data: bytes) -> Joining:
    """Return the value that ``encode_joining`` wrote.

    Raises:
        EntryMalformedError: the bytes are not a ``Joining``.
    """
    try:
        membership, vector = cbor2.loads(data)
        return Joining(read_membership(membership), check(vector))
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise EntryMalformedError(f"these {len(data)} bytes are not the record of a join: {error}") from error


@value
class Recovered:
    """The facts in a node's file when it starts."""

    node: str  # the name of the node
    store: str  # the random id of the file
    membership: Membership  # the membership in force
    applied: Vector = field(default_factory=dict)  # the last applied tick of each timeline
    heads: Mapping[str, bytes] = field(default_factory=dict)  # the hash of the last applied entry of each timeline
    # An iterator of the recent entries whose access sets the conflict tests need, newest last: all entries
    # that are not known to be settled, and as many settled entries as can be read in a moment.
    window: Iterable[Entry] = ()
    votes: tuple[Vote, ...] = ()  # every stored vote
    ceiling: int = 0  # the clock never went above this before the restart
    cut: int = 0  # the highest cut that was ever announced (section 6 of the protocol)
    batches: int = 0  # the number of durable batches of the file
    safe: int = 0  # the stored safe time
    joining: Joining | None = None  # the facts that a new node got when it was added; None once it has caught up
    removed: Vector = field(default_factory=dict)  # the last tick of each timeline that was removed from the journal
    # Readers that still need the journal: how often each began, and the clock from which on it needs the journal.
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    schema: int = 0  # version of the schema in force
    scheduled: Transaction | None = None  # the schema change that is applied and not activated yet
    # The saved pieces of transactions: sha256 -> size.
    pieces: Mapping[bytes, int] = field(default_factory=dict)
    # The pieces that a vote names instead of containing the transaction's body.
    named: Mapping[Txid, tuple[bytes, ...]] = field(default_factory=dict)
    lost: str = ""  # the reason why the file lacks a promise of this node; empty if it lacks none
    alarms: Mapping[str, Alarm] = field(default_factory=dict)  # the stored alarms, by name (``health``)
    # Decided transactions that no node can apply, and that wait for an operator's decision.
    blocked: frozenset[Txid] = frozenset()
    settled: int = 0  # the stored clock up to which no transaction can be decided any more
