"""An entry: one commit, at its place in its leader's timeline.

``hash = sha256(prev + label + body)``. All three are stored as they are hashed, so that an auditor can recompute a
chain in SQL (``sha2(concat(prev, label, body), 256)``) without decoding anything.
"""

from dataclasses import field
from hashlib import sha256
from typing import NamedTuple

import cbor2

from bedrockish_journal.model.changes import decode_changes
from bedrockish_journal.model.clock import CLOCK_READ_LIMIT
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import ISOLATIONS, Transaction, Txid, decode_transaction
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector, check

VERSION = 1
GENESIS = bytes(32)  # ``prev`` of the first entry of every timeline


@value
class Entry:
    """A commit, at its place in a timeline."""

    leader: str  # the entry's timeline, named after the only node that appends to it
    tick: int  # the place of the entry in the timeline: 1, 2, 3, …
    # The gist's partial vector: for each approver its own tick when it approved (the leader: this tick). For an adopted
    # entry: each voter that accepted the decision, with the last tick of its timeline that the adopter had applied.
    quorum: Vector
    transaction: Transaction  # the committed transaction; ``transaction.base`` is the entry's ``after``
    adopted_from: str | None  # the leader that began the transaction, if another node committed it; else None
    prev: bytes  # hash of the entry before it in the timeline
    label: bytes = field(repr=False, default=b"")  # canonical bytes of (leader, tick, txid, quorum, adopted_from)
    hash: bytes = field(repr=False, default=b"")  # sha256 over prev, label and the transaction's body

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self._encode_label())
        if not self.hash:
            object.__setattr__(self, "hash", entry_hash(self.prev, self.label, self.transaction.body))

    def _encode_label(self) -> bytes:
        txid = self.transaction.txid
        quorum = dict(sorted(self.quorum.items()))
        return cbor2.dumps([VERSION, self.leader, self.tick, txid.clock, txid.leader, quorum, self.adopted_from])

    @property
    def txid(self) -> Txid:
        """The temporary name under which the transaction was voted on."""
        return self.transaction.txid

    @property
    def after(self) -> Vector:
        """The vector that must be applied before this entry: its causal dependencies."""
        return self.transaction.base

    @property
    def place(self) -> tuple[str, int]:
        """Leader and tick."""
        return self.leader, self.tick


def entry_hash(prev: bytes, label: bytes, body: bytes) -> bytes:
    """Return the hash of an entry. Every hash of an entry is computed here."""
    digest = sha256(prev)
    digest.update(label)
    digest.update(body)
    return digest.digest()


class Label(NamedTuple):
    """The fields that an entry adds to its transaction: its place and its approvers."""

    leader: str
    tick: int
    txid: Txid
    quorum: Vector
    adopted_from: str | None
    packed: bytes  # as it is stored, sent and hashed


def decode_label(packed: bytes) -> Label:
    """Return the label of its canonical bytes.

    Raises:
        EntryMalformedError: the bytes are not a label, or are a label of a version that this program does not know.
    """
    try:
        fields = cbor2.loads(packed)
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise EntryMalformedError(f"these {len(packed)} bytes are not a label: {error}") from error
    if not isinstance(fields, list) or len(fields) < 7:
        raise EntryMalformedError("a label should be a list of 7 fields")
    version, leader, tick, clock, origin, quorum, adopted_from = fields[:7]
    if type(version) is int and version > VERSION:
        raise EntryMalformedError(
            f"this entry has version {version}, and this program reads versions up to {VERSION}; install the release "
            "of the node that wrote it"
        )
    if type(version) is not int or type(leader) is not str or type(tick) is not int or tick < 1:
        raise EntryMalformedError(f"a label cannot be at {leader!r} {tick!r}")
    if type(clock) is not int or not 0 <= clock < CLOCK_READ_LIMIT or type(origin) is not str:
        raise EntryMalformedError(f"a label should name a transaction, not {clock!r} of {origin!r}")
    if adopted_from is not None and type(adopted_from) is not str:
        raise EntryMalformedError(f"a commit cannot be adopted from {adopted_from!r}")
    return Label(leader, tick, Txid(clock, origin), check(quorum, zeros=True), adopted_from, bytes(packed))


def decode_entry(prev: bytes, label: bytes, body: bytes) -> Entry:
    """Put an entry together from the three byte strings that are stored, sent and hashed.

    Raises:
        EntryMalformedError: the bytes are not an entry, or label and body belong to different transactions.
    """
    return label_entry(prev, decode_label(label), decode_transaction(body))


def label_entry(prev: bytes, label: Label, transaction: Transaction) -> Entry:
    """Put an entry together from its label and its transaction.

    Raises:
        EntryMalformedError: the label belongs to another transaction, or ``prev`` is not a hash.
    """
    if label.txid != transaction.txid:
        raise EntryMalformedError(f"the label {label.leader}{label.tick} is of {label.txid}, not of {transaction.txid}")
    if type(prev) is not bytes or len(prev) != 32:
        raise EntryMalformedError("prev should be a hash of 32 bytes")
    return Entry(label.leader, label.tick, label.quorum, transaction, label.adopted_from, prev, label.packed)


def wrong_fields(transaction: Transaction) -> str | None:
    """Return the fault of a transaction's isolation, or of its counts of changes by command; None if both are right.

    The text is the end of a sentence.
    """
    if transaction.isolation not in ISOLATIONS:
        return f"says that its isolation is {transaction.isolation!r}, and there is {' and '.join(ISOLATIONS)}"
    if not transaction.shares:
        return None
    try:
        count = len(decode_changes(transaction.changes))
    except (EntryMalformedError, RecursionError, TypeError) as error:
        return f"has changes that cannot be read: {error}"
    said = sum(transaction.shares)
    return None if said == count else f"says that its commands made {said} changes, and has {count}"
