"""The pieces of large messages that this node has: saved in its file, or of messages that it is sending just now.

A saved piece is known by its hash, so a body that is sent again, or executed again with the same effect, is not
fetched again. A piece stays as long as a vote, an offer or a message that is not complete yet names it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bedrockish.core.protocol.messages import InPieces, Message, Whole
from bedrockish.core.protocol.pieces import Cut, Cutter, Part, Slice
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.transaction import Transaction, Txid

SENT_S = 60.0  # how long a peer may take to ask for the pieces of a message
SENT_BYTES_MAX = 256 << 20  # of pieces that wait for one peer to ask for them
REMEMBERED_S = 5.0  # how long cuts are remembered


@dataclass(slots=True)
class Sent:
    """The pieces of one message that a peer has not asked for yet."""

    pieces: dict[bytes, Slice]
    size: int
    since: float


@dataclass(frozen=True, slots=True)
class Assembling:
    """A message of which all pieces are here, and which cannot be read yet.

    Attributes:
        peer: its sender.
        closable: the clock up to which time could be closed when it came: a BEGIN with a later one came in time.
        until: seconds until which that holds.
    """

    peer: str
    parts: tuple[Part, ...]
    closable: int
    until: float


@dataclass(slots=True)
class Pieces:
    """The pieces of large transactions that this node has.

    Attributes:
        saved: the pieces in its file: sha256 -> size.
        named: the saved pieces that a vote names.
        offered: those of our own transactions that are not decided, by their hash.
        assembling: messages that are put together just now, in the order in which they were complete.
        sent: to each peer, the pieces of messages that it was sent and has not asked for.
        taken: to each peer, when it last took a piece of a message, in seconds.
        known: the transaction of a message that came in pieces, which was read ahead; None for most of the time.
    """

    settings: Settings
    saved: dict[bytes, int]
    named: dict[Txid, tuple[bytes, ...]] = field(default_factory=dict)
    offered: dict[bytes, Slice] = field(default_factory=dict)
    assembling: list[Assembling] = field(default_factory=list)
    sent: dict[str, list[Sent]] = field(default_factory=dict)
    taken: dict[str, float] = field(default_factory=dict)
    cutter: Cutter = field(init=False)
    _forget_at: float = 0.0
    known: Transaction | None = None

    def __post_init__(self) -> None:
        self.cutter = Cutter(self.settings.piece_bytes, self.settings.inline_bytes)

    def learn(self, known: Whole) -> None:
        """Remember the transaction of a message that is about to be heard: its body need not be read again."""
        self.known = known.transaction

    def refer(self, transaction: Transaction) -> tuple[Part, ...] | None:
        """Return the parts in which the large transaction of a vote is kept; None if not all of it is saved."""
        # As its message was cut, so that the names are those of pieces that have come, or that were offered.
        cut = self.cutter.cut_body(transaction.body, transaction)
        if not cut.pieces or not cut.pieces.keys() <= self.saved.keys():
            # The vote has the body itself then, and the saved pieces may go.
            self.named.pop(transaction.txid, None)
            return None
        self.named[transaction.txid] = tuple(cut.pieces)
        return cut.parts

    def forget_votes(self, votes: Iterable[Txid]) -> None:
        """Forget the pieces named by votes other than these, which are gone."""
        kept = set(votes)
        self.named = {txid: names for txid, names in self.named.items() if txid in kept}

    def cut(self, message: Message) -> Cut:
        """Return how a message is cut, without the cuts remembered of others: so another thread may call this."""
        return Cutter(self.settings.piece_bytes, self.settings.inline_bytes).cut_message(message)

    def to_send(self, peer: str, message: Message, seconds: float, cut: Cut | None = None) -> Message:
        """Return the message to send instead of a large one: its parts."""
        cut = cut or self.cutter.cut_message(message)
        self._remember(peer, cut, seconds)
        return InPieces(cut.parts)

    def _remember(self, peer: str, cut: Cut, seconds: float) -> None:
        """Have the pieces at hand when the peer asks for them."""
        # Offered pieces stay at hand as long as their request is under way.
        pieces = {digest: piece for digest, piece in cut.pieces.items() if digest not in self.offered}
        if not pieces:
            return
        waiting = self.sent.setdefault(peer, [])
        waiting.append(Sent(pieces, sum(piece.stop - piece.start for piece in pieces.values()), seconds))
        while len(waiting) > 1 and sum(one.size for one in waiting) > SENT_BYTES_MAX:
            del waiting[0]  # the peer is told that they are not here any more, and asks again if it needs them

    def take(self, peer: str, digest: bytes, seconds: float) -> bytes | None:
        """Return a piece that a peer wants, which asks for it once; None if it is not here any more."""
        self.taken[peer] = seconds
        if digest in self.offered:
            return self.offered[digest].read()
        waiting = self.sent.get(peer, [])
        found = None
        for one in waiting:
            # From all messages that name it: the peer has it then, whichever it was wanted for.
            found = one.pieces.pop(digest, None) or found
        self.sent[peer] = [one for one in waiting if one.pieces]
        return None if found is None else found.read()

    def expire(self, seconds: float) -> None:
        """Forget the pieces that no peer has asked for in a while."""
        for peer, waiting in list(self.sent.items()):
            self.sent[peer] = [one for one in waiting if seconds - one.since < SENT_S]
            if not self.sent[peer]:
                del self.sent[peer]
        if seconds >= self._forget_at:
            self._forget_at, self.known = seconds + REMEMBERED_S, None
            self.cutter.forget()
