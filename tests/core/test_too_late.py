"""A leader whose BEGINs arrive after the other nodes have closed time up to them."""

from bedrockish.core.protocol.messages import Begin, Message
from bedrockish.errors import DeadlineError
from tests.core.test_once import Trio, prepared

WAY_S = 1.2  # the closing lag is half a second, and idle nodes close time twice a second


class SlowWay(Trio):
    """A network in which A's BEGIN is slow to every peer."""

    def __init__(self) -> None:
        self.held: list[tuple[float, str, str, Message]] = []
        self.way_s = 0.0
        super().__init__()

    def deliver(self) -> None:
        begun = [said for said in self.under_way if said[0] == "A" and isinstance(said[2], Begin) and self.way_s]
        for said in begun:
            self.under_way.remove(said)
            self.held.append((self.seconds + self.way_s, *said))
        self.under_way.extend(held[1:] for held in self.held if held[0] <= self.seconds)
        self.held = [held for held in self.held if held[0] > self.seconds]
        super().deliver()


def test_error_names_a_transaction_that_always_arrives_too_late() -> None:
    """The client's error names the setting that prevents the commit; nothing was committed."""
    trio = SlowWay()
    trio.way_s = WAY_S
    request_id = trio.submit("A", prepared({}, writes="x"), once=False)
    trio.run(12.0)
    answer = trio.answers[request_id]
    assert isinstance(answer, DeadlineError)
    assert trio.executions[request_id] > 2
    assert "did not happen: it reached" in answer.message
    assert "closing_lag_ms" in answer.message
