"""Who waits at a machine for the answer to a request."""

from collections.abc import Callable
from dataclasses import dataclass

from bedrockish.core.records import Prepared
from bedrockish.errors import BedrockishError
from bedrockish.requests import Answer, Request, Token
from journal.entry import Entry
from journal.vector import merge

Answerer = Callable[[Answer | BedrockishError], object]


@dataclass
class Waiter:
    """Who waits for a ticket; ``prepare`` executes it, if that is not for the database to do."""

    request: Request
    answer: Answerer
    prepare: Callable[[], Prepared] | None = None


def answer_of(entry: Entry, token: Token) -> Answer:
    """Return what a client is told of a command that is in the journal."""
    vector = merge(entry.after, {entry.leader: entry.tick}, token.vector)
    return Answer(entry.transaction.result, Token(vector, max(entry.txid.clock, token.clock)), entry.place)
