"""The printer of messages, effects, events and entries: one line of text each, in the notation of the gist.

``A0: BEGIN Alice``: node A, which has committed 0 transactions of its own so far, sends BEGIN. Logs and the traces in
``tests/traces`` both use this printer.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import assert_never

from bedrockish.api.requests import Answer
from bedrockish.core.protocol import effects as do
from bedrockish.core.protocol import events as on
from bedrockish.core.protocol import messages as say
from bedrockish.core.protocol.records import Prepared, Vote
from bedrockish.errors import BedrockishError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import counter, milliseconds
from bedrockish_journal.model.entry import GENESIS, Entry, decode_label, label_entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid, decode_transaction
from bedrockish_journal.model.vector import Vector, format_vector

REASONS = {
    say.Reason.FOR: "FOR",
    say.Reason.TOO_LATE: "TOO LATE",
    say.Reason.TOO_OLD: "TOO OLD",
    say.Reason.AHEAD: "AHEAD OF THE WALL CLOCK",
    say.Reason.PROMISED: "PROMISED TO A RECOVERY",
    say.Reason.DIFFERS: "OTHER ROWS",
    say.Reason.FORGOTTEN: "ID TOO OLD TO TELL",
    say.Reason.BARRIER: "BEHIND A MEMBERSHIP CHANGE",
    say.Reason.MEMBERS: "OF ANOTHER MEMBERSHIP",
}


def describe_said(node: str, tick: int, nodes: Sequence[str], said: on.Event | do.Send) -> str:
    """Return the text, in the notation of the gist, of an event at a node or of a message that it sends.

    Args:
        tick: the node's own tick.
        nodes: all members, in the order of the vectors.
    """
    printer = Printer(nodes)
    return log_line(node, tick, printer.effect(said) if isinstance(said, do.Send) else printer.event(said))


def log_line(node: str, tick: int, text: str) -> str:
    """Return a line of the gist: the node that speaks, the number of transactions it has committed, and the text."""
    return f"{node}{tick}: {text}"


def clock_text(clock: int) -> str:
    """Return a clock as its Unix milliseconds and its counter."""
    return f"{milliseconds(clock)}ms+{counter(clock)}"


@dataclass(frozen=True, slots=True)
class Printer:
    """A printer of one line for each message, effect, event or entry."""

    nodes: Sequence[str]  # all members, in the order of the bracket form ``[1, *, 0]``
    name: Callable[[Txid], str] = str  # returns the name of a transaction
    request_id: Callable[[int], str] = "request {}".format  # returns the name of a client's request

    # -- messages --------------------------------------------------------------------------------------------------

    def message(self, message: say.Message) -> str:
        """Print a message: ``APPROVE Alice``, ``COMMIT Alice[1, *, 0, *, 0]``."""
        name = self.name
        match message:
            case say.Begin(body):
                return f"BEGIN {self._body(body)}{self._carried(body)}"
            case say.Approve(txid):
                return f"APPROVE {name(txid)}"
            case say.Reject(txid, reason, other):
                why = REASONS[say.Reason(reason)]
                return f"REJECT {name(txid)} {why}" + (f" {name(other)}" if other is not None else "")
            case say.Commit():
                return self._commit(message)
            case say.Rollback(txid):
                return f"ROLLBACK {name(txid)}"
            case say.Gossip(applied, closed, cut):
                return f"GOSSIP {self.vector(applied)} closed {clock_text(closed)} cut {clock_text(cut)}"
            case say.Fetch(wants):
                return "FETCH " + ", ".join(f"{leader}{tick}…" for leader, tick in sorted(wants.items()))
            case say.Entries(entries):
                places = ", ".join(self._place(label) for _, label, _ in entries)
                return f"ENTRIES {places}" if places else "ENTRIES none"
            case say.Check(read, vector):
                return f"CHECK read {read} at {self.vector(vector)}"
            case say.Checked(read, others):
                return f"CHECKED read {read}, " + (f"conflicts with {self._names(others)}" if others else "no conflict")
            case say.AskClock(_, clock):
                return f"ASK CLOCK, ours is {clock_text(clock)}"
            case say.ToldClock(_, clock):
                return f"TOLD CLOCK {clock_text(clock)}"
            case say.Removed(upto):
                return "REMOVED up to " + ", ".join(f"{leader}{tick}" for leader, tick in sorted(upto.items()))
            case say.Offer() | say.Stored() | say.Want() | say.Piece() | say.InPieces():
                return _in_pieces(message)
            case _:
                return self._recovery_message(message)

    def _recovery_message(
        self, message: say.Recover | say.Promise | say.Accept | say.Accepted | say.Refused | say.Outcome | say.Ask
    ) -> str:
        name = self.name
        match message:
            case say.Recover(body, ballot):
                return f"RECOVER {self._body(body)} at ballot {ballot}{self._carried(body)}"
            case say.Promise():
                return self._promise(message)
            case say.Accept(body, ballot, commit):
                return f"ACCEPT {_decision(commit)} {self._body(body)} at ballot {ballot}"
            case say.Accepted(txid, 1):
                return f"ACCEPTED ROLLBACK {name(txid)}"
            case say.Accepted(txid, ballot):
                return f"ACCEPTED {name(txid)} at ballot {ballot}"
            case say.Refused(txid, promised):
                return f"REFUSED {name(txid)}, promised {promised}"
            case say.Outcome(txid, True, leader, tick):
                return f"OUTCOME {name(txid)} COMMITTED as {leader}{tick}"
            case say.Outcome(txid):
                return f"OUTCOME {name(txid)} ROLLED BACK"
            case say.Ask(txid):
                return f"ASK {', '.join(map(name, (txid, *message.more)))}"
            case _:
                assert_never(message)

    def _promise(self, message: say.Promise) -> str:
        words = [f"PROMISE {self.name(message.txid)} at ballot {message.ballot}"]
        words.append(say.Standing(message.standing).name)
        if message.blockers:
            words.append("BY " + ", ".join(self._body(body) for body in message.blockers))
        if message.accepted is not None:
            words.append(f"ACCEPTED {_decision(message.accepted[1])} at {message.accepted[0]}")
        if message.ended:
            words.append(f"ENDED {self._names(message.ended)}")
        return " ".join(words)

    def _commit(self, message: say.Commit) -> str:
        try:
            # The text comes from the label, because a COMMIT may have no body.
            label = decode_label(message.label)
            return self._committed(label_entry(GENESIS, label, _nameless(label.txid)))
        except EntryMalformedError as error:
            return f"COMMIT with a malformed label ({error})"

    def _committed(self, entry: Entry) -> str:
        adopted = "" if entry.adopted_from is None else f" ADOPTED FROM {entry.adopted_from}"
        return f"COMMIT {self.name(entry.txid)}{format_vector(entry.quorum, self.nodes)}{adopted}"

    def _body(self, body: bytes) -> str:
        try:
            return self.name(decode_transaction(body).txid)
        except EntryMalformedError:
            return f"{len(body)} bytes that are not a transaction"

    def _carried(self, body: bytes) -> str:
        try:
            rollbacks = decode_transaction(body).rollbacks
        except EntryMalformedError:
            return ""
        return f", which carries ROLLBACK {self._names(rollbacks)}" if rollbacks else ""

    def _place(self, label: bytes) -> str:
        try:
            leader, tick, txid = decode_label(label)[:3]
        except EntryMalformedError:
            return "a malformed entry"
        return f"{leader}{tick} {self.name(txid)}"

    def _names(self, txids: Iterable[Txid]) -> str:
        return ", ".join(self.name(txid) for txid in txids)

    # -- entries ---------------------------------------------------------------------------------------------------

    def vector(self, vector: Vector) -> str:
        """Return the text of a full vector: timelines that it does not mention are at 0."""
        return format_vector({node: vector.get(node, 0) for node in self.nodes}, self.nodes)

    def entry(self, entry: Entry) -> str:
        """Return the text of an entry: ``A1: COMMIT Alice[1, *, 0, *, 0] after [0, 0, 0, 0, 0]``."""
        # The leader's own tick is that of the entry when it sends the COMMIT.
        return log_line(entry.leader, entry.tick, f"{self._committed(entry)} after {self.vector(entry.after)}")

    # -- events and effects ----------------------------------------------------------------------------------------

    def event(self, event: on.Event) -> str:
        """Return the text of an event at a node."""
        match event:
            case on.Received(peer, message):
                return f"hears {peer}: {self.message(message)}"
            case on.Submitted(request_id, request, _, others):
                more = f", and {len(others)} that came with it" if others else ""
                return f"{self.request_id(request_id)} is submitted as command {request.command}{more}"
            case on.Executed(request_id, prepared):
                done = "reads" if prepared.readonly else "writes"
                return f"{self.request_id(request_id)} {done} at {self.vector(prepared.base)}"
            case _:
                return self._fields(event)

    def effect(self, effect: do.Effect) -> str:
        """Return the text of an effect that a node asks its driver for."""
        match effect:
            case do.Send(peer, message):
                return f"{self.message(message)} -> {peer}"
            case do.Reply(request_id, answer):
                return f"answers {self.request_id(request_id)}: {_answer(answer)}"
            case do.Apply(entry, repeat):
                what = "records the repeat" if repeat else "applies"
                return f"{what} {entry.leader}{entry.tick} {self.name(entry.txid)}"
            case do.SetMembers(membership):
                return f"membership {membership.version}: {' '.join(membership.nodes)}"
            case _:
                return self._fields(effect)

    def _fields(self, said: on.Event | do.Effect) -> str:
        kind = re.sub(r"(?<=.)([A-Z])", r" \1", type(said).__name__).lower()
        return ", ".join([kind, *(f"{one.name} {self._value(getattr(said, one.name))}" for one in fields(said))])

    def _value(self, value: object) -> str:
        match value:
            case Txid():
                return self.name(value)
            case Vote(txid):
                return f"on {self.name(txid)}: {'held' if value.held else 'not held'}, promised {value.promised}"
            case Prepared():
                return f"at {self.vector(value.base)}"
            case dict():
                return self.vector(value)
            case bytes():
                return f"of {len(value)} bytes"
            case tuple():
                return f"of {len(value)}"
            case Answer() | BedrockishError():
                return _answer(value)
            case str() | int() | None:
                return str(value)
            case _:  # print the type alone: the value may be as large as a transaction
                return f"a {type(value).__name__}"


def _in_pieces(message: say.Offer | say.Stored | say.Want | say.Piece | say.InPieces) -> str:
    match message:
        case say.Offer(number, ()):
            return f"OFFER {number} is over"
        case say.Offer(number, pieces):
            return f"OFFER {number}: {sum(size for _, size in pieces)} bytes in {len(pieces)} pieces"
        case say.Stored(number, stored):
            return f"STORED offer {number}" if stored else f"STORED nothing of offer {number}: no room"
        case say.Want(pieces):
            return f"WANT {len(pieces)} pieces"
        case say.Piece(digest, data):
            size = "is not here any more" if data is None else f"of {len(data)} bytes"
            return f"PIECE {digest.hex()[:8]} {size}"
        case say.InPieces(parts):
            names = [part for part in parts if type(part) is tuple]
            return f"IN PIECES: {sum(size for _, size in names)} bytes in {len(names)} pieces"
        case _:
            assert_never(message)


def _nameless(txid: Txid) -> Transaction:
    """Return a transaction with only a txid, for a COMMIT whose body was not sent."""
    return Transaction(txid, {}, 0, 0, 0, "", "", ROWS, AccessSet(), b"", b"")


def _decision(commit: bool) -> str:
    return "COMMIT" if commit else "ABORT"


def _answer(answer: Answer | BedrockishError) -> str:
    if isinstance(answer, BedrockishError):
        return f"{type(answer).__name__}: {answer}"
    return "read" if answer.place is None else f"committed as {answer.place[0]}{answer.place[1]}"
