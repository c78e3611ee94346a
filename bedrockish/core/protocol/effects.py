"""The effects that a node asks its driver for, in order.

The contract of every driver: perform the effects of a step in order. Every effect that writes (``Persist``, ``Forget``,
``Keep``, ``Apply``, ``Activate``, ``SavePiece``, ``DropPieces``) goes into one open SQLite transaction; **a Send or a
Reply leaves only after everything written before it is durable**. The core itself behaves as if its disk were instant,
and this rule makes that true for every observer outside.
"""

from bedrockish.api.requests import Answer
from bedrockish.core.protocol.messages import Message
from bedrockish.core.protocol.pieces import Part
from bedrockish.core.protocol.records import Membership, Vote
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector


@value
class Send:
    """Say this to a peer, if it is up; a message to a peer that is down may be dropped."""

    peer: str
    message: Message


@value
class Reply:
    """Answer a client."""

    request_id: int
    answer: Answer | BedrockishError


@value
class NewerTold:
    """Answer to ``NewerAsked``: False if a majority knows of nothing outside that state, so that its reads are valid.

    True says that there may be something: these requests have to be submitted.
    """

    number: int
    may_be: bool


@value
class Execute:
    """Execute the client's request on the database as it is now and step ``Executed``.

    ``clock`` is the value of ``transaction_clock()`` in it; if that is called and it is 0, step ``ClockWanted``.
    If the command is in the journal already, answer from there and step ``Dropped``, or ``Decided`` if it is a schema
    change that is not activated yet; if it fails, step ``Failed``.
    ``group`` are requests that may be executed after it, one on top of the other, in the same transaction: as many of
    them, from the first on, as are done in a short time and without an error. None at all is right, too.
    """

    request_id: int
    clock: int = 0
    group: tuple[int, ...] = ()


@value
class Persist:
    """Keep this vote (insert or replace).

    ``parts``, if given, are the body of its transaction as bytes and pieces that were saved: keep these instead of it.
    """

    vote: Vote
    parts: tuple[Part, ...] | None = None


@value
class Forget:
    """Drop the vote on this transaction."""

    txid: Txid


@value
class SavePiece:
    """Keep a piece of a transaction, of any leader, under its hash."""

    digest: bytes
    data: bytes


@value
class DropPieces:
    """Drop these pieces: no vote and no offer names them any more."""

    digests: tuple[bytes, ...]


@value
class Assemble:
    """Step ``Assembled`` with the bytes of these parts, some time later; the pieces named in them were saved.

    The core goes on in the time between, and drops none of these pieces before ``Assembled``.
    """

    peer: str
    parts: tuple[Part, ...]


@value
class Keep:
    """Keep something of the node's own.

    The numbers ``clock_ceiling``, ``cut``, ``safe`` and ``settled``; the reason ``lost``.
    """

    name: str
    value: int | str


@value
class KeepHold:
    """Keep from which clock on a reader needs the journal; ``times`` is how often the reader has started over."""

    name: str
    times: int
    clock: int


@value
class Apply:
    """Put an entry into the journal, and its changes into the tables unless it is the repeat of an applied one."""

    entry: Entry
    repeat: bool


@value
class Activate:
    """Run the statements of the schema change that waits for this, and step ``Activated``."""

    txid: Txid


@value
class SendEntries:
    """Send a peer the timelines it wants, from the journal, as far as ``limit`` bytes go."""

    peer: str
    wants: Vector
    limit: int


@value
class SendOutcome:
    """Tell a peer the outcome of a transaction by the journal: committed if it is there, else rolled back."""

    peer: str
    txid: Txid


@value
class SetMembers:
    """The membership changed: keep links to these."""

    membership: Membership


@value
class Malformed:
    """End the link on which a peer sent a message that cannot be true or read: nothing of it was taken.

    ``reason`` names the message and the field, for that peer and for the operator.
    """

    peer: str
    reason: str


@value
class Halt:
    """Stop this node: something that it received cannot be true of a sound cluster. ``reason`` is for the operator."""

    reason: str


Effect = (
    Send
    | Reply
    | NewerTold
    | Execute
    | Persist
    | Forget
    | SavePiece
    | DropPieces
    | Assemble
    | Keep
    | KeepHold
    | Apply
    | Activate
    | SendEntries
    | SendOutcome
    | SetMembers
    | Malformed
    | Halt
)
