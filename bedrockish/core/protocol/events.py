"""The events that can happen to a node. The driver makes them; the core never looks for them itself."""

from typing import NamedTuple

from bedrockish.api.requests import Answer, Request
from bedrockish.core.protocol.messages import Message, Whole
from bedrockish.core.protocol.pieces import Part
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector


class Now(NamedTuple):
    """A reading of the driver's clocks: seconds that never go back, and Unix milliseconds that may."""

    seconds: float
    wall_ms: int


@value
class Submitted:
    """A client asked for something. ``request_id`` is the driver's name for the request.

    ``once``: each execution by the driver gives the same; if that cannot be led as it is, it cannot be led at all.
    ``others``: requests that came at the same moment, and may share a transaction with it: they are known to write
    rows and nothing else, and have the same isolation.
    """

    request_id: int
    request: Request
    once: bool = False
    others: tuple[tuple[int, Request], ...] = ()


@value
class MovedToWorker:
    """A request is executed in parallel with the loop, which may take long; ``Executed`` comes later."""

    request_id: int


@value
class Executed:
    """A request was executed, as an Execute effect asked."""

    request_id: int
    prepared: Prepared


@value
class Overtaken:
    """A request was executed in parallel with the loop, and a commit in that time would have changed what it does."""

    request_id: int
    prepared: Prepared


@value
class ClockWanted:
    """The execution of a request met ``transaction_clock()`` and had no clock: ask for one, and Execute it again."""

    request_id: int


@value
class NewerAsked:
    """Ask a majority whether anything is committed or pending outside ``base``: the effect ``NewerTold`` answers.

    It comes after short strict reads were executed on the state ``base``. ``number`` is the driver's name for it.
    """

    number: int
    base: Vector


@value
class ClockSet:
    """The operator lets the clock follow the wall, or only count (``enable_cluster_clock``)."""

    follows_wall: bool


@value
class Shortened:
    """The beginning of the journal was removed: the last tick of each timeline that was."""

    upto: Vector


@value
class Held:
    """A reader needs the journal after a clock; None: it needs it no more."""

    name: str
    clock: int | None


@value
class Failed:
    """A request cannot be executed: the error is its answer as soon as nothing can come of its earlier attempts.

    ``error.rests_on`` is its reads up to the refusal, as a ``Prepared`` that only reads.
    """

    request_id: int
    error: BedrockishError


@value
class Dropped:
    """A request is done: it was answered from the journal, or its client no longer waits for it."""

    request_id: int


@value
class Decided:
    """A request is a schema change that was committed before and is not activated here yet: ``answer`` is for then."""

    request_id: int
    txid: Txid
    answer: Answer


@value
class Activated:
    """A schema change was activated; ``failure`` says why the data forbade it, and is empty if nothing did."""

    txid: Txid
    failure: str


@value
class Assembled:
    """The bytes of a message that a peer has sent in pieces, as an Assemble effect asked.

    ``known``: the message, if the driver has read it already.
    """

    peer: str
    parts: tuple[Part, ...]
    data: bytes
    known: Whole | None = None


@value
class Compared:
    """The comparison of a transaction, which ``compare_rows`` put off, can be asked for again."""

    txid: Txid


@value
class Received:
    """A peer said something."""

    peer: str
    message: Message


@value
class PeerUp:
    """From now on, messages to this peer can arrive; those sent before may be lost."""

    peer: str


@value
class PeerDown:
    """Messages to this peer do not arrive."""

    peer: str


@value
class Accused:
    """A peer takes no links from us, because our file is not all that this node has voted with.

    ``for_good``: it is an older state of it, which does not pass. That it is another file may be wrong: the peer may
    have missed a change of the members; so this holds until it takes a link from us again.
    """

    peer: str
    reason: str
    for_good: bool = False


@value
class Woken:
    """The deadline that the node gave has passed."""


Event = (
    Submitted
    | MovedToWorker
    | Executed
    | Overtaken
    | ClockWanted
    | NewerAsked
    | ClockSet
    | Shortened
    | Held
    | Failed
    | Dropped
    | Decided
    | Activated
    | Assembled
    | Compared
    | Received
    | PeerUp
    | PeerDown
    | Accused
    | Woken
)
