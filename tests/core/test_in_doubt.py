"""The node's report about transactions whose outcome it does not know."""

from dataclasses import replace

from bedrockish.core.protocol.events import Received
from bedrockish.core.protocol.messages import Begin, Rollback
from bedrockish.node.admin.status import in_doubt
from bedrockish_journal.model.transaction import decode_transaction
from tests.core.net import Net, add
from tests.core.test_once import Trio, prepared


def test_status_of_a_transaction_in_doubt_has_the_number_of_its_commands_and_no_ids() -> None:
    world = Trio()
    world.submit("B", prepared(world.base("B"), writes="x"), command="first")
    body = next(message.body for _, _, message in world.under_way if isinstance(message, Begin))
    shared = replace(decode_transaction(body), joined=(("second", b""), ("third", b"")), digests=(), body=b"")
    world.step("C", Received("B", Begin(shared.body)))
    (doubt,) = in_doubt(world.nodes["C"], world.now)
    assert (doubt["txid"], doubt["commands"]) == (str(shared.txid), 3)
    assert not {"first", "second", "third"} & {str(value) for value in doubt.values()}


def test_begin_that_a_voter_dropped_is_sent_again() -> None:
    """A link loses nothing, but a node that has too many messages in pieces drops some."""
    net = Net("AB")
    net.ask("A", add("first", "x"))
    net.flights.clear()
    net.run(3.0)
    assert net.told("A") == {"first": "A1"}


def test_rollback_that_was_lost_is_sent_again() -> None:
    """A node that does not know yet that it is a voter ignores rollbacks; safe time must not stop for ever because of
    that.
    """
    net = Net("AB")
    net.ask("A", add("first", "x", timeout_s=0.2))
    core = net.places["A"].core
    net.kept = {Begin, Rollback}
    net.run(0.5)
    net.flights.clear()
    assert core.state.votes.pending.transactions
    net.kept = set()
    net.run(3.0)
    assert not core.state.votes.pending.transactions
    assert net.told("A")["first"] != "A1"
