"""The requests that wait here for a schema change to come into force.

A schema change D is committed like any transaction, and comes into force at its activation clock. Every transaction
runs on the schema that is in force at its own clock: with a smaller clock than D's activation it runs on the old
schema, whenever it arrives; with a greater one it waits until D is in force at its leader, which is when safe time has
reached the activation. No transaction is rejected because of D, unless D's delay was too short to reach every node.
"""

from bedrockish.api.requests import Answer
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.state import State
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.transaction import SCHEMA, Txid

DOUBLINGS_MAX = 6


def activation_clock(state: State, inflight: InFlight, prepared: Prepared, clock: int) -> int:
    """Return the activation clock of a schema change that begins at this clock.

    A sole voter needs no delay. If an attempt would have come into force too soon for a voter, the next one has twice
    the delay. A change whose index is built online has a delay as long as the build.
    """
    assert prepared.kind == SCHEMA
    delay_ms = 0
    if len(state.roster.voters) > 1:
        delay_ms = state.settings.schema_delay_ms << min(inflight.early_activations, DOUBLINGS_MAX)
    # Greater than the change's own clock, or the change itself would run on the schema that it makes.
    return moved(clock, max(prepared.delay_ms, min(delay_ms, state.settings.clock_offset_ms))) + 1


class SchemaBarrier:
    """The requests that wait for a schema change to be in force."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.waiting: list[InFlight] = []  # requests to execute on the new schema
        self.leader = ""  # the leader of the change for which these requests wait
        self.decided: dict[Txid, list[InFlight]] = {}  # the requests for the change itself

    def blocks(self, prepared: Prepared, clock: int) -> bool:
        """Return whether a transaction of this clock has to wait for the scheduled change."""
        scheduled = self.state.schema.scheduled
        # A second change always waits, because it runs on the schema version of the first one.
        return not (scheduled is None or (prepared.kind != SCHEMA and clock < scheduled.activates))

    def wait(self, inflight: InFlight) -> None:
        """Let a request wait until the scheduled change is in force."""
        assert self.state.schema.scheduled is not None, "its activation ends the wait"
        inflight.move(Stage.SCHEMA)
        self.waiting.append(inflight)
        self.leader = self.state.schema.scheduled.txid.leader
        self.state.counts["waited_for_schema"] += 1

    def released(self) -> list[InFlight]:
        """Remove and return the waiting requests, because the change is in force: they run on the new schema."""
        waiting, self.waiting = self.waiting, []
        return [inflight for inflight in waiting if inflight.stage is Stage.SCHEMA]

    def decide(self, inflight: InFlight, txid: Txid, answer: Answer) -> None:
        """Let a request whose schema change is committed wait until the change is in force here.

        Without effect for a request that waits already: its attempt and a later execution may both report the commit.
        """
        if inflight.stage is Stage.ACTIVATING:
            return
        inflight.move(Stage.ACTIVATING)
        inflight.answer = answer
        # Several requests may have the same command: a client sends it again, possibly to this node.
        self.decided.setdefault(txid, []).append(inflight)

    def activated(self, txid: Txid) -> list[InFlight]:
        """Remove and return the requests that asked for a schema change that is in force now."""
        return [inflight for inflight in self.decided.pop(txid, ()) if inflight.stage is Stage.ACTIVATING]
