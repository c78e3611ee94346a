"""The transactions that a majority knew outside of this node's state, when it was asked for a strict read."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bedrockish.core.state.state import State
from bedrockish_journal.model.transaction import Txid

NAMED_MAX = 256  # transactions that an answer to a question about every key names at most
NAMED_BEFORE = 16  # ... and at most in the releases 0.2.0 and 0.2.1


@dataclass(slots=True)
class Awaited:
    """The transactions whose ends a strict read of the cluster's own tables waits for."""

    config: int  # the version of the membership whose majority was asked
    names: set[Txid] = field(default_factory=set)  # those whose end is not known, or not applied, here
    safe: int = 0  # the clock that safe time has to reach: it stands for transactions that an answer had no room for
    asked: int = 0  # how often their leaders were asked for their outcomes

    def add(self, others: Iterable[Txid], clock: int) -> None:
        """Add the transactions that a voter has named; ``clock`` is the voter's clock then."""
        named = tuple(others)
        self.names.update(named)
        # The answer may be cut off. Each transaction that is pending or committed at the voter has a clock up to the
        # voter's, and once safe time has reached that clock, all of them have ended and every commit is applied.
        if len(named) == NAMED_BEFORE or len(named) >= NAMED_MAX:
            self.safe = max(self.safe, clock)

    def is_over(self, state: State) -> bool:
        """Return whether all of the transactions have ended, and the commits among them are applied here."""
        safe, outcomes = state.clock.safe, state.votes.outcomes
        self.names = {
            txid
            for txid in self.names
            # Up to safe time, every commit is applied, and every other transaction was rolled back.
            if txid.clock > safe and outcomes.get(txid) is not False and not state.is_applied(txid)
        }
        return not self.names and self.safe <= safe
