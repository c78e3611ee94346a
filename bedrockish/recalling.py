"""What a node answers out of its journal to a command that has happened before."""

from bedrockish.core.events import Decided
from bedrockish.core.tickets import schema_failed
from bedrockish.engine.engine import Engine
from bedrockish.requests import Answer, Request, Token
from bedrockish.waiting import answer_of
from journal.entry import Entry
from journal.schema import FAILED, SCHEDULED
from journal.transaction import SCHEMA


def recall(engine: Engine, entry: Entry, command: str, token: Token) -> Answer:
    """Return what the client of a command was told, which became an entry.

    Raises:
        ConstraintError: it was a schema change that the data forbade.
    """
    if entry.transaction.kind == SCHEMA:
        standing = engine.versions.standing(entry.txid)
        if standing.state == FAILED:
            raise schema_failed(standing.failure)
    return answer_of(entry, command, token)


def again(engine: Engine, entry: Entry, request: Request, ticket: int) -> Answer | Decided:
    """Return what to answer a ticket whose command has happened before.

    Nothing is to be answered yet for a schema change that is not in force here: the core is told of it instead.

    Raises:
        ConstraintError: it was a schema change that the data forbade.
    """
    answer = recall(engine, entry, request.command, request.token)
    if entry.transaction.kind == SCHEMA and engine.versions.standing(entry.txid).state == SCHEDULED:
        return Decided(ticket, entry.txid, answer)
    return answer
