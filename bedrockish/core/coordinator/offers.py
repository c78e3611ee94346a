"""Large transactions go ahead of their BEGIN: their pieces are durable at a quorum before they take their clock.

So the messages that have to be quick, from the clock to a quorum's approvals, are small for any size of transaction.
Until then no voter has promised anything: an offer needs no vote. If the data that the transaction has read changes in
this time, it is executed again, and only the pieces that differ travel again.
"""

from dataclasses import dataclass, field

from bedrockish.core.protocol.messages import Offer, Piece, Stored, Want
from bedrockish.core.protocol.pieces import Cut
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.replica.staging import Staging
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.state import State

AHEAD_BYTES_MAX = 128 << 20  # of all offers together; the next one waits until another has arrived
TELL_AGAIN_S = 1.0
RENEW_S = 20.0  # well below the time after which a voter drops an offer
WANTED_MAX = 256  # pieces that one WANT may name


@dataclass(slots=True)
class Ahead:
    """The pieces of one transaction that is to be begun.

    Attributes:
        number: the offer's name.
        cut: its pieces.
        size: of them, in bytes.
        stored: the voters at which all are durable.
        told: when to tell each voter again; empty while it waits for others.
    """

    number: int
    cut: Cut
    size: int
    stored: set[str] = field(default_factory=set)
    told: dict[str, Repeat] = field(default_factory=dict)


class Offers:
    """Our large transactions, by the number of their request, until these are answered."""

    def __init__(self, state: State, staging: Staging) -> None:
        self.state = state
        self.staging = staging
        self.ahead: dict[int, Ahead] = {}
        self._count = 0

    def has_to_wait(self, request: int, prepared: Prepared) -> bool:
        """Offer the pieces of a large transaction to the voters; return whether it has to wait until a quorum has them.

        One that was told its clock is begun at once: that clock does not wait.
        """
        state = self.state
        if prepared.clock:
            return False
        cut = state.pieces.cutter.cut_prepared(prepared)
        # No other node has to have them.
        if not cut.pieces or state.roster.quorum == 1:
            return False
        before = self.ahead.get(request)
        # Executed again with the same effect: the voters have these pieces, or are fetching them.
        if before is not None and cut.pieces.keys() <= before.cut.pieces.keys():
            return not self._is_there(before)
        # A new number for other pieces: a voter's STORED says for which of the two it is.
        self._count += 1
        # A piece that occurs twice travels once.
        size = sum(size for _, size in set(cut.names))
        self.ahead[request] = Ahead(self._count, cut, size)
        state.pieces.offered |= cut.pieces
        self._tell()
        if before is not None:
            self._withdraw(before)  # after the new one is told: what they share stays where it is
        return True

    def _is_there(self, one: Ahead) -> bool:
        voters = self.state.roster.voters
        # Ours count as well: they are saved before BEGIN can leave (``on_stored``).
        return 1 + sum(node in one.stored for node in voters) >= self.state.roster.quorum

    def _tell(self) -> None:
        """Offer as many transactions as the bytes that are already on their way leave room for."""
        state, now = self.state, self.state.clock.now.seconds
        on_the_way = 0
        for one in self.ahead.values():
            if self._is_there(one):
                continue
            on_the_way += one.size
            # The first one goes even if it is over the bound by itself: nothing else would ever let it go.
            if on_the_way > AHEAD_BYTES_MAX and on_the_way > one.size:
                return
            for node in state.roster.voters:
                if node != state.me and state.roster.peers[node].up and node not in one.told:
                    one.told[node] = Repeat(now, TELL_AGAIN_S)
                    state.outbox.send(node, self._message(one))

    def _message(self, one: Ahead) -> Offer:
        return Offer(one.number, tuple(dict.fromkeys(one.cut.names)), self.state.clock.read())

    def _withdraw(self, one: Ahead) -> None:
        state = self.state
        for node in one.told:
            if node in state.roster.peers:
                state.outbox.send(node, Offer(one.number, (), state.clock.read()))
        state.pieces.offered = {
            digest: piece for other in self.ahead.values() for digest, piece in other.cut.pieces.items()
        }

    def on_stored(self, peer: str, message: Stored) -> int | None:
        """Count a voter that has all pieces; the request, as soon as its transaction can be begun."""
        for request, one in self.ahead.items():
            if one.number == message.number:
                if not message.stored:
                    self.state.counts["offers_turned_down"] += 1  # it has no room: it is told again in a while
                    return None
                was_there = self._is_there(one)
                one.stored.add(peer)
                # The request is told once, at the answer that makes the quorum.
                if was_there or not self._is_there(one):
                    return None
                for digest, piece in one.cut.pieces.items():  # ours, too, is to be durable when we approve it
                    self.staging.save(digest, piece.read())
                self._tell()
                return request
        return None

    def on_want(self, peer: str, message: Want) -> None:
        """Send a peer the pieces that it wants."""
        # No more than that at once: a piece is read into memory to be sent.
        for digest in message.pieces[:WANTED_MAX]:
            data = self.state.pieces.take(peer, digest, self.state.clock.now.seconds)
            if data is not None and digest in self.state.pieces.offered:
                self.staging.save(digest, data)  # a few at a time, as they leave
            self.state.outbox.send(peer, Piece(digest, data))

    def check(self, requests: set[int]) -> None:
        """Tell again who has not answered, and forget the offers of requests that are over."""
        state, now = self.state, self.state.clock.now.seconds
        for request in [request for request in self.ahead if request not in requests]:
            # Told to the voters as well: what they have stored of it takes the room of others' offers.
            self._withdraw(self.ahead.pop(request))
        for one in self.ahead.values():
            for node, repeat in one.told.items():
                peer = state.roster.peers.get(node)
                if peer is None or not peer.up or not state.roster.is_voter(node):
                    continue
                # One that has stored it keeps it only as long as it hears of it.
                repeat.pause = RENEW_S if node in one.stored else min(repeat.pause, RENEW_S)
                if repeat.is_due(now):
                    state.outbox.send(node, self._message(one))
        self._tell()

    def resend(self, peer: str) -> None:
        """Say again to a peer what it may have missed."""
        for one in self.ahead.values():
            # It may have lost the offer with its link; its pieces, if it has them, are found at once by their names.
            if one.told:
                one.told.pop(peer, None)
        self._tell()
