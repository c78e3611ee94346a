"""Transactions and messages in pieces: a node fetches the pieces from its peers, a few at a time, until it has all.

The receiver asks for pieces, so it decides how many are under way: as many as the link carries without delaying other
messages for long. Pieces of an offered transaction are saved in the file, so that the node can approve its BEGIN at
once and durably. Pieces of other messages are in memory until the message is complete.
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

KEPT_S = 60.0  # how long an offer that is not repeated, or a message that stays incomplete, is kept
FOUND_S = 10.0  # how long pieces that are in the file at the start are kept for an offer that names them
OFFERED_BYTES_MAX = 256 << 20  # most bytes of all offers of one peer
OFFERED_PIECES_MAX = 1 << 16
MESSAGE_BYTES_MAX = 64 << 20
MESSAGES_MAX = 4  # incomplete messages of one peer; further ones are dropped, and the peer sends them again
ASSEMBLING_MAX = 16  # complete messages of one peer that are not assembled yet; further ones are dropped as well
WINDOW_MIN, WINDOW_MAX = 8, 64  # how many pieces may be under way from one peer, like the window of TCP
DELAY_S = 0.05  # a piece that is slower than the quickest one by more than this makes the window smaller
ASK_AGAIN_S = 2.0
ASSEMBLY_S = 5.0  # how long closed time waits at most for a message that came in time and is still being assembled
DROPPED_MAX = 32  # most pieces dropped at a heartbeat: SQLite needs time to free their pages


@dataclass(slots=True)
class PeerOffer:
    """A transaction that a peer has offered before its BEGIN."""

    names: frozenset[bytes]  # the names of all its pieces
    size: int
    missing: set[bytes]  # the names of the pieces that are not saved here
    touched: float  # seconds at which the transaction was last offered, or one of its pieces last arrived


@dataclass(slots=True)
class Incomplete:
    """A message that lacks pieces; ``since``: the seconds at which one of its pieces last arrived."""

    peer: str
    parts: tuple[Part, ...]
    missing: set[bytes]
    since: float


@dataclass(slots=True)
class PieceRequests:
    """The requests for pieces to one peer."""

    queue: deque[Name] = field(default_factory=deque)  # the pieces to ask for next, with their sizes
    # The pieces on their way, with the seconds at which they were asked for and their sizes.
    asked: dict[bytes, tuple[float, int]] = field(default_factory=dict)
    window: float = WINDOW_MIN  # how many pieces may be on their way
    quickest_s: float = 0.0  # seconds that the quickest piece has taken since the link was last idle

    def arrived(self, digest: bytes, seconds: float) -> int | None:
        """Remove an arrived piece, adapt the window to its delay, and return its size; None if it was not asked for."""
        if digest not in self.asked:
            return None
        since, size = self.asked.pop(digest)
        took = seconds - since
        self.quickest_s = min(self.quickest_s, took) if self.quickest_s else took
        # The quickest piece found an idle link. A piece that takes much longer has waited behind other pieces, and
        # small messages wait there as well: ask for fewer pieces at a time.
        more = 1.0 if took <= self.quickest_s + DELAY_S else -1.0
        self.window = min(WINDOW_MAX, max(WINDOW_MIN, self.window + more))
        return size


class Staging:
    """The receiver of offers and of messages in pieces: it fetches the pieces from the peers.

    ``offers``: the offered transactions, by peer and by the number that the peer gave to the offer.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.offers: dict[tuple[str, int], PeerOffer] = {}
        self.incomplete: list[Incomplete] = []
        self.fetched: dict[bytes, bytes] = {}  # pieces of incomplete messages
        self.requests: dict[str, PieceRequests] = {}
        if state.pieces.saved:
            # The offers of these pieces were in memory only. Until their leaders have repeated the offers or begun the
            # transactions, an offer under the peer "" keeps the pieces for a moment.
            found = frozenset(state.pieces.saved)
            self.offers["", 0] = PeerOffer(found, 0, set(), state.clock.now.seconds - KEPT_S + FOUND_S)

    # -- offers ----------------------------------------------------------------------------------------------------

    def on_offer(self, peer: str, message: Offer) -> None:
        """Fetch the missing pieces of a transaction, and tell its leader when all are durable.

        An offer without pieces ends the offer of that number.
        """
        state, key = self.state, (peer, message.number)
        if not message.pieces:
            # The next heartbeat drops its pieces, unless a vote names them (``_drop_unnamed``).
            self.offers.pop(key, None)
            return
        # Only voters need the pieces ahead, to approve at once. A learner gets the entry when it is committed.
        if not state.roster.is_voter(state.me) or not state.roster.is_voter(peer):
            return
        names = dict(message.pieces)
        size = sum(names.values())
        # The bound counts the peer's other offers: a repeated offer must not count twice.
        others = [offer for (of, number), offer in self.offers.items() if of == peer and number != message.number]
        if (
            size + sum(offer.size for offer in others) > OFFERED_BYTES_MAX
            or len(names) + sum(len(offer.names) for offer in others) > OFFERED_PIECES_MAX
        ):
            # Refuse at once: the leader then needs a quorum of other voters, or repeats the offer later.
            state.counts["offers_refused"] += 1
            self._tell_stored(peer, message.number, stored=False)
            return
        missing = {digest for digest in names if digest not in state.pieces.saved}
        self.offers[key] = PeerOffer(frozenset(names), size, missing, state.clock.now.seconds)
        if missing:
            self._request(peer, [name for name in names.items() if name[0] in missing])
        else:
            self._tell_stored(peer, message.number, stored=True)

    def _tell_stored(self, peer: str, number: int, *, stored: bool) -> None:
        self.state.outbox.send(peer, Stored(number, stored, self.state.clock.read()))

    # -- messages in pieces ----------------------------------------------------------------------------------------

    def on_message(self, peer: str, message: InPieces) -> None:
        """Receive a message in pieces: assemble it now, or when its missing pieces have arrived."""
        state = self.state
        names = dict(part for part in message.parts if type(part) is tuple)
        waiting = [one for one in self.incomplete if one.peer == peer]
        size = sum(len(part) if isinstance(part, bytes) else part[1] for part in message.parts)
        assembling = sum(one.peer == peer for one in state.pieces.assembling)
        # The bounds are for each peer, so that a peer that sends much does not block the others.
        if size > MESSAGE_BYTES_MAX or len(waiting) >= MESSAGES_MAX or assembling >= ASSEMBLING_MAX:
            state.counts["messages_too_many"] += 1
            return
        missing = {digest for digest in names if digest not in state.pieces.saved and digest not in self.fetched}
        one = Incomplete(peer, message.parts, missing, state.clock.now.seconds)
        if missing:
            self.incomplete.append(one)
            self._request(peer, [name for name in names.items() if name[0] in missing])
        else:
            self._assemble(one)

    def _assemble(self, one: Incomplete) -> None:
        """Ask the driver to assemble a message from its pieces."""
        fetched, saved = self.fetched, self.state.pieces.saved
        parts = tuple(
            # The driver reads saved pieces from the file; pieces that are only in memory are passed to it.
            fetched[part[0]] if type(part) is tuple and part[0] in fetched and part[0] not in saved else part
            for part in one.parts
        )
        state, now = self.state, self.state.clock.now.seconds
        # Assembling a BEGIN takes a while, so record the clock up to which time could be closed now: a BEGIN with a
        # later clock came in time.
        closable = max(state.clock.closed, state.clock.lag.closable(now))
        state.pieces.assembling.append(Assembling(one.peer, parts, closable, now + ASSEMBLY_S))
        state.outbox.emit(Assemble(one.peer, parts))

    def on_assembled(self, peer: str, parts: tuple[Part, ...], data: bytes, known: Whole | None) -> Message | None:
        """Return the message that was assembled from parts; None if it is malformed, or again an ``InPieces``."""
        waiting = self.state.pieces.assembling
        # Find the message by its parts: several messages of one peer are assembled at the same time.
        waiting.remove(next(one for one in waiting if one.peer == peer and one.parts == parts))
        try:
            message = decode(data) if known is None else known.message
        except EntryMalformedError:
            message = None
        # A message in pieces must not contain another one: such messages could be nested without end.
        if message is None or isinstance(message, InPieces):
            self.state.counts["malformed"] += 1
            return None
        if isinstance(message, Begin):
            # Remember the division of the body: the vote on this BEGIN names the same pieces.
            self.state.pieces.cutter.learn(message.body, data, parts)
        return message

    # -- pieces ----------------------------------------------------------------------------------------------------

    def on_piece(self, peer: str, message: Piece) -> None:
        """Receive a requested piece, or the answer that the peer does not have it any more."""
        state, digest, data = self.state, message.digest, message.data
        pull = self.requests.get(peer)
        size = None if pull is None else pull.arrived(digest, state.clock.now.seconds)
        if size is None:
            return  # the piece arrived twice, or was never requested
        # The hash is verified, because the piece may become a part of a vote.
        if data is None or len(data) != size or sha256(data).digest() != digest:
            self._drop_dependents(peer, digest)
        else:
            self._store(digest, data)
        self._ask(peer)

    def _drop_dependents(self, peer: str, digest: bytes) -> None:
        """Drop the peer's offers and messages that need a piece: the peer lacks this piece, or sent wrong bytes for it.

        The peer repeats the offers and messages that are still of use.
        """
        self.incomplete = [one for one in self.incomplete if one.peer != peer or digest not in one.missing]
        for key in [key for key, offer in self.offers.items() if key[0] == peer and digest in offer.missing]:
            del self.offers[key]

    def _store(self, digest: bytes, data: bytes) -> None:
        state = self.state
        offers = [(key, offer) for key, offer in self.offers.items() if digest in offer.missing]
        messages = [one for one in self.incomplete if digest in one.missing]
        # A piece of an offered transaction must be durable, because this node's vote on the transaction will name it.
        # Any other piece is needed only until its message is assembled.
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
        """Save a piece in the file."""
        saved = self.state.pieces.saved
        if digest not in saved:
            saved[digest] = len(data)
            self.state.outbox.emit(SavePiece(digest, data))

    # -- asking ----------------------------------------------------------------------------------------------------

    def _request(self, peer: str, names: Iterable[Name]) -> None:
        pull = self.requests.setdefault(peer, PieceRequests())
        known = {*pull.asked, *(digest for digest, _ in pull.queue)}
        # Two messages may need the same piece: it is asked for once and serves both.
        pull.queue.extend(name for name in names if name[0] not in known)
        self._ask(peer)

    def _ask(self, peer: str) -> None:
        """Ask a peer for further pieces, up to its window."""
        pull, now, wanted = self.requests[peer], self.state.clock.now.seconds, []
        if not pull.asked:
            pull.quickest_s = 0.0  # measure again: the link may have changed while it was idle
        while pull.queue and len(pull.asked) < int(pull.window):
            digest, size = pull.queue.popleft()
            # The piece may have arrived for another message since, or its own message was dropped.
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
        """Ask a peer again for all pieces that it has not sent: the question, or the answer, may be lost."""
        pull = self.requests.get(peer)
        if pull is not None and pull.asked:
            pull.queue.extendleft([(digest, size) for digest, (_, size) in pull.asked.items()])
            pull.asked.clear()
            # The link may be slower than before, so the window starts from its least size.
            pull.window = WINDOW_MIN
            self._ask(peer)

    def check(self) -> None:
        """Ask again for overdue pieces, and drop the pieces that no offer, message or vote needs any more."""
        state, now = self.state, self.state.clock.now.seconds
        state.pieces.expire(now)
        for peer, pull in list(self.requests.items()):
            if any(now - since > ASK_AGAIN_S for since, _ in pull.asked.values()):
                self.resume(peer)
            elif not pull.asked and not pull.queue:
                del self.requests[peer]
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
        # Several votes may name a piece; it is dropped with the last of them.
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
