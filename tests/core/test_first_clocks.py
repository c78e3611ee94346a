"""A new cluster begins nothing before its nodes know what time it is: its first commits have clocks of today."""

from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.messages import Approve, Gossip
from bedrockish.core.protocol.records import Recovered
from bedrockish.core.state.settings import Settings
from bedrockish.core.state.state import State
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import milliseconds, pack
from bedrockish_journal.model.transaction import SCHEMA, Transaction, Txid
from tests.core.net import Net, add
from tests.core.test_member_changes import membership

TODAY_MS = 1_700_000_000_000
MORNING = pack(TODAY_MS - 3_600_000)


class Walls(Net):
    """A network with wall clocks, of which nodes say nothing while ``silent``."""

    silent = True

    def __init__(self, voters: str) -> None:
        super().__init__(voters)
        for place in self.places.values():  # clocks that only count, for the model check
            place.core.state.clock.follow_wall(follows=True)

    @property
    def now(self) -> Now:
        return Now(self.seconds, TODAY_MS + int(1000 * self.seconds))

    def deliver(self) -> None:
        self.kept = {Gossip} if self.silent else set()
        super().deliver()


def test_no_transaction_begins_before_a_majority_has_reported_its_time() -> None:
    net = Walls("ABC")
    net.ask("A", add("one", "k"))
    net.run(3.0)
    assert "Begin" not in net.kinds("A")
    assert not net.told("A")
    net.silent = False
    net.run(3.0)
    assert "one" in net.told("A")
    clocks = {message.txid.clock for _, _, message in net.said if isinstance(message, Approve)}
    assert len(clocks) == 1
    assert milliseconds(clocks.pop()) >= TODAY_MS


def test_request_names_the_missing_clocks_when_it_times_out() -> None:
    net = Walls("ABC")
    net.ask("A", add("one", "k", timeout_s=2.0))
    net.run(1.0)
    [request_id] = net.places["A"].core.coordinator.replies.in_flight.values()
    assert request_id.refusal == "node A does not know the wall clocks of a majority of the voters yet"
    net.run(3.0)
    assert net.told("A")["one"] == "did not happen"


def test_sole_voter_begins_without_other_clocks() -> None:
    net = Walls("A")
    net.ask("A", add("one", "k"))
    net.run(1.0)
    assert "one" in net.told("A")


def test_a_restart_before_a_schema_change_follows_no_wall_of_its_own() -> None:
    """The machine may report any time: the clock begins at its ceiling, even if a change comes into force soon."""
    txid, nothing = Txid(MORNING - 5, "A"), AccessSet()
    change = Transaction(
        *(txid, {}, 0, 0, 0, "alter", "serializable", SCHEMA, nothing, b"", b""), activates=MORNING - 1
    )
    recovered = Recovered("A", "file of A", membership(0, "ABC"), ceiling=MORNING, scheduled=change)
    state = State(recovered, Settings(), lambda: 0.5, Now(0.0, TODAY_MS + 3_600_000))
    assert state.schema.scheduled is change
    assert state.clock.read() == MORNING
