"""What nodes say to each other: one frozen dataclass for each kind, and their form on the wire.

On the wire a message is a CBOR array: the number of its kind, then its fields in order. Further elements, of a newer
version, are ignored; an unknown kind is refused with a typed error.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from enum import IntEnum
from typing import Any

import cbor2

from journal.errors import EntryMalformedError
from journal.transaction import Txid, check_txid
from journal.value import value
from journal.vector import Vector, check


class Reason(IntEnum):
    """Why a voter rejects a transaction."""

    FOR = 1  # it conflicts with another one
    TOO_LATE = 2  # its clock is at or below what the voter has closed
    TOO_OLD = 3  # its snapshot is older than the conflict window
    AHEAD = 4  # its clock is further ahead of the wall than allowed
    PROMISED = 5  # somebody recovers it
    BARRIER = 6  # a membership change goes first
    MEMBERS = 7  # it was begun under another membership


class Standing(IntEnum):
    """What a voter says of a transaction that it is asked to hold."""

    HELD = 1
    NEVER = 2
    BLOCKED = 3


@value
class Begin:
    """A leader asks for approval. ``body`` is the transaction."""

    body: bytes


@value
class Approve:
    """A voter approves; ``tick`` is its own, as it stands in the gist's vectors."""

    txid: Txid
    tick: int
    clock: int


@value
class Reject:
    """A voter rejects, ``FOR`` another transaction or for another reason. A reject leaves no trace at the voter.

    ``key`` is the key on which the two meet, for the error that a person reads.
    """

    txid: Txid
    reason: int
    other: Txid | None
    key: bytes
    clock: int


@value
class Commit:
    """A commit at its place. ``body`` is left out for those who have it; ``hash`` is that of the entry."""

    label: bytes
    body: bytes | None
    hash: bytes
    clock: int


@value
class Rollback:
    """A leader gives its transaction up: accept(abort) at ballot 1."""

    txid: Txid
    clock: int


@value
class Recover:
    """Somebody who cannot get the outcome asks everybody to promise ``ballot`` and to hold the transaction."""

    body: bytes
    ballot: int
    clock: int


@value
class Promise:
    """The answer to RECOVER.

    ``accepted`` is the highest (ballot, commit?) accepted. ``blockers`` are the bodies of conflicting transactions
    pending here; ``ended`` the conflicting ones whose outcome is known here or whose abort was accepted.
    """

    txid: Txid
    ballot: int
    standing: int
    accepted: tuple[int, bool] | None
    blockers: tuple[bytes, ...]
    ended: tuple[Txid, ...]
    clock: int


@value
class Accept:
    """Accept a decision at a ballot of 2 or more."""

    body: bytes
    ballot: int
    commit: bool
    clock: int


@value
class Accepted:
    """A ballot (1: the leader's rollback) was accepted, and durably."""

    txid: Txid
    ballot: int
    clock: int


@value
class Refused:
    """A ballot was refused: a higher one is promised."""

    txid: Txid
    promised: int
    clock: int


@value
class Outcome:
    """How a transaction ended. For a commit, the entry follows or is fetched: ``leader`` and ``tick`` say where."""

    txid: Txid
    commit: bool
    leader: str
    tick: int
    clock: int


@value
class Ask:
    """What became of this transaction?"""

    txid: Txid
    clock: int


@value
class Gossip:
    """What a node has applied, closed and cut; also its sign of life. ``wall_ms`` is its wall clock, in Unix time.

    ``holds`` are the readers that still need the journal from a clock on: name -> (how often it was taken, clock).
    """

    applied: Vector
    closed: int
    cut: int
    clock: int
    store: str
    batches: int
    wall_ms: int
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@value
class Fetch:
    """Send me these timelines from these ticks on."""

    wants: Vector
    limit: int


@value
class Entries:
    """Entries of timelines, in order: (prev, label, body) each."""

    entries: tuple[tuple[bytes, bytes, bytes], ...]
    clock: int


@value
class Check:
    """Is anything committed or pending with you, outside ``vector``, that writes what I read? (a strict read)"""

    read: int
    vector: Vector
    footprint: bytes
    clock: int


@value
class Checked:
    """The answer to CHECK: the transactions that are; none means the read is valid here."""

    read: int
    others: tuple[Txid, ...]
    clock: int


@value
class Forward:
    """Run this command for one of my clients: it met a transaction of yours. ``body`` is the client's call.

    Each has a clock of its own, above that of the one before: it is taken once, also if it comes twice.
    """

    body: bytes
    clock: int


@value
class Forwarded:
    """What became of a forwarded command. ``body`` is the reply to the client."""

    command: str
    body: bytes
    clock: int


@value
class AskClock:
    """Move up to this clock, and tell me yours."""

    number: int
    clock: int


@value
class ToldClock:
    """The answer to ASK CLOCK, from a node whose clock is at least what was asked."""

    number: int
    clock: int


@value
class Removed:
    """The answer to FETCH when what is wanted was removed from the journal: the last tick removed of each timeline."""

    upto: Vector
    clock: int


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
    | Forward
    | Forwarded
    | AskClock
    | ToldClock
    | Removed
)

Reader = Callable[[Any], Any]


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise EntryMalformedError(f"there should be an unsigned 64-bit integer, not {value!r:.80}")
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
            raise EntryMalformedError(f"there should be {len(readers)} values, not {value!r:.80}")
        return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

    return read


_W, _B, _T, _X, _V = _whole, _bytes, _text, check_txid, check

WIRE: dict[int, tuple[type[Message], tuple[Reader, ...]]] = {
    1: (Begin, (_B,)),
    2: (Approve, (_X, _W, _W)),
    3: (Reject, (_X, _reason, _optional(_X), _B, _W)),
    4: (Commit, (_B, _optional(_B), _B, _W)),
    5: (Rollback, (_X, _W)),
    6: (Recover, (_B, _W, _W)),
    7: (Promise, (_X, _W, _W, _optional(_several(_W, _flag)), _many(_B), _many(_X), _W)),
    8: (Accept, (_B, _W, _flag, _W)),
    9: (Accepted, (_X, _W, _W)),
    10: (Refused, (_X, _W, _W)),
    11: (Outcome, (_X, _flag, _T, _W, _W)),
    12: (Ask, (_X, _W)),
    13: (Gossip, (_V, _W, _W, _W, _T, _W, _W, _holds)),
    14: (Fetch, (_V, _W)),
    15: (Entries, (_many(_several(_B, _B, _B)), _W)),
    16: (Check, (_W, _V, _B, _W)),
    18: (Forward, (_B, _W)),
    19: (Forwarded, (_T, _B, _W)),
    17: (Checked, (_W, _many(_X), _W)),
    20: (AskClock, (_W, _W)),
    21: (ToldClock, (_W, _W)),
    22: (Removed, (_V, _W)),
}
_NUMBER = {cls: number for number, (cls, _) in WIRE.items()}
_NAMES = {cls: tuple(field.name for field in fields(cls)) for cls in _NUMBER}


def encode(message: Message) -> bytes:
    """Return a message as it travels."""
    cls = type(message)
    return cbor2.dumps([_NUMBER[cls], *(getattr(message, name) for name in _NAMES[cls])])


def decode(data: bytes) -> Message:
    """Read a message.

    Raises:
        EntryMalformedError: the bytes are not a message, or of a kind that this version does not know.
    """
    try:
        packed = cbor2.loads(data)
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise EntryMalformedError(f"these {len(data)} bytes are not a message: {error}") from error
    if not isinstance(packed, list) or not packed or type(packed[0]) is not int or packed[0] not in WIRE:
        raise EntryMalformedError(f"this is not a message that version 1 knows: {packed!r:.60}")
    cls, readers = WIRE[packed[0]]
    if len(packed) <= len(readers):
        raise EntryMalformedError(f"a {cls.__name__} has {len(readers)} fields, this one {len(packed) - 1}")
    return cls(*(reader(item) for reader, item in zip(readers, packed[1:], strict=False)))
