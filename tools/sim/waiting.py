"""The callers that wait at a machine for the answer to a request."""

from collections.abc import Callable
from dataclasses import dataclass

from bedrockish.api.requests import Answer, Request, Token
from bedrockish.core.protocol.events import Decided
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import BedrockishError, ConstraintError
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.vector import merge
from tools.sim.disk import Image

Answerer = Callable[[Answer | BedrockishError], object]


@dataclass
class Waiter:
    """A caller that waits for the answer to a request; ``prepare``, if given, executes the request.

    ``shares``: whether the result of ``prepare`` may be merged with those of other requests.
    """

    request: Request
    answer: Answerer
    prepare: Callable[[], Prepared] | None = None
    shares: bool = False


def answer_of(entry: Entry, request: Request) -> Answer:
    """Return the answer to a client whose command is in the journal."""
    token = request.token
    vector = merge(entry.after, {entry.leader: entry.tick}, token.vector)
    clock = max(entry.txid.clock, entry.transaction.activates, token.clock)
    return Answer(entry.transaction.result_of(request.command), Token(vector, clock), entry.place)


def again(image: Image, entry: Entry, request: Request, request_id: int) -> Answer | BedrockishError | Decided:
    """Return the answer to a request whose command has happened before, or ``Decided`` if its schema change waits."""
    answer = answer_of(entry, request)
    if image.scheduled is not None and image.scheduled.txid == entry.txid:
        return Decided(request_id, entry.txid, answer)
    cut = image.cuts.get(entry.txid)
    return answer if cut is None or not cut.failure else ConstraintError(cut.failure)
