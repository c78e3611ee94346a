"""Strict reads of the cluster's own tables: the wait until this node has every commit that a majority knew.

Other strict reads are executed first, and checked afterwards by a question to a majority (``read_checks``). That does
not work here. Each commit adds rows to the journal, but no access set has keys of these rows: a question about the keys
of such a read would never find a conflict, and a question about every key would always find one while any client
writes. So the node asks a majority once, after the request has arrived, which transactions are committed or pending
outside its state (``ReadChecks``). It waits until all of these have ended and the commits among them are applied here.
Then it executes the request.

Pending transactions count, because a voter may not know yet that a transaction is committed: the leader answers its
client when the commit is durable at the leader, before any COMMIT arrives. Such a commit has the approvals of a quorum,
and the quorum shares a voter with the majority. At that voter the transaction is pending or committed, so the voter
names it unless this node's state has it.
"""

from collections.abc import Mapping

from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.protocol.messages import Ask
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.state import State
from bedrockish_journal.model.transaction import Txid

DOUBLED_MAX = 5  # how often the pause between two questions about the same outcomes is doubled


class CatchUp:
    """The requests of this node that wait for the ends of transactions."""

    def __init__(self, state: State, in_flight: Mapping[int, InFlight]) -> None:
        self.state, self._in_flight = state, in_flight
        self.waiting: dict[int, InFlight] = {}

    def wait(self, inflight: InFlight) -> None:
        """Have a request wait for the ends of its awaited transactions."""
        assert inflight.awaited is not None
        self.waiting[inflight.number] = inflight
        self._ask_later(inflight.number, 0)

    def _ask_later(self, number: int, asked: int) -> None:
        # Most transactions are committed after a round trip and a sync, and their COMMIT arrives unasked. A rollback is
        # sent only to the voters that were asked for an approval, so this node may have to ask for it.
        after_ms = self.state.settings.fetch_after_ms * 2 ** min(asked, DOUBLED_MAX)
        self.state.timers.move(after_ms, Timer.ASK_ENDS, number)

    def pop_ended(self) -> list[InFlight]:
        """Remove and return the requests whose awaited transactions have ended; set their ``required_vector``."""
        state, over = self.state, list[InFlight]()
        for number, inflight in list(self.waiting.items()):
            awaited = inflight.awaited
            assert awaited is not None
            if inflight.stage is not Stage.CATCHING_UP or number not in self._in_flight:
                del self.waiting[number]  # its client has disconnected, or its deadline has passed
            elif awaited.have_ended(state):
                del self.waiting[number]
                over.append(inflight)
                # If the members have changed, the request has to ask again: a majority of the old voters need not share
                # a voter with the quorum of a commit under the new members. Each such change is applied here by now: a
                # voter that had approved the change has named it in its answer.
                if awaited.config == state.roster.membership.version:
                    inflight.required_vector = dict(state.timelines.applied)
        return over

    def ask_ends(self, number: int) -> None:
        """Ask the leaders for the outcomes of the transactions that a request still waits for."""
        inflight, state = self.waiting.get(number), self.state
        if inflight is None or inflight.awaited is None:
            return
        inflight.awaited.times_asked += 1
        self._ask_later(number, inflight.awaited.times_asked)
        by_leader: dict[str, list[Txid]] = {}
        for txid in sorted(inflight.awaited.txids):
            by_leader.setdefault(txid.leader, []).append(txid)
        for leader, (first, *more) in by_leader.items():
            peer = state.roster.peers.get(leader)
            if peer is not None and peer.up:
                state.outbox.send(leader, Ask(first, state.clock.read(), tuple(more)))
