"""What a node says of the transactions whose outcome it does not know."""

from dataclasses import replace

from bedrockish.core.protocol.events import Received
from bedrockish.core.protocol.messages import Begin
from bedrockish.node.admin.status import in_doubt
from bedrockish_journal.model.transaction import decode_transaction
from tests.core.test_once import Trio, prepared


def test_all_commands_of_a_transaction_in_doubt_are_told() -> None:
    world = Trio()
    world.submit("B", prepared(world.base("B"), writes="x"), command="first")
    body = next(message.body for _, _, message in world.under_way if isinstance(message, Begin))
    shared = replace(decode_transaction(body), joined=(("second", b""), ("third", b"")), body=b"")
    world.step("C", Received("B", Begin(shared.body)))
    (doubt,) = in_doubt(world.nodes["C"], world.now)
    assert (doubt["txid"], doubt["command"], doubt["joined"]) == (str(shared.txid), "first", ["second", "third"])
