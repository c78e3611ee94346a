"""The pieces of large messages that this node has: pieces saved in its file, and pieces of messages that it sends.

A saved piece is found by its hash, so a body is not fetched a second time if it is sent again, or if another execution
has the same effect. A piece stays as long as a vote, an offer or an incomplete message names it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bedrockish.core.protocol.messages import InPieces, Message, Whole
from bedrockish.core.protocol.pieces import Cut, Cutter, Part, Slice
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.transaction import Transaction, Txid

SENT_S = 60.0  # how long the pieces of a message wait for a peer to ask for them
SENT_BYTES_MAX = 256 << 20  # most bytes of pieces that wait for one peer to request them
REMEMBERED_S = 5.0  # how long cuts are remembered


@dataclass(slots=True)
class Sent:
    """The pieces of one message that a peer has not asked for yet."""

    pieces: dict[bytes, Slice]
    size: int
    since: float


@dataclass(frozen=True, slots=True)
class Assembling:
    """A message that has all its pieces, and is being assembled."""

    peer: str  # the sender of the message
    parts: tuple[Part, ...]
    # The clock up to which time could be closed when the message was complete: a BEGIN with a later clock came in time.
    closable: int
    until: float  # seconds until which closed time waits for the message


@dataclass(slots=True)
class Pieces:
    """The pieces of large transactions that this node has."""

    settings: Settings
    saved: dict[bytes, int]  # the pieces in the node's file: sha256 -> size
    named: dict[Txid, tuple[bytes, ...]] = field(default_factory=dict)  # the saved pieces that a vote names
    # The pieces of our own undecided transactions, by their hash.
    offered: dict[bytes, Slice] = field(default_factory=dict)
    # Messages that are being assembled, in the order in which they became complete.
    assembling: list[Assembling] = field(default_factory=list)
    # By peer, the pieces of messages that were sent to it, as far as it has not asked for them.
    sent: dict[str, list[Sent]] = field(default_factory=dict)
    # By peer, the seconds at which the peer last took a piece of a message.
    taken: dict[str, float] = field(default_factory=dict)
    cutter: Cutter = field(init=False)
    _forget_at: float = 0.0
    # The transaction of the message that is received now, decoded in another thread; usually None.
    decoded: Transaction | None = None

    def __post_init__(self) -> None:
        self.cutter = Cutter(self.settings.piece_bytes, self.settings.inline_bytes)

    def keep_decoded(self, known: Whole) -> None:
        """Remember the transaction of a message that is about to be received, so that its body is not read again."""
        self.decoded = known.transaction

    def refer(self, transaction: Transaction) -> tuple[Part, ...] | None:
        """Return the parts that store the large transaction of a vote; None if some of its pieces are not saved."""
        # Divide the body as its message was divided, so that the parts name pieces that have arrived or were offered.
        cut = self.cutter.cut_body(transaction.body, transaction)
        if not cut.pieces or not cut.pieces.keys() <= self.saved.keys():
            # The vote then contains the whole body, and needs no saved pieces.
            self.named.pop(transaction.txid, None)
            return None
        self.named[transaction.txid] = tuple(cut.pieces)
        return cut.parts

    def forget_votes(self, votes: Iterable[Txid]) -> None:
        """Forget the pieces that no kept vote names; ``votes`` are the transactions whose vote is kept."""
        kept = set(votes)
        self.named = {txid: names for txid, names in self.named.items() if txid in kept}

    def cut(self, message: Message) -> Cut:
        """Divide a message into pieces; use no remembered division, so that another thread may call this."""
        return Cutter(self.settings.piece_bytes, self.settings.inline_bytes).cut_message(message)

    def to_send(self, peer: str, message: Message, seconds: float, cut: Cut | None = None) -> Message:
        """Return the message to send instead of a large message: its parts."""
        cut = cut or self.cutter.cut_message(message)
        self._remember(peer, cut, seconds)
        return InPieces(cut.parts)

    def _remember(self, peer: str, cut: Cut, seconds: float) -> None:
        """Keep the pieces until the peer asks for them."""
        # Offered pieces are kept as long as their request is under way.
        pieces = {digest: piece for digest, piece in cut.pieces.items() if digest not in self.offered}
        if not pieces:
            return
        waiting = self.sent.setdefault(peer, [])
        waiting.append(Sent(pieces, sum(piece.stop - piece.start for piece in pieces.values()), seconds))
        while len(waiting) > 1 and sum(one.size for one in waiting) > SENT_BYTES_MAX:
            del waiting[0]  # a peer that asks for these pieces learns that they are gone

    def take_piece(self, peer: str, digest: bytes, seconds: float) -> bytes | None:
        """Return a piece that a peer asks for; None if it is not here any more. A peer asks for a piece once."""
        self.taken[peer] = seconds
        if digest in self.offered:
            return self.offered[digest].read()
        waiting = self.sent.get(peer, [])
        found = None
        for one in waiting:
            # Remove the piece from all messages that name it: the peer has it for all of them now.
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
            self._forget_at, self.decoded = seconds + REMEMBERED_S, None
            self.cutter.forget()
