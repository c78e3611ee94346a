"""The requests whose stage has ended, in order: ``Coordinator.advance`` takes them on, one after the other."""

from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.protocol.events import ClockWanted, Executed, Failed, Overtaken

# The end of a stage: the result of an execution; whether a strict read is valid; None for a wait that is over.
End = Executed | Overtaken | ClockWanted | Failed | bool | None


class Ready:
    """A queue of requests to take on in this step.

    Timers, completions and the parts of the coordinator that unblock a request only add it here.

    Attributes:
        queue: the requests by number, each with its stage when it was added, and the end of that stage. Empty at the
            end of most events.
    """

    def __init__(self) -> None:
        self.queue: dict[int, tuple[InFlight, Stage, End]] = {}

    def add(self, inflight: InFlight, end: End = None) -> None:
        """Have a request taken on before this step ends, unless its stage changes until then."""
        self.queue[inflight.number] = inflight, inflight.stage, end
