"""The effects of a step, which the driver executes in order.

The contract of every driver: perform the effects of a step in order. Every effect that writes (``Persist``, ``Forget``,
``Keep``, ``KeepHold``, ``Apply``, ``Activate``, ``SavePiece``, ``DropPieces``) goes into one open SQLite transaction;
**a Send or a Reply leaves only after everything written before it is durable**. The core treats every write as durable
at once; this rule makes that true for every observer. The only exception is a Send that names, in ``early``, the facts
that must be durable before it leaves. To *step* an event is to pass it to ``Node.step``.
"""

from bedrockish.api.requests import Answer
from bedrockish.core.protocol.messages import Message
from bedrockish.core.protocol.pieces import Part
from bedrockish.core.protocol.records import Vote
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector


@value
class Early:
    """The facts that must be durable before a BEGIN leaves. Its leader's vote need not be (decision 36)."""

    clock: int  # the clock of the transaction: a restarted leader must not give it to another transaction
    # The last tick of the leader's own timeline in the base. If that commit were not durable, a crash could lose it,
    # and another commit could get its tick.
    tick: int

    def is_durable(self, ceiling: int, tick: int) -> bool:
        """Return whether these facts are durable.

        Args:
            ceiling: the durable ceiling of the node's clock.
            tick: the last durable tick of the node's own timeline.
        """
        return self.clock <= ceiling and self.tick <= tick


@value
class Send:
    """Send a message to a peer; a message to a peer that is down may be dropped.

    With ``early``, the message may leave as soon as these facts are durable, even before the writes of its step.
    """

    peer: str
    message: Message
    early: Early | None = None


@value
class Reply:
    """Answer a client."""

    request_id: int
    answer: Answer | BedrockishError


@value
class NewerAnswered:
    """The answer to ``NewerAsked``.

    ``may_exist``: whether a transaction outside the state of the reads may exist. If not, the reads are valid. If so,
    the driver has to submit the reads as requests.
    """

    number: int
    may_exist: bool


@value
class Execute:
    """Execute a client's request on the present database and step ``Executed``.

    ``clock`` is the value of ``transaction_clock()`` in the request; if the request calls it and ``clock`` is 0, step
    ``ClockWanted``. If the command is in the journal already, answer from the journal and step ``Dropped``, or
    ``Decided`` for a schema change that is not activated yet. If the execution fails, step ``Failed``.

    ``group``: further requests that may share the transaction, each executed on the changes of the one before. The
    driver executes them in order until one fails or the time for a group is over; it may execute none.
    """

    request_id: int
    clock: int = 0
    group: tuple[int, ...] = ()


@value
class Persist:
    """Store a vote (insert or replace).

    ``parts``, if given, are the transaction's body as bytes and saved pieces; they are stored instead of the body.
    """

    vote: Vote
    parts: tuple[Part, ...] | None = None


@value
class Forget:
    """Delete the vote on a transaction."""

    txid: Txid


@value
class SavePiece:
    """Store a piece of a transaction, of any leader, under its hash."""

    digest: bytes
    data: bytes


@value
class DropPieces:
    """Delete pieces that no vote and no offer names any more."""

    digests: tuple[bytes, ...]


@value
class Assemble:
    """Join parts, each of them bytes or the name of a saved piece, and later step ``Assembled`` with the result.

    Other events may precede ``Assembled``; until then the core deletes none of these pieces.
    """

    peer: str
    parts: tuple[Part, ...]


@value
class Keep:
    """Store one of the node's own facts.

    The names are ``clock_ceiling``, ``cut``, ``safe`` and ``settled``, for numbers, and ``lost``, for a reason.
    """

    name: str
    value: int | str


@value
class KeepHold:
    """Store the clock from which on a reader of the feed needs the journal; ``times`` counts the reader's starts."""

    name: str
    times: int
    clock: int


@value
class Apply:
    """Write an entry to the journal, and its changes to the tables unless it repeats an applied entry."""

    entry: Entry
    repeat: bool


@value
class Activate:
    """Execute the statements of the scheduled schema change, and step ``Activated``."""

    txid: Txid


@value
class SendEntries:
    """Send a peer entries from the journal, up to ``limit`` bytes; ``wants``: by timeline, the first wanted tick."""

    peer: str
    wants: Vector
    limit: int


@value
class SendOutcome:
    """Send a peer the outcome of a transaction: committed if the journal has it, else rolled back."""

    peer: str
    txid: Txid


@value
class SetMembers:
    """Keep links to the members of a new membership."""

    membership: Membership


@value
class Malformed:
    """End the link of a peer that sent a malformed or impossible message, which the core has ignored.

    ``reason`` names the message and the field, for the peer and for the operator.
    """

    peer: str
    reason: str


@value
class Halt:
    """Stop this node, which received a message that a sound cluster cannot send. ``reason`` is for the operator."""

    reason: str


Effect = (
    Send
    | Reply
    | NewerAnswered
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
