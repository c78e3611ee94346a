"""A node's part in interactive transactions: it runs their statements on a snapshot, and commits the recorded result.

This models ``bedrockish.node.transactions.manager`` without SQL. A transaction is opened when the node covers the
session's token. It reads one snapshot, and cannot be executed again at COMMIT. A client that does not learn the outcome
*settles* the transaction: an empty transaction with the same command id is committed, unless the command has happened.

Below are the callers of any request, which wait at a machine for its answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cbor2

from bedrockish.api.requests import SESSION, STRICT, Answer, Request, Token
from bedrockish.core.protocol.events import Decided
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import BedrockishError, ConstraintError, UnavailableError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.model.vector import merge
from tools.sim.disk import Image

if TYPE_CHECKING:
    from tools.sim.machine import Machine

Answerer = Callable[[Answer | BedrockishError], object]
NOTHING = cbor2.dumps([[], {}, []])
"""The result of an empty transaction: nothing told, nothing read."""


class Talks:
    """The open transactions of one machine, which are lost when it stops."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.open_ones: dict[str, Prepared] = {}

    def open(self, request: Request, answer: Answerer) -> bool:
        """Begin a transaction, run its statements, and answer their results. Return False if the node is down."""

        def ready(found: Answer | BedrockishError) -> None:
            if isinstance(found, BedrockishError):
                answer(found)
            elif found.place is not None:
                answer(UnavailableError(f"command {request.command} has happened before"))
            else:
                self.machine.guarded(lambda _: self._run(request, answer))

        nothing = replace(request, read=SESSION, statements=())
        return self.machine.submit(nothing, ready, lambda: self._empty(readonly=True), once=True)

    def _run(self, request: Request, answer: Answerer) -> None:
        machine = self.machine
        told: Answer | BedrockishError
        try:
            assert machine.node is not None
            machine.world.laws.talked.add(request.command)
            clock = machine.node.state.clock.tick()  # the transaction's clock, if a statement asks for it
            prepared = machine.execute(request, clock)
        except BedrockishError as error:
            error.rests_on = None  # answers of an open transaction rest on its snapshot, without asking a majority
            told = error
        else:
            self.open_ones[request.command] = prepared
            told = Answer(prepared.result, Token())
        machine.answer_when_durable(answer, told)

    def commit(self, request: Request, answer: Answerer) -> bool:
        """Commit an open transaction. Return False if the node is down."""
        machine, prepared = self.machine, self.open_ones.pop(request.command, None)
        if machine.node is None:
            return False
        if prepared is None:
            error = UnavailableError(f"{machine.name} has no open transaction {request.command}; it did not happen")
            machine.answer_when_durable(answer, error)
            return True
        if prepared.readonly and request.read != STRICT:
            state = machine.node.state
            token = Token(prepared.base, state.clock.read())
            machine.answer_when_durable(answer, Answer(prepared.result, token))
            return True
        shares, last = not prepared.readonly, replace(request, statements=())
        return machine.submit(last, answer, lambda: prepared, once=True, shares=shares)

    def settle(self, request: Request, answer: Answerer) -> bool:
        """Make sure that a command has happened or never will. Return False if the node is down."""
        self.open_ones.pop(request.command, None)
        settling = replace(request, read=SESSION, statements=())
        return self.machine.submit(settling, answer, self._empty, once=True)

    def _empty(self, *, readonly: bool = False) -> Prepared:
        changes = b"" if readonly else cbor2.dumps([])
        image = self.machine.disk.seen
        return Prepared(dict(image.applied), image.schema, readonly, ROWS, AccessSet(), changes, NOTHING)


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
    """Return the answer to a repeated command; ``Decided`` if it is a schema change that is not activated here yet."""
    answer = answer_of(entry, request)
    if image.scheduled is not None and image.scheduled.txid == entry.txid:
        return Decided(request_id, entry.txid, answer)
    found = image.activations.get(entry.txid)
    return answer if found is None or not found.failure else ConstraintError(found.failure)
