"""The messages about transactions that a node lately sent and received, for the dashboard.

Events are recorded only if a reader has asked within ``PATIENCE_S``; otherwise an event costs one comparison. A busy
node records only the transactions whose clocks are in the first part of a second, so that all nodes choose the same
transactions without messages. Each node records its own events; a page that joins the events of several nodes can draw
arrows.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from bedrockish.core.coordinator.request import readable
from bedrockish.core.describe import Printer, log_line
from bedrockish.core.protocol import effects as do
from bedrockish.core.protocol import events as on
from bedrockish.core.protocol import messages as say
from bedrockish.core.state.state import State
from bedrockish_journal.model.access_set import object_of
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.entry import Entry, decode_label
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.key_text import key_text
from bedrockish_journal.model.transaction import Txid, decode_transaction

EVENTS_MAX = 2_000  # some hundred bytes each
PATIENCE_S = 15.0
EVENTS_A_SECOND = 600  # with more events, only a part of the transactions is recorded
REPLY_EVENTS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that was sent or received, or an entry that was applied."""

    number: int  # counts up in the life of this process
    wall_ms: float  # its time by this node's wall clock
    kind: str  # the message's name in lower case, or ``apply``
    txid: str  # the id of the transaction
    # ``origin`` and ``target``: its sender and its receiver; the same node for an ``apply``.
    origin: str
    target: str
    line: str  # the event as a line of text
    more: dict[str, str]  # facts for the page, such as the reason of a reject

    def pack(self) -> list[Any]:
        """Return the event as plain data: a list, which is shorter than a map."""
        return [self.number, self.wall_ms, self.kind, self.txid, self.origin, self.target, self.line, self.more]


class TraceBuffer:
    """The ring of the latest events."""

    def __init__(self, state: State) -> None:
        self.is_on = False
        self._state = state
        self._seen: deque[Seen] = deque(maxlen=EVENTS_MAX)
        self._number = 0
        self._until = 0.0
        self._run = time.time_ns()  # numbers start over with each process
        self._second, self._offered, self._share = 0, 0, 1.0
        self._last: tuple[say.Message | None, Txid | None, str] = (None, None, "")

    def read(self, after: int) -> dict[str, Any]:
        """Return the events after a number, the latest if they are many, and go on recording for a while."""
        self._until = time.monotonic() + PATIENCE_S
        self.is_on = True
        if after > self._number:  # a number of an earlier process
            after = 0
        found = [seen.pack() for seen in self._seen if seen.number > after][-REPLY_EVENTS_MAX:]
        return {
            "node": self._state.me,
            "run": str(self._run),
            "now_ms": time.time() * 1000,
            "last": self._number,
            "events": found,
        }

    def note(self, what: on.Event | do.Effect) -> None:
        """Record an event or effect if it is about a transaction. Call this only while ``is_on``."""
        match what:
            case do.Send(peer, message):
                self._message(self._state.me, peer, message)
            case on.Received(peer, message):
                self._message(peer, self._state.me, message)
            case do.Apply(entry):
                self._apply(entry)
            case _:
                return

    @property
    def _printer(self) -> Printer:
        return Printer(self._state.roster.membership.nodes)

    def _message(self, origin: str, target: str, message: say.Message) -> None:
        if self._last[0] is not message:  # the same message to several peers is read once
            try:
                txid = subject(message)
            except EntryMalformedError:
                return
            wanted = txid is not None and self._samples(txid)
            self._last = (message, txid if wanted else None, self._printer.message(message) if wanted else "")
        _, txid, text = self._last
        self._offered += 1
        if txid is None:
            return
        state = self._state
        if origin == state.me:
            line = log_line(origin, state.timelines.applied.get(origin, 0), f"{text} -> {target}")
        else:
            line = log_line(target, state.timelines.applied.get(target, 0), f"hears {origin}: {text}")
        more = _reject(message) if isinstance(message, say.Reject) else {}
        self._add(type(message).__name__.lower(), txid, origin, target, line, more)

    def _apply(self, entry: Entry) -> None:
        self._offered += 1
        if self._samples(entry.txid):
            me, place = self._state.me, f"{entry.leader}{entry.tick}"
            self._add("apply", entry.txid, me, me, self._printer.entry(entry), {"place": place})

    def _samples(self, txid: Txid) -> bool:
        """Return whether to record this transaction; the recorded share is set every second."""
        second = int(time.monotonic())
        if second != self._second:
            offered, self._offered = self._offered, 0
            self._share = min(1.0, EVENTS_A_SECOND / (offered or 1)) if second == self._second + 1 else 1.0
            self._second = second
            if time.monotonic() > self._until:
                self.is_on = False
                self._seen.clear()
        return milliseconds(txid.clock) % 1000 < 1000 * self._share

    def _add(self, kind: str, txid: Txid, origin: str, target: str, line: str, more: dict[str, str]) -> None:
        self._number += 1
        self._seen.append(Seen(self._number, time.time() * 1000, kind, str(txid), origin, target, line, more))


def subject(message: say.Message) -> Txid | None:
    """Return the transaction that a message is about; None if it is about several, or about something else.

    Raises:
        EntryMalformedError: the message does not carry a valid transaction.
    """
    match message:
        case say.Begin(body) | say.Recover(body) | say.Accept(body):
            return decode_transaction(body).txid
        case say.Commit(label):
            return decode_label(label).txid
        case say.Approve(txid) | say.Reject(txid) | say.Rollback(txid) | say.Promise(txid) | say.Accepted(txid):
            return txid
        case say.Refused(txid) | say.Outcome(txid) | say.Ask(txid):
            return txid
        case _:
            return None


def _reject(message: say.Reject) -> dict[str, str]:
    more = {"reason": say.Reason(message.reason).name}
    if message.other is not None:
        more["other"] = str(message.other)
    if message.key:
        more["object"] = readable(object_of(message.key))
        more["key"] = key_text(message.key)
    return more
