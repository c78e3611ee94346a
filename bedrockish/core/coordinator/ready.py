"""The requests that can go on, in order: ``Coordinator.advance`` takes them, one after the other, at one place."""

from collections.abc import Iterator

from bedrockish.core.coordinator.request import InFlight, Stage


class Ready:
    """A queue of requests to execute in this step.

    The parts of the coordinator that unblock a request add it here, and never execute it themselves.

    Attributes:
        queue: the requests by number, each with its stage when it was added. Empty at the end of most events.
    """

    def __init__(self) -> None:
        self.queue: dict[int, tuple[InFlight, Stage]] = {}

    def add(self, inflight: InFlight) -> None:
        """Have a request executed before this step ends, unless its stage changes until then."""
        self.queue[inflight.number] = inflight, inflight.stage

    def take(self) -> Iterator[InFlight]:
        """Yield the requests, also those added during the loop, until the queue is empty."""
        queue = self.queue
        while queue:
            number = next(iter(queue))
            inflight, stage = queue.pop(number)
            # Its time may have been over in this very step.
            if inflight.stage is stage:
                yield inflight
