"""Transaction clocks: a clock that is later than everything acknowledged anywhere before it was asked for.

Every acknowledged transaction was approved, or held, by a majority, whose clocks had then moved up to it. So the
greatest clock of any majority is at least that of everything acknowledged, and the next value of our own clock, once
that has moved up to theirs, is later. It becomes the transaction's own clock, and BEGIN carries it to a majority; for
one that only reads, a second round does, so that the next request for a clock, at any node, gets a later one (Citus:
"all nodes move to the new clock").
"""

from collections.abc import Container
from dataclasses import dataclass, field

from bedrockish.core.protocol.messages import AskClock, ToldClock
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.state import State


@dataclass(slots=True)
class Round:
    """One question to all voters.

    Attributes:
        request_id: the request that waits for the clock.
        clock: the value that each voter is asked to move up to.
        repeat: when to send the question again.
        heard: the voters whose clock we have moved up to, and that have moved up to ours.
    """

    request_id: int
    clock: int
    repeat: Repeat
    heard: set[str] = field(default_factory=set)


class ClockQuorum:
    """Asks a majority for its clock, and answers others that ask."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.rounds: dict[int, Round] = {}
        self._count = 0

    def ask(self, request_id: int, clock: int = 0) -> bool:
        """Ask all voters for their clocks, for a request; return True if this node alone is a majority.

        Args:
            request_id: the request that waits for the clock.
            clock: the value that all move up to; 0: a new value of our own clock.
        """
        state = self.state
        self._count += 1
        heard = {state.me} if state.roster.certifies_reads else set()
        # A value that no request has been given: a node that has moved up to it gives later ones.
        repeat = Repeat(state.clock.now.seconds, state.settings.heartbeat_ms / 1000)
        found = Round(request_id, clock or state.clock.tick(), repeat, heard)
        if len(found.heard) >= state.roster.majority:
            return True
        self.rounds[self._count] = found
        state.outbox.send_voters(AskClock(self._count, found.clock))
        return False

    def on_ask(self, peer: str, message: AskClock) -> None:
        """Move up to a peer's clock, unless that is too far ahead, and tell ours if this node's word counts."""
        state = self.state
        if state.hear_clock(peer, message.clock) and state.roster.certifies_reads:
            # A transaction with a clock of about now is going to come, later than most do: it is executed in between.
            state.clock.lag.expect()
            state.outbox.send(peer, ToldClock(message.number, state.clock.value))

    def on_told(self, peer: str, message: ToldClock) -> int | None:
        """Move up to a voter's clock; the request for which a majority has told now, or None."""
        state = self.state
        found = self.rounds.get(message.number)
        # A clock that is refused was not followed: a majority with it in would prove nothing.
        if not state.hear_clock(peer, message.clock) or found is None or not state.roster.is_voter(peer):
            return None
        # It has moved up to ours, and we to its: later than all that it had approved or acknowledged.
        found.heard.add(peer)
        if len(found.heard) < state.roster.majority:
            return None
        del self.rounds[message.number]
        return found.request_id

    def repeat(self, under_way: Container[int]) -> None:
        """Ask those again that have not told: a message may be lost, a node may have come back.

        Args:
            under_way: those that are still under way; the others need no clock any more.
        """
        self.rounds = {number: found for number, found in self.rounds.items() if found.request_id in under_way}
        for number, found in self.rounds.items():
            if not found.repeat.is_due(self.state.clock.now.seconds):
                continue
            for node in self.state.roster.voters:
                if node not in found.heard and node != self.state.me:
                    self.state.outbox.send(node, AskClock(number, found.clock))

    def fits(self, clock: int, begun: int) -> bool:
        """Return whether a clock of ours that was told to a client can be that of its transaction.

        It has to be later than all that is closed here, and than every end of a transaction of ours (clause V10: a
        rollback is only counted on by those that began after it); and a name is given once. The executor has already
        made sure that it is later than all that the transaction has seen.

        Args:
            clock: the clock that was told.
            begun: the last clock with which this request has begun a transaction.
        """
        state = self.state
        return clock > max(
            state.clock.closed, state.clock.cut, state.clock.safe, state.clock.floor, begun, state.votes.own_ends.latest
        )
