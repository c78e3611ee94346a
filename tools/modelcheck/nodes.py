"""All states of single nodes, and the effect of each event on each state.

The effect of an event on a node depends only on the node's state. So each event is run on a real core once for each
state, and its effect is looked up afterwards.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from bedrockish.core.protocol.messages import Message, decode, encode
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.transaction import Txid
from tools.modelcheck.facts import Facts, broken_law, facts_of
from tools.modelcheck.frozen import freeze, key_of, thaw
from tools.modelcheck.place import HaltedError, Place
from tools.modelcheck.scopes import LIMITS, Scope
from tools.sim.database import DivergedError
from tools.sim.world import LawBrokenError

T = TypeVar("T", bound=Hashable)
Event = tuple[object, ...]
Sends = tuple[tuple[int, int], ...]  # (receiver, message)
LIMIT_OF = {"suspect": "suspicions", "again": "suspicions", "give up": "rollbacks", "heartbeat": "heartbeats"}
CAUGHT = (AssertionError, HaltedError, DivergedError, KeyError, AttributeError, TypeError, ValueError, BedrockishError)


@dataclass(frozen=True)
class Choice:
    """A spontaneous event of a node, and the index of its limit in a state (0: no limit)."""

    event: int
    limit: int


@dataclass(slots=True)
class Known:
    node: int  # the index of the node
    data: bytes  # the node and its disk (``Place``), frozen
    facts: int  # the number that stands for its durable facts
    alive: bool  # whether the node runs
    choices: tuple[Choice, ...] | None = None  # its possible spontaneous events; None until they are computed
    # Event -> (number of the node's next state, messages sent), for events that were run.
    after: dict[int, tuple[int, Sends]] = field(default_factory=dict)


class Numbered(Generic[T]):
    """Values by number; equal values have equal numbers."""

    def __init__(self, *first: T) -> None:
        self.values: list[T] = list(first)
        self._numbers = {value: number for number, value in enumerate(first)}

    def number(self, value: T) -> int:
        found = self._numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


class Nodes:
    """All states of nodes, messages and contents of links that were reached, by number."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.names = scope, scope.names
        self.index = {name: index for index, name in enumerate(self.names)}
        self.known: list[Known] = []
        self.events = Numbered[Event]()
        self.messages = Numbered[bytes]()
        self.queues = Numbered[tuple[int, ...]](())
        self.facts = Numbered[Facts]()
        self.pushed: dict[tuple[int, int], int] = {}
        self.rests: dict[tuple[int, int], int] = {}
        self._keys: dict[bytes, int] = {}
        self._agree: set[tuple[int, int]] = set()

    def number(self, place: Place) -> int:
        key = key_of(place)
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = len(self.known)
            facts = self.facts.number(facts_of(place))
            self.known.append(Known(self.index[place.name], freeze(place), facts, place.node is not None))
        return found

    def event(self, event: Event) -> int:
        return self.events.number(event)

    def message(self, message: Message) -> int:
        return self.messages.number(encode(message))

    def push(self, queue: int, message: int) -> int:
        """Return the number of a link's content with one more message."""
        found = self.pushed.get((queue, message))
        if found is None:
            found = self.pushed[queue, message] = self.queues.number((*self.queues.values[queue], message))
        return found

    def rest(self, queue: int, position: int) -> int:
        """Return the number of a link's content without one message."""
        found = self.rests.get((queue, position))
        if found is None:
            content = self.queues.values[queue]
            found = self.rests[queue, position] = self.queues.number(content[:position] + content[position + 1 :])
        return found

    def play(self, place: int, event: int) -> tuple[int, Sends]:
        """Return the state of a node after an event, and the messages sent; run a real core only the first time.

        Raises:
            LawBrokenError: an assertion of the core or its disk failed.
        """
        known = self.known[place]
        found = known.after.get(event)
        if found is None:
            real: Place = thaw(known.data)
            told = self.events.values[event]
            if told[0] == "receive":
                told = ("receive", told[1], decode(self.messages.values[int(str(told[2]))]))
            try:
                sent = real.play(told)
            except CAUGHT as error:
                raise LawBrokenError("no node stops", f"{real.name}: {type(error).__name__} {error}") from error
            sends = tuple((self.index[peer], self.message(message)) for peer, message in sent if peer in self.index)
            found = known.after[event] = self.number(real), sends
        return found

    def choices(self, place: int) -> tuple[Choice, ...]:
        """Return the possible spontaneous events of a node."""
        known = self.known[place]
        if known.choices is None:
            known.choices = tuple(self._choices(thaw(known.data))) if known.alive else ()
        return known.choices

    def _choices(self, place: Place) -> list[Choice]:
        found, first = [], len(self.names) + len(self.names) ** 2
        for event in place.choices():
            limit = "retries" if event[:2] == ("timer", "request_again") else LIMIT_OF.get(str(event[0]), "")
            if limit and not self.scope.allows(limit, place.name):
                continue
            if limit in ("suspicions", "rollbacks") and self.scope.which:
                transaction = (
                    place.core.state.votes.by_txid[event[1]].transaction if isinstance(event[1], Txid) else None
                )
                if transaction is None or set(transaction.commands).isdisjoint(self.scope.which):
                    continue
            found.append(Choice(self.event(event), first + LIMITS.index(limit) if limit else 0))
        return found

    def check(self, left: int, right: int) -> None:
        """Check that the facts of two nodes do not contradict each other.

        Raises:
            LawBrokenError: the facts break a law.
        """
        pair = self.known[left].facts, self.known[right].facts
        if pair in self._agree:
            return
        found = broken_law(self.facts.values[pair[0]], self.facts.values[pair[1]])
        if found is not None:
            raise LawBrokenError(*found)
        self._agree.add(pair)
