"""One node and the clocks of others: requests for clocks, answers and refusals; holds of readers; removed entries."""

from bedrockish.api.requests import NOTHING, Answer, Request, Statement
from bedrockish.core.node import Node
from bedrockish.core.protocol.effects import Effect, Execute, KeepHold, Reply, Send
from bedrockish.core.protocol.events import (
    ClockSet,
    ClockWanted,
    Executed,
    Held,
    Now,
    PeerUp,
    Received,
    Shortened,
    Submitted,
)
from bedrockish.core.protocol.messages import (
    AskClock,
    Begin,
    Fetch,
    Gossip,
    Message,
    Reason,
    Reject,
    Removed,
    ToldClock,
)
from bedrockish.core.protocol.records import Prepared, Recovered
from bedrockish.core.replica.safe_time import RELEASED
from bedrockish.core.state.settings import Settings
from bedrockish.errors import ConflictError
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.clock import pack
from bedrockish_journal.model.transaction import ROWS
from tests.core.test_member_changes import CLOCK, WALL, One, membership, transaction

REQUEST = Request("stamp", (Statement("INSERT"),))


class Two(One):
    """The node B, with A and C played by the test and within reach."""

    def __init__(self, members: str = "ABC") -> None:
        super().__init__(membership(0, members))
        for peer in self.node.state.roster.peers:
            self.step(PeerUp(peer))
        self.node.state.clock.safe = CLOCK - 1  # as if time had passed

    def told(self, effects: list[Effect], kind: type[Message]) -> list[Message]:
        return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, kind)]


def prepared(clock: int, *, readonly: bool = False) -> Prepared:
    access_set = AccessSet() if readonly else AccessSet(write_points=frozenset({b"t:x\0k"}))
    return Prepared({}, 0, readonly, ROWS, access_set, b"", NOTHING, clock)


def wanted(two: Two) -> list[Effect]:
    """Submit a request, have it executed, and let it ask for a clock."""
    effects = two.step(Submitted(1, REQUEST))
    assert Execute(1) in effects
    return two.step(ClockWanted(1))


def test_transaction_clock_exceeds_the_clocks_of_a_majority() -> None:
    """The requested clock becomes the transaction's, which begins without a further request."""
    two = Two()
    asked = two.told(wanted(two), AskClock)
    assert len(asked) == 2, "both others are asked"
    number, ours = asked[0].number, asked[0].clock  # type: ignore[union-attr]
    theirs = ours + pack(3)
    effects = two.step(Received("A", ToldClock(number, theirs)))
    (execute,) = [one for one in effects if isinstance(one, Execute)]
    assert execute.clock > theirs
    effects = two.step(Executed(1, prepared(execute.clock)))
    begun = two.told(effects, Begin)
    assert len(begun) == 2
    assert two.node.state.votes.pending.smallest_clock() == execute.clock
    late = two.step(Received("C", ToldClock(number, theirs + 1)))
    assert not two.told(late, Begin), "a late answer is no more than that"


def test_read_at_a_clock_is_answered_when_a_majority_reports_that_clock() -> None:
    two = Two()
    (asked, _) = two.told(wanted(two), AskClock)
    effects = two.step(Received("C", ToldClock(asked.number, 1)))  # type: ignore[union-attr]
    (execute,) = [one for one in effects if isinstance(one, Execute)]
    effects = two.step(Executed(1, prepared(execute.clock, readonly=True)))
    assert not [one for one in effects if isinstance(one, Reply)]
    (again, _) = two.told(effects, AskClock)
    assert again.clock == execute.clock  # type: ignore[union-attr]
    effects = two.step(Received("C", ToldClock(again.number, execute.clock)))  # type: ignore[union-attr]
    assert [one.answer for one in effects if isinstance(one, Reply) and isinstance(one.answer, Answer)]


def test_a_question_is_repeated_until_a_majority_has_answered() -> None:
    two = Two()
    (asked, _) = two.told(wanted(two), AskClock)
    effects = two.node.step(Received("A", Gossip({}, 0, 0, 1, "store of A", 1, WALL)), Now(0.5, WALL + 500))
    repeated = [one for one in two.told(effects, AskClock) if one.number == asked.number]  # type: ignore[union-attr]
    assert len(repeated) == 2


def test_sole_voter_asks_no_other_node_for_a_clock() -> None:
    one = Two("B")
    effects = wanted(one)
    assert [each for each in effects if isinstance(each, Execute) and each.clock]


def test_clock_question_is_answered_unless_too_far_ahead() -> None:
    two = Two()
    (told,) = two.hear("A", AskClock(7, CLOCK + pack(4_000)))
    assert isinstance(told, ToldClock)
    assert told.clock >= CLOCK + pack(4_000)
    assert two.hear("A", AskClock(8, CLOCK + pack(60_000))) == []
    assert two.node.state.clock.value < CLOCK + pack(10_000)
    assert two.node.state.roster.peers["A"].ahead_ms > 50_000
    two.hear("A", AskClock(9, CLOCK))
    assert two.node.state.roster.peers["A"].ahead_ms == 0


def test_no_clock_counts_as_ahead_before_a_majority_is_heard() -> None:
    """Before it knows the clocks of a majority, a started node follows no clock, and reports no peer's clock."""
    recovered = Recovered("B", "store of B", membership(0, "ABC"))
    node = Node(recovered, Settings(ask_rest_ms=0), lambda: 0.5, Now(0.0, WALL))
    node.start(Now(0.0, WALL))
    node.step(Received("A", AskClock(7, CLOCK)), Now(0.01, WALL + 10))
    assert node.state.clock.value < CLOCK
    assert node.state.roster.peers["A"].ahead_ms == 0


def test_begin_with_a_clock_too_far_ahead_is_rejected_and_not_followed() -> None:
    two = Two()
    far = CLOCK + pack(3_600_000)
    two.hear("A", Gossip({}, 0, 0, far, "store of A", 1, WALL))
    assert two.node.state.clock.value < CLOCK + pack(10_000)
    ahead = transaction("A", pack(3_600_000))
    (rejected,) = [one for one in two.hear("A", Begin(ahead.body)) if isinstance(one, Reject)]
    assert rejected.reason == Reason.AHEAD
    two.step(ClockSet(follows_wall=False))
    assert not [
        one for one in two.hear("A", Begin(ahead.body)) if isinstance(one, Reject) and one.reason == Reason.AHEAD
    ]


def test_transaction_with_a_too_old_clock_of_its_client_is_not_begun() -> None:
    """A request is executed again with a new clock. An open transaction cannot be, and its client gets an error."""
    for once in (False, True):
        two = Two()
        two.step(Submitted(1, REQUEST, once))
        effects = two.step(Executed(1, prepared(two.node.state.clock.closed or 1)))
        assert not two.told(effects, Begin)
        errors = [one.answer for one in effects if isinstance(one, Reply)]
        assert [isinstance(error, ConflictError) for error in errors] == ([True] if once else [])


def test_clock_given_to_a_client_is_used_for_one_transaction() -> None:
    two = Two()
    two.step(Submitted(1, REQUEST, True))
    clock = two.node.tick(Now(0.01, WALL + 10))
    effects = two.step(Executed(1, prepared(clock)))
    (begun, _) = two.told(effects, Begin)
    assert not two.node.coordinator.clock_quorum.fits(clock, clock)
    assert two.node.coordinator.clock_quorum.fits(clock + 1, clock)
    assert isinstance(begun, Begin)


def test_holds_are_gossiped_and_the_latest_of_a_reader_counts() -> None:
    two = Two()
    assert KeepHold("mirror", 1, 50) in two.step(Held("mirror", 50))
    assert two.node.state.holds == {"mirror": (1, 50)}
    two.step(Held("mirror", 70))
    assert two.node.state.holds == {"mirror": (1, 70)}
    two.hear("A", Gossip({}, 0, 0, 1, "store of A", 1, WALL, {"mirror": (1, 60), "other": (1, 5)}))
    assert two.node.state.holds == {"mirror": (1, 70), "other": (1, 5)}
    two.step(Held("mirror", 20))
    assert two.node.state.holds["mirror"] == (2, 20), "it has begun anew, which counts more than how far it was"
    two.hear("A", Gossip({}, 0, 0, 1, "store of A", 1, WALL, {"mirror": (1, 90)}))
    assert two.node.state.holds["mirror"] == (2, 20)
    two.step(Held("mirror", None))
    assert two.node.state.holds["mirror"] == (2, RELEASED)
    two.step(Held("mirror", 10))
    assert two.node.state.holds["mirror"] == (3, 10)


def test_removed_entries_are_reported_and_fetched_from_another_peer() -> None:
    two = Two()
    two.node.state.timelines.applied["B"] = two.node.state.timelines.taken["B"] = 9
    two.step(Shortened({"B": 4}))
    said = two.hear("A", Fetch({"B": 3}, 1_000))
    assert [(type(one), one.upto) for one in said if isinstance(one, Removed)] == [(Removed, {"B": 4})]
    assert not [one for one in two.hear("A", Fetch({"B": 5}, 1_000)) if isinstance(one, Removed)]
    # B lacks A1, which A has removed, so B asks C. When C has removed it, too, B reports the remedy.
    for peer in "AC":
        two.hear(peer, Gossip({"A": 3}, 0, 0, 1, f"store of {peer}", 1, WALL))
    two.node.apply_queue.fetch_missing(at_once=True)
    two.node.state.outbox.effects.clear()
    effects = two.step(Received("A", Removed({"A": 3}, 1)))
    assert [one.peer for one in effects if isinstance(one, Send) and isinstance(one.message, Fetch)] == ["C"]
    two.step(Received("C", Removed({"A": 2}, 1)))
    assert "all others have removed from their journals" in two.node.state.trouble
    assert "bedrockish join" in two.node.state.trouble
