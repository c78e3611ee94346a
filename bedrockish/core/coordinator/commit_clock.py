"""Transaction clocks: a clock that is later than every commit acknowledged before the clock was requested.

A majority approved or held every acknowledged transaction, and each voter of that majority had moved its clock up to
the transaction's clock. So the greatest clock of any majority is at least the clock of every acknowledged transaction.
This node moves its own clock up to the clocks of a majority; its next value is later than all of them, and becomes the
transaction's clock. BEGIN carries that value to a majority; a transaction that only reads has no BEGIN, so a second
round of questions carries it. After that, each later request for a clock gets a later value, at any node.
"""

from collections.abc import Container
from dataclasses import dataclass, field

from bedrockish.core.protocol.messages import AskClock, ToldClock
from bedrockish.core.state.repeat import Repeat
from bedrockish.core.state.state import State


@dataclass(slots=True)
class ClockRound:
    """A question to all voters: move up to ``clock``, and answer with your clock."""

    request_id: int  # the request that waits for the clock
    clock: int  # the value that each voter is asked to move up to
    repeat: Repeat  # when to send the question again
    # The voters that have moved up to ``clock``, and to whose clock this node has moved up.
    answered: set[str] = field(default_factory=set)


class ClockQuorum:
    """The exchange of clocks with a majority: asks the voters on behalf of requests, and answers peers that ask."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.rounds: dict[int, ClockRound] = {}
        self._count = 0

    def ask(self, request_id: int, clock: int = 0) -> bool:
        """Ask all voters for their clocks, for a request; return True if this node alone is a majority.

        Args:
            request_id: the request that waits for the clock.
            clock: the value that the voters move up to; 0 for a new value of our own clock.
        """
        state = self.state
        self._count += 1
        heard = {state.me} if state.roster.certifies_reads else set()
        # No request gets this value itself: each node that has moved its clock up to it returns later values only.
        repeat = Repeat(state.clock.now.seconds, state.settings.heartbeat_ms / 1000)
        found = ClockRound(request_id, clock or state.clock.tick(), repeat, heard)
        if len(found.answered) >= state.roster.majority:
            return True
        self.rounds[self._count] = found
        state.outbox.send_voters(AskClock(self._count, found.clock))
        return False

    def on_ask(self, peer: str, message: AskClock) -> None:
        """Move our clock up to a peer's unless that is too far ahead; if we certify reads, answer with our clock."""
        state = self.state
        if state.hear_clock(peer, message.clock) and state.roster.certifies_reads:
            # The peer now executes a transaction with about this clock, so that transaction's BEGIN will arrive later
            # than most. Let the closing lag grow for this BEGIN.
            state.clock.lag.expect()
            state.outbox.send(peer, ToldClock(message.number, state.clock.value))

    def on_told(self, peer: str, message: ToldClock) -> int | None:
        """Count an answer, and move up to its clock; return the request if a majority has answered, else None."""
        state = self.state
        found = self.rounds.get(message.number)
        # If a voter's clock is too far ahead, this node has not moved up to it, so the voter must not count.
        if not state.hear_clock(peer, message.clock) or found is None or not state.roster.is_voter(peer):
            return None
        # The voter's clock is later than those of all transactions that the voter had approved.
        found.answered.add(peer)
        if len(found.answered) < state.roster.majority:
            return None
        del self.rounds[message.number]
        return found.request_id

    def repeat(self, under_way: Container[int]) -> None:
        """Ask the voters again that have not answered: the message may be lost, or a voter may have restarted.

        Args:
            under_way: the requests without an answer; the rounds of other requests are dropped.
        """
        self.rounds = {number: found for number, found in self.rounds.items() if found.request_id in under_way}
        for number, found in self.rounds.items():
            if not found.repeat.is_due(self.state.clock.now.seconds):
                continue
            for node in self.state.roster.voters:
                if node not in found.answered and node != self.state.me:
                    self.state.outbox.send(node, AskClock(number, found.clock))

    def fits(self, clock: int, begun: int) -> bool:
        """Return whether the value that transaction_clock() returned can become the clock of the transaction.

        The value has to be later than closed time here, and than the clock at which this node learned the last rollback
        of one of its transactions: by clause V10, only a transaction that began after a rollback may rely on the
        rollback. No earlier attempt may have used the value. The executor has already checked that it is later than
        everything that the transaction has seen.

        Args:
            clock: the value that transaction_clock() returned.
            begun: the last clock with which this request has begun a transaction.
        """
        state = self.state
        return clock > max(
            state.clock.closed, state.clock.cut, state.clock.safe, state.clock.floor, begun, state.votes.own_ends.latest
        )
