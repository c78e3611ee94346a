"""What a node answers out of its journal: the entries that a peer lacks, and commands that have happened before."""

from collections.abc import Mapping

from bedrockish.core.events import Decided
from bedrockish.core.messages import Entries
from bedrockish.core.tickets import schema_failed
from bedrockish.engine.engine import Engine
from bedrockish.requests import Answer, Token
from bedrockish.waiting import answer_of
from journal.entry import Entry
from journal.schema import FAILED, SCHEDULED
from journal.transaction import SCHEMA


def read_entries(engine: Engine, wants: Mapping[str, int], limit: int, clock: int) -> Entries:
    """Return the timelines that a peer wants, from these ticks on, as far as ``limit`` bytes go."""
    entries: list[Entry] = []
    share = max(1, limit // max(1, len(wants)))
    for leader, first_tick in wants.items():
        entries.extend(engine.read_entries(leader, first_tick, share))
    return Entries(tuple((entry.prev, entry.label, entry.transaction.body) for entry in entries), clock)


def recall(engine: Engine, entry: Entry, token: Token) -> Answer:
    """Return what the client of an entry was told.

    Raises:
        ConstraintError: it was a schema change that the data forbade.
    """
    if entry.transaction.kind == SCHEMA:
        standing = engine.schema_standing(entry.txid)
        if standing.state == FAILED:
            raise schema_failed(standing.failure)
    return answer_of(entry, token)


def again(engine: Engine, entry: Entry, token: Token, ticket: int) -> Answer | Decided:
    """Return what to answer a ticket whose command has happened before.

    Nothing is to be answered yet for a schema change that is not in force here: the core is told of it instead.

    Raises:
        ConstraintError: it was a schema change that the data forbade.
    """
    answer = recall(engine, entry, token)
    if entry.transaction.kind == SCHEMA and engine.schema_standing(entry.txid).state == SCHEDULED:
        return Decided(ticket, entry.txid, answer)
    return answer
