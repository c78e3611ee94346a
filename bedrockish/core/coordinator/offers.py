"""Offers: a leader sends the pieces of a large transaction to the voters before the transaction gets its clock.

The transaction begins when its pieces are durable at a quorum. So the messages between the choice of the clock and the
approvals are small for a transaction of any size, and closed time does not pass its clock in the meantime.
An offer needs no vote: until BEGIN, no voter has promised anything. If data that the transaction has read changes
before its BEGIN, the transaction is executed again, and only the pieces that differ are sent again.
"""

from dataclasses import dataclass, field

from bedrockish.core.protocol.messages import Offer, Piece, Stored, Want
from bedrockish.core.protocol.pieces import Cut
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.replica.staging import Staging
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.state import State

# Most bytes of the offers under way; a further offer waits until a quorum has one of these.
UNDER_WAY_BYTES_MAX = 128 << 20
REPEAT_S = 1.0  # an unanswered offer is first repeated after this time
RENEW_S = 20.0  # an answered offer is repeated after this time, long before the voter drops it
WANTED_MAX = 256  # most pieces that one WANT may name


@dataclass(slots=True)
class OwnOffer:
    """The pieces of one of our transactions, offered to the voters before its BEGIN."""

    number: int  # this node's number of the offer
    cut: Cut  # the transaction, divided into pieces
    size: int  # the bytes of all pieces
    stored: set[str] = field(default_factory=set)  # the voters at which all pieces are durable
    # When to repeat the offer to each voter; empty while it waits for other offers.
    repeats: dict[str, Repeat] = field(default_factory=dict)


class Offers:
    """Our large transactions, by request number, until the request is answered."""

    def __init__(self, state: State, staging: Staging) -> None:
        self.state = state
        self.staging = staging
        self.under_way: dict[int, OwnOffer] = {}
        self._count = 0

    def offer(self, request: int, prepared: Prepared) -> bool:
        """Offer the pieces of a large transaction to the voters; return whether BEGIN waits until a quorum has them.

        A transaction that called transaction_clock() begins at once: its clock would soon be too old.
        """
        state = self.state
        if prepared.clock or state.roster.quorum == 1:
            return False
        cut = state.pieces.cutter.cut_prepared(prepared)
        if not cut.pieces:
            return False
        before = self.under_way.get(request)
        # All pieces of the new execution are offered already: the voters have them, or are fetching them.
        if before is not None and cut.pieces.keys() <= before.cut.pieces.keys():
            return not self._is_at_quorum(before)
        # An offer of other pieces gets a new number, so that a voter's STORED shows which offer it answers.
        self._count += 1
        # A piece that occurs twice is sent once.
        size = sum(size for _, size in set(cut.names))
        self.under_way[request] = OwnOffer(self._count, cut, size)
        state.pieces.offered |= cut.pieces
        self._send_waiting()
        if before is not None:
            self._withdraw(before)  # after the new offer was sent, so that the voters keep the pieces of both
        return True

    def _is_at_quorum(self, one: OwnOffer) -> bool:
        voters = self.state.roster.voters
        # This node counts: it saves its own pieces before BEGIN can leave (``on_stored``).
        return 1 + sum(node in one.stored for node in voters) >= self.state.roster.quorum

    def _send_waiting(self) -> None:
        """Send the waiting offers that fit within the bound on bytes under way."""
        state, now = self.state, self.state.clock.now.seconds
        on_the_way = 0
        for one in self.under_way.values():
            if self._is_at_quorum(one):
                continue
            on_the_way += one.size
            # An offer that alone exceeds the bound is sent if it is the first: otherwise it would wait for ever.
            if on_the_way > UNDER_WAY_BYTES_MAX and on_the_way > one.size:
                return
            for node in state.roster.voters:
                if node != state.me and state.roster.peers[node].up and node not in one.repeats:
                    one.repeats[node] = Repeat(now, REPEAT_S)
                    state.outbox.send(node, self._message(one))

    def _message(self, one: OwnOffer) -> Offer:
        return Offer(one.number, tuple(dict.fromkeys(one.cut.names)), self.state.clock.read())

    def _withdraw(self, one: OwnOffer) -> None:
        state = self.state
        for node in one.repeats:
            if node in state.roster.peers:
                state.outbox.send(node, Offer(one.number, (), state.clock.read()))
        state.pieces.offered = {
            digest: piece for other in self.under_way.values() for digest, piece in other.cut.pieces.items()
        }

    def on_stored(self, peer: str, message: Stored) -> int | None:
        """Count a voter that has all pieces; return the request when its transaction can be begun, else None."""
        for request, one in self.under_way.items():
            if one.number == message.number:
                if not message.stored:
                    self.state.counts["offers_turned_down"] += 1  # the voter has no room: the offer is repeated later
                    return None
                was_there = self._is_at_quorum(one)
                one.stored.add(peer)
                # The request is returned once, at the answer that completes the quorum.
                if was_there or not self._is_at_quorum(one):
                    return None
                for digest, piece in one.cut.pieces.items():  # this node approves, so its pieces must be durable
                    self.staging.save(digest, piece.read())
                self._send_waiting()
                return request
        return None

    def on_want(self, peer: str, message: Want) -> None:
        """Send a peer the pieces that it requested."""
        # Bounded, because each piece is read into memory to be sent.
        for digest in message.pieces[:WANTED_MAX]:
            data = self.state.pieces.take_piece(peer, digest, self.state.clock.now.seconds)
            if data is not None and digest in self.state.pieces.offered:
                self.staging.save(digest, data)  # already now, so that ``on_stored`` has few pieces left to save
            self.state.outbox.send(peer, Piece(digest, data))

    def check(self, requests: set[int]) -> None:
        """Repeat the offers that voters have not answered, and withdraw those whose request is over."""
        state, now = self.state, self.state.clock.now.seconds
        for request in [request for request in self.under_way if request not in requests]:
            # Otherwise the voters would keep its pieces, which count against the room for other offers.
            self._withdraw(self.under_way.pop(request))
        for one in self.under_way.values():
            for node, repeat in one.repeats.items():
                peer = state.roster.peers.get(node)
                if peer is None or not peer.up or not state.roster.is_voter(node):
                    continue
                # A voter keeps the pieces only while the offer is repeated.
                repeat.pause = RENEW_S if node in one.stored else min(repeat.pause, RENEW_S)
                if repeat.is_due(now):
                    state.outbox.send(node, self._message(one))
        self._send_waiting()

    def resend(self, peer: str) -> None:
        """Repeat to a peer the offers that it may have missed."""
        for one in self.under_way.values():
            # The old link may have lost the offer. The peer fetches only the pieces that it lacks.
            if one.repeats:
                one.repeats.pop(peer, None)
        self._send_waiting()
