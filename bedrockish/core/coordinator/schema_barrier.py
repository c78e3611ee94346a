"""The requests that wait here for a schema change to come into force.

A schema change D is committed like any transaction, and in force from its activation clock on. A transaction belongs on
the schema in force at its own clock: with a smaller clock it runs on the old one whenever it comes, with a greater one
it waits until D is in force at its leader. That takes as long as closing time does, not as long as D's way through the
cluster; and no transaction is rejected for it, unless D's delay was shorter than that way.
"""

from bedrockish.api.requests import Answer
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.state import State
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.transaction import SCHEMA, Txid

DOUBLINGS_MAX = 6


def activation_clock(state: State, inflight: InFlight, prepared: Prepared, clock: int) -> int:
    """Return the clock from which on a schema change of this clock is to be in force.

    A sole voter need not tell others. A change that was rejected came into force too soon for a voter, so its next
    attempt leaves more time. One whose index is built online leaves the time that the build takes.
    """
    assert prepared.kind == SCHEMA
    delay_ms = 0
    if len(state.roster.voters) > 1:
        delay_ms = state.settings.schema_delay_ms << min(inflight.rejections, DOUBLINGS_MAX)
    # At least one more than its own clock, or it would itself belong on the schema that it makes.
    return moved(clock, max(prepared.delay_ms, min(delay_ms, state.settings.clock_offset_ms))) + 1


class SchemaBarrier:
    """The requests that wait for a schema change to be in force."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.waiting: list[InFlight] = []  # those that belong on the schema that it makes
        self.decided: dict[Txid, list[InFlight]] = {}  # those that asked for it

    def blocks(self, prepared: Prepared, clock: int) -> bool:
        """Return whether a scheduled change comes before a transaction of this clock."""
        scheduled = self.state.schema.scheduled
        # A second change waits whatever its clock: it would run on a version that the first has not made.
        return not (scheduled is None or (prepared.kind != SCHEMA and clock < scheduled.activates))

    def wait(self, inflight: InFlight) -> None:
        """Let a request wait until the scheduled change is in force."""
        inflight.move(Stage.SCHEMA)
        self.waiting.append(inflight)
        self.state.counts["waited_for_schema"] += 1

    def released(self) -> list[InFlight]:
        """Take those that need not wait any longer."""
        # All at once, when it is in force: each is executed again, on the new schema.
        if not self.waiting or self.state.schema.scheduled is not None:
            return []
        waiting, self.waiting = self.waiting, []
        return [inflight for inflight in waiting if inflight.stage is Stage.SCHEMA]

    def decide(self, inflight: InFlight, txid: Txid, answer: Answer) -> None:
        """Let a request whose schema change is committed wait until that is in force here.

        Its attempt's end may tell so, and the journal when it was executed again: it is noted once.
        """
        if inflight.stage is Stage.ACTIVATING:
            return
        inflight.move(Stage.ACTIVATING)
        inflight.answer = answer
        # Several may have asked for it: a client sends its command again, to this node as well.
        self.decided.setdefault(txid, []).append(inflight)

    def activated(self, txid: Txid) -> list[InFlight]:
        """Remove and return the requests that asked for a schema change that is in force now."""
        return [inflight for inflight in self.decided.pop(txid, ()) if inflight.stage is Stage.ACTIVATING]
