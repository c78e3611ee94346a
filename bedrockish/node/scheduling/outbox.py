"""Who waits at a node: callers for their answers, and everything that must not leave before it is durable."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio

from bedrockish.api.requests import Answer, Request, Token
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import BedrockishError
from bedrockish.node.scheduling.tracing import OpenSpan, RequestSpan
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.vector import merge

Done = Callable[[Answer | BedrockishError], None]
Prepare = Callable[[], Prepared]
Packed = tuple[tuple[bytes, bytes, bytes], ...]
ReadEntries = Callable[[str, int, int], list[Entry]]


class Submit(Protocol):
    """Has something led to its end; see ``Runtime.submit``."""

    def __call__(
        self, request: Request, prepare: Callable[[], Prepared] | None = None, *, once: bool = False
    ) -> Awaitable[Answer]:
        """Return the answer; ``prepare`` executes it, ``once`` if always with the same result."""


@dataclass(slots=True)
class Waiter:
    """Who waits for the answer of a request, if it has one by now; ``done`` is called with it once it may leave.

    ``prepare`` executes the request, if that is not for the engine alone to do; ``held`` are the bytes that are kept
    of what it does and of its answer, if they are many; ``span`` is what records it.
    """

    request_id: int
    request: Request
    done: Done
    prepare: Prepare | None = None
    answer: Answer | BedrockishError | None = None
    began: float = field(default_factory=time.monotonic)
    held: int = 0
    span: RequestSpan | None = None


@dataclass(slots=True)
class Kept:
    """What must not leave before the open batch is durable."""

    messages: dict[str, list[bytes]] = field(default_factory=dict)  # by peer
    replies: list[Waiter] = field(default_factory=list)
    marks: list[trio.Event] = field(default_factory=list)
    spans: list[OpenSpan] = field(default_factory=list)  # which end with that

    def __bool__(self) -> bool:
        return bool(self.messages or self.replies or self.marks or self.spans)

    def take_replies(self, wanted: Callable[[Waiter], bool]) -> list[Waiter]:
        """Take out those who wait for an answer that is here, and whom ``wanted`` picks."""
        found = [waiter for waiter in self.replies if wanted(waiter)]
        if found:
            self.replies = [waiter for waiter in self.replies if waiter not in found]
        return found


def packed_entries(read: ReadEntries, wants: Mapping[str, int], limit: int) -> tuple[Packed, dict[str, str]]:
    """Return entries of several timelines, each from a tick on, in the form in which they travel.

    With the timelines of which the first entry that is wanted is damaged, and in what way.

    Args:
        read: returns entries of a timeline from a tick on, up to a size.
        wants: timeline -> first tick.
        limit: bytes, of all of them together, roughly.
    """
    share = max(1, limit // max(1, len(wants)))
    found: list[tuple[bytes, bytes, bytes]] = []
    damaged: dict[str, str] = {}
    for leader, tick in wants.items():
        try:
            found += [(entry.prev, entry.label, entry.transaction.body) for entry in read(leader, tick, share)]
        except EntryMalformedError as error:
            damaged[leader] = str(error)
    return tuple(found), damaged


def answer_of(entry: Entry, command: str, token: Token) -> Answer:
    """Return the answer that the client of a command had, for one that has seen what the token says.

    ``entry`` is what the command became.
    """
    vector = merge(entry.after, {entry.leader: entry.tick}, token.vector)
    clock = max(entry.txid.clock, entry.transaction.activates, token.clock)
    return Answer(entry.transaction.result_of(command), Token(vector, clock), entry.place)
