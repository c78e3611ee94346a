"""The messages between nodes: one frozen dataclass for each kind, and their form on the wire.

On the wire a message is a CBOR array: the number of its kind, then its fields in order. An unknown kind is refused
with a typed error.

Nodes of two releases speak with each other while a cluster is upgraded. How to change the messages:

* A field: append it at the end, with a default. An older program ignores the field; in messages of an older program it
  has the default. Never change, move or remove a field that an older level reads. Code that needs every member to read
  the field asks ``state.roster.level >= N`` first, where N is the level of the release that adds it.
* A kind: take the next number in ``WIRE`` and enter the level in ``SINCE``. While the cluster is below that level, no
  node may send the kind (``Outbox.send`` asserts this), and each node behaves like the older release.
* ``levels.LEVEL`` is one higher in a release than in the one before it; ``tests/core/test_levels.py`` lists the kinds
  and fields of the earlier levels.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from enum import IntEnum
from itertools import repeat
from typing import Any

import cbor2

from bedrockish.common.trace_context import read_traceparent
from bedrockish.core.protocol.health import Mode
from bedrockish.core.protocol.records import ENDED
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import CLOCK_READ_LIMIT
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.levels import LEVEL, OLDEST
from bedrockish_journal.model.transaction import Transaction, Txid, check_txid, decode_transaction, pack
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector, check

Reserved = tuple[int, int, bytes] | None

DIGEST_BYTES = 32
PIECE_BYTES_MAX = 1 << 20  # the largest piece that a peer may offer or send


class Reason(IntEnum):
    """Why a voter rejects a transaction."""

    FOR = 1  # the transaction conflicts with another one
    TOO_LATE = 2  # the transaction's clock is at or below the voter's closed time
    TOO_OLD = 3  # the transaction's snapshot is older than the conflict window
    AHEAD = 4  # the transaction's clock is further ahead of the voters' wall clocks than allowed
    PROMISED = 5  # the voter has promised the transaction to a recovery
    BARRIER = 6  # a membership change goes first; only releases up to 0.2.1 send it
    MEMBERS = 7  # the transaction was begun under another membership
    DIFFERS = 9  # the transaction's before-images differ from the voter's rows
    FORGOTTEN = 8  # the id of one of its commands is older than the voter's memory of commands


class Standing(IntEnum):
    """The answer of a voter that a recovery asks to hold a transaction."""

    HELD = 1  # the voter holds it
    NEVER = 2  # no quorum can have approved it
    BLOCKED = 3  # the voter cannot hold it now, for example because a conflicting transaction is pending there


@value
class Begin:
    """A leader asks for approval. ``body`` is the transaction. ``trace`` is the ``traceparent`` of a recorded request
    of the transaction; empty if none is recorded."""

    body: bytes
    trace: str = ""


@value
class Approve:
    """A voter approves a transaction; ``tick`` is the voter's own tick."""

    txid: Txid
    tick: int
    clock: int


@value
class Reject:
    """A voter rejects a transaction, and stores nothing about it. With the reason ``FOR``, ``other`` is a transaction
    that conflicts with it.

    ``key`` is a key on which the two conflict, for the error text.
    """

    txid: Txid
    reason: int
    other: Txid | None
    key: bytes
    clock: int


@value
class Commit:
    """A transaction is committed. ``body`` is left out for peers that have it; ``hash`` is the hash of the entry."""

    label: bytes
    body: bytes | None
    hash: bytes
    clock: int


@value
class Rollback:
    """A leader rolls its transaction back: accept(abort) at ballot 1."""

    txid: Txid
    clock: int


@value
class Recover:
    """A recovering node asks all voters to promise ``ballot`` and to hold the transaction."""

    body: bytes
    ballot: int
    clock: int


@value
class Promise:
    """The answer to RECOVER: a promise to accept no lower ballot, and the facts that decide what to propose.

    ``accepted``: the highest (ballot, commit?) that the voter has accepted. ``blockers``: the bodies of conflicting
    transactions that are pending at the voter. ``ended``: the conflicting transactions whose outcome the voter knows or
    whose abort it has accepted. ``safe``: the voter's safe time; transactions up to it have ended, and are not named.
    """

    txid: Txid
    ballot: int
    standing: int
    accepted: tuple[int, bool] | None
    blockers: tuple[bytes, ...]
    ended: tuple[Txid, ...]
    clock: int
    safe: int


@value
class Accept:
    """A recovering node proposes to commit or to abort a transaction, at a ballot of 2 or more."""

    body: bytes
    ballot: int
    commit: bool
    clock: int


@value
class Accepted:
    """A voter has durably accepted the decision at a ballot (1: the leader's rollback)."""

    txid: Txid
    ballot: int
    clock: int


@value
class Refused:
    """A voter refuses a ballot, because it has promised a higher one."""

    txid: Txid
    promised: int
    clock: int


@value
class Outcome:
    """The outcome of a transaction; for a commit, ``leader`` and ``tick`` are its place in the journal."""

    txid: Txid
    commit: bool
    leader: str
    tick: int
    clock: int


@value
class Ask:
    """A question about the outcomes of transactions: ``txid``, and those in ``more``."""

    txid: Txid
    clock: int
    more: tuple[Txid, ...] = ()


@value
class Gossip:
    """A heartbeat with a node's applied vector, closed time and cut. ``wall_ms`` is its wall clock, in Unix time.

    ``holds``: the readers that still need the journal from a clock on, name -> (number of the reader's starts, clock).
    ``level``: the release level of its program, see ``levels``. ``cluster_id``: the cluster's id in its membership.
    ``mode``: its mode (``health.Mode``); a newer program may have modes that this one does not know. ``config``: the
    version of the membership that it has applied; ``applied`` leaves out a retired timeline if the receiver's own
    gossip shows that the receiver has applied the retirement. ``reserved``: the reservation of a request of the sender:
    its clock, its duration in ms, and its access set.
    """

    applied: Vector
    closed: int
    cut: int
    clock: int
    store: str
    batches: int
    wall_ms: int
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    level: int = OLDEST
    cluster_id: str = ""
    mode: int = Mode.SERVING
    config: int = 0
    reserved: Reserved = None


@value
class Fetch:
    """A request for entries of these timelines, from these ticks on."""

    wants: Vector
    limit: int


@value
class Entries:
    """Entries of timelines, in order: (prev, label, body) each."""

    entries: tuple[tuple[bytes, bytes, bytes], ...]
    clock: int


@value
class Check:
    """A strict read's question: does a committed or pending transaction outside ``vector`` write a key of its reads?"""

    read: int
    vector: Vector
    access_set: bytes
    clock: int


@value
class Checked:
    """The answer to CHECK: the conflicting transactions; without any, the read is valid at this voter."""

    read: int
    others: tuple[Txid, ...]
    clock: int


@value
class AskClock:
    """A request to a voter to move its clock up to ``clock``, and to answer with its own clock."""

    number: int
    clock: int


@value
class ToldClock:
    """The answer to ASK CLOCK: a clock that is at least the one in the request."""

    number: int
    clock: int


@value
class Removed:
    """The answer to FETCH for entries that the journal lacks, removed or damaged: the last such tick by timeline."""

    upto: Vector
    clock: int


@value
class Offer:
    """The names of a transaction's pieces, for a voter to fetch before its BEGIN; without pieces, the offer is over.

    ``number`` is the leader's number of the offer; each piece is (sha256, size). The voter keeps the pieces for a
    bounded time.
    """

    number: int
    pieces: tuple[tuple[bytes, int], ...]
    clock: int


@value
class Stored:
    """The answer to OFFER.

    ``stored``: whether all pieces are durable at the sender; if not, it has no room for them.
    """

    number: int
    stored: bool
    clock: int


@value
class Want:
    """A request for pieces, by their sha256."""

    pieces: tuple[bytes, ...]


@value
class Piece:
    """A requested piece; without ``data``, the sender no longer has it. A PIECE promises nothing and has no clock."""

    digest: bytes
    data: bytes | None


@value
class InPieces:
    """A large message, as the parts of its encoding: bytes, or the (sha256, size) of a piece, which is fetched."""

    parts: tuple[bytes | tuple[bytes, int], ...]


Message = (
    Begin
    | Approve
    | Reject
    | Commit
    | Rollback
    | Recover
    | Promise
    | Accept
    | Accepted
    | Refused
    | Outcome
    | Ask
    | Gossip
    | Fetch
    | Entries
    | Check
    | Checked
    | AskClock
    | ToldClock
    | Removed
    | Offer
    | Stored
    | Want
    | Piece
    | InPieces
)

Reader = Callable[[Any], Any]


class UnknownMessageError(EntryMalformedError):
    """Raised for a message of an unknown kind, which a newer version may have; the message is ignored."""


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:  # SQLite's integers are below 2^63
        raise EntryMalformedError(f"there should be a whole number below 2^63, not {value!r:.80}")
    return value


def _clock(value: Any) -> int:
    # A node whose clock moved up to the last values of 63 bits could give out no later one, and so never lead again.
    if type(value) is not int or not 0 <= value < CLOCK_READ_LIMIT:
        raise EntryMalformedError(f"there should be a clock, not {value!r:.80}")
    return value


def _ballot(value: Any) -> int:
    # Only a decided rollback is stored at the ballot ``ENDED``; a voter that promised it could never promise again.
    if _known_ballot(value) == ENDED:
        raise EntryMalformedError("a recovery cannot have the ballot of a decided rollback")
    return int(value)


def _known_ballot(value: Any) -> int:
    # Not ``isinstance``, because True is an int.
    if type(value) is not int or not 0 <= value <= ENDED:
        raise EntryMalformedError(f"there should be a ballot, not {value!r:.80}")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise EntryMalformedError(f"there should be bytes, not {value!r:.80}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise EntryMalformedError(f"there should be text, not {value!r:.80}")
    return value


def _reason(value: Any) -> int:
    if value not in Reason.__members__.values():
        raise EntryMalformedError(f"there should be a reason to reject, not {value!r:.80}")
    return int(value)


def _trace(value: Any) -> str:
    return read_traceparent(value) if value else ""


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise EntryMalformedError(f"there should be true or false, not {value!r:.80}")
    return value


def _optional(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def _holds(value: Any) -> Any:
    if not isinstance(value, dict):
        raise EntryMalformedError(f"there should be a map of holds, not {value!r:.80}")
    return {_text(name): _several(_whole, _whole)(hold) for name, hold in value.items()}


def _many(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise EntryMalformedError(f"there should be a list, not {value!r:.80}")
        return tuple(reader(item) for item in value)

    return read


def _several(*readers: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise EntryMalformedError(f"there should be a list of {len(readers)} values, not {value!r:.80}")
        return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

    return read


def _name(value: Any) -> tuple[bytes, int]:
    digest, size = _several(_bytes, _whole)(value)
    # The size is known before the piece: the bounds on stored and requested bytes use it.
    if len(digest) != DIGEST_BYTES or not 0 < size <= PIECE_BYTES_MAX:
        raise EntryMalformedError(f"there should be a piece's sha256 and its size, not {value!r:.80}")
    return digest, size


def _part(value: Any) -> bytes | tuple[bytes, int]:
    return value if type(value) is bytes else _name(value)


_W, _B, _T, _X, _V, _C = _whole, _bytes, _text, check_txid, check, _clock

WIRE: dict[int, tuple[type[Message], tuple[Reader, ...]]] = {
    1: (Begin, (_B, _trace)),
    2: (Approve, (_X, _W, _C)),
    3: (Reject, (_X, _reason, _optional(_X), _B, _C)),
    4: (Commit, (_B, _optional(_B), _B, _C)),
    5: (Rollback, (_X, _C)),
    6: (Recover, (_B, _ballot, _C)),
    7: (Promise, (_X, _ballot, _W, _optional(_several(_known_ballot, _flag)), _many(_B), _many(_X), _C, _C)),
    8: (Accept, (_B, _ballot, _flag, _C)),
    9: (Accepted, (_X, _ballot, _C)),
    10: (Refused, (_X, _known_ballot, _C)),
    11: (Outcome, (_X, _flag, _T, _W, _C)),
    12: (Ask, (_X, _C, _many(_X))),
    13: (Gossip, (_V, _C, _C, _C, _T, _W, _W, _holds, _W, _T, _W, _W, _optional(_several(_C, _W, _B)))),
    14: (Fetch, (_V, _W)),
    15: (Entries, (_many(_several(_B, _B, _B)), _C)),
    16: (Check, (_W, _V, _B, _C)),
    17: (Checked, (_W, _many(_X), _C)),
    # 18 and 19 are not reused: release 0.1.0 forwarded commands with them.
    20: (AskClock, (_W, _C)),
    21: (ToldClock, (_W, _C)),
    22: (Removed, (_V, _C)),
    23: (Offer, (_W, _many(_name), _C)),
    24: (Stored, (_W, _flag, _C)),
    25: (Want, (_many(_B),)),
    26: (Piece, (_B, _optional(_B))),
    27: (InPieces, (_many(_part),)),
}
SINCE: dict[type[Message], int] = {}
"""The first level that reads a kind, for the kinds that level ``OLDEST`` does not read."""

NUMBERS = {cls: number for number, (cls, _) in WIRE.items()}
_NAMES = {cls: tuple(field.name for field in fields(cls)) for cls in NUMBERS}
_REQUIRED = {
    cls: sum(each.default is MISSING and each.default_factory is MISSING for each in fields(cls)) for cls in NUMBERS
}


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    cls = type(message)
    return pack([NUMBERS[cls], *map(getattr, repeat(message), _NAMES[cls])])


@value
class Whole:
    """An assembled message, and its decoded transaction; None if the message has none, or a malformed one."""

    message: Message
    transaction: Transaction | None


def read_access_set(data: bytes) -> AccessSet:
    """Return the access set in a CHECK or in the reservation of a GOSSIP.

    Raises:
        EntryMalformedError: the bytes are not an access set.
    """
    try:
        return AccessSet.unpack(cbor2.loads(data))
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise EntryMalformedError(f"these {len(data)} bytes are not an access set: {error}") from error


def read_whole(data: bytes) -> Whole | None:
    """Return a large message and the transaction in it; None if it is malformed. A thread may call this."""
    try:
        message = decode(data)
    except EntryMalformedError:
        return None
    body = message.body if isinstance(message, Begin | Recover | Accept) else None
    try:
        return Whole(message, None if body is None else decode_transaction(body))
    except EntryMalformedError:
        # The core decodes the message again and reports the error with the peer, which a thread does not know.
        return Whole(message, None)


def decode(data: bytes) -> Message:
    """Decode a message. Trailing fields that an older release does not send have their defaults.

    Raises:
        UnknownMessageError: this version does not know the message's kind.
        EntryMalformedError: the bytes are not a message.
    """
    try:
        packed = cbor2.loads(data)
    except Exception as error:  # cbor2 raises any error of the types (dates, decimals, sets) that it builds for tags
        raise EntryMalformedError(f"these {len(data)} bytes are not a message: {error}") from error
    if not isinstance(packed, list) or not packed or type(packed[0]) is not int:
        raise EntryMalformedError(f"a message is a list that begins with a number, not {packed!r:.60}")
    # The caller ignores this error and keeps the link: a later release may send messages that this one does not need.
    if packed[0] not in WIRE:
        raise UnknownMessageError(f"level {LEVEL} knows no message of kind {packed[0]}")
    cls, readers = WIRE[packed[0]]
    # The first item is the kind, so there must be at least one item more than there are fields without a default.
    if len(packed) <= _REQUIRED[cls]:
        raise EntryMalformedError(f"a {cls.__name__} has {_REQUIRED[cls]} fields, this one {len(packed) - 1}")
    found = []
    # Further fields, of a later release, are ignored; missing fields have their defaults.
    for name, reader, item in zip(_NAMES[cls], readers, packed[1:], strict=False):
        try:
            found.append(reader(item))
        except EntryMalformedError as error:
            raise EntryMalformedError(f"{name} of a {cls.__name__}: {error}") from error
    return cls(*found)
