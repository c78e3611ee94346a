"""The answers, read from the journal, to commands that have happened before."""

from bedrockish.api.requests import Answer, Request, Token
from bedrockish.core.coordinator.request import schema_failed
from bedrockish.core.protocol.events import Decided
from bedrockish.engine.engine import Engine
from bedrockish.errors import ForgottenError, VoidedError
from bedrockish.node.transactions.command_ids import check_removed, check_request
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import SCHEMA
from bedrockish_journal.model.vector import merge
from bedrockish_journal.storage.schema_history import FAILED, SCHEDULED


def recall(engine: Engine, entry: Entry, command: str, token: Token) -> Answer:
    """Return the answer of a command from its entry, for a session with a token.

    Raises:
        ConstraintError: the command was a schema change that failed on the data.
        VoidedError: no node could apply the entry, and an operator had its changes skipped.
    """
    if entry.txid in engine.entries.void:
        raise VoidedError(
            f"command {command} became {entry.leader}{entry.tick}, which no node could apply, and which was "
            "applied without "
            "its changes by an operator's order: it did not happen; send it under a new id"
        )
    if entry.transaction.kind == SCHEMA:
        standing = engine.versions.standing(entry.txid)
        if standing.state == FAILED:
            raise schema_failed(standing.failure)
    vector = merge(entry.after, {entry.leader: entry.tick}, token.vector)
    clock = max(entry.txid.clock, entry.transaction.activates, token.clock)
    return Answer(entry.transaction.result_of(command), Token(vector, clock), entry.place)


def find_command(engine: Engine, request: Request) -> Entry | None:
    """Return the entry of a request's command; None if the command never happened.

    Raises:
        CommandIdError: the entry was removed, and was another user's or another request's.
        ForgottenError: the entry was removed, or the command's id is too old to tell.
    """
    try:
        return engine.journal.find_command(request.command)
    except ForgottenError:
        removed = engine.journal.removed_command(request.command)
        if removed is not None:
            check_removed(engine.access, removed, request)
        raise


def again(engine: Engine, entry: Entry, request: Request, request_id: int) -> Answer | Decided:
    """Return the answer to a request whose command has happened before.

    For a schema change that is not in force here yet, return the event ``Decided`` for the core instead.

    Raises:
        CommandIdError: the id is another user's or another request's, or was settled before the request happened.
        ConstraintError: the command was a schema change that failed on the data.
        VoidedError: no node could apply the entry, and an operator had its changes skipped.
    """
    check_request(engine.access, entry, request)
    answer = recall(engine, entry, request.command, request.token)
    if entry.transaction.kind == SCHEMA and engine.versions.standing(entry.txid).state == SCHEDULED:
        return Decided(request_id, entry.txid, answer)
    return answer
