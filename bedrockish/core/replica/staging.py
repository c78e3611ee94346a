"""Transactions and messages in pieces: fetched from peers, a few at a time, and kept until they are complete.

The receiver asks, so it decides how much is on the way to it: as much as the link takes without long waits for other
messages. Pieces of an offered transaction are saved, so that its BEGIN can be approved at once and the
approval is durable; those of other messages are in memory until the message is complete.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice

from bedrockish.core.protocol.effects import Assemble, DropPieces, SavePiece
from bedrockish.core.protocol.messages import Begin, InPieces, Message, Offer, Piece, Stored, Want, Whole, decode
from bedrockish.core.protocol.pieces import Name, Part
from bedrockish.core.state.pieces import Assembling
from bedrockish.core.state.state import State
from bedrockish_journal.model.errors import EntryMalformedError

KEPT_S = 60.0  # how long an idle offer or an incomplete message is kept
FOUND_S = 10.0  # how long pieces that are found in the file at the start wait for an offer that names them
OFFERED_BYTES_MAX = 256 << 20  # of one peer's offers together
OFFERED_PIECES_MAX = 1 << 16
MESSAGE_BYTES_MAX = 64 << 20
MESSAGES_MAX = 4  # of one peer that are not complete; further ones are dropped, and their protocol sends them again
ASSEMBLING_MAX = 16  # of one peer that are complete and not put together yet; the same
WINDOW_MIN, WINDOW_MAX = 8, 64  # pieces that are on their way from one peer
DELAY_S = 0.05  # how much longer than the least a piece may take before fewer are asked for at a time
ASK_AGAIN_S = 2.0
READING_S = 5.0  # how long closed time waits at most for a message that came in time and cannot be read yet
DROPPED_MAX = 32  # pieces at a heartbeat: a file needs time to take back what they took


@dataclass(slots=True)
class Offered:
    """A transaction that a peer is going to begin.

    Attributes:
        names: the names of all its pieces.
        missing: the names of those that are not saved here.
        touched: seconds at which it was last offered, or a piece of it came.
    """

    names: frozenset[bytes]
    size: int
    missing: set[bytes]
    touched: float


@dataclass(slots=True)
class Incomplete:
    """A message of which pieces are missing; ``since`` is seconds at which one of them last came."""

    peer: str
    parts: tuple[Part, ...]
    missing: set[bytes]
    since: float


@dataclass(slots=True)
class Pull:
    """The pieces that one peer is asked for.

    Attributes:
        queue: the pieces to ask for next, with their sizes.
        asked: the pieces on their way, with the seconds at which they were asked for and their sizes.
        window: how many pieces may be on their way.
        least: seconds that the quickest piece has taken; of late, since nothing was on its way.
    """

    queue: deque[Name] = field(default_factory=deque)
    asked: dict[bytes, tuple[float, int]] = field(default_factory=dict)
    window: float = WINDOW_MIN
    least: float = 0.0

    def came(self, digest: bytes, seconds: float) -> int | None:
        """Note that a piece came, and how long it took; return its size, or None if it was not asked for."""
        if digest not in self.asked:
            return None
        since, size = self.asked.pop(digest)
        took = seconds - since
        self.least = min(self.least, took) if self.least else took
        # The quickest piece found an empty line. One that takes much longer has waited behind others, as small messages
        # do then: ask for fewer at a time.
        more = 1.0 if took <= self.least + DELAY_S else -1.0
        self.window = min(WINDOW_MAX, max(WINDOW_MIN, self.window + more))
        return size


class Staging:
    """The fetcher of pieces, which puts messages together.

    ``offers`` are by peer and its number.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.offers: dict[tuple[str, int], Offered] = {}
        self.incomplete: list[Incomplete] = []
        self.fetched: dict[bytes, bytes] = {}  # pieces of incomplete messages
        self.pulls: dict[str, Pull] = {}
        if state.pieces.saved:
            # Their offers were in memory alone: the leader offers or begins them again soon, or they are dropped.
            found = frozenset(state.pieces.saved)
            self.offers["", 0] = Offered(found, 0, set(), state.clock.now.seconds - KEPT_S + FOUND_S)

    # -- offers ----------------------------------------------------------------------------------------------------

    def on_offer(self, peer: str, message: Offer) -> None:
        """Fetch the missing pieces of a transaction, and tell its leader when all are durable; or forget the offer."""
        state, key = self.state, (peer, message.number)
        if not message.pieces:
            # Its pieces stay until the next heartbeat has found that no vote names them either (``_drop_unnamed``).
            self.offers.pop(key, None)
            return
        # Pieces go ahead for a vote, and a learner has none; it gets the entry when it is committed.
        if not state.roster.is_voter(state.me) or not state.roster.is_voter(peer):
            return
        names = dict(message.pieces)
        size = sum(names.values())
        # Without the same offer told again: it does not count twice.
        others = [offer for (of, number), offer in self.offers.items() if of == peer and number != message.number]
        if (
            size + sum(offer.size for offer in others) > OFFERED_BYTES_MAX
            or len(names) + sum(len(offer.names) for offer in others) > OFFERED_PIECES_MAX
        ):
            # Said at once, and not left to time: its leader tells a quorum of the others, or tells it again later.
            state.counts["offers_refused"] += 1
            self._tell_stored(peer, message.number, stored=False)
            return
        missing = {digest for digest in names if digest not in state.pieces.saved}
        self.offers[key] = Offered(frozenset(names), size, missing, state.clock.now.seconds)
        if missing:
            self._pull(peer, [name for name in names.items() if name[0] in missing])
        else:
            self._tell_stored(peer, message.number, stored=True)

    def _tell_stored(self, peer: str, number: int, *, stored: bool) -> None:
        self.state.outbox.send(peer, Stored(number, stored, self.state.clock.read()))

    # -- messages in pieces ----------------------------------------------------------------------------------------

    def on_message(self, peer: str, message: InPieces) -> None:
        """Take a large message, now or when its pieces are here."""
        state = self.state
        names = dict(part for part in message.parts if type(part) is tuple)
        waiting = [one for one in self.incomplete if one.peer == peer]
        size = sum(len(part) if isinstance(part, bytes) else part[1] for part in message.parts)
        assembling = sum(one.peer == peer for one in state.pieces.assembling)
        # Bounded for each peer, so that one that sends much takes nothing from the others.
        if size > MESSAGE_BYTES_MAX or len(waiting) >= MESSAGES_MAX or assembling >= ASSEMBLING_MAX:
            state.counts["messages_too_many"] += 1
            return
        missing = {digest for digest in names if digest not in state.pieces.saved and digest not in self.fetched}
        one = Incomplete(peer, message.parts, missing, state.clock.now.seconds)
        if missing:
            self.incomplete.append(one)
            self._pull(peer, [name for name in names.items() if name[0] in missing])
        else:
            self._assemble(one)

    def _assemble(self, one: Incomplete) -> None:
        """Have a message put together from its pieces."""
        fetched, saved = self.fetched, self.state.pieces.saved
        parts = tuple(
            # The driver reads saved pieces from the file; those in memory alone have to be handed to it.
            fetched[part[0]] if type(part) is tuple and part[0] in fetched and part[0] not in saved else part
            for part in one.parts
        )
        state, now = self.state, self.state.clock.now.seconds
        # A BEGIN with a later clock came in time. Reading it takes a while, so this moment is noted.
        closable = max(state.clock.closed, state.clock.lag.closable(now))
        state.pieces.assembling.append(Assembling(one.peer, parts, closable, now + READING_S))
        state.outbox.emit(Assemble(one.peer, parts))

    def on_assembled(self, peer: str, parts: tuple[Part, ...], data: bytes, known: Whole | None) -> Message | None:
        """Return a message that was put together from parts; None if it cannot be decoded or is in pieces again."""
        waiting = self.state.pieces.assembling
        # Identified by its parts: several messages of one peer are put together at the same time.
        waiting.remove(next(one for one in waiting if one.peer == peer and one.parts == parts))
        try:
            message = decode(data) if known is None else known.message
        except EntryMalformedError:
            message = None
        # A message in pieces whose content is one again could go on like that for ever.
        if message is None or isinstance(message, InPieces):
            self.state.counts["malformed"] += 1
            return None
        if isinstance(message, Begin):
            # Its pieces were held against their names: the vote on it is kept in them, and need not be cut again.
            self.state.pieces.cutter.learn(message.body, data, parts)
        return message

    # -- pieces ----------------------------------------------------------------------------------------------------

    def on_piece(self, peer: str, message: Piece) -> None:
        """Take a piece that was asked for, if it is the one; or learn that it is not there any more."""
        state, digest, data = self.state, message.digest, message.data
        pull = self.pulls.get(peer)
        size = None if pull is None else pull.came(digest, state.clock.now.seconds)
        if size is None:
            return  # twice, or never asked for
        # Taken by its hash only: a wrong piece would become a part of a vote.
        if data is None or len(data) != size or sha256(data).digest() != digest:
            self._not_there(peer, digest)
        else:
            self._came(digest, data)
        self._ask(peer)

    def _not_there(self, peer: str, digest: bytes) -> None:
        """Drop the offers and messages that cannot be completed: their sender sends them again if they still count."""
        self.incomplete = [one for one in self.incomplete if one.peer != peer or digest not in one.missing]
        for key in [key for key, offer in self.offers.items() if key[0] == peer and digest in offer.missing]:
            del self.offers[key]

    def _came(self, digest: bytes, data: bytes) -> None:
        state = self.state
        offers = [(key, offer) for key, offer in self.offers.items() if digest in offer.missing]
        messages = [one for one in self.incomplete if digest in one.missing]
        # Named by an offer, it has to outlast a restart, as the vote on it will; for a message it is needed once.
        if offers:
            self.save(digest, data)
        elif messages:
            self.fetched[digest] = data
        for (peer, number), offer in offers:
            offer.missing.discard(digest)
            offer.touched = state.clock.now.seconds
            if not offer.missing:
                self._tell_stored(peer, number, stored=True)
        for one in messages:
            one.missing.discard(digest)
            one.since = state.clock.now.seconds
            if not one.missing:
                self.incomplete.remove(one)
                self._assemble(one)

    def save(self, digest: bytes, data: bytes) -> None:
        """Keep a piece in the file."""
        saved = self.state.pieces.saved
        if digest not in saved:
            saved[digest] = len(data)
            self.state.outbox.emit(SavePiece(digest, data))

    # -- asking ----------------------------------------------------------------------------------------------------

    def _pull(self, peer: str, names: Iterable[Name]) -> None:
        pull = self.pulls.setdefault(peer, Pull())
        known = {*pull.asked, *(digest for digest, _ in pull.queue)}
        # Two messages may need the same piece: it is asked for once, and given to both.
        pull.queue.extend(name for name in names if name[0] not in known)
        self._ask(peer)

    def _ask(self, peer: str) -> None:
        """Ask a peer for more, as far as the window goes."""
        pull, now, wanted = self.pulls[peer], self.state.clock.now.seconds, []
        if not pull.asked:
            pull.least = 0.0  # an idle link may have changed since
        while pull.queue and len(pull.asked) < int(pull.window):
            digest, size = pull.queue.popleft()
            # It may have come for another message since, or its own message was dropped.
            if self._is_missing(digest):
                pull.asked[digest] = now, size
                wanted.append(digest)
        if wanted:
            self.state.outbox.send(peer, Want(tuple(wanted)))

    def _is_missing(self, digest: bytes) -> bool:
        return any(digest in offer.missing for offer in self.offers.values()) or any(
            digest in one.missing for one in self.incomplete
        )

    def resume(self, peer: str) -> None:
        """Ask a peer again for all that it owes: the question, or the answer, may be lost."""
        pull = self.pulls.get(peer)
        if pull is not None and pull.asked:
            pull.queue.extendleft([(digest, size) for digest, (_, size) in pull.asked.items()])
            pull.asked.clear()
            # The link may not be as fast as before: it finds its pace again.
            pull.window = WINDOW_MIN
            self._ask(peer)

    def check(self) -> None:
        """Ask again for overdue pieces, and drop those that no offer, message or vote needs any more."""
        state, now = self.state, self.state.clock.now.seconds
        state.pieces.expire(now)
        for peer, pull in list(self.pulls.items()):
            if any(now - since > ASK_AGAIN_S for since, _ in pull.asked.values()):
                self.resume(peer)
            elif not pull.asked and not pull.queue:
                del self.pulls[peer]
        self.offers = {key: offer for key, offer in self.offers.items() if now - offer.touched < KEPT_S}
        self.incomplete = [one for one in self.incomplete if now - one.since < KEPT_S]
        if self.fetched:
            needed = {part[0] for one in self.incomplete for part in one.parts if type(part) is tuple}
            self.fetched = {digest: data for digest, data in self.fetched.items() if digest in needed}
        if state.pieces.saved:
            self._drop_unnamed()

    def _drop_unnamed(self) -> None:
        """Drop the saved pieces that no vote, no offer and no message names."""
        state, pieces = self.state, self.state.pieces
        # From the votes' end: a piece may be named by several, and goes with the last.
        pieces.forget_votes(state.votes.by_txid)
        named = set(pieces.offered)
        for offer in self.offers.values():
            named |= offer.names
        for names in pieces.named.values():
            named.update(names)
        messages: list[Incomplete | Assembling] = [*self.incomplete, *pieces.assembling]
        for one in messages:
            named.update(part[0] for part in one.parts if type(part) is tuple)
        gone = tuple(islice((digest for digest in pieces.saved if digest not in named), DROPPED_MAX))
        if gone:
            for digest in gone:
                del pieces.saved[digest]
            state.outbox.emit(DropPieces(gone))
