"""The invariants of one node hold after ordinary work, and the check of each fails on a state that breaks it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bedrockish.core.coordinator.request import MOVES, InFlight, Stage
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.records import Recovered
from bedrockish.core.state.roster import Peer
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.transaction import Txid
from tests.core.net import Net, add


def busy() -> Node:
    """Return a node with a transaction of its own in flight, and a request that waits for it."""
    net = Net("ABC")
    net.cut("A", "B")
    net.cut("A", "C")
    net.ask("A", add("P", "x"))
    net.ask("A", add("Q", "x"))
    core = net.places["A"].core
    assert len(core.state.votes.pending.transactions) == 1
    assert [one.stage for one in core.coordinator.replies.in_flight.values()] == [Stage.VOTING, Stage.WAITING]
    core.check()
    return core


def cut_ahead(node: Node) -> None:
    node.state.clock.cut = node.state.clock.closed + 1


def closed_over_pending(node: Node) -> None:
    node.state.clock.closed = node.state.clock.cut = 1 << 62


def unheld(node: Node) -> None:
    next(iter(node.state.votes.by_txid.values())).held = False


def over_and_pending(node: Node) -> None:
    node.state.votes.outcomes[next(iter(node.state.votes.pending.transactions))] = False


def forgotten_by_pending(node: Node) -> None:
    node.state.votes.pending.remove(next(iter(node.state.votes.pending.transactions)))


def above_the_ceiling(node: Node) -> None:
    node.state.clock.ceiling = node.state.clock.value - 1


def heard_by_a_stranger(node: Node) -> None:
    node.state.roster.peers["Z"] = Peer()


def never_in_force(node: Node) -> None:
    change = next(iter(node.state.votes.pending.transactions.values()))
    node.state.schema.schedule(replace(change, activates=node.state.clock.safe))


def nobody_told(node: Node) -> None:
    node.state.votes.released.append(next(iter(node.state.votes.pending.transactions)))


def taken_from_nowhere(node: Node) -> None:
    node.state.timelines.taken["B"] = 7


def counts_after_a_promise(node: Node) -> None:
    next(iter(node.state.votes.by_txid.values())).promised = 2


def waits_for_nobody(node: Node) -> None:
    node.coordinator.contention.wait_queue.waits.clear()


def flies_alone(node: Node) -> None:
    node.coordinator.attempts.open.clear()


BREAKS: tuple[Callable[[Node], None], ...] = (
    cut_ahead,
    closed_over_pending,
    unheld,
    over_and_pending,
    forgotten_by_pending,
    above_the_ceiling,
    heard_by_a_stranger,
    never_in_force,
    nobody_told,
    taken_from_nowhere,
    counts_after_a_promise,
    waits_for_nobody,
    flies_alone,
)


@pytest.mark.parametrize("damage", BREAKS, ids=lambda damage: damage.__name__)
def test_each_invariant_check_detects_a_violation(damage: Callable[[Node], None]) -> None:
    """Each check fails on a state that breaks its invariant."""
    node = busy()
    damage(node)
    with pytest.raises(AssertionError):
        node.check()


def test_request_moves_only_between_stages_of_the_table() -> None:
    """Every stage has a row, each is reached from another, and a step that is not in the table is refused."""
    assert set(MOVES) == set(Stage)
    assert {stage for stages in MOVES.values() for stage in stages} == set(Stage) - {Stage.TOKEN}
    request_id = InFlight(1, add("P", "x"), 1.0)
    with pytest.raises(AssertionError, match="does not go on to"):
        request_id.move(Stage.VOTING)
    assert Txid(1, "A") not in request_id.open


def test_refilled_file_keeps_its_cut_below_its_votes() -> None:
    """The file has its own votes, and the cut of the copy, which may be above them. With that cut the node would answer
    HELD for a transaction below its cut, and a commit could appear below safe time.
    """
    before = busy().state
    (vote,) = before.votes.by_txid.values()
    clock = vote.txid.clock
    file = Recovered("A", "file of A", before.roster.membership, votes=(vote,), ceiling=clock + 10, cut=clock + 5)
    node = Node(file, Settings(), lambda: 0.5, Now(1.0, 0))
    assert vote.txid in node.state.votes.pending
    assert node.state.clock.cut < clock
    node.start(Now(1.0, 0))
    node.check()
