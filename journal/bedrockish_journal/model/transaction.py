"""A transaction as its leader describes it: the content of BEGIN, the record of the voters, the body in the journal.

The leader encodes a transaction once. All other nodes keep and forward the same bytes, so an equal hash proves that
all messages are about the same transaction.
"""

from dataclasses import field
from operator import itemgetter
from typing import NamedTuple

import cbor2

from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import CLOCK_READ_LIMIT
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector, canonical, check

LONG_BYTES = 1 << 17  # a byte string above this size is worth the work of avoiding a copy
DIGEST_BYTES = 16
VERSION = 1
"""The version of a transaction's form, and the highest that is read. A field that changes what a transaction does is
appended together with a new version, which is written only where the field is used, and only when the cluster's level
says that all members read it: a program that does not know the version refuses the whole transaction.
"""

ROWS, SCHEMA, MEMBERS = "rows", "schema", "members"
KINDS = frozenset({ROWS, SCHEMA, MEMBERS})
ISOLATIONS = ("serializable", "snapshot")
_first = itemgetter(0)


class Txid(NamedTuple):
    """The temporary name of a transaction: its clock and its leader. The name does not determine its tick.

    Txids sort by clock, then leader, which is the total order of the change feed.
    """

    clock: int
    leader: str

    def __str__(self) -> str:
        return f"{self.leader}-{self.clock:x}"


def parse_txid(text: str) -> Txid:
    """Return the txid of its printed form, ``A-64f0c3a1b2c00000``.

    Raises:
        EntryMalformedError: the text is not a txid.
    """
    leader, dash, clock = text.rpartition("-")
    try:
        if dash and leader:
            return Txid(int(clock, 16), leader)
    except ValueError:
        pass
    raise EntryMalformedError(f"{text!r} is not a transaction id such as A-64f0c3a1b2c00000")


def check_txid(value: object) -> Txid:
    """Return a decoded pair as a txid.

    Raises:
        EntryMalformedError: ``value`` is not a txid.
    """
    if isinstance(value, list | tuple) and len(value) == 2:
        clock, leader = value
        if type(clock) is int and 0 <= clock < CLOCK_READ_LIMIT and isinstance(leader, str):
            return Txid(clock, leader)
    raise EntryMalformedError(f"a transaction id should be a clock and a leader, not {value!r:.80}")


def head(kind: int, count: int) -> bytes:
    """Return the canonical head of a CBOR item; ``kind`` is 2 for a byte string, 3 for a text and 4 for an array."""
    if count < 24:
        return bytes([kind << 5 | count])
    size = next(size for size in (1, 2, 4, 8) if count < 1 << 8 * size)
    return bytes([kind << 5 | 23 + size.bit_length()]) + count.to_bytes(size)


def pack(fields: list[object]) -> bytes:
    """Return the CBOR of a list, copying a long byte string once; the encoder would copy it several times."""
    for item in fields:
        if type(item) is bytes and len(item) > LONG_BYTES:
            break
    else:
        return cbor2.dumps(fields)
    packed = [head(4, len(fields))]
    for item in fields:
        packed += (head(2, len(item)), item) if type(item) is bytes else (cbor2.dumps(item),)
    return b"".join(packed)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise EntryMalformedError(f"there should be a list, not {type(value).__name__}")
    return value


def _shares(value: object, commands: int) -> tuple[int, ...]:
    found = tuple(_list(value))
    if not found:
        return ()  # unknown counts, which are encoded only before a later field that is not empty
    if len(found) != commands or not all(type(count) is int and 0 <= count < CLOCK_READ_LIMIT for count in found):
        raise EntryMalformedError(f"a transaction of {commands} commands should say how many changes each made")
    return found  # type: ignore[return-value]


def _users(value: object, commands: int) -> tuple[str, ...]:
    found = tuple(_list(value))
    if len(found) != commands or not all(isinstance(user, str) for user in found) or not any(found):
        raise EntryMalformedError(
            f"a transaction of {commands} commands should name a user of each, and at least one that is not empty"
        )
    return found  # type: ignore[return-value]


def _digests(value: object, commands: int) -> tuple[bytes, ...]:
    found = _list(value)
    if len(found) == commands:
        for one in found:  # most transactions have one digest, for which a generator costs more than this loop
            if type(one) is not bytes or len(one) != DIGEST_BYTES:
                break
        else:
            return tuple(found)  # type: ignore[arg-type]
    raise EntryMalformedError(
        f"a transaction of {commands} commands should have a digest of {DIGEST_BYTES} bytes for each of them"
    )


def _joined(value: object) -> tuple[tuple[str, bytes], ...]:
    found = []
    for pair in _list(value):
        match pair:
            case [str(command), bytes(result)]:
                found.append((command, result))
            case _:
                raise EntryMalformedError("a joined command of a transaction should be an id and a result")
    return tuple(found)


@value
class Transaction:
    """A transaction X that was executed and is not yet committed."""

    txid: Txid  # the temporary name of X; ``txid.clock`` is clock(X), fixed at BEGIN
    base: Vector  # the leader's applied vector at the snapshot X ran on; becomes the entry's ``after``
    safe: int  # the leader's safe time at that snapshot
    schema: int  # version of the schema that X ran on
    config: int  # version of the membership in base(X), by which the quorum of X is counted
    command: str  # the client's id of the command; two executions of one command always conflict
    isolation: str  # ``serializable`` or ``snapshot``
    kind: str  # ``rows``, ``schema`` or ``members``: the form of ``changes``
    access_set: AccessSet  # the reads and writes of X
    changes: bytes  # encoded row changes, schema statements or membership
    result: bytes  # the encoded answer to the client; kept so that a retry gets the same answer
    # Transactions that the leader has given up, and whose rollback was not yet known to be accepted by a majority; a
    # node that approves or holds X accepts their rollback first.
    rollbacks: tuple[Txid, ...] = ()
    # For a schema change, the clock from which on it is in force: transactions with a smaller clock run on the schema
    # before it, all others on its schema. 0: in force from its commit on, as in journals of earlier versions.
    activates: int = 0
    # Further commands that were executed after ``command``, in order, in the same transaction, each with the answer to
    # its client.
    joined: tuple[tuple[str, bytes], ...] = ()
    # The number of ``changes`` that each command made, in the order of the commands. Empty if there is one command, or
    # if the counts are unknown: earlier releases did not record them, and the changes of several commands to tables
    # with VIRTUAL columns are merged.
    shares: tuple[int, ...] = ()
    # The authenticated user of each command, in the order of the commands; an empty text for a client that did not have
    # to authenticate. Empty if no client had to.
    users: tuple[str, ...] = ()
    # The digest of each command's request, in the order of the commands; empty in entries of a release that did not
    # keep them.
    digests: tuple[bytes, ...] = ()
    body: bytes = field(repr=False, default=b"")  # the canonical bytes of all fields above

    def __post_init__(self) -> None:
        if not self.body:
            object.__setattr__(self, "body", self._encode())

    @property
    def commands(self) -> tuple[str, ...]:
        """The ids of all commands of the transaction, in the order in which they were executed."""
        return (self.command, *map(_first, self.joined))

    def makers(self, count: int) -> tuple[str | None, ...]:
        """Return the id of the command behind each of the ``count`` changes; None for a change if it is unknown."""
        if not self.joined:
            return (self.command,) * count
        if not self.shares or sum(self.shares) != count:  # "journal verify" reports a wrong sum
            return (None,) * count
        return tuple(name for name, share in zip(self.commands, self.shares, strict=True) for _ in range(share))

    def user_of(self, command: str | None) -> str | None:
        """Return the user of a command of the transaction; None if the cluster had no users, or the command is None."""
        if not self.users or command is None:
            return None
        return dict(zip(self.commands, self.users, strict=True)).get(command) or None

    def digest_of(self, command: str) -> bytes:
        """Return the digest of the request of a command of the transaction; empty if it was not kept."""
        if not self.digests:
            return b""
        return dict(zip(self.commands, self.digests, strict=True)).get(command, b"")

    def result_of(self, command: str) -> bytes:
        """Return the encoded answer to the client of a command of the transaction."""
        return self.result if command == self.command else dict(self.joined)[command]

    def _later_fields(self) -> list[object]:
        """Return the fields from the 15th on, without empty fields at the end."""
        joined = [[command, result] for command, result in self.joined]
        fields: list[object] = [self.activates, joined, self.shares, self.users, self.digests]
        while fields and not fields[-1]:
            fields.pop()
        return fields

    def _encode(self) -> bytes:
        return pack(
            [
                VERSION,
                self.txid.clock,
                self.txid.leader,
                canonical(self.base),
                self.safe,
                self.schema,
                self.config,
                self.command,
                self.isolation,
                self.kind,
                self.access_set.pack(),
                self.changes,
                self.result,
                [*map(list, self.rollbacks)],
                *self._later_fields(),
            ]
        )


def decode_transaction(body: bytes) -> Transaction:
    """Return the transaction of its canonical bytes.

    Raises:
        EntryMalformedError: the bytes are not a transaction, or are of a version that this program does not know.
    """
    try:
        packed = cbor2.loads(body)
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise EntryMalformedError(f"these {len(body)} bytes are not a transaction: {error}") from error
    if isinstance(packed, list) and packed and type(packed[0]) is int and packed[0] > VERSION:
        raise EntryMalformedError(
            f"this transaction has version {packed[0]}, and this program reads versions up to {VERSION}; install the "
            "release of the node that wrote it"
        )
    if not isinstance(packed, list) or (count := len(packed)) < 14:
        raise EntryMalformedError("a transaction should be a list of 14 fields")
    version, clock, leader, base, safe, schema, config, command = packed[:8]
    isolation, kind, access_set, changes, result = packed[8:13]
    activates = packed[14] if count > 14 else 0
    numbers = (version, clock, safe, schema, config, activates)
    if {*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) >= CLOCK_READ_LIMIT:
        raise EntryMalformedError(
            f"version, clocks and schema of a transaction should be integers from 0 to {CLOCK_READ_LIMIT - 1}"
        )
    if not (type(leader) is type(command) is type(isolation) is type(kind) is str and kind in KINDS):
        raise EntryMalformedError(f"a transaction cannot be of kind {kind!r} or have fields that are not text")
    if type(changes) is not bytes or type(result) is not bytes:
        raise EntryMalformedError("changes and result of a transaction should be bytes")
    # An empty list is not passed to a function: most later fields are empty, and calls take time.
    joined = _joined(packed[15]) if count > 15 and packed[15] != [] else ()
    return Transaction(
        Txid(clock, leader),
        check(base),
        safe,
        schema,
        config,
        command,
        isolation,
        kind,
        AccessSet.unpack(access_set),
        changes,
        result,
        tuple(map(check_txid, _list(packed[13]))) if packed[13] != [] else (),
        activates,
        joined,
        _shares(packed[16], 1 + len(joined)) if count > 16 and packed[16] != [] else (),
        # Empty fields at the end are left out, so the users can be empty only if the digests follow them.
        _users(packed[17], 1 + len(joined)) if count == 18 or (count > 18 and packed[17] != []) else (),
        _digests(packed[18], 1 + len(joined)) if count > 18 else (),
        bytes(body),
    )
