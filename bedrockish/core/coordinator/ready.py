"""The requests whose stage has ended, in order; ``Coordinator.advance`` moves each to its next stage."""

from bedrockish.core.coordinator.awaited import Awaited
from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.protocol.events import ClockWanted, Executed, Failed, Overtaken

# The end of a stage: the result of an execution; whether a strict read is valid, or the transactions that it has to
# wait for; None for a wait that is over.
End = Executed | Overtaken | ClockWanted | Failed | Awaited | bool | None


class Ready:
    """The queue of requests that move to another stage in this step.

    Timers, completions and the parts of the coordinator that unblock a request only add it here.
    """

    def __init__(self) -> None:
        # The requests by number, each with its stage when it was added, and the end of that stage. Empty at the end of
        # most events.
        self.queue: dict[int, tuple[InFlight, Stage, End]] = {}

    def add(self, inflight: InFlight, end: End = None) -> None:
        """Enqueue a request whose stage has ended; the entry is ignored if the stage changes first."""
        self.queue[inflight.number] = inflight, inflight.stage, end
