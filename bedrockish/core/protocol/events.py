"""The events of a node, which the driver passes to ``Node.step``."""

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
    """A reading of the driver's clocks: seconds, which never go back, and Unix milliseconds, which may go back."""

    seconds: float
    wall_ms: int


@value
class Submitted:
    """A request of a client has arrived. ``request_id`` is the driver's number of the request.

    ``once``: the request, such as an interactive transaction, was executed already and cannot be executed on newer
    data: the driver returns the same execution each time. ``others``: requests that arrived with it and may share a
    transaction with it; they only write rows, and have the same isolation.
    """

    request_id: int
    request: Request
    once: bool = False
    others: tuple[tuple[int, Request], ...] = ()


@value
class MovedToWorker:
    """A request is now executed by a background worker, which may take long; ``Executed`` follows."""

    request_id: int


@value
class Executed:
    """The execution for an Execute effect has ended."""

    request_id: int
    prepared: Prepared


@value
class Overtaken:
    """A request was executed by a background worker, and a commit in the meantime might change its result."""

    request_id: int
    prepared: Prepared


@value
class ClockWanted:
    """The execution of a request needs a value for ``transaction_clock()``: the core asks a majority for it, and emits
    Execute again.
    """

    request_id: int


@value
class NewerAsked:
    """The driver has executed short strict reads on the state ``base``, and asks whether they are valid.

    The reads are valid if a majority knows no transaction outside ``base``; the effect ``NewerAnswered`` is the answer.
    ``number`` is the driver's number of the question.
    """

    number: int
    base: Vector


@value
class ClockSet:
    """An operator has ordered the clock to follow the wall clock, or only to count."""

    follows_wall: bool


@value
class Shortened:
    """The beginning of the journal was removed; ``upto`` has the last removed tick of each timeline."""

    upto: Vector


@value
class Held:
    """A reader of this node needs the journal from this clock on; None: it needs no part of the journal any more."""

    name: str
    clock: int | None


@value
class Failed:
    """The execution of a request failed. The error is the answer as soon as no earlier attempt of the request can
    commit.

    ``error.rests_on`` has the reads of the execution up to the error, as a ``Prepared`` that only reads.
    """

    request_id: int
    error: BedrockishError


@value
class Dropped:
    """A request needs no answer of the core: the driver has answered it, or its client no longer waits."""

    request_id: int


@value
class Decided:
    """The command of a request is a committed schema change that is not activated here yet; then ``answer`` is sent."""

    request_id: int
    txid: Txid
    answer: Answer


@value
class Activated:
    """A schema change was activated; ``failure`` is the error if its statements failed on the data, else empty."""

    txid: Txid
    failure: str


@value
class Assembled:
    """The bytes of a message in pieces, assembled for an Assemble effect.

    ``known``: the message, if the driver has decoded it already.
    """

    peer: str
    parts: tuple[Part, ...]
    data: bytes
    known: Whole | None = None


@value
class Compared:
    """The comparison of a transaction's rows has ended; ``compare_rows`` returns its result now."""

    txid: Txid


@value
class Received:
    """A message of a peer has arrived."""

    peer: str
    message: Message


@value
class PeerUp:
    """A link to a peer is up; messages sent before may be lost."""

    peer: str


@value
class PeerDown:
    """The link to a peer is down."""

    peer: str


@value
class Accused:
    """A peer refuses our links, because our file may lack promises that this node has made.

    ``for_good``: our file is certainly an older state of the file that the peer knows. Otherwise the peer knows another
    file under our name, perhaps because it has missed a change of the members; this refusal ends when the peer accepts
    a link.
    """

    peer: str
    reason: str
    for_good: bool = False


@value
class Woken:
    """The deadline of ``Node.deadline`` has passed."""


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
